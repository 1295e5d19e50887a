"""Sums of gradients of parts: disjoint parts become a concatenation, others stay, and values do not change."""

from collections import Counter

import pytest
from bridge.samples import graph_of
from needs import needs

from fuser_lab.bridge.padded_sums import join_sums
from fuser_lab.bridge.traced import target_of

torch = needs("torch")


def selected(x, dim, index, size):
    sizes = list(x.shape)
    sizes.insert(dim % (x.ndim + 1), size)
    return torch.ops.aten.select_backward.default(x, sizes, dim, index)


def sliced(x, size, dim, start, end, step=1):
    sizes = list(x.shape)
    sizes[dim] = size
    return torch.ops.aten.slice_backward.default(x, sizes, dim, start, end, step)


def both(x, y):
    return selected(x.sin(), 1, 0, 3) + selected(y, 1, 1, 3)


@pytest.mark.parametrize(("function", "cats", "left"), [
    (lambda x, y: both(x, y) + selected(x.cos(), 1, 2, 3), 1, 0),
    (lambda x, y: selected(x, -2, -1, 3) + selected(y, 1, 0, 3), 1, 0),
    (lambda x, y: selected(x, 0, 7, 40) + selected(y, 0, 30, 40), 1, 0),
    (lambda x, y: sliced(x, 9, 1, 4, 8) + sliced(y, 9, -1, -9, -5), 1, 0),
    (lambda x, y: sliced(x, 7, 1, 0, 4) + sliced(y, 7, 1, 3, 7), 0, 2),
    (lambda x, y: sliced(x, 8, 1, 0, 7, 2) + sliced(y, 8, 1, 1, 8, 2), 0, 2),
    (lambda x, y: both(x, y) + x[:, None].exp(), 1, 0),
    (lambda x, y: both(x, y) + selected(y.cos(), 1, 0, 3) + selected(x, 1, 0, 3), 1, 0),
    (lambda x, y: selected(sliced(x, 9, 1, 0, 4), 0, 1, 2) + selected(sliced(y, 9, 1, 4, 8), 0, 1, 2)
     + selected(sliced(x, 9, 1, 2, 6), 0, 0, 2), 2, 1),
    (lambda x, y: (whole := selected(x, 1, 0, 3)) + selected(y, 1, 1, 3) + whole.sin(), 0, 2),
    (lambda x, y: selected(x, 1, 0, 3) + selected(y, 1, 0, 3), 0, 2),
    (lambda x, y: selected(x, 0, 0, 2) + selected(y, 0, 1, 2)
     + sliced(y[None], 2, 0, 1, 2), 0, 3),
])  # fmt: skip
def test_disjoint_parts_are_joined(function, cats, left):
    given = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    gm = graph_of(torch, lambda v: [function(v["x"], v["y"])], given)
    (expected,) = gm(*given.values())
    join_sums(gm.graph)
    gm.graph.lint()
    gm.recompile()
    (result,) = gm(*given.values())
    counts = Counter(target_of(node) for node in gm.graph.nodes)
    assert torch.allclose(result, expected, rtol=1e-6)
    assert result.stride() == expected.stride()
    assert counts["aten.cat.default"] == cats
    assert counts["aten.select_backward.default"] + counts["aten.slice_backward.default"] == left


def test_gradients_of_steps_are_those_of_eager_mode():
    def steps(u, c, unused):
        states = []
        for t in range(1, 4):
            x, f = u[:, t].float().chunk(2, -1)
            c = torch.sigmoid(f + c) * c + x
            states.append(c.to(u.dtype))
        return torch.stack(states, 1), c, unused.shape[0]

    def gradients(function):
        draw = torch.Generator().manual_seed(3)
        given = [torch.randn(shape, generator=draw).to(dtype).requires_grad_()
                 for shape, dtype in (((5, 6, 10), torch.float16), ((5, 5), torch.float32), ((2,), torch.float32))]
        joined, last, _ = function(*given)
        (joined.float().sin().sum() + last.square().sum()).backward()
        return [joined, last, *(x.grad for x in given)]

    ours = gradients(torch.compile(steps, backend="fuser_lab"))
    for value, expected in zip(ours, gradients(steps), strict=True):
        assert (value is None) is (expected is None)
        assert value is None or torch.allclose(value, expected, rtol=2e-3, atol=1e-3)

"""Writes at positions that are data, and look-ups, in the function of a graph on the host: values and errors."""

import importlib

import pytest
from needs import needs
from profiled import events_of

from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.errors import InputError

torch = needs("torch")
bridge = importlib.import_module("fuser_lab.torch")


def ints(most, *shape):
    return torch.randint(0, most, shape)


def floats(*shape):
    return torch.randn(shape)


put = torch.ops.aten.index_put
CASES = {
    "an index with negative positions": (
        lambda x, i, v: put(x.sin(), [i - 3], v, True), lambda: (floats(7, 5, 6), ints(7, 9), floats(5, 1)), 1, 7),
    "two indices that are broadcast": (
        lambda x, i, j, v: put(x, [i, j], v, True),
        lambda: (floats(7, 5, 6), ints(7, 9, 1), ints(5, 4), floats(9, 4, 6)), 2, 5),
    "indices with an axis between them": (
        lambda x, i, j, v: put(x, [i, None, j], v, True),
        lambda: (floats(7, 5, 6), ints(7, 9), ints(6, 9).int(), floats(9, 5)), 2, 6),
    "elements that are replaced": (
        lambda x, i, v: put(x, [None, i], v), lambda: (floats(3, 7), torch.randperm(7)[:4], floats(3, 4)), 1, 7),
    "slices of a transposed tensor": (
        lambda x, i, v: x.T.index_add(0, i, v), lambda: (floats(5, 7), ints(7, 9), floats(9, 5)), 1, 7),
    "slices added to zeros": (
        lambda i, v: torch.zeros(7, 6).index_add(0, i, v.cos()), lambda: (ints(7, 90), floats(90, 6)), 0, 7),
    "integers": (
        lambda x, i, v: x.scatter_add(1, i, v), lambda: (ints(9, 4, 7), ints(7, 4, 3), ints(9, 4, 5)), 1, 7),
    "largest elements": (
        lambda i, v: torch.full((7, 3), -1e9).scatter_reduce(0, i[:, None].expand(9, 3), v, "amax"),
        lambda: (ints(7, 9), floats(9, 3)), 0, 7),
    "one number": (lambda x, i: x.scatter(0, i, 2.5), lambda: (floats(7, 5), ints(7, 3, 5)), 1, 7),
    "rows of an embedding without those of the padding": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 11, 3, False),
        lambda: (floats(4, 9, 16), ints(11, 4, 9)), 1, 11),
    "look-ups in a region": (
        lambda w, i: torch.nn.functional.embedding(i, w).sin(), lambda: (floats(9, 4), ints(9, 3, 5)), 1, 9),
    "look-ups with negative positions": (
        lambda x, i: x.exp()[i] * 2, lambda: (floats(7, 5), ints(14, 9) - 7), 1, 7),
    "look-ups with two indices": (
        lambda x, i, j: x[i, j].sin(), lambda: (floats(7, 5), ints(7, 4, 1), ints(10, 3) - 5), 2, 5),
    "look-ups at positions that the region computes": (
        lambda x, i: x.gather(1, (i * 0.5).long()).cos(), lambda: (floats(9, 4), 2.0 * ints(4, 9, 3)), 1, 4),
    "look-ups with two indices that the region computes": (
        lambda x, i, j: x[i + 1, j - 1].sin(), lambda: (floats(7, 5), ints(6, 4, 1), ints(5, 3)), 2, 5),
    "sums of rows at positions that the region computes": (
        lambda x, i: x[i + 1].sum(1), lambda: (floats(7, 300), ints(6, 40)), 1, 7),
    "look-ups of a column of positions in a region": (
        lambda w, i: torch.nn.functional.embedding(i[:, 4], w).sin(), lambda: (floats(9, 4), ints(9, 6, 5)), 1, 9),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kernels_write_and_check_positions(case):
    """The values are torch's, and a position outside of its axis is named in an error."""
    function, make, index, size = CASES[case]
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = make()
    run = torch.compile(function, backend="fuser_lab", dynamic=False)
    for _ in range(3):
        result = run(*inputs)
    (graph,) = bridge.last().graphs
    ((frame,),) = graph.run._frames.values()
    assert not [value for value in frame.__globals__.values() if isinstance(value, TorchRegion)]  # which would be slow
    expected = function(*inputs)
    assert (result.stride(), result.dtype) == (expected.stride(), expected.dtype)
    torch.testing.assert_close(result, expected)
    wrong = list(inputs)
    wrong[index] = inputs[index].clone()
    wrong[index].view(-1)[-1] = 50
    with pytest.raises(InputError, match=rf"has the value \d+, out of range: the indexed axis has size {size} "):
        run(*wrong)
    torch.testing.assert_close(run(*inputs), expected)


def test_additions_at_positions_call_no_function_of_torch():
    """Torch's function is not called once the graph has a function of its own."""
    torch._dynamo.reset()
    run = torch.compile(lambda x, i, v: x.index_add(0, i, v.sin()), backend="fuser_lab", dynamic=False)
    inputs = floats(7, 5), ints(7, 9), floats(9, 5)
    run(*inputs)
    run(*inputs)
    events = events_of(lambda: run(*inputs), "CPU")
    assert not [event.name for event in events if event.name.startswith("aten::")]

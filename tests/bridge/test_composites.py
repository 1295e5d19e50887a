"""Our decompositions against torch's kernels."""

import pytest
from needs import needs

from fuser_lab.bridge.composites import decompositions

torch = needs("torch")
aten = torch.ops.aten
OWN = decompositions()


def tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in shapes]


@pytest.mark.parametrize("dim", [0, 2])
def test_the_gradient_of_weight_norm(dim):
    v, gradient = tensors((3, 4, 5), (3, 4, 5))
    (g,) = tensors([n if axis == dim else 1 for axis, n in enumerate(v.shape)])
    norms = aten._weight_norm_interface.default(v, g, dim)[1]
    op = aten._weight_norm_interface_backward.default
    torch.testing.assert_close(OWN[op](gradient, v, g, norms, dim), op(gradient, v, g, norms, dim))


def test_fake_quantization():
    (x,) = tensors((40, 50))
    op = aten.fake_quantize_per_tensor_affine_cachemask.default
    ours, theirs = OWN[op](x, 0.013, 3, -128, 127), op(x, 0.013, 3, -128, 127)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", [(1, 4, 5), (3, 4, 1), (3, 1, 5), (3, 4, 5)], ids=str)
def test_products_with_vectors_are_of_numbers(sizes, dtype):
    rows, inner, columns = sizes
    a, b = (x.mul(9).to(dtype) for x in tensors((2, rows, inner), (2, inner, columns)))
    product = OWN[aten.bmm.default](a, b)
    if 1 in sizes:
        torch.testing.assert_close(product, torch.bmm(a, b))
    else:
        assert product is NotImplemented


ONE, OTHER = tensors((3, 4), (5,)), tensors((3, 4), (5,))
LISTS = [
    ("add", "List", (ONE, OTHER)), ("mul", "ScalarList", (ONE, [0.5, 2.0])), ("div", "Scalar", (ONE, 3.0)),
    ("addcmul", "ScalarList", (ONE, OTHER, OTHER, [0.5, 2.0])), ("addcdiv", "Scalar", (ONE, OTHER, OTHER, 0.5)),
    ("lerp", "Scalar", (ONE, OTHER, 0.3)), ("maximum", "Scalar", (ONE, 0.3)), ("minimum", "ScalarList", (ONE, [0, 1])),
    ("maximum", "List", (ONE, OTHER)), ("norm", "Scalar", (ONE, 1)), ("pow", "ScalarAndTensor", (2.0, ONE)),
    ("zero", "default", (ONE,)), ("max", "default", (ONE,)), ("exp", "default", (ONE,)),
    ("copy", "default", (ONE, [x.double() for x in OTHER])),
]


@pytest.mark.parametrize(("name", "kind", "args"), LISTS, ids=[f"{name}.{kind}" for name, kind, _ in LISTS])
def test_lists_are_taken_one_tensor_at_a_time(name, kind, args):
    op = getattr(getattr(aten, f"_foreach_{name}"), kind)
    torch.testing.assert_close(OWN[op](*args), op(*args))


@pytest.mark.parametrize("sizes", [(300,), (300, 280)])  # torch compares positions from 256 on in uint16
def test_ones_on_a_diagonal_are_compared_in_a_dtype_that_arange_has(sizes):
    def chosen(x):
        return torch.eye(*sizes, dtype=torch.bool), torch.eye(*sizes) + x

    for found, expected in zip(torch.compile(chosen, backend="fuser_lab")(torch.ones(1)), chosen(torch.ones(1)),
                               strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim", "size", "step"),
    [((3, 20), 1, 5, 2), ((3, 20), -1, 5, 7), ((7, 3, 4), 0, 3, 1), ((21,), 0, 6, 3), ((4, 9), 1, 1, 3)],
    ids=str,
)
def test_sums_of_overlapping_windows(shape, dim, size, step, dtype):
    (x,) = tensors(shape)
    (windows,) = tensors(x.unfold(dim, size, step).shape)
    op = aten.unfold_backward.default
    ours = OWN[op](windows.to(dtype), shape, dim, size, step)
    expected, near = op(windows, shape, dim, size, step), 0.05 if dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(ours.float(), expected, atol=near, rtol=near)
    assert ours.dtype == dtype
    assert OWN[op](windows, shape, dim, 17 * step, step) is NotImplemented


@pytest.mark.parametrize(
    ("sizes", "kernel", "padding", "stride"),
    [((7, 9), (3, 3), (1, 1), (1, 1)), ((1, 40), (1, 8), (0, 0), (1, 2)), ((8, 10), (2, 4), (0, 1), (2, 3))], ids=str,
)
def test_sums_of_overlapping_blocks(sizes, kernel, padding, stride):
    (image,) = tensors((2, 3, *sizes))
    (blocks,) = tensors(torch.nn.functional.unfold(image, kernel, 1, padding, stride).shape)
    op = aten.col2im.default
    for x in (blocks, blocks[0]):
        arguments = (x, sizes, kernel, (1, 1), padding, stride)
        torch.testing.assert_close(OWN[op](*arguments), op(*arguments), check_stride=True)
    assert OWN[op](blocks, sizes, kernel, (2, 2), padding, stride) is NotImplemented

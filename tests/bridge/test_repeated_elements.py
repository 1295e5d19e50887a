"""Nearest upsampling, and other look-ups that repeat each element, are views, and their gradients are sums."""

import pytest
from needs import needs

torch = needs("torch")
bridge = pytest.importorskip("fuser_lab.torch")
upsample = torch.nn.functional.interpolate

CASES = {
    "channels last": (lambda x: upsample(x, scale_factor=(2, 3)) * 2, (2, 3, 4, 5), torch.channels_last, True),
    "one axis": (lambda x: upsample(x, size=12) * 2, (2, 3, 4), torch.contiguous_format, True),
    "positions": (lambda x: x[:, torch.arange(8) // 2] * 2, (3, 4, 2), torch.contiguous_format, True),
    "another order": (lambda x: x[torch.arange(7, -1, -1) // 2] * 2, (4, 3), torch.contiguous_format, False),
    "more axes": (lambda x: x[torch.arange(8).view(1, 8) // 2] * 2, (4, 3), torch.contiguous_format, False),
}


@pytest.mark.parametrize(("function", "shape", "layout", "is_view"), CASES.values(), ids=CASES)
def test_repeated_elements_are_views(function, shape, layout, is_view):
    torch._dynamo.reset()
    x = torch.randn(shape).to(memory_format=layout).requires_grad_()
    expected = function(x)
    given = torch.randn_like(expected)
    found = torch.compile(function, backend="fuser_lab")(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    (gradient,) = torch.autograd.grad(found, x, given)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, x, given))
    adds = [op for op in bridge.last().left_to_torch if op.op == "aten.index_put.default"]
    assert (not adds) == is_view

"""Where kernels round values of float16 and bfloat16: after each op, as eager does, or only where they store them."""

from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab.errors import InputError
from tests.needs import needs

torch = needs("torch")
bridge = pytest.importorskip("fuser_lab.torch")


def gated_norm(x: Any, w: Any) -> Any:
    y = torch.nn.functional.silu(x * w + x) * torch.tanh(x - w)
    y = (y * y.float().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt().to(y.dtype)) * w
    return torch.sigmoid(y * 0.3 + w) * (y + 2)


def results(function: Any, dtype: Any) -> list[Any]:
    """The result and the gradients, of equal inputs, in float64."""
    torch.manual_seed(0)
    x, w = (torch.randn(shape).bfloat16().to(dtype).requires_grad_() for shape in ((24, 96), (96,)))
    out = function(x, w)
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).reshape(out.shape)
    return [t.detach().double() for t in (out, *torch.autograd.grad((out * weights).sum(), (x, w)))]


def distances(function: Any, dtype: Any) -> list[float]:
    """How far results are from those in float64, relative to their norms."""
    exact = results(gated_norm, torch.float64)
    return [float((a - b).norm() / b.norm()) for a, b in zip(results(function, dtype), exact, strict=True)]


def compiled(**options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(gated_norm, backend="fuser_lab", options=options or None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fused_results_and_gradients_are_closer_to_float64_than_eager_ones(dtype: str) -> None:
    kind = getattr(torch, dtype)
    fused, eager = distances(compiled(), kind), distances(gated_norm, kind)
    assert all(ours < 0.95 * theirs for ours, theirs in zip(fused, eager, strict=True)), (fused, eager)
    assert sum(fused) < 0.8 * sum(eager)
    last = bridge.last()
    assert last is not None
    assert not any(region.failed for region in last.regions)
    assert "precision='fused'" in repr(last)


def test_eager_results_are_those_of_eager() -> None:
    with torch.no_grad():
        torch.manual_seed(0)
        x, w = torch.randn(24, 96).bfloat16(), torch.randn(96).bfloat16()
        assert torch.equal(compiled(precision="eager")(x, w), gated_norm(x, w))
        assert "precision='eager'" in repr(bridge.last())
        captured = fl.from_torch(gated_norm, x, w)
        assert "precision='eager'" in repr(captured)
        assert "precision" not in repr(fl.from_torch(gated_norm, x.float(), w.float()))
        assert "precision='fused'" in repr(fl.from_torch(gated_norm, x, w, precision="fused"))


def test_a_precision_is_one_of_two() -> None:
    with pytest.raises(InputError, match="precision must be 'eager' or 'fused', given 'fast'"):
        fl.from_torch(gated_norm, torch.ones(3, 4), torch.ones(4), precision="fast")

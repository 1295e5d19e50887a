"""Batch norm of float16 and bfloat16, rounded as in torch's CPU kernels.

Torch's own decomposition computes in float32 throughout. The kernels do not: with parameters of the input's dtype, they
round the mean and the sum of squares before scaling, which is visible in a batch norm's gradient, a difference of
nearly equal numbers (0.3 of a convolution's gradient in a ResNet block).
"""

from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.targets import is_on_host


def decompositions() -> dict[Any, Any]:
    """Return decompositions by ATen op, which fall back on torch's if the kernels do not round."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    return {
        aten._native_batch_norm_legit_functional.default: _functional,  # noqa: SLF001 - ATen's names begin so
        aten._native_batch_norm_legit.no_stats: _no_stats,  # noqa: SLF001
    }


def _functional(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float,
) -> Any:
    torch = torch_for("fuser_lab.bridge")
    if not (training and _rounds(torch, x)):
        op = torch.ops.aten._native_batch_norm_legit_functional.default  # noqa: SLF001
        return _by_torch(torch, op)(x, weight, bias, mean, variance, training, momentum, eps)
    normalized, batch_mean, batch_variance = _training_norm(torch, x, weight, bias, mean, eps)
    count = x.numel() / x.shape[1]
    return (
        *normalized,
        (momentum * batch_mean + (1 - momentum) * mean).to(mean.dtype),
        (momentum * (batch_variance * (count / (count - 1))) + (1 - momentum) * variance).to(variance.dtype),
    )


def _no_stats(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    torch = torch_for("fuser_lab.bridge")
    if not (training and _rounds(torch, x)):
        op = torch.ops.aten._native_batch_norm_legit.no_stats  # noqa: SLF001
        return _by_torch(torch, op)(x, weight, bias, training, momentum, eps)
    return _training_norm(torch, x, weight, bias, None, eps)[0]


def _by_torch(torch: Any, op: Any) -> Any:
    return torch._decomp.get_decompositions([op])[op]  # noqa: SLF001 - torch has no public name for it


def _rounds(torch: Any, x: Any) -> bool:
    return is_on_host(x.device.type) and x.dtype in {torch.float16, torch.bfloat16}


def _training_norm(torch: Any, x: Any, weight: Any, bias: Any, running: Any, eps: float) -> tuple[Any, Any, Any]:
    """Return ``(result, saved mean, saved reciprocal deviation)``, and the batch's mean and variance in float32."""
    axes = [0, *range(2, x.ndim)]
    wide, count = x.float(), x.numel() / x.shape[1]
    variance, mean = torch.var_mean(wide, axes, correction=0)

    def along(value: Any) -> Any:
        return value.reshape(-1, *[1] * (x.ndim - 2))

    is_mixed = any(value is not None and value.dtype is torch.float32 for value in (weight, bias, running))
    is_dense = x.is_contiguous() or any(
        x.ndim == ndim and x.is_contiguous(memory_format=order)
        for ndim, order in ((4, torch.channels_last), (5, torch.channels_last_3d))
    )
    if is_mixed:
        saved, reciprocal = mean, torch.rsqrt(variance + eps)
    else:
        saved = mean.to(x.dtype)
        if is_dense and x.dtype is torch.bfloat16:
            # Sum, count and quotient are bfloat16 numbers.
            around = (variance * count).to(x.dtype) / torch.full((), count, dtype=x.dtype, device=x.device)
        else:
            off = 0.0 if is_dense else mean - saved
            around = variance + off * off
        reciprocal = torch.rsqrt(around.float() + eps).to(x.dtype)
    if is_mixed or is_dense:
        scale = reciprocal.float() if weight is None else reciprocal.float() * weight.float()
        shift = -saved.float() * scale
        shift = shift if bias is None else bias.float() + shift
        result = (wide * along(scale) + along(shift)).to(x.dtype)
    else:
        # For other memory orders, torch runs op by op, and each op rounds.
        result = (x - along(saved)) * along(reciprocal)
        result = result if weight is None else result * along(weight)
        result = result if bias is None else result + along(bias)
    return (result, saved, reciprocal), mean, variance

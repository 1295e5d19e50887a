"""Instance normalization, forward and backward as fusions."""

import importlib
from typing import Any

from fuser_lab.dtypes import DataType
from fuser_lab.nvfuser.definition import FusionDefinition

torch: Any = importlib.import_module("torch")
nn: Any = importlib.import_module("torch.nn.modules.instancenorm")


def _spread(fd: FusionDefinition, value: Any, like: Any, dims: list[int]) -> Any:
    """Return a tensor with the axes ``dims`` of another one, broadcast along its other axes."""
    return fd.ops.broadcast_in_dim(value, fd.ops.shape(like), dims)


def _forward(fd: FusionDefinition, tensors: list[Any], has_affine: bool, eps: float) -> None:
    """Define y, mean and reciprocal standard deviation of x, the last two of the shape [N, C]."""
    x, *affine = (fd.from_pytorch(tensor) for tensor in tensors)
    dtype, axes = x.dtype, list(range(2, x.ndim))
    wide = fd.ops.cast(x, DataType.Float) if dtype in {DataType.Half, DataType.BFloat16} else x
    variance, mean = fd.ops.var_mean(wide, axes, correction=0, keepdim=False)
    invstd = fd.ops.rsqrt(fd.ops.add(variance, eps))
    y = fd.ops.mul(fd.ops.sub(wide, _spread(fd, mean, wide, [0, 1])), _spread(fd, invstd, wide, [0, 1]))
    if has_affine:
        weight, bias = affine
        y = fd.ops.add(fd.ops.mul(y, _spread(fd, weight, wide, [1])), _spread(fd, bias, wide, [1]))
    fd.add_output(fd.ops.cast(y, dtype))
    fd.add_output(mean)
    fd.add_output(invstd)


def _backward(fd: FusionDefinition, tensors: list[Any], has_affine: bool) -> None:
    """Define the gradients of x and, if there are any, of weight and bias."""
    grad, x, mean, invstd, *affine = (fd.from_pytorch(tensor) for tensor in tensors)
    dtype, axes = x.dtype, list(range(2, x.ndim))
    wide = [fd.ops.cast(t, DataType.Float) if dtype in {DataType.Half, DataType.BFloat16} else t for t in (grad, x)]
    dy, values = wide
    scale = _spread(fd, invstd, values, [0, 1])
    normal = fd.ops.mul(fd.ops.sub(values, _spread(fd, mean, values, [0, 1])), scale)
    inner = fd.ops.mul(dy, _spread(fd, affine[0], values, [1])) if has_affine else dy
    size = 1
    for axis in axes:
        size = fd.ops.mul(fd.ops.size(values, axis), size)
    sums = [fd.ops.div(fd.ops.sum(t, axes), size) for t in (inner, fd.ops.mul(inner, normal))]
    first, second = (_spread(fd, t, values, [0, 1]) for t in sums)
    dx = fd.ops.mul(scale, fd.ops.sub(fd.ops.sub(inner, first), fd.ops.mul(normal, second)))
    fd.add_output(fd.ops.cast(dx, dtype))
    if has_affine:
        others = [0, *axes]
        fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.mul(dy, normal), others), affine[0].dtype))
        fd.add_output(fd.ops.cast(fd.ops.sum(dy, others), affine[0].dtype))


class InstanceNormNVFuserFunction(torch.autograd.Function):  # type: ignore[misc]  # torch is imported untyped
    """Instance normalization of x [N, C, ...] by its own mean and variance."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Return y, of x's shape and dtype."""
        affine = [] if weight is None else [weight, bias]
        tensors = [t.detach() for t in (x, *affine)]
        with FusionDefinition() as fd:
            _forward(fd, tensors, bool(affine), eps)
        y, mean, invstd = fd.execute(tensors)
        ctx.save_for_backward(x, mean, invstd, *affine[:1])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of x, weight and bias."""
        tensors = [t.detach() for t in (grads[0].contiguous(), *ctx.saved_tensors)]
        has_affine = len(tensors) == 5
        with FusionDefinition() as fd:
            _backward(fd, tensors, has_affine)
        gradients = fd.execute(tensors)
        return (*gradients, None) if has_affine else (*gradients, None, None, None)


class _Fused:
    """Normalization with the statistics of the input; running statistics are updated as in torch's module."""

    def forward(self: Any, input: Any) -> Any:
        """Return the normalized input, of its shape and dtype."""
        self._check_input_dim(input)
        if input.dim() == self._get_no_batch_dim():
            return self.forward(input.unsqueeze(0)).squeeze(0)
        if self.running_mean is not None:
            if not self.training:
                return super().forward(input)  # type: ignore[misc]  # torch's module comes next
            self._update(input.detach())
        return InstanceNormNVFuserFunction.apply(input, self.weight, self.bias, self.eps)

    def _update(self: Any, x: Any) -> None:
        variance, mean = torch.var_mean(x.float(), dim=tuple(range(2, x.dim())), unbiased=True)
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(now.mean(0).to(running.dtype), self.momentum)
        self.num_batches_tracked.add_(1)


class InstanceNorm1dNVFuser(_Fused, nn.InstanceNorm1d):  # type: ignore[misc]  # torch is imported untyped
    """`torch.nn.InstanceNorm1d` by fusions."""


class InstanceNorm2dNVFuser(_Fused, nn.InstanceNorm2d):  # type: ignore[misc]  # torch is imported untyped
    """`torch.nn.InstanceNorm2d` by fusions."""


class InstanceNorm3dNVFuser(_Fused, nn.InstanceNorm3d):  # type: ignore[misc]  # torch is imported untyped
    """`torch.nn.InstanceNorm3d` by fusions."""

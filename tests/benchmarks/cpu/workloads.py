"""Eight memory-bound pieces of neural networks in Float: a definition, and the same by NumPy and by torch.

All write into given outputs. Bytes count each input read once and each output written once; vectors of one number per
feature or row are not counted. Names that workloads of `tests.benchmarks.gpu` also have end in ``_f32``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser_lab import DataType, FusionDefinition

ROWS, COLUMNS = 4096, 4096
FLAT = (ROWS, COLUMNS)
F = DataType.Float
TOLERANCE = 1e-4  # of the largest magnitude of an output


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A computation of arrays of ``shapes``.

    ``record(fd, *tensors)`` returns the outputs of the definition, ``torch(*tensors)`` and ``jax(*arrays)`` a tuple of
    new tensors.
    ``eager(*tensors, *outs, *temporaries)`` and ``numpy(*arrays, *outs, *temporaries)`` write to outputs;
    ``temporaries`` are as many arrays of the first input's shape for torch and for NumPy.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int
    record: Callable[..., Any]
    torch: Callable[..., tuple[Any, ...]]
    jax: Callable[..., tuple[Any, ...]]
    eager: Callable[..., None]
    numpy: Callable[..., None]
    temporaries: tuple[int, int] = (0, 0)
    positive: tuple[int, ...] = field(default=())  # numbers of the inputs that are standard deviations

    def definition(self) -> FusionDefinition:
        """The fusion as a user writes it."""
        with FusionDefinition() as fd:
            tensors = [fd.define_tensor(shape=list(s), contiguity=True, dtype=F) for s in self.shapes]
            result = self.record(fd, *tensors)
            for output in result if isinstance(result, tuple) else (result,):
                fd.add_output(output)
        return fd

    def inputs(self) -> list[Any]:
        """Normally distributed numbers, the same each time."""
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in self.shapes]
        return [np.abs(a) + np.float32(0.5) if n in self.positive else a for n, a in enumerate(arrays)]

    def outputs(self) -> list[Any]:
        """Memory for the results, filled with NaN, so that all of its pages are mapped."""
        import torch

        shapes = [tuple(t.shape) for t in self.torch(*(torch.empty(s, device="meta") for s in self.shapes))]
        return [np.full(shape, np.nan, np.float32) for shape in shapes]

    def reference(self, inputs: list[Any]) -> list[Any]:
        """The results in Double."""
        import torch

        return [t.numpy() for t in self.torch(*(torch.from_numpy(a).double() for a in inputs))]


# Definitions


def row(fd: Any, tensor: Any) -> Any:
    return fd.ops.broadcast_in_dim(tensor, shape=list(FLAT), broadcast_dims=[0])


def features(fd: Any, tensor: Any) -> Any:
    return fd.ops.broadcast_in_dim(tensor, shape=list(FLAT), broadcast_dims=[1])


def mean(fd: Any, tensor: Any) -> Any:
    return fd.ops.mul(fd.ops.sum(tensor, dims=[1]), 1.0 / COLUMNS)


def scale_relu(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.relu(y))


def bias_gelu(fd: Any, x: Any, bias: Any) -> Any:
    o = fd.ops
    y = o.add(x, features(fd, bias))
    inner = o.mul(0.7978845608028654, o.add(y, o.mul(0.044715, o.mul(o.mul(y, y), y))))
    return o.mul(o.mul(0.5, y), o.add(1.0, o.tanh(inner)))


def softmax(fd: Any, x: Any) -> Any:
    o = fd.ops
    powers = o.exp(o.sub(x, row(fd, o.max(x, dims=[1]))))
    return o.div(powers, row(fd, o.sum(powers, dims=[1])))


def rmsnorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    o = fd.ops
    rstd = o.expand(rstd, shape=list(FLAT))
    xhat, wdy = o.mul(x, rstd), o.mul(dy, features(fd, weight))
    c1 = row(fd, mean(fd, o.mul(xhat, wdy)))
    return o.mul(o.sub(wdy, o.mul(xhat, c1)), rstd), o.sum(o.mul(dy, xhat), dims=[0])


def layernorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> Any:
    o = fd.ops
    average, rstd = o.expand(average, shape=list(FLAT)), o.expand(rstd, shape=list(FLAT))
    xhat, wdy = o.mul(o.sub(x, average), rstd), o.mul(dy, features(fd, weight))
    c1, c2 = row(fd, mean(fd, o.mul(xhat, wdy))), row(fd, mean(fd, wdy))
    dx = o.mul(o.sub(wdy, o.add(o.mul(xhat, c1), c2)), rstd)
    return dx, o.sum(o.mul(dy, xhat), dims=[0]), o.sum(dy, dims=[0])


def col_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, dims=[0])


def transpose_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.permute(x, dims=[1, 0]), y)


def rope(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    o, shape = fd.ops, [1, 8, 2048, 128]
    low = o.slice(x, start_indices=[0, 0, 0, 0], end_indices=[1, 8, 2048, 64])
    high = o.slice(x, start_indices=[0, 0, 0, 64], end_indices=shape)
    turned = o.cat([o.neg(high), low], dim=3)
    cos, sin = (o.broadcast_in_dim(t, shape=shape, broadcast_dims=[2, 3]) for t in (cos, sin))
    return o.add(o.mul(x, cos), o.mul(turned, sin))


# The same by torch, as a user of torch.compile writes it; imported there, so that definitions load without torch


def torch_gelu(x: Any, bias: Any) -> tuple[Any, ...]:
    import torch

    return (torch.nn.functional.gelu(x + bias, approximate="tanh"),)


def torch_scale_relu(x: Any, y: Any) -> tuple[Any, ...]:
    return (x * 2 + y.relu(),)


def torch_rmsnorm_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> tuple[Any, ...]:
    xhat, wdy = x * rstd, weight * dy
    dx = (wdy - xhat * (xhat * wdy).mean(-1, keepdim=True)) * rstd
    return dx, (dy * xhat).sum(0)


def torch_layernorm_bwd(dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> tuple[Any, ...]:
    xhat, wdy = (x - average) * rstd, weight * dy
    c1, c2 = (xhat * wdy).mean(-1, keepdim=True), wdy.mean(-1, keepdim=True)
    return (wdy - (xhat * c1 + c2)) * rstd, (dy * xhat).sum(0), dy.sum(0)


def torch_rope(x: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    import torch

    turned = torch.cat((-x[..., 64:], x[..., :64]), -1)
    return (x * cos + turned * sin,)


# By JAX, if it differs from torch's code


def jax_gelu(x: Any, bias: Any) -> tuple[Any, ...]:
    import jax

    return (jax.nn.gelu(x + bias, approximate=True),)


def jax_scale_relu(x: Any, y: Any) -> tuple[Any, ...]:
    import jax

    return (x * 2 + jax.nn.relu(y),)


def jax_softmax(x: Any) -> tuple[Any, ...]:
    import jax

    return (jax.nn.softmax(x, -1),)


def jax_rmsnorm_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> tuple[Any, ...]:
    xhat, wdy = x * rstd, weight * dy
    dx = (wdy - xhat * (xhat * wdy).mean(-1, keepdims=True)) * rstd
    return dx, (dy * xhat).sum(0)


def jax_layernorm_bwd(dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> tuple[Any, ...]:
    xhat, wdy = (x - average) * rstd, weight * dy
    c1, c2 = (xhat * wdy).mean(-1, keepdims=True), wdy.mean(-1, keepdims=True)
    return (wdy - (xhat * c1 + c2)) * rstd, (dy * xhat).sum(0), dy.sum(0)


def jax_rope(x: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    import jax.numpy as jnp

    turned = jnp.concatenate((-x[..., 64:], x[..., :64]), -1)
    return (x * cos + turned * sin,)


# By torch's functions, into given outputs if they accept them


def eager_scale_relu(x: Any, y: Any, out: Any) -> None:
    import torch

    torch.clamp_min(y, 0.0, out=out).add_(x, alpha=2.0)


def eager_gelu(x: Any, bias: Any, out: Any) -> None:
    import torch

    torch.ops.aten.gelu_(torch.add(x, bias, out=out), approximate="tanh")


def eager_softmax(x: Any, out: Any) -> None:
    import torch

    torch.softmax(x, -1, out=out)


def eager_rmsnorm_bwd(
    dy: Any, x: Any, weight: Any, rstd: Any, dx: Any, dw: Any, xhat: Any, t: Any,
) -> None:
    import torch

    torch.mul(x, rstd, out=xhat)
    torch.mul(dy, xhat, out=t)
    torch.sum(t, 0, out=dw)
    c1 = t.mul_(weight).mean(1, keepdim=True)
    torch.mul(dy, weight, out=dx).sub_(xhat.mul_(c1)).mul_(rstd)


def eager_layernorm_bwd(
    dy: Any, x: Any, weight: Any, average: Any, rstd: Any, dx: Any, dw: Any, db: Any,
) -> None:
    import torch

    torch.ops.aten.native_layer_norm_backward.out(
        dy, x, [COLUMNS], average, rstd, weight, db, [True, True, True], out0=dx, out1=dw, out2=db,
    )


def eager_col_sum(x: Any, out: Any) -> None:
    import torch

    torch.sum(x, 0, out=out)


def eager_transpose_add(x: Any, y: Any, out: Any) -> None:
    import torch

    torch.add(x.t(), y, out=out)


def eager_rope(x: Any, cos: Any, sin: Any, out: Any) -> None:
    import torch

    torch.mul(x, cos, out=out)
    out[..., :64].addcmul_(x[..., 64:], sin[..., :64], value=-1)
    out[..., 64:].addcmul_(x[..., :64], sin[..., 64:])


# By NumPy


def numpy_scale_relu(x: Any, y: Any, out: Any, t: Any) -> None:
    np.multiply(x, np.float32(2), out=t)
    np.maximum(y, np.float32(0), out=out)
    np.add(out, t, out=out)


def numpy_gelu(x: Any, bias: Any, out: Any, y: Any) -> None:
    np.add(x, bias, out=y)
    np.multiply(y, y, out=out)
    np.multiply(out, np.float32(0.044715), out=out)
    np.add(out, np.float32(1), out=out)
    np.multiply(out, y, out=out)
    np.multiply(out, np.float32(0.7978845608028654), out=out)
    np.tanh(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.multiply(out, y, out=out)
    np.multiply(out, np.float32(0.5), out=out)


def numpy_softmax(x: Any, out: Any) -> None:
    np.subtract(x, x.max(1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(1, keepdims=True), out=out)


def numpy_rmsnorm_bwd(
    dy: Any, x: Any, weight: Any, rstd: Any, dx: Any, dw: Any, xhat: Any, t: Any,
) -> None:
    np.multiply(x, rstd, out=xhat)
    np.multiply(dy, xhat, out=t)
    np.sum(t, 0, out=dw)
    np.multiply(t, weight, out=t)
    c1 = t.mean(1, keepdims=True)
    np.multiply(dy, weight, out=dx)
    np.multiply(xhat, c1, out=xhat)
    np.subtract(dx, xhat, out=dx)
    np.multiply(dx, rstd, out=dx)


def numpy_layernorm_bwd(
    dy: Any, x: Any, weight: Any, average: Any, rstd: Any, dx: Any, dw: Any, db: Any, xhat: Any, t: Any,
) -> None:
    np.subtract(x, average, out=xhat)
    np.multiply(xhat, rstd, out=xhat)
    np.multiply(dy, xhat, out=t)
    np.sum(t, 0, out=dw)
    np.sum(dy, 0, out=db)
    np.multiply(t, weight, out=t)
    c1 = t.mean(1, keepdims=True)
    np.multiply(dy, weight, out=dx)
    c2 = dx.mean(1, keepdims=True)
    np.multiply(xhat, c1, out=xhat)
    np.add(xhat, c2, out=xhat)
    np.subtract(dx, xhat, out=dx)
    np.multiply(dx, rstd, out=dx)


def numpy_rope(x: Any, cos: Any, sin: Any, out: Any, t: Any) -> None:
    np.negative(x[..., 64:], out=t[..., :64])
    t[..., 64:] = x[..., :64]
    np.multiply(t, sin, out=t)
    np.multiply(x, cos, out=out)
    np.add(out, t, out=out)


def error(outs: list[Any], expected: list[Any]) -> float:
    """The largest deviation as a share of the allowed one; infinite if an element was not written."""
    shares = [np.abs(a - b).max() / np.abs(b).max() / TOLERANCE for a, b in zip(outs, expected, strict=True)]
    return float(max(s if s == s else np.inf for s in shares))


_N = 4 * ROWS * COLUMNS
_HEADS = (1, 8, 2048, 128)
WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="scale_relu", shapes=((ROWS * COLUMNS,),) * 2, nbytes=3 * _N, record=scale_relu, torch=torch_scale_relu,
        jax=jax_scale_relu,
        eager=eager_scale_relu, numpy=numpy_scale_relu, temporaries=(0, 1),
    ),
    Workload(
        name="bias_gelu_f32", shapes=(FLAT, (COLUMNS,)), nbytes=2 * _N, record=bias_gelu, torch=torch_gelu,
        jax=jax_gelu,
        eager=eager_gelu, numpy=numpy_gelu, temporaries=(0, 1),
    ),
    Workload(
        name="softmax", shapes=(FLAT,), nbytes=2 * _N, record=softmax, torch=lambda x: (x.softmax(-1),),
        jax=jax_softmax,
        eager=eager_softmax, numpy=numpy_softmax,
    ),
    Workload(
        name="layernorm_bwd_f32", shapes=(FLAT, FLAT, (COLUMNS,), (ROWS, 1), (ROWS, 1)), nbytes=3 * _N,
        record=layernorm_bwd, torch=torch_layernorm_bwd, jax=jax_layernorm_bwd, eager=eager_layernorm_bwd,
        numpy=numpy_layernorm_bwd,
        temporaries=(0, 2), positive=(4,),
    ),
    Workload(
        name="rmsnorm_bwd_f32", shapes=(FLAT, FLAT, (COLUMNS,), (ROWS, 1)), nbytes=3 * _N, record=rmsnorm_bwd,
        torch=torch_rmsnorm_bwd, jax=jax_rmsnorm_bwd, eager=eager_rmsnorm_bwd, numpy=numpy_rmsnorm_bwd,
        temporaries=(2, 2), positive=(3,),
    ),
    Workload(
        name="col_sum_f32", shapes=(FLAT,), nbytes=_N, record=col_sum, torch=lambda x: (x.sum(0),),
        jax=lambda x: (x.sum(0),), eager=eager_col_sum,
        numpy=lambda x, out: np.sum(x, 0, out=out),
    ),
    Workload(
        name="transpose_add_f32", shapes=(FLAT, FLAT), nbytes=3 * _N, record=transpose_add, torch=lambda x,
        y: (x.t() + y,), jax=lambda x, y: (x.T + y,),
        eager=eager_transpose_add, numpy=lambda x, y, out: np.add(x.T, y, out=out),
    ),
    Workload(
        name="rope", shapes=(_HEADS, (2048, 128), (2048, 128)), nbytes=2 * 4 * 8 * 2048 * 128, record=rope,
        torch=torch_rope, jax=jax_rope, eager=eager_rope, numpy=numpy_rope, temporaries=(0, 1),
    ),
)

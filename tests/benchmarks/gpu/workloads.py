"""Twenty memory-bound pieces of neural networks, each as a definition and as a torch function on the same arrays.

Inputs are BFloat16 unless said otherwise, arithmetic is in Float. Bytes count each input read once and each output
written once; small outputs and vectors of one number per feature are not counted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.benchmarks.written import B, F, Written, at_rank, flat, narrow, same, wide

TWENTY = partial(Written, kind="the twenty", float_error=1e-4, bytes_each=4, bar=0.9)


# Pieces of definitions


def row(fd: Any, tensor: Any, like: Any) -> Any:
    """One number per row, broadcast along it."""
    return at_rank(fd, tensor, like, 0)


def features(fd: Any, tensor: Any, like: Any) -> Any:
    """One number per feature, broadcast over rows."""
    return at_rank(fd, tensor, like, 1)


def mean(fd: Any, tensor: Any) -> Any:
    """The means of rows."""
    return fd.ops.mul(fd.ops.sum(tensor, dims=[1]), 1.0 / tensor.shape()[1])


def bias_gelu(fd: Any, x: Any, bias: Any) -> Any:
    o = fd.ops
    x, bias = wide(fd, x, bias)
    y = o.add(x, features(fd, bias, x))
    inner = o.mul(0.7978845608028654, o.add(y, o.mul(0.044715, o.mul(o.mul(y, y), y))))
    return narrow(fd, o.mul(o.mul(0.5, y), o.add(1.0, o.tanh(inner))))


def silu_mul(fd: Any, gate: Any, up: Any) -> Any:
    o = fd.ops
    gate, up = wide(fd, gate, up)
    return narrow(fd, o.mul(o.mul(gate, o.sigmoid(gate)), up))


def softmax(fd: Any, x: Any) -> Any:
    o = fd.ops
    (x,) = wide(fd, x)
    powers = o.exp(o.sub(x, row(fd, o.max(x, dims=[1]), x)))
    return narrow(fd, o.div(powers, row(fd, o.sum(powers, dims=[1]), x)))


def layernorm_fwd(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    o = fd.ops
    x, weight, bias = wide(fd, x, weight, bias)
    variance, average = o.var_mean(x, dims=[1], correction=0, keepdim=False)
    scaled = o.mul(o.sub(x, row(fd, average, x)), row(fd, o.rsqrt(o.add(variance, 1e-5)), x))
    return narrow(fd, o.add(o.mul(scaled, features(fd, weight, x)), features(fd, bias, x)))


def rms(fd: Any, x: Any, weight: Any) -> Any:
    o = fd.ops
    rstd = o.rsqrt(o.add(mean(fd, o.mul(x, x)), 1e-6))
    return narrow(fd, o.mul(o.mul(x, row(fd, rstd, x)), features(fd, weight, x)))


def rmsnorm_fwd(fd: Any, x: Any, weight: Any) -> Any:
    return rms(fd, *wide(fd, x, weight))


def add_rmsnorm_fwd(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    x, residual, weight = wide(fd, x, residual, weight)
    total = narrow(fd, fd.ops.add(x, residual))
    return total, rms(fd, *wide(fd, total), weight)


def rmsnorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    o, shape = fd.ops, x.shape()
    dy, x, weight = wide(fd, dy, x, weight)
    rstd = o.expand(rstd, shape=shape)
    xhat, wdy = o.mul(x, rstd), o.mul(dy, features(fd, weight, x))
    c1 = row(fd, mean(fd, o.mul(xhat, wdy)), x)
    dx = o.mul(o.sub(wdy, o.mul(xhat, c1)), rstd)
    return narrow(fd, dx), narrow(fd, o.sum(o.mul(dy, xhat), dims=[0]))


def layernorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> Any:
    o, shape = fd.ops, x.shape()
    dy, x, weight = wide(fd, dy, x, weight)
    average, rstd = o.expand(average, shape=shape), o.expand(rstd, shape=shape)
    xhat, wdy = o.mul(o.sub(x, average), rstd), o.mul(dy, features(fd, weight, x))
    c1 = row(fd, mean(fd, o.mul(xhat, wdy)), x)
    c2 = row(fd, mean(fd, wdy), x)
    dx = o.mul(o.sub(wdy, o.add(o.mul(xhat, c1), c2)), rstd)
    dw, db = o.sum(o.mul(dy, xhat), dims=[0]), o.sum(dy, dims=[0])
    return narrow(fd, dx), narrow(fd, dw), narrow(fd, db)


def total(dims: list[int]) -> Callable[[Any, Any], Any]:
    return lambda fd, x: fd.ops.sum(*wide(fd, x), dims=dims)


def sum_bcast_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(y, row(fd, fd.ops.sum(x, dims=[1]), y))


def transpose_add(fd: Any, x: Any, y: Any) -> Any:
    x, y = wide(fd, fd.ops.permute(x, dims=[1, 0]), y)
    return narrow(fd, fd.ops.add(x, y))


def rope_fwd(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    o, shape = fd.ops, x.shape()
    half = shape[-1] // 2
    lower = o.slice(x, start_indices=[0, 0, 0, 0], end_indices=[*shape[:3], half])
    upper = o.slice(x, start_indices=[0, 0, 0, half], end_indices=shape)
    turned = o.cat([narrow(fd, o.neg(*wide(fd, upper))), lower], dim=3)
    x, turned, cos, sin = wide(fd, x, turned, cos, sin)
    cos, sin = (o.broadcast_in_dim(t, shape=shape, broadcast_dims=[2, 3]) for t in (cos, sin))
    return narrow(fd, o.add(o.mul(x, cos), o.mul(turned, sin)))


def normalized(fd: Any, x: Any, dims: list[int]) -> Any:
    o, shape = fd.ops, x.shape()
    variance, average = o.var_mean(x, dims=dims, correction=0, keepdim=True)
    rstd = o.rsqrt(o.add(variance, 1e-5))
    return o.mul(o.sub(x, o.expand(average, shape=shape)), o.expand(rstd, shape=shape))


def batchnorm(fd: Any, x: Any) -> Any:
    return narrow(fd, normalized(fd, *wide(fd, x), [0, 2, 3]))


def groupnorm_silu(fd: Any, x: Any) -> Any:
    o, (images, channels, *plane) = fd.ops, x.shape()
    (x,) = wide(fd, x)
    y = normalized(fd, o.reshape(x, new_shape=[images, 32, channels // 32, *plane]), [2, 3, 4])
    return o.reshape(narrow(fd, o.mul(y, o.sigmoid(y))), new_shape=[images, channels, *plane])


def col_softmax(fd: Any, x: Any) -> Any:
    """Softmax of columns; only the maxima and sums cross the cut, and both sides compute the exponentials."""
    o = fd.ops
    (wide_x,) = wide(fd, x)
    highest = o.max(wide_x, dims=[0])
    total = o.sum(o.exp(o.sub(wide_x, features(fd, highest, x))), dims=[0])
    (wide_x,) = wide(fd, x)
    highest, total = o.segment_set(highest), o.segment_set(total)
    powers = o.exp(o.sub(wide_x, features(fd, highest, x)))
    return narrow(fd, o.div(powers, features(fd, total, x)))


# The same by torch; the functions import torch themselves, so that the definitions load without it


def torch_softmax(dim: int) -> Callable[[Any], Any]:
    return lambda x: x.float().softmax(dim).to(x.dtype)


def torch_gelu(x: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x.float() + bias.float(), approximate="tanh").to(x.dtype)


def torch_silu_mul(gate: Any, up: Any) -> Any:
    import torch

    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


def torch_layernorm(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float()).to(x.dtype)


def torch_rms(x: Any, weight: Any) -> Any:
    y = x.float()
    return (y * (y.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.float()).to(x.dtype)


def torch_add_rms(x: Any, residual: Any, weight: Any) -> Any:
    total = (x.float() + residual.float()).to(x.dtype)
    return total, torch_rms(total, weight)


def torch_rms_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    kind = dy.dtype
    dy, x, weight = dy.float(), x.float(), weight.float()
    xhat, wdy = x * rstd, weight * dy
    dx = (wdy - xhat * (xhat * wdy).mean(-1, keepdim=True)) * rstd
    return dx.to(kind), (dy * xhat).sum(0).to(kind)


def torch_ln_bwd(dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> Any:
    kind = dy.dtype
    dy, x, weight = dy.float(), x.float(), weight.float()
    xhat, wdy = (x - average) * rstd, weight * dy
    c1, c2 = (xhat * wdy).mean(-1, keepdim=True), wdy.mean(-1, keepdim=True)
    return ((wdy - (xhat * c1 + c2)) * rstd).to(kind), (dy * xhat).sum(0).to(kind), dy.sum(0).to(kind)


def torch_rope(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x.float() * cos.float() + turned.float() * sin.float()).to(x.dtype)


def torch_batchnorm(x: Any) -> Any:
    y, dims = x.float(), (0, 2, 3)
    return ((y - y.mean(dims, keepdim=True)) * (y.var(dims, unbiased=False, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


def torch_groupnorm_silu(x: Any) -> Any:
    import torch

    return torch.nn.functional.silu(torch.nn.functional.group_norm(x.float(), 32)).to(x.dtype)


# And by JAX


def jax_gelu(x: Any, bias: Any) -> Any:
    import jax

    return jax.nn.gelu(x.astype("float32") + bias.astype("float32")).astype(x.dtype)


def jax_softmax(x: Any) -> Any:
    import jax

    return jax.nn.softmax(x.astype("float32"), -1).astype(x.dtype)


def jax_rms(x: Any, weight: Any) -> Any:
    import jax

    y = x.astype("float32")
    scale = jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)
    return (y * scale * weight.astype("float32")).astype(x.dtype)


def jax_sum(axis: int) -> Callable[[Any], Any]:
    return lambda x: x.astype("float32").sum(axis)


WORKLOADS: tuple[Written, ...] = (
    TWENTY(name="bias_gelu", sizes=flat(8192, 8192), record=bias_gelu, torch=torch_gelu, jax=jax_gelu),
    TWENTY(name="silu_mul", sizes=same(16384, 14336, count=2), bytes_each=6, record=silu_mul, torch=torch_silu_mul),
    *(
        TWENTY(name=name, sizes=same(*shape), record=softmax, torch=torch_softmax(-1), jax=jax, bar=bar)
        for name, shape, jax, bar in (
            ("softmax_1k", (131072, 1024), None, 0.9), ("softmax_8k", (16384, 8192), jax_softmax, 0.9),
            ("softmax_32k", (4096, 32768), None, 0.9), ("softmax_128k", (1024, 131072), jax_softmax, 0.8),
        )
    ),
    TWENTY(name="layernorm_fwd", sizes=flat(8192, 8192, 8192), record=layernorm_fwd, torch=torch_layernorm),
    TWENTY(name="rmsnorm_fwd", sizes=flat(8192, 8192), record=rmsnorm_fwd, torch=torch_rms, jax=jax_rms),
    TWENTY(name="add_rmsnorm_fwd", sizes=lambda d: ((16384 // d, 8192),) * 2 + ((8192,),), bytes_each=8,
           record=add_rmsnorm_fwd, torch=torch_add_rms),
    TWENTY(name="rmsnorm_bwd", sizes=lambda d: ((16384 // d, 8192),) * 2 + ((8192,), (16384 // d, 1)),
           dtypes=(B, B, B, F), bytes_each=6, record=rmsnorm_bwd, torch=torch_rms_bwd, bar=0.8),
    TWENTY(name="layernorm_bwd", sizes=lambda d: ((16384 // d, 8192),) * 2 + ((8192,),) + ((16384 // d, 1),) * 2,
           dtypes=(B, B, B, F), bytes_each=6, record=layernorm_bwd, torch=torch_ln_bwd, bar=0.8),
    TWENTY(name="row_sum", sizes=flat(8192), bytes_each=2, record=total([1]), torch=lambda x: x.float().sum(1),
           jax=jax_sum(1)),
    TWENTY(name="col_sum", sizes=flat(8192), bytes_each=2, record=total([0]), torch=lambda x: x.float().sum(0),
           jax=jax_sum(0), bar=0.8),
    TWENTY(name="all_sum", sizes=flat(8192), bytes_each=2, record=total([0, 1]), torch=lambda x: x.float().sum(),
           total=True, bar=0.8),
    TWENTY(name="sum_bcast_add", sizes=same(16384, 8192, count=2), dtypes=(F,), bytes_each=12, record=sum_bcast_add,
           torch=lambda x, y: y + x.sum(1, keepdim=True)),
    TWENTY(name="transpose_add", sizes=lambda d: ((16384 // d, 8192), (8192, 16384 // d)), bytes_each=6,
           record=transpose_add, torch=lambda x, y: (x.t().float() + y.float()).to(x.dtype).contiguous()),
    TWENTY(name="rope_fwd", sizes=lambda d: ((4, 32 // d, 8192, 128), (8192, 128), (8192, 128)), record=rope_fwd,
           torch=torch_rope),
    TWENTY(name="batchnorm_stats_norm", sizes=same(64, 256, 64, 64), bytes_each=6, record=batchnorm,
           torch=torch_batchnorm, bar=0.6),
    TWENTY(name="groupnorm_silu", sizes=same(32, 512, 64, 64), record=groupnorm_silu, torch=torch_groupnorm_silu,
           bar=0.6),
    TWENTY(name="col_softmax", sizes=lambda d: ((4096, 32768 // d),), record=col_softmax, torch=torch_softmax(0),
           bar=0.6),
)

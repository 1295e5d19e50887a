"""Twenty memory-bound pieces of neural networks, each as a definition and as a torch function on the same arrays.

Inputs are BFloat16 unless said otherwise, arithmetic is in Float. Bytes count each input read once and each output
written once; small outputs and vectors of one number per feature are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser_lab import DataType, FusionDefinition

F, B = DataType.Float, DataType.BFloat16
ROWS, COLUMNS = 16384, 8192


@dataclass(frozen=True, kw_only=True)
class Workload:
    """``record(fd, *tensors)`` returns the outputs of the definition, ``torch(*arrays)`` the same by torch."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int
    record: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any] | None = None
    floats: tuple[int, ...] = ()  # numbers of the inputs that are Float
    scale: float = 0.0  # of the results, used if their largest magnitude is not
    bar: float = 0.9  # the required share of the copy rate

    def dtype(self, number: int) -> DataType:
        return F if number in self.floats else B

    def definition(self) -> FusionDefinition:
        """The fusion as a user writes it, sizes left open."""
        with FusionDefinition() as fd:
            tensors = [
                fd.define_tensor(shape=list(shape), contiguity=True, dtype=self.dtype(number))
                for number, shape in enumerate(self.shapes)
            ]
            result = self.record(fd, *tensors)
            for output in result if isinstance(result, tuple) else (result,):
                fd.add_output(output)
        return fd


# Pieces of definitions


def wide(fd: Any, *tensors: Any) -> tuple[Any, ...]:
    return tuple(fd.ops.cast(t, dtype=F) for t in tensors)


def narrow(fd: Any, tensor: Any) -> Any:
    return fd.ops.cast(tensor, dtype=B)


def row(fd: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """One number per row, broadcast along it."""
    return fd.ops.broadcast_in_dim(tensor, shape=list(shape), broadcast_dims=[0])


def features(fd: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """One number per feature, broadcast over rows."""
    return fd.ops.broadcast_in_dim(tensor, shape=list(shape), broadcast_dims=[1])


def mean(fd: Any, tensor: Any, dims: list[int], count: int) -> Any:
    return fd.ops.mul(fd.ops.sum(tensor, dims=dims), 1.0 / count)


def bias_gelu(fd: Any, x: Any, bias: Any) -> Any:
    o = fd.ops
    x, bias = wide(fd, x, bias)
    y = o.add(x, features(fd, bias, (ROWS, COLUMNS)))
    inner = o.mul(0.7978845608028654, o.add(y, o.mul(0.044715, o.mul(o.mul(y, y), y))))
    return narrow(fd, o.mul(o.mul(0.5, y), o.add(1.0, o.tanh(inner))))


def silu_mul(fd: Any, gate: Any, up: Any) -> Any:
    o = fd.ops
    gate, up = wide(fd, gate, up)
    return narrow(fd, o.mul(o.mul(gate, o.sigmoid(gate)), up))


def softmax(shape: tuple[int, ...], dim: int) -> Callable[[Any, Any], Any]:
    def record(fd: Any, x: Any) -> Any:
        o, kept = fd.ops, [axis for axis in range(2) if axis != dim]
        (x,) = wide(fd, x)
        highest = o.broadcast_in_dim(o.max(x, dims=[dim]), shape=list(shape), broadcast_dims=kept)
        powers = o.exp(o.sub(x, highest))
        total = o.broadcast_in_dim(o.sum(powers, dims=[dim]), shape=list(shape), broadcast_dims=kept)
        return narrow(fd, o.div(powers, total))

    return record


def layernorm_fwd(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    o, shape = fd.ops, (ROWS, COLUMNS)
    x, weight, bias = wide(fd, x, weight, bias)
    variance, average = o.var_mean(x, dims=[1], correction=0, keepdim=False)
    scaled = o.mul(o.sub(x, row(fd, average, shape)), row(fd, o.rsqrt(o.add(variance, 1e-5)), shape))
    return narrow(fd, o.add(o.mul(scaled, features(fd, weight, shape)), features(fd, bias, shape)))


def rms(fd: Any, x: Any, weight: Any) -> Any:
    o, shape = fd.ops, (ROWS, COLUMNS)
    rstd = o.rsqrt(o.add(mean(fd, o.mul(x, x), [1], COLUMNS), 1e-6))
    return narrow(fd, o.mul(o.mul(x, row(fd, rstd, shape)), features(fd, weight, shape)))


def rmsnorm_fwd(fd: Any, x: Any, weight: Any) -> Any:
    return rms(fd, *wide(fd, x, weight))


def add_rmsnorm_fwd(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    x, residual, weight = wide(fd, x, residual, weight)
    total = narrow(fd, fd.ops.add(x, residual))
    return total, rms(fd, *wide(fd, total), weight)


def rmsnorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    o, shape = fd.ops, (ROWS, COLUMNS)
    dy, x, weight = wide(fd, dy, x, weight)
    rstd = o.expand(rstd, shape=list(shape))
    xhat, wdy = o.mul(x, rstd), o.mul(dy, features(fd, weight, shape))
    c1 = row(fd, mean(fd, o.mul(xhat, wdy), [1], COLUMNS), shape)
    dx = o.mul(o.sub(wdy, o.mul(xhat, c1)), rstd)
    return narrow(fd, dx), narrow(fd, o.sum(o.mul(dy, xhat), dims=[0]))


def layernorm_bwd(fd: Any, dy: Any, x: Any, weight: Any, average: Any, rstd: Any) -> Any:
    o, shape = fd.ops, (ROWS, COLUMNS)
    dy, x, weight = wide(fd, dy, x, weight)
    average, rstd = o.expand(average, shape=list(shape)), o.expand(rstd, shape=list(shape))
    xhat, wdy = o.mul(o.sub(x, average), rstd), o.mul(dy, features(fd, weight, shape))
    c1 = row(fd, mean(fd, o.mul(xhat, wdy), [1], COLUMNS), shape)
    c2 = row(fd, mean(fd, wdy, [1], COLUMNS), shape)
    dx = o.mul(o.sub(wdy, o.add(o.mul(xhat, c1), c2)), rstd)
    dw, db = o.sum(o.mul(dy, xhat), dims=[0]), o.sum(dy, dims=[0])
    return narrow(fd, dx), narrow(fd, dw), narrow(fd, db)


def total(dims: list[int]) -> Callable[[Any, Any], Any]:
    return lambda fd, x: fd.ops.sum(*wide(fd, x), dims=dims)


def sum_bcast_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(y, row(fd, fd.ops.sum(x, dims=[1]), (ROWS, COLUMNS)))


def transpose_add(fd: Any, x: Any, y: Any) -> Any:
    x, y = wide(fd, fd.ops.permute(x, dims=[1, 0]), y)
    return narrow(fd, fd.ops.add(x, y))


def rope_fwd(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    o, shape = fd.ops, [4, 32, 8192, 128]
    lower = o.slice(x, start_indices=[0, 0, 0, 0], end_indices=[4, 32, 8192, 64])
    upper = o.slice(x, start_indices=[0, 0, 0, 64], end_indices=[4, 32, 8192, 128])
    turned = o.cat([narrow(fd, o.neg(*wide(fd, upper))), lower], dim=3)
    x, turned, cos, sin = wide(fd, x, turned, cos, sin)
    cos, sin = (o.broadcast_in_dim(t, shape=shape, broadcast_dims=[2, 3]) for t in (cos, sin))
    return narrow(fd, o.add(o.mul(x, cos), o.mul(turned, sin)))


def normalized(fd: Any, x: Any, shape: list[int], dims: list[int]) -> Any:
    o = fd.ops
    variance, average = o.var_mean(x, dims=dims, correction=0, keepdim=True)
    rstd = o.rsqrt(o.add(variance, 1e-5))
    return o.mul(o.sub(x, o.expand(average, shape=shape)), o.expand(rstd, shape=shape))


def batchnorm(fd: Any, x: Any) -> Any:
    return narrow(fd, normalized(fd, *wide(fd, x), [64, 256, 64, 64], [0, 2, 3]))


def groupnorm_silu(fd: Any, x: Any) -> Any:
    o = fd.ops
    (x,) = wide(fd, x)
    groups = o.reshape(x, new_shape=[32, 32, 16, 64, 64])
    y = normalized(fd, groups, [32, 32, 16, 64, 64], [2, 3, 4])
    return o.reshape(narrow(fd, o.mul(y, o.sigmoid(y))), new_shape=[32, 512, 64, 64])


def col_softmax(fd: Any, x: Any) -> Any:
    """Softmax of columns; only the maxima and sums cross the cut, and both sides compute the exponentials."""
    o, shape = fd.ops, [4096, 32768]
    (wide_x,) = wide(fd, x)
    highest = o.max(wide_x, dims=[0])
    total = o.sum(o.exp(o.sub(wide_x, features(fd, highest, shape))), dims=[0])
    (wide_x,) = wide(fd, x)
    highest, total = o.segment_set(highest), o.segment_set(total)
    powers = o.exp(o.sub(wide_x, features(fd, highest, shape)))
    return narrow(fd, o.div(powers, features(fd, total, shape)))


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

    return torch.nn.functional.layer_norm(x.float(), (COLUMNS,), weight.float(), bias.float()).to(x.dtype)


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


_FLAT = (ROWS, COLUMNS)
_N = ROWS * COLUMNS
WORKLOADS: tuple[Workload, ...] = (
    Workload(name="bias_gelu", shapes=(_FLAT, (COLUMNS,)), nbytes=4 * _N, record=bias_gelu, torch=torch_gelu,
             jax=jax_gelu),
    Workload(name="silu_mul", shapes=((ROWS, 14336),) * 2, nbytes=6 * ROWS * 14336, record=silu_mul,
             torch=torch_silu_mul),
    *(
        Workload(name=name, shapes=(shape,), nbytes=4 * shape[0] * shape[1], record=softmax(shape, 1),
                 torch=torch_softmax(-1), jax=jax, bar=bar)
        for name, shape, jax, bar in (
            ("softmax_1k", (131072, 1024), None, 0.9), ("softmax_8k", _FLAT, jax_softmax, 0.9),
            ("softmax_32k", (4096, 32768), None, 0.9), ("softmax_128k", (1024, 131072), jax_softmax, 0.8),
        )
    ),
    Workload(name="layernorm_fwd", shapes=(_FLAT, (COLUMNS,), (COLUMNS,)), nbytes=4 * _N, record=layernorm_fwd,
             torch=torch_layernorm),
    Workload(name="rmsnorm_fwd", shapes=(_FLAT, (COLUMNS,)), nbytes=4 * _N, record=rmsnorm_fwd, torch=torch_rms,
             jax=jax_rms),
    Workload(name="add_rmsnorm_fwd", shapes=(_FLAT, _FLAT, (COLUMNS,)), nbytes=8 * _N, record=add_rmsnorm_fwd,
             torch=torch_add_rms),
    Workload(name="rmsnorm_bwd", shapes=(_FLAT, _FLAT, (COLUMNS,), (ROWS, 1)), floats=(3,), nbytes=6 * _N,
             record=rmsnorm_bwd, torch=torch_rms_bwd, bar=0.8),
    Workload(name="layernorm_bwd", shapes=(_FLAT, _FLAT, (COLUMNS,), (ROWS, 1), (ROWS, 1)), floats=(3, 4),
             nbytes=6 * _N, record=layernorm_bwd, torch=torch_ln_bwd, bar=0.8),
    Workload(name="row_sum", shapes=(_FLAT,), nbytes=2 * _N, record=total([1]), torch=lambda x: x.float().sum(1),
             jax=jax_sum(1)),
    Workload(name="col_sum", shapes=(_FLAT,), nbytes=2 * _N, record=total([0]), torch=lambda x: x.float().sum(0),
             jax=jax_sum(0), bar=0.8),
    Workload(name="all_sum", shapes=(_FLAT,), nbytes=2 * _N, record=total([0, 1]), torch=lambda x: x.float().sum(),
             scale=_N**0.5, bar=0.8),
    Workload(name="sum_bcast_add", shapes=(_FLAT, _FLAT), floats=(0, 1), nbytes=12 * _N, record=sum_bcast_add,
             torch=lambda x, y: y + x.sum(1, keepdim=True)),
    Workload(name="transpose_add", shapes=(_FLAT, (COLUMNS, ROWS)), nbytes=6 * _N, record=transpose_add,
             torch=lambda x, y: (x.t().float() + y.float()).to(x.dtype).contiguous()),
    Workload(name="rope_fwd", shapes=((4, 32, 8192, 128), (8192, 128), (8192, 128)), nbytes=4 * 4 * 32 * 8192 * 128,
             record=rope_fwd, torch=torch_rope),
    Workload(name="batchnorm_stats_norm", shapes=((64, 256, 64, 64),), nbytes=6 * 64 * 256 * 4096, record=batchnorm,
             torch=torch_batchnorm, bar=0.6),
    Workload(name="groupnorm_silu", shapes=((32, 512, 64, 64),), nbytes=4 * 32 * 512 * 4096, record=groupnorm_silu,
             torch=torch_groupnorm_silu, bar=0.6),
    Workload(name="col_softmax", shapes=((4096, 32768),), nbytes=4 * 4096 * 32768, record=col_softmax,
             torch=torch_softmax(0), bar=0.6),
)

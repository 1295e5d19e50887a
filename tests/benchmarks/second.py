"""The second set: pieces of programs as users write them, without hints, for kernels that were not tuned for them.

Each is a definition and the same in torch, in the size of the GPU benchmark; ``at(16)`` is a sixteenth of it, for a
CPU. Bytes count each input and each output once; of a lookup table, only the rows that are read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.benchmarks.written import (
    B,
    F,
    H,
    I,
    Q,
    Shape,
    Written,
    Y,
    Z,
    at_rank,
    dense,
    flat,
    narrow,
    once,
    same,
    torch_library,
    wide,
)

# Short rows and windows


def softmax(fd: Any, x: Any, dim: int = -1) -> Any:
    return narrow(fd, fd.ops.softmax(*wide(fd, x), dim))


def torch_softmax(x: Any, dim: int = -1) -> Any:
    return x.float().softmax(dim).to(x.dtype)


def rms_norm(fd: Any, x: Any, weight: Any) -> Any:
    return narrow(fd, fd.ops.rms_norm(*wide(fd, x), [x.shape()[-1]], *wide(fd, weight), eps=1e-5))


def torch_rms_norm(x: Any, weight: Any) -> Any:
    y = x.float()
    return (y * (y.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.float()).to(x.dtype)


def layer_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    return narrow(fd, fd.ops.layer_norm(*wide(fd, x), [x.shape()[-1]], *wide(fd, weight, bias)))


def torch_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    layer = torch_library().nn.functional.layer_norm
    return layer(x.float(), x.shape[-1:], weight.float(), bias.float()).to(x.dtype)


def windows(side: int, n: int, c: int, h: int, w: int) -> list[int]:
    return [n, c, h // side, side, w // side, side]


def max_pool(fd: Any, x: Any, side: int) -> Any:
    return fd.ops.max(fd.ops.reshape(x, windows(side, *x.shape())), [3, 5])


def torch_max_pool(x: Any, side: int) -> Any:
    return x.reshape(windows(side, *x.shape)).amax((3, 5))


def mean_pool(fd: Any, x: Any, side: int) -> Any:
    (y,) = wide(fd, fd.ops.reshape(x, windows(side, *x.shape())))
    return narrow(fd, fd.ops.mean(y, [3, 5]))


def torch_mean_pool(x: Any, side: int) -> Any:
    return x.reshape(windows(side, *x.shape)).float().mean((3, 5)).to(x.dtype)


def pool_tokens(fd: Any, x: Any) -> Any:
    batch, tokens, channels = x.shape()
    (y,) = wide(fd, fd.ops.reshape(x, [batch, tokens // 8, 8, channels]))
    return narrow(fd, fd.ops.mean(y, [2]))


def torch_pool_tokens(x: Any) -> Any:
    batch, tokens, channels = x.shape
    return x.reshape(batch, tokens // 8, 8, channels).float().mean(2).to(x.dtype)


# One tensor direct and transposed


def symmetric(fd: Any, x: Any) -> Any:
    return fd.ops.add(x, fd.ops.permute(x, [1, 0]))


def pairs(fd: Any, x: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    return narrow(fd, o.mul(o.add(y, o.permute(y, [0, 2, 1])), 0.5))


def antisymmetric_rows(fd: Any, x: Any) -> Any:
    o = fd.ops
    d = o.sub(x, o.permute(x, [1, 0]))
    return o.sum(o.mul(d, d), [1])


# Eight bits


def to_float8(fd: Any, x: Any, scale: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    return o.cast(o.clamp(o.mul(y, o.expand(scale, x.shape())), -448.0, 448.0), dtype=Z)


def torch_to_float8(x: Any, scale: Any) -> Any:
    return (x.float() * scale).clamp(-448, 448).to(torch_library().float8_e4m3fn)


def float8_gelu(fd: Any, x: Any, scale: Any) -> Any:
    o = fd.ops
    y = o.gelu(o.mul(o.cast(x, dtype=F), o.expand(scale, x.shape())), approximate="tanh")
    return o.cast(o.clamp(y, -448.0, 448.0), dtype=Z)


def torch_float8_gelu(x: Any, scale: Any) -> Any:
    gelu = torch_library().nn.functional.gelu
    return gelu(x.float() * scale, approximate="tanh").clamp(-448, 448).to(x.dtype)


def float8_rows(fd: Any, x: Any) -> Any:
    o, shape = fd.ops, x.shape()
    (y,) = wide(fd, x)
    scale = o.div(448.0, o.add(o.max(o.abs(y), [1], keepdim=True), 1e-6))
    return o.cast(o.mul(y, o.expand(scale, shape)), dtype=Z), scale


def torch_float8_rows(x: Any) -> Any:
    y = x.float()
    scale = 448.0 / (y.abs().amax(1, keepdim=True) + 1e-6)
    return (y * scale).to(torch_library().float8_e4m3fn), scale


def from_int8(fd: Any, x: Any, scale: Any) -> Any:
    return narrow(fd, fd.ops.mul(fd.ops.cast(x, dtype=F), at_rank(fd, scale, x, 1)))


def torch_from_int8(x: Any, scale: Any) -> Any:
    return (x.float() * scale).to(torch_library().bfloat16)


def int8_rows(fd: Any, x: Any) -> Any:
    o, shape = fd.ops, x.shape()
    (y,) = wide(fd, x)
    scale = o.div(127.0, o.add(o.max(o.abs(y), [1], keepdim=True), 1e-6))
    return o.cast(o.round(o.mul(y, o.expand(scale, shape))), dtype=Q), scale


def torch_int8_rows(x: Any) -> Any:
    y = x.float()
    scale = 127.0 / (y.abs().amax(1, keepdim=True) + 1e-6)
    return (y * scale).round().to(torch_library().int8), scale


def int8_add(fd: Any, a: Any, b: Any) -> Any:
    o = fd.ops
    y = o.add(o.mul(o.cast(a, dtype=F), 0.03), o.mul(o.cast(b, dtype=F), 0.05))
    return o.cast(o.clamp(o.round(o.mul(y, 16.0)), -128.0, 127.0), dtype=Q)


def torch_int8_add(a: Any, b: Any) -> Any:
    y = a.float() * 0.03 + b.float() * 0.05
    return (y * 16.0).round().clamp(-128, 127).to(a.dtype)


# Norms of images


def batchnorm_bwd(fd: Any, dy: Any, x: Any, mean: Any, rstd: Any) -> Any:
    o, count = fd.ops, x.shape()[0] * x.shape()[2] * x.shape()[3]
    dy, x = wide(fd, dy, x)
    mean, rstd = at_rank(fd, mean, x, 1), at_rank(fd, rstd, x, 1)
    xhat = o.mul(o.sub(x, mean), rstd)
    dweight, dbias = o.sum(o.mul(dy, xhat), [0, 2, 3]), o.sum(dy, [0, 2, 3])
    share = o.add(at_rank(fd, o.mul(dbias, 1 / count), x, 1), o.mul(xhat, at_rank(fd, o.mul(dweight, 1 / count), x, 1)))
    return narrow(fd, o.mul(o.sub(dy, share), rstd)), dweight, dbias


def torch_batchnorm_bwd(dy: Any, x: Any, mean: Any, rstd: Any) -> Any:
    kind, dims = x.dtype, (0, 2, 3)
    dy, x = dy.float(), x.float()
    mean, rstd = mean[:, None, None], rstd[:, None, None]
    xhat = (x - mean) * rstd
    count = x.numel() // x.shape[1]
    dweight, dbias = (dy * xhat).sum(dims), dy.sum(dims)
    share = dbias[:, None, None] / count + xhat * (dweight[:, None, None] / count)
    return ((dy - share) * rstd).to(kind), dweight, dbias


def scale_shift_relu(fd: Any, x: Any, scale: Any, shift: Any) -> Any:
    o = fd.ops
    x, scale, shift = wide(fd, x, scale, shift)
    return narrow(fd, o.relu(o.add(o.mul(x, at_rank(fd, scale, x, 1)), at_rank(fd, shift, x, 1))))


def torch_scale_shift_relu(x: Any, scale: Any, shift: Any) -> Any:
    return (x.float() * scale.float()[:, None, None] + shift.float()[:, None, None]).relu().to(x.dtype)


def channel_moments(fd: Any, x: Any) -> Any:
    (y,) = wide(fd, x)
    return fd.ops.sum(y, [0, 2, 3]), fd.ops.sum(fd.ops.mul(y, y), [0, 2, 3])


def torch_channel_moments(x: Any) -> Any:
    y = x.float()
    return y.sum((0, 2, 3)), (y * y).sum((0, 2, 3))


def apart_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(*wide(fd, x), [0, 2])


# Lookups


def embedding_add(fd: Any, table: Any, ids: Any, positions: Any) -> Any:
    o = fd.ops
    tokens = o.index_select(table, o.reshape(ids, [ids.shape()[0] * ids.shape()[1]]), 0)
    tokens = o.reshape(tokens, [*ids.shape(), table.shape()[1]])
    tokens, positions = wide(fd, tokens, positions)
    return narrow(fd, o.add(tokens, o.broadcast_in_dim(positions, shape=tokens.shape(), broadcast_dims=[1, 2])))


def torch_embedding_add(table: Any, ids: Any, positions: Any) -> Any:
    return (table[ids].float() + positions.float()).to(table.dtype)


def cross_entropy(fd: Any, x: Any, target: Any) -> Any:
    return fd.ops.cross_entropy(*wide(fd, x), target, reduction="none")


def torch_cross_entropy(x: Any, target: Any) -> Any:
    return torch_library().nn.functional.cross_entropy(x.float(), target, reduction="none")


def picked_rows(fd: Any, x: Any, rows: Any, weight: Any) -> Any:
    o = fd.ops
    taken, weight = wide(fd, o.index_select(x, rows, 0), weight)
    return narrow(fd, o.mul(taken, at_rank(fd, weight, taken, 0)))


def torch_picked_rows(x: Any, rows: Any, weight: Any) -> Any:
    return (x[rows].float() * weight.float()[:, None]).to(x.dtype)


def picked_along(fd: Any, x: Any, places: Any) -> Any:
    return fd.ops.mul(fd.ops.gather(x, places, 1), 2.0)


# Norms around views


def group_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    return narrow(fd, fd.ops.group_norm(*wide(fd, x), 32, *wide(fd, weight, bias)))


def torch_group_norm(x: Any, weight: Any, bias: Any) -> Any:
    norm = torch_library().nn.functional.group_norm
    return norm(x.float(), 32, weight.float(), bias.float()).to(x.dtype)


def norm_rotate(fd: Any, x: Any, weight: Any, cos: Any, sin: Any) -> Any:
    o, shape = fd.ops, x.shape()
    half = shape[-1] // 2
    x, weight, cos, sin = wide(fd, x, weight, cos, sin)
    y = o.rms_norm(x, [shape[-1]], weight, eps=1e-5)
    low = o.slice(y, start_indices=[0] * 4, end_indices=[*shape[:3], half])
    high = o.slice(y, start_indices=[0, 0, 0, half], end_indices=shape)
    rotated = o.cat([o.neg(high), low], dim=3)
    cos, sin = (o.broadcast_in_dim(t, shape=shape, broadcast_dims=[2, 3]) for t in (cos, sin))
    return narrow(fd, o.add(o.mul(y, cos), o.mul(rotated, sin)))


def torch_norm_rotate(x: Any, weight: Any, cos: Any, sin: Any) -> Any:
    y = x.float()
    y = y * (y.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.float()
    half = x.shape[-1] // 2
    rotated = torch_library().cat((-y[..., half:], y[..., :half]), -1)
    return (y * cos.float() + rotated * sin.float()).to(x.dtype)


def head_norm(fd: Any, x: Any, weight: Any, heads: int = 16) -> Any:
    o = fd.ops
    batch, tokens, width = x.shape()
    y = o.reshape(x, [batch, tokens, heads, width // heads])
    return dense(fd, o.permute(rms_norm(fd, y, weight), [0, 2, 1, 3]))


def torch_head_norm(x: Any, weight: Any, heads: int = 16) -> Any:
    return torch_rms_norm(x.unflatten(-1, (heads, -1)), weight).transpose(1, 2).contiguous()


# Rows and columns of one tensor


def both_sums(fd: Any, x: Any) -> Any:
    (y,) = wide(fd, x)
    return fd.ops.sum(y, [1]), fd.ops.sum(y, [0])


def gelu_bwd(fd: Any, dy: Any, x: Any) -> Any:
    o = fd.ops
    dy, x = wide(fd, dy, x)
    inner = o.mul(0.7978845608, o.add(x, o.mul(0.044715, o.mul(o.mul(x, x), x))))
    t = o.tanh(inner)
    slope = o.mul(o.mul(0.5, o.mul(x, o.sub(1.0, o.mul(t, t)))), o.add(0.7978845608, o.mul(0.1070322243, o.mul(x, x))))
    dx = o.mul(dy, o.add(o.mul(0.5, o.add(1.0, t)), slope))
    return narrow(fd, dx), o.sum(dx, [0])


def torch_gelu_bwd(dy: Any, x: Any) -> Any:
    kind = x.dtype
    dy, x = dy.float(), x.float()
    t = (0.7978845608 * (x + 0.044715 * x * x * x)).tanh()
    dx = dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (0.7978845608 + 0.1070322243 * x * x))
    return dx.to(kind), dx.sum(0)


def ranks(fd: Any, x: Any) -> Any:
    """Outputs of three ranks."""
    (y,) = wide(fd, x)
    return narrow(fd, fd.ops.relu(y)), fd.ops.max(y, [1]), fd.ops.sum(fd.ops.mul(y, y), [0, 1])


def torch_ranks(x: Any) -> Any:
    y = x.float()
    return y.relu().to(x.dtype), y.amax(1), (y * y).sum()


# Layouts


def to_nhwc(fd: Any, x: Any, scale: Any) -> Any:
    o = fd.ops
    y, scale = wide(fd, o.permute(x, [0, 2, 3, 1]), scale)
    return dense(fd, narrow(fd, o.mul(y, at_rank(fd, scale, y, 3))))


def torch_to_nhwc(x: Any, scale: Any) -> Any:
    return (x.permute(0, 2, 3, 1).float() * scale.float()).to(x.dtype).contiguous()


def to_nchw(fd: Any, x: Any, bias: Any) -> Any:
    o = fd.ops
    y, bias = wide(fd, o.permute(x, [0, 3, 1, 2]), bias)
    return dense(fd, narrow(fd, o.relu(o.add(y, at_rank(fd, bias, y, 1)))))


def torch_to_nchw(x: Any, bias: Any) -> Any:
    return (x.permute(0, 3, 1, 2).float() + bias.float()[:, None, None]).relu().to(x.dtype).contiguous()


def image_in(fd: Any, x: Any, mean: Any) -> Any:
    """Images of bytes, channels last, as Float with channels first."""
    o = fd.ops
    y = o.mul(o.cast(o.permute(x, [0, 3, 1, 2]), dtype=F), 1 / 127.0)
    return dense(fd, o.sub(y, at_rank(fd, mean, y, 1)))


def torch_image_in(x: Any, mean: Any) -> Any:
    return (x.permute(0, 3, 1, 2).float() * (1 / 127.0) - mean[:, None, None]).contiguous()


def cut_windows(fd: Any, x: Any, bias: Any) -> Any:
    o = fd.ops
    n, h, w, c = x.shape()
    x, bias = wide(fd, x, bias)
    y = o.add(x, at_rank(fd, bias, x, 3))
    return dense(fd, narrow(fd, o.permute(o.reshape(y, [n, h // 8, 8, w // 8, 8, c]), [0, 1, 3, 2, 4, 5])))


def torch_cut_windows(x: Any, bias: Any) -> Any:
    n, h, w, c = x.shape
    y = (x.float() + bias.float()).to(x.dtype)
    return y.reshape(n, h // 8, 8, w // 8, 8, c).permute(0, 1, 3, 2, 4, 5).contiguous()


def shuffle_pixels(fd: Any, x: Any) -> Any:
    o = fd.ops
    n, c, h, w = x.shape()
    y = o.permute(o.reshape(x, [n, c // 4, 2, 2, h, w]), [0, 1, 4, 2, 5, 3])
    return narrow(fd, o.relu(*wide(fd, o.reshape(y, [n, c // 4, 2 * h, 2 * w]))))


def torch_shuffle_pixels(x: Any) -> Any:
    return torch_library().nn.functional.pixel_shuffle(x, 2).relu()


def permute_5d(fd: Any, x: Any) -> Any:
    return dense(fd, narrow(fd, fd.ops.mul(*wide(fd, fd.ops.permute(x, [0, 3, 1, 4, 2])), 0.5)))


def torch_permute_5d(x: Any) -> Any:
    return (x.permute(0, 3, 1, 4, 2).float() * 0.5).to(x.dtype).contiguous()


def split_heads(fd: Any, x: Any) -> Any:
    """Separate queries, keys and values, with heads before tokens."""
    o = fd.ops
    batch, tokens, width = x.shape()
    y = o.permute(o.reshape(x, [batch, tokens, 3, width // 192, 64]), [2, 0, 3, 1, 4])
    parts = []
    for part in range(3):
        piece = o.slice(y, start_indices=[part, 0, 0, 0, 0], end_indices=[part + 1, *y.shape()[1:]])
        parts.append(dense(fd, narrow(fd, o.mul(*wide(fd, o.squeeze(piece, [0])), 0.125 if part == 0 else 1.0))))
    return tuple(parts)


def torch_split_heads(x: Any) -> Any:
    batch, tokens, width = x.shape
    q, k, v = x.reshape(batch, tokens, 3, width // 192, 64).permute(2, 0, 3, 1, 4)
    return (q.float() * 0.125).to(x.dtype).contiguous(), k.contiguous(), v.contiguous()


# Several dtypes, many outputs


def residual(fd: Any, x: Any, update: Any, gate: Any) -> Any:
    o = fd.ops
    return o.add(x, o.mul(o.cast(update, dtype=F), o.sigmoid(o.cast(gate, dtype=F))))


def torch_residual(x: Any, update: Any, gate: Any) -> Any:
    return x + update.float() * gate.float().sigmoid()


def masked(fd: Any, x: Any, mask: Any) -> Any:
    o = fd.ops
    y = o.where(mask, o.mul(*wide(fd, x), 0.125), -1e4)
    return narrow(fd, o.softmax(y, -1))


def torch_masked(x: Any, mask: Any) -> Any:
    return torch_library().where(mask, x.float() * 0.125, -1e4).softmax(-1).to(x.dtype)


def adam(fd: Any, weight: Any, m: Any, v: Any, grad: Any) -> Any:
    o = fd.ops
    (g,) = wide(fd, grad)
    m = o.add(o.mul(m, 0.9), o.mul(g, 0.1))
    v = o.add(o.mul(v, 0.99), o.mul(o.mul(g, g), 0.01))
    weight = o.sub(weight, o.mul(1e-3, o.div(m, o.add(o.sqrt(v), 1e-8))))
    return weight, m, v, narrow(fd, weight)


def torch_adam(weight: Any, m: Any, v: Any, grad: Any) -> Any:
    g = grad.float()
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    weight = weight - 1e-3 * (m / (v.sqrt() + 1e-8))
    return weight, m, v, weight.to(grad.dtype)


def five_functions(fd: Any, x: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    return tuple(narrow(fd, t) for t in (o.relu(y), o.sigmoid(y), o.tanh(y), o.mul(y, y), o.exp(o.neg(o.abs(y)))))


def torch_five_functions(x: Any) -> Any:
    y = x.float()
    return tuple(t.to(x.dtype) for t in (y.relu(), y.sigmoid(), y.tanh(), y * y, (-y.abs()).exp()))


# Sizes and strides


def gelu(fd: Any, x: Any) -> Any:
    return narrow(fd, fd.ops.gelu(*wide(fd, x), approximate="tanh"))


def torch_gelu(x: Any) -> Any:
    return torch_library().nn.functional.gelu(x.float(), approximate="tanh").to(x.dtype)


def scale_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.relu(y))


def running(fd: Any, x: Any) -> Any:
    return fd.ops.mul(fd.ops.cumsum(x, 1), 0.5)


def images(channels: int, side: int, *, vectors: int = 0, last: bool = False) -> Callable[[int], tuple[Shape, ...]]:
    """Images, and vectors of one number per channel."""
    plane = (side, side, channels) if last else (channels, side, side)
    return lambda d: ((64 // d, *plane), *((channels,) for _ in range(vectors)))


SECOND: tuple[Written, ...] = (
    Written(name="softmax_32", kind="short rows", sizes=flat(32, rows=4194304), record=softmax, torch=torch_softmax),
    Written(name="sum_16", kind="short rows", sizes=flat(16, rows=4194304), dtypes=(F,),
            record=lambda fd, x: fd.ops.sum(x, [1]), torch=lambda x: x.sum(1)),
    Written(name="rms_norm_64", kind="short rows", sizes=flat(64, 64, rows=2097152), record=rms_norm,
            torch=torch_rms_norm),
    Written(name="max_pool_2", kind="windows", sizes=images(128, 128), record=partial(max_pool, side=2),
            torch=partial(torch_max_pool, side=2)),
    Written(name="mean_pool_4", kind="windows", sizes=images(128, 128), record=partial(mean_pool, side=4),
            torch=partial(torch_mean_pool, side=4)),
    Written(name="pool_tokens", kind="windows", sizes=same(64, 2048, 1024), record=pool_tokens,
            torch=torch_pool_tokens),
    Written(name="symmetric", kind="straight and transposed", sizes=lambda d: ((8192 // int(d**0.5),) * 2,),
            dtypes=(F,), record=symmetric, torch=lambda x: (x + x.T).contiguous()),
    Written(name="symmetric_pairs", kind="straight and transposed", sizes=same(64, 1000, 1000), record=pairs,
            torch=lambda x: ((x.float() + x.float().mT) * 0.5).to(x.dtype).contiguous()),
    Written(name="antisymmetric_rows", kind="straight and transposed", sizes=lambda d: ((8192 // int(d**0.5),) * 2,),
            dtypes=(F,), record=antisymmetric_rows, torch=lambda x: (x - x.T).square().sum(1)),
    Written(name="to_float8", kind="float8", sizes=lambda d: ((16384 // d, 8192), (1, 1)), dtypes=(B, F),
            record=to_float8, torch=torch_to_float8),
    Written(name="float8_gelu", kind="float8", sizes=lambda d: ((16384 // d, 8192), (1, 1)), dtypes=(Z, F),
            record=float8_gelu, torch=torch_float8_gelu),
    Written(name="float8_rows", kind="float8", sizes=flat(8192), record=float8_rows, torch=torch_float8_rows),
    Written(name="from_int8", kind="int8", sizes=flat(8192, 8192), dtypes=(Q, F), record=from_int8,
            torch=torch_from_int8),
    Written(name="int8_rows", kind="int8", sizes=flat(8192), record=int8_rows, torch=torch_int8_rows),
    Written(name="int8_add", kind="int8", sizes=same(16384, 8192, count=2), dtypes=(Q,), record=int8_add,
            torch=torch_int8_add),
    Written(name="batchnorm_bwd_56", kind="images", dtypes=(B, B, F),
            sizes=lambda d: (((256 // d, 128, 56, 56),) * 2 + ((128,),) * 2), record=batchnorm_bwd,
            torch=torch_batchnorm_bwd),
    Written(name="scale_shift_relu_56", kind="images", sizes=images(512, 56, vectors=2), record=scale_shift_relu,
            torch=torch_scale_shift_relu),
    Written(name="channel_moments", kind="images", sizes=images(512, 56), record=channel_moments,
            torch=torch_channel_moments),
    Written(name="apart_sum", kind="axes apart", sizes=images(128, 128), record=apart_sum,
            torch=lambda x: x.float().sum((0, 2))),
    Written(name="column_softmax", kind="axes apart", sizes=same(16384, 4096), dtypes=(F,),
            record=lambda fd, x: fd.ops.softmax(x, 0), torch=lambda x: x.softmax(0)),
    Written(name="middle_softmax", kind="axes apart", sizes=same(64, 512, 2048), record=partial(softmax, dim=1),
            torch=partial(torch_softmax, dim=1)),
    Written(name="layer_norm_768", kind="odd sizes", sizes=flat(768, 768, 768, rows=131072), record=layer_norm,
            torch=torch_layer_norm),
    Written(name="softmax_256k", kind="long rows", sizes=flat(262144, rows=1024), record=softmax, torch=torch_softmax),
    Written(name="softmax_32003", kind="odd sizes", sizes=flat(32003, rows=4096), record=softmax, torch=torch_softmax),
    Written(name="rms_norm_1021", kind="odd sizes", sizes=flat(1021, 1021, rows=131072), record=rms_norm,
            torch=torch_rms_norm),
    Written(name="gelu_prime", kind="odd sizes", sizes=lambda d: ((10007, 13411) if d == 1 else (2503, 3347),),
            record=gelu, torch=torch_gelu),
    Written(name="embedding_add", kind="look-ups", dtypes=(B, I, B), below=((1, 50257),), table=True,
            sizes=lambda d: ((50257, 768), (128 // d, 1024), (1024, 768)), record=embedding_add,
            torch=torch_embedding_add),
    Written(name="cross_entropy", kind="look-ups", sizes=lambda d: ((8192 // d, 32000), (8192 // d,)), dtypes=(B, I),
            below=((1, 32000),), record=cross_entropy, torch=torch_cross_entropy),
    Written(name="picked_rows", kind="look-ups", sizes=lambda d: ((32768, 2048), (32768 // d,), (32768 // d,)),
            dtypes=(B, I, B), below=((1, 32768),), table=True, record=picked_rows,
            torch=torch_picked_rows),
    Written(name="picked_along", kind="look-ups", sizes=same(65536, 1024, count=2), dtypes=(F, I), below=((1, 1024),),
            record=picked_along, torch=lambda x, places: x.gather(1, places) * 2),
    Written(name="group_norm", kind="norms around views", sizes=images(512, 64, vectors=2), record=group_norm,
            torch=torch_group_norm),
    Written(name="norm_rotate", kind="norms around views", record=norm_rotate, torch=torch_norm_rotate,
            sizes=lambda d: ((16 // d, 16, 4096, 128), (128,), (4096, 128), (4096, 128))),
    Written(name="head_norm", kind="norms around views", sizes=lambda d: ((64 // d, 1024, 2048), (128,)),
            record=head_norm, torch=torch_head_norm),
    Written(name="both_sums", kind="rows and columns", sizes=flat(8192), record=both_sums,
            torch=lambda x: (x.float().sum(1), x.float().sum(0))),
    Written(name="gelu_bwd", kind="rows and columns", sizes=same(16384, 4096, count=2), record=gelu_bwd,
            torch=torch_gelu_bwd),
    Written(name="ranks", kind="rows and columns", sizes=flat(8192), record=ranks, torch=torch_ranks),
    Written(name="to_nhwc", kind="layouts", sizes=images(256, 64, vectors=1), record=to_nhwc, torch=torch_to_nhwc),
    Written(name="to_nchw", kind="layouts", sizes=images(256, 64, vectors=1, last=True), record=to_nchw,
            torch=torch_to_nchw),
    Written(name="image_in", kind="layouts", sizes=lambda d: ((512 // d, 224, 224, 3), (3,)), dtypes=(Q, F),
            record=image_in, torch=torch_image_in),
    Written(name="cut_windows", kind="5-d", sizes=images(128, 128, vectors=1, last=True), record=cut_windows,
            torch=torch_cut_windows),
    Written(name="shuffle_pixels", kind="5-d", sizes=images(512, 64), record=shuffle_pixels,
            torch=torch_shuffle_pixels),
    Written(name="permute_5d", kind="5-d", sizes=same(32, 32, 16, 64, 64), record=permute_5d, torch=torch_permute_5d),
    Written(name="split_heads", kind="many outputs", sizes=same(64, 1024, 2304), record=split_heads,
            torch=torch_split_heads),
    Written(name="adam", kind="many outputs", sizes=same(8192, 8192, count=4), dtypes=(F, F, F, B), record=adam,
            torch=torch_adam, squares=(2,)),
    Written(name="five_functions", kind="many outputs", sizes=flat(8192, rows=8192), record=five_functions,
            torch=torch_five_functions),
    Written(name="residual", kind="mixed dtypes", sizes=same(16384, 4096, count=3), dtypes=(F, B, H), record=residual,
            torch=torch_residual),
    Written(name="masked_softmax", kind="mixed dtypes", sizes=same(65536, 1024, count=2), dtypes=(B, Y), record=masked,
            torch=torch_masked),
    Written(name="tiny_gelu", kind="tiny", sizes=once((64, 128)), record=gelu, torch=torch_gelu),
    Written(name="tiny_softmax", kind="tiny", sizes=once((8, 1000)), record=softmax, torch=torch_softmax),
    Written(name="tiny_layer_norm", kind="tiny", sizes=once((1, 768), (768,), (768,)), record=layer_norm,
            torch=torch_layer_norm),
    Written(name="every_other", kind="strided", sizes=same(8192, 16384, count=2), dtypes=(F,), record=scale_add,
            torch=lambda x, y: x * 2 + y.relu(), view=lambda t: t[:, ::2]),
    Written(name="padded_rows", kind="strided", sizes=flat(1024, rows=65536), record=softmax,
            torch=torch_softmax, view=lambda t: t[:, :1000]),
    Written(name="given_transposed", kind="strided", sizes=same(16384, 4096, count=2), dtypes=(F,), record=scale_add,
            torch=lambda x, y: (x * 2 + y.relu()).contiguous(), view=lambda t: t.T),
    Written(name="running_sums", kind="scans", sizes=same(16384, 4096), dtypes=(F,), record=running,
            torch=lambda x: x.cumsum(1) * 0.5),
)

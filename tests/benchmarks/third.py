"""The third set: more pieces of programs as users write them, none of them in the first two sets.

It was written when the kernels were done, so its first results are those of kernels that had seen none of it.
"""

from collections.abc import Callable
from typing import Any

from fuser_lab import DataType
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

D = DataType.Double


def part(fd: Any, x: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
    """A range of one axis."""
    shape = x.shape()
    starts, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], steps[axis] = start, end, step
    return fd.ops.slice(x, starts, ends, steps)


def without(fd: Any, x: Any, axis: int, place: int) -> Any:
    """One position of an axis, which is removed."""
    return fd.ops.squeeze(part(fd, x, axis, place, place + 1), [axis])


def positions(fd: Any, like: Any, axis: int, kind: DataType = I) -> Any:
    """The position along an axis, in the shape of another tensor."""
    return at_rank(fd, fd.ops.iota(like.shape()[axis], dtype=kind), like, axis)


# Gates


def mamba_gate(fd: Any, y: Any, x: Any, gate: Any, skip: Any) -> Any:
    o, shape = fd.ops, y.shape()
    (gate,) = wide(fd, o.reshape(gate, shape))
    y, x = wide(fd, y, x)
    out = o.mul(o.add(y, o.mul(x, at_rank(fd, skip, x, 2))), o.mul(gate, o.sigmoid(gate)))
    return o.reshape(narrow(fd, out), [*shape[:2], shape[2] * shape[3]])


def torch_mamba_gate(y: Any, x: Any, gate: Any, skip: Any) -> Any:
    gate = gate.view(y.shape).float()
    out = (y.float() + x.float() * skip[:, None]) * torch_library().nn.functional.silu(gate)
    return out.to(y.dtype).flatten(2)


def swiglu_bwd(fd: Any, dy: Any, gate: Any, up: Any) -> Any:
    o = fd.ops
    dy, gate, up = wide(fd, dy, gate, up)
    s = o.sigmoid(gate)
    slope = o.mul(s, o.add(1.0, o.mul(gate, o.sub(1.0, s))))
    return narrow(fd, o.mul(o.mul(dy, up), slope)), narrow(fd, o.mul(dy, o.mul(gate, s)))


def torch_swiglu_bwd(dy: Any, gate: Any, up: Any) -> Any:
    kind = dy.dtype
    dy, gate, up = dy.float(), gate.float(), up.float()
    s = gate.sigmoid()
    return (dy * up * (s * (1 + gate * (1 - s)))).to(kind), (dy * (gate * s)).to(kind)


def geglu_pairs(fd: Any, x: Any) -> Any:
    """Gates and values alternate along a row."""
    o, (rows, columns) = fd.ops, x.shape()
    pairs = o.reshape(x, [rows, columns // 2, 2])
    gate, up = wide(fd, without(fd, pairs, 2, 0), without(fd, pairs, 2, 1))
    return narrow(fd, o.mul(o.gelu(gate, approximate="tanh"), up))


def torch_geglu_pairs(x: Any) -> Any:
    gate, up = x[:, 0::2].float(), x[:, 1::2].float()
    return (torch_library().nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


# Norms


def query_key_norm(fd: Any, qkv: Any, q_weight: Any, k_weight: Any, heads: int = 16) -> Any:
    o, (batch, tokens, width) = fd.ops, qkv.shape()
    packed, size, outs = o.reshape(qkv, [batch, tokens, 3, heads, width // 3 // heads]), width // 3 // heads, []
    for place, weight in enumerate((q_weight, k_weight)):
        x, w = wide(fd, without(fd, packed, 2, place), weight)
        outs.append(narrow(fd, o.rms_norm(x, [size], w, eps=1e-6)))
    return tuple(outs)


def torch_query_key_norm(qkv: Any, q_weight: Any, k_weight: Any, heads: int = 16) -> Any:
    q, k, _ = qkv.unflatten(-1, (3, heads, -1)).float().unbind(2)
    q, k = (t * (t.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() for t in (q, k))
    return (q * q_weight.float()).to(qkv.dtype), (k * k_weight.float()).to(qkv.dtype)


def drop_add_norm(fd: Any, x: Any, mask: Any, residual: Any, weight: Any, bias: Any) -> Any:
    o = fd.ops
    x, residual, weight, bias = wide(fd, x, residual, weight, bias)
    total = o.add(residual, o.mul(o.where(mask, x, 0.0), 1 / 0.9))
    return narrow(fd, total), narrow(fd, o.layer_norm(total, [total.shape()[-1]], weight, bias))


def torch_drop_add_norm(x: Any, mask: Any, residual: Any, weight: Any, bias: Any) -> Any:
    torch, kind = torch_library(), x.dtype
    total = residual.float() + torch.where(mask, x.float(), 0.0) * (1 / 0.9)
    norm = torch.nn.functional.layer_norm(total, total.shape[-1:], weight.float(), bias.float())
    return total.to(kind), norm.to(kind)


def instance_norm(fd: Any, x: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    variance, mean = o.var_mean(y, [2, 3], correction=0, keepdim=True)
    return narrow(fd, o.mul(o.sub(y, mean), o.rsqrt(o.add(variance, 1e-5))))


def torch_instance_norm(x: Any) -> Any:
    return torch_library().nn.functional.instance_norm(x.float()).to(x.dtype)


def frozen_norm(fd: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """Batch norm with given statistics, channels last."""
    o = fd.ops
    (y,) = wide(fd, x)
    mean, variance, weight, bias = (at_rank(fd, t, y, 3) for t in (mean, variance, weight, bias))
    return narrow(fd, o.relu(o.add(o.mul(o.mul(o.sub(y, mean), o.rsqrt(o.add(variance, 1e-5))), weight), bias)))


def torch_frozen_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    return ((x.float() - mean) * (variance + 1e-5).rsqrt() * weight + bias).relu().to(x.dtype)


def group_norm_sums(fd: Any, dy: Any, x: Any, weight: Any) -> Any:
    """What the backward pass of a group norm sums: per image and channel, and weighted per group."""
    o = fd.ops
    n, channels = x.shape()[:2]
    dy, x = wide(fd, dy, x)
    ds, db = o.sum(o.mul(dy, x), [2, 3]), o.sum(dy, [2, 3])
    weight = at_rank(fd, weight, ds, 1)
    grouped = [o.sum(o.reshape(o.mul(t, weight), [n, 32, channels // 32]), [2]) for t in (ds, db)]
    return ds, db, *grouped


def torch_group_norm_sums(dy: Any, x: Any, weight: Any) -> Any:
    ds, db = (dy.float() * x.float()).sum((2, 3)), dy.float().sum((2, 3))
    return ds, db, *((t * weight).unflatten(1, (32, -1)).sum(2) for t in (ds, db))


def l2_normalise(fd: Any, x: Any, scale: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    norm = o.maximum(o.sqrt(o.sum(o.mul(y, y), [1], keepdim=True)), 1e-12)
    return narrow(fd, o.mul(o.div(y, norm), at_rank(fd, scale, y, 1)))


def torch_l2_normalise(x: Any, scale: Any) -> Any:
    return (torch_library().nn.functional.normalize(x.float(), dim=1) * scale).to(x.dtype)


# Softmax and losses


def log_softmax(fd: Any, x: Any) -> Any:
    return narrow(fd, fd.ops.log_softmax(*wide(fd, x), -1))


def softmax_bwd(fd: Any, dy: Any, y: Any) -> Any:
    o = fd.ops
    dy, y = wide(fd, dy, y)
    return narrow(fd, o.mul(o.sub(dy, o.sum(o.mul(dy, y), [1], keepdim=True)), y))


def torch_softmax_bwd(dy: Any, y: Any) -> Any:
    kind, dy, y = dy.dtype, dy.float(), y.float()
    return ((dy - (dy * y).sum(1, keepdim=True)) * y).to(kind)


def kl_rows(fd: Any, p: Any, q: Any) -> Any:
    o = fd.ops
    p, q = (o.log_softmax(t, -1) for t in wide(fd, p, q))
    return o.sum(o.mul(o.exp(p), o.sub(p, q)), [1])


def torch_kl_rows(p: Any, q: Any) -> Any:
    p, q = p.float().log_softmax(-1), q.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(1)


def cosine_rows(fd: Any, a: Any, b: Any) -> Any:
    o = fd.ops
    a, b = wide(fd, a, b)
    dot, aa, bb = (o.sum(o.mul(s, t), [1]) for s, t in ((a, b), (a, a), (b, b)))
    return o.mul(dot, o.rsqrt(o.maximum(o.mul(aa, bb), 1e-16)))


def torch_cosine_rows(a: Any, b: Any) -> Any:
    a, b = a.float(), b.float()
    return (a * b).sum(1) * ((a * a).sum(1) * (b * b).sum(1)).clamp(min=1e-16).rsqrt()


def focal_loss(fd: Any, x: Any, target: Any) -> Any:
    o = fd.ops
    (x,) = wide(fd, x)
    z = o.where(target, x, o.neg(x))
    miss = o.sigmoid(o.neg(z))
    loss = o.mul(o.mul(miss, miss), o.softplus(o.neg(z)))
    return o.mean(o.where(target, o.mul(loss, 0.25), o.mul(loss, 0.75)), [0, 1])


def torch_focal_loss(x: Any, target: Any) -> Any:
    torch = torch_library()
    z = torch.where(target, x.float(), -x.float())
    miss = (-z).sigmoid()
    loss = miss * miss * torch.nn.functional.softplus(-z)
    return torch.where(target, loss * 0.25, loss * 0.75).mean()


def causal_softmax(fd: Any, x: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    seen = o.le(positions(fd, y, 3), positions(fd, y, 2))
    return narrow(fd, o.softmax(o.where(seen, o.mul(y, 0.125), float("-inf")), -1))


def torch_causal_softmax(x: Any) -> Any:
    torch, size = torch_library(), x.shape[-1]
    places = torch.arange(size, device=x.device)
    seen = places <= places[:, None]
    return torch.where(seen, x.float() * 0.125, float("-inf")).softmax(-1).to(x.dtype)


def alibi_softmax(fd: Any, x: Any, slopes: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    distance = o.sub(positions(fd, y, 3, F), positions(fd, y, 2, F))
    return narrow(fd, o.softmax(o.add(y, o.mul(at_rank(fd, slopes, y, 1), distance)), -1))


def torch_alibi_softmax(x: Any, slopes: Any) -> Any:
    places = torch_library().arange(x.shape[-1], device=x.device, dtype=slopes.dtype)
    return (x.float() + slopes[:, None, None] * (places - places[:, None])).softmax(-1).to(x.dtype)


# Images and tokens


def average_pool(fd: Any, x: Any) -> Any:
    """Means of 3 x 3 elements, as a sum of nine shifted images with zeros around them."""
    o, (_, _, height, width) = fd.ops, x.shape()
    padded, total = o.pad(*wide(fd, x), [1, 1, 1, 1]), None
    for down in range(3):
        for right in range(3):
            shifted = part(fd, part(fd, padded, 2, down, down + height), 3, right, right + width)
            total = shifted if total is None else o.add(total, shifted)
    return narrow(fd, o.mul(total, 1 / 9))


def torch_average_pool(x: Any) -> Any:
    height, width = x.shape[2:]
    padded = torch_library().nn.functional.pad(x.float(), (1, 1, 1, 1))
    shifted = [padded[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return (sum(shifted) * (1 / 9)).to(x.dtype)


def unshuffle_pixels(fd: Any, x: Any, scale: Any) -> Any:
    o, (n, c, h, w) = fd.ops, x.shape()
    y = o.permute(o.reshape(x, [n, c, h // 2, 2, w // 2, 2]), [0, 1, 3, 5, 2, 4])
    (y,) = wide(fd, o.reshape(y, [n, 4 * c, h // 2, w // 2]))
    return dense(fd, narrow(fd, o.mul(y, at_rank(fd, scale, y, 1))))


def torch_unshuffle_pixels(x: Any, scale: Any) -> Any:
    y = torch_library().nn.functional.pixel_unshuffle(x, 2)
    return (y.float() * scale[:, None, None]).to(x.dtype)


def swin_windows(fd: Any, x: Any, bias: Any) -> Any:
    o, (n, h, w, c) = fd.ops, x.shape()
    y = o.permute(o.reshape(x, [n, h // 7, 7, w // 7, 7, c]), [0, 1, 3, 2, 4, 5])
    y, bias = wide(fd, o.reshape(y, [n * h * w // 49, 49, c]), bias)
    return dense(fd, narrow(fd, o.add(y, o.broadcast_in_dim(bias, shape=y.shape(), broadcast_dims=[1, 2]))))


def torch_swin_windows(x: Any, bias: Any) -> Any:
    n, h, w, c = x.shape
    y = x.view(n, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
    return (y.float() + bias.float()).to(x.dtype)


def roll_tokens(fd: Any, x: Any) -> Any:
    o = fd.ops
    for axis in (1, 2):
        size = x.shape()[axis]
        x = o.cat([part(fd, x, axis, 3, size), part(fd, x, axis, 0, 3)], axis)
    return narrow(fd, o.mul(*wide(fd, x), 0.5))


def torch_roll_tokens(x: Any) -> Any:
    return (x.roll((-3, -3), (1, 2)).float() * 0.5).to(x.dtype)


def enlarge(fd: Any, x: Any) -> Any:
    """Each pixel as a square of 2 x 2, plus a bend."""
    o, (n, c, h, w) = fd.ops, x.shape()
    (y,) = wide(fd, x)
    y = o.broadcast(o.mul(y, o.sigmoid(y)), [False, False, False, True, False, True])
    return narrow(fd, o.reshape(o.expand(y, [n, c, h, 2, w, 2]), [n, c, 2 * h, 2 * w]))


def torch_enlarge(x: Any) -> Any:
    y = torch_library().nn.functional.silu(x.float())[:, :, :, None, :, None]
    n, c, h, w = x.shape
    return y.expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w).to(x.dtype)


def rope_pairs(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Neighbours are rotated together."""
    o, shape = fd.ops, x.shape()
    pairs = o.reshape(x, [*shape[:-1], shape[-1] // 2, 2])
    even, odd, cos, sin = wide(fd, without(fd, pairs, 4, 0), without(fd, pairs, 4, 1), cos, sin)
    cos, sin = (o.broadcast_in_dim(t, shape=even.shape(), broadcast_dims=[2, 3]) for t in (cos, sin))
    turned = o.sub(o.mul(even, cos), o.mul(odd, sin)), o.add(o.mul(odd, cos), o.mul(even, sin))
    parts = [o.broadcast(narrow(fd, t), [False] * 4 + [True]) for t in turned]
    return o.reshape(o.cat(parts, 4), shape)


def torch_rope_pairs(x: Any, cos: Any, sin: Any) -> Any:
    even, odd, cos, sin = x[..., 0::2].float(), x[..., 1::2].float(), cos.float(), sin.float()
    pairs = torch_library().stack((even * cos - odd * sin, odd * cos + even * sin), -1)
    return pairs.flatten(-2).to(x.dtype)


# Few bits


def from_int4(fd: Any, packed: Any, scale: Any) -> Any:
    """Two numbers of four bits in each byte, one scale for each 128 numbers."""
    o, (rows, columns) = fd.ops, packed.shape()
    bits = o.cast(packed, dtype=DataType.Int32)
    low, high = o.bitwise_and(bits, 15), o.bitwise_and(o.bitwise_right_shift(bits, 4), 15)
    pair = o.cat([o.broadcast(o.sub(t, 8), [False, False, True]) for t in (low, high)], 2)
    y = o.reshape(o.cast(pair, dtype=F), [rows, columns // 64, 128])
    y = o.mul(y, o.broadcast_in_dim(scale, shape=y.shape(), broadcast_dims=[0, 1]))
    return narrow(fd, o.reshape(y, [rows, 2 * columns]))


def torch_from_int4(packed: Any, scale: Any) -> Any:
    torch, (rows, columns) = torch_library(), packed.shape
    bits = packed.int()
    pair = torch.stack(((bits & 15) - 8, ((bits >> 4) & 15) - 8), -1).float()
    return (pair.view(rows, columns // 64, 128) * scale[:, :, None]).view(rows, 2 * columns).to(torch.bfloat16)


def float8_blocks(fd: Any, x: Any) -> Any:
    """One scale for each block of 128 x 128."""
    o, (rows, columns) = fd.ops, x.shape()
    blocks = o.reshape(x, [rows // 128, 128, columns // 128, 128])
    (y,) = wide(fd, blocks)
    scale = o.div(o.maximum(o.max(o.abs(y), [1, 3], keepdim=True), 1e-12), 448.0)
    q = o.cast(o.clamp(o.div(y, scale), -448.0, 448.0), dtype=Z)
    return o.reshape(q, [rows, columns]), o.squeeze(scale, [1, 3])


def torch_float8_blocks(x: Any) -> Any:
    torch, (rows, columns) = torch_library(), x.shape
    y = x.view(rows // 128, 128, columns // 128, 128).float()
    scale = y.abs().amax((1, 3), keepdim=True).clamp(min=1e-12) / 448.0
    q = (y / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return q.view(rows, columns), scale[:, 0, :, 0]


def int8_columns(fd: Any, x: Any) -> Any:
    o = fd.ops
    (y,) = wide(fd, x)
    size = o.abs(y)
    scale = o.div(127.0, o.add(o.max(size, [0], keepdim=True), 1e-6))
    return o.cast(o.round(o.mul(y, scale)), dtype=Q), scale, o.max(size, [1])


def torch_int8_columns(x: Any) -> Any:
    y = x.float()
    scale = 127.0 / (y.abs().amax(0, keepdim=True) + 1e-6)
    return (y * scale).round().to(torch_library().int8), scale, y.abs().amax(1)


# Optimizers


def sgd(fd: Any, weight: Any, momentum: Any, grad: Any) -> Any:
    o = fd.ops
    momentum = o.add(o.mul(momentum, 0.9), o.add(*wide(fd, grad), o.mul(weight, 0.01)))
    return o.sub(weight, o.mul(momentum, 0.1)), momentum


def torch_sgd(weight: Any, momentum: Any, grad: Any) -> Any:
    momentum = momentum * 0.9 + (grad.float() + weight * 0.01)
    return weight - momentum * 0.1, momentum


def lion(fd: Any, weight: Any, m: Any, grad: Any) -> Any:
    o = fd.ops
    (g,) = wide(fd, grad)
    step = o.add(o.sign(o.add(o.mul(m, 0.9), o.mul(g, 0.1))), o.mul(weight, 0.01))
    return o.sub(weight, o.mul(step, 1e-4)), o.add(o.mul(m, 0.99), o.mul(g, 0.01))


def torch_lion(weight: Any, m: Any, grad: Any) -> Any:
    g = grad.float()
    return weight - ((m * 0.9 + g * 0.1).sign() + weight * 0.01) * 1e-4, m * 0.99 + g * 0.01


def clip_norm(fd: Any, grad: Any) -> Any:
    """Gradients limited to an L2 norm of 1 together."""
    o = fd.ops
    norm = o.sqrt(o.sum(o.mul(grad, grad), [0, 1]))
    return o.mul(grad, o.minimum(o.div(1.0, o.add(norm, 1e-6)), 1.0)), norm


def torch_clip_norm(grad: Any) -> Any:
    norm = grad.square().sum().sqrt()
    return grad * (1.0 / (norm + 1e-6)).clamp(max=1.0), norm


# Look-ups and comparisons


def top_mask(fd: Any, x: Any) -> Any:
    return fd.ops.eq(x, fd.ops.max(x, [1], keepdim=True))


def bag_mean(fd: Any, table: Any, ids: Any) -> Any:
    o, (bags, size) = fd.ops, ids.shape()
    rows = o.index_select(table, o.reshape(ids, [bags * size]), 0)
    return narrow(fd, o.mean(*wide(fd, o.reshape(rows, [bags, size, table.shape()[1]])), [1]))


def torch_bag_mean(table: Any, ids: Any) -> Any:
    return table[ids].float().mean(1).to(table.dtype)


def one_hot(fd: Any, ids: Any, classes: int = 1000) -> Any:
    o, (count,) = fd.ops, ids.shape()
    places = o.broadcast_in_dim(o.iota(classes), shape=[count, classes], broadcast_dims=[1])
    ids = o.broadcast_in_dim(ids, shape=[count, classes], broadcast_dims=[0])
    return o.cast(o.eq(ids, places), dtype=B)


def torch_one_hot(ids: Any, classes: int = 1000) -> Any:
    torch = torch_library()
    return (ids[:, None] == torch.arange(classes, device=ids.device)).to(torch.bfloat16)


# Sums and scans


def running_shares(fd: Any, x: Any) -> Any:
    o = fd.ops
    powers = o.exp(x)
    return o.div(o.cumsum(powers, 1), o.sum(powers, [1], keepdim=True))


def torch_running_shares(x: Any) -> Any:
    powers = x.exp()
    return powers.cumsum(1) / powers.sum(1, keepdim=True)


def image_stats(fd: Any, x: Any) -> Any:
    return fd.ops.var_mean(x, [0, 2, 3], correction=0)


def torch_image_stats(x: Any) -> Any:
    return torch_library().var_mean(x, (0, 2, 3), correction=0)


def double_stats(fd: Any, x: Any) -> Any:
    y = fd.ops.cast(x, dtype=D)
    return tuple(fd.ops.cast(t, dtype=F) for t in fd.ops.var_mean(y, [1], correction=1))


def torch_double_stats(x: Any) -> Any:
    return tuple(t.float() for t in torch_library().var_mean(x.double(), 1))


def row_dot(fd: Any, x: Any, v: Any) -> Any:
    x, v = wide(fd, x, v)
    return fd.ops.sum(fd.ops.mul(x, at_rank(fd, v, x, 1)), [1])


def standardise(fd: Any, x: Any) -> Any:
    o = fd.ops
    variance, mean = o.var_mean(x, [1], correction=0, keepdim=True)
    return o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5)))


def torch_standardise(x: Any) -> Any:
    variance, mean = torch_library().var_mean(x, 1, correction=0, keepdim=True)
    return (x - mean) * (variance + 1e-5).rsqrt()


# Shapes


def join(fd: Any, a: Any, b: Any, c: Any) -> Any:
    """Three tensors of other widths beside one another."""
    o = fd.ops
    (y,) = wide(fd, o.cat([a, b, c], 1))
    return narrow(fd, o.mul(y, o.sigmoid(y)))


def torch_join(a: Any, b: Any, c: Any) -> Any:
    torch = torch_library()
    return torch.nn.functional.silu(torch.cat((a, b, c), 1).float()).to(a.dtype)


def outer_sum(fd: Any, a: Any, b: Any) -> Any:
    o = fd.ops
    shape = [a.shape()[0], b.shape()[0]]
    a, b = (o.broadcast_in_dim(t, shape=shape, broadcast_dims=[n]) for n, t in enumerate(wide(fd, a, b)))
    return narrow(fd, o.leaky_relu(o.add(a, b), 0.2))


def torch_outer_sum(a: Any, b: Any) -> Any:
    return torch_library().nn.functional.leaky_relu(a.float()[:, None] + b.float(), 0.2).to(a.dtype)


def butterfly(fd: Any, x: Any, factor: Any) -> Any:
    o, half = fd.ops, x.shape()[1] // 2
    a, b = part(fd, x, 1, 0, half), part(fd, x, 1, half, 2 * half)
    return o.cat([o.add(a, b), o.mul(o.sub(a, b), at_rank(fd, factor, a, 1))], 1)


def torch_butterfly(x: Any, factor: Any) -> Any:
    a, b = x.chunk(2, 1)
    return torch_library().cat((a + b, (a - b) * factor), 1)


def transposed_add(fd: Any, a: Any, b: Any) -> Any:
    a, b = wide(fd, fd.ops.permute(a, [0, 2, 1]), b)
    return dense(fd, narrow(fd, fd.ops.add(fd.ops.relu(a), b)))


def torch_transposed_add(a: Any, b: Any) -> Any:
    return (a.mT.float().relu() + b.float()).to(b.dtype)


def third_columns(fd: Any, x: Any) -> Any:
    return narrow(fd, fd.ops.sigmoid(*wide(fd, part(fd, x, 1, 0, x.shape()[1], 3))))


def tiny_chain(fd: Any, x: Any, y: Any) -> Any:
    o = fd.ops
    z = o.add(o.mul(x, y), 1.0)
    z = o.mul(o.tanh(z), o.sigmoid(y))
    return o.sqrt(o.add(o.abs(o.sub(z, x)), 1e-3))


def torch_tiny_chain(x: Any, y: Any) -> Any:
    z = (x * y + 1.0).tanh() * y.sigmoid()
    return ((z - x).abs() + 1e-3).sqrt()


def beside(count: int, shape: Shape, *others: Shape) -> Callable[[int], tuple[Shape, ...]]:
    """Some tensors of a shape, whose first axis is shorter on a CPU, and others that are the same everywhere."""
    return lambda d: (*(((max(shape[0] // d, 1), *shape[1:]),) * count), *others)


TOKENS = (32, 56, 56, 384)
THIRD: tuple[Written, ...] = (
    Written(name="mamba_gate", kind="gates", dtypes=(B, B, B, F), record=mamba_gate, torch=torch_mamba_gate,
            sizes=lambda d: (*(((8192 // d, 1, 64, 64),) * 2), (8192 // d, 1, 4096), (64,))),
    Written(name="swiglu_bwd", kind="gates", sizes=same(8192, 3072, count=3), record=swiglu_bwd,
            torch=torch_swiglu_bwd),
    Written(name="geglu_pairs", kind="gates", sizes=flat(8192, rows=8192), record=geglu_pairs,
            torch=torch_geglu_pairs),
    Written(name="query_key_norm", kind="norms", sizes=beside(1, (8192, 1, 6144), (128,), (128,)),
            record=query_key_norm, torch=torch_query_key_norm),
    Written(name="drop_add_norm", kind="norms", dtypes=(B, Y, B), record=drop_add_norm, torch=torch_drop_add_norm,
            sizes=beside(3, (6144, 4096), (4096,), (4096,))),
    Written(name="instance_norm", kind="norms", sizes=same(32, 128, 112, 112), record=instance_norm,
            torch=torch_instance_norm),
    Written(name="frozen_norm", kind="norms", sizes=beside(1, (64, 56, 56, 256), *(((256,),) * 4)), dtypes=(B, F),
            record=frozen_norm, torch=torch_frozen_norm, squares=(2,)),
    Written(name="group_norm_sums", kind="norms", sizes=beside(2, (32, 256, 64, 64), (256,)), dtypes=(B, B, F),
            record=group_norm_sums, torch=torch_group_norm_sums),
    Written(name="l2_normalise", kind="norms", sizes=flat(768, 768, rows=65536), dtypes=(B, F), record=l2_normalise,
            torch=torch_l2_normalise),
    Written(name="log_softmax_50257", kind="softmax", sizes=flat(50257, rows=1024), record=log_softmax,
            torch=lambda x: x.float().log_softmax(-1).to(x.dtype)),
    Written(name="softmax_bwd", kind="softmax", sizes=same(32768, 1024, count=2), record=softmax_bwd,
            torch=torch_softmax_bwd),
    Written(name="softmax_5d", kind="softmax", sizes=same(64, 16, 16, 32, 64), dtypes=(F,),
            record=lambda fd, x: fd.ops.softmax(x, 2), torch=lambda x: x.softmax(2)),
    Written(name="logsumexp", kind="softmax", sizes=same(2048, 32768),
            record=lambda fd, x: fd.ops.logsumexp(*wide(fd, x), [1]), torch=lambda x: x.float().logsumexp(1)),
    Written(name="causal_softmax", kind="softmax", sizes=lambda d: ((16 // d, 8, 512, 512),), record=causal_softmax,
            torch=torch_causal_softmax),
    Written(name="alibi_softmax", kind="softmax", sizes=lambda d: ((16 // d, 8, 512, 512), (8,)), dtypes=(B, F),
            record=alibi_softmax, torch=torch_alibi_softmax),
    Written(name="kl_rows", kind="losses", sizes=same(4096, 8192, count=2), record=kl_rows, torch=torch_kl_rows),
    Written(name="cosine_rows", kind="losses", sizes=same(32768, 1024, count=2), record=cosine_rows,
            torch=torch_cosine_rows),
    Written(name="focal_loss", kind="losses", sizes=same(8192, 8192, count=2), dtypes=(B, Y), record=focal_loss,
            torch=torch_focal_loss),
    Written(name="average_pool", kind="images", sizes=same(32, 64, 112, 112), record=average_pool,
            torch=torch_average_pool),
    Written(name="unshuffle_pixels", kind="images", sizes=beside(1, (32, 64, 128, 128), (256,)), dtypes=(B, F),
            record=unshuffle_pixels, torch=torch_unshuffle_pixels),
    Written(name="enlarge", kind="images", sizes=same(64, 64, 64, 64), record=enlarge, torch=torch_enlarge),
    Written(name="swin_windows", kind="tokens", sizes=beside(1, TOKENS, (49, 384)), record=swin_windows,
            torch=torch_swin_windows),
    Written(name="roll_tokens", kind="tokens", sizes=same(*TOKENS), record=roll_tokens, torch=torch_roll_tokens),
    Written(name="rope_pairs", kind="tokens", record=rope_pairs, torch=torch_rope_pairs,
            sizes=beside(1, (64, 1, 4096, 128), (4096, 64), (4096, 64))),
    Written(name="from_int4", kind="few bits", sizes=lambda d: ((16384 // d, 2048), (16384 // d, 32)), dtypes=(Q, F),
            record=from_int4, torch=torch_from_int4),
    Written(name="float8_blocks", kind="few bits", sizes=same(8192, 8192), record=float8_blocks,
            torch=torch_float8_blocks),
    Written(name="int8_columns", kind="few bits", sizes=same(8192, 8192), record=int8_columns,
            torch=torch_int8_columns),
    Written(name="sgd", kind="optimizers", sizes=same(3072, 4096, count=3), dtypes=(F, F, B), record=sgd,
            torch=torch_sgd),
    Written(name="lion", kind="optimizers", sizes=same(3072, 4096, count=3), dtypes=(F, F, B), record=lion,
            torch=torch_lion),
    Written(name="clip_norm", kind="optimizers", sizes=same(8192, 4096), dtypes=(F,), record=clip_norm,
            torch=torch_clip_norm),
    Written(name="top_mask", kind="comparisons", sizes=same(16384, 4096), record=top_mask,
            torch=lambda x: x == x.amax(1, keepdim=True)),
    Written(name="one_hot", kind="comparisons", sizes=same(65536), dtypes=(I,), below=((0, 1000),), record=one_hot,
            torch=torch_one_hot),
    Written(name="bag_mean", kind="comparisons", sizes=lambda d: ((65536, 256), (8192 // d, 32)), dtypes=(B, I),
            below=((1, 65536),), table=True, record=bag_mean, torch=torch_bag_mean),
    Written(name="running_shares", kind="sums", sizes=same(8192, 4096), dtypes=(F,), record=running_shares,
            torch=torch_running_shares),
    Written(name="image_stats", kind="sums", sizes=same(64, 128, 64, 64), dtypes=(F,), record=image_stats,
            torch=torch_image_stats),
    Written(name="double_stats", kind="sums", sizes=same(16384, 4096), dtypes=(H,), record=double_stats,
            torch=torch_double_stats),
    Written(name="row_dot", kind="sums", sizes=flat(2048, 2048, rows=32768), record=row_dot,
            torch=lambda x, v: (x.float() * v.float()).sum(1)),
    Written(name="prime_columns", kind="sums", sizes=lambda d: ((8191 // d, 8209),),
            record=lambda fd, x: fd.ops.sum(*wide(fd, x), [0]), torch=lambda x: x.float().sum(0)),
    Written(name="rows_of_7", kind="sums", sizes=same(4194304, 7), dtypes=(F,), record=standardise,
            torch=torch_standardise),
    Written(name="huge_rows", kind="sums", sizes=lambda d: ((4, 8388608 // d),), dtypes=(F,), record=standardise,
            torch=torch_standardise),
    Written(name="join_odd", kind="shapes", record=join, torch=torch_join,
            sizes=lambda d: tuple((32768 // d, n) for n in (511, 257, 1000))),
    Written(name="outer_sum", kind="shapes", sizes=lambda d: ((16384 // d,), (4096,)), record=outer_sum,
            torch=torch_outer_sum),
    Written(name="butterfly", kind="shapes", sizes=beside(1, (8192, 4096), (2048,)), dtypes=(F,), record=butterfly,
            torch=torch_butterfly),
    Written(name="transposed_add", kind="shapes", sizes=lambda d: ((64 // d, 512, 1024), (64 // d, 1024, 512)),
            record=transposed_add, torch=torch_transposed_add),
    Written(name="third_columns", kind="shapes", sizes=same(8192, 8190), record=third_columns,
            torch=lambda x: x[:, ::3].float().sigmoid().to(x.dtype)),
    Written(name="tiny_chain", kind="tiny", sizes=once((32, 100), (32, 100)), dtypes=(F,), record=tiny_chain,
            torch=torch_tiny_chain),
)

"""Programs as models write them: norms, softmaxes, losses, rotations, optimizers, quantisation, pools, look-ups, scans.

A template records its calls with a `Recorder`, which draws inputs and sizes: `tests.templates.case` says what differs
from one case of a template to the next. Axes are named by words, and equal words are equal sizes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fuser_lab import DataType as D


class Recorder(Protocol):
    """What a template reads: ``fd.ops``, inputs by their axes, and sizes."""

    ops: Any

    def floats(self, axes: str, *, like: D | None = None, positive: bool = False, written: bool = False) -> Any:
        """Return an input in the case's dtype, or in another one; one that is ``written`` is dense."""

    def integers(self, axes: str, below: str | int) -> Any:
        """Return an Int input of numbers from 0 to below an axis' size."""

    def mask(self, axes: str) -> Any:
        """Return a Bool input."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""

    def wide(self, value: Any) -> Any:
        """Return a value as the dtype in which models compute: Double stays, other floats become Float."""

    def narrow(self, value: Any) -> Any:
        """Return a value in the case's dtype."""

    def number(self, value: int) -> Any:
        """Return a number as a scalar of the definition."""

    def write(self, value: Any, target: Any) -> None:
        """Make a value the new content of an input."""


Record = Callable[[Recorder], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A program with free sizes; ``axes`` are the words that it uses, ``least`` the smallest size of an axis."""

    name: str
    axes: tuple[str, ...]
    record: Record
    least: dict[str, int]


TEMPLATES: dict[str, Template] = {}


def template(axes: str, **least: int) -> Callable[[Record], Record]:
    """Register a template under the name of its function."""
    def register(record: Record) -> Record:
        name = record.__name__.lstrip("_")
        assert name not in TEMPLATES, name
        TEMPLATES[name] = Template(name=name, axes=tuple(axes.split()), record=record, least=least)
        return record

    return register


def rows_of(r: Recorder, value: Any, shape: str) -> Any:
    """Return one number per row, expanded along the last axis of a shape."""
    sizes = [r.size(a) for a in shape.split()]
    return r.ops.broadcast_in_dim(value, sizes, list(range(len(sizes) - 1)))


# Norms


@template("batch rows cols", cols=1)
def _layer_norm(r: Recorder) -> Any:
    x, weight, bias = r.wide(r.floats("batch rows cols")), r.floats("cols"), r.floats("cols")
    return r.narrow(r.ops.layer_norm(x, [r.size("cols")], weight, bias))


@template("rows cols", cols=1)
def _rms_norm_residual(r: Recorder) -> Any:
    x = r.ops.add(r.wide(r.floats("rows cols")), r.wide(r.floats("rows cols")))
    square = r.ops.mean(r.ops.mul(x, x), [1], keepdim=True)
    y = r.ops.mul(r.ops.mul(x, r.ops.rsqrt(r.ops.add(square, 1e-5))), r.wide(r.floats("cols")))
    return r.narrow(x), r.narrow(y)


@template("rows cols", cols=1)
def _layer_norm_backward(r: Recorder) -> Any:
    o, cols = r.ops, r.size("cols")
    g, x, weight = r.wide(r.floats("rows cols")), r.wide(r.floats("rows cols")), r.wide(r.floats("cols"))
    mean, rstd = r.floats("rows", like=D.Float), r.floats("rows", like=D.Float, positive=True)
    normal = o.mul(o.sub(x, rows_of(r, mean, "rows cols")), rows_of(r, rstd, "rows cols"))
    scaled = o.mul(g, weight)
    first = o.mul(o.sum(scaled, [1], keepdim=True), 1 / cols)
    second = o.mul(o.sum(o.mul(scaled, normal), [1], keepdim=True), 1 / cols)
    dx = o.mul(o.sub(o.sub(scaled, first), o.mul(normal, second)), rows_of(r, rstd, "rows cols"))
    return r.narrow(dx), o.sum(o.mul(g, normal), [0]), o.sum(g, [0])


@template("batch chan side", batch=1, side=2)
def _batch_norm_channels_first(r: Recorder) -> Any:
    x = r.wide(r.floats("batch chan side side"))
    return r.narrow(r.ops.batch_norm(x, None, None, r.floats("chan"), r.floats("chan"), training=True))


@template("batch chan side", batch=1, side=1)
def _batch_norm_channels_last(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("batch side side chan"))
    var, mean = o.var_mean(x, [0, 1, 2], correction=0, keepdim=True)
    y = o.mul(o.mul(o.sub(x, mean), o.rsqrt(o.add(var, 1e-5))), r.wide(r.floats("chan")))
    return r.narrow(o.relu(o.add(y, r.wide(r.floats("chan")))))


@template("batch group part side", side=1, part=1, group=1)
def _group_norm_silu(r: Recorder) -> Any:
    groups, part = r.size("group"), r.size("part")
    x = r.wide(r.floats("batch group part side side"))
    x = r.ops.reshape(x, [r.size("batch"), groups * part, r.size("side"), r.size("side")])
    return r.narrow(r.ops.silu(r.ops.group_norm(x, groups)))


@template("rows cols", cols=1)
def _weight_norm(r: Recorder) -> Any:
    v, g = r.wide(r.floats("rows cols")), r.wide(r.floats("rows"))
    length = r.ops.sqrt(r.ops.add(r.ops.sum(r.ops.mul(v, v), [1]), 1e-6))
    return r.narrow(r.ops.mul(v, rows_of(r, r.ops.truediv(g, length), "rows cols")))


@template("rows cols", cols=2)
def _standardize_twice(r: Recorder) -> Any:
    """Statistics of a normalized tensor: reductions that depend on reductions."""
    o, x = r.ops, r.wide(r.floats("rows cols"))
    for _ in range(2):
        var, mean = o.var_mean(x, [1], keepdim=True)
        x = o.mul(o.sub(x, mean), o.rsqrt(o.add(var, 0.1)))
    return r.narrow(x)


@template("batch chan side", side=1)
def _instance_norm(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("batch chan side side"))
    mean, squares, count = o.welford(x, [2, 3])
    shape = [r.size(a) for a in ("batch", "chan", "side", "side")]
    scale = o.rsqrt(o.add(o.truediv(squares, o.cast(count, D.Float)), 1e-5))
    centered = o.sub(x, o.broadcast_in_dim(mean, shape, [0, 1]))
    return r.narrow(o.mul(centered, o.broadcast_in_dim(scale, shape, [0, 1])))


# Softmaxes


def _shifted_exp(r: Recorder, x: Any, axis: int) -> Any:
    return r.ops.exp(r.ops.sub(x, r.ops.max(x, [axis], keepdim=True)))


@template("batch heads rows cols", cols=1)
def _softmax_scaled(r: Recorder) -> Any:
    x = r.ops.mul(r.wide(r.floats("batch heads rows cols")), 1 / math.sqrt(64))
    return r.narrow(r.ops.softmax(x, -1))


@template("batch chan side", chan=1)
def _softmax_over_channels(r: Recorder) -> Any:
    e = _shifted_exp(r, r.wide(r.floats("batch chan side")), 1)
    return r.narrow(r.ops.truediv(e, r.ops.sum(e, [1], keepdim=True)))


@template("batch rows cols", cols=1)
def _softmax_masked_by_length(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "rows", "cols")]
    x, length = r.wide(r.floats("batch rows cols")), r.integers("batch", "cols")
    inside = o.le(
        o.broadcast_in_dim(o.iota(r.size("cols")), shape, [2]), o.broadcast_in_dim(length, shape, [0]),
    )
    return r.narrow(o.softmax(o.where(inside, x, -math.inf), -1))


@template("heads rows", rows=1)
def _softmax_causal_alibi(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("heads", "rows", "rows")]
    x, slope = r.wide(r.floats("heads rows rows")), r.wide(r.floats("heads"))
    i = o.broadcast_in_dim(o.iota(shape[1]), shape, [1])
    j = o.broadcast_in_dim(o.iota(shape[1]), shape, [2])
    bias = o.mul(o.cast(o.sub(j, i), D.Float), o.broadcast_in_dim(slope, shape, [0]))
    return r.narrow(o.softmax(o.where(o.le(j, i), o.add(x, bias), -math.inf), -1))


@template("rows cols", cols=1)
def _softmax_backward(r: Recorder) -> Any:
    g, y = r.wide(r.floats("rows cols")), r.wide(r.floats("rows cols"))
    inner = r.ops.mul(g, y)
    return r.narrow(r.ops.sub(inner, r.ops.mul(y, r.ops.sum(inner, [1], keepdim=True))))


@template("batch chan side", chan=1)
def _softmax_backward_over_channels(r: Recorder) -> Any:
    """One operand has the channels fastest in memory, the other one slowest."""
    y = r.wide(r.floats("batch chan side"))
    g = r.ops.permute(r.wide(r.floats("batch side chan")), [0, 2, 1])
    inner = r.ops.mul(g, y)
    return r.narrow(r.ops.sub(inner, r.ops.mul(y, r.ops.sum(inner, [1], keepdim=True))))


@template("rows cols", cols=1)
def _gumbel_softmax(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    u = o.uniform(1e-3, 0.99, [r.size("rows"), r.size("cols")])
    return r.narrow(o.softmax(o.sub(x, o.log(o.neg(o.log(u)))), -1))


@template("rows cols", cols=1)
def _softcapped_logsumexp(r: Recorder) -> Any:
    capped = r.ops.mul(r.ops.tanh(r.ops.mul(r.wide(r.floats("rows cols")), 1 / 30.0)), 30.0)
    total = r.ops.logsumexp(capped, [1])
    return r.narrow(total), r.ops.mean(r.ops.mul(total, total))


# Losses


@template("rows cols", rows=1, cols=1)
def _cross_entropy(r: Recorder) -> Any:
    return r.ops.cross_entropy(r.wide(r.floats("rows cols")), r.integers("rows", "cols"))


@template("rows cols", cols=1)
def _cross_entropy_backward(r: Recorder) -> Any:
    o, x, target = r.ops, r.wide(r.floats("rows cols")), r.integers("rows", "cols")
    shape = [r.size("rows"), r.size("cols")]
    hot = o.eq(o.broadcast_in_dim(o.iota(shape[1]), shape, [1]), o.broadcast_in_dim(target, shape, [0]))
    return r.narrow(o.mul(o.sub(o.softmax(x, -1), o.cast(hot, D.Float)), 1 / max(shape[0], 1)))


@template("rows cols", cols=1)
def _label_smoothing(r: Recorder) -> Any:
    o, x, target = r.ops, r.wide(r.floats("rows cols")), r.integers("rows", "cols")
    logp = o.log_softmax(x, -1)
    index = o.broadcast_in_dim(target, [r.size("rows"), 1], [0])
    picked = o.squeeze(o.take_along_axis(logp, index, 1), [1])
    return o.neg(o.add(o.mul(picked, 0.9), o.mul(o.mean(logp, [1]), 0.1)))


@template("rows cols", rows=1, cols=1)
def _huber(r: Recorder) -> Any:
    o, d = r.ops, r.ops.sub(r.wide(r.floats("rows cols")), r.wide(r.floats("rows cols")))
    size = o.abs(d)
    return o.mean(o.where(o.lt(size, 1.0), o.mul(o.mul(d, d), 0.5), o.sub(size, 0.5)))


@template("rows cols")
def _focal_with_logits(r: Recorder) -> Any:
    o, x, hit = r.ops, r.wide(r.floats("rows cols")), r.mask("rows cols")
    p = o.sigmoid(x)
    right = o.where(hit, p, o.sub(1.0, p))
    return o.sum(o.neg(o.mul(o.mul(o.sub(1.0, right), o.sub(1.0, right)), o.log(o.clamp(right, 1e-6, 1.0)))), [1])


@template("rows cols", cols=1)
def _divergence(r: Recorder) -> Any:
    o = r.ops
    a, b = (o.log_softmax(r.wide(r.floats("rows cols")), -1) for _ in range(2))
    return o.sum(o.mul(o.exp(a), o.sub(a, b)), [1]), o.sum(o.mul(o.exp(a), o.sub(a, b)), [0])


# Gates and activations


@template("rows cols")
def _swiglu_of_halves(r: Recorder) -> Any:
    o, rows, cols = r.ops, r.size("rows"), r.size("cols")
    x = r.floats("rows two*cols")
    gate, up = o.slice(x, [0, 0], [rows, cols]), o.slice(x, [0, cols], [rows, 2 * cols])
    return r.narrow(o.mul(o.silu(r.wide(gate)), r.wide(up)))


@template("rows cols", cols=1)
def _geglu_of_pairs(r: Recorder) -> Any:
    o, rows, cols = r.ops, r.size("rows"), r.size("cols")
    x = r.floats("rows two*cols")
    even, odd = (o.slice(x, [0, k], [rows, 2 * cols], [1, 2]) for k in range(2))
    return r.narrow(o.mul(o.gelu(r.wide(even)), r.wide(odd)))


@template("rows cols")
def _swiglu_backward(r: Recorder) -> Any:
    o, rows, cols = r.ops, r.size("rows"), r.size("cols")
    g, x = r.wide(r.floats("rows cols")), r.floats("rows two*cols")
    gate, up = (r.wide(o.slice(x, [0, k * cols], [rows, (k + 1) * cols])) for k in range(2))
    s = o.sigmoid(gate)
    d = o.mul(o.mul(g, up), o.mul(s, o.add(o.mul(gate, o.sub(1.0, s)), 1.0)))
    return r.narrow(o.cat([d, o.mul(g, o.mul(gate, s))], 1))


@template("batch rows cols", rows=1)
def _bias_gelu_column_sums(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("batch rows cols"))
    y = o.gelu(o.add(x, r.wide(r.floats("cols"))), "tanh")
    return r.narrow(y), o.sum(y, [0, 1])


# Column reductions with masks and weights that are built in stages


@template("batch rows cols", rows=1)
def _masked_mean_of_columns(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "rows", "cols")]
    x, length = r.wide(r.floats("batch rows cols")), r.integers("batch", "rows")
    inside = o.le(o.broadcast(o.iota(shape[1]), [True, False]), o.broadcast(length, [False, True]))
    weight = o.broadcast(o.cast(inside, D.Float), [False, False, True])
    total = o.sum(o.mul(x, weight), [1])
    count = o.broadcast_in_dim(o.sum(o.cast(inside, D.Float), [1]), [shape[0], shape[2]], [0])
    return r.narrow(o.truediv(total, count))


@template("batch rows cols")
def _weights_of_two_stages(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("batch rows cols"))
    n, w = r.wide(r.floats("batch")), r.wide(r.floats("rows"))
    m = o.add(o.broadcast(n, [False, True]), o.broadcast(w, [True, False]))
    return o.sum(o.mul(x, o.broadcast(m, [False, False, True])), [1])


@template("batch rows cols", rows=1)
def _attention_pool(r: Recorder) -> Any:
    o, x, score = r.ops, r.wide(r.floats("batch rows cols")), r.wide(r.floats("batch rows"))
    weight = o.broadcast(o.softmax(o.where(r.mask("batch rows"), score, -1e4), 1), [False, False, True])
    return r.narrow(o.sum(o.mul(x, weight), [1])), o.max(o.mul(x, weight), [1])


# Rotations


@template("batch heads rows part", part=1)
def _rope_halves(r: Recorder) -> Any:
    o, part = r.ops, r.size("part")
    shape = [r.size(a) for a in ("batch", "heads", "rows")]
    x = r.floats("batch heads rows two*part")
    cos, sin = (r.wide(r.floats("rows two*part")) for _ in range(2))
    first, second = o.slice(x, [0, 0, 0, 0], [*shape, part]), o.slice(x, [0, 0, 0, part], [*shape, 2 * part])
    turned = o.cat([r.narrow(o.neg(second)), first], 3)
    whole = [*shape, 2 * part]
    return r.narrow(o.add(
        o.mul(r.wide(x), o.broadcast_in_dim(cos, whole, [2, 3])),
        o.mul(r.wide(turned), o.broadcast_in_dim(sin, whole, [2, 3])),
    ))


@template("batch rows heads part", part=1)
def _rope_pairs(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "rows", "heads", "part")]
    x = r.floats("batch rows heads part 2")
    angle = r.wide(r.floats("rows part"))
    even, odd = (
        r.wide(o.squeeze(o.slice(x, [0, 0, 0, 0, k], [*shape, k + 1]), [4])) for k in range(2)
    )
    cos, sin = (o.broadcast_in_dim(f(angle), shape, [1, 3]) for f in (o.cos, o.sin))
    pair = [o.sub(o.mul(even, cos), o.mul(odd, sin)), o.add(o.mul(even, sin), o.mul(odd, cos))]
    joined = o.cat([o.broadcast(t, [False] * 4 + [True]) for t in pair], 4)
    return r.narrow(o.reshape(joined, [*shape[:3], 2 * shape[3]]))


# Attention without products


@template("batch rows heads part", heads=1, part=1)
def _split_heads(r: Recorder) -> Any:
    o, (batch, rows, heads, part) = r.ops, [r.size(a) for a in ("batch", "rows", "heads", "part")]
    x = r.floats("batch rows three*heads*part")
    width = heads * part
    outputs = []
    for k in range(3):
        piece = o.slice(x, [0, 0, k * width], [batch, rows, (k + 1) * width])
        outputs.append(o.permute(o.reshape(piece, [batch, rows, heads, part]), [0, 2, 1, 3]))
    return r.narrow(o.mul(r.wide(outputs[0]), 0.125)), outputs[1], outputs[2]


@template("batch heads rows more part")
def _append_to_cache(r: Recorder) -> Any:
    keys = r.ops.cat([r.floats("batch heads more part"), r.floats("batch heads rows part")], 2)
    return keys, r.narrow(r.ops.mul(r.wide(r.ops.permute(keys, [0, 1, 3, 2])), 0.5))


@template("batch heads rows cols", cols=1)
def _attention_probabilities(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "heads", "rows", "cols")]
    x, bias = r.wide(r.floats("batch heads rows cols")), r.wide(r.floats("heads rows cols"))
    seen = o.broadcast_in_dim(r.mask("batch cols"), shape, [0, 3])
    p = o.softmax(o.where(seen, o.add(x, bias), -1e9), -1)
    return r.narrow(o.dropout(p, 0.25)), o.logsumexp(x, [3])


# Optimizers


@template("rows cols")
def _adam(r: Recorder) -> Any:
    o = r.ops
    p, m, v = (r.floats("rows cols", like=D.Float, positive=k == 2, written=True) for k in range(3))
    g = r.wide(r.floats("rows cols"))
    m2 = o.add(o.mul(m, 0.9), o.mul(g, 0.1))
    v2 = o.add(o.mul(v, 0.99), o.mul(o.mul(g, g), 0.01))
    step = o.truediv(o.mul(m2, 1e-3), o.add(o.sqrt(v2), 1e-8))
    for new, old in ((o.sub(o.mul(p, 0.999), step), p), (m2, m), (v2, v)):
        r.write(new, old)
    return r.narrow(o.sub(p, step))


@template("rows cols")
def _clip_by_global_norm(r: Recorder) -> Any:
    o, a, b = r.ops, r.wide(r.floats("rows cols")), r.wide(r.floats("cols"))
    length = o.sqrt(o.add(o.sum(o.mul(a, a)), o.sum(o.mul(b, b))))
    scale = o.minimum(o.truediv(1.0, o.add(length, 1e-6)), 1.0)
    return r.narrow(o.mul(a, scale)), r.narrow(o.mul(b, scale)), length


@template("rows cols")
def _sign_momentum(r: Recorder) -> Any:
    o, p, g, m = r.ops, *(r.wide(r.floats("rows cols")) for _ in range(3))
    update = o.sign(o.add(o.mul(m, 0.9), o.mul(g, 0.1)))
    return r.narrow(o.sub(p, o.mul(update, 0.01))), r.narrow(o.lerp(m, g, 0.01))


# Quantisation


@template("rows cols", cols=1)
def _rows_to_bytes(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    scale = o.add(o.mul(o.max(o.abs(x), [1], keepdim=True), 1 / 127), 1e-8)
    q = o.clamp(o.round(o.truediv(x, scale)), -127.0, 127.0)
    return o.cast(q, D.Char), o.squeeze(scale, [1]), r.narrow(o.mul(q, scale))


@template("rows blocks")
def _blocks_of_16(r: Recorder) -> Any:
    o, rows, blocks = r.ops, r.size("rows"), r.size("blocks")
    x = o.reshape(r.wide(r.floats("rows 16*blocks")), [rows, blocks, 16])
    scale = o.add(o.max(o.abs(x), [2], keepdim=True), 1e-4)
    q = o.cast(o.floor(o.mul(o.truediv(x, scale), 7.0)), D.Char)
    return o.reshape(q, [rows, 16 * blocks]), r.narrow(o.squeeze(scale, [2]))


@template("rows cols")
def _dequantised_gate(r: Recorder) -> Any:
    o, q, scale = r.ops, r.integers("rows cols", 200), r.wide(r.floats("rows"))
    low, high = o.bitwise_and(q, 15), o.bitwise_right_shift(q, 4)
    wide = o.sub(o.cast(o.add(low, o.bitwise_left_shift(high, 4)), D.Float), 100.0)
    return r.narrow(o.mul(o.mul(wide, 0.01), rows_of(r, scale, "rows cols")))


# Pools, windows and shifts


@template("batch side chan", side=1)
def _pool_2_by_2(r: Recorder) -> Any:
    o, batch, side, chan = r.ops, r.size("batch"), r.size("side"), r.size("chan")
    x = o.reshape(r.floats("batch chan two*side two*side"), [batch, chan, side, 2, side, 2])
    return o.max(x, [3, 5]), r.narrow(o.mean(r.wide(x), [3, 5]))


@template("batch chan cols", cols=4)
def _depthwise_of_4(r: Recorder) -> Any:
    o, batch, chan, cols = r.ops, r.size("batch"), r.size("chan"), r.size("cols")
    x, w = r.wide(r.floats("batch chan cols")), r.wide(r.floats("chan 4"))
    padded = o.pad(x, [3, 0])
    total = None
    for k in range(4):
        tap = o.broadcast_in_dim(o.squeeze(o.slice(w, [0, k], [chan, k + 1]), [1]), [batch, chan, cols], [1])
        term = o.mul(o.slice(padded, [0, 0, k], [batch, chan, cols + k]), tap)
        total = term if total is None else o.add(total, term)
    return r.narrow(o.silu(total))


@template("rows cols", cols=2)
def _rolled_difference(r: Recorder) -> Any:
    o, rows, cols = r.ops, r.size("rows"), r.size("cols")
    x = r.wide(r.floats("rows cols"))
    rolled = o.cat([o.slice(x, [0, cols - 1], [rows, cols]), o.slice(x, [0, 0], [rows, cols - 1])], 1)
    return r.narrow(o.sub(x, rolled)), o.sum(o.abs(o.sub(x, rolled)), [1])


@template("batch side part chan", side=1, part=1)
def _patches(r: Recorder) -> Any:
    o, batch, side, part, chan = r.ops, *(r.size(a) for a in ("batch", "side", "part", "chan"))
    x = o.reshape(r.floats("batch chan side*part side*part"), [batch, chan, side, part, side, part])
    tokens = o.reshape(o.permute(x, [0, 2, 4, 1, 3, 5]), [batch, side * side, chan * part * part])
    return r.narrow(o.mul(o.sub(r.wide(tokens), 0.5), 4.0))


@template("rows cols")
def _flipped_and_padded(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    return r.narrow(o.pad(o.exp(o.neg(o.abs(o.flip(x, [1])))), [2, 1, 0, 3], 0.5))


# Look-ups


@template("batch rows cols words", words=1)
def _embeddings(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "rows", "cols")]
    tokens = o.embedding_fwd(r.integers("batch rows", "words"), r.floats("words cols"))
    place = o.broadcast_in_dim(r.wide(r.floats("rows cols")), shape, [1, 2])
    x = o.add(r.wide(tokens), place)
    return r.narrow(o.mul(x, o.rsqrt(o.add(o.mean(o.mul(x, x), [2], keepdim=True), 1e-5)))) if shape[2] else x


@template("rows cols words", words=1)
def _picked_rows(r: Recorder) -> Any:
    o, table = r.ops, r.floats("words cols")
    scaled = o.mul(r.wide(table), r.wide(r.floats("cols")))
    rows = o.index_select(scaled, r.integers("rows", "words"), 0)
    return r.narrow(rows), o.sum(rows, [1])


@template("rows cols more", cols=1)
def _gathered_scores(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    return r.narrow(o.take_along_axis(o.exp(o.neg(o.abs(x))), r.integers("rows more", "cols"), 1))


@template("rows cols", cols=2)
def _two_experts(r: Recorder) -> Any:
    p = r.ops.softmax(r.wide(r.floats("rows cols")), -1)
    best, where = r.ops.topk(p, r.number(2), 1)
    return r.narrow(r.ops.truediv(best, r.ops.sum(best, [1], keepdim=True))), where


# Scans


@template("rows cols", cols=1)
def _cumulative_mean(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    count = o.cast(o.iota(r.size("cols"), 1), D.Float)
    return r.narrow(o.truediv(o.cumsum(x, 1), o.broadcast_in_dim(count, [r.size("rows"), r.size("cols")], [1])))


@template("rows cols", rows=1)
def _running_maxima_of_columns(r: Recorder) -> Any:
    x = r.floats("rows cols")
    return r.ops.cummax(x, 0), r.narrow(r.ops.sub(r.wide(x), r.ops.max(r.wide(x), [0], keepdim=True)))


@template("rows cols", cols=1)
def _decayed_products(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    return r.narrow(o.cumprod(o.sigmoid(o.add(x, 3.0)), 1)), r.narrow(o.sum(o.cumsum(x, 1), [1]))


# Dropout


@template("batch rows cols", cols=1)
def _dropout_residual_norm(r: Recorder) -> Any:
    o, x, residual = r.ops, r.wide(r.floats("batch rows cols")), r.wide(r.floats("batch rows cols"))
    y = o.add(o.dropout(o.add(x, r.wide(r.floats("cols"))), 0.1), residual)
    return r.narrow(o.layer_norm(y, [r.size("cols")])), r.narrow(y)


@template("batch rows cols")
def _drop_path(r: Recorder) -> Any:
    o, shape = r.ops, [r.size(a) for a in ("batch", "rows", "cols")]
    kept = o.cast(o.lt(o.uniform(0.0, 1.0, [shape[0]]), 0.8), D.Float)
    branch = o.mul(r.wide(r.floats("batch rows cols")), o.broadcast_in_dim(o.mul(kept, 1.25), shape, [0]))
    return r.narrow(o.add(branch, r.wide(r.floats("batch rows cols"))))


@template("rows cols")
def _noise_and_statistics(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("rows cols"))
    y = o.add(x, o.normal(0.0, 0.1, [r.size("rows"), r.size("cols")]))
    return r.narrow(y), o.sum(y, [0]), o.sum(o.mul(y, y), [1])


# Layouts and pieces


@template("batch rows cols")
def _transposed_sum(r: Recorder) -> Any:
    o = r.ops
    x = o.add(r.wide(o.permute(r.floats("batch cols rows"), [0, 2, 1])), r.wide(r.floats("batch rows cols")))
    return r.narrow(x), o.sum(x, [0, 2])


@template("rows cols more")
def _joined_and_weighed(r: Recorder) -> Any:
    o = r.ops
    x = o.cat([r.wide(r.floats("rows cols")), r.wide(o.permute(r.floats("more rows"), [1, 0]))], 1)
    return r.narrow(o.mul(x, o.sigmoid(x))), o.sum(x, [0])


@template("rows cols", rows=1, cols=1)
def _outer_differences(r: Recorder) -> Any:
    o, a, b = r.ops, r.wide(r.floats("rows")), r.wide(r.floats("cols"))
    d = o.sub(o.broadcast(a, [False, True]), o.broadcast(b, [True, False]))
    return o.min(o.mul(d, d), [1]), r.narrow(o.exp(o.neg(o.mul(d, d))))


@template("batch rows cols", rows=1, cols=1)
def _sum_of_several_axes(r: Recorder) -> Any:
    o, x = r.ops, r.wide(r.floats("batch rows cols"))
    whole = o.sum(x)
    return o.sum(x, [0, 2]), o.max(x, [1]), whole, r.narrow(o.sub(x, o.mean(x, [1, 2], keepdim=True)))

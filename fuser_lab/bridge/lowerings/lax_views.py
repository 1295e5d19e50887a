"""JAX's changes of shape: broadcasts, reshapes, transposes, slices, pads, concatenations, ranges."""

from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, TracedTensor, primitive
from fuser_lab.bridge.lowerings.views import slice_of, with_the_bits
from fuser_lab.definition.handles import Tensor
from fuser_lab.dtypes import DataType


def _constant(to: Emitter, value: Any) -> Any:
    number = float(value) if to.dtype.is_float else bool(value) if to.dtype is DataType.Bool else int(value)
    return to.full(to.call.result.shape, number, to.dtype)


@primitive("broadcast_in_dim", computes=False, numbers=True)
def _broadcast_in_dim(to: Emitter, x: Any, *_: Any) -> Any:
    if not isinstance(x, Tensor):
        return _constant(to, x)
    shape, axes = to.call.result.shape, tuple(to.call.option("broadcast_dimensions"))
    if len(axes) < len(shape):
        x = to.ops.broadcast(x, [axis not in axes for axis in range(len(shape))])
    return to.ops.set(x) if to.shape(x) == shape else to.ops.expand(x, list(shape))


@primitive("reshape", computes=False)
def _reshape(to: Emitter, x: Any, *_: Any) -> Any:
    order = to.call.option("dimensions")
    x = x if order is None else to.ops.permute(x, list(order))
    reshaped = to.reshape(x, to.call.result.shape)
    return to.ops.set(reshaped) if reshaped is x else reshaped


@primitive("bitcast_convert_type")
def _bitcast_convert_type(to: Emitter, x: Any) -> Any:
    return with_the_bits(to, x)


@primitive("squeeze", computes=False)
def _squeeze(to: Emitter, x: Any) -> Any:
    return to.reshape(x, to.call.result.shape)


@primitive("transpose", computes=False)
def _transpose(to: Emitter, x: Any) -> Any:
    return to.ops.permute(x, list(to.call.option("permutation")))


@primitive("slice", computes=False)
def _slice(to: Emitter, x: Any) -> Any:
    starts, limits = to.call.option("start_indices"), to.call.option("limit_indices")
    steps = to.call.option("strides") or (1,) * len(starts)
    part = x
    for axis, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
        part = slice_of(to, part, axis, start, limit, step)
    return to.ops.set(part) if part is x else part


@primitive("rev")
def _rev(to: Emitter, x: Any) -> Any:
    shape, reversed_operand = to.shape(x), x
    for axis in to.call.option("dimensions"):
        reversed_operand = to.ops.index_select(reversed_operand, to.places(shape[axis], shape[axis] - 1, -1), axis)
    return to.ops.set(x) if reversed_operand is x else reversed_operand


def _plain_padding(call: Call) -> str | None:
    if isinstance(call.args[1], TracedTensor):
        return "it pads with a value that is data"
    return "it pads between elements" if any(inner for *_, inner in call.option("padding_config")) else None


@primitive("pad", refuse=_plain_padding, numbers=True)
def _pad(to: Emitter, x: Any, value: Any) -> Any:
    pads = [side for low, high, _ in reversed(to.call.option("padding_config")) for side in (low, high)]
    number = float(value) if to.dtype.is_float else bool(value) if to.dtype is DataType.Bool else int(value)
    return to.ops.pad(x, pads, number)


@primitive("concatenate")
def _concatenate(to: Emitter, *parts: Any) -> Any:
    non_empty = [part for part in parts if all(to.shape(part))] or [parts[0]]
    return to.ops.cat(non_empty, to.call.option("dimension")) if len(non_empty) > 1 else to.ops.set(non_empty[0])


@primitive("stack")
def _stack(to: Emitter, *parts: Any) -> Any:
    axis = to.call.option("axis")
    new = [place == axis for place in range(parts[0].ndim + 1)]
    wide = [to.ops.broadcast(part, new) for part in parts]
    return to.ops.cat(wide, axis) if len(wide) > 1 else wide[0]


@primitive("unstack", computes=False)
def _unstack(to: Emitter, x: Any) -> Any:
    axis = to.call.option("axis")
    return [to.ops.squeeze(slice_of(to, x, axis, at, at + 1), [axis]) for at in range(to.shape(x)[axis])]


@primitive("tile", computes=False)
def _tile(to: Emitter, x: Any) -> Any:
    shape, counts = to.shape(x), to.call.option("reps")
    wide = to.ops.broadcast(x, [place % 2 == 0 for place in range(2 * x.ndim)])
    sizes = [size for pair in zip(counts, shape, strict=True) for size in pair]
    return to.reshape(to.expand(wide, sizes), to.call.result.shape)


@primitive("split", computes=False)
def _split(to: Emitter, x: Any) -> Any:
    axis, start, parts = to.call.option("axis"), 0, []
    for size in to.call.option("sizes"):
        part = slice_of(to, x, axis, start, start + size)
        parts.append(to.ops.set(part) if part is x else part)
        start += size
    return parts


def _no_truths(call: Call) -> str | None:
    return "ranges of bools are not supported" if call.result.dtype == "bool" else None


@primitive("iota", refuse=_no_truths, computes=False)
def _iota(to: Emitter) -> Any:
    shape, axis = to.call.result.shape, to.call.option("dimension")
    places = to.reshape(to.places(shape[axis]), [n if place == axis else 1 for place, n in enumerate(shape)])
    return to.expand(to.cast(places, to.dtype), shape)


# Slices with data-dependent starts, which are clamped so that the slice is in range.

def _start(to: Emitter, start: Any, room: int) -> Any:
    """Return the start of a slice, as a number or as a tensor without axes."""
    if not isinstance(start, Tensor):
        return min(max(int(start), 0), room)
    wide = to.cast(start, DataType.Int)
    return to.ops.minimum(to.ops.maximum(wide, 0), room)


def _count_from(to: Emitter, count: int, start: Any) -> Any:
    """Return ``start + i`` for i below count."""
    if not isinstance(start, Tensor):
        return to.places(count, start)
    return to.ops.add(to.places(count), to.expand(start, [count]))


@primitive("dynamic_slice", numbers=True)
def _dynamic_slice(to: Emitter, x: Any, *starts: Any) -> Any:
    sizes, section = to.call.option("slice_sizes"), x
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        room = to.shape(x)[axis] - size
        if room == 0:
            continue
        begin = _start(to, start, room)
        if isinstance(begin, Tensor):
            section = to.ops.index_select(section, _count_from(to, size, begin), axis)
        else:
            section = slice_of(to, section, axis, begin, begin + size)
    return to.ops.set(x) if section is x else section


@primitive("dynamic_update_slice", numbers=True)
def _dynamic_update_slice(to: Emitter, x: Any, update: Any, *starts: Any) -> Any:
    ops, shape, part = to.ops, to.shape(x), to.shape(update)
    written, spread = None, update
    for axis, start in enumerate(starts):
        if part[axis] == shape[axis]:
            continue
        begin = _start(to, start, shape[axis] - part[axis])
        off = ops.sub(to.places(shape[axis]), to.expand(begin, [shape[axis]]) if isinstance(begin, Tensor) else begin)
        inside = ops.logical_and(ops.ge(off, 0), ops.lt(off, part[axis]))
        spread = ops.index_select(spread, ops.minimum(ops.maximum(off, 0), part[axis] - 1), axis)
        inside = to.reshape(inside, [n if place == axis else 1 for place, n in enumerate(shape)])
        written = inside if written is None else ops.logical_and(written, inside)
    return ops.set(update) if written is None else ops.where(written, spread, x)

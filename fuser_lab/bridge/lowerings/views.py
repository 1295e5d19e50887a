"""ATen's views and copies: reshapes, permutations, slices, pads, concatenations, casts.

Strides are not lowered: the region gives each output its traced strides.
"""

from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.registry import DTYPES, Call, Emitter, TorchName, TracedTensor, axis_of, lowering
from fuser_lab.dtypes import DataType

# Ops for which torch returns a view of the operand as one tensor, and those of them that widen it.
ALIASES = frozenset({
    "aten.view.default", "aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.expand.default",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.alias.default",
    "aten.detach.default", "aten.slice.Tensor", "aten.select.int", "aten.view.dtype",
})  # fmt: skip
VIEWS = ALIASES | {"aten._unsafe_view.default"}  # all that move nothing; the schema of the last does not say so
# Ops that write what they read to other memory.
COPIES = frozenset({
    "aten.clone.default", "aten.copy.default", "aten._reshape_copy.default", "aten.expand_copy.default",
    "aten.lift_fresh_copy.default", "aten.split_with_sizes_copy.default",
})  # fmt: skip
BROADCASTS = frozenset({"aten.expand.default", "aten.unsqueeze.default"})


@lowering(
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._reshape_copy.default",
    computes=False,
)
def _view(to: Emitter, x: Any, _: Any) -> Any:
    return to.reshape(x, to.call.result.shape)


@lowering("aten.permute.default", computes=False)
def _permute(to: Emitter, x: Any, dims: Any) -> Any:
    return to.ops.permute(x, [axis_of(dim, x.ndim) for dim in dims])


@lowering("aten.transpose.int", computes=False)
def _transpose(to: Emitter, x: Any, dim0: int, dim1: int) -> Any:
    order = list(range(x.ndim))
    if order:
        first, second = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
        order[first], order[second] = order[second], order[first]
    return to.ops.permute(x, order)


@lowering("aten.t.default", computes=False)
def _t(to: Emitter, x: Any) -> Any:
    return to.ops.permute(x, [1, 0]) if x.ndim == 2 else to.ops.set(x)


@lowering("aten.expand.default", "aten.expand_copy.default", computes=False)
def _expand(to: Emitter, x: Any, *_: Any, **__: Any) -> Any:
    return to.expand(x, to.call.result.shape)


@lowering("aten.unsqueeze.default", computes=False)
def _unsqueeze(to: Emitter, x: Any, dim: int) -> Any:
    place = axis_of(dim, x.ndim + 1)
    return to.ops.broadcast(x, [axis == place for axis in range(x.ndim + 1)])


@lowering("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", computes=False)
def _squeeze(to: Emitter, x: Any, *_: Any) -> Any:
    return to.reshape(x, to.call.result.shape)


@lowering(
    "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default", "aten.lift_fresh.default",
    "aten.clone.default", "aten.contiguous.default", "aten.copy.default", computes=False,
)
def _copy(to: Emitter, x: Any, source: Any = None, *_: Any, **__: Any) -> Any:
    if source is None:
        return to.ops.set(x)
    return to.expand(to.cast(source, to.dtype), to.call.result.shape)


def _on_one_device(call: Call) -> str | None:
    source = call.args[0]
    if isinstance(source, TracedTensor) and source.device != call.result.device:
        return f"it moves data from {source.device} to {call.result.device}"
    return None


@lowering("aten._to_copy.default", "prims.convert_element_type.default", refuse=_on_one_device)
def _to_copy(to: Emitter, x: Any, _: TorchName | None = None, **__: Any) -> Any:
    return to.ops.set(x) if x.dtype is DTYPES[to.call.result.dtype] else to.cast(x, to.dtype)


# Parts

def slice_of(to: Emitter, x: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
    """Return ``x[start:end:step]`` along an axis, for bounds within the axis."""
    shape = list(to.shape(x))
    if step != 1:
        count = max(0, -(-(end - start) // step))
        return to.ops.index_select(x, to.places(count, start, step), axis)
    if (start, end) == (0, shape[axis]):
        return x
    if joined := to.joined_there(x, axis, start, end):
        operand, first = joined
        return slice_of(to, operand, axis, start - first, end - first)
    starts = [start if place == axis else 0 for place in range(len(shape))]
    ends = [end if place == axis else size for place, size in enumerate(shape)]
    return to.ops.slice(x, starts, ends)


def _is_bool(call: Call) -> str | None:
    """Refuse numbers as Bool, because their bits may be neither those of true nor those of false."""
    source, target = DTYPES[call.args[0].dtype], DTYPES[call.result.dtype]
    if target is DataType.Bool and source is not target:
        return "a Bool has the bits of 0 or 1, and other numbers may have others"
    return None


@lowering("aten.view.dtype", computes=False, refuse=_is_bool)
def _view_dtype(to: Emitter, x: Any, _: TorchName) -> Any:
    return with_the_bits(to, x)


def with_the_bits(to: Emitter, x: Any) -> Any:
    """Return the numbers of the result's dtype that have the bits of a tensor, lower parts of a number first."""
    x = to.cast(x, DataType.Byte) if x.dtype is DataType.Bool else x
    before, after = x.dtype.itemsize, to.dtype.itemsize
    if to.dtype is DataType.Bool or before == after:
        return to.ops.set(x) if x.dtype is to.dtype else to.ops.bitcast(x, to.dtype)
    words = to.ops.bitcast(x, _WORDS[before])
    computed = DataType.Int if max(before, after) == DataType.Int.itemsize else DataType.Int32
    computed_words = (_parts if before > after else _wider_words)(to, words, computed)
    return to.ops.bitcast(to.ops.cast(computed_words, _WORDS[after]), to.dtype)


def _parts(to: Emitter, words: Any, dtype: DataType) -> Any:
    """Return integers whose lowest bits are the parts of words, the lowest part first."""
    ratio = words.dtype.itemsize // to.dtype.itemsize
    column = to.ops.broadcast(to.cast(words, dtype), [False] * words.ndim + [True])
    distances = to.ops.iota(ratio, 0, 8 * to.dtype.itemsize, dtype)
    return to.reshape(to.ops.bitwise_right_shift(column, distances), to.call.result.shape)


def _wider_words(to: Emitter, words: Any, dtype: DataType) -> Any:
    """Return integers whose parts are adjacent words, the first the lowest."""
    ratio, bits = to.dtype.itemsize // words.dtype.itemsize, 8 * words.dtype.itemsize
    groups, axis = to.reshape(words, (*to.call.result.shape, ratio)), to.call.result.ndim
    whole = None
    for place in range(ratio):
        part = to.ops.squeeze(slice_of(to, groups, axis, place, place + 1), [axis])
        part = to.ops.bitwise_and(to.cast(part, dtype), (1 << bits) - 1)
        part = to.ops.bitwise_left_shift(part, place * bits) if place else part
        whole = part if whole is None else to.ops.bitwise_or(whole, part)
    return whole


_WORDS = {1: DataType.Byte, 2: DataType.Short, 4: DataType.Int32, 8: DataType.Int}  # integers by size


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@lowering("aten.slice.Tensor", computes=False)
def _slice(to: Emitter, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = axis_of(dim, x.ndim)
    part = slice_of(to, x, axis, *_bounds(to.shape(x)[axis], start, end), step)
    return to.ops.set(part) if part is x else part


@lowering("aten.select.int", computes=False)
def _select(to: Emitter, x: Any, dim: int, index: int) -> Any:
    axis = axis_of(dim, x.ndim)
    place = index % to.shape(x)[axis]
    return to.ops.squeeze(slice_of(to, x, axis, place, place + 1), [axis])


@lowering(
    "aten.split_with_sizes.default", "aten.split_with_sizes_copy.default", "aten.unsafe_split_with_sizes.default",
    computes=False,
)
def _split_with_sizes(to: Emitter, x: Any, sizes: Any, dim: int = 0) -> Any:
    axis, start, parts = axis_of(dim, x.ndim), 0, []
    for size in sizes:
        parts.append(slice_of(to, x, axis, start, start + size))
        start += size
    return parts


@lowering("aten.split.Tensor", "aten.unsafe_split.Tensor", computes=False)
def _split(to: Emitter, x: Any, size: int, dim: int = 0) -> Any:
    extent = to.shape(x)[axis_of(dim, x.ndim)]
    sizes = [min(size, extent - start) for start in range(0, extent, size)] if size else [0]
    return _split_with_sizes(to, x, sizes or [0], dim)


@lowering("aten.unbind.int", computes=False)
def _unbind(to: Emitter, x: Any, dim: int = 0) -> list[Any]:
    return [_select(to, x, dim, place) for place in range(to.shape(x)[axis_of(dim, x.ndim)])]


@lowering("aten.flip.default", "prims.rev.default")
def _flip(to: Emitter, x: Any, dims: Any) -> Any:
    shape = to.shape(x)
    for dim in dims if x.ndim else ():
        axis = axis_of(dim, x.ndim)
        x = to.ops.index_select(x, to.places(shape[axis], shape[axis] - 1, -1), axis)
    return x if dims else to.ops.set(x)


@lowering("aten.diagonal.default")
def _diagonal(to: Emitter, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    shape = to.shape(x)
    rest = [place for place in range(x.ndim) if place not in {first, second}]
    x = to.ops.permute(x, [*rest, first, second])
    flat = to.reshape(x, [*(shape[place] for place in rest), shape[first] * shape[second]])
    start = offset if offset >= 0 else -offset * shape[second]
    count = to.call.result.shape[-1]
    return to.ops.index_select(flat, to.places(count, start if count else 0, shape[second] + 1), len(rest))


def _beyond(call: Call) -> str | None:
    """Refuse reads of memory that is not, or may not be, the operand's own."""
    x, sizes, strides = call.args[:3]
    dense = tuple(prod(x.shape[axis + 1 :]) for axis in range(x.ndim))
    if call.argument(3, "storage_offset") is not None:
        return "the address of its operand is unknown"
    if not x.size or any(n > 1 and a != b for n, a, b in zip(x.shape, x.strides, dense, strict=True)):
        return "its operand is not row-major"
    if not call.result.size:
        return "a tensor is empty"
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return "it reads beyond its operand" if last >= x.size else None


@lowering("aten.as_strided.default", refuse=_beyond, computes=False)
def _as_strided(to: Emitter, x: Any, sizes: Any, strides: Any, _: None = None) -> Any:
    shape = to.shape(x)
    if tuple(sizes) == shape and to.call.result.strides == to.call.tensors[0].strides:
        return to.ops.set(x)
    places = _strided_places(to, sizes, strides)
    flat = to.ops.index_select(to.reshape(x, [prod(shape)]), to.reshape(places, [prod(sizes)]), 0)
    return to.reshape(flat, sizes)


def _strided_places(to: Emitter, sizes: Any, strides: Any) -> Any:
    count = len(sizes)
    places: Any = to.full((1,) * count, 0, DataType.Int)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        along = to.reshape(to.places(size, 0, stride), [size if place == axis else 1 for place in range(count)])
        places = to.ops.add(places, along)
    return places


def _overlapping(call: Call) -> str | None:
    x, source, sizes, strides = call.args[:4]
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    dense = all(
        x.shape[axis] == 1 or x.strides[axis] == prod(x.shape[after] for after in order[place + 1 :])
        for place, axis in enumerate(order)
    )
    if not dense or not x.size or not source.size:
        return "its operand is not dense"
    if call.argument(4, "storage_offset"):
        return "the address of its operand is unknown"
    reached = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride <= reached:
            return "it writes to some element twice"
        reached += (size - 1) * stride
    return "it writes beyond its operand" if reached >= x.size else None


@lowering("aten.as_strided_scatter.default", refuse=_overlapping)
def _as_strided_scatter(to: Emitter, x: Any, source: Any, sizes: Any, strides: Any, _: None = None) -> Any:
    traced_operand = to.call.tensors[0]
    order = sorted(range(x.ndim), key=lambda axis: -traced_operand.strides[axis])
    inverse = sorted(range(x.ndim), key=order.__getitem__)
    places, count = to.reshape(_strided_places(to, sizes, strides), [prod(sizes)]), prod(to.shape(x))
    flat = to.reshape(to.ops.permute(x, order), [count])
    written = to.ops.scatter(flat, places, to.reshape(to.cast(source, to.dtype), [prod(sizes)]), 0)
    return to.ops.permute(to.reshape(written, [to.shape(x)[axis] for axis in order]), inverse)


@lowering("aten.diagonal_scatter.default")
def _diagonal_scatter(to: Emitter, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    ops, shape = to.ops, to.shape(x)
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    count = to.shape(source)[-1]
    if not count:
        return ops.set(x)
    rows, columns = (
        to.reshape(to.places(shape[axis]), [shape[axis] if place == axis else 1 for place in range(x.ndim)])
        for axis in (first, second)
    )
    written = ops.eq(ops.sub(columns, rows), offset)
    places = ops.sub(to.places(shape[first]), max(0, -offset))
    spread = ops.index_select(source, ops.minimum(ops.maximum(places, 0), count - 1), source.ndim - 1)
    # The last axis of the source becomes the row; columns repeat it.
    axes = [*(place for place in range(x.ndim) if place not in {first, second}), first]
    spread = ops.permute(spread, sorted(range(len(axes)), key=axes.__getitem__))
    return ops.where(written, ops.broadcast(spread, [place == second for place in range(x.ndim)]), x)


@lowering("aten.unfold.default")
def _unfold(to: Emitter, x: Any, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return to.reshape(x, to.call.result.shape)
    axis, shape = axis_of(dim, x.ndim), list(to.shape(x))
    windows = (shape[axis] - size) // step + 1
    begins = to.ops.broadcast(to.places(windows, 0, step), [False, True])
    places = to.ops.add(begins, to.ops.broadcast(to.places(size), [True, False]))
    flat = to.ops.index_select(x, to.reshape(places, [windows * size]), axis)
    parts = to.reshape(flat, [*shape[:axis], windows, size, *shape[axis + 1 :]])
    order = [place for place in range(x.ndim + 1) if place != axis + 1]
    return to.ops.permute(parts, [*order, axis + 1])


# Larger ones

@lowering("aten.cat.default")
def _cat(to: Emitter, tensors: Any, dim: int = 0) -> Any:
    # Torch skips empty tensors with one axis, whatever the others are.
    parts = [to.cast(x, to.dtype) for x in tensors if to.shape(x) != (0,)] or [to.cast(tensors[0], to.dtype)]
    return to.ops.cat(parts, axis_of(dim, parts[0].ndim)) if len(parts) > 1 else to.ops.set(parts[0])


@lowering("aten.stack.default")
def _stack(to: Emitter, tensors: Any, dim: int = 0) -> Any:
    axis = axis_of(dim, tensors[0].ndim + 1)
    new = [place == axis for place in range(tensors[0].ndim + 1)]
    return _cat(to, [to.ops.broadcast(x, new) for x in tensors], axis)


@lowering("aten.constant_pad_nd.default")
def _pad(to: Emitter, x: Any, pads: Any, value: Any = 0) -> Any:
    if to.dtype.is_float:
        fill: Any = float(value)
    else:
        fill = bool(value) if to.call.result.dtype == "bool" else int(value)
    return to.ops.pad(x, list(pads), fill)


@lowering("aten.slice_scatter.default")
def _slice_scatter(
    to: Emitter, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1,
) -> Any:
    axis = axis_of(dim, x.ndim)
    size = to.shape(x)[axis]
    first, last = _bounds(size, start, end)
    if step != 1 and first < last:
        return _set_slice(to, x, to.cast(source, to.dtype), axis, first, last, step)
    parts = [slice_of(to, x, axis, 0, first), to.cast(source, to.dtype), slice_of(to, x, axis, last, size)]
    non_empty = [part for part in parts if to.shape(part)[axis]]
    return to.ops.cat(non_empty, axis) if len(non_empty) > 1 else to.ops.set(non_empty[0] if non_empty else x)


def _set_slice(to: Emitter, x: Any, source: Any, axis: int, first: int, last: int, step: int) -> Any:
    """Return ``x`` with ``x[first:last:step]`` along an axis replaced."""
    ops, size, count = to.ops, to.shape(x)[axis], to.shape(source)[axis]
    at = to.places(size)
    off = ops.sub(at, first) if first else at
    written = ops.eq(ops.remainder(off, step), 0)
    place = ops.div(off, step)
    if first >= step:
        written, place = ops.logical_and(written, ops.ge(at, first)), ops.maximum(place, 0)
    if size - first > count * step:
        written, place = ops.logical_and(written, ops.lt(at, last)), ops.minimum(place, count - 1)
    shape = [size if other == axis else 1 for other in range(x.ndim)]
    return ops.where(to.reshape(written, shape), ops.index_select(source, place, axis), x)


@lowering("aten.select_scatter.default")
def _select_scatter(to: Emitter, x: Any, source: Any, dim: int, index: int) -> Any:
    return _set_place(to, x, to.cast(source, to.dtype), to.shape(x), dim, index)


# Gradients of parts, which are zero elsewhere

@lowering("aten.slice_backward.default")
def _slice_gradient(to: Emitter, gradient: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> Any:
    axis = axis_of(dim, gradient.ndim)
    first, last = _bounds(sizes[axis], start, end)
    if step != 1:
        return _slice_scatter(to, to.full(sizes, 0, to.dtype), gradient, axis, start, end, step)
    return _pad(to, gradient, [*[0, 0] * (len(sizes) - axis - 1), first, sizes[axis] - last])


@lowering("aten.select_backward.default")
def _select_gradient(to: Emitter, gradient: Any, sizes: Any, dim: int, index: int) -> Any:
    return _set_place(to, 0, gradient, sizes, dim, index)


def _set_place(to: Emitter, x: Any, source: Any, sizes: Any, dim: int, index: int) -> Any:
    """Return ``x``, a number or a tensor of some sizes, with its elements at one place of an axis replaced."""
    axis = axis_of(dim, len(sizes))
    at = to.reshape(to.places(sizes[axis]), [size if place == axis else 1 for place, size in enumerate(sizes)])
    spread = to.expand(to.ops.broadcast(source, [place == axis for place in range(len(sizes))]), sizes)
    return to.ops.where(to.expand(to.ops.eq(at, index % sizes[axis]), sizes), spread, x)

"""ATen's reads and writes at data-dependent indices."""

from math import prod
from typing import Any

from numpy import broadcast_shapes

from fuser_lab.bridge.lowerings.registry import Call, Emitter, TracedTensor, axis_of, lowering, not_empty
from fuser_lab.bridge.lowerings.views import slice_of
from fuser_lab.dtypes import DataType
from fuser_lab.targets import has_own_memory


@lowering("aten.index_select.default", refuse=not_empty)
def _index_select(to: Emitter, x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return to.ops.set(x)
    return to.ops.index_select(x, to.reshape(index, [prod(to.shape(index))]), axis_of(dim, x.ndim))


@lowering("aten.embedding.default", refuse=not_empty)
def _embedding(to: Emitter, weight: Any, index: Any, *_: Any) -> Any:
    rows = to.ops.index_select(weight, to.reshape(index, [prod(to.shape(index))]), 0)
    return to.reshape(rows, to.call.result.shape)


@lowering("aten.gather.default", refuse=not_empty)
def _gather(to: Emitter, x: Any, dim: int, index: Any, **_: Any) -> Any:
    if not x.ndim:
        return to.expand(to.reshape(x, [1] * index.ndim), to.shape(index))
    axis = axis_of(dim, x.ndim)
    for place, size in enumerate(to.shape(index)):
        # On the other axes, only positions below the index's sizes are read.
        if place != axis and to.shape(x)[place] != size:
            x = slice_of(to, x, place, 0, size)
    return to.ops.take_along_axis(x, index, axis)


# x[i, :, j]: indexed axes become one, which is read at linear indices.

def _indexed_by_ints(call: Call) -> str | None:
    indices = [index for index in call.args[1] if index is not None]
    if not all(isinstance(index, TracedTensor) and index.dtype in {"int64", "int32"} for index in indices):
        return "positions are not integers, so the result's size depends on data"
    return not_empty(call)


@lowering("aten.index_put.default", refuse=_indexed_by_ints)
def _index_put(to: Emitter, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    shape = to.shape(x)
    count = prod(shape)
    # The position of each element, read with the same indices: the positions to write to.
    places = to.reshape(to.places(count), shape)
    positions = _elements_at(to, places, indices)
    target = to.shape(positions)
    written = to.expand(to.cast(values, to.dtype), target)
    at = to.reshape(positions, [prod(target)])
    flat, new = to.reshape(x, [count]), to.reshape(written, [prod(target)])
    return to.reshape(add_at(to, flat, at, new, 0) if accumulate else to.ops.scatter(flat, at, new, 0), shape)


def add_at(to: Emitter, x: Any, index: Any, source: Any, axis: int) -> Any:
    """Return ``x`` with ``source`` added at the indices ``index`` of an axis, in the accumulation type."""
    wide = to.dtype.compute
    return to.made_by_passes("scatter_add", to.cast(x, wide), index, to.cast(source, wide), dim=axis)


def _has_axes(call: Call) -> str | None:
    return not_empty(call) if call.tensors[0].ndim else "a tensor has no axes"


@lowering("aten.scatter_add.default", refuse=_has_axes)
def _scatter_add(to: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    for place, size in enumerate(to.shape(index)):
        if to.shape(source)[place] != size:
            source = slice_of(to, source, place, 0, size)
    axis, wide = axis_of(dim, x.ndim), to.dtype.compute
    if not _is_compared(to, x, axis, index):
        return add_at(to, x, index, source, axis)
    total, source = to.cast(x, wide), to.cast(source, wide)
    for place in range(to.shape(index)[axis]):
        here, added = (slice_of(to, part, axis, place, place + 1) for part in (index, source))
        total = to.ops.add(total, to.ops.where(_is_at(to, x, axis, here), to.expand(added, to.shape(x)), 0))
    return total


@lowering("aten.index_copy.default", refuse=_has_axes)
def _index_copy(to: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    axis, target, count = axis_of(dim, x.ndim), to.shape(x), prod(to.shape(index))

    def along(places: Any, size: int) -> Any:
        return to.reshape(places, [size if place == axis else 1 for place in range(x.ndim)])

    # On the host, the array library says which position is out of range.
    if count > _COMPARED or not has_own_memory(to.call.result.device):
        return to.ops.scatter(x, to.expand(along(index, count), to.shape(source)), source, axis)
    places = along(to.places(target[axis]), target[axis])
    for place in range(count):  # of sources with equal positions, torch may take any
        at, written = (slice_of(to, part, axis, place, place + 1) for part in (along(index, count), source))
        x = to.ops.where(to.expand(to.ops.eq(places, at), target), to.expand(written, target), x)
    return x


# On a GPU, this many positions in each row are compared with all elements of the row, by pointwise ops, which can share
# a kernel with their neighbours. A position takes about four instructions for each element, and an H200 executes about
# 28 in the time in which it reads or writes four bytes.
_COMPARED = 4


def _most_compared(to: Emitter) -> int:
    """Return the number of positions in each row that are compared with its elements.

    One, as in the gradient of a loss, on the host, where the kernels of scatters say which position is out of range.
    """
    return _COMPARED if has_own_memory(to.call.result.device) else 1


def _is_compared(to: Emitter, x: Any, axis: int, index: Any) -> bool:
    """Whether an index has a few positions in each row along an axis of ``x``."""
    target, shape = to.shape(x), to.shape(index)
    return bool(target) and shape[axis] <= _most_compared(to) and all(
        size == shape[place] for place, size in enumerate(target) if place != axis)


def _is_at(to: Emitter, x: Any, axis: int, index: Any) -> Any:
    """Return whether elements of ``x`` are at the one position of their row."""
    target = to.shape(x)
    at = to.reshape(to.places(target[axis]), [size if place == axis else 1 for place, size in enumerate(target)])
    return to.ops.eq(to.expand(at, target), to.expand(index, target))


def _reduces(call: Call) -> str | None:
    reduce, kind = call.argument(4, "reduce"), call.result.dtype
    reductions = {"sum", "mean", "amax", "amin"} if call.result.is_float else {"sum", "amax", "amin"}
    if reduce not in reductions or kind == "bool":
        return f"it reduces {kind} by {reduce}"
    return _has_axes(call)


def _extremes(to: Emitter, x: Any, index: Any, source: Any, axis: int, *, include_self: bool) -> Any:
    """Return ``x`` with the largest element of ``source`` for each index of an axis.

    Sorted by index, then by value, the largest of each index is last; all others are written out of range.
    """
    ops, size = to.ops, to.shape(x)[axis]
    by_size = ops.argsort(source, axis, False, True)
    index, source = ops.take_along_axis(index, by_size, axis), ops.take_along_axis(source, by_size, axis)
    by_place = ops.argsort(index, axis, False, True)
    index, source = ops.take_along_axis(index, by_place, axis), ops.take_along_axis(source, by_place, axis)
    shape, count = to.shape(index), to.shape(index)[axis]
    no_place = to.full([1 if at == axis else n for at, n in enumerate(shape)], -1, index.dtype)
    following = ops.cat([slice_of(to, index, axis, 1, count), no_place], axis) if count > 1 else no_place
    place = ops.where(ops.ne(index, following), index, size)
    longer = [size + 1 if at == axis else n for at, n in enumerate(to.shape(x))]
    least = x.dtype.bounds[0]
    written = slice_of(to, ops.scatter(to.full(longer, least, x.dtype), place, source, axis), axis, 0, size)
    if include_self:
        return ops.maximum(x, written)
    hits = ops.scatter(to.full(longer, 0, DataType.Int), place, to.full(shape, 1, DataType.Int), axis)
    return ops.where(ops.eq(slice_of(to, hits, axis, 0, size), 1), written, x)


def _reverse(to: Emitter, x: Any) -> Any:
    """Return numbers in reversed order; applying it twice is the identity."""
    return to.ops.neg(x) if x.dtype.is_float else to.ops.sub(to.full((), -1, x.dtype), x)


@lowering("aten.scatter_reduce.two", refuse=_reduces)
def _scatter_reduce(
    to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True,
) -> Any:
    axis, shape = axis_of(dim, x.ndim), to.shape(index)
    for place, size in enumerate(shape):
        if to.shape(source)[place] != size:
            source = slice_of(to, source, place, 0, size)
    return _reduced_at(to, x, axis, index, source, reduce, include_self=include_self)


def _reduced_at(
    to: Emitter, x: Any, axis: int, index: Any, source: Any, reduce: str, *, include_self: bool,
) -> Any:
    shape = to.shape(index)
    if reduce == "amax":
        return _extremes(to, x, index, source, axis, include_self=include_self)
    if reduce == "amin":
        x, source = _reverse(to, x), _reverse(to, source)
        return _reverse(to, _extremes(to, x, index, source, axis, include_self=include_self))
    if not include_self:
        x = to.ops.scatter(x, index, to.full(shape, 0 if not to.dtype.is_float else 0.0, to.dtype), axis)
    total = add_at(to, x, index, source, axis)
    if reduce == "sum":
        return total
    wide = to.dtype.compute
    hits = add_at(to, to.full(to.shape(x), 0.0, wide), index, to.full(shape, 1.0, wide), axis)
    count = to.ops.add(hits, 1.0) if include_self else to.ops.maximum(hits, 1.0)
    return to.ops.truediv(total, count)


@lowering("aten.index_add.default", refuse=_has_axes)
def _index_add(to: Emitter, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    axis, shape = axis_of(dim, x.ndim), to.shape(source)
    places = to.reshape(index, [shape[axis] if place == axis else 1 for place in range(x.ndim)])
    if alpha != 1:
        source = to.ops.mul(source, float(alpha) if to.dtype.is_float else int(alpha))
    return add_at(to, x, to.expand(places, shape), source, axis)


@lowering("aten.index_reduce.default", refuse=_reduces)
def _index_reduce(
    to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True,
) -> Any:
    axis, shape = axis_of(dim, x.ndim), to.shape(source)
    places = to.reshape(index, [shape[axis] if place == axis else 1 for place in range(x.ndim)])
    return _reduced_at(to, x, axis, to.expand(places, shape), source, reduce, include_self=include_self)


def _counts_nothing(call: Call) -> str | None:
    return "rows are scaled by their number" if call.argument(4, "scale_grad_by_freq") else not_empty(call)


@lowering("aten.embedding_dense_backward.default", refuse=_counts_nothing)
def _embedding_backward(to: Emitter, gradient: Any, index: Any, rows: int, padding: int, _: bool) -> Any:
    count, width = prod(to.shape(index)), to.shape(gradient)[-1]
    flat, at = to.reshape(gradient, [count, width]), to.reshape(index, [count, 1])
    if padding >= 0:
        flat = to.ops.where(to.ops.eq(at, padding), 0.0, flat)
    return add_at(to, to.full((rows, width), 0.0, to.dtype), to.expand(at, (count, width)), flat, 0)


@lowering("aten.scatter.src", "aten.scatter.value", refuse=not_empty)
def _scatter(to: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    shape = to.shape(index)
    if isinstance(source, bool | int | float):
        number = float(source) if to.dtype.is_float else source
        source = to.full(shape, number, to.dtype)
    for place, size in enumerate(shape):
        if to.shape(source)[place] != size:
            source = slice_of(to, source, place, 0, size)
    axis, source = axis_of(dim, x.ndim), to.cast(source, to.dtype)
    if not _is_compared(to, x, axis, index):
        return to.ops.scatter(x, index, source, axis)
    for place in range(shape[axis]):
        here, new = (slice_of(to, part, axis, place, place + 1) for part in (index, source))
        x = to.ops.where(_is_at(to, x, axis, here), to.expand(new, to.shape(x)), x)
    return x


@lowering("aten.index.Tensor", "aten._unsafe_index.Tensor", refuse=_indexed_by_ints)
def _index(to: Emitter, x: Any, indices: Any) -> Any:
    return _elements_at(to, x, indices)


def _elements_at(to: Emitter, x: Any, indices: Any) -> Any:
    """Return ``x[indices]``; None stands for a whole axis."""
    shape = to.shape(x)
    places = [place for place, index in enumerate(indices) if index is not None]
    rest = [place for place in range(x.ndim) if place not in places]
    # Non-adjacent indices put their axes first, as in NumPy.
    together = places == list(range(places[0], places[-1] + 1))
    before = places[0] if together else 0
    order = [*rest[:before], *places, *rest[before:]]
    if order != list(range(x.ndim)):
        x = to.ops.permute(x, order)
    others = [shape[place] for place in rest]
    merged = prod(shape[place] for place in places)
    x = to.reshape(x, [*others[:before], merged, *others[before:]])
    broadcast = broadcast_shapes(*(to.shape(indices[place]) for place in places))
    position, inside, step = None, None, merged
    for place in places:
        step //= shape[place]
        index = indices[place]
        at = to.ops.where(to.ops.lt(index, 0), to.ops.add(index, shape[place]), index)
        part = at if step == 1 else to.ops.mul(at, step)
        position = part if position is None else to.ops.add(position, part)
        if len(places) > 1 and not has_own_memory(to.call.result.device):
            within = to.ops.logical_and(to.ops.ge(at, 0), to.ops.lt(at, shape[place]))
            inside = within if inside is None else to.ops.logical_and(inside, within)
    if inside is not None:  # on the host, kernels check positions, so one outside of its axis is not that of another
        position = to.ops.where(inside, position, -1)
    flat = to.reshape(to.expand(position, broadcast), [prod(broadcast)])
    rows = to.ops.index_select(x, flat, before)
    return to.reshape(rows, [*others[:before], *broadcast, *others[before:]])


@lowering("aten.bucketize.Tensor")
def _bucketize(to: Emitter, x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return to.ops.bucketize(x, boundaries, out_int32, right)


def _in_another_order(call: Call) -> str | None:
    return None if call.option("sorter") is None else "the order of the sequence is a tensor"


@lowering("aten.searchsorted.Tensor", refuse=_in_another_order)
def _search_rows(
    to: Emitter, rows: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, **_: Any,
) -> Any:
    return to.ops.searchsorted(rows, x, out_int32, right or side == "right")

"""JAX's gather and scatters, with data-dependent indices at which whole axes are read or written.

An operand has *batch* axes, which correspond to axes of the indices, *indexed* axes, of which one element is read, and
others, which are read whole. The indexed axes become one axis, which is read at linear indices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.indexing import add_at
from fuser_lab.bridge.lowerings.registry import Call, Emitter, TracedTensor, primitive
from fuser_lab.bridge.lowerings.views import slice_of
from fuser_lab.dtypes import DataType


@dataclass(frozen=True, slots=True)
class _Axes:
    """The axes of an operand, and those of its indices without the last, which holds the components of an index."""

    batch: tuple[int, ...]
    indexed: tuple[int, ...]
    whole: tuple[int, ...]
    windowed: tuple[int, ...]  # axes that a window keeps, in order
    index_batch: tuple[int, ...]
    index_free: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """Operand axes as batch, indexed, whole."""
        return [*self.batch, *self.indexed, *self.whole]

    @property
    def index_order(self) -> list[int]:
        """Index axes as batch, free."""
        return [*self.index_batch, *self.index_free]


def _axes(
    ndim: int, index_ndim: int, batch: Sequence[int], index_batch: Sequence[int], indexed: Sequence[int],
    dropped: Sequence[int],
) -> _Axes:
    whole = tuple(axis for axis in range(ndim) if axis not in {*batch, *indexed})
    windowed = tuple(axis for axis in range(ndim) if axis not in {*batch, *dropped})
    free = tuple(axis for axis in range(index_ndim - 1) if axis not in index_batch)
    return _Axes(tuple(batch), tuple(indexed), whole, windowed, tuple(index_batch), free)


def _gather_axes(call: Call) -> _Axes:
    numbers = call.option("dimension_numbers")
    return _axes(
        call.args[0].ndim, call.args[1].ndim, numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        numbers.start_index_map, numbers.collapsed_slice_dims,
    )


def _scatter_axes(call: Call) -> _Axes:
    numbers = call.option("dimension_numbers")
    return _axes(
        call.args[0].ndim, call.args[1].ndim, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
        numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims,
    )


def _unlike_take(call: Call, axes: _Axes, sizes: dict[int, int]) -> str | None:
    """Return why windows are not single elements of the indexed axes and whole others."""
    x = call.args[0]
    if any(not isinstance(operand, TracedTensor) or not operand.size for operand in call.args):
        return "a tensor is empty or a number"
    if any(sizes.get(axis, 1) != 1 for axis in axes.indexed) or any(
        sizes.get(axis, 1) != x.shape[axis] for axis in axes.whole
    ):
        return "windows are neither one element nor a whole axis"
    return None


def _no_take(call: Call) -> str | None:
    return _unlike_take(call, _gather_axes(call), dict(enumerate(call.option("slice_sizes"))))


def _positions(to: Emitter, index: Any, axes: _Axes, shape: Sequence[int]) -> tuple[Any, Any]:
    """Return linear indices as ``[batch..., count]``, clamped, and which of them were in range, or None."""
    ops = to.ops
    wide = ops.permute(to.cast(index, DataType.Int), [*axes.index_order, index.ndim - 1])
    sizes = to.shape(wide)[:-1]
    batch, count = list(sizes[: len(axes.batch)]), prod(sizes[len(axes.batch) :])
    position = inside = None
    step = prod(shape[axis] for axis in axes.indexed)
    for place, axis in enumerate(axes.indexed):
        step //= shape[axis]
        at = ops.slice(wide, [*[0] * len(sizes), place], [*sizes, place + 1])
        at = to.reshape(at, [*batch, count])
        clamped = ops.minimum(ops.maximum(at, 0), shape[axis] - 1)
        part = clamped if step == 1 else ops.mul(clamped, step)
        position = part if position is None else ops.add(position, part)
        if to.call.option("mode").name == "FILL_OR_DROP":
            here = ops.eq(at, clamped)
            inside = here if inside is None else ops.logical_and(inside, here)
    if position is None:
        position = to.full((*batch, count), 0, DataType.Int)
    return position, inside


def _beside(to: Emitter, x: Any, count: int) -> Any:
    """Return a tensor with trailing axes of size 1."""
    return to.ops.broadcast(x, [False] * x.ndim + [True] * count) if count else x


def _merge(to: Emitter, x: Any, axes: _Axes) -> Any:
    """Return an operand as ``[batch..., indexed, whole...]``."""
    shape = to.shape(x)
    permuted = to.ops.permute(x, axes.order)
    count = prod(shape[axis] for axis in axes.indexed)
    return to.reshape(permuted, [*(shape[a] for a in axes.batch), count, *(shape[a] for a in axes.whole)])


def _spread(to: Emitter, x: Any, count: int, whole: Sequence[int]) -> Any:
    """Return ``[batch..., count]`` repeated along whole axes."""
    return to.expand(_beside(to, x, len(whole)), [*to.shape(x)[:-1], count, *whole])


def _filling(call: Call) -> Any:
    """Return the fill value for reads outside an axis."""
    fill, dtype = call.option("fill_value"), call.result.dtype
    if dtype == "bool":
        return True if fill is None else bool(fill)
    if call.result.is_float:
        return float("nan") if fill is None else float(fill)
    bits = 8 if dtype.endswith("int8") else int(dtype[-2:])
    return int(fill) if fill is not None else (1 << bits) - 1 if dtype[0] == "u" else -(1 << (bits - 1))


@primitive("gather", refuse=_no_take)
def _gather(to: Emitter, x: Any, index: Any) -> Any:
    ops, axes, shape = to.ops, _gather_axes(to.call), to.shape(x)
    position, inside = _positions(to, index, axes, shape)
    rest = [shape[axis] for axis in axes.whole]
    merged, count = _merge(to, x, axes), to.shape(position)[-1]
    if axes.batch:
        elements = ops.take_along_axis(merged, _spread(to, position, count, rest), len(axes.batch))
    else:
        elements = ops.index_select(merged, position, 0)
    if inside is not None:
        elements = ops.where(_beside(to, inside, len(rest)), elements, _filling(to.call))
    index_shape = to.shape(index)
    sizes = to.call.option("slice_sizes")
    elements = to.reshape(elements, [*(index_shape[a] for a in axes.index_order), *(sizes[a] for a in axes.windowed)])
    # The window's axes are at the positions `offset_dims` of the result; the indices' axes fill the others, in order.
    offsets = to.call.option("dimension_numbers").offset_dims
    ahead = len(axes.index_order)
    windows, indices = iter(range(ahead, elements.ndim)), iter(range(ahead))
    order = [next(windows) if d in offsets else axes.index_order.index(next(indices)) for d in range(elements.ndim)]
    return elements if order == list(range(elements.ndim)) else ops.permute(elements, order)


def _no_window(call: Call) -> str | None:
    numbers, axes = call.option("dimension_numbers"), _scatter_axes(call)
    if not isinstance(call.args[2], TracedTensor):
        return "a tensor is empty or a number"
    if call.option("mode").name == "ONE_HOT":
        return "it is a product with one-hot rows"
    updates = call.args[2].shape
    windows = zip(axes.windowed, (updates[d] for d in numbers.update_window_dims), strict=True)
    return _unlike_take(call, axes, dict(windows))


@primitive("scatter_add", refuse=_no_window)
def _scatter_add(to: Emitter, x: Any, index: Any, updates: Any) -> Any:
    axes, at, new, inside = _scatter_operands(to, x, index, updates)
    if inside is not None:
        new = to.ops.where(inside, new, 0.0 if to.dtype.is_float else 0)
    return _unmerge(to, add_at(to, _merge(to, x, axes), at, new, len(axes.batch)), axes, to.shape(x))


@primitive("scatter", refuse=_no_window)
def _scatter(to: Emitter, x: Any, index: Any, updates: Any) -> Any:
    axes, at, new, inside = _scatter_operands(to, x, index, updates)
    axis, merged = len(axes.batch), _merge(to, x, axes)
    shape = to.shape(merged)
    if inside is None:
        return _unmerge(to, to.ops.scatter(merged, at, new, axis), axes, to.shape(x))
    # Out-of-range values are written to one extra position, which is then cut off.
    number = 0.0 if to.dtype.is_float else False if to.dtype is DataType.Bool else 0
    spare = to.ops.pad(merged, [side for n in range(merged.ndim - 1, -1, -1) for side in (0, int(n == axis))], number)
    written = to.ops.scatter(spare, to.ops.where(inside, at, shape[axis]), new, axis)
    return _unmerge(to, slice_of(to, written, axis, 0, shape[axis]), axes, to.shape(x))


def _scatter_operands(to: Emitter, x: Any, index: Any, updates: Any) -> tuple[_Axes, Any, Any, Any]:
    """Return the axes, and indices, new values and whether they are in range, as ``[batch..., count, whole...]``."""
    axes, shape = _scatter_axes(to.call), to.shape(x)
    position, inside = _positions(to, index, axes, shape)
    windows = to.call.option("dimension_numbers").update_window_dims
    others = [axis for axis in range(updates.ndim) if axis not in windows]
    permuted = to.ops.permute(updates, [*(others[axis] for axis in axes.index_order), *windows])
    rest = [shape[axis] for axis in axes.whole]
    count = to.shape(position)[-1]
    new = to.reshape(permuted, [*(shape[axis] for axis in axes.batch), count, *rest])
    inside = None if inside is None else _beside(to, inside, len(rest))
    return axes, _spread(to, position, count, rest), new, inside


def _unmerge(to: Emitter, x: Any, axes: _Axes, shape: Sequence[int]) -> Any:
    """Return ``[batch..., indexed, whole...]`` as an operand of this shape."""
    back = to.reshape(x, [shape[axis] for axis in axes.order])
    order = [axes.order.index(axis) for axis in range(len(shape))]
    return back if order == list(range(len(shape))) else to.ops.permute(back, order)

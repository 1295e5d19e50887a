"""ATen's reductions and scans."""

from collections.abc import Callable, Iterator
from functools import reduce
from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, axes_of, axis_of, lowering
from fuser_lab.bridge.lowerings.views import slice_of
from fuser_lab.codegen.short_reductions import LONGEST, STEPS
from fuser_lab.dtypes import DataType


def _wide(to: Emitter, x: Any, dtype: DataType) -> Any:
    """Return an operand in the accumulation type of a dtype."""
    return to.cast(x, dtype.compute)


def _reduce(to: Emitter, name: str, x: Any, dims: Any, keepdim: bool) -> Any:
    axes = axes_of(dims, x.ndim)
    is_short = len(axes) == 1 and 1 < to.shape(x)[axes[0]] <= LONGEST
    if is_short and (parts := to.parts_of_stack(x, axes[0])):
        # A few ops between the parts of a stack, which any segment may contain.
        total = reduce(getattr(to.ops, STEPS[name]), parts)
        return total if keepdim else to.ops.squeeze(total, list(axes))
    return getattr(to.ops, name)(x, list(axes), keepdim) if axes else to.ops.set(x)


@lowering("aten.sum.dim_IntList", "aten.sum.default", "prims.sum.default")
def _sum(to: Emitter, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return _reduce(to, "sum", _wide(to, x, to.dtype), dims, keepdim)


@lowering("aten.mean.dim", "aten.mean.default")
def _mean(to: Emitter, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    count = prod(to.shape(x)[axis] for axis in axes_of(dims, x.ndim))
    total = _reduce(to, "sum", _wide(to, x, to.dtype), dims, keepdim)
    return to.ops.truediv(total, float(count))


def _not_empty(call: Call) -> str | None:
    return None if call.tensors[0].size else "it has no value for an empty tensor"


for _name, _own in (("amax", "max"), ("amin", "min")):
    lowering(
        f"aten.{_name}.default", refuse=_not_empty,
    )(lambda to, x, dims=(), keepdim=False, name=_own: _reduce(to, name, x, dims, keepdim))
for _name in ("max", "min"):
    lowering(f"aten.{_name}.default", refuse=_not_empty)(
        lambda to, x, name=_name: _reduce(to, name, x, None, keepdim=False),
    )


@lowering("aten.prod.default", "aten.prod.dim_int")
def _prod(to: Emitter, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return _reduce(to, "prod", _wide(to, x, to.dtype), dim, keepdim)


for _name, _own in (("any", "max"), ("all", "min")):
    lowering(
        f"aten.{_name}.default", f"aten.{_name}.dim", f"aten.{_name}.dims",
    )(lambda to, x, dims=None, keepdim=False, name=_own: _reduce(to, name, to.cast(x, DataType.Bool), dims, keepdim))


# The index of an extreme: the first of equal elements, and NaN before all others.

def place_of(to: Emitter, x: Any, name: str, axis: int, keepdim: bool) -> tuple[Any, Any]:
    """Return an extreme along an axis and its index: the first of equal elements, and NaN before all others."""
    ops, size = to.ops, to.shape(x)[axis]
    extreme = getattr(ops, name)(x, [axis], True)
    is_extreme = ops.eq(x, extreme)
    if x.dtype.is_float:
        is_extreme = ops.logical_or(is_extreme, ops.isnan(x))
    shape = [size if place == axis else 1 for place in range(x.ndim)]
    places = to.reshape(to.places(size), shape)
    place = ops.min(ops.where(is_extreme, places, size), [axis], keepdim)
    return extreme if keepdim else ops.squeeze(extreme, [axis]), place


def _with_places(name: str) -> Callable[..., list[Any]]:
    def lower(to: Emitter, x: Any, dim: int, keepdim: bool = False) -> list[Any]:
        if not x.ndim:
            return [to.ops.set(x), to.full((), 0, DataType.Int)]
        return list(place_of(to, x, name, axis_of(dim, x.ndim), keepdim))

    return lower


def _only_place(name: str) -> Callable[..., Any]:
    def lower(to: Emitter, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if not x.ndim:
            return to.full((), 0, DataType.Int)
        if dim is not None:
            return place_of(to, x, name, axis_of(dim, x.ndim), keepdim)[1]
        flat = to.reshape(x, [prod(to.shape(x))])
        return to.reshape(place_of(to, flat, name, 0, keepdim=False)[1], to.call.result.shape)

    return lower


for _name in ("max", "min"):
    lowering(f"aten.{_name}.dim", refuse=_not_empty)(_with_places(_name))
    lowering(f"aten.arg{_name}.default", refuse=_not_empty)(_only_place(_name))


# Variances

def _spread(to: Emitter, x: Any, dims: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Return variance and mean, with any correction, in two steps: the mean, and the mean of squared deviations."""
    ops, axes = to.ops, axes_of(dims, x.ndim)
    x = _wide(to, x, to.dtype)
    count = prod(to.shape(x)[axis] for axis in axes)
    if axes and isinstance(correction, int) and count > correction:
        variance, mean = ops.var_mean(x, list(axes), correction, keepdim)
        return variance, mean
    kept_mean = ops.truediv(_reduce(to, "sum", x, axes, keepdim=True), float(count))
    off = ops.sub(x, kept_mean)
    squares = _reduce(to, "sum", ops.mul(off, off), axes, keepdim)
    left = max(0.0, float(count - correction))
    mean = kept_mean if keepdim or not axes else ops.squeeze(kept_mean, list(axes))
    # By a tensor, so that division by 0 gives NaN or infinity, as in torch.
    return ops.truediv(squares, to.full((), left, squares.dtype)), mean


def _not_empty_axes(call: Call) -> str | None:
    return None if call.tensors[0].size else "it has no value for an empty tensor"


@lowering("aten.var.correction", "prims.var.default", refuse=_not_empty_axes)
def _var(to: Emitter, x: Any, dims: Any = None, correction: Any = None, *, keepdim: bool = False, **_: Any) -> Any:
    return _spread(to, x, dims, 1 if correction is None else correction, keepdim)[0]


@lowering("aten.var_mean.correction", refuse=_not_empty_axes)
def _var_mean(to: Emitter, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> list[Any]:
    return list(_spread(to, x, dims, 1 if correction is None else correction, keepdim))


# Sorts: values of short axes by a network of comparisons; the array library evaluates others inside the plan.

# Maximum elements of an axis that is sorted in registers: 191 comparators of two instructions exchange 32 elements. So
# each takes 12, and an H200 executes them (14e12 a second) in half the time that moves the element's 8 bytes (4.2e12).
_MOST_SORTED = 32


def _comparators(count: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of places that Batcher's odd-even merge sort compares: after all, each place has its rank."""
    span = 1
    while span < count:
        step = span
        while step:
            for first in range(step % span, count - step, 2 * step):
                for low in range(first, min(first + step, count - step)):
                    if low // (2 * span) == (low + step) // (2 * span):
                        yield low, low + step
            step //= 2
        span *= 2


def _keys_of(to: Emitter, x: Any) -> Any:
    """Return integers that have the order of the elements; a NaN is the largest, and -0 is less than 0."""
    ops = to.ops
    if not x.dtype.is_float:
        return to.cast(x, DataType.Int32) if x.dtype is DataType.Bool else x
    wide = to.cast(x, x.dtype.compute)
    kind = DataType.Int if wide.dtype is DataType.Double else DataType.Int32
    bits, largest = ops.bitcast(wide, kind), kind.limits[1]
    return ops.where(ops.isnan(wide), largest, ops.where(ops.lt(bits, 0), ops.bitwise_xor(bits, largest), bits))


def _elements_of(to: Emitter, keys: Any, dtype: DataType) -> Any:
    """Return the elements that have the keys of `_keys_of`."""
    if dtype.is_float:
        bits = to.ops.where(to.ops.lt(keys, 0), to.ops.bitwise_xor(keys, keys.dtype.limits[1]), keys)
        keys = to.ops.bitcast(bits, dtype.compute)
    return to.cast(keys, dtype)


def _parts_by_rank(to: Emitter, keys: Any, axis: int) -> list[Any]:
    """Return the smallest integers along an axis, the second smallest, and so on, each with an axis of one element."""
    parts = [slice_of(to, keys, axis, place, place + 1) for place in range(to.shape(keys)[axis])]
    for low, high in _comparators(len(parts)):
        a, b = parts[low], parts[high]
        parts[low], parts[high] = to.ops.minimum(a, b), to.ops.maximum(a, b)
    return parts


def _by_rank(to: Emitter, x: Any, axis: int) -> list[Any]:
    """Return the smallest elements along an axis, the second smallest, and so on, each with an axis of one element."""
    return [_elements_of(to, part, x.dtype) for part in _parts_by_rank(to, _keys_of(to, x), axis)]


def _order(to: Emitter, x: Any, axis: int, descending: bool) -> Any:
    """Return the indices that sort elements along an axis; equal ones keep their order.

    On a short axis these are the last digits of integers that have the order of the elements, and no equals.
    """
    ops, size = to.ops, to.shape(x)[axis]
    if not 1 < size <= _MOST_SORTED or x.dtype.itemsize > DataType.Int32.itemsize:
        return ops.argsort(x, axis, descending, True)
    keys = to.cast(_keys_of(to, ops.where(ops.eq(x, 0.0), 0.0, x) if x.dtype.is_float else x), DataType.Int)
    places = to.reshape(to.places(size), [size if at == axis else 1 for at in range(x.ndim)])
    keys = ops.add(ops.mul(ops.bitwise_not(keys) if descending else keys, _MOST_SORTED), places)
    return ops.bitwise_and(ops.cat(_parts_by_rank(to, keys, axis), axis), _MOST_SORTED - 1)


def _sortable(call: Call) -> str | None:
    x = call.tensors[0]
    return None if x.ndim and x.size else "there is nothing to sort"


@lowering("aten.sort.default", "aten.sort.stable", refuse=_sortable)
def _sort(to: Emitter, x: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> list[Any]:
    axis = axis_of(dim, x.ndim)
    order = _order(to, x, axis, descending)
    if not 1 < to.shape(x)[axis] <= _MOST_SORTED:
        return [to.ops.take_along_axis(x, order, axis), order]
    parts = _by_rank(to, x, axis)
    return [to.ops.cat(parts[::-1] if descending else parts, axis), order]


@lowering("aten.argsort.default", refuse=_sortable)
def _argsort(to: Emitter, x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _order(to, x, axis_of(dim, x.ndim), descending)


def _middle(to: Emitter, x: Any, axis: int, place: int, keepdim: bool) -> list[Any]:
    """Return the element with a given rank along an axis, and its index; the first of equal elements."""
    order = to.ops.argsort(x, axis, False, True)  # which of equal elements is torch's choice, so torch makes it
    at = slice_of(to, order, axis, place, place + 1)
    if x.dtype.is_float:
        # The median of elements with a NaN is NaN; the index of the first is returned.
        first = to.ops.max(to.ops.where(to.ops.isnan(x), 1, 0), [axis], True)
        at = to.ops.where(to.ops.eq(first, 1), place_of(to, x, "max", axis, keepdim=True)[1], at)
    if to.shape(x)[axis] <= _MOST_SORTED:
        parts = _by_rank(to, x, axis)
        middle = to.ops.where(to.ops.isnan(parts[-1]), parts[-1], parts[place]) if x.dtype.is_float else parts[place]
    else:
        middle = to.ops.take_along_axis(x, at, axis)
    return [middle, at] if keepdim else [to.ops.squeeze(part, [axis]) for part in (middle, at)]


@lowering("aten.median.dim", refuse=_sortable)
def _median(to: Emitter, x: Any, dim: int, keepdim: bool = False) -> list[Any]:
    axis = axis_of(dim, x.ndim)
    return _middle(to, x, axis, (to.shape(x)[axis] - 1) // 2, keepdim)


@lowering("aten.median.default", refuse=_sortable)
def _median_of_all(to: Emitter, x: Any) -> Any:
    count = prod(to.shape(x))
    return _middle(to, to.reshape(x, [count]), 0, (count - 1) // 2, keepdim=False)[0]


# Scans: part of a kernel with the ops around them; alone, the array library evaluates them inside the plan.

def _has_axes(call: Call) -> str | None:
    return None if call.tensors[0].ndim and call.tensors[0].size else "there is nothing to scan"


def _has_floats(call: Call) -> str | None:
    return _has_axes(call) or (None if call.tensors[0].is_float else "complex numbers have no order")


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    _refuse = _has_floats if _name == "logcumsumexp" else _has_axes
    lowering(f"aten.{_name}.default", refuse=_refuse)(
        lambda to, x, dim, name=_name, **_: getattr(to.ops, name)(_wide(to, x, to.dtype), axis_of(dim, x.ndim)),
    )


def _running(name: str) -> Callable[..., list[Any]]:
    def lower(to: Emitter, x: Any, dim: int) -> list[Any]:
        ops, axis = to.ops, axis_of(dim, x.ndim)
        size = to.shape(x)[axis]
        extremes = getattr(ops, name)(x, axis)
        is_extreme = ops.eq(x, extremes)
        if x.dtype.is_float:
            is_extreme = ops.logical_or(is_extreme, ops.isnan(x))
        places = to.reshape(to.places(size), [size if at == axis else 1 for at in range(x.ndim)])
        # The last of equal elements, and of NaNs.
        return [extremes, ops.cummax(ops.where(is_extreme, places, 0), axis)]

    return lower


for _name in ("cummax", "cummin"):
    lowering(f"aten.{_name}.default", refuse=_has_axes)(_running(_name))


def _known_bounds(call: Call) -> str | None:
    x, *limits = call.args
    bins, least, most = (*limits, 100, 0, 0)[:3] if len(limits) < 3 else limits
    if not x.size or not x.is_float:
        return "there is nothing to count"
    return None if least < most and bins else "its bounds are data"


@lowering("aten.histc.default", refuse=_known_bounds)
def _histc(to: Emitter, x: Any, bins: int = 100, least: float = 0, most: float = 0) -> Any:
    ops, count = to.ops, prod(to.shape(x))
    flat = to.reshape(x, [count])
    inside = ops.logical_and(ops.ge(flat, float(least)), ops.le(flat, float(most)))
    scaled = ops.truediv(ops.mul(ops.sub(flat, float(least)), float(bins)), float(most) - float(least))
    place = ops.cast(ops.where(inside, scaled, 0.0), DataType.Int)
    ones = ops.where(inside, 1.0, 0.0)
    counts = to.made_by_passes(
        "scatter_add", to.full((bins,), 0.0, DataType.Float), ops.minimum(place, bins - 1), ones, dim=0,
    )
    return to.cast(counts, to.dtype)

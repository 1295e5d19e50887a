"""ATen's pools: extremes and means of windows.

Windows that tile an axis are parts of a reshape, and a pool of them is a reduction. Other windows are combined along
one axis after another, from slices of the padded operand, one for each element of a window; the gradients of means are
sums of the same form. The offset of a maximum in its window results from a comparison with each element of it, and the
index of a maximum from its offset. The gradient of a maximum reads, for each element, the windows that have it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, lowering, not_empty
from fuser_lab.bridge.lowerings.views import slice_of
from fuser_lab.dtypes import DataType

# Maximum elements of a mean's window along an axis that are read from memory, and maximum number of overlapping windows
# that are added there; torch reads larger ones once.
MOST_ALONG_AXIS = 16
# Maximum elements of a window whose maximum is a chain of comparisons: the `unroll_reductions_threshold` that inductor
# has for such windows, which torch's kernels pool in a loop if they are larger.
MOST_OF_MAXIMUM = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Sizes along each pooled axis: of the operand, of the result, and of windows and the steps between them."""

    sizes: tuple[int, ...]
    results: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def reach(self, place: int) -> int:
        """Return the number of steps along an axis that one window has elements of."""
        return (self.kernel[place] - 1) * self.dilation[place] // self.stride[place] + 1

    def rows(self, place: int) -> int:
        """Return the number of steps along an axis that all windows have elements of."""
        return self.results[place] + self.reach(place) - 1

    def steps_with_elements(self, place: int) -> range:
        """Return the steps of a padded axis that have elements of the operand."""
        padding, step = self.padding[place], self.stride[place]
        return range(padding // step, (padding + self.sizes[place] - 1) // step + 1)

    def elements_back(self, place: int, back: int) -> list[int | None]:
        """Return which element of a window each element of the step ``back`` steps after the window's start is."""
        rests = (divmod(back * self.stride[place] + rest, self.dilation[place]) for rest in range(self.stride[place]))
        return [None if off or element >= self.kernel[place] else element for element, off in rests]


def _pool(
    sizes: Sequence[int], results: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any = 1,
) -> _Pool:
    def each(value: Any) -> tuple[int, ...]:
        lengths = (value,) if isinstance(value, int) else tuple(value)
        return lengths * len(sizes) if len(lengths) == 1 else lengths

    return _Pool(
        sizes=tuple(sizes), results=tuple(results), kernel=each(kernel), stride=each(stride or kernel),
        padding=each(padding), dilation=each(dilation),
    )


def _pooled_axes(target: str) -> int:
    return 3 if "3d" in target else 2


def _small(call: Call) -> str | None:
    """Refuse pools that read more elements of a window: a mean reads those along one axis, a maximum reads all."""
    place = 3 if "gradient" in call.target else 2 if "backward" in call.target else 1
    kernel = call.argument(place, "kernel_size")
    ndim = _pooled_axes(call.target)
    lengths = (kernel,) * ndim if isinstance(kernel, int) else tuple(kernel) * (ndim if len(kernel) == 1 else 1)
    is_mean = "avg_pool" in call.target
    count, most = (max(lengths), MOST_ALONG_AXIS) if is_mean else (prod(lengths), MOST_OF_MAXIMUM)
    if count > most:
        where = " along an axis" if is_mean else ""
        return f"a window has {count} elements{where}; {most} at most are lowered"
    return not_empty(call)


def _combine(
    to: Emitter, x: Any, pool: _Pool, fill: float, reduce: Callable[[Any, list[int]], Any],
    join: Callable[[Any, Any], Any],
) -> Any:
    """Return the windows' elements combined by an associative function, where ``fill`` is its neutral element."""
    lead = x.ndim - len(pool.sizes)
    plain = zip(pool.sizes, pool.results, pool.kernel, pool.stride, pool.padding, pool.dilation, strict=True)
    if all(n == r * k and k == step and not pad and (d == 1 or k == 1) for n, r, k, step, pad, d in plain):
        parts = [size for pair in zip(pool.results, pool.kernel, strict=True) for size in pair]
        return reduce(to.reshape(x, [*to.shape(x)[:lead], *parts]), [lead + 1 + 2 * n for n in range(len(pool.sizes))])
    for place in reversed(range(len(pool.sizes))):
        x = _along_axis(to, x, lead + place, pool, place, fill, join)
    return x


def _along_axis(
    to: Emitter, x: Any, axis: int, pool: _Pool, place: int, fill: float, join: Callable[[Any, Any], Any],
) -> Any:
    """Return the windows' elements combined along one axis.

    The axis is padded and cut into ``[steps, step]``, in which the windows' elements with one offset are a slice.
    """
    results, rows, step = pool.results[place], pool.rows(place), pool.stride[place]
    before, size = pool.padding[place], to.shape(x)[axis]
    pads = [0, 0] * (x.ndim - axis - 1) + [before, rows * step - before - size]
    x = to.ops.pad(x, pads, fill) if any(pads) else x
    shape = to.shape(x)
    cut = to.reshape(x, [*shape[:axis], rows, step, *shape[axis + 1 :]]) if step > 1 else x
    combined = None
    for element in range(pool.kernel[place]):
        row, rest = divmod(element * pool.dilation[place], step)
        part = slice_of(to, cut, axis, row, row + results)
        if step > 1:
            part = to.ops.squeeze(slice_of(to, part, axis + 1, rest, rest + 1), [axis + 1])
        combined = part if combined is None else join(combined, part)
    return combined


def _at_axis(to: Emitter, x: Any, axis: int, ndim: int) -> Any:
    """Return a tensor of one axis with other axes of size 1 around it."""
    return to.ops.broadcast(x, [at != axis for at in range(ndim)])


def _times(to: Emitter, x: Any, factor: int) -> Any:
    return x if factor == 1 else to.ops.mul(x, factor)


def _quotient(to: Emitter, x: Any, divisor: int) -> Any:
    return x if divisor == 1 else to.ops.div(x, divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Axes of a tensor whose pooled axes are cut into steps: per axis that of the steps, and that of their elements."""

    ndim: int
    axes: tuple[tuple[int, int | None], ...]


def _steps(lead: int, pool: _Pool) -> _Steps:
    axes: list[tuple[int, int | None]] = []
    ndim = lead
    for step in pool.stride:
        axes.append((ndim, ndim + 1 if step > 1 else None))
        ndim += 1 + (step > 1)
    return _Steps(ndim=ndim, axes=tuple(axes))


def _elements(to: Emitter, x: Any, pool: _Pool, fill: float) -> list[Any]:
    """Return the first, second, and so on, elements of all windows in row-major order.

    The operand is padded, and each axis is cut into ``[steps, step]``, in which these are slices.
    """
    count = len(pool.sizes)
    lead = x.ndim - count
    steps, shape = _steps(lead, pool), to.shape(x)[:lead]
    axes = list(zip(pool.sizes, pool.padding, pool.stride, map(pool.rows, range(count)), strict=True))
    pads = [pad for n, before, step, rows in reversed(axes) for pad in (before, rows * step - before - n)]
    x = to.ops.pad(x, pads, fill) if any(pads) else x
    cut = to.reshape(x, [*shape, *(n for *_, step, rows in axes for n in ((rows, step) if step > 1 else (rows,)))])
    inner = [axis for _, axis in steps.axes if axis is not None]
    parts = []
    for elements in product(*map(range, pool.kernel)):
        starts, ends = [0] * steps.ndim, list(to.shape(cut))
        for place, (element, (axis, rest_axis)) in enumerate(zip(elements, steps.axes, strict=True)):
            starts[axis], rest = divmod(element * pool.dilation[place], pool.stride[place])
            ends[axis] = starts[axis] + pool.results[place]
            if rest_axis is not None:
                starts[rest_axis], ends[rest_axis] = rest, rest + 1
        part = to.ops.slice(cut, starts, ends) if any(starts) or tuple(ends) != to.shape(cut) else cut
        parts.append(to.ops.squeeze(part, inner) if inner else part)
    return parts


def _with_offsets(to: Emitter, x: Any, pool: _Pool) -> tuple[Any, Any]:
    """Return the maxima of windows, and the row-major offset of each in its window.

    It is the first of equal elements, or the last NaN. A padding is never chosen, because each search begins at the
    first element that exists.
    """
    ops, lead = to.ops, x.ndim - len(pool.sizes)
    best, *others = _elements(to, x, pool, x.dtype.bounds[0])
    offset: Any = to.full((), 0, DataType.Int32)
    for place, (padding, dilation) in enumerate(zip(pool.padding, pool.dilation, strict=True)):
        if padding:
            missing = ops.iota(pool.results[place], padding + dilation - 1, -pool.stride[place], DataType.Int32)
            first = ops.maximum(_quotient(to, missing, dilation), 0)
            start = _at_axis(to, _times(to, first, prod(pool.kernel[place + 1 :])), lead + place, x.ndim)
            offset = ops.add(start, offset) if offset.ndim else start
    for element, part in enumerate(others, 1):
        is_next = ops.gt(part, best)
        if x.dtype.is_float:
            is_next = ops.logical_or(is_next, ops.ne(part, part))
        offset = ops.where(is_next, element, offset)
        best = ops.maximum(best, part)
    return best, to.expand(offset, to.shape(best))


def _positions(to: Emitter, pool: _Pool, starts: Sequence[tuple[int, int, int]], ndim: int) -> Any:
    """Return the flat positions of elements with ``count``, ``start`` and ``step`` along the last axes."""
    total: Any = 0
    for place, (count, start, step) in enumerate(starts):
        weight = prod(pool.sizes[place + 1 :])
        along = to.ops.iota(count, start * weight, step * weight, _whole(pool))
        total = to.ops.add(_at_axis(to, along, ndim - len(starts) + place, ndim), total)
    return total


def _whole(pool: _Pool) -> DataType:
    """Return the narrowest dtype of the positions in the pooled axes and their paddings."""
    far = prod(n + 2 * padding + k * d for n, padding, k, d in zip(
        pool.sizes, pool.padding, pool.kernel, pool.dilation, strict=True,
    ))
    return DataType.Int32 if far <= DataType.Int32.bounds[1] else DataType.Int


def _indices(to: Emitter, offsets: Any, pool: _Pool) -> Any:
    """Return the flat positions of elements with row-major offsets in their windows."""
    ops, count = to.ops, len(pool.sizes)
    rest, dtype = to.cast(offsets, DataType.Int32), _whole(pool)
    starts = [(r, -pad, step) for r, pad, step in zip(pool.results, pool.padding, pool.stride, strict=True)]
    total = _positions(to, pool, starts, offsets.ndim)
    for place in reversed(range(count)):
        k, step = pool.kernel[place], pool.dilation[place] * prod(pool.sizes[place + 1 :])
        above = ops.div(rest, k) if place and k > 1 else None
        element = rest if above is None else ops.sub(rest, ops.mul(above, k))
        if k > 1:
            total = ops.add(total, ops.mul(to.cast(element, dtype), step))
        rest = rest if above is None else above
    return total


def _pool_of(to: Emitter, sizes: Sequence[int], results: Sequence[int], *more: Any) -> _Pool:
    count = len(more[0]) if to.call.target.startswith(_WITH_OFFSETS) else _pooled_axes(to.call.target)
    return _pool(sizes[-count:], results[-count:], *more)


@lowering("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", refuse=_small)
def _max_pool(
    to: Emitter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, _: bool = False,
) -> list[Any]:
    pool = _pool_of(to, to.shape(x), to.call.result.shape, kernel, stride, padding, dilation)
    most = _combine(to, x, pool, x.dtype.bounds[0], to.ops.max, to.ops.maximum)
    # Only this is left of what follows if nothing reads the indices.
    return [most, _indices(to, _with_offsets(to, x, pool)[1], pool)]


_WITH_OFFSETS = ("prims.", "fuser_lab.")  # the ops whose windows have a size along each pooled axis


@lowering("prims._low_memory_max_pool_with_offsets.default", refuse=_small)
def _max_pool_with_offsets(
    to: Emitter, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, _: bool = False,
) -> Any:
    pool = _pool_of(to, to.shape(x), to.call.result.shape, kernel, stride, padding, dilation)
    return _with_offsets(to, x, pool)


@lowering("prims._low_memory_max_pool_offsets_to_indices.default", refuse=not_empty)
def _offsets_to_indices(
    to: Emitter, offsets: Any, kernel: Any, sizes: Any, stride: Any, padding: Any, dilation: Any,
) -> Any:
    return _indices(to, offsets, _pool_of(to, sizes, to.shape(offsets), kernel, stride, padding, dilation))


def _divisors(to: Emitter, pool: _Pool, divisor: int | None, *, with_padding: bool) -> Any:
    """Return the divisor of all windows' sums, or that of each in the shape of the windows."""
    ends = (
        (r - 1) * step + k - pad <= n + (pad if with_padding else 0)
        for n, r, k, step, pad in zip(pool.sizes, pool.results, pool.kernel, pool.stride, pool.padding, strict=True)
    )
    if divisor or ((with_padding or not any(pool.padding)) and all(ends)):
        return float(divisor or prod(pool.kernel))
    ops, count, product = to.ops, len(pool.sizes), None
    for place, (n, k, stride, padding, size) in enumerate(
        zip(pool.results, pool.kernel, pool.stride, pool.padding, pool.sizes, strict=True),
    ):
        begin = to.places(n, -padding, stride)
        end = ops.minimum(ops.add(begin, k), size + padding)
        if not with_padding:
            begin, end = ops.maximum(begin, 0), ops.minimum(end, size)
        here = to.reshape(ops.sub(end, begin), [n if at == place else 1 for at in range(count)])
        product = here if product is None else ops.mul(product, here)
    assert product is not None
    return to.cast(ops.cast(product, DataType.Float), to.dtype.compute)


@lowering("aten.avg_pool2d.default", "aten.avg_pool3d.default", refuse=_small)
def _avg_pool(
    to: Emitter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, _: bool = False, with_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    ops, shape, count = to.ops, to.call.result.shape, _pooled_axes(to.call.target)
    pool = _pool(to.shape(x)[-count:], shape[-count:], kernel, stride, padding)
    total = _combine(to, to.cast(x, to.dtype.compute), pool, 0.0, ops.sum, ops.add)
    return to.reshape(ops.truediv(total, _divisors(to, pool, divisor, with_padding=with_padding)), shape)


@lowering("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default", refuse=_small)
def _avg_pool_backward(
    to: Emitter, gradient: Any, x: Any, kernel: Any, stride: Any, padding: Any, _: bool, with_padding: bool,
    divisor: int | None,
) -> Any:
    ops, count, shape = to.ops, _pooled_axes(to.call.target), to.shape(x)
    pool = _pool(shape[-count:], to.shape(gradient)[-count:], kernel, stride, padding)
    by = _divisors(to, pool, divisor, with_padding=with_padding)
    total = to.cast(gradient, to.dtype.compute)
    total = total if isinstance(by, float) else ops.truediv(total, by)
    for place in reversed(range(count)):
        total = _spread_along_axis(to, total, total.ndim - count + place, pool, place)
    return to.reshape(ops.truediv(total, by) if isinstance(by, float) else total, shape)


def _spread_along_axis(to: Emitter, x: Any, axis: int, pool: _Pool, place: int) -> Any:
    """Return for each element the sum of the values of the windows with it along one axis, without dilation.

    The element ``row * step + rest`` of the padded axis is in the windows ``row``, ``row - 1`` and so on; the earliest
    of them has its first ``kernel % step`` elements only.
    """
    ops, step, before, size = to.ops, pool.stride[place], pool.padding[place], pool.sizes[place]
    whole, partial = divmod(pool.kernel[place], step)
    first, last = before // step, (before + size - 1) // step
    rows, back = last - first + 1, whole + bool(partial) - 1
    pads = [0, 0] * (x.ndim - axis - 1) + [back - first, last + 1 - pool.results[place]]
    x = ops.pad(x, pads, 0.0) if any(pads) else x
    parts = [slice_of(to, x, axis, start, start + rows) for start in range(back, -1, -1)]
    least = functools.reduce(ops.add, parts[:whole]) if whole else None
    if step == 1:
        return least
    shape = to.shape(parts[0])
    wide = [*shape[: axis + 1], step, *shape[axis + 1 :]]

    def widen(part: Any) -> Any:
        return to.expand(ops.broadcast(part, [at == axis + 1 for at in range(len(wide))]), wide)

    total = to.full((), 0.0, x.dtype) if least is None else widen(least)
    if partial:
        rest = to.reshape(to.places(step), [step if at == axis + 1 else 1 for at in range(len(wide))])
        most = widen(parts[-1] if least is None else ops.add(least, parts[-1]))
        total = ops.where(ops.lt(rest, partial), most, total)
    merged = to.reshape(total, [*shape[:axis], rows * step, *shape[axis + 1 :]])
    return slice_of(to, merged, axis, before - first * step, before - first * step + size)


# Gradients of maxima

ElementIn = Callable[[_Steps, tuple[int, ...]], Any]


def _gradient_of_maxima(to: Emitter, gradient: Any, maxima: Any, pool: _Pool, element_in: ElementIn) -> Any:
    """Return for each element the sum of the gradients of the windows whose maximum it is.

    An element of the step ``row`` of a padded axis may be in the windows that begin ``back`` steps before it.
    ``maxima`` says which element is each window's maximum, and `element_in` which one an element is in such windows.
    """
    ops, count = to.ops, len(pool.sizes)
    lead = gradient.ndim - count
    steps, ranges = _steps(lead, pool), [pool.steps_with_elements(place) for place in range(count)]
    inner = [axis for _, axis in steps.axes]

    def move(x: Any, backs: tuple[int, ...], fill: float) -> Any:
        """Return what the windows have by the step of their elements that is some steps after their start."""
        before = [back - rows.start for back, rows in zip(backs, ranges, strict=True)]
        pads = [pad for place in reversed(range(count)) for pad in (
            before[place], len(ranges[place]) - pool.results[place] - before[place],
        )]
        x = ops.pad(x, pads, fill) if any(pads) else x
        return ops.broadcast(x, [axis in inner for axis in range(steps.ndim)]) if steps.ndim > x.ndim else x

    def term(backs: tuple[int, ...]) -> Any:
        # What moves is stored, or an input: no scheduler of reductions moves what it computes in the same kernel.
        is_maximum = ops.eq(move(maxima, backs, -1), element_in(steps, backs))
        return ops.where(is_maximum, to.cast(move(gradient, backs, 0.0), to.dtype.compute), 0.0)

    total = functools.reduce(ops.add, map(term, product(*(
        [back for back in reversed(range(pool.reach(place))) if set(pool.elements_back(place, back)) != {None}]
        for place in range(count)
    ))))
    sizes = [len(rows) * step for rows, step in zip(ranges, pool.stride, strict=True)]
    merged = to.reshape(total, [*to.shape(gradient)[:lead], *sizes])
    for place, (padding, step, size) in enumerate(zip(pool.padding, pool.stride, pool.sizes, strict=True)):
        start = padding - ranges[place].start * step
        merged = slice_of(to, merged, lead + place, start, start + size)
    return merged


def _offset_in_window(to: Emitter, pool: _Pool, steps: _Steps, backs: tuple[int, ...]) -> Any:
    """Return the row-major offset of an element in a window; a negative number if the window does not have it."""
    ops, total = to.ops, 0
    for place, (back, (_, axis)) in enumerate(zip(backs, steps.axes, strict=True)):
        elements, weight = pool.elements_back(place, back), prod(pool.kernel[place + 1 :])
        if axis is None:
            assert elements[0] is not None
            total = ops.add(total, elements[0] * weight) if not isinstance(total, int) else total + elements[0] * weight
            continue
        rest = ops.iota(len(elements), back * len(elements), 1, DataType.Int32)
        element = _times(to, _quotient(to, rest, pool.dilation[place]), weight)
        if None in elements:
            is_element = ops.lt(rest, (pool.kernel[place] - 1) * pool.dilation[place] + 1)
            if pool.dilation[place] > 1:
                is_element = ops.logical_and(is_element, ops.eq(ops.remainder(rest, pool.dilation[place]), 0))
            element = ops.where(is_element, element, -prod(pool.kernel))
        total = ops.add(_at_axis(to, element, axis, steps.ndim), total)
    return total


def _position(to: Emitter, pool: _Pool, steps: _Steps, _: tuple[int, ...]) -> Any:
    """Return the flat position of an element."""
    ops, total = to.ops, 0
    for place, (axis, inner) in enumerate(steps.axes):
        weight, step, rows = prod(pool.sizes[place + 1 :]), pool.stride[place], pool.steps_with_elements(place)
        start = (rows.start * step - pool.padding[place]) * weight
        total = ops.add(_at_axis(to, ops.iota(len(rows), start, step * weight, _whole(pool)), axis, steps.ndim), total)
        if inner is not None:
            total = ops.add(_at_axis(to, ops.iota(step, 0, weight, _whole(pool)), inner, steps.ndim), total)
    return total


@lowering("fuser_lab.max_pool_gradient.default", refuse=_small)
def _gradient_of_offsets(
    to: Emitter, gradient: Any, offsets: Any, sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any,
) -> Any:
    pool = _pool_of(to, sizes, to.shape(gradient), kernel, stride, padding, dilation)
    element_in = functools.partial(_offset_in_window, to, pool)
    return _gradient_of_maxima(to, gradient, offsets, pool, element_in)


@lowering(
    "aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default", refuse=_small,
)
def _gradient_of_indices(
    to: Emitter, gradient: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, _: bool, indices: Any,
) -> Any:
    pool = _pool_of(to, to.shape(x), to.shape(gradient), kernel, stride, padding, dilation)
    element_in = functools.partial(_position, to, pool)
    return _gradient_of_maxima(to, gradient, indices, pool, element_in)


# Adaptive means, whose windows are parts of equal size

def _uneven(call: Call) -> str | None:
    whole, means = call.tensors[0], call.result
    if "backward" in call.target:
        whole, means = means, whole
    if not (whole.size and means.size):
        return "a tensor is empty"
    sizes, results = (tensor.shape[-_pooled_axes(call.target) :] for tensor in (whole, means))
    if any(size % result for size, result in zip(sizes, results, strict=True)):
        return f"its windows differ: {list(sizes)} is not a multiple of {list(results)}"
    return None


@lowering("aten._adaptive_avg_pool3d.default", refuse=_uneven)
def _adaptive_mean(to: Emitter, x: Any, _: Any) -> Any:
    shape, count = to.call.result.shape, _pooled_axes(to.call.target)
    pairs = [(n, size // n) for n, size in zip(shape[-count:], to.shape(x)[-count:], strict=True)]
    lead = shape[:-count]
    parts = to.reshape(to.cast(x, to.dtype.compute), [*lead, *(size for pair in pairs for size in pair)])
    axes = [len(lead) + 2 * place + 1 for place in range(count)]
    return to.ops.truediv(to.ops.sum(parts, axes), float(prod(k for _, k in pairs)))


@lowering(
    "aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default", refuse=_uneven,
)  # fmt: skip
def _adaptive_mean_backward(to: Emitter, gradient: Any, x: Any) -> Any:
    shape, count = to.shape(x), _pooled_axes(to.call.target)
    window_counts = to.shape(gradient)[-count:]
    pairs = [(n, size // n) for n, size in zip(window_counts, shape[-count:], strict=True)]
    each = to.ops.truediv(to.cast(gradient, to.dtype.compute), float(prod(k for _, k in pairs)))
    columns = to.reshape(each, [*shape[:-count], *(size for n in window_counts for size in (n, 1))])
    wide = to.expand(columns, [*shape[:-count], *(size for pair in pairs for size in pair)])
    return to.reshape(wide, shape)

"""ATen's pools: extremes and means of windows.

Windows that tile an axis are parts of a reshape, and a pool of them is a reduction. Other windows are combined along
one axis after another, from slices of the padded operand, one for each element of a window; the gradients of means are
sums of the same form. The indices of maxima read windows at computed positions: one gather and one reduction over the
window.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, lowering
from fuser_lab.bridge.lowerings.views import slice_of
from fuser_lab.dtypes import DataType

_MOST = 16  # maximum elements of a window that are read from memory; torch reads larger windows once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Sizes along each pooled axis: of the operand, of the result, and of windows and the steps between them."""

    sizes: tuple[int, ...]
    results: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


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
    kernel = call.argument(2 if "backward" in call.target else 1, "kernel_size")
    ndim = _pooled_axes(call.target)
    lengths = (kernel,) * ndim if isinstance(kernel, int) else tuple(kernel) * (ndim if len(kernel) == 1 else 1)
    is_mean = "avg_pool" in call.target
    count = max(lengths) if is_mean else prod(lengths)
    if count > _MOST:
        where = " along an axis" if is_mean else ""
        return f"a window has {count} elements{where}; {_MOST} at most are lowered"
    return None if all(tensor.size for tensor in call.tensors) else "a tensor is empty"


def _along(to: Emitter, x: Any, place: int, count: int) -> Any:
    """Return a tensor of axes n and k with axes ``(n of each, k of each)``, of size 1 elsewhere."""
    n, k = to.shape(x)
    return to.reshape(x, [n if at == place else k if at == place + count else 1 for at in range(2 * count)])


def _pairs(to: Emitter, n: int, k: int, scale: int, step: int, start: int) -> Any:
    """Return ``i * scale + j * step + start`` for i below n and j below k."""
    rows = to.ops.broadcast(to.places(n, start, scale), [False, True])
    return to.expand(to.ops.add(rows, to.ops.broadcast(to.places(k, 0, step), [True, False])), (n, k))


def _windows(to: Emitter, x: Any, pool: _Pool) -> tuple[Any, Any, Any]:
    """Return elements of windows ``[..., windows, window]``, with their flat positions and whether they exist."""
    ops, count = to.ops, len(pool.sizes)
    flat: Any = 0
    there: Any = None
    for place, (size, n, k, stride, dilation, padding) in enumerate(
        zip(pool.sizes, pool.results, pool.kernel, pool.stride, pool.dilation, pool.padding, strict=True),
    ):
        position = _pairs(to, n, k, stride, dilation, -padding)
        clipped = ops.maximum(ops.minimum(position, size - 1), 0)
        flat = ops.add(ops.mul(_along(to, clipped, place, count), prod(pool.sizes[place + 1 :])), flat)
        inside = ops.logical_and(ops.ge(position, 0), ops.lt(position, size))
        is_inside = _along(to, inside, place, count)
        there = is_inside if there is None else ops.logical_and(there, is_inside)
    grid = to.shape(flat)
    pair = [prod(grid[:count]), prod(grid[count:])]
    lead = to.shape(x)[: x.ndim - count]
    at = to.reshape(flat, [prod(pair)])
    elements = ops.index_select(to.reshape(x, [*lead, prod(pool.sizes)]), at, len(lead))
    shown = [True] * len(lead) + [False, False]
    return (
        to.reshape(elements, [*lead, *pair]), ops.broadcast(to.reshape(flat, pair), shown),
        ops.broadcast(to.reshape(there, pair), shown),
    )


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
    results, step, dilation = pool.results[place], pool.stride[place], pool.dilation[place]
    offsets = [element * dilation for element in range(pool.kernel[place])]
    rows = results + offsets[-1] // step
    before, size = pool.padding[place], to.shape(x)[axis]
    pads = [0, 0] * (x.ndim - axis - 1) + [before, rows * step - before - size]
    x = to.ops.pad(x, pads, fill) if any(pads) else x
    shape = to.shape(x)
    cut = to.reshape(x, [*shape[:axis], rows, step, *shape[axis + 1 :]]) if step > 1 else x
    combined = None
    for offset in offsets:
        part = slice_of(to, cut, axis, offset // step, offset // step + results)
        if step > 1:
            part = to.ops.squeeze(slice_of(to, part, axis + 1, offset % step, offset % step + 1), [axis + 1])
        combined = part if combined is None else join(combined, part)
    return combined


@lowering(
    "aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", refuse=_small,
    samples=["aten.max_pool2d_with_indices.default(b, [2, 2])",
             "aten.max_pool2d_with_indices.default(w[None], [3, 2], [2, 1], [1, 1], 1, True)",
             "aten.max_pool2d_with_indices.default(n[None], [2, 2], [1, 1], [0, 0], 2)",
             "aten.max_pool3d_with_indices.default(b[None], [2, 2, 2], [1, 1, 2], [1, 0, 1])"],
)  # fmt: skip
def _max_pool(
    to: Emitter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, _: bool = False,
) -> list[Any]:
    ops, shape, count = to.ops, to.call.result.shape, _pooled_axes(to.call.target)
    pool = _pool(to.shape(x)[-count:], shape[-count:], kernel, stride, padding, dilation)
    least = x.dtype.bounds[0]
    most = _combine(to, x, pool, least, ops.max, ops.maximum)
    # Only this is left of what follows if nothing reads the indices.
    elements, places, there = _windows(to, x, pool)
    axis = elements.ndim - 1
    seen = ops.where(there, elements, to.full((), least, x.dtype))
    best = ops.max(seen, [axis], True)
    # The first of equal elements, or the last NaN, whose index is stored as a negative number.
    far = prod(pool.sizes)
    key = ops.where(ops.logical_and(there, ops.eq(seen, best)), places, far)
    if x.dtype.is_float:
        key = ops.where(ops.isnan(seen), ops.sub(-1, places), key)
    first = ops.min(key, [axis])
    if x.dtype.is_float:
        first = ops.where(ops.lt(first, 0), ops.sub(-1, first), first)
    return [to.reshape(most, shape), to.reshape(first, shape)]


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


@lowering(
    "aten.avg_pool2d.default", "aten.avg_pool3d.default", refuse=_small,
    samples=["aten.avg_pool2d.default(b, [2, 2])", "aten.avg_pool2d.default(h[None], [2, 3], [1, 2], [1, 1])",
             "aten.avg_pool2d.default(a[None], [2, 2], [2, 2], [1, 1], True, False)",
             "aten.avg_pool2d.default(a[None], [2, 2], [2, 2], [0, 0], True, True, 3)",
             "aten.avg_pool3d.default(b[None], [2, 2, 2], [1, 1, 2], [1, 0, 1])"],
)  # fmt: skip
def _avg_pool(
    to: Emitter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, _: bool = False, with_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    ops, shape, count = to.ops, to.call.result.shape, _pooled_axes(to.call.target)
    pool = _pool(to.shape(x)[-count:], shape[-count:], kernel, stride, padding)
    total = _combine(to, to.cast(x, to.dtype.compute), pool, 0.0, ops.sum, ops.add)
    return to.reshape(ops.truediv(total, _divisors(to, pool, divisor, with_padding=with_padding)), shape)


@lowering(
    "aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default", refuse=_small,
    samples=["aten.avg_pool2d_backward.default(b[:, :1, :2], b, [2, 2], [], [0, 0], False, True, None)",
             "aten.avg_pool2d_backward.default(a[None, :, :3], a[None], [3, 2], [1, 2], [1, 1], False, False, None)",
             "aten.avg_pool2d_backward.default(b, torch.ones(2, 5, 7), [5, 3], [2, 2], [2, 1], True, True, 1)",
             "aten.avg_pool2d_backward.default(b, torch.ones(2, 7, 9), [1, 2], [3, 3], [0, 1], True, False, None)",
             "aten.avg_pool3d_backward.default(b[None, :1, :1, :2], b[None], [2] * 3, [], [0] * 3, False, True, 5)"],
)  # fmt: skip
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


@lowering(
    "aten._adaptive_avg_pool3d.default", refuse=_uneven,
    samples=["aten._adaptive_avg_pool3d.default(b[None], [1, 3, 2])"],
)
def _adaptive_mean(to: Emitter, x: Any, _: Any) -> Any:
    shape, count = to.call.result.shape, _pooled_axes(to.call.target)
    pairs = [(n, size // n) for n, size in zip(shape[-count:], to.shape(x)[-count:], strict=True)]
    lead = shape[:-count]
    parts = to.reshape(to.cast(x, to.dtype.compute), [*lead, *(size for pair in pairs for size in pair)])
    axes = [len(lead) + 2 * place + 1 for place in range(count)]
    return to.ops.truediv(to.ops.sum(parts, axes), float(prod(k for _, k in pairs)))


@lowering(
    "aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default", refuse=_uneven,
    samples=["aten._adaptive_avg_pool2d_backward.default(b[:, :1, :2], b)",
             "aten._adaptive_avg_pool2d_backward.default(h[None], torch.ones(1, 6, 4).half())",
             "aten._adaptive_avg_pool3d_backward.default(b[None, :1, :, :2], b[None])"],
)  # fmt: skip
def _adaptive_mean_backward(to: Emitter, gradient: Any, x: Any) -> Any:
    shape, count = to.shape(x), _pooled_axes(to.call.target)
    window_counts = to.shape(gradient)[-count:]
    pairs = [(n, size // n) for n, size in zip(window_counts, shape[-count:], strict=True)]
    each = to.ops.truediv(to.cast(gradient, to.dtype.compute), float(prod(k for _, k in pairs)))
    columns = to.reshape(each, [*shape[:-count], *(size for n in window_counts for size in (n, 1))])
    wide = to.expand(columns, [*shape[:-count], *(size for pair in pairs for size in pair)])
    return to.reshape(wide, shape)

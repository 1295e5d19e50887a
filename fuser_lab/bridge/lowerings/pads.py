"""ATen's gradients of paddings that repeat elements of their operand.

Each axis is its own sum: the gradient without its margins, and the margins, added to the elements that they repeat.
"""

import functools
from collections.abc import Sequence
from typing import Any

from fuser_lab.bridge.lowerings.registry import Call, Emitter, lowering
from fuser_lab.bridge.lowerings.views import slice_of

_MOST = 16  # maximum elements of a margin, each of which is read from memory; torch sums larger ones


def _margins(ndim: int, padding: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the padded axes with their numbers of elements before and after; a negative one drops elements."""
    return [(ndim - 1 - place, padding[2 * place], padding[2 * place + 1]) for place in range(len(padding) // 2)]


def _drops_an_axis(call: Call) -> str | None:
    _, x, padding = call.args
    if not all(tensor.size for tensor in call.tensors):
        return "a tensor is empty"
    if any(min(before, after) <= -x.shape[axis] for axis, before, after in _margins(x.ndim, padding)):
        return f"a padding of {list(padding)} drops all elements of an axis"
    return None


def _wide(call: Call) -> str | None:
    widest = max(call.args[2])
    if widest > _MOST:
        return f"a margin has {widest} elements; {_MOST} at most are lowered"
    return _drops_an_axis(call)


def _center(to: Emitter, gradient: Any, axis: int, before: int, size: int) -> Any:
    """Return the gradient of the elements themselves along one axis, 0 where a negative padding dropped them."""
    padded = to.shape(gradient)[axis]
    inner = slice_of(to, gradient, axis, max(before, 0), min(before + size, padded))
    return _part_of(to, inner, axis, max(-before, 0), size)


def _part_of(to: Emitter, x: Any, axis: int, start: int, size: int) -> Any:
    """Return a tensor as a part of one with ``size`` elements along an axis, and 0 elsewhere."""
    pads = [0, 0] * (x.ndim - axis - 1) + [start, size - start - to.shape(x)[axis]]
    return to.ops.pad(x, pads, 0.0) if any(pads) else x


def _reverse(to: Emitter, x: Any, axis: int) -> Any:
    return to.ops.flip(x, [axis]) if to.shape(x)[axis] > 1 else x  # a gather, which is an operand of its kernel


@lowering(
    "aten.reflection_pad1d_backward.default", "aten.reflection_pad2d_backward.default",
    "aten.reflection_pad3d_backward.default", refuse=_drops_an_axis,
)  # fmt: skip
def _reflection_gradient(to: Emitter, gradient: Any, x: Any, padding: Any) -> Any:
    total = to.cast(gradient, to.dtype.compute)
    for axis, before, after in _margins(x.ndim, padding):
        size, padded = to.shape(x)[axis], to.shape(total)[axis]
        parts = [_center(to, total, axis, before, size)]
        if before > 0:
            margin = _reverse(to, slice_of(to, total, axis, 0, before), axis)
            parts.append(_part_of(to, margin, axis, 1, size))
        if after > 0:
            margin = _reverse(to, slice_of(to, total, axis, padded - after, padded), axis)
            parts.append(_part_of(to, margin, axis, size - 1 - after, size))
        total = functools.reduce(to.ops.add, parts)
    return total


@lowering(
    "aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default",
    "aten.replication_pad3d_backward.default", refuse=_wide,
)  # fmt: skip
def _replication_gradient(to: Emitter, gradient: Any, x: Any, padding: Any) -> Any:
    total = to.cast(gradient, to.dtype.compute)
    for axis, before, after in _margins(x.ndim, padding):
        size, padded = to.shape(x)[axis], to.shape(total)[axis]
        parts = [_center(to, total, axis, before, size)]
        for start, count, place in ((0, before, 0), (padded - after, after, size - 1)):
            if count > 0:
                elements = [slice_of(to, total, axis, at, at + 1) for at in range(start, start + count)]
                parts.append(_part_of(to, functools.reduce(to.ops.add, elements), axis, place, size))
        total = functools.reduce(to.ops.add, parts)
    return total

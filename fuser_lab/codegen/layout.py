"""The positions of a tensor's elements in its buffer."""

from collections.abc import Sequence
from dataclasses import dataclass

from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Const, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Element ``index`` is at position ``offset + sum(index * strides)`` of a buffer of ``size`` elements."""

    strides: tuple[int, ...]
    offset: int
    size: int

    def position(self, index: Sequence[Term]) -> Term:
        """Return the position of an element as an index term."""
        total: Term = Const(DataType.Index, self.offset)
        for i, stride in zip(index, self.strides, strict=True):
            total = total + i * stride
        return total


def dense_strides(tensor: TensorView) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor that is dense in its allocation order; 0 for expanded axes."""
    sizes = tensor.stored_shape
    strides = [0] * len(sizes)
    step = 1
    for axis in reversed(tensor.domain.allocation_order):
        expanded = tensor.domain.axes[axis].expanded is not None
        strides[axis] = 0 if expanded else step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def layout_of(tensor: TensorView, strides: Sequence[int] | Layout | None = None) -> Layout:
    """Return the layout for given strides in elements, by default dense in the tensor's allocation order.

    Axes of size 1 get stride 0, because their index is always 0. A given layout, such as that of a view in the buffer
    of another tensor, is returned unchanged.
    """
    if isinstance(strides, Layout):
        return strides
    shape = tensor.shape
    distances = dense_strides(tensor) if strides is None else tuple(strides)
    used = tuple(0 if n <= 1 else s for n, s in zip(shape, distances, strict=True))
    if 0 in shape:
        return Layout(strides=used, offset=0, size=0)
    low = sum((n - 1) * s for n, s in zip(shape, used, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, used, strict=True) if s > 0)
    return Layout(strides=used, offset=-low, size=high - low + 1)

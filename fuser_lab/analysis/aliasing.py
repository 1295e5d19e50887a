"""Which results are views of inputs: pointer arithmetic instead of a kernel (nvFuser's alias analysis)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

from fuser_lab.ir import Expr, OpKind, TensorView
from fuser_lab.ir.domain import Resize

Strides = tuple[int, ...]


def input_strides(tensor: TensorView) -> Strides:
    """Return strides in elements that stand for a tensor's layout; a gap follows each axis said to have one."""
    axes = tensor.domain.axes
    order = tensor.domain.allocation_order
    flags = tensor.domain.contiguity or (True,) * len(axes)
    strides = [0] * len(axes)
    step = 1
    for position, flag in zip(reversed(order), reversed(flags), strict=True):
        axis = axes[position]
        if axis.expanded is not None:
            continue
        if flag is False:
            step = 2 * step + 1  # any stride that is not a product of extents: the axis merges with none
        strides[position] = step
        step *= axis.extent if isinstance(axis.extent, int) else 1
    return tuple(strides)


def reshaped_strides(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """Return the strides of a reshape that moves nothing, or None if elements have to move."""
    if prod(new) == 0:
        return (0,) * len(new)
    # Axes that one stride traverses form one range; a new axis must lie within a range.
    ranges: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if ranges and ranges[-1][1] == size * stride:
            ranges[-1] = (ranges[-1][0] * size, stride)
        else:
            ranges.append((size, stride))
    result = [0] * len(new)
    left, stride = 1, 1
    for place in reversed(range(len(new))):
        size = new[place]
        if size == 1:
            continue
        if left == 1:
            left, stride = ranges.pop()
        if left % size:
            return None
        result[place] = stride
        left, stride = left // size, stride * size
    return tuple(result)


def view_strides(expr: Expr, strides: Strides) -> Strides | None:
    """Return the strides of an expression's result as a view of its operand, or None if it is not a view.

    A result that must be stored in a different order from the view's is not a view.
    """
    seen = _seen_strides(expr, strides)
    if seen is None or expr.out.domain.allocation is None or _lies_so(expr.out, seen):
        return seen
    return None


def _lies_so(tensor: TensorView, strides: Strides) -> bool:
    axes = tensor.domain.axes
    along = [strides[p] for p in tensor.domain.allocation_order if not axes[p].is_broadcast and axes[p].extent != 1]
    return all(slower >= faster for slower, faster in pairwise(along))


def resolved_strides(expr: Expr, strides: Strides) -> Strides | None:
    """Return the strides of an expression's result as a view if it may be stored in this way, otherwise None.

    A result without its own layout is row-major and dense (nvFuser: EmptyAllocationAs::kLogical).
    """
    seen = view_strides(expr, strides)
    if seen is None or expr.out.domain.allocation is not None:
        return seen
    return seen if is_dense(expr.out, seen) else None


def is_dense(tensor: TensorView, strides: Strides) -> bool:
    """Whether strides are those of a dense, row-major tensor; those of broadcast axes do not matter."""
    step = 1
    for axis, stride in zip(reversed(tensor.domain.axes), reversed(strides), strict=True):
        if axis.is_broadcast or axis.extent == 1:
            continue
        if stride != step:
            return False
        step *= axis.extent if isinstance(axis.extent, int) else 1
    return True


def _seen_strides(expr: Expr, strides: Strides) -> Strides | None:
    source, out = expr.tensor_inputs[0], expr.out
    kind = expr.kind
    if kind is OpKind.RESHAPE:
        return reshaped_strides(source.shape, strides, out.shape)
    if kind is OpKind.BROADCAST:
        flags = expr.attr("is_broadcast_dim")
        left = iter(strides)
        return tuple(0 if new else next(left) for new in (flags if isinstance(flags, tuple) else ()))
    if kind is OpKind.SQUEEZE:
        dropped = expr.ints("dims")
        return tuple(s for i, s in enumerate(strides) if i not in dropped)
    if kind is OpKind.EXPAND:
        return tuple(
            0 if axis.expanded is not None else s for s, axis in zip(strides, out.domain.axes, strict=True)
        )
    if kind is OpKind.COPY:
        if expr.op.name == "permute":
            return tuple(strides[d] for d in expr.ints("dims"))
        # A required layout is a view only if the operand already has it.
        if expr.op.name == "stride_order" and strides != input_strides(out):
            return None
        return strides
    if kind is OpKind.RESIZE and expr.op.name != "cat":
        cuts = [t for t in out.domain.transforms if isinstance(t, Resize)]
        if all(isinstance(n, int) and n <= 0 for cut in cuts for n in (cut.left, cut.right)):
            return strides
    return None


def seen_at(expr: Expr, strides: Strides, offset: int) -> tuple[Strides, int] | None:
    """Return the strides of an expression's result in its operand's memory and the offset of its element 0, or None.

    ``strides`` and ``offset`` are the operand's. The result may have any order, because its readers follow strides.
    """
    seen = _seen_strides(expr, strides)
    if seen is None:
        return None
    domain = expr.out.domain
    cuts = [t for t in domain.transforms if isinstance(t, Resize)] if expr.kind is OpKind.RESIZE else []
    axes = domain.root or domain.logical
    skipped = [(-cut.left, strides[axes.index(cut.source)]) for cut in cuts if isinstance(cut.left, int)]
    return seen, offset + sum(elements * stride for elements, stride in skipped)


def first_not_view(exprs: Iterable[Expr], stored: frozenset[str]) -> Expr | None:
    """Return an expression whose result is not a view of an input, or None if all are views.

    ``stored`` names results that must have their own memory, such as outputs that overwrite an input.
    """
    strides_of: dict[str, Strides] = {}
    for expr in exprs:
        if not expr.kind.is_view or expr.name in stored:
            return expr
        source = expr.tensor_inputs[0]
        if source.name not in strides_of:
            strides_of[source.name] = input_strides(source)
        strides = resolved_strides(expr, strides_of[source.name])
        if strides is None:
            return expr
        strides_of[expr.name] = strides
    return None

"""Concatenation: operands are padded to the full size, and each element is that of the operand in whose range it is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Extent, IterDomain, IterType, OpKind, Resize, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import flag, whole
from fuser_lab.ops.operands import same_extent, tensor_at
from fuser_lab.ops.registry import OPS, Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.resize import PAD
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Result
from fuser_lab.ops.view import SET


def _cat(rec: Recorder, tensors: Sequence[Operand], dim: int = 0, manual_padding: bool = False) -> Val:
    operands = rec.tensors(tensors, "cat", "tensors")
    if not operands:
        raise DefinitionError("cat: tensors is empty; at least one tensor is needed.")
    first = operands[0]
    for other in operands[1:]:
        if other.ndim != first.ndim:
            msg = f"cat: tensors have {first.ndim} and {other.ndim} axes; they must have the same number."
            raise DefinitionError(msg)
        if other.dtype is not first.dtype:
            msg = f"cat: can't concatenate tensors with different data types, {first.dtype!r} and {other.dtype!r}."
            raise DefinitionError(msg)
    axis = _cat_axis(dim, first.ndim)
    manual = flag(manual_padding, "cat", "manual_padding")
    for position in range(first.ndim):
        for other in operands[1:]:
            if position != axis and not same_extent(first.extents[position], other.extents[position]):
                raise DefinitionError(
                    f"cat: sizes {first.extents[position]} and {other.extents[position]} differ on axis {position}; "
                    f"only axis {axis} may differ."
                )
    if len(operands) == 1:
        return rec.emit(SET, operands)[0]
    return rec.emit(CAT, operands if manual else _padded_for_cat(rec, operands, axis), dim=axis)[0]


def _cat_axis(dim: object, ndim: int) -> int:
    axis = whole(dim, "cat", "dim")
    if not -ndim <= axis < ndim:
        msg = f"cat: Invalid dimension to cat, dim={axis} is outside [-{ndim}, {ndim}) of tensors with {ndim} axes."
        raise DefinitionError(msg)
    return axis % ndim


def _padded_for_cat(rec: Recorder, operands: Sequence[TensorView], axis: int) -> list[Val]:
    """Return the operands padded to the full size, each into the range of the cat axis that it fills."""
    inner_axes = operands[0].ndim - 1 - axis
    total: Extent = 0
    for tv in operands:
        total = _combine(rec, "add", total, tv.extents[axis])
    before: Extent = 0
    after = total
    padded = []
    for place, tv in enumerate(operands, 1):
        after = 0 if place == len(operands) else _combine(rec, "sub", after, tv.extents[axis])
        padded.append(PAD.frontend(rec, tv, [0, 0] * inner_axes + [before, after]))
        before = _combine(rec, "add", before, tv.extents[axis])
    return padded


def _combine(rec: Recorder, op: str, a: Extent, b: Extent) -> Extent:
    """Return the sum or difference of two sizes, recorded as scalar arithmetic if one is symbolic."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b if op == "add" else a - b
    if a == 0 and op == "add":
        return b
    if b == 0:
        return a
    if a == b and op == "sub":
        return 0
    result: Extent = OPS[op].frontend(rec, a, b)
    return result


def _cat_ends(operands: Sequence[TensorView], dim: int) -> list[int] | None:
    """Return the end of each operand's range of the cat axis; None unless their pads define consecutive ranges.

    A tensor that is not the direct result of a pad, but computed from one or read from memory, has no known range.
    """
    ends = []
    reached = 0
    for tv in operands:
        axis = tv.domain.axes[dim]
        resize = next((x for x in tv.domain.transforms if isinstance(x, Resize) and x.result.id == axis.id), None)
        left, right = (resize.left, resize.right) if resize is not None else (0, 0)
        if not isinstance(left, int) or not isinstance(right, int) or left != reached:
            return None
        reached = tv.shape[dim] - right
        ends.append(reached)
    return ends if reached == operands[0].shape[dim] else None


def _infer_cat(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    first = tensor_at(inputs)
    for other in inputs[1:]:
        tensor = other if isinstance(other, TensorView) else first
        for position, (a, b) in enumerate(zip(first.extents, tensor.extents, strict=True)):
            if not same_extent(a, b):
                msg = f"cat: padded operands have sizes {a} and {b} on axis {position}; they must be equal."
                raise DefinitionError(msg)
    logical = tuple(
        _cat_result(first.domain.axes[position], [v.domain.axes[position] for v in inputs if isinstance(v, TensorView)],
                    axes)
        for position in range(first.ndim)
    )
    return (Result(first.dtype, TensorDomain(logical=logical)),)


def _cat_result(axis: IterDomain, operands: Sequence[IterDomain], axes: AxisFactory) -> IterDomain:
    if axis.visible_extent == 1:
        return axes.copy(axis)
    if all(other.is_broadcast for other in operands):
        # Expanded in all of them, and not along the cat axis, which pads make concrete.
        return axes.copy(axis)
    undecided = all(other.kind is IterType.SYMBOLIC for other in operands)
    return axes.fresh(axis.visible_extent, IterType.SYMBOLIC if undecided else IterType.ITERATION)


def _reference_cat(*padded: Array, dim: int) -> Array:
    # Operands are zero outside their own range.
    del dim
    total, *others = padded
    word = np.dtype(f"u{min(total.itemsize, 8)}")
    for other in others:
        bits = (np.ascontiguousarray(x).view(word) for x in (total, other))
        either = np.bitwise_or(*bits).view(total.dtype)
        # A zero outside may be negative, for example after neg: its sign bit is not part of the other operand's value.
        total = either if _is_of_bits(total.dtype) else _first_but_zeros(total, other, either)
    return total


def _is_of_bits(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" or dtype == DataType.Float8_e8m0fnu.numpy


def _first_but_zeros(a: Array, b: Array, zeros: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(a != 0, a, np.where(b != 0, b, zeros))


def _element_cat(e: Element) -> Term:
    dim = e.attrs["dim"]
    axis = dim if isinstance(dim, int) else 0
    tensors = [v for v in e.inputs if isinstance(v, TensorView)]
    value = e.read(len(tensors) - 1, e.index)
    ends = _cat_ends(tensors, axis)
    for position in range(len(tensors) - 2, -1, -1):
        operand = e.read(position, e.index)
        value = _laid_over(operand, value) if ends is None else t.select(e.index[axis] < ends[position], operand, value)
    return value


def _laid_over(a: Term, b: Term) -> Term:
    """Return whichever of a and b is in its range: the other is 0, without its sign."""
    if a.dtype.is_integral or a.dtype is DataType.Bool:
        return a | b
    zero = b if a.dtype.is_complex else t.apply("min", a, b)
    return t.select(t.apply("ne", a, 0), a, t.select(t.apply("ne", b, 0), b, zero))


CAT = register(
    OpDef(
        name="cat",
        kind=OpKind.RESIZE,
        frontend=_cat,
        infer=_infer_cat,
        reference=_reference_cat,
        element=_element_cat,
        samples=(
            Sample("fd.ops.cat([a, b])", (Arg((3, 4)), Arg((2, 4)))),
            Sample("fd.ops.cat([a, b, a], dim=-1)", (Arg((3, 4), DataType.Half), Arg((3, 1), DataType.Half))),
            Sample("fd.ops.cat([a, a], 1)", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.cat([a])"),
            Sample("fd.ops.cat([a, b])", (Arg((0, 4), DataType.Bool), Arg((2, 4), DataType.Bool))),
            Sample("fd.ops.cat([a, b], 0)", (Arg((1,), DataType.ComplexDouble), Arg((5,), DataType.ComplexDouble))),
            Sample(
                "fd.ops.cat([fd.ops.slice(a, [0, fd.define_scalar(2)], [3, 4]), a], 1)",
                (Arg((3, 4), DataType.BFloat16),),
            ),
            Sample("fd.ops.cat([fd.ops.pad(a, [0, 2]), fd.ops.pad(b, [4, 0])], 1, True)", (Arg((3, 4)), Arg((3, 2)))),
            Sample(
                "fd.ops.cat([fd.ops.neg(fd.ops.pad(a, [0, 2])), fd.ops.pad(b, [4, 0])], 1, manual_padding=True)",
                (Arg((3, 4)), Arg((3, 2))),
            ),
            Sample(
                "fd.ops.cat([fd.ops.pad(b, [4, 0]), fd.ops.segment_set(fd.ops.pad(a, [0, 2]))], 1, True)",
                (Arg((3, 4), DataType.Int), Arg((3, 2), DataType.Int)),
            ),
            Sample("fd.ops.cat([fd.ops.broadcast(a, [True, False]), b])", (Arg((4,)), Arg((2, 4)))),
        ),
        doc="tensors one after another along dim; each is padded to the full size first.",
    ),
)

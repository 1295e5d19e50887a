"""Matrix products; no kernel is generated for them; the array library of the inputs evaluates them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.ir import Expr, IterDomain, IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.operands import joined_extent, same_extent, tensor_at
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Positions, Result


def _same_dtype(op: str, tensors: Sequence[TensorView], names: Sequence[str]) -> None:
    first = tensors[0]
    for tensor, name in zip(tensors[1:], names[1:], strict=True):
        if tensor.dtype is not first.dtype:
            raise DefinitionError(
                f"{op}: {names[0]} has dtype {first.dtype!r} and {name} has dtype {tensor.dtype!r}; "
                "they must have equal dtypes."
            )


def _needs_axes(op: str, name: str, tensor: TensorView, least: int) -> None:
    if tensor.ndim < least:
        raise DefinitionError(f"{op}: {name} has {tensor.ndim} axes; it needs at least {least}.")


def stored_copy(axis: IterDomain, axes: AxisFactory) -> IterDomain:
    """Return a new axis of the same visible size; an expanded axis becomes a stored one."""
    return axes.copy(axis) if axis.expanded is None else axes.fresh(axis.expanded)


def _contract(op: str, a: IterDomain, b: IterDomain, axes: AxisFactory) -> IterDomain:
    if not same_extent(a.visible_extent, b.visible_extent):
        raise DefinitionError(f"{op}: contracted sizes {a.visible_extent} and {b.visible_extent} differ.")
    if (a.is_broadcast and a.expanded is None) is not (b.is_broadcast and b.expanded is None):
        msg = f"{op}: the contracted axis is a broadcast axis in one operand only; it must be one in both or neither."
        raise DefinitionError(msg)
    return axes.fresh(a.visible_extent, IterType.REDUCTION)


def joined_batch(
    op: str, operands: Sequence[Sequence[IterDomain]], axes: AxisFactory,
) -> list[IterDomain]:
    """Return leading axes of operands, aligned from the right, as axes of a result; size 1 broadcasts."""
    rank = max(map(len, operands))
    result = []
    for position in range(-rank, 0):
        here = [axis for side in operands if len(side) >= -position for axis in [side[position]]]
        wide = [a for a in here if not a.is_broadcast] or [a for a in here if a.expanded is not None] or here
        for axis in (a for a in here if not a.is_broadcast or a.expanded is not None):
            if not same_extent(axis.visible_extent, wide[0].visible_extent):
                raise DefinitionError(f"{op}: batch sizes {wide[0].visible_extent} and {axis.visible_extent} differ.")
        # A copy preserves whether the axis may still turn out to be a broadcast axis.
        concrete = all(a.is_broadcast for a in here) and wide[0].expanded is not None
        result.append(axes.fresh(joined_extent(here, axes)) if concrete else axes.copy(wide[0]))
    return result


def leading_positions(tensor: TensorView, wide: int, batch: int) -> Positions:
    """Return the positions of a tensor's ``wide`` leading axes among a result's ``batch`` leading axes."""
    return tuple((i, i + batch - wide) for i in range(wide) if tensor.ndim)


def _matmul(rec: Recorder, arg1: Operand, arg2: Operand) -> Val:
    operands = (rec.tensor(arg1, "matmul", "arg1"), rec.tensor(arg2, "matmul", "arg2"))
    return rec.emit(MATMUL, operands)[0]


def _infer_matmul(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    a, b = tensor_at(inputs), tensor_at(inputs, 1)
    _needs_axes("matmul", "arg1", a, 1)
    _needs_axes("matmul", "arg2", b, 1)
    _same_dtype("matmul", (a, b), ("arg1", "arg2"))
    left, right = a.domain.axes, b.domain.axes
    rows = [stored_copy(left[-2], axes)] if a.ndim > 1 else []
    columns = [stored_copy(right[-1], axes)] if b.ndim > 1 else []
    inner = _contract("matmul", left[-1], right[-2] if b.ndim > 1 else right[-1], axes)
    batch = joined_batch("matmul", (left[:-2], right[:-2]), axes) if max(a.ndim, b.ndim) > 2 else []
    return (Result(a.dtype, TensorDomain(logical=(*batch, *rows, *columns, inner))),)


def _reference_matmul(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a, b))


MATMUL = register(
    OpDef(
        name="matmul",
        kind=OpKind.MATMUL,
        frontend=_matmul,
        infer=_infer_matmul,
        reference=_reference_matmul,
        library=lambda torch, a, b: torch.matmul(a, b),
        doc="Matrix product with torch.matmul's shapes; dtypes are equal and kept.",
        samples=(
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4)), Arg((4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((4,)), Arg((4,)))),
            Sample("fd.ops.matmul(a, b)", (Arg((4,)), Arg((4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4)), Arg((4,)))),
            Sample("fd.ops.matmul(a, b)", (Arg((4,)), Arg((2, 4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((2, 3, 4)), Arg((4,)))),
            Sample("fd.ops.matmul(a, b)", (Arg((2, 3, 4)), Arg((2, 4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((6, 1, 3, 4)), Arg((2, 4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((1, 3, 4)), Arg((2, 4, 1)))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 1)), Arg((1, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 0)), Arg((0, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((0, 4)), Arg((4, 5)))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4), DataType.Double), Arg((4, 5), DataType.Double))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4), DataType.Half), Arg((4, 5), DataType.Half))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4), DataType.BFloat16), Arg((4, 5), DataType.BFloat16))),
            Sample("fd.ops.matmul(a, b)", (Arg((3, 4), DataType.ComplexFloat), Arg((4, 5), DataType.ComplexFloat))),
            Sample("fd.ops.matmul(fd.ops.expand(a, [2, 3, 4]), b)", (Arg((1, 3, 4)), Arg((4, 5)))),
        ),
    ),
)


def _linear(rec: Recorder, arg1: Operand, arg2: Operand, bias: Operand = None) -> Val:
    operands = [rec.tensor(arg1, "linear", "arg1"), rec.tensor(arg2, "linear", "arg2")]
    if bias is not None:
        operands.append(rec.tensor(bias, "linear", "bias"))
    return rec.emit(LINEAR, operands)[0]


def _infer_linear(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    tensors = [tensor_at(inputs, i) for i in range(len(inputs))]
    names = ("arg1", "arg2", "bias")[: len(tensors)]
    a, weight, *bias = tensors
    for name, tensor, least in zip(names, tensors, (1, 2, 1), strict=False):
        _needs_axes("linear", name, tensor, least)
    _same_dtype("linear", tensors, names)
    left, right = a.domain.axes, weight.domain.axes
    inner = _contract("linear", left[-1], right[-1], axes)
    rows = [stored_copy(left[-2], axes)] if a.ndim > 1 else []
    batch = joined_batch("linear", (left[:-2], right[:-2]), axes) if max(a.ndim, weight.ndim) > 2 else []
    logical = (*batch, *rows, stored_copy(right[-2], axes))
    for tensor in bias:
        _check_bias(tensor, logical)
    return (Result(a.dtype, TensorDomain(logical=(*logical, inner))),)


def _check_bias(bias: TensorView, logical: Sequence[IterDomain]) -> None:
    if bias.ndim > len(logical):
        raise DefinitionError(f"linear: bias has {bias.ndim} axes, more than the {len(logical)} of the product.")
    for bias_axis, axis in zip(reversed(bias.domain.axes), reversed(logical), strict=False):
        last = axis is logical[-1]
        if same_extent(bias_axis.visible_extent, axis.visible_extent) or (bias_axis.is_broadcast and not last):
            continue
        msg = f"linear: bias has size {bias_axis.visible_extent} where the product has {axis.visible_extent}."
        raise DefinitionError(msg)


def _reference_linear(a: Array, weight: Array, bias: Array | None = None) -> Array:
    product = np.matmul(a, np.swapaxes(weight, -1, -2))
    return np.asarray(product if bias is None else product + bias)


def _torch_linear(torch: Any, a: Any, weight: Any, bias: Any = None) -> Any:
    if weight.dim() == 2 and (bias is None or bias.dim() == 1):
        return torch.nn.functional.linear(a, weight, bias)
    product = torch.matmul(a, weight.mT)
    return product if bias is None else product + bias


def _linear_axes(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    a, weight, *bias = expr.tensor_inputs
    rank = expr.out.ndim
    row = ((a.ndim - 2, rank - 2),) if a.ndim > 1 else ()
    batch = rank - 1 - len(row)
    return (
        (*leading_positions(a, max(a.ndim - 2, 0), batch), *row),
        (*leading_positions(weight, weight.ndim - 2, batch), (weight.ndim - 2, rank - 1)),
        *(tuple((i, i + rank - tv.ndim) for i in range(tv.ndim)) for tv in bias),
    )


LINEAR = register(
    OpDef(
        name="linear",
        kind=OpKind.MATMUL,
        frontend=_linear,
        infer=_infer_linear,
        reference=_reference_linear,
        library=_torch_linear,
        axes=_linear_axes,
        doc="arg1 @ arg2.T + bias; leading axes of a weight with more than two are batch axes.",
        samples=(
            Sample("fd.ops.linear(a, b)", (Arg((3, 4)), Arg((5, 4)))),
            Sample("fd.ops.linear(a, b, c)", (Arg((3, 4)), Arg((5, 4)), Arg((5,)))),
            Sample("fd.ops.linear(a, b, bias=c)", (Arg((2, 3, 4)), Arg((5, 4)), Arg((5,)))),
            Sample("fd.ops.linear(a, b)", (Arg((4,)), Arg((5, 4)))),
            Sample("fd.ops.linear(a, b, c)", (Arg((4,)), Arg((5, 4)), Arg((5,)))),
            Sample("fd.ops.linear(a, b)", (Arg((3, 4)), Arg((1, 4)))),
            Sample("fd.ops.linear(a, b)", (Arg((3, 1)), Arg((5, 1)))),
            Sample("fd.ops.linear(a, b)", (Arg((0, 4)), Arg((5, 4)))),
            *(
                Sample("fd.ops.linear(a, b, c)", (Arg((3, 4), dtype), Arg((5, 4), dtype), Arg((5,), dtype)))
                for dtype in (DataType.Double, DataType.Half, DataType.BFloat16)
            ),
        ),
    ),
)


def _grouped_mm(
    rec: Recorder, mat1: Operand, mat2: Operand, offsets: Operand, *scales: Operand, **options: object,
) -> Val:
    if scales or options:
        msg = "grouped_mm: only the form (mat1, mat2, offsets) is supported; scaled products need CUTLASS."
        raise UnsupportedError(msg)
    operands = ((mat1, "mat1"), (mat2, "mat2"), (offsets, "offsets"))
    return rec.emit(GROUPED_MM, [rec.tensor(value, "grouped_mm", name) for value, name in operands])[0]


def _infer_grouped_mm(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    a, b, ends = (tensor_at(inputs, i) for i in range(3))
    _same_dtype("grouped_mm", (a, b), ("mat1", "mat2"))
    if (a.ndim, b.ndim) not in {(2, 2), (2, 3), (3, 2)}:
        msg = f"grouped_mm: mat1 and mat2 have {a.ndim} and {b.ndim} axes; accepted are 2 and 2, 2 and 3, 3 and 2."
        raise DefinitionError(msg)
    if ends.ndim != 1 or not ends.dtype.is_integral:
        msg = f"grouped_mm: offsets must be integers with 1 axis, given {ends.dtype!r} with {ends.ndim} axes."
        raise DefinitionError(msg)
    left, right, groups = a.domain.axes, b.domain.axes, ends.domain.axes[0]
    for name, tensor in (("mat1", a), ("mat2", b)):
        count = tensor.domain.axes[0].visible_extent
        if tensor.ndim == 3 and not same_extent(count, groups.visible_extent):
            msg = f"grouped_mm: {name} has {count} groups, but offsets has {groups.visible_extent} entries."
            raise DefinitionError(msg)
    inner = _contract("grouped_mm", left[-1], right[-2], axes)
    group = [stored_copy(groups, axes)] if a.ndim == b.ndim == 2 else []
    logical = (*group, stored_copy(left[-2], axes), stored_copy(right[-1], axes), inner)
    return (Result(a.dtype, TensorDomain(logical=logical)),)


def _fill_groups(zeros: Any, a: Any, b: Any, ends: Sequence[int]) -> Any:
    """Fill ``zeros`` with the products of groups; everything after the last end remains zero."""
    start = 0
    for group, end in enumerate(ends):
        part = slice(start, end)
        if a.ndim == 3:
            zeros[:, part] = a[group] @ b[:, part]
        elif b.ndim == 3:
            zeros[part] = a[part] @ b[group]
        else:
            zeros[group] = a[:, part] @ b[part]
        start = end
    return zeros


def _grouped_shape(a: Any, b: Any, ends: Any) -> tuple[int, ...]:
    rows, columns = a.shape[-2], b.shape[-1]
    return (len(ends), rows, columns) if a.ndim == b.ndim == 2 else (rows, columns)


def _reference_grouped_mm(a: Array, b: Array, ends: Array) -> Array:
    zeros = np.zeros(_grouped_shape(a, b, ends), a.dtype)
    return np.asarray(_fill_groups(zeros, a, b, [int(end) for end in ends]))


def _torch_grouped_mm(torch: Any, a: Any, b: Any, ends: Any) -> Any:
    zeros = torch.zeros(_grouped_shape(a, b, ends), dtype=a.dtype, device=a.device)
    return _fill_groups(zeros, a, b, ends.tolist())


def _grouped_axes(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    a, b, _ = expr.tensor_inputs
    first = expr.out.ndim - 2
    return (((a.ndim - 2, first),), ((b.ndim - 1, first + 1),), ((0, 0),) if first else ())


_ENDS = Arg((2,), DataType.Int32, 1.0, 3.9)

GROUPED_MM = register(
    OpDef(
        name="grouped_mm",
        kind=OpKind.MATMUL,
        frontend=_grouped_mm,
        infer=_infer_grouped_mm,
        reference=_reference_grouped_mm,
        library=_torch_grouped_mm,
        axes=_grouped_axes,
        doc="Products of groups of rows, columns or contracted elements that end at offsets.",
        samples=(
            Sample("fd.ops.grouped_mm(a, b, fd.ops.cumsum(c, 0))", (Arg((9, 4)), Arg((2, 4, 5)), _ENDS)),
            Sample("fd.ops.grouped_mm(a, b, fd.ops.cumsum(c, 0))", (Arg((2, 3, 4)), Arg((4, 9)), _ENDS)),
            Sample("fd.ops.grouped_mm(a, b, fd.ops.cumsum(c, 0))", (Arg((3, 9)), Arg((9, 5)), _ENDS)),
            Sample(
                "fd.ops.grouped_mm(a, b, fd.ops.cumsum(c, 0))",
                (Arg((9, 4), DataType.BFloat16), Arg((2, 4, 5), DataType.BFloat16), _ENDS),
            ),
        ),
    ),
)

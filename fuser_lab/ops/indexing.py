"""Reads at data-dependent indices: select, index_select, gather, take_along_axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.arguments import is_whole
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.ir import Expr, Extent, IterDomain, IterType, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops import positions
from fuser_lab.ops.arguments import whole
from fuser_lab.ops.operands import defined_scalar, joined_extent, same_extent, tensor_at
from fuser_lab.ops.registry import OPS, Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Positions, Result


def _read(e: Element, place: Term, at: Sequence[Term], size: int) -> Term:
    """Return the operand's element if ``place`` is within its axis, otherwise 0; nothing out of range is read."""
    return t.select((place >= 0) & (place < size), e.read(0, tuple(at)), 0)


def _fitting(tensor: TensorView, index: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(t.index(0) if n == 1 else i for n, i in zip(tensor.shape, index, strict=True))


# select


def _select(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "select", "arg")
    place = whole(index, "select", "index") if is_whole(index) else index
    value = rec.value(place, "select", "index") if is_whole(index) else defined_scalar(rec, place, "select", "index")
    if not value.dtype.is_integral:
        raise DefinitionError(f"select: index must be an integer, given {value.dtype!r}.")
    axis = positions.dimension(dim, tensor, "select")
    return rec.emit(SELECT, [tensor, _from_the_front(rec, value, tensor.extents[axis])], dim=axis)[0]


def _from_the_front(rec: Recorder, place: Val, size: Extent) -> Val:
    """Return an index; a negative number counts from the end, as in torch."""
    if not isinstance(place, Scalar) or place.value is None or place.value.real >= 0:
        return place
    if not isinstance(size, int):
        end: Val = OPS["add"].frontend(rec, size, place)
        return end
    number = int(place.value.real)
    if number < -size:
        raise DefinitionError(positions.out_of_range("select", number, size))
    return Scalar(name="", dtype=place.dtype, value=number + size)


def _infer_select(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), inputs[1]
    dim = positions.indexed_axis(attrs)
    size = tensor.extents[dim]
    if isinstance(index, Scalar) and index.value is not None and isinstance(size, int):
        value = int(index.value.real)
        if not 0 <= value < size:
            raise DefinitionError(positions.out_of_range("select", value, size))
    logical = tuple(axes.copy(axis) for place, axis in enumerate(tensor.domain.axes) if place != dim)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_select(x: Array, index: Any, *, dim: int) -> Array:
    return np.asarray(np.take(x, int(positions.checked_positions("select", index, x.shape[dim])), axis=dim))


def _library_select(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    place = int(index)
    if not 0 <= place < x.shape[dim]:
        raise InputError(positions.out_of_range("select", place, x.shape[dim]))
    return torch.select(x, dim, place)


def _element_select(e: Element) -> Term:
    dim, size = positions.indexed_axis(e.attrs), tensor_at(e.inputs).shape[positions.indexed_axis(e.attrs)]
    place = t.cast(e.read(1, ()), DataType.Index)
    return _read(e, place, (*e.index[:dim], place, *e.index[dim:]), size)


def _axes_select(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim = positions.indexed_axis(dict(expr.attrs))
    left = [i for i in range(expr.tensor_inputs[0].ndim) if i != dim]
    return (tuple((axis, place) for place, axis in enumerate(left)),)


_TWO = "fd.define_scalar(2, DataType.Int)"
SELECT = register(
    OpDef(
        name="select",
        kind=OpKind.INDEXING,
        frontend=_select,
        infer=_infer_select,
        reference=_reference_select,
        element=_element_select,
        library=_library_select,
        axes=_axes_select,
        samples=(
            Sample(f"fd.ops.select(a, {_TWO}, 0)"),
            Sample("fd.ops.select(a, 1, 0)"),
            Sample("fd.ops.neg(fd.ops.select(a, -1, 1))", (Arg((3, 4, 2), DataType.Half),)),
            Sample("fd.ops.select(a, fd.define_scalar(-2), 1)"),
            Sample(f"fd.ops.select(a, {_TWO}, dim=-1)", (Arg((3, 4, 5), DataType.BFloat16),)),
            Sample(f"fd.ops.select(a, {_TWO}, 0)", (Arg((5,), DataType.Int),)),
            Sample(f"fd.ops.select(fd.ops.select(a, {_TWO}, 1), {_TWO}, 0)", (Arg((3, 4), DataType.Bool, 0, 2),)),
            Sample("fd.ops.neg(fd.ops.select(a, fd.define_scalar(0, DataType.Int32), 1))", (Arg((3, 1, 4)),)),
            Sample(f"fd.ops.select(a, {_TWO}, 1)", (Arg((0, 4)),)),
            Sample(f"fd.ops.select(a, {_TWO}, 0)", (Arg((3, 4), DataType.ComplexFloat),)),
        ),
        doc="arg at position index of axis dim, which is removed; a known negative index counts from the end.",
    ),
)


# index_select


def _index_select(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "index_select", "arg")
    places = positions.positions_operand(rec, index, "index_select")
    if places.ndim > 1:
        msg = f"index_select: index_tv must be a 1d or scalar tensor. Given one with {places.ndim} axes."
        raise DefinitionError(msg)
    return rec.emit(INDEX_SELECT, [tensor, places], dim=positions.dimension(dim, tensor, "index_select"))[0]


def _infer_index_select(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    logical = [axes.copy(axis) for axis in tensor.domain.axes]
    dim = positions.indexed_axis(attrs)
    logical[dim] = axes.copy(index.domain.axes[0]) if index.ndim else axes.fresh(1, IterType.BROADCAST)
    return (Result(tensor.dtype, TensorDomain(logical=tuple(logical))),)


def _reference_index_select(x: Array, index: Array, *, dim: int) -> Array:
    return np.take(x, np.atleast_1d(positions.checked_positions("index_select", index, x.shape[dim])), axis=dim)


def _library_index_select(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = positions.checked_positions_torch(torch, "index_select", index, x.shape[dim]).reshape(-1)
    return positions.apply_move(torch, x, lambda data: torch.index_select(data, dim, places))


def _element_index_select(e: Element) -> Term:
    dim, index = positions.indexed_axis(e.attrs), tensor_at(e.inputs, 1)
    place = t.cast(e.read(1, _fitting(index, e.index[dim : dim + index.ndim])), DataType.Index)
    return _read(e, place, (*e.index[:dim], place, *e.index[dim + 1 :]), tensor_at(e.inputs).shape[dim])


def _axes_index_select(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim = positions.indexed_axis(dict(expr.attrs))
    tensor, index = expr.tensor_inputs
    return tuple((i, i) for i in range(tensor.ndim) if i != dim), ((0, dim),) if index.ndim else ()


_ROWS = Arg((7,), DataType.Int, 0, 3)
INDEX_SELECT = register(
    OpDef(
        name="index_select",
        kind=OpKind.INDEXING,
        frontend=_index_select,
        infer=_infer_index_select,
        reference=_reference_index_select,
        element=_element_index_select,
        library=_library_index_select,
        axes=_axes_index_select,
        samples=(
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4)), _ROWS)),
            Sample("fd.ops.index_select(a, b, dim=-1)", (Arg((5, 3), DataType.Half), _ROWS)),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4), DataType.Int), Arg((), DataType.Int, 0, 3))),
            Sample("fd.ops.index_select(a, b, 1)", (Arg((2, 3, 4)), Arg((1,), DataType.Int32, 0, 3))),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4)), Arg((0,), DataType.Int, 0, 3))),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 0)), _ROWS)),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), _ROWS)),
            Sample("fd.ops.exp(fd.ops.index_select(a, b, 1))", (Arg((4, 3), DataType.Double), _ROWS)),
            Sample("fd.ops.index_select(a, fd.ops.add(b, 1), 0)", (Arg((4, 5), DataType.ComplexDouble), _ROWS)),
            Sample("fd.ops.sum(fd.ops.index_select(a, b, 0), [1])", (Arg((3, 40)), _ROWS)),
        ),
        doc="arg at the positions index (one axis, or one number) of axis dim.",
    ),
)


# gather and take_along_axis


def _gather(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor, places = rec.tensor(arg, "gather", "arg"), positions.positions_operand(rec, index, "gather")
    positions.same_rank("gather", arg=tensor, index=places)
    return rec.emit(GATHER, [tensor, places], dim=positions.dimension(dim, tensor, "gather"))[0]


def _infer_gather(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    positions.check_within("gather", positions.indexed_axis(attrs), index, tensor, ("index", "arg"))
    logical = tuple(positions.new_axis(axis, axes) for axis in index.domain.axes)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_gather(x: Array, index: Array, *, dim: int) -> Array:
    places = positions.checked_positions("gather", index, x.shape[dim])
    part = tuple(slice(None) if axis == dim else slice(n) for axis, n in enumerate(index.shape))
    return np.take_along_axis(x[part], places, axis=dim)


def _library_gather(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = positions.checked_positions_torch(torch, "gather", index, x.shape[dim])
    return positions.apply_move(torch, x, lambda data: torch.gather(data, dim, places))


def _element_gather(e: Element) -> Term:
    dim, tensor = positions.indexed_axis(e.attrs), tensor_at(e.inputs)
    place = t.cast(e.read(1, _fitting(tensor_at(e.inputs, 1), e.index)), DataType.Index)
    at = list(_fitting(tensor, e.index))
    at[dim] = place
    return _read(e, place, at, tensor.shape[dim])


def _axes_gather(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    return (), tuple((i, i) for i in range(expr.tensor_inputs[1].ndim))


def _take_along_axis(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "take_along_axis", "arg")
    places = positions.positions_operand(rec, index, "take_along_axis")
    positions.same_rank("take_along_axis", arg=tensor, index=places)
    return rec.emit(TAKE_ALONG_AXIS, [tensor, places], dim=positions.dimension(dim, tensor, "take_along_axis"))[0]


def _infer_take_along_axis(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    dim = positions.indexed_axis(attrs)
    logical = tuple(
        axes.copy(b) if place == dim else _common_axis(place, a, b, axes)
        for place, (a, b) in enumerate(zip(tensor.domain.axes, index.domain.axes, strict=True))
    )
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _common_axis(place: int, a: IterDomain, b: IterDomain, axes: AxisFactory) -> IterDomain:
    wide = [axis.visible_extent for axis in (a, b) if not axis.is_broadcast or axis.expanded is not None]
    size: Extent = next((n for n in wide if isinstance(n, int)), wide[0] if wide else 1)
    for other in wide:
        if not same_extent(size, other):
            raise DefinitionError(
                f"take_along_axis: arg has size {a.visible_extent} and index {b.visible_extent} on axis {place}; "
                "they must be equal or 1."
            )
    joined = joined_extent((a, b), axes)
    if a.is_broadcast and b.is_broadcast:
        return axes.fresh(1, IterType.BROADCAST, joined if wide else None)
    return axes.fresh(joined)


def _reference_take_along_axis(x: Array, index: Array, *, dim: int) -> Array:
    return np.take_along_axis(x, positions.checked_positions("take_along_axis", index, x.shape[dim]), axis=dim)


def _library_take_along_axis(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = positions.checked_positions_torch(torch, "take_along_axis", index, x.shape[dim])
    return positions.apply_move(torch, x, lambda data: torch.take_along_dim(data, places, dim))


def _axes_take_along_axis(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim, rank = positions.indexed_axis(dict(expr.attrs)), expr.tensor_inputs[0].ndim
    return tuple((i, i) for i in range(rank) if i != dim), tuple((i, i) for i in range(rank))


GATHER = register(
    OpDef(
        name="gather",
        kind=OpKind.INDEXING,
        frontend=_gather,
        infer=_infer_gather,
        reference=_reference_gather,
        element=_element_gather,
        library=_library_gather,
        axes=_axes_gather,
        samples=(
            Sample("fd.ops.gather(a, b, 0)", (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3))),
            Sample("fd.ops.gather(a, b, dim=-1)", (Arg((3, 4), DataType.BFloat16), Arg((2, 6), DataType.Int, 0, 4))),
            Sample("fd.ops.gather(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), Arg((8,), DataType.Int32, 0, 3))),
            Sample("fd.ops.gather(a, b, 1)", (Arg((3, 4), DataType.Int), Arg((1, 2), DataType.Int, 0, 4))),
            Sample("fd.ops.gather(a, b, 1)", (Arg((3, 4)), Arg((0, 2), DataType.Int, 0, 4))),
            Sample(
                "fd.ops.neg(fd.ops.gather(fd.ops.neg(a), b, 2))",
                (Arg((2, 3, 4), DataType.Double), Arg((2, 2, 1), DataType.Int, 0, 4)),
            ),
        ),
        doc="arg at the positions index of axis dim, as torch.gather: index may be smaller than arg on other axes.",
    ),
)
TAKE_ALONG_AXIS = register(
    OpDef(
        name="take_along_axis",
        kind=OpKind.INDEXING,
        frontend=_take_along_axis,
        infer=_infer_take_along_axis,
        reference=_reference_take_along_axis,
        element=_element_gather,
        library=_library_take_along_axis,
        axes=_axes_take_along_axis,
        samples=(
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3))),
            Sample("fd.ops.take_along_axis(a, b, -1)", (Arg((3, 4), DataType.Half), Arg((3, 1), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((1, 4), DataType.Int), Arg((3, 2), DataType.Int32, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((3, 4)), Arg((1, 6), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), Arg((8,), DataType.Int, 0, 3))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((0, 4)), Arg((0, 2), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((1, 1)), Arg((1, 1), DataType.Int, 0, 1))),
            Sample(
                "fd.ops.sum(fd.ops.take_along_axis(a, b, 1), [1])",
                (Arg((3, 4), DataType.Double), Arg((3, 9), DataType.Int, 0, 4)),
            ),
            Sample(
                "fd.ops.mul(fd.ops.take_along_axis(a, b, 0), fd.ops.take_along_axis(c, b, 0))",
                (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3), Arg((6, 4))),
            ),
        ),
        doc="arg at the positions index of axis dim, as numpy.take_along_axis: other axes broadcast.",
    ),
)

"""Writes at data-dependent indices."""

from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Expr, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops import positions
from fuser_lab.ops.operands import defined_scalar, tensor_at
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, InferRule, Operand, Positions, Result


def _scatter(rec: Recorder, arg: Operand, index: Operand, src: Operand, dim: int) -> Val:
    return _record(rec, SCATTER, arg, index, src, dim)


def _scatter_add(rec: Recorder, arg: Operand, index: Operand, src: Operand, dim: int) -> Val:
    return _record(rec, SCATTER_ADD, arg, index, src, dim)


def _record(rec: Recorder, op: OpDef, arg: Operand, index: Operand, src: Operand, dim: int) -> Val:
    name = op.name
    tensor, places = rec.tensor(arg, name, "arg"), positions.positions_operand(rec, index, name)
    positions.same_rank(name, arg=tensor, index=places)
    source = None if isinstance(src, bool | int | float | complex) else rec.value(src, name, "src")
    if isinstance(source, TensorView):
        positions.same_rank(name, arg=tensor, index=places, src=source)
        if source.dtype is not tensor.dtype:
            msg = f"{name}: arg has dtype {tensor.dtype!r} and src {source.dtype!r}; they must be equal."
            raise DefinitionError(msg)
        value: Val = source
    else:
        value = convert(rec, defined_scalar(rec, src, name, "src"), tensor.dtype, name, "src")
    return rec.emit(op, [tensor, places, value], dim=positions.dimension(dim, tensor, name))[0]


def _infer(op: str) -> InferRule:
    def infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
        tensor, index, source = tensor_at(inputs), tensor_at(inputs, 1), inputs[2]
        positions.check_within(op, positions.indexed_axis(attrs), index, tensor, ("index", "arg"))
        if isinstance(source, TensorView):
            positions.check_within(op, None, index, source, ("index", "src"))
        logical = tuple(positions.new_axis(axis, axes) for axis in tensor.domain.axes)
        return (Result(tensor.dtype, TensorDomain(logical=logical)),)

    return infer


def _reference_scatter(x: Array, index: Array, source: Any, *, dim: int) -> Array:
    places = positions.checked_positions("scatter", index, x.shape[dim])
    part = tuple(slice(None) if axis == dim else slice(n) for axis, n in enumerate(index.shape))
    values = np.asarray(source)
    if values.ndim:
        values = values[tuple(slice(n) for n in index.shape)]
    out = np.array(x)
    np.put_along_axis(out[part], places, values, axis=dim)
    return out


def _library_scatter(torch: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    places = positions.checked_positions_torch(torch, "scatter", index, x.shape[dim])
    values = positions.fill_like(torch, source, x)
    values = values if values.ndim else values.expand(places.shape)
    return positions.apply_move(torch, x, lambda data, new: torch.scatter(data, dim, places, new), values)


def _reference_scatter_add(x: Array, index: Array, source: Any, *, dim: int) -> Array:
    if not x.ndim:
        positions.checked_positions("scatter_add", index, 1)
        return np.asarray(x + np.asarray(source).astype(x.dtype))
    places = np.moveaxis(positions.checked_positions("scatter_add", index, x.shape[dim]), dim, 0)
    values = np.asarray(source)
    values = np.broadcast_to(values, index.shape) if not values.ndim else values[tuple(map(slice, index.shape))]
    out = np.array(x)
    others = np.indices(places.shape, sparse=True)[1:]
    np.add.at(np.moveaxis(out, dim, 0), (places, *others), np.moveaxis(values, dim, 0).astype(out.dtype))
    return out


def _library_scatter_add(torch: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    places = positions.checked_positions_torch(torch, "scatter_add", index, x.shape[dim])
    values = positions.fill_like(torch, source, x)
    values = values if values.ndim else values.expand(places.shape)
    return torch.scatter_add(x, dim, places, values)


def _axes_scatter(expr: Expr, result: int) -> tuple[Positions, ...]:
    """Return the axes of the first operand, and the unscattered ones that have the same length in the others."""
    del result
    tensor, *others = expr.tensor_inputs
    along = positions.indexed_axis(dict(expr.attrs))
    beside = [i for i in range(tensor.ndim) if i != along]
    return (
        tuple((i, i) for i in range(tensor.ndim)),
        *(tuple((i, i) for i in beside if other.extents[i] == tensor.extents[i]) for other in others),
    )


_ONE = "fd.define_scalar(1.0, DataType.Double)"
SCATTER = register(
    OpDef(
        name="scatter",
        kind=OpKind.SCATTER,
        frontend=_scatter,
        infer=_infer("scatter"),
        reference=_reference_scatter,
        library=_library_scatter,
        axes=_axes_scatter,
        samples=(
            Sample("fd.ops.scatter(a, b, c, 0)", (Arg((4, 3)), Arg((1, 3), DataType.Int, 0, 4), Arg((2, 3)))),
            Sample(f"fd.ops.scatter(a, b, {_ONE}, -1)", (Arg((3, 4), DataType.Half), Arg((2, 1), DataType.Int, 0, 4))),
            Sample(
                "fd.ops.scatter(a, b, c, 0)",
                (Arg((4,), DataType.Int), Arg((1,), DataType.Int32, 0, 4), Arg((1,), DataType.Int)),
            ),
            Sample("fd.ops.scatter(a, b, c, 1)", (Arg((3, 4)), Arg((0, 4), DataType.Int, 0, 4), Arg((3, 4)))),
            Sample(
                "fd.ops.neg(fd.ops.scatter(fd.ops.neg(a), b, c, 1))",
                (Arg((3, 4), DataType.Double), Arg((3, 1), DataType.Int, 0, 4), Arg((3, 1), DataType.Double)),
            ),
            Sample(
                "fd.ops.scatter(a, b, fd.define_scalar(True, DataType.Bool), 0)",
                (Arg((4, 2), DataType.Bool, 0, 2), Arg((3, 2), DataType.Int, 0, 4)),
            ),
        ),
        doc="A copy of arg with src written at the positions index of axis dim; for equal positions, any may win.",
    ),
)
SCATTER_ADD = register(
    OpDef(
        name="scatter_add",
        kind=OpKind.SCATTER,
        frontend=_scatter_add,
        infer=_infer("scatter_add"),
        reference=_reference_scatter_add,
        library=_library_scatter_add,
        axes=_axes_scatter,
        samples=(
            Sample("fd.ops.scatter_add(a, b, c, 0)", (Arg((4, 3)), Arg((5, 3), DataType.Int, 0, 4), Arg((5, 3)))),
            Sample(
                f"fd.ops.scatter_add(a, b, {_ONE}, dim=-1)",
                (Arg((3, 4), DataType.Half), Arg((2, 6), DataType.Int, 0, 4)),
            ),
            Sample(
                "fd.ops.scatter_add(a, b, c, 0)",
                (Arg((4,), DataType.Int), Arg((9,), DataType.Int32, 0, 4), Arg((9,), DataType.Int)),
            ),
            Sample(
                "fd.ops.scatter_add(a, b, c, 1)",
                (Arg((3, 4), DataType.Double), Arg((2, 7), DataType.Int, 0, 4), Arg((3, 7), DataType.Double)),
            ),
            Sample("fd.ops.scatter_add(a, b, c, 1)", (Arg((3, 4)), Arg((0, 4), DataType.Int, 0, 4), Arg((3, 4)))),
            Sample(
                "fd.ops.neg(fd.ops.scatter_add(fd.ops.neg(a), b, c, 1))",
                (Arg((3, 4)), Arg((3, 2), DataType.Int, 0, 4), Arg((3, 2))),
            ),
            Sample(
                "fd.ops.scatter_add(a, b, c, 0)",
                (Arg((4,), DataType.Byte, 0, 200), Arg((9,), DataType.Int, 0, 4), Arg((9,), DataType.Byte, 0, 200)),
            ),
        ),
        doc="A copy of arg to which src is added at the positions index of axis dim; equal positions accumulate.",
    ),
)

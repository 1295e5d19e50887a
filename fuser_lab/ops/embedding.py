"""Rows of a table at data-dependent indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.ir import AttrValue, Expr, OpKind, TensorDomain, Val
from fuser_lab.ops.operands import defined_scalar, tensor_at
from fuser_lab.ops.positions import (
    apply_move,
    checked_positions,
    checked_positions_torch,
    new_axis,
    out_of_range,
    positions_operand,
)
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Positions, Result

_OPTIONS = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def _embedding(
    rec: Recorder, input: Operand, weight: Operand, padding_idx: Operand = None, max_norm: Operand = None,
    norm_type: Operand = None, scale_grad_by_freq: Operand = None, sparse: Operand = None,
) -> Val:
    op = "embedding_fwd"
    places, table = positions_operand(rec, input, op, "input"), rec.tensor(weight, op, "weight")
    if table.ndim != 2:
        raise DefinitionError(f"{op}: weight has {table.ndim} axes; it must have 2, (rows, features).")
    optional = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    pairs = zip(_OPTIONS, optional, strict=True)
    chosen = [(name, defined_scalar(rec, value, op, name)) for name, value in pairs if value is not None]
    for name, scalar in chosen:
        if name == "padding_idx" and not scalar.dtype.is_integral:
            raise DefinitionError(f"{op}: padding_idx must be an integer, given {scalar.dtype!r}.")
        if name in {"max_norm", "norm_type"} and scalar.dtype.is_complex:
            raise DefinitionError(f"{op}: {name} must be a real number, given {scalar.dtype!r}.")
        if name in {"scale_grad_by_freq", "sparse"} and scalar.dtype is not DataType.Bool:
            raise DefinitionError(f"{op}: {name} must be a Bool, given {scalar.dtype!r}.")
    names: AttrValue = tuple(name for name, _ in chosen)
    return rec.emit(EMBEDDING, [places, table, *(scalar for _, scalar in chosen)], options=names)[0]


def _infer_embedding(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    places, table = tensor_at(inputs), tensor_at(inputs, 1)
    logical = (*(new_axis(axis, axes) for axis in places.domain.axes), axes.copy(table.domain.axes[1]))
    return (Result(table.dtype, TensorDomain(logical=logical)),)


def _embedding_options(options: tuple[str, ...], values: Sequence[Any], rows: int) -> dict[str, Any]:
    settings = dict(zip(options, values, strict=True))
    padding = settings.get("padding_idx")
    if padding is not None and not -rows <= int(padding) < rows:
        raise InputError(out_of_range("embedding_fwd", int(padding), rows, "padding_idx"))
    return settings


def _reference_embedding(index: Array, table: Array, *values: Any, options: tuple[str, ...]) -> Array:
    settings = _embedding_options(options, values, table.shape[0])
    rows = table[checked_positions("embedding_fwd", index, table.shape[0])]
    if "max_norm" not in settings:
        return rows
    wide = rows.astype(np.complex128 if rows.dtype.kind == "c" else np.float64)
    limit, order = float(settings["max_norm"]), float(settings.get("norm_type", 2.0))
    norm = np.linalg.norm(np.abs(wide), ord=order, axis=-1, keepdims=True)
    return np.where(norm > limit, wide * (limit / (norm + 1e-7)), wide).astype(table.dtype)


def _library_embedding(torch: Any, index: Any, table: Any, *values: Any, options: tuple[str, ...]) -> Any:
    settings = _embedding_options(options, values, table.shape[0])
    places = checked_positions_torch(torch, "embedding_fwd", index, table.shape[0])
    if "max_norm" not in settings:
        return apply_move(torch, table, lambda data: data[places])
    if not table.is_floating_point():
        raise NotImplementedError(f"rows of {table.dtype} are not scaled")
    # torch scales the rows of the table in place; here operands are never modified.
    limit, order = float(settings["max_norm"]), float(settings.get("norm_type", 2.0))
    return torch.nn.functional.embedding(places, table.clone(), max_norm=limit, norm_type=order)


def _axes_embedding(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    rank = expr.out.ndim
    return tuple((i, i) for i in range(rank - 1)), ((1, rank - 1),)


_TOKENS = Arg((2, 5), DataType.Int, 0, 6)
EMBEDDING = register(
    OpDef(
        name="embedding_fwd",
        kind=OpKind.INDEXING,
        frontend=_embedding,
        infer=_infer_embedding,
        reference=_reference_embedding,
        library=_library_embedding,
        axes=_axes_embedding,
        samples=(
            Sample("fd.ops.embedding_fwd(a, b)", (_TOKENS, Arg((6, 4)))),
            Sample("fd.ops.embedding_fwd(a, b)", (Arg((), DataType.Int32, 0, 6), Arg((6, 4), DataType.BFloat16))),
            Sample("fd.ops.embedding_fwd(a, b)", (Arg((0,), DataType.Int, 0, 6), Arg((6, 1), DataType.Half))),
            Sample(
                "fd.ops.embedding_fwd(a, b, fd.define_scalar(-1, DataType.Int))",
                (_TOKENS, Arg((6, 4), DataType.Double)),
            ),
            Sample(
                "fd.ops.embedding_fwd(a, b, max_norm=fd.define_scalar(1.5), norm_type=fd.define_scalar(1.0), "
                "scale_grad_by_freq=fd.define_scalar(False), sparse=fd.define_scalar(True))",
                (_TOKENS, Arg((6, 4))),
            ),
            Sample("fd.ops.relu(fd.ops.embedding_fwd(a, b))", (_TOKENS, Arg((6, 4)))),
        ),
        doc="Rows of weight at the indices input; rows whose norm_type norm (2) exceeds max_norm are scaled to it.",
    ),
)

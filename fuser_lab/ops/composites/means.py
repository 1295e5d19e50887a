"""Mean, standard deviation and vector norms."""

import math
from collections.abc import Sequence

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import TensorView
from fuser_lab.ops.arguments import flag, whole
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.composites.parts import cast, composite, floating, record, widen
from fuser_lab.ops.operands import tensor_at
from fuser_lab.ops.reduction import MAX, MIN, SUM, count_of, reduced_axes
from fuser_lab.ops.registry import COMPOSITES, Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand
from fuser_lab.ops.statistics import degrees

Dims = int | Sequence[int] | None


def _axes(tensor: TensorView, dims: Dims, dim: object, op: str) -> tuple[int, ...]:
    """Return the axes to reduce: those of ``dims`` or ``dim``, all if neither is given."""
    if dim is None:
        return reduced_axes(tensor, dims, op)
    if dims is not None:
        raise DefinitionError(f"{op}: give dims or dim, not both.")
    return reduced_axes(tensor, whole(dim, op, "dim"), op)


def _with_kept_axes(rec: Recorder, result: TensorView, reduced: tuple[int, ...], *, keeps: bool) -> TensorView:
    """Return a reduced tensor, with the reduced axes as broadcasts if they are kept."""
    if not keeps or not reduced:
        return result
    return broadcast(rec, result, [place in reduced for place in range(result.ndim + len(reduced))])


def _mean(
    rec: Recorder, arg: Operand, dims: Dims = None, keepdim: bool = False, dtype: DataType = DataType.Null, *,
    dim: int | None = None,
) -> TensorView:
    keeps = flag(keepdim, "mean", "keepdim")
    if not isinstance(dtype, DataType):
        raise ArgumentTypeError(f"mean: dtype must be a DataType, given {short_text(dtype)}.")
    if dtype is DataType.Null:
        tensor = floating(rec, arg, "mean", takes_complex=True)
    elif dtype.is_float or dtype.is_complex:
        tensor = cast(rec, rec.tensor(arg, "mean", "arg"), dtype)
    else:
        raise DefinitionError(f"mean: dtype must be a floating point or complex type, given {dtype!r}.")
    reduced = _axes(tensor, dims, dim, "mean")
    if not reduced:
        return record(rec, "set", tensor)
    count = count_of(rec, (tensor.extents[place] for place in reduced))
    total = SUM.frontend(rec, widen(rec, tensor), list(reduced))
    result = cast(rec, record(rec, "truediv", total, count), tensor.dtype)
    return _with_kept_axes(rec, result, reduced, keeps=keeps)


def _std(
    rec: Recorder, arg: Operand, dims: Dims = None, correction: float = 1, keepdim: bool = False, *,
    dim: int | None = None,
) -> TensorView:
    tensor, keeps = floating(rec, arg, "std", takes_complex=True), flag(keepdim, "std", "keepdim")
    less = degrees(correction, "std")
    reduced = _axes(tensor, dims, dim, "std")
    variance = COMPOSITES["var"].frontend(rec, widen(rec, tensor), list(reduced) or [0], less)
    result = cast(rec, record(rec, "sqrt", variance), tensor.dtype.real)
    return _with_kept_axes(rec, result, reduced, keeps=keeps)


def _norm(rec: Recorder, arg: Operand, p: float = 2, dims: Dims = None, keepdim: bool = False) -> TensorView:
    tensor, keeps = floating(rec, arg, "norm", takes_complex=True), flag(keepdim, "norm", "keepdim")
    if not isinstance(p, float) and not is_whole(p):
        raise ArgumentTypeError(f"norm: p must be a number, given {short_text(p)}.")
    if math.isnan(p):
        raise DefinitionError("norm: p is nan; it must be a number, possibly infinite.")
    reduced = reduced_axes(tensor, dims, "norm")
    result = cast(rec, _length(rec, widen(rec, tensor), float(p), list(reduced)), tensor.dtype.real)
    return _with_kept_axes(rec, result, reduced, keeps=keeps)


def _length(rec: Recorder, x: TensorView, p: float, dims: list[int]) -> TensorView:
    def total(of: TensorView) -> TensorView:
        return tensor_at([SUM.frontend(rec, of, dims or None)])

    if p == 2 and not x.dtype.is_complex:
        return record(rec, "sqrt", total(record(rec, "mul", x, x)))
    size = record(rec, "abs", x)
    if p == math.inf:
        # The maximum of no elements is minus infinity, and their norm is 0.
        return record(rec, "relu", tensor_at([MAX.frontend(rec, size, dims or None)]))
    if p == -math.inf:
        return tensor_at([MIN.frontend(rec, size, dims or None)])
    if p == 0:
        return total(cast(rec, record(rec, "ne", size, 0.0), x.dtype.real))
    if p == 1:
        return total(size)
    if p == 2:
        return record(rec, "sqrt", total(record(rec, "mul", size, size)))
    return record(rec, "pow", total(record(rec, "pow", size, p)), 1 / p)


composite(
    "mean", _mean,
    "Mean over dims (all axes by default), in arg's dtype or the requested one.",
    (
        Sample("fd.ops.mean(a)"),
        Sample("fd.ops.mean(a, 0)"),
        Sample("fd.ops.mean(a, dims=[0, -1], keepdim=True)", (Arg((3, 4, 5)),)),
        Sample("fd.ops.mean(a, dim=-1)", (Arg((3, 4), DataType.Half),)),
        Sample("fd.ops.mean(a, [1], True)", (Arg((3, 4), DataType.BFloat16),)),
        Sample("fd.ops.mean(a, 0, dtype=DataType.Float)", (Arg((3, 4), DataType.Int),)),
        Sample("fd.ops.mean(a, [0], False, DataType.Double)", (Arg((3, 4), DataType.Half),)),
        Sample("fd.ops.mean(a, 1)", (Arg((3, 4), DataType.ComplexFloat),)),
        Sample("fd.ops.mean(fd.ops.expand(a, [5, 4]), [0])", (Arg((1, 4)),)),
        Sample("fd.ops.mean(a)", (Arg((), DataType.Double),)),
        Sample("fd.ops.mean(a, 1)", (Arg((3, 0)),)),
    ),
)
composite(
    "std", _std,
    "Standard deviation over dims (all axes by default): the square root of var, in arg's dtype; real for complex.",
    (
        Sample("fd.ops.std(a)"),
        Sample("fd.ops.std(a, 0)", (Arg((3, 4), DataType.Double),)),
        Sample("fd.ops.std(a, [0, 1], 0, True)", (Arg((3, 4, 2)),)),
        Sample("fd.ops.std(a, dim=-1, correction=2)", (Arg((3, 5), DataType.Half),)),
        Sample("fd.ops.std(a, [1], keepdim=True)", (Arg((3, 5), DataType.BFloat16),)),
        Sample("fd.ops.std(a, 1)", (Arg((3, 5), DataType.Double, 1000.0, 1001.0),)),
        Sample("fd.ops.std(a, 1)", (Arg((3, 5), DataType.ComplexFloat),)),
        Sample("fd.ops.std(a, 1, correction=1.3)"),
        Sample("fd.ops.std(a, 1)", (Arg((3, 1)),)),
    ),
)
composite(
    "norm", _norm,
    "Vector norm over dims (all axes by default): (sum of |arg|^p)^(1/p); p may be infinite, or 0 to count nonzeros.",
    (
        Sample("fd.ops.norm(a)"),
        Sample("fd.ops.norm(a, 1, 0)"),
        Sample("fd.ops.norm(a, p=3, dims=[0, -1], keepdim=True)", (Arg((3, 4, 5)),)),
        Sample("fd.ops.norm(a, float('inf'), [1])", (Arg((3, 4), DataType.Half),)),
        Sample("fd.ops.norm(a, -float('inf'), 1)", (Arg((3, 4), DataType.BFloat16),)),
        Sample("fd.ops.norm(a, 0, 1)", (Arg((3, 4), DataType.Double),)),
        Sample("fd.ops.norm(a, 0.5, 1)", (Arg((3, 4)),)),
        Sample("fd.ops.norm(a, 2, 1)", (Arg((3, 4), DataType.ComplexFloat),)),
        Sample("fd.ops.norm(a, 2.0, 1, True)", (Arg((3, 4), DataType.Half),)),
        Sample("fd.ops.norm(a)", (Arg(()),)),
        Sample("fd.ops.norm(a, 2, 0)", (Arg((0, 4)),)),
    ),
)

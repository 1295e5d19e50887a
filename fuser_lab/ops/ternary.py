"""Pointwise ops of three operands: where, clamp, threshold and lerp."""

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Scalar, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.pointwise import as_numbers
from fuser_lab.ops.promotion import (
    Promotion,
    common_dtype,
    convert,
    match_ranks,
    pointwise_of,
    promote_operands,
)
from fuser_lab.ops.registry import Arg, Recorder, Sample
from fuser_lab.ops.rules import Array, Operand


def _where(rec: Recorder, condition: Operand, x: Operand, y: Operand, /) -> Val:
    chooser = rec.value(condition, "where", "condition")
    if chooser.dtype is not DataType.Bool:
        raise DefinitionError(f"where: condition should be of DataType.Bool, given {chooser.dtype!r}.")
    a, b = rec.value(x, "where", "x"), rec.value(y, "where", "y")
    dtype = common_dtype("where", (a, b), Promotion.DEFAULT, widen=False)
    operands = match_ranks(rec, (chooser, convert(rec, a, dtype, "where", "x"), convert(rec, b, dtype, "where", "y")))
    return rec.emit(WHERE, operands)[0]


_F, _H, _N, _B = DataType.Float, DataType.Half, DataType.Int, DataType.Bool
WHERE = pointwise_of(
    "where", _where, t.select, np.where,
    "x where condition is true, else y.",
    samples=(
        Sample("fd.ops.where(a, b, c)", (Arg((3, 4), _B), Arg((3, 4)), Arg((3, 4)))),
        Sample("fd.ops.where(a, b, c)", (Arg((3, 1), _B), Arg((4,)), Arg(()))),
        Sample("fd.ops.where(a, b, c)", (Arg((3, 4), _B), Arg((3, 4), _H), Arg((3, 4), _H))),
        Sample("fd.ops.where(a, b, c)", (Arg((5,), _B), Arg((5,), _H), Arg((5,), DataType.BFloat16))),
        Sample("fd.ops.where(a, b, 0.1)", (Arg((3, 4), _B), Arg((3, 4), _H))),
        Sample("fd.ops.where(a, 1, b)", (Arg((3, 4), _B), Arg((3, 4), _N))),
        Sample("fd.ops.where(a, 1.5, 2)", (Arg((3, 4), _B),)),
        Sample("fd.ops.where(a, b, c)", (Arg((0, 4), _B), Arg((4,), _N), Arg((1, 4)))),
        Sample("fd.ops.where(a, b, c)", (Arg((), _B), Arg((), _B), Arg((), _B))),
        Sample("fd.ops.where(a, b, 1j)", (Arg((3, 4), _B), Arg((3, 4), DataType.ComplexFloat))),
        Sample("fd.ops.where(True, a, b)", (Arg((3, 4)), Arg((3, 4)))),
        Sample("fd.ops.add(a, fd.ops.where(False, 1.0, 2.0))"),
    ),
)


def _bound(rec: Recorder, op: str, argument: str, bound: Operand, dtype: DataType) -> Val:
    value = rec.value(bound, op, argument)
    if not isinstance(value, Scalar):
        raise DefinitionError(f"{op}: {argument} must be a scalar, given the tensor {value.name}.")
    return convert(rec, value, dtype, op, argument)


def _order(rec: Recorder, op: str, x: Operand) -> Val:
    value = rec.value(x, op, "x")
    if value.dtype.is_complex:
        raise DefinitionError(f"{op}: complex input is not supported, given {value.dtype!r}.")
    return value


def _clamp(rec: Recorder, x: Operand, min: Operand = None, max: Operand = None, /) -> Val:
    value = _order(rec, "clamp", x)
    dtype = value.dtype
    lowest, highest = dtype.bounds
    bounds = [
        Scalar(name="", dtype=dtype, value=end) if bound is None else _bound(rec, "clamp", name, bound, dtype)
        for bound, name, end in ((min, "min", lowest), (max, "max", highest))
    ]
    return rec.emit(CLAMP, [value, *bounds])[0]


def _clamp_term(x: Term, low: Term, high: Term) -> Term:
    above = t.select(x < low, low, x)
    return t.select(above > high, high, above)


def _reference_clamp(x: Array, low: Array, high: Array) -> Array:
    above = np.asarray(np.where(x < low, low, x))
    return np.asarray(np.where(above > high, high, above))


CLAMP = pointwise_of(
    "clamp", _clamp, _clamp_term, _reference_clamp,
    "x limited to [min, max], in x's dtype; None means no limit on that side.",
    samples=(
        *(
            Sample(f"fd.ops.clamp(a, {bounds})", (Arg(shape, dtype),))
            for dtype, shape, bounds in (
                (_F, (3, 4), "-0.5, 1.25"), (_F, (), "None, 0.5"), (_F, (0, 3), "0.5, None"),
                (_F, (1, 4), "None, None"), (_H, (3, 4), "-0.3, 0.7"), (DataType.BFloat16, (5,), "-1, 1"),
                (_N, (3, 4), "-1, 1"), (_N, (5,), "None, 1"), (DataType.Int32, (5,), "0, None"),
                (DataType.Double, (2, 1, 3), "fd.define_scalar(-1.5), 2"),
            )
        ),
        Sample("fd.ops.add(a, fd.ops.clamp(5.0, -1.0, 1.5))"),
    ),
)


def _threshold(rec: Recorder, x: Operand, threshold: Operand, value: Operand, /) -> Val:
    tensor = _order(rec, "threshold", x)
    named = (("threshold", threshold), ("value", value))
    bounds = [_bound(rec, "threshold", name, number, tensor.dtype) for name, number in named]
    return rec.emit(THRESHOLD, [tensor, *bounds])[0]


THRESHOLD = pointwise_of(
    "threshold", _threshold, lambda x, threshold, value: t.select(x <= threshold, value, x),
    lambda x, threshold, value: np.where(x <= threshold, value, x),
    "value where x <= threshold, else x; in x's dtype.",
    samples=(
        *(
            Sample(f"fd.ops.threshold(a, {numbers})", (Arg(shape, dtype),))
            for dtype, shape, numbers in (
                (_F, (3, 4), "0.5, -2.0"), (_F, (), "0.5, 7"), (_F, (0, 3), "0.5, 1.0"), (_H, (1, 4), "0.3, 0.1"),
                (DataType.BFloat16, (5,), "0, 1"), (_N, (3, 4), "1, 20"), (DataType.Int32, (5,), "0, 3"),
            )
        ),
        Sample("fd.ops.threshold(a, fd.define_scalar(0.5), 1.0)"),
    ),
)


def _lerp(rec: Recorder, start: Operand, end: Operand, weight: Operand, /) -> Val:
    operands = {"start": start, "end": end, "weight": weight}
    return rec.emit(LERP, promote_operands(rec, "lerp", operands, Promotion.DEFAULT))[0]


def _between(start: Term, end: Term, weight: Term) -> Term:
    distance = end - start
    near = start + weight * distance
    if not (weight.dtype.is_float or weight.dtype.is_complex):
        return near
    # From the nearer end, so that both ends are exact.
    size = t.apply("abs", weight, dtype=weight.dtype.real)
    return t.select(size < 0.5, near, end - distance * (1 - weight))


def _reference_lerp(start: Array, end: Array, weight: Array) -> Array:
    distance = end - start
    near = start + weight * distance
    if near.dtype.kind not in "fc":
        return np.asarray(near)
    return np.asarray(np.where(np.abs(weight) < 0.5, near, end - distance * (1 - weight)))


LERP = pointwise_of(
    "lerp", _lerp, _between, as_numbers(_reference_lerp),
    "start + weight * (end - start).",
    samples=(
        Sample("fd.ops.lerp(a, b, c)", (Arg((3, 4)), Arg((3, 4)), Arg((3, 4)))),
        Sample("fd.ops.lerp(a, b, c)", (Arg((3, 1)), Arg((4,)), Arg(()))),
        Sample("fd.ops.lerp(a, b, 0.3)", (Arg((3, 4), _H), Arg((3, 4), _H))),
        Sample("fd.ops.lerp(a, 1.0, b)", (Arg((0, 4)), Arg((0, 4)))),
        Sample("fd.ops.lerp(0, a, 0.75)", (Arg((3, 4), _N),)),
        Sample("fd.ops.lerp(a, b, c)", (Arg((3, 4), _N), Arg((3, 4), _N), Arg((3, 4), _N))),
        Sample("fd.ops.lerp(a, b, 0.75)", (Arg((3, 4), DataType.ComplexFloat), Arg((3, 4), DataType.ComplexFloat))),
        Sample("fd.ops.add(a, fd.ops.lerp(1.0, 3.0, 0.25))"),
    ),
)

"""Sums of squared deviations from a mean, as in a variance: what they are made of."""

from dataclasses import dataclass
from math import isclose, prod

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val

QUOTIENTS = frozenset({"div", "truediv"})
_EPSILON = 1e-6  # relative distance of a factor from the reciprocal of a count, which is rounded to Float


@dataclass(frozen=True, slots=True)
class SquaredDeviations:
    """What a sum of squared deviations is made of: the deviations from a mean, and the sum that the mean divides."""

    total: Expr
    mean: TensorView
    deviation: TensorView
    count: int


def squared_deviations(fusion: Fusion, squares: Expr) -> SquaredDeviations | None:
    """Return the parts of a sum if it is of the squared deviations from the mean of the same elements, else None."""
    difference = _squared_difference(fusion, squares)
    if difference is None:
        return None
    operand, dims = difference.tensor_inputs[0], squares.ints("dims")
    flags = tuple(d in dims for d in range(operand.ndim))
    count = prod(operand.shape[d] for d in dims)
    mean: TensorView | None = None
    value, placed = difference.inputs[1], False
    while (maker := fusion.producers.get(value)) is not None and maker.op.name != "sum":
        if maker.op.name in {"set", "expand"}:
            value = maker.inputs[0]
        elif not placed and maker.op.name == "broadcast" and dict(maker.attrs)["is_broadcast_dim"] == flags:
            value, placed = maker.inputs[0], True
        elif mean is None and (whole := _dividend(maker, count)) is not None:
            value, mean = whole, maker.out
        else:
            return None
    if maker is None or mean is None or not placed or maker.inputs[0] is not operand or maker.ints("dims") != dims:
        return None
    return SquaredDeviations(maker, mean, difference.out, count)


def _squared_difference(fusion: Fusion, squares: Expr) -> Expr | None:
    """Return the subtraction whose result a sum squares, if all of these are real numbers of one dtype."""
    square = fusion.producers.get(squares.inputs[0]) if squares.op.name == "sum" else None
    difference = fusion.producers.get(square.inputs[0]) if square is not None and _is_square(square) else None
    if difference is None or difference.op.name != "sub" or len(difference.tensor_inputs) != len(difference.inputs):
        return None
    tensors = (*difference.tensor_inputs, difference.out, squares.out)
    alike = len({tv.dtype for tv in tensors}) == 1 and squares.out.dtype in {DataType.Float, DataType.Double}
    whole = difference.tensor_inputs[0].ndim == difference.out.ndim
    return difference if alike and whole else None


def _is_square(expr: Expr) -> bool:
    """Whether an expression multiplies a value by itself."""
    if expr.op.name == "pow":
        return isinstance(expr.inputs[1], Scalar) and expr.inputs[1].value == 2
    return expr.op.name == "mul" and expr.inputs[0] is expr.inputs[1]


def _dividend(expr: Expr, count: int) -> Val | None:
    """Return the value that an expression divides by ``count``, or multiplies by the reciprocal; None for others."""
    match expr.inputs:
        case (value, Scalar(value=int() | float() as number)) if expr.op.name in QUOTIENTS and number == count:
            return value
        case (value, Scalar(value=float() as number)) | (Scalar(value=float() as number), value) if (
            expr.op.name == "mul" and isclose(number * count, 1, rel_tol=_EPSILON)
        ):
            return value
        case _:
            return None

"""Pointwise ops: one formula for an element, one NumPy meaning, one promotion rule each."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import OpKind, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.promotion import (
    Promotion,
    ResultType,
    common_dtype,
    convert,
    infer_pointwise,
    match_ranks,
    pointwise,
)
from fuser_lab.ops.registry import Array, OpDef, Operand, Recorder, register


def _math(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x)


def _binary(fn: str) -> Callable[[Term, Term], Term]:
    return lambda a, b: t.apply(fn, a, b)


FLOAT, KEEP, BOOL = Promotion.FLOAT, Promotion.KEEP, ResultType.BOOL

_FLOAT_FUNCTIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("acos", np.arccos, "Inverse cosine in radians."),
    ("asin", np.arcsin, "Inverse sine in radians."),
    ("atan", np.arctan, "Inverse tangent in radians."),
    ("cos", np.cos, "Cosine of radians."),
    ("cosh", np.cosh, "Hyperbolic cosine."),
    ("erf", special.erf, "Error function."),
    ("erfc", special.erfc, "Complementary error function."),
    ("exp", np.exp, "e to the power x."),
    ("exp2", np.exp2, "2 to the power x."),
    ("expm1", np.expm1, "exp(x) - 1, accurate near 0."),
    ("log", np.log, "Natural logarithm."),
    ("log10", np.log10, "Logarithm to base 10."),
    ("log1p", np.log1p, "log(1 + x), accurate near 0."),
    ("log2", np.log2, "Logarithm to base 2."),
    ("rsqrt", lambda x: 1 / np.sqrt(x), "Reciprocal square root."),
    ("sin", np.sin, "Sine of radians."),
    ("sinh", np.sinh, "Hyperbolic sine."),
    ("sqrt", np.sqrt, "Square root."),
    ("tan", np.tan, "Tangent of radians."),
    ("tanh", np.tanh, "Hyperbolic tangent."),
)
for _name, _reference, _doc in _FLOAT_FUNCTIONS:
    pointwise(_name, _math(_name), _reference, _doc, FLOAT)

pointwise("reciprocal", lambda x: 1 / x, lambda x: 1 / x, "1 / x.", FLOAT)
pointwise(
    "sigmoid", lambda x: 1 / (1 + t.apply("exp", -x)), special.expit, "Logistic function 1 / (1 + exp(-x)).", FLOAT,
)
pointwise("neg", lambda x: -x, np.negative, "Negative.")
pointwise("abs", _math("abs"), np.abs, "Magnitude; real for complex input.", KEEP, ResultType.REAL)
pointwise(
    "relu",
    lambda x: t.select(x < 0, 0, x),
    lambda x: np.where(x < 0, np.zeros_like(x), x),
    "max(x, 0), NaN kept.",
    KEEP,
)
pointwise(
    "silu",
    lambda x: x / (1 + t.apply("exp", -x)),
    lambda x: x * special.expit(x),
    "x * sigmoid(x).",
    Promotion.FLOATING,
)


def _unless_whole(rounding: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a rounding that leaves integers alone: NumPy's may take them through float64."""
    return lambda x: np.asarray(x) if np.asarray(x).dtype.kind in "biu" else rounding(x)


def _rounded(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x) if x.dtype.kind >= Kind.FLOAT else x



_ROUNDINGS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("ceil", np.ceil, "Smallest integer not below x."),
    ("floor", np.floor, "Largest integer not above x."),
    ("round", np.rint, "Nearest integer, ties to even."),
    ("trunc", np.trunc, "Integer part."),
)
for _name, _reference, _doc in _ROUNDINGS:
    pointwise(_name, _rounded(_name), _unless_whole(_reference), _doc, KEEP)
pointwise(
    "frac", lambda x: x - _rounded("trunc")(x), lambda x: x - _unless_whole(np.trunc)(x), "Fractional part.", KEEP,
)
for _name in ("isfinite", "isinf", "isnan"):
    pointwise(_name, _math(_name), getattr(np, _name), f"Whether x {_name[2:]}, as NumPy's {_name}.", KEEP, BOOL)
pointwise(
    "logical_not", _math("not"), np.logical_not, "Whether x is zero.", Promotion.LOGICAL, BOOL,
)
pointwise("bitwise_not", _math("not"), np.invert, "Bitwise complement.", Promotion.BITWISE)

pointwise("add", _binary("add"), np.add, "lhs + rhs.", arity=2)
pointwise("sub", _binary("sub"), np.subtract, "lhs - rhs.", arity=2)
pointwise("mul", _binary("mul"), np.multiply, "lhs * rhs.", arity=2)


def _c_quotient(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind in "fc":
        return np.asarray(np.divide(a, b))
    a, b = np.broadcast_arrays(a, b)
    safe = np.where(b == 0, 1, b)
    quotient = np.floor_divide(a, safe)
    # Floor to truncation: one step up where the signs differ and something is left over.
    quotient = quotient + ((quotient < 0) & (quotient * safe != a))
    return np.asarray(np.where(b == 0, 0, quotient))


def _c_remainder(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.asarray(np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))))


def _floor_remainder(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind == "f":
        return np.asarray(np.remainder(a, b))
    return np.asarray(np.where(b == 0, 0, np.remainder(a, np.where(b == 0, 1, b))))


pointwise("div", _binary("div"), _c_quotient, "lhs / rhs; integers truncate toward zero, x / 0 is 0.", arity=2)
pointwise("truediv", _binary("div"), np.true_divide, "lhs / rhs in floating point.", FLOAT, arity=2)
pointwise("mod", _binary("mod"), _c_remainder, "C remainder, sign of lhs; x % 0 is 0 for integers.", arity=2)
pointwise("fmod", _binary("fmod"), _c_remainder, "C fmod, sign of lhs.", arity=2)
pointwise("remainder", _binary("remainder"), _floor_remainder, "Remainder with the sign of rhs.", arity=2)
pointwise("pow", _binary("pow"), np.power, "lhs to the power rhs.", arity=2)
pointwise("maximum", _binary("max"), np.maximum, "Larger of both, NaN propagates.", arity=2)
pointwise("minimum", _binary("min"), np.minimum, "Smaller of both, NaN propagates.", arity=2)
pointwise("atan2", _binary("atan2"), np.arctan2, "Angle of (rhs, lhs) in radians.", FLOAT, arity=2)
_COMPARISONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("eq", np.equal, "=="),
    ("ne", np.not_equal, "!="),
    ("lt", np.less, "<"),
    ("le", np.less_equal, "<="),
    ("gt", np.greater, ">"),
    ("ge", np.greater_equal, ">="),
)
for _name, _reference, _doc in _COMPARISONS:
    pointwise(_name, _binary(_name), _reference, f"Whether lhs {_doc} rhs.", result=BOOL, arity=2)
_BITWISE: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("and", np.bitwise_and, np.logical_and),
    ("or", np.bitwise_or, np.logical_or),
    ("xor", np.bitwise_xor, np.logical_xor),
)
for _name, _bits, _truth in _BITWISE:
    pointwise(f"bitwise_{_name}", _binary(_name), _bits, f"Bitwise {_name}.", Promotion.BITWISE, arity=2)
    if _name != "xor":
        pointwise(
            f"logical_{_name}", _binary(_name), _truth, f"Logical {_name}.", Promotion.LOGICAL, BOOL, arity=2,
        )


def _where(rec: Recorder, condition: Operand, x: Operand, y: Operand, /) -> Val:
    chooser = rec.value(condition, "where", "condition")
    if chooser.dtype is not DataType.Bool:
        msg = f"where: condition should be of DataType.Bool, given {chooser.dtype!r}."
        raise DefinitionError(msg)
    a, b = rec.value(x, "where", "x"), rec.value(y, "where", "y")
    dtype = common_dtype((a, b), Promotion.DEFAULT, widen=False)
    operands = match_ranks(rec, (chooser, convert(rec, a, dtype, "where", "x"), convert(rec, b, dtype, "where", "y")))
    return rec.emit(WHERE, operands)[0]


WHERE = register(
    OpDef(
        name="where",
        kind=OpKind.POINTWISE,
        frontend=_where,
        infer=infer_pointwise("where", ResultType.SAME),
        reference=np.where,
        scalar=t.select,
        doc="x where condition is true, else y.",
        positional_only=True,
    ),
)

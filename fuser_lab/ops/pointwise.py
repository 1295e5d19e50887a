"""Pointwise ops: one formula for an element, one NumPy meaning, one promotion rule each."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Const, Term
from fuser_lab.ops.extremes import larger, smaller
from fuser_lab.ops.promotion import (
    Promotion,
    ResultType,
    pointwise,
)
from fuser_lab.ops.rules import Array


def _math(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x)


def part_of(fn: str) -> Callable[[Term], Term]:
    """Return the element of an op that makes a real number of a complex one."""
    return lambda x: t.apply(fn, x, dtype=x.dtype.real)


def _binary(fn: str) -> Callable[[Term, Term], Term]:
    return lambda a, b: t.apply(fn, a, b)


FLOAT, KEEP, BOOL = Promotion.FLOAT, Promotion.KEEP, ResultType.BOOL
_NEAR_ONE, _INSIDE, _POSITIVE = ((-1.0, 1.0),), ((-0.95, 0.95),), ((0.1, 4.0),)
Domain = tuple[tuple[float, float], ...]


def _log1p(x: Array) -> Array:
    if not np.iscomplexobj(x):
        return np.asarray(np.log1p(x))
    # NumPy's complex one is log(1 + x), which loses all digits near 0.
    a, b = np.real(x), np.imag(x)
    near = (np.abs(a) < 0.5) & (np.abs(b) < 0.5)
    above = np.array(x)
    above.real += 1  # not x + 1, which drops the sign of a zero
    logarithm = np.asarray(np.log(above))
    logarithm.real[...] = np.where(near, np.log1p(a * (2 + a) + b * b) / 2, logarithm.real)
    return logarithm


_FLOAT_FUNCTIONS: tuple[tuple[str, Callable[..., Any], str, Domain], ...] = (
    ("acos", np.arccos, "Inverse cosine in radians.", _NEAR_ONE),
    ("acosh", np.arccosh, "Inverse hyperbolic cosine.", ((1.1, 4.0),)),
    ("asin", np.arcsin, "Inverse sine in radians.", _NEAR_ONE),
    ("asinh", np.arcsinh, "Inverse hyperbolic sine.", ()),
    ("atan", np.arctan, "Inverse tangent in radians.", ()),
    ("atanh", np.arctanh, "Inverse hyperbolic tangent.", _INSIDE),
    ("cos", np.cos, "Cosine of radians.", ()),
    ("cosh", np.cosh, "Hyperbolic cosine.", ()),
    ("exp", np.exp, "e to the power x.", ()),
    ("exp2", np.exp2, "2 to the power x.", ()),
    ("expm1", np.expm1, "exp(x) - 1, accurate near 0.", ()),
    ("log", np.log, "Natural logarithm.", _POSITIVE),
    ("log10", np.log10, "Logarithm to base 10.", _POSITIVE),
    ("log1p", _log1p, "log(1 + x), accurate near 0.", ((-0.9, 4.0),)),
    ("log2", np.log2, "Logarithm to base 2.", _POSITIVE),
    ("sin", np.sin, "Sine of radians.", ()),
    ("sinh", np.sinh, "Hyperbolic sine.", ()),
    ("sqrt", np.sqrt, "Square root.", _POSITIVE),
    ("tan", np.tan, "Tangent of radians.", ((-1.5, 1.5),)),
    ("tanh", np.tanh, "Hyperbolic tangent.", ()),
)
for _name, _reference, _doc, _domain in _FLOAT_FUNCTIONS:
    pointwise(_name, _math(_name), _reference, _doc, FLOAT, domain=_domain)


def _special(name: str) -> Callable[..., Array]:
    """Return a function of `scipy.special`, whose import takes longer than that of all ops: the first call does it."""

    def function(*arrays: Array) -> Array:
        try:
            special = import_module("scipy.special")
        except ModuleNotFoundError:
            msg = f"NumPy has no {name}: its values come from scipy.special, and SciPy is not installed."
            raise UnsupportedError(msg) from None
        return np.asarray(getattr(special, name)(*arrays))

    return function


_TINY = 1e-20  # the gamma function of smaller numbers is 1 / x up to rounding


def _log_gamma(x: Array) -> Array:
    # SciPy's is -inf at -inf, where the limit is +inf, and inf for subnormal numbers, as 1 / x is.
    log_gamma = _special("gammaln")(np.where(np.equal(x, -np.inf), -x, x))
    return np.asarray(np.where(np.abs(x) < _TINY, -np.log(np.abs(x)), log_gamma))


_REAL_FUNCTIONS: tuple[tuple[str, Callable[..., Any], str, Domain], ...] = (
    ("erf", _special("erf"), "Error function.", ()),
    ("erfc", _special("erfc"), "Complementary error function.", ()),
    ("erfinv", _special("erfinv"), "Inverse of erf; infinite at -1 and 1.", _INSIDE),
    ("erfcinv", _special("erfcinv"), "Inverse of erfc; infinite at 0 and 2.", ((0.05, 1.95),)),
    ("lgamma", _log_gamma, "Natural logarithm of the magnitude of the gamma function.", ((0.5, 6.0),)),
)
for _name, _reference, _doc, _domain in _REAL_FUNCTIONS:
    pointwise(_name, _math(_name), _reference, _doc, FLOAT, takes_complex=False, domain=_domain)


def _logistic(x: Array) -> Array:
    left = np.real(x) < 0  # if exp(-x) may overflow
    power = np.exp(np.where(left, x, -x))
    return np.asarray(np.where(left, power, 1) / (1 + power))


def _logistic_term(x: Term) -> Term:
    if not x.dtype.is_complex:
        return 1 / (1 + t.apply("exp", -x))
    left = part_of("real")(x) < 0
    power = t.apply("exp", t.select(left, x, -x))
    return t.select(left, power, 1) / (1 + power)


pointwise(
    "rsqrt", lambda x: 1 / t.apply("sqrt", x) if x.dtype.is_complex else t.apply("rsqrt", x),
    lambda x: 1 / np.sqrt(x), "Reciprocal square root.", FLOAT, domain=_POSITIVE,
)
pointwise("reciprocal", lambda x: 1 / x, lambda x: 1 / x, "1 / x.", FLOAT, domain=_POSITIVE)
pointwise(
    "sigmoid", _logistic_term, _logistic, "Logistic function 1 / (1 + exp(-x)).", FLOAT,
)


def as_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes with Bool as in C++: as the integers 0 and 1."""
    return lambda *xs: function(*(np.asarray(x).astype(np.int64) if np.asarray(x).dtype.kind == "b" else x for x in xs))


pointwise("neg", lambda x: -x, as_numbers(np.negative), "Negation.")
pointwise(
    "abs", lambda x: t.apply("abs", x, dtype=x.dtype.real), np.abs, "Magnitude; real for complex input.", KEEP,
    ResultType.REAL,
)
pointwise(
    "relu",
    lambda x: t.select(x < 0, 0, x),
    lambda x: np.where(x < 0, np.zeros_like(x), x),
    "max(x, 0); NaN propagates.",
    KEEP,
    takes_complex=False,
)
pointwise(
    "silu",
    lambda x: x * _logistic_term(x) if x.dtype.is_complex else x / (1 + t.apply("exp", -x)),
    lambda x: x * _logistic(x),
    "x * sigmoid(x).",
    Promotion.FLOATING,
)


def _unless_whole(rounding: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a rounding that does not change integers, which NumPy's may convert to float64."""
    return lambda x: np.asarray(x) if np.asarray(x).dtype.kind in "biu" else rounding(x)


def _rounding(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x) if x.dtype.kind >= Kind.FLOAT else x


_ROUNDINGS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("ceil", np.ceil, "Smallest integer not below x."),
    ("floor", np.floor, "Largest integer not above x."),
    ("round", np.rint, "Nearest integer, ties to even."),
    ("trunc", np.trunc, "Integer part."),
)
for _name, _reference, _doc in _ROUNDINGS:
    pointwise(_name, _rounding(_name), _unless_whole(_reference), _doc, KEEP, takes_complex=False)
pointwise(
    "frac",
    lambda x: x - _rounding("trunc")(x),
    as_numbers(lambda x: x - _unless_whole(np.trunc)(x)),
    "Fractional part, with the sign of x.",
    KEEP,
    takes_complex=False,
)
for _name in ("isfinite", "isinf", "isnan"):
    pointwise(_name, _math(_name), getattr(np, _name), f"Whether x is {_name[2:]}, as NumPy's {_name}.", KEEP, BOOL)


def _infinite(value: float) -> Callable[[Term], Term]:
    return lambda x: t.apply("eq", x, value) if x.dtype.is_float else Const(DataType.Bool, value=False)


for _name, _sign, _value in (("isneginf", "negative", -np.inf), ("isposinf", "positive", np.inf)):
    pointwise(
        _name, _infinite(_value), lambda x, value=_value: np.equal(x, value), f"Whether x is {_sign} infinity.", KEEP,
        BOOL, takes_complex=False,
    )
pointwise(
    "isreal",
    lambda x: t.apply("eq", part_of("imag")(x), 0.0) if x.dtype.is_complex else Const(DataType.Bool, value=True),
    np.isreal,
    "Whether the imaginary part of x is zero.",
    KEEP,
    BOOL,
)
pointwise(
    "signbit", _math("signbit"), np.signbit, "Whether x has a minus sign; true for -0.0.", result=BOOL,
    takes_complex=False,
)
pointwise(
    "logical_not", _math("not"), np.logical_not, "Whether x is zero.", Promotion.LOGICAL, BOOL,
)
pointwise("bitwise_not", _math("not"), np.invert, "Bitwise complement.", Promotion.BITWISE)
pointwise("add", _binary("add"), np.add, "lhs + rhs.", arity=2)
pointwise("sub", _binary("sub"), as_numbers(np.subtract), "lhs - rhs.", arity=2)
pointwise("mul", _binary("mul"), np.multiply, "lhs * rhs.", arity=2)


def _c_quotient(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind in "fc":
        return np.asarray(np.divide(a, b))
    a, b = np.broadcast_arrays(a, b)
    safe = np.where(b == 0, 1, b)
    quotient = np.floor_divide(a, safe)
    # From floor to truncation: one step up if the signs differ and there is a remainder.
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


def _power(a: Array, b: Array) -> Array:
    if np.result_type(a, b).kind == "f":
        # NumPy uses sqrt for 0.5, which differs from pow at -0.0 and minus infinity.
        return np.asarray(np.where((b == 0.5) & ((a == 0) | np.isinf(a)), np.abs(a), np.power(a, b)))
    a, b = np.broadcast_arrays(a, b)
    if a.dtype.kind == "c":
        # NumPy gives NaN for powers that are not real.
        return np.asarray(np.where((a == 0) & (b.real > 0), 0, np.power(a, b)))
    if a.dtype.kind == "u":
        return np.asarray(np.power(a, b))
    # For integers, the truncated value of 1 / a**n.
    small = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0))
    return np.asarray(np.where(b < 0, small, np.power(a, np.maximum(b, 0))))


_DIVISORS = ((-8.0, 8.0), (0.5, 4.0))  # ranges of a dividend and a divisor in samples: no divisor is near 0
pointwise(
    "div", _binary("div"), as_numbers(_c_quotient), "lhs / rhs; integers truncate toward zero, x / 0 is 0.", arity=2,
    domain=_DIVISORS,
)
pointwise("truediv", _binary("div"), np.true_divide, "lhs / rhs in floating point.", FLOAT, arity=2, domain=_DIVISORS)
_REMAINDERS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("mod", _c_remainder, "C remainder, sign of lhs; x % 0 is 0 for integers."),
    ("fmod", _c_remainder, "C fmod, sign of lhs; x % 0 is 0 for integers."),
    ("remainder", _floor_remainder, "Remainder with the sign of rhs; x % 0 is 0 for integers."),
)
for _name, _reference, _doc in _REMAINDERS:
    pointwise(
        _name, _binary(_name), as_numbers(_reference), _doc, arity=2, takes_complex=False, domain=_DIVISORS,
    )
pointwise(
    "floor_divide", _binary("floordiv"), np.floor_divide, "lhs / rhs rounded down, as Python's //; x // 0 is x / 0.",
    Promotion.FLOAT_ONLY, arity=2, takes_complex=False, domain=_DIVISORS,
)
pointwise(
    "pow", _binary("pow"), as_numbers(_power), "lhs to the power rhs; a negative power of an integer truncates.",
    arity=2, domain=((0.2, 3.0), (0.0, 3.0)),
)
pointwise(
    "maximum", _binary("max"), larger, "Larger of the two; NaN propagates; 0.0 is larger than -0.0.", arity=2,
    takes_complex=False,
)
pointwise(
    "minimum", _binary("min"), smaller, "Smaller of the two; NaN propagates; -0.0 is smaller than 0.0.", arity=2,
    takes_complex=False,
)
pointwise(
    "atan2", _binary("atan2"), np.arctan2, "Angle of the point (rhs, lhs) in radians.", FLOAT, arity=2,
    takes_complex=False,
)
pointwise(
    "nextafter", _binary("nextafter"), np.nextafter, "The next representable number after lhs towards rhs.",
    Promotion.FLOAT_ONLY, arity=2, takes_complex=False,
)
_SHIFTS: tuple[tuple[str, str, Callable[..., Any], str], ...] = (
    ("left", "shl", np.left_shift, "lhs shifted left by rhs bits; 0 if rhs is negative or at least the width."),
    (
        "right", "shr", np.right_shift,
        "lhs shifted right by rhs bits, filled with its sign; only the sign if rhs is negative or too large.",
    ),
)
for _name, _fn, _reference, _doc in _SHIFTS:
    pointwise(
        f"bitwise_{_name}_shift", _binary(_fn), _reference, _doc, Promotion.INTEGRAL, arity=2,
        domain=((-60.0, 60.0), (0.0, 8.0)),
    )
pointwise(
    "gcd", _binary("gcd"), np.gcd, "Greatest common divisor, 0 or more; gcd(0, 0) is 0.", Promotion.INTEGRAL, arity=2,
    domain=((-60.0, 60.0),),
)
_COMPARISONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("eq", np.equal, "=="),
    ("ne", np.not_equal, "!="),
    ("lt", np.less, "<"),
    ("le", np.less_equal, "<="),
    ("gt", np.greater, ">"),
    ("ge", np.greater_equal, ">="),
)
for _name, _reference, _doc in _COMPARISONS:
    pointwise(
        _name, _binary(_name), _reference, f"Whether lhs {_doc} rhs.", result=BOOL, arity=2,
        takes_complex=_name in {"eq", "ne"},
    )
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

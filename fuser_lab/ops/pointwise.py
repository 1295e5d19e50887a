"""Pointwise ops: one formula for an element, one NumPy meaning, one promotion rule each."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError
from fuser_lab.ir import OpKind, Scalar, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Const, Term
from fuser_lab.ops.arguments import element_type
from fuser_lab.ops.extremes import larger, smaller
from fuser_lab.ops.pointwise_calls import unary_misuses
from fuser_lab.ops.promotion import (
    CAST,
    Promotion,
    ResultType,
    common_dtype,
    convert,
    infer_pointwise,
    match_ranks,
    pointwise,
    pointwise_domain,
    promote_operands,
)
from fuser_lab.ops.registry import (
    Arg,
    Array,
    Attrs,
    AxisFactory,
    Misuse,
    OpDef,
    Operand,
    Recorder,
    Result,
    Sample,
    register,
)
from fuser_lab.ops.view import SET


def _math(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x)


def _part(fn: str) -> Callable[[Term], Term]:
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
    left = _part("real")(x) < 0
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


def _as_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes with Bool as in C++: as the integers 0 and 1."""
    return lambda *xs: function(*(np.asarray(x).astype(np.int64) if np.asarray(x).dtype.kind == "b" else x for x in xs))


pointwise("neg", lambda x: -x, _as_numbers(np.negative), "Negation.")
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
    _as_numbers(lambda x: x - _unless_whole(np.trunc)(x)),
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
    lambda x: t.apply("eq", _part("imag")(x), 0.0) if x.dtype.is_complex else Const(DataType.Bool, value=True),
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

_INTEGERS = {1: DataType.Char, 2: DataType.Short, 4: DataType.Int32, 8: DataType.Int}  # by size


def _bitcast(rec: Recorder, arg: Operand, dtype: DataType) -> Val:
    tensor, target = rec.tensor(arg, "bitcast", "arg"), element_type(dtype, "bitcast")
    kinds = {tensor.dtype.kind, target.kind}
    if tensor.dtype.itemsize != target.itemsize or not kinds <= {Kind.INTEGER, Kind.FLOAT}:
        msg = f"bitcast: {tensor.dtype!r} to {target!r} is not between floats and integers of the same size."
        raise DefinitionError(msg)
    if tensor.dtype is target:
        return rec.emit(SET, [tensor])[0]
    integer = _INTEGERS[target.itemsize]
    bits = rec.emit(BITCAST, [tensor], dtype=integer)[0] if tensor.dtype.is_float else tensor
    if target.is_float:
        return rec.emit(BITCAST, [convert(rec, bits, integer, "bitcast", "arg")], dtype=target)[0]
    return convert(rec, bits, target, "bitcast", "arg")


def _infer_bitcast(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    return (Result(element_type(attrs["dtype"], "bitcast"), pointwise_domain("bitcast", inputs, axes)),)


_BITCASTS = (  # float, integer
    (DataType.Float, DataType.Int32), (DataType.Double, DataType.Int), (DataType.Half, DataType.Short),
    (DataType.BFloat16, DataType.Short), (DataType.Float8_e4m3fn, DataType.Byte), (DataType.Float8_e5m2, DataType.Char),
    (DataType.Float8_e8m0fnu, DataType.Byte),
)
BITCAST = register(
    OpDef(
        name="bitcast",
        kind=OpKind.POINTWISE,
        frontend=_bitcast,
        infer=_infer_bitcast,
        reference=lambda x, *, dtype: np.asarray(x).view(dtype.numpy),
        scalar=lambda x, *, dtype: t.apply("bitcast", x, dtype=dtype),
        reads_bits=True,
        doc="The numbers of dtype with the bits of arg: floats and integers of one size; in nvFuser, bitCastOp of C++.",
        samples=(
            *(Sample(f"fd.ops.bitcast(a, {whole!r})", (Arg((3, 4), real, 0.5),)) for real, whole in _BITCASTS),
            *(
                Sample(f"fd.ops.bitcast(a, dtype={real!r})", (Arg((3, 4), whole, 40, 120),))
                for real, whole in _BITCASTS
            ),
            Sample("fd.ops.bitcast(a, DataType.BFloat16)", (Arg((5,), DataType.Half, 0.5),)),
            Sample("fd.ops.bitcast(a, DataType.Byte)", (Arg((2, 3), DataType.Char),)),
            Sample("fd.ops.bitcast(a, DataType.Float)", (Arg((0, 3)),)),
            Sample(
                "fd.ops.bitcast(fd.ops.bitwise_and(fd.ops.bitcast(a, DataType.Int32), -65536), DataType.Float)",
                (Arg((2, 1, 3)),),
            ),
        ),
        misuses=(
            Misuse("fd.ops.bitcast(x, DataType.Short)", "bitcast: DataType.Float to DataType.Short is not between"),
            Misuse("fd.ops.bitcast(m, DataType.Byte)", "bitcast: DataType.Bool to DataType.Byte is not between"),
            Misuse("fd.ops.bitcast(z, DataType.Int)", "bitcast: DataType.ComplexFloat to DataType.Int is not between"),
            Misuse("fd.ops.bitcast(d, DataType.Int)", "bitcast: arg must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.bitcast(x, 'int')", "bitcast: dtype must be a DataType, given 'int'", ArgumentTypeError),
            Misuse("fd.ops.bitcast(x)", "bitcast(arg, dtype): missing a required argument", ArgumentTypeError),
        ),
    ),
)

pointwise("add", _binary("add"), np.add, "lhs + rhs.", arity=2)
pointwise("sub", _binary("sub"), _as_numbers(np.subtract), "lhs - rhs.", arity=2)
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
    "div", _binary("div"), _as_numbers(_c_quotient), "lhs / rhs; integers truncate toward zero, x / 0 is 0.", arity=2,
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
        _name, _binary(_name), _as_numbers(_reference), _doc, arity=2, takes_complex=False, domain=_DIVISORS,
    )
pointwise(
    "pow", _binary("pow"), _as_numbers(_power), "lhs to the power rhs; a negative power of an integer truncates.",
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




def _real(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "real", "x")
    if value.dtype.is_complex:
        return rec.emit(REAL, [value])[0]
    return rec.emit(CAST, [value], dtype=value.dtype)[0] if isinstance(value, Scalar) else rec.emit(SET, [value])[0]


def _imag(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "imag", "x")
    if not value.dtype.is_complex:
        msg = f"imag: complex input is required, given {value.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(IMAG, [value])[0]


def _complex(rec: Recorder, real: Operand, imag: Operand) -> Val:
    parts = []
    for part, name in ((real, "real"), (imag, "imag")):
        if isinstance(part, bool | int | float | complex):
            msg = f"complex: {name} must be a tensor or a scalar of the definition, given {short_text(part)}."
            raise ArgumentTypeError(msg)
        parts.append(rec.value(part, "complex", name))
    a, b = parts
    if isinstance(a, Scalar) != isinstance(b, Scalar):
        msg = f"complex: real and imag must both be tensors or both scalars, given {a} and {b}."
        raise DefinitionError(msg)
    if a.dtype is not b.dtype or a.dtype not in {DataType.Float, DataType.Double}:
        msg = f"complex: real and imag must both be Float or both Double, given {a.dtype!r}, {b.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(COMPLEX, match_ranks(rec, parts))[0]


def _complex_of(real: Array, imag: Array) -> Array:
    """Return complex numbers, not by arithmetic, which would propagate infinities and NaN."""
    real, imag = np.broadcast_arrays(real, imag)
    joined = np.empty(real.shape, np.result_type(real, np.complex64))
    joined.real, joined.imag = real, imag
    return joined


def _infer_complex(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    (part,) = infer_pointwise("complex", ResultType.SAME)(inputs, attrs, axes)
    return (Result(_COMPLEX_OF[part.dtype], part.domain),)


_COMPLEX_OF = {DataType.Float: DataType.ComplexFloat, DataType.Double: DataType.ComplexDouble}
_NUMBERS = "fd.define_scalar(1.5, DataType.Double), fd.define_scalar(-0.5, DataType.Double)"
_COMPLEX_KINDS = (
    (DataType.ComplexFloat, (3, 4)), (DataType.ComplexDouble, (5,)), (DataType.ComplexFloat, ()),
    (DataType.ComplexFloat, (0, 3)), (DataType.ComplexFloat, (1, 4)),
)

REAL = register(
    OpDef(
        name="real",
        kind=OpKind.POINTWISE,
        frontend=_real,
        infer=infer_pointwise("real", ResultType.REAL),
        reference=np.real,
        scalar=_part("real"),
        doc="Real part; a copy of real input.",
        samples=(
            *(Sample("fd.ops.real(a)", (Arg(shape, dtype),)) for dtype, shape in _COMPLEX_KINDS),
            Sample("fd.ops.real(a)", (Arg((3, 4), DataType.Half),)),
            Sample("fd.ops.add(a, fd.ops.real(2.5))"),
            Sample("fd.ops.add(a, fd.ops.real(2.5 + 1j))"),
        ),
        misuses=unary_misuses("real", frozenset(Kind)),
        positional_only=True,
    ),
)
IMAG = register(
    OpDef(
        name="imag",
        kind=OpKind.POINTWISE,
        frontend=_imag,
        infer=infer_pointwise("imag", ResultType.REAL),
        reference=np.imag,
        scalar=_part("imag"),
        doc="Imaginary part of complex input.",
        samples=(
            *(Sample("fd.ops.imag(a)", (Arg(shape, dtype),)) for dtype, shape in _COMPLEX_KINDS),
            Sample("fd.ops.add(a, fd.ops.imag(2.5 + 1j))"),
        ),
        misuses=(
            *unary_misuses("imag", frozenset(Kind)),
            *(Misuse(f"fd.ops.imag({letter})", "imag: complex input is required, given") for letter in "xnmh"),
        ),
        positional_only=True,
    ),
)
COMPLEX = register(
    OpDef(
        name="complex",
        kind=OpKind.POINTWISE,
        frontend=_complex,
        infer=_infer_complex,
        reference=_complex_of,
        scalar=lambda a, b: t.apply("complex", a, b, dtype=_COMPLEX_OF[a.dtype]),
        doc="The complex number of two real parts.",
        samples=(
            Sample("fd.ops.complex(a, b)", (Arg((3, 4)), Arg((3, 4)))),
            Sample("fd.ops.complex(a, b)", (Arg((3, 1)), Arg((4,)))),
            Sample("fd.ops.complex(real=a, imag=b)", (Arg((5,), DataType.Double), Arg((5,), DataType.Double))),
            Sample("fd.ops.complex(a, b)", (Arg(()), Arg(()))),
            Sample("fd.ops.complex(a, b)", (Arg((0, 3)), Arg((0, 3)))),
            Sample(f"fd.ops.mul(a, fd.ops.complex({_NUMBERS}))", (Arg((3, 4)),)),
        ),
        misuses=(
            Misuse("fd.ops.complex(1.0, 2.0)", "complex: real must be a tensor or a scalar", ArgumentTypeError),
            Misuse("fd.ops.complex(x, 2.0)", "complex: imag must be a tensor or a scalar", ArgumentTypeError),
            Misuse("fd.ops.complex(x)", "complex(real, imag): missing a required argument", ArgumentTypeError),
            Misuse("fd.ops.complex(x, d)", "complex: real and imag must both be tensors or both scalars"),
            Misuse("fd.ops.complex(x, h)", "complex: real and imag must both be Float or both Double, given"),
            Misuse("fd.ops.complex(z, z)", "complex: real and imag must both be Float or both Double, given"),
            Misuse("fd.ops.complex(n, n)", "complex: real and imag must both be Float or both Double, given"),
            Misuse("fd.ops.complex(x, y)", "complex: operands have sizes 4 and 5 on axis 1"),
        ),
    ),
)


def _where(rec: Recorder, condition: Operand, x: Operand, y: Operand, /) -> Val:
    chooser = rec.value(condition, "where", "condition")
    if chooser.dtype is not DataType.Bool:
        msg = f"where: condition should be of DataType.Bool, given {chooser.dtype!r}."
        raise DefinitionError(msg)
    a, b = rec.value(x, "where", "x"), rec.value(y, "where", "y")
    dtype = common_dtype("where", (a, b), Promotion.DEFAULT, widen=False)
    operands = match_ranks(rec, (chooser, convert(rec, a, dtype, "where", "x"), convert(rec, b, dtype, "where", "y")))
    return rec.emit(WHERE, operands)[0]


_F, _H, _N, _B = DataType.Float, DataType.Half, DataType.Int, DataType.Bool
WHERE = register(
    OpDef(
        name="where",
        kind=OpKind.POINTWISE,
        frontend=_where,
        infer=infer_pointwise("where", ResultType.SAME),
        reference=np.where,
        scalar=t.select,
        doc="x where condition is true, else y.",
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
        misuses=(
            Misuse("fd.ops.where(x, x, x)", "where: condition should be of DataType.Bool, given DataType.Float"),
            Misuse("fd.ops.where(n, x, x)", "where: condition should be of DataType.Bool, given DataType.Int"),
            Misuse("fd.ops.where(m, x)", "where(condition, x, y, /): missing a required argument", ArgumentTypeError),
            Misuse("fd.ops.where(m, None, x)", "where: x is None", ArgumentTypeError),
            Misuse("fd.ops.where(m, x, y)", "where: operands have sizes 4 and 5 on axis 1"),
        ),
        positional_only=True,
    ),
)


def _bound(rec: Recorder, op: str, argument: str, bound: Operand, dtype: DataType) -> Val:
    value = rec.value(bound, op, argument)
    if not isinstance(value, Scalar):
        msg = f"{op}: {argument} must be a scalar, given the tensor {value.name}."
        raise DefinitionError(msg)
    return convert(rec, value, dtype, op, argument)


def _order(rec: Recorder, op: str, x: Operand) -> Val:
    value = rec.value(x, op, "x")
    if value.dtype.is_complex:
        msg = f"{op}: complex input is not supported, given {value.dtype!r}."
        raise DefinitionError(msg)
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


CLAMP = register(
    OpDef(
        name="clamp",
        kind=OpKind.POINTWISE,
        frontend=_clamp,
        infer=infer_pointwise("clamp", ResultType.SAME),
        reference=_reference_clamp,
        scalar=_clamp_term,
        doc="x limited to [min, max], in x's dtype; None means no limit on that side.",
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
        misuses=(
            Misuse("fd.ops.clamp()", "clamp(x, min=None, max=None, /): missing a required argument", ArgumentTypeError),
            Misuse("fd.ops.clamp(x, min=0)", "clamp(x, min=None, max=None, /): ", ArgumentTypeError),
            Misuse("fd.ops.clamp(x, x, x)", "clamp: min must be a scalar, given the tensor"),
            Misuse("fd.ops.clamp(x, 0, 'a')", "clamp: max must be a tensor, scalar or number", ArgumentTypeError),
            Misuse("fd.ops.clamp(z, 0, 1)", "clamp: complex input is not supported"),
            Misuse("fd.ops.clamp(n, float('nan'), 1)", "clamp: min is nan, which has no value of dtype"),
        ),
        positional_only=True,
    ),
)


def _threshold(rec: Recorder, x: Operand, threshold: Operand, value: Operand, /) -> Val:
    tensor = _order(rec, "threshold", x)
    named = (("threshold", threshold), ("value", value))
    bounds = [_bound(rec, "threshold", name, number, tensor.dtype) for name, number in named]
    return rec.emit(THRESHOLD, [tensor, *bounds])[0]


THRESHOLD = register(
    OpDef(
        name="threshold",
        kind=OpKind.POINTWISE,
        frontend=_threshold,
        infer=infer_pointwise("threshold", ResultType.SAME),
        reference=lambda x, threshold, value: np.where(x <= threshold, value, x),
        scalar=lambda x, threshold, value: t.select(x <= threshold, value, x),
        doc="value where x <= threshold, else x; in x's dtype.",
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
        misuses=(
            Misuse("fd.ops.threshold(x, 0.5)", "threshold(x, threshold, value, /): missing", ArgumentTypeError),
            Misuse("fd.ops.threshold(x, x, 0.5)", "threshold: threshold must be a scalar, given the tensor"),
            Misuse("fd.ops.threshold(x, 0.5, x)", "threshold: value must be a scalar, given the tensor"),
            Misuse("fd.ops.threshold(x, None, 0.5)", "threshold: threshold is None", ArgumentTypeError),
            Misuse("fd.ops.threshold(z, 0, 1)", "threshold: complex input is not supported"),
        ),
        positional_only=True,
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


LERP = register(
    OpDef(
        name="lerp",
        kind=OpKind.POINTWISE,
        frontend=_lerp,
        infer=infer_pointwise("lerp", ResultType.SAME),
        reference=_as_numbers(_reference_lerp),
        scalar=_between,
        doc="start + weight * (end - start).",
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
        misuses=(
            Misuse("fd.ops.lerp(x, x)", "lerp(start, end, weight, /): missing a required argument", ArgumentTypeError),
            Misuse("fd.ops.lerp(x, x, None)", "lerp: weight is None", ArgumentTypeError),
            Misuse("fd.ops.lerp(x, y, 0.5)", "lerp: operands have sizes 4 and 5 on axis 1"),
        ),
        positional_only=True,
    ),
)

"""Pointwise ops: one formula for an element, one NumPy meaning, one promotion rule each."""

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from fuser_lab.dtypes import Category, DataType, Kind, promote
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, IterDomain, IterType, Number, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.registry import (
    Array,
    Attrs,
    AxisFactory,
    Composite,
    OpDef,
    Operand,
    Recorder,
    Result,
    register,
    register_composite,
    same_extent,
)


class Promotion(enum.Enum):
    """Which dtype operands are converted to before the op (reference: nvFuser's TypePromotionConfig)."""

    DEFAULT = "default"
    FLOAT = "float"  # bool and integers become Float
    KEEP = "keep"  # no conversion at all
    BITWISE = "bitwise"  # bool or integer operands required
    LOGICAL = "logical"  # operands become Bool


class ResultType(enum.Enum):
    """Dtype of the result, given the converted operands."""

    SAME = "same"
    BOOL = "bool"
    REAL = "real"  # complex becomes its real part's type


def pointwise_domain(op: str, operands: Sequence[Val], axes: AxisFactory) -> TensorDomain:
    """Return the axes of a pointwise result: an axis is a broadcast only if it is one in every operand.

    Raises
    ------
    DefinitionError
        If two operands have different sizes, both above 1, on one axis.
    """
    tensors = [v for v in operands if isinstance(v, TensorView)]
    return TensorDomain(
        logical=tuple(
            _joined_axis(op, position, [tv.domain.axes[position] for tv in tensors], axes)
            for position in range(tensors[0].ndim)
        ),
    )


def _joined_axis(op: str, position: int, operands: Sequence[IterDomain], axes: AxisFactory) -> IterDomain:
    sizes: list[Extent] = []
    for axis in operands:
        if not axis.is_broadcast or axis.expanded is not None:
            sizes.append(axis.visible_extent)
    chosen = next((s for s in sizes if isinstance(s, int)), sizes[0] if sizes else 1)
    for size in sizes:
        if not same_extent(size, chosen):
            msg = f"{op}: operands have sizes {chosen} and {size} on axis {position}; they must be equal or 1."
            raise DefinitionError(msg)
    if all(axis.is_broadcast for axis in operands):
        return axes.fresh(1, IterType.BROADCAST, chosen if sizes else None)
    return axes.fresh(chosen)


def match_ranks(rec: Recorder, operands: Sequence[Val]) -> tuple[Val, ...]:
    """Return operands with broadcast axes prepended so that all tensors have the same rank."""
    rank = max((v.ndim for v in operands if isinstance(v, TensorView)), default=0)
    return tuple(
        broadcast(rec, v, [True] * (rank - v.ndim) + [False] * v.ndim)
        if isinstance(v, TensorView) and v.ndim < rank
        else v
        for v in operands
    )


def common_dtype(operands: Sequence[Val], promotion: Promotion, *, widen: bool = True) -> DataType:
    """Return the dtype that operands are converted to."""
    found = promote(((v.dtype, category(v)) for v in operands), widen=widen)
    if promotion is Promotion.FLOAT and found.kind in {Kind.BOOL, Kind.INTEGER}:
        return DataType.Float
    return found


def category(value: Val) -> Category:
    """Return how strongly a value takes part in promotion."""
    if isinstance(value, Scalar):
        return Category.SCALAR
    return Category.TENSOR if value.ndim else Category.ZERO_DIM


def convert(rec: Recorder, value: Val, dtype: DataType) -> Val:
    """Return ``value`` in ``dtype``: constants are rewritten, anything else gets a Cast expression."""
    if value.dtype is dtype:
        return value
    if isinstance(value, Scalar) and value.value is not None:
        return Scalar(name="", dtype=dtype, value=_convert_number(value.value, dtype))
    return rec.emit(CAST, [value], dtype=dtype)[0]


def _convert_number(value: Number, dtype: DataType) -> Number:
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        value = value.real
    if dtype.is_float:
        return float(value)
    if dtype is DataType.Bool:
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"{value} has no value of dtype {dtype!r}."
        raise DefinitionError(msg)
    return int(value)


def _operands(rec: Recorder, op: str, values: Sequence[Operand], promotion: Promotion) -> tuple[Val, ...]:
    names = ("x",) if len(values) == 1 else ("lhs", "rhs") if len(values) == 2 else ("x", "y", "z")  # noqa: PLR2004
    operands = tuple(rec.value(v, op, n) for v, n in zip(values, names, strict=True))
    if promotion is Promotion.BITWISE and any(v.dtype.kind > Kind.INTEGER for v in operands):
        given = ", ".join(repr(v.dtype) for v in operands)
        msg = f"{op}: integer or boolean input is required, given {given}."
        raise DefinitionError(msg)
    if promotion is Promotion.LOGICAL:
        operands = tuple(convert(rec, v, DataType.Bool) for v in operands)
    elif promotion is not Promotion.KEEP:
        # Equal dtypes still widen: add(half, half) is Float.
        dtype = common_dtype(operands, promotion)
        operands = tuple(convert(rec, v, dtype) for v in operands)
    return match_ranks(rec, operands)


def _infer(op: str, result: ResultType) -> Callable[[tuple[Val, ...], Attrs, AxisFactory], tuple[Result, ...]]:
    def infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
        del attrs
        dtype = inputs[-1].dtype
        if result is ResultType.BOOL:
            dtype = DataType.Bool
        elif result is ResultType.REAL and dtype.is_complex:
            dtype = DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
        if all(isinstance(v, Scalar) for v in inputs):
            return (Result(dtype),)
        return (Result(dtype, pointwise_domain(op, inputs, axes)),)

    return infer


def pointwise(  # noqa: PLR0913 - one record, one call
    name: str,
    scalar: Callable[..., Term],
    reference: Callable[..., Any],
    doc: str,
    promotion: Promotion = Promotion.DEFAULT,
    result: ResultType = ResultType.SAME,
    arity: int = 1,
) -> OpDef:
    """Register a unary or binary pointwise op and return its record."""
    if arity == 1:

        def unary(rec: Recorder, x: Operand, /) -> Val:
            return rec.emit(entry, _operands(rec, name, (x,), promotion))[0]

        frontend: Callable[..., Val] = unary
    else:

        def binary(rec: Recorder, lhs: Operand, rhs: Operand, /) -> Val:
            return rec.emit(entry, _operands(rec, name, (lhs, rhs), promotion))[0]

        frontend = binary
    entry = OpDef(
        name=name,
        kind=OpKind.POINTWISE,
        frontend=frontend,
        infer=_infer(name, result),
        reference=reference,
        scalar=scalar,
        doc=doc,
        positional_only=True,
    )
    return register(entry)


def _math(fn: str) -> Callable[[Term], Term]:
    return lambda x: t.apply(fn, x)


def _binary(fn: str) -> Callable[[Term, Term], Term]:
    return lambda a, b: t.apply(fn, a, b)


FLOAT, KEEP, BOOL = Promotion.FLOAT, Promotion.KEEP, ResultType.BOOL

for _name, _reference, _doc in (
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
):
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
    KEEP,
)
for _name, _reference, _doc in (
    ("ceil", np.ceil, "Smallest integer not below x."),
    ("floor", np.floor, "Largest integer not above x."),
    ("round", np.rint, "Nearest integer, ties to even."),
    ("trunc", np.trunc, "Integer part."),
):
    pointwise(_name, _math(_name), _reference, _doc, KEEP)
pointwise("frac", lambda x: x - t.apply("trunc", x), lambda x: x - np.trunc(x), "Fractional part.", KEEP)
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
for _name, _reference, _sign in (
    ("eq", np.equal, "=="),
    ("ne", np.not_equal, "!="),
    ("lt", np.less, "<"),
    ("le", np.less_equal, "<="),
    ("gt", np.greater, ">"),
    ("ge", np.greater_equal, ">="),
):
    pointwise(_name, _binary(_name), _reference, f"Whether lhs {_sign} rhs.", result=BOOL, arity=2)
for _name, _reference in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    pointwise(
        f"bitwise_{_name}", _binary(_name), _reference, f"Bitwise {_name}.", Promotion.BITWISE, arity=2,
    )
for _name, _reference in (("and", np.logical_and), ("or", np.logical_or)):
    pointwise(
        f"logical_{_name}", _binary(_name), _reference, f"Logical {_name}.", Promotion.LOGICAL, BOOL, arity=2,
    )


def _where(rec: Recorder, condition: Operand, x: Operand, y: Operand, /) -> Val:
    chooser = rec.value(condition, "where", "condition")
    if chooser.dtype is not DataType.Bool:
        msg = f"where: condition should be of DataType.Bool, given {chooser.dtype!r}."
        raise DefinitionError(msg)
    a, b = rec.value(x, "where", "x"), rec.value(y, "where", "y")
    dtype = common_dtype((a, b), Promotion.DEFAULT, widen=False)
    operands = match_ranks(rec, (chooser, convert(rec, a, dtype), convert(rec, b, dtype)))
    return rec.emit(WHERE, operands)[0]


WHERE = register(
    OpDef(
        name="where",
        kind=OpKind.POINTWISE,
        frontend=_where,
        infer=_infer("where", ResultType.SAME),
        reference=np.where,
        scalar=t.select,
        doc="x where condition is true, else y.",
        positional_only=True,
    ),
)


def _cast(rec: Recorder, arg: Operand, dtype: DataType) -> Val:
    value = rec.value(arg, "cast", "arg")
    if not isinstance(dtype, DataType):
        msg = f"cast: dtype must be a DataType, given {type(dtype).__name__}."
        raise ArgumentTypeError(msg)
    if dtype is DataType.Null:
        msg = "cast: DataType.Null is not a dtype that values can have."
        raise DefinitionError(msg)
    return rec.emit(CAST, [value], dtype=dtype)[0]


def _infer_cast(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    dtype = attrs["dtype"]
    if not isinstance(dtype, DataType):
        msg = f"cast: dtype must be a DataType, given {dtype!r}."
        raise DefinitionError(msg)
    if isinstance(inputs[0], Scalar):
        return (Result(dtype),)
    return (Result(dtype, pointwise_domain("cast", inputs, axes)),)


def _reference_cast(x: Array, *, dtype: DataType) -> Array:
    if np.iscomplexobj(x) and not dtype.is_complex and dtype is not DataType.Bool:
        x = x.real
    return np.asarray(x).astype(dtype.numpy)


CAST = register(
    OpDef(
        name="cast",
        kind=OpKind.POINTWISE,
        frontend=_cast,
        infer=_infer_cast,
        reference=_reference_cast,
        scalar=lambda x, *, dtype: t.cast(x, dtype),
        doc="x converted to dtype; narrowing floats rounds to nearest even, complex loses its imaginary part.",
    ),
)


def _clamp(rec: Recorder, x: Operand, min: Operand = None, max: Operand = None, /) -> Val:  # noqa: A002
    value = rec.value(x, "clamp", "x")
    result: Val = value
    for bound, op in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            limit = convert(rec, rec.value(bound, "clamp", op), value.dtype)
            result = convert(rec, _emit(rec, op, result, limit), value.dtype)
    return result


def _emit(rec: Recorder, name: str, *operands: Operand) -> Val:
    from fuser_lab.ops.registry import OPS  # noqa: PLC0415

    result: Val = OPS[name].frontend(rec, *operands)
    return result


def _threshold(rec: Recorder, x: Operand, threshold: Operand, value: Operand, /) -> Val:
    tensor = rec.value(x, "threshold", "x")
    fill = convert(rec, rec.value(value, "threshold", "value"), tensor.dtype)
    return _emit(rec, "where", _emit(rec, "le", tensor, threshold), fill, tensor)


def _lerp(rec: Recorder, start: Operand, end: Operand, weight: Operand, /) -> Val:
    return _emit(rec, "add", start, _emit(rec, "mul", weight, _emit(rec, "sub", end, start)))


def _addcmul(rec: Recorder, x: Operand, y: Operand, z: Operand, alpha: Operand, /) -> Val:
    return _emit(rec, "add", x, _emit(rec, "mul", y, _emit(rec, "mul", z, alpha)))


def _sign(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "sign", "x")
    negative = _emit(rec, "where", _emit(rec, "lt", value, 0), -1, 0)
    return convert(rec, _emit(rec, "where", _emit(rec, "gt", value, 0), 1, negative), value.dtype)


for _entry in (
    Composite(name="clamp", frontend=_clamp, doc="x limited to [min, max]; None leaves a side open."),
    Composite(name="threshold", frontend=_threshold, doc="value where x <= threshold, else x."),
    Composite(name="lerp", frontend=_lerp, doc="start + weight * (end - start)."),
    Composite(name="addcmul", frontend=_addcmul, doc="x + alpha * y * z."),
    Composite(name="sign", frontend=_sign, doc="-1, 0 or 1, in x's dtype."),
):
    register_composite(_entry)

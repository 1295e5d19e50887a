"""Type promotion, the common parts of pointwise ops, and the cast op that promotion inserts."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import Category, DataType, Kind, narrow, promote
from fuser_lab.errors import DefinitionError, warn
from fuser_lab.ir import Expr, IterDomain, IterType, Number, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import check_range, element_type
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.operands import joined_extent, same_extent
from fuser_lab.ops.pointwise_calls import (
    CAST_SAMPLES,
    binary_samples,
    unary_samples,
)
from fuser_lab.ops.registry import COPY, OpDef, Recorder, Sample, Step, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, InferRule, Operand, Result


class Promotion(enum.Enum):
    """The dtype to which operands are converted before the op (reference: nvFuser's TypePromotionConfig)."""

    DEFAULT = "default"
    FLOAT = "float"  # bool and integers become Float
    KEEP = "keep"  # no conversion at all
    FLOATING = "floating"  # no conversion; floating point or complex operands required
    FLOAT_ONLY = "float only"  # Float or Double required after conversion
    BITWISE = "bitwise"  # bool or integer operands required
    INTEGRAL = "integral"  # integer operands required
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
    if len(tensors) == 1:
        return TensorDomain(logical=tuple([axes.copy(axis) for axis in tensors[0].domain.axes]))
    return TensorDomain(
        logical=tuple(
            _joined_axis(op, position, [tv.domain.axes[position] for tv in tensors], axes)
            for position in range(tensors[0].ndim)
        ),
    )


def _joined_axis(op: str, position: int, operands: Sequence[IterDomain], axes: AxisFactory) -> IterDomain:
    sizes = [axis.visible_extent for axis in operands if not axis.is_broadcast or axis.expanded is not None]
    chosen = next((s for s in sizes if isinstance(s, int)), sizes[0] if sizes else 1)
    for size in sizes:
        if not same_extent(size, chosen):
            msg = f"{op}: operands have sizes {chosen} and {size} on axis {position}; they must be equal or 1."
            raise DefinitionError(msg)
    if all(axis.is_broadcast for axis in operands):
        return axes.fresh(1, IterType.BROADCAST, joined_extent(operands, axes) if sizes else None)
    if not any(axis.kind is IterType.SYMBOLIC for axis in operands):
        return axes.fresh(joined_extent(operands, axes))
    # An axis of unknown size broadcasts to the others if its size turns out to be 1.
    plain = [axis.extent for axis in operands if axis.kind is IterType.ITERATION]
    if plain:
        return axes.fresh(next((s for s in plain if isinstance(s, int)), plain[0]))
    return axes.fresh(chosen if len(set(sizes)) == 1 else axes.symbol(), IterType.SYMBOLIC)


def match_ranks(rec: Recorder, operands: Sequence[Val]) -> tuple[Val, ...]:
    """Return operands with broadcast axes prepended so that all tensors have the same rank."""
    rank = max((v.ndim for v in operands if isinstance(v, TensorView)), default=0)
    return tuple(
        broadcast(rec, v, [True] * (rank - v.ndim) + [False] * v.ndim)
        if isinstance(v, TensorView) and v.ndim < rank
        else v
        for v in operands
    )


def common_dtype(op: str, operands: Sequence[Val], promotion: Promotion, *, widen: bool = True) -> DataType:
    """Return the dtype that operands are converted to.

    Raises
    ------
    DefinitionError
        If they have none in common, or the op does not accept it.
    """
    try:
        common = promote(((v.dtype, category(v)) for v in operands), widen=widen)
    except DefinitionError as error:
        raise DefinitionError(f"{op}: {error}") from None
    if promotion is Promotion.FLOAT_ONLY and common not in {DataType.Float, DataType.Double}:
        raise DefinitionError(f"{op}: operands must promote to Float or Double, given {_dtypes(operands)}.")
    if promotion is Promotion.FLOAT and common.kind in {Kind.BOOL, Kind.INTEGER}:
        return DataType.Float
    return common


def category(value: Val) -> Category:
    """Return how strongly a value takes part in promotion."""
    if isinstance(value, Scalar):
        return Category.SCALAR
    return Category.TENSOR if value.ndim else Category.ZERO_DIM


def convert(rec: Recorder, value: Val, dtype: DataType, op: str, argument: str) -> Val:
    """Return an argument of an op in ``dtype``: constants are rewritten, anything else gets a Cast expression.

    Raises
    ------
    DefinitionError
        If a constant has no value of that dtype.
    """
    constant = isinstance(value, Scalar) and value.value is not None
    # A narrow constant is rounded here, however it was defined.
    if value.dtype is dtype and not (constant and dtype.is_reduced_float):
        return value
    if isinstance(value, Scalar) and value.value is not None:
        return Scalar(name="", dtype=dtype, value=convert_number(value.value, dtype, op, argument))
    return rec.emit(CAST, [value], dtype=dtype)[0]


def convert_number(value: Number, dtype: DataType, op: str, argument: str) -> Number:
    """Return a number as a value of a dtype, or raise DefinitionError."""
    try:
        return _convert(value, dtype, op, argument)
    except OverflowError:
        msg = f"{op}: {argument} is {short_text(value)}, which is too large for dtype {dtype!r}."
        raise DefinitionError(msg) from None


def _convert(value: Number, dtype: DataType, op: str, argument: str) -> Number:
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        value = value.real
    if dtype.is_reduced_float:
        return float(narrow(np.asarray(value, np.float32), dtype))
    if dtype.is_float:
        return float(value)
    if dtype is DataType.Bool:
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise DefinitionError(f"{op}: {argument} is {short_text(value)}, which has no value of dtype {dtype!r}.")
    check_range(int(value), dtype, op, argument)
    return int(value)


_ACCEPTED = {
    Promotion.BITWISE: ({Kind.BOOL, Kind.INTEGER}, "integer or boolean"),
    Promotion.INTEGRAL: ({Kind.INTEGER}, "integer"),
    Promotion.FLOATING: ({Kind.FLOAT, Kind.COMPLEX}, "floating point"),
}


def _dtypes(operands: Sequence[Val]) -> str:
    return ", ".join(repr(v.dtype) for v in operands)


def promote_operands(
    rec: Recorder, op: str, values: Mapping[str, Operand], promotion: Promotion, *, takes_complex: bool = True,
) -> tuple[Val, ...]:
    """Return operands, given by the names of their arguments, in the dtype and rank that an op computes in.

    Raises
    ------
    DefinitionError
        If the op does not accept their dtypes.
    """
    operands = tuple(rec.value(v, op, name) for name, v in values.items())
    kinds, accepted = _ACCEPTED.get(promotion, (set(Kind), "any"))
    if not {v.dtype.kind for v in operands} <= kinds:
        raise DefinitionError(f"{op}: {accepted} input is required, given {_dtypes(operands)}.")
    if not takes_complex and any(v.dtype.is_complex for v in operands):
        raise DefinitionError(f"{op}: complex input is not supported, given {_dtypes(operands)}.")
    if promotion in {Promotion.KEEP, Promotion.FLOATING}:
        return match_ranks(rec, operands)
    # Equal dtypes still widen: add(half, half) is Float.
    dtype = DataType.Bool if promotion is Promotion.LOGICAL else common_dtype(op, operands, promotion)
    return match_ranks(
        rec, [convert(rec, v, dtype, op, name) for name, v in zip(values, operands, strict=True)],
    )


def infer_pointwise(op: str, result: ResultType) -> InferRule:
    """Return the typing rule of a pointwise op: the last operand's dtype, the joined axes."""
    def infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
        del attrs
        dtype = inputs[-1].dtype
        if result is ResultType.BOOL:
            dtype = DataType.Bool
        elif result is ResultType.REAL:
            dtype = dtype.real
        if all(isinstance(v, Scalar) for v in inputs):
            return (Result(dtype),)
        return (Result(dtype, pointwise_domain(op, inputs, axes)),)

    return infer


def pointwise(
    name: str,
    scalar: Callable[..., Term],
    reference: Callable[..., Any],
    doc: str,
    promotion: Promotion = Promotion.DEFAULT,
    result: ResultType = ResultType.SAME,
    arity: int = 1,
    *,
    takes_complex: bool = True,
    domain: Sequence[tuple[float, float]] = (),
) -> OpDef:
    """Register a unary or binary pointwise op and return its record.

    Parameters
    ----------
    name, doc
        Name in ``fd.ops``, and one sentence.
    scalar, reference
        The formula for one element, from terms of the converted operands, and the NumPy function.
    promotion, result
        The dtype to which operands are converted, and the dtype of the result.
    arity
        1 or 2.
    takes_complex
        Whether the op has a meaning for complex numbers.
    domain
        Range of the values in samples, per operand, if it is not -3 to 3.
    """
    if arity == 1:

        def unary(rec: Recorder, x: Operand, /) -> Val:
            return rec.emit(entry, promote_operands(rec, name, {"x": x}, promotion, takes_complex=takes_complex))[0]

        frontend: Callable[..., Val] = unary
    else:

        def binary(rec: Recorder, lhs: Operand, rhs: Operand, /) -> Val:
            operands = {"lhs": lhs, "rhs": rhs}
            return rec.emit(entry, promote_operands(rec, name, operands, promotion, takes_complex=takes_complex))[0]

        frontend = binary
    kinds = frozenset(_ACCEPTED.get(promotion, (set(Kind), ""))[0]) - ({Kind.COMPLEX} if not takes_complex else set())
    if promotion is Promotion.FLOAT_ONLY:
        kinds = frozenset({Kind.FLOAT})
    entry = pointwise_of(
        name, frontend, scalar, reference, doc, result,
        samples=unary_samples(name, kinds, domain) if arity == 1 else binary_samples(name, kinds, domain),
    )
    return entry


def pointwise_of(
    name: str,
    frontend: Callable[..., Any],
    scalar: Callable[..., Term],
    reference: Callable[..., Any],
    doc: str,
    result: ResultType = ResultType.SAME,
    *,
    samples: tuple[Sample, ...],
) -> OpDef:
    """Register a pointwise op whose operands ``frontend`` converts, and return its record."""
    return register(OpDef(
        name=name, kind=OpKind.POINTWISE, frontend=frontend, infer=infer_pointwise(name, result), reference=reference,
        scalar=scalar, doc=doc, samples=samples, positional_only=True,
    ))


def _cast(rec: Recorder, arg: Operand, dtype: DataType) -> Val:
    value, target = rec.value(arg, "cast", "arg"), element_type(dtype, "cast")
    if value.dtype.is_complex and target is not DataType.Bool and not target.is_complex:
        msg = f"cast: {value.dtype!r} to {target!r} drops the imaginary part."
        warn(msg, np.exceptions.ComplexWarning)
    return rec.emit(CAST, [value], dtype=target)[0]


def _infer_cast(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    dtype = attrs["dtype"]
    if not isinstance(dtype, DataType):
        raise DefinitionError(f"cast: dtype must be a DataType, given {dtype!r}.")
    if isinstance(inputs[0], Scalar):
        return (Result(dtype),)
    return (Result(dtype, pointwise_domain("cast", inputs, axes)),)


def _built_cast(recorded: Expr, bound: Expr) -> tuple[Step, ...] | None:
    """Return a copy for a cast to the tensor's dtype (csrc/ops/arith.cpp:28-31)."""
    del recorded
    return COPY if bound.out.dtype is bound.inputs[0].dtype else None


def _reference_cast(x: Array, *, dtype: DataType) -> Array:
    if np.iscomplexobj(x) and not dtype.is_complex and dtype is not DataType.Bool:
        x = x.real
    return narrow(np.asarray(x), dtype)


CAST = register(
    OpDef(
        name="cast",
        kind=OpKind.POINTWISE,
        frontend=_cast,
        infer=_infer_cast,
        reference=_reference_cast,
        builds=_built_cast,
        scalar=lambda x, *, dtype: t.cast(x, dtype),
        doc="x converted to dtype; narrowing floats round to nearest even, complex numbers lose their imaginary part.",
        samples=CAST_SAMPLES,
    ),
)

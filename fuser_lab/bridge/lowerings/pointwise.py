"""ATen's pointwise ops.

Torch computes in the dtype to which operands are promoted; if that is the result's, operands are cast to it first.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser_lab.bridge.lowerings.registry import (
    DTYPES,
    Call,
    Emitter,
    TracedTensor,
    by_op,
    in_its_own_dtype,
    lowering,
    whole_power,
)
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.targets import has_own_memory, is_on_host

# Ops of one operand with the name of the op here: those whose operand is cast to the result's dtype first, those of the
# operand's dtype, and those of any dtype.
_FLOAT = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
    "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)
_OF_OPERANDS_DTYPE = ("abs", "ceil", "floor", "neg", "relu", "round", "trunc", "bitwise_not")
_OF_ANY_DTYPE = ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit", "logical_not", "silu")


def _float_function(name: str) -> Callable[..., Any]:
    return lambda to, x: getattr(to.ops, name)(to.cast(x, to.dtype))


for _name in _FLOAT:
    lowering(f"aten.{_name}.default")(_float_function(_name))


def _same_dtype(name: str) -> Callable[..., Any]:
    def lower(to: Emitter, x: Any) -> Any:
        if x.dtype is DataType.Bool and name != "bitwise_not":
            return to.ops.set(x)
        return getattr(to.ops, name)(x)

    return lower


for _name in _OF_OPERANDS_DTYPE:
    lowering(f"aten.{_name}.default")(_same_dtype(_name))
for _name in _OF_ANY_DTYPE:
    lowering(f"aten.{_name}.default")(by_op(_name))


@lowering("aten.sign.default", "aten.sgn.default")
def _sign(to: Emitter, x: Any) -> Any:
    if x.dtype is DataType.Bool:
        return to.ops.set(x)
    unit, zero = (1.0, 0.0) if x.dtype.is_float else (1, 0)
    # In torch, the sign of NaN is 0.
    return to.ops.where(to.ops.gt(x, zero), unit, to.ops.where(to.ops.lt(x, zero), -unit, zero))


@lowering("aten.angle.default")
def _angle(to: Emitter, x: Any) -> Any:
    x = to.cast(x, to.dtype)
    return to.ops.where(to.ops.isnan(x), x, to.ops.where(to.ops.lt(x, 0.0), math.pi, 0.0))


@lowering("aten.frac.default")
def _frac(to: Emitter, x: Any) -> Any:
    return to.ops.sub(x, to.ops.trunc(x))


@lowering("aten.round.decimals")
def _round(to: Emitter, x: Any, *, decimals: int = 0) -> Any:
    power = 10.0 ** abs(decimals)
    if decimals < 0:
        return to.ops.mul(to.ops.round(to.ops.truediv(x, power)), power)
    return to.ops.truediv(to.ops.round(to.ops.mul(x, power)), power)


@lowering("aten.gelu.default")
def _gelu(to: Emitter, x: Any, *, approximate: str = "none") -> Any:
    ops = to.ops
    x = to.cast(x, x.dtype.compute)
    if approximate == "tanh":
        inner = ops.mul(math.sqrt(2 / math.pi), ops.add(x, ops.mul(0.044715, ops.mul(ops.mul(x, x), x))))
        return ops.mul(ops.mul(0.5, x), ops.add(1.0, ops.tanh(inner)))
    return ops.mul(ops.mul(0.5, x), ops.add(1.0, ops.erf(ops.mul(x, math.sqrt(0.5)))))


# Arithmetic

def _operands(to: Emitter, *values: Any) -> list[Any]:
    """Return operands in the result's dtype; numbers are converted to its kind."""
    return [to.cast(value, to.dtype) if not isinstance(value, bool | int | float) else _number(value, to.dtype)
            for value in values]  # fmt: skip


def _rounded_operands(to: Emitter, *values: Any) -> list[Any]:
    """Return operands as `_operands`, with numbers rounded to the dtype of the result, as in torch."""
    operands = _operands(to, *values)
    with np.errstate(over="ignore"):
        return [float(np.asarray(v).astype(to.dtype.numpy)) if type(v) is float else v for v in operands]


def _terms(to: Emitter, *values: Any) -> list[Any]:
    """Return the operands of a sum: eager rounds numbers on the CPU, but not on a GPU."""
    on_gpu = has_own_memory(to.call.result.device)
    return _operands(to, *values) if on_gpu else _rounded_operands(to, *values)


def _number(value: Any, dtype: DataType) -> Any:
    """Return a number in a dtype; of an integer, torch keeps the low bits."""
    if dtype.is_float:
        return float(value)
    if dtype is DataType.Bool:
        return bool(value)
    low, high = dtype.limits
    return (int(value) - low) % (high - low + 1) + low


def _is_truth(call: Call) -> bool:
    return call.result.dtype == "bool"


def _scale(to: Emitter, x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else to.ops.mul(x, _number(alpha, to.dtype))


def _no_infinite_ints(call: Call) -> str | None:
    """Refuse a float argument of an integer result, which torch refuses or rounds in its own way."""
    numbers = [value for value in call.args if isinstance(value, float)]
    if not call.result.is_float and numbers:
        return "a float number meets integers"
    return None


def _arithmetic(call: Call) -> str | None:
    if _is_truth(call):
        return "it computes with bools"
    return _no_infinite_ints(call)


def _division(call: Call) -> str | None:
    """Refuse what `_arithmetic` does, and on the host integers divided by what may be 0, for which torch raises."""
    divisor = call.args[1]
    may_be_zero = isinstance(divisor, TracedTensor) or not _number(divisor, DTYPES[call.result.dtype])
    if may_be_zero and not call.result.is_float and is_on_host(call.result.device):
        return "torch raises an error if it divides an integer by 0"
    return _arithmetic(call)


@lowering("aten.add.Tensor", "aten.add.Scalar", refuse=_no_infinite_ints)
def _add(to: Emitter, x: Any, y: Any, alpha: Any = 1) -> Any:
    a, b = _terms(to, x, y)
    return to.ops.logical_or(a, b) if to.dtype is DataType.Bool else to.ops.add(a, _scale(to, b, alpha))


@lowering("aten.sub.Tensor", "aten.sub.Scalar", refuse=_arithmetic)
def _sub(to: Emitter, x: Any, y: Any, alpha: Any = 1) -> Any:
    a, b = _terms(to, x, y)
    return to.ops.sub(a, _scale(to, b, alpha))


@lowering("aten.rsub.Tensor", "aten.rsub.Scalar", refuse=_arithmetic)
def _rsub(to: Emitter, x: Any, y: Any, alpha: Any = 1) -> Any:
    a, b = _terms(to, x, y)
    return to.ops.sub(b, _scale(to, a, alpha))


@lowering("aten.mul.Tensor", "aten.mul.Scalar", refuse=_no_infinite_ints)
def _mul(to: Emitter, x: Any, y: Any) -> Any:
    a, b = _operands(to, x, y)
    return to.ops.logical_and(a, b) if to.dtype is DataType.Bool else to.ops.mul(a, b)


@lowering("aten.div.Tensor", "aten.div.Scalar")
def _div(to: Emitter, x: Any, y: Any) -> Any:
    inverse = _inverse(to, y)
    return to.ops.truediv(*_operands(to, x, y)) if inverse is None else to.ops.mul(*_operands(to, x, inverse))


def _inverse(to: Emitter, divisor: Any) -> float | None:
    """Return eager's multiplier for division by a number: on a GPU, its rounded reciprocal."""
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or not to.dtype.is_float:
        return None
    if not has_own_memory(to.call.result.device):
        return None
    kind = np.float64 if to.dtype is DataType.Double else np.float32
    with np.errstate(all="ignore"):
        return float(kind(1) / kind(divisor))


@lowering("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default", refuse=_division)
def _div_mode(to: Emitter, x: Any, y: Any, rounding_mode: str | None = "floor") -> Any:
    ops = to.ops
    a, b = _operands(to, x, y)
    if rounding_mode is None:
        return ops.truediv(a, b)
    if to.dtype.is_integral:
        quotient = ops.div(a, b)
        if rounding_mode == "trunc":
            return quotient
        left = ops.sub(a, ops.mul(quotient, b))
        down = ops.logical_and(ops.ne(left, 0), ops.ne(ops.lt(left, 0), ops.lt(b, 0)))
        return ops.where(down, ops.sub(quotient, 1), quotient)
    if rounding_mode == "trunc":
        return ops.trunc(ops.truediv(a, b))
    return ops.floor_divide(a, b)


@lowering("aten.remainder.Tensor", "aten.remainder.Scalar", refuse=_division)
def _remainder(to: Emitter, x: Any, y: Any) -> Any:
    return to.ops.remainder(*_rounded_operands(to, x, y))


@lowering("aten.fmod.Tensor", "aten.fmod.Scalar", refuse=_division)
def _fmod(to: Emitter, x: Any, y: Any) -> Any:
    return to.ops.fmod(*_rounded_operands(to, x, y))


def _powers(call: Call) -> str | None:
    exponent = call.args[1]
    if call.result.is_float or (type(exponent) is int and exponent >= 0 and isinstance(call.args[0], TracedTensor)):
        return None
    return "it is a power of integers with an exponent that is a tensor or negative"


@lowering("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar", refuse=_powers)
def _pow(to: Emitter, x: Any, y: Any) -> Any:
    if not to.dtype.is_float:
        return whole_power(to, to.cast(x, to.dtype), y)
    a, b = _rounded_operands(to, x, y)
    if not isinstance(b, float):
        return to.ops.pow(a, b)
    if b == 1.0:
        return to.ops.set(a)
    if b in {2.0, 3.0}:
        square = to.ops.mul(a, a)
        return square if b == 2.0 else to.ops.mul(square, a)
    return to.ops.sqrt(a) if b == 0.5 else to.ops.pow(a, b)


@lowering("aten.hypot.default")
def _hypot(to: Emitter, x: Any, y: Any) -> Any:
    ops, dtype = to.ops, to.dtype.compute
    a, b = (ops.abs(to.cast(value, dtype)) for value in (x, y))
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    ratio = ops.truediv(small, large)  # at most 1, so no square overflows
    length = ops.mul(large, ops.sqrt(ops.add(1.0, ops.mul(ratio, ratio))))
    # Infinities have no ratio, and neither have zeros; beside NaN, an infinity is still the longer side.
    length = ops.where(ops.eq(large, 0.0), large, length)
    return ops.where(ops.logical_or(ops.isinf(a), ops.isinf(b)), math.inf, length)


for _name in ("maximum", "minimum", "atan2", "nextafter", "gcd"):
    _refused = in_its_own_dtype if _name == "nextafter" else _arithmetic
    lowering(f"aten.{_name}.default", refuse=_refused)(
        lambda to, x, y, name=_name: getattr(to.ops, name)(*_operands(to, x, y)),
    )


def _skipping_nan(name: str) -> Callable[..., Any]:
    def lower(to: Emitter, x: Any, y: Any) -> Any:
        a, b = _operands(to, x, y)
        ops = to.ops
        return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, getattr(ops, name)(a, b)))

    return lower


for _name, _own in (("fmax", "maximum"), ("fmin", "minimum")):
    lowering(f"aten.{_name}.default", refuse=_arithmetic)(_skipping_nan(_own))


@lowering("aten.copysign.Tensor", "aten.copysign.Scalar")
def _copysign(to: Emitter, x: Any, y: Any) -> Any:
    a, b = _operands(to, x, y)
    size = to.ops.abs(a)
    if isinstance(b, float):
        return to.ops.neg(size) if math.copysign(1, b) < 0 else size
    return to.ops.where(to.ops.signbit(b), to.ops.neg(size), size)


# Comparisons compute in the dtype to which their operands are promoted, which the result does not show.

def _promote(to: Emitter, *values: Any) -> list[Any]:
    tensors = [v for v in to.call.args[: len(values)] if isinstance(v, TracedTensor)]
    kinds = [_kind(v) for v in to.call.args[: len(values)]]
    with_axes = [v for v in tensors if v.ndim] or tensors
    if max(kinds) is Kind.FLOAT and all(not v.is_float for v in with_axes):
        # A number or a 0-d tensor determines the kind but not the width, which is that of torch's default dtype.
        wide = next((v.dtype for v in tensors if v.is_float), "float32")
        dtype = DataType.Double if wide == "float64" else DataType.Float
        return [to.cast(v, dtype) for v in values]
    if len(with_axes) == 1 and _kind(with_axes[0]) is max(kinds) is Kind.INTEGER:
        # A number or a 0-d tensor of the same kind is converted to the dtype of the tensor.
        dtype = DTYPES[with_axes[0].dtype]
        return [_number(v, dtype) if isinstance(v, bool | int) else to.cast(v, dtype) for v in values]
    return list(values)


def _kind(value: Any) -> Kind:
    if isinstance(value, TracedTensor):
        return Kind.FLOAT if value.is_float else Kind.BOOL if value.dtype == "bool" else Kind.INTEGER
    return Kind.FLOAT if isinstance(value, float) else Kind.BOOL if isinstance(value, bool) else Kind.INTEGER


def _comparable(call: Call) -> str | None:
    tensors = [v for v in call.args[:2] if isinstance(v, TracedTensor)]
    reduced = {"float16", "bfloat16"}
    for value in call.args[:2]:
        if isinstance(value, float) and tensors[0].dtype in reduced and math.isfinite(value):
            return None if _fits(value, tensors[0].dtype) else f"{value} is rounded to {tensors[0].dtype} first"
    return None


def _fits(value: float, dtype: str) -> bool:
    mantissa, _ = math.frexp(value)
    return (mantissa * (1 << (11 if dtype == "float16" else 8))).is_integer() and abs(value) < 65504


def _shifts_fractions(call: Call) -> str | None:
    return "it shifts values that are not integers" if call.result.is_float else None


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowering(
        f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", refuse=_comparable,
    )(lambda to, x, y, name=_name: getattr(to.ops, name)(*_promote(to, x, y)))  # fmt: skip
for _name in ("and", "or", "xor"):
    lowering(
        f"aten.bitwise_{_name}.Tensor", f"aten.bitwise_{_name}.Scalar",
    )(lambda to, x, y, name=_name: getattr(to.ops, f"bitwise_{name}")(*_operands(to, x, y)))  # fmt: skip
for _side, _short in (("left", "l"), ("right", "r")):
    for _aten in (f"aten.bitwise_{_side}_shift", f"aten.__{_short}shift__"):
        _scalar = "Tensor_Scalar" if "bitwise" in _aten else "Scalar"
        lowering(
            f"{_aten}.Tensor", f"{_aten}.{_scalar}", refuse=_shifts_fractions,
        )(lambda to, x, y, name=f"bitwise_{_side}_shift": to.shift(name, *_operands(to, x, y)))  # fmt: skip
for _name in ("and", "or"):
    lowering(f"aten.logical_{_name}.default")(
        lambda to, x, y, name=_name: getattr(to.ops, f"logical_{name}")(
            to.cast(x, DataType.Bool), to.cast(y, DataType.Bool),
        ),
    )


@lowering("aten.logical_xor.default")
def _logical_xor(to: Emitter, x: Any, y: Any) -> Any:
    return to.ops.ne(to.cast(x, DataType.Bool), to.cast(y, DataType.Bool))


# Choices

@lowering("aten.where.self")
def _where(to: Emitter, condition: Any, x: Any, y: Any) -> Any:
    return to.ops.where(condition, *_operands(to, x, y))


def _limit(to: Emitter, x: Any, low: Any, high: Any) -> Any:
    (x,) = _operands(to, x)
    # An upper bound below the lower one wins, as in torch.
    if low is not None:
        x = to.ops.maximum(x, *_operands(to, low))
    return x if high is None else to.ops.minimum(x, *_operands(to, high))


@lowering("aten.clamp.default", "aten.clamp.Tensor", refuse=_arithmetic)
def _clamp(to: Emitter, x: Any, min: Any = None, max: Any = None) -> Any:
    return _limit(to, x, min, max)


@lowering("aten.clamp_min.default", "aten.clamp_min.Tensor", refuse=_arithmetic)
def _clamp_min(to: Emitter, x: Any, min: Any) -> Any:
    return _limit(to, x, min, None)


@lowering("aten.clamp_max.default", "aten.clamp_max.Tensor", refuse=_arithmetic)
def _clamp_max(to: Emitter, x: Any, max: Any) -> Any:
    return _limit(to, x, None, max)


@lowering("aten.hardtanh.default", refuse=_arithmetic)
def _hardtanh(to: Emitter, x: Any, low: Any = -1.0, high: Any = 1.0) -> Any:
    return _limit(to, x, low, high)


@lowering("aten.leaky_relu.default")
def _leaky_relu(to: Emitter, x: Any, negative_slope: float = 0.01) -> Any:
    return to.ops.where(to.ops.gt(x, 0.0), x, to.ops.mul(x, float(negative_slope)))


@lowering("aten.elu.default")
def _elu(to: Emitter, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    ops = to.ops
    x = to.cast(x, x.dtype.compute)
    below = ops.mul(ops.expm1(ops.mul(x, float(input_scale))), float(alpha * scale))
    return ops.where(ops.gt(x, 0.0), ops.mul(x, float(scale)), below)


# Composites of torch

@lowering("aten.addcmul.default", refuse=_arithmetic)
def _addcmul(to: Emitter, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    a, b, c = _operands(to, x, y, z)
    return to.ops.add(a, _scale(to, to.ops.mul(b, c), value))


@lowering("aten.addcdiv.default", refuse=_arithmetic)
def _addcdiv(to: Emitter, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    a, b, c = _operands(to, x, y, z)
    return to.ops.add(a, _scale(to, to.ops.truediv(b, c), value))


@lowering("prims.fma.default")
def _fma(to: Emitter, x: Any, y: Any, z: Any) -> Any:
    a, b, c = _operands(to, x, y, z)
    return to.ops.add(to.ops.mul(a, b), c)

"""JAX's pointwise primitives.

Operands of a primitive have one dtype and the result's shape; a 0-d value that depends on no input may replace any.
"""

from typing import Any

from fuser_lab.bridge.lowerings.registry import (
    DTYPES,
    Call,
    Emitter,
    TracedTensor,
    by_op,
    in_its_own_dtype,
    primitive,
    whole_power,
)
from fuser_lab.definition.handles import Tensor
from fuser_lab.dtypes import DataType

# Primitives that are ops here, by the names of both.
_UNARY = {
    **{name: name for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2",
        "expm1", "floor", "lgamma", "log", "log1p", "neg", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
    )},
    "erf_inv": "erfinv", "is_finite": "isfinite", "logistic": "sigmoid", "not": "bitwise_not",
}
for _name, _op in _UNARY.items():
    primitive(_name)(by_op(_op))


@primitive("square")
def _square(to: Emitter, x: Any) -> Any:
    return to.ops.mul(x, x)


@primitive("sign")
def _sign(to: Emitter, x: Any) -> Any:
    unit, zero = (1.0, 0.0) if x.dtype.is_float else (1, 0)
    above, below = to.ops.gt(x, zero), to.ops.lt(x, zero)
    # NaN and both zeros are their own signs.
    return to.ops.where(above, unit, to.ops.where(below, -unit, x))


@primitive("round")
def _round(to: Emitter, x: Any) -> Any:
    ops = to.ops
    if int(to.call.option("rounding_method")) == 1:
        return ops.round(x)
    size = ops.abs(x)
    whole = ops.trunc(size)
    up = ops.where(ops.ge(ops.sub(size, whole), 0.5), ops.add(whole, 1.0), whole)
    return ops.where(ops.signbit(x), ops.neg(up), up)


def _inverted_ints(call: Call) -> str | None:
    return "it is a negative power of integers" if call.option("y") < 0 and not call.result.is_float else None


@primitive("integer_pow", refuse=_inverted_ints)
def _integer_pow(to: Emitter, x: Any) -> Any:
    exponent = to.call.option("y")
    power = whole_power(to, to.cast(x, x.dtype.compute) if x.dtype.is_float else x, abs(exponent))
    return to.ops.truediv(1.0, power) if exponent < 0 else power


# Arithmetic

def _numbers(call: Call) -> str | None:
    return "it computes with bools" if call.result.dtype == "bool" else None


_BINARY = {
    "add": "add", "add_any": "add", "mul": "mul", "sub": "sub", "max": "maximum", "min": "minimum", "atan2": "atan2",
}
for _name, _op in _BINARY.items():
    primitive(_name, refuse=_numbers, numbers=True)(by_op(_op))
primitive("nextafter", refuse=in_its_own_dtype, numbers=True)(by_op("nextafter"))


@primitive("div", numbers=True)
def _div(to: Emitter, x: Any, y: Any) -> Any:
    ops = to.ops
    if to.dtype.is_float:
        return ops.truediv(x, y)
    if not isinstance(y, Tensor):
        # Also for the least integer, whose quotient by -1 wraps.
        return ops.neg(x) if y == -1 else to.full(to.call.result.shape, -1, to.dtype) if y == 0 else ops.div(x, y)
    is_zero, is_minus = ops.eq(y, 0), ops.eq(y, -1)
    quotient = ops.div(x, ops.where(ops.logical_or(is_zero, is_minus), 1, y))
    negated = ops.neg(x) if isinstance(x, Tensor) else -x
    return ops.where(is_zero, -1, ops.where(is_minus, negated, quotient))


@primitive("rem", numbers=True)
def _rem(to: Emitter, x: Any, y: Any) -> Any:
    ops = to.ops
    if to.dtype.is_float:
        return ops.fmod(x, y)
    if not isinstance(y, Tensor):
        return ops.set(x) if y == 0 else ops.fmod(x, y) if abs(y) != 1 else ops.mul(x, 0)
    is_zero, is_minus = ops.eq(y, 0), ops.eq(y, -1)
    left = ops.fmod(x, ops.where(ops.logical_or(is_zero, is_minus), 1, y))
    return ops.where(is_zero, x, left)


def _float_power(call: Call) -> str | None:
    return None if call.result.is_float else "it is a power of integers"


@primitive("pow", refuse=_float_power, numbers=True)
def _pow(to: Emitter, x: Any, y: Any) -> Any:
    y = to.cast(y, to.dtype) if isinstance(y, Tensor) else float(y)
    return to.ops.pow(x, y)


@primitive("clamp", refuse=_numbers, numbers=True)
def _clamp(to: Emitter, low: Any, x: Any, high: Any) -> Any:
    return to.ops.minimum(to.ops.maximum(x, low), high)


for _name in ("and", "or", "xor"):
    primitive(_name, numbers=True)(by_op(f"bitwise_{_name}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    primitive(_name, numbers=True)(by_op(_name))


# Shifts: all bits are shifted out if the distance is the width or more, or negative.

def _sign_refusal(call: Call) -> str | None:
    return "a shift fills in zeros, and the integers have signs" if call.result.dtype != "uint8" else None


@primitive("shift_left", numbers=True)
def _shift_left(to: Emitter, x: Any, y: Any) -> Any:
    return to.shift("bitwise_left_shift", x, y)


@primitive("shift_right_arithmetic", numbers=True)
def _shift_right(to: Emitter, x: Any, y: Any) -> Any:
    return to.shift("bitwise_right_shift", x, y)


@primitive("shift_right_logical", refuse=_sign_refusal, numbers=True)
def _shift_right_logical(to: Emitter, x: Any, y: Any) -> Any:
    return to.shift("bitwise_right_shift", x, y)


# Choices and types

@primitive("select_n")
def _select_n(to: Emitter, which: Any, *cases: Any) -> Any:
    if which.dtype is DataType.Bool:
        return to.ops.where(which, cases[1], cases[0]) if len(cases) == 2 else to.ops.set(cases[0])
    selected = cases[-1]
    for place in range(len(cases) - 2, -1, -1):
        selected = to.ops.where(to.ops.eq(which, place), cases[place], selected)
    return selected


@primitive("convert_element_type")
def _convert(to: Emitter, x: Any) -> Any:
    source = x.dtype
    if source is to.dtype:
        return to.ops.set(x)
    if not source.is_float or not to.dtype.is_integral or to.dtype is DataType.Bool:
        return to.cast(x, to.dtype)
    # XLA's conversion saturates, and NaN becomes 0.
    ops = to.ops
    signed = to.dtype is not DataType.Byte
    bits = 8 * to.dtype.itemsize - signed
    low, high = (-(1 << bits) if signed else 0), (1 << bits) - 1
    above, below = ops.ge(x, float(high + 1)), ops.le(x, float(low))
    inside = ops.logical_not(ops.logical_or(ops.logical_or(above, below), ops.isnan(x)))
    whole = ops.cast(ops.where(inside, x, 0.0), to.dtype)
    return ops.where(above, high, ops.where(below, low, whole))


def _representable(call: Call) -> str | None:
    held = call.args[0]
    precision = (call.option("exponent_bits"), call.option("mantissa_bits"))
    is_supported = isinstance(held, TracedTensor) and held.dtype == "float32" and precision in {(8, 7), (8, 23)}
    return None if is_supported else "a number is rounded to a type that fusions do not support"


@primitive("reduce_precision", refuse=_representable)
def _reduce_precision(to: Emitter, x: Any) -> Any:
    if to.call.option("mantissa_bits") == 23:
        return to.ops.set(x)
    return to.ops.cast(to.ops.cast(x, DTYPES["bfloat16"]), DTYPES["float32"])


def _stays(call: Call) -> str | None:
    devices = call.option("devices", (None,))
    return None if all(device is None for device in devices) else "it moves data between devices"


@primitive("copy", "stop_gradient", "optimization_barrier", "device_put", refuse=_stays, computes=False)
def _copies(to: Emitter, *values: Any) -> Any:
    return [to.ops.set(value) for value in values]


@primitive("cbrt")
def _cbrt(to: Emitter, x: Any) -> Any:
    root = to.ops.pow(to.ops.abs(x), 1 / 3)
    return to.ops.where(to.ops.lt(x, 0.0), to.ops.neg(root), to.ops.where(to.ops.eq(x, 0.0), x, root))

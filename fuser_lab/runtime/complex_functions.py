"""Functions of complex numbers, shared by both targets and compiled by Numba.

All arithmetic is in double precision, so that ComplexFloat results are rounded about once. Zeros, infinities and NaN
follow Annex G of C and NumPy, except for the sign of zeros and for which part of a result is NaN if one part of the
operand is NaN.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

_LN_2 = 0.6931471805599453  # the Double next to the natural logarithm of 2
_LN_10 = 2.302585092994046  # the Double next to the natural logarithm of 10
_LARGE = 700.0  # its exponential is finite; that of 1.02 times this value overflows

NAMES = (
    "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "cosh", "sinh", "tanh", "cos", "sin", "tan", "acosh",
    "pow",
)


def complex_div(a: Any, b: Any) -> Any:
    """Return the quotient of complex numbers by Smith's method, which overflows only if the quotient does."""
    if b.real == 0 and b.imag == 0:  # infinite or NaN in each part, as in NumPy
        return complex(a.real / abs(b.real), a.imag / abs(b.real))
    if abs(b.real) >= abs(b.imag):
        ratio = b.imag / b.real
        divisor = b.real + b.imag * ratio
        return complex((a.real + a.imag * ratio) / divisor, (a.imag - a.real * ratio) / divisor)
    ratio = b.real / b.imag
    divisor = b.real * ratio + b.imag
    return complex((a.real * ratio + a.imag) / divisor, (a.imag * ratio - a.real) / divisor)


def complex_functions(jit: Callable[..., Any], double: Any, acos: Any) -> Mapping[str, Any]:
    """Return the functions of `NAMES` compiled by ``jit``; ``double`` converts to float64, ``acos`` is the target's."""

    @jit
    def scaled(power: Any, size: Any, angle: Any) -> Any:
        """Return power * power * size at an angle: the power of half an exponent, since the whole may overflow."""
        return complex(power * (size * math.cos(angle)) * power, power * (size * math.sin(angle)) * power)

    @jit
    def exp(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(math.exp(a), b)
        if math.isinf(a) and not math.isfinite(b):
            return complex(0.0, 0.0) if a < 0 else complex(a, math.nan)
        if a > _LARGE:
            return scaled(math.exp(a / 2), 1.0, b)
        size = math.exp(a)
        return complex(size * math.cos(b), size * math.sin(b))

    @jit
    def exp2(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(2.0**a, b)
        if math.isfinite(a) and a * _LN_2 <= _LARGE:
            size = 2.0**a
            return complex(size * math.cos(b * _LN_2), size * math.sin(b * _LN_2))
        return exp(complex(a * _LN_2, b * _LN_2))

    @jit
    def expm1(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(math.expm1(a), b)
        if not (a <= _LARGE and math.isfinite(b)):
            power = exp(complex(a, b))
            return complex(power.real - 1, power.imag)
        grown, half = math.expm1(a), math.sin(b / 2)
        return complex(grown * math.cos(b) - 2 * half * half, (grown + 1) * math.sin(b))

    @jit
    def log_size(a: Any, b: Any) -> Any:
        """Return the logarithm of the magnitude, even if that is near 1 or overflows."""
        large, small = max(abs(a), abs(b)), min(abs(a), abs(b))
        if 0.5 < large < 2 and small < 2:
            return math.log1p((large - 1) * (large + 1) + small * small) / 2
        if large > 1e300 and math.isfinite(large):
            return math.log(math.hypot(a / 4, b / 4)) + 2 * _LN_2
        size = math.hypot(a, b)
        return -math.inf if size == 0 else math.log(size)

    @jit
    def log(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        return complex(log_size(a, b), math.atan2(b, a))

    @jit
    def log10(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        return complex(log_size(a, b) / _LN_10, math.atan2(b, a) / _LN_10)

    @jit
    def log2(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        return complex(log_size(a, b) / _LN_2, math.atan2(b, a) / _LN_2)

    @jit
    def log1p(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if abs(a) < 0.5 and abs(b) < 0.5:
            return complex(math.log1p(a * (2 + a) + b * b) / 2, math.atan2(b, 1 + a))
        return complex(log_size(1 + a, b), math.atan2(b, 1 + a))

    @jit
    def cosh(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(math.cosh(a), b * math.copysign(1.0, a))
        if a == 0:
            return complex(math.cos(b), a * math.sin(b) if math.isfinite(b) else a)
        if math.isinf(a) and not math.isfinite(b):
            return complex(math.inf, math.nan)
        if abs(a) > _LARGE:
            grown = scaled(math.exp(abs(a) / 2), 0.5, b)
            return complex(grown.real, math.copysign(1.0, a) * grown.imag)
        return complex(math.cosh(a) * math.cos(b), math.sinh(a) * math.sin(b))

    @jit
    def sinh(x: Any) -> Any:
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(math.sinh(a), b)
        if a == 0:
            return complex(a * math.cos(b) if math.isfinite(b) else a, math.sin(b))
        if math.isinf(a) and not math.isfinite(b):
            return complex(a, math.nan)
        if abs(a) > _LARGE:
            grown = scaled(math.exp(abs(a) / 2), 0.5, b)
            return complex(math.copysign(1.0, a) * grown.real, grown.imag)
        return complex(math.sinh(a) * math.cos(b), math.cosh(a) * math.sin(b))

    @jit
    def tanh(x: Any) -> Any:
        """Kahan's formula (1987), which avoids cancellation."""
        a, b = double(x.real), double(x.imag)
        if b == 0:
            return complex(math.tanh(a), b)
        if abs(a) > 20:
            if not math.isfinite(b):
                return complex(math.copysign(1.0, a), 0.0) if math.isinf(a) else complex(math.nan, math.nan)
            shrunk = math.exp(-abs(a))
            return complex(math.copysign(1.0, a), 4 * math.sin(b) * math.cos(b) * shrunk * shrunk)
        if a == 0:
            return complex(a, math.tan(b))
        t, s = math.tan(b), math.sinh(a)
        beta = 1 + t * t
        rest = 1 + beta * s * s
        return complex(beta * math.sqrt(1 + s * s) * s / rest, t / rest)

    @jit
    def cos(x: Any) -> Any:
        return cosh(complex(-double(x.imag), double(x.real)))

    @jit
    def sin(x: Any) -> Any:
        rotated = sinh(complex(-double(x.imag), double(x.real)))
        return complex(rotated.imag, -rotated.real)

    @jit
    def tan(x: Any) -> Any:
        rotated = tanh(complex(-double(x.imag), double(x.real)))
        return complex(rotated.imag, -rotated.real)

    @jit
    def acosh(x: Any) -> Any:
        angle = acos(complex(double(x.real), double(x.imag)))
        return complex(abs(angle.imag), math.copysign(angle.real, x.imag))

    @jit
    def power(x: Any, y: Any) -> Any:
        """Return x to the power y on the main branch: of 0 it is 1 for y = 0, 0 for a real part above 0, else NaN."""
        a, b, c, d = double(x.real), double(x.imag), double(y.real), double(y.imag)
        if c == 0 and d == 0:
            return complex(1.0, 0.0)
        if a == 0 and b == 0:
            return complex(0.0, 0.0) if c > 0 else complex(math.nan, math.nan)
        if c == 1 and d == 0:
            return complex(a, b)
        size, angle = log_size(a, b), math.atan2(b, a)
        return exp(complex(c * size - d * angle, d * size + c * angle))

    functions = (exp, exp2, expm1, log, log10, log1p, log2, cosh, sinh, tanh, cos, sin, tan, acosh, power)
    return dict(zip(NAMES, functions, strict=True))

"""exp, log, tanh and erf of a float32 by polynomials, for generated CPU kernels.

They are written into the kernel as LLVM instructions: a function that Numba compiles costs a first call a tenth of a
second, and these cost almost nothing. Where the processor has fused multiply-add, products and sums are rounded once:
faster, and never less exact.
Nothing else is changed, whatever a kernel allows for its own numbers, so that rounding tricks stay exact.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32
from numba.extending import intrinsic

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLAGS = ("contract",)  # Numba gives those of the kernel to what has none

_LARGE = 12582912.0  # 1.5 * 2**23: added, it leaves a whole number in the lowest bits


class _Number:
    """A float32 in code being written, with Python's operators."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: "_Number | float") -> "_Number":
        return _Number(self.builder, self.builder.fadd(self.value, _value(other), flags=_FLAGS))

    def __sub__(self, other: "_Number | float") -> "_Number":
        return _Number(self.builder, self.builder.fsub(self.value, _value(other), flags=_FLAGS))

    def __mul__(self, other: "_Number | float") -> "_Number":
        return _Number(self.builder, self.builder.fmul(self.value, _value(other), flags=_FLAGS))

    def __truediv__(self, other: "_Number | float") -> "_Number":
        return _Number(self.builder, self.builder.fdiv(self.value, _value(other), flags=_FLAGS))

    def __lt__(self, other: float) -> Any:
        return self.builder.fcmp_ordered("<", self.value, _value(other), flags=_FLAGS)

    def __gt__(self, other: float) -> Any:
        return self.builder.fcmp_ordered(">", self.value, _value(other), flags=_FLAGS)

    def where(self, condition: Any, other: "_Number | float") -> "_Number":
        """Return ``other`` where a condition holds, else this number."""
        return _Number(self.builder, self.builder.select(condition, _value(other), self.value))

    def polynomial(self, *coefficients: float) -> "_Number":
        """Return a polynomial of this number by Horner's rule; coefficients come from the highest power down."""
        total = _Number(self.builder, _value(coefficients[0]))
        for coefficient in coefficients[1:]:
            total = total * self + coefficient
        return total

    @property
    def bits(self) -> Any:
        """The bits as an integer."""
        return self.builder.bitcast(self.value, _INT)


def _value(number: "_Number | float") -> Any:
    return number.value if isinstance(number, _Number) else ir.Constant(_FLOAT, number)


def _whole(number: int) -> Any:
    return ir.Constant(_INT, number)


def _written(rule: Callable[[_Number], _Number]) -> Any:
    """Return a function for kernels that is written into the code of its caller."""

    def typed(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return rule(_Number(builder, args[0])).value

        return float32(float32), generate

    typed.__doc__ = rule.__doc__
    return intrinsic(typed)


def _exp(x: _Number) -> _Number:
    """Return e**x for a float32, within 1.1 units in the last place (Cephes' expf), subnormal results included."""
    builder = x.builder
    # Written so that NaN stays what it is in every step.
    safe = x.where(x < -104.0, -104.0)
    safe = safe.where(safe > 89.0, 89.0)
    shifted = safe * 1.4426950408889634 + _LARGE
    n = shifted - _LARGE
    # ln 2 in two pieces, the first with trailing zeros, so that n times it is exact.
    r = safe - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = r.polynomial(
        1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
    )
    p = p * (r * r) + r + 1.0
    # Two factors, since 2**n itself may be too large or too small.
    whole = builder.sub(shifted.bits, _Number(builder, _value(_LARGE)).bits)
    first = builder.ashr(whole, _whole(1))
    second = builder.sub(whole, first)
    return p * _power_of_two(builder, first) * _power_of_two(builder, second)


def _power_of_two(builder: Any, exponent: Any) -> _Number:
    bits = builder.shl(builder.add(exponent, _whole(127)), _whole(23))
    return _Number(builder, builder.bitcast(bits, _FLOAT))


def _log(x: _Number) -> _Number:
    """Return the natural logarithm of a float32, within 0.8 units in the last place (Cephes' logf); NaN below 0."""
    builder = x.builder
    tiny = x < 1.17549435e-38
    bits = x.where(tiny, x * 8388608.0).bits
    # The exponent such that the rest lies between sqrt(1/2) and sqrt(2).
    above = builder.sub(bits, _whole(0x3F3504F3))
    exponent = _Number(builder, builder.sitofp(builder.ashr(above, _whole(23)), _FLOAT))
    exponent = exponent - _Number(builder, _value(0.0)).where(tiny, 23.0)
    rest = builder.add(builder.and_(above, _whole(0x007FFFFF)), _whole(0x3F3504F3))
    m = _Number(builder, builder.bitcast(rest, _FLOAT)) - 1.0
    square = m * m
    p = m.polynomial(
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
    p = p * m * square + exponent * -2.12194440e-4
    result = m + (p - square * 0.5) + exponent * 0.693359375
    result = x.where(x < math.inf, result)
    result = result.where(builder.fcmp_ordered("==", x.value, _value(0.0), flags=_FLAGS), -math.inf)
    return result.where(x < 0.0, math.nan)


def _tanh(x: _Number) -> _Number:
    """Return tanh(x) for a float32, within 4.5 units in the last place (5.5 without FMA), and never beyond 1.

    x times a quotient of polynomials in the square of x, which is limited to 9, from where on the result is 1. They are
    fitted to the least relative error, 6.7e-9 before rounding, by Lawson's reweighted least squares.
    """
    inside = x.where(x < -9.0, -9.0)
    inside = inside.where(inside > 9.0, 9.0)
    square = inside * inside
    p = square.polynomial(
        -8.488736873931778e-14, 5.277958404181635e-11, -2.0225245790076367e-08, 1.1154313026306314e-05,
        0.0031039566559526114, 0.13084010490309755, 0.9999999933893551,
    )
    q = square.polynomial(0.00025461458720552657, 0.024495180138369255, 0.46417337592271146, 1.0)
    result = inside * (p / q)
    result = result.where(result < -1.0, -1.0)
    return result.where(result > 1.0, 1.0)


def _erf(x: _Number) -> _Number:
    """Return erf(x) for a float32, within 4e-7 and 7 units in the last place.

    x times a quotient of polynomials in the square of x, which is limited to 4.
    """
    inside = x.where(x < -4.0, -4.0)
    inside = inside.where(inside > 4.0, 4.0)
    square = inside * inside
    p = square.polynomial(
        -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
    )
    q = square.polynomial(
        -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
        -1.42647390514189e-02,
    )
    return inside * (p / q)


exp32 = _written(_exp)
log32 = _written(_log)
tanh32 = _written(_tanh)
erf32 = _written(_erf)

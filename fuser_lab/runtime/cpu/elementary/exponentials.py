"""Exponentials and hyperbolic functions."""

from dataclasses import dataclass
from typing import Any

from fuser_lab.runtime.cpu.elementary.number import Number, Word

_LOG2_E = 1.4426950408889634  # powers of two in a power of e
# ln 2 in two pieces, the first with trailing zeros, so that a whole number times it is exact.
LN_2 = {False: (0.693359375, -2.12194440e-4), True: (0.6931467056274414, 4.7493250390316726e-07)}
# Of (e**r - 1 - r) / r**2, for r between -ln(2)/2 and ln(2)/2, by whether numbers are float64 (Cephes' expf; minimax).
_POWER = {
    False: (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    True: (
        2.0914718026087793e-09, 2.510526049680846e-08, 2.7557273568456466e-07, 2.755725529566513e-06,
        2.480158732560662e-05, 0.00019841269874903077, 0.001388888888888373, 0.008333333333326112,
        0.04166666666666667, 0.1666666666666667, 0.5,
    ),
}
# Of 2**r, for r between -1/2 and 1/2 (Cephes' exp2f; minimax).
_POWER_OF_2 = {
    False: (
        1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2, 2.402264791363012e-1,
        6.931472028550421e-1, 1.0,
    ),
    True: (
        4.4549681451096383e-10, 7.072600107910891e-09, 1.0178062408096735e-07, 1.3215442517101618e-06,
        1.5252733829898075e-05, 0.00015403530441852282, 0.0013333558146416899, 0.009618129107606819,
        0.0555041086648216, 0.24022650695910097, 0.6931471805599453, 1.0,
    ),
}
# Of (sinh(x) - x) / x**3 in x**2, for x between -1 and 1 (minimax).
_SINH = {
    False: (2.8062853577282157e-06, 0.0001983810133141834, 0.008333339677828035, 0.16666666646834177),
    True: (
        7.746188556142327e-13, 1.605767934982023e-10, 2.5052117698709824e-08, 2.755731919136874e-06,
        0.00019841269841324225, 0.008333333333333299, 0.16666666666666666,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Power:
    """e**x = (1 + ``rest``) * 2**``whole``; the rest is between 1/sqrt(2) - 1 and sqrt(2) - 1."""

    rest: Number
    whole: Word


def _power_of_e(x: Number) -> _Power:
    """Return e**x in parts, for x such that 2**``whole`` is a number or twice one."""
    n, whole = (x * _LOG2_E).nearest_whole()
    large, small = LN_2[x.is_double]
    above = x - n * large
    r = above - n * small
    tail = r.polynomial(*_POWER[x.is_double]) * (r * r)
    if x.is_double:
        tail = tail + ((above - r) - n * small)
    return _Power(rest=tail + r, whole=whole)


def exp(x: Number) -> Number:
    """Return e**x within 1.1 units in the last place, subnormal results included."""
    # Written so that NaN is preserved in every step.
    below = _rounds_to_zero(x, -746.0 if x.is_double else -104.0)
    safe = x.where(below, 0.0)
    top = 710.0 if x.is_double else 89.0
    power = _power_of_e(safe.where(safe > top, top))
    return times_power_of_two(power.rest + 1.0, power.whole).where(below, 0.0)


def times_power_of_two(x: Number, whole: Word) -> Number:
    """Return x * 2**whole, in two factors, because the power may overflow or underflow."""
    first = whole >> 1
    return x * x.power_of_two(first) * x.power_of_two(whole - first)


def _rounds_to_zero(x: Number, limit: float) -> Any:
    """Whether a power of x is less than half of the smallest number, as it is below a limit.

    Such a power is selected, because a product that underflows takes Intel's processors over a hundred cycles, and
    masked scores, such as -10,000, have many of them.
    """
    return x < limit


def expm1(x: Number) -> Number:
    """Return e**x - 1 within 1.6 units in the last place, the sign of zeros included."""
    bottom, top = (-40.0, 710.0) if x.is_double else (-20.0, 89.0)
    safe = x.where(x < bottom, bottom)
    power = _power_of_e(safe.where(safe > top, top))
    # 2**n = first * second; both are normal, as is 1 / second.
    first = power.whole >> 1
    second = power.whole - first
    inverse, scale = x.power_of_two(x.whole(0) - second), x.power_of_two(first)
    result = (scale * power.rest + (scale - inverse)) * x.power_of_two(second)
    return result.where(x.is_zero, x)


def exp2(x: Number) -> Number:
    """Return 2**x within 1.2 units in the last place, subnormal results included."""
    below = _rounds_to_zero(x, -1076.0 if x.is_double else -151.0)
    safe = x.where(below, 0.0)
    top = 1025.0 if x.is_double else 129.0
    safe = safe.where(safe > top, top)
    n, whole = safe.nearest_whole()
    return times_power_of_two(series_of_two(safe - n), whole).where(below, 0.0)


def series_of_two(r: Number) -> Number:
    """Return 2**r for a number between -1/2 and 1/2."""
    return r.polynomial(*_POWER_OF_2[r.is_double])


def _half_power(size: Number) -> Number:
    """Return e**x / 2 for x from 0, infinite where half of the next number is."""
    top = 712.0 if size.is_double else 90.0
    power = _power_of_e(size.where(size > top, top))
    return times_power_of_two(power.rest + 1.0, power.whole - 1)


def sinh(x: Number) -> Number:
    """Return sinh(x) within 2 units in the last place, the sign of zeros included."""
    size = x.size
    half = _half_power(size)
    square = size * size
    near = square.polynomial(*_SINH[x.is_double]) * (square * size) + size
    return (half - half.like(0.25) / half).where(size < 1.0, near).signed(x.sign)


def cosh(x: Number) -> Number:
    """Return cosh(x) within 2 units in the last place."""
    half = _half_power(x.size)
    return half + half.like(0.25) / half


def tanh(x: Number) -> Number:
    """Return tanh(x), never beyond 1: within 2 units in the last place for a float64, 5.5 for a float32.

    For a float32, it is x times a quotient of polynomials in x squared, with x limited to 9, from which the result is
    1. They minimize the largest relative error, 6.7e-9 before rounding, by Lawson's reweighted least squares.
    """
    if x.is_double:
        double = x.size * 2.0
        power = expm1(double.where(double > 44.0, 44.0))
        return (power / (power + 2.0)).signed(x.sign)
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

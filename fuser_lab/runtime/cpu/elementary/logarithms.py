"""Logarithms, powers and inverse hyperbolic functions."""

import math
from dataclasses import dataclass

from fuser_lab.runtime.cpu.elementary.exponentials import LN_2, exp, series_of_two, times_power_of_two
from fuser_lab.runtime.cpu.elementary.number import DOUBLE, FLOAT, INT, Number

# Of (atanh(s) - s) / s**3 in s**2, for s between -0.1716 and 0.1716 (minimax).
_ATANH = {
    False: (0.14790199140742355, 0.19994385336755438, 0.33333342531875165),
    True: (
        0.0654361809832981, 0.06634357396174048, 0.07693120940969297, 0.09090897800030397, 0.11111111196044504,
        0.14285714285400977, 0.2000000000000044, 0.3333333333333333,
    ),
}
# The bits of sqrt(1/2), which is the least ``rest`` of `_Split`.
_SQRT_HALF = {FLOAT: 0x3F3504F3, DOUBLE: 0x3FE6A09E667F3BCD}
_MAGIC = 0x4330000000000000  # the bits of 2**52: lower bits make it 2**52 plus an integer
# Numbers from which 1 is less than half a unit in the last place of their squares.
_LARGE = {FLOAT: 2.0**20, DOUBLE: 2.0**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A positive number as ``rest`` * 2**``exponent``, with the rest between sqrt(1/2) and sqrt(2).

    ``inverse`` is 2**-``exponent``, or 0 if that is no normal number.
    """

    rest: Number
    exponent: Number
    inverse: Number


def _split(x: Number) -> _Split:
    """Return a positive, finite number in parts."""
    least = _SQRT_HALF[x.element]
    if x.is_double:
        tiny, up, bits, bias = x < 2.0**-1022, 54.0, 52, 1023
    else:
        tiny, up, bits, bias = x < 2.0**-126, 23.0, 23, 127
    above = x.where(tiny, x * 2.0**up).bits - least
    rest = ((above & ((1 << bits) - 1)) + least).number
    if x.is_double:  # SSE and AVX convert no int64
        biased = (above + (bias << bits)).unsigned_shift(bits)
        exponent = (biased | _MAGIC).number - (2.0**52 + bias)
        inverse = x.power_of_two(x.whole(bias) - biased)
    else:
        word = above >> bits
        exponent, inverse = word.to_number(FLOAT), x.power_of_two(x.whole(0) - word)
    inverse = inverse.where(exponent > bias, 0.0)
    return _Split(rest=rest, exponent=exponent - x.like(0.0).where(tiny, up), inverse=inverse)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logarithm:
    """log x = log(1 + ``m``) + ``exponent`` log 2, with log(1 + m) = m - ``half`` + ``tail``."""

    m: Number
    half: Number
    tail: Number
    exponent: Number

    @property
    def total(self) -> Number:
        """The sum of all parts."""
        large, small = LN_2[self.m.is_double]
        p = self.tail + self.exponent * small
        return self.m + (p - self.half) + self.exponent * large


def _logarithm(x: Number, low: Number | None = None) -> _Logarithm:
    """Return the natural logarithm of a positive, finite number in parts; ``low`` is added to the number.

    For a float32 as in Cephes' logf, for a float64 as in fdlibm.
    """
    split = _split(x)
    m = split.rest - 1.0
    if low is not None:
        m = m + low * split.inverse
    square = m * m
    half = square * 0.5
    if x.is_double:
        s = m / (m + 2.0)
        z = s * s
        tail = s * (z * 2.0 * z.polynomial(*_ATANH[True]) + half)
    else:
        tail = m * square * m.polynomial(
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
            2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        )
    return _Logarithm(m=m, half=half, tail=tail, exponent=split.exponent)


def _at_ends(x: Number, logarithm: Number) -> Number:
    """Return a logarithm of x, corrected at 0 and at infinity, and NaN below 0."""
    result = x.where(x < math.inf, logarithm)
    result = result.where(x.is_zero, -math.inf)
    return result.where(x < 0.0, math.nan)


def log(x: Number) -> Number:
    """Return the natural logarithm within 0.9 units in the last place; NaN below 0."""
    return _at_ends(x, _logarithm(x).total)


def log2(x: Number) -> Number:
    """Return the logarithm to base 2 within 1.3 units in the last place; NaN below 0 (Cephes' log2f for a float32)."""
    log = _logarithm(x)
    if x.is_double:
        high, low = _product_with(log, 1.4426950408889634, 2.0355273740931033e-17)
        total, lost = log.exponent.sum_from_larger(high)
        return _at_ends(x, total + (lost + low))
    y = log.tail - log.half
    # log2(e) = 1 + 0.44: the larger part of each product is exact.
    return _at_ends(x, y * 0.44269504088896340736 + log.m * 0.44269504088896340736 + y + log.m + log.exponent)


def log10(x: Number) -> Number:
    """Return the logarithm to base 10 within 1.7 units in the last place; NaN below 0 (Cephes' log10f for float32)."""
    log = _logarithm(x)
    if x.is_double:
        high, low = _product_with(log, 0.4342944819032518, 1.098319650216765e-17)
        # log10(2) in two pieces, the first with trailing zeros.
        total, lost = (log.exponent * 0.30102992057800293).sum_from_larger(high)
        return _at_ends(x, total + (lost + low + log.exponent * 7.508597826552624e-08))
    y = log.tail - log.half
    # log10(e) and log10(2) in two pieces each, the first with trailing zeros.
    small = (log.m + y) * 7.00731903251827651129e-4 + y * 0.43359375 + log.exponent * 2.48745663981195213739e-4
    return _at_ends(x, small + log.m * 0.43359375 + log.exponent * 0.30078125)


def _product_with(log: _Logarithm, constant: float, rest: float) -> tuple[Number, Number]:
    """Return the product of a logarithm, but for the exponent, with the sum of two constants, in two parts."""
    head = log.m - log.half
    low = (log.m - head) - log.half + log.tail
    high, lost = head.product(constant)
    return high, lost + head * rest + low * constant


def log1p(x: Number) -> Number:
    """Return log(1 + x) within 1.5 units in the last place, the sign of zeros included; NaN below -1."""
    total = x + 1.0
    lost = (x - (total - 1.0)).where(x > 1.0, x.like(1.0) - (total - x))
    return _at_ends(total, _logarithm(total, lost).total).where(x.is_zero, x)


def logaddexp(x: Number, y: Number) -> Number:
    """Return log(exp(x) + exp(y)) from the larger number and the difference; equal infinities have none."""
    rises = x < y
    larger, smaller = x.where(rises, y), y.where(rises, x)
    gap = (smaller - larger).where(smaller.equals(larger), 0.0)
    return larger + log1p(exp(gap))


def asinh(x: Number) -> Number:
    """Return asinh(x) within 2 units in the last place, the sign of zeros included: log(|x| + sqrt(x**2 + 1))."""
    size = x.size
    square, lost = size.product(size)
    total = square + 1.0
    lost = lost + (square - (total - 1.0)).where(square > 1.0, x.like(1.0) - (total - square))
    log = _logarithm_of_sum(size, total, lost)
    near = size < 2.0 ** (-28 if x.is_double else -13)
    return size.where(size < math.inf, log).where(near, size).where(x.is_nan, x).signed(x.sign)


def acosh(x: Number) -> Number:
    """Return acosh(x) within 2 units in the last place: log(x + sqrt((x - 1) * (x + 1))); NaN below 1."""
    above, lost = x.sum_from_larger(x.like(1.0))
    below = x - 1.0
    square, error = below.product(above)
    return x.where(x < math.inf, _logarithm_of_sum(x, square, error + below * lost)).where(x < 1.0, math.nan)


def _logarithm_of_sum(x: Number, square: Number, lost: Number) -> Number:
    """Return log(x + sqrt(square + lost)) for a positive number, whose square differs by 1."""
    root = square.root
    power, error = root.product(root)
    correction = (((square - power) - error) + lost) / (root * 2.0)
    correction = correction.where(square.is_zero, 0.0)
    larger, smaller = x.where(x < root, root), root.where(x < root, x)
    total, rounding = larger.sum_from_larger(smaller)
    large = x > _LARGE[x.element]
    log = _logarithm(total.where(large, x), (rounding + correction).where(large, 0.0))
    exponent = log.exponent + x.like(0.0).where(large, 1.0)
    return _Logarithm(m=log.m, half=log.half, tail=log.tail, exponent=exponent).total


def atanh(x: Number) -> Number:
    """Return atanh(x) within 2 units in the last place, the sign of zeros included; NaN beyond -1 and 1.

    It is half of the logarithm of (1 + x) / (1 - x), of which the divisor is scaled to be near the dividend.
    """
    size, unit = x.size, x.like(1.0)
    above, gained = unit.sum_from_larger(size)
    below, lost = unit.sum_from_larger(-size)
    split = _split(below)
    divisor, rest, exponent = split.rest, lost * split.inverse, split.exponent
    doubled = divisor * math.sqrt(2) < above
    divisor, rest = divisor.where(doubled, divisor * 2.0), rest.where(doubled, rest * 2.0)
    exponent = exponent.where(doubled, exponent - 1.0)
    s = ((above - divisor) + (gained - rest)) / (above + divisor)
    z = s * s
    large, small = (0.5 * piece for piece in LN_2[x.is_double])
    result = (z * s * z.polynomial(*_ATANH[x.is_double]) - exponent * small) + s - exponent * large
    result = result.where(size.equals(1.0), math.inf).where(size > 1.0, math.nan)
    return result.where(x.is_nan, x).signed(x.sign)


def power(x: Number, y: Number) -> Number:
    """Return x**y within 0.51 units in the last place for float32s, 1 for float64s, as Annex F of C11 says."""
    size = x.size
    result = _power_of_doubles(size, y) if x.is_double else _power_in_double(size, y)
    falls = y < 0.0
    zero, infinity = x.like(0.0), x.like(math.inf)
    result = result.where(size.is_zero, zero.where(falls, infinity))
    result = result.where(size.equals(math.inf), infinity.where(falls, zero))
    is_whole = y.intrinsic("llvm.floor").equals(y)
    half = y * 0.5
    builder = x.builder
    odd = builder.and_(is_whole, builder.not_(half.intrinsic("llvm.floor").equals(half)))
    outside = builder.and_(builder.and_(x < 0.0, x > -math.inf), builder.not_(is_whole))
    result = result.where(outside, math.nan)
    result = result.where(odd, result.signed(x.sign))
    result = result.where(builder.or_(x.is_nan, y.is_nan), math.nan)
    return result.where(builder.or_(y.is_zero, x.equals(1.0)), 1.0)


def _power_in_double(size: Number, y: Number) -> Number:
    """Return a power of a positive float32.

    It is 2**(y log2 x) in float64: the logarithm by the series of the inverse hyperbolic tangent, the power by a Taylor
    series.
    """
    wide, exponent = size.to(DOUBLE), y.to(DOUBLE)
    least = _SQRT_HALF[DOUBLE]
    above = wide.bits - least
    halvings = (above >> 52).to(INT)  # SSE converts no int64
    m = ((above & 0x000FFFFFFFFFFFFF) + least).number
    s = (m - 1.0) / (m + 1.0)
    series = (s * s).polynomial(*(2 / math.log(2) / n for n in range(15, 0, -2)))
    logarithm = s * series + halvings.to_number(DOUBLE)
    power = logarithm * exponent
    power = power.where(logarithm.is_zero, 0.0)  # 1 to any power, also an infinite one
    power = power.where(power < -200.0, -200.0)
    power = power.where(power > 200.0, 200.0)
    n, whole = power.nearest_whole()
    taylor = (power - n).polynomial(*(math.log(2) ** n / math.factorial(n) for n in range(9, -1, -1)))
    return (taylor * power.power_of_two(whole)).to(FLOAT)


def _power_of_doubles(size: Number, y: Number) -> Number:
    """Return a power of a positive float64: 2**(y log2 x), with the logarithm and the product as sums of two numbers.

    log2(x) is s times a series in s**2, whose first two coefficients are sums too, where s = (m - 1) / (m + 1).
    """
    split = _split(size)
    m = split.rest
    divisor = m + 1.0
    lost = m - (divisor - 1.0)
    s = (m - 1.0) / divisor
    product, error = s.product(divisor)
    s_low = ((m - 1.0 - product) - error - s * lost) / divisor
    z, z_low = s.product(s)
    z_low = z_low + s * s_low * 2.0
    # 2 / ln(2) / n for n = 1, 3, 5, ...
    tail = z * z.polynomial(*(2 / math.log(2) / n for n in range(23, 3, -2)))
    series, low = z.like(0.9617966939259756).sum_from_larger(tail)
    low = low + 5.0577616648125907e-17
    high, error = z.product(series)
    error = error + z * low + z_low * series
    series, low = z.like(2.8853900817779268).sum_from_larger(high)
    low = low + (error + 4.0710547481862066e-17)
    high, error = s.product(series)
    error = error + s * low + s_low * series
    log, low = split.exponent.sum_from_larger(high)
    low = low + error
    power, error = y.product(log)
    error = error + y * low
    builder, bound = size.builder, 1100.0
    beyond = builder.or_(power.size >= bound, builder.or_(power.is_nan, error.is_nan))
    error = error.where(beyond, 0.0)
    power = power.where(log.is_zero, 0.0)  # 1 to any power, also an infinite one
    power = power.where(power < -bound, -bound)
    power = power.where(power > bound, bound)
    n, whole = power.nearest_whole()
    return times_power_of_two(series_of_two(power - n + error), whole)

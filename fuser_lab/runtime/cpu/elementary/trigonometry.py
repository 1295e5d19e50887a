"""Trigonometric functions and their inverses."""

import math
from dataclasses import dataclass

from fuser_lab.runtime.cpu.elementary.number import Number, Word
from fuser_lab.runtime.cpu_kernels import cpu_has

# pi / 2 in three pieces, by whether numbers are float64.
_QUARTER = {
    False: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    True: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# Magnitudes up to which that is enough; the C library computes the functions of larger numbers.
_FARTHEST = {False: 2.0**17, True: 2.0**30}
# Of (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2, for r between -pi/4 and pi/4 (Cephes; minimax).
_SINE = {
    False: (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
    True: (
        -7.586685070091267e-13, 1.605853141458901e-10, -2.5052106231157904e-08, 2.7557319219335453e-06,
        -0.0001984126984126506, 0.008333333333333331, -0.16666666666666666,
    ),
}
_COSINE = {
    False: (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
    True: (
        -1.1382614868556325e-11, 2.0876146024689747e-09, -2.7557317270560326e-07, 2.4801587298763433e-05,
        -0.0013888888888887395, 0.041666666666666664,
    ),
}
# Of (sin(r) - r) / r**3 in r**2, for a float32 r between -pi/2 and pi/2 (minimax, relative to the sine).
_SINE_OF_HALF = (2.6057507037093407e-06, -1.9809590103711874e-4, 8.333066082709638e-3, -1.6666659544570753e-1)
# Of (atan(t) - t) / t**3 in t**2, for t between -tan(pi/8) and tan(pi/8) (minimax).
_ATAN = {
    False: (-0.06450377352341542, 0.10743263384329244, -0.1426391227285186, 0.19999539232716604, -0.3333333175572402),
    True: (
        0.01627552168389342, -0.03456132296826231, 0.04551233844829568, -0.05230375457576669, 0.058789182929757273,
        -0.06666423954373413, 0.07692296323157785, -0.09090908751706075, 0.11111111105119366, -0.14285714285659457,
        0.19999999999999804, -0.3333333333333333,
    ),
}
# Of (asin(t) - t) / t**3 in t**2, for t between 0 and 1/2 (minimax).
_ASIN = {
    False: (
        0.03370072632136513, 0.017143716819253568, 0.031101727829067168, 0.04459931916287114, 0.07500094761172901,
        0.1666666633654049,
    ),
    True: (
        0.02963502626354855, -0.019277545928584557, 0.019579201619744684, 0.0030350071727267623, 0.009322101501082774,
        0.00962140274734483, 0.011566511821890942, 0.013963775787848137, 0.017352816768546473, 0.022372157435623815,
        0.030381944475693704, 0.04464285714255019, 0.07500000000000119, 0.16666666666666666,
    ),
}
_TAN_EIGHTH = math.tan(math.pi / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    """The sine and the cosine of an angle less a number of right angles, of which only the remainder by 4 counts."""

    sine: Number
    cosine: Number
    rights: Word


def _waves(x: Number) -> _Waves:
    """Return the waves of a number of magnitude up to `_FARTHEST` (Cody and Waite, with fused multiply-add)."""
    first, second, third = _QUARTER[x.is_double]
    n, rights = (x * (2 / math.pi)).nearest_whole()
    above = x.plus_product(n, -first)  # without a rounding error
    if not x.is_double:
        r = above.plus_product(n, -second).plus_product(n, -third)
        square = r * r
        sine = square.polynomial(*_SINE[False]) * (square * r) + r
        cosine = square.polynomial(*_COSINE[False]) * (square * square) + square * -0.5 + 1.0
        return _Waves(sine=sine, cosine=cosine, rights=rights)
    product, error = n.product(-second)
    r, low = above.sum(product)
    low = (low + error).plus_product(n, -third)
    square = r * r
    sine = square.polynomial(*_SINE[True]) * (square * r) + low + r
    half = square * 0.5
    near = x.like(1.0) - half
    rest = square.polynomial(*_COSINE[True]) * (square * square) - r * low + ((x.like(1.0) - near) - half)
    return _Waves(sine=sine, cosine=near + rest, rights=rights)


def _single_wave(x: Number, ahead: int) -> Number:
    """Return the sine of a float32 plus ``ahead`` right angles, from the sine of its remainder by half circles."""
    halves, word = (x * (1 / math.pi) - 0.5 * ahead).nearest_whole()
    # Of half circles, or of quarters: an odd number of them for the cosine.
    count, per_count = (halves * 2.0 + 1.0, 1) if ahead else (halves, 2)
    r = x
    for piece in _QUARTER[False]:
        r = r.plus_product(count, -per_count * piece)
    square = r * r
    sine = square.polynomial(*_SINE_OF_HALF) * (square * r) + r
    return sine.signed((word + ahead) << 31)


def _wave(x: Number, ahead: int, function: str) -> Number:
    """Return the sine of a number plus ``ahead`` right angles, the result of one of LLVM's functions."""
    if not cpu_has("fma"):
        return x.intrinsic(function)
    if x.is_double:
        waves = _waves(x)
        rights = waves.rights + ahead
        result = waves.sine.where(rights.odd, waves.cosine).signed((rights & 2) << 62)
    else:
        result = _single_wave(x, ahead)
    return result.with_rare_path(x.size > _FARTHEST[x.is_double], lambda: x.by_library(function))


def sin(x: Number) -> Number:
    """Return the sine to 1.9 units in the last place for a float32, 1.1 for a float64, the sign of zeros included."""
    return _wave(x, 0, "llvm.sin").where(x.is_zero, x)


def cos(x: Number) -> Number:
    """Return the cosine within 1.9 units in the last place for a float32, 1.1 for a float64."""
    return _wave(x, 1, "llvm.cos")


def tan(x: Number) -> Number:
    """Return the tangent within 3.5 units in the last place, the sign of zeros included."""
    if not cpu_has("fma"):
        return x.intrinsic("llvm.tan")
    waves = _waves(x)
    odd = waves.rights.odd
    dividend, divisor = waves.sine.where(odd, -waves.cosine), waves.cosine.where(odd, waves.sine)
    result = (dividend / divisor).with_rare_path(x.size > _FARTHEST[x.is_double], lambda: x.by_library("llvm.tan"))
    return result.where(x.is_zero, x)


def _angle(dividend: Number, divisor: Number) -> tuple[Number, Number]:
    """Return the angle of a quotient between 0 and 1: its number of eighths of a circle, and the rest in radians."""
    eighth = dividend > divisor * _TAN_EIGHTH
    t = dividend.where(eighth, dividend - divisor) / divisor.where(eighth, dividend + divisor)
    square = t * t
    rest = square.polynomial(*_ATAN[t.is_double]) * (square * t) + t
    return t.like(0.0).where(eighth, 1.0), rest


def _in_radians(eighths: Number, rest: Number) -> Number:
    """Return a number of eighths of a circle plus a rest in radians."""
    large, small, _ = _QUARTER[rest.is_double]
    return eighths * (large / 2) + (rest + eighths * (small / 2))


def atan(x: Number) -> Number:
    """Return the angle of a tangent within 1.5 units in the last place, the sign of zeros included."""
    size = x.size
    above = size > 1.0
    eighths, rest = _angle(size.where(above, x.like(1.0)), x.like(1.0).where(above, size))
    rest = rest.where(above, -rest).where(size.equals(math.inf), 0.0)
    eighths = eighths.where(above, x.like(2.0) - eighths).where(size.equals(math.inf), 2.0)
    return _in_radians(eighths, rest).signed(x.sign)


def atan2(y: Number, x: Number) -> Number:
    """Return the angle of a point within 1.5 units in the last place, as Annex F of C11 says."""
    across, up = x.size, y.size
    steep = up > across
    smaller, larger = up.where(steep, across), across.where(steep, up)
    # So that their sum does not overflow.
    large = larger > 2.0 ** (1000 if x.is_double else 120)
    scale = x.like(1.0).where(large, 0.25)
    equal, none = smaller.equals(larger), smaller.is_zero
    eighths, rest = _angle(smaller * scale, larger * scale)
    rest = rest.where(equal, 0.0).where(none, 0.0)
    eighths = eighths.where(equal, 1.0).where(none, 0.0)
    infinite = x.builder.and_(larger.equals(math.inf), x.builder.not_(equal))
    rest, eighths = rest.where(infinite, 0.0), eighths.where(infinite, 0.0)
    rest, eighths = rest.where(steep, -rest), eighths.where(steep, x.like(2.0) - eighths)
    left = x.bits.negative
    rest, eighths = rest.where(left, -rest), eighths.where(left, x.like(4.0) - eighths)
    result = _in_radians(eighths, rest).signed(y.sign)
    return result.where(x.builder.or_(x.is_nan, y.is_nan), math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arc:
    """asin(``base``) = ``base`` + ``rest`` + ``low`` for a number from 0; ``far`` is whether the base is another one.

    The base is x or, for x above 1/2, sqrt((1 - x) / 2), where asin(x) = pi/2 - 2 asin(base). ``low`` is the rounding
    error of the base.
    """

    base: Number
    low: Number
    rest: Number
    far: object


def _arc(size: Number) -> _Arc:
    far = size > 0.5
    half = (size.like(1.0) - size) * 0.5
    square = (size * size).where(far, half)
    base = size.where(far, half.root)
    product, error = base.product(base)
    low = ((half - product) - error) / (base * 2.0)
    low = low.where(size.builder.or_(size.equals(1.0), size.builder.not_(far)), 0.0)
    return _Arc(base=base, low=low, rest=square.polynomial(*_ASIN[size.is_double]) * (square * base), far=far)


def asin(x: Number) -> Number:
    """Return the angle of a sine within 1.5 units in the last place, the sign of zeros included; NaN beyond 1."""
    large, small, _ = _QUARTER[x.is_double]
    arc = _arc(x.size)
    complement = (arc.base * -2.0 + large) + ((arc.rest + arc.low) * -2.0 + small)
    return (arc.base + arc.rest).where(arc.far, complement).signed(x.sign)


def acos(x: Number) -> Number:
    """Return the angle of a cosine within 1.5 units in the last place; NaN beyond 1."""
    large, small, _ = _QUARTER[x.is_double]
    arc = _arc(x.size)
    rest = arc.rest + arc.low
    near = x.like(large) - (arc.base.signed(x.sign) - (x.like(small) - rest.signed(x.sign)))
    double = (arc.base + rest) * 2.0
    opposite = x.like(2 * large) - (arc.base * 2.0 - (x.like(2 * small) - rest * 2.0))
    return near.where(arc.far, double.where(x < 0.0, opposite))

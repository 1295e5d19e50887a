"""Error functions and the logarithm of the gamma function."""

import math

from fuser_lab.runtime.cpu.elementary.exponentials import exp
from fuser_lab.runtime.cpu.elementary.logarithms import log
from fuser_lab.runtime.cpu.elementary.number import DOUBLE, FLOAT, Number

# Of erf(x) / x - 1 in x**2, for x between -1 and 1, by whether numbers are float64 (minimax).
_ERF = {
    False: (
        -9.666631243926762e-06, 0.00011265824431458933, -0.0008484063283527477, 0.005221030734855508,
        -0.0268654303851591, 0.11283782490078903, -0.3761263846774074, 0.12837916706151753,
    ),
    True: (
        5.956905633653031e-11, -1.1372693191126323e-09, 1.4659736155673959e-08, -1.6350307065234626e-07,
        1.6460999970345427e-06, -1.4925595235970651e-05, 0.00012055331110409494, -0.0008548326980801447,
        0.0052239776248174784, -0.02686617064507674, 0.11283791670954878, -0.3761263890318375, 0.1283791670955126,
    ),
}
# Of (1 + 2 x) e**(x**2) erfc(x) in (x - 4) / (x + 4), for x from 0.45 (minimax).
_ERFC = {
    False: (
        0.00013149432263476028, 0.0055014784183694985, -0.016509706551535254, 0.036916652562465645,
        -0.06629968729833095, 0.09377499882760428, -0.10103939188026227, 0.06809438762111211, 0.015379617004770781,
        -0.1396210701373503, 1.232995118820265,
    ),
    True: (
        -1.073184671014993e-08, -1.2278425705830675e-08, 1.06452649653259e-07, 6.717226326433025e-08,
        -8.235624390130805e-07, 2.9938795233219766e-07, 5.70937204107749e-06, -1.122462445098893e-05,
        -2.4399309113143734e-05, 0.00015062245399856283, -0.0001992566217694988, -0.000757773439017777,
        0.005031969959410359, -0.016197734039638548, 0.037167515539911176, -0.06633036581349587, 0.09373283499818684,
        -0.10103906603625828, 0.06809705425469749, 0.015379652102619098, -0.13962111684056255, 1.2329951186255526,
    ),
}
_NEAR = 0.46875  # up to which erfc(x) is 1 - erf(x)


def erf(x: Number) -> Number:
    """Return erf(x): within 2 units in the last place for a float64, 7, and 4e-7, for a float32.

    For a float32 it is x times a quotient of polynomials in x squared, with x limited to 4.
    """
    if x.is_double:
        size = x.size
        return (size.like(1.0) - _far_erfc(size)).where(size < 1.0, _near_erf(size)).signed(x.sign)
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


def erfc(x: Number) -> Number:
    """Return erfc(x) within 3 units in the last place."""
    size = x.size
    far = _far_erfc(size)
    return far.where(x < 0.0, x.like(2.0) - far).where(size < _NEAR, x.like(1.0) - _near_erf(x))


def _near_erf(x: Number) -> Number:
    """Return erf(x) for a number between -1 and 1."""
    return (x * x).polynomial(*_ERF[x.is_double]) * x + x


def _far_erfc(size: Number) -> Number:
    """Return erfc(x) for a number from `_NEAR`."""
    end = 28.0 if size.is_double else 10.5  # from which it is 0
    x = size.where(size > end, end)
    square, lost = x.product(x)
    power = exp(-square)
    series = ((x - 4.0) / (x + 4.0)).polynomial(*_ERFC[x.is_double])
    return (power - power * lost) * (series / (x * 2.0 + 1.0))


# Of (sin(pi r) - pi r) / r**3 in r**2, for r between -1/2 and 1/2, by Taylor's series.
_SINE_OF_PI = tuple((-1) ** n * math.pi ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(10, -1, -1))
# Of lgamma(2 + t) / t, for t between -1/2 and 1/2 (Chebyshev).
_LOG_GAMMA = (
    -1.3219945666117874e-07, 2.78740805211359e-07, -4.3252393445604814e-07, 9.200527894968101e-07,
    -2.0439048107029907e-06, 4.38470440459836e-06, -9.438715099211532e-06, 2.0505590755833454e-05,
    -4.49263133791557e-05, 9.945767355819498e-05, -0.00022315475400520507, 0.0005096695154115458,
    -0.0011927539118428156, 0.002890510331034267, -0.0073855510286719986, 0.02058080842778038, -0.0673523010531981,
    0.32246703342411326, 0.42278433509846713,
)
# Of Stirling's series, in the inverse square of a number from 8: B(2n) / (2n (2n - 1)).
_STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)  # fmt: skip
_MIDDLE, _FAR = 2, 8  # where the polynomial is, and from which Stirling's series is exact


def lgamma(x: Number) -> Number:
    """Return the logarithm of the magnitude of the gamma function.

    It is a polynomial around 2 plus the logarithm of the factors between, and Stirling's series from 8: within 2 units
    in the last place for a float32, 5 for a float64. Below 0 it is that of pi / (x sin(pi x) gamma(x)) for a float32,
    and the C library's for a float64.
    """
    size = x.size if x.is_double else x.size.to(DOUBLE)
    far = size >= float(_FAR)
    whole = size.intrinsic("llvm.rint")
    rest = size - whole
    factors = size.like(1.0)
    for n in range(_FAR):
        is_between = whole < float(n + 1) if n < _MIDDLE else whole > float(n)
        factors = factors.where(is_between, factors * (rest + float(n)))
    logarithm = log(factors.where(far, size))
    near = rest * rest.polynomial(*_LOG_GAMMA)
    near = (near + logarithm).where(whole < float(_MIDDLE), near - logarithm)
    inverse = size.like(1.0) / size
    series = (inverse * inverse).polynomial(*_STIRLING) * inverse
    result = near.where(far, (size - 0.5) * logarithm - size + (series + 0.5 * math.log(2 * math.pi)))

    def reflected() -> Number:
        if x.is_double:
            return x.by_library("lgamma")
        sine = (rest * rest).polynomial(*_SINE_OF_PI) * rest
        return log(size.like(math.pi) / (size * sine.size)) - result

    is_negative = (x if x.is_double else x.to(DOUBLE)) < 0.0
    result = result.with_rare_path(is_negative, reflected).where(size.equals(math.inf), math.inf)
    return result if x.is_double else result.to(FLOAT)

"""Remainders of divisions, and quotients rounded down."""

import math
from typing import Any

from fuser_lab.runtime.cpu.elementary.number import Number
from fuser_lab.runtime.cpu_kernels import cpu_has

# By whether numbers are float64: quotients below the first are rounded to whole numbers; one above the second may
# overflow, and the divisor is then multiplied by it, up to twice.
_WHOLE = {False: 2.0**23, True: 2.0**52}
_LARGE = {False: 2.0**100, True: 2.0**900}


def fmod(x: Number, y: Number) -> Number:
    """Return C's fmod, which is exact: x less a whole multiple of y, smaller than y and with the sign of x.

    A number less its rounded quotient times the divisor is exact if the product is not rounded (fused multiply-add),
    and has at most half as many digits before the point as the quotient has after its own; few numbers need a second
    step.
    """
    if not cpu_has("fma"):
        return Number(x.builder, x.builder.frem(x.value, y.value))
    builder, size, divisor = x.builder, x.size, y.size
    quotient = size / divisor
    rest = size.plus_product(quotient.intrinsic("llvm.rint"), -divisor)
    # NaN for a divisor that is 0 or infinite, and for an infinite dividend.
    is_rare = builder.not_(builder.and_(quotient < _WHOLE[x.is_double], rest.equals(rest)))
    rest = rest.with_rare_path(is_rare, lambda: _by_steps(size, divisor))
    return rest.where(rest < 0.0, rest + divisor).size.signed(x.sign)


def _by_steps(size: Number, divisor: Number) -> Number:
    """Return what a number leaves of another, both of them positive."""
    builder = size.builder
    valid = builder.and_(divisor > 0.0, size < math.inf)

    def unfinished(rest: Number) -> Any:
        return builder.and_(valid, rest.size >= divisor)

    def step(rest: Number) -> Number:
        wide, large = divisor, _LARGE[size.is_double]
        for _ in range(2):
            wide = wide.where(wide < rest.size * (1 / large), wide * large)
        return rest.plus_product((rest / wide).intrinsic("llvm.rint"), -wide)

    rest = size.iterate_while(unfinished, step)
    rest = rest.where(builder.not_(valid), math.nan)
    return rest.where(divisor.is_nan, divisor)


def remainder(x: Number, y: Number) -> Number:
    """Return the remainder with the sign of y, as Python's ``%`` does, but for zeros."""
    builder, rest = x.builder, fmod(x, y)
    differ = builder.xor(rest < 0.0, y < 0.0)
    return rest.where(builder.and_(builder.not_(rest.is_zero), differ), rest + y)


def floor_quotient(x: Number, y: Number) -> Number:
    """Return the quotient rounded down, as Python's ``//``.

    It is exact below 2**23 or 2**52, and within 1 unit in the last place above. A rounded quotient is above the exact
    one only if it was rounded to a whole number, and what that number leaves of x then has the other sign than y.
    """
    quotient = x / y
    whole = quotient.intrinsic("llvm.floor")
    if cpu_has("fma"):
        rest = x.plus_product(whole, -y)
    else:
        product, lost = whole.product(y)
        rest = (x - product) - lost
    rest = rest.where(y.size.equals(math.inf), x)
    whole = whole.where(rest.signed(y.sign) < 0.0, whole - 1.0)
    return whole.where(x.builder.and_(x.size.equals(math.inf), x.builder.not_(y.is_zero)), math.nan)

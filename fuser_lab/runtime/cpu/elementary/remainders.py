"""Remainders of divisions."""

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
    quotient = (size / divisor).intrinsic("llvm.rint")
    quotient = quotient.where(quotient > _WHOLE[x.is_double], 0.0)
    rest = size.plus_product(quotient, -divisor)
    valid = builder.and_(divisor > 0.0, size < math.inf)

    def unfinished(rest: Number) -> Any:
        return builder.and_(valid, rest.size >= divisor)

    def step(rest: Number) -> Number:
        wide, large = divisor, _LARGE[x.is_double]
        for _ in range(2):
            wide = wide.where(wide < rest.size * (1 / large), wide * large)
        return rest.plus_product((rest / wide).intrinsic("llvm.rint"), -wide)

    rest = rest.iterate_while(unfinished, step)
    rest = rest.where(rest < 0.0, rest + divisor)
    rest = rest.where(divisor.equals(math.inf), size)
    rest = rest.where(builder.not_(valid), math.nan)
    return rest.where(y.is_nan, y).size.signed(x.sign)


def remainder(x: Number, y: Number) -> Number:
    """Return the remainder with the sign of y, as Python's ``%`` does, but for zeros."""
    builder, rest = x.builder, fmod(x, y)
    differ = builder.xor(rest < 0.0, y < 0.0)
    return rest.where(builder.and_(builder.not_(rest.is_zero), differ), rest + y)

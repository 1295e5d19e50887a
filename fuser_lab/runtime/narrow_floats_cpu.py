"""Conversions of floats of 16 and 8 bits in CPU kernels, which compute with float32.

Everything here is inlined by LLVM. None of it uses fast-math beyond contraction, so that rounding tricks stay exact.
"""

import math
from typing import Any

from llvmlite import ir
from numba import float32, types, uint32
from numba.extending import intrinsic

from fuser_lab.runtime.cpu.bits import bits_of_float, float_of_bits
from fuser_lab.runtime.cpu.pipelines import njit


@intrinsic
def half_to_float(context: Any, bits: Any) -> Any:
    """Return the float32 value of a float16 given as uint16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return float32(types.uint16), generate


@intrinsic
def float_to_half(context: Any, x: Any) -> Any:
    """Return a float32 rounded to float16 (to nearest even), as uint16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(float32), generate


@njit
def round_half(x: Any) -> Any:
    """Return a float32 rounded to the nearest float16 value, still as float32."""
    return half_to_float(float_to_half(x))


@njit
def bf16_to_float(bits: Any) -> Any:
    """Return the float32 value of a bfloat16 given as uint16."""
    return float_of_bits(uint32(uint32(bits) << uint32(16)))


@njit(error_model="numpy")
def rounded_bits(x: Any) -> Any:
    """Return the bits of a float32 with the upper 16 rounded to nearest even; NaN stays NaN."""
    bits = bits_of_float(x)
    even = uint32((bits >> uint32(16)) & uint32(1))
    rounded = uint32(bits + uint32(0x7FFF) + even)
    # Rounding could turn a NaN into infinity, so it becomes the quiet NaN of its sign.
    quiet = uint32(bits | uint32(0x00400000))
    return rounded if x == x else quiet  # noqa: PLR0124 - false for NaN


@njit
def float_to_bf16(x: Any) -> Any:
    """Return a float32 rounded to bfloat16 (to nearest even, NaN preserved), as uint16."""
    return types.uint16(rounded_bits(x) >> uint32(16))


@njit
def round_bf16(x: Any) -> Any:
    """Return a float32 rounded to the nearest bfloat16 value, still as float32."""
    return float_of_bits(uint32(rounded_bits(x) & uint32(0xFFFF0000)))


@njit
def bf16_bits(x: Any) -> Any:
    """Return the uint16 of a float32 that already is a bfloat16 value."""
    return types.uint16(bits_of_float(x) >> uint32(16))


@njit(error_model="numpy")
def e4m3_to_float(bits: Any) -> Any:
    """Return the float32 value of a Float8_e4m3fn given as uint8."""
    # The same fields as those of a float16, with an exponent that counts from 7 instead of 15.
    word = ((uint32(bits) & uint32(0x80)) << uint32(8)) | ((uint32(bits) & uint32(0x7F)) << uint32(7))
    value = half_to_float(types.uint16(word)) * float32(256.0)
    return float_of_bits(uint32(0x7FC00000)) if (uint32(bits) & uint32(0x7F)) == uint32(0x7F) else value


@njit(error_model="numpy")
def _rounded_small(size: Any, dropped: Any, smallest: Any, step: Any) -> Any:
    """Return a magnitude rounded to nearest even to a float with few bits, as float32, without regard to overflow.

    ``dropped`` counts the bits of float32's mantissa that the narrow format lacks, ``smallest`` is its smallest normal
    number. Below it steps are equal, as long as those of float32 at ``step``.
    """
    bits = bits_of_float(size)
    even = uint32((bits >> dropped) & uint32(1))
    half = uint32((uint32(1) << uint32(dropped - uint32(1))) - uint32(1))
    normal = float_of_bits(uint32(uint32(uint32(bits + half + even) >> dropped) << dropped))
    return float32(size + step) - step if size < smallest else normal


@njit(error_model="numpy")
def _small_bits(size: Any, dropped: Any, smallest: Any, step: Any) -> Any:
    """Return the bits of a magnitude that `_rounded_small` gave."""
    mantissa = uint32(uint32(23) - dropped)
    first = uint32((bits_of_float(smallest) >> dropped) - (uint32(1) << mantissa))
    below = uint32(bits_of_float(float32(size + step)) & uint32((uint32(1) << mantissa) - uint32(1)))
    return below if size < smallest else uint32((bits_of_float(size) >> dropped) - first)


@njit(error_model="numpy")
def _with_sign(size: Any, x: Any) -> Any:
    return float_of_bits(uint32(bits_of_float(size) | uint32(bits_of_float(x) & uint32(0x80000000))))


_E4M3 = (uint32(20), float32(2.0**-6), float32(2.0**14))
_E5M2 = (uint32(21), float32(2.0**-14), float32(2.0**7))


@njit(error_model="numpy")
def round_e4m3(x: Any) -> Any:
    """Return a float32 rounded to Float8_e4m3fn (to nearest even, NaN preserved, at most 448), still as float32."""
    largest = float32(448.0)
    limited = largest if abs(x) > largest else abs(x)  # noqa: FURB136 - min treats NaN otherwise
    rounded = _with_sign(_rounded_small(limited, *_E4M3), x)
    return rounded if x == x else x  # noqa: PLR0124 - false for NaN


@njit(error_model="numpy")
def e4m3_bits(x: Any) -> Any:
    """Return the uint8 of a float32 that is a Float8_e4m3fn value already."""
    sign = uint32((bits_of_float(x) >> uint32(24)) & uint32(0x80))
    bits = _small_bits(abs(x), *_E4M3)
    return types.uint8(sign | (bits if x == x else uint32(0x7F)))  # noqa: PLR0124


@njit(error_model="numpy")
def float_to_e4m3(x: Any) -> Any:
    """Return a float32 rounded to Float8_e4m3fn (to nearest even, NaN preserved, at most 448), as uint8."""
    return e4m3_bits(round_e4m3(x))


@njit(error_model="numpy")
def e5m2_to_float(bits: Any) -> Any:
    """Return the float32 value of a Float8_e5m2, the upper half of a float16, given as uint8."""
    return half_to_float(types.uint16(uint32(bits) << uint32(8)))


@njit(error_model="numpy")
def round_e5m2(x: Any) -> Any:
    """Return a float32 rounded to the nearest Float8_e5m2 value (even, NaN preserved), still as float32."""
    size = _rounded_small(abs(x), *_E5M2)
    rounded = _with_sign(float32(math.inf) if size >= float32(65536.0) else size, x)
    return rounded if x == x else x  # noqa: PLR0124


@njit(error_model="numpy")
def e5m2_bits(x: Any) -> Any:
    """Return the uint8 of a float32 that is a Float8_e5m2 value already."""
    sign = uint32((bits_of_float(x) >> uint32(24)) & uint32(0x80))
    bits = min(_small_bits(abs(x), *_E5M2), uint32(0x7C))
    return types.uint8(sign | (bits if x == x else uint32(0x7E)))  # noqa: PLR0124


@njit(error_model="numpy")
def float_to_e5m2(x: Any) -> Any:
    """Return a float32 rounded to Float8_e5m2 (to nearest even, NaN preserved), as uint8."""
    return e5m2_bits(round_e5m2(x))


@njit(error_model="numpy")
def e8m0_to_float(bits: Any) -> Any:
    """Return the float32 value of a Float8_e8m0fnu, an exponent, given as uint8."""
    exponent = uint32(bits)
    if exponent == uint32(0):
        return float_of_bits(uint32(0x00400000))
    return float_of_bits(uint32(0x7FC00000) if exponent == uint32(255) else uint32(exponent << uint32(23)))


@njit(error_model="numpy")
def float_to_e8m0(x: Any) -> Any:
    """Return a float32's magnitude rounded to a power of two (to nearest, between two to the larger), as uint8.

    Zero becomes the smallest and what is above it the second, as in torch; what is too large becomes NaN.
    """
    bits = bits_of_float(abs(x))
    exponent = uint32(bits >> uint32(23))
    rest = uint32(bits & uint32(0x7FFFFF))
    tie = uint32(0x400000)
    up = rest > tie or (rest == tie and exponent > uint32(0))
    return types.uint8(uint32(exponent + uint32(1)) if up and exponent < uint32(255) else exponent)


@njit(error_model="numpy")
def round_e8m0(x: Any) -> Any:
    """Return a float32 rounded to the nearest Float8_e8m0fnu value, still as float32."""
    return e8m0_to_float(float_to_e8m0(x))

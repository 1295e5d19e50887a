"""Functions that generated CPU kernels call: what Numba lacks or does not vectorize.

Everything here is inlined by LLVM. None of it uses fast-math beyond contraction, so that rounding tricks stay exact.
"""

from typing import Any

from llvmlite import ir
from numba import float32, float64, int32, njit, types, uint32, uint64
from numba.extending import intrinsic

from fuser_lab.ops.factory import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS

_KEY_0, _KEY_1 = PHILOX_KEY_STEPS
_MULTIPLIER_0, _MULTIPLIER_1 = PHILOX_MULTIPLIERS


def _llvm(name: str, arity: int) -> Any:
    """Return an intrinsic that is one LLVM instruction on floats, so that it vectorizes."""

    def unary(context: Any, x: Any) -> Any:
        return x(x), generate

    def binary(context: Any, x: Any, y: Any) -> Any:
        return x(x, x), generate

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * arity))
        return builder.call(function, args)

    return intrinsic(unary if arity == 1 else binary)


maximum = _llvm("llvm.maximum", 2)  # NaN propagates
minimum = _llvm("llvm.minimum", 2)
floor = _llvm("llvm.floor", 1)
ceil = _llvm("llvm.ceil", 1)
trunc = _llvm("llvm.trunc", 1)
rint = _llvm("llvm.rint", 1)


@intrinsic
def fmod(context: Any, x: Any, y: Any) -> Any:
    """Return C's fmod: the remainder with the sign of ``x``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.frem(*args)

    return x(x, x), generate


@intrinsic
def _float_of_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return float32(uint32), generate


@intrinsic
def _bits_of_float(context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return uint32(float32), generate


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
    return _float_of_bits(uint32(uint32(bits) << uint32(16)))


@njit(error_model="numpy")
def rounded_bits(x: Any) -> Any:
    """Return the bits of a float32 with those above the lower 16 rounded to nearest even; a NaN stays one."""
    bits = _bits_of_float(x)
    even = uint32((bits >> uint32(16)) & uint32(1))
    rounded = uint32(bits + uint32(0x7FFF) + even)
    # A NaN could be rounded into infinity: it becomes the quiet NaN of its sign.
    quiet = uint32(bits | uint32(0x00400000))
    return rounded if x == x else quiet  # noqa: PLR0124 - false for NaN


@njit
def float_to_bf16(x: Any) -> Any:
    """Return a float32 rounded to bfloat16 (to nearest even, NaN kept), as uint16."""
    return types.uint16(rounded_bits(x) >> uint32(16))


@njit
def round_bf16(x: Any) -> Any:
    """Return a float32 rounded to the nearest bfloat16 value, still as float32."""
    return _float_of_bits(uint32(rounded_bits(x) & uint32(0xFFFF0000)))


@njit
def bf16_bits(x: Any) -> Any:
    """Return the uint16 of a float32 that is a bfloat16 value already."""
    return types.uint16(_bits_of_float(x) >> uint32(16))


@njit(error_model="numpy")
def exp32(x: Any) -> Any:
    """Return e**x for a float32, within 2 units in the last place; vectorizes, which libm's does not."""
    safe = x if x == x else float32(0.0)  # noqa: PLR0124
    safe = float32(-104.0) if safe < float32(-104.0) else safe  # noqa: FURB136 - max treats NaN otherwise
    safe = float32(89.0) if safe > float32(89.0) else safe  # noqa: FURB136
    n = rint(safe * float32(1.4426950408889634))
    # ln 2 in two pieces, the first with trailing zeros, so that n times it is exact.
    r = safe - n * float32(0.693359375)
    r = r - n * float32(-2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * (r * r) + r + float32(1.0)
    # Two factors, since 2**n itself may be too large or too small.
    whole = int32(n)
    first = int32(whole >> int32(1))
    second = int32(whole - first)
    scale_1 = _float_of_bits(uint32(uint32(first + int32(127)) << uint32(23)))
    scale_2 = _float_of_bits(uint32(uint32(second + int32(127)) << uint32(23)))
    result = p * scale_1 * scale_2
    return result if x == x else x  # noqa: PLR0124


@njit(error_model="numpy")
def tanh32(x: Any) -> Any:
    """Return tanh(x) for a float32, within 3 units in the last place (Cephes' two ranges, both computed)."""
    size = abs(x)
    square = x * x
    p = float32(-5.70498872745e-3)
    p = p * square + float32(2.06390887954e-2)
    p = p * square + float32(-5.37397155531e-2)
    p = p * square + float32(1.33314422036e-1)
    p = p * square + float32(-3.33332819422e-1)
    near = p * square * x + x
    far = float32(1.0) - float32(2.0) / (exp32(size + size) + float32(1.0))
    signed = -far if x < float32(0.0) else far
    result = near if size < float32(0.625) else signed
    return result if x == x else x  # noqa: PLR0124


@njit(error_model="numpy")
def erf32(x: Any) -> Any:
    """Return erf(x) for a float32, within 5e-7: x times a quotient of polynomials in the square of x up to 4."""
    inside = x
    inside = float32(-4.0) if inside < float32(-4.0) else inside  # noqa: FURB136 - max treats NaN otherwise
    inside = float32(4.0) if inside > float32(4.0) else inside  # noqa: FURB136
    square = inside * inside
    p = float32(-2.72614225801306e-10)
    p = p * square + float32(2.77068142495902e-08)
    p = p * square + float32(-2.10102402082508e-06)
    p = p * square + float32(-5.69250639462346e-05)
    p = p * square + float32(-7.34990630326855e-04)
    p = p * square + float32(-2.95459980854025e-03)
    p = p * square + float32(-1.60960333262415e-02)
    q = float32(-1.45660718464996e-05)
    q = q * square + float32(-2.13374055278905e-04)
    q = q * square + float32(-1.68282697438203e-03)
    q = q * square + float32(-7.37332916720468e-03)
    q = q * square + float32(-1.42647390514189e-02)
    return inside * p / q


@njit(error_model="numpy")
def divide_int(a: Any, b: Any) -> Any:
    """Return the quotient truncated toward zero; x / 0 is 0."""
    if b == 0:
        return a - a
    if b == -1:  # the smallest integer has no negative: wrap, as NumPy does
        return -a
    quotient = a // b
    if quotient < 0 and quotient * b != a:
        quotient += 1
    return quotient


@njit(error_model="numpy")
def modulo_int(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``a``; x % 0 is 0."""
    if b in (0, -1):
        return a - a
    rest = a % b
    if rest != 0 and (rest < 0) != (a < 0):
        rest -= b
    return rest


@njit(error_model="numpy")
def remainder_int(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``b``; x % 0 is 0."""
    if b in (0, -1):
        return a - a
    return a % b


@njit(error_model="numpy")
def divide_uint(a: Any, b: Any) -> Any:
    """Return the quotient of unsigned integers; x / 0 is 0."""
    return a // b if b != 0 else a - a


@njit(error_model="numpy")
def modulo_uint(a: Any, b: Any) -> Any:
    """Return the remainder of unsigned integers; x % 0 is 0."""
    return a % b if b != 0 else a - a


@njit(error_model="numpy")
def remainder_float(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``b``, as Python's ``%``."""
    rest = fmod(a, b)
    if rest != 0 and (rest < 0) != (b < 0):
        rest += b
    return rest


@njit
def power_int(a: Any, b: Any) -> Any:
    """Return a to the power b for integers; negative powers give 0 unless a is 1 or -1."""
    if b < 0:
        if a == 1:
            return a
        if a == -1:
            return a if b & 1 else -a
        return a - a
    result = a - a + 1
    while b > 0:
        if b & 1:
            result = result * a
        a = a * a
        b = b >> 1
    return result


@njit
def philox_uniform(seed: Any, offset: Any, position: Any) -> Any:
    """Return a float64 in [0, 1) with 24 random bits: Philox 4x32-10, as `fuser_lab.ops.factory.philox`."""
    mask = uint64(0xFFFFFFFF)
    group = uint64(position) >> uint64(2)
    c0, c1 = uint64(offset) & mask, (uint64(offset) >> uint64(32)) & mask
    c2, c3 = group & mask, group >> uint64(32)
    k0, k1 = uint64(seed) & mask, (uint64(seed) >> uint64(32)) & mask
    for _ in range(PHILOX_ROUNDS):
        first = c0 * uint64(_MULTIPLIER_0)
        second = c2 * uint64(_MULTIPLIER_1)
        c0, c1, c2, c3 = (
            (second >> uint64(32)) ^ c1 ^ k0,
            second & mask,
            (first >> uint64(32)) ^ c3 ^ k1,
            first & mask,
        )
        k0 = (k0 + uint64(_KEY_0)) & mask
        k1 = (k1 + uint64(_KEY_1)) & mask
    word = uint64(position) & uint64(3)
    chosen = c0 if word == 0 else c1 if word == 1 else c2 if word == 2 else c3
    return float64(chosen >> uint64(8)) * 5.9604644775390625e-08

"""Functions that generated CUDA kernels call; the twins of `intrinsics_cpu`, compiled for a GPU."""

import math
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fuser_lab.ops.random import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS

_KEY_0, _KEY_1 = PHILOX_KEY_STEPS
_MULTIPLIER_0, _MULTIPLIER_1 = PHILOX_MULTIPLIERS

_WORD, _BITS, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


def _extreme(larger: bool) -> Any:
    """Return maximum or minimum with NaN propagating: one comparison and one test, selects and no branch."""
    sign = ">" if larger else "<"

    def rule(context: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, b = args
            chosen = builder.or_(builder.fcmp_ordered(sign, a, b), builder.fcmp_unordered("uno", a, a))
            return builder.select(chosen, a, b)

        return x(x, x), generate

    return intrinsic(rule)


maximum = _extreme(larger=True)
minimum = _extreme(larger=False)


def _assembly(text: str, result: Any, argument: Any, constraints: str) -> Any:
    """Return a function that is one PTX instruction."""
    llvm = {types.uint16: _WORD, types.float32: _FLOAT}

    def rule(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(llvm[result], [llvm[argument]])
            return builder.call(ir.InlineAsm(kind, text, constraints), args)

        return result(argument), generate

    return intrinsic(rule)


half_to_float = _assembly("cvt.f32.f16 $0, $1;", types.float32, types.uint16, "=f,h")
float_to_half = _assembly("cvt.rn.f16.f32 $0, $1;", types.uint16, types.float32, "=h,f")
float_to_bf16 = _assembly("cvt.rn.bf16.f32 $0, $1;", types.uint16, types.float32, "=h,f")


@intrinsic
def bf16_to_float(context: Any, bits: Any) -> Any:
    """Return the float32 value of a bfloat16 given as uint16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = builder.zext(args[0], _BITS)
        return builder.bitcast(builder.shl(wide, ir.Constant(_BITS, 16)), _FLOAT)

    return types.float32(types.uint16), generate


@intrinsic
def bf16_bits(context: Any, x: Any) -> Any:
    """Return the uint16 of a float32 that is a bfloat16 value already."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], _BITS)
        return builder.trunc(builder.lshr(bits, ir.Constant(_BITS, 16)), _WORD)

    return types.uint16(types.float32), generate


@cuda.jit(device=True, inline="always")
def round_bf16(x: Any) -> Any:
    """Return a float32 rounded to the nearest bfloat16 value, still as float32."""
    return bf16_to_float(float_to_bf16(x))


@cuda.jit(device=True, inline="always")
def round_half(x: Any) -> Any:
    """Return a float32 rounded to the nearest float16 value, still as float32."""
    return half_to_float(float_to_half(x))


@cuda.jit(device=True)
def divide_int(a: Any, b: Any) -> Any:
    """Return the quotient truncated toward zero; x / 0 is 0."""
    if b == 0:
        return a - a
    if b == -1:
        return -a
    quotient = a // b
    if quotient < 0 and quotient * b != a:
        quotient += 1
    return quotient


@cuda.jit(device=True)
def modulo_int(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``a``; x % 0 is 0."""
    if b == 0 or b == -1:  # noqa: PLR1714 - Numba compares with a tuple element by element
        return a - a
    rest = a % b
    if rest != 0 and (rest < 0) != (a < 0):
        rest -= b
    return rest


@cuda.jit(device=True)
def remainder_int(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``b``; x % 0 is 0."""
    if b == 0 or b == -1:  # noqa: PLR1714
        return a - a
    return a % b


@cuda.jit(device=True)
def divide_uint(a: Any, b: Any) -> Any:
    """Return the quotient of unsigned integers; x / 0 is 0."""
    if b == 0:
        return a - a
    return a // b


@cuda.jit(device=True)
def modulo_uint(a: Any, b: Any) -> Any:
    """Return the remainder of unsigned integers; x % 0 is 0."""
    if b == 0:
        return a - a
    return a % b


@cuda.jit(device=True)
def remainder_float(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of ``b``, as Python's ``%``."""
    rest = math.fmod(a, b)
    if rest != 0 and (rest < 0) != (b < 0):
        rest += b
    return rest


@cuda.jit(device=True)
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


@cuda.jit(device=True)
def philox_uniform(seed: Any, offset: Any, position: Any) -> Any:
    """Return a float32 in [0, 1) with 24 random bits: Philox 4x32-10, as `fuser_lab.ops.random.philox`."""
    mask = types.uint64(0xFFFFFFFF)
    half = types.uint64(32)
    group = types.uint64(position) >> types.uint64(2)
    c0 = types.uint64(offset) & mask
    c1 = (types.uint64(offset) >> half) & mask
    c2 = group & mask
    c3 = group >> half
    k0 = types.uint64(seed) & mask
    k1 = (types.uint64(seed) >> half) & mask
    for _ in range(PHILOX_ROUNDS):
        first = c0 * types.uint64(_MULTIPLIER_0)
        second = c2 * types.uint64(_MULTIPLIER_1)
        c0 = (second >> half) ^ c1 ^ k0
        c1 = second & mask
        c2 = (first >> half) ^ c3 ^ k1
        c3 = first & mask
        k0 = (k0 + types.uint64(_KEY_0)) & mask
        k1 = (k1 + types.uint64(_KEY_1)) & mask
    word = types.uint64(position) & types.uint64(3)
    chosen = c0
    if word == 1:
        chosen = c1
    elif word == 2:
        chosen = c2
    elif word == 3:
        chosen = c3
    return types.float32(chosen >> types.uint64(8)) * types.float32(5.9604644775390625e-08)

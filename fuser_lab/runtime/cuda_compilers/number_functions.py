"""Functions of floats that take few instructions: maxima, conversions of formats, approximations for float32."""

import math
from typing import Any

from fuser_lab.runtime.cuda_compilers.building import Builder, Call, Kind, Operand, Rule, rule_of
from fuser_lab.runtime.cuda_compilers.language import Library

_Typed = tuple[Any, Kind]  # a compiler's type, and the kind of its register
_LETTERS = {"i16": "h", "i32": "r", "i64": "l", "f32": "f", "f64": "d"}  # of registers, in constraints
_LOG2_E = 1.4426950408889634  # logarithm of e to base 2
_SIGNIFICAND = 0x4B400000  # the bits of 1.5 * 2**23


def assembly(text: str, result: _Typed, *arguments: _Typed) -> Rule:
    """Return a function that is one PTX instruction."""
    constraints = ",".join([f"={_LETTERS[result[1]]}", *(_LETTERS[kind] for _, kind in arguments)])

    def generate(b: Builder, *operands: Operand) -> Any:
        values = [operand.value for operand in operands]
        return b.assembly(text, [result[1]], constraints, values, pure=True)[0]

    return rule_of(result[0], [operand_type for operand_type, _ in arguments], generate)


def define_number_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    types = library.types
    single: _Typed = types.float32, "f32"
    word: _Typed = types.uint16, "i16"
    bits: _Typed = types.uint32, "i32"
    library.named("maximum", _extreme(types, larger=True))
    library.named("minimum", _extreme(types, larger=False))
    library.intrinsic(_where(types))
    half_to_float = library.named("half_to_float", assembly("cvt.f32.f16 $0, $1;", single, word))
    float_to_half = library.named("float_to_half", assembly("cvt.rn.f16.f32 $0, $1;", word, single))
    float_to_bf16 = library.named("float_to_bf16", assembly("cvt.rn.bf16.f32 $0, $1;", word, single))
    library.named("float_of_bits", assembly("mov.b32 $0, $1;", single, bits))
    library.named("bits_of_float", assembly("mov.b32 $0, $1;", bits, single))
    double: _Typed = types.float64, "f64"
    long: _Typed = types.int64, "i64"
    library.named("floor_quotient32", _floor_quotient(single, unit="0f3F800000"))
    library.named("floor_quotient64", _floor_quotient(double, unit="0d3FF0000000000000"))
    library.named("double_of_bits", assembly("mov.b64 $0, $1;", double, long))
    library.named("bits_of_double", assembly("mov.b64 $0, $1;", long, double))
    for result, letters in ((types.int32, "s32"), (types.int64, "s64"), (types.uint64, "u64")):
        library.named(f"float_to_{result}", _truncation(types, result, letters))

    @library.instructions(types.float32, types.int32)
    def small_to_float(b: Builder, x: Operand) -> Any:
        """Return an integer between -2**22 and 2**22 as float32.

        The integer is added to the bits of 1.5 * 2**23, and 1.5 * 2**23 is subtracted: conversion instructions have an
        eighth of the throughput of these two.
        """
        return b.binary("fsub", b.reinterpreted(b.binary("add", x.value, _SIGNIFICAND), "f32"), 12582912.0)

    @library.instructions(types.float32, types.uint16)
    def bf16_to_float(b: Builder, bits: Operand) -> Any:
        """Return the float32 value of a bfloat16 given as uint16."""
        return b.reinterpreted(b.moved_left(b.widened(bits.value, "i32"), 16), "f32")

    @library.instructions(types.uint16, types.float32)
    def bf16_bits(b: Builder, x: Operand) -> Any:
        """Return the uint16 of a float32 that already is a bfloat16 value."""
        return b.truncated(b.moved_right(b.reinterpreted(x.value, "i32"), 16), "i16")

    @library.inlined
    def round_bf16(x: Any) -> Any:
        """Return a float32 rounded to the nearest bfloat16 value, still as float32."""
        return bf16_to_float(float_to_bf16(x))

    @library.inlined
    def round_half(x: Any) -> Any:
        """Return a float32 rounded to the nearest float16 value, still as float32."""
        return half_to_float(float_to_half(x))

    @library.device
    def remainder_float(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``b``, like Python's ``%``."""
        rest = math.fmod(a, b)
        if rest != 0 and (rest < 0) != (b < 0):
            rest += b
        return rest

    @library.device
    def logaddexp(x: Any, y: Any) -> Any:
        """Return log(exp(x) + exp(y)) from the larger number and the difference; equal infinities have none."""
        gap = types.float64(0.0) if x == y else -abs(x - y)
        return max(x, y) + math.log1p(math.exp(gap))

    _define_approximations(library, single)
    _define_exact_functions(library, single, suffix="32", smallest=-126, digits=24, steps=1)
    _define_exact_functions(library, double, suffix="64", smallest=-1022, digits=53, steps=2)


def _define_approximations(library: Library, single: _Typed) -> None:
    types = library.types
    power_of_2 = library.named("power_of_2", assembly("ex2.approx.ftz.f32 $0, $1;", single, single))
    reciprocal = library.named("reciprocal", assembly("rcp.approx.ftz.f32 $0, $1;", single, single))

    @library.inlined
    def fast_exp(x: Any) -> Any:
        """Return exp of a float32 by the hardware's exp2, relative error at most 3e-7 + 9e-8 |x|; 0 below 1.2e-38."""
        return power_of_2(x * types.float32(_LOG2_E))

    @library.inlined
    def quotient(a: Any, b: Any) -> Any:
        """Return a / b of float32 within 2 units in the last place, with one reciprocal for all numbers divided by b.

        Both are scaled by a power of two if b or its reciprocal is not a normal number.
        """
        size = abs(b)
        large = types.float32(0.25) if size > types.float32(2.0**126) else types.float32(1.0)
        scale = types.float32(2.0**24) if size < types.float32(2.0**-126) else large
        return a * scale * reciprocal(b * scale)

    @library.inlined
    def one_plus_tanh(x: Any) -> Any:
        """Return 1 + tanh(x) of a float32 as 2 / (1 + exp(-2x)), with a relative error of at most 6e-7 + 2e-7 |x|."""
        power = power_of_2(x * types.float32(-2 * _LOG2_E))
        return reciprocal(power * types.float32(0.5) + types.float32(0.5))

    @library.inlined
    def fast_tanh(x: Any) -> Any:
        """Return tanh of a float32 with relative error below 1e-6, as (1 + tanh) - 1, or near 0 as x plus a polynomial.

        The polynomial is fitted to tanh(x) / x on |x| <= 0.55, with a relative error of 4e-8; beyond, the other form is
        as accurate. If 1 + tanh of the same number is needed as well, its exponential and reciprocal are computed once.
        """
        square = x * x
        series = types.float32(0.016458753) * square + types.float32(-0.05268414)
        series = series * square + types.float32(0.13320942)
        series = series * square + types.float32(-0.33332959)
        near = x * (series * square) + x
        far = one_plus_tanh(x) - types.float32(1.0)
        return near if abs(x) < types.float32(0.55) else far

    @library.inlined
    def fast_logaddexp(x: Any, y: Any) -> Any:
        """Return logaddexp of float32s, with the error of `fast_exp` in the smaller power's share."""
        gap = types.float32(0.0) if x == y else -abs(x - y)
        return max(x, y) + math.log1p(fast_exp(gap))

    @library.inlined
    def fast_sigmoid(x: Any) -> Any:
        """Return 1 / (1 + exp(-x)) of a float32, with a relative error of at most 5e-7 + 9e-8 |x|; 0 below 1.2e-38."""
        return reciprocal(types.float32(1.0) + power_of_2(x * types.float32(-_LOG2_E)))


def _define_exact_functions(
    library: Library, kind: _Typed, *, suffix: str, smallest: int, digits: int, steps: int,
) -> None:
    """Define division and square root without a branch for a type with normal numbers from 2**smallest.

    ``steps`` of Newton's method give the hardware's estimates all ``digits``; then a result is corrected by what it
    leaves of the operand (P. Markstein, IBM Journal of Research and Development 34, 1990).
    """
    number, letters = kind
    fused = library.named(f"fused{suffix}", assembly(f"fma.rn.{letters} $0, $1, $2, $3;", kind, kind, kind, kind))
    estimated = library.named(f"estimate{suffix}", assembly(f"rcp.approx.ftz.{letters} $0, $1;", kind, kind))
    estimated_root = library.named(f"root{suffix}", assembly(f"rsqrt.approx.ftz.{letters} $0, $1;", kind, kind))

    @library.inlined
    def inverse(b: Any, estimate: Any) -> Any:
        for _ in range(steps):
            estimate = fused(fused(-b, estimate, number(1.0)), estimate, estimate)
        return estimate

    def rounded_quotient(a: Any, b: Any) -> Any:
        """Return a / b rounded exactly, unless the result or what it leaves of ``a`` is not a normal number."""
        size = abs(b)
        large = number(0.25) if size > number(2.0**-smallest) else number(1.0)
        scale = number(2.0**digits) if size < number(2.0**smallest) else large
        a, b = a * scale, b * scale
        estimate = estimated(b)
        factor = inverse(b, estimate)
        product = a * estimate
        first = fused(fused(-b, product, a), factor, product)
        second = fused(fused(-b, first, a), factor, first)
        # Otherwise an infinity would become NaN, and -0 would lose its sign.
        return second if number(0.0) < abs(product) < number(math.inf) else product

    def rounded_sqrt(x: Any) -> Any:
        """Return the square root rounded exactly; NaN of a negative number."""
        is_small = x < number(2.0 ** (smallest + 2 * digits))
        scaled = x * (number(4.0**digits) if is_small else number(1.0))
        estimate = estimated_root(scaled)
        root, half = scaled * estimate, estimate * number(0.5)
        for _ in range(steps):
            rest = fused(-root, half, number(0.5))
            root, half = fused(root, rest, root), fused(half, rest, half)
        root = fused(fused(-root, root, scaled), half, root)
        return x if x == number(0.0) or x == number(math.inf) else root * number(2.0**-digits if is_small else 1.0)

    for function in (rounded_quotient, rounded_sqrt):
        function.__name__ += suffix
        library.inlined(function)


def _floor_quotient(kind: _Typed, unit: str) -> Rule:
    """Return a quotient rounded down: one less than the rounded one if what that leaves has the other sign."""
    steps = (
        ".reg .F whole, rest, sign;", ".reg .pred p;", "div.rn.F whole, $1, $2;", "cvt.rmi.F.F whole, whole;",
        "neg.F rest, whole;", "fma.rn.F rest, rest, $2, $1;", "testp.infinite.F p, $2;", "selp.F rest, $1, rest, p;",
        f"copysign.F sign, $2, {unit};", "mul.rn.F rest, rest, sign;", "sub.rn.F sign, $1, $1;",
        "setp.ne.F p, $2, 0.0;", "@p add.rn.F whole, whole, sign;",  # NaN if the dividend is infinite
        "setp.lt.F p, rest, 0.0;", f"@p sub.rn.F whole, whole, {unit};", "mov.F $0, whole;",
    )
    return assembly(f"{{ {' '.join(steps)} }}".replace(".F", f".{kind[1]}"), kind, kind, kind)


def _extreme(types: Any, *, larger: bool) -> Rule:
    """Return maximum or minimum of floats, propagating NaN: one instruction for float32, otherwise branch-free."""
    sign = ">" if larger else "<"
    single = "max.NaN.f32 $0, $1, $2;" if larger else "min.NaN.f32 $0, $1, $2;"

    def rule(x: Any, y: Any) -> Call:
        def generate(b: Builder, first: Operand, second: Operand) -> Any:
            a, c = first.value, second.value
            if x == types.float32:
                return b.assembly(single, ["f32"], "=f,f,f", [a, c])[0]
            if x == types.uint64:
                return b.select(b.below(a, c), *((c, a) if larger else (a, c)))
            chosen = b.binary("or", b.compared(sign, a, c), b.compared("!=", a, a))
            other = b.select(chosen, a, c)
            # Equal numbers differ only if they are zeros of different sign: the larger is negative if both are.
            bits = [b.reinterpreted(value, "i64") for value in (a, c)]
            zero = b.reinterpreted(b.binary("and" if larger else "or", *bits), "f64")
            return b.select(b.compared("==", a, c), zero, other)

        return Call(result=x, arguments=(x, x), generate=generate)

    return rule


def _where(types: Any) -> Rule:
    def where(condition: Any, x: Any, y: Any) -> Call:
        """Return one number or pointer or the other, without a branch; of two sizes of integers the larger one."""
        # numba-cuda-mlir gives constants their literal types.
        kinds = (types.boolean if isinstance(side, types.Boolean) else side for side in (x, y))
        kind = max(kinds, key=lambda candidate: getattr(candidate, "bitwidth", 1))  # pointers and Booleans have none

        def generate(b: Builder, holds: Operand, first: Operand, second: Operand) -> Any:
            return b.select(holds.value, first.value, second.value)

        return Call(result=kind, arguments=(types.boolean, kind, kind), generate=generate)

    return where


def _truncation(types: Any, result: Any, letters: str) -> Rule:
    """Return a function that converts floats to integers by an instruction; see `fuser_lab.dtypes.truncate`.

    It is written as PTX because LLVM's conversion does not define results for numbers out of range.
    """
    kind: Kind = "i64" if letters.endswith("64") else "i32"

    def rule(x: Any) -> Call:
        argument: tuple[str, str] = ("f64", "d") if x == types.float64 else ("f32", "f")
        text = f"cvt.rzi.{letters}.{argument[0]} $0, $1;"

        def generate(b: Builder, number: Operand) -> Any:
            return b.assembly(text, [kind], f"={_LETTERS[kind]},{argument[1]}", [number.value])[0]

        return Call(result=result, arguments=(x,), generate=generate)

    return rule

"""Functions that generated CUDA kernels call; the twins of `intrinsics_cpu`, compiled for a GPU."""

import cmath
import math
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.core import targetconfig
from numba.cuda.extending import intrinsic

from fuser_lab.ops.random import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from fuser_lab.runtime.complex_functions import complex_functions

_KEY_0, _KEY_1 = PHILOX_KEY_STEPS
_MULTIPLIER_0, _MULTIPLIER_1 = PHILOX_MULTIPLIERS

_BYTE, _WORD, _BITS, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()


@intrinsic
def index32(context: Any, x: Any) -> Any:
    """Return an index that is known to be less than 2**32: the compiler may then divide with 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.zext(builder.trunc(wide, _BITS), ir.IntType(64))

    return types.int64(x), generate


def _moved(kind: Any, count: int, width: int) -> tuple[Any, int, int]:
    """Return the type of the parts that a vector access moves, how many parts an access has, and how many there are.

    Small elements travel as whole words, complex numbers in halves, so that the hardware's vector types fit.
    """
    nbytes = kind.bitwidth // 8
    if kind in {types.complex64, types.complex128}:
        part: Any = _FLOAT if nbytes == 8 else ir.DoubleType()
        return part, 2 * width, count // width
    if nbytes >= 4:
        parts = {types.float32: _FLOAT, types.float64: ir.DoubleType()}
        return parts.get(kind, ir.IntType(8 * nbytes)), width, count // width
    word = ir.IntType(min(8 * nbytes * width, 32))
    return word, max(nbytes * width // 4, 1), count // width


_STREAMED = "L2::evict_first", ".L1::no_allocate"
_LASTING = "L2::evict_last", ""


def _load_with(hint: tuple[str, str], lanes: int) -> str:
    """Return PTX that loads 2 or 4 words, the address after them, with a priority of the L2 cache."""
    priority, first_level = hint
    words, address = ", ".join(f"${k}" for k in range(lanes)), f"${lanes}"
    return (
        f"{{ .reg .b64 kept; createpolicy.fractional.{priority}.b64 kept, 1.0; "
        f"ld.global{first_level}.L2::cache_hint.v{lanes}.b32 {{{words}}}, [{address}], kept; }}"
    )


def _outside(context: Any, builder: Any, signature: Any, args: Any, vector: Any) -> Any:
    """Return a pointer to the vectors at a position, the second argument, of memory, the first."""
    at = context.cast(builder, args[1], signature.args[1], types.int64)
    if isinstance(signature.args[0], types.Array):  # shared memory of the block
        start = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.bitcast(builder.gep(start, [at]), vector.as_pointer())
    place = builder.bitcast(builder.gep(args[0], [at]), vector.as_pointer())
    return builder.addrspacecast(place, vector.as_pointer(addrspace=1))


def _vector(storing: bool, hint: tuple[str, str] | None = None) -> Any:
    """Return `load_vector` or `store_vector`: the loop over accesses, each moved part by part from and to registers.

    Numba writes no vector accesses of its own accord: four loads stay four (numba-cuda 0.30).
    """

    def rule(context: Any, memory: Any, position: Any, words: Any, slot: Any, count: Any, width: Any) -> Any:
        if not hasattr(count, "literal_value"):
            return None  # asked again with literals as types
        kind = memory.dtype
        number, per_access = count.literal_value, width.literal_value
        part, lanes, accesses = _moved(kind, number, per_access)
        vector = ir.VectorType(part, lanes) if lanes > 1 else part
        nbytes = per_access * (kind.bitwidth // 8)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            outside = _outside(context, builder, signature, args, vector)
            array = context.make_array(signature.args[2])(context, builder, value=args[2])
            first = context.cast(builder, args[3], signature.args[3], types.int64)
            inside = builder.bitcast(builder.gep(array.data, [first]), part.as_pointer())
            for access in range(accesses):
                place = builder.gep(outside, [ir.Constant(ir.IntType(64), access)])
                slots = [builder.gep(inside, [ir.Constant(ir.IntType(64), access * lanes + k)]) for k in range(lanes)]
                numbers = [ir.Constant(_BITS, k) for k in range(lanes)]
                if storing:
                    value: Any = ir.Constant(vector, ir.Undefined)
                    for k, register in zip(numbers, slots, strict=True):
                        element = builder.load(register)
                        value = element if lanes == 1 else builder.insert_element(value, element, k)
                    builder.store(value, place, align=nbytes)
                elif hint and lanes in {2, 4} and nbytes == 4 * lanes:
                    parts = ir.FunctionType(ir.LiteralStructType([part] * lanes), [ir.IntType(64)])
                    result = "=f" if part == _FLOAT else "=r"
                    load = ir.InlineAsm(parts, _load_with(hint, lanes), ",".join([result] * lanes + ["l"]))
                    moved = builder.call(load, [builder.ptrtoint(place, ir.IntType(64))])
                    for k, register in enumerate(slots):
                        builder.store(builder.extract_value(moved, k), register)
                else:
                    value = builder.load(place, align=nbytes)
                    for k, register in zip(numbers, slots, strict=True):
                        builder.store(value if lanes == 1 else builder.extract_element(value, k), register)
            return context.get_dummy_value()

        return types.void(memory, position, words, slot, count, width), generate

    return intrinsic(rule)


# load_vector(memory, position, words, slot, count, width): words[slot + k] = memory[position + k] for k < count, with
# ``width`` elements in each memory access; store_vector moves them the other way. ``position`` is a multiple of
# ``width``, the address of an access is a multiple of its size (at most 16 bytes), count and width are literals.
load_vector = _vector(storing=False)
store_vector = _vector(storing=True)
# load_streamed is load_vector for what is read once: it is the first to leave the L2 cache.
load_streamed = _vector(storing=False, hint=_STREAMED)
# load_lasting is load_vector for inputs of kernels that write more than the L2 cache holds: what is written goes first.
load_lasting = _vector(storing=False, hint=_LASTING)


def _extreme(larger: bool) -> Any:
    """Return maximum or minimum with NaN propagating: one instruction for float32, else comparisons and no branch."""
    sign = ">" if larger else "<"
    single = "max.NaN.f32 $0, $1, $2;" if larger else "min.NaN.f32 $0, $1, $2;"
    wide = ir.IntType(64)

    def rule(context: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, b = args
            if x == types.float32:
                return builder.call(ir.InlineAsm(ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT]), single, "=f,f,f"), args)
            chosen = builder.or_(builder.fcmp_ordered(sign, a, b), builder.fcmp_unordered("uno", a, a))
            other = builder.select(chosen, a, b)
            # Of equal numbers only the signs of zeros differ: the larger has a sign if both have one.
            bits = [builder.bitcast(value, wide) for value in args]
            zero = builder.bitcast((builder.and_ if larger else builder.or_)(*bits), ir.DoubleType())
            return builder.select(builder.fcmp_ordered("==", a, b), zero, other)

        return x(x, x), generate

    return intrinsic(rule)


maximum = _extreme(larger=True)
minimum = _extreme(larger=False)


@intrinsic
def quotient(context: Any, x: Any, y: Any) -> Any:
    """Return x / y of float32 numbers, at most 2 units in the last place off, without a branch."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT])
        return builder.call(ir.InlineAsm(kind, "div.full.f32 $0, $1, $2;", "=f,f,f"), args, attrs=_PURE)

    return types.float32(types.float32, types.float32), generate


_PURE = ("nounwind", "readnone")  # an instruction's result is computed once where it is needed several times


def _assembly(text: str, result: Any, argument: Any, constraints: str) -> Any:
    """Return a function that is one PTX instruction."""
    llvm = {types.uint16: _WORD, types.float32: _FLOAT, types.uint32: _BITS}

    def rule(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(llvm[result], [llvm[argument]])
            return builder.call(ir.InlineAsm(kind, text, constraints), args, attrs=_PURE)

        return result(argument), generate

    return intrinsic(rule)


half_to_float = _assembly("cvt.f32.f16 $0, $1;", types.float32, types.uint16, "=f,h")
float_to_half = _assembly("cvt.rn.f16.f32 $0, $1;", types.uint16, types.float32, "=h,f")
float_to_bf16 = _assembly("cvt.rn.bf16.f32 $0, $1;", types.uint16, types.float32, "=h,f")
_rounded = _assembly("cvt.rni.f32.f32 $0, $1;", types.float32, types.float32, "=f,f")
_float_of_bits = _assembly("mov.b32 $0, $1;", types.float32, types.uint32, "=f,r")
_bits_of_float = _assembly("mov.b32 $0, $1;", types.uint32, types.float32, "=r,f")


def _truncation(result: Any, letters: str) -> Any:
    """Return a function that makes integers of floats by the instruction that `fuser_lab.dtypes.truncated` describes.

    Written as the instruction: LLVM's own conversion leaves open what becomes of numbers out of range.
    """

    def rule(context: Any, x: Any) -> Any:
        double = x == types.float64

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            bits = ir.IntType(int(letters[1:]))
            kind = ir.FunctionType(bits, [ir.DoubleType() if double else _FLOAT])
            register = "=l" if result.bitwidth > 32 else "=r"
            text = f"cvt.rzi.{letters}.{'f64' if double else 'f32'} $0, $1;"
            return builder.call(ir.InlineAsm(kind, text, f"{register},{'d' if double else 'f'}"), args)

        return result(x), generate

    return intrinsic(rule)


float_to_int32 = _truncation(types.int32, "s32")
float_to_int64 = _truncation(types.int64, "s64")
float_to_uint64 = _truncation(types.uint64, "u64")

@intrinsic
def small_to_float(context: Any, x: Any) -> Any:
    """Return an integer between -2**22 and 2**22 as float32.

    It is added to the bits of 1.5 * 2**23, which is subtracted: a conversion instruction has an eighth of their rate.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shifted = builder.bitcast(builder.add(args[0], ir.Constant(_BITS, 0x4B400000)), _FLOAT)
        return builder.fsub(shifted, ir.Constant(_FLOAT, 12582912.0))

    return types.float32(types.int32), generate


_exp2 = _assembly("ex2.approx.ftz.f32 $0, $1;", types.float32, types.float32, "=f,f")
_reciprocal = _assembly("rcp.approx.ftz.f32 $0, $1;", types.float32, types.float32, "=f,f")
_LOG2_E = 1.4426950408889634


@cuda.jit(device=True, forceinline=True)
def fast_exp(x: Any) -> Any:
    """Return exp of a float32 by the hardware's exp2: relative error at most 3e-7 + 9e-8 |x|, 0 below 1.2e-38."""
    return _exp2(x * types.float32(_LOG2_E))


@cuda.jit(device=True, forceinline=True)
def one_plus_tanh(x: Any) -> Any:
    """Return 1 + tanh(x) of a float32 as 2 / (1 + exp(-2x)): relative error at most 6e-7 + 2e-7 |x|."""
    power = _exp2(x * types.float32(-2 * _LOG2_E))
    return _reciprocal(power * types.float32(0.5) + types.float32(0.5))


@cuda.jit(device=True, forceinline=True)
def fast_tanh(x: Any) -> Any:
    """Return tanh of a float32 with a relative error below 1e-6: (1 + tanh) - 1, near 0 x plus a polynomial.

    Where 1 + tanh of the same number is needed as well, the compiler computes its exponential and reciprocal once.
    """
    square = x * x
    # Fitted to tanh(x) / x on |x| <= 0.55, relative error 4e-8; beyond, the other form has lost no more digits.
    series = types.float32(0.016458753) * square + types.float32(-0.05268414)
    series = series * square + types.float32(0.13320942)
    series = series * square + types.float32(-0.33332959)
    near = x * (series * square) + x
    far = one_plus_tanh(x) - types.float32(1.0)
    return near if abs(x) < types.float32(0.55) else far


@cuda.jit(device=True, forceinline=True)
def fast_sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) of a float32: relative error at most 5e-7 + 9e-8 |x|, 0 where it is below 1.2e-38."""
    return _reciprocal(types.float32(1.0) + _exp2(x * types.float32(-_LOG2_E)))


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


@cuda.jit(device=True, forceinline=True)
def round_bf16(x: Any) -> Any:
    """Return a float32 rounded to the nearest bfloat16 value, still as float32."""
    return bf16_to_float(float_to_bf16(x))


@cuda.jit(device=True, forceinline=True)
def round_half(x: Any) -> Any:
    """Return a float32 rounded to the nearest float16 value, still as float32."""
    return half_to_float(float_to_half(x))


def _e4m3_widened(bits: Any) -> Any:
    """Return the float32 value of a Float8_e4m3fn given as uint8, by arithmetic."""
    magnitude = types.uint32(bits) & types.uint32(0x7F)
    sign = types.uint32((types.uint32(bits) & types.uint32(0x80)) << types.uint32(8))
    # The same fields as those of a float16, with an exponent that counts from 7 instead of 15.
    value = half_to_float(types.uint16(sign | types.uint32(magnitude << types.uint32(7)))) * types.float32(256.0)
    if magnitude == types.uint32(0x7F):
        return types.float32(math.nan)
    return value


@cuda.jit(device=True)
def _small_float(x: Any, mantissa: Any, bias: Any) -> Any:
    """Return a float32's magnitude as a float with few bits, rounded to nearest even, without regard to overflow."""
    size = abs(x)
    bits = _bits_of_float(size)
    dropped = types.uint32(types.uint32(23) - mantissa)
    even = types.uint32((bits >> dropped) & types.uint32(1))
    half = types.uint32((types.uint32(1) << types.uint32(dropped - types.uint32(1))) - types.uint32(1))
    scale = types.uint32(types.uint32(types.uint32(127) - bias) << mantissa)
    normal = types.uint32(types.uint32(types.uint32(bits + half + even) >> dropped) - scale)
    # Below the smallest normal number steps are equal: count them.
    smallest = _float_of_bits(types.uint32(types.uint32(types.uint32(128) - bias) << types.uint32(23)))
    step = _float_of_bits(types.uint32(types.uint32(types.uint32(126) + bias + mantissa) << types.uint32(23)))
    if size < smallest:
        return types.uint32(_rounded(size * step))
    return normal


def _e4m3_narrowed(x: Any) -> Any:
    """Return a float32 rounded to Float8_e4m3fn as uint8, by arithmetic."""
    sign = types.uint32((_bits_of_float(x) >> types.uint32(24)) & types.uint32(0x80))
    limited = abs(x) if abs(x) <= types.float32(448.0) else types.float32(448.0)  # noqa: FURB136
    rounded = _small_float(limited, types.uint32(3), types.uint32(7))
    if x != x:  # noqa: PLR0124 - true for NaN
        rounded = types.uint32(0x7F)
    return types.uint8(sign | rounded)


def _e5m2_widened(bits: Any) -> Any:
    """Return the float32 value of a Float8_e5m2, the upper half of a float16, given as uint8."""
    return half_to_float(types.uint16(types.uint32(bits) << types.uint32(8)))


def _e5m2_narrowed(x: Any) -> Any:
    """Return a float32 rounded to Float8_e5m2 as uint8, by arithmetic."""
    sign = types.uint32((_bits_of_float(x) >> types.uint32(24)) & types.uint32(0x80))
    rounded = _small_float(x, types.uint32(2), types.uint32(15))
    rounded = min(rounded, types.uint32(0x7C))
    if x != x:  # noqa: PLR0124
        rounded = types.uint32(0x7E)
    return types.uint8(sign | rounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Float8:
    """A float of 8 bits that instructions convert two at a time, of a uint16 with the first element in its low byte.

    ``infinite_from`` is the least magnitude that becomes infinite, where there is an infinity: the instruction gives
    the largest number instead, whose bits are the next smaller. ``widened`` and ``narrowed`` are for other devices.
    """

    letters: str
    widened: Any
    narrowed: Any
    infinite_from: float | None = None

    def wide(self, context: Any, builder: Any, pair: Any, second: Any) -> Any:
        """Return one of a pair's elements as float32; ``second`` is a bit."""
        if not _converts_float8():
            shift = builder.select(second, ir.Constant(_WORD, 8), ir.Constant(_WORD, 0))
            byte = builder.trunc(builder.lshr(pair, shift), _BYTE)
            return context.compile_internal(builder, self.widened, types.float32(types.uint8), [byte])
        kind = ir.FunctionType(_BITS, [_WORD])
        halves = builder.call(ir.InlineAsm(kind, f"cvt.rn.f16x2.{self.letters}x2 $0, $1;", "=r,h"), [pair])
        upper = builder.trunc(builder.lshr(halves, ir.Constant(_BITS, 16)), _WORD)
        half = builder.select(second, upper, builder.trunc(halves, _WORD))
        return builder.call(ir.InlineAsm(ir.FunctionType(_FLOAT, [_WORD]), "cvt.f32.f16 $0, $1;", "=f,h"), [half])

    def narrow(self, context: Any, builder: Any, numbers: list[Any]) -> Any:
        """Return one or two float32 numbers as a pair, rounded to nearest even."""
        if not _converts_float8():
            rule = types.uint8(types.float32)
            words = [
                builder.zext(context.compile_internal(builder, self.narrowed, rule, [x]), _WORD) for x in numbers
            ]
            return words[0] if len(words) == 1 else builder.or_(words[0], builder.shl(words[1], ir.Constant(_WORD, 8)))
        kind = ir.FunctionType(_WORD, [_FLOAT, _FLOAT])
        first, second = numbers[0], numbers[1] if len(numbers) > 1 else ir.Constant(_FLOAT, 0.0)
        text = f"cvt.rn.satfinite.{self.letters}x2.f32 $0, $1, $2;"
        pair = builder.call(ir.InlineAsm(kind, text, "=h,f,f"), [second, first])
        if self.infinite_from is None:
            return pair
        for place, number in enumerate(numbers):
            size = builder.bitcast(builder.and_(builder.bitcast(number, _BITS), ir.Constant(_BITS, 0x7FFFFFFF)), _FLOAT)
            beyond = builder.fcmp_ordered(">=", size, ir.Constant(_FLOAT, self.infinite_from))
            step = ir.Constant(_WORD, 1 << 8 * place)
            pair = builder.add(pair, builder.select(beyond, step, ir.Constant(_WORD, 0)))
        return pair


_PAIRS_FROM = 8, 9  # compute capability


def _converts_float8() -> bool:
    """Whether the device that a kernel is compiled for has instructions for 8-bit floats.

    To be asked while the kernel itself is lowered: Numba compiles a device function once, for the first device.
    """
    return tuple(targetconfig.ConfigStack().top().compute_capability) >= _PAIRS_FROM


_E4M3 = _Float8(letters="e4m3", widened=_e4m3_widened, narrowed=_e4m3_narrowed)
_E5M2 = _Float8(
    letters="e5m2", widened=_e5m2_widened, narrowed=_e5m2_narrowed,
    infinite_from=61440.0,  # half-way from the largest number to the next power of two: even is the latter
)


def _widening(form: _Float8) -> Any:
    """Return a function that widens an 8-bit float given as uint8 to float32."""

    def rule(context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return form.wide(context, builder, builder.zext(args[0], _WORD), ir.Constant(ir.IntType(1), 0))

        return types.float32(types.uint8), generate

    return intrinsic(rule)


def _widening_among(form: _Float8) -> Any:
    """Return a function that widens ``words[place]``, a thread's uint8s, of which there is an even number.

    It converts two neighbours; the compiler does so once for both.
    """

    def rule(context: Any, words: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = ir.IntType(64)
            start = context.make_array(signature.args[0])(context, builder, value=args[0]).data
            at = context.cast(builder, args[1], signature.args[1], types.int64)
            first = builder.gep(start, [builder.and_(at, ir.Constant(wide, -2))])
            pair = builder.load(builder.bitcast(first, _WORD.as_pointer()), align=2)
            return form.wide(context, builder, pair, builder.trunc(at, ir.IntType(1)))

        return types.float32(words, place), generate

    return intrinsic(rule)


def _narrowing(form: _Float8) -> Any:
    """Return a function that rounds a float32 to an 8-bit float, to nearest even with NaN kept, as uint8."""

    def rule(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.trunc(form.narrow(context, builder, args), _BYTE)

        return types.uint8(types.float32), generate

    return intrinsic(rule)


def _storing(form: _Float8) -> Any:
    """Return `store_vector` for words that are float32 yet: they are rounded two at a time."""

    def rule(context: Any, memory: Any, position: Any, words: Any, slot: Any, count: Any, width: Any) -> Any:
        if not hasattr(count, "literal_value"):
            return None  # asked again with literals as types
        per_access = width.literal_value
        part, lanes, accesses = _moved(memory.dtype, count.literal_value, per_access)
        vector = ir.VectorType(part, lanes) if lanes > 1 else part
        pairs = per_access // lanes // 2  # in a part

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = ir.IntType(64)
            outside = _outside(context, builder, signature, args, vector)
            start = context.make_array(signature.args[2])(context, builder, value=args[2]).data
            first = context.cast(builder, args[3], signature.args[3], types.int64)

            def number(place: int) -> Any:
                return builder.load(builder.gep(start, [builder.add(first, ir.Constant(wide, place))]))

            def word(place: int) -> Any:
                whole: Any = ir.Constant(part, 0)
                for pair in range(pairs):
                    both = [number(place + 2 * pair), number(place + 2 * pair + 1)]
                    moved = builder.zext(form.narrow(context, builder, both), part)
                    whole = builder.or_(whole, builder.shl(moved, ir.Constant(part, 16 * pair)))
                return whole

            for access in range(accesses):
                parts = [word(access * per_access + k * 2 * pairs) for k in range(lanes)]
                value = parts[0]
                if lanes > 1:
                    value = ir.Constant(vector, ir.Undefined)
                    for k, each in enumerate(parts):
                        value = builder.insert_element(value, each, ir.Constant(_BITS, k))
                builder.store(value, builder.gep(outside, [ir.Constant(wide, access)]), align=per_access)
            return context.get_dummy_value()

        return types.void(memory, position, words, slot, count, width), generate

    return intrinsic(rule)


# Float8_e4m3fn has no infinity: what is too large becomes its largest number, 448.
e4m3_to_float, e5m2_to_float = _widening(_E4M3), _widening(_E5M2)
e4m3_among, e5m2_among = _widening_among(_E4M3), _widening_among(_E5M2)
float_to_e4m3, float_to_e5m2 = _narrowing(_E4M3), _narrowing(_E5M2)
store_e4m3, store_e5m2 = _storing(_E4M3), _storing(_E5M2)


@cuda.jit(device=True, forceinline=True)
def round_e4m3(x: Any) -> Any:
    """Return a float32 rounded to the nearest Float8_e4m3fn value, still as float32."""
    return e4m3_to_float(float_to_e4m3(x))


@cuda.jit(device=True, forceinline=True)
def round_e5m2(x: Any) -> Any:
    """Return a float32 rounded to the nearest Float8_e5m2 value, still as float32."""
    return e5m2_to_float(float_to_e5m2(x))


@cuda.jit(device=True)
def e8m0_to_float(bits: Any) -> Any:
    """Return the float32 value of a Float8_e8m0fnu, an exponent, given as uint8."""
    exponent = types.uint32(bits)
    word = types.uint32(exponent << types.uint32(23))
    if exponent == types.uint32(0):
        word = types.uint32(0x00400000)
    elif exponent == types.uint32(255):
        word = types.uint32(0x7FC00000)
    return _float_of_bits(word)


@cuda.jit(device=True)
def float_to_e8m0(x: Any) -> Any:
    """Return a float32's magnitude rounded to a power of two (to nearest, between two to the larger), as uint8.

    Zero becomes the smallest and what is above it the second, as in torch; what is too large becomes NaN.
    """
    bits = _bits_of_float(abs(x))
    exponent = types.uint32(bits >> types.uint32(23))
    rest = types.uint32(bits & types.uint32(0x7FFFFF))
    tie = types.uint32(0x400000)
    up = rest > tie or (rest == tie and exponent > types.uint32(0))
    if up and exponent < types.uint32(255):
        exponent = types.uint32(exponent + types.uint32(1))
    return types.uint8(exponent)


@cuda.jit(device=True)
def round_e8m0(x: Any) -> Any:
    """Return a float32 rounded to the nearest Float8_e8m0fnu value, still as float32."""
    return e8m0_to_float(float_to_e8m0(x))


@cuda.jit(device=True)
def complex_abs(x: Any) -> Any:
    """Return the magnitude of a complex number, without overflow on the way."""
    return math.hypot(x.real, x.imag)


@cuda.jit(device=True)
def complex_div(a: Any, b: Any) -> Any:
    """Return the quotient of complex numbers by Smith's method, which does not overflow where the quotient does not."""
    if b.real == 0 and b.imag == 0:  # infinite or NaN in each part, as in NumPy
        return complex(a.real / abs(b.real), a.imag / abs(b.real))
    if abs(b.real) >= abs(b.imag):
        ratio = b.imag / b.real
        divisor = b.real + b.imag * ratio
        return complex((a.real + a.imag * ratio) / divisor, (a.imag - a.real * ratio) / divisor)
    ratio = b.real / b.imag
    divisor = b.real * ratio + b.imag
    return complex((a.real * ratio + a.imag) / divisor, (a.imag * ratio - a.real) / divisor)


@cuda.jit(device=True)
def complex_sqrt(x: Any) -> Any:
    """Return the square root of a complex number with a real part that is not negative."""
    size = math.sqrt((math.hypot(x.real, x.imag) + abs(x.real)) / 2)
    if size == 0:
        return complex(size, x.imag)
    other = x.imag / (2 * size)
    if x.real >= 0:
        return complex(size, other)
    return complex(abs(other), math.copysign(size, x.imag))


_COMPLEX = complex_functions(cuda.jit(device=True), types.float64, cmath.acos)
complex_exp, complex_exp2, complex_expm1 = _COMPLEX["exp"], _COMPLEX["exp2"], _COMPLEX["expm1"]
complex_log, complex_log10 = _COMPLEX["log"], _COMPLEX["log10"]
complex_log1p, complex_log2 = _COMPLEX["log1p"], _COMPLEX["log2"]
complex_cosh, complex_sinh, complex_tanh = _COMPLEX["cosh"], _COMPLEX["sinh"], _COMPLEX["tanh"]
complex_cos, complex_sin, complex_tan = _COMPLEX["cos"], _COMPLEX["sin"], _COMPLEX["tan"]
complex_acosh, complex_pow = _COMPLEX["acosh"], _COMPLEX["pow"]


@cuda.jit(device=True)
def shift_left(a: Any, b: Any, width: Any) -> Any:
    """Return ``a`` moved left; 0 for distances that are negative or the width or more."""
    if b < 0 or b >= width:
        return a - a
    return a << b


@cuda.jit(device=True)
def shift_right(a: Any, b: Any, width: Any) -> Any:
    """Return ``a`` moved right; nothing but copies of the sign for distances that are negative or the width or more."""
    if b < 0 or b >= width:
        return (a >> (width - 1)) >> 1
    return a >> b


@cuda.jit(device=True)
def common_divisor(a: Any, b: Any) -> Any:
    """Return the greatest common divisor of the magnitudes, as uint64."""
    x, y = types.uint64(a), types.uint64(b)
    if a < 0:
        x = types.uint64(types.uint64(0) - x)
    if b < 0:
        y = types.uint64(types.uint64(0) - y)
    while y != 0:
        rest = x % y
        x = y
        y = rest
    return x


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
def power_uint(a: Any, b: Any) -> Any:
    """Return a to the power b for unsigned integers."""
    result = types.uint64(1)
    while b > types.uint64(0):
        if b & types.uint64(1):
            result = result * a
        a = a * a
        b = b >> types.uint64(1)
    return result


@intrinsic
def _philox(context: Any, seed: Any, offset: Any, group: Any) -> Any:
    """Return the four 32-bit words of Philox 4x32-10, as `fuser_lab.ops.random.philox`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(64)
        # As a separate instruction: LLVM would widen all that is done with the halves.
        product = ir.InlineAsm(ir.FunctionType(wide, [_BITS, _BITS]), "mul.wide.u32 $0, $1, $2;", "=l,r,r")

        def halves(value: Any) -> tuple[Any, Any]:
            return builder.trunc(value, _BITS), builder.trunc(builder.lshr(value, ir.Constant(wide, 32)), _BITS)

        (k0, k1), (c0, c1), (c2, c3) = map(halves, args)
        for _ in range(PHILOX_ROUNDS):
            low, high = halves(builder.call(product, [c0, ir.Constant(_BITS, _MULTIPLIER_0)]))
            other, above = halves(builder.call(product, [c2, ir.Constant(_BITS, _MULTIPLIER_1)]))
            c0, c1 = builder.xor(builder.xor(above, c1), k0), other
            c2, c3 = builder.xor(builder.xor(high, c3), k1), low
            k0, k1 = builder.add(k0, ir.Constant(_BITS, _KEY_0)), builder.add(k1, ir.Constant(_BITS, _KEY_1))
        return context.make_tuple(builder, signature.return_type, [c0, c1, c2, c3])

    return types.UniTuple(types.uint32, 4)(types.uint64, types.uint64, types.uint64), generate


@cuda.jit(device=True, forceinline=True)
def _unit(word: Any) -> Any:
    """Return the upper 24 bits of a random word as a float32 in [0, 1)."""
    return types.float32(types.uint32(word >> types.uint32(8))) * types.float32(5.9604644775390625e-08)


@cuda.jit(device=True)
def philox_uniform(seed: Any, offset: Any, position: Any) -> Any:
    """Return a float32 in [0, 1) with 24 random bits: one word of the four of its group."""
    place = types.uint64(position)
    c0, c1, c2, c3 = _philox(seed, offset, place >> types.uint64(2))
    word = place & types.uint64(3)
    chosen = c0
    if word == 1:
        chosen = c1
    elif word == 2:
        chosen = c2
    elif word == 3:
        chosen = c3
    return _unit(chosen)


@cuda.jit(device=True, forceinline=True)
def philox_uniforms(seed: Any, offset: Any, position: Any, numbers: Any, slot: Any, count: Any) -> Any:
    """Put numbers like `philox_uniform`'s at neighbouring positions into ``numbers``; all of a group are used.

    ``position`` and ``count`` are multiples of 4.
    """
    for group in range(count // 4):
        place = types.uint64(position + group * 4)
        c0, c1, c2, c3 = _philox(seed, offset, place >> types.uint64(2))
        first = slot + group * 4
        numbers[first] = _unit(c0)
        numbers[first + 1] = _unit(c1)
        numbers[first + 2] = _unit(c2)
        numbers[first + 3] = _unit(c3)

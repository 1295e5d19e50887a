"""Conversions of 8-bit floats: two at a time by instructions if the device has them, else by arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.runtime.cuda_compilers.building import Builder, Call, Operand, Rule
from fuser_lab.runtime.cuda_compilers.language import Library
from fuser_lab.runtime.cuda_compilers.memory_functions import access_of

_PAIRS_FROM = 8, 9  # the lowest compute capability with the instructions
_MAGNITUDE, _MANTISSA_BITS, _BIAS = 0x7FFFFFFF, 23, 127  # of a float32
_MAGNITUDE_8, _SIGN_8 = 0x7F, 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8:
    """An 8-bit float that instructions convert two at a time; the low byte of a uint16 is the first element.

    Parameters
    ----------
    letters
        Its name in PTX.
    mantissa, bias
        The number of bits of its mantissa, and the bias of its exponent.
    nan
        The magnitude that encodes NaN.
    largest
        The value that larger numbers become, if there is no infinity.
    infinite_from
        The smallest magnitude that becomes infinite, if there is an infinity. The instruction gives the largest finite
        number instead, whose bits are one less than those of infinity.
    """

    letters: str
    mantissa: int
    bias: int
    nan: int
    largest: float | None = None
    infinite_from: float | None = None

    def wide(self, b: Builder, pair: Any, second: Any) -> Any:
        """Return one element of a pair as float32; ``second`` is 0 or 1."""
        if b.capability < _PAIRS_FROM:
            return self._widen_byte(b, b.widened(b.moved_right(pair, b.select(second, b.constant("i16", 8), 0)), "i32"))
        halves = b.assembly(f"cvt.rn.f16x2.{self.letters}x2 $0, $1;", ["i32"], "=r,h", [pair])[0]
        upper = b.truncated(b.moved_right(halves, 16), "i16")
        return _half_to_float(b, b.select(second, upper, b.truncated(halves, "i16")))

    def narrow(self, b: Builder, numbers: Sequence[Any]) -> Any:
        """Return one or two float32 numbers as a pair, rounded to nearest even."""
        if b.capability < _PAIRS_FROM:
            words = [b.truncated(self._round_to_byte(b, number), "i16") for number in numbers]
            return words[0] if len(words) == 1 else b.binary("or", words[0], b.moved_left(words[1], 8))
        first, second = numbers[0], numbers[1] if len(numbers) > 1 else b.constant("f32", 0.0)
        text = f"cvt.rn.satfinite.{self.letters}x2.f32 $0, $1, $2;"
        pair = b.assembly(text, ["i16"], "=h,f,f", [second, first])[0]
        if self.infinite_from is None:
            return pair
        for place, number in enumerate(numbers):
            beyond = b.compared(">=", _size_of(b, number), self.infinite_from)
            pair = b.binary("add", pair, b.select(beyond, b.constant("i16", 1 << 8 * place), 0))
        return pair

    def _widen_byte(self, b: Builder, bits: Any) -> Any:
        """Return the float32 value of the lowest byte of an i32, by arithmetic."""
        magnitude = b.binary("and", bits, _MAGNITUDE_8)
        sign = b.moved_left(b.binary("and", bits, _SIGN_8), 8)
        # The same fields as those of a float16, with an exponent that may have another bias.
        half = b.binary("or", sign, b.moved_left(magnitude, 10 - self.mantissa))
        value = _half_to_float(b, b.truncated(half, "i16"))
        if self.bias == 15:
            return value
        scaled = b.binary("fmul", value, 2.0 ** (15 - self.bias))
        return b.select(b.equal(magnitude, self.nan), math.nan, scaled)

    def _round_to_byte(self, b: Builder, number: Any) -> Any:
        """Return a float32 rounded to nearest even, as the lowest byte of an i32, by arithmetic."""
        sign = b.binary("and", b.moved_right(b.reinterpreted(number, "i32"), 24), _SIGN_8)
        size = _size_of(b, number)
        if self.largest is not None:
            size = b.select(b.compared("<=", size, self.largest), size, self.largest)
        bits = b.reinterpreted(size, "i32")
        dropped = _MANTISSA_BITS - self.mantissa
        even = b.binary("and", b.moved_right(bits, dropped), 1)
        rounded = b.binary("add", b.binary("add", bits, (1 << (dropped - 1)) - 1), even)
        normal = b.binary("sub", b.moved_right(rounded, dropped), (_BIAS - self.bias) << self.mantissa)
        # Below the smallest normal number, steps are equal, so count them.
        steps = b.binary("fmul", size, 2.0 ** (self.bias - 1 + self.mantissa))
        counted = b.assembly("cvt.rni.u32.f32 $0, $1;", ["i32"], "=r,f", [steps])[0]
        value = b.select(b.compared("<", size, 2.0 ** (1 - self.bias)), counted, normal)
        if self.infinite_from is not None:
            infinite = self.nan & ~((1 << self.mantissa) - 1)
            value = b.select(b.below(value, infinite), value, infinite)
        value = b.select(b.compared("!=", number, number), self.nan, value)
        return b.binary("or", sign, value)


# Float8_e4m3fn has no infinity: larger values become its largest number.
E4M3 = Float8(letters="e4m3", mantissa=3, bias=7, nan=0x7F, largest=448.0)
E5M2 = Float8(
    letters="e5m2", mantissa=2, bias=15, nan=0x7E,
    infinite_from=61440.0,  # halfway from the largest number to the next power of two, which is the even one
)


def define_float8_functions(library: Library) -> None:
    """Define these functions for a compiler; `number_functions` must be defined before."""
    for form in (E4M3, E5M2):
        _define_pairs(library, form)
    _define_e8m0(library)


def _define_pairs(library: Library, form: Float8) -> None:
    name, types = form.letters, library.types

    @library.instructions(types.float32, types.uint8, name=f"{name}_to_float")
    def widened(b: Builder, byte: Operand) -> Any:
        """Return the float32 value of a number given as uint8."""
        return form.wide(b, b.widened(byte.value, "i16"), b.constant("i1", 0))

    @library.instructions(types.uint8, types.float32, name=f"float_to_{name}")
    def narrowed(b: Builder, number: Operand) -> Any:
        """Return a float32 rounded to nearest even, NaN preserved, as uint8."""
        return b.truncated(form.narrow(b, [number.value]), "i8")

    @library.instructions(types.float32, types.float32, name=f"round_{name}")
    def rounded(b: Builder, number: Operand) -> Any:
        """Return a float32 rounded to the nearest number of the format, still as float32."""
        return form.wide(b, form.narrow(b, [number.value]), b.constant("i1", 0))

    library.named(f"{name}_among", _widening_among(types, form))
    library.named(f"store_{name}", _storing(types, form))


def _define_e8m0(library: Library) -> None:
    types, float_of_bits = library.types, library.functions["float_of_bits"]
    bits_of_float = library.functions["bits_of_float"]

    @library.device
    def e8m0_to_float(bits: Any) -> Any:
        """Return the float32 value of a Float8_e8m0fnu, an exponent, given as uint8."""
        exponent = types.uint32(bits)
        word = types.uint32(exponent << types.uint32(23))
        if exponent == types.uint32(0):
            word = types.uint32(0x00400000)
        elif exponent == types.uint32(255):
            word = types.uint32(0x7FC00000)
        return float_of_bits(word)

    @library.device
    def float_to_e8m0(x: Any) -> Any:
        """Return a float32's magnitude rounded to the nearest power of two (ties to the larger), as uint8.

        As in torch, zero becomes the smallest value, small positive numbers the second smallest, and overflow NaN.
        """
        bits = bits_of_float(abs(x))
        exponent = types.uint32(bits >> types.uint32(23))
        rest = types.uint32(bits & types.uint32(0x7FFFFF))
        tie = types.uint32(0x400000)
        up = rest > tie or (rest == tie and exponent > types.uint32(0))
        if up and exponent < types.uint32(255):
            exponent = types.uint32(exponent + types.uint32(1))
        return types.uint8(exponent)

    @library.device
    def round_e8m0(x: Any) -> Any:
        """Return a float32 rounded to the nearest Float8_e8m0fnu value, still as float32."""
        return e8m0_to_float(float_to_e8m0(x))


def _half_to_float(b: Builder, half: Any) -> Any:
    return b.assembly("cvt.f32.f16 $0, $1;", ["f32"], "=f,h", [half])[0]


def _size_of(b: Builder, number: Any) -> Any:
    return b.reinterpreted(b.binary("and", b.reinterpreted(number, "i32"), _MAGNITUDE), "f32")


def _widening_among(types: Any, form: Float8) -> Rule:
    """Return a function that widens ``words[place]``, where ``words`` is a thread's array of an even number of uint8.

    It converts two adjacent elements; the compiler does so only once for both.
    """

    def rule(words: Any, place: Any) -> Call:
        def generate(b: Builder, array: Operand, at: Operand) -> Any:
            position = b.int64(at)
            (pair,) = b.load(b.place(array, b.binary("and", position, -2), "i16"), align=2)
            return form.wide(b, pair, b.truncated(position, "i1"))

        return Call(result=types.float32, arguments=(words, place), generate=generate)

    return rule


def _storing(types: Any, form: Float8) -> Rule:
    """Return `store_vector` for words that are still float32; they are rounded two at a time."""

    def rule(memory: Any, position: Any, words: Any, slot: Any, count: Any, width: Any) -> Call | None:
        if not hasattr(count, "literal_value"):
            return None  # called again with literal types
        per_access = width.literal_value
        part, lanes = access_of(memory.dtype, per_access)
        pairs = per_access // lanes // 2  # per part

        def generate(b: Builder, *operands: Operand) -> None:
            outside = b.place(operands[0], b.int64(operands[1]), part, lanes)
            first = b.place(operands[2], b.int64(operands[3]), "f32")

            def word(place: int) -> Any:
                whole: Any = b.constant(part, 0)
                for pair in range(pairs):
                    both = [b.load(b.step(first, place + 2 * pair + k))[0] for k in range(2)]
                    moved = form.narrow(b, both)
                    if part != "i16":
                        moved = b.widened(moved, part)
                    whole = b.binary("or", whole, b.moved_left(moved, 16 * pair))
                return whole

            for access in range(count.literal_value // per_access):
                parts = [word(access * per_access + k * 2 * pairs) for k in range(lanes)]
                b.store(b.step(outside, access), parts, align=per_access)

        return Call(result=types.void, arguments=(memory, position, words, slot, count, width), generate=generate)

    return rule

"""Random numbers: Philox 4x32-10, as `fuser_lab.ops.random` defines it."""

from typing import Any

from fuser_lab.ops.random import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from fuser_lab.runtime.cuda_compilers.building import Builder, Operand
from fuser_lab.runtime.cuda_compilers.language import Library

_KEY_0, _KEY_1 = PHILOX_KEY_STEPS
_MULTIPLIER_0, _MULTIPLIER_1 = PHILOX_MULTIPLIERS


def philox_words(b: Builder, *operands: Operand) -> Any:
    """Return the four 32-bit words of Philox 4x32-10, as `fuser_lab.ops.random.philox` does."""

    def halves(value: Any) -> tuple[Any, Any]:
        return b.truncated(value, "i32"), b.truncated(b.moved_right(value, 32), "i32")

    def product(word: Any, multiplier: int) -> tuple[Any, Any]:
        # A separate instruction, because LLVM would widen all arithmetic on the halves.
        factors = [word, b.constant("i32", multiplier)]
        return halves(b.assembly("mul.wide.u32 $0, $1, $2;", ["i64"], "=l,r,r", factors)[0])

    (k0, k1), (c0, c1), (c2, c3) = (halves(operand.value) for operand in operands)
    for _ in range(PHILOX_ROUNDS):
        low_0, high_0 = product(c0, _MULTIPLIER_0)
        low_2, high_2 = product(c2, _MULTIPLIER_1)
        c0, c1 = b.binary("xor", b.binary("xor", high_2, c1), k0), low_2
        c2, c3 = b.binary("xor", b.binary("xor", high_0, c3), k1), low_0
        k0, k1 = b.binary("add", k0, _KEY_0), b.binary("add", k1, _KEY_1)
    return c0, c1, c2, c3


def define_random_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    types = library.types
    four = types.UniTuple(types.uint32, 4)
    philox = library.instructions(four, *[types.uint64] * 3, name="philox")(philox_words)

    @library.inlined
    def unit(word: Any) -> Any:
        """Return the upper 24 bits of a random word as a float32 in [0, 1)."""
        return types.float32(types.uint32(word >> types.uint32(8))) * types.float32(5.9604644775390625e-08)

    @library.device
    def philox_uniform(seed: Any, offset: Any, position: Any) -> Any:
        """Return a float32 in [0, 1) with 24 random bits, from one of the four words of its group."""
        place = types.uint64(position)
        c0, c1, c2, c3 = philox(seed, offset, place >> types.uint64(2))
        word = place & types.uint64(3)
        chosen = c0
        if word == 1:
            chosen = c1
        elif word == 2:
            chosen = c2
        elif word == 3:
            chosen = c3
        return unit(chosen)

    @library.inlined
    def philox_uniforms(seed: Any, offset: Any, position: Any, numbers: Any, slot: Any, count: Any) -> Any:
        """Write the numbers of `philox_uniform` at consecutive positions into ``numbers``, using whole groups.

        ``position`` and ``count`` are multiples of 4.
        """
        for group in range(count // 4):
            place = types.uint64(position + group * 4)
            c0, c1, c2, c3 = philox(seed, offset, place >> types.uint64(2))
            first = slot + group * 4
            numbers[first] = unit(c0)
            numbers[first + 1] = unit(c1)
            numbers[first + 2] = unit(c2)
            numbers[first + 3] = unit(c3)

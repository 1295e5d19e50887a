"""Shuffles of 64-bit values, word by word.

The shuffles of numba-cuda-mlir 0.6 move 32 bits: they round Double to Float, and drop the upper half of Int.
"""

from typing import Any

from fuser_lab.runtime.cuda_compilers.building import Builder, Call, Kind, Operand, Rule
from fuser_lab.runtime.cuda_compilers.language import Library

# By name in CUDA: the mode in PTX, and the bound of the source lanes.
_MODES = {"shfl_sync": ("idx", 31), "shfl_up_sync": ("up", 0), "shfl_xor_sync": ("bfly", 31)}


def define_shuffle_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    for name, (mode, bound) in _MODES.items():
        library.named(f"wide_{name}", _shuffle(library.types, mode, bound))


def _shuffle(types: Any, mode: str, bound: int) -> Rule:
    """Return a shuffle of a float64 or int64, which takes the mask, the value and the lane or distance, like CUDA's."""
    words = " ".join(f"shfl.sync.{mode}.b32 {word}, {word}, $2, {bound}, $3;" for word in ("low", "high"))
    text = f"{{ .reg .b32 low, high; mov.b64 {{low, high}}, $1; {words} mov.b64 $0, {{low, high}}; }}"

    def rule(mask: Any, value: Any, lane: Any) -> Call:
        part: Kind = "f64" if value == types.float64 else "i64"
        letter = "d" if part == "f64" else "l"

        def generate(b: Builder, members: Operand, sent: Operand, where: Operand) -> Any:
            bits = sent.value if part == "f64" else b.int64(sent)
            operands = [bits, b.truncated(b.int64(where), "i32"), b.truncated(b.int64(members), "i32")]
            return b.assembly(text, [part], f"={letter},{letter},r,r", operands, ordered=True)[0]

        return Call(result=value, arguments=(mask, value, lane), generate=generate)

    return rule

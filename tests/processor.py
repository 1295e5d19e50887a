"""Features of the processor that kernels are compiled for, which tests of machine code may require."""

import re

from fuser_lab.runtime.cpu_kernels import cpu_has as has

# Packed arithmetic; compilers also use moves and bitwise instructions of whole SSE registers for single numbers.
_OF_SSE = re.compile(
    r"^\s+((?:add|sub|mul|div|min|max|sqrt|cmp\w+)p[sd]|cvtt?ps2dq|cvtdq2ps"
    r"|p(?:add|sub|cmp|sll|srl|sra|unpck)\w+)\s.*%xmm",
    re.MULTILINE,
)
_OF_AVX = re.compile(r"^\s+v(\w+)\s.*%[yz]mm", re.MULTILINE)


def vector_instructions(asm: str) -> list[str]:
    """The arithmetic on the widest registers of the processor, without AVX's prefix ``v``: 4, 8 or 16 floats."""
    return (_OF_AVX if has("avx") else _OF_SSE).findall(asm)

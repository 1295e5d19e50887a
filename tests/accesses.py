"""Accesses to global memory in PTX, by kind and bytes."""

import re
from collections import Counter

_ACCESS = re.compile(r"\b(ld|st)\.global[\w.:]*")
_BITS = re.compile(r"\.[bfsu](8|16|32|64)\b")


def accesses_of(ptx: str) -> Counter[tuple[str, int]]:
    """Count loads ("ld") and stores ("st") by their bytes: two half words at a time are an access of 4 bytes."""
    found: Counter[tuple[str, int]] = Counter()
    for access in _ACCESS.finditer(ptx):
        count = 4 if ".v4" in access[0] else 2 if ".v2" in access[0] else 1
        found[access[1], count * int(_BITS.findall(access[0])[-1]) // 8] += 1
    return found

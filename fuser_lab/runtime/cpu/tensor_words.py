"""Where torch keeps the address of a tensor's elements, so that kernels read it without a call of Python.

A tensor of Python points to torch's own object, that one to a storage, and the storage to its memory; the object also
has the number of elements before the tensor's first one. The offsets of these words are those of a build of torch. They
are looked for in tensors whose addresses are known, and kernels take tensors only if each word is found in one place.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from fuser_lab.runtime.arrays import torch_module

_WORDS = 32  # of torch's object that are looked at; the number of elements is the nineteenth in torch 2.13
_STORAGE_WORDS = 3  # of a storage; the first of its words that is the address is the address
_STARTS = (3, 57, 31, 101)  # elements before the first one of the tensors that are looked at
# Offsets in bytes: of torch's object in Python's, of the storage in it, of the address in the storage, and of the
# number of elements before the first one. Kernels read them from this block.
BLOCK = (ctypes.c_int64 * 4)()


@functools.cache
def can_read_tensors() -> bool:
    """Whether kernels can read the addresses of tensors; the block then has the offsets."""
    torch = torch_module()
    if torch is None:
        return False
    probes = [torch.empty(200 + 7 * start)[start:] for start in _STARTS]
    offsets = _offsets(probes)
    if offsets is not None:
        BLOCK[:] = [*offsets]
    return offsets is not None


def _offsets(probes: Sequence[Any]) -> tuple[int, int, int, int] | None:
    """Return the offsets of the words in all tensors, or None if one of them is in several places."""
    start = object.__basicsize__
    objects = [_read(id(probe) + start, 1)[0] for probe in probes]
    if not all(map(_is_address, objects)):
        return None
    rows = [_read(each, _WORDS) for each in objects]
    starts = [place for place in range(_WORDS) if all(row[place] == n for row, n in zip(rows, _STARTS, strict=True))]
    memories = [probe.untyped_storage().data_ptr() for probe in probes]
    ways = []
    for place in range(1, _WORDS):
        held = [row[place] for row in rows]
        storages = [probe.untyped_storage()._cdata for probe in probes]  # noqa: SLF001 - the address of torch's object
        if held == storages:
            stored = [_read(each, _STORAGE_WORDS) for each in storages]
            ways += [(place, at) for at in range(_STORAGE_WORDS) if [row[at] for row in stored] == memories]
    if len(starts) != 1 or len(ways) != 1:
        return None
    ((storage, memory),) = ways
    return start, 8 * storage, 8 * memory, 8 * starts[0]


def _is_address(word: int) -> bool:
    """Whether a word may be the address of an object: in the lower half of memory, and a multiple of a word."""
    return 1 << 16 < word < 1 << 47 and not word & 7


def _read(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))

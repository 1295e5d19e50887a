"""The variables to which users assign the values of a definition, read from the instructions that run.

The instruction after the one that records a value stores it in a variable, unpacks it into several, or returns it to a
caller that may store it. Neither source text nor the values of a frame are read: code without a file has names too, and
no value lives longer.
"""

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from types import CodeType, FrameType
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]
# Modules through which calls of a definition pass, and those that define fusions in variables of their own.
_PASSED: Final = tuple(f"{_PACKAGE}.{name}." for name in ("definition", "ops", "nvfuser", "nvfuser_direct"))
_DEFINING: Final = f"{_PACKAGE}.examples."
_READING: Final = tuple(f"{_PACKAGE}.definition.{name}." for name in ("repro", "dump"))  # they know the names
_MOST_CALLERS: Final = 8  # functions through which a value is returned
_STEP: Final = 2  # bytes of an instruction
# Calls whose variables are remembered, because a program that records again makes its calls at the same places.
_MOST_PLACES: Final = 4096
_SKIPPED: Final = frozenset(dis.opmap[name] for name in ("CACHE", "COPY", "NOP"))
_UNPACK: Final = dis.opmap["UNPACK_SEQUENCE"]
# By code and instruction: the code, whose identity is compared, and the variables.
_PLACES: Final[dict[tuple[int, int], tuple[CodeType, tuple[tuple[str, ...], bool]]]] = {}


def assigned_names() -> tuple[str, ...]:
    """Return the variables that the value of the call in progress is assigned to; none if it is an operand.

    For a call with several results they are in the order of the results.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to a frame without its line of source
    while frame is not None and _PASSES[frame.f_globals.get("__name__", "")]:
        frame = frame.f_back
    for _ in range(_MOST_CALLERS):
        if frame is None or not _is_users(frame.f_globals.get("__name__", "")):
            break
        code, at = frame.f_code, frame.f_lasti
        entry = _PLACES.get((id(code), at))
        names, is_returned = entry[1] if entry is not None and entry[0] is code else _names_at(code, at)
        if not is_returned:
            return names
        frame = frame.f_back
    return ()


class _PassedModules(dict[str, bool]):
    """Whether calls of a definition pass through a module, by its name."""

    def __missing__(self, module: str) -> bool:
        passed = f"{module}.".startswith(_PASSED) and not f"{module}.".startswith(_READING)
        self[module] = passed
        return passed


_PASSES: Final = _PassedModules()


@cache
def _is_users(module: str) -> bool:
    return not f"{module}.".startswith(f"{_PACKAGE}.") or f"{module}.".startswith(_DEFINING)


def _names_at(code: CodeType, at: int) -> tuple[tuple[str, ...], bool]:
    """Return `_names_stored`, and remember it by the identity of the code, because code is hashed by its contents."""
    if len(_PLACES) >= _MOST_PLACES:
        _PLACES.clear()
    names = _names_stored(code, at)
    _PLACES[id(code), at] = code, names
    return names


def _names_stored(code: CodeType, at: int) -> tuple[tuple[str, ...], bool]:
    """Return the variables that the instructions after one store its value in, and whether they return it."""
    names: list[str] = []
    count = 1
    for op, argument in _instructions(code.co_code, at + _STEP):
        if op == _UNPACK:
            count = argument
            continue
        stores = _NAMES_OF.get(dis.opname[op])
        if stores is None:
            return tuple(names), not names and dis.opname[op] == "RETURN_VALUE"
        names += stores(code, argument)
        if len(names) >= count:
            break
    return tuple(names[:count]), False


def _instructions(code: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the instructions from a place on, each with its argument."""
    extended = 0
    for place in range(at, len(code), _STEP):
        op, argument = code[place], code[place + 1] | extended << 8
        extended = argument if op == dis.EXTENDED_ARG else 0
        if op not in _SKIPPED and op != dis.EXTENDED_ARG:
            yield op, argument


def _local(code: CodeType, number: int) -> list[str]:
    cells = (name for name in code.co_cellvars if name not in code.co_varnames)
    return [[*chain(code.co_varnames, cells, code.co_freevars)][number]]


def _first_local(code: CodeType, numbers: int) -> list[str]:
    return _local(code, numbers >> 4)


def _two_locals(code: CodeType, numbers: int) -> list[str]:
    return [*_local(code, numbers >> 4), *_local(code, numbers & 15)]


def _name(code: CodeType, number: int) -> list[str]:
    return [code.co_names[number]]


# What instructions store in, by name; one instruction of Python 3.13 may be two.
_NAMES_OF: Final[Mapping[str, Callable[[CodeType, int], list[str]]]] = {
    "STORE_FAST": _local, "STORE_DEREF": _local, "STORE_NAME": _name, "STORE_GLOBAL": _name,
    "STORE_FAST_LOAD_FAST": _first_local, "STORE_FAST_STORE_FAST": _two_locals,
}

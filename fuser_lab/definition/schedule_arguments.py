"""Checks of arguments of the methods for scheduling by hand, each with a one-sentence error."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from fuser_lab import arguments
from fuser_lab.arguments import ANYTHING, is_whole, listed, shown
from fuser_lab.errors import ArgumentTypeError, DefinitionError, ScheduleError, UnsupportedError
from fuser_lab.ir import TensorView
from fuser_lab.ir.transform import Argument, MemoryType, ParallelType

# By name, because the classes belong to nvFuser's module, which has a higher rank.
_COPY_KINDS = {"op_type": "LoadStoreOpType", "cache_op": "CacheOp"}

_MOST = 1 << 16  # limit of tensors and axes; an iterable may be infinite
_WHOLE = arguments.whole()
_TEXT = arguments.TEXT
_WHOLES = listed(_WHOLE, "a list of whole numbers", most=_MOST, lazy=True)
_TENSORS = listed(ANYTHING, "a list of tensors", most=_MOST, lazy=True)
_PARALLEL_TYPES = listed(ANYTHING, "a list of ParallelTypes", most=_MOST, lazy=True)


def order_of(given: object) -> tuple[tuple[int, int], ...]:
    """Return the argument of ``reorder``, a mapping {old: new} or the old positions in their new order, as pairs.

    Raises
    ------
    ArgumentTypeError
        If it is neither.
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [(old, new) for new, old in enumerate(islice(given, _MOST))]
    else:
        pairs = [(None, None)]
    if not all(is_whole(a) and is_whole(b) for a, b in pairs):
        msg = f"reorder: order must be a mapping of old positions to new ones, given {shown(given)}."
        raise ArgumentTypeError(msg)
    return tuple((int(a), int(b)) for a, b in pairs)


def check_copy(what: str, op_type: object, cache_op: object = None) -> None:
    """Raise ArgumentTypeError if it is not a kind of copy, UnsupportedError if Numba cannot express it."""
    for given, name in ((op_type, "op_type"), (cache_op, "cache_op")):
        if given is None:
            continue
        if not isinstance(given, Enum) or type(given).__name__ != _COPY_KINDS[name]:
            msg = f"{what}: {name} must be a {_COPY_KINDS[name]}, given {shown(given)}."
            raise ArgumentTypeError(msg)
        if given.name in {"tma", "load_matrix", "cp_async"}:
            msg = f"{what}: {name}={given} is not supported: Numba has no such instruction; a plain copy does the same."
            raise UnsupportedError(msg)


def tensor(what: str, name: str, given: Any, builder: object) -> Any:
    """Return a tensor of a definition, or raise ArgumentTypeError, or DefinitionError if it is another definition's."""
    if not isinstance(getattr(given, "val", None), TensorView):
        msg = f"{what}: {name} must be a tensor, given {shown(given)}."
        raise ArgumentTypeError(msg)
    if given.builder is not builder:
        msg = f"{what}: {name} ({given}) belongs to another definition."
        raise DefinitionError(msg)
    return given


def names(what: str, given: Any, builder: object) -> tuple[str, ...]:
    """Return the names of a definition's tensors, given as one handle or several."""
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    found: list[Any] = _TENSORS.of(given, what, "tensors") if several else [given]
    for entry in found:
        if not isinstance(getattr(entry, "val", None), TensorView):
            msg = f"{what}: a list of tensors is needed, given {shown(entry)}."
            raise ArgumentTypeError(msg)
    return tuple(tensor(what, "a tensor", entry, builder).val.name for entry in found)


def whole(what: str, name: str, given: Any) -> int:
    """Return a whole number, or raise ArgumentTypeError."""
    found: int = _WHOLE.of(given, what, name)
    return found


def wholes(what: str, name: str, given: Any) -> tuple[int, ...]:
    """Return whole numbers, or raise ArgumentTypeError."""
    return tuple(_WHOLES.of(given, what, name))


def parallel_type(what: str, given: Any) -> ParallelType:
    """Return a ParallelType, or raise ArgumentTypeError."""
    if not isinstance(given, ParallelType):
        msg = f"{what}: a ParallelType is needed, given {shown(given)}."
        raise ArgumentTypeError(msg)
    return given


def parallel_types(what: str, given: Any) -> tuple[ParallelType, ...]:
    """Return ParallelTypes, by name, or raise ArgumentTypeError."""
    found = _PARALLEL_TYPES.of(given, what, "selected_parallel_types")
    return tuple(sorted((parallel_type(what, entry) for entry in found), key=lambda kind: kind.name))


def memory(what: str, given: Any) -> MemoryType:
    """Return a MemoryType, or raise ArgumentTypeError."""
    if not isinstance(given, MemoryType):
        msg = f"{what}: a MemoryType is needed, given {shown(given)}."
        raise ArgumentTypeError(msg)
    return given


def sharing(what: str, given: Any) -> str:
    """Return how loops are shared, ``"standard"`` or ``"best_effort"``, or raise ArgumentTypeError, ScheduleError."""
    if isinstance(given, str) and given in {"standard", "best_effort"}:
        return given
    msg = f"{what}: mode must be 'standard' or 'best_effort', given {shown(given)}."
    raise ScheduleError(msg) if isinstance(given, str) else ArgumentTypeError(msg)


def template_arguments(what: str, style: Any, nest: Any, params: Mapping[str, Any]) -> dict[str, Argument]:
    """Return the arguments of a form of loops: its style, its nest, and whole numbers, flags or a pair of threads."""
    found: dict[str, Argument] = {"style": _TEXT.of(style, what, "style"), "nest": whole(what, "nest", nest)}
    for name, value in params.items():
        if name == "target":
            found[name] = _TEXT.of(value, what, name)
        elif isinstance(value, bool):
            found[name] = value
        elif name == "threads" and not is_whole(value):
            found[name] = wholes(what, name, value)
        else:
            found[name] = whole(what, name, value)
    return found

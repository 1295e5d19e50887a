"""Checks of arguments of the methods for scheduling by hand, each with a one-sentence error."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from fuser_lab import arguments
from fuser_lab.arguments import ANYTHING, is_whole, list_of, short_text
from fuser_lab.errors import ArgumentTypeError, DefinitionError, ScheduleError, UnsupportedError
from fuser_lab.ir import TensorView
from fuser_lab.ir.transform import Argument, MemoryType, ParallelType

# By name, because the classes belong to nvFuser's module, which has a higher rank.
_COPY_KINDS = {"op_type": "LoadStoreOpType", "cache_op": "CacheOp"}

_MOST = 1 << 16  # limit of tensors and axes; an iterable may be infinite
_WHOLE = arguments.whole()
_TEXT = arguments.TEXT
_WHOLES = list_of(_WHOLE, "a list of whole numbers", most=_MOST, lazy=True)
_TENSORS = list_of(ANYTHING, "a list of tensors", most=_MOST, lazy=True)
_PARALLEL_TYPES = list_of(ANYTHING, "a list of ParallelTypes", most=_MOST, lazy=True)


def order_of(order: object) -> tuple[tuple[int, int], ...]:
    """Return the argument of ``reorder``, a mapping {old: new} or the old positions in their new order, as pairs.

    Raises
    ------
    ArgumentTypeError
        If it is neither.
    """
    if isinstance(order, Mapping):
        pairs = list(order.items())
    elif isinstance(order, Sequence) and not isinstance(order, str):
        pairs = [(old, new) for new, old in enumerate(islice(order, _MOST))]
    else:
        pairs = [(None, None)]
    if not all(is_whole(a) and is_whole(b) for a, b in pairs):
        msg = f"reorder: order must be a mapping of old positions to new ones, given {short_text(order)}."
        raise ArgumentTypeError(msg)
    return tuple((int(a), int(b)) for a, b in pairs)


def check_copy(call: str, op_type: object, cache_op: object = None) -> None:
    """Raise ArgumentTypeError if it is not a kind of copy, UnsupportedError if Numba cannot express it."""
    for mode, name in ((op_type, "op_type"), (cache_op, "cache_op")):
        if mode is None:
            continue
        if not isinstance(mode, Enum) or type(mode).__name__ != _COPY_KINDS[name]:
            raise ArgumentTypeError(f"{call}: {name} must be a {_COPY_KINDS[name]}, given {short_text(mode)}.")
        if mode.name in {"tma", "load_matrix", "cp_async"}:
            msg = f"{call}: {name}={mode} is not supported: Numba has no such instruction; a plain copy does the same."
            raise UnsupportedError(msg)


def tensor(method: str, name: str, handle: Any, builder: object) -> Any:
    """Return a tensor of a definition, or raise ArgumentTypeError, or DefinitionError if it is another definition's."""
    if not isinstance(getattr(handle, "val", None), TensorView):
        raise ArgumentTypeError(f"{method}: {name} must be a tensor, given {short_text(handle)}.")
    if handle.builder is not builder:
        raise DefinitionError(f"{method}: {name} ({handle}) belongs to another definition.")
    return handle


def names(method: str, handles: Any, builder: object) -> tuple[str, ...]:
    """Return the names of a definition's tensors, given as one handle or several."""
    several = isinstance(handles, Iterable) and not isinstance(handles, str | bytes | Mapping)
    entries: list[Any] = _TENSORS.of(handles, method, "tensors") if several else [handles]
    for entry in entries:
        if not isinstance(getattr(entry, "val", None), TensorView):
            raise ArgumentTypeError(f"{method}: a list of tensors is needed, given {short_text(entry)}.")
    return tuple(tensor(method, "a tensor", entry, builder).val.name for entry in entries)


def whole(method: str, name: str, value: Any) -> int:
    """Return a whole number, or raise ArgumentTypeError."""
    number: int = _WHOLE.of(value, method, name)
    return number


def wholes(method: str, name: str, values: Any) -> tuple[int, ...]:
    """Return whole numbers, or raise ArgumentTypeError."""
    return tuple(_WHOLES.of(values, method, name))


def parallel_type(method: str, value: Any) -> ParallelType:
    """Return a ParallelType, or raise ArgumentTypeError."""
    if not isinstance(value, ParallelType):
        raise ArgumentTypeError(f"{method}: a ParallelType is needed, given {short_text(value)}.")
    return value


def parallel_types(method: str, values: Any) -> tuple[ParallelType, ...]:
    """Return ParallelTypes, by name, or raise ArgumentTypeError."""
    entries = _PARALLEL_TYPES.of(values, method, "selected_parallel_types")
    return tuple(sorted((parallel_type(method, entry) for entry in entries), key=lambda kind: kind.name))


def memory(method: str, value: Any) -> MemoryType:
    """Return a MemoryType, or raise ArgumentTypeError."""
    if not isinstance(value, MemoryType):
        raise ArgumentTypeError(f"{method}: a MemoryType is needed, given {short_text(value)}.")
    return value


def sharing(method: str, mode: Any) -> str:
    """Return how loops are shared, ``"standard"`` or ``"best_effort"``, or raise ArgumentTypeError, ScheduleError."""
    if isinstance(mode, str) and mode in {"standard", "best_effort"}:
        return mode
    msg = f"{method}: mode must be 'standard' or 'best_effort', given {short_text(mode)}."
    raise ScheduleError(msg) if isinstance(mode, str) else ArgumentTypeError(msg)


def template_arguments(method: str, style: Any, nest: Any, params: Mapping[str, Any]) -> dict[str, Argument]:
    """Return the arguments of a form of loops: its style, its nest, and whole numbers, flags or a pair of threads."""
    return {
        "style": _TEXT.of(style, method, "style"), "nest": whole(method, "nest", nest),
        **param_arguments(method, params),
    }


def param_arguments(method: str, params: Mapping[str, Any]) -> dict[str, Argument]:
    """Return parameters of a kernel, which are whole numbers, flags or a pair of threads, and the name of a target."""
    checked = dict[str, Argument]()
    for name, value in params.items():
        if name == "target":
            checked[name] = _TEXT.of(value, method, name)
        elif isinstance(value, bool):
            checked[name] = value
        elif name == "threads" and not is_whole(value):
            checked[name] = wholes(method, name, value)
        else:
            checked[name] = whole(method, name, value)
    return checked

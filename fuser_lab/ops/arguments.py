"""Checks of plain Python arguments of calls, each with a one-sentence error."""

from functools import cache

import numpy as np

from fuser_lab import arguments as kinds
from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError

# The integer type of axes, sizes and strides.
_WHOLE = kinds.whole(accepted="an int")


@cache
def _list(of: str) -> kinds.Kind:
    return kinds.list_of(kinds.ANYTHING, f"a list of {of}")


def whole(value: object, op: str, argument: str) -> int:
    """Return an int argument, or raise ArgumentTypeError, or DefinitionError for one of more than 64 bits."""
    number: int = _WHOLE.of(value, op, argument, DefinitionError)
    return number


def as_list(value: object, op: str, argument: str, of: str = "ints") -> list[object]:
    """Return a list argument, or raise ArgumentTypeError."""
    entries: list[object] = _list(of).of(value, op, argument, DefinitionError)
    return entries


def wholes(value: object, op: str, argument: str) -> list[int]:
    """Return a list of ints, or raise ArgumentTypeError."""
    return [whole(entry, op, f"{argument}[{i}]") for i, entry in enumerate(as_list(value, op, argument))]


def flags(value: object, op: str, argument: str, *, none: bool = False) -> list[bool | None]:
    """Return a list of bools (None among them if allowed), or raise ArgumentTypeError."""
    of = "True, False and None" if none else "True and False"
    booleans: list[bool | None] = []
    for position, entry in enumerate(as_list(value, op, argument, of)):
        if none and entry is None:
            booleans.append(None)
        elif isinstance(entry, bool | np.bool_) or (is_whole(entry) and entry in (0, 1)):
            booleans.append(bool(entry))
        else:
            raise ArgumentTypeError(f"{op}: {argument}[{position}] must be one of {of}, given {short_text(entry)}.")
    return booleans


def flag(value: object, op: str, argument: str) -> bool:
    """Return a bool, or raise ArgumentTypeError."""
    if isinstance(value, bool | np.bool_) or (is_whole(value) and value in (0, 1)):
        return bool(value)
    raise ArgumentTypeError(f"{op}: {argument} must be True or False, given {short_text(value)}.")


def element_type(value: object, op: str) -> DataType:
    """Return a DataType that values can have, or raise ArgumentTypeError, DefinitionError or UnsupportedError."""
    if not isinstance(value, DataType):
        raise ArgumentTypeError(f"{op}: dtype must be a DataType, given {short_text(value)}.")
    if value is DataType.Null:
        raise DefinitionError(f"{op}: dtype is DataType.Null, which is not a dtype that values can have.")
    if value.is_float4:
        raise UnsupportedError(f"{op}: dtype is {value!r}; values of this type are not supported.")
    return value


def check_range(value: object, dtype: DataType, op: str, argument: str) -> None:
    """Raise DefinitionError if an int lies outside an integer dtype."""
    if isinstance(value, int) and not isinstance(value, bool) and dtype.is_integral:
        low, high = dtype.limits
        if not low <= value <= high:
            msg = f"{op}: {argument} is {short_text(value)}, outside {dtype!r}, which holds {low} to {high}."
            raise DefinitionError(msg)

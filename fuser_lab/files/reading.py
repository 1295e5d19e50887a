"""The only place that reads users' files, and JSON of others: whatever they contain, there is data or one reason.

A file that is not a regular one, such as a named pipe, is not waited for. JSON is strict: NaN, numbers that no float or
64-bit integer holds, and nesting that recursive code cannot follow are refused. `record_of` checks data against the
annotations of a dataclass.
"""

import contextlib
import functools
import json
import math
import os
import stat
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar, Union, cast

MOST_BYTES: Final = 1 << 28  # of a file; the largest files of our own, ledgers aside, have a tenth
DEEPEST: Final = 100  # lists and objects inside each other; our own files have fewer than ten
_READ: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LONGEST_SHOWN: Final = 60  # characters of a value in a message
_LARGEST_WORD: Final = (1 << 64) - 1  # largest magnitude of an integer in a file: 64 bits

T = TypeVar("T")


class UnreadableError(ValueError):
    """A file or text is not what it should be; its message is a clause without a full stop."""


class MissingFileError(UnreadableError):
    """There is no such file."""


def content_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises
    ------
    UnreadableError
        If there is none, it cannot be read, or it has more than ``most`` bytes.
    """
    try:
        descriptor = os.open(path, _READ)
        try:
            status = os.fstat(descriptor)
            is_read = stat.S_ISREG(status.st_mode) and status.st_size <= most
            content = _whole_file(descriptor) if is_read else b""
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise MissingFileError(_reason(error)) from None
    except OSError as error:
        raise UnreadableError(_reason(error)) from None
    except ValueError:
        raise UnreadableError("its name contains a null character") from None
    if is_read:
        return content
    if stat.S_ISREG(status.st_mode):
        msg = f"it has more than {most:,} bytes"
    else:
        msg = "it is a directory" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
    raise UnreadableError(msg)


def _whole_file(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def decode(content: bytes) -> str:
    """Return UTF-8 as text, without a byte order mark and with line feeds alone at the ends of lines.

    Raises
    ------
    UnreadableError
        If it is not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8 at byte {error.start:,}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def text_of(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a regular file in UTF-8; raise `UnreadableError` if it is not one."""
    return decode(content_of(path, most))


def json_of(path: Path, most: int = MOST_BYTES) -> Any:
    """Return the data of a regular file of JSON; raise `UnreadableError` if it is not one."""
    return parse_json(text_of(path, most))


def parse_json(text: str | bytes) -> Any:
    """Return the data of strict JSON; of equal keys of an object, the last one counts.

    Raises
    ------
    UnreadableError
        If it is not JSON, is nested more than `DEEPEST` times, or has numbers that are too large.
    """
    text = decode(text) if isinstance(text, bytes) else text
    try:
        data = json.loads(text, parse_float=_real, parse_int=_whole, parse_constant=_constant)
    except RecursionError:
        raise UnreadableError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        msg = f"it is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
        raise UnreadableError(msg) from None
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(data)
    return data


_TOO_DEEP: Final = f"it has lists or objects more than {DEEPEST} times inside each other"


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise UnreadableError(_TOO_DEEP)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise UnreadableError(f"the number {_short(text)} is too large")
    return value


def _whole(text: str) -> int:
    # Longer ones than any 64-bit integer are not converted, because that takes quadratic time.
    if len(text) > 20 or abs(value := int(text)) > _LARGEST_WORD:
        raise UnreadableError(f"the number {_short(text)} is too large")
    return value


def _constant(text: str) -> float:
    raise UnreadableError(f"it is not JSON: {text} is not a number there")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def record_of(kind: type[T], data: Any, label: str = "it") -> T:
    """Return a dataclass made of the entries of a JSON object for its fields; those with defaults may be missing.

    Raises
    ------
    UnreadableError
        If an entry is missing or of another type.
    """
    if not isinstance(data, Mapping):
        raise UnreadableError(f"{label} is {_short(repr(data))}, not an object")
    hints = _hints(cast("Any", kind))
    values: dict[str, Any] = {}
    for field in fields(cast("Any", kind)):
        if field.name in data:
            values[field.name] = as_type(hints[field.name], data[field.name], field.name)
        elif field.init and field.default is MISSING and field.default_factory is MISSING:
            raise UnreadableError(f"{label} has no entry {field.name!r}")
    return kind(**values)


@functools.cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def as_type(hint: Any, value: Any, label: str) -> Any:
    """Return a value of JSON as an annotation says: lists as tuples, objects as dataclasses, null as NaN for a float.

    Raises
    ------
    UnreadableError
        If the value does not fit; ``label`` names it.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint is float and value is None:
        return math.nan
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in _PLAIN:
        if type(value) is hint:
            return value
    elif origin in {Union, types.UnionType}:
        for choice in arguments:
            try:
                return as_type(choice, value, label)
            except UnreadableError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        if arguments[-1:] == (Ellipsis,):
            return tuple(as_type(arguments[0], entry, label) for entry in value)
        if len(arguments) == len(value):
            return tuple(as_type(inner, entry, label) for inner, entry in zip(arguments, value, strict=True))
    elif origin is Sequence and isinstance(value, list | tuple):
        return tuple(as_type(arguments[0], entry, label) for entry in value)
    elif origin is Mapping and isinstance(value, Mapping):
        return {name: as_type(arguments[1], entry, label) for name, entry in value.items()}
    elif is_dataclass(hint) and isinstance(hint, type):
        return record_of(hint, value, label)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        with contextlib.suppress(ValueError):
            return hint(value)
    raise UnreadableError(f"{label} is {_short(repr(value))}")


_PLAIN: Final = frozenset({str, int, bool, float, type(None)})

"""One call inside a definition as hashable data, which the fusion cache compares, prints and writes to disk.

Values are represented by name, because equal calls in the same order give equal names; numbers keep their type and
every bit.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fuser_lab.definition.handles import Handle
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.ir import Scalar, TensorView, Val

# None, ints, strings and dtypes represent themselves; all others are tuples that begin with their kind.
Encoded = int | str | DataType | tuple[Any, ...] | None

# No call needs deeper or longer lists: these contain themselves, or are ranges without an end.
_DEEPEST = 8
_LONGEST = 1 << 20  # entries of a list
EMIT = "emit"  # an expression that was appended directly, without a user's call


class Record(NamedTuple):
    """A call: its name and its arguments. Hashable, and equal for equal calls."""

    name: str
    args: tuple[Encoded, ...]
    kwargs: tuple[tuple[str, Encoded], ...]


class Unrecordable(Exception):  # noqa: N818 - an outcome, never seen by users
    """Raised for an argument that has no written form."""


def record_of(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: object) -> Record:
    """Return a call as data.

    Raises
    ------
    Unrecordable
        If an argument is not one that a definition's calls accept, or belongs to a definition other than ``owner``.
    """
    return Record(
        name,
        tuple([encode(value, owner) for value in args]),
        tuple([(key, encode(value, owner)) for key, value in kwargs.items()]) if kwargs else (),
    )


def encode(value: Any, owner: object, depth: int = 0) -> Encoded:
    """Return one argument as data; ``depth`` counts the lists around it."""
    kind = type(value)
    if kind is int or kind is str or kind is DataType or value is None:
        return value  # type: ignore[no-any-return]
    if isinstance(value, Handle):
        if value.builder is not owner:
            raise Unrecordable
        value = value.val
    elif kind is list or kind is tuple or kind is range or isinstance(value, list):
        if depth > _DEEPEST or len(value) > _LONGEST:
            raise Unrecordable
        return ("tuple" if kind is tuple else "list", *[encode(entry, owner, depth + 1) for entry in value])
    if isinstance(value, TensorView):
        return ("value", value.name)
    if isinstance(value, Scalar):
        return ("value", value.name) if value.value is None else ("constant", value.dtype, _number(value.value))
    return _number(value)


def _number(value: Any) -> Encoded:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is bool:
        return ("bool", int(value))
    if type(value) is int:
        return value
    if type(value) is float:
        return ("float", value.hex())
    if type(value) is complex:
        return ("complex", value.real.hex(), value.imag.hex())
    raise Unrecordable


def arguments(
    record: Record, values: Mapping[str, Val], wrap: Callable[[Any], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, with values found by name; ``wrap`` converts a value for the call.

    Raises
    ------
    InputError
        If a value is unknown, or an argument is not a result of `encode`.
    """
    args = tuple(_decode(entry, values, wrap) for entry in record.args)
    return args, {key: _decode(entry, values, wrap) for key, entry in record.kwargs}


def _decode(entry: Encoded, values: Mapping[str, Val], wrap: Callable[[Any], Any]) -> Any:
    match entry:
        case None | int() | str() | DataType():
            return entry
        case ("list", *rest):
            return [_decode(part, values, wrap) for part in rest]
        case ("tuple", *rest):
            return tuple(_decode(part, values, wrap) for part in rest)
        case ("value", str(name)) if name in values:
            return wrap(values[name])
        case ("constant", DataType() as dtype, number):
            return wrap(Scalar(name="", dtype=dtype, value=decoded_number(number)))
        case _:
            return decoded_number(entry)


def decoded_number(entry: Encoded) -> Any:
    """Return the number from the data of `encode`; InputError if it is not a number."""
    try:
        match entry:
            case int():
                return entry
            case ("bool", int(number)):
                return bool(number)
            case ("float", str(digits)):
                return float.fromhex(digits)
            case ("complex", str(real), str(imag)):
                return complex(float.fromhex(real), float.fromhex(imag))
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{entry!r} is not an argument of a recorded call.")


def values_in(result: Any) -> Iterator[Val]:
    """Yield the values of a call's result, including those in lists and tuples."""
    if isinstance(result, Handle):
        yield result.val
    elif isinstance(result, TensorView | Scalar):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from values_in(part)


def named_in(result: Any) -> Iterator[tuple[str, Val]]:
    """Yield the values of a call's result that later calls may name: its values, and the sizes of its tensors."""
    for value in values_in(result):
        yield value.name, value
        if isinstance(value, TensorView):
            yield from ((extent.name, extent) for extent in value.extents if isinstance(extent, Scalar))


def bare(result: Any) -> Any:
    """Return a call's result with values in place of handles."""
    if isinstance(result, Handle):
        return result.val
    if isinstance(result, list):
        return [bare(part) for part in result]
    return tuple(bare(part) for part in result) if isinstance(result, tuple) else result


def record_text(record: Record, result: Any = None) -> str:
    """Return a call as one line, ``T2 = ops.sum(T0, dims=[1])``."""
    if record.name == EMIT:
        op, operands, *attrs = record.args
        shown = [_text(part) for part in operands[1:]] if isinstance(operands, tuple) else []
        shown += [f"{pair[1]}={_text(pair[2])}" for pair in attrs if isinstance(pair, tuple)]
        call = f"{op}({', '.join(shown)})"
    else:
        shown = [*map(_text, record.args), *(f"{key}={_text(value)}" for key, value in record.kwargs)]
        prefix = "" if record.name.startswith(("define_", "add_")) else "ops."
        call = f"{prefix}{record.name}({', '.join(shown)})"
    names = ", ".join(str(value) if isinstance(value, Scalar) else value.name for value in values_in(result))
    return f"{names} = {call}" if names else call


def _text(entry: Encoded) -> str:
    match entry:
        case ("list", *rest):
            return f"[{', '.join(map(_text, rest))}]"
        case ("tuple", *rest):
            return f"({', '.join(map(_text, rest))}{',' if len(rest) == 1 else ''})"
        case ("value", str(name)):
            return name
        case ("constant", DataType() as dtype, number):
            return str(Scalar(name="", dtype=dtype, value=decoded_number(number)))
        case tuple():
            return repr(decoded_number(entry))
        case _:
            return repr(entry)


def to_json(record: Record) -> list[Any]:
    """Return a call as JSON-compatible data; `from_json` reads it."""
    return [record.name, [_plain(entry) for entry in record.args], [[key, _plain(v)] for key, v in record.kwargs]]


def _plain(entry: Encoded) -> Any:
    if isinstance(entry, DataType):
        return ["dtype", entry.name]
    return [_plain(part) for part in entry] if isinstance(entry, tuple) else entry


def from_json(data: Any) -> Record:
    """Return a call that `to_json` wrote.

    Raises
    ------
    InputError
        If the data is not a recorded call.
    """
    match data:
        case [str(name), list(args), list(kwargs)] if all(_is_pair(pair) for pair in kwargs):
            return Record(name, tuple(map(_read, args)), tuple((key, _read(value)) for key, value in kwargs))
    raise InputError(f"{json_text(data)[:80]} is not a recorded call.")


def _is_pair(pair: object) -> bool:
    match pair:
        case [str(), _]:
            return True
    return False


def _read(data: Any) -> Encoded:
    match data:
        case ["dtype", str(name)] if name in DataType.__members__:
            return DataType[name]
        case None | int() | str() if not isinstance(data, bool):
            return data
        case [("list" | "tuple" | "value" | "constant" | "bool" | "float" | "complex") as kind, *rest]:
            return (kind, *map(_read, rest))
    raise InputError(f"{json_text(data)[:80]} is not an argument of a recorded call.")

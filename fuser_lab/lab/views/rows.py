"""Rows of measurements from wherever they are: a ledger, a data frame, or mappings."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fuser_lab.arguments import brief, short_text
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.files.reading import UnreadableError, parse_json
from fuser_lab.lab.ledger import Ledger

Row = Mapping[str, Any]
_PATH: Final = re.compile(r"\s*([^\[\]]+)((?:\[[^\[\]]+\])*)\s*")
_SECONDS: Final = frozenset({"median", "low", "high", "warm", "kernels"})


def rows_of(data: object, caller: str) -> list[Row]:
    """Return rows as mappings of columns to values: all of a ledger, those of a data frame, or the given ones.

    Raises
    ------
    ArgumentTypeError
        If it is not one of these.
    InputError
        If there are no rows.
    """
    records: Iterable[Any]
    if isinstance(data, Ledger):
        records = data.to_pandas().to_dict("records")
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        records = data.to_dict("records")
    elif isinstance(data, Sequence) and not isinstance(data, str) and all(isinstance(row, Mapping) for row in data):
        records = data
    else:
        msg = f"{caller}: data must be a ledger, a data frame or a list of mappings, given {short_text(data)}."
        raise ArgumentTypeError(msg)
    rows = list(records)
    if not rows:
        raise InputError(f"{caller}: data has no rows.")
    return rows


def reader(rows: Sequence[Row], path: str, caller: str, argument: str) -> Callable[[Row], Any]:
    """Return a function that reads a column, or a part of a column of JSON: ``"sizes[0][1]"``, ``"tags[width]"``.

    Raises
    ------
    InputError
        If there is no such column.
    """
    match = _PATH.fullmatch(path)
    columns = dict.fromkeys(name for row in rows for name in row)
    if match is None or match[1] not in columns:
        msg = f"{caller}: {argument}={brief(path)!r} is not a column; choose from {', '.join(map(str, columns))}."
        raise InputError(msg)
    name, steps = match[1], re.findall(r"\[([^\[\]]+)\]", match[2])

    def read(row: Row) -> Any:
        value: Any = row.get(name)
        if steps and isinstance(value, str):
            try:
                value = parse_json(value)
            except UnreadableError:
                return None
        for step in steps:
            try:
                value = value[step] if isinstance(value, Mapping) else value[int(step)]
            except (LookupError, TypeError, ValueError):
                return None
        return None if is_missing(value) else value

    return read


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, NaN or pandas' NA and NaT."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in {
        "NAType", "NaTType",
    }


def number(value: Any) -> float:
    """Return a value as a float; NaN if it is not a number."""
    try:
        return math.nan if is_missing(value) or isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan


def is_seconds(column: str) -> bool:
    """Whether a column of a ledger holds seconds."""
    return column in _SECONDS


def text(row: Row, name: str) -> str:
    """Return the text of a column of a row, which is empty if it is missing."""
    value: Any = row.get(name)
    return "" if is_missing(value) else str(value)

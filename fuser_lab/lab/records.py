"""Timings as data and back: in a separate file, or as rows of a ledger."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import brief
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.errors import InputError
from fuser_lab.files.reading import UnreadableError, json_of, parse_json, record_of
from fuser_lab.lab.schema import Row

FORMAT: Final = "fuser_lab timings"
VERSION: Final = 1  # of the format of records
_TEXTS: Final = ("plan", "scheduler", "plan_hash", "timer", "clocks", "note", "device")
_NUMBERS: Final = ("median", "low", "high", "warm", "kernels", "error")
_COUNTS: Final = ("ops", "bytes_in", "bytes_out", "bytes_crossing")
_ENVIRONMENT: Final = ("measured_at", "host", "cpu", "cores", "driver", "versions", "commit")


def timings_of(rows: Sequence[Row]) -> Timings:
    """Return rows of a ledger as timings, with ratios to the first total of each subject."""
    timing_rows = []
    for row in rows:
        seconds = samples_of(row)
        values: dict[str, Any] = {name: row[name] or "" for name in _TEXTS}
        values |= {name: _real(row[name]) for name in _NUMBERS} | {name: row[name] or 0 for name in _COUNTS}
        values |= {"segment": row["segment"], "group": row["subject"] or "", "iqr": values["high"] - values["low"]}
        timing_rows.append(TimingRow(**values, seconds=seconds, samples=len(seconds)))
    first = rows[0]
    return Timings(
        rows=tuple(timing_rows), preallocated=bool(first["preallocated"]), system_load=_real(first["load"]),
        cores=first["cores"] or 1, environment={name: _plain(first[name]) for name in _ENVIRONMENT},
    ).compared()


def samples_of(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the samples of a row in seconds, none if they are not numbers; SQLite gives them as JSON."""
    samples: Any = row.get("samples")
    try:
        samples = parse_json(samples) if isinstance(samples, str) else samples
        return tuple(map(_real, samples)) if hasattr(samples, "__len__") else ()
    except (OverflowError, TypeError, ValueError):
        return ()


def timings_data(timings: Timings) -> dict[str, Any]:
    """Return timings as data for JSON, every sample included."""
    rows = [{f.name: getattr(row, f.name) for f in fields(row)} for row in timings.rows]
    return {
        "format": FORMAT, "version": VERSION, "preallocated": timings.preallocated, "load": timings.system_load,
        "cores": timings.cores, "environment": dict(timings.environment), "rows": rows,
    }


def loaded_timings(path: Path) -> Timings:
    """Return the timings in a file that contains `timings_data`.

    Raises
    ------
    InputError
        If the file cannot be read, or does not contain timings.
    """
    name = brief(str(path))
    try:
        data = json_of(path)
    except UnreadableError as error:
        raise InputError(f"Timings.load: {name} cannot be read: {error}.") from None
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise InputError(f"Timings.load: {name} does not contain timings; pass a .json file written by Timings.save.")
    if data.get("version") != VERSION:
        msg = f"Timings.load: {name} has version {data.get('version')!r}; this version of fuser_lab reads {VERSION}."
        raise InputError(msg)
    try:
        content = {key: value for key, value in data.items() if key not in {"format", "version", "load"}}
        return record_of(Timings, {**content, "system_load": data.get("load")}, "the file")
    except UnreadableError as error:
        raise InputError(f"Timings.load: {name} is damaged: {error}.") from None


def _real(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value

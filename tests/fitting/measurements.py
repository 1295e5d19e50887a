"""Measured kernels as text: one line per kernel, with its features and the quartiles of its time."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from fuser_lab.cost.kernel_time import KernelFeatures
from fuser_lab.errors import InputError
from fuser_lab.files.reading import UnreadableError, content_of, decode

_FEATURES: Final = {field.name: field.type for field in fields(KernelFeatures)}
_COLUMNS: Final = ("fusion", "scheduler", "params", "median", "low", "high", "samples", "note", *_FEATURES)
_LATER: Final = ("again", "between")  # columns that files before 2026-11-30 do not have
_MARK: Final = "# "


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One kernel with its features, and seconds: the median and the quartiles; NaN with a note if not measured.

    ``fusion`` names the segment, so that candidates of one segment have one name; ``params`` are the parameters set by
    hand, ``""`` for the heuristics' choice.
    """

    fusion: str
    scheduler: str
    params: str
    features: KernelFeatures
    median: float = math.nan
    low: float = math.nan
    high: float = math.nan
    samples: int = 0
    note: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the kernel was measured."""
        return self.median > 0 and not self.note


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measured kernels of one device; ``facts`` are the file's statements about it, such as its name and clocks."""

    facts: Mapping[str, str]
    rows: tuple[Measurement, ...]

    @property
    def good(self) -> tuple[Measurement, ...]:
        """The kernels that were measured."""
        return tuple(row for row in self.rows if row.is_good)


def written(measurements: Measurements) -> str:
    """Return measurements as comma-separated values, after lines ``# name: value`` with the facts."""
    file = io.StringIO()
    for name, value in measurements.facts.items():
        file.write(f"{_MARK}{name}: {' '.join(value.split())}\n")
    table = csv.writer(file, lineterminator="\n")
    table.writerow(_COLUMNS)
    for row in measurements.rows:
        times = (_seconds(row.median), _seconds(row.low), _seconds(row.high))
        features = (_short(value) for value in asdict(row.features).values())
        table.writerow([row.fusion, row.scheduler, row.params, *times, row.samples, row.note, *features])
    return file.getvalue()


def read(text: str) -> Measurements:
    """Return the measurements that `written` wrote.

    Raises
    ------
    InputError
        If the text has another format.
    """
    lines = text.splitlines(keepends=True)
    head = [line for line in lines if line.startswith(_MARK)]
    facts = dict(line.removeprefix(_MARK).rstrip("\n").split(": ", 1) for line in head if ": " in line)
    table = csv.DictReader(line for line in lines if not line.startswith(_MARK))
    try:
        is_table = tuple(table.fieldnames or ()) in {_COLUMNS, _COLUMNS[: -len(_LATER)]}
        rows = tuple(map(_row, table)) if is_table else ()
    except (KeyError, OverflowError, TypeError, ValueError, csv.Error) as error:
        msg = f"fit: a line of FILE cannot be read: {error}."
        raise InputError(msg) from None
    if not is_table:
        msg = "fit: FILE must be written by `python -m tests.benchmarks.measure_kernels`; its columns differ."
        raise InputError(msg)
    return Measurements(facts=facts, rows=rows)


def load(path: Path) -> Measurements:
    """Return the measurements of a file, gzipped if its name ends in ``.gz``.

    Raises
    ------
    InputError
        If the file cannot be read or has another format.
    """
    try:
        content = content_of(path)
        return read(decode(gzip.decompress(content) if path.suffix == ".gz" else content))
    except (OSError, EOFError, zlib.error, UnreadableError) as error:  # of gzip, or of the file
        msg = f"fit: {path.name} cannot be read: {error}."
        raise InputError(msg) from None


def save(measurements: Measurements, path: Path) -> None:
    """Write measurements to a file, gzipped if its name ends in ``.gz``; equal measurements give equal bytes."""
    content = written(measurements).encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def _row(line: Mapping[str, str]) -> Measurement:
    values: dict[str, Any] = {name: _feature(kind, line[name]) for name, kind in _FEATURES.items() if name in line}
    return Measurement(
        fusion=line["fusion"], scheduler=line["scheduler"], params=line["params"],
        median=_time(line["median"]), low=_time(line["low"]), high=_time(line["high"]), samples=int(line["samples"]),
        note=line["note"], features=KernelFeatures(**values),
    )


def _feature(kind: object, text: str) -> str | int | float | bool:
    if kind in {str, "str"}:
        return text
    if kind in {bool, "bool"}:
        return text == "1"
    return float(text) if kind in {float, "float"} else int(text)


def _short(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return f"{value:.5g}" if isinstance(value, float) else value


def _seconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _time(text: str) -> float:
    return float(text) if text else math.nan

"""Two measurements side by side: ratios of medians with intervals, and changes of the environment."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.errors import InputError
from fuser_lab.files.reading import UnreadableError, parse_json
from fuser_lab.report import records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import seconds_label, three_digits
from fuser_lab.report.view import View

_RESAMPLES: Final = 2000  # drawings of the bootstrap
_SEED: Final = 20260101  # of the bootstrap, so that a comparison repeats
_BLOCKS: Final = 10  # as many as a measurement has rounds
_NOT_COMPARED: Final = frozenset({"measured_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One row of both measurements.

    Attributes
    ----------
    plan, segment, subject
        What was measured; ``segment`` is None for a whole plan.
    before, after
        Medians in seconds; NaN where one of the two was not measured.
    ratio, low, high
        Time after / time before, and the bounds of its interval; NaN where there are no samples.
    note
        Why there is no ratio.
    """

    plan: str
    segment: int | None
    subject: str
    before: float
    after: float
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    note: str = ""

    @property
    def tie(self) -> bool:
        """Whether the interval contains 1, so the measurements do not show a difference."""
        return self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """``"faster"``, ``"slower"``, ``"tie"``, or why there is no verdict."""
        if math.isnan(self.ratio):
            return self.note
        return "tie" if self.tie else "faster" if self.ratio < 1 else "slower"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(View):
    """Rows that two measurements share, in the order of the first, then rows that only one of them has.

    ``confidence`` is that of the intervals, ``changes`` are the differences between the environments: name, before,
    after.
    """

    what: ClassVar[str] = "a comparison"

    rows: tuple[ComparedRow, ...]
    confidence: float
    changes: tuple[tuple[str, str, str], ...]

    @property
    def note(self) -> str:
        """How ratios are computed, and what changed in between."""
        share = f"{100 * self.confidence:g} %"
        said = f"Ratio: time after / time before, with its {share} interval (block bootstrap of the medians)."
        if not self.changes:
            return f"{said} The environment is the same."
        return f"{said} Changed: {'; '.join(f'{name} {_or_none(a)} -> {_or_none(b)}' for name, a, b in self.changes)}."

    def _table(self) -> Table:
        columns = ("plan", "segment", "before", "after", "ratio", "interval", "verdict")
        cells = tuple(
            (
                row.plan if not row.subject else f"{row.subject}: {row.plan}",
                "" if row.segment is None else f"S{row.segment}", _time(row.before), _time(row.after),
                _number(row.ratio), "" if math.isnan(row.ratio) else f"{_number(row.low)} to {_number(row.high)}",
                row.verdict,
            )
            for row in self.rows
        )
        strong = frozenset(n for n, row in enumerate(self.rows) if row.segment is None)
        return Table(columns=columns, rows=cells, numeric=frozenset(columns[2:6]), strong=strong)

    def _records(self) -> records.Records:
        columns = (
            "subject", "plan", "segment", "before [us]", "after [us]", "ratio", "low", "high", "verdict",
        )
        rows = tuple(
            (r.subject, r.plan, r.segment, r.before * 1e6, r.after * 1e6, r.ratio, r.low, r.high, r.verdict)
            for r in self.rows
        )
        return records.Records(columns=columns, rows=rows)

    def _data(self) -> dict[str, Any]:
        numbers = self._records()
        return {
            "confidence": self.confidence, "changes": self.changes,
            "rows": [dict(zip(numbers.columns, row, strict=True)) for row in numbers.rows],
        }


def compare_rows(before: Timings, after: Timings, *, confidence: float = 0.95) -> Comparison:
    """Return two measurements row by row: rows are matched by subject, plan name and segment number.

    The interval is that of the percentile bootstrap (Efron 1979) of the ratio of medians, over blocks of samples
    (Carlstein 1986), since neighbouring samples are correlated: blocks of both are resampled 2,000 times, with a fixed
    seed. The interval says how well the medians of these two runs are known, not what a third run would give.

    Raises
    ------
    InputError
        If they have no row in common.
    """
    first, second = ({_key(row): row for row in timings.rows} for timings in (before, after))
    shared = [key for key in first if key in second]
    if not shared:
        raise InputError(
            f"compare: no row is in both; the first has {_names(before)}, the second {_names(after)}; "
            "give plans the same names (plan.renamed)."
        )
    generator = np.random.default_rng(_SEED)
    rows = [compared_rows(first[key], second[key], confidence, generator) for key in shared]
    rows += [_alone(row, is_first=True) for key, row in first.items() if key not in second]
    rows += [_alone(row, is_first=False) for key, row in second.items() if key not in first]
    return Comparison(rows=tuple(rows), confidence=confidence, changes=tuple(_changes(before, after)))


def _key(row: TimingRow) -> tuple[str, str, int | None]:
    return row.group, row.plan, row.segment


def _names(timings: Timings) -> str:
    return ", ".join(dict.fromkeys(repr(row.plan) for row in timings.rows)) or "no rows"


def compared_rows(
    a: TimingRow, b: TimingRow, confidence: float = 0.95, generator: np.random.Generator | None = None,
) -> ComparedRow:
    """Return two rows as one, with the first row's names; see `compare_rows`."""
    generator = np.random.default_rng(_SEED) if generator is None else generator
    both = ComparedRow(plan=a.plan, segment=a.segment, subject=a.group, before=a.median, after=b.median)
    if not (a.median > 0 and b.median > 0):
        return replace(both, note=f"not measured {'after' if a.median > 0 else 'before'}")
    if a.device != b.device:
        return replace(both, note=f"other devices: {a.device}, {b.device}")
    ratio, low, high = b.median / a.median, 0.0, math.inf
    if a.seconds and b.seconds:
        drawn = _medians(b, generator) / _medians(a, generator)
        low, high = (float(q) for q in np.quantile(drawn, ((1 - confidence) / 2, (1 + confidence) / 2)))
    return replace(both, ratio=ratio, low=low, high=high)


def _medians(row: TimingRow, generator: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return medians of samples resampled in blocks, because a slowdown of the machine lasts for many samples."""
    seconds = np.asarray(row.seconds)
    length = max(len(seconds) // _BLOCKS, 1)
    blocks = seconds[: len(seconds) // length * length].reshape(-1, length)
    drawn = blocks[generator.integers(0, len(blocks), (_RESAMPLES, len(blocks)))]
    medians: np.ndarray[Any, np.dtype[np.float64]] = np.median(drawn.reshape(_RESAMPLES, -1), axis=1)
    return medians


def _alone(row: TimingRow, *, is_first: bool) -> ComparedRow:
    return ComparedRow(
        plan=row.plan, segment=row.segment, subject=row.group, before=row.median if is_first else math.nan,
        after=math.nan if is_first else row.median, note=f"only {'before' if is_first else 'after'}",
    )


def _changes(before: Timings, after: Timings) -> Iterator[tuple[str, str, str]]:
    """Yield the differences: versions per package, and names only if both sides know them."""
    first, second = (_flat(timings) for timings in (before, after))
    for name in {**first, **second}:
        if first.get(name, "") != second.get(name, ""):
            yield name, first.get(name, ""), second.get(name, "")


def _flat(timings: Timings) -> dict[str, str]:
    facts: dict[str, str] = {}
    for name, value in timings.environment.items():
        if name in _NOT_COMPARED:
            continue
        if name == "versions":
            facts |= _packages(value)
        else:
            facts[name] = str(value)
    devices = dict.fromkeys(row.device for row in timings.rows if row.device)
    return {**facts, "device": ", ".join(devices), "outputs": "allocated before" if timings.preallocated else "made"}


def _packages(value: Any) -> dict[str, str]:
    try:
        packages = parse_json(value)
    except (AttributeError, UnreadableError):  # AttributeError: the value is not a text
        return {}
    return {str(k): str(v) for k, v in packages.items()} if isinstance(packages, Mapping) else {}


def _or_none(value: str) -> str:
    return value or "none"


def _time(seconds: float) -> str:
    return "" if math.isnan(seconds) else seconds_label(seconds)


def _number(value: float) -> str:
    return "" if math.isnan(value) else three_digits(value)

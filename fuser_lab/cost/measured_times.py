"""Timings: measurements as rows of numbers; NaN means not measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fuser_lab.files.json_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRow:
    """One measured segment, or a whole plan where ``segment`` is None.

    Attributes
    ----------
    plan, segment
        Name of the plan and number of the segment.
    scheduler, ops
        The scheduler ("" for a whole plan) and the number of expressions.
    bytes_in, bytes_out, bytes_crossing
        Bytes read, bytes written, and the bytes of both that pass between segments.
    median, iqr, low, high
        Seconds: median, interquartile range and the quartiles. Segments are timed inside runs of their plan; on a GPU
        the L2 cache is cold when a run starts.
    warm
        Median in seconds with the cache as the previous run left it; NaN on the CPU, where every measurement is warm.
    kernels
        Sum of the seconds of a plan's segments inside its runs; the rest of the median is gaps between them. Whole
        plans only.
    samples, seconds
        Number of measurements, and each of them in seconds, in the order in which they were made.
    bandwidth
        Bytes read and written per second of the median, in GB/s.
    ratio, tie
        Time divided by the time of the first plan, and whether the two are too close to distinguish; whole plans only.
    group
        The subject of the measurement if there are several, such as regions; ratios are relative to the first total of
        a group.
    device, timer, clocks
        The device, the timer, and the clock rates of the processor during the measurement, if available.
    note
        Why it was not measured, or another remark, such as that a peer allocates its results.
    error
        Largest deviation from the reference evaluation as a fraction of the tolerance: below 1 is correct.
    plan_hash
        Content hash of the plan, because names may repeat; "" for a peer.
    """

    plan: str
    segment: int | None
    scheduler: str
    ops: int
    bytes_in: int
    bytes_out: int
    bytes_crossing: int
    median: float = math.nan
    iqr: float = math.nan
    low: float = math.nan
    high: float = math.nan
    warm: float = math.nan
    kernels: float = math.nan
    samples: int = 0
    seconds: tuple[float, ...] = field(default=(), repr=False)
    ratio: float = math.nan
    tie: bool = False
    device: str = ""
    timer: str = ""
    clocks: str = ""
    note: str = ""
    error: float = math.nan
    plan_hash: str = ""
    group: str = ""

    @property
    def bytes_io(self) -> int:
        """Bytes read and written."""
        return self.bytes_in + self.bytes_out

    @property
    def bandwidth(self) -> float:
        """GB/s of the median; NaN if no bytes are counted, as for whole models."""
        return self.bytes_io / self.median / 1e9 if self.median > 0 and self.bytes_io else math.nan

    @property
    def gaps(self) -> float:
        """Seconds that a plan takes beyond its segments one by one; NaN for segments and peers."""
        return max(self.median - self.kernels, 0.0) if not math.isnan(self.median + self.kernels) else math.nan

    @property
    def excess(self) -> float:
        """Seconds that the segments of a plan took beyond it: medians differ if the machine is busy; 0 otherwise."""
        return max(self.kernels - self.median, 0.0) if not math.isnan(self.median + self.kernels) else 0.0

    def ties_with(self, other: "TimingRow") -> bool:
        """Whether the middle halves of both rows' samples overlap."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Rows in order, the total of each plan after its segments.

    ``preallocated`` says that outputs were allocated before the measurement, so that page faults do not count.
    ``system_load`` is the average number of runnable processes in the minute before it, for the machine's ``cores``,
    NaN if unknown. ``environment`` maps names to the time, machine, processor, driver, versions and commit.
    """

    rows: tuple[TimingRow, ...]
    preallocated: bool = True
    system_load: float = math.nan
    cores: int = 1
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def totals(self) -> tuple[TimingRow, ...]:
        """One row per plan."""
        return tuple(row for row in self.rows if row.segment is None)

    def compared(self) -> "Timings":
        """Return the timings with ratio and tie of every total, against the first of its group."""
        first = {row.group: row for row in reversed(self.totals)}
        return replace(self, rows=tuple(_against(row, first.get(row.group, row)) for row in self.rows))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows as JSON-ready data without single samples; None stands for NaN."""
        return [_record(row) for row in self.rows]


def _against(row: TimingRow, base: TimingRow) -> TimingRow:
    if row.segment is not None:
        return row
    # The clock of events may not advance while a small kernel runs.
    return replace(row, ratio=row.median / (base.median or math.nan), tie=row is not base and row.ties_with(base))


def _record(row: TimingRow) -> dict[str, Any]:
    names = [f.name for f in fields(row) if f.name != "seconds"]
    record = {name: getattr(row, name) for name in names}
    record["bandwidth"] = row.bandwidth
    entry: dict[str, Any] = plain(record)
    return entry

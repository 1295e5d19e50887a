"""The time of one plan or segment over commits."""

import math
import statistics
from dataclasses import dataclass
from typing import ClassVar, Final

from fuser_lab.arguments import ANYTHING, TEXT, brief, optional, takes, whole
from fuser_lab.errors import InputError
from fuser_lab.lab.views.rows import Row, is_missing, number, rows_of, text
from fuser_lab.report.points_plot import Axis, Point, points_svg
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import seconds_label, three_digits
from fuser_lab.report.view import View

_SHORT: Final = 10  # characters of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One commit on one device: the median of its measurements in seconds, and their quartiles.

    ``kernel`` is the hash of the kernel; ``is_new`` says that it differs from that of the commit before.
    """

    commit: str
    device: str
    measured_at: str
    seconds: float
    low: float
    high: float
    measurements: int
    kernel: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class History(View):
    """Commits in the order in which they were first measured, for each device; ``subject`` says what was measured."""

    what: ClassVar[str] = "a history"
    subject: str
    rows: tuple[HistoryRow, ...]

    @property
    def note(self) -> str:
        """What was measured, and where the kernel changed."""
        changed = ", ".join(row.commit[:_SHORT] for row in self.rows if row.is_new)
        return f"{self.subject}, commits in the order of their first measurement." + (
            f" The kernel is new at {changed}." if changed else " The kernel is the same throughout." if any(
                row.kernel for row in self.rows
            ) else ""
        )

    def svg(self) -> str:
        """Return the picture as static SVG, one line per device; hollow marks have a new kernel."""
        commits = list(dict.fromkeys(row.commit for row in self.rows))
        devices = list(dict.fromkeys(row.device for row in self.rows))
        last = {row.device: row.commit for row in self.rows}
        points = [
            Point(
                x=commits.index(row.commit), y=row.seconds, low=row.low, high=row.high, hue=devices.index(row.device),
                full=not row.is_new, label=row.device if last[row.device] == row.commit else "",
                title=f"{row.commit} on {row.device}: {seconds_label(row.seconds)}",
            )
            for row in self.rows
        ]
        lines = [
            [(float(commits.index(r.commit)), r.seconds) for r in self.rows if r.device == device] for device in devices
        ]
        step = 1 + (len(commits) - 1) // 6
        ticks = tuple((float(n), commits[n][:_SHORT] or "none") for n in range(0, len(commits), step))
        across = Axis(name="commit", written=str, ticks=ticks)
        return points_svg(points, across, Axis(name="time", written=seconds_label), self.subject, lines=lines)

    def _table(self) -> Table:
        before: dict[str, float] = {}
        rows = []
        for row in self.rows:
            ratio = row.seconds / before[row.device] if row.device in before else math.nan
            before[row.device] = row.seconds
            rows.append((
                row.commit[:_SHORT] or "none", row.device, row.measured_at[:16], seconds_label(row.seconds),
                f"{seconds_label(row.low)} to {seconds_label(row.high)}",
                "" if math.isnan(ratio) else three_digits(ratio), str(row.measurements),
                f"{row.kernel[:8]}{' (new)' if row.is_new else ''}",
            ))
        columns = ("commit", "device", "first measured", "median", "quartiles", "to before", "measurements", "kernel")
        return Table(columns=columns, rows=tuple(rows), numeric=frozenset(columns[3:7]))

    def _records(self) -> Records:
        columns = (
            "commit", "device", "first measured", "median [s]", "lower quartile [s]", "upper quartile [s]",
            "measurements", "kernel", "kernel is new",
        )
        rows = tuple(
            (r.commit, r.device, r.measured_at, r.seconds, r.low, r.high, r.measurements, r.kernel, r.is_new)
            for r in self.rows
        )
        return Records(columns=columns, rows=rows)


@takes(data=ANYTHING, plan=optional(TEXT), fusion=optional(TEXT), segment=optional(whole(0)))
def history(
    data: object, *, plan: str | None = None, fusion: str | None = None, segment: int | None = None,
) -> History:
    """Return the times of one plan, or of one of its segments, over commits.

    Parameters
    ----------
    data
        A ledger, a data frame with a ledger's columns, or a list of mappings.
    plan
        Name of the plan; optional if only one was measured.
    fusion
        Beginning of the fusion's hash (``fusion_hash``); optional if only one was measured.
    segment
        Number of a segment, for the history of its kernel; the whole plan by default.

    Raises
    ------
    InputError
        If no row matches, or if the rows belong to several plans or fusions.
    ArgumentTypeError
        If ``data`` is not one of these.
    """
    rows = [
        row for row in rows_of(data, "history")
        if number(row.get("median")) > 0
        and (plan is None or row.get("plan") == plan)
        and (fusion is None or text(row, "fusion_hash").startswith(fusion))
        and (is_missing(row.get("segment")) if segment is None else number(row.get("segment")) == segment)
    ]
    scope = "whole plans" if segment is None else f"segment {segment}"
    if not rows:
        filters = (("plan", plan), ("fusion", fusion))
        asked = [f"{name}={brief(value)!r}" for name, value in filters if value is not None]
        msg = f"history: no measured row belongs to {scope}{' with ' if asked else ''}{' and '.join(asked)}."
        raise InputError(msg)
    for column, name in (("fusion_hash", "fusion"), ("plan", "plan")):
        several = dict.fromkeys(text(row, column) for row in rows)
        if len(several) > 1:
            msg = f"history: the rows belong to {len(several)} {name}s; set {name} to one of {', '.join(several)}."
            raise InputError(msg)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: text(row, "measured_at")):
        groups.setdefault((text(row, "device"), text(row, "commit")), []).append(row)
    made, kernels = [], dict[str, str]()
    for (device, commit), group in groups.items():
        entry = _row(device, commit, group, kernels.get(device, ""))
        kernels[device] = entry.kernel or kernels.get(device, "")
        made.append(entry)
    subject = f"{text(rows[0], 'plan')}{'' if segment is None else f', segment S{segment}'}"
    return History(subject=subject, rows=tuple(made))


def _row(device: str, commit: str, group: list[Row], before: str) -> HistoryRow:
    kernel = text(group[-1], "kernel_hash")
    middle = {name: statistics.median(_finite(row, name) for row in group) for name in ("median", "low", "high")}
    return HistoryRow(
        commit=commit, device=device, measured_at=text(group[0], "measured_at"), seconds=middle["median"],
        low=middle["low"], high=middle["high"], measurements=len(group), kernel=kernel,
        is_new=bool(before and kernel and kernel != before),
    )


def _finite(row: Row, name: str) -> float:
    value = number(row.get(name))
    return number(row.get("median")) if math.isnan(value) else value

"""Time against memory, or against the time of compilation: which plans no other plan beats in both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fuser_lab.arguments import ANYTHING, brief, instance, list_of, mapping, number, one_of, takes
from fuser_lab.cost import measured_times as measured
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.errors import InputError
from fuser_lab.lab.comparison import compared_rows
from fuser_lab.plan import Plan
from fuser_lab.report.memory_plot import memory_steps
from fuser_lab.report.points_plot import Axis, Point, points_svg
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, seconds_label
from fuser_lab.report.view import View

_UNITS = {"bytes": ("peak memory", bytes_label), "seconds": ("compile time", seconds_label)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """One plan: seconds with quartiles, its cost, and the plans that beat it or tie with it.

    ``beaten_by`` names a plan that is better in one and not worse in the other, ``""`` on the frontier; ``ties`` are
    the plans whose times cannot be distinguished from its own.
    """

    plan: str
    seconds: float
    low: float
    high: float
    cost: float
    beaten_by: str
    ties: tuple[str, ...]

    @property
    def on_frontier(self) -> bool:
        """Whether no plan beats it."""
        return not self.beaten_by


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Frontier(View):
    """Plans by cost, the cheapest first; ``unit`` is that of the cost: ``"bytes"`` or ``"seconds"``."""

    what: ClassVar[str] = "a frontier"
    rows: tuple[FrontierRow, ...]
    unit: str

    @property
    def note(self) -> str:
        """Which plans are on the frontier."""
        names = ", ".join(row.plan for row in self.rows if row.on_frontier)
        name = _UNITS[self.unit][0]
        return (
            f"On the frontier of time and {name}: {names}. A plan is beaten by one that is better in one and not worse "
            "in the other; times that tie count as equal."
        )

    def svg(self) -> str:
        """Return the picture as static SVG: full marks are on the frontier, lines are quartiles."""
        name, written = _UNITS[self.unit]
        points = [
            Point(
                x=row.cost, y=row.seconds, low=row.low, high=row.high, label=row.plan, hue=0 if row.on_frontier else 1,
                full=row.on_frontier, title=f"{row.plan}: {seconds_label(row.seconds)}, {written(row.cost)}",
            )
            for row in self.rows
        ]
        best = sorted((row.cost, row.seconds) for row in self.rows if row.on_frontier)
        up = Axis(name="time", written=seconds_label)
        return points_svg(points, Axis(name=name, written=written), up, f"Time and {name}", lines=[best])

    def _table(self) -> Table:
        name, written = _UNITS[self.unit]
        rows = tuple(
            (r.plan, seconds_label(r.seconds), written(r.cost), r.beaten_by or "on the frontier", ", ".join(r.ties))
            for r in self.rows
        )
        columns = ("plan", "time", name, "beaten by", "times tie with")
        strong = frozenset(n for n, row in enumerate(self.rows) if row.on_frontier)
        return Table(columns=columns, rows=rows, numeric=frozenset({"time", name}), strong=strong)

    def _records(self) -> Records:
        columns = (
            "plan", "time [s]", "lower quartile [s]", "upper quartile [s]", f"{_UNITS[self.unit][0]} [{self.unit}]",
            "on the frontier", "beaten by", "times tie with",
        )
        rows = tuple(
            (r.plan, r.seconds, r.low, r.high, r.cost, r.on_frontier, r.beaten_by, ", ".join(r.ties)) for r in self.rows
        )
        return Records(columns=columns, rows=rows)


_NAMED_TIMES = mapping(instance(str, accepted="a plan's name"), number(0), "a mapping of plans' names to numbers")
_AGAINST = _NAMED_TIMES | list_of(
    instance(Plan), "a list of plans",
)


@takes(timings=instance(measured.Timings, accepted="what fl.time returns"), against=ANYTHING, unit=one_of(*_UNITS))
def frontier(
    timings: measured.Timings, against: Sequence[Plan] | Mapping[str, float], *, unit: str = "bytes",
) -> Frontier:
    """Return the timed plans by time and a second cost, with the frontier marked.

    Times tie if the bootstrap interval of their ratio contains 1 (`fuser_lab.compare`).

    Parameters
    ----------
    timings
        What `fuser_lab.time` returned.
    against
        The plans, for the peak of their memory, or a number for each plan's name: bytes, or seconds of compilation.
    unit
        The unit of these numbers, ``"bytes"`` or ``"seconds"``.

    Raises
    ------
    InputError
        If a timed plan has no cost, or no plan was timed.
    """
    second = _AGAINST.of(against, "frontier", "against")
    costs = second if isinstance(second, Mapping) else {plan.name: float(peak_memory(plan)) for plan in second}
    rows = [row for row in timings.totals if row.median > 0 and row.samples]
    if not rows:
        raise InputError("frontier: the timings have no measured plan.")
    missing = next((row.plan for row in rows if row.plan not in costs), None)
    if missing is not None:
        msg = f"frontier: against has no number for {brief(missing)!r}; it has {', '.join(map(repr, costs))}."
        raise InputError(msg)
    placed = [_frontier_row(row, rows, costs) for row in rows]
    return Frontier(rows=tuple(sorted(placed, key=lambda row: (row.cost, row.seconds))), unit=unit)


@takes(plan=instance(Plan))
def peak_memory(plan: Plan) -> int:
    """Return the peak memory of a plan in bytes: inputs, tensors between segments and results."""
    return max((step.total for step in memory_steps(plan)), default=0)


def _frontier_row(row: TimingRow, rows: Sequence[TimingRow], costs: Mapping[str, Any]) -> FrontierRow:
    beaten, ties = "", []
    for other in rows:
        if other is row:
            continue
        ratio = compared_rows(row, other)
        cheaper, costlier = costs[other.plan] < costs[row.plan], costs[other.plan] > costs[row.plan]
        if math.isnan(ratio.ratio):
            continue
        if ratio.tie:
            ties.append(other.plan)
        if not beaten and not costlier and ((ratio.tie and cheaper) or ratio.verdict == "faster"):
            beaten = other.plan
    return FrontierRow(
        plan=row.plan, seconds=row.median, low=row.low, high=row.high, cost=float(costs[row.plan]), beaten_by=beaten,
        ties=tuple(ties),
    )

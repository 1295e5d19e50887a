"""Plans of one captured graph beside one another: a compiler's, edited ones, and those of our strategies."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.passes import bare
from fuser_lab.plan import Plan
from fuser_lab.report.diff import PlanComparison, plan_comparison
from fuser_lab.report.html import table_html
from fuser_lab.report.records import Records
from fuser_lab.report.save import save, table_writers
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import bytes_label
from fuser_lab.segmentation import STRATEGIES

_ACCEPTED = f"a plan of from_inductor, a plan of its only region, or one of {', '.join(STRATEGIES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """The figures of one plan of a graph, summed over its regions.

    ``moved`` are the ops that it groups otherwise than the first plan, None if the two have no ops in common;
    ``predicted`` are seconds, None if the plan has no prediction; ``measured`` are the seconds of a call, or None.
    """

    name: str
    segments: int
    bytes: int
    bytes_crossing: int
    moved: int | None
    predicted: float | None
    measured: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphComparison(Shown):
    """Plans of one graph: their figures side by side, and for each region how each differs from the first."""

    figures: tuple[PlanFigures, ...]
    regions: tuple[PlanComparison, ...]

    def table(self) -> Table:
        """Return one row per plan; the first is the baseline."""
        first = self.figures[0]
        columns = ("plan", "segments", "moved", "crossing", "ratio", "ops grouped differently", "predicted", "measured")
        rows = tuple(
            (
                row.name, str(row.segments), bytes_label(row.bytes), bytes_label(row.bytes_crossing),
                f"{row.bytes / first.bytes:.2f}" if first.bytes else "",
                "" if row is first or row.moved is None else str(row.moved),
                "" if row.predicted is None else seconds_label(row.predicted),
                "" if row.measured is None else seconds_label(row.measured),
            )
            for row in self.figures
        )
        return Table(columns=columns, rows=rows, numeric=frozenset(columns) - {"plan"})

    def records(self) -> Records:
        """Return one row per plan, as numbers."""
        columns = (
            "plan", "segments", "moved [bytes]", "crossing [bytes]", "ops grouped differently", "predicted [s]",
            "measured [s]",
        )
        return Records(columns=columns, rows=tuple(tuple(asdict(row).values()) for row in self.figures))

    def save(self, path: str | Path) -> Path:
        """Write the figures as .csv, .json, .html or .txt and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        """
        return save("a comparison", path, table_writers(self.table(), self.records, self.to_dict, title="plans"))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {
            "schema": "fuser_lab.graph_comparison", "version": 1, "figures": [asdict(row) for row in self.figures],
            "regions": [region.to_dict() for region in self.regions],
        }

    def __str__(self) -> str:
        """Return the figures, and the differences of each region from the first plan."""
        lines = [table_text(self.table())]
        for number, region in enumerate(self.regions):
            lines += [f"region {number}: {difference}" for difference in region.diffs]
        return "\n\n".join(lines)

    def __repr__(self) -> str:
        """Return the text; a notebook shows tables and pictures."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the figures as a table, and the picture of each difference below."""
        parts = [table_html(self.table())]
        for number, region in enumerate(self.regions):
            parts += [f"<h4>region {number}</h4>", *(each._repr_html_() for each in region.diffs if each)]
        return "".join(parts)


def compared_plans(plans: Sequence[CompiledPlan | Plan | str], *, measure: bool) -> GraphComparison:
    """Return plans of one graph side by side; with ``measure`` each is called in turns, in one run.

    Plans of files and of XLA have no capture of our own: plans beside such one are compared by what their compilers
    say of them, and may be of different graphs.

    Raises
    ------
    InputError
        If the first is not a compiler's plan, there is only one, or they are of different graphs.
    UnsupportedError
        If a strategy stands beside a plan without a capture of its graph; or something to measure cannot be run.
    """
    first = plans[0] if plans else None
    if not isinstance(first, CompiledPlan) or len(plans) == 1:
        raise InputError(
            f"compare: a list must have at least two plans, of which from_inductor returned the first, given "
            f"[{', '.join(type(plan).__name__ for plan in plans)}]; fl.diff compares plans of one definition."
        )
    read = [plan for plan in plans if isinstance(plan, CompiledPlan)]
    if any(plan.graph is None for plan in read):
        return _by_record(plans, measure=measure)
    by_plan = [_fusions(first, plan) for plan in plans]
    times = first.measure(plans) if measure else (None,) * len(plans)
    regions = tuple(map(plan_comparison, zip(*by_plan, strict=True)))
    figures = [
        PlanFigures(
            name=plan if isinstance(plan, str) else plan.name, segments=sum(len(fusion.segments) for fusion in fusions),
            bytes=sum(segment.bytes for fusion in fusions for segment in fusion.segments),
            bytes_crossing=sum(fusion.bytes_crossing for fusion in fusions),
            moved=sum(len(region.diffs[place - 1].moved) for region in regions) if place else 0,
            predicted=sum(fusion.time_bound().seconds for fusion in fusions), measured=seconds,
        )
        for place, (plan, fusions, seconds) in enumerate(zip(plans, by_plan, times, strict=True))
    ]
    return GraphComparison(figures=tuple(figures), regions=regions)


def _by_record(plans: Sequence[CompiledPlan | Plan | str], *, measure: bool) -> GraphComparison:
    """Return plans side by side by what was recorded of each: its kernels, their bytes, and nodes of the graph."""
    uncompiled = next((plan for plan in plans if not isinstance(plan, CompiledPlan)), None)
    if uncompiled is not None:
        name = uncompiled if isinstance(uncompiled, str) else uncompiled.name
        raise UnsupportedError(
            f"compare: {short_text(name)} cannot stand beside a plan that was read without a capture of its graph; "
            f"only plans of compilers can."
        )
    compiled = [plan for plan in plans if isinstance(plan, CompiledPlan)]
    times = compiled[0].measure(compiled) if measure else (None,) * len(compiled)
    first = _homes(compiled[0])
    figures = []
    for plan, seconds in zip(compiled, times, strict=True):
        homes, costs = _homes(plan), plan.region_costs()
        figures.append(PlanFigures(
            name=plan.name, segments=len(plan.segments), bytes=sum(kernel.bytes for kernel in plan.segments),
            bytes_crossing=plan.bytes_crossing,
            moved=sum(homes[node] != first[node] for node in homes) if homes.keys() == first.keys() else None,
            predicted=sum(cost.seconds for cost in costs) if costs else None, measured=seconds,
        ))
    return GraphComparison(figures=tuple(figures), regions=())


def _homes(plan: CompiledPlan) -> dict[str, frozenset[str]]:
    """Return, for each node of the graph, the nodes of the first kernel that computes it."""
    homes: dict[str, frozenset[str]] = {}
    for kernel in plan.segments:
        for node in kernel.nodes:
            homes.setdefault(node, frozenset(kernel.nodes))
    return homes


def _fusions(first: CompiledPlan, plan: CompiledPlan | Plan | str) -> tuple[Plan, ...]:
    """Return a plan of each region of the first plan's graph."""
    if isinstance(plan, CompiledPlan) and plan.record.digest == first.record.digest:
        return plan.fusions
    if isinstance(plan, str) and plan in STRATEGIES:
        return tuple(first.resegmented(plan, region) for region in range(len(first.fusions)))
    if isinstance(plan, Plan) and len(first.fusions) == 1 and _cuts_the_same(first.fusions[0], plan):
        return (plan,)
    if isinstance(plan, CompiledPlan | Plan):
        msg = f"compare: {short_text(plan.name)} is a plan of another graph, or of one of several regions."
    else:
        msg = f"compare: a plan must be {_ACCEPTED}, given {short_text(plan)}."
    raise InputError(msg)


def _cuts_the_same(a: Plan, b: Plan) -> bool:
    return a.inputs == b.inputs and bare(a.definition) == bare(b.definition)

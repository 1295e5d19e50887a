"""The fastest plan of a fusion: by prediction, or by measuring the plans that are predicted to be fastest."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fuser_lab.api.functions import time
from fuser_lab.arguments import ANYTHING, instance, list_of, listing, number, optional, takes, whole
from fuser_lab.codegen.one_kernel import OPEN_SCHEDULERS
from fuser_lab.cost.device import Device
from fuser_lab.cost.predicted_times import TimeBound
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import TARGET, flatten, segment
from fuser_lab.report.html import table_html
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import bytes_label, seconds_label
from fuser_lab.schedule.base import Scheduler
from fuser_lab.schedule.registry import SCHEDULERS
from fuser_lab.segmentation import SegmenterOptions

if TYPE_CHECKING:
    import pandas as pd

STRATEGIES = ("fastest", "optimal", "saving", "top_down", "bottom_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan, its predicted seconds on its target, and its median time on this machine; NaN if unmeasured.

    ``tie`` says that it cannot be distinguished from the fastest one.
    """

    plan: Plan
    predicted: float
    measured: float = math.nan
    tie: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The result of `fastest`: the chosen plan, all plans that were compared, and the bound.

    ``plans`` are in the order of their predictions. ``plan`` is the first, or, if they were measured, the one with the
    smallest median. ``device`` is where they were measured, "" if they were not.
    """

    plan: Plan
    plans: tuple[Choice, ...]
    device: str = ""

    def __iter__(self) -> Iterator[Choice]:
        """Iterate over the plans."""
        return iter(self.plans)

    def __len__(self) -> int:
        """Return the number of plans."""
        return len(self.plans)

    @property
    def bound(self) -> TimeBound:
        """The time of the chosen plan by bytes and arithmetic beside a bound for all plans, with its assumptions."""
        return self.plan.time_bound()

    def table(self) -> Table:
        """Return one row per plan, the kept one marked."""
        rows = []
        for choice in self.plans:
            tie = " (tie)" if choice.tie else ""
            measured = "" if math.isnan(choice.measured) else f"{seconds_label(choice.measured)}{tie}"
            segments = choice.plan.segments
            rows.append((
                choice.plan.name, str(len(segments)), bytes_label(sum(s.bytes for s in segments)),
                seconds_label(choice.predicted), measured, "kept" if choice.plan is self.plan else "",
            ))
        times = f"predicted on {self.plan.target}", f"measured on {self.device}"
        columns = ("plan", "segments", "bytes", *times, "note")
        places = [n for n in range(len(columns)) if self.device or n != 4]
        return Table(
            columns=tuple(columns[n] for n in places), rows=tuple(tuple(row[n] for n in places) for row in rows),
            numeric=frozenset(columns[1:5]),
            strong=frozenset(n for n, choice in enumerate(self.plans) if choice.plan is self.plan),
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per plan: times in microseconds, NaN where nothing was measured."""
        import pandas as pd

        rows = [
            (
                choice.plan.name, len(choice.plan.segments), sum(s.bytes for s in choice.plan.segments),
                choice.predicted * 1e6, choice.measured * 1e6, choice.tie, choice.plan is self.plan,
            )
            for choice in self.plans
        ]
        columns = ["plan", "segments", "bytes", "predicted [us]", "measured [us]", "tie", "kept"]
        return pd.DataFrame.from_records(rows, columns=columns)

    def __repr__(self) -> str:
        """Return the table and the certificate as text."""
        return f"{table_text(self.table())}\n{self.bound}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the table as text and as HTML."""
        return {"text/plain": repr(self), "text/html": table_html(self.table(), note=str(self.bound))}


@takes(
    inputs=optional(list_of(ANYTHING, "a list of arrays and numbers", lazy=True)), measure=whole(0), seconds=number(0),
    target=TARGET, options=optional(instance(SegmenterOptions, accepted="SegmenterOptions")),
    schedulers=optional(list_of(ANYTHING, "a list of schedulers", lazy=True)),
)
def fastest(
    fd: object,
    inputs: Sequence[Any] | None = None,
    *,
    measure: int = 0,
    seconds: float = 0.2,
    target: str | Device | None = None,
    options: SegmenterOptions | None = None,
    schedulers: Sequence[Scheduler] | None = None,
) -> Fastest:
    """Return the fastest plan of a fusion by prediction, or, with ``measure``, by measuring the best on this machine.

    The plans are those of the strategies "fastest", "optimal", "saving", "top_down" and "bottom_up", under nvFuser's
    rules and without them (`OPEN_SCHEDULERS`). The name of a plan is its strategy, with the rules of nvFuser that it
    breaks, if any. Predictions are for the target, measurements are made on this machine.
    Plans are compared by `Plan.predicted_time`.

    Parameters
    ----------
    fd
        A definition or a fusion.
    inputs
        As for `segment`. Arrays are needed to measure; for described inputs, arrays are made.
    measure
        Number of plans to measure, those predicted to be fastest; 0 measures none.
    seconds
        Maximum time to measure each plan, after warm-up.
    target, options
        As for `segment`; ``search_states`` and ``search_seconds`` limit each search.
    schedulers
        Schedulers to ask instead; ``fl.SCHEDULERS`` keeps nvFuser's rules.

    Raises
    ------
    InputError
        If inputs do not fit, or the target is unknown.
    """
    arrays = None if inputs is None else flatten(inputs)
    plans: dict[str, Plan] = {}
    for asked in ((OPEN_SCHEDULERS, SCHEDULERS) if schedulers is None else (tuple(schedulers),)):
        for strategy in STRATEGIES:
            chosen = (options or SegmenterOptions()).for_strategy(strategy)
            plan = segment(fd, arrays, strategy=strategy, target=target, options=chosen, schedulers=asked)
            if all(part.scheduler is not None for part in plan.segments):
                name = plan_name(plan, [other.name for other in plans.values()])
                plans.setdefault(_content(plan), plan.renamed(name))
    if not plans:
        raise InputError("fastest: no scheduler accepts some expression of the fusion, so no plan of it can run.")
    choices = [Choice(plan=plan, predicted=plan.predicted_time().seconds) for plan in plans.values()]
    rows = sorted(choices, key=lambda choice: choice.predicted)
    if not measure:
        return Fastest(plan=rows[0].plan, plans=tuple(rows))
    return _measure(rows, list(rows[0].plan.inputs) if arrays is None else arrays, measure, seconds)


def plan_name(plan: Plan, others: Sequence[str]) -> str:
    """Return a name that says which of nvFuser's rules a plan breaks, and that no other plan has."""
    beyond = dict.fromkeys(rule for segment in plan.segments for rule in segment.beyond)
    name = f"{plan.name}, beyond {listing(beyond)}" if beyond else plan.name
    number = next(n for n in itertools.count(1) if (name if n == 1 else f"{name} ({n})") not in others)
    return name if number == 1 else f"{name} ({number})"


def _content(plan: Plan) -> str:
    """Return the same text for plans with the same segments, whichever schedulers were asked."""
    return repr(plan.segmented.key)


def _measure(rows: Sequence[Choice], arrays: list[Any], measure: int, seconds: float) -> Fastest:
    """Return the fastest of the plans with the best predictions, measured round-robin."""
    arrays = [value.materialize() if isinstance(value, TensorSpec) else value for value in arrays]
    best = rows[:measure]
    totals = time([choice.plan for choice in best], arrays, seconds=seconds, progress=False).totals
    least = min(totals, key=lambda row: row.median)
    timed = [
        replace(choice, measured=row.median, tie=row is not least and row.ties_with(least))
        for choice, row in zip(best, totals, strict=True)
    ]
    plan = timed[totals.index(least)].plan
    return Fastest(plan=plan, plans=(*timed, *rows[measure:]), device=least.device)

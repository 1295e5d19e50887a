"""Runs that time plans: the table of times, and the numbers of plans that follow from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.report.timing_table import timed_plans, timing_doubts, timing_note
from fuser_lab.report.units import plural
from fuser_lab_widgets.amounts import Amounts, outcome, target_name, times_table
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.comparison import Comparison
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.search import Search
from fuser_lab_widgets.runner import Progress, Runner, Timer, default_model, default_timer, one_by_one
from fuser_lab_widgets.session import EditablePlan


class Runs:
    """The run in progress, and what runs have measured; ``ended`` is called when one has ended."""

    def __init__(
        self, page: Page, comparison: Comparison, search: Search, inputs: Sequence[Any] | None, timer: Timer | None,
        ended: Callable[[], None],
    ) -> None:
        self._page, self._comparison, self._search, self._ended = page, comparison, search, ended
        self.inputs = inputs
        self.timings: Any = None  # the most recent ones
        self.rows: tuple[Any, ...] = ()  # of the run
        self.totals: dict[str, Any] = {}  # rows of whole plans, by hash: what was measured last
        self._hashes: tuple[str, ...] = ()  # of the plans that are timed
        self._peers: tuple[Any, ...] = ()  # rows of peers
        self.machine: Any = None  # the cost model of the device that ran
        self.profiling: tuple[str, str] | None = None  # a plan and target; nothing is timed in the meantime
        self.runner = Runner(timer or default_timer, self._on_progress, default_model if timer is None else None)
        self.handlers: Handlers = {"run": self.run, "run_all": self._run_all, "cancel": self.cancel}

    @property
    def is_busy(self) -> bool:
        """Whether plans are timed or profiled."""
        return self.runner.running or self.profiling is not None

    @property
    def amounts(self) -> Amounts:
        """The times and bytes of plans, for comparison."""
        timings = self.timings
        return Amounts(
            target=target_name(self._page.plan), plans=self._page.plans, machine=self.machine, measured=self.totals,
            base=next(iter(self._hashes), ""), peers=self._peers,
            note="" if timings is None else timing_note(timings, doubts=False),
            doubts=[] if timings is None else timing_doubts(timings), certificates=self._search.certificates,
        )

    def run(self, _event: Message) -> None:
        """Time the plan on show and the baseline."""
        if self.inputs is None:
            self._page.say("Run needs inputs: give them to the explorer, as in explore(fd, inputs).", "error")
            return
        baseline, plan = self._page.session.baseline, self._page.plan
        plans = [baseline] if plan.hash == baseline.hash else [baseline, plan]
        self._time(plans, "Timing the baseline plan." if len(plans) == 1 else "Timing the baseline and this plan.")

    def _run_all(self, event: Message) -> None:
        """Time all available plans of the comparison, and the ops one by one."""
        if self.inputs is None:
            self.run(event)
            return
        baseline = self._page.session.baseline
        offered = (baseline, self._page.plan, *(plan for _, _, plan in self._comparison.plans()))
        plans = {timed_plan.hash: timed_plan for timed_plan in offered if timed_plan is not None}
        peers = one_by_one(baseline, self.inputs) if self.runner.times_peers else {}
        also = " and the ops one by one" if peers else ""
        self._time(list(plans.values()), f"Timing {plural(len(plans), 'plan')}{also}.", peers)

    def _time(
        self, plans: list[EditablePlan], text: str, peers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        if self.profiling is not None:
            self._page.say("A plan is being profiled; run again when it is done.", "error")
            return
        if self.inputs is None or not self.runner.start(plans, self.inputs, peers):
            self._page.say("A run is in progress; cancel it first, or wait for it to end.", "error")
            return
        self._hashes = tuple(timed_plan.hash for timed_plan in plans)
        self._page.widget.times = {**self._page.widget.times, "running": True, "done": 0, "total": 0}
        self._page.say(text)

    def cancel(self, _event: Message) -> None:
        """End the run."""
        self.runner.cancel()
        running = self.runner.running
        self._page.say("Cancelling once the current measurement ends." if running else "Nothing is running.")

    def _on_progress(self, progress: Progress) -> None:
        with self._page.sending():
            measured = progress.timings if progress.timings is not None and progress.timings.rows else None
            self.timings = measured or self.timings
            self.rows = () if measured is None else tuple(measured.rows)
            totals = [row for row in self.rows if row.segment is None]
            self.totals |= dict(zip(self._hashes, totals, strict=False))
            self._peers = tuple(totals[len(self._hashes) :])
            if progress.model is not None and progress.model != self.machine:
                self.machine = progress.model
                self._page.show()
            if not progress.running:
                self._ended()
            self._page.widget.times = {
                "running": progress.running,
                "done": progress.done,
                "total": progress.total,
                "table": None if measured is None else times_table(measured),
                "note": "" if measured is None else timing_note(measured),
                "plans": [] if measured is None else timed_plans(measured),
                "measured": self.amounts.medians,
            }
            if progress.problem:
                self._page.say(progress.problem, "error")
            elif progress.cancelled:
                rows = "the rows measured so far are kept" if self.rows else "no segment was measured yet"
                self._page.say(f"Cancelled; {rows}.")
            elif not progress.running:
                self._page.say(f"Done: {outcome(totals[: len(self._hashes)])}")
        self._page.publish()

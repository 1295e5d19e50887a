"""The views below the graph, in their order: the one table that explorer and report send to the page.

Each tab has the views that answer one question. A view with ``write`` is HTML that Python writes, from `panels` or a
separate module; the page needs nothing else. A view without is drawn by the class of its name in
``widgets/js/tabs.js``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from fuser_lab.cost.traffic import CostModel
from fuser_lab.report.diff import PlanDiff
from fuser_lab.report.view_model import ViewModel
from fuser_lab_widgets import panels, schedules
from fuser_lab_widgets.amounts import Amounts
from fuser_lab_widgets.session import EditablePlan


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The data from which views are written: the plan on show, and further results.

    ``compared`` is the key of the plan with which it is compared, or ``""``, ``other`` that plan, and ``difference``
    their difference; ``others`` has key, label and view of all plans with which it can be compared. ``certificate`` is
    None until it is requested. ``scheduled`` is the segment whose schedule is shown, ``ranked``
    whether with other parameters by their predicted times, ``number`` the plan's number in
    messages. ``fixed`` says that nothing can be requested, because the page is a report.
    """

    plan: EditablePlan
    view: ViewModel
    amounts: Amounts
    rows: Sequence[Any] = ()
    compared: str = ""
    other: EditablePlan | None = None
    difference: PlanDiff | None = None
    others: Callable[[], Sequence[tuple[str, str, ViewModel | None]]] = tuple
    certificate: Mapping[str, Any] | None = None
    searching: bool = False
    best_edits: Callable[[], str] = str
    scheduled: int = 0
    ranked: bool = False
    number: int = 0
    fixed: bool = False


class Follows(Flag):
    """What the contents of a view depend on besides the plan."""

    PLAN = 0
    TIMES = auto()
    SESSION = auto()


@dataclass(frozen=True)
class View:
    """A view: its name, its label, the tab that it is in, how Python writes it, and when it must be written again."""

    name: str
    label: str
    tab: str
    write: Callable[[Shown], str] | None = None
    follows: Follows = Follows.PLAN
    live_only: bool = False


def _roofline(shown: Shown) -> str:
    machine: CostModel | None = shown.amounts.machine
    return panels.roofline(shown.plan, shown.rows, shown.other, machine)


def _time_line(shown: Shown) -> str:
    return panels.time_line(shown.plan, shown.view, shown.rows, fixed=shown.fixed)


def _compare(shown: Shown) -> str:
    others = shown.others()
    return panels.comparison(others, shown.compared, shown.difference, shown.view, shown.amounts, fixed=shown.fixed)


def _certificate(shown: Shown) -> str:
    certificate = shown.certificate
    return panels.certificate(certificate or {}, searching=shown.searching, exists=certificate is not None)


def _schedule(shown: Shown) -> str:
    return schedules.panel(shown.plan, shown.scheduled, shown.number, ranked=shown.ranked)


VIEWS: Final = (
    View("decisions", "Decisions", "Why"),
    View("passes", "Passes", "Why", lambda shown: panels.passes(shown.plan, shown.view)),
    View("segments", "Segments", "Cost"),
    View("time_line", "Time line", "Cost", _time_line, Follows.TIMES),
    View("timings", "Timings", "Cost"),
    View("memory", "Memory", "Cost", lambda shown: panels.memory(shown.plan, shown.view)),
    View("roofline", "Roofline", "Cost", _roofline, Follows.TIMES | Follows.SESSION),
    View("source", "Source", "Code"),
    View("schedule", "Schedule", "Code", _schedule, Follows.SESSION, live_only=True),
    View("compare", "Plans", "Compare", _compare, Follows.TIMES | Follows.SESSION),
    View("certificate", "Certificate", "Compare", _certificate, Follows.SESSION),
    View("edits", "Best edits", "Edits", lambda shown: shown.best_edits(), Follows.SESSION, live_only=True),
    View("layouts", "Layouts", "Layouts", lambda shown: panels.layouts(shown.plan, shown.view)),
    View("graph", "Table of ops", "Layouts", lambda shown: panels.graph(shown.view)),
)
NAMES: Final = tuple(view.name for view in VIEWS)
WRITTEN: Final = {view.name: view.write for view in VIEWS if view.write is not None}


def views(*, live: bool = True) -> list[list[str]]:
    """Return name, label and tab of each view for the page; ``live=False`` omits those that need a kernel."""
    return [[view.name, view.label, view.tab] for view in VIEWS if live or not view.live_only]


def following(changes: Follows) -> frozenset[str]:
    """Return the names of the views that must be written again when ``changes`` has changed."""
    return frozenset(view.name for view in VIEWS if view.follows & changes)

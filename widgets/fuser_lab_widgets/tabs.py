"""The tabs below the graph, in their order: the one table that explorer and report send to the page.

A tab with ``write`` is HTML that Python writes, from `panels` or a separate module; the page needs nothing else. A tab
without is drawn by the class of its name in ``widgets/js/tabs.js``.
"""

from __future__ import annotations

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
    """The data from which tabs are written: the plan on show, and further results.

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
    """What the contents of a tab depend on besides the plan."""

    PLAN = 0
    TIMES = auto()
    SESSION = auto()


@dataclass(frozen=True)
class Tab:
    """A tab: its name, its label, how Python writes it, and when it must be written again."""

    name: str
    label: str
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


TABS: Final = (
    Tab("segments", "Segments"),
    Tab("compare", "Compare", _compare, Follows.TIMES | Follows.SESSION),
    Tab("time_line", "Time line", _time_line, Follows.TIMES),
    Tab("timings", "Timings"),
    Tab("roofline", "Roofline", _roofline, Follows.TIMES | Follows.SESSION),
    Tab("memory", "Memory", lambda shown: panels.memory(shown.plan)),
    Tab("source", "Source"),
    Tab("layouts", "Layouts", lambda shown: panels.layouts(shown.plan, shown.view)),
    Tab("passes", "Passes", lambda shown: panels.passes(shown.plan, shown.view)),
    Tab("certificate", "Certificate", _certificate, Follows.SESSION),
    Tab("edits", "Edits", lambda shown: shown.best_edits(), Follows.SESSION, live_only=True),
    Tab("schedule", "Schedule", _schedule, Follows.SESSION, live_only=True),
    Tab("graph", "Table", lambda shown: panels.graph(shown.view)),
)
WRITTEN: Final = {tab.name: tab.write for tab in TABS if tab.write is not None}


def views(*, live: bool = True) -> list[list[str]]:
    """Return name and label of each tab for the page; ``live=False`` omits those that need a kernel."""
    return [[tab.name, tab.label] for tab in TABS if live or not tab.live_only]


def following(changes: Follows) -> frozenset[str]:
    """Return the names of the tabs that must be written again when ``changes`` has changed."""
    return frozenset(tab.name for tab in TABS if tab.follows & changes)

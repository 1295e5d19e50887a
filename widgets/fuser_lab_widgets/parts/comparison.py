"""The comparison of the plan on show with another one: before the edits, of another strategy, or without a rule."""

from typing import Final

from fuser_lab.report.collapse import is_large
from fuser_lab.report.diff import PlanDiff, plan_diff
from fuser_lab.report.view_model import ViewModel, view_plan
from fuser_lab_widgets.controls import words
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.panels import Panels
from fuser_lab_widgets.parts.search import Search
from fuser_lab_widgets.session import MINE, EditablePlan

_NOT_STRATEGIES: Final = frozenset({"start", "unannotated", "ruled", MINE})


class Comparison:
    """The plans beside the one on show, and the one of them that it is compared with."""

    def __init__(self, page: Page, panels: Panels, search: Search) -> None:
        self._page, self._panels, self._search = page, panels, search
        self._chosen = ""
        self.handlers: Handlers = {"compare": self._compare}

    def _compare(self, event: Message) -> None:
        chosen, labels = event["with"], self.labels()
        if chosen and chosen not in labels:
            self._page.say(f"There is no {words(chosen)} plan to compare with.", "error")
            return
        if self._search.lacks(chosen):
            self._page.say(f"The {words(chosen)} plan is not available yet; switch to it once, then compare.", "error")
            return
        self.choose(chosen)
        self._page.show()
        self._panels.write("compare")
        self._page.say(f"Compared with {labels[chosen]}." if chosen else "The comparison is off.")

    def choose(self, key: str) -> None:
        """Compare with the plan of a key from now on."""
        self._chosen = key

    @property
    def chosen(self) -> str:
        """The key of the plan that the one on show is compared with, or ``""``."""
        return self._chosen if self._chosen in self.labels() else ""

    def labels(self) -> dict[str, str]:
        """Return the keys and labels of the plans with which the one on show can be compared."""
        session = self._page.session
        state = session.state
        labels = {"start": "the plan before the edits"} if state.edits else {}
        if session.ruled is not None:
            labels["ruled"] = f"the plan with {state.lifted}"
        if state.annotated:
            labels["unannotated"] = "the plan without your annotations"
        if not state.edits and session.mine is not None:
            labels[MINE] = "your plan"
        here = None if state.edits else state.strategy
        return labels | {strategy: f"the {words(strategy)} plan" for strategy in session.strategies if strategy != here}

    def plan(self) -> EditablePlan | None:
        """Return the plan that the one on show is compared with."""
        chosen = self.chosen
        return self._plan_of(chosen) if chosen else None

    def difference(self) -> PlanDiff | None:
        """Return the difference from the plan that the one on show is compared with."""
        compared = self.plan()
        return None if not hasattr(compared, "segmented") else plan_diff(compared, self._page.plan)

    def _plan_of(self, key: str) -> EditablePlan | None:
        session = self._page.session
        if key == "start":
            return session.start
        if key == "unannotated":
            slow = self._search.is_slow(session.state.strategy)
            return None if slow and not session.has_unannotated else session.unannotated
        if key == "ruled":
            return session.ruled
        if key == MINE:
            return None if session.mine is None else session.mine.plan
        return None if self._search.lacks(key) else session.get(key)

    def views(self) -> list[tuple[str, str, ViewModel | None]]:
        """Return key, label and view of each plan beside the one on show."""
        views: list[tuple[str, str, ViewModel | None]] = []
        for key, label, plan in self.plans():
            view = None if plan is None else view_plan(plan, decisions=False)
            if view is not None:
                self._page.plans[view.header.hash] = plan
            views.append((key, label, view))
        return views

    def plans(self) -> list[tuple[str, str, EditablePlan | None]]:
        """Return the plans to compare with: None for one that needs a search, or a large one that is not made yet."""
        large = is_large(self._page.view)

        def at_hand(key: str) -> bool:
            return key in _NOT_STRATEGIES or self._page.session.has(key) or not (large or self._search.is_slow(key))

        return [(key, label, self._plan_of(key) if at_hand(key) else None) for key, label in self.labels().items()]

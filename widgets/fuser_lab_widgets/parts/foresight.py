"""Previews of edits, which are computed while nothing else is."""

from typing import Any

from fuser_lab.report.collapse import is_large
from fuser_lab.report.markup import element, to_html
from fuser_lab_widgets import previews
from fuser_lab_widgets.background import PAUSE, Background
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.panels import Panels
from fuser_lab_widgets.parts.runs import Runs
from fuser_lab_widgets.session import EditablePlan


class Foresight:
    """The previews of the plan on show, the edits that make it faster, and the sentence about the largest gain."""

    def __init__(self, page: Page, panels: Panels, runs: Runs) -> None:
        self._page, self._panels, self._runs = page, panels, runs
        self._best: tuple[EditablePlan, tuple[Any, ...]] | None = None  # a plan, and the edits that make it faster
        self.background = Background(pause=PAUSE)
        self.handlers: Handlers = {"preview": self._preview}

    def _preview(self, event: Message) -> None:
        edge = self._page.edge(event)
        preview = previews.of_edge(self._page.plan, self._page.view, edge)
        if preview is not None:
            self._send(self._page.number, {edge.id: previews.hint_of(preview)})

    def start(self) -> None:
        """Compute previews of the plan on show, and send them as they are made, unless this has begun."""
        page = self._page
        plan, view, number = page.plan, page.view, page.number
        if page.widget.foreseen.get("plan") == number:
            return
        self.background.cancel()
        page.widget.foreseen = {"plan": number, "edges": {}}
        if not previews.can_preview(plan):
            return

        def is_over() -> bool:
            with page.lock:  # waits while a click is answered, and while plans are timed
                return page.plan is not plan or self._runs.is_busy or self.background.is_closed

        def find() -> tuple[Any, ...] | None:
            for batch in previews.in_batches(plan, view, is_over):
                with page.sending():
                    self._send(number, batch)
            asked = self._panels.is_shown("edits") or not is_large(view)
            best = previews.best(plan) if asked and not is_over() else None
            return None if is_over() else (best, previews.advice(plan, number))

        def tell(proposal: tuple[Any, ...] | None, _problem: str) -> None:
            with page.sending():
                if proposal is None or page.plan is not plan:
                    return
                best, page.widget.advice = proposal
                if best is not None:
                    self._best = plan, best
                    if self._panels.is_shown("edits"):
                        self._panels.write("edits")

        self.background.start(find, tell)

    def restart(self) -> None:
        """Compute the previews again."""
        self._page.widget.foreseen = {}
        self.start()

    def _send(self, number: int, hints: dict[str, previews.Hint]) -> None:
        page = self._page.widget
        if hints and page.foreseen.get("plan") == number:
            page.foreseen = {"plan": number, "edges": {**page.foreseen["edges"], **hints}}

    def best_edits(self) -> str:
        """Return the ranked edits of the plan on show, or that the search is in progress."""
        plan, number = self._page.plan, self._page.number
        if getattr(plan, "is_slow_to_predict", False):
            text = "Edits are not ranked: predicting the time of one takes seconds, because a kernel has many passes."
            return to_html(element("p", text, css="fx-note"))
        if not previews.can_preview(plan):
            return previews.best_html((), number)
        if self._best is not None and self._best[0] is plan:
            return previews.best_html(self._best[1], number)
        if not self.background.busy:
            self.restart()
        return previews.best_html(None, number)

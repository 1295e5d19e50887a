"""The selection: what the inspector says about it, and what remains selected when the plan changes."""

from typing import Any

from fuser_lab.errors import FuserLabError
from fuser_lab.report.view_model import ViewModel
from fuser_lab_widgets import answers, selections
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.session import EditablePlan


class Selection:
    """The selection, and the answer about it that the inspector shows.

    ``folds`` are the modules and blocks that are open in the picture, or None if it has neither.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.folds: set[str] | None = None
        self._answered: ViewModel | None = None  # the subject of the answer on show
        self._refused: str | None = None  # the selection whose edit was refused last
        self.handlers: Handlers = {"select": self.select}

    @property
    def name(self) -> str:
        """The name of the selection, as users set it."""
        return selections.name(self._page.view, self._page.selected)

    def select(self, event: Message) -> None:
        """Answer for the selection of an event; the refusal of an edit leaves the status line with what it is about."""
        if self._refused not in {None, event["id"]}:
            self._refused = None
            if self._page.widget.status.get("kind") == "error":
                self._page.say("")
        self.answer(event["id"])

    def take(self, name: str) -> None:
        """Select what a user names, also in the page."""
        self.answer(selections.find(self._page.view, name))
        self._page.widget.answer = {**self._page.widget.answer, "adopt": True}

    def answer(self, selected: str) -> None:
        """Answer for a selection."""
        view = self._page.view
        said = answers.answer(self._page.plan, view, selected)
        if said and self.folds is not None:
            said["actions"] = answers.folding(view, said, self.folds)
        self._send(view, said)

    def refuse(self, plan: EditablePlan, view: ViewModel, selected: str, error: FuserLabError) -> None:
        """Answer that an edit at the selection is refused."""
        self._refused = selected
        self._send(view, answers.refusal(plan, view, selected, error))

    def _send(self, view: ViewModel, said: dict[str, Any]) -> None:
        self._answered = view
        self._page.widget.answer = said | {"n": self._page.widget.acked, "plan": self._page.number}

    def again(self) -> None:
        """Answer for the selection once the picture is sent; the page may have selected something else since."""
        selected = self._page.selected
        if selected:
            self._page.later("select", lambda: self._answer_again(selected, adopts=False))

    def move(self, before: ViewModel, selected: str) -> None:
        """Answer for a selection in an earlier view, once the picture is sent."""
        again = selections.again
        self._page.later("select", lambda: self._answer_again(again(before, self._page.view, selected), adopts=True))

    def follow(self) -> None:
        """Move the selection to the plan on show."""
        before, selected = self._answered, self._page.selected
        if selected and before is not None and before is not self._page.view:
            self.move(before, selected)

    def _answer_again(self, selected: str, *, adopts: bool) -> None:
        """Answer for a selection, which the page adopts."""
        self.answer(selected)
        self._page.widget.answer = {**self._page.widget.answer, "adopt": adopts}

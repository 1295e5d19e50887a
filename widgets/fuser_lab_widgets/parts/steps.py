"""The steps of the session: undo, redo and reset, the switches, and a top-down plan that would move fewer bytes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from fuser_lab.plan.code import FORMS
from fuser_lab.pricing.rule_lifting import liftable
from fuser_lab.report.collapse import is_large
from fuser_lab.search import presegmentation
from fuser_lab.search.presegmentation import Alternative
from fuser_lab.segmentation.previews import LEAST_SAVED
from fuser_lab_widgets.background import PAUSE, Background
from fuser_lab_widgets.controls import controls
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.search import SECONDS, Search


class Steps:
    """The history of the session, and the alternatives to the plan on show.

    ``notes`` are sentences below the header; ``runnable`` says whether there are inputs for a run.
    """

    def __init__(self, page: Page, search: Search, notes: Sequence[str], *, runnable: bool) -> None:
        self._page, self._search = page, search
        self._always = {"runnable": runnable, "notes": list(notes)}
        self._alternatives: tuple[Any, tuple[Alternative, ...]] = (None, ())  # and a plan that they stand beside
        self.background = Background(pause=PAUSE)
        self.handlers: Handlers = {
            "undo": self._undo, "redo": self._redo, "reset": self._reset, "alternative": self._show_alternative,
            "code": self._code,
        }

    def _undo(self, _event: Message) -> None:
        undone = self._page.session.undo()
        self._back(f"Undid {undone}." if undone else "Nothing to undo.", changed=bool(undone))

    def _redo(self, _event: Message) -> None:
        redone = self._page.session.redo()
        self._back(f"Redid {redone}." if redone else "Nothing to redo.", changed=bool(redone))

    def _reset(self, _event: Message) -> None:
        changed = self._is_edited
        self._page.session.reset()
        self._back("Back to the plan without edits." if changed else "There are no edits to reset.", changed=changed)

    @property
    def _is_edited(self) -> bool:
        state = self._page.session.state
        return bool(state.edits) or state.annotated or bool(state.lifted)

    def _back(self, text: str, *, changed: bool) -> None:
        if changed:
            self._page.show()
        self._page.say(text)

    def _code(self, event: Message) -> None:
        form = event.get("form", FORMS[0])
        text = self._page.plan.to_python(form)
        self._page.widget.code = {"n": event["n"], "form": form, "forms": FORMS, "text": text}
        self._page.say("Copied the plan as code to the clipboard.")

    def send(self) -> None:
        """Send the history, the possible actions, and the switches."""
        session, view = self._page.session, self._page.view
        state = session.state
        self._page.widget.history = {
            "undo": session.can_undo,
            "redo": session.can_redo,
            "edits": list(state.edits),
            "resettable": self._is_edited,
            "liftable": liftable(session.plan),
            **self._always,
            "annotations": [f"segment_set({annotation.tensor})" for annotation in view.annotations if annotation.own],
            "last": {"step": state.step, "because": state.because} if state.because else {},
            "strategy": state.strategy,
            "controls": controls(session, self._search.topic, self.mention()),
            "searching": self._search.topic,
        }

    def look_beside(self) -> None:
        """Search for top-down plans with other cuts, except for large fusions, which would keep the kernel busy."""
        plan: Any = self._page.plan
        if self._knows_alternatives() or not hasattr(plan, "definition") or is_large(self._page.view):
            return

        def tell(alternatives: tuple[Alternative, ...] | None, _problem: str) -> None:
            with self._page.sending():
                self._alternatives = plan, alternatives or ()
                self.send()

        self.background.start(lambda: presegmentation.alternatives(plan), tell, seconds=SECONDS)

    def _knows_alternatives(self) -> bool:
        """Whether the alternatives have the definition and the meaning of hints on show."""
        shown, alternative = self._page.plan, self._alternatives[0]
        if alternative is None or getattr(shown, "definition", None) is not alternative.definition:
            return False
        both = [plan.options.for_strategy(None) for plan in (cast("Any", shown), alternative)]
        return bool(both[0] == both[1])

    def mention(self) -> Alternative | None:
        """Return the top-down plan with the fewest bytes, if it moves notably fewer than the plan on show."""
        alternatives = self._alternatives[1] if self._knows_alternatives() else ()
        moved = self._page.view.header.bytes_moved
        if not alternatives or not moved:
            return None
        best = replace(alternatives[0], share=presegmentation.bytes_moved(alternatives[0].plan) / moved)
        return best if 1 - best.share >= LEAST_SAVED else None

    def _show_alternative(self, _event: Message) -> None:
        mentioned, session = self.mention(), self._page.session
        if mentioned is None:
            self._page.say("There is no cheaper top-down plan to show.")
            return
        step = f"top-down with {mentioned.cuts}"
        session.go(session.alternative(mentioned.plan, dict(mentioned.switches), step))
        self._page.show()
        self._page.say(f"{step}: {self._page.counted}.")

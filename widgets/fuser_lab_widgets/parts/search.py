"""Searches in the background: strategies whose plans take long, and certificates that no plan is cheaper."""

from collections.abc import Callable, Collection
from typing import Any, Final

from fuser_lab.report.units import plural
from fuser_lab_widgets import answers
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.controls import words
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.selection import Selection
from fuser_lab_widgets.session import MINE, EditablePlan

SECONDS: Final = 30.0  # seconds of a background search if the plan's options set no limit
_UNPROVED: Final = {"optimal": "cheapest found"}  # names of plans whose strategy claims more than is proved


class Search:
    """The search in progress, and the strategies to which the plan can be switched.

    ``topic`` is the strategy that is searched for, or ``"certificate"``, or ``""``; ``certificates`` are by the plans'
    hashes.
    """

    def __init__(self, page: Page, selection: Selection, slow: Collection[str]) -> None:
        self._page, self._selection = page, selection
        self._slow = frozenset(slow)
        self.topic = ""
        self._in_progress: object = None
        self.certificates: dict[str, dict[str, Any]] = {}
        self.background = Background()
        self.handlers: Handlers = {"strategy": self.switch, "stop": self._stop, "certificate": self._certify}

    def is_slow(self, strategy: str) -> bool:
        """Whether a strategy's plan is made in the background."""
        return strategy in self._slow

    def lacks(self, strategy: str) -> bool:
        """Whether a strategy's plan needs a search that has not been made."""
        return strategy in self._slow and not self._page.session.has(strategy)

    def switch(self, event: Message) -> None:
        """Show the plan of another strategy, or the user's."""
        strategy, page, session = event["strategy"], self._page, self._page.session
        if strategy == MINE:
            edited = bool(session.state.edits)
            session.switch_to_mine()
            if edited or not session.state.edits:
                page.say("Your plan is already shown." if edited else "There are no edits to return to.")
                return
            page.show()
            page.say(f"Your plan: {page.counted}.")
        elif strategy == session.state.strategy and not session.state.edits:
            page.say(f"The {words(strategy)} plan is already shown.")
        elif self.lacks(strategy):
            self._search(strategy)
        else:
            session.switch(strategy)
            page.show()
            name = page.plan.name if page.plan.name == _UNPROVED.get(strategy) else words(strategy)
            equals = [words(equal) for equal in session.same if equal != strategy]
            page.say(f"{name.capitalize()}: {f'the same plan as {equals[0]}' if equals else page.counted}.")

    def _search(self, strategy: str) -> None:
        """Make a strategy's plan and its certificate in the background; show it unless the user did something else."""
        page, session = self._page, self._page.session
        begun = session.state

        def find() -> tuple[EditablePlan, dict[str, Any]]:
            plan = session.make(strategy, begun)
            return plan, answers.certificate(plan)

        def tell(answer: tuple[EditablePlan, dict[str, Any]] | None, problem: str) -> None:
            if answer is None:
                page.show()
                page.say(problem, "error")
                return
            plan, certificate = answer
            name = words(strategy)
            if not certificate.get("proved", True):  # a name would claim more than the certificate
                name = _UNPROVED.get(strategy, name)
                plan = plan.renamed(name)
            self._show_certificate(certificate)
            session.keep(strategy, plan, begun)
            status = certificate.get("status", "")
            result = f"{plural(len(plan.segments), 'segment')}{f', {status}' if status else ''}"
            if session.state is begun:
                session.switch(strategy)
                page.show()
                page.say(f"{name.capitalize()}: {result}.")
                return
            page.show()
            show = {"type": "strategy", "strategy": strategy, "label": "Show it"}
            page.say(f"The {name} plan is ready: {result}.", action=show)

        self.start_plan(strategy, find, tell)

    def _certify(self, _event: Message) -> None:
        plan = self._page.plan
        if plan.hash in self.certificates:
            return

        def tell(certificate: dict[str, Any] | None, problem: str) -> None:
            certificate = certificate or {"hash": plan.hash, "problem": problem}
            self._show_certificate(certificate)
            self._page.show()
            failed = certificate.get("problem", "")
            self._page.say(failed or f"The certificate: {certificate['status']}.", "error" if failed else "info")

        text = f"Searching for a cheaper plan, or a proof that there is none{self._at_most}."
        self._start("certificate", lambda: answers.certificate(plan), tell, text)

    def _show_certificate(self, certificate: dict[str, Any]) -> None:
        self.certificates[certificate["hash"]] = self._page.widget.certificate = certificate

    @property
    def _seconds(self) -> float | None:
        """Time limit of a search; None if the plan's options set one."""
        options = getattr(self._page.plan, "options", None)
        return SECONDS if getattr(options, "search_seconds", None) is None else None

    @property
    def _at_most(self) -> str:
        return "" if self._seconds is None else f", {self._seconds:.0f} s at most"

    def start_plan(self, strategy: str, find: Callable[[], Any], tell: Callable[[Any, str], None]) -> None:
        """Start to make the plan of a slow strategy."""
        text = f"Searching for the {words(strategy)} plan{self._at_most}; the current plan stays until it is ready."
        self._start(strategy, find, tell, text)

    def _start(self, topic: str, find: Callable[[], Any], tell: Callable[[Any, str], None], text: str) -> None:
        question = object()

        def tell_if_asked(answer: Any, problem: str) -> None:
            with self._page.lock:
                with self._page.sending():
                    if self._in_progress is question:  # it was not cancelled
                        self._in_progress, self.topic = None, ""
                        tell(answer, problem)
                self._page.finish()
            self._page.publish()

        started = self._in_progress is None and self.background.start(find, tell_if_asked, seconds=self._seconds)
        if not started:
            self._page.say("A search is in progress; wait for it to end, or cancel it.", "error")
            return
        self._in_progress, self.topic = question, topic
        self._page.show()
        self._page.say(text)

    def _stop(self, _event: Message) -> None:
        if self._in_progress is None:
            self._page.say("No search is in progress.")
            return
        self.background.cancel()
        self._in_progress, self.topic = None, ""
        self._page.show()
        self._page.say("The search was cancelled.")

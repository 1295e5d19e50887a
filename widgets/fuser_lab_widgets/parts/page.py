"""What all parts of an explorer share: its session, the view of the plan on show, and its page."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from fuser_lab.errors import FuserLabError
from fuser_lab.plan.changes import PlanChange, plan_change
from fuser_lab.process.forks import renew_in_forks
from fuser_lab.report.diff import PlanDiff, plan_diff
from fuser_lab.report.drawing import Drawn
from fuser_lab.report.units import plural
from fuser_lab.report.view_model import EdgeView, ViewModel, view_plan
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.session import EditablePlan, Session

Handlers = Mapping[str, Callable[[Message], None]]


class Page:
    """The page of an explorer, and the plan that it shows.

    The page follows the traits of ``widget``. ``draw`` sends the picture, ``show`` everything that depends on the plan,
    and ``publish`` updates the traits that users observe.
    """

    def __init__(
        self, widget: Any, session: Session, title: str | None, *,
        draw: Callable[[], None], show: Callable[[], None], publish: Callable[[], None],
    ) -> None:
        self.widget, self.session, self.title = widget, session, title
        self.draw, self.show, self.publish = draw, show, publish
        self.lock = renew_in_forks(threading.RLock())  # handlers run in the kernel's thread, results arrive from others
        self.number = 0  # of the plan on show, which buttons send
        self.plans = WeakValueDictionary[str, Any]()  # those on show and beside it, by hash
        self.waiting: dict[str, Callable[[], None]] = {}  # what follows the picture, by its kind
        self._compared: tuple[Any, Any, PlanDiff] | None = None  # the last edit's plan, the one before, the difference
        self._view: ViewModel | None = None
        self._viewed: EditablePlan | None = None
        self._drawn = Drawn()

    @property
    def plan(self) -> EditablePlan:
        """The plan on show."""
        return self.session.plan

    @property
    def view(self) -> ViewModel:
        """The view of the plan on show."""
        if self._view is None or self._viewed is not self.plan:
            self._viewed = self.plan
            title = self.title or self.session.title
            self._view = view_plan(self.plan, title=title, decisions=False, drawn=self._drawn)
            self.plans[self._view.header.hash] = self.plan
            self.number += 1
        return self._view

    def compare(self, before: Any) -> None:
        """Compare the plan on show with the one before an edit, until the next edit; the picture shows what moved."""
        both = all(hasattr(plan, "segmented") and hasattr(plan, "predicted_time") for plan in (before, self.plan))
        self._compared = (self.plan, before, plan_diff(before, self.plan)) if both else None

    @property
    def difference(self) -> PlanDiff | None:
        """The difference that the last edit made, if its plan is on show."""
        return self._compared[2] if self._compared is not None and self._compared[0] is self.plan else None

    def change(self, *, asks_why: bool) -> PlanChange | None:
        """Return what the last edit changed, if its plan is on show; the reason takes longer."""
        difference = self.difference
        if self._compared is None or difference is None:
            return None
        after, before, _ = self._compared
        predicts = not (before.is_slow_to_predict or after.is_slow_to_predict)
        return plan_change(before, after, asks_why=asks_why, predicts=predicts, difference=difference)

    def later(self, kind: str, act: Callable[[], None]) -> None:
        """Do something once the picture is sent, because it may take longer, instead of what is waiting of its kind."""
        self.waiting[kind] = act

    def finish(self) -> None:
        """Do what waits until the picture is sent."""
        waiting, self.waiting = self.waiting, {}
        with self.widget.hold_sync():
            for kind, act in waiting.items():
                self.guard({"type": kind}, act)

    @property
    def awaits_times(self) -> bool:
        """Whether predicted times of the plan on show take seconds and are not there yet."""
        is_slow = getattr(self.plan, "is_slow_to_predict", False)
        return is_slow and self.widget.heat.get("plan") != self.number

    @property
    def selected(self) -> str:
        """The id of the selection that the page has, or ``""``."""
        return str(self.widget.answer.get("id", ""))

    @property
    def counted(self) -> str:
        """The number of segments, as text."""
        return plural(self.view.header.segments, "segment")

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Return a context for a thread that changes what the page has; the changes are sent at its end."""
        with self.lock, self.widget.hold_sync():
            yield

    def say(self, text: str, kind: str = "info", *, action: dict[str, str] | None = None) -> None:
        """Show a sentence in the status line, with a button for a possible action."""
        said = {"n": int(self.widget.status.get("n", 0)) + 1, "kind": kind, "text": text[:1].upper() + text[1:]}
        self.widget.status = said if action is None else said | {"action": action}

    def guard(self, event: Message, act: Callable[[], None]) -> None:
        """Carry out an event, and say why if it fails."""
        try:
            act()
        except FuserLabError as error:
            self.say(str(error), "error")
        except Exception as error:  # noqa: BLE001 - an error in a callback would vanish; the user has to see it
            self.say(f"{event.get('type', 'event')} failed: {type(error).__name__}: {error}", "error")

    def edge(self, event: Message) -> EdgeView:
        """Return the edge that an event is about, or raise FuserLabError if it is in another plan."""
        edge = self.view.edge(event["id"])
        if edge is None:
            raise FuserLabError("The current plan no longer has this edge.")
        return edge

    def segment(self, event: Message) -> Any:
        """Return the segment that an event is about, or raise FuserLabError if it is in another plan."""
        number = event["segment"]
        segment = next((each for each in self.plan.segments if each.index == number), None)
        if segment is None:
            raise FuserLabError(f"This plan has no segment {number}.")
        return segment

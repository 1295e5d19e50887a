"""The tabs below the graph: the HTML that Python writes, the decision log, and a segment's schedule."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from fuser_lab.errors import FuserLabError
from fuser_lab.report.markup import element, to_html
from fuser_lab.segmentation.events import Attempt
from fuser_lab_widgets import answers, schedules, tabs
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page


class Panels:
    """The tabs that Python writes; ``data`` returns the data for all but a segment's schedule."""

    def __init__(self, page: Page, data: Callable[[], tabs.Shown]) -> None:
        self._page, self._data = page, data
        self._scheduled = 0  # the segment whose schedule is shown
        self._log: Any = None  # the log of decisions that the page has
        self._attempts: tuple[Attempt, ...] = ()  # in it
        self.handlers: Handlers = {"panel": self._panel, "decisions": self._decisions, "schedule": self._schedule}

    def _panel(self, event: Message) -> None:
        """Write a tab that the page asks for; why that is not possible is written there, too."""
        try:
            self.write(event["name"])
        except FuserLabError as error:
            self._send(event["name"], to_html(element("p", str(error), css="fx-note")))

    def is_shown(self, name: str) -> bool:
        """Whether a user looks at a tab."""
        return name in self._page.widget.panels

    def data(self, *, ranked: bool = False) -> tabs.Shown:
        """Return the data for tabs; ``ranked`` lists other parameters of the segment whose schedule is shown."""
        return replace(self._data(), scheduled=self._scheduled, ranked=ranked)

    def write(self, name: str, *, ranked: bool = False) -> None:
        """Write a tab and send it."""
        page = self._page.widget
        page.panels = {**page.panels, name: page.panels.get(name, {})}  # a user is looking at it
        if self._page.awaits_times and name in tabs.following(tabs.Follows.TIMES):
            self._send(name, to_html(element("p", "Predicting the times of these kernels …", css="fx-empty")))
            return
        self._send(name, tabs.WRITTEN[name](self.data(ranked=ranked)))

    def _send(self, name: str, html: str) -> None:
        page = self._page.widget
        page.panels = {**page.panels, name: {"hash": self._page.view.header.hash, "html": html}}

    def drop(self, names: Collection[str]) -> None:
        """Drop tabs that are no longer true; the page requests the one that it shows."""
        page = self._page.widget
        page.panels = {name: said for name, said in page.panels.items() if name not in names}

    def follow(self) -> None:
        """Send the length of the plan's log if it is a new one; an edited plan has the log of its original plan."""
        log = getattr(self._page.plan, "decisions", None) or ()
        if log is not self._log:
            self._log, self._attempts = log, tuple(log)
            self._page.widget.decisions = {"log": self._page.number, "total": len(self._attempts)}

    def _decisions(self, event: Message) -> None:
        """Send a page of the log; the script requests the next one while it shows the log."""
        page = self._page.widget
        page.decisions = {"log": page.decisions["log"], **answers.decision_page(self._attempts, event["first"])}

    def _schedule(self, event: Message) -> None:
        """Show a segment's schedule, run it, possibly with one step changed, or return to the automatic kernel.

        ``rank`` lists other parameters by their predicted times; ``values`` are such parameters.
        """
        segment, session = self._page.segment(event), self._page.session
        self._scheduled = number = segment.index
        if "values" in event:
            session.parameters(number, event.get("nest", 0), event["values"])
            done = "has these parameters. Run measures them."
        elif "step" not in event and "given" not in event:
            self.write("schedule", ranked=bool(event.get("rank")))
            return
        else:
            schedule: Any = segment.schedule.transforms if event.get("given", True) else None
            if "step" in event:
                schedule = schedules.change_step(
                    schedule or (), event["step"], event.get("factor"), event.get("name", "factor"),
                )
            session.schedule(number, schedule)
            edit: Any = self._page.plan.segments[number]
            done = "has its automatic kernel." if edit.edit is None else "follows this schedule."
        self._page.show()
        self.write("schedule")
        self._page.say(f"S{number} {done}")

"""The saved form of an explorer: a report that a notebook shows where there is no kernel, updated while idle."""

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets.background import Background
from fuser_lab_widgets.parts.kernels import Kernels
from fuser_lab_widgets.parts.page import Page
from fuser_lab_widgets.parts.runs import Runs
from fuser_lab_widgets.saved import hidden_by, saved_html
from fuser_lab_widgets.session import EditablePlan

if TYPE_CHECKING:
    from fuser_lab.lab.profiling import PlanProfile

_SECONDS: Final = 1.5  # seconds without a change after which the saved form is updated
_Contents = tuple[EditablePlan, Any, "PlanProfile | None"]  # with the timings


class SavedForm:
    """What a notebook saves of an explorer."""

    def __init__(self, page: Page, runs: Runs, kernels: Kernels) -> None:
        self._page, self._runs, self._kernels = page, runs, kernels
        self._key = secrets.token_hex(6)
        self._displayed: _Contents | None = None
        self.background = Background()

    @property
    def hides(self) -> str:
        """The style sheet that hides the saved form."""
        return hidden_by(self._key)

    def display(self) -> None:
        """Display the saved form, which is updated from then on."""
        contents = self._contents()
        self._send(contents, self._html(*contents), update=False)

    def follow(self) -> None:
        """Update the saved form, once nothing has changed for a moment."""
        if self._displayed is None or _are_same(self._displayed, self._contents()):
            return

        def when_idle() -> tuple[_Contents, str]:
            while True:
                contents = self._contents()
                time.sleep(_SECONDS)
                if _are_same(contents, self._contents()):
                    return contents, self._html(*contents)

        def tell(said: tuple[_Contents, str] | None, _problem: str) -> None:
            if said is not None:
                self._send(*said, update=True)

        self.background.start(when_idle, tell)

    def _contents(self) -> _Contents:
        return self._page.plan, self._runs.timings, self._kernels.latest_profile

    def _html(self, plan: EditablePlan, timings: Any, profile: "PlanProfile | None") -> str:
        baseline = self._page.session.baseline
        plans = [plan, *([baseline] if baseline.hash != plan.hash else [])]
        timed = timings is not None and {row.plan_hash for row in timings.rows} & {each.hash for each in plans}
        return saved_html(
            plans, self._key, timings=timings if timed else None, title=self._page.title, machine=self._runs.machine,
            profile=profile, opens=self._page.widget.opens,
        )

    def _send(self, contents: _Contents, html: str, *, update: bool) -> None:
        from IPython.core.display_functions import display

        self._displayed = contents
        options: Any = {"update": True} if update else {}
        display({"text/html": html}, raw=True, display_id=self._key, **options)  # type: ignore[no-untyped-call]


def _are_same(a: _Contents, b: _Contents) -> bool:
    return all(value is other for value, other in zip(a, b, strict=True))

"""The source tab: the kernels of segments as source and machine code, and their profiles."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fuser_lab import targets
from fuser_lab.errors import InputError
from fuser_lab_widgets import lines, profiles, profiling, sources
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.runs import Runs

if TYPE_CHECKING:
    from fuser_lab.lab.profiling import PlanProfile


class Kernels:
    """The kernels of the plan on show; ``profile`` is one that was made before."""

    def __init__(self, page: Page, runs: Runs, profile: "PlanProfile | None") -> None:
        self._page, self._runs = page, runs
        self._profiles = {} if profile is None else {(profile.plan_hash, profile.target): profile}
        self._request: Message = {}  # the latest one of the source tab
        self.compiler = Background()
        self.handlers: Handlers = {"source": self._source, "profile": self._profile}

    @property
    def latest_profile(self) -> "PlanProfile | None":
        """A profile of the plan on show, or None."""
        made = (self._profiles.get((self._page.plan.hash, target)) for target in targets.names())
        return next((profile for profile in made if profile is not None), None)

    def _source(self, event: Message) -> None:
        """Send a view of a segment's kernel; machine code is compiled in the background."""
        index, target, view = event["segment"], event["target"], event.get("view", "source")
        plan, page = self._page.plan, self._page.widget
        segment = next((each for each in plan.segments if each.index == index), None)
        said: dict[str, Any] = {"n": event["n"], "segment": index, "target": target, "view": view, "hash": plan.hash}
        if segment is None:
            page.source = said | {"problem": f"This plan has no segment {index}."}
            return
        self._request = event
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "source": lambda: sources.source(segment, target),
            "assembly": lambda: sources.machine(segment, target),
            "beside": lambda: lines.beside(segment, target),
            "steps": lambda: lines.steps(segment, target),
            "profile": lambda: self._profile_of(segment, target),
        }
        record = targets.find(target)
        if view not in makers or record is None:
            page.source = said | {"problem": f"There is no view {view!r} of kernels for {target!r}."}
            return
        if record.assembly is None or view not in {"assembly", "beside"}:  # without machine code
            page.source = said | makers[view]()
            return

        def tell(answer: dict[str, Any] | None, problem: str) -> None:
            with self._page.sending():
                page.source = said | (answer or {"problem": problem})

        if not self.compiler.start(makers[view], tell):
            page.source = said | {"problem": "Another segment is being compiled; try again in a moment."}

    def _source_again(self) -> None:
        if self._request:
            self._source(self._request)

    def _profile_of(self, segment: Any, target: str) -> dict[str, Any]:
        """Return the profile of a segment's kernel, or that there is none yet."""
        key = self._page.plan.hash, target
        if self._runs.profiling == key:
            return {"waiting": "Profiling; the kernels are compiled first …"}
        profile = self._profiles.get(key)
        return {"unprofiled": True} if profile is None else profiles.beside(segment, profile)

    def _profile(self, event: Message) -> None:
        """Profile the plan on show in the background; nothing else is measured or previewed in the meantime."""
        plan, target, page = self._page.plan, event["target"], self._page
        if target not in targets.names():
            raise InputError(f"unknown target {target!r}; choose from {', '.join(targets.names())}.")
        if self._runs.runner.running:
            page.say("A run is in progress; profile when it is done.", "error")
            return

        def tell(profile: "PlanProfile | None", problem: str) -> None:
            with page.sending():
                self._runs.profiling = None
                if profile is not None:
                    self._profiles[plan.hash, target] = profile
                    page.say(f"Profiled {profile.plan} on {profile.device}.")
                else:
                    page.say(problem, "error")
                page.guard({"type": "source"}, self._source_again)
            page.publish()

        if not self.compiler.start(lambda: profiling.profile_plan(plan, self._runs.inputs, target), tell):
            page.say("Another segment is being compiled, or a plan profiled; try again in a moment.", "error")
            return
        self._runs.profiling = plan.hash, target
        self._source_again()
        page.say("Profiling.")

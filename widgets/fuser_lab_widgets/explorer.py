"""The live explorer of one fusion: see its segments, cut and glue them, ask why, and time the result."""

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anywidget
import traitlets

from fuser_lab.arguments import (
    ANYTHING,
    FLAG,
    FUNCTION,
    TEXT,
    having,
    list_of,
    number,
    one_of,
    optional,
    short_text,
    takes,
)
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.report.svg import plan_svg
from fuser_lab.report.text import plan_text
from fuser_lab_widgets import assets, messages, selections, sources, tabs
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.comparison import Comparison
from fuser_lab_widgets.parts.edits import Edits
from fuser_lab_widgets.parts.foresight import Foresight
from fuser_lab_widgets.parts.kernels import Kernels
from fuser_lab_widgets.parts.page import Page
from fuser_lab_widgets.parts.panels import Panels
from fuser_lab_widgets.parts.picture import Picture
from fuser_lab_widgets.parts.runs import Runs
from fuser_lab_widgets.parts.saved_form import SavedForm
from fuser_lab_widgets.parts.search import Search
from fuser_lab_widgets.parts.selection import Selection
from fuser_lab_widgets.parts.steps import Steps
from fuser_lab_widgets.runner import Runner, Timer
from fuser_lab_widgets.session import EditablePlan, Session

if TYPE_CHECKING:
    from fuser_lab.lab.profiling import PlanProfile

_PLAN: Final = having("segments", "hash", accepted="a plan, as fl.segment returns it")
_TRAITS: Final = {
    "plan": _PLAN, "strategy": TEXT, "reading": one_of("hint", "cut", "ignore"), "whole_fusion": FLAG,
    "cut_reshape_inputs": FLAG, "cut_resize_inputs": FLAG, "selection": TEXT, "running": FLAG,
}
# The traits that are switches of the segmenter, by their names there.
_SWITCHES: Final = {"reading": "segment_set"} | {
    name: name for name in ("whole_fusion", "cut_reshape_inputs", "cut_resize_inputs")
}


class Explorer(anywidget.AnyWidget):
    """An explorer of a plan.

    It is a widget: it can be put into boxes, and its traits can be observed, set, and linked with those of other
    widgets (``ipywidgets.link``; ``ipywidgets.jslink`` for all but ``plan`` and ``timings``, which stay in Python).
    Setting a trait has the same effect as the control on the page: it can be undone, and if it is refused, the trait
    reverts and the status line says why. Traits change after the picture was sent; those that a run changes do so in
    the run's thread.

    Parameters
    ----------
    plan
        The initial plan, with which timings are compared.
    inputs
        The inputs of Run, which creates arrays for abstract ones. Without inputs, Run says that it needs some.
    strategies
        Names of the strategies that the switch offers besides that of the plan.
    searched
        The slow ones among them, whose plans are made in the background on request.
    timer
        The timer of plans; by default ``fuser_lab``'s own on this machine.
    title
        The title in the header; by default the name of the plan on show.
    notes
        Sentences below the header about the inputs and the lines that were skipped when a script was loaded.
    profile
        The result of `fuser_lab.profile` for this plan, which the source tab shows without profiling again.
    view
        The view that is open at first, such as ``"time_line"``; ``"decisions"`` begins with the first decision.

    Attributes
    ----------
    plan
        The plan on show. Setting it shows another plan, from which strategies and annotations then start; if its
        definition or sizes differ, timings are compared with it.
    strategy
        Name of the plan's strategy. Setting it segments the annotated definition again; a strategy that needs a search
        becomes the trait's value when its plan is found.
    reading
        The meaning of ``segment_set``: ``"hint"``, ``"cut"`` or ``"ignore"``.
    whole_fusion, cut_reshape_inputs, cut_resize_inputs
        The options of these names; the last two are for the strategy ``"top_down"`` only.
    selection
        The selection: a tensor's name, which stands for the op that computes it or for the fusion input, an edge such
        as ``"T2 -> T4"``, a segment such as ``"S1"``, or ``""``.
    timings
        The most recent ``Timings``, updated with each row; None before the first run.
    running
        Whether a run is in progress. Setting it starts or cancels one.

    Raises
    ------
    traitlets.TraitError
        If a trait is set to a value that it does not accept.
    InputError
        If the profile is that of another plan.
    """

    _esm = assets.script()
    _css = assets.style()

    # The browser appends to `events`; `acked` is the number of the last one that was handled. A list with numbers,
    # because clicks that come while the kernel is busy are sent together, and the same click may come twice.
    events: traitlets.List[Any] = traitlets.List().tag(sync=True)
    acked = traitlets.Int(0).tag(sync=True)
    scene = traitlets.Dict().tag(sync=True)
    decisions = traitlets.Dict().tag(sync=True)
    history = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)
    source = traitlets.Dict().tag(sync=True)
    times = traitlets.Dict().tag(sync=True)
    code = traitlets.Dict().tag(sync=True)
    certificate = traitlets.Dict().tag(sync=True)
    panels = traitlets.Dict().tag(sync=True)
    views = traitlets.List(tabs.views()).tag(sync=True)
    targets: traitlets.List[Any] = traitlets.List().tag(sync=True)  # what the source tab offers
    foreseen = traitlets.Dict().tag(sync=True)  # previews of edits at the edges of the plan on show
    advice = traitlets.Dict().tag(sync=True)  # the sentence about the largest gain of a plan, with its event
    called = traitlets.Dict().tag(sync=True)  # the user's names of tensors, which the page adds to sentences and tables
    heat = traitlets.Dict().tag(sync=True)  # the values of colourings, which follow the picture
    status = traitlets.Dict().tag(sync=True)
    opens = traitlets.Unicode().tag(sync=True)  # the view that is open at first
    hides = traitlets.Unicode().tag(sync=True)  # the style sheet that hides the saved form of this explorer

    # The traits that users observe, set and link, which `_TRAITS` describes; `plan` and `timings` stay in Python.
    plan = traitlets.Any()
    timings = traitlets.Any(allow_none=True)
    strategy = traitlets.Any("").tag(sync=True)
    reading = traitlets.Any("hint").tag(sync=True)
    whole_fusion = traitlets.Any(True).tag(sync=True)
    cut_reshape_inputs = traitlets.Any(False).tag(sync=True)
    cut_resize_inputs = traitlets.Any(False).tag(sync=True)
    selection = traitlets.Any("").tag(sync=True)
    running = traitlets.Any(False).tag(sync=True)

    # Missing if the constructor refused its arguments.
    _workers: tuple[Runner | Background, ...] = ()
    _layout: Any = None  # the layout that the explorer was made with, which ipywidgets registers as another widget

    @takes(
        "Explorer", plan=_PLAN, profile=optional(having("rows", "statements", accepted="the result of fl.profile")),
        inputs=optional(list_of(ANYTHING, "a list of arrays and numbers")),
        strategies=list_of(TEXT, "a list of names of strategies"), timer=optional(FUNCTION), title=optional(TEXT),
        searched=list_of(TEXT, "names of strategies", lazy=True), view=optional(one_of(*tabs.NAMES)),
    )
    def __init__(
        self,
        plan: EditablePlan,
        inputs: Sequence[Any] | None = None,
        *,
        strategies: Sequence[str] = (),
        searched: Collection[str] = ("optimal",),
        timer: Timer | None = None,
        title: str | None = None,
        notes: Sequence[str] = (),
        profile: "PlanProfile | None" = None,
        view: str | None = None,
    ) -> None:
        self._session = Session(plan, strategies)
        if profile is not None and profile.plan_hash != plan.hash:
            msg = f"explore: the profile is of another plan, {profile.plan!r}; call fl.profile with this plan."
            raise InputError(msg)
        self._page = page = Page(
            self, self._session, title, draw=self._draw, show=self._show, publish=self._publish,
        )
        self._lock = page.lock
        self._selection = Selection(page)
        self._picture = Picture(page, self._selection)
        self._panels = Panels(page, self._tab_data)
        self._search = Search(page, self._selection, searched)
        self._comparison = Comparison(page, self._panels, self._search)
        self._steps = Steps(page, self._search, notes, runnable=inputs is not None)
        self._edits = Edits(page, self._selection, self._search, self._comparison, self._steps)
        self._runs = Runs(page, self._comparison, self._search, inputs, timer, self._run_ended)
        self._foresight = Foresight(page, self._panels, self._runs)
        self._kernels = Kernels(page, self._runs, profile)
        self._saved_form = SavedForm(page, self._runs, self._kernels)
        self._handlers: dict[str, Callable[[Message], None]] = {}
        for part in (
            self._selection, self._picture, self._panels, self._search, self._comparison, self._edits, self._runs,
            self._steps, self._foresight, self._kernels,
        ):
            self._handlers |= part.handlers
        self._workers = (
            self._runs.runner, self._search.background, self._steps.background, self._foresight.background,
            self._saved_form.background, self._kernels.compiler, self._picture.background,
        )
        self._published: dict[str, Any] = {}  # the values last published to traits; others were set from outside
        super().__init__()
        self._layout = self.layout
        self.hides, self.opens = self._saved_form.hides, view or ""
        with self._lock, _without_collection():  # results that a thread reports while the picture is sent would be lost
            self._show()
            page.say("Click an edge to cut or glue there; press ? for the keys.")
        self._publish()
        self.observe(self._on_events, names=["events"])
        self.observe(self._on_set, names=[*_TRAITS])

    @traitlets.default("targets")
    def _offers(self) -> list[dict[str, str]]:
        return sources.offers()

    @traitlets.validate(*_TRAITS)
    def _validate(self, proposal: Mapping[str, Any]) -> Any:
        name = proposal["trait"].name
        try:
            value = _TRAITS[name].of(proposal["value"], "the explorer", name)
        except FuserLabError as error:
            raise traitlets.TraitError(str(error)) from None
        if name == "strategy" and value not in self._session.strategies:
            msg = f"unknown strategy {short_text(value)}; choose from {', '.join(self._session.strategies)}."
            raise traitlets.TraitError(msg)
        if name == "selection" and value and not selections.find(self._page.view, value):
            raise traitlets.TraitError(
                f"the plan does not contain {short_text(value)}; "
                "select a tensor (T2), an edge (T2 -> T4) or a segment (S1)."
            )
        return value

    @takes("Explorer.wait", timeout=optional(number(0), "to wait for"))
    def wait(self, timeout: float | None = None) -> None:
        """Wait until a run and a search in progress have ended, each for at most ``timeout`` seconds."""
        seconds = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        for worker in self._workers:
            worker.wait(seconds)

    def close(self) -> None:
        """End all computations, and free the explorer and its layout."""
        for worker in self._workers:
            worker.close()
        self.unobserve_all()
        super().close()
        if self._layout is not None:
            self._layout.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the live view, with a static picture and text for frontends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if not isinstance(data, dict):
            return bundle
        data["text/plain"] = plan_text(self._session.plan, title=self._page.title)
        data["text/html"] = plan_svg(self._session.plan, title=self._page.title)
        return bundle

    def _ipython_display_(self, **kwargs: Any) -> None:
        """Display the live view, and before it the saved form, which the live view hides while it exists."""
        from IPython.core.display_functions import display

        self._saved_form.display()
        bundle = self._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        live = {kind: said for kind, said in data.items() if kind != "text/html"}
        display(live, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state for the page: with a picture, also the chunks of pieces that the page does not have yet."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        return state | (self._picture.chunks(everything=key is None) if "scene" in state else {})

    # ---- events from the browser

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Set traits as the page asks, except those that only Python sets; a refusal is shown, and the page reverts."""
        taken = {name: value for name, value in sync_data.items() if name not in _FROM_PYTHON}
        try:
            super().set_state(taken)
        except traitlets.TraitError as error:
            self._refuse(error)
            self.send_state([*taken])

    def _on_events(self, change: Mapping[str, Any]) -> None:
        for event in change["new"]:
            try:
                number = messages.number_of(event, self.acked)
            except FuserLabError as error:
                self._refuse(error)
                continue
            if number > self.acked:
                self._handle(number, event)

    def _refuse(self, error: Exception) -> None:
        with self._page.sending():
            self._page.say(str(error), "error")

    def _handle(self, number: int, event: Any) -> None:
        with self._lock:
            self._page.waiting.clear()
            with _without_collection(), self.hold_sync():
                self.acked = number
                self._page.guard(event, lambda: self._dispatch(number, event))
            self._page.finish()
        self._publish()

    def _dispatch(self, number: int, event: Any) -> None:
        message = messages.read(event, messages.EXPLORER) | {"n": number}
        if message.get("plan", self._page.number) != self._page.number:
            raise FuserLabError("That button belongs to a plan that is no longer shown; nothing was done.")
        self._handlers[message["type"]](message)

    # ---- the traits that users observe and set

    def _facts(self) -> dict[str, Any]:
        state = self._session.state
        on = state.in_force
        return {
            "plan": state.plan,
            "strategy": state.strategy,
            "reading": on.get("segment_set", "hint"),
            "whole_fusion": on.get("whole_fusion", True),
            "cut_reshape_inputs": on.get("cut_reshape_inputs", False),
            "cut_resize_inputs": on.get("cut_resize_inputs", False),
            "selection": self._selection.name,
            "timings": self._runs.timings,
            "running": self._runs.runner.running,
        }

    def _publish(self) -> None:
        """Update the traits; an observer of one finds all of them up to date."""
        with self._lock:
            self._published = self._facts()
            before = {name: getattr(self, name) for name in self._published}
            changed = {name: now for name, now in self._published.items() if not _same(now, before[name])}
            self._trait_values.update(changed)
        for name, now in changed.items():
            self._notify_trait(name, before[name], now)
        self._work_on()

    def _work_on(self) -> None:
        """Start idle computations, not before the picture is sent, because threads share the interpreter."""
        with self._lock:
            self._picture.prepare()
            self._picture.colour(
                self._runs.amounts, self._runs.rows, running=self._runs.runner.running, follow=self._times_changed,
            )
            self._foresight.start()
            self._steps.look_beside()
        self._saved_form.follow()

    def _on_set(self, change: Mapping[str, Any]) -> None:
        name, value = change["name"], change["new"]
        with self._lock:
            if _same(value, self._published.get(name)) or not _same(value, getattr(self, name)):
                return  # it already has this value, or was set again in the meantime
            with self.hold_sync():
                self._page.guard({"type": name}, lambda: self._take(name, value))
            self._page.finish()
        self._publish()

    def _take(self, name: str, value: Any) -> None:
        """Carry out a change of a trait."""
        if name == "plan":
            self._session.show(value)
            self._show()
            self._page.say(f"Another plan: {self._page.counted}.")
        elif name == "strategy":
            self._search.switch({"strategy": value})
        elif name == "selection":
            self._selection.take(value)
        elif name == "running":
            (self._runs.run if value else self._runs.cancel)({})
        else:
            self._edits.switches({"switches": {_SWITCHES[name]: value}})

    # ---- what the page shows

    def _draw(self) -> None:
        compared = self._comparison.difference()
        self._picture.draw(self._page.difference if compared is None else compared)

    def _show(self) -> None:
        with self.hold_sync():
            self.called = dict(self._page.view.called)
            self._draw()
            self._selection.follow()
            self._panels.follow()
            self._panels.drop(tabs.following(tabs.Follows.SESSION))  # these depend on more than the plan
            self._steps.send()

    def _run_ended(self) -> None:
        self._foresight.restart()
        self._times_changed()

    def _times_changed(self) -> None:
        self._panels.drop(tabs.following(tabs.Follows.TIMES))

    def _tab_data(self) -> tabs.Shown:
        view, comparison = self._page.view, self._comparison
        return tabs.Shown(
            plan=self._session.plan, view=view, amounts=self._runs.amounts, rows=self._runs.rows,
            compared=comparison.chosen, other=comparison.plan(), difference=comparison.difference(),
            others=comparison.views, certificate=self._search.certificates.get(view.header.hash),
            searching=bool(self._search.topic), best_edits=self._foresight.best_edits, number=self._page.number,
        )


# What a page cannot set.
_FROM_PYTHON: Final = frozenset(Explorer.class_own_traits(sync=True)) - {"events", *_TRAITS}


@contextmanager
def _without_collection() -> Iterator[None]:
    """Delay garbage collection until the picture is sent: with 3,000 ops, it takes as long as the picture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _same(a: object, b: object) -> bool:
    """Whether two values of a trait are the same; equal plans may have different strategies."""
    return a is b or (isinstance(a, str | bool) and a == b)

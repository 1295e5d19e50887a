"""The live explorer of one fusion: see its segments, cut and glue them, ask why, and time the result."""

from __future__ import annotations

import gc
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import anywidget
import traitlets

from fuser_lab import targets
from fuser_lab.arguments import ANYTHING, FLAG, FUNCTION, TEXT, having, listed, number, one_of, optional, shown, takes
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.plan.code import FORMS, REWRITINGS
from fuser_lab.pricing.rule_lifting import liftable, predicted_seconds
from fuser_lab.process.forks import renewed
from fuser_lab.report.collapse import is_large
from fuser_lab.report.diff import PlanDiff, plan_diff
from fuser_lab.report.drawing import Drawn
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.repeats import blocks
from fuser_lab.report.svg import plan_svg
from fuser_lab.report.text import plan_text
from fuser_lab.report.timing_table import timing_note, timing_table
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab.report.view_model import EdgeView, Header, ViewModel, view_plan
from fuser_lab.search import presegmentation
from fuser_lab.search.presegmentation import Alternative
from fuser_lab.segmentation.events import Attempt
from fuser_lab_widgets import (
    answers,
    assets,
    lines,
    messages,
    previews,
    profiles,
    profiling,
    scenes,
    schedules,
    selections,
    sources,
    tabs,
    unfolding,
)
from fuser_lab_widgets.amounts import Amounts, place, target_name
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.canvas import Canvas
from fuser_lab_widgets.controls import controls, described, words
from fuser_lab_widgets.heat import heat
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.runner import Progress, Runner, Timer, default_model, default_timer, one_by_one
from fuser_lab_widgets.saved import hidden_by, saved
from fuser_lab_widgets.session import MINE, EditablePlan, Session, State

if TYPE_CHECKING:
    from fuser_lab.lab.profiling import PlanProfile

_PLAN: Final = having("segments", "hash", accepted="a plan, as fl.segment returns it")
_TRAITS: Final = {
    "plan": _PLAN, "strategy": TEXT, "reading": one_of("hint", "cut", "ignore"), "whole_fusion": FLAG,
    "cut_reshape_inputs": FLAG, "cut_resize_inputs": FLAG, "selection": TEXT, "running": FLAG,
}
_NOT_STRATEGIES: Final = frozenset({"start", "unannotated", "ruled", MINE})
_KEEP_SECONDS: Final = 1.5  # seconds without a change after which the saved form is updated
_SEARCH_SECONDS: Final = 30.0  # seconds of a background search if the plan's options set no limit
_SET: Final = {"reading": "segment_set", "whole_fusion": "whole_fusion", "cut_reshape_inputs": "cut_reshape_inputs",
               "cut_resize_inputs": "cut_resize_inputs", "strategy": "", "plan": "", "selection": "", "running": ""}
_DETAILS: Final[dict[scenes.Detail, str]] = {
    "ops": "One box per op.",
    "segments": "One box per segment.",
    "blocks": "One box for each run of repeated segments, and for each other segment.",
    "modules": "One box per module in each segment; open one in the inspector.",
}
_OF_TIMES: Final = tabs.following(tabs.Follows.TIMES)
_OF_THE_SESSION: Final = tabs.following(tabs.Follows.SESSION)


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
    heat = traitlets.Dict().tag(sync=True)  # the values of colourings, which follow the picture
    status = traitlets.Dict().tag(sync=True)
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
        inputs=optional(listed(ANYTHING, "a list of arrays and numbers")),
        strategies=listed(TEXT, "a list of names of strategies"), timer=optional(FUNCTION), title=optional(TEXT),
        searched=listed(TEXT, "names of strategies", lazy=True),
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
        profile: PlanProfile | None = None,
    ) -> None:
        self._lock = renewed(threading.RLock())  # handlers run in the kernel's thread, timings arrive from another
        self._session = Session(plan, strategies)
        self._inputs = inputs
        self._title = title
        self._notes = list(notes)
        self._view: ViewModel | None = None
        self._drawn: EditablePlan | None = None
        self._drawn_last = Drawn()
        self._searching = ""  # a strategy, or the certificate, during its search
        self._asked_for: object = None  # the search in progress
        self._certificates: dict[str, dict[str, Any]] = {}  # by the plans' hashes
        self._searched = frozenset(searched)
        self._compared = ""  # the strategy whose plan the shown one is compared with
        self._scheduled = 0  # the segment whose schedule is shown
        self._ranked = False  # whether its other parameters are being listed
        if profile is not None and profile.plan_hash != plan.hash:
            msg = f"explore: the profile is of another plan, {profile.plan!r}; call fl.profile with this plan."
            raise InputError(msg)
        self._profiles = {} if profile is None else {(plan.hash, profile.target): profile}
        self._profiling: tuple[str, str] | None = None  # the plan and target that are being profiled
        self._source_asked: Message = {}  # the latest request of the source tab
        self._detail: scenes.Detail | None = None  # None: depends on the size of the fusion
        self._opened: frozenset[str] = frozenset()  # the tensors of ops in unfolded segments
        self._unfolded: frozenset[str] = frozenset()  # and in unfolded blocks
        self._modules: frozenset[str] = frozenset()  # paths of those that are open
        self._canvas = Canvas()
        self._pieces = scenes.Pieces()
        self._chunks = 0, 0  # the first chunk of pieces that the page has, and the first that it lacks
        self._heated: tuple[Any, Any] = (None, None)  # the plan and the rows of the colourings
        self._log: Any = None  # the log of decisions that the page has
        self._attempts: tuple[Attempt, ...] = ()  # in it
        self._asked: Callable[[], str] | None = None  # the selection to answer for after the picture is sent
        self._adopts = True  # whether the page selects it
        self._number = 0  # number of the plan on show, which buttons send
        self._answered: ViewModel | None = None  # the subject of the answer on show
        self._rows: tuple[Any, ...] = ()
        self._timed_hashes: tuple[str, ...] = ()
        self._totals: dict[str, Any] = {}  # rows of whole plans, by hash: what was measured last
        self._peers: tuple[Any, ...] = ()  # rows of peers
        self._machine: Any = None  # the cost model of the device that ran
        self._plans = WeakValueDictionary[str, Any]()  # those on show and beside it, by hash
        self._key = secrets.token_hex(6)
        self._kept: tuple[EditablePlan, Any, Any] | None = None  # the saved plan, timings and profile, once displayed
        self._compiler = Background()
        self._background = Background()
        self._keeper = Background()
        self._beside = Background()  # idle search for a cheaper plan to mention
        self._ahead = Background()  # idle computation of previews
        self._best: tuple[EditablePlan, tuple[Any, ...]] | None = None  # a plan, and the edits that make it faster
        self._alternatives: tuple[Any, tuple[Alternative, ...]] = (None, ())  # and a plan that they stand beside
        self._runner = Runner(timer or default_timer, self._on_progress, default_model if timer is None else None)
        self._workers = (
            self._runner, self._background, self._beside, self._ahead, self._keeper, self._compiler,
        )
        self._published: dict[str, Any] = {}  # the values last published to traits; others were set from outside
        self._measured_last: Any = None
        super().__init__()
        self._layout = self.layout
        self.hides = hidden_by(self._key)
        with self._lock, _uncollected():  # results that a thread reports while the picture is sent would be lost
            self._show()
            self._say("Click an edge to cut or glue there; press ? for the keys.")
        self._publish()
        self.observe(self._on_events, names=["events"])
        self.observe(self._on_set, names=[*_SET])

    @traitlets.default("targets")
    def _offered(self) -> list[dict[str, str]]:
        return sources.offered()

    @traitlets.validate(*_TRAITS)
    def _taken(self, proposal: Mapping[str, Any]) -> Any:
        name = proposal["trait"].name
        try:
            value = _TRAITS[name].of(proposal["value"], "the explorer", name)
        except FuserLabError as error:
            raise traitlets.TraitError(str(error)) from None
        if name == "strategy" and value not in self._session.strategies:
            msg = f"unknown strategy {shown(value)}; choose from {', '.join(self._session.strategies)}."
            raise traitlets.TraitError(msg)
        if name == "selection" and value and not selections.find(self._current(), value):
            msg = (
                f"the plan does not contain {shown(value)}; select a tensor (T2), an edge (T2 -> T4) or a segment (S1)."
            )
            raise traitlets.TraitError(msg)
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
        data["text/plain"] = plan_text(self._session.plan, title=self._title)
        data["text/html"] = plan_svg(self._session.plan, title=self._title)
        return bundle

    def _ipython_display_(self, **kwargs: Any) -> None:
        """Display the live view, and before it the saved form, which the live view hides while it exists."""
        from IPython.core.display_functions import display

        self._kept = self._shown_last()
        display({"text/html": self._saved(*self._kept)}, raw=True, display_id=self._key)  # type: ignore[no-untyped-call]
        bundle = self._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        live = {kind: said for kind, said in data.items() if kind != "text/html"}
        display(live, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]

    def _shown_last(self) -> tuple[EditablePlan, Any, Any]:
        plan = self._session.plan
        made = (self._profiles.get((plan.hash, target)) for target in targets.names())
        return plan, self._measured_last, next((profile for profile in made if profile is not None), None)

    def _saved(self, plan: EditablePlan, timings: Any, profile: PlanProfile | None) -> str:
        baseline = self._session.baseline
        plans = [plan, *([baseline] if baseline.hash != plan.hash else [])]
        timed = timings is not None and {row.plan_hash for row in timings.rows} & {each.hash for each in plans}
        return saved(
            plans, self._key, timings=timings if timed else None, title=self._title, machine=self._machine,
            profile=profile,
        )

    def _keep(self) -> None:
        """Update the saved form, once nothing has changed for a moment."""
        if self._kept is None or _are_same(self._kept, self._shown_last()):
            return

        def when_idle() -> tuple[tuple[EditablePlan, Any, Any], str]:
            while True:
                shown_state = self._shown_last()
                time.sleep(_KEEP_SECONDS)
                if _are_same(shown_state, self._shown_last()):
                    return shown_state, self._saved(*shown_state)

        def tell(said: tuple[tuple[EditablePlan, Any, Any], str] | None, _problem: str) -> None:
            if said is not None:
                from IPython.core.display_functions import display

                self._kept, html = said
                display({"text/html": html}, raw=True, display_id=self._key, update=True)  # type: ignore[no-untyped-call]

        self._keeper.start(when_idle, tell)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state for the page: with a picture, also the chunks of pieces that the page does not have yet."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "scene" in state:
            stock = self._pieces.stock
            held, lacks = (stock.first, stock.first) if key is None else self._chunks
            state |= {f"chunk{n}": None for n in range(held, stock.first)}  # of a stock that was given up
            state |= {f"chunk{n}": stock.chunks[n - stock.first] for n in range(max(lacks, stock.first), stock.end)}
            self._chunks = stock.first, stock.end
        return state

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

    def _handle(self, number: int, event: Any) -> None:
        with self._lock:
            self._asked = None
            with _uncollected(), self.hold_sync():
                self.acked = number
                self._guarded(event, lambda: self._dispatch(messages.read(event, messages.EXPLORER) | {"n": number}))
            self._answer_asked()
        self._publish()

    def _refuse(self, error: Exception) -> None:
        with self._lock, self.hold_sync():
            self._say(str(error), "error")

    def _answer_asked(self) -> None:
        """Answer after the picture is sent, because details of the selection may take longer."""
        asked, self._asked = self._asked, None
        adopts, self._adopts = self._adopts, True
        if asked is not None:
            with self.hold_sync():
                self._guarded({"type": "select"}, lambda: self._answer_for(asked()))
                self.answer = {**self.answer, "adopt": adopts}

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
            "selection": selections.name(self._current(), str(self.answer.get("id", ""))),
            "timings": self._measured_last,
            "running": self._runner.running,
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
            self._canvas.prepare()
            self._colour()
            self._foresee()
            self._look_beside()
        self._keep()

    def _on_set(self, change: Mapping[str, Any]) -> None:
        name, value = change["name"], change["new"]
        with self._lock:
            if _same(value, self._published.get(name)) or not _same(value, getattr(self, name)):
                return  # it already has this value, or was set again in the meantime
            with self.hold_sync():
                self._guarded({"type": name}, lambda: self._take(name, value))
            self._answer_asked()
        self._publish()

    def _take(self, name: str, value: Any) -> None:
        """Carry out a change of a trait."""
        if name == "plan":
            self._session.show(value)
            self._show()
            self._say(f"Another plan: {self._counted()}.")
        elif name == "strategy":
            self._switch({"strategy": value})
        elif name == "selection":
            self._answer_for(selections.find(self._current(), value))
            self.answer = {**self.answer, "adopt": True}
        elif name == "running":
            (self._run if value else self._cancel)({})
        else:
            self._switches({"switches": {_SET[name]: value}})

    def _guarded(self, event: Message, act: Callable[[], None]) -> None:
        try:
            act()
        except FuserLabError as error:
            self._say(str(error), "error")
        except Exception as error:  # noqa: BLE001 - an error in a callback would vanish; the user has to see it
            self._say(f"{event.get('type', 'event')} failed: {type(error).__name__}: {error}", "error")

    def _dispatch(self, event: Message) -> None:
        handlers: dict[str, Callable[[Message], None]] = {
            "act": self._act,
            "cut": self._cut,
            "glue": self._glue,
            "move": self._move,
            "recompute": self._recompute,
            "narrow": self._narrow,
            "edit": self._listed_edit,
            "preview": self._preview,
            "annotate": self._annotate,
            "unannotate": self._unannotate,
            "mark": self._mark,
            "lift": self._lift,
            "switches": self._switches,
            "alternative": self._show_alternative,
            "detail": self._choose_detail,
            "open": self._open,
            "panel": self._panel,
            "decisions": self._decisions,
            "compare": self._compare_with,
            "select": self._select,
            "strategy": self._switch,
            "undo": self._undo,
            "redo": self._redo,
            "reset": self._reset,
            "run": self._run,
            "run_all": self._run_all,
            "cancel": self._cancel,
            "stop": self._stop_search,
            "source": self._source,
            "code": self._code,
            "certificate": self._certify,
            "schedule": self._schedule,
            "profile": self._profile,
        }
        if event.get("plan", self._number) != self._number:
            msg = "That button belongs to a plan that is no longer shown; nothing was done."
            raise FuserLabError(msg)
        handlers[event["type"]](event)

    def _act(self, event: Message) -> None:
        """Carry out a click on an edge: cut inside a segment, glue at a boundary, explain at an input or output."""
        edge = self._edge(event)
        if event.get("kind", edge.kind) != edge.kind:
            crosses = "crosses segments" if edge.kind == "boundary" else "stays in one segment"
            msg = f"{edge.tensor} {crosses} in the current plan; nothing was done."
            raise FuserLabError(msg)
        if edge.kind == "inside":
            self._cut(event)
        elif edge.kind == "boundary":
            self._glue(event)
        else:
            self._select(event)
            self._say(str(self.answer.get("sentence", "")))

    def _cut(self, event: Message) -> None:
        edge = self._edge(event)
        if edge.kind != "inside":
            self._select(event)
            self._say(f"{edge.tensor} is already in memory there, so there is nothing to cut.", "error")
            return
        consumer = previews.one_of_several(self._current(), edge)
        self._edit(edge.id, "cut", edge.tensor, *(() if consumer is None else (consumer,)))

    def _glue(self, event: Message) -> None:
        edge = self._edge(event)
        a, b = edge.segments
        if a is None or b is None or a == b:
            self._select(event)
            self._say(f"{edge.tensor} does not cross from one segment to another there, so there is nothing to "
                      "glue.", "error")
            return
        self._edit(edge.id, "glue", a, b)

    def _move(self, event: Message) -> None:
        node = next((n for n in self._current().nodes if n.id == event.get("id") and n.kind == "op"), None)
        if node is None:
            msg = "The current plan no longer has this op."
            raise FuserLabError(msg)
        self._edit(node.id, "move", node.tensor, event["segment"])

    def _recompute(self, event: Message) -> None:
        edge = self._edge(event)
        self._edit(edge.id, "recompute", edge.tensor, edge.segments[1])

    def _narrow(self, event: Message) -> None:
        edge = self._edge(event)
        self._edit(edge.id, "narrow", edge.tensor, event["dtype"])

    def _listed_edit(self, event: Message) -> None:
        """Make one of the edits in the list of the best ones."""
        kind, *arguments = event["edit"]
        self._edit(str(self.answer.get("id", "")), kind, *arguments)

    def _preview(self, event: Message) -> None:
        """Send the preview of an edit at an edge, unless it is already computed."""
        edge = self._edge(event)
        preview = previews.of_edge(self._session.plan, self._current(), edge)
        if preview is not None:
            self._send_previews(self._number, {edge.id: previews.hint_of(preview)})

    def _annotate(self, event: Message) -> None:
        """Insert a segment_set at an edge: for all readers of the tensor, or for the one at the end of the edge."""
        edge = self._edge(event)
        reader = None if event.get("all") else answers.reader_at(self._current(), edge)
        place = edge.tensor if reader is None else f"{edge.tensor} → {reader}"
        done = f"Inserted segment_set at {place}"
        self._resegment(edge.id, lambda: self._session.annotated(edge.tensor, reader), done)

    def _unannotate(self, event: Message) -> None:
        """Remove the segment_set at an edge, or the selected one."""
        view, selected = self._current(), event.get("id")
        edge = view.edge(str(selected))
        annotation = next((candidate for candidate in view.annotations if candidate.node == selected), None)
        if edge is not None:
            annotation = answers.annotation_at(view, edge)
        if annotation is None:
            msg = "There is no segment_set to remove; select an edge with a mark."
            raise FuserLabError(msg)
        hint, done = annotation.hint, f"Removed the segment_set of {annotation.tensor}"
        self._resegment(str(selected), lambda: self._session.without_annotation(hint), done)

    def _mark(self, event: Message) -> None:
        """Insert a segment_set at an edge, or remove the existing one."""
        there = answers.annotation_at(self._current(), self._edge(event))
        (self._annotate if there is None else self._unannotate)(event)

    def _switches(self, event: Message) -> None:
        """Segment again with other switches of the segmenter."""
        changes, selected = event["switches"], str(self.answer.get("id", ""))
        text = described(changes)
        self._resegment(selected, lambda: self._session.switched(changes, text), f"Segmented with {text}")

    def _lift(self, event: Message) -> None:
        """Segment again without one rule of nvFuser, and compare with the plan under all rules."""
        before, code = self._session.plan, event["rule"]

        def saved() -> str:
            after = self._session.plan
            self._compared = "ruled" if self._session.ruled is not None else self._compared
            less = predicted_seconds(cast("Any", before)) - predicted_seconds(cast("Any", after))
            sign = "−" if less > 0 else "+"
            return f", {sign}{seconds_label(abs(less))} predicted ({cast('Any', after).target})"

        selected = str(self.answer.get("id", ""))
        self._resegment(selected, lambda: self._session.without_rule(code), f"Without the rule {code}", saved)

    def _resegment(
        self, selected: str, make: Callable[[], State], done: str, more: Callable[[], str] = str,
    ) -> None:
        """Segment again and show the plan; for a slow strategy, in the background."""
        old, begun = self._current().header, self._session.state

        def go(state: State) -> None:
            self._session.go(state)
            addition = more()
            self._show()
            self._say(f"{done}: {self._change(old)}{addition}{_left_behind(begun)}.")

        def tell(state: State | None, problem: str) -> None:
            if state is not None and self._session.state is begun:
                go(state)
                return
            self._show()
            self._say(problem or "The plan has changed; the result is for the previous plan.", "error")

        if begun.strategy in self._searched:
            text = (
                f"Searching for the {words(begun.strategy)} plan{self._at_most}; the current plan stays until it is "
                "ready."
            )
            self._ask_later(begun.strategy, make, tell, text)
            return
        self._try(selected, lambda: go(make()))

    def _try(self, selected: str, edit: Callable[[], None]) -> bool:
        """Make an edit and return True, or say why it is refused."""
        before, view = self._session.plan, self._current()
        try:
            edit()
        except FuserLabError as error:
            self._answered = view
            self.answer = answers.refusal(before, view, selected, error) | {"n": self.acked, "plan": self._number}
            self._say(str(error).partition("\n")[0], "error")
            return False
        self._asked = lambda: selections.again(view, self._current(), selected)
        return True

    def _change(self, old: Header) -> str:
        """Return the change of segments and bytes relative to an earlier plan."""
        new = self._current().header
        moved = new.bytes_moved - old.bytes_moved
        more = f"{'+' if moved > 0 else '−'}{bytes_label(abs(moved))} moved" if moved else "as many bytes moved"
        return f"{old.segments} → {plural(new.segments, 'segment')}, {more}"

    def _edit(self, selected: str, kind: str, *arguments: Any) -> None:
        """Make an edit of the partition, and say what it changed, and why it changed more than it names."""
        old, plan = self._current().header, self._session.plan
        done = _edit_text(kind, arguments)
        because = previews.because(plan, kind, arguments)

        def make() -> None:
            getattr(self._session, kind)(*arguments, because=because)
            self._show()

        if self._try(selected, make):
            self._say(" ".join((f"{done}: {self._change(old)}.", *_rewritten(kind, self._session.plan), *because)))

    def _select(self, event: Message) -> None:
        self._answer_for(event["id"])

    def _switch(self, event: Message) -> None:
        strategy = event["strategy"]
        if strategy == MINE:
            self._switch_to_mine()
            return
        if strategy == self._session.state.strategy and not self._session.state.edits:
            self._say(f"The {words(strategy)} plan is already shown.")
            return
        if strategy in self._searched and not self._session.has(strategy):
            self._search(strategy)
            return
        self._session.switch(strategy)
        self._show()
        self._say(f"{words(strategy).capitalize()}: {self._counted()}.")

    def _switch_to_mine(self) -> None:
        edited = bool(self._session.state.edits)
        self._session.switch_to_mine()
        if edited or not self._session.state.edits:
            self._say("Your plan is already shown." if edited else "There are no edits to return to.")
            return
        self._show()
        self._say(f"Your plan: {self._counted()}.")

    def _counted(self) -> str:
        return plural(self._current().header.segments, "segment")

    def _search(self, strategy: str) -> None:
        """Make a strategy's plan and its certificate in the background; show it unless the user did something else."""
        begun = self._session.state

        def find() -> tuple[EditablePlan, dict[str, Any]]:
            plan = self._session.make(strategy, begun)
            return plan, answers.certificate(plan)

        def tell(answer: tuple[EditablePlan, dict[str, Any]] | None, problem: str) -> None:
            if answer is None:
                self._show()
                self._say(problem, "error")
                return
            plan, certificate = answer
            self._certified(certificate)
            self._session.keep(strategy, plan, begun)
            status = certificate.get("status", "")
            result = f"{plural(len(plan.segments), 'segment')}{f', {status}' if status else ''}"
            if self._session.state is begun:
                self._session.switch(strategy)
                self._show()
                self._say(f"{words(strategy).capitalize()}: {result}.")
                return
            self._show()
            show = {"type": "strategy", "strategy": strategy, "label": "Show it"}
            self._say(f"The {words(strategy)} plan is ready: {result}.", action=show)

        text = f"Searching for the {words(strategy)} plan{self._at_most}; the current plan stays until it is ready."
        self._ask_later(strategy, find, tell, text)

    @property
    def _seconds(self) -> float | None:
        """Time limit of a search; None if the plan's options set one."""
        options = getattr(self._session.plan, "options", None)
        return _SEARCH_SECONDS if getattr(options, "search_seconds", None) is None else None

    @property
    def _at_most(self) -> str:
        return "" if self._seconds is None else f", {self._seconds:.0f} s at most"

    def _certified(self, certificate: dict[str, Any]) -> None:
        self._certificates[certificate["hash"]] = self.certificate = certificate

    def _certify(self, event: Message) -> None:
        """Request the certificate of the plan on show."""
        plan = self._session.plan
        if plan.hash in self._certificates:
            return

        def tell(certificate: dict[str, Any] | None, problem: str) -> None:
            self._certified(certificate or {"hash": plan.hash, "problem": problem})
            self._show()
            failed = self.certificate.get("problem", "")
            self._say(failed or f"The certificate: {self.certificate['status']}.", _kind(failed))

        text = f"Searching for a cheaper plan, or a proof that there is none{self._at_most}."
        self._ask_later("certificate", lambda: answers.certificate(plan), tell, text)

    def _ask_later(
        self, topic: str, find: Callable[[], Any], tell: Callable[[Any, str], None], text: str,
    ) -> None:
        question = object()

        def tell_if_asked(answer: Any, problem: str) -> None:
            with self._lock:
                with self.hold_sync():
                    if self._asked_for is question:  # it was not cancelled
                        self._asked_for, self._searching = None, ""
                        tell(answer, problem)
                self._answer_asked()
            self._publish()

        if self._asked_for is not None or not self._background.start(find, tell_if_asked, seconds=self._seconds):
            self._say("A search is in progress; wait for it to end, or cancel it.", "error")
            return
        self._asked_for, self._searching = question, topic
        self._show()
        self._say(text)

    def _stop_search(self, _event: Message) -> None:
        if self._asked_for is None:
            self._say("No search is in progress.")
            return
        self._background.cancel()
        self._asked_for, self._searching = None, ""
        self._show()
        self._say("The search was cancelled.")

    def _choose_detail(self, event: Message) -> None:
        self._detail = detail = cast("scenes.Detail", event["detail"])
        self._opened, self._modules = frozenset(), frozenset()
        self._draw()
        self._answer_again()
        if not event.get("quiet"):
            self._say(_DETAILS[detail])

    def _open(self, event: Message) -> None:
        """Expand one segment, block or module among the others, or collapse it again."""
        if "module" in event:
            path = event["module"]
            closed = frozenset(name for name in self._modules if name == path or name.startswith(f"{path}."))
            self._modules = self._modules - closed if path in self._modules else self._modules | {path}
            self._detail = "modules"
        elif "block" in event:
            block = next(
                (each for each in blocks(self._current()) if each.id == event["block"]), None,
            )
            if block is None:
                msg = "The current plan no longer has this block."
                raise FuserLabError(msg)
            inside = range(block.first, block.last + 1)
            self._unfolded = unfolding.toggled(self._current(), self._unfolded, inside)
            self._detail = "blocks"
        elif "segment" in event:
            self._opened = unfolding.toggled(self._current(), self._opened, [event["segment"]])
            self._detail = "blocks" if self.scene["detail"] == "blocks" else "segments"
        else:
            msg = "message 'open': a segment, a block or a module must be named, given none of them."
            raise FuserLabError(msg)
        self._draw()
        self._answer_again()

    def _panel(self, event: Message) -> None:
        """Write a tab that the page asks for; why that is not possible is written there, too."""
        try:
            self._write(event["name"])
        except FuserLabError as error:
            self._send_panel(event["name"], to_html(element("p", str(error), css="fx-note")))

    def _write(self, name: str) -> None:
        """Write a tab and send it."""
        self.panels = {**self.panels, name: self.panels.get(name, {})}  # a user is looking at it
        self._send_panel(name, tabs.WRITTEN[name](self._on_show()))

    def _send_panel(self, name: str, html: str) -> None:
        self.panels = {**self.panels, name: {"hash": self._current().header.hash, "html": html}}

    def _decisions(self, event: Message) -> None:
        """Send a page of the log; the script requests the next one while it shows the log."""
        self.decisions = {"log": self.decisions["log"], **answers.decision_page(self._attempts, event["first"])}

    def _on_show(self) -> tabs.Shown:
        """Return the data from which tabs are written."""
        view, is_offered = self._current(), self._compared in dict(self._others())
        return tabs.Shown(
            plan=self._session.plan, view=view, amounts=self._amounts, rows=self._rows,
            compared=self._compared if is_offered else "", other=self._compared_plan(), difference=self._difference(),
            others=self._other_views, certificate=self._certificates.get(view.header.hash),
            searching=bool(self._searching), best_edits=self._best_edits, scheduled=self._scheduled,
            ranked=self._ranked, number=self._number,
        )

    def _schedule(self, event: Message) -> None:
        """Show a segment's schedule, run it, possibly with one step changed, or return to the automatic kernel.

        ``rank`` lists other parameters by their predicted times; ``values`` are such parameters.
        """
        segment: Any = self._segment_of(event)
        self._scheduled = number = segment.index
        if "values" in event:
            self._session.parameters(number, event.get("nest", 0), event["values"])
            self._show()
            self._write("schedule")
            self._say(f"S{number} has these parameters. Run measures them.")
            return
        if "step" not in event and "given" not in event:
            self._ranked = bool(event.get("rank"))
            try:
                self._write("schedule")
            finally:
                self._ranked = False
            return
        schedule: Any = None
        if event.get("given", True):
            schedule = segment.schedule.transforms
        if "step" in event:
            schedule = schedules.changed(
                schedule or (), event["step"], event.get("factor"), event.get("name", "factor"),
            )
        self._session.schedule(number, schedule)
        self._show()
        self._write("schedule")
        edit: Any = self._session.plan.segments[number]
        self._say(f"S{number} " + ("has its automatic kernel." if edit.edit is None else "follows this schedule."))

    def _compare_with(self, event: Message) -> None:
        chosen = event["with"]
        if chosen and chosen not in dict(self._others()):
            self._say(f"There is no {words(chosen)} plan to compare with.", "error")
            return
        if chosen in self._searched and not self._session.has(chosen):
            self._say(f"The {words(chosen)} plan is not available yet; switch to it once, then compare.", "error")
            return
        self._compared = chosen
        self._show()
        self._write("compare")
        self._say(f"Compared with {dict(self._others())[chosen]}." if chosen else "The comparison is off.")

    def _others(self) -> list[tuple[str, str]]:
        """Return the plans with which the one on show can be compared: key and label."""
        edited = [("start", "the plan before the edits")] if self._session.state.edits else []
        if self._session.ruled is not None:
            edited.append(("ruled", f"the plan with {self._session.state.lifted}"))
        if self._session.state.annotated:
            edited.append(("unannotated", "the plan without your annotations"))
        if not self._session.state.edits and self._session.mine is not None:
            edited.append((MINE, "your plan"))
        here = None if self._session.state.edits else self._session.state.strategy
        return edited + [(s, f"the {words(s)} plan") for s in self._session.strategies if s != here]

    def _other(self, key: str) -> EditablePlan | None:
        if key == "start":
            return self._session.start
        if key == "unannotated":
            slow = self._session.state.strategy in self._searched
            return None if slow and not self._session.has_unannotated else self._session.unannotated
        if key == "ruled":
            return self._session.ruled
        if key == MINE:
            return None if self._session.mine is None else self._session.mine.plan
        return self._session.get(key) if key not in self._searched or self._session.has(key) else None

    def _difference(self) -> PlanDiff | None:
        other = self._compared_plan()
        return None if other is None or not hasattr(other, "segmented") else plan_diff(other, self._session.plan)

    def _compared_plan(self) -> EditablePlan | None:
        return self._other(self._compared) if self._compared in dict(self._others()) else None

    def _other_views(self) -> list[tuple[str, str, ViewModel | None]]:
        views: list[tuple[str, str, ViewModel | None]] = []
        for key, label, plan in self._beside_it():
            view = None if plan is None else view_plan(plan, decisions=False)
            if view is not None:
                self._plans[view.header.hash] = plan
            views.append((key, label, view))
        return views

    def _beside_it(self) -> list[tuple[str, str, EditablePlan | None]]:
        """Return the plans to compare with: None for one that needs a search, or a large one that is not made yet."""
        large = is_large(self._current())

        def at_hand(key: str) -> bool:
            return key in _NOT_STRATEGIES or self._session.has(key) or not (large or key in self._searched)

        return [(key, words, self._other(key) if at_hand(key) else None) for key, words in self._others()]

    @property
    def _amounts(self) -> Amounts:
        plan, timings = self._session.plan, self._measured_last
        return Amounts(
            target=target_name(plan), plans=self._plans, machine=self._machine, measured=self._totals,
            peers=self._peers, note="" if timings is None else timing_note(timings), certificates=self._certificates,
        )

    def _undo(self, _event: Message) -> None:
        undone = self._session.undo()
        self._back(f"Undid {undone}." if undone else "Nothing to undo.", changed=bool(undone))

    def _redo(self, _event: Message) -> None:
        redone = self._session.redo()
        self._back(f"Redid {redone}." if redone else "Nothing to redo.", changed=bool(redone))

    def _reset(self, _event: Message) -> None:
        state = self._session.state
        changed = bool(state.edits) or state.annotated or bool(state.lifted)
        self._session.reset()
        self._back("Back to the plan without edits." if changed else "There are no edits to reset.", changed=changed)

    def _back(self, text: str, *, changed: bool) -> None:
        if changed:
            self._show()
        self._say(text)

    def _run(self, _event: Message) -> None:
        if self._inputs is None:
            self._say("Run needs inputs: give them to the explorer, as in explore(fd, inputs).", "error")
            return
        baseline, plan = self._session.baseline, self._session.plan
        plans = [baseline] if plan.hash == baseline.hash else [baseline, plan]
        self._time(plans, "Timing the baseline plan." if len(plans) == 1 else "Timing the baseline and this plan.")

    def _run_all(self, _event: Message) -> None:
        """Time all available plans of the comparison, and the ops one by one."""
        made = (plan for _, _, plan in self._beside_it())
        offered = (self._session.baseline, self._session.plan, *made)
        plans = {timed_plan.hash: timed_plan for timed_plan in offered if timed_plan is not None}
        if self._inputs is None:
            self._run({})
            return
        peers = one_by_one(self._session.baseline, self._inputs) if self._runner.times_peers else {}
        also = " and the ops one by one" if peers else ""
        self._time(list(plans.values()), f"Timing {plural(len(plans), 'plan')}{also}.", peers)

    def _time(
        self, plans: list[EditablePlan], text: str, peers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        if self._profiling is not None:
            self._say("A plan is being profiled; run again when it is done.", "error")
            return
        if self._inputs is None or not self._runner.start(plans, self._inputs, peers):
            self._say("A run is in progress; cancel it first, or wait for it to end.", "error")
            return
        self._timed_hashes = tuple(timed_plan.hash for timed_plan in plans)
        self.times = {**self.times, "running": True, "done": 0, "total": 0}
        self._say(text)

    def _cancel(self, _event: Message) -> None:
        self._runner.cancel()
        self._say(
            "Cancelling once the current measurement ends." if self._runner.running else "Nothing is running."
        )

    def _source(self, event: Message) -> None:
        index, target, view = event["segment"], event["target"], event.get("view", "source")
        segments = {s.index: s for s in self._session.plan.segments}
        said: dict[str, Any] = {
            "n": event["n"], "segment": index, "target": target, "view": view, "hash": self._session.plan.hash,
        }
        if index not in segments:
            self.source = said | {"problem": f"This plan has no segment {index}."}
            return
        segment = segments[index]
        self._source_asked = event
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "source": lambda: sources.source(segment, target),
            "assembly": lambda: sources.machine(segment, target),
            "beside": lambda: lines.beside(segment, target),
            "steps": lambda: lines.steps(segment, target),
            "profile": lambda: self._profiled(segment, target),
        }
        record = targets.find(target)
        if view not in makers or record is None:
            self.source = said | {"problem": f"There is no view {view!r} of kernels for {target!r}."}
            return
        if record.assembly is None or view not in {"assembly", "beside"}:  # without machine code
            self.source = said | makers[view]()
            return

        def tell(answer: dict[str, Any] | None, problem: str) -> None:
            with self._lock, self.hold_sync():
                self.source = said | (answer or {"problem": problem})

        if not self._compiler.start(makers[view], tell):
            self.source = said | {"problem": "Another segment is being compiled; try again in a moment."}

    def _source_again(self) -> None:
        if self._source_asked:
            self._source(self._source_asked)

    def _profiled(self, segment: Any, target: str) -> dict[str, Any]:
        """Return the profile of a segment's kernel, or that there is none yet."""
        key = self._session.plan.hash, target
        if self._profiling == key:
            return {"waiting": "Profiling; the kernels are compiled first …"}
        profile = self._profiles.get(key)
        return {"unprofiled": True} if profile is None else profiles.beside(segment, profile)

    def _profile(self, event: Message) -> None:
        """Profile the plan on show in the background; nothing else is measured or previewed in the meantime."""
        plan, target = self._session.plan, event["target"]
        if target not in targets.names():
            msg = f"unknown target {target!r}; choose from {', '.join(targets.names())}."
            raise InputError(msg)
        if self._runner.running:
            self._say("A run is in progress; profile when it is done.", "error")
            return

        def tell(profile: PlanProfile | None, problem: str) -> None:
            with self._lock, self.hold_sync():
                self._profiling = None
                if profile is not None:
                    self._profiles[plan.hash, target] = profile
                    self._say(f"Profiled {profile.plan} on {profile.device}.")
                else:
                    self._say(problem, "error")
                self._guarded({"type": "source"}, self._source_again)
            self._publish()

        if not self._compiler.start(lambda: profiling.profiled(plan, self._inputs, target), tell):
            self._say("Another segment is being compiled, or a plan profiled; try again in a moment.", "error")
            return
        self._profiling = plan.hash, target
        self._source_again()
        self._say("Profiling.")

    def _code(self, event: Message) -> None:
        form = event.get("form", FORMS[0])
        self.code = {"n": event["n"], "form": form, "forms": FORMS, "text": self._session.plan.to_python(form)}
        self._say("Copied the plan as code to the clipboard.")

    # ---- previews of edits

    def _foresee(self) -> None:
        """Compute previews of the plan on show while idle, and send them as they are found."""
        plan, view, number = self._session.plan, self._current(), self._number
        if self.foreseen.get("plan") == number:
            return
        self._ahead.cancel()
        self.foreseen = {"plan": number, "edges": {}}
        if not previews.can_preview(plan):
            return

        def stopped() -> bool:
            with self._lock:  # waits while a click is answered, and while plans are timed
                return self._session.plan is not plan or self._runner.running or self._profiling is not None

        def find() -> tuple[Any, ...] | None:
            for batch in previews.in_batches(plan, view, stopped):
                with self._lock, self.hold_sync():
                    self._send_previews(number, batch)
            asked = "edits" in self.panels or not is_large(view)
            return previews.best(plan) if asked and not stopped() else None

        def tell(best: tuple[Any, ...] | None, _problem: str) -> None:
            with self._lock, self.hold_sync():
                if best is not None and self._session.plan is plan:
                    self._best = plan, best
                    if "edits" in self.panels:
                        self._write("edits")

        self._ahead.start(find, tell)

    def _send_previews(self, number: int, hints: dict[str, previews.Hint]) -> None:
        if hints and self.foreseen.get("plan") == number:
            self.foreseen = {"plan": number, "edges": {**self.foreseen["edges"], **hints}}

    def _best_edits(self) -> str:
        """Return the ranked edits of the plan on show, or that the search is in progress."""
        plan = self._session.plan
        if not previews.can_preview(plan):
            return previews.best_html((), self._number)
        if self._best is not None and self._best[0] is plan:
            return previews.best_html(self._best[1], self._number)
        if not self._ahead.busy:
            self.foreseen = {}
            self._foresee()
        return previews.best_html(None, self._number)

    # ---- the picture and its data

    def _edge(self, event: Message) -> EdgeView:
        edge = self._current().edge(event["id"])
        if edge is None:
            msg = "The current plan no longer has this edge."
            raise FuserLabError(msg)
        return edge

    def _segment_of(self, event: Message) -> Any:
        number = event["segment"]
        segment = next((each for each in self._session.plan.segments if each.index == number), None)
        if segment is None:
            msg = f"This plan has no segment {number}."
            raise FuserLabError(msg)
        return segment

    def _current(self) -> ViewModel:
        if self._view is None or self._drawn is not self._session.plan:
            self._drawn = self._session.plan
            self._view = view_plan(self._session.plan, title=self._title, decisions=False, drawn=self._drawn_last)
            self._plans[self._view.header.hash] = self._session.plan
            self._number += 1
        return self._view

    def _answer_for(self, selected: str) -> None:
        self._answered = self._current()
        said = answers.answer(self._session.plan, self._answered, selected)
        if said and self.scene.get("detail") in {"modules", "blocks"}:
            unfolded = unfolding.blocks_of(self._answered, self._unfolded)
            said["actions"] = answers.folding(self._answered, said, {*self._modules, *unfolded})
        self.answer = said | {"n": self.acked, "plan": self._number}

    def _answer_again(self) -> None:
        """Answer for the selection once the picture is sent, because an action folds what another one has unfolded."""
        selected = str(self.answer.get("id", ""))
        if selected:
            self._asked, self._adopts = (lambda: selected), False  # the page may have selected something else since

    def _draw(self) -> None:
        """Send the picture of the current plan, the only thing that depends on the level of detail."""
        view = self._current()
        with self.hold_sync():
            detail = self._detail or scenes.first_detail(view)
            family = detail, self._session.state.origin.hash
            if self._pieces.stock.is_full:
                self._pieces = scenes.Pieces(self._pieces.stock.end)
            drawn = scenes.scene(
                view, self._pieces, detail=detail, opened=unfolding.segments_of(view, self._opened),
                unfolded=unfolding.blocks_of(view, self._unfolded), modules=self._modules,
                place=lambda v: self._canvas.lay_out(v, family),
            )
            drawn["facts"] += self._amounts.facts(view.header)
            difference = self._difference()
            if difference is not None:
                drawn["marks"] = scenes.marks(view, difference)
            self.scene = {**drawn, "plan": self._number, "rev": int(self.scene.get("rev", 0)) + 1}

    def _show(self) -> None:
        """Send the picture and the numbers of the current plan; of a new log only its length."""
        view = self._current()
        with self.hold_sync():
            self._draw()
            selected = str(self.answer.get("id", ""))
            if selected and self._answered is not None and self._answered is not view:
                before = self._answered
                self._asked = lambda: selections.again(before, view, selected)
            log = getattr(self._session.plan, "decisions", None) or ()
            if log is not self._log:  # an edited plan has the log of its original plan
                self._log, self._attempts = log, tuple(log)
                self.decisions = {"log": self._number, "total": len(self._attempts)}
            # These depend on more than the plan.
            self.panels = {name: said for name, said in self.panels.items() if name not in _OF_THE_SESSION}
            self._show_history()

    def _colour(self) -> None:
        """Send the values of colourings, unless they are those of this plan and, once a run has ended, these times."""
        of = self._session.plan, self._heated[1] if self._runner.running else self._rows
        if not _are_same(of, self._heated):
            self._heated = of
            self.heat = {"plan": self._number, **heat(self._session.plan, self._current(), self._rows)}

    def _show_history(self) -> None:
        """Send the history, the possible actions, and the switches."""
        view, state = self._current(), self._session.state
        self.history = {
            "undo": self._session.can_undo,
            "redo": self._session.can_redo,
            "edits": list(state.edits),
            "resettable": bool(state.edits) or state.annotated or bool(state.lifted),
            "liftable": liftable(self._session.plan),
            "runnable": self._inputs is not None,
            "notes": self._notes,
            "annotations": [f"segment_set({annotation.tensor})" for annotation in view.annotations if annotation.own],
            "last": {"step": state.step, "because": state.because} if state.because else {},
            "strategy": state.strategy,
            "controls": controls(self._session, self._searching, self._mention()),
            "searching": self._searching,
        }

    def _look_beside(self) -> None:
        """Search for top-down plans with other cuts, except for large fusions, which would keep the kernel busy."""
        plan: Any = self._session.plan
        if self._knows_alternatives() or not hasattr(plan, "definition") or is_large(self._current()):
            return

        def tell(alternatives: tuple[Alternative, ...] | None, _problem: str) -> None:
            with self._lock, self.hold_sync():
                self._alternatives = plan, alternatives or ()
                self._show_history()

        self._beside.start(lambda: presegmentation.alternatives(plan), tell, seconds=_SEARCH_SECONDS)

    def _knows_alternatives(self) -> bool:
        """Whether the alternatives found have the definition and the meaning of hints on show."""
        shown, alternative = self._session.plan, self._alternatives[0]
        if alternative is None or getattr(shown, "definition", None) is not alternative.definition:
            return False
        both = [plan.options.for_strategy(None) for plan in (cast("Any", shown), alternative)]
        return bool(both[0] == both[1])

    def _mention(self) -> Alternative | None:
        """Return the top-down plan with the fewest bytes, if it moves fewer than the plan on show."""
        alternatives = self._alternatives[1] if self._knows_alternatives() else ()
        moved = self._current().header.bytes_moved
        if not alternatives or not moved:
            return None
        best = replace(alternatives[0], share=presegmentation.bytes_moved(alternatives[0].plan) / moved)
        return best if best.share < 1 else None

    def _show_alternative(self, _event: Message) -> None:
        mentioned = self._mention()
        if mentioned is None:
            self._say("There is no cheaper top-down plan to show.")
            return
        self._session.go(
            self._session.alternative(mentioned.plan, dict(mentioned.switches), f"top-down with {mentioned.cuts}"),
        )
        self._show()
        self._say(f"Top-down with {mentioned.cuts}: {self._counted()}.")

    def _on_progress(self, progress: Progress) -> None:
        with self._lock, self.hold_sync():
            self._measured_last = progress.timings or self._measured_last
            self._rows = () if progress.timings is None else tuple(progress.timings.rows)
            totals = [row for row in self._rows if row.segment is None]
            self._totals |= dict(zip(self._timed_hashes, totals, strict=False))
            self._peers = tuple(totals[len(self._timed_hashes) :])
            if progress.model is not None and progress.model != self._machine:
                self._machine = progress.model
                self._show()
            if not progress.running:
                self.foreseen = {}
                self._foresee()
                self.panels = {name: said for name, said in self.panels.items() if name not in _OF_TIMES}
            self.times = {
                "running": progress.running,
                "done": progress.done,
                "total": progress.total,
                "table": None if progress.timings is None else timing_table(progress.timings).to_dict(),
                "note": "" if progress.timings is None else timing_note(progress.timings),
                "plans": [row.plan_hash for row in self._rows],
                "measured": self._measured(),
            }
            if progress.problem:
                self._say(progress.problem, "error")
            elif progress.cancelled:
                self._say("Cancelled; the rows measured so far are kept.")
            elif not progress.running:
                self._say("Done. The table shows medians.")
        self._publish()

    def _measured(self) -> dict[str, list[str]]:
        """Return the median of each timed plan, by its hash, as a number of the header."""
        about = "median of the whole plan; see Timings"
        return {
            plan: [seconds_label(row.median), f"measured ({place(row.device)})", about]
            for plan, row in self._totals.items() if row.median > 0
        }

    def _say(self, text: str, kind: str = "info", *, action: dict[str, str] | None = None) -> None:
        """Show a sentence in the status line, with a button for a possible action."""
        said = {"n": int(self.status.get("n", 0)) + 1, "kind": kind, "text": text[:1].upper() + text[1:]}
        self.status = said if action is None else said | {"action": action}


# What a page cannot set.
_FROM_PYTHON: Final = frozenset(Explorer.class_own_traits(sync=True)) - {"events", *_TRAITS}


@contextmanager
def _uncollected() -> Iterator[None]:
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


def _are_same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return all(value is other for value, other in zip(a, b, strict=True))


def _edit_text(kind: str, arguments: Sequence[Any]) -> str:
    """Return the text of an edit that was made."""
    match kind:
        case "cut":
            return f"Cut at {' → '.join(map(str, arguments))}"
        case "glue":
            return f"Glued S{arguments[0]} and S{arguments[1]}"
        case "recompute":
            return f"Recomputed {arguments[0]} in S{arguments[1]}"
        case "narrow":
            return f"{arguments[0]} passes as {arguments[1]}"
    return f"Moved {arguments[0]}"


def _rewritten(kind: str, plan: object) -> tuple[str, ...]:
    """Return the log's sentence about an edit that rewrites the fusion: that of the last attempt with a text."""
    if kind not in REWRITINGS:
        return ()
    said = [attempt.text for attempt in cast("Any", plan).decisions if attempt.accepted and attempt.text]
    return (f"{said[-1]}.",)


def _left_behind(state: State) -> str:
    edits = len(state.edits)
    return f"; {plural(edits, 'edit')} of the partition dropped" if edits else ""


def _kind(problem: str) -> str:
    return "error" if problem else "info"


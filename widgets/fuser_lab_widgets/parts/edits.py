"""Edits of the plan on show: of its partition, of its annotations, and of the rules and switches that made it."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from fuser_lab.errors import FuserLabError
from fuser_lab.plan.code import REWRITINGS
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import Header
from fuser_lab_widgets import answers, previews
from fuser_lab_widgets.controls import settings_text
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.comparison import Comparison
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.search import Search
from fuser_lab_widgets.parts.selection import Selection
from fuser_lab_widgets.parts.steps import Steps
from fuser_lab_widgets.session import EditablePlan, State


class Edits:
    """The edits that a user makes; a refused one leaves the plan as it is and says why."""

    def __init__(
        self, page: Page, selection: Selection, search: Search, comparison: Comparison, steps: Steps,
    ) -> None:
        self._page, self._selection, self._search, self._comparison = page, selection, search, comparison
        self._steps = steps
        self.handlers: Handlers = {
            "act": self._act, "cut": self._cut, "glue": self._glue, "move": self._move, "recompute": self._recompute,
            "narrow": self._narrow, "edit": self._edit, "annotate": self._annotate, "unannotate": self._unannotate,
            "mark": self._mark, "lift": self._lift, "switches": self.switches,
        }

    def _act(self, event: Message) -> None:
        """Carry out a click on an edge: cut inside a segment, glue at a boundary, explain at an input or output."""
        edge = self._page.edge(event)
        if event.get("kind", edge.kind) != edge.kind:
            crosses = "crosses segments" if edge.kind == "boundary" else "stays in one segment"
            raise FuserLabError(f"{edge.tensor} {crosses} in the current plan; nothing was done.")
        if edge.kind == "inside":
            self._cut(event)
        elif edge.kind == "boundary":
            self._glue(event)
        else:
            self._selection.select(event)
            self._page.say(str(self._page.widget.answer.get("sentence", "")))

    def _cut(self, event: Message) -> None:
        edge = self._page.edge(event)
        if edge.kind != "inside":
            self._selection.select(event)
            self._page.say(f"{edge.tensor} is already in memory there, so there is nothing to cut.", "error")
            return
        consumer = previews.one_of_several(self._page.view, edge)
        self._make(edge.id, "cut", edge.tensor, *(() if consumer is None else (consumer,)))

    def _glue(self, event: Message) -> None:
        edge = self._page.edge(event)
        a, b = edge.segments
        if a is None or b is None or a == b:
            self._selection.select(event)
            text = f"{edge.tensor} does not cross from one segment to another there, so there is nothing to glue."
            self._page.say(text, "error")
            return
        self._make(edge.id, "glue", a, b)

    def _move(self, event: Message) -> None:
        node = next((n for n in self._page.view.nodes if n.id == event["id"] and n.kind == "op"), None)
        if node is None:
            raise FuserLabError("The current plan no longer has this op.")
        self._make(node.id, "move", node.tensor, event["segment"])

    def _recompute(self, event: Message) -> None:
        edge = self._page.edge(event)
        self._make(edge.id, "recompute", edge.tensor, edge.segments[1])

    def _narrow(self, event: Message) -> None:
        edge = self._page.edge(event)
        self._make(edge.id, "narrow", edge.tensor, event["dtype"])

    def _edit(self, event: Message) -> None:
        """Make one of the edits in the list of the best ones."""
        kind, *arguments = event["edit"]
        if kind == "annotate":
            (tensor,) = arguments
            page, done = self._page, f"Inserted segment_set at {tensor}"
            self._resegment(page.selected, lambda: page.session.annotate_at(tensor), done)
            return
        self._make(self._page.selected, kind, *arguments)

    def _make(self, selected: str, kind: str, *arguments: Any) -> None:
        """Make an edit of the partition, and say what it changed, and why it changed more than it names."""
        page = self._page
        before, header = page.plan, page.view.header

        def make() -> None:
            getattr(page.session, kind)(*arguments)
            page.compare(before)
            page.show()

        def tell() -> None:
            because = previews.because(before, kind, arguments)
            page.session.explain(because)
            self._steps.send()
            done = f"{_edit_text(kind, arguments)}: {self._change(header, asks_why=False)}."
            page.say(" ".join((done, *_rewritten(kind, page.plan), *because)))

        if self._is_made(selected, make):
            page.later("edit", tell)

    def _annotate(self, event: Message) -> None:
        """Insert a segment_set at an edge: for all readers of the tensor, or for the one at the end of the edge."""
        edge, session = self._page.edge(event), self._page.session
        reader = None if event.get("all") else answers.reader_at(self._page.view, edge)
        place = edge.tensor if reader is None else f"{edge.tensor} → {reader}"
        self._resegment(edge.id, lambda: session.annotate_at(edge.tensor, reader), f"Inserted segment_set at {place}")

    def _unannotate(self, event: Message) -> None:
        """Remove the segment_set at an edge, or the selected one."""
        view, selected, session = self._page.view, event["id"], self._page.session
        edge = view.edge(selected)
        annotation = next((candidate for candidate in view.annotations if candidate.node == selected), None)
        if edge is not None:
            annotation = answers.annotation_at(view, edge)
        if annotation is None:
            raise FuserLabError("There is no segment_set to remove; select an edge with a mark.")
        hint, done = annotation.hint, f"Removed the segment_set of {annotation.tensor}"
        self._resegment(selected, lambda: session.without_annotation(hint), done)

    def _mark(self, event: Message) -> None:
        """Insert a segment_set at an edge, or remove the existing one."""
        there = answers.annotation_at(self._page.view, self._page.edge(event))
        (self._annotate if there is None else self._unannotate)(event)

    def switches(self, event: Message) -> None:
        """Segment again with other switches of the segmenter."""
        changes, session = event["switches"], self._page.session
        text = settings_text(changes)
        self._resegment(self._page.selected, lambda: session.set_switches(changes, text), f"Segmented with {text}")

    def _lift(self, event: Message) -> None:
        """Segment again without one rule of nvFuser, and compare with the plan under all rules."""
        session, code, selected = self._page.session, event["rule"], self._page.selected

        def earlier_plan() -> EditablePlan | None:
            if session.ruled is not None:
                self._comparison.choose("ruled")
            return session.ruled

        self._resegment(selected, lambda: session.without_rule(code), f"Without the rule {code}", earlier_plan)

    def _resegment(
        self, selected: str, make: Callable[[], State], done: str,
        reference: Callable[[], EditablePlan | None] = lambda: None,
    ) -> None:
        """Segment again and show the plan beside the reference or the plan before; a slow strategy works aside."""
        page, session = self._page, self._page.session
        before, begun = page.view.header, session.state

        def go(state: State) -> None:
            session.go(state)
            page.compare(reference() or begun.plan)
            page.show()
            page.later("edit", lambda: page.say(f"{done}: {self._change(before, asks_why=True)}{_left_behind(begun)}."))

        def tell(state: State | None, problem: str) -> None:
            if state is not None and session.state is begun:
                go(state)
                return
            page.show()
            page.say(problem or "The plan has changed; the result is for the previous plan.", "error")

        if self._search.is_slow(begun.strategy):
            self._search.start_plan(begun.strategy, make, tell)
        else:
            self._is_made(selected, lambda: go(make()))

    def _is_made(self, selected: str, edit: Callable[[], None]) -> bool:
        """Make an edit and return True, or say why it is refused."""
        before, view = self._page.plan, self._page.view
        try:
            edit()
        except FuserLabError as error:
            self._selection.refuse(before, view, selected, error)
            self._page.say(str(error).partition("\n")[0], "error")
            return False
        self._selection.move(view, selected)
        return True

    def _change(self, before: Header, *, asks_why: bool) -> str:
        """Return what moved, and the change of segments, bytes and predicted time relative to an earlier plan."""
        changed = self._page.change(asks_why=asks_why)
        if changed is not None:
            return f"{changed.ops}; {changed.counts}"
        now = self._page.view.header
        moved = now.bytes_moved - before.bytes_moved
        more = f"{'+' if moved > 0 else '−'}{bytes_label(abs(moved))} moved" if moved else "as many bytes moved"
        return f"{before.segments} → {plural(now.segments, 'segment')}, {more}"


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

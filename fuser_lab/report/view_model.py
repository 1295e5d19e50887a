"""The common description of a plan that text, SVG, HTML and the widget use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from fuser_lab.files.json_text import json_text
from fuser_lab.ir.tensor_names import names_by_tensor
from fuser_lab.passes import annotations_of
from fuser_lab.report.drawing import COMPACT_FROM, Drawing, Drawn
from fuser_lab.report.graph_views import (
    EdgeKind,
    EdgeView,
    NodeKind,
    NodeView,
    SegmentView,
    VerdictView,
    view_verdicts,
    word,
)
from fuser_lab.report.parts import crossing, node_called, rough, select
from fuser_lab.report.passes import PassView, view_passes
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.units import tensor_bytes
from fuser_lab.segmentation.events import Attempt, groups_text
from fuser_lab.segmentation.layouts import BoundaryLayout, order_text

__all__ = [
    "SCHEMA_VERSION", "AnnotationView", "DecisionView", "EdgeKind", "EdgeView", "Header", "LayoutView", "NodeKind",
    "NodeView", "SegmentView", "VerdictView", "ViewModel", "view_decisions", "view_layouts", "view_plan",
    "view_verdicts", "word",
]

SCHEMA_VERSION = 1  # of the format of view models

@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The headline numbers of a plan; ``bytes_ideal`` is the minimum traffic of a single kernel.

    ``ops`` are those of the segments, in each that computes them, ``defined`` those of the definition without passes.
    """

    title: str
    plan: str
    strategy: str
    hash: str
    segments: int
    ops: int
    bytes_moved: int
    bytes_ideal: int
    bytes_crossing: int
    defined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """One attempt of the segmenter; ``names`` are all expressions of its ``groups``, ``of`` the groups in short."""

    seq: int
    phase: str
    kind: str
    of: str
    names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    accepted: bool
    code: str
    text: str
    verdicts: tuple[VerdictView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutView:
    """The memory layout of a tensor that a segment writes; orders are positions of axes, slowest first.

    ``cost`` and ``natural_cost`` are the bytes that strided accesses cost, in its layout and in its producer's layout.
    """

    tensor: str
    producer: int
    consumers: tuple[int, ...]
    required: str
    hint: str
    natural: str
    preferred: str
    chosen: str
    by: str
    cost: int
    natural_cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationView:
    """A ``segment_set`` of the fusion that is cut: its operand, its result, and the names of the result's readers.

    ``own`` says that the definition contains it, so that ``plan.without_annotation(hint)`` removes it; passes make the
    others. ``node`` is its op, and ``edges`` are its outgoing edges, which carry the mark.
    """

    tensor: str
    hint: str
    readers: tuple[str, ...]
    own: bool
    node: str
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewModel:
    """Everything that a view of one plan shows, as plain data."""

    header: Header
    nodes: Sequence[NodeView]
    edges: Sequence[EdgeView]
    segments: tuple[SegmentView, ...]
    decisions: tuple[DecisionView, ...] = ()
    timings: tuple[Mapping[str, Any], ...] = ()
    sources: Mapping[str, Mapping[str, str]] | None = None
    layouts: tuple[LayoutView, ...] = ()
    passes: tuple[PassView, ...] = ()
    annotations: tuple[AnnotationView, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)  # the user's names of tensors, by the fusion's

    def node(self, ident: str) -> NodeView | None:
        """Return the node with an id."""
        return node_called(self.nodes, ident)

    def edge(self, ident: str) -> EdgeView | None:
        """Return the edge with an id."""
        starts = {ident[:n] for n, letter in enumerate(ident) if letter == "|"}
        near = select(self.edges, lambda e: e.tensor in starts and ident.endswith(f"|{e.target}"), starts)
        return next((edge for edge in near if edge.id == ident), None)

    def edges_of(self, tensor: str) -> tuple[EdgeView, ...]:
        """Return the edges of a tensor."""
        return tuple(select(self.edges, lambda edge: edge.tensor == tensor, (tensor,)))

    @property
    def compact(self) -> bool:
        """Whether there are so many ops that each has only one line."""
        ops = (node for node in rough(self.nodes) if node.kind == "op")
        return next(islice(ops, COMPACT_FROM, None), None) is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {"version": SCHEMA_VERSION, **asdict(replace(self, nodes=tuple(self.nodes), edges=tuple(self.edges)))}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON text; non-finite floats become null."""
        return json_text(self.to_dict(), indent=indent)


def view_plan(
    plan: PlanLike,
    *,
    title: str | None = None,
    timings: Sequence[Mapping[str, Any]] = (),
    sources: Mapping[str, Mapping[str, str]] | None = None,
    decisions: bool = True,
    passes: bool = False,
    drawn: Drawn | None = None,
) -> ViewModel:
    """Return the view model of a plan; ``decisions=False`` omits its log, ``passes`` runs the passes again.

    ``drawn`` holds drawings of similar plans; equal parts are reused from it.
    """
    replicas = getattr(getattr(plan, "segmented", None), "replicas", {})
    lines, modules = getattr(plan, "sources", ()), getattr(plan, "modules", ())
    names = getattr(plan, "names", ())
    passed = getattr(plan, "crossing_bytes", None)
    drawing = Drawing(plan.fusion, plan.segments, replicas, lines, modules, drawn, names, passed)
    return ViewModel(
        header=_header(plan, drawing, title),
        nodes=drawing.nodes,
        edges=drawing.edges,
        segments=tuple(drawing.segments),
        decisions=view_decisions(getattr(plan, "decisions", None) or ()) if decisions else (),
        timings=tuple(timings),
        sources=sources,
        layouts=_layouts(plan),
        passes=view_passes(plan) if passes else (),
        annotations=_annotations(plan, drawing),
        called=names_by_tensor(names),
    )


def _annotations(plan: PlanLike, drawing: Drawing) -> tuple[AnnotationView, ...]:
    if not drawing.hinted:
        return ()
    hints = annotations_of(plan.fusion)
    recorded: set[str] = set()
    if hints and hasattr(plan, "definition"):
        recorded = {annotation.hint for annotation in annotations_of(plan.definition)}
    nodes = {node.tensor: node.id for node in drawing.nodes if node.kind == "op"} if hints else {}
    return tuple(
        AnnotationView(
            tensor=annotation.tensor,
            hint=annotation.hint,
            readers=annotation.readers,
            own=annotation.hint in recorded,
            node=nodes[annotation.hint],
            edges=tuple(edge.id for edge in drawing.edges if edge.tensor == annotation.hint),
        )
        for annotation in hints
    )


def _layouts(plan: Any) -> tuple[LayoutView, ...]:
    """Return the layouts of a plan, or nothing if all are row-major."""
    if not hasattr(plan, "layouts"):
        return ()
    written = (tv for segment in plan.segments for tv in segment.outputs)
    ordered = any(tv.domain.allocation is not None for tv in (*plan.fusion.tensor_inputs, *written))
    return view_layouts(plan.layouts()) if ordered or plan.options.layout_mode != "outputs" else ()


def view_layouts(layouts: Iterable[BoundaryLayout]) -> tuple[LayoutView, ...]:
    """Return the layouts of the tensors that segments write."""
    return tuple(
        LayoutView(
            tensor=layout.tensor,
            producer=layout.producer,
            consumers=layout.consumers,
            required=order_text(layout.required),
            hint="-" if layout.hint is None else f"{order_text(layout.hint.order)} as {layout.hint.origin}",
            natural=order_text(layout.natural),
            preferred="; ".join(f"S{n}: {order_text(order)}" for n, order in layout.preferred) or "-",
            chosen=order_text(layout.chosen),
            by=layout.by,
            cost=layout.cost,
            natural_cost=layout.natural_cost,
        )
        for layout in layouts
    )


def view_decisions(log: Iterable[Attempt]) -> tuple[DecisionView, ...]:
    """Return the attempts of a decision log in order."""
    return tuple(
        DecisionView(
            seq=attempt.seq,
            phase=attempt.phase,
            kind=attempt.kind.value,
            of=groups_text(attempt.subjects),
            names=tuple(sorted(attempt.names)),
            groups=attempt.subjects,
            accepted=attempt.accepted,
            code=attempt.code,
            text=attempt.text,
            verdicts=view_verdicts(attempt.verdicts),
        )
        for attempt in log
    )


def _header(plan: PlanLike, drawing: Drawing, title: str | None) -> Header:
    ideal = getattr(plan, "bytes_ideal", None)
    if ideal is None:  # of a picture, whose sizes need not be known
        fusion = plan.fusion
        ends = {t.name: t for t in fusion.tensor_inputs if t in fusion.users}
        ends |= {t.name: t for t in fusion.outputs if t in fusion.producers}
        ideal = sum(map(tensor_bytes, ends.values()))
    passed = {edge.tensor: edge.passed for edge, _ in crossing(drawing.edges) if edge.kind == "boundary"}
    return Header(
        title=title or plan.name,
        plan=plan.name,
        strategy=plan.strategy,
        hash=plan.hash,
        segments=len(drawing.segments),
        ops=drawing.ops,
        bytes_moved=sum(s.bytes_in + s.bytes_out for s in drawing.segments),
        bytes_ideal=ideal,
        bytes_crossing=sum(passed.values()),
        defined=len(getattr(plan, "definition", plan.fusion).exprs),
    )

"""The one description of a plan that text, SVG, HTML and the widget all draw from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from fuser_lab.events import group_text
from fuser_lab.ir import TensorView
from fuser_lab.json_text import json_text
from fuser_lab.passes import annotations_of
from fuser_lab.report.expressions import expr_text
from fuser_lab.report.keeping import kept
from fuser_lab.report.passes import PassView, view_passes
from fuser_lab.report.units import dtype_label, shape_label, tensor_bytes
from fuser_lab.segmentation.layouts import order_text
from fuser_lab.segmentation.origins import source_of

if TYPE_CHECKING:
    from fuser_lab.events import Attempt
    from fuser_lab.ir import Expr, Fusion
    from fuser_lab.report.subject import PlanLike, SegmentLike
    from fuser_lab.segmentation.layouts import BoundaryLayout

SCHEMA_VERSION = 1
_COMPACT_FROM = 40  # ops; beyond this, one line per box keeps a fusion on one screen
_MOST_GROUPS = 4  # named one by one in an attempt

NodeKind = Literal["input", "op", "output", "segment"]
EdgeKind = Literal["input", "inside", "boundary", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The headline numbers of a plan; ``bytes_ideal`` is what one kernel would have to move."""

    title: str
    plan: str
    strategy: str
    hash: str
    segments: int
    ops: int
    bytes_moved: int
    bytes_ideal: int
    bytes_crossing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A fusion input, an op in a segment, a fusion output, or (collapsed) a whole segment, which ``detail`` tells of.

    A replica stands in several segments. ``line`` is the line of the user's code that an op came from, if it is known;
    ``text`` ends with it.
    """

    id: str
    kind: NodeKind
    label: str
    tensor: str
    tensors: tuple[str, ...]
    dtype: str
    shape: tuple[str, ...]
    bytes: int
    segment: int | None
    replica: bool
    copies: int
    text: str
    detail: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeView:
    """A tensor on its way from one node to another.

    ``segments`` holds the two sides, None outside every segment; ``labelled`` marks the first edge that takes a
    tensor into another segment, which is where its bytes are written.
    """

    id: str
    source: str
    target: str
    tensor: str
    bytes: int
    kind: EdgeKind
    segments: tuple[int | None, int | None]
    labelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """One scheduler's answer, with the code of its reason and the sentence with the numbers."""

    scheduler: str
    accepted: bool
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A segment; ``ok`` is False where no scheduler accepts it, and ``verdicts`` then say why."""

    index: int
    scheduler: str
    ok: bool
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    bytes_crossing: int
    verdicts: tuple[VerdictView, ...]


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
    """How a tensor that a segment writes lies in memory; orders are positions of axes, slowest first, dashes for none.

    ``cost`` and ``natural_cost`` are bytes that accesses across its rows cost, as it lies and as its producer gives it.
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
    """A ``segment_set`` of the fusion that is cut: what it copies, its result, and the names of those that read that.

    ``own`` says that the definition has it, so that ``plan.without_annotation(hint)`` takes it out; others are made by
    passes. ``node`` is its op, and ``edges`` are those that leave it, which carry the mark.
    """

    tensor: str
    hint: str
    readers: tuple[str, ...]
    own: bool
    node: str
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewModel:
    """Everything a view of one plan shows, as plain data."""

    header: Header
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    segments: tuple[SegmentView, ...]
    decisions: tuple[DecisionView, ...] = ()
    timings: tuple[Mapping[str, Any], ...] = ()
    sources: Mapping[str, Mapping[str, str]] | None = None
    layouts: tuple[LayoutView, ...] = ()
    passes: tuple[PassView, ...] = ()
    annotations: tuple[AnnotationView, ...] = ()

    @property
    def compact(self) -> bool:
        """Whether so many ops are drawn that each has one line only."""
        return sum(node.kind == "op" for node in self.nodes) > _COMPACT_FROM

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        return {"version": SCHEMA_VERSION, **asdict(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON text; floats that are not numbers become null."""
        return json_text(self.to_dict(), indent=indent)


def view_plan(
    plan: PlanLike,
    *,
    title: str | None = None,
    timings: Sequence[Mapping[str, Any]] = (),
    sources: Mapping[str, Mapping[str, str]] | None = None,
    decisions: bool = True,
    passes: bool = False,
) -> ViewModel:
    """Return the view model of a plan; ``decisions=False`` leaves its log out, ``passes`` runs the passes once more."""
    replicas = getattr(getattr(plan, "segmented", None), "replicas", {})
    drawing = _Drawing(plan.fusion, plan.segments, replicas, dict(getattr(plan, "sources", ())))
    return ViewModel(
        header=_header(plan, drawing, title),
        nodes=tuple(drawing.nodes),
        edges=tuple(drawing.edges),
        segments=tuple(drawing.segments),
        decisions=view_decisions(getattr(plan, "decisions", None) or ()) if decisions else (),
        timings=tuple(timings),
        sources=sources,
        layouts=_layouts(plan),
        passes=view_passes(plan) if passes else (),
        annotations=_annotations(plan, drawing),
    )


def _annotations(plan: PlanLike, drawing: _Drawing) -> tuple[AnnotationView, ...]:
    found = annotations_of(plan.fusion)
    recorded = {one.hint for one in annotations_of(plan.definition)} if found and hasattr(plan, "definition") else set()
    nodes = {node.tensor: node.id for node in drawing.nodes if node.kind == "op"} if found else {}
    return tuple(
        AnnotationView(
            tensor=one.tensor,
            hint=one.hint,
            readers=one.readers,
            own=one.hint in recorded,
            node=nodes[one.hint],
            edges=tuple(edge.id for edge in drawing.edges if edge.tensor == one.hint),
        )
        for one in found
    )


def _layouts(plan: Any) -> tuple[LayoutView, ...]:
    """Return the layouts of a plan that has anything to say about them: not where all that it has is row-major."""
    if not hasattr(plan, "layouts"):
        return ()
    written = (tv for segment in plan.segments for tv in segment.outputs)
    ordered = any(tv.domain.allocation is not None for tv in (*plan.fusion.tensor_inputs, *written))
    return view_layouts(plan.layouts()) if ordered or plan.options.layout_mode != "outputs" else ()


def view_layouts(layouts: Iterable[BoundaryLayout]) -> tuple[LayoutView, ...]:
    """Return the layouts of the tensors that segments write."""
    return tuple(
        LayoutView(
            tensor=one.tensor,
            producer=one.producer,
            consumers=one.consumers,
            required=order_text(one.required),
            hint="-" if one.hint is None else f"{order_text(one.hint.order)} as {one.hint.origin}",
            natural=order_text(one.natural),
            preferred="; ".join(f"S{n}: {order_text(order)}" for n, order in one.preferred) or "-",
            chosen=order_text(one.chosen),
            by=one.by,
            cost=one.cost,
            natural_cost=one.natural_cost,
        )
        for one in layouts
    )


def view_decisions(log: Iterable[Attempt]) -> tuple[DecisionView, ...]:
    """Return the attempts of a decision log in order."""
    return tuple(
        DecisionView(
            seq=attempt.seq,
            phase=attempt.phase,
            kind=attempt.kind.value,
            of=_groups_text(attempt.subjects),
            names=tuple(sorted(attempt.names)),
            groups=attempt.subjects,
            accepted=attempt.accepted,
            code=attempt.code,
            text=attempt.text,
            verdicts=view_verdicts(attempt.verdicts),
        )
        for attempt in log
    )


def _groups_text(groups: Sequence[tuple[str, ...]]) -> str:
    if len(groups) <= _MOST_GROUPS:
        return " + ".join(map(group_text, groups))
    return f"{len(groups)} groups of {group_text(tuple(name for group in groups for name in group))}"


def view_verdicts(verdicts: Iterable[Any] | None) -> tuple[VerdictView, ...]:
    """Return schedulers' answers in the order in which they were asked."""
    return tuple(_verdict(v) for v in (verdicts or ()))


def word(value: object) -> str:
    """Return the short name of an enum member, a named thing or a string."""
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    return str(getattr(value, "name", value))


class _Drawing:
    """Nodes, edges and segments gathered in one walk over the plan."""

    def __init__(
        self, fusion: Fusion, segments: Sequence[SegmentLike], replicas: Mapping[str, str], lines: Mapping[str, str],
    ) -> None:
        self._lines = lines  # of the user's code, by tensor
        self.nodes: list[NodeView] = []
        self.edges: list[EdgeView] = []
        self.segments: list[SegmentView] = []
        self._position = {e.name: n for n, e in enumerate(fusion.exprs)}
        self._copies = _copies(segments, replicas)
        self._made: dict[str, list[tuple[int | None, str]]] = {}
        self._read: dict[tuple[str, int], str] = {}
        self._labelled: set[tuple[str, int | None]] = set()
        self._bytes: dict[str, int] = {}
        self._ids: dict[tuple[str, int], str] = {}
        parts = [(segment, drawn(segment)) for segment in segments]
        apart = sum(len(exprs) for _, exprs in parts) > _COMPACT_FROM
        readers: dict[str, list[int]] = {}
        for segment in segments if apart else ():
            for value in dict.fromkeys(v.name for v in segment.inputs):
                readers.setdefault(value, []).append(segment.index)
        for tensor in fusion.tensor_inputs:
            self._add_input(tensor, readers.get(tensor.name, []))
        for segment, exprs in parts:
            for expr in exprs:
                self._add_op(expr, segment.index)
        for segment, exprs in parts:
            self._add_segment(segment, exprs)
            for expr in exprs:
                self._connect(expr, segment.index)
        for n, tensor in enumerate(t for t in fusion.outputs if t not in fusion.hidden):
            self._add_output(tensor, n)

    def _add_input(self, tensor: TensorView, readers: Sequence[int]) -> None:
        """Add one node, or in large fusions one for each segment that reads the tensor, which spares long wires."""
        if len(readers) <= 1:
            self._made[tensor.name] = [(None, f"in:{tensor.name}")]
            self.nodes.append(_tensor_node(f"in:{tensor.name}", "input", tensor))
            return
        for reader in readers:
            node = f"in:{tensor.name}@{reader}"
            self._read[tensor.name, reader] = node
            self._made.setdefault(tensor.name, []).append((None, node))
            self.nodes.append(_tensor_node(node, "input", tensor))

    def _add_op(self, expr: Expr, segment: int) -> None:
        results = expr.tensor_outputs
        node = self._ids[expr.name, segment] = self._op_id(expr, segment)
        for result in results:
            self._made.setdefault(result.name, []).append((segment, node))
        first = results[0]
        line = source_of(first.name, self._lines)
        self.nodes.append(
            NodeView(
                id=node,
                kind="op",
                label=expr.op.name,
                tensor=first.name,
                tensors=tuple(r.name for r in results),
                dtype=dtype_label(first.dtype),
                shape=shape_label(first),
                bytes=sum(map(self._size, results)),
                segment=segment,
                replica=self._copies[expr.name] > 1,
                copies=self._copies[expr.name],
                text=f"{expr_text(expr)}\n{line}" if line else expr_text(expr),
                line=line,
            ),
        )

    def _connect(self, expr: Expr, segment: int) -> None:
        target = self._ids[expr.name, segment]
        for tensor in dict.fromkeys(expr.tensor_inputs):
            source = self._producer(tensor, segment)
            if source is None:
                continue
            self._add_edge(tensor, source, (segment, target))

    def _add_output(self, tensor: TensorView, n: int) -> None:
        node = f"out:{n}:{tensor.name}"
        self.nodes.append(_tensor_node(node, "output", tensor))
        source = self._producer(tensor, None)
        if source is not None:
            self._add_edge(tensor, source, (None, node))

    def _producer(self, tensor: TensorView, segment: int | None) -> tuple[int | None, str] | None:
        """Return where ``tensor`` is read from: the same segment if it is computed there, else its first maker."""
        if segment is not None and (tensor.name, segment) in self._read:
            return None, self._read[tensor.name, segment]
        made = self._made.get(tensor.name, [])
        return next((m for m in made if m[0] == segment), made[0] if made else None)

    def _add_edge(self, tensor: TensorView, source: tuple[int | None, str], target: tuple[int | None, str]) -> None:
        kind = _edge_kind(source[0], target)
        self.edges.append(
            EdgeView(
                id=f"{tensor.name}|{source[1]}|{target[1]}",
                source=source[1],
                target=target[1],
                tensor=tensor.name,
                bytes=self._size(tensor),
                kind=kind,
                segments=(source[0], target[0]),
                labelled=kind == "boundary" and (tensor.name, target[0]) not in self._labelled,
            ),
        )
        self._labelled.add((tensor.name, target[0]))

    def _add_segment(self, segment: SegmentLike, exprs: Sequence[Expr]) -> None:
        scheduler = word(segment.scheduler)
        verdicts = view_verdicts(getattr(segment, "verdicts", None))
        ok = scheduler not in {"", "none", "None"}
        inputs = [v for v in segment.inputs if isinstance(v, TensorView)]
        outputs = [v for v in segment.outputs if isinstance(v, TensorView)]
        bytes_in = getattr(segment, "bytes_in", None)
        bytes_out = getattr(segment, "bytes_out", None)
        self.segments.append(
            SegmentView(
                index=segment.index,
                scheduler=scheduler if ok else "no scheduler",
                ok=ok,
                ops=tuple(e.op.name for e in exprs),
                nodes=tuple(self._ids[e.name, segment.index] for e in exprs),
                inputs=tuple(t.name for t in inputs),
                outputs=tuple(t.name for t in outputs),
                bytes_in=sum(map(self._size, inputs)) if bytes_in is None else bytes_in,
                bytes_out=sum(map(self._size, outputs)) if bytes_out is None else bytes_out,
                bytes_crossing=getattr(segment, "bytes_crossing", 0),
                verdicts=verdicts,
            ),
        )

    def _size(self, tensor: TensorView) -> int:
        """Return the bytes of a tensor, worked out once: many edges carry the same."""
        if tensor.name not in self._bytes:
            self._bytes[tensor.name] = tensor_bytes(tensor)
        return self._bytes[tensor.name]

    def _op_id(self, expr: Expr, segment: int) -> str:
        """Return an id that stays the same from plan to plan of one fusion, so that a selection survives an edit."""
        position = self._position.get(expr.name)
        key = f"op:{expr.name if position is None else position}"
        return f"{key}@{segment}" if self._copies[expr.name] > 1 else key


def drawn(segment: SegmentLike) -> tuple[Expr, ...]:
    """Return the expressions of a segment that are drawn: those with a tensor result."""
    return tuple(e for e in segment.exprs if e.tensor_outputs)


def _copies(segments: Sequence[SegmentLike], replicas: Mapping[str, str]) -> Counter[str]:
    """Return how many segments compute what each expression does; replicas are separate expressions."""
    found = Counter(replicas.get(e.name, e.name) for segment in segments for e in segment.exprs)
    return found + Counter({name: found[original] for name, original in replicas.items()})


def _edge_kind(source: int | None, target: tuple[int | None, str]) -> EdgeKind:
    if source is None:
        return "input"
    if target[0] is None:
        return "output"
    return "inside" if source == target[0] else "boundary"


def _tensor_node(node: str, kind: NodeKind, tensor: TensorView) -> NodeView:
    return NodeView(
        id=node,
        kind=kind,
        label=tensor.name,
        tensor=tensor.name,
        tensors=(tensor.name,),
        dtype=dtype_label(tensor.dtype),
        shape=shape_label(tensor),
        bytes=tensor_bytes(tensor),
        segment=None,
        replica=False,
        copies=1,
        text=f"{kind} {tensor.name}",
    )


def _header(plan: PlanLike, drawing: _Drawing, title: str | None) -> Header:
    exprs = plan.fusion.tensor_exprs
    read = {t for e in exprs for t in e.inputs}
    made = {t for e in exprs for t in e.tensor_outputs}
    ends = {t.name: t for t in plan.fusion.tensor_inputs if t in read}
    ends |= {t.name: t for t in plan.fusion.outputs if t in made}
    crossing = {e.tensor: e.bytes for e in drawing.edges if e.kind == "boundary"}
    return Header(
        title=title or plan.name,
        plan=plan.name,
        strategy=plan.strategy,
        hash=plan.hash,
        segments=len(drawing.segments),
        ops=sum(n.kind == "op" for n in drawing.nodes),
        bytes_moved=sum(s.bytes_in + s.bytes_out for s in drawing.segments),
        bytes_ideal=sum(map(tensor_bytes, ends.values())),
        bytes_crossing=sum(crossing.values()),
    )


@kept
def _verdict(verdict: Any) -> VerdictView:
    return VerdictView(
        scheduler=word(verdict.scheduler),
        accepted=verdict.accepted,
        code=verdict.code,
        text=verdict.text,
    )

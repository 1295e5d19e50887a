"""A plan as nodes, edges and segments; after an edit only the segments that it changed are drawn again.

An edit also changes the numbers of the segments behind it; their nodes and edges are copied with the new numbers, which
takes less time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fuser_lab.ir import TensorView
from fuser_lab.report.expressions import expr_text
from fuser_lab.report.graph_views import EdgeView, NodeView, SegmentView, view_verdicts, word
from fuser_lab.report.units import dtype_label, shape_label, tensor_bytes
from fuser_lab.segmentation.origins import source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fuser_lab.ir import Expr, Fusion
    from fuser_lab.report.graph_views import EdgeKind, NodeKind
    from fuser_lab.report.subject import SegmentLike

COMPACT_FROM: Final = 40  # ops; beyond this, one line per box keeps a fusion on one screen
_Place = tuple[int | None, str]  # a segment, or None outside of all, and a node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ops:
    """The nodes of one segment's ops, and the tensors that they make, with their nodes, and read.

    ``of`` is what they were drawn from: the fusion, the expressions, the lines and the modules, all known by identity,
    and how many segments compute each expression.
    """

    of: tuple[object, ...]
    segment: int
    exprs: tuple[Expr, ...]
    nodes: tuple[NodeView, ...]
    made: tuple[tuple[str, str], ...]
    read: tuple[TensorView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    """The edges into the ops of a segment, from the places that make what they read."""

    ops: _Ops
    places: tuple[_Place | None, ...]
    edges: tuple[EdgeView, ...]

    def into(self, ops: _Ops, places: tuple[_Place | None, ...]) -> tuple[EdgeView, ...] | None:
        """Return the edges into ops from places, if these differ from the known ones in numbers of segments only."""
        if self.ops.made is not ops.made:  # shared by ops that differ in the number of their segment
            return None
        if self.ops.segment == ops.segment and self.places == places:
            return self.edges
        if any(_side(old) != _side(new) for old, new in zip(self.places, places, strict=True)):
            return None
        there = {tensor.name: place for tensor, place in zip(ops.read, places, strict=True) if place is not None}
        return tuple([_moved(edge, there.get(edge.tensor), ops.segment) for edge in self.edges])


class Drawn:
    """What was drawn of the plan before, segment by segment: drawings of one exploration's plans share it."""

    def __init__(self) -> None:
        self._ops: dict[int, _Ops] = {}
        self._edges: dict[int, _Edges] = {}
        self._next_ops: dict[int, _Ops] = {}
        self._next_edges: dict[int, _Edges] = {}

    def begin(self) -> None:
        """Forget what the drawing before the last one had and the last one did not."""
        self._ops, self._next_ops = self._next_ops, {}
        self._edges, self._next_edges = self._next_edges, {}

    def ops(self, segment: SegmentLike) -> _Ops | None:
        """Return what is known of a segment's ops, if they are of the same expressions, by identity."""
        found = self._ops.get(id(segment.exprs))
        return found if found is not None and found.of[1] is segment.exprs else None

    def edges(self, ops: _Ops, places: tuple[_Place | None, ...]) -> tuple[EdgeView, ...] | None:
        """Return the edges into these ops from these places, if they are known."""
        found = self._edges.get(id(ops.of[1]))
        return None if found is None else found.into(ops, places)

    def keep_ops(self, ops: _Ops) -> None:
        """Keep the ops of a segment for the next drawing."""
        self._next_ops[id(ops.of[1])] = ops

    def keep_edges(self, ops: _Ops, places: tuple[_Place | None, ...], edges: tuple[EdgeView, ...]) -> None:
        """Keep the edges into the ops of a segment."""
        self._next_edges[id(ops.of[1])] = _Edges(ops=ops, places=places, edges=edges)


class Drawing:
    """Nodes, edges and segments gathered in one walk over the plan.

    Parameters
    ----------
    fusion, segments
        What is drawn.
    replicas
        The expression that each replica repeats, by name.
    lines, modules
        Pairs of a tensor's name and its line in the user's code, and of its name and the path of its module.
    drawn
        What was drawn before; the result does not depend on it.
    """

    def __init__(
        self, fusion: Fusion, segments: Sequence[SegmentLike], replicas: Mapping[str, str] | None = None,
        lines: Sequence[tuple[str, str]] = (), modules: Sequence[tuple[str, str]] = (), drawn: Drawn | None = None,
    ) -> None:
        self._fusion = fusion
        self._given = lines, modules
        self._lines, self._modules = dict(lines), dict(modules)
        self._drawn = Drawn() if drawn is None else drawn
        self.nodes: list[NodeView] = []
        self.edges: list[EdgeView] = []
        self.segments: list[SegmentView] = []
        self._copies = _copies(segments, replicas or {})
        self._made: dict[str, list[_Place]] = {}
        self._read: dict[tuple[str, int], str] = {}
        self._drawn.begin()
        parts = [(segment, self._ops(segment)) for segment in segments]
        readers: dict[str, list[int]] = {}
        for segment in segments if sum(len(ops.exprs) for _, ops in parts) > COMPACT_FROM else ():
            for value in dict.fromkeys(v.name for v in segment.inputs):
                readers.setdefault(value, []).append(segment.index)
        for tensor in fusion.tensor_inputs:
            self._add_input(tensor, readers.get(tensor.name, []))
        for segment, ops in parts:
            self.nodes += ops.nodes
            for name, node in ops.made:
                self._made.setdefault(name, []).append((segment.index, node))
        for segment, ops in parts:
            self.segments.append(_segment(segment, ops))
            self.edges += self._edges(segment.index, ops)
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

    def _add_output(self, tensor: TensorView, n: int) -> None:
        node = f"out:{n}:{tensor.name}"
        self.nodes.append(_tensor_node(node, "output", tensor))
        source = self._producer(tensor.name, None)
        if source is not None:
            self.edges.append(_edge(tensor, source, (None, node), labelled=False))

    def _ops(self, segment: SegmentLike) -> _Ops:
        known, index = self._drawn.ops(segment), segment.index
        exprs = tuple(e for e in segment.exprs if e.tensor_outputs) if known is None else known.exprs
        copies = tuple([self._copies[expr.name] for expr in exprs])
        of = (self._fusion, segment.exprs, *self._given, copies)
        if known is None or not _same(known.of, of):
            found = self._made_of(exprs, index, of)
        elif known.segment == index:
            found = known
        elif max(copies, default=1) > 1:  # the number is a part of some ids
            found = self._made_of(exprs, index, of)
        else:
            found = _Ops(
                of=of, segment=index, exprs=exprs, nodes=tuple([_numbered(node, index) for node in known.nodes]),
                made=known.made, read=known.read,
            )
        self._drawn.keep_ops(found)
        return found

    def _made_of(self, exprs: tuple[Expr, ...], segment: int, of: tuple[object, ...]) -> _Ops:
        nodes = tuple(self._op(expr, segment) for expr in exprs)
        inside = {tensor for expr in exprs for tensor in expr.tensor_outputs}
        read = dict.fromkeys(tensor for expr in exprs for tensor in expr.tensor_inputs)
        return _Ops(
            of=of,
            segment=segment,
            exprs=exprs,
            nodes=nodes,
            made=tuple((name, node.id) for node in nodes for name in node.tensors),
            read=tuple(tensor for tensor in read if tensor not in inside),
        )

    def _op(self, expr: Expr, segment: int) -> NodeView:
        results = expr.tensor_outputs
        first = results[0]
        line = source_of(first.name, self._lines)
        return NodeView(
            id=self._op_id(expr, segment),
            kind="op",
            label=expr.op.name,
            tensor=first.name,
            tensors=tuple(r.name for r in results),
            dtype=dtype_label(first.dtype),
            shape=shape_label(first),
            bytes=sum(map(tensor_bytes, results)),
            segment=segment,
            replica=self._copies[expr.name] > 1,
            copies=self._copies[expr.name],
            text=f"{expr_text(expr)}\n{line}" if line else expr_text(expr),
            line=line,
            module=source_of(first.name, self._modules),
        )

    def _op_id(self, expr: Expr, segment: int) -> str:
        """Return an id that stays the same from plan to plan of one fusion, so that a selection survives an edit."""
        position = self._fusion.positions.get(expr.name)
        key = f"op:{expr.name if position is None else position}"
        return f"{key}@{segment}" if self._copies[expr.name] > 1 else key

    def _edges(self, segment: int, ops: _Ops) -> tuple[EdgeView, ...]:
        """Return the edges into the ops of a segment; the first that takes a tensor there from another is labelled."""
        places = tuple([self._producer(tensor.name, segment) for tensor in ops.read])
        edges = self._drawn.edges(ops, places)
        if edges is None:
            edges = self._edges_from(segment, ops)
        self._drawn.keep_edges(ops, places, edges)
        return edges

    def _edges_from(self, segment: int, ops: _Ops) -> tuple[EdgeView, ...]:
        found: list[EdgeView] = []
        labelled: set[str] = set()
        for expr, node in zip(ops.exprs, ops.nodes, strict=True):
            for tensor in dict.fromkeys(expr.tensor_inputs):
                source = self._producer(tensor.name, segment)
                if source is not None:
                    found.append(_edge(tensor, source, (segment, node.id), labelled=tensor.name not in labelled))
                    labelled.add(tensor.name)
        return tuple(found)

    def _producer(self, tensor: str, segment: int | None) -> _Place | None:
        """Return where a tensor is read from: the same segment if it is computed there, else its first maker."""
        if segment is not None and (tensor, segment) in self._read:
            return None, self._read[tensor, segment]
        made = self._made.get(tensor, [])
        return next((m for m in made if m[0] == segment), made[0] if made else None)


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether ops are drawn from the same things; all but the last of these are known by identity."""
    return all(x is y for x, y in zip(a[:-1], b[:-1], strict=True)) and a[-1] == b[-1]


def _numbered(node: NodeView, segment: int) -> NodeView:
    """Return an op's node in a segment of another number; `dataclasses.replace` takes three times as long."""
    return NodeView(
        id=node.id, kind=node.kind, label=node.label, tensor=node.tensor, tensors=node.tensors, dtype=node.dtype,
        shape=node.shape, bytes=node.bytes, segment=segment, replica=node.replica, copies=node.copies, text=node.text,
        detail=node.detail, line=node.line, module=node.module,
    )


def _side(place: _Place | None) -> bool | None:
    """Return whether a place is in a segment; None for no place."""
    return None if place is None else place[0] is not None


def _moved(edge: EdgeView, place: _Place | None, segment: int) -> EdgeView:
    """Return an edge into a segment of another number, from another place or (None) from inside the segment."""
    side, source = place or (segment, edge.source)
    return EdgeView(
        id=edge.id if source == edge.source else _edge_id(edge.tensor, source, edge.target), source=source,
        target=edge.target, tensor=edge.tensor, bytes=edge.bytes, kind=edge.kind, segments=(side, segment),
        labelled=edge.labelled,
    )


def _edge_id(tensor: str, source: str, target: str) -> str:
    return f"{tensor}|{source}|{target}"


def _segment(segment: SegmentLike, ops: _Ops) -> SegmentView:
    scheduler = word(segment.scheduler)
    ok = scheduler not in {"", "none", "None"}
    inputs = [v for v in segment.inputs if isinstance(v, TensorView)]
    outputs = [v for v in segment.outputs if isinstance(v, TensorView)]
    bytes_in = getattr(segment, "bytes_in", None)
    bytes_out = getattr(segment, "bytes_out", None)
    return SegmentView(
        index=segment.index,
        scheduler=scheduler if ok else "no scheduler",
        ok=ok,
        ops=tuple([node.label for node in ops.nodes]),
        nodes=tuple([node.id for node in ops.nodes]),
        inputs=tuple(t.name for t in inputs),
        outputs=tuple(t.name for t in outputs),
        bytes_in=sum(map(tensor_bytes, inputs)) if bytes_in is None else bytes_in,
        bytes_out=sum(map(tensor_bytes, outputs)) if bytes_out is None else bytes_out,
        bytes_crossing=getattr(segment, "bytes_crossing", 0),
        verdicts=view_verdicts(getattr(segment, "verdicts", None)),
    )


def _edge(tensor: TensorView, source: _Place, target: _Place, *, labelled: bool) -> EdgeView:
    kind = _edge_kind(source[0], target)
    return EdgeView(
        id=_edge_id(tensor.name, source[1], target[1]),
        source=source[1],
        target=target[1],
        tensor=tensor.name,
        bytes=tensor_bytes(tensor),
        kind=kind,
        segments=(source[0], target[0]),
        labelled=labelled and kind == "boundary",
    )


def _copies(segments: Sequence[SegmentLike], replicas: Mapping[str, str]) -> Counter[str]:
    """Return how many segments compute what each expression does; replicas are separate expressions."""
    found = Counter(replicas.get(e.name, e.name) for segment in segments for e in segment.exprs)
    return found + Counter({name: found[original] for name, original in replicas.items()})


def _edge_kind(source: int | None, target: _Place) -> EdgeKind:
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

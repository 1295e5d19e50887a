"""A plan as nodes, edges and segments; an edit redraws only the segments that it changes.

An edit also renumbers later segments; their nodes and edges get the new numbers on first access
(`fuser_lab.report.parts`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import is_
from typing import Any, Final

from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.tensor_names import derived_name, entry_for, name_of, names_by_tensor
from fuser_lab.passes.annotations import HINT
from fuser_lab.report.expressions import expr_text
from fuser_lab.report.graph_views import EdgeKind, EdgeView, NodeKind, NodeView, SegmentView, view_verdicts, word
from fuser_lab.report.identity_cache import cached_by_identity
from fuser_lab.report.parts import Part, Parts
from fuser_lab.report.subject import SegmentLike
from fuser_lab.report.units import dtype_label, shape_label, tensor_bytes

COMPACT_FROM: Final = 40  # ops; beyond this, one line per box keeps a fusion on one screen
_SAME: Final = frozenset({HINT, "cast"})  # ops of which the result has the name of the operand
_Place = tuple[int | None, str]  # a segment, or None outside of all, and a node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ops:
    """The nodes of one segment's ops, the tensors that they produce, with their nodes, and those that they read.

    ``of`` holds their sources: the fusion, the expressions, the lines and the modules, all compared by identity, and
    how many segments compute each expression. ``segment`` is the number of the segment at that time.
    """

    of: tuple[object, ...]
    segment: int
    exprs: tuple[Expr, ...]
    nodes: tuple[NodeView, ...]
    made: tuple[tuple[str, str], ...]
    read: tuple[TensorView, ...]
    hinted: bool  # whether one of them is a ``segment_set``

    def part(self, segment: int) -> Part[NodeView]:
        """Return the nodes for another segment number."""
        if segment == self.segment:
            return Part(segment=segment, rough=self.nodes)
        return Part(segment=segment, rough=self.nodes, finished=partial(_renumbered_ops, segment))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    """The edges into the ops of a segment from the producers of what they read; ``segment`` is its number.

    ``outer`` are those from elsewhere, each with the number of its tensor among what the ops read.
    """

    ops: _Ops
    segment: int
    places: tuple[_Place | None, ...]
    free: frozenset[str]  # of the tensors that the ops read, those that pass no bytes
    edges: tuple[EdgeView, ...]
    outer: tuple[tuple[EdgeView, int], ...]

    def fit(self, ops: _Ops, places: tuple[_Place | None, ...], free: frozenset[str]) -> bool:
        """Whether edges into ops from places differ from these only in segment numbers."""
        return self.ops is ops and self.free == free and (
            self.places == places
            or [a and a[0] is None for a in self.places] == [b and b[0] is None for b in places]
        )

    def part(self, segment: int, places: tuple[_Place | None, ...]) -> Part[EdgeView]:
        """Return the edges for another segment number and other sources."""
        crossing = [
            (edge if source == edge.source else _from(source, edge), (home, segment))
            for edge, n in self.outer if (place := places[n]) is not None for home, source in (place,)
        ]
        finished: Any = tuple
        if segment != self.segment or places != self.places:
            finished = partial(_renumbered_edges, segment, self.ops.read, places)
        return Part(segment=segment, rough=self.edges, finished=finished, crossing=crossing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A segment and the objects that it was drawn from, compared by identity."""

    of: tuple[object, ...]
    view: SegmentView


class Drawn:
    """Drawn segments of previous plans, shared by the drawings of one exploration."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[_Ops, _Edges, _Row]] = {}
        self._now: dict[int, tuple[_Ops, _Edges, _Row]] = {}
        self._inputs: dict[str, tuple[TensorView, NodeView]] = {}

    def begin(self) -> None:
        """Drop the entries that the last drawing did not use."""
        self._before, self._now = self._now, {}

    def of(self, segment: SegmentLike) -> tuple[_Ops, _Edges, _Row] | None:
        """Return the entry of a segment with the same expressions, by identity."""
        entry = self._before.get(id(segment.exprs))
        return entry if entry is not None and entry[0].of[1] is segment.exprs else None

    def input(self, node: str, tensor: TensorView, called: str) -> NodeView:
        """Return the node of a fusion input, the same one as before if it is the same tensor."""
        entry = self._inputs.get(node)
        if entry is None or entry[0] is not tensor or entry[1].called != (called,):
            entry = self._inputs[node] = tensor, _tensor_node(node, "input", tensor, called)
        return entry[1]

    def keep(self, ops: _Ops, edges: _Edges, row: _Row) -> None:
        """Keep a segment for the next drawing."""
        self._now[id(ops.of[1])] = ops, edges, row


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
    names
        Pairs of what the user calls a tensor and its name.
    passed
        Bytes that each tensor passes between segments, by name; those that are missing pass all of theirs.
    """

    def __init__(
        self, fusion: Fusion, segments: Sequence[SegmentLike], replicas: Mapping[str, str] | None = None,
        lines: Sequence[tuple[str, str]] = (), modules: Sequence[tuple[str, str]] = (), drawn: Drawn | None = None,
        names: Sequence[tuple[str, str]] = (), passed: Mapping[str, int] | None = None,
    ) -> None:
        self._fusion = fusion
        self._given = lines, modules, names
        self._called = names_by_tensor(names)
        self._free = frozenset(name for name, size in (passed or {}).items() if not size)
        self._lines, self._modules = dict(lines), dict(modules)
        self._drawn = Drawn() if drawn is None else drawn
        self._drawn.begin()
        self._copies = _copies(segments, replicas or {})
        self._made: dict[str, _Place] = {}  # the first producer of each tensor
        self._read: dict[tuple[str, int], _Place] = {}
        entries = [self._drawn.of(segment) for segment in segments]
        ops = [self._ops(segment, entry and entry[0]) for segment, entry in zip(segments, entries, strict=True)]
        self.ops = sum([len(part.nodes) for part in ops])
        self.hinted = any(part.hinted for part in ops)
        readers: dict[str, dict[int, str]] = {}
        input_names = {tensor.name for tensor in fusion.tensor_inputs}
        for segment, segment_ops in zip(segments, ops, strict=True):
            for value in segment.inputs:
                if value.name in input_names:
                    index = segment.index
                    into = readers.setdefault(value.name, {})
                    into[index] = segment_ops.nodes[0].id if segment_ops.nodes else str(index)
        for segment, segment_ops in zip(segments[::-1], ops[::-1], strict=True):
            index = segment.index
            self._made.update([(name, (index, node)) for name, node in segment_ops.made])
        inputs = [node for tensor in fusion.tensor_inputs for node in self._input(tensor, readers.get(tensor.name, {}))]
        edges: list[Part[EdgeView]] = []
        self.segments: list[SegmentView] = []
        for segment, segment_ops, before in zip(segments, ops, entries, strict=True):
            index = segment.index
            places = tuple([self._producer(tensor.name, index) for tensor in segment_ops.read])
            free = self._free.intersection([t.name for t in segment_ops.read]) if self._free else self._free
            wires = None if before is None or not before[1].fit(segment_ops, places, free) else before[1]
            if wires is None:
                wires = self._edges_into(index, segment_ops, places, free)
            edges.append(wires.part(index, places))
            row = _row(segment, segment_ops, before and before[2])
            self.segments.append(row.view)
            self._drawn.keep(segment_ops, wires, row)
        ends = [(f"out:{n}:{tensor.name}", tensor) for n, tensor in enumerate(_shown_tensors(fusion))]
        sources = [(node, tensor, self._made.get(tensor.name)) for node, tensor in ends]
        outputs = tuple([
            _tensor_node(node, "output", tensor, entry_for(tensor.name, self._called)) for node, tensor in ends
        ])
        leaving = tuple(
            self._edge(tensor, place, (None, node), labelled=False)
            for node, tensor, place in sources if place is not None
        )
        within = (part.part(segment.index) for segment, part in zip(segments, ops, strict=True))
        self.nodes = Parts((Part(segment=None, rough=tuple(inputs)), *within, Part(segment=None, rough=outputs)))
        outwards = tuple([(edge, edge.segments) for edge in leaving])
        self.edges = Parts((*edges, Part(segment=None, rough=leaving, crossing=outwards)))

    def _input(self, tensor: TensorView, readers: Mapping[int, str]) -> list[NodeView]:
        """Return one node for each segment that reads the tensor, which spares long wires; the first has its plain id.

        ``readers`` has the first op of each of these segments, whose id, unlike the segment's number, survives edits.
        """
        if len(readers) <= 1:
            self._made[tensor.name] = None, f"in:{tensor.name}"
            return [self._drawn.input(f"in:{tensor.name}", tensor, entry_for(tensor.name, self._called))]
        leader = min(readers)
        nodes = {
            reader: f"in:{tensor.name}" if reader == leader else f"in:{tensor.name}@{first}"
            for reader, first in readers.items()
        }
        self._read |= {(tensor.name, reader): (None, node) for reader, node in nodes.items()}
        self._made[tensor.name] = None, next(iter(nodes.values()))
        called = entry_for(tensor.name, self._called)
        return [self._drawn.input(node, tensor, called) for node in nodes.values()]

    def _ops(self, segment: SegmentLike, earlier: _Ops | None) -> _Ops:
        index = segment.index
        exprs = tuple(e for e in segment.exprs if e.tensor_outputs) if earlier is None else earlier.exprs
        copies = tuple([self._copies.get(expr.name, 1) for expr in exprs]) if self._copies else ()
        of = (self._fusion, segment.exprs, *self._given, copies)
        if earlier is None or not _same(earlier.of, of):
            return self._made_of(exprs, index, of)
        numbered = earlier.segment != index and max(copies, default=1) > 1  # the number is a part of some ids
        return self._made_of(exprs, index, of) if numbered else earlier

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
            hinted=any(expr.op.name == HINT for expr in exprs),
        )

    def _op(self, expr: Expr, segment: int) -> NodeView:
        results = expr.tensor_outputs
        first = results[0]
        line, word = entry_for(first.name, self._lines), entry_for if expr.op.name in _SAME else derived_name
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
            replica=expr.name in self._copies,
            copies=self._copies.get(expr.name, 1),
            text=f"{expr_text(expr)}\n{line}" if line else expr_text(expr),
            line=line,
            module=entry_for(first.name, self._modules),
            called=tuple(word(result.name, self._called) for result in results),
        )

    def _op_id(self, expr: Expr, segment: int) -> str:
        """Return an id that is stable across plans of one fusion, so that a selection survives an edit."""
        position = self._fusion.positions.get(expr.name)
        key = f"op:{expr.name if position is None else position}"
        return f"{key}@{segment}" if expr.name in self._copies else key

    def _edges_into(
        self, segment: int, ops: _Ops, places: tuple[_Place | None, ...], free: frozenset[str],
    ) -> _Edges:
        """Return the edges into the ops of a segment, those from elsewhere with the numbers of what they carry."""
        edges = self._edges_from(segment, ops)
        numbers = {tensor.name: n for n, tensor in enumerate(ops.read)}
        outer = tuple([(edge, numbers[edge.tensor]) for edge in edges if edge.kind != "inside"])
        return _Edges(ops=ops, segment=segment, places=places, free=free, edges=edges, outer=outer)

    def _edges_from(self, segment: int, ops: _Ops) -> tuple[EdgeView, ...]:
        """Return the edges into the ops of a segment; the first edge of each crossing tensor has a label."""
        edges: list[EdgeView] = []
        labelled: set[str] = set()
        inside = {name: (segment, node) for name, node in ops.made}
        for expr, node in zip(ops.exprs, ops.nodes, strict=True):
            for tensor in dict.fromkeys(expr.tensor_inputs):
                source = inside.get(tensor.name) or self._producer(tensor.name, segment)
                if source is not None:
                    edges.append(self._edge(tensor, source, (segment, node.id), labelled=tensor.name not in labelled))
                    labelled.add(tensor.name)
        return tuple(edges)

    def _edge(self, tensor: TensorView, source: _Place, target: _Place, *, labelled: bool) -> EdgeView:
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
            called=name_of(tensor.name, self._fusion, self._called),
            is_free=kind == "boundary" and tensor.name in self._free,
        )

    def _producer(self, tensor: str, segment: int) -> _Place | None:
        """Return the producer of a tensor that a segment reads."""
        return self._read.get((tensor, segment)) or self._made.get(tensor)


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether ops have the same sources; all but the last are compared by identity."""
    return all(x is y for x, y in zip(a[:-1], b[:-1], strict=True)) and a[-1] == b[-1]


def _renumbered_ops(segment: int, nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """Return ops with another segment number; `dataclasses.replace` takes three times as long."""
    return tuple([
        NodeView(
            id=node.id, kind=node.kind, label=node.label, tensor=node.tensor, tensors=node.tensors, dtype=node.dtype,
            shape=node.shape, bytes=node.bytes, segment=segment, replica=node.replica, copies=node.copies,
            text=node.text, detail=node.detail, line=node.line, module=node.module, called=node.called,
        )
        for node in nodes
    ])


def _renumbered_edges(
    segment: int, read: tuple[TensorView, ...], places: tuple[_Place | None, ...], edges: Iterable[EdgeView],
) -> tuple[EdgeView, ...]:
    """Return edges with another segment number, from the producers of what is read or from inside the segment."""
    there = {tensor.name: place for tensor, place in zip(read, places, strict=True)}
    edges_here = []
    for edge in edges:
        side, source = there.get(edge.tensor) or (segment, edge.source)
        edges_here.append(EdgeView(
            id=edge.id if source == edge.source else _edge_id(edge.tensor, source, edge.target), source=source,
            target=edge.target, tensor=edge.tensor, bytes=edge.bytes, kind=edge.kind, segments=(side, segment),
            labelled=edge.labelled, called=edge.called, is_free=edge.is_free,
        ))
    return tuple(edges_here)


def _from(source: str, edge: EdgeView) -> EdgeView:
    """Return an edge from another node."""
    return replace(edge, id=_edge_id(edge.tensor, source, edge.target), source=source)


def _edge_id(tensor: str, source: str, target: str) -> str:
    return f"{tensor}|{source}|{target}"


def _row(segment: SegmentLike, ops: _Ops, earlier: _Row | None) -> _Row:
    """Return the view of a segment: the previous one, renumbered if necessary, if its objects are the same."""
    group = getattr(segment, "group", None)  # which decides the rest
    verdicts = None if group is not None else getattr(segment, "verdicts", None)
    is_view = getattr(segment, "is_view", False)  # depends on other segments, too
    of = (ops, group) if group is not None else (ops, segment.scheduler, segment.inputs, segment.outputs, verdicts)
    of = (*of, is_view)
    crossing = getattr(segment, "bytes_crossing", 0)
    if earlier is None or len(of) != len(earlier.of) or not all(map(is_, earlier.of, of)):
        return _Row(of=of, view=_segment(segment, ops, crossing, getattr(segment, "verdicts", None)))
    old = earlier.view
    if (old.index, old.bytes_crossing) == (segment.index, crossing):
        return earlier
    view = SegmentView(
        index=segment.index, scheduler=old.scheduler, ok=old.ok, ops=old.ops, nodes=old.nodes, inputs=old.inputs,
        outputs=old.outputs, bytes_in=old.bytes_in, bytes_out=old.bytes_out, bytes_crossing=crossing,
        verdicts=old.verdicts,
    )
    return _Row(of=of, view=view)


def _segment(segment: SegmentLike, ops: _Ops, crossing: int, verdicts: Iterable[Any] | None) -> SegmentView:
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
        bytes_crossing=crossing,
        verdicts=view_verdicts(verdicts),
    )


def _shown_tensors(fusion: Fusion) -> Iterator[TensorView]:
    return (tensor for tensor in fusion.outputs if tensor not in fusion.hidden)


def _copies(segments: Sequence[SegmentLike], replicas: Mapping[str, str]) -> dict[str, int]:
    """Return how many segments compute an expression, if several do; replicas are separate expressions."""
    names = list(chain.from_iterable(_names(tuple(segment.exprs)) for segment in segments))
    if replicas:
        names = [replicas.get(name, name) for name in names]
    if len(set(names)) == len(names):
        return {}
    counts = Counter(names)
    counts.update({name: counts[original] for name, original in replicas.items()})
    return {name: count for name, count in counts.items() if count > 1}


@cached_by_identity
def _names(exprs: tuple[Expr, ...]) -> tuple[str, ...]:
    return tuple([expr.name for expr in exprs])


def _edge_kind(source: int | None, target: _Place) -> EdgeKind:
    if source is None:
        return "input"
    if target[0] is None:
        return "output"
    return "inside" if source == target[0] else "boundary"


def _tensor_node(node: str, kind: NodeKind, tensor: TensorView, called: str) -> NodeView:
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
        text=f"{kind} {tensor.name}",
        called=(called,),
    )

"""A view model with whole segments as nodes, for fusions too large to read op by op."""

from collections.abc import Container, Iterable
from dataclasses import replace

from fuser_lab.report.graph_views import EdgeView, NodeView, SegmentView
from fuser_lab.report.parts import edges_but, nodes_but
from fuser_lab.report.repeats import Block
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import ViewModel

COLLAPSE_FROM = 300  # ops; larger fusions first appear with one node per segment


def is_large(view: ViewModel) -> bool:
    """Return whether a fusion first appears with one node per segment."""
    return view.header.ops > COLLAPSE_FROM


def collapse(view: ViewModel, opened: Container[int] = (), blocks: Iterable[Block] = ()) -> ViewModel:
    """Return the view with one node for each of ``blocks``, and for each other segment not among the ``opened``.

    Node ids have the form ``segment:0`` or ``block:2-7``; an edge keeps the id of the first edge that it represents, so
    that selections and edits mean the same in all views. A fusion input has one node for each block that reads it.
    """
    folded = {index: block for block in blocks for index in range(block.first, block.last + 1)}
    closed = {s.index: s for s in view.segments if s.index in folded or s.index not in opened}
    home = {index: folded[index].id if index in folded else f"segment:{index}" for index in closed}
    entrances: dict[tuple[str, str], str] = {}  # first node for each tensor that a block reads
    spared: set[str] = set()  # the others

    def ends(edge: EdgeView) -> tuple[str, str]:
        a, b = edge.segments
        target = edge.target if b is None else home.get(b, edge.target)
        if edge.kind == "input" and b in folded:
            first = entrances.setdefault((edge.tensor, target), edge.source)
            if first != edge.source:
                spared.add(edge.source)
            return first, target
        return (edge.source if a is None else home.get(a, edge.source)), target

    edges: dict[tuple[str, str, str], EdgeView] = {}
    for edge in edges_but(view.edges, closed):
        source, target = ends(edge)
        if source != target and (source, target, edge.tensor) not in edges:
            edges[source, target, edge.tensor] = _between(edge, source, target)
    nodes = [n for n in nodes_but(view.nodes, closed) if n.id not in spared]
    nodes += [_node(segment) for index, segment in closed.items() if index not in folded]
    nodes += [_block_node(block, view) for block in dict.fromkeys(folded.values())]
    return replace(
        view,
        nodes=tuple(nodes),
        edges=tuple(edges.values()),
        segments=tuple(_closed_view(s) if s.index in closed else s for s in view.segments),
    )


def _between(edge: EdgeView, source: str, target: str) -> EdgeView:
    return EdgeView(
        id=edge.id, source=source, target=target, tensor=edge.tensor, bytes=edge.bytes, kind=edge.kind,
        segments=edge.segments, labelled=edge.labelled, called=edge.called, is_free=edge.is_free,
    )


def _closed_view(s: SegmentView) -> SegmentView:
    return SegmentView(
        index=s.index, scheduler=s.scheduler, ok=s.ok, ops=s.ops, nodes=(), inputs=s.inputs, outputs=s.outputs,
        bytes_in=s.bytes_in, bytes_out=s.bytes_out, bytes_crossing=s.bytes_crossing, verdicts=s.verdicts,
    )


def _block_node(block: Block, view: ViewModel) -> NodeView:
    inside = [s for s in view.segments if s.index in block]
    ops = plural(sum(len(s.ops) for s in inside), "op")
    schedulers = ", ".join(s.scheduler for s in inside[: block.period])
    return NodeView(
        id=block.id,
        kind="segment",
        label=f"S{block.first}–S{block.last} · {block.count} repeats",
        bytes=sum(s.bytes_out for s in inside),
        segment=block.first,
        text=f"Segments {block.first} to {block.last}: {block.count} times {schedulers}; {ops}",
        detail=f"{block.count} × {plural(block.period, 'segment')} · {ops}",
    )


def _node(segment: SegmentView) -> NodeView:
    ops = plural(len(segment.ops), "op")
    return NodeView(
        id=f"segment:{segment.index}",
        kind="segment",
        label=f"S{segment.index} {segment.scheduler}",
        bytes=segment.bytes_out,
        segment=segment.index,
        text=f"Segment {segment.index}: {segment.scheduler}, {ops}",
        detail=f"{ops} · in {bytes_label(segment.bytes_in)} · out {bytes_label(segment.bytes_out)}",
    )

"""A view model with whole segments as nodes, for fusions that are too large to be read op by op."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import NodeView

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from fuser_lab.report.repeats import Block
    from fuser_lab.report.view_model import EdgeView, SegmentView, ViewModel

COLLAPSE_FROM = 300  # ops; larger fusions are first shown with one node a segment


def is_large(view: ViewModel) -> bool:
    """Return whether a fusion is first shown by segments."""
    return view.header.ops > COLLAPSE_FROM


def collapsed(view: ViewModel, opened: Container[int] = (), blocks: Iterable[Block] = ()) -> ViewModel:
    """Return the view with one node for each of ``blocks``, and for each other segment not among the ``opened``.

    Node ids are ``segment:0`` or ``block:2-7`` and so on; an edge keeps the id of the first that it stands for, so that
    a selection or an edit means the same in all views. A fusion input has one node for each block that reads it.
    """
    folded = {index: block for block in blocks for index in range(block.first, block.last + 1)}
    closed = {s.index: s for s in view.segments if s.index in folded or s.index not in opened}
    home = {index: folded[index].id if index in folded else f"segment:{index}" for index in closed}
    place = {n.id: n.id if n.segment not in closed else home[n.segment] for n in view.nodes}
    shared: dict[tuple[str, str], str] = {}
    for edge in view.edges:
        if edge.kind == "input" and edge.segments[1] in folded:
            place[edge.source] = shared.setdefault((edge.tensor, place[edge.target]), edge.source)
    nodes = [n for n in view.nodes if n.segment not in closed and place[n.id] == n.id]
    nodes += [_node(segment) for index, segment in closed.items() if index not in folded]
    nodes += [_block_node(block, view) for block in dict.fromkeys(folded.values())]
    edges: dict[tuple[str, str, str], EdgeView] = {}
    for edge in view.edges:
        source, target = place[edge.source], place[edge.target]
        if source != target:
            edges.setdefault((source, target, edge.tensor), replace(edge, source=source, target=target))
    return replace(
        view,
        nodes=tuple(nodes),
        edges=tuple(edges.values()),
        segments=tuple(replace(s, nodes=()) if s.index in closed else s for s in view.segments),
    )


def _block_node(block: Block, view: ViewModel) -> NodeView:
    inside = [s for s in view.segments if s.index in block]
    ops = plural(sum(len(s.ops) for s in inside), "op")
    schedulers = ", ".join(s.scheduler for s in inside[: block.period])
    return NodeView(
        id=block.id,
        kind="segment",
        label=f"{block.count} × {block.period} S{block.first}–S{block.last}",
        tensor="",
        tensors=(),
        dtype="",
        shape=(),
        bytes=sum(s.bytes_out for s in inside),
        segment=block.first,
        replica=False,
        copies=1,
        text=f"Segments {block.first} to {block.last}: {block.count} times {schedulers}; {ops}",
        detail=f"{block.count} × {plural(block.period, 'segment')} · {ops}",
    )


def _node(segment: SegmentView) -> NodeView:
    ops = plural(len(segment.ops), "op")
    return NodeView(
        id=f"segment:{segment.index}",
        kind="segment",
        label=f"S{segment.index} {segment.scheduler}",
        tensor="",
        tensors=(),
        dtype="",
        shape=(),
        bytes=segment.bytes_out,
        segment=segment.index,
        replica=False,
        copies=1,
        text=f"Segment {segment.index}: {segment.scheduler}, {ops}",
        detail=f"{ops} · in {bytes_label(segment.bytes_in)} · out {bytes_label(segment.bytes_out)}",
    )

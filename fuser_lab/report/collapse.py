"""A view model with whole segments as nodes, for fusions that are too large to be read op by op."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import NodeView

if TYPE_CHECKING:
    from collections.abc import Container

    from fuser_lab.report.view_model import EdgeView, SegmentView, ViewModel

COLLAPSE_FROM = 300  # ops; larger fusions are first shown with one node a segment


def is_large(view: ViewModel) -> bool:
    """Return whether a fusion is first shown by segments."""
    return view.header.ops > COLLAPSE_FROM


def collapsed(view: ViewModel, opened: Container[int] = ()) -> ViewModel:
    """Return the view with one node for each segment that is not among the ``opened``.

    Node ids are ``segment:0`` and so on; an edge keeps the id of the first that it stands for, so that a selection
    or an edit means the same in both views.
    """
    closed = {s.index: s for s in view.segments if s.index not in opened}
    place = {n.id: n.id if n.segment not in closed else f"segment:{n.segment}" for n in view.nodes}
    nodes = [n for n in view.nodes if n.segment not in closed]
    nodes += [_node(segment) for segment in closed.values()]
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

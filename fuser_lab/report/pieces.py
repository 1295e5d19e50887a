"""The picture of a plan in pieces, for a page that keeps those which an edit only moves.

An edit changes a few boxes and shifts many. So everything is drawn around a separate origin (a box around its corner or
its middle, a wire around its tip): what has the same markup as before stays in the page and is moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fuser_lab.report import measure
from fuser_lab.report.geometry import Box, Curve
from fuser_lab.report.svg import Painter, hints_of, inner
from fuser_lab.report.view_model import NodeView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuser_lab.report.geometry import Layout
    from fuser_lab.report.layers import Point
    from fuser_lab.report.view_model import NodeKind, ViewModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something drawn: where its origin is, the classes of its group, and what is inside the group.

    ``hue`` is the segment whose colour it has; it stands apart because an edit renumbers segments.
    """

    x: float
    y: float
    css: str
    hue: int | None
    markup: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A picture: the patterns it uses, then what is drawn, from the lowest to the highest; by segment or by id."""

    patterns: str
    boxes: Mapping[int, Piece]
    edges: Mapping[str, Piece]
    headers: Mapping[int, Piece]
    labels: Mapping[str, Piece]
    nodes: Mapping[str, Piece]


def view_pieces(view: ViewModel, layout: Layout) -> Pieces:
    """Return the pieces of a view model's picture; the page's style sheet has the colours."""
    compact = view.compact
    painter = Painter(prefix="", style=False, compact=compact, segments=view.segments, hints=hints_of(view))
    boxes, headers = {}, {}
    for segment in view.segments:
        box = layout.segments.get(segment.index)
        if box is not None:
            x, y = round(box.x, 1), round(box.y, 1)
            at_home = Box(x=0.0, y=0.0, width=box.width, height=box.height)
            boxes[segment.index] = Piece(
                x=x, y=y, css=painter.segment_css(segment), hue=segment.index,
                markup=painter.segment(segment, at_home),
            )
            headers[segment.index] = Piece(
                x=x, y=y, css=painter.header_css(segment), hue=segment.index,
                markup=painter.header(segment, at_home),
            )
    edges, labels = {}, {}
    for edge in view.edges:
        curve = layout.edges[edge.id]
        x, y = curve.tip
        markup = painter.edge(edge, _around_tip(curve))
        edges[edge.id] = Piece(
            x=round(x, 1), y=round(y, 1), css=painter.edge_css(edge), hue=inner(edge), markup=markup,
        )
        if curve.label is not None:
            x, y = curve.label
            markup = painter.label(edge, (0.0, 0.0))
            labels[edge.id] = Piece(x=round(x, 1), y=round(y, 1), css="fl-label", hue=None, markup=markup)
    nodes = {}
    for node in view.nodes:
        box = layout.nodes[node.id]
        x, y = round(box.x + box.width / 2, 1), round(box.y + box.height / 2, 1)
        markup = _node_markup(
            node.kind, node.label, node.tensor, node.tensors, node.dtype, node.shape, node.bytes, node.replica,
            node.copies, node.text, node.detail, compact,
        )
        nodes[node.id] = Piece(x=x, y=y, css=painter.node_css(node), hue=node.segment, markup=markup)
    return Pieces(
        patterns=painter.patterns(segment for segment in view.segments if segment.index in boxes), boxes=boxes,
        edges=edges, headers=headers, labels=labels, nodes=nodes,
    )


@lru_cache(maxsize=1 << 13)
def _node_markup(  # all that stands on a node: an edit changes its id and its segment only
    kind: NodeKind, label: str, tensor: str, tensors: tuple[str, ...], dtype: str, shape: tuple[str, ...], size: int,
    replica: bool, copies: int, text: str, detail: str, compact: bool,
) -> str:
    node = NodeView(
        id="", kind=kind, label=label, tensor=tensor, tensors=tensors, dtype=dtype, shape=shape, bytes=size,
        segment=None, replica=replica, copies=copies, text=text, detail=detail,
    )
    lines = measure.node_text(node, compact=compact)
    box = Box(x=-lines.width / 2, y=-lines.height / 2, width=lines.width, height=lines.height)
    return Painter(prefix="", style=False, compact=compact).node(node, box)


def _around_tip(curve: Curve) -> Curve:
    tip_x, tip_y = curve.tip
    points: tuple[Point, ...] = tuple((x - tip_x, y - tip_y) for x, y in curve.points)
    return Curve(points=points, tip=(0.0, 0.0), label=None)

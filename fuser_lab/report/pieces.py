"""The picture of a plan in pieces, for a page that reuses the pieces that an edit only moves.

An edit changes a few boxes and shifts many. Each piece is therefore drawn around its own origin (a box around its
corner or its middle, a wire around its tip): pieces with unchanged markup stay in the page and only move.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fuser_lab.report import measure
from fuser_lab.report.geometry import Box
from fuser_lab.report.svg import Painter, hints_of, inner
from fuser_lab.report.view_model import NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fuser_lab.report.geometry import Curve, Inside, Layout
    from fuser_lab.report.view_model import EdgeView, NodeKind, ViewModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A drawn piece: its origin, the classes of its group, and the group's contents.

    ``hue`` is the segment whose colour it has; it is separate because an edit renumbers segments.
    """

    x: float
    y: float
    css: str
    hue: int | None
    markup: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """An edge between segments as it was drawn: its curve, its bytes and classes, its markup, extent and label."""

    curve: Curve
    look: tuple[int, str]
    markup: str
    extent: tuple[int, int, int, int]
    label: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A picture: the patterns it uses, then what is drawn, from the lowest to the highest; by segment or by id.

    ``edges`` and ``nodes`` are those that are not inside a segment; for these there is `inside_pieces`. ``wires`` is
    what the next picture takes from this one.
    """

    patterns: str
    boxes: Mapping[int, Piece]
    edges: Mapping[str, Piece]
    headers: Mapping[int, Piece]
    labels: Mapping[str, Piece]
    nodes: Mapping[str, Piece]
    wires: Mapping[str, Wire]


def view_pieces(view: ViewModel, layout: Layout, before: Mapping[str, Wire] | None = None) -> Pieces:
    """Return the pieces of a view model's picture around its segments; the page's style sheet has the colours.

    ``before`` has the wires of the picture before: an edge whose curve is the same object is not drawn again.
    """
    painter, compact = _painter(view), view.compact
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
    edges, labels, wires, before = {}, {}, dict[str, Wire](), before or {}
    for edge in view.edges:
        if edge.id not in layout.wires:
            continue
        tip, curve = layout.wires[edge.id]
        look = edge.bytes, painter.edge_css(edge)
        found = before.get(edge.id)
        if found is None or found.curve is not curve or found.look != look:
            label = None if curve.label is None else painter.label(edge, (0.0, 0.0))
            found = Wire(curve=curve, look=look, markup=painter.edge(edge, curve), extent=curve.extent, label=label)
        wires[edge.id] = found
        x, y = round(tip[0], 1), round(tip[1], 1)
        edges[edge.id] = Piece(x=x, y=y, css=look[1], hue=inner(edge), markup=found.markup)
        if curve.label is not None and found.label is not None:
            x, y = round(tip[0] + curve.label[0], 1), round(tip[1] + curve.label[1], 1)
            labels[edge.id] = Piece(x=x, y=y, css="fl-label", hue=None, markup=found.label)
    nodes = {
        node.id: _node_piece(painter, node, layout.free[node.id], compact)
        for node in view.nodes if node.id in layout.free
    }
    return Pieces(
        patterns=painter.patterns(segment for segment in view.segments if segment.index in boxes), boxes=boxes,
        edges=edges, headers=headers, labels=labels, nodes=nodes, wires=wires,
    )


def inside_pieces(
    view: ViewModel, inside: Inside, nodes: Iterable[NodeView], edges: Iterable[EdgeView],
) -> tuple[dict[str, Piece], dict[str, Piece]]:
    """Return the pieces of nodes and edges inside a segment, from its corner on."""
    painter, compact = _painter(view), view.compact
    return (
        {node.id: _node_piece(painter, node, inside.nodes[node.id], compact) for node in nodes},
        {edge.id: _edge_piece(painter, edge, inside.edges[edge.id]) for edge in edges},
    )


def _painter(view: ViewModel) -> Painter:
    return Painter(prefix="", style=False, compact=view.compact, segments=view.segments, hints=hints_of(view))


def _edge_piece(painter: Painter, edge: EdgeView, curve: Curve) -> Piece:
    x, y = curve.tip
    return Piece(
        x=round(x, 1), y=round(y, 1), css=painter.edge_css(edge), hue=inner(edge),
        markup=painter.edge(edge, curve.moved(-x, -y)),
    )


def _node_piece(painter: Painter, node: NodeView, box: Box, compact: bool) -> Piece:
    x, y = round(box.x + box.width / 2, 1), round(box.y + box.height / 2, 1)
    markup = _node_markup(
        node.kind, node.label, node.tensor, node.tensors, node.dtype, node.shape, node.bytes, node.replica,
        node.copies, node.text, node.detail, compact,
    )
    return Piece(x=x, y=y, css=painter.node_css(node), hue=node.segment, markup=markup)


@lru_cache(maxsize=1 << 13)
def _node_markup(  # the node's text: an edit changes only its id and its segment
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

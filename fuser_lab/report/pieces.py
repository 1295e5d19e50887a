"""The picture of a plan in pieces, for a page that reuses the pieces that an edit only moves.

An edit changes a few boxes and shifts and renumbers many. Each piece is therefore drawn around its own origin (a box
around its corner or its middle, a wire around its tip) and without segment numbers, which the page fills in: pieces
with unchanged markup stay in the page and only move.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fuser_lab.report import measure
from fuser_lab.report.geometry import Box, Curve, Inside
from fuser_lab.report.layers import Point
from fuser_lab.report.svg import Painter, hints_of
from fuser_lab.report.view_model import EdgeView, NodeKind, NodeView, SegmentView, ViewModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A drawn piece: its origin, the classes of its group, and the group's contents."""

    x: float
    y: float
    css: str
    markup: str


def painter_of(view: ViewModel) -> Painter:
    """Return what draws the pieces of a view model; the page's style sheet has the colours."""
    return Painter(
        prefix="", style=False, compact=view.compact, numbered=False, segments=view.segments, hints=hints_of(view),
    )


def box_pieces(painter: Painter, segment: SegmentView, box: Box) -> tuple[Piece, Piece]:
    """Return the box of a segment and its header."""
    x, y = round(box.x, 1), round(box.y, 1)
    digits = len(str(segment.index))
    markup = _box_markup(
        segment.scheduler, segment.ok, len(segment.ops), segment.bytes_in, segment.bytes_out, digits, box.width,
        box.height,
    )
    return (
        Piece(x=x, y=y, css=painter.segment_css(segment), markup=markup[0]),
        Piece(x=x, y=y, css=painter.header_css(segment), markup=markup[1]),
    )


def wire_pieces(painter: Painter, edge: EdgeView, tip: Point, curve: Curve) -> tuple[Piece, Piece | None]:
    """Return an edge between segments whose curve begins at its tip, and its label."""
    x, y = round(tip[0], 1), round(tip[1], 1)
    wire = Piece(x=x, y=y, css=painter.edge_css(edge), markup=painter.edge(edge, curve))
    if curve.label is None:
        return wire, None
    x, y = round(tip[0] + curve.label[0], 1), round(tip[1] + curve.label[1], 1)
    css = "fl-label" if edge.labelled else "fl-label fl-stub"
    return wire, Piece(x=x, y=y, css=css, markup=painter.label(edge, (0.0, 0.0)))


def node_piece(painter: Painter, node: NodeView, box: Box) -> Piece:
    """Return a node, around its middle."""
    x, y = round(box.x + box.width / 2, 1), round(box.y + box.height / 2, 1)
    markup = _node_markup(
        node.kind, node.label, node.tensor, node.tensors, node.dtype, node.shape, node.bytes, node.replica,
        node.copies, node.text, node.detail, painter.compact, node.called,
    )
    return Piece(x=x, y=y, css=painter.node_css(node), markup=markup)


def inside_pieces(
    painter: Painter, inside: Inside, nodes: Iterable[NodeView], edges: Iterable[EdgeView],
) -> tuple[dict[str, Piece], dict[str, Piece]]:
    """Return the pieces of nodes and edges inside a segment, from its corner on."""
    return (
        {node.id: node_piece(painter, node, inside.nodes[node.id]) for node in nodes},
        {edge.id: _edge_piece(painter, edge, inside.edges[edge.id]) for edge in edges},
    )


def _edge_piece(painter: Painter, edge: EdgeView, curve: Curve) -> Piece:
    x, y = curve.tip
    return Piece(
        x=round(x, 1), y=round(y, 1), css=painter.edge_css(edge), markup=painter.edge(edge, curve.shift(-x, -y)),
    )


@lru_cache(maxsize=1 << 12)
def _box_markup(  # an edit changes only the numbers of most segments
    scheduler: str, ok: bool, ops: int, bytes_in: int, bytes_out: int, digits: int, width: float, height: float,
) -> tuple[str, str]:
    segment = SegmentView(
        index=10 ** (digits - 1), scheduler=scheduler, ok=ok, ops=("",) * ops, nodes=(), inputs=(), outputs=(),
        bytes_in=bytes_in, bytes_out=bytes_out, bytes_crossing=0, verdicts=(),
    )
    painter, box = Painter(prefix="", style=False, compact=False, numbered=False), Box(
        x=0.0, y=0.0, width=width, height=height,
    )
    return painter.segment(segment, box), painter.header(segment, box)


@lru_cache(maxsize=1 << 13)
def _node_markup(  # the node's text: an edit changes only its id and its segment
    kind: NodeKind, label: str, tensor: str, tensors: tuple[str, ...], dtype: str, shape: tuple[str, ...], size: int,
    replica: bool, copies: int, text: str, detail: str, compact: bool, called: tuple[str, ...],
) -> str:
    node = NodeView(
        id="", kind=kind, label=label, tensor=tensor, tensors=tensors, dtype=dtype, shape=shape, bytes=size,
        segment=None, replica=replica, copies=copies, text=text, detail=detail, called=called,
    )
    lines = measure.node_text(node, compact=compact)
    box = Box(x=-lines.width / 2, y=-lines.height / 2, width=lines.width, height=lines.height)
    return Painter(prefix="", style=False, compact=compact).node(node, box)

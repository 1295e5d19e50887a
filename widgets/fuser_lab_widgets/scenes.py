"""The page's data of a plan, JSON-ready: the picture, its nodes and edges, the numbers, the marks."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Literal, NamedTuple

from fuser_lab.report import theme
from fuser_lab.report.collapse import collapse, is_large
from fuser_lab.report.diff import PlanDiff
from fuser_lab.report.geometry import Box, Curve, Inside, Layout
from fuser_lab.report.layers import Point
from fuser_lab.report.layout import lay_out
from fuser_lab.report.modules import by_modules, has_modules, module_folds
from fuser_lab.report.parts import crossing, edges_by_segment, nodes_but, nodes_by_segment, select
from fuser_lab.report.pieces import Piece, box_pieces, inside_pieces, node_piece, painter_of, wire_pieces
from fuser_lab.report.repeats import blocks
from fuser_lab.report.svg import Painter, describe, hints_of
from fuser_lab.report.tables import segment_table
from fuser_lab.report.units import bytes_label
from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView, ViewModel
from fuser_lab_widgets.stock import Stock

Detail = Literal["ops", "segments", "blocks", "modules"]


class _Wire(NamedTuple):
    """An edge of the last picture.

    ``wire`` is its tip and curve; ``look`` is everything else that determines how it is drawn; ``cells`` is its row,
    and ``row`` the number of this row.
    """

    wire: tuple[Point, Curve]
    look: tuple[object, ...]
    cells: tuple[Any, ...]
    row: int


class _Node(NamedTuple):
    """A node of the last picture that is outside of segments, with the number of its row."""

    node: NodeView
    box: Box
    row: int


class Pieces:
    """The rows of a page's pictures. Rows of the last picture are kept, because the next picture repeats most of them.

    Each row ends with the CSS classes and the number of a shape.

    * The row of a box has its size and corner, and the classes and shapes of box and header.
    * The row of a node has its id, kind, names of tensors, search text, size and centre.
    * The row of an edge has its id, ends, tensor, extent around its tip (left, top, right, bottom), kind and tip. The
      shape is followed by the centre and the shape of the label, or by None.

    A part has the rows of a segment's nodes and edges, relative to the corner of its box.
    """

    def __init__(self, first: int = 0) -> None:
        self.stock = Stock(first)
        self._wires: dict[str, _Wire] = {}
        self._nodes: dict[str, _Node] = {}
        self._boxes: dict[Hashable, int] = {}  # numbers of rows, by everything that determines how a box is drawn
        self._insides: dict[Hashable, tuple[Inside, int]] = {}

    def boxes(self, painter: Painter, view: ViewModel, layout: Layout) -> list[list[int | None]]:
        """Return for each segment with a box its number, the number of its look, its row, and the part with its ops."""
        insides = self._inside_numbers(painter, view, layout)
        return [
            [
                segment.index, theme.look(segment.index),
                self._box(painter, segment, layout.segments[segment.index]), insides.get(segment.index),
            ]
            for segment in view.segments if segment.index in layout.segments
        ]

    def _box(self, painter: Painter, segment: SegmentView, box: Box) -> int:
        key = (
            segment.scheduler, segment.ok, len(segment.ops), segment.bytes_in, segment.bytes_out,
            len(str(segment.index)), box.x, box.y, box.width, box.height,
        )
        row = self._boxes.get(key)
        if row is None:
            drawn, header = box_pieces(painter, segment, box)
            row = self._boxes[key] = self.stock.number("rows", (
                round(box.width), round(box.height), drawn.x, drawn.y, *self._looks(drawn), *self._looks(header),
            ))
        return row

    def wires(self, painter: Painter, view: ViewModel, layout: Layout) -> list[list[int | None]]:
        """Return for each edge between segments its row and the segments at both ends."""
        hints, before, drawn = hints_of(view), self._wires, dict[str, _Wire]()
        rows: list[list[int | None]] = []
        for edge, ends in crossing(view.edges):
            wire = layout.wires[edge.id]
            look = edge.kind, edge.passed, edge.tensor in hints, edge.source, edge.target
            piece = before.get(edge.id)
            if piece is None or piece.wire is not wire or piece.look != look:
                is_moved = piece is not None and piece.wire[1] is wire[1] and piece.look == look
                cells = _move(piece.cells, *wire) if piece and is_moved else self._wire(painter, edge, *wire)
                piece = _Wire(wire, look, cells, self.stock.number("rows", cells))
            drawn[edge.id] = piece
            rows.append([piece.row, *ends])
        self._wires = drawn
        return rows

    def _wire(self, painter: Painter, edge: EdgeView, tip: Point, curve: Curve) -> tuple[Any, ...]:
        drawn, label = wire_pieces(painter, edge, tip, curve)
        return (
            edge.id, edge.source, edge.target, edge.tensor, *curve.extent, edge.kind, drawn.x, drawn.y,
            *self._looks(drawn), label and (label.x, label.y, *self._looks(label)),
        )

    def nodes(self, painter: Painter, view: ViewModel, layout: Layout) -> list[list[int | None]]:
        """Return for each node outside of boxes its row and the segment that it represents."""
        before, drawn = self._nodes, dict[str, _Node]()
        rows: list[list[int | None]] = []
        for node in nodes_but(view.nodes, layout.insides):
            box, piece = layout.free[node.id], before.get(node.id)
            if piece is None or piece.box != box or (piece.node is not node and piece.node != node):
                row = self._node(node, box, node_piece(painter, node, box))
                piece = _Node(node, box, self.stock.number("rows", row))
            drawn[node.id] = piece
            rows.append([piece.row, node.segment])
        self._nodes = drawn
        return rows

    def _node(self, node: NodeView, box: Box, drawn: Piece) -> tuple[Hashable, ...]:
        words = (node.label, node.text) if node.kind == "segment" else (node.text, node.dtype, *node.called)
        return (
            node.id, node.kind, node.tensors, " ".join(words), round(box.width), round(box.height), drawn.x, drawn.y,
            *self._looks(drawn),
        )

    def patterns(self, painter: Painter, view: ViewModel, layout: Layout) -> int:
        """Return the shape with the patterns of the boxes."""
        return self.stock.number("shapes", painter.patterns(s for s in view.segments if s.index in layout.segments))

    def table(self, view: ViewModel) -> dict[str, Any]:
        """Return the table of the segments, each as the row with its cells without its number."""
        table = segment_table(view.segments)
        rows = [self.stock.number("rows", row[1:]) for row in table.rows]
        return {**table.to_dict(), "rows": rows}

    def _looks(self, drawn: Piece) -> tuple[str, int]:
        return drawn.css, self.stock.number("shapes", drawn.markup)

    def _inside_numbers(self, painter: Painter, view: ViewModel, layout: Layout) -> dict[int, int]:
        """Return the number of the part of each segment that is drawn with its ops."""
        hints = hints_of(view)
        keys = {s.index: (id(inside), s.ok, hints) for s in view.segments if (inside := layout.insides.get(s.index))}
        new = {index for index, key in keys.items() if key not in self._insides}
        nodes, edges = (nodes_by_segment(view.nodes), edges_by_segment(view.edges)) if new else ({}, {})
        for index in new:
            inside = layout.insides[index]
            ops, into = nodes[index], edges.get(index)
            wires = () if into is None else into.finished([edge for edge in into.rough if edge.kind == "inside"])
            number = self._part(painter, inside, ops.finished(ops.rough), wires)
            self._insides[keys[index]] = inside, number  # its id is of no other while it is held here
        return {index: self._insides[key][1] for index, key in keys.items()}

    def _part(self, painter: Painter, inside: Inside, nodes: Sequence[NodeView], edges: Sequence[EdgeView]) -> int:
        drawn, wired = inside_pieces(painter, inside, nodes, edges)
        ops = tuple([self._node(node, inside.nodes[node.id], drawn[node.id]) for node in nodes])
        wires = tuple([
            (
                e.id, e.source, e.target, e.tensor, *inside.edges[e.id].extent, e.kind, wired[e.id].x, wired[e.id].y,
                *self._looks(wired[e.id]), None,
            )
            for e in edges
        ])
        return self.stock.number("parts", (ops, wires))


def _move(cells: tuple[Any, ...], tip: Point, curve: Curve) -> tuple[Any, ...]:
    """Return the row of an edge that runs as before, with its tip elsewhere."""
    *start, _, _, css, shape, label = cells
    (x, y), middle = tip, curve.label
    if middle is not None:
        label = round(x + middle[0], 1), round(y + middle[1], 1), *label[2:]
    return (*start, round(x, 1), round(y, 1), css, shape, label)


def scene(
    view: ViewModel, pieces: Pieces, *, detail: Detail = "ops", opened: Collection[int] = (),
    unfolded: Collection[str] = (), modules: Collection[str] = (), place: Callable[[ViewModel], Layout] = lay_out,
) -> dict[str, Any]:
    """Return the drawing and its data; ``detail="segments"`` draws one node per segment that is not open.

    ``detail="blocks"`` draws one node for each run of segments that repeat, unless its id is among the ``unfolded``.
    ``detail="modules"`` draws one node for each module in a segment, unless its path is among the open ``modules``.

    What is drawn is given by numbers of ``pieces``, which are in the chunks from the first to the last of ``chunks``.
    """
    repeats = blocks(view)
    folded = [block for block in repeats if detail == "blocks" and block.id not in unfolded]
    if detail == "modules":
        shown = by_modules(view, module_folds(view, modules))
    else:
        shown = view if detail == "ops" else collapse(view, opened, folded)
    layout, painter = place(shown), painter_of(shown)
    drawn = {
        "boxes": pieces.boxes(painter, shown, layout),
        "wires": pieces.wires(painter, shown, layout),
        "nodes": pieces.nodes(painter, shown, layout),
        "patterns": pieces.patterns(painter, shown, layout),
        "segments": pieces.table(view),
    }
    pieces.stock.shut()
    return {
        "hash": view.header.hash,
        "title": view.header.title,
        "about": describe(view),
        "size": [round(layout.width), round(layout.height)],
        "hues": len(theme.HUES_LIGHT),
        "chunks": [pieces.stock.first, pieces.stock.end],
        **drawn,
        "facts": facts(view),
        "detail": detail,
        "repeats": bool(repeats),
        "modules": has_modules(view),
    }


def first_detail(view: ViewModel) -> Detail:
    """Return the initial level of detail of a fusion: ops if it is small, otherwise blocks or segments."""
    if not is_large(view):
        return "ops"
    return "blocks" if blocks(view) else "segments"


def facts(view: ViewModel) -> list[list[str]]:
    """Return the numbers of the header: value, name, and meaning."""
    header = view.header
    return [
        [str(header.segments), "segment" if header.segments == 1 else "segments", "one kernel each"],
        [
            str(header.ops), "op" if header.ops == 1 else "ops",
            f"a recomputed op counts once per segment; the definition, before its passes, has {header.defined}",
        ],
        [bytes_label(header.bytes_moved), "moved", "bytes that all segments read and write"],
        [bytes_label(header.bytes_ideal), "ideal", "bytes that a single kernel would move: fusion inputs and outputs"],
        [bytes_label(header.bytes_crossing), "crossing", "bytes that pass between segments; a view passes none"],
    ]


def marks(view: ViewModel, difference: PlanDiff) -> dict[str, list[str]]:
    """Return the differences from another plan, by ids: regrouped ops, and tensors that cross in only one."""
    moved = {m.name for m in difference.moved} | set(difference.only_after)
    new = {c.name for c in difference.now_crossing}
    gone = {c.name for c in difference.no_longer_crossing}
    return {
        "moved": [n.id for n in select(view.nodes, lambda n: n.kind == "op" and not moved.isdisjoint(n.tensors))],
        "new": [e.id for e in select(view.edges, lambda e: e.kind == "boundary", new)],
        "gone": [e.id for e in select(view.edges, lambda e: e.kind == "inside", gone)],
    }

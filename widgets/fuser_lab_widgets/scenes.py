"""The page's data of a plan, JSON-ready: the picture, its nodes and edges, the numbers, the marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fuser_lab.report import theme
from fuser_lab.report.collapse import collapsed, is_large
from fuser_lab.report.geometry import ROOM
from fuser_lab.report.layout import lay_out
from fuser_lab.report.modules import by_modules, has_modules, module_folds
from fuser_lab.report.pieces import inside_pieces, view_pieces
from fuser_lab.report.repeats import blocks
from fuser_lab.report.svg import describe, hints_of
from fuser_lab.report.tables import segment_table
from fuser_lab.report.units import bytes_label

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from fuser_lab.report.diff import PlanDiff
    from fuser_lab.report.geometry import Box, Inside, Layout, Room
    from fuser_lab.report.pieces import Piece, Wire
    from fuser_lab.report.view_model import EdgeView, NodeView, ViewModel

Detail = Literal["ops", "segments", "blocks", "modules"]


class Shapes:
    """The markup of drawn shapes by number: equal shapes have one number.

    ``parts`` holds the insides of segments by number, as lists of their nodes and edges. After an edit, segments that
    it did not change are sent as these numbers alone.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._known: dict[Hashable, tuple[Inside, int]] = {}
        self.parts: list[dict[str, Any]] = []  # by number
        self.wires: Mapping[str, Wire] = {}  # of the last picture

    def number(self, markup: str) -> int:
        """Return the number of a piece of markup, the same each time."""
        return self._numbers.setdefault(markup, len(self._numbers))

    def all(self) -> list[str]:
        """Return all markup in the order of the numbers."""
        return list(self._numbers)

    def insides(self, view: ViewModel, layout: Layout) -> list[list[int]]:
        """Return each segment that is drawn with its ops, and the number of its inside."""
        hints = hints_of(view)
        keys = {
            s.index: (id(layout.insides[s.index]), s.ok, hints) for s in view.segments if s.index in layout.insides
        }
        new = {index for index, key in keys.items() if key not in self._known}
        if new:
            nodes: dict[int, list[NodeView]] = {index: [] for index in new}
            for node in view.nodes:
                if node.segment in new and node.id in layout.insides[node.segment].nodes:
                    nodes[node.segment].append(node)
            edges: dict[int, list[EdgeView]] = {index: [] for index in new}
            for edge in view.edges:
                if edge.segments[0] in new and edge.id not in layout.wires:
                    edges[edge.segments[0]].append(edge)
            for index in new:
                inside = layout.insides[index]
                number = self._part(view, inside, nodes[index], edges[index])
                self._known[keys[index]] = inside, number  # its id is of no other while it is held here
        return [[index, self._known[key][1]] for index, key in keys.items()]

    def _part(self, view: ViewModel, inside: Inside, nodes: Sequence[NodeView], edges: Sequence[EdgeView]) -> int:
        drawn, wired = inside_pieces(view, inside, nodes, edges)
        part = {
            "nodes": [_node_row(node, inside.nodes[node.id], self._placed(drawn[node.id])) for node in nodes],
            "edges": [
                [e.id, e.source, e.target, e.tensor, *inside.edges[e.id].extent, *self._placed(wired[e.id])]
                for e in edges
            ],
        }
        number = self._parts.setdefault(repr(part), len(self._parts))
        if number == len(self.parts):
            self.parts.append(part)
        return number

    def _placed(self, piece: Piece) -> tuple[float, float, str, int]:
        return piece.x, piece.y, piece.css, self.number(piece.markup)

    def placed(self, piece: Piece) -> tuple[float, float, str, int | None, int]:
        """Return where a piece of the picture stands, its classes, its hue and the number of its shape."""
        hue = None if piece.hue is None else piece.hue % len(theme.HUES_LIGHT)
        return piece.x, piece.y, piece.css, hue, self.number(piece.markup)


def scene(
    view: ViewModel, shapes: Shapes, *, detail: Detail = "ops", opened: Collection[int] = (),
    unfolded: Collection[str] = (), modules: Collection[str] = (), place: Callable[[ViewModel], Layout] = lay_out,
    room: Room = ROOM,
) -> dict[str, Any]:
    """Return the drawing and its data; ``detail="segments"`` draws one node per segment that is not open.

    ``detail="blocks"`` draws one node for each run of segments that repeat, unless its id is among the ``unfolded``.
    ``detail="modules"`` draws one node for each module in a segment, unless its path is among the open ``modules``.

    Each drawn item ends with its position, its classes, its hue and the number of its shape. Before these, a node has
    its id, kind, the names of its tensors, its search text, width, height and segment; an edge its id, ends, tensor,
    its extent around its tip (left, top, right, bottom), its kind, and the segments on both sides; the header of a
    segment its number, and its box also width and height; a label the id of its edge. ``insides`` gives each segment
    with ops the number of its part. Nodes and edges in a part are relative to the corner of the segment's box, and
    have neither hue nor segments, because these follow from the box.
    """
    found = blocks(view)
    folded = [block for block in found if detail == "blocks" and block.id not in unfolded]
    if detail == "modules":
        shown = by_modules(view, module_folds(view, modules))
    else:
        shown = view if detail == "ops" else collapsed(view, opened, folded)
    layout = place(shown)
    pieces = view_pieces(shown, layout, shapes.wires)
    placed, shapes.wires = shapes.placed, pieces.wires
    return {
        "hash": view.header.hash,
        "title": view.header.title,
        "about": describe(view),
        "size": [round(layout.width), round(layout.height)],
        "patterns": pieces.patterns,
        "room": [room.width, room.height],
        "boxes": [
            [index, *_size(layout.segments[index]), *placed(piece)] for index, piece in pieces.boxes.items()
        ],
        "edges": [
            [
                e.id, e.source, e.target, e.tensor, *pieces.wires[e.id].extent, e.kind, *e.segments,
                *placed(pieces.edges[e.id]),
            ]
            for e in shown.edges if e.id in pieces.edges
        ],
        "headers": [[index, *placed(piece)] for index, piece in pieces.headers.items()],
        "labels": [[edge, *placed(piece)] for edge, piece in pieces.labels.items()],
        "nodes": [
            _node_row(n, layout.free[n.id], (n.segment, *placed(pieces.nodes[n.id])))
            for n in shown.nodes if n.id in pieces.nodes
        ],
        "insides": shapes.insides(shown, layout),
        "facts": facts(view),
        "segments": segment_table(view.segments).to_dict(),
        "detail": detail,
        "repeats": bool(found),
        "modules": has_modules(view),
    }


def first_detail(view: ViewModel) -> Detail:
    """Return the initial level of detail of a fusion: ops if it is small, otherwise blocks or segments."""
    if not is_large(view):
        return "ops"
    return "blocks" if blocks(view) else "segments"


def _node_row(node: NodeView, box: Box, more: Iterable[Any]) -> list[Any]:
    text = f"{node.label} {node.text}" if node.kind == "segment" else " ".join((node.text, node.dtype, *node.called))
    return [node.id, node.kind, node.tensors, text, *_size(box), *more]


def _size(box: Box) -> tuple[int, int]:
    return round(box.width), round(box.height)


def facts(view: ViewModel) -> list[list[str]]:
    """Return the numbers of the header: value, name, and meaning."""
    header = view.header
    return [
        [str(header.segments), "segment" if header.segments == 1 else "segments", "one kernel each"],
        [str(header.ops), "op" if header.ops == 1 else "ops", "a recomputed op counts once per segment"],
        [bytes_label(header.bytes_moved), "moved", "bytes that all segments read and write"],
        [bytes_label(header.bytes_ideal), "ideal", "bytes that a single kernel would move: fusion inputs and outputs"],
        [bytes_label(header.bytes_crossing), "crossing", "bytes of the tensors that pass between segments"],
    ]


def marks(view: ViewModel, difference: PlanDiff) -> dict[str, list[str]]:
    """Return the differences from another plan, by ids: regrouped ops, and tensors that cross in only one."""
    moved = {m.name for m in difference.moved} | set(difference.only_after)
    new = {c.name for c in difference.now_crossing}
    gone = {c.name for c in difference.no_longer_crossing}
    return {
        "moved": [n.id for n in view.nodes if n.kind == "op" and moved & set(n.tensors)],
        "new": [e.id for e in view.edges if e.kind == "boundary" and e.tensor in new],
        "gone": [e.id for e in view.edges if e.kind == "inside" and e.tensor in gone],
    }

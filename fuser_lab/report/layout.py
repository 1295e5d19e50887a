"""A layered layout of a view model: each segment separately, then the segments as boxes among inputs and outputs.

The computation is from top to bottom; a drawing from left to right is the same with both axes exchanged. The direction
and the number of bands depend on the available room. Time is near linear in the size of the graph; an edit lays out
only the segments that it changes, and everything else stays in place.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from fuser_lab.report import measure
from fuser_lab.report.geometry import ROOM, Box, Curve, Inside, Key, Layout, Memory, Same, Way
from fuser_lab.report.layers import Graph, Item, Stand, Wire, place, solve
from fuser_lab.report.parts import Parts, crossing, edges_by_segment, nodes_but, nodes_by_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fuser_lab.report.geometry import Places, Port, Room
    from fuser_lab.report.layers import Net, Placed, Point
    from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView, ViewModel

_MARGIN = 11.0
_MARGINS = _MARGIN, _MARGIN
_PADDING = 16.0
_GAP = 18.0
_RANK_GAP = 26.0
_OUTER_GAP = 26.0
_OUTER_RANK_GAP = 30.0
_ENTRANCES = 12.0  # between the tips of arrows into one box
_ARROW = 7.0
_ROUND = 8.0
_MOST_BANDS = 16
_MOST_TRIED = 500  # maximum number of nodes for which both directions are tried
_LARGEST = 1.3  # scale above which a drawing gains nothing
_PER_BAND = 0.95  # relative value of one more band at the same scale
_PER_BAND_INSIDE = 0.8
_ACROSS = 0.87  # relative value of a drawing from left to right
_WORN = 0.6  # fraction of the initial scale below which a drawing is laid out again
_LEGIBLE = 0.8  # scale from which all names can be read
_SHRUNK = 0.75  # of the scale of a new layout, below which that one takes the place of the old

Size = tuple[float, float]


def lay_out(view: ViewModel, room: Room = ROOM, before: Layout | None = None) -> Layout:
    """Return the coordinates of everything in ``view``, at the largest scale that fits ``room``.

    Parameters
    ----------
    view
        What is drawn.
    room
        The canvas.
    before
        The layout of another plan of the same fusion: common parts stay in place unless the drawing would become too
        small, or much smaller than a new one.
    """
    if before is not None:
        memory = before.memory
        drawing = _Drawing(view, room, across=memory.across, before=memory)
        bands, scale, _ = drawing.chosen
        least = _WORN * memory.scale
        if scale > least and (scale > min(_LEGIBLE, _SHRUNK * memory.scale) or len(view.nodes) > _MOST_TRIED):
            return drawing.layout(bands, memory.scale)
        best = _anew(view, room)
        if scale > max(least, _SHRUNK * min(best.chosen[1], 1.0)):
            return drawing.layout(bands, memory.scale)
    else:
        best = _anew(view, room)
    bands, scale, _ = best.chosen
    return best.layout(bands, scale)


def _anew(view: ViewModel, room: Room) -> _Drawing:
    ways = (False, True) if len(view.nodes) <= _MOST_TRIED else (False,)
    return max((_Drawing(view, room, across=across) for across in ways), key=lambda drawing: drawing.chosen[2])


def _port(edge: EdgeView) -> Port:
    return edge.source, edge.tensor


def _fit(size: Size, room: Size, largest: float = _LARGEST) -> float:
    """Return the scale at which a drawing fits into the room, up to the largest useful one."""
    return min(largest, *(have / max(need, 1.0) for need, have in zip(size, room, strict=True)))


_node_key = attrgetter(
    "id", "kind", "label", "tensors", "dtype", "shape", "bytes", "replica", "copies", "text", "detail", "called",
)
_edge_key = attrgetter("id", "kind", "source", "target", "tensor", "bytes")


class _Drawing:
    """A view model during layout; all sizes and points have their axes exchanged if it runs ``across``.

    What a segment looks like is decided by its key: its nodes, the edges into it, the tensors that leave it, and the
    width of its header. Nodes and edges that are the same objects as before need not be compared.
    """

    def __init__(self, view: ViewModel, room: Room, *, across: bool, before: Memory | None = None) -> None:
        self._view, self._across, self._before = view, across, before
        self._room = self._swapped((room.width, room.height))
        self._compact = view.compact
        self._segments = {s.index: s for s in view.segments}
        self._boxed = {index: s for index, s in self._segments.items() if s.nodes}
        self._nodes, self._into = nodes_by_segment(view.nodes), edges_by_segment(view.edges)
        self._free = list(nodes_but(view.nodes, self._boxed))
        self._crossing = [(e, _port(e), *ends) for e, ends in self._between(view.edges)]
        self._entering: dict[int, list[str]] = defaultdict(list)  # edges into each segment from elsewhere
        self._leaving: dict[int, dict[Port, None]] = defaultdict(dict)
        for edge, port, home, goal in self._crossing:
            if home is not None:
                self._leaving[home][port] = None
            if goal is not None:
                self._entering[goal].append(edge.id)
        self._sizes = {node.id: self._size(node) for node in self._free}
        self._entrances = self._spread_entrances((edge for edge, *_ in self._crossing), self._sizes)
        self._exits = self._spread_exits((port for _, port, *_ in self._crossing), self._sizes)
        self._insides: dict[int, Inside] = {}
        self._known: dict[Same, tuple[Key, Inside]] = {}
        for segment in self._boxed.values():
            self._place_inside(segment)
        self._number: dict[str | int, int] = {}
        self._labels: dict[Port, int] = {}
        self._legs: dict[str, tuple[int, ...]] = {}
        self._net = self._outer_net()
        self.chosen = self._choose()

    def _between(self, edges: Sequence[EdgeView]) -> Iterator[tuple[EdgeView, tuple[int | None, int | None]]]:
        """Yield the edges that are not inside a box, with the boxes at their ends."""
        boxed = self._boxed
        ends = crossing(edges) if isinstance(edges, Parts) else ((edge, edge.segments) for edge in edges)
        for edge, (source, target) in ends:
            home, goal = source if source in boxed else None, target if target in boxed else None
            if goal is None or home != goal:
                yield edge, (home, goal)

    def _swapped(self, pair: Size) -> Size:
        return (pair[1], pair[0]) if self._across else pair

    def _size(self, node: NodeView) -> Size:
        text = measure.node_text(node, compact=self._compact)
        return self._swapped((text.width, text.height))

    def _choose(self) -> tuple[int, float, float]:
        """Return the best number of bands, the scale at which the drawing fits with it, and its score."""
        most = _MOST_BANDS if self._before is None else self._before.bands
        sizes = self._net.extents(most, 1 if self._before is None else most)
        scored = [(bands, _fit(size, self._room)) for bands, size in sizes.items()]
        worth = [scale * _PER_BAND ** (bands - 1) * (_ACROSS if self._across else 1.0) for bands, scale in scored]
        at = max(range(len(scored)), key=worth.__getitem__)
        return *scored[at], worth[at]

    def _spread_entrances(self, edges: Iterable[EdgeView], sizes: Mapping[str, Size]) -> dict[str, float]:
        """Return for each edge into one of the nodes that have a size where its tip stands there, from the middle."""
        entering: dict[str, list[EdgeView]] = defaultdict(list)
        for edge in edges:
            if edge.target in sizes:
                entering[edge.target].append(edge)
        places: dict[str, float] = {}
        for target, tips in entering.items():
            step = min(_ENTRANCES, sizes[target][0] / (len(tips) + 1))
            places |= {e.id: (n - (len(tips) - 1) / 2) * step for n, e in enumerate(tips)}
        return places

    def _spread_exits(self, ports: Iterable[Port], sizes: Mapping[str, Size]) -> dict[Port, float]:
        """Return where each tensor leaves its node, from the middle, for nodes that have a size."""
        leaving: dict[str, dict[Port, None]] = defaultdict(dict)
        for port in ports:
            if port[0] in sizes:
                leaving[port[0]][port] = None
        places: dict[Port, float] = {}
        for source, exits in leaving.items():
            step = min(_ENTRANCES, sizes[source][0] / (len(exits) + 1))
            places |= {port: (n - (len(exits) - 1) / 2) * step for n, port in enumerate(exits)}
        return places

    def _place_inside(self, segment: SegmentView) -> None:
        """Find the layout of a segment among those from before, or make it."""
        index, before = segment.index, self._before
        nodes, into = self._nodes[index], self._into.get(index)
        width, leaving = measure.header_width(segment), tuple(self._leaving[index])
        same = Same(
            (nodes.rough, into and into.rough), self._compact, width, tuple(self._entering[index]), leaving,
        )
        placed = None if before is None else before.insides.get(same)
        if placed is None:
            edges = () if into is None else into.finished(into.rough)
            drawn = nodes.finished(nodes.rough)
            key = Key((self._compact, width, segment.nodes, leaving, *map(_node_key, drawn), *map(_edge_key, edges)))
            inside = None if before is None else before.alike.get(key)
            placed = key, inside or self._inside(segment, drawn, edges)
        self._known[same] = placed
        self._insides[index] = placed[1]

    def _inside(self, segment: SegmentView, nodes: Iterable[NodeView], edges: Sequence[EdgeView]) -> Inside:
        """Lay out one segment: its nodes, doors at the top for what comes in and below for what goes out.

        ``edges`` are those into its nodes.
        """
        names, leaving_it = segment.nodes, self._leaving[segment.index]
        sizes = {node.id: self._size(node) for node in nodes}
        entrances = self._spread_entrances(edges, sizes)
        exits = self._spread_exits((*map(_port, edges), *leaving_it), sizes)
        number = {name: n for n, name in enumerate(names)}
        items = [Item(width=sizes[name][0], height=sizes[name][1]) for name in names]
        entering: dict[Port, int] = {}
        leaving: dict[Port, int] = {}
        wires: list[Wire] = []
        carried: list[str | Port] = []
        within: list[str] = []
        trunks: dict[Port, int] = {}
        for edge in edges:
            port = _port(edge)
            source = number.get(edge.source)
            if source is not None:
                within.append(edge.id)
            else:
                source = entering.get(port)
                if source is None:
                    source = entering[port] = len(items)
                    items.append(Item(width=2.0, height=0.0, first=True))
            wires.append(Wire(
                source=source, target=number[edge.target], trunk=trunks.setdefault(port, len(trunks)),
                leaves=exits.get(port, 0.0), enters=entrances[edge.id],
            ))
            carried.append(edge.id)
        for port in leaving_it:
            leaving[port] = len(items)
            items.append(Item(width=2.0, height=0.0, last=True))
            wires.append(Wire(
                source=number[port[0]], target=leaving[port], trunk=trunks.setdefault(port, len(trunks)),
                leaves=exits[port],
            ))
            carried.append(port)
        whole = Graph(items=tuple(items), wires=tuple(wires), gap=_GAP, rank_gap=_RANK_GAP)
        graph, bands = self._banded(segment, whole)
        placed = place(graph, bands)
        header = self._swapped((measure.header_width(segment), 0.0))
        head = self._swapped((0.0, measure.HEADER_HEIGHT))
        width = max(placed.width + head[0], header[0]) + 2 * _PADDING
        height = max(placed.height + head[1], header[1]) + 2 * _PADDING
        shift = (width - placed.width + head[0]) / 2, head[1] + _PADDING
        middle = width / 2
        routes = {
            name: tuple(_moved(p, shift) for p in route) for name, route in zip(carried, placed.routes, strict=True)
        }
        return Inside(
            nodes={name: self._box(_moved(placed.centres[n], shift), sizes[name]) for name, n in number.items()},
            edges={name: self._curve(routes.pop(name), None) for name in within},
            graph=graph,
            bands=bands,
            size=(width, height),
            stands=dict(zip(names, placed.stands, strict=False)),
            routes=routes,
            entering={name: placed.centres[n][0] + shift[0] - middle for name, n in entering.items()},
            leaving={name: placed.centres[n][0] + shift[0] - middle for name, n in leaving.items()},
        )

    def _banded(self, segment: SegmentView, graph: Graph) -> tuple[Graph, int]:
        """Return the graph of a segment with what is known of its ops from before, and its number of bands."""
        if self._before is not None:
            stood = [self._before.inner.get(name) for name in segment.nodes]
            items = [item._replace(stood=s and Stand(s.x)) for item, s in zip(graph.items, stood, strict=False)]
            graph = replace(graph, items=(*items, *graph.items[len(items) :]))
        scores = {
            bands: _fit(size, self._room, 1.0) * _PER_BAND_INSIDE ** (bands - 1)
            for bands, size in solve(graph).extents(_MOST_BANDS).items()
        }
        return graph, max(scores, key=scores.__getitem__)

    def _outer_net(self) -> Net:
        """Return segments, free nodes and labels as boxes, with the wires between them."""
        items, number = list[Item](), self._number
        before = self._before
        stood_free: Callable[[str], Stand | None] = _nowhere if before is None else before.free.get
        for index, inside in self._insides.items():
            number[index] = len(items)
            stood = None if before is None else before.stood(self._segments[index].nodes)
            items.append(Item(*inside.size, False, False, False, stood))
        for node in self._free:
            number[node.id] = len(items)
            low = node.kind == "input"
            items.append(Item(*self._sizes[node.id], False, False, low, stood_free(self._known_by(node))))
        labels = self._labels
        for edge, port, *_ in self._crossing:
            if edge.labelled and port not in labels:
                labels[port] = len(items)
                size = self._swapped(measure.edge_label_size(edge))
                items.append(Item(*size, False, False, False, stood_free(_label_of(port))))
        origins, bends = ((), None) if before is None else (before.origins, before.bends)
        graph = Graph(
            items=tuple(items), wires=self._outer_wires(), gap=_OUTER_GAP, rank_gap=_OUTER_RANK_GAP, origins=origins,
        )
        return solve(graph, bends)

    def _outer_wires(self) -> tuple[Wire, ...]:
        """Return the wires between boxes; edges on the same path share one, and a label has one from its source."""
        number, wires, insides = self._number, list[Wire](), self._insides
        begun: dict[Port, tuple[tuple[int, ...], int, float]] = {}  # the wire to the label; where the others begin
        joined: dict[tuple[Port, str | int], int] = {}
        for edge, port, home, goal in self._crossing:
            start = begun.get(port)
            if start is None:
                source = number[edge.source if home is None else home]
                leaves = self._exits[port] if home is None else insides[home].leaving[port]
                label = self._labels.get(port)
                if label is None:
                    start = (), source, leaves
                else:
                    start = (len(wires),), label, 0.0
                    wires.append(Wire(source, label, (port, "to its label"), leaves, 0.0))
                begun[port] = start
            end: str | int = edge.target if goal is None else goal
            last = joined.get((port, end))
            if last is None:
                last = joined[port, end] = len(wires)
                enters = self._entrances[edge.id] if goal is None else insides[goal].entering[port]
                wires.append(Wire(start[1], number[end], port, start[2], enters))
            self._legs[edge.id] = (*start[0], last)
        return tuple(wires)

    def _known_by(self, node: NodeView) -> str:
        """Return a free node's key across plans; segments are renumbered, so their key is what they write."""
        if node.segment is None:
            return node.id
        return "segment of " + " ".join(self._segments[node.segment].outputs)

    def layout(self, bands: int, scale: float) -> Layout:
        """Return the layout in ``bands`` bands; ``scale`` is its initial scale."""
        number = self._number
        placed = self._net.placed(bands)
        corners = {}
        for index, inside in self._insides.items():
            x, y = placed.centres[number[index]]
            corners[index] = x - inside.size[0] / 2 + _MARGIN, y - inside.size[1] / 2 + _MARGIN
        ways = self._ways(placed, corners)
        width, height = self._swapped((placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN))
        return Layout(
            width=width,
            height=height,
            segments={i: _box(self._swapped(at), self._swapped(self._insides[i].size)) for i, at in corners.items()},
            insides=self._insides,
            free={
                n.id: self._box(_moved(placed.centres[number[n.id]], _MARGINS), self._sizes[n.id])
                for n in self._free
            },
            wires={name: way.wire for name, way in ways.items()},
            memory=self._memory(placed, bands, scale, ways),
        )

    def _ways(self, placed: Placed, corners: Mapping[int, Point]) -> dict[str, Way]:
        """Return the ways of the edges between segments: as before where their parts stand where they stood."""
        before = {} if self._before is None else self._before.ways
        insides, routes, unsaid = self._insides, placed.routes, set(self._labels)
        ways: dict[str, Way] = {}
        for edge, port, home, goal in self._crossing:
            label = None
            if edge.labelled and port in unsaid:  # one for all readers of the tensor
                unsaid.remove(port)
                label = placed.centres[self._labels[port]]
            start = (None, _MARGINS) if home is None else (insides[home], corners[home])
            end = (None, _MARGINS) if goal is None else (insides[goal], corners[goal])
            places = label, start[1], end[1], tuple([routes[leg] for leg in self._legs[edge.id]])
            way = before.get(edge.id)
            if way is None or way.places != places or way.start is not start[0] or way.end is not end[0]:
                way = self._way(edge, start[0], end[0], places, way)
            ways[edge.id] = way
        return ways

    def _way(
        self, edge: EdgeView, start: Inside | None, end: Inside | None, places: Places, earlier: Way | None,
    ) -> Way:
        label, corner, goal, legs = places
        route: list[Point] = []
        if start is not None:
            route += (_moved(p, corner) for p in start.routes[_port(edge)])
        for leg in legs:
            route += (_moved(p, _MARGINS) for p in leg)
        if end is not None:
            route += (_moved(p, goal) for p in end.routes[edge.id])
        x, y = tip = route[-1]
        bends = tuple([(round(a - x, 2), round(b - y, 2)) for a, b in route])
        middle = label and (round(label[0] + _MARGIN - x, 2), round(label[1] + _MARGIN - y, 2))
        is_moved = earlier is not None and earlier.bends == (*bends, middle)
        curve = earlier.wire[1] if earlier is not None and is_moved else self._curve(bends, middle)
        return Way(start, end, places, (*bends, middle), (self._swapped(tip), curve))

    def _memory(self, placed: Placed, bands: int, scale: float, ways: Mapping[str, Way]) -> Memory:
        number, stands = self._number, placed.stands
        free = {self._known_by(n): stands[number[n.id]] for n in self._free}
        free |= {_label_of(port): stands[at] for port, at in self._labels.items()}
        return Memory(
            across=self._across,
            bands=bands,
            scale=scale,
            origins=placed.origins,
            boxes={self._segments[index].nodes: stands[number[index]] for index in self._insides},
            free=free,
            bends=self._net.bends,
            insides=self._known,
            alike=dict(self._known.values()),
            ways=ways,
        )

    def _box(self, centre: Point, size: Size) -> Box:
        return _box(
            self._swapped((centre[0] - size[0] / 2, centre[1] - size[1] / 2)), self._swapped(size),
        )

    def _curve(self, route: Sequence[Point], label: Point | None) -> Curve:
        drawn = _curve(route, label)
        if not self._across:
            return drawn
        swapped = self._swapped
        return Curve(
            points=tuple(map(swapped, drawn.points)), tip=swapped(drawn.tip),
            label=None if drawn.label is None else swapped(drawn.label),
        )


def _box(corner: Point, size: Size) -> Box:
    return Box(x=corner[0], y=corner[1], width=size[0], height=size[1])


def _label_of(port: Port) -> str:
    return f"label of {port[1]}"


def _nowhere(_name: str) -> None:
    """Return the stand of a name in no drawing."""


def _moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def _curve(route: Sequence[Point], label: Point | None) -> Curve:
    """Return a curve through the corners of a route, vertical at each of them, with room for the arrow's tip.

    Horizontal wires, in the lanes between bands, have rounded corners.
    """
    tip = route[-1]
    corners = [*route[:-1], (tip[0], tip[1] - _ARROW)]
    points = [corners[0]]

    def to(x: float, y: float) -> None:
        x0, y0 = points[-1]
        middle = (y0 + y) / 2
        points.extend(((x0, middle), (x, middle), (x, y)))

    for before, corner, after in zip(corners, corners[1:], [*corners[2:], corners[-1]], strict=False):
        if _is_level(before, corner) != _is_level(corner, after) and after != corner:
            radius = min(_ROUND, math.dist(before, corner) / 2, math.dist(corner, after) / 2)
            to(*_towards(corner, before, radius))
            points += (corner, corner, _towards(corner, after, radius))
        else:
            to(*corner)
    return Curve(points=tuple(points), tip=tip, label=label)


def _is_level(a: Point, b: Point) -> bool:
    return a[1] == b[1] and a[0] != b[0]


def _towards(start: Point, end: Point, distance: float) -> Point:
    share = distance / (math.dist(start, end) or 1.0)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])

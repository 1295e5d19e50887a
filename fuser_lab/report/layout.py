"""A layered layout of a view model: each segment separately, then the segments as boxes with the tensors between them.

Data flows down. An input or output of one segment belongs to its drawing, outside its box, next to the op that reads or
makes it. Time is near linear in the size of the graph; an edit lays out only the segments that it changes, and these
once more between the others, in the same order unless another has fewer crossings.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from fuser_lab.report import measure
from fuser_lab.report.geometry import Box, Curve, Inside, Key, Layout, Memory, Places, Port, Same, Way
from fuser_lab.report.layers import Frame, Graph, Item, Placed, Point, Wire, place
from fuser_lab.report.measure import GAP
from fuser_lab.report.parts import Parts, crossing, edges_by_segment, nodes_but, nodes_by_segment
from fuser_lab.report.ranks import between
from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView, ViewModel

MARGIN = 11.0  # pixels around the whole drawing
PADDING = 16.0  # pixels between the sides of a segment's frame and its nodes
_ARROW = 7.0  # pixels of an arrow's head
RIM = _ARROW  # pixels between the nodes of a segment and its frame, above and below them
RANK_GAP = 28.0  # pixels between rows in a segment
_FRAME_GAP = RANK_GAP - RIM  # pixels between a segment's frame and the inputs above it, or the results below it
OUTER_GAP = 26.0  # pixels between segments side by side
OUTER_RANK_GAP = 20.0  # pixels between rows of segments
_NEAR_GAP = 10.0  # pixels between segments of which the upper one writes for the lower one: the shortest wires
_SAID = 17.0  # pixels that the label of what enters a segment reaches above it, if the explorer enlarges the label
_LANE = 10.0  # pixels of the wire beside a label
_PITCH = 40.0  # the height of a label and the gap below it
_EXITS = 12.0  # between the tensors that leave one node
_NEAR = 2  # ranks from the first reader of a tensor to those that it has wires to
_SHARP, _ROUND = 8.0, 24.0  # pixels of the corners of ops, and of inputs and results
_DOOR = 2.0  # width of the place where a tensor enters or leaves a segment

Size = tuple[float, float]


def lay_out(view: ViewModel, before: Layout | None = None) -> Layout:
    """Return the coordinates of everything in ``view``.

    Parameters
    ----------
    view
        What is drawn.
    before
        The layout of another plan of the same fusion, whose common segments are reused and whose order is kept where
        no other order has fewer crossings.
    """
    return _Drawing(view, Memory() if before is None else before.memory).layout()


def _port(edge: EdgeView) -> Port:
    return edge.source, edge.tensor


_node_key = attrgetter(
    "id", "kind", "label", "tensors", "dtype", "shape", "bytes", "replica", "copies", "text", "detail", "called",
)
_edge_key = attrgetter("id", "kind", "source", "target", "tensor", "bytes")


class _Drawing:
    """A view model during layout.

    What a segment looks like is decided by its key: its nodes and those that belong to it, the edges at them, the
    tensors that leave it, and the size of its header. Nodes and edges that are the same objects as before need not be
    compared.
    """

    def __init__(self, view: ViewModel, before: Memory) -> None:
        self._view, self._before = view, before
        self._compact = view.compact
        self._segments = {s.index: s for s in view.segments}
        self._boxed = {index: s for index, s in self._segments.items() if s.nodes}
        self._nodes, self._into = nodes_by_segment(view.nodes), edges_by_segment(view.edges)
        between = [(e, _port(e), *ends) for e, ends in self._between(view.edges)]
        self._homes = self._homes_of_annexes(between)  # the segment to which a node outside belongs
        self._annexes: dict[int, list[NodeView]] = defaultdict(list)
        self._free: list[NodeView] = []
        for node in nodes_but(view.nodes, self._boxed):
            home = self._homes.get(node.id)
            (self._free if home is None else self._annexes[home]).append(node)
        self._crossing = []  # the edges that no segment's drawing contains, with their ports and segments
        self._entering: dict[int, list[str]] = defaultdict(list)  # edges into each segment from elsewhere
        self._leaving: dict[int, dict[Port, None]] = defaultdict(dict)
        self._outputs: dict[int, list[EdgeView]] = defaultdict(list)  # the edges from each segment to its annexes
        for edge, port, home, goal in between:
            if edge.source in self._homes:
                continue
            if edge.target in self._homes and home is not None:
                self._outputs[home].append(edge)
                continue
            self._crossing.append((edge, port, home, goal))
            if home is not None:
                self._leaving[home][port] = None
            if goal is not None:
                self._entering[goal].append(edge.id)
        self._insides: dict[int, Inside] = {}
        self._known: dict[Same, tuple[Key, Inside]] = {}
        for segment in self._boxed.values():
            self._place_inside(segment)
        self._open()
        self._crossing = [
            (edge, port, home, goal) for edge, port, home, goal in self._crossing
            if goal is None or edge.id not in self._insides[goal].wires
        ]
        self._number: dict[str | int, int] = {}
        self._labels: dict[Port, int] = {}
        self._legs: dict[str, tuple[int, ...]] = {}

    def _open(self) -> None:
        """Put the annexes that are not in the drawing of their segment between the segments."""
        for index, inside in self._insides.items():
            outside = [node for node in self._annexes[index] if node.id not in inside.annexes]
            if not outside:
                continue
            self._free += outside
            names, into = {node.id for node in outside}, self._into[index]
            self._crossing += (
                (edge, _port(edge), None, index) for edge in into.finished(into.rough) if edge.source in names
            )
        self._sizes = {node.id: self._size(node) for node in self._free}
        self._exits = _exits((port for _, port, *_ in self._crossing), self._sizes)

    def _between(self, edges: Sequence[EdgeView]) -> Iterator[tuple[EdgeView, tuple[int | None, int | None]]]:
        """Yield the edges that are not inside a box, with the boxes at their ends."""
        boxed = self._boxed
        ends = crossing(edges) if isinstance(edges, Parts) else ((edge, edge.segments) for edge in edges)
        for edge, (source, target) in ends:
            home, goal = source if source in boxed else None, target if target in boxed else None
            if goal is None or home != goal:
                yield edge, (home, goal)

    def _homes_of_annexes(
        self, between: Iterable[tuple[EdgeView, Port, int | None, int | None]],
    ) -> dict[str, int]:
        """Return the segment of each node outside of segments all of whose edges are of this one."""
        homes: dict[str, int | None] = {}
        for edge, _, home, goal in between:
            if home is None:
                homes[edge.source] = goal if homes.get(edge.source, goal) == goal else None
            if goal is None:
                homes[edge.target] = home if homes.get(edge.target, home) == home else None
        return {name: home for name, home in homes.items() if home is not None}

    def _size(self, node: NodeView) -> Size:
        text = measure.node_text(node, compact=self._compact)
        return text.width, text.height

    def _place_inside(self, segment: SegmentView) -> None:
        """Find the layout of a segment among those from before, or make it."""
        index, before = segment.index, self._before
        nodes, into = self._nodes[index], self._into.get(index)
        header, leaving = measure.header_size(segment), tuple(self._leaving[index])
        annexes = tuple(map(_node_key, self._annexes[index]))
        same = Same(
            (nodes.rough, into and into.rough), self._compact, header, tuple(self._entering[index]), leaving, annexes,
        )
        placed = before.insides.get(same)
        if placed is None:
            edges = (*(() if into is None else into.finished(into.rough)), *self._outputs[index])
            drawn = nodes.finished(nodes.rough)
            key = Key((
                self._compact, header, segment.nodes, leaving, annexes, *map(_node_key, drawn), *map(_edge_key, edges),
            ))
            placed = key, before.alike.get(key) or self._inside(segment, drawn, edges)
        self._known[same] = placed
        self._insides[index] = placed[1]

    def _inside(self, segment: SegmentView, nodes: Iterable[NodeView], edges: Sequence[EdgeView]) -> Inside:
        """Lay out one segment: its nodes, doors at the top for what comes in and below for what goes out.

        ``edges`` are those at its nodes.
        """
        leaving_it, hints = self._leaving[segment.index], self._before.inner
        annexes, rank = self._annexes[segment.index], _ranks(segment.nodes, edges)
        tags = {_port(edge): measure.edge_label_room(edge) for edge in edges if edge.labelled}
        if len(tags) == 1:  # it is between its label and an input that is beside the segment above
            above = {edge.source for edge in edges if rank.get(edge.target) == 1}
            away = [node.id for node in annexes if node.id in above]
            if len(away) == 1:
                annexes = [node for node in annexes if node.id not in away]
                edges = sorted(edges, key=lambda edge: edge.source in away)
        sizes = {node.id: self._size(node) for node in (*nodes, *annexes)}
        exits = _exits((*map(_port, edges), *leaving_it), sizes)
        number = {name: n for n, name in enumerate(sizes)}
        outside = {node.id for node in annexes}
        far = _far(rank, edges)
        items = [
            Item(
                width=width, height=height, annex=node.id in outside, x=hints.get(node.id), corner=_corner(node),
            ) for node in (*nodes, *annexes) for width, height in [sizes[node.id]]
        ]
        entering: dict[Port, int] = {}
        leaving: dict[Port, int] = {}
        stubs: dict[str, int] = {}
        wires: list[Wire] = []
        carried: list[str | Port] = []
        trunks: dict[Port, int] = {}
        for edge in edges:
            if edge.id in far:
                stubs[edge.id] = len(items)
                wires.append(Wire(source=len(items), target=number[edge.target], trunk=edge.id))
                items.append(Item(*measure.edge_label_room(edge)))
                carried.append(edge.id)
                continue
            port = _port(edge)
            source = number.get(edge.source)
            if source is None:
                source = entering.get(port)
                if source is None:
                    source = entering[port] = len(items)
                    width = tags[port][0] + _LANE if port in tags else _DOOR
                    items.append(Item(width, 0.0, first=True, corner=None, aside=port in tags))
            wires.append(Wire(
                source=source, target=number[edge.target], trunk=trunks.setdefault(port, len(trunks)),
                leaves=exits.get(port, 0.0),
            ))
            carried.append(edge.id)
        for port in leaving_it:
            leaving[port] = len(items)
            items.append(Item(width=_DOOR, height=0.0, last=True))
            wires.append(Wire(
                source=number[port[0]], target=leaving[port], trunk=trunks.setdefault(port, len(trunks)),
                leaves=exits[port],
            ))
            carried.append(port)
        placed = place(Graph(
            items=tuple(items), wires=tuple(wires), gap=GAP, rank_gap=RANK_GAP,
            frame=Frame(
                header=measure.header_size(segment), padding=PADDING, rim=RIM, gap=_FRAME_GAP,
            ),
        ))
        assert placed.frame is not None
        (left, top), (width, height) = placed.frame
        middle, said = placed.width / 2, _NEAR_GAP / 2 if not top else _FRAME_GAP + measure.LABEL_HEIGHT / 2
        routes = dict(zip(carried, placed.routes, strict=True))
        doors: dict[Port, float] = {}  # where the wires of what enters begin
        for edge in edges:
            if edge.id not in stubs and _port(edge) in entering:
                (x, y), *_ = route = routes[edge.id]
                doors[_port(edge)] = x
                routes[edge.id] = route if not y else ((x, 0.0), *route)
        boxes = {name: _box_around(placed.centres[n], sizes[name]).shift(-left, -top) for name, n in number.items()}
        curves = {
            edge.id: _curve(
                routes.pop(edge.id), placed.centres[stubs[edge.id]] if edge.id in stubs else None,
            ).shift(-left, -top)
            for edge in edges if edge.source in number or edge.id in stubs
        }
        within = {edge.id for edge in edges if edge.source in number and edge.kind == "inside"}
        return Inside(
            nodes={name: boxes[name] for name in segment.nodes},
            edges={name: curve for name, curve in curves.items() if name in within},
            annexes={name: boxes[name] for name in outside},
            wires={
                name: (curve.tip, curve.shift(-curve.tip[0], -curve.tip[1]))
                for name, curve in curves.items() if name not in within
            },
            box=Box(x=left, y=top, width=width, height=height),
            size=(placed.width, placed.height),
            places={name: placed.centres[n][0] for name, n in number.items()},
            routes=routes,
            tags={
                port: (x + math.copysign(_LANE / 2, x - doors[port]), top - said)
                for port, n in entering.items() if port in tags for x, _ in [placed.centres[n]]
            },
            entering={port: x - middle for port, x in doors.items()},
            leaving={name: placed.centres[n][0] - middle for name, n in leaving.items()},
        )

    def _outer(self) -> Graph:
        """Return segments, free nodes and labels as boxes, with the wires between them."""
        items, number, hints = list[Item](), self._number, self._before.outer
        for index, inside in self._insides.items():
            number[index] = len(items)
            items.append(Item(*inside.size, x=self._before.x_of(self._segments[index].nodes), corner=None))
        for node in self._free:
            number[node.id] = len(items)
            items.append(Item(*self._sizes[node.id], x=hints.get(self._known_by(node)), corner=_corner(node)))
        labels = self._labels
        for edge, port, _, goal in self._crossing:
            if edge.labelled and goal is None and port not in labels:
                labels[port] = len(items)
                items.append(Item(*measure.edge_label_room(edge), x=hints.get(_label_of(port))))
        return Graph(
            items=tuple(items), wires=self._outer_wires(), gap=OUTER_GAP, rank_gap=OUTER_RANK_GAP, pitch=_PITCH,
            near=(_NEAR_GAP, _SAID),
        )

    def _outer_wires(self) -> tuple[Wire, ...]:
        """Return the wires between boxes; edges on the same path share one, and so do those to a label and from it."""
        number, wires, insides = self._number, list[Wire](), self._insides
        begun: dict[Port, tuple[tuple[int, ...], int, float]] = {}  # where the wires of each tensor begin
        said: dict[Port, tuple[tuple[int, ...], int, float]] = {}  # the wire to its label, and where others go on
        joined: dict[tuple[Port, str | int], int] = {}
        for edge, port, home, goal in self._crossing:
            start = begun.get(port)
            if start is None:
                source = number[edge.source if home is None else home]
                leaves = self._exits[port] if home is None else insides[home].leaving[port]
                start = begun[port] = (), source, leaves
            label = self._labels.get(port)
            if label is not None and goal is None:
                if port not in said:
                    said[port] = (len(wires),), label, 0.0
                    wires.append(Wire(start[1], label, (port, "to its label"), start[2], 0.0))
                start = said[port]
            end: str | int = edge.target if goal is None else goal
            last = joined.get((port, end))
            if last is None:
                last = joined[port, end] = len(wires)
                enters = None if goal is None else insides[goal].entering[port]
                wires.append(Wire(start[1], number[end], port, start[2], enters))
            self._legs[edge.id] = (*start[0], last)
        return tuple(wires)

    def _known_by(self, node: NodeView) -> str:
        """Return a free node's key across plans; segments are renumbered, so their key is what they write."""
        if node.segment is None:
            return node.id
        return "segment of " + " ".join(self._segments[node.segment].outputs)

    def layout(self) -> Layout:
        """Return the layout."""
        placed, number, insides = place(self._outer()), self._number, self._insides
        corners = {}  # of what is drawn for each segment
        for index, inside in insides.items():
            x, y = placed.centres[number[index]]
            corners[index] = x - inside.size[0] / 2 + MARGIN, y - inside.size[1] / 2 + MARGIN
        segments = {index: insides[index].box.shift(*corner) for index, corner in corners.items()}
        ways = self._ways(placed, corners)
        free = {
            n.id: _box_around(_move(placed.centres[number[n.id]], (MARGIN, MARGIN)), self._sizes[n.id])
            for n in self._free
        }
        wires = {name: way.wire for name, way in ways.items()}
        for index, inside in insides.items():
            corner = segments[index].x, segments[index].y
            free |= {name: box.shift(*corner) for name, box in inside.annexes.items()}
            wires |= {name: (_move(tip, corner), curve) for name, (tip, curve) in inside.wires.items()}
        return Layout(
            width=placed.width + 2 * MARGIN, height=placed.height + 2 * MARGIN, segments=segments, insides=insides,
            free=free, wires=wires, memory=self._memory(placed, ways),
        )

    def _ways(self, placed: Placed, corners: Mapping[int, Point]) -> dict[str, Way]:
        """Return the ways of the edges between segments: as before where their parts are the same, if only moved."""
        before = self._before.ways
        insides, routes, unsaid = self._insides, placed.routes, set(self._labels)
        ways: dict[str, Way] = {}
        for edge, port, home, goal in self._crossing:
            label = None
            if edge.labelled and goal is not None:
                label = _move(insides[goal].tags[port], _less(corners[goal]))
            elif edge.labelled and port in unsaid:  # one for all readers of the tensor
                unsaid.remove(port)
                label = placed.centres[self._labels[port]]
            start = (None, (MARGIN, MARGIN)) if home is None else (insides[home], corners[home])
            end = (None, (MARGIN, MARGIN)) if goal is None else (insides[goal], corners[goal])
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
            route += (_move(p, corner) for p in start.routes[_port(edge)])
        for leg in legs:
            route += (_move(p, (MARGIN, MARGIN)) for p in leg)
        if end is not None:
            route += (_move(p, goal) for p in end.routes[edge.id])
        x, y = tip = route[-1]
        bends = tuple([(round(a - x, 2), round(b - y, 2)) for a, b in route])
        middle = label and (round(label[0] + MARGIN - x, 2), round(label[1] + MARGIN - y, 2))
        is_moved = earlier is not None and earlier.bends == (*bends, middle)
        curve = earlier.wire[1] if earlier is not None and is_moved else _curve(bends, middle)
        return Way(start, end, places, (*bends, middle), (tip, curve))

    def _memory(self, placed: Placed, ways: Mapping[str, Way]) -> Memory:
        number, centres = self._number, placed.centres
        outer = {self._known_by(n): centres[number[n.id]][0] for n in self._free}
        outer |= {_label_of(port): centres[at][0] for port, at in self._labels.items()}
        return Memory(
            boxes={self._segments[index].nodes: centres[number[index]][0] for index in self._insides},
            outer=outer,
            insides=self._known,
            alike=dict(self._known.values()),
            ways=ways,
        )


def _ranks(names: Sequence[str], edges: Iterable[EdgeView]) -> dict[str, int]:
    """Return the ranks of the nodes in a segment, from 1 on."""
    number = {name: n for n, name in enumerate(names)}
    inner = [(number[e.source], number[e.target]) for e in edges if e.source in number and e.target in number]
    *ranks, top, _ = between(range(len(names)), [1] * (len(names) + 2), inner)
    return {name: rank - top for name, rank in zip(names, ranks, strict=True)}


def _far(rank: Mapping[str, int], edges: Iterable[EdgeView]) -> set[str]:
    """Return the edges from outside a segment to ops far below the first one that reads the same tensor there."""
    reading: dict[Port, list[EdgeView]] = defaultdict(list)
    for edge in edges:
        if edge.target in rank and edge.source not in rank:
            reading[_port(edge)].append(edge)
    far = set()
    for readers in reading.values():
        first = min(rank[edge.target] for edge in readers)
        far |= {edge.id for edge in readers if rank[edge.target] > first + _NEAR and not edge.labelled}
    return far


def _exits(ports: Iterable[Port], sizes: Mapping[str, Size]) -> dict[Port, float]:
    """Return where each tensor leaves its node, from the middle, for nodes that have a size."""
    leaving: dict[str, dict[Port, None]] = defaultdict(dict)
    for port in ports:
        if port[0] in sizes:
            leaving[port[0]][port] = None
    places: dict[Port, float] = {}
    for source, exits in leaving.items():
        step = min(_EXITS, sizes[source][0] / (len(exits) + 1))
        places |= {port: (n - (len(exits) - 1) / 2) * step for n, port in enumerate(exits)}
    return places


def _corner(node: NodeView) -> float:
    """Return how far the corners of a node's shape reach along its side."""
    return _SHARP if node.kind in {"op", "segment"} else _ROUND


def _box_around(centre: Point, size: Size) -> Box:
    return Box(x=centre[0] - size[0] / 2, y=centre[1] - size[1] / 2, width=size[0], height=size[1])


def _label_of(port: Port) -> str:
    return f"label of {port[1]}"


def _move(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def _less(corner: Point) -> Point:
    """Return a corner without the margin."""
    return corner[0] - MARGIN, corner[1] - MARGIN


def _curve(route: Sequence[Point], label: Point | None) -> Curve:
    """Return a curve through the corners of a route, vertical at each of them, with room for the arrow's tip."""
    tip = route[-1]
    points = [route[0]]
    corners = [b for a, b, c in zip(route, route[1:], route[2:], strict=False) if not a[0] == b[0] == c[0]]
    for x, y in (*corners, (tip[0], tip[1] - _ARROW)):
        x0, y0 = points[-1]
        middle = (y0 + y) / 2
        points += ((x0, middle), (x, middle), (x, y))
    return Curve(points=tuple(points), tip=tip, label=label)

"""A view model laid out in layers: each segment by itself, then the segments as boxes among inputs and outputs.

Graphviz draws small graphs more finely; its time grows beyond any use on some fusions of a few hundred operations,
while this stays near linear, and an edit lays out again only the segments that it changed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from fuser_lab.report import measure
from fuser_lab.report.geometry import Box, Curve, Layout
from fuser_lab.report.layers import Graph, Item, Wire, place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fuser_lab.report.geometry import Point
    from fuser_lab.report.layers import Placed
    from fuser_lab.report.view_model import EdgeView, SegmentView, ViewModel

_MARGIN = 11.0
_PADDING = 16.0
_GAP = 18.0
_RANK_GAP = 26.0
_OUTER_GAP = 26.0
_OUTER_RANK_GAP = 40.0
_ENTRANCES = 12.0  # between the tips of arrows into one box
_ARROW = 7.0

Size = tuple[float, float]


def lay_out_in_layers(view: ViewModel) -> Layout:
    """Return the coordinates of everything in ``view``."""
    return _Drawing(view).layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """A segment laid out by itself; doors are where tensors come in and go out, by the node that they come from."""

    placed: Placed
    size: Size
    centres: Mapping[str, Point]
    routes: Mapping[str, tuple[Point, ...]]
    entering: Mapping[str, float]
    leaving: Mapping[str, float]


class _Drawing:
    def __init__(self, view: ViewModel) -> None:
        self._view = view
        compact = view.compact
        self._sizes: dict[str, Size] = {}
        for node in view.nodes:
            text = measure.node_text(node, compact=compact)
            self._sizes[node.id] = text.width, text.height
        self._home = {name: segment.index for segment in view.segments for name in segment.nodes}
        self._entrances = self._spread_entrances()
        self._touching: dict[int, list[EdgeView]] = defaultdict(list)
        for edge in view.edges:
            for home in {self._home[end] for end in (edge.source, edge.target) if end in self._home}:
                self._touching[home].append(edge)
        self._insides = {s.index: self._inside(s) for s in view.segments if s.nodes}

    def _spread_entrances(self) -> dict[str, float]:
        """Return for each edge where its tip stands on its target, from the middle."""
        entering: dict[str, list[EdgeView]] = defaultdict(list)
        for edge in self._view.edges:
            entering[edge.target].append(edge)
        places: dict[str, float] = {}
        for target, edges in entering.items():
            step = min(_ENTRANCES, self._sizes[target][0] / (len(edges) + 1))
            places |= {e.id: (n - (len(edges) - 1) / 2) * step for n, e in enumerate(edges)}
        return places

    def _inside(self, segment: SegmentView) -> _Inside:
        """Lay out one segment: its nodes, doors at the top for what comes in and below for what goes out."""
        names = segment.nodes
        number = {name: n for n, name in enumerate(names)}
        items = [Item(width=self._sizes[name][0], height=self._sizes[name][1]) for name in names]
        entering: dict[str, int] = {}
        leaving: dict[str, int] = {}
        wires: list[Wire] = []
        carried: list[str | None] = []
        for edge in self._touching[segment.index]:
            source, target = number.get(edge.source), number.get(edge.target)
            if target is not None and source is None:
                source = entering.get(edge.source)
                if source is None:
                    source = entering[edge.source] = len(items)
                    items.append(Item(width=2.0, height=0.0, first=True))
            elif source is not None and target is None:
                if edge.source in leaving:
                    continue
                target = leaving[edge.source] = len(items)
                items.append(Item(width=2.0, height=0.0, last=True))
            if source is None or target is None:
                continue
            inward = edge.target in number
            enters = self._entrances[edge.id] if inward else 0.0
            wires.append(Wire(source=source, target=target, trunk=source, enters=enters))
            carried.append(edge.id if inward else f"from {edge.source}")
        placed = place(Graph(items=tuple(items), wires=tuple(wires), gap=_GAP, rank_gap=_RANK_GAP))
        width = max(placed.width, measure.header_width(segment)) + 2 * _PADDING
        height = placed.height + measure.HEADER_HEIGHT + 2 * _PADDING
        shift = (width - placed.width) / 2, measure.HEADER_HEIGHT + _PADDING
        middle = width / 2
        return _Inside(
            placed=placed,
            size=(width, height),
            centres={name: _moved(placed.centres[number[name]], shift) for name in names},
            routes={
                name: tuple(_moved(p, shift) for p in route)
                for name, route in zip(carried, placed.routes, strict=True)
                if name is not None
            },
            entering={name: placed.centres[n][0] + shift[0] - middle for name, n in entering.items()},
            leaving={name: placed.centres[n][0] + shift[0] - middle for name, n in leaving.items()},
        )

    def layout(self) -> Layout:
        """Place segments, free nodes and labels, then join the routes."""
        view, items, number = self._view, list[Item](), dict[str | int, int]()
        for index, inside in self._insides.items():
            number[index] = len(items)
            items.append(Item(width=inside.size[0], height=inside.size[1]))
        for node in view.nodes:
            if node.id not in self._home:
                number[node.id] = len(items)
                width, height = self._sizes[node.id]
                items.append(Item(width=width, height=height, low=node.kind == "input"))
        labels = self._labels(items)
        wires: list[Wire] = []
        legs: dict[str, list[int]] = {}
        trunks: dict[str, int] = {}
        joined: dict[tuple[str, str | int], int] = {}
        for edge in view.edges:
            home, goal = self._home.get(edge.source), self._home.get(edge.target)
            if home is not None and home == goal:
                continue
            trunk = trunks.setdefault(edge.source, len(trunks))
            leaves = 0.0 if home is None else self._insides[home].leaving[edge.source]
            enters = self._entrances[edge.id] if goal is None else self._insides[goal].entering[edge.source]
            source = number[edge.source if home is None else home]
            end: str | int = edge.target if goal is None else goal
            label = labels.get(edge.source)
            legs[edge.id] = []
            if label is not None:
                legs[edge.id].append(_join(joined, wires, (edge.source, "label"), Wire(
                    source=source, target=label, trunk=trunk, leaves=leaves,
                )))
                source, leaves = label, 0.0
            legs[edge.id].append(_join(joined, wires, (edge.source, end), Wire(
                source=source, target=number[end], trunk=len(view.nodes) + trunk, leaves=leaves, enters=enters,
            )))
        placed = place(Graph(items=tuple(items), wires=tuple(wires), gap=_OUTER_GAP, rank_gap=_OUTER_RANK_GAP))
        return self._assemble(placed, number, labels, legs)

    def _labels(self, items: list[Item]) -> dict[str, int]:
        """Add a box for each label; the trunk of its tensor passes through it."""
        labels: dict[str, int] = {}
        for edge in self._view.edges:
            if edge.labelled and edge.source not in labels:
                labels[edge.source] = len(items)
                width, height = measure.edge_label_size(edge)
                items.append(Item(width=width, height=height))
        return labels

    def _assemble(
        self, placed: Placed, number: Mapping[str | int, int], labels: Mapping[str, int],
        legs: Mapping[str, Sequence[int]],
    ) -> Layout:
        corners = {}
        for index, inside in self._insides.items():
            x, y = placed.centres[number[index]]
            corners[index] = x - inside.size[0] / 2 + _MARGIN, y - inside.size[1] / 2 + _MARGIN
        nodes = {}
        for node in self._view.nodes:
            home = self._home.get(node.id)
            centre = (
                _moved(placed.centres[number[node.id]], (_MARGIN, _MARGIN))
                if home is None
                else _moved(self._insides[home].centres[node.id], corners[home])
            )
            width, height = self._sizes[node.id]
            nodes[node.id] = Box(x=centre[0] - width / 2, y=centre[1] - height / 2, width=width, height=height)
        edges = {}
        for edge in self._view.edges:
            home, goal = self._home.get(edge.source), self._home.get(edge.target)
            route: list[Point] = []
            if home is not None and home != goal:
                route += (_moved(p, corners[home]) for p in self._insides[home].routes[f"from {edge.source}"])
            for leg in legs.get(edge.id, ()):
                route += (_moved(p, (_MARGIN, _MARGIN)) for p in placed.routes[leg])
            if goal is not None:
                route += (_moved(p, corners[goal]) for p in self._insides[goal].routes[edge.id])
            label = _moved(placed.centres[labels[edge.source]], (_MARGIN, _MARGIN)) if edge.labelled else None
            edges[edge.id] = _curve(route, label)
        return Layout(
            width=placed.width + 2 * _MARGIN,
            height=placed.height + 2 * _MARGIN,
            nodes=nodes,
            segments={
                index: Box(x=x, y=y, width=self._insides[index].size[0], height=self._insides[index].size[1])
                for index, (x, y) in corners.items()
            },
            edges=edges,
        )


def _join(
    joined: dict[tuple[str, str | int], int], wires: list[Wire], key: tuple[str, str | int], wire: Wire,
) -> int:
    """Return the number of the wire; a second edge on the same way takes the first one's."""
    if key not in joined:
        joined[key] = len(wires)
        wires.append(wire)
    return joined[key]


def _moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def _curve(route: Sequence[Point], label: Point | None) -> Curve:
    """Return a curve through the corners of a route, upright at each of them, with room for the arrow's tip."""
    tip = route[-1]
    corners = [*route[:-1], (tip[0], tip[1] - _ARROW)]
    points = [corners[0]]
    for (x0, y0), (x1, y1) in pairwise(corners):
        middle = (y0 + y1) / 2
        points += [(x0, middle), (x1, middle), (x1, y1)]
    return Curve(points=tuple(points), tip=tip, label=label)

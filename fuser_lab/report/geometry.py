"""Where things are in a drawing: boxes, curves and the layout that holds them, in pixels with y downwards."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fuser_lab.report.layers import Point

Port = tuple[str, str]  # a node, and the tensor that leaves it there
# The centre of an edge's label, the corners of the segments at its ends, and the routes between them.
Places = tuple[Point | None, Point, Point, tuple[tuple[Point, ...], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle, by its top left corner."""

    x: float
    y: float
    width: float
    height: float

    def shift(self, x: float, y: float) -> "Box":
        """Return the rectangle at another place."""
        return Box(x=self.x + x, y=self.y + y, width=self.width, height=self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """An edge: a start and cubic Bézier points in threes, then the tip of the arrow; a label has a centre."""

    points: tuple[Point, ...]
    tip: Point
    label: Point | None

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """How far it reaches from its tip: left, top, right and bottom, in whole pixels."""
        xs, ys = [x for x, _ in self.points], [y for _, y in self.points]
        x, y = self.tip
        return (
            math.floor(min(xs) - x), math.floor(min(ys) - y), math.ceil(max(xs) - x), math.ceil(max(ys) - y),
        )

    def shift(self, x: float, y: float) -> "Curve":
        """Return the edge at another place."""
        label = None if self.label is None else (self.label[0] + x, self.label[1] + y)
        return Curve(
            points=tuple([(a + x, b + y) for a, b in self.points]), tip=(self.tip[0] + x, self.tip[1] + y), label=label,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The layout of one segment, independent of the other segments.

    ``nodes`` and ``edges`` are its nodes and the edges between them, ``annexes`` and ``wires`` (each with its tip and
    its curve from there) the inputs and outputs that belong to it, from the corner of its box on. The ``box`` is in a
    picture of a ``size``; ``places`` are the x of all nodes in it, ``routes`` those of the edges into it (by id) and of
    the tensors that leave it (by port), ``tags`` the centres of the labels of tensors that enter it, and ``entering``
    and ``leaving`` where these doors are, from the middle.
    """

    nodes: Mapping[str, Box]
    edges: Mapping[str, Curve]
    annexes: Mapping[str, Box]
    wires: Mapping[str, tuple[Point, Curve]]
    box: Box
    size: tuple[float, float]
    places: Mapping[str, float]
    routes: Mapping[str | Port, tuple[Point, ...]]
    tags: Mapping[Port, Point]
    entering: Mapping[Port, float]
    leaving: Mapping[Port, float]


class Same:
    """A key of objects, compared by identity, and of values, compared as such."""

    __slots__ = ("_hash", "_key", "_objects")

    def __init__(self, objects: tuple[object, ...], *values: Hashable) -> None:
        self._objects = objects  # held, so that no other object gets its id
        self._key = (*map(id, objects), *values)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        """Return the hash, which is computed once."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Compare objects by identity."""
        return isinstance(other, Same) and self._key == other._key


class Key:
    """A large key, hashed once."""

    __slots__ = ("_hash", "_of")

    def __init__(self, of: Hashable) -> None:
        self._of, self._hash = of, hash(of)

    def __hash__(self) -> int:
        """Return the hash, which is computed once."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Compare what the keys are made of."""
        return isinstance(other, Key) and (self is other or self._of == other._of)


class Way(NamedTuple):
    """The route of an edge between segments, with the inputs that determined it: both segments and ``places``.

    ``bends`` are its corners and its label's centre, from the tip on; ``wire`` is the tip, and the curve from there.
    """

    start: Inside | None
    end: Inside | None
    places: Places
    bends: tuple[Point | None, ...]
    wire: tuple[Point, Curve]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a layout passes to the next one, so that unchanged parts are reused and keep their order.

    ``boxes`` are the x of segments by the ids of their nodes, ``outer`` those of other nodes (``label of`` before the
    tensors of labels). ``insides`` are the segments with their keys, by the objects that they were drawn from,
    ``alike`` the same by these keys, which hold all that decides how a segment is laid out; ``ways`` are the edges
    between segments by their ids.
    """

    boxes: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    outer: Mapping[str, float] = field(default_factory=dict)
    insides: Mapping[Same, tuple[Key, Inside]] = field(default_factory=dict)
    alike: Mapping[Key, Inside] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)

    def x_of(self, nodes: tuple[str, ...]) -> float | None:
        """Return the x of the segment with these nodes, or of the segment where one of the nodes was before."""
        x = self.boxes.get(nodes)
        return x if x is not None else next((self._homes[name] for name in nodes if name in self._homes), None)

    def prepare(self) -> None:
        """Find now what the next layout needs, so that an edit does not wait for it."""
        _ = self._homes, self.inner

    @cached_property
    def _homes(self) -> Mapping[str, float]:
        """The x of segments by the id of each of their nodes."""
        return {name: x for nodes, x in self.boxes.items() for name in nodes}

    @cached_property
    def inner(self) -> Mapping[str, float]:
        """The x of nodes within segments by their ids."""
        return {name: x for _, inside in self.insides.values() for name, x in inside.places.items()}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything is, by the ids of the view model; ``memory`` is for the layout after an edit.

    ``free`` are the boxes of nodes outside of segments, ``wires`` the edges that are not inside of one, each as its tip
    and its curve from there; the others are in ``insides``, from the corners of ``segments`` on.
    """

    width: float
    height: float
    segments: Mapping[int, Box]
    insides: Mapping[int, Inside]
    free: Mapping[str, Box]
    wires: Mapping[str, tuple[Point, Curve]]
    memory: Memory

    @cached_property
    def nodes(self) -> Mapping[str, Box]:
        """The boxes of all nodes."""
        boxes = dict(self.free)
        for index, inside in self.insides.items():
            at = self.segments[index]
            boxes |= {name: box.shift(at.x, at.y) for name, box in inside.nodes.items()}
        return boxes

    @cached_property
    def edges(self) -> Mapping[str, Curve]:
        """The curves of all edges."""
        curves = {name: curve.shift(*tip) for name, (tip, curve) in self.wires.items()}
        for index, inside in self.insides.items():
            at = self.segments[index]
            curves |= {name: curve.shift(at.x, at.y) for name, curve in inside.edges.items()}
        return curves

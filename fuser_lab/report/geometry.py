"""Where things are in a drawing: boxes, curves and the layout that holds them, in pixels with y downwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuser_lab.report.layers import Graph, Point, Stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle, by its top left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """An edge: a start and cubic Bézier points in threes, then the tip of the arrow; a label has a centre."""

    points: tuple[Point, ...]
    tip: Point
    label: Point | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room that a drawing should fit, in pixels; what counts most is its aspect."""

    width: float
    height: float


ROOM: Final = Room(width=1000.0, height=520.0)  # a notebook's cell, less what stands around the drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a layout leaves to the next, so that what an edit does not change stays where it is.

    ``outer`` and ``inner`` are stands among segments and within a segment, by node ids (``label:`` before those of
    labels' sources); ``graphs`` are the insides of segments by their nodes, with the number of bands of each.
    """

    across: bool
    bands: int
    scale: float
    origins: tuple[float, ...]
    outer: Mapping[str, Stand]
    inner: Mapping[str, Stand]
    graphs: Mapping[tuple[str, ...], tuple[Graph, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is, by the ids of the view model; ``memory`` is for the layout after an edit."""

    width: float
    height: float
    nodes: Mapping[str, Box]
    segments: Mapping[int, Box]
    edges: Mapping[str, Curve]
    memory: Memory

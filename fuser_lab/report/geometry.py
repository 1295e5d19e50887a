"""Where things are in a drawing: boxes, curves and the layout that holds them, in pixels with y downwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Point = tuple[float, float]


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
class Layout:
    """Where everything is, by the ids of the view model."""

    width: float
    height: float
    nodes: Mapping[str, Box]
    segments: Mapping[int, Box]
    edges: Mapping[str, Curve]

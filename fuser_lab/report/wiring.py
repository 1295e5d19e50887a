"""What a layered drawing is made of: boxes and the wires between them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

Point = tuple[float, float]


class Item(NamedTuple):
    """A box to place; ``first`` and ``last`` are above and below all others.

    ``annex`` is outside the frame, next to what it leads to or comes from. ``x`` is its place in an earlier drawing,
    where the search for an order begins. Wires end where they are short, but not within ``corner`` of a side; without a
    corner, they leave the item where they say.
    """

    width: float
    height: float
    first: bool = False
    last: bool = False
    annex: bool = False
    x: float | None = None
    corner: float | None = 8.0


class Wire(NamedTuple):
    """A path from the bottom of one item to the top of another; both ends are offsets from the items' centres.

    Wires with the same ``trunk`` start at the same point and share their bends. Wires into an item without ``enters``
    have their tips in the order from which they come.
    """

    source: int
    target: int
    trunk: Hashable
    leaves: float = 0.0
    enters: float | None = None


class Frame(NamedTuple):
    """The box around the items of a graph: its header, the space within its sides, and the gap above and below it.

    ``padding`` is the space at the left and right, ``top`` that between the header and the items.
    """

    header: tuple[float, float]
    padding: float
    top: float
    bottom: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The items and wires to draw; hashable, so that layouts can be cached.

    An item takes as many ranks as its height has pitches, or without a pitch, one.
    """

    items: tuple[Item, ...]
    wires: tuple[Wire, ...]
    gap: float
    rank_gap: float
    frame: Frame | None = None
    pitch: float | None = None

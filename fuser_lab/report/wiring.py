"""What a layered drawing is made of: boxes and the wires between them."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

Point = tuple[float, float]


class Item(NamedTuple):
    """A box to place; ``first`` and ``last`` are above and below all others.

    ``annex`` is outside the frame, next to what it leads to or comes from. ``x`` is its place in an earlier drawing,
    where the search for an order begins. Wires end where they are short, but not within ``corner`` of a side; without a
    corner, they leave the item where they say. What is ``aside``, such as a label, is beside its wires, which leave it
    at the side where there are more items.
    """

    width: float
    height: float
    first: bool = False
    last: bool = False
    annex: bool = False
    x: float | None = None
    corner: float | None = 8.0
    aside: bool = False


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
    """The box around the items of a graph: the size of the header in its corner, and the space around the items.

    ``padding`` is the space at the left and right. Above and below the items there is a ``rim``, and more than this
    where a wire from or for another frame slants. ``gap`` is the space between the frame and what is above or below it.
    """

    header: tuple[float, float]
    padding: float
    rim: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The items and wires to draw; hashable, so that layouts can be cached.

    An item takes as many ranks as its height has pitches, or without a pitch, one. Ranks are ``rank_gap`` apart, and
    ``near``, of which the first is smaller, where wires between items without corners lead straight down; where they do
    not, the second is the space below them for labels.
    """

    items: tuple[Item, ...]
    wires: tuple[Wire, ...]
    gap: float
    rank_gap: float
    frame: Frame | None = None
    pitch: float | None = None
    near: tuple[float, float] | None = None

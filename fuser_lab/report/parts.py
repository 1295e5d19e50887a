"""The drawing in parts, one per segment, each completed on first access.

A cut near the inputs renumbers every later segment, and with it thousands of nodes and edges. A picture of folded
segments shows few of them, so the rest are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar, overload

from fuser_lab.report.graph_views import EdgeView, NodeView

T = TypeVar("T", NodeView, EdgeView)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """The items of a segment, or (None) of no segment.

    ``rough`` is the original drawing, possibly for another segment number and edges from other places; ``finished``
    converts items of ``rough`` to this plan.
    """

    segment: int | None
    rough: tuple[T, ...]
    finished: Callable[[Iterable[T]], tuple[T, ...]] = tuple


class Parts(Sequence[T]):
    """The items of several parts in order, as a sequence that completes all of them when read."""

    def __init__(self, parts: Iterable[Part[T]]) -> None:
        self.parts: tuple[Part[T], ...] = tuple(parts)
        self._all: tuple[T, ...] | None = None

    @property
    def all(self) -> tuple[T, ...]:
        """All items."""
        if self._all is None:
            self._all = tuple(chain.from_iterable(part.finished(part.rough) for part in self.parts))
        return self._all

    def __len__(self) -> int:
        """Return the number of items."""
        return sum(len(part.rough) for part in self.parts)

    def __iter__(self) -> Iterator[T]:
        """Yield the items."""
        return iter(self.all)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        """Return the item at a place, or several."""
        return self.all[at]

    def __eq__(self, other: object) -> bool:
        """Compare the items, also with a tuple."""
        return self.all == (other.all if isinstance(other, Parts) else other)

    def __hash__(self) -> int:
        """Hash like the tuple of the items."""
        return hash(self.all)

    def __repr__(self) -> str:
        """Return the text of the tuple of the items."""
        return repr(self.all)


def rough(items: Sequence[T]) -> Iterator[T]:
    """Yield items whose segment numbers, and thus ids, may be those of an earlier plan."""
    return chain.from_iterable(part.rough for part in items.parts) if isinstance(items, Parts) else iter(items)


def found(items: Sequence[T], test: Callable[[T], bool]) -> Iterator[T]:
    """Yield the items that pass a test, which must not depend on segment numbers or sources of edges."""
    if not isinstance(items, Parts):
        yield from filter(test, items)
        return
    for part in items.parts:
        passed = list(filter(test, part.rough))
        if passed:
            yield from part.finished(passed)


def nodes_but(nodes: Sequence[NodeView], closed: Iterable[int]) -> Iterator[NodeView]:
    """Yield the nodes outside these segments."""
    shut = frozenset(closed)
    if not isinstance(nodes, Parts):
        yield from (node for node in nodes if node.segment not in shut)
        return
    for part in nodes.parts:
        if part.segment not in shut:
            yield from part.finished(part.rough)


def edges_but(edges: Sequence[EdgeView], closed: Iterable[int] | None = None) -> Iterator[EdgeView]:
    """Yield the edges except those inside these segments; None means all segments."""
    shut = None if closed is None else frozenset(closed)

    def is_seen(edge: EdgeView, segment: int | None) -> bool:
        return edge.kind != "inside" or (shut is not None and segment not in shut)

    if not isinstance(edges, Parts):
        yield from (edge for edge in edges if is_seen(edge, edge.segments[0]))
        return
    for part in edges.parts:
        yield from part.finished([edge for edge in part.rough if is_seen(edge, part.segment)])

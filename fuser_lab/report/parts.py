"""The drawing in parts, one per segment, each completed on first access.

A cut near the inputs renumbers every later segment, and with it thousands of nodes and edges. A picture of folded
segments shows few of them, so the rest are not made.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Generic, TypeVar, overload

from fuser_lab.report.graph_views import EdgeView, NodeView
from fuser_lab.report.identity_cache import cached_by_identity

T = TypeVar("T", NodeView, EdgeView)
Ends = tuple[int | None, int | None]  # the segments of an edge's source and target


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """The items of a segment, or (None) of no segment.

    ``rough`` is the original drawing, possibly for another segment number and edges from other places; ``finished``
    converts items of ``rough`` to this plan. ``crossing`` are the edges from elsewhere with the segments at their ends
    in this plan, which differ from their own ``segments`` if the edges were drawn for other numbers.
    """

    segment: int | None
    rough: tuple[T, ...]
    finished: Callable[[Iterable[T]], tuple[T, ...]] = tuple
    crossing: Sequence[tuple[EdgeView, Ends]] = ()


class Parts(Sequence[T]):
    """The items of several parts in order, as a sequence that completes all of them when read."""

    def __init__(self, parts: Iterable[Part[T]]) -> None:
        self.parts: tuple[Part[T], ...] = tuple(parts)

    @cached_property
    def all(self) -> tuple[T, ...]:
        """All items."""
        return tuple(chain.from_iterable(part.finished(part.rough) for part in self.parts))

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


def select(items: Sequence[T], test: Callable[[T], bool], of: Collection[str] | None = None) -> Iterator[T]:
    """Yield the items that pass a test, which must not depend on segment numbers or sources of edges.

    All items that pass are ``of`` these tensors, if it is given: others are not tested.
    """
    if not isinstance(items, Parts):
        yield from filter(test, items)
        return
    for part in items.parts:
        tried = part.rough if of is None else _of_tensors(part.rough, of)
        passed = list(filter(test, tried))
        if passed:
            yield from part.finished(passed)


def _of_tensors(items: tuple[T, ...], tensors: Collection[str]) -> Iterator[T]:
    places = _places_of_tensors(items)
    return (items[at] for tensor in tensors for at in places.get(tensor, ()))


@cached_by_identity
def _places_of_tensors(items: tuple[NodeView | EdgeView, ...]) -> Mapping[str, Sequence[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for at, item in enumerate(items):
        places[item.tensor].append(at)
    return dict(places)


def node_called(nodes: Sequence[NodeView], ident: str) -> NodeView | None:
    """Return the node with an id."""
    if not isinstance(nodes, Parts):
        return next((node for node in nodes if node.id == ident), None)
    for part in nodes.parts:
        node = _by_id(part.rough).get(ident)
        if node is not None:
            return next(iter(part.finished((node,))), None)
    return None


@cached_by_identity
def _by_id(nodes: tuple[NodeView, ...]) -> Mapping[str, NodeView]:
    return {node.id: node for node in nodes}


def nodes_but(nodes: Sequence[NodeView], closed: Iterable[int]) -> Iterator[NodeView]:
    """Yield the nodes outside these segments."""
    shut = frozenset(closed)
    if not isinstance(nodes, Parts):
        yield from (node for node in nodes if node.segment not in shut)
        return
    for part in nodes.parts:
        if part.segment not in shut:
            yield from part.finished(part.rough)


def edges_but(edges: Sequence[EdgeView], closed: Iterable[int]) -> Iterator[EdgeView]:
    """Yield the edges except those inside these segments."""
    shut = frozenset(closed)

    def is_seen(edge: EdgeView, segment: int | None) -> bool:
        return edge.kind != "inside" or segment not in shut

    if not isinstance(edges, Parts):
        yield from (edge for edge in edges if is_seen(edge, edge.segments[0]))
        return
    for part in edges.parts:
        yield from part.finished([edge for edge in part.rough if is_seen(edge, part.segment)])


def crossing(edges: Sequence[EdgeView]) -> Iterator[tuple[EdgeView, Ends]]:
    """Yield the edges that are not inside a segment, with the segments at their ends.

    Only these are of this plan; an edge's own ``segments`` may be those of an earlier one.
    """
    if isinstance(edges, Parts):
        return chain.from_iterable([part.crossing for part in edges.parts])
    return ((edge, edge.segments) for edge in edges if edge.kind != "inside")


def nodes_by_segment(nodes: Sequence[NodeView]) -> Mapping[int | None, Part[NodeView]]:
    """Return the nodes of each segment; parts with the same ``rough`` have the same nodes but for segment numbers."""
    if isinstance(nodes, Parts):
        return {part.segment: part for part in nodes.parts if part.segment is not None}
    return _by_segment(nodes, lambda node: node.segment)


def edges_by_segment(edges: Sequence[EdgeView]) -> Mapping[int | None, Part[EdgeView]]:
    """Return the edges into each segment."""
    if isinstance(edges, Parts):
        return {part.segment: part for part in edges.parts if part.segment is not None}
    return _by_segment(edges, lambda edge: edge.segments[1])


def _by_segment(items: Iterable[T], segment: Callable[[T], int | None]) -> dict[int | None, Part[T]]:
    groups: dict[int | None, list[T]] = defaultdict(list)
    for item in items:
        groups[segment(item)].append(item)
    return {index: Part(segment=index, rough=tuple(some)) for index, some in groups.items()}

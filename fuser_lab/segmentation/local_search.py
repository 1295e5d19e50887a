"""Better plans by small changes: merge two segments, or move expressions from one to another, as long as this saves.

A partition under construction is a list of disjoint masks over the units of a space. Prices are computed first, since
they are cheap; only a change that would save is checked for cycles and by the schedulers.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp

from fuser_lab.analysis.bit_masks import bits, union_at
from fuser_lab.segmentation.space import Space


@dataclass(slots=True)
class Partition:
    """Disjoint segments that cover a space, with their prices; the quotient has no cycle."""

    space: Space
    segments: dict[int, int]  # mask -> cost, chains provided in the cheapest legal way
    _owner: list[int] = field(init=False)
    _needs: list[int] = field(init=False)
    _feeds: list[int] = field(init=False)
    _below: dict[int, int] = field(init=False)  # segment -> the units that read from it
    _line: list[int] = field(init=False)  # the segments, each after those that it reads from
    _place: dict[int, int] = field(init=False)  # segment -> its number in the line

    def __post_init__(self) -> None:
        """Record the segment of each unit, who reads from whom, and an order of the segments."""
        size = len(self.space.units)
        self._owner = [0] * size
        self._needs, self._feeds = [0] * size, [0] * size
        for flow in self.space.flows:
            for maker in bits(flow.producer):
                self._feeds[maker] |= flow.readers
                for reader in bits(flow.readers):
                    self._needs[reader] |= flow.producer
        for mask in self.segments:
            self._note(mask)
        self._below, self._line, self._place = {}, [], {}
        self._put(0, 0, self.segments)

    @classmethod
    def single(cls, space: Space) -> "Partition":
        """Return the partition with every unit alone."""
        partition = cls(space, {})
        for i in range(len(space.units)):
            price = legal_price(space, 1 << i)
            assert price is not None
            partition.segments[1 << i] = price
            partition._note(1 << i)
        partition._put(0, 0, partition.segments)
        return partition

    def copied(self) -> "Partition":
        """Return a partition of the same segments that can be changed on its own."""
        return Partition(self.space, dict(self.segments))

    @property
    def line(self) -> tuple[int, ...]:
        """The segments, each after the segments that it reads from."""
        return tuple(self._line)

    def _note(self, mask: int) -> None:
        for i in bits(mask):
            self._owner[i] = mask

    @property
    def cost(self) -> int:
        """Cost of all segments."""
        return sum(self.segments.values())

    def owner(self, unit: int) -> int:
        """Return the segment of a unit."""
        return self._owner[unit]

    def beside(self, mask: int, most: int) -> set[int]:
        """Return the other segments that share a tensor with one, at most so many per tensor before and after it."""
        neighbours: set[int] = set()
        lower = (mask & -mask) - 1
        for number in bits(self.space.sums(mask).shared):
            others = self.space.touching[number] & ~mask
            neighbours.update(islice(self._owners(others & ~lower), most))
            neighbours.update(islice(self._owners(others & lower, last=True), most))
        return neighbours

    def _owners(self, units: int, *, last: bool = False) -> Iterator[int]:
        """Yield the segments of units, in the order of the units or from the last one."""
        while units:
            owner = self._owner[(units if last else units & -units).bit_length() - 1]
            yield owner
            units &= ~owner

    def replace(self, gone: Iterable[int], new: dict[int, int]) -> None:
        """Replace segments by others."""
        places = []
        for mask in gone:
            del self.segments[mask], self._below[mask]
            places.append(self._place.pop(mask))
        for mask, price in new.items():
            self.segments[mask] = price
            self._note(mask)
        self._put(min(places), max(places) + 1, new)

    def _put(self, first: int, end: int, new: Iterable[int]) -> None:
        """Put segments into a range of the order in place of the segments removed there, and sort this range."""
        for mask in new:
            self._below[mask] = union_at(self._feeds, mask)
        part = [mask for mask in self._line[first:end] if mask in self.segments]
        part += [mask for mask in new if mask not in self._place]
        self._line[first:end] = self._in_order(part)
        changed = end if len(part) == end - first else len(self._line)
        for place in range(first, changed):
            self._place[self._line[place]] = place

    def _in_order(self, part: Sequence[int]) -> list[int]:
        """Return segments sorted so that each comes after the segments that it reads from."""
        inside = set(part)
        after = {mask: {self._owner[i] for i in bits(self._below[mask] & ~mask)} & inside for mask in part}
        waits = dict.fromkeys(part, 0)
        for below in after.values():
            for mask in below:
                waits[mask] += 1
        ordered = [mask for mask in part if not waits[mask]]
        for mask in ordered:
            for reader in sorted(after[mask]):
                waits[reader] -= 1
                if not waits[reader]:
                    ordered.append(reader)
        return ordered

    def cycle_with(self, gone: Iterable[int], new: Sequence[int]) -> int:
        """Return a segment on a cycle that replacing some segments by others would create; empty if there is none."""
        last = max(self._place[mask] for mask in gone)
        for mask in new:
            self._note(mask)
        segment = next((through for mask in new if (through := self._way_back(mask, last))), 0)
        for mask in gone:
            self._note(mask)
        return segment

    def _way_back(self, start: int, last: int) -> int:
        """Return a segment on a path from one to itself; such paths end at position ``last``."""
        seen = start
        waiting = [start]
        while waiting:
            here = waiting.pop()
            below = self._below[here] if here in self._below else union_at(self._feeds, here)
            if here != start and below & start:
                return here
            below &= ~(here | seen)
            while below:
                after = self._owner[(below & -below).bit_length() - 1]
                below &= ~after
                seen |= after
                if self._place.get(after, 0) <= last:
                    waiting.append(after)
        return 0

    def inside_below(self, unit: int) -> int:
        """Return a unit with everything in its segment that depends on it."""
        return (self.space.below[unit] | 1 << unit) & self._owner[unit]

    def inside_above(self, unit: int) -> int:
        """Return a unit with everything in its segment that it depends on."""
        return (self.space.above[unit] | 1 << unit) & self._owner[unit]


def legal_price(space: Space, mask: int) -> int | None:
    """Return the cost of a set as a segment, None if it cannot be one."""
    way = space.legal_way(mask)
    return None if way is None else space.price(mask) + way[0]


def merges(
    partition: Partition, apart: Sequence[int] | None = None, *, most: int | None = None,
) -> Iterator[tuple[int, int, bool]]:
    """Repeatedly merge the two segments that save most; yield each attempt and whether it succeeded.

    Only segments with a common tensor are tried; with ``apart``, which has for each unit those that exclude it, all
    other pairs as well, since they save at least a launch. A pair that was refused is not tried again until one of the
    two has changed. With ``most``, a segment is tried with so many before and after it that share a tensor: of two that
    are farther apart, one becomes a neighbour of the other when those between are merged; and a pair that contains a
    refused one comes after all that do not, because it is seldom accepted, and asking about it takes longest.
    """
    space = partition.space
    count = len(space.units) if most is None else most
    heap: list[tuple[bool, int, int, int]] = []
    refused: dict[int, int] = {}  # for each segment, a unit of each other with which it, or a part of it, was refused

    def add(a: int, b: int) -> None:
        saved = partition.segments[a] + partition.segments[b] - space.price(a | b, space.joined(a, b))
        if saved > 0:
            first, second = (a, b) if a & -a < b & -b else (b, a)
            heappush(heap, (bool(refused.get(a, 0) & b), -saved, first, second))

    def near(mask: int) -> Iterable[int]:
        if apart is None:
            return partition.beside(mask, count)
        far = union_at(apart, mask)
        return [other for other in partition.line if other != mask and not other & far]

    for mask in partition.segments:
        for other in near(mask):
            if other & -other > mask & -mask:
                add(mask, other)
    heapify(heap)
    while heap:
        _, _, a, b = heappop(heap)
        if a not in partition.segments or b not in partition.segments:
            continue
        is_apart = bool(partition.cycle_with((a, b), (a | b,)))  # until what lies between joins one of them
        price = None if is_apart else legal_price(space, space.join(a, b))
        paid = partition.segments[a] + partition.segments[b]
        accepted = price is not None and price < paid
        yield a, b, accepted
        if accepted and price is not None:
            partition.replace((a, b), {a | b: price})
            refused[a | b] = refused.pop(a, 0) | refused.pop(b, 0)
            for other in near(a | b):
                add(a | b, other)
        elif most is not None and not is_apart:
            refused[a] = refused.get(a, 0) | b & -b
            refused[b] = refused.get(b, 0) | a & -a


def runs(partition: Partition) -> Iterator[tuple[int, bool]]:
    """Merge as many segments at once as schedulers accept; yield each attempt and whether it came about.

    All segments are tried together, in an order in which each comes after those that it reads from, then each half of
    those that are refused, and so on: few questions, where merging in pairs asks about each larger piece again.
    """
    space = partition.space
    by_libraries = sum(1 << n for n, unit in enumerate(space.units) if unit.kind.is_reserved)
    waiting = [tuple(mask for mask in partition.line if not mask & by_libraries)]
    while waiting:
        parts = waiting.pop()
        if len(parts) < 2:
            continue
        union = sum(parts)
        paid = sum(partition.segments[mask] for mask in parts)
        price = None
        if space.price(union) < paid and not partition.cycle_with(parts, (union,)):
            price = legal_price(space, union)
        accepted = price is not None and price < paid
        yield union, accepted
        if accepted and price is not None:
            partition.replace(parts, {union: price})
        elif len(parts) > 2:  # merging in pairs comes later
            waiting += [parts[len(parts) // 2 :], parts[: len(parts) // 2]]


def anneal(
    partition: Partition, apart: Sequence[int], rounds: int, is_late: Callable[[], bool],
) -> Partition:
    """Return the cheapest partition on a random walk of small changes, some of which initially increase the cost.

    ``apart`` has for each unit those that exclude it. The walk is always the same. It ends after a number of
    rounds or at the time limit.
    """
    space, dice = partition.space, random.Random(0)  # noqa: S311 - a walk that can be repeated, no secret
    best, least = dict(partition.segments), partition.cost
    cost = least
    shared = [flow for flow in space.flows if (flow.producer | flow.readers).bit_count() > 1]
    units_of = cache(lambda flow: list(bits(flow.producer | flow.readers)))
    if not shared:
        return partition
    excludes = any(apart)
    heat = max(sum(flow.bytes for flow in shared) // len(shared), space.model.launch_bytes)
    for step in range(rounds):
        if step % 64 == 0 and is_late():
            break
        flow = dice.choice(shared)
        first, second = dice.sample(units_of(flow), 2)
        a, b = partition.owner(first), partition.owner(second)
        moved = _units_moved(partition, first, dice)
        rest = space.split(a, moved)
        new = [mask for mask in ((moved, rest) if a == b else (rest, space.join(b, moved))) if mask]
        gone = {a, b}
        if set(new) == gone or (excludes and any(_is_excluded(mask, apart) for mask in new)):
            continue
        paid = sum(partition.segments[mask] for mask in gone)
        change = sum(space.price(mask) for mask in new) - paid
        warmth = 0.25 * heat * (1 - step / rounds) ** 2
        if change > 0 and (warmth < 1 or dice.random() >= exp(-change / warmth)):
            continue
        if partition.cycle_with(gone, new):
            continue
        prices = {mask: legal_price(space, mask) for mask in new}
        priced = {mask: price for mask, price in prices.items() if price is not None}
        if len(priced) < len(new):
            continue
        cost += sum(priced.values()) - paid
        partition.replace(gone, priced)
        if cost < least:
            best, least = dict(partition.segments), cost
    return Partition(space, best)


def _units_moved(partition: Partition, unit: int, dice: random.Random) -> int:
    """Return the units that move with a unit: none, its dependents, its dependencies, or the whole segment."""
    kind = dice.randrange(4)
    if kind == 0:
        return 1 << unit
    if kind == 1:
        return partition.inside_below(unit)
    return partition.inside_above(unit) if kind == 2 else partition.owner(unit)


def _is_excluded(mask: int, apart: Sequence[int]) -> bool:
    return any(apart[i] & mask for i in bits(mask))

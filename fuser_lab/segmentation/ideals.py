"""A* over order ideals: a plan is a chain of down-sets, each step of which is one segment.

A state is the set of blocks that closed segments hold. From a state, segments are grown block by block, with a branch
for taking a block and one for leaving it to a later segment; a branch ends where its bound reaches the cost of a known
plan. Whether a scheduler takes a segment is asked only when the segment is next in line.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from fuser_lab.segmentation.bounds import bits
from fuser_lab.segmentation.contraction import Blocks, bound


@dataclass(slots=True, kw_only=True)
class Budget:
    """How long may be searched: partial segments looked at, and seconds."""

    states: int = 400_000
    seconds: float = 10.0
    used: int = 0
    _end: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._end = time.monotonic() + self.seconds

    def spend(self) -> bool:
        """Count one state; False once nothing is left."""
        self.used += 1
        return self.used <= self.states and (self.used % 64 != 0 or time.monotonic() < self._end)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.used >= self.states or time.monotonic() >= self._end


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found: no plan costs less than ``bound``; ``segments`` (of units) cost that, if there are any."""

    bound: int
    segments: tuple[int, ...] | None
    states: int


def search(blocks: Blocks, limit: int, budget: Budget) -> Found:
    """Return the cheapest plan of blocks below ``limit``, or the proof that there is none.

    If the budget does not suffice, the bound is that of the best state that is left.
    """
    before = budget.used
    if blocks.is_contradictory or bound(blocks) >= limit:
        return Found(bound=limit, segments=None, states=0)
    return _Search(blocks, limit, budget).run(before)


class _Search:
    def __init__(self, blocks: Blocks, limit: int, budget: Budget) -> None:
        self._blocks = blocks
        self._space = blocks.space
        self._limit = limit
        self._budget = budget
        self._cost = {0: 0}
        self._came: dict[int, tuple[int, int]] = {}
        self._ahead: dict[int, int] = {}
        self._prices: dict[int, int] = {}
        size = len(blocks.members)
        # What cannot join a segment that a block is left out of, and what cannot join one that it is in.
        self._without = [1 << i | sum(1 << j for j in range(size) if blocks.needs[j] >> i & 1) for i in range(size)]
        self._beside = [0] * size
        for i in range(size):
            for j in bits(blocks.apart[i]):
                # A block that must come before this one, but cannot be with it, has been decided on already.
                self._beside[i] |= self._without[j] if j > i else 0

    def run(self, before: int) -> Found:
        number = count()
        # Entries: bound, tie break (deep states first), closed blocks, next segment (0: the state itself), way.
        heap: list[tuple[int, int, int, int, int, int]] = [(self._rest(0), 0, next(number), 0, 0, 0)]
        while heap:
            least, _, _, done, segment, way = heappop(heap)
            if least >= self._limit:
                break
            if not segment:
                if done == self._blocks.all:
                    return Found(bound=least, segments=self._plan(), states=self._budget.used - before)
                if least > self._cost[done] + self._rest(done):
                    continue  # a cheaper way to this state was expanded before
                for chosen in self._grow(done):
                    after = self._cost[done] + self._price(chosen) + self._rest(done | chosen)
                    if after < self._limit:
                        heappush(heap, (after, -(done | chosen).bit_count(), next(number), done, chosen, 0))
                if self._budget.is_spent:
                    return Found(bound=least, segments=None, states=self._budget.used - before)
                continue
            if not self._budget.spend():
                return Found(bound=least, segments=None, states=self._budget.used - before)
            units = self._blocks.units(segment)
            ways = self._space.ways(units)
            extra, copies = ways[way]
            if not self._space.is_legal(units, copies):
                if way + 1 < len(ways) and (more := least - extra + ways[way + 1][0]) < self._limit:
                    heappush(heap, (more, -(done | segment).bit_count(), next(number), done, segment, way + 1))
                continue
            after = done | segment
            cost = self._cost[done] + self._price(segment) + extra
            if cost < self._cost.get(after, self._limit):
                self._cost[after] = cost
                self._came[after] = (done, units)
                heappush(heap, (cost + self._rest(after), -after.bit_count(), next(number), after, 0, 0))
        return Found(bound=self._limit, segments=None, states=self._budget.used - before)

    def _rest(self, done: int) -> int:
        found = self._ahead.get(done)
        if found is None:
            found = self._ahead[done] = bound(self._blocks, done)
        return found

    def _price(self, segment: int) -> int:
        found = self._prices.get(segment)
        if found is None:
            found = self._prices[segment] = self._space.price(self._blocks.units(segment))
        return found

    def _plan(self) -> tuple[int, ...]:
        here, found = self._blocks.all, []
        while here:
            here, units = self._came[here]
            found.append(units)
        return tuple(found[::-1])

    def _grow(self, done: int) -> Iterator[int]:
        """Yield the sets of blocks that may be the next segment."""
        blocks, budget = self._blocks, self._budget
        limit = self._limit - self._cost[done]
        last = len(blocks.members)
        # The open segment, what is left to later ones, the next block to decide on.
        stack = [(0, 0, 0)]
        while stack:
            chosen, excluded, place = stack.pop()
            while place < last and (done | excluded) >> place & 1:
                place += 1
            if not budget.spend():
                return
            if bound(blocks, done, chosen, excluded) >= limit:
                continue
            if place == last:
                if chosen:
                    yield chosen
                continue
            stack.append((chosen, excluded | self._without[place], place + 1))
            stack.append((chosen | 1 << place, excluded | self._beside[place], place + 1))

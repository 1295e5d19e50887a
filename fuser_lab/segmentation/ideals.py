"""A* over order ideals: a plan is a chain of down-sets, each step of which is one segment.

A state is the set of blocks that closed segments hold. From a state, segments are grown block by block, with a branch
for taking a block and one for leaving it to a later segment; a branch ends where its bound reaches the cost of a known
plan. Whether a scheduler takes a segment is asked only when the segment is next in line.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from fuser_lab.segmentation.bounds import bits
from fuser_lab.segmentation.contraction import Blocks, bound

_ENDED: ContextVar[Callable[[], bool]] = ContextVar("_ENDED", default=lambda: False)


@contextmanager
def ending_when(ended: Callable[[], bool]) -> Iterator[None]:
    """Return a context in which searches end as if their time were up once ``ended()`` is true."""
    token = _ENDED.set(ended)
    try:
        yield
    finally:
        _ENDED.reset(token)


@dataclass(slots=True, kw_only=True)
class Budget:
    """How long may be searched: partial segments looked at, and seconds; None for as long as it takes.

    Only the first of the two gives the same answer on every machine. ``ended`` is whether somebody wants no more.
    """

    states: int = 400_000
    seconds: float | None = None
    used: int = 0
    ended: Callable[[], bool] = field(default_factory=_ENDED.get, init=False)
    _end: float = field(default=inf, init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        if self.seconds is not None:
            self._end = time.monotonic() + self.seconds

    def spend(self) -> bool:
        """Count one state; False once nothing is left."""
        self.used += 1
        return self.used <= self.states and (self.used % 64 != 0 or not self.is_late)

    @property
    def is_late(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end or self.ended()

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.used >= self.states or self.is_late

    def share(self, parts: int) -> "Budget":
        """Return a budget of one of so many parts of the states, and of the time that is left."""
        left = None if self.seconds is None else max(self._end - time.monotonic(), 0.0)
        return Budget(states=self.states // parts, seconds=left)


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


State = tuple[int, int]  # the blocks in closed segments, and those of the last segment


class _Search:
    """One search.

    Segments that do not depend on each other could come in any order; of these orders, only the one is followed in
    which a segment that does not read from the one before it begins with a later block. That is why the last segment
    is a part of the state.
    """

    def __init__(self, blocks: Blocks, limit: int, budget: Budget) -> None:
        self._blocks = blocks
        self._space = blocks.space
        self._limit = limit
        self._budget = budget
        self._cost: dict[State, int] = {(0, 0): 0}
        self._came: dict[State, tuple[State, int]] = {}
        self._ahead: dict[int, int] = {}
        self._prices: dict[int, int] = {}
        size = len(blocks.members)
        # What cannot join a segment that a block is left out of, and the numbers of the flows that touch a block.
        self._without = [1 << i | sum(1 << j for j in range(size) if blocks.needs[j] >> i & 1) for i in range(size)]
        self._flows = [
            (flow.bytes, flow.producer, flow.readers, flow.kept, clique)
            for flow, clique in zip(blocks.flows, blocks.cliques, strict=True)
        ]
        self._touch = [
            sum(1 << f for f, flow in enumerate(blocks.flows) if (flow.producer | flow.readers) >> i & 1)
            for i in range(size)
        ]

    def run(self, before: int) -> Found:
        number = count()
        # Entries: bound, tie break (deep states first), state, next segment (0: the state itself), way.
        heap: list[tuple[int, int, int, State, int, int]] = [(self._rest(0), 0, next(number), (0, 0), 0, 0)]
        while heap:
            least, _, _, state, segment, way = heappop(heap)
            done = state[0]
            if least >= self._limit:
                break
            if not segment:
                if done == self._blocks.all:
                    return Found(bound=least, segments=self._plan(state), states=self._budget.used - before)
                if least > self._cost[state] + self._rest(done):
                    continue  # a cheaper way to this state was expanded before
                for chosen in self._grow(state):
                    after = self._cost[state] + self._price(chosen) + self._rest(done | chosen)
                    if after < self._limit:
                        heappush(heap, (after, -(done | chosen).bit_count(), next(number), state, chosen, 0))
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
                    heappush(heap, (more, -(done | segment).bit_count(), next(number), state, segment, way + 1))
                continue
            after_state = (done | segment, segment)
            cost = self._cost[state] + self._price(segment) + extra
            if cost < self._cost.get(after_state, self._limit):
                self._cost[after_state] = cost
                self._came[after_state] = (state, units)
                done |= segment
                heappush(heap, (cost + self._rest(done), -done.bit_count(), next(number), after_state, 0, 0))
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

    def _plan(self, state: State) -> tuple[int, ...]:
        found = []
        while state[0]:
            state, units = self._came[state]
            found.append(units)
        return tuple(found[::-1])

    def _grow(self, state: State) -> Iterator[int]:
        """Yield the sets of blocks that may be the next segment."""
        blocks, budget = self._blocks, self._budget
        done, previous = state
        limit = self._limit - self._cost[state]
        last = len(blocks.members)
        first = previous & -previous
        following = sum(1 << i for i in range(last) if blocks.needs[i] & previous)
        static = [self._alone(done, flow) for flow in self._flows]
        fixed = sum(static)
        paths = [(p.amount, p.waiting, p.flows) for p in blocks.paths if not p.waiting & done]
        # The open segment, its flows, what it excludes as incompatible, what is left to later ones, the next block.
        stack = [(0, 0, 0, 0, 0)]
        while stack:
            chosen, touched, apart, excluded, place = stack.pop()
            while place < last and (done | excluded) >> place & 1:
                place += 1
            if not budget.spend():
                return
            if 0 < chosen & -chosen < first and not following & (chosen | ~excluded & -(1 << place)):
                continue  # it would have to come before the last segment
            if self._at_least(done, chosen, touched, apart | excluded, fixed, static) + sum(
                amount for amount, waiting, flows in paths if not (waiting & chosen or flows & touched)
            ) >= limit:
                continue
            if place == last:
                if chosen:
                    yield chosen
                continue
            stack.append((chosen, touched, apart, excluded | self._without[place], place + 1))
            for other in bits(blocks.apart[place] & ~done & ~excluded):
                excluded |= self._without[other]
            stack.append(
                (chosen | 1 << place, touched | self._touch[place], apart | blocks.apart[place], excluded, place + 1),
            )

    def _alone(self, done: int, flow: tuple[int, int, int, bool, int]) -> int:
        """Return what a flow costs that no open segment touches."""
        size, producer, readers, kept, clique = flow
        rest = ~done
        if producer & rest:
            number = clique.bit_count()
            return size * (number if number > 1 else kept)
        left = readers & rest
        return size * max((clique & left).bit_count(), 1) if left else 0

    def _at_least(
        self, done: int, chosen: int, touched: int, apart: int, fixed: int, static: list[int],
    ) -> int:
        """Return `bound` of an open segment, looking at the flows that touch it only."""
        blocks = self._blocks
        launch = self._space.model.launch_bytes
        rest = blocks.all & ~done & ~chosen
        ahead = (blocks.launches & rest).bit_count()
        if not chosen:
            return fixed + (launch * max(ahead, 1) if rest else 0)
        if not blocks.launches & chosen and blocks.launches & rest & ~apart:
            ahead -= 1
        if not ahead and apart & rest:
            ahead = 1
        total = fixed + launch * (1 + ahead)
        away_from = apart & rest
        while touched:
            low = touched & -touched
            touched ^= low
            number = low.bit_length() - 1
            size, producer, readers, kept, clique = self._flows[number]
            if producer & chosen:
                away = readers & away_from
                if away:
                    total += size * (1 + ((clique & away).bit_count() or 1)) - static[number]
                else:
                    total += size * kept - static[number]
            elif readers & chosen and not producer & rest:
                away = readers & away_from
                total += size * (1 + ((clique & away).bit_count() or 1) if away else 1) - static[number]
        return total

"""A* over order ideals: a plan is a chain of down-sets, each step of which is one segment.

A state is the set of blocks that closed segments hold. From a state, segments are grown block by block, with a branch
for taking a block and one for leaving it to a later segment; a branch ends where its bound reaches the cost of a known
plan. Whether a scheduler accepts a segment is asked only when the segment is next in line.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from fuser_lab.analysis.bit_masks import bits, union_at
from fuser_lab.process.ending import ENDED, IsLate
from fuser_lab.segmentation.contraction import Blocks, bound, launches

STATES_PER_QUESTION = 10  # states that a new question to the schedulers counts as


@dataclass(slots=True, kw_only=True)
class Budget:
    """The limits of a search: the number of partial segments to examine, and seconds; None for no limit.

    A new question to the schedulers, which takes longer, counts as ten partial segments. Only the first limit gives the
    same result on every machine. ``ended`` says whether the search was cancelled.
    """

    states: int = 400_000
    seconds: float | None = None
    used: int = 0
    ended: IsLate = field(default_factory=ENDED.get, init=False)
    _end: float = field(default=inf, init=False)
    _work_end: float = field(default=inf, init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        if self.seconds is not None:
            self._end = time.monotonic() + self.seconds

    def limit(self, seconds: float) -> None:
        """End the search after at most some seconds of this thread's processor time from now.

        So the answer depends on the speed of the machine, but not on its load.
        """
        self._work_end = min(self._work_end, time.thread_time() + seconds)

    def spend(self) -> bool:
        """Count one state; False once nothing is left."""
        self.used += 1
        return self.used <= self.states and (self.used % 64 != 0 or not self.is_late)

    @property
    def is_late(self) -> bool:
        """Whether a time limit has passed."""
        return time.monotonic() >= self._end or time.thread_time() >= self._work_end or self.ended()

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return self.used >= self.states or self.is_late

    def share(self, parts: int, *, of_work: float = 1.0) -> "Budget":
        """Return a budget with a fraction of the states, the remaining time, and a part of the processor time left."""
        left = None if self.seconds is None else max(self._end - time.monotonic(), 0.0)
        part = Budget(states=self.states // parts, seconds=left)
        part.limit(of_work * (self._work_end - time.thread_time()))
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search: no plan costs less than ``bound``, and ``segments`` (of units), if any, cost as much."""

    bound: int
    segments: tuple[int, ...] | None
    states: int


def search(blocks: Blocks, limit: int, budget: Budget) -> SearchResult:
    """Return the cheapest plan of blocks below ``limit``, or the proof that there is none.

    If the budget runs out, the bound is that of the best state left.
    """
    before = budget.used
    if blocks.is_contradictory or bound(blocks) >= limit:
        return SearchResult(bound=limit, segments=None, states=0)
    return _Search(blocks, limit, budget).run(before)


State = tuple[int, int]  # the blocks in closed segments, and those of the last segment


class _Search:
    """One search.

    Independent segments could come in any order; only the order is followed in which a segment that does not read from
    the previous one begins with a later block. Therefore the last segment is part of the state.
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
        self._paid: dict[int, int] = {}  # costs of legal segments with their chains
        size = len(blocks.members)
        # For each block, the blocks that cannot join a segment without it, and the numbers of the flows that touch it.
        self._without = [1 << i | sum(1 << j for j in range(size) if blocks.needs[j] >> i & 1) for i in range(size)]
        self._flows = [
            (flow.bytes, flow.producer, flow.readers, flow.kept, clique)
            for flow, clique in zip(blocks.flows, blocks.cliques, strict=True)
        ]
        self._touch = [
            sum(1 << f for f, flow in enumerate(blocks.flows) if (flow.producer | flow.readers) >> i & 1)
            for i in range(size)
        ]
        # The flows that touch what cannot join a segment without a block, and with it.
        self._beside_without = [union_at(self._touch, without) for without in self._without]
        self._beside_apart = [
            union_at(self._touch, union_at(self._without, apart) | apart) for apart in blocks.apart
        ]
        self._all, self._launch = blocks.all, self._space.model.launch_bytes

    def run(self, before: int) -> SearchResult:
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
                    return SearchResult(bound=least, segments=self._plan(state), states=self._budget.used - before)
                if least > self._cost[state] + self._rest(done):
                    continue  # a cheaper way to this state was expanded before
                for chosen in self._grow(state):
                    after = self._cost[state] + self._price(chosen) + self._rest(done | chosen)
                    if after < self._limit:
                        heappush(heap, (after, -(done | chosen).bit_count(), next(number), state, chosen, 0))
                if self._budget.is_spent:
                    return SearchResult(bound=least, segments=None, states=self._budget.used - before)
                continue
            if not self._budget.spend():
                return SearchResult(bound=least, segments=None, states=self._budget.used - before)
            units = self._blocks.units(segment)
            ways = self._space.ways(units)
            extra, copies = ways[way]
            asked = self._space.asked
            is_legal = self._space.is_legal(units, copies)
            self._budget.used += STATES_PER_QUESTION * (self._space.asked - asked)
            if not is_legal:
                if way + 1 < len(ways) and (more := least - extra + ways[way + 1][0]) < self._limit:
                    heappush(heap, (more, -(done | segment).bit_count(), next(number), state, segment, way + 1))
                continue
            after_state = (done | segment, segment)
            cost = self._cost[state] + self._price(segment) + extra
            if cost < self._cost.get(after_state, self._limit) and not self._is_beaten(state, segment, cost):
                self._paid[segment] = cost - self._cost[state]
                self._cost[after_state] = cost
                self._came[after_state] = (state, units)
                done |= segment
                heappush(heap, (cost + self._rest(done), -done.bit_count(), next(number), after_state, 0, 0))
        return SearchResult(bound=self._limit, segments=None, states=self._budget.used - before)

    def _is_beaten(self, state: State, segment: int, cost: int) -> bool:
        """Whether merging a segment with an earlier one on the way to a state is cheaper.

        Plans that begin in this way are then more expensive than others, whatever follows, so none of them is the
        cheapest. ``cost`` is that of the way with the segment.
        """
        blocks = self._blocks
        before, apart = union_at(blocks.needs, segment), union_at(blocks.apart, segment)
        between = 0  # what the segments between an earlier one and this one need: merging the two would form a cycle
        came = cost - self._cost[state]
        while state[0]:
            earlier = state[1]
            if not earlier & (between | apart):
                apiece = came + self._paid[earlier]
                if self._price(earlier | segment) < apiece and self._least(earlier | segment) < apiece:
                    return True
            if earlier & (before | between):
                between |= union_at(blocks.needs, earlier)
            state = self._came[state][0]
        return False

    def _rest(self, done: int) -> int:
        ahead = self._ahead.get(done)
        if ahead is None:
            ahead = self._ahead[done] = bound(self._blocks, done)
        return ahead

    def _price(self, segment: int) -> int:
        price = self._prices.get(segment)
        if price is None:
            price = self._prices[segment] = self._space.price(self._blocks.units(segment))
        return price

    def _least(self, segment: int) -> float:
        """Return a lower bound on the cost of a set of blocks as a segment; infinity if it cannot be one."""
        cost = self._paid.get(segment)
        if cost is None:
            units = self._blocks.units(segment)
            way = self._space.legal_way(units)
            if way is None:
                return inf
            cost = self._paid[segment] = self._price(segment) + way[0]
        return cost

    def _plan(self, state: State) -> tuple[int, ...]:
        segments = []
        while state[0]:
            state, units = self._came[state]
            segments.append(units)
        return tuple(segments[::-1])

    def _grow(self, state: State) -> Iterator[int]:
        """Yield the sets of blocks that may be the next segment."""
        blocks, budget = self._blocks, self._budget
        done, previous = state
        limit = self._limit - self._cost[state]
        last = len(blocks.members)
        first = previous & -previous
        following = sum(1 << i for i in range(last) if blocks.needs[i] & previous)
        alone = [self._alone(done, flow) for flow in self._flows]
        fixed = sum(alone)
        paths = [(p.amount, p.waiting, p.flows) for p in blocks.paths if not p.waiting & done]
        # The open segment, its flows, the blocks that it excludes as incompatible, those left to later segments, the
        # next block, and the additional cost of the flows because of the segment.
        stack = [(0, 0, 0, 0, 0, 0)]
        while stack:
            chosen, touched, apart, excluded, place, moved = stack.pop()
            while place < last and (done | excluded) >> place & 1:
                place += 1
            if not budget.spend():
                return
            if 0 < chosen & -chosen < first and not following & (chosen | ~excluded & -(1 << place)):
                continue  # it would have to come before the last segment
            ahead = launches(blocks, self._all & ~done & ~chosen, chosen, apart | excluded)
            least = fixed + moved + self._launch * ahead
            for amount, waiting, flows in paths:
                if not (waiting & chosen or flows & touched):
                    least += amount
            if least >= limit:
                continue
            if place == last:
                if chosen:
                    yield chosen
                continue
            before = (apart | excluded) & ~done
            later = excluded | self._without[place]
            near = touched & self._beside_without[place]
            more = self._cost_of_parting(near, chosen, before, before | later) if near else 0
            stack.append((chosen, touched, apart, later, place + 1, moved + more))
            for other in bits(blocks.apart[place] & ~done & ~excluded):
                excluded |= self._without[other]
            apart |= blocks.apart[place]
            after = (apart | excluded) & ~done
            touches = self._touch[place]
            more = self._cost_of_joining(touches, touched, chosen, before, chosen | 1 << place, after, alone)
            if after != before:
                more += self._cost_of_parting(touched & ~touches & self._beside_apart[place], chosen, before, after)
            stack.append((chosen | 1 << place, touched | touches, apart, excluded, place + 1, moved + more))

    def _alone(self, done: int, flow: tuple[int, int, int, bool, int]) -> int:
        """Return the cost of a flow that no open segment touches."""
        size, producer, readers, is_written, clique = flow
        rest = ~done
        if producer & rest:
            number = clique.bit_count()
            return size * (number if number > 1 else is_written)
        left = readers & rest
        return size * max((clique & left).bit_count(), 1) if left else 0

    def _cost_of_joining(
        self, flows: int, touched: int, chosen: int, before: int, wider: int, after: int, alone: list[int],
    ) -> int:
        """Return the additional cost of flows for a block that joins the open segment and touches all of them.

        ``before`` and ``after`` are the blocks that cannot join, with and without it; ``wider`` is the segment with it.
        """
        total = 0
        for number in bits(flows):
            total += self._cost_of_flow(number, wider, after)
            total -= self._cost_of_flow(number, chosen, before) if touched >> number & 1 else alone[number]
        return total

    def _cost_of_parting(self, flows: int, chosen: int, before: int, after: int) -> int:
        """Return the additional cost of the open segment's flows if more blocks, or others, cannot join it."""
        return sum(
            self._cost_of_flow(number, chosen, after) - self._cost_of_flow(number, chosen, before)
            for number in bits(flows) if self._flows[number][2] & (after & ~before)
        )

    def _cost_of_flow(self, number: int, chosen: int, away_from: int) -> int:
        """Return a lower bound on the cost of an open segment's flow if some blocks are in other segments."""
        size, producer, readers, is_written, clique = self._flows[number]
        away = readers & away_from
        if away:
            return size * (1 + ((clique & away).bit_count() or 1))
        return size * is_written if producer & chosen else size

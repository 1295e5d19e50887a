"""The cost of pairs that exclude each other, as a packing of the paths between them.

If two units that can never share a kernel are joined by a path of shared tensors, then somewhere on the path two
neighbours are in different segments, and the tensor between them goes through memory. A plan therefore pays, for each
path, at least the cheapest of its tensors; if paths share a tensor, their total charge for it may not exceed the cost
of separating its producer and readers. The largest sum of such charges is a linear program, the dual of minimum
multicut (Leighton and Rao, JACM 46(6), 1999): paths are added while some are shorter than 1 in the prices of the
tensors. Rounded down to bytes it is a bound that needs no solver to check: adding up suffices. Without SciPy, which
solves the program, the paths with the fewest tensors are charged in turn, which gives a weaker bound.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from importlib.util import find_spec

import numpy as np

from fuser_lab.analysis.bit_masks import bits

ROUNDS = 20  # rounds of adding paths; missing paths make the bound weaker, not wrong
NEW_PATHS = 6  # paths added per unit and round, the shortest
SHORT = 1 - 1e-6  # price of a path below which it improves the bound: 1, less the error of the sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A tensor that units share: the minimum cost of separating them, and the units."""

    capacity: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Units on a path between two that exclude each other, the numbers of the links, and the bytes charged."""

    units: tuple[int, ...]
    links: tuple[int, ...]
    amount: int


def packed_paths(apart: Sequence[int], links: Sequence[Link]) -> tuple[Path, ...]:
    """Return paths with charges that do not exceed any link's capacity.

    Parameters
    ----------
    apart
        For each unit, the mask of those that exclude it.
    links
        The shared tensors; paths do not use those without capacity.
    """
    packing = _Packing(apart, links)
    if not packing.members or not any(apart):
        return ()
    return packing.run()


class _Packing:
    def __init__(self, apart: Sequence[int], links: Sequence[Link]) -> None:
        self._apart = apart
        self.members = {k: list(bits(link.units)) for k, link in enumerate(links) if link.capacity > 0}
        self._rows = {k: row for row, k in enumerate(self.members)}
        self._capacity = [links[k].capacity for k in self.members]
        self._touching: list[list[int]] = [[] for _ in apart]
        for k, members in self.members.items():
            for i in members:
                self._touching[i].append(k)
        self._found: dict[frozenset[int], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def run(self) -> tuple[Path, ...]:
        price = dict.fromkeys(self.members, 0.0)
        shares = np.zeros(0)
        for _ in range(ROUNDS):
            before = len(self._found)
            for start, ends in enumerate(self._apart):
                if ends >> start:
                    self._add_from(start, ends, price)
            if len(self._found) == before:
                break
            if find_spec("scipy") is None:
                shares = np.zeros(len(self._found))
                break
            shares, price = self._solve()
        return tuple(self._whole(shares))

    def _add_from(self, start: int, ends: int, price: dict[int, float]) -> None:
        """Add the shortest paths from a unit to later units that it excludes (Dijkstra)."""
        distance, came = {start: 0.0}, dict[int, tuple[int, int]]()
        waiting, done, used = [(0.0, start)], set[int](), set[int]()
        arrived = 0
        while waiting and arrived < NEW_PATHS:
            so_far, here = heappop(waiting)
            if so_far >= SHORT:
                return
            if here in done:
                continue
            done.add(here)
            if here > start and ends >> here & 1:
                self._add(start, here, came)
                arrived += 1
            for k in self._touching[here]:
                if k in used:
                    continue
                used.add(k)
                after = so_far + price[k] + 1e-7  # on a tie, the one with fewer tensors
                for other in self.members[k]:
                    if after < distance.get(other, 2.0):
                        distance[other] = after
                        came[other] = here, k
                        heappush(waiting, (after, other))

    def _add(self, start: int, end: int, came: dict[int, tuple[int, int]]) -> None:
        units, links = [end], []
        while units[-1] != start:
            before, k = came[units[-1]]
            units.append(before)
            links.append(k)
        self._found.setdefault(frozenset(links), (tuple(units[::-1]), tuple(links[::-1])))

    def _solve(self) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", dict[int, float]]:
        """Return each path's share of the largest capacity, and the price of each link."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        paths = list(self._found.values())
        rows = [self._rows[k] for _, links in paths for k in links]
        columns = [column for column, (_, links) in enumerate(paths) for _ in links]
        shape = (len(self._capacity), len(paths))
        uses = coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()
        limits = np.array(self._capacity, dtype=np.float64) / max(self._capacity)
        solved = linprog(-np.ones(len(paths)), A_ub=uses, b_ub=limits, method="highs")
        if solved.x is None:
            return np.zeros(len(paths)), dict.fromkeys(self.members, 1.0)
        prices = -solved.ineqlin.marginals
        return solved.x, {k: float(prices[row]) for k, row in self._rows.items()}

    def _whole(self, shares: Iterable[float]) -> Iterable[Path]:
        """Yield the paths with whole bytes; the rounding remainder is charged to the first paths that have room."""
        room = dict(zip(self.members, self._capacity, strict=True))
        scale = max(self._capacity)
        charged = []
        for (units, links), share in zip(self._found.values(), shares, strict=False):
            amount = min(int(share * scale), *(room[k] for k in links))
            charged.append((units, links, amount))
            for k in links:
                room[k] -= amount
        for units, links, amount in sorted(charged, key=lambda entry: -entry[2]):
            more = min(room[k] for k in links)
            for k in links:
                room[k] -= more
            if amount + more:
                yield Path(units=units, links=links, amount=amount + more)

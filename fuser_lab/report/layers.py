"""A layered drawing of a directed acyclic graph, in time near linear in its size.

The four steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11(2), 1981: ranks, bends where an edge passes a rank, order within ranks by barycentres,
coordinates. Edges that leave the same port share their bends, so that a tensor with many readers is one trunk with
branches; coordinates are the least-squares fit to the neighbours under the order (isotonic regression by pooling
adjacent violators), swept down and up.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fuser_lab.report.geometry import Point

_ORDER_SWEEPS = 6
_PLACE_SWEEPS = 12
_BEND_WIDTH = 4.0
_FAR = 1e9
_NEAR = 1e-4  # places in a rank that a pixel is worth: breaks ties between ports of one item
_STEP = 1.0  # pixels aside that are worth a corner
_STRAIGHT = 8.0  # how much more a way without branches wants to be straight than one with branches


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A box to place; ``first`` and ``last`` pin it to the outermost ranks, ``low`` to the foot of its rank."""

    width: float
    height: float
    first: bool = False
    last: bool = False
    low: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A way from the bottom of one item to the top of another; both ends are offsets from the items' centres.

    Wires with the same ``trunk`` start at the same place and share their bends.
    """

    source: int
    target: int
    trunk: int
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What is to be drawn; hashable, so that what was placed once is not placed again."""

    items: tuple[Item, ...]
    wires: tuple[Wire, ...]
    gap: float
    rank_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Centres of items, and for each wire its corners from its source to its target, from (0, 0) on."""

    width: float
    height: float
    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


@lru_cache(maxsize=1024)
def place(graph: Graph) -> Placed:
    """Return where the items of ``graph`` go and how its wires run; no two items overlap.

    Raises
    ------
    ValueError
        If the wires form a cycle.
    """
    if not graph.items:
        return Placed(width=0.0, height=0.0, centres=(), routes=())
    net = _Net(graph)
    net.order()
    net.spread()
    net.straighten()
    return net.placed()


@dataclass(slots=True, kw_only=True)
class _Bend:
    """Where a trunk passes a rank, or (``item`` given) a box of the graph."""

    rank: int
    width: float
    item: int | None = None
    above: list[tuple[int, float, float, float]] = field(default_factory=list)  # (bend, own offset, its offset, weight)
    below: list[tuple[int, float, float, float]] = field(default_factory=list)
    at: int = 0
    x: float = 0.0


class _Net:
    """The graph with bends; positions are filled in step by step."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        ranks = _ranks(graph)
        self._bends = [
            _Bend(rank=rank, width=item.width, item=n)
            for n, (item, rank) in enumerate(zip(graph.items, ranks, strict=True))
        ]
        self._paths: list[list[int]] = []
        self._thread(ranks)
        self._ranks: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
        for n in self._walk():
            bend = self._bends[n]
            bend.at = len(self._ranks[bend.rank])
            self._ranks[bend.rank].append(n)

    def _thread(self, ranks: Sequence[int]) -> None:
        """Give every wire a bend on each rank that it passes, shared within a trunk."""
        bends: dict[tuple[int, int], int] = {}
        linked: set[tuple[int, int, float]] = set()
        for wire in self._graph.wires:
            path, offset = [wire.source], wire.leaves
            for rank in range(ranks[wire.source] + 1, ranks[wire.target]):
                bend = bends.get((wire.trunk, rank))
                if bend is None:
                    bend = bends[wire.trunk, rank] = len(self._bends)
                    self._bends.append(_Bend(rank=rank, width=_BEND_WIDTH))
                self._link(path[-1], bend, offset, 0.0, linked)
                path.append(bend)
                offset = 0.0
            self._link(path[-1], wire.target, offset, wire.enters, linked)
            path.append(wire.target)
            self._paths.append(path)

    def _link(self, upper: int, lower: int, leaves: float, enters: float, linked: set[tuple[int, int, float]]) -> None:
        if (upper, lower, enters) in linked:
            return
        linked.add((upper, lower, enters))
        self._bends[upper].below.append((lower, leaves, enters, 1.0))
        self._bends[lower].above.append((upper, enters, leaves, 1.0))

    def _walk(self) -> Iterable[int]:
        """Yield bends depth first from the top, so that what belongs together begins side by side."""
        seen: set[int] = set()
        roots = [n for n, bend in enumerate(self._bends) if not bend.above]
        stack = roots[::-1]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            yield n
            stack.extend(lower for lower, *_ in reversed(self._bends[n].below) if lower not in seen)

    def order(self) -> None:
        """Sweep down and up by barycentres; keep the order with the fewest crossings."""
        best, fewest = [list(rank) for rank in self._ranks], self._crossings()
        for sweep in range(_ORDER_SWEEPS):
            if not fewest:
                break
            down = sweep % 2 == 0
            for rank in self._ranks if down else self._ranks[::-1]:
                self._sort(rank, down=down)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(rank) for rank in self._ranks], crossings
        self._ranks = best
        for rank in best:
            self._number(rank)

    def _sort(self, rank: list[int], *, down: bool) -> None:
        def key(n: int) -> float:
            bend = self._bends[n]
            links = bend.above if down else bend.below
            if not links:
                return float(bend.at)
            return sum(self._bends[m].at + theirs * _NEAR for m, _, theirs, _ in links) / len(links)

        rank.sort(key=key)
        self._number(rank)

    def _number(self, rank: Sequence[int]) -> None:
        for at, n in enumerate(rank):
            self._bends[n].at = at

    def _crossings(self) -> int:
        total = 0
        for rank in self._ranks:
            ends: list[float] = []
            for n in rank:
                links = sorted((own, self._bends[m].at + theirs * _NEAR) for m, own, theirs, _ in self._bends[n].below)
                for _, ways in groupby(links, key=itemgetter(0)):
                    new = [end for _, end in ways]
                    total += sum(len(ends) - bisect_right(ends, end) for end in new)
                    for end in new:
                        insort(ends, end)
        return total

    def _stiffen(self) -> None:
        """Give more weight to ways without branches, and to trunks."""
        bends = self._bends
        for n, bend in enumerate(bends):
            for at, (m, own, theirs, _) in enumerate(bend.below):
                other = bends[m]
                alone = len(bend.below) == 1 and len(other.above) == 1
                if alone or (bend.item is None and other.item is None):
                    bend.below[at] = m, own, theirs, _STRAIGHT
                    back = other.above.index((n, theirs, own, 1.0))
                    other.above[back] = n, theirs, own, _STRAIGHT

    def spread(self) -> None:
        """Set x coordinates: each rank as close to its neighbours as its order allows."""
        self._stiffen()
        for rank in self._ranks:
            self._fit(rank, [(0.0, 1.0)] * len(rank))
        for sweep in range(_PLACE_SWEEPS):
            down = sweep % 2 == 0
            for rank in self._ranks if down else self._ranks[::-1]:
                self._fit(rank, [self._wish(n, above=down, below=not down) for n in rank])
        for rank in self._ranks:
            self._fit(rank, [self._wish(n, above=True, below=True) for n in rank])

    def _wish(self, n: int, *, above: bool, below: bool) -> tuple[float, float]:
        """Return where a bend wants to stand, times how much, and how much."""
        bend = self._bends[n]
        total = weights = 0.0
        for links in (bend.above if above else (), bend.below if below else ()):
            for m, own, theirs, weight in links:
                total += weight * (self._bends[m].x + theirs - own)
                weights += weight
        return (total, weights) if weights else (bend.x, 1.0)

    def _fit(self, rank: Sequence[int], wishes: Sequence[tuple[float, float]]) -> None:
        """Set the x of a rank to the least-squares fit of ``wishes`` that keeps order and gaps."""
        bends, gap = self._bends, self._graph.gap
        blocks: list[tuple[float, float, int]] = []  # (weighted sum of what is left of the wishes, weight, how many)
        offsets: list[float] = []
        offset = before = 0.0
        for n, (wished, weighs) in zip(rank, wishes, strict=True):
            if offsets:
                offset += (before + bends[n].width) / 2 + gap
            offsets.append(offset)
            before = bends[n].width
            total, weight, count = wished - offset * weighs, weighs, 1
            while blocks and blocks[-1][0] * weight >= total * blocks[-1][1]:
                more, weighed, many = blocks.pop()
                total, weight, count = total + more, weight + weighed, count + many
            blocks.append((total, weight, count))
        fitted = (total / weight for total, weight, count in blocks for _ in range(count))
        for n, x, offset in zip(rank, fitted, offsets, strict=True):
            bends[n].x = x + offset

    def straighten(self) -> None:
        """Move what belongs to one unbranched way into line, as far as the neighbours leave room."""
        seen: set[int] = set()
        for n in (n for rank in self._ranks for n in rank):
            if n not in seen:
                run = self._run(n, seen)
                if len(run) > 1:
                    self._align(run)

    def _run(self, n: int, seen: set[int]) -> list[tuple[int, float]]:
        """Return the bends of an unbranched way from ``n`` down, with where they stand when it is straight."""
        run, shift = [(n, 0.0)], 0.0
        seen.add(n)
        while True:
            ahead = [link for link in self._bends[n].below if link[3] > 1.0 and link[0] not in seen]
            if not ahead:
                return run
            n, own, theirs, _ = ahead[0]
            shift += own - theirs
            seen.add(n)
            run.append((n, shift))

    def _align(self, run: Sequence[tuple[int, float]]) -> None:
        stretch: list[tuple[int, float]] = []
        low, high = -_FAR, _FAR
        for n, shift in run:
            left, right = self._room(n)
            if stretch and (left - shift > high or right - shift < low):
                self._set(stretch, low, high)
                stretch, low, high = [], -_FAR, _FAR
            low, high = max(low, left - shift), min(high, right - shift)
            stretch.append((n, shift))
        self._set(stretch, low, high)

    def _set(self, stretch: Sequence[tuple[int, float]], low: float, high: float) -> None:
        middle = sum(self._bends[n].x - shift for n, shift in stretch) / len(stretch)
        at = min(max(middle, low), high)
        for n, shift in stretch:
            self._bends[n].x = at + shift

    def _room(self, n: int) -> tuple[float, float]:
        """Return the least and the greatest x that leave half a gap to the neighbours."""
        bend, rank, gap = self._bends[n], self._ranks[self._bends[n].rank], self._graph.gap / 2
        left, right = -_FAR, _FAR
        if bend.at:
            other = self._bends[rank[bend.at - 1]]
            left = min(bend.x, other.x + (other.width + bend.width) / 2 + gap)
        if bend.at + 1 < len(rank):
            other = self._bends[rank[bend.at + 1]]
            right = max(bend.x, other.x - (other.width + bend.width) / 2 - gap)
        return left, right

    def placed(self) -> Placed:
        """Return positions from (0, 0) on."""
        bends, items = self._bends, self._graph.items
        left = min(bend.x - bend.width / 2 for bend in bends)
        right = max(bend.x + bend.width / 2 for bend in bends)
        tops, heights, y = [], [], 0.0
        for rank in self._ranks:
            height = max((items[i].height for n in rank if (i := bends[n].item) is not None), default=0.0)
            tops.append(y)
            heights.append(height)
            y += height + self._graph.rank_gap
        centres = []
        for item, bend in zip(items, bends, strict=False):
            room = heights[bend.rank] - item.height if item.low else 0.0
            centres.append((bend.x - left, tops[bend.rank] + room + item.height / 2))
        routes = []
        for wire, path in zip(self._graph.wires, self._paths, strict=True):
            source, target = centres[wire.source], centres[wire.target]
            corners = [(source[0] + wire.leaves, source[1] + items[wire.source].height / 2)]
            end = target[0] + wire.enters, target[1] - items[wire.target].height / 2
            for above, n in pairwise(path):
                x, ahead = corners[-1][0], end[0] if n == wire.target else bends[n].x - left
                if abs(ahead - x) >= _STEP:
                    foot = tops[bends[above].rank] + heights[bends[above].rank]
                    corners += ((x, foot), (ahead, tops[bends[n].rank]))
            corners.append(end)
            routes.append(tuple(point for point, _ in groupby(corners)))
        return Placed(
            width=right - left, height=max(y - self._graph.rank_gap, 0.0), centres=tuple(centres), routes=tuple(routes),
        )


def _ranks(graph: Graph) -> list[int]:
    """Return the longest way from the top for each item; what nothing leads to stands just above its first reader."""
    count = len(graph.items)
    after: dict[int, list[int]] = defaultdict(list)
    waiting = [0] * count
    for wire in graph.wires:
        after[wire.source].append(wire.target)
        waiting[wire.target] += 1
    ready = [n for n in range(count) if not waiting[n]]
    sources = list(ready)
    ranks = [0] * count
    if any(item.first for item in graph.items):
        ranks = [0 if item.first else 1 for item in graph.items]
    for n in ready:
        for m in after[n]:
            ranks[m] = max(ranks[m], ranks[n] + 1)
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    if len(ready) < count:
        msg = f"only {len(ready)} of {count} items can be ranked: the wires form a cycle"
        raise ValueError(msg)
    for n in sources:
        if after[n] and not graph.items[n].first:
            ranks[n] = min(ranks[m] for m in after[n]) - 1
    lowest = max(ranks)
    if any(item.last for item in graph.items):
        inner = max((rank for item, rank in zip(graph.items, ranks, strict=True) if not item.last), default=-1)
        lowest = inner + 1
    return [lowest if item.last else rank for item, rank in zip(graph.items, ranks, strict=True)]

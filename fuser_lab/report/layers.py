"""A layered drawing of a directed acyclic graph, in time near linear in its size.

The four steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11(2), 1981: ranks, bends where an edge passes a rank, order within ranks by barycentres,
coordinates. Edges from the same port share their bends, so that a tensor with many readers is one trunk with branches;
coordinates are the least-squares fit to the neighbours under the order (isotonic regression by pooling adjacent
violators), swept down and up.

A drawing that is too tall breaks into bands side by side; a wire passes from one band to the next in a lane of the
gutter between them. An item with a previous position (``Item.stood``) stays there unless something new needs the room,
and so do the bends of a rank whose items stood side by side before.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Point = tuple[float, float]

_ORDER_SWEEPS = 6
_PLACE_SWEEPS = 12
_PLACE_SWEEPS_AGAIN = 4  # where most items stand already
_BEND_WIDTH = 4.0
_FAR = 1e9
_NEAR = 1e-4  # places in a rank that a pixel is worth: breaks ties between ports of one item
_STEP = 1.0  # pixels aside that are worth a corner
_STRAIGHT = 8.0  # how much more a way without branches wants to be straight than one with branches
_PINNED = 1e8  # how much more an item wants to stay than a new one wants to be near its neighbours
_DIGITS = 3  # of pixels: what is placed again where it stood is at exactly the same place
_ROUNDED = 2e-3  # pixels by which two rounded places may be closer
_LANE = 12.0  # between wires in a gutter
_SLACK = 170.0  # pixels of empty room that stay rather than move the items below


class Stand(NamedTuple):
    """An item's position in an earlier drawing: its x before bands were set side by side, its band, its rank's top.

    ``rank`` is the number that its rank had. With its x alone it keeps only its place among its neighbours.
    """

    x: float
    band: int | None = None
    top: float = 0.0
    rank: int | None = None


class Item(NamedTuple):
    """A box to place; ``first`` and ``last`` pin it to the outermost ranks, ``low`` to the bottom of its rank.

    ``stood`` is its position in the previous drawing.
    """

    width: float
    height: float
    first: bool = False
    last: bool = False
    low: bool = False
    stood: Stand | None = None


class Wire(NamedTuple):
    """A path from the bottom of one item to the top of another; both ends are offsets from the items' centres.

    Wires with the same ``trunk`` start at the same point and share their bends. The next drawing knows a bend by its
    trunk, which should be the same there.
    """

    source: int
    target: int
    trunk: Hashable
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The items and wires to draw; hashable, so that layouts can be cached."""

    items: tuple[Item, ...]
    wires: tuple[Wire, ...]
    gap: float
    rank_gap: float
    origins: tuple[float, ...] = ()  # shifts of the previous drawing's bands


Bends = Mapping[tuple[Hashable, int], float]  # x of bends, by trunk and by the number of their rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Centres of items, and for each wire its corners from its source to its target, from (0, 0) on.

    ``stands`` and ``origins`` let the next drawing keep positions.
    """

    width: float
    height: float
    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    stands: tuple[Stand, ...] = ()
    origins: tuple[float, ...] = ()


@lru_cache(maxsize=1024)
def place(graph: Graph, bands: int = 1) -> Placed:
    """Return the positions of the items of ``graph`` and the routes of its wires; no two items overlap.

    Raises
    ------
    ValueError
        If the wires form a cycle.
    """
    return solve(graph).placed(bands)


def solve(graph: Graph, bends: Bends | None = None) -> Net:
    """Return the order and the x of everything in ``graph``, from which it can be placed in any number of bands.

    ``bends`` are those of the previous drawing, in which the items stood.

    Raises
    ------
    ValueError
        If the wires form a cycle.
    """
    return _solved(graph) if bends is None else _in_order(Net(graph, bends))


@lru_cache(maxsize=256)
def _solved(graph: Graph) -> Net:
    return _in_order(Net(graph, {}))


def _in_order(net: Net) -> Net:
    net.order()
    net.spread()
    net.straighten()
    return net


class _Bend:
    """A trunk's point on a rank, or (``item`` given) a box of the graph."""

    __slots__ = ("above", "at", "below", "item", "rank", "trunk", "width", "x")

    def __init__(self, rank: int, width: float, item: int | None = None, trunk: Hashable = None) -> None:
        self.rank, self.width, self.item, self.trunk = rank, width, item, trunk
        self.above: list[tuple[int, float, float, float]] = []  # (bend, own offset, its offset, weight)
        self.below: list[tuple[int, float, float, float]] = []
        self.at, self.x = 0, 0.0


class Net:
    """The graph with bends; later steps fill in the positions."""

    def __init__(self, graph: Graph, bends: Bends) -> None:
        self._graph = graph
        self._has_stood = any(item.stood is not None for item in graph.items)
        ranks = _ranks(graph)
        self._bends = [
            _Bend(rank, item.width, n)
            for n, (item, rank) in enumerate(zip(graph.items, ranks, strict=True))
        ]
        self._paths: list[list[int]] = []
        self._thread(ranks)
        self._ranks: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        for n in range(len(self._bends)) if self._has_stood else self._walk():
            bend = self._bends[n]
            bend.at = len(self._ranks[bend.rank])
            self._ranks[bend.rank].append(n)
        self._stands = [item.stood for item in graph.items] + [None] * (len(self._bends) - len(graph.items))
        self._known_bands = self._bands_before() if self._has_stood else None
        if bends:
            self._stand_bends(bends)

    def _thread(self, ranks: Sequence[int]) -> None:
        """Give every wire a bend on each rank that it passes; a trunk's wires share bends."""
        bends: dict[tuple[Hashable, int], int] = {}
        linked: set[tuple[int, int, float]] = set()
        for source, target, trunk, leaves, enters in self._graph.wires:
            path, offset = [source], leaves
            for rank in range(ranks[source] + 1, ranks[target]):
                bend = bends.get((trunk, rank))
                if bend is None:
                    bend = bends[trunk, rank] = len(self._bends)
                    self._bends.append(_Bend(rank, _BEND_WIDTH, trunk=trunk))
                self._link(path[-1], bend, offset, 0.0, linked)
                path.append(bend)
                offset = 0.0
            self._link(path[-1], target, offset, enters, linked)
            path.append(target)
            self._paths.append(path)

    def _link(self, upper: int, lower: int, leaves: float, enters: float, linked: set[tuple[int, int, float]]) -> None:
        if (upper, lower, enters) in linked:
            return
        linked.add((upper, lower, enters))
        self._bends[upper].below.append((lower, leaves, enters, 1.0))
        self._bends[lower].above.append((upper, enters, leaves, 1.0))

    def _walk(self) -> Iterable[int]:
        """Yield bends depth first from the top, so that related items start side by side."""
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

    @property
    def bends(self) -> Bends:
        """The bends, for the next drawing."""
        return {(bend.trunk, bend.rank): bend.x for bend in self._bends if bend.item is None}

    def extents(self, most: int, least: int = 1) -> dict[int, tuple[float, float]]:
        """Return width and height of the drawing in ``least`` to ``most`` bands, or in as many as it can have."""
        depth = len(self._ranks)
        if not depth:
            return {1: (0.0, 0.0)}
        return {bands: self._extent(bands) for bands in range(min(least, depth), min(most, depth) + 1)}

    def _bands_before(self) -> list[int] | None:
        """Return the band that most of each rank was in before; what was in another band has lost its stand."""
        found, known = list[int](), False
        for rank in self._ranks:
            areas: dict[int, float] = defaultdict(float)
            for n in rank:
                stood = self._stands[n]
                if stood is not None and stood.band is not None:
                    item = self._graph.items[n]
                    areas[stood.band] += (item.width + 1) * (item.height + 1)
            known = known or bool(areas)
            last = found[-1] if found else 0
            most = max(areas, key=areas.__getitem__) if areas else last
            found.append(max(last, min(most, last + 1)) if found else 0)
            for n in rank:
                stood = self._stands[n]
                if stood is not None and stood.band not in {None, found[-1]}:
                    self._stands[n] = None
        return found if known else None

    def _stand_bends(self, known: Bends) -> None:
        """Leave bends where they were, in the ranks where items were that stand in one rank again."""
        count = len(self._graph.items)
        for rank in self._ranks:
            numbers = [s.rank for n in rank if (s := self._stands[n]) is not None and s.rank is not None]
            if not numbers:
                continue
            before = numbers[0] if numbers.count(numbers[0]) == len(numbers) else max(numbers, key=numbers.count)
            for n in rank:
                if n >= count and (x := known.get((self._bends[n].trunk, before))) is not None:
                    self._stands[n] = Stand(x)

    def _keep_order(self) -> None:
        """Order each rank by previous positions; new items go beside their neighbours in the graph."""
        bends = self._bends
        for n, bend in enumerate(bends):
            stood = self._stands[n]
            bend.x = _FAR if stood is None else stood.x
        for rank in self._ranks:
            for n in rank:
                if bends[n].x == _FAR:
                    near = [bends[m].x + theirs for m, _, theirs, _ in bends[n].above if bends[m].x != _FAR]
                    near = near or [bends[m].x + theirs for m, _, theirs, _ in bends[n].below if bends[m].x != _FAR]
                    bends[n].x = sum(near) / len(near) if near else 0.0
            rank.sort(key=lambda n: bends[n].x)
            self._number(rank)

    def order(self) -> None:
        """Sweep down and up by barycentres; keep the order with the fewest crossings."""
        if self._has_stood:
            self._keep_order()
            return
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
        """Give more weight to unbranched paths and to trunks, except where both ends stand."""
        bends, stands = self._bends, self._stands
        for n, bend in enumerate(bends):
            for at, (m, own, theirs, _) in enumerate(bend.below):
                if stands[n] is not None and stands[m] is not None:
                    continue
                other = bends[m]
                alone = len(bend.below) == 1 and len(other.above) == 1
                if alone or (bend.item is None and other.item is None):
                    bend.below[at] = m, own, theirs, _STRAIGHT
                    back = other.above.index((n, theirs, own, 1.0))
                    other.above[back] = n, theirs, own, _STRAIGHT

    def spread(self) -> None:
        """Set x coordinates: each rank is as close to its neighbours as its order allows."""
        self._stiffen()
        free = []
        for rank in self._ranks:
            stands = [self._stands[n] for n in rank]
            if None in stands:
                free.append(rank)
            elif self._stand_apart(rank):
                continue
            self._fit(rank, [(0.0, 1.0) if s is None else (_PINNED * s.x, _PINNED) for s in stands])
        for sweep in range(_PLACE_SWEEPS_AGAIN if self._has_stood else _PLACE_SWEEPS):
            down = sweep % 2 == 0
            for rank in free if down else free[::-1]:
                self._fit(rank, [self._wish(n, above=down, below=not down) for n in rank])
        for rank in free:
            self._fit(rank, [self._wish(n, above=True, below=True) for n in rank])

    def _stand_apart(self, rank: Sequence[int]) -> bool:
        """Whether everything in a rank can stand where it stood, which is its x after `_keep_order`."""
        bends, gap = self._bends, self._graph.gap / 2
        return all(
            bends[m].x - bends[n].x >= (bends[n].width + bends[m].width) / 2 + gap - _ROUNDED for n, m in pairwise(rank)
        )

    def _wish(self, n: int, *, above: bool, below: bool) -> tuple[float, float]:
        """Return where a bend wants to stand, times how much, and how much."""
        bend, stood = self._bends[n], self._stands[n]
        if stood is not None:
            return _PINNED * stood.x, _PINNED
        total = weights = 0.0
        for links in (bend.above if above else (), bend.below if below else ()):
            for m, own, theirs, weight in links:
                total += weight * (self._bends[m].x + theirs - own)
                weights += weight
        return (total, weights) if weights else (bend.x, 1.0)

    def _fit(self, rank: Sequence[int], wishes: Sequence[tuple[float, float]]) -> None:
        """Set the x of a rank to the least-squares fit of ``wishes`` that keeps order and gaps."""
        bends = self._bends
        gap = self._graph.gap / (2 if self._has_stood else 1)  # `straighten` may have moved them closer
        blocks: list[tuple[float, float, int]] = []  # (weighted sum of the remaining wishes, weight, count)
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
        """Align the bends of each unbranched path as far as the neighbours leave room."""
        seen: set[int] = set()
        for n in (n for rank in self._ranks for n in rank):
            if n not in seen and self._stands[n] is None:
                run = self._run(n, seen)
                if len(run) > 1:
                    self._align(run)
        for bend, stand in zip(self._bends, self._stands, strict=True):
            if stand is None:
                bend.x = round(bend.x, _DIGITS)

    def _run(self, n: int, seen: set[int]) -> list[tuple[int, float]]:
        """Return the bends of an unbranched path from ``n`` down, with their positions if it is straight."""
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
        aligned: list[tuple[int, float]] = []
        low, high = -_FAR, _FAR
        for n, shift in run:
            left, right = self._room(n)
            if aligned and (left - shift > high or right - shift < low):
                self._set(aligned, low, high)
                aligned, low, high = [], -_FAR, _FAR
            low, high = max(low, left - shift), min(high, right - shift)
            aligned.append((n, shift))
        self._set(aligned, low, high)

    def _set(self, aligned: Sequence[tuple[int, float]], low: float, high: float) -> None:
        if any(self._stands[n] is not None for n, _ in aligned):
            return
        middle = sum(self._bends[n].x - shift for n, shift in aligned) / len(aligned)
        at = min(max(middle, low), high)
        for n, shift in aligned:
            self._bends[n].x = at + shift

    def _room(self, n: int) -> tuple[float, float]:
        """Return the smallest and the largest x that leave half a gap to the neighbours."""
        bend, rank, gap = self._bends[n], self._ranks[self._bends[n].rank], self._graph.gap / 2
        left, right = -_FAR, _FAR
        if bend.at:
            other = self._bends[rank[bend.at - 1]]
            left = min(bend.x, other.x + (other.width + bend.width) / 2 + gap)
        if bend.at + 1 < len(rank):
            other = self._bends[rank[bend.at + 1]]
            right = max(bend.x, other.x - (other.width + bend.width) / 2 - gap)
        return left, right

    def _breaks(self, bands: int, heights: Sequence[float]) -> list[int]:
        """Return the band of each rank: as before where that is known, else bands of about one height."""
        if self._known_bands is not None:
            return [min(band, bands - 1) for band in self._known_bands]
        each = (sum(heights) + self._graph.rank_gap * len(heights)) / bands
        band, done, found = 0, 0.0, list[int]()
        for height in heights:
            band = max(band, min(int((done + height / 2) / each), band + 1, bands - 1)) if found else 0
            found.append(band)
            done += height + self._graph.rank_gap
        return found

    def _lanes(self, bands: Sequence[int]) -> list[dict[tuple[int, float], int]]:
        """Return for each gutter the lane of every path through it, by the bend and the point that it leaves."""
        lanes: list[dict[tuple[int, float], int]] = [{} for _ in range(bands[-1])]
        for wire, path in zip(self._graph.wires, self._paths, strict=True):
            for at, (above, below) in enumerate(pairwise(path)):
                gutter = bands[self._bends[above].rank]
                if gutter != bands[self._bends[below].rank]:
                    lanes[gutter].setdefault((above, 0.0 if at else wire.leaves), len(lanes[gutter]))
        return lanes

    @lru_cache(maxsize=16)  # noqa: B019 - as many as are tried for one drawing, and nets are cached themselves
    def _frame(self, bands: int) -> _Frame:
        graph, count = self._graph, len(self._graph.items)
        heights = [
            max((graph.items[i].height for n in rank if (i := self._bends[n].item) is not None), default=0.0)
            for rank in self._ranks
        ]
        band_of = self._breaks(bands, heights)
        lanes = self._lanes(band_of)
        head = max(map(len, lanes)) * _LANE + graph.gap if lanes else 0.0
        tops, y = list[float](), head
        for rank, height in enumerate(heights):
            if rank and band_of[rank] != band_of[rank - 1]:
                y = head
            stands = (self._stands[n] for n in self._ranks[rank] if n < count)
            before = min((s.top for s in stands if s is not None), default=y)
            y = before if y < before <= y + _SLACK else y
            tops.append(y)
            y += height + graph.rank_gap
        sides = [(_FAR, -_FAR)] * (band_of[-1] + 1)
        for bend in self._bends:
            left, right = sides[band_of[bend.rank]]
            sides[band_of[bend.rank]] = min(left, bend.x - bend.width / 2), max(right, bend.x + bend.width / 2)
        shifts, edges, x = list[float](), list[float](), 0.0
        for band, (left, right) in enumerate(sides):
            before = graph.origins[band] + left if band < len(graph.origins) else x
            x = before if x < before <= x + _SLACK else x
            shifts.append(round(x - left, _DIGITS))
            edges.append(x + right - left)
            x = edges[-1] + (len(lanes[band]) * _LANE + 2 * graph.gap if band < len(lanes) else 0.0)
        foot = max(top + height for top, height in zip(tops, heights, strict=True))
        return _Frame(
            heights=heights, bands=band_of, lanes=lanes, tops=tops, shifts=shifts, edges=edges, foot=foot, head=head,
        )

    def _extent(self, bands: int) -> tuple[float, float]:
        frame = self._frame(bands)
        return frame.edges[-1], frame.foot + frame.head

    def placed(self, bands: int) -> Placed:
        """Return positions from (0, 0) on."""
        if not self._bends:
            return Placed(width=0.0, height=0.0, centres=(), routes=())
        bends, items, frame = self._bends, self._graph.items, self._frame(bands)
        tops, heights = frame.tops, frame.heights
        across = [bend.x + frame.shifts[frame.bands[bend.rank]] for bend in bends]
        centres = []
        for n, (item, bend) in enumerate(zip(items, bends, strict=False)):
            room = heights[bend.rank] - item.height if item.low else 0.0
            centres.append((across[n], tops[bend.rank] + room + item.height / 2))
        routes = []
        for wire, path in zip(self._graph.wires, self._paths, strict=True):
            first, last, _, leaves, enters = wire
            source, target = centres[first], centres[last]
            corners = [(source[0] + leaves, source[1] + items[first].height / 2)]
            end = target[0] + enters, target[1] - items[last].height / 2
            for at, (above, n) in enumerate(pairwise(path)):
                x, ahead = corners[-1][0], end[0] if n == last else across[n]
                upper, rank = bends[above].rank, bends[n].rank
                band, start = frame.bands[upper], (x, tops[upper] + heights[upper])
                if band != frame.bands[rank]:
                    lane = frame.lanes[band][above, 0.0 if at else leaves]
                    below, aside = frame.foot + (lane + 1) * _LANE, frame.edges[band] + self._graph.gap + lane * _LANE
                    over = frame.head - self._graph.gap / 2 - (lane + 0.5) * _LANE
                    corners += (start, (x, below), (aside, below), (aside, over), (ahead, over), (ahead, tops[rank]))
                elif abs(ahead - x) >= _STEP:
                    corners += (start, (ahead, tops[rank]))
            corners.append(end)
            routes.append(tuple([a for a, b in pairwise(corners) if a != b] + [end]))
        return Placed(
            width=frame.edges[-1], height=frame.foot + frame.head, centres=tuple(centres), routes=tuple(routes),
            stands=tuple([
                Stand(bend.x, frame.bands[bend.rank], tops[bend.rank], bend.rank) for bend in bends[: len(items)]
            ]),
            origins=tuple(frame.shifts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Bands side by side: height, band and top of each rank; lanes, shift and right edge of each band.

    Wires that change bands run below ``foot`` and above ``head``.
    """

    heights: list[float]
    bands: list[int]
    lanes: list[dict[tuple[int, float], int]]
    tops: list[float]
    shifts: list[float]
    edges: list[float]
    foot: float
    head: float


def _ranks(graph: Graph) -> list[int]:
    """Return the longest way from the top for each item; what can follow its first reader stands just above it.

    That is what nothing leads to, or only what can follow it in turn and has no other reader.
    """
    count = len(graph.items)
    after: dict[int, list[int]] = defaultdict(list)
    waiting = [0] * count
    for wire in graph.wires:
        after[wire.source].append(wire.target)
        waiting[wire.target] += 1
    ready = [n for n in range(count) if not waiting[n]]
    follows = [not waiting[n] and not item.first for n, item in enumerate(graph.items)]
    above: dict[int, list[int]] = defaultdict(list)
    for wire in graph.wires:
        above[wire.target].append(wire.source)
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
    for n in ready:
        follows[n] = follows[n] or (
            bool(above[n]) and all(follows[m] and len(set(after[m])) == 1 for m in above[n])
        )
    for n in reversed(ready):
        if after[n] and follows[n]:
            ranks[n] = min(ranks[m] for m in after[n]) - 1
    lowest = max(ranks, default=0)
    if any(item.last for item in graph.items):
        inner = max((rank for item, rank in zip(graph.items, ranks, strict=True) if not item.last), default=-1)
        lowest = inner + 1
    return [lowest if item.last else rank for item, rank in zip(graph.items, ranks, strict=True)]

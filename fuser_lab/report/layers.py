"""A layered drawing of a directed acyclic graph, in time near linear in its size.

The four steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11(2), 1981: ranks, bends where an edge passes a rank, order within ranks by barycentres,
coordinates. Edges from the same port share their bends, so that a tensor with many readers is one trunk with branches;
coordinates are the least-squares fit to the neighbours under the order (isotonic regression by pooling adjacent
violators), swept down and up.

A chain that reads another input in each step would have a number of bends that is quadratic in its length. Hence their
number is limited, and where there would be more, the longest wires have none.

A drawing that is too tall breaks into bands side by side; a wire passes from one band to the next in a lane of the
gutter between them. An item with a previous position (``Item.stood``) stays there unless something new needs the room,
and so do the bends of a rank whose items stood side by side before.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
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
# Bends, and pieces of wires between them, of a drawing: either takes about a second of processor time, as measured with
# plans of 300 to 800 inputs.
_MOST_BENDS, _MOST_PIECES = 20_000, 200_000
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
    return _solution(graph) if bends is None else _in_order(Net(graph, bends))


@lru_cache(maxsize=256)
def _solution(graph: Graph) -> Net:
    return _in_order(Net(graph, {}))


def _in_order(net: Net) -> Net:
    net.order()
    net.spread()
    net.straighten()
    return net


Link = tuple[int, float, float, float]  # the bend at the other end, the own offset, its offset, a weight


class Net:
    """The graph with bends; later steps fill in the positions.

    Items come first, then the points at which trunks pass ranks; each has a number. Where items stood in an earlier
    drawing, only what does not stand there again is placed, so links are made for these and their neighbours alone.
    """

    def __init__(self, graph: Graph, bends: Bends) -> None:
        self._graph = graph
        self._has_stood = any(item[5] is not None for item in graph.items)
        self._rank = _ranks(graph)
        self._width = [item[0] for item in graph.items]
        self._trunks: list[Hashable] = []  # of the bends that are not items
        self._paths = self._threaded()
        count = len(self._rank)
        self._x, self._at = [0.0] * count, [0] * count
        self._stands = [item[5] for item in graph.items] + [None] * len(self._trunks)
        self._ranks: list[list[int]] = [[] for _ in range(max(self._rank, default=-1) + 1)]
        self._above: dict[int, list[Link]] = defaultdict(list)
        self._below: dict[int, list[Link]] = defaultdict(list)
        if self._has_stood:
            for n, rank in enumerate(self._rank):
                self._ranks[rank].append(n)
            self._known_bands = self._bands_before()
            self._stand_bends(bends)
            self._link(self._loose())
        else:
            self._known_bands = None
            self._link(None)
            for n in self._walk():
                beside = self._ranks[self._rank[n]]
                self._at[n] = len(beside)
                beside.append(n)

    def _threaded(self) -> list[tuple[int, ...]]:
        """Return for each wire its ends and between them a bend on each rank that it passes; trunks share bends.

        Where there would be too many bends, the longest wires have none.
        """
        ranks, widths, trunks = self._rank, self._width, self._trunks
        longest = self._longest_bent()
        bends: dict[tuple[Hashable, int], int] = {}
        paths: list[tuple[int, ...]] = []
        for source, target, trunk, _, _ in self._graph.wires:
            upper, lower = ranks[source] + 1, ranks[target]
            if upper == lower or lower - upper > longest:
                paths.append((source, target))
                continue
            path = [source]
            for rank in range(upper, lower):
                bend = bends.get((trunk, rank))
                if bend is None:
                    bend = bends[trunk, rank] = len(ranks)
                    ranks.append(rank)
                    widths.append(_BEND_WIDTH)
                    trunks.append(trunk)
                path.append(bend)
            paths.append((*path, target))
        return paths

    def _longest_bent(self) -> int:
        """Return how many ranks a wire with bends may pass, so that `_MOST_BENDS` and `_MOST_PIECES` are kept."""
        passed: dict[int, int] = defaultdict(int)  # ranks, by all wires of a length
        trunks: dict[Hashable, set[int]] = defaultdict(set)  # the lengths of their wires
        for source, target, trunk, _, _ in self._graph.wires:
            length = self._rank[target] - self._rank[source] - 1
            passed[length] += length
            trunks[trunk].add(length)
        new: dict[int, int] = defaultdict(int)  # bends that wires of a length add to those of shorter ones
        for lengths in trunks.values():
            for shorter, length in pairwise((0, *sorted(lengths))):
                new[length] += length - shorter
        longest = bends = pieces = 0
        for length in sorted(passed):
            bends, pieces = bends + new[length], pieces + passed[length]
            if bends > _MOST_BENDS or pieces > _MOST_PIECES:
                break
            longest = length
        return longest

    def _loose(self) -> set[int]:
        """Return what does not stand, and its neighbours."""
        new = {n for n, stood in enumerate(self._stands) if stood is None}
        loose = set(new)
        for path in self._paths:
            if not new.isdisjoint(path):
                for ends in pairwise(path):
                    if not new.isdisjoint(ends):
                        loose.update(ends)
        return loose

    def _link(self, loose: set[int] | None) -> None:
        """Link the ends of each piece of a wire, if one of them is among the loose ones (None: all are)."""
        linked: set[tuple[int, int, float]] = set()
        above, below = self._above, self._below
        for (_, target, _, leaves, enters), path in zip(self._graph.wires, self._paths, strict=True):
            if loose is not None and loose.isdisjoint(path):
                continue
            offset = leaves
            for upper, lower in pairwise(path):
                tip = enters if lower == target else 0.0
                is_linked = loose is None or upper in loose or lower in loose
                if is_linked and (upper, lower, tip) not in linked:
                    linked.add((upper, lower, tip))
                    below[upper].append((lower, offset, tip, 1.0))
                    above[lower].append((upper, tip, offset, 1.0))
                offset = 0.0

    def _walk(self) -> Iterable[int]:
        """Yield bends depth first from the top, so that related items start side by side."""
        seen: set[int] = set()
        roots = [n for n in range(len(self._rank)) if n not in self._above]
        stack = roots[::-1]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            yield n
            stack.extend(lower for lower, *_ in reversed(self._below.get(n, ())) if lower not in seen)

    @property
    def bends(self) -> Bends:
        """The bends, for the next drawing."""
        first = len(self._graph.items)
        return dict(zip(zip(self._trunks, self._rank[first:], strict=True), self._x[first:], strict=True))

    def extents(self, most: int, least: int = 1) -> dict[int, tuple[float, float]]:
        """Return width and height of the drawing in ``least`` to ``most`` bands, or in as many as it can have."""
        depth = len(self._ranks)
        if not depth:
            return {1: (0.0, 0.0)}
        return {bands: self._extent(bands) for bands in range(min(least, depth), min(most, depth) + 1)}

    def _bands_before(self) -> list[int] | None:
        """Return the band that most of each rank was in before; what was in another band has lost its stand."""
        bands_of_ranks, has_stood, last = list[int](), False, 0
        stands, items = self._stands, self._graph.items
        for rank in self._ranks:
            bands = {s[1] for n in rank if (s := stands[n]) is not None and s[1] is not None}
            most = last
            if len(bands) == 1:
                has_stood, (most,) = True, bands
            elif bands:
                has_stood, areas = True, dict[int, float]()
                for n in rank:
                    stood = stands[n]
                    if stood is not None and stood.band is not None:
                        area = (items[n].width + 1) * (items[n].height + 1)
                        areas[stood.band] = areas.get(stood.band, 0.0) + area
                most = max(areas, key=areas.__getitem__)
            last = max(last, min(most, last + 1)) if bands_of_ranks else 0
            bands_of_ranks.append(last)
            if bands - {last}:
                for n in rank:
                    stood = stands[n]
                    if stood is not None and stood.band not in {None, last}:
                        stands[n] = None
        return bands_of_ranks if has_stood else None

    def _stand_bends(self, bends: Bends) -> None:
        """Leave bends where they were, in the ranks where items were that stand in one rank again."""
        count, stands = len(self._graph.items), self._stands
        before: dict[int, int | None] = {}
        for n, trunk in enumerate(self._trunks, count) if bends else ():
            rank = self._rank[n]
            if rank not in before:
                numbers = [s.rank for m in self._ranks[rank] if (s := stands[m]) is not None and s.rank is not None]
                before[rank] = max(numbers, key=numbers.count, default=None)
            was = before[rank]
            if was is not None and (x := bends.get((trunk, was))) is not None:
                stands[n] = Stand(x)

    def _keep_order(self) -> None:
        """Order each rank by previous positions; new items go beside their neighbours in the graph."""
        xs = self._x
        for n, stood in enumerate(self._stands):
            xs[n] = _FAR if stood is None else stood[0]
        for rank in self._ranks:
            for n in rank:
                if xs[n] == _FAR:
                    near = [xs[m] + theirs for m, _, theirs, _ in self._above.get(n, ()) if xs[m] != _FAR]
                    near = near or [xs[m] + theirs for m, _, theirs, _ in self._below.get(n, ()) if xs[m] != _FAR]
                    xs[n] = sum(near) / len(near) if near else 0.0
            if len(rank) > 1:
                rank.sort(key=xs.__getitem__)
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
        ends, ats = self._above if down else self._below, self._at

        def key(n: int) -> float:
            links = ends.get(n)
            if not links:
                return float(ats[n])
            return sum([ats[m] + theirs * _NEAR for m, _, theirs, _ in links]) / len(links)

        rank.sort(key=key)
        self._number(rank)

    def _number(self, rank: Sequence[int]) -> None:
        for at, n in enumerate(rank):
            self._at[n] = at

    def _crossings(self) -> int:
        total, ats = 0, self._at
        for rank in self._ranks:
            ends: list[float] = []
            for n in rank:
                links = sorted([(offset, ats[m] + theirs * _NEAR) for m, offset, theirs, _ in self._below.get(n, ())])
                for _, ways in groupby(links, key=itemgetter(0)):
                    new = [end for _, end in ways]
                    total += sum([len(ends) - bisect_right(ends, end) for end in new])
                    for end in new:
                        insort(ends, end)
        return total

    def _stiffen(self) -> None:
        """Give more weight to unbranched paths and to trunks, except where both ends stand."""
        stands, count = self._stands, len(self._graph.items)
        for n, below in self._below.items():
            for at, (m, offset, theirs, _) in enumerate(below):
                if stands[n] is not None and stands[m] is not None:
                    continue
                above = self._above[m]
                alone = len(below) == 1 and len(above) == 1
                if alone or (n >= count and m >= count):
                    below[at] = m, offset, theirs, _STRAIGHT
                    above[above.index((n, theirs, offset, 1.0))] = n, theirs, offset, _STRAIGHT

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
        xs, widths, gap = self._x, self._width, self._graph.gap / 2
        return all(xs[m] - xs[n] >= (widths[n] + widths[m]) / 2 + gap - _ROUNDED for n, m in pairwise(rank))

    def _wish(self, n: int, *, above: bool, below: bool) -> tuple[float, float]:
        """Return where a bend wants to stand, times how much, and how much."""
        xs, stood = self._x, self._stands[n]
        if stood is not None:
            return _PINNED * stood.x, _PINNED
        total = weights = 0.0
        for links in (self._above.get(n, ()) if above else (), self._below.get(n, ()) if below else ()):
            for m, offset, theirs, weight in links:
                total += weight * (xs[m] + theirs - offset)
                weights += weight
        return (total, weights) if weights else (xs[n], 1.0)

    def _fit(self, rank: Sequence[int], wishes: Sequence[tuple[float, float]]) -> None:
        """Set the x of a rank to the least-squares fit of ``wishes`` that keeps order and gaps."""
        widths = self._width
        gap = self._graph.gap / (2 if self._has_stood else 1)  # `straighten` may have moved them closer
        blocks: list[tuple[float, float, int]] = []  # (weighted sum of the remaining wishes, weight, count)
        offsets: list[float] = []
        offset = before = 0.0
        for n, (wished, weighs) in zip(rank, wishes, strict=True):
            if offsets:
                offset += (before + widths[n]) / 2 + gap
            offsets.append(offset)
            before = widths[n]
            total, weight, count = wished - offset * weighs, weighs, 1
            while blocks and blocks[-1][0] * weight >= total * blocks[-1][1]:
                more, weighed, many = blocks.pop()
                total, weight, count = total + more, weight + weighed, count + many
            blocks.append((total, weight, count))
        fitted = (total / weight for total, weight, count in blocks for _ in range(count))
        for n, x, offset in zip(rank, fitted, offsets, strict=True):
            self._x[n] = x + offset

    def straighten(self) -> None:
        """Align the bends of each unbranched path as far as the neighbours leave room."""
        seen: set[int] = set()
        loose = [n for rank in self._ranks for n in rank if self._stands[n] is None]
        for n in loose:
            if n not in seen:
                run = self._run(n, seen)
                if len(run) > 1:
                    self._align(run)
        for n in loose:
            self._x[n] = round(self._x[n], _DIGITS)

    def _run(self, n: int, seen: set[int]) -> list[tuple[int, float]]:
        """Return the bends of an unbranched path from ``n`` down, with their positions if it is straight."""
        run, shift = [(n, 0.0)], 0.0
        seen.add(n)
        while True:
            ahead = [link for link in self._below.get(n, ()) if link[3] > 1.0 and link[0] not in seen]
            if not ahead:
                return run
            n, offset, theirs, _ = ahead[0]
            shift += offset - theirs
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
        middle = sum(self._x[n] - shift for n, shift in aligned) / len(aligned)
        at = min(max(middle, low), high)
        for n, shift in aligned:
            self._x[n] = at + shift

    def _room(self, n: int) -> tuple[float, float]:
        """Return the smallest and the largest x that leave half a gap to the neighbours."""
        xs, widths = self._x, self._width
        rank, at, gap = self._ranks[self._rank[n]], self._at[n], self._graph.gap / 2
        left, right = -_FAR, _FAR
        if at:
            other = rank[at - 1]
            left = min(xs[n], xs[other] + (widths[other] + widths[n]) / 2 + gap)
        if at + 1 < len(rank):
            other = rank[at + 1]
            right = max(xs[n], xs[other] - (widths[other] + widths[n]) / 2 - gap)
        return left, right

    def _breaks(self, bands: int, heights: Sequence[float]) -> list[int]:
        """Return the band of each rank: as before where that is known, else bands of about one height."""
        if self._known_bands is not None:
            return [min(band, bands - 1) for band in self._known_bands]
        each = (sum(heights) + self._graph.rank_gap * len(heights)) / bands
        band, done, bands_of_ranks = 0, 0.0, list[int]()
        for height in heights:
            band = max(band, min(int((done + height / 2) / each), band + 1, bands - 1)) if bands_of_ranks else 0
            bands_of_ranks.append(band)
            done += height + self._graph.rank_gap
        return bands_of_ranks

    def _lanes(self, bands: Sequence[int]) -> list[dict[tuple[int, float], int]]:
        """Return for each gutter the lane of every path through it, by the bend and the point that it leaves."""
        lanes: list[dict[tuple[int, float], int]] = [{} for _ in range(bands[-1])]
        ranks = self._rank
        at_band = [bands[rank] for rank in ranks]
        for wire, path in zip(self._graph.wires, self._paths, strict=True) if lanes else ():
            if at_band[path[0]] == at_band[path[-1]]:
                continue
            for at, (above, below) in enumerate(pairwise(path)):
                gutter = at_band[above]
                if gutter != at_band[below]:
                    lanes[gutter].setdefault((above, 0.0 if at else wire.leaves), len(lanes[gutter]))
        return lanes

    @cached_property
    def _heights(self) -> list[float]:
        """The height of each rank."""
        heights = [0.0] * len(self._ranks)
        for item, rank in zip(self._graph.items, self._rank, strict=False):
            heights[rank] = max(heights[rank], item[1])
        return heights

    @cached_property
    def _sides(self) -> list[tuple[float, float]]:
        """How far each rank reaches to the left and to the right."""
        xs, widths = self._x, self._width  # the outermost bends of a rank reach farthest: no two overlap
        return [
            (xs[rank[0]] - widths[rank[0]] / 2, xs[rank[-1]] + widths[rank[-1]] / 2) if rank else (_FAR, -_FAR)
            for rank in self._ranks
        ]

    @cached_property
    def _tops(self) -> list[float]:
        """The highest place at which something of each rank stood, or where nothing did."""
        tops = [_FAR] * len(self._ranks)
        for _, rank, stood in zip(self._graph.items, self._rank, self._stands, strict=False):
            if stood is not None and stood[2] < tops[rank]:
                tops[rank] = stood[2]
        return tops

    @lru_cache(maxsize=16)  # noqa: B019 - as many as are tried for one drawing, and nets are cached themselves
    def _frame(self, bands: int) -> _Frame:
        graph, heights = self._graph, self._heights
        band_of = self._breaks(bands, heights)
        lanes = self._lanes(band_of)
        head = max(map(len, lanes)) * _LANE + graph.gap if lanes else 0.0
        tops, y, last = list[float](), head, 0
        for height, before, band in zip(heights, self._tops, band_of, strict=True):
            if band != last:
                y, last = head, band
            if y < before <= y + _SLACK:
                y = before
            tops.append(y)
            y += height + graph.rank_gap
        sides = [(_FAR, -_FAR)] * (band_of[-1] + 1)
        for band, reach in zip(band_of, self._sides, strict=True):
            left, right = sides[band]
            sides[band] = min(left, reach[0]), max(right, reach[1])
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
        if not self._rank:
            return Placed(width=0.0, height=0.0, centres=(), routes=())
        ranks, items, frame = self._rank, self._graph.items, self._frame(bands)
        tops, band_of = frame.tops, frame.bands
        feet = [top + height for top, height in zip(tops, frame.heights, strict=True)]
        across = [x + frame.shifts[band_of[rank]] for x, rank in zip(self._x, ranks, strict=True)]
        centres = [
            (x, tops[rank] + (frame.heights[rank] - item[1] if item[4] else 0.0) + item[1] / 2)
            for item, x, rank in zip(items, across, ranks, strict=False)
        ]
        lows = [centre[1] + item[1] / 2 for item, centre in zip(items, centres, strict=True)]
        highs = [centre[1] - item[1] / 2 for item, centre in zip(items, centres, strict=True)]
        routes: list[tuple[Point, ...]] = []
        for (first, last, _, leaves, enters), path in zip(self._graph.wires, self._paths, strict=True):
            x, y = start = across[first] + leaves, lows[first]
            ahead, below = end = across[last] + enters, highs[last]
            upper, lower = ranks[first], ranks[last]
            if len(path) > 2 or band_of[upper] != band_of[lower]:
                routes.append(self._route(frame, across, path, leaves, (start, end)))
            elif -_STEP < ahead - x < _STEP:
                routes.append((start, end) if start != end else (end,))
            else:
                foot, top = feet[upper], tops[lower]
                turn = ((x, foot), (ahead, top)) if below != top else ((x, foot),)
                routes.append((start, *turn, end) if y != foot else (*turn, end))
        return Placed(
            width=frame.edges[-1], height=frame.foot + frame.head, centres=tuple(centres), routes=tuple(routes),
            stands=tuple([
                Stand(x, band_of[rank], tops[rank], rank) for _, x, rank in zip(items, self._x, ranks, strict=False)
            ]),
            origins=tuple(frame.shifts),
        )

    def _route(
        self, frame: _Frame, across: Sequence[float], path: Sequence[int], leaves: float, ends: tuple[Point, Point],
    ) -> tuple[Point, ...]:
        """Return the corners of a wire that passes ranks, or changes bands."""
        ranks, tops, gap = self._rank, frame.tops, self._graph.gap
        start, end = ends
        corners = [start]
        for at, (above, n) in enumerate(pairwise(path)):
            x, ahead = corners[-1][0], end[0] if n == path[-1] else across[n]
            upper, rank = ranks[above], ranks[n]
            band, foot = frame.bands[upper], tops[upper] + frame.heights[upper]
            if band != frame.bands[rank]:
                lane = frame.lanes[band][above, 0.0 if at else leaves]
                below, aside = frame.foot + (lane + 1) * _LANE, frame.edges[band] + gap + lane * _LANE
                over = frame.head - gap / 2 - (lane + 0.5) * _LANE
                corners += (
                    (x, foot), (x, below), (aside, below), (aside, over), (ahead, over), (ahead, tops[rank]),
                )
            elif abs(ahead - x) >= _STEP:
                corners += ((x, foot), (ahead, tops[rank]))
        return tuple([a for a, b in pairwise((*corners, end)) if a != b] + [end])


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
    items = graph.items
    after: list[list[int]] = [[] for _ in items]
    above: list[list[int]] = [[] for _ in items]
    for source, target, _, _, _ in graph.wires:
        after[source].append(target)
        above[target].append(source)
    waiting = list(map(len, above))
    ready = [n for n, many in enumerate(waiting) if not many]
    has_first = any(item.first for item in items)
    ranks = [int(has_first and not item.first) for item in items]
    for n in ready:
        below = ranks[n] + 1
        for m in after[n]:
            ranks[m] = max(ranks[m], below)
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    if len(ready) < len(items):
        msg = f"only {len(ready)} of {len(items)} items can be ranked: the wires form a cycle"
        raise ValueError(msg)
    follows = [not sources and not item.first for sources, item in zip(above, items, strict=True)]
    for n in ready:
        if not follows[n] and above[n]:
            follows[n] = all(follows[m] and len(set(after[m])) == 1 for m in above[n])
    for n in reversed(ready):
        if follows[n] and after[n]:
            ranks[n] = min([ranks[m] for m in after[n]]) - 1
    if any(item.last for item in items):
        lowest = 1 + max([rank for item, rank in zip(items, ranks, strict=True) if not item.last], default=-1)
        return [lowest if item.last else rank for item, rank in zip(items, ranks, strict=True)]
    return ranks

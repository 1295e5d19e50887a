"""A layered drawing of a directed acyclic graph, in which every wire runs down, in time near linear in its size.

The four steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11(2), 1981: ranks (`fuser_lab.report.ranks`), bends where an edge passes a rank, order
within ranks (`fuser_lab.report.order`), and coordinates (`fuser_lab.report.spread`). Edges from the same port share
their bends, so that a tensor with many readers is one trunk with branches.

A chain that reads another input in each step would have a number of bends that is quadratic in its length. Hence their
number is limited, and where there would be more, the longest wires have none.

A graph with a frame has a box around its items, with what leads into it and out of it around the box: above and below
it, or left and right beside it, at the height of the item that an annex belongs to.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter

from fuser_lab.report import order, ranks, spread
from fuser_lab.report.wiring import Frame, Graph, Item, Point, Wire

__all__ = ["Frame", "Graph", "Item", "Net", "Placed", "Point", "Wire", "place"]

_BEND_WIDTH = 4.0  # pixels that a wire occupies in a layer that it passes
# Bends, and pieces of wires between them, of a drawing: either takes about a second of processor time, as measured with
# plans of 300 to 800 inputs.
_MOST_BENDS, _MOST_PIECES = 20_000, 200_000
_MOST_PARTS = 400  # of all items together
_ENTRANCES = 12.0  # pixels between the tips of arrows into one item
_ATTACHED = 2  # passes over the ends of wires; each depends on the other end
_MOST_TURNED = 400  # items and bends up to which the ends of ranks are exchanged: each exchange counts all crossings
_CORNER = 24.0  # pixels from the side of an annex, which is round, to its wires
_STEP = 1.0  # pixels aside that are worth a corner
_CROSSING = 8.0  # how much more a tensor from or for another frame wants to be straight than one of an annex


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Centres of items, and for each wire its corners from its source to its target, from (0, 0) on.

    ``frame`` has the corner and the size of the frame.
    """

    width: float
    height: float
    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    frame: tuple[Point, Point] | None = None


@lru_cache(maxsize=1024)
def place(graph: Graph) -> Placed:
    """Return the positions of the items of ``graph`` and the routes of its wires; no two items overlap.

    Raises
    ------
    ValueError
        If the wires form a cycle.
    """
    if not graph.items:
        return Placed(width=0.0, height=0.0, centres=(), routes=())
    net = Net(graph)
    if net.is_torn:
        net = Net(replace(graph, pitch=None))
    return net.place()


class Net:
    """The graph with its bends: items come first, then the points at which trunks pass ranks; each has a number.

    ``rows`` are the numbers of each rank from left to right. An annex beside the frame is in no row.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        spans = self._spans()
        self._ranked = ranks.rank_items(graph, spans)
        self.rank = list(self._ranked.of)
        self._beside = self._ranked.beside
        self._width = [item.width for item in graph.items]
        self._parts = self._divide(spans)
        self._paths = self._bends()
        self._exits = [wire.leaves for wire in graph.wires]
        self._tips = [wire.enters or 0.0 for wire in graph.wires]
        links = self._links()
        members = [n for n in range(len(self.rank)) if n not in self._beside]
        hints = [item.x for item in graph.items]
        self.rows = order.order_ranks(members, self.rank, links, hints, self._ranked.count)
        self.is_torn = graph.pitch is not None and order.is_torn(self.rows, links)
        if not self.is_torn:
            self._at = {n: at for row in self.rows for at, n in enumerate(row)}
            self._on_left, crossed = self._sides(links)
            if crossed and len(members) <= _MOST_TURNED:
                self._turn_ends(links, crossed)
            self._leave_labels()
            self._spread_tips()
            self._x = spread.spread(self.rows, self._width, self._links(), graph.gap, self._parts)

    def _spans(self) -> list[int]:
        """Return how many ranks each item takes."""
        graph = self._graph
        if graph.pitch is None:
            return [1] * len(graph.items)
        pitch = max(graph.pitch, sum(item.height for item in graph.items) / _MOST_PARTS)
        return [max(math.ceil((item.height + graph.rank_gap) / pitch), 1) for item in graph.items]

    def _divide(self, spans: Sequence[int]) -> list[range]:
        """Return the numbers of the parts of each item in the ranks below its first one."""
        parts = []
        for n, span in enumerate(spans):
            first = len(self.rank)
            self.rank += range(self.rank[n] + 1, self.rank[n] + span)
            self._width += [self._width[n]] * (span - 1)
            parts.append(range(first, len(self.rank)))
        return parts

    def _bends(self) -> list[tuple[int, ...]]:
        """Return for each wire its ends and between them a bend on each rank that it passes; trunks share bends."""
        rank, longest = self.rank, self._longest_bent()
        bends: dict[tuple[Hashable, int], int] = {}
        paths: list[tuple[int, ...]] = []
        for source, target, trunk, _, _ in self._graph.wires:
            last = self._last(source)
            upper, lower = rank[last] + 1, rank[target]
            path = [last]
            for at in range(upper, lower) if lower - upper <= longest else ():
                bend = bends.get((trunk, at))
                if bend is None:
                    bend = bends[trunk, at] = len(rank)
                    rank.append(at)
                    self._width.append(_BEND_WIDTH)
                path.append(bend)
            paths.append((*path, target))
        return paths

    def _last(self, item: int) -> int:
        """Return the lowest part of an item."""
        return self._parts[item][-1] if self._parts[item] else item

    def _longest_bent(self) -> int:
        """Return how many ranks a wire with bends may pass, so that `_MOST_BENDS` and `_MOST_PIECES` are kept."""
        passed: dict[int, int] = defaultdict(int)  # ranks, by all wires of a length
        trunks: dict[Hashable, set[int]] = defaultdict(set)  # the lengths of their wires
        for source, target, trunk, _, _ in self._graph.wires:
            length = self.rank[target] - self.rank[self._last(source)] - 1
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

    def _links(self) -> order.Links:
        """Return the pieces of wires between items and bends of the rows."""
        links, beside = order.Links(len(self.rank)), self._beside
        items = self._graph.items
        linked: set[tuple[int, int, float]] = set()
        for wire, leaves, enters, path in zip(self._graph.wires, self._exits, self._tips, self._paths, strict=True):
            target, offset = wire.target, leaves
            is_crossing = self._is_crossing(wire) or items[wire.source].first or items[target].last
            weight = _CROSSING if is_crossing else 1.0
            for upper, lower in pairwise(path):
                tip = enters if lower == target else 0.0
                if (upper, lower, tip) not in linked and upper not in beside and lower not in beside:
                    linked.add((upper, lower, tip))
                    links.add(upper, lower, offset, tip, weight)
                offset = 0.0
        for n, parts in enumerate(self._parts):
            for upper, lower in pairwise((n, *parts)):
                links.add(upper, lower, 0.0, 0.0, order.RIGID)
        return links

    def _leave_labels(self) -> None:
        """Set where wires leave the labels beside them: towards the middle of their rank."""
        for n, wire in enumerate(self._graph.wires):
            item = self._graph.items[wire.source]
            if item.aside:
                is_left = self._at[wire.source] < len(self.rows[self.rank[wire.source]]) // 2
                self._exits[n] = (1 if is_left else -1) * (item.width - _BEND_WIDTH) / 2

    def _turn_ends(self, links: order.Links, crossed: int) -> None:
        """Move items that only annexes feed to the other end of their rank where fewer wires then cross."""
        fed = {path[1] for path in self._paths if path[0] in self._beside}
        before = order.crossings(self.rows, links) + crossed
        for row in self.rows:
            for end in (0, -1) if len(row) > 1 else ():
                n = row[end]
                if not before or n not in fed or links.above[n]:
                    continue
                earlier, sides = list(row), self._on_left
                row.remove(n)
                row.insert(0 if end else len(row), n)
                self._at.update((m, at) for at, m in enumerate(row))
                self._on_left, crossed = self._sides(links)
                after = order.crossings(self.rows, links) + crossed
                if after < before:
                    before = after
                    continue
                row[:], self._on_left = earlier, sides
                self._at.update((m, at) for at, m in enumerate(row))

    def _sides(self, links: order.Links) -> tuple[dict[int, bool], int]:
        """Return for each annex beside the frame whether it is on the left, where its wire crosses less.

        The number is that of the crossings, among them those of wires to annexes with wires from annexes.
        """
        at, sides, total = self._at, dict[int, bool](), 0
        taken: dict[tuple[int, bool], int] = defaultdict(int)
        passing: dict[tuple[int, str, bool], int] = defaultdict(int)  # wires of annexes, by the space below a rank
        for wire, path in zip(self._graph.wires, self._paths, strict=True):
            for n, near in ((wire.source, path[1]), (wire.target, path[-2])):
                if n in self._beside and near in at and n not in sides:
                    row = self.rows[self.rank[near]]
                    ends = links.above if self._beside[n] == "source" else links.below
                    crossed = [len(ends[m]) + 1 for m in row]  # to pass an item is as bad as a crossing
                    here, kind = self.rank[n], self._beside[n]
                    space, other = (here, "target") if kind == "source" else (here - 1, "source")
                    left = sum(crossed[: at[near]]) + 2 * taken[here, True] + passing[space, other, True]
                    right = sum(crossed[at[near] + 1 :]) + 2 * taken[here, False] + passing[space, other, False]
                    sides[n] = left <= right
                    passed = row[: at[near]] if sides[n] else row[at[near] + 1 :]
                    total += sum(len(ends[m]) for m in passed) + passing[space, other, sides[n]]
                    taken[here, sides[n]] += 1
                    passing[space, kind, sides[n]] += 1
        return sides, total

    def _spread_tips(self) -> None:
        """Set the offsets of the tips of wires into the same item that have none."""
        entering: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for n, (wire, path) in enumerate(zip(self._graph.wires, self._paths, strict=True)):
            if wire.enters is None:
                last = path[-2]
                outside = -1.0 if self._on_left.get(last) else math.inf
                entering[wire.target].append((self._at.get(last, outside), n))
        for target, tips in entering.items():
            step = min(_ENTRANCES, self._width[target] / (len(tips) + 1))
            for place, (_, n) in enumerate(sorted(tips)):
                self._tips[n] = (place - (len(tips) - 1) / 2) * step

    def _attach(self) -> None:
        """Move the ends of wires along their items to where the wires are short; their order and gaps stay."""
        ends: dict[tuple[int, bool], dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
        for n, wire in enumerate(self._graph.wires):
            if self._graph.items[wire.source].corner is not None:
                ends[wire.source, False][wire.trunk].append(n)
            if wire.enters is None:
                ends[wire.target, True][n].append(n)
        for _ in range(_ATTACHED):
            for (item, is_top), groups in ends.items():
                self._attach_to(item, list(groups.values()), is_top=is_top)

    def _attach_to(self, item: int, groups: Sequence[Sequence[int]], *, is_top: bool) -> None:
        """Set the offsets of the ends of wires at one side of an item; the wires of a group have one end."""
        offsets, paths = (self._tips if is_top else self._exits), self._paths
        room = max(self._width[item] / 2 - (self._graph.items[item].corner or 0.0), 0.0)
        step = min(_ENTRANCES, 2 * room / max(len(groups) - 1, 1))
        wishes = []
        for group in groups:
            aims = sorted(self._aim(n, paths[n], is_top=is_top) - self._x[item] for n in group)
            wishes.append((statistics.median(aims), group))
        wishes.sort(key=itemgetter(0))
        placed = _apart([wish for wish, _ in wishes], step, room)
        for offset, (_, group) in zip(placed, wishes, strict=True):
            for n in group:
                offsets[n] = offset

    def _aim(self, n: int, path: Sequence[int], *, is_top: bool) -> float:
        """Return the x of the neighbour of an end of a wire."""
        wire, near = self._graph.wires[n], path[-2] if is_top else path[1]
        if is_top:
            return self._x[near] + (self._exits[n] if near == path[0] else 0.0)
        return self._x[near] + (self._tips[n] if near == wire.target else 0.0)

    def _sides_of(self, frame: Frame) -> tuple[float, float]:
        """Return the left and the right side of the frame, and set the x of what is beside it."""
        xs, widths, gap = self._x, self._width, self._graph.gap
        rows = [row for row in self.rows[1:-1] if row]
        left = min([xs[row[0]] - widths[row[0]] / 2 for row in rows], default=0.0)
        right = max([xs[row[-1]] + widths[row[-1]] / 2 for row in rows], default=left)
        left, right = left - frame.padding, right + frame.padding
        left = min(left, self._beside_header(frame) - frame.header[0] - 2 * frame.padding)
        near: dict[int, float] = {}
        for wire, path in zip(self._graph.wires, self._paths, strict=True):
            near |= {n: xs[m] for n, m in ((wire.source, path[1]), (wire.target, path[-2])) if n in self._beside}
        ends: dict[tuple[int, bool], float] = {}
        # On both sides, annexes of a rank are in the order of what they are linked to: their wires do not cross.
        inner: dict[int, float] = {}  # where the wires of an annex meet it: near the frame
        for n in sorted(near, key=lambda n: -near[n] if self._on_left[n] else near[n]):
            away = -1 if self._on_left[n] else 1
            side = ends.get((self.rank[n], self._on_left[n]), left if self._on_left[n] else right)
            xs[n] = side + away * (gap + widths[n] / 2)
            ends[self.rank[n], self._on_left[n]] = side + away * (gap + widths[n])
            inner[n] = -away * max(widths[n] / 2 - _CORNER, 0.0)
        for n, wire in enumerate(self._graph.wires):
            self._exits[n] = inner.get(wire.source, self._exits[n])
            self._tips[n] = inner.get(wire.target, self._tips[n])
        return left, right

    def _beside_header(self, frame: Frame) -> float:
        """Return the left side of the items, and of the wires into the frame, that are beside its header."""
        items, wires, xs = self._graph.items, self._graph.wires, self._x
        lefts = [xs[wire.source] + self._exits[n] for n, wire in enumerate(wires) if items[wire.source].first]
        y = frame.rim
        for row in self.rows[1:-1]:
            if row and y < frame.header[1] + frame.rim:
                lefts.append(xs[row[0]] - self._width[row[0]] / 2)
            y += max([items[n].height for n in row if n < len(items)], default=0.0) + self._graph.rank_gap
        return min(lefts, default=0.0)

    def _slants(self) -> list[list[int]]:
        """Return the wires that run aside below each rank."""
        slants: list[list[int]] = [[] for _ in range(self._ranked.count)]
        for n, (wire, path) in enumerate(zip(self._graph.wires, self._paths, strict=True)):
            x = self._x[path[0]] + self._exits[n]
            for above, below in pairwise(path):
                ahead = self._x[below] + (self._tips[n] if below == wire.target else 0.0)
                if abs(ahead - x) >= _STEP:
                    slants[self.rank[above]].append(n)
                x = ahead
        return slants

    def _gaps(self, slants: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return the space below each rank in which wires run aside, and the space for labels below that."""
        graph, rank = self._graph, self.rank
        gaps = [(graph.rank_gap, 0.0)] * self._ranked.count
        if graph.near is None:
            return gaps
        near, said = graph.near
        paths = (path for wire, path in zip(graph.wires, self._paths, strict=True) if self._is_crossing(wire))
        for at in {rank[n] for path in paths for n in path[:-1]}:
            is_near = all(graph.items[graph.wires[n].source].corner is not None for n in slants[at])
            gaps[at] = (near, 0.0) if is_near else (graph.rank_gap, said)
        return gaps

    def _is_crossing(self, wire: Wire) -> bool:
        """Whether a wire leads from one frame to another: frames have no corners."""
        items = self._graph.items
        return items[wire.source].corner is None and items[wire.target].corner is None

    def place(self) -> Placed:
        """Return positions from (0, 0) on."""
        graph, rank, items, frame = self._graph, self.rank, self._graph.items, self._graph.frame
        sides = None if frame is None else self._sides_of(frame)
        self._attach()
        ends: list[list[int]] = [[] for _ in range(self._ranked.count)]  # the items that end in each rank
        for n in range(len(items)):
            ends[rank[self._last(n)]].append(n)
        slants = self._slants()
        gaps, heights = self._gaps(slants), [0.0] * self._ranked.count
        tops, y = list[float](), 0.0
        top = bottom = 0.0
        for at, ending in enumerate(ends):
            needed = [items[n].height + (tops[rank[n]] - y if rank[n] < at else 0.0) for n in ending]
            height = heights[at] = max([0.0, *needed])
            if frame is not None and at == 1:
                top = heights[0] + frame.gap if heights[0] else 0.0
                y = top + (graph.rank_gap if slants[0] and not heights[0] else frame.rim)
            if frame is not None and at == len(heights) - 1:
                is_aside = any(items[graph.wires[n].target].last for n in slants[at - 1])
                bottom = y - graph.rank_gap + (graph.rank_gap if is_aside and not height else frame.rim)
                spare = max(top + frame.header[1] + 2 * frame.rim - bottom, 0.0)
                tops[1:] = [y + spare / 2 for y in tops[1:]]
                bottom += spare
                y = bottom + (frame.gap if height else 0.0)
            tops.append(y)
            y += height + sum(gaps[at])
        xs = self._x
        lefts = [xs[n] - width / 2 for n, width in enumerate(self._width)]
        left = min([*lefts, *(sides or ())[:1]])
        right = max([*(xs[n] + width / 2 for n, width in enumerate(self._width)), *(sides or ())[1:]])
        across = [round(x - left, 3) for x in xs]
        fed = {wire.target for wire in graph.wires}
        feet = [t + height for t, height in zip(tops, heights, strict=True)]
        centres = []
        for n, item in enumerate(items):  # what is not fed is just above its readers
            y = tops[rank[n]] + item.height / 2 if n in fed else feet[rank[self._last(n)]] - item.height / 2
            centres.append((across[n], y))
        routes = [
            self._route(wire._replace(leaves=leaves, enters=enters), path, across, centres, (tops, feet, gaps))
            for wire, leaves, enters, path in zip(graph.wires, self._exits, self._tips, self._paths, strict=True)
        ]
        return Placed(
            width=right - left, height=feet[-1], centres=tuple(centres), routes=tuple(routes),
            frame=None if sides is None else ((sides[0] - left, top), (sides[1] - sides[0], bottom - top)),
        )

    def _route(
        self, wire: Wire, path: Sequence[int], across: Sequence[float], centres: Sequence[Point],
        rows: tuple[Sequence[float], Sequence[float], Sequence[tuple[float, float]]],
    ) -> tuple[Point, ...]:
        """Return the corners of a wire; between two of them it runs straight down, or slants between two ranks."""
        (tops, feet, gaps), items, rank = rows, self._graph.items, self.rank
        (x, y), (u, v) = centres[wire.source], centres[wire.target]
        end = u + (wire.enters or 0.0), v - items[wire.target].height / 2
        corners = [(x + wire.leaves, y + items[wire.source].height / 2)]
        for above, n in pairwise(path):
            x, ahead = corners[-1][0], end[0] if n == path[-1] else across[n]
            if abs(ahead - x) >= _STEP:
                corners += ((x, feet[rank[above]]), (ahead, tops[rank[n]] - gaps[rank[n] - 1][1]))
        return tuple([a for a, b in pairwise((*corners, end)) if a != b] + [end])


def _apart(wishes: Sequence[float], step: float, room: float) -> list[float]:
    """Return numbers near ordered wishes, within ``room`` of zero and at least a step apart."""
    placed, low = list[float](), -room
    for n, wish in enumerate(wishes):
        high = room - (len(wishes) - 1 - n) * step
        placed.append(min(max(wish, low), max(high, low)))
        low = placed[-1] + step
    return placed

"""Horizontal coordinates of a layered drawing, given the order within its ranks.

Each rank is the least-squares fit to its neighbours that keeps order and gaps (isotonic regression by pooling adjacent
violators; M. Ayer et al., "An empirical distribution function for sampling with incomplete information", Ann. Math.
Stat. 26(4), 1955), swept down and up.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from fuser_lab.report.order import Links

_SWEEPS = 12  # passes over all layers, down and up in turn
_STILL = 0.5  # pixels by which a sweep may differ from the one before it, apart from a shift of all, to be the last one
_STRAIGHT = 8.0  # how much more a way without branches wants to be straight than one with branches
_FAR = 1e9  # pixels, beyond every drawing


def spread(
    rows: Sequence[Sequence[int]], widths: Sequence[float], links: Links, gap: float, parts: Sequence[Sequence[int]],
) -> list[float]:
    """Return the x of everything in the rows; ``parts`` are the further parts of each item, which are below it."""
    return _Spreading(rows, widths, links, gap, parts).solve()


class _Spreading:
    def __init__(
        self, rows: Sequence[Sequence[int]], widths: Sequence[float], links: Links, gap: float,
        parts: Sequence[Sequence[int]],
    ) -> None:
        self._rows, self._widths, self._links, self._gap, self._parts = rows, widths, links, gap, parts
        self._x = [0.0] * len(widths)
        self._whole = list(range(len(widths)))  # the item of each part
        for n, more in enumerate(parts):
            for m in more:
                self._whole[m] = n
        bends = len(parts) + sum(map(len, parts))
        self._stiff = [
            [
                (m, offset, theirs, max(weight, _STRAIGHT if self._is_straight(n, m, bends) else 1.0))
                for m, offset, theirs, weight in links.below[n]
            ] for n in range(len(widths))
        ]
        self._up: list[list[tuple[int, float, float, float]]] = [[] for _ in widths]
        for n, below in enumerate(self._stiff):
            for m, offset, theirs, weight in below:
                self._up[m].append((n, theirs, offset, weight))

    def _is_straight(self, n: int, m: int, bends: int) -> bool:
        alone = len(self._links.below[n]) == 1 and len(self._links.above[m]) == 1
        return alone or (n >= bends and m >= bends)

    def solve(self) -> list[float]:
        for row in self._rows:
            self._fit(row, [(0.0, 1.0)] * len(row))
        earlier: list[list[float]] = [[], []]  # after the last sweep down, and after the last one up
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for row in self._rows if down else self._rows[::-1]:
                self._fit(row, [self._wish(n, (self._up if down else self._stiff,)) for n in row])
            shifts = [x - before for x, before in zip(self._x, earlier[down], strict=False)]
            if shifts and max(shifts) - min(shifts) < _STILL:
                break
            earlier[down] = list(self._x)
        for row in self._rows:
            self._fit(row, [self._wish(n, (self._up, self._stiff)) for n in row])
        self._join()
        self._straighten()
        return self._x

    def _join(self) -> None:
        """Set all parts of each item to one x, as near as the gaps permit.

        Positions that are pushed apart to the right satisfy all gaps, and so do those pushed to the left and the means.
        """
        if not any(self._parts):
            return
        xs, widths, whole = self._x, self._widths, self._whole
        for n, parts in enumerate(self._parts):
            xs[n] = sum([xs[m] for m in (n, *parts)]) / (1 + len(parts))
        right: dict[int, list[int]] = defaultdict(list)
        waiting: dict[int, int] = defaultdict(int)
        for row in self._rows:
            for a, b in pairwise(row):
                right[whole[a]].append(whole[b])
                waiting[whole[b]] += 1
        line = list(dict.fromkeys(whole[n] for row in self._rows for n in row if not waiting[whole[n]]))
        for n in line:
            for m in right[n]:
                waiting[m] -= 1
                if not waiting[m]:
                    line.append(m)
        pushed, pulled = list(xs), list(xs)
        for n in line:
            for m in right[n]:
                pushed[m] = max(pushed[m], pushed[n] + (widths[n] + widths[m]) / 2 + self._gap)
        for n in reversed(line):
            for m in right[n]:
                pulled[n] = min(pulled[n], pulled[m] - (widths[n] + widths[m]) / 2 - self._gap)
        for n in line:
            xs[n] = (pushed[n] + pulled[n]) / 2
        self._follow()

    def _follow(self) -> None:
        """Set the parts of each item to its x."""
        for n, parts in enumerate(self._parts):
            for m in parts:
                self._x[m] = self._x[n]

    def _wish(self, n: int, sides: tuple[list[list[tuple[int, float, float, float]]], ...]) -> tuple[float, float]:
        """Return where an item or bend wants to be, times how much, and how much."""
        xs, total, weights = self._x, 0.0, 0.0
        for ends in sides:
            for m, offset, theirs, weight in ends[n]:
                total += weight * (xs[m] + theirs - offset)
                weights += weight
        return (total, weights) if weights else (xs[n], 1.0)

    def _fit(self, row: Sequence[int], wishes: Sequence[tuple[float, float]]) -> None:
        """Set the x of a rank to the least-squares fit of ``wishes`` that keeps order and gaps."""
        widths, gap = self._widths, self._gap
        blocks: list[tuple[float, float, int]] = []  # (weighted sum of the remaining wishes, weight, count)
        offsets: list[float] = []
        offset = before = 0.0
        for n, (wished, weighs) in zip(row, wishes, strict=True):
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
        for n, x, offset in zip(row, fitted, offsets, strict=True):
            self._x[n] = x + offset

    def _straighten(self) -> None:
        """Align the items and bends of each unbranched path as far as the neighbours leave room."""
        seen: set[int] = set()
        self._place = {n: (row, at) for row in self._rows for at, n in enumerate(row)}
        for row in self._rows:
            for n in row:
                if n not in seen and self._whole[n] == n:
                    run = self._run(n, seen)
                    if len(run) > 1:
                        self._align(run)

    def _run(self, n: int, seen: set[int]) -> list[tuple[int, float]]:
        """Return an unbranched path from ``n`` down, with positions if it is straight."""
        run, shift = [(n, 0.0)], 0.0
        seen.add(n)
        while True:
            last = self._parts[n][-1] if n < len(self._parts) and self._parts[n] else n
            ahead = [link for link in self._stiff[last] if link[3] > 1.0 and link[0] not in seen]
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
            rooms = [self._room(m) for m in (n, *(self._parts[n] if n < len(self._parts) else ()))]
            left, right = max([room[0] for room in rooms]), min([room[1] for room in rooms])
            if aligned and (left - shift > high or right - shift < low):
                self._set(aligned, low, high)
                aligned, low, high = [], -_FAR, _FAR
            low, high = max(low, left - shift), min(high, right - shift)
            aligned.append((n, shift))
        self._set(aligned, low, high)

    def _set(self, aligned: Sequence[tuple[int, float]], low: float, high: float) -> None:
        middle = sum(self._x[n] - shift for n, shift in aligned) / len(aligned)
        at = min(max(middle, low), high)
        for n, shift in aligned:
            for m in (n, *(self._parts[n] if n < len(self._parts) else ())):
                self._x[m] = at + shift

    def _room(self, n: int) -> tuple[float, float]:
        """Return the smallest and the largest x that leave half a gap to the neighbours."""
        xs, widths = self._x, self._widths
        (row, at), gap = self._place[n], self._gap / 2
        left, right = -_FAR, _FAR
        if at:
            other = row[at - 1]
            left = min(xs[n], xs[other] + (widths[other] + widths[n]) / 2 + gap)
        if at + 1 < len(row):
            other = row[at + 1]
            right = max(xs[n], xs[other] - (widths[other] + widths[n]) / 2 - gap)
        return left, right

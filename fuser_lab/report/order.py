"""The order of items and bends within the ranks of a layered drawing, with few crossings."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

_SWEEPS = 12  # passes over all layers, down and up in turn
_MOST_WORSE = 2  # sweeps without fewer crossings, after which there are hardly ever fewer
_MOST_SWEPT_TWICE = 600  # items and bends
_HEAVY = 8  # crossings that one of an item that takes several ranks counts as
RIGID = 1e4  # weight of a link between the parts of such an item
_SWITCHES = 4  # passes after each sweep
_NEAR = 1e-4  # places in a rank that a pixel is worth: breaks ties between ports of one item

Link = tuple[int, float, float, float]  # the other end, the offset at this end, the one there, and a weight


class Links:
    """The links between neighbouring ranks, from both ends."""

    def __init__(self, count: int) -> None:
        self.above: list[list[Link]] = [[] for _ in range(count)]
        self.below: list[list[Link]] = [[] for _ in range(count)]

    def add(self, upper: int, lower: int, leaves: float, enters: float, weight: float = 1.0) -> None:
        """Add the link from one item or bend to another."""
        self.below[upper].append((lower, leaves, enters, weight))
        self.above[lower].append((upper, enters, leaves, weight))


def order_ranks(
    members: Sequence[int], rank: Sequence[int], links: Links, hints: Sequence[float | None], count: int,
) -> list[list[int]]:
    """Return the members of each rank from left to right.

    Sweeps by barycentres start depth first, so that related items are side by side, and where items had a place before,
    from these places; the order with the fewest crossings is the result. A large graph is swept once.
    """
    rows = _rows(_walk(members, links), rank, count)
    if all(hint is None for hint in hints):
        return _swept(rows, links)[1]
    orders = [_swept(_by_hints(rows, hints), links)]
    if orders[0][0] and len(members) <= _MOST_SWEPT_TWICE:
        orders.append(_swept(rows, links))
    return min(orders, key=itemgetter(0))[1]


def _rows(members: Iterable[int], rank: Sequence[int], count: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(count)]
    for n in members:
        rows[rank[n]].append(n)
    return rows


def _walk(members: Sequence[int], links: Links) -> Iterable[int]:
    """Yield the members depth first from the top."""
    seen: set[int] = set()
    stack = [n for n in reversed(members) if not links.above[n]]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            yield n
            stack.extend([m for m, *_ in reversed(links.below[n]) if m not in seen])


def _by_hints(rows: Sequence[Sequence[int]], hints: Sequence[float | None]) -> list[list[int]]:
    """Return rows in which items with a hint have their order, and the others follow their neighbours to the left."""
    arranged = []
    for row in rows:
        keys, last = [], float("-inf")
        for n in row:
            hint = hints[n] if n < len(hints) else None
            last = last if hint is None else hint
            keys.append(last)
        arranged.append([n for _, n in sorted(zip(keys, row, strict=True), key=itemgetter(0))])
    return arranged


def _swept(rows: list[list[int]], links: Links) -> tuple[int, list[list[int]]]:
    """Return the fewest crossings of sweeps down and up, and the order that has them."""
    ats = [0.0] * len(links.above)
    for row in rows:
        _number(row, ats)
    best, fewest = [list(row) for row in rows], _crossings(rows, links, ats)
    worse = 0
    for sweep in range(_SWEEPS):
        if not fewest or worse > _MOST_WORSE:
            break
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            _sort(row, links.above if down else links.below, ats)
        _switch(rows, links, ats)
        crossings = _crossings(rows, links, ats)
        worse += 1
        if crossings < fewest:
            best, fewest, worse = [list(row) for row in rows], crossings, 0
    return fewest, best


def _number(row: Sequence[int], ats: list[float]) -> None:
    for at, n in enumerate(row):
        ats[n] = float(at)


def _sort(row: list[int], ends: Sequence[Sequence[Link]], ats: list[float]) -> None:
    def key(n: int) -> float:
        links = ends[n]
        if not links:
            return ats[n]
        return sum([ats[m] + theirs * _NEAR for m, _, theirs, _ in links]) / len(links)

    row.sort(key=key)
    _number(row, ats)


def _switch(rows: Sequence[list[int]], links: Links, ats: list[float]) -> None:
    """Exchange neighbours in a rank as long as their links then cross less."""
    for _ in range(_SWITCHES):
        is_changed = False
        for row in rows:
            for at in range(len(row) - 1):
                a, b = row[at], row[at + 1]
                gain = sum(
                    _inversions(ends[a], ends[b], ats) - _inversions(ends[b], ends[a], ats)
                    for ends in (links.above, links.below)
                )
                if gain > 0:
                    row[at], row[at + 1] = b, a
                    ats[a], ats[b] = ats[b], ats[a]
                    is_changed = True
        if not is_changed:
            break


def _inversions(left: Sequence[Link], right: Sequence[Link], ats: Sequence[float]) -> int:
    """Return how often links of two neighbours cross on one side."""
    if not left or not right:
        return 0
    ends = [(ats[m] + theirs * _NEAR, _HEAVY if weight == RIGID else 1) for m, _, theirs, weight in right]
    return sum([
        count * (_HEAVY if weight == RIGID else 1)
        for m, _, theirs, weight in left for end, count in ends if ats[m] + theirs * _NEAR > end
    ])


def _crossings(rows: Sequence[Sequence[int]], links: Links, ats: Sequence[float]) -> int:
    """Return the number of crossings; those of a link within an item count much more."""
    total = 0
    for row in rows:
        ends: list[float] = []
        for n in row:
            ways = sorted([
                (offset, ats[m] + theirs * _NEAR, _HEAVY if weight == RIGID else 1)
                for m, offset, theirs, weight in links.below[n]
            ])
            for _, group in groupby(ways, key=itemgetter(0)):
                new = [(end, count) for _, end, count in group]
                total += sum([(len(ends) - bisect_right(ends, end)) * count for end, count in new])
                for end, count in new:
                    for _ in range(count):
                        insort(ends, end)
    return total


def crossings(rows: Sequence[Sequence[int]], links: Links) -> int:
    """Return the number of crossings of links between these ranks."""
    ats = [0.0] * len(links.above)
    for row in rows:
        _number(row, ats)
    return _crossings(rows, links, ats)


def is_torn(rows: Sequence[Sequence[int]], links: Links) -> bool:
    """Return whether a link crosses an item that takes several ranks."""
    ats = [0.0] * len(links.above)
    for row in rows:
        _number(row, ats)
    for row in rows:
        highest, rigid = -1.0, -1.0  # the rightmost ends so far
        for n in row:
            for m, _, _, weight in links.below[n]:
                if ats[m] < (highest if weight == RIGID else rigid):
                    return True
            for m, _, _, weight in links.below[n]:
                highest = max(highest, ats[m])
                if weight == RIGID:
                    rigid = max(rigid, ats[m])
    return False

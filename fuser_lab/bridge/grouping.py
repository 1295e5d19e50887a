"""Groups of a graph's nodes that can each run as one, found in nearly linear time."""

from collections.abc import Collection, Iterable, Mapping, Sequence


def groups(
    reads: Sequence[Sequence[int]], section: Sequence[int | None], common: Mapping[int, Collection[int]] | None = None,
) -> list[list[int]]:
    """Return convex groups of nodes whose quotient graph is acyclic, each in ascending order.

    Nodes are visited from the last to the first. Each is joined to the groups that read it, the latest first, and
    the groups that read the same node are joined to one another, wherever no path leads through a third group. A node
    without operands that stays alone is an input: it joins only some of its readers. The order of groups is kept up to
    date by the algorithm of Pearce and Kelly ("A dynamic topological sort algorithm for directed acyclic graphs",
    2006), so a path query examines only the groups between two others.

    Parameters
    ----------
    reads
        For each node, the nodes that it reads; all of them come before it.
    section
        For each node, the section of the graph in which it may be grouped; None if it stays alone.
    common
        For inputs, the readers that are joined to one another; by default none.
    """
    contraction = _Contraction(reads)
    users: list[list[int]] = [[] for _ in reads]
    for node, sources in enumerate(reads):
        for source in dict.fromkeys(sources):
            users[source].append(node)
    for node in reversed(range(len(reads))):
        readers = [user for user in reversed(users[node]) if section[user] is not None]
        if section[node] is not None:
            for user in readers:
                if section[user] == section[node]:
                    contraction.join(node, user)
        if not reads[node] and section[node] is None:
            readers = [user for user in readers if user in (common or {}).get(node, ())]
        _join_siblings(contraction, readers, section)
    members: dict[int, list[int]] = {}
    for node, here in enumerate(section):
        if here is not None:
            members.setdefault(contraction.group(node), []).append(node)
    return list(members.values())


def _join_siblings(contraction: "_Contraction", readers: Iterable[int], section: Sequence[int | None]) -> None:
    """Join groups that read one node, each to the nearest later one."""
    last: int | None = None
    for reader in readers:
        if last is not None and section[last] == section[reader]:
            contraction.join(last, reader)
        last = reader


class _Contraction:
    """A graph whose nodes are joined one pair at a time, with an order of its groups."""

    def __init__(self, reads: Sequence[Sequence[int]]) -> None:
        self._leader = list(range(len(reads)))
        self._place = list(range(len(reads)))  # of a group, by its leader
        self._before = [set(node_sources) for node_sources in reads]
        self._after: list[set[int]] = [set() for _ in reads]
        for node, sources in enumerate(self._before):
            for source in sources:
                self._after[source].add(node)

    def group(self, node: int) -> int:
        """Return the node that stands for a node's group."""
        leader = self._leader
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    def join(self, node: int, other: int) -> bool:
        """Join the groups of two nodes unless a path leads from one through a third group to the other."""
        first, second = sorted((self.group(node), self.group(other)), key=self._place.__getitem__)
        if first == second:
            return True
        least, most = self._place[first], self._place[second]
        later = self._reach(self._after, first, second, least, most)
        if later is None:
            return False
        earlier = self._reach(self._before, second, first, least, most)
        assert earlier is not None  # a path would have been found from the other end
        self._reorder(sorted(earlier, key=self._place.__getitem__), first, second, later)
        self._merge(first, second)
        return True

    def _reach(
        self, follow: Sequence[set[int]], start: int, end: int, least: int, most: int,
    ) -> set[int] | None:
        """Return the groups between two positions that ``start`` leads to, or None if one leads to ``end``."""
        seen: set[int] = set()
        waiting = [group for group in follow[start] if group != end]
        while waiting:
            group = waiting.pop()
            if group in seen or not least < self._place[group] < most:
                continue
            if end in follow[group]:
                return None
            seen.add(group)
            waiting += follow[group]
        return seen

    def _reorder(self, earlier: list[int], first: int, second: int, later: set[int]) -> None:
        """Give the two groups one position: after what leads to the second, before what follows the first."""
        moved = [*earlier, first, *sorted(later, key=self._place.__getitem__)]
        places = sorted(self._place[group] for group in (*moved, second))
        for group, place in zip(moved, places, strict=False):
            self._place[group] = place
        self._place[second] = self._place[first]

    def _merge(self, first: int, second: int) -> None:
        neighbours = len(self._before[first]) + len(self._after[first])
        if neighbours < len(self._before[second]) + len(self._after[second]):
            first, second = second, first
        self._leader[second] = first
        for mine, theirs in ((self._before, self._after), (self._after, self._before)):
            for group in mine[second]:
                theirs[group].discard(second)
                if group != first:
                    theirs[group].add(first)
            mine[first] |= mine[second]
            mine[first] -= {first, second}
            mine[second] = set()

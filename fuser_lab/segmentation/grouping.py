"""Groups under construction: the working state that the phases of the segmenter share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fuser_lab.events import Names
from fuser_lab.ir import Expr, Fusion, TensorView

GroupId = int
Edge = tuple[GroupId, TensorView, GroupId]


@dataclass(frozen=True, slots=True)
class _Around:
    """The edges of a group, incoming first, and the groups at their other ends."""

    edges: tuple[Edge, ...]
    producers: tuple[GroupId, ...]
    consumers: tuple[GroupId, ...]
    proposals: tuple[GroupId, ...]


class Grouping:
    """Disjoint groups of expressions over the part of a fusion that is not recomputed.

    Merged groups go to the end of the list, as in nvFuser, so that list order, which is the order of ids, is the order
    of proposals. A merge recomputes only the cached data of the groups around it.
    """

    def __init__(self, fusion: Fusion, groups: Iterable[Iterable[Expr]], recomputed: frozenset[str]) -> None:
        self.fusion = fusion
        self.recomputed = recomputed
        self.groups: dict[GroupId, frozenset[Expr]] = {}
        self._owner: dict[str, GroupId] = {}
        self._next = 0
        self._outputs = frozenset(fusion.outputs)
        self._read_outputs = [  # the names of the expressions that make a fusion output and read it
            (fusion.producers[tensor].name, [user.name for user in fusion.users[tensor]])
            for tensor in fusion.outputs if tensor in fusion.producers and fusion.users.get(tensor)
        ]
        self._around: dict[GroupId, _Around] = {}
        self._names: dict[GroupId, Names] = {}
        self._aux: dict[GroupId, tuple[TensorView, ...]] = {}
        self._order: tuple[GroupId, ...] | None = None
        self._reach: Reach | None = None
        for group in groups:
            self._add(frozenset(group))

    def _add(self, exprs: frozenset[Expr]) -> GroupId:
        group = self._next
        self._next += 1
        self.groups[group] = exprs
        for expr in exprs:
            self._owner[expr.name] = group
        return group

    def merge(self, members: Iterable[GroupId], *, keep_reach: bool = False) -> GroupId:
        """Replace groups by their union and return its id.

        ``keep_reach`` updates the ancestors instead of discarding them, which is faster if they are needed after each
        merge.
        """
        gone = dict.fromkeys(members)
        near = dict.fromkeys(n for member in gone for n in self.neighbours(member) if n not in gone)
        for member in gone:
            self._around.pop(member)
            self._names.pop(member, None)
            self._aux.pop(member, None)
        union = self._add(frozenset(expr for member in gone for expr in self.groups.pop(member)))
        for neighbour in near:
            if neighbour in self._around:
                ends = ((union if a in gone else a, t, union if b in gone else b) for a, t, b in self.edges(neighbour))
                self._around[neighbour] = self._seen_from(neighbour, ends)
        self._order = None
        if keep_reach and self._reach is not None:
            self._reach.merge(gone, union)
        else:
            self._reach = None
        return union

    def names(self, group: GroupId) -> Names:
        """Return a group's expression names in topological order."""
        if group not in self._names:
            names = (expr.name for expr in self.groups[group])
            self._names[group] = tuple(sorted(names, key=self.fusion.positions.__getitem__))
        return self._names[group]

    def ordered(self, group: GroupId) -> list[Expr]:
        """Return a group's expressions in topological order."""
        return [self.fusion.exprs[self.fusion.positions[name]] for name in self.names(group)]

    def owner(self, tensor: TensorView) -> GroupId | None:
        """Return the group that computes a tensor; None for inputs and recomputed values."""
        maker = self.fusion.producers.get(tensor)
        return None if maker is None else self._owner.get(maker.name)

    def edges(self, group: GroupId) -> tuple[Edge, ...]:
        """Return the (producer, tensor, consumer) edges of a group, incoming first."""
        return self._of(group).edges

    def producers(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the distinct groups that a group reads from, in edge order."""
        return self._of(group).producers

    def consumers(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the distinct groups that read from a group, in edge order."""
        return self._of(group).consumers

    def neighbours(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return producers, then consumers."""
        around = self._of(group)
        return around.producers + around.consumers

    def proposals(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the neighbours that level rounds may propose: edges that carry a fusion output do not count."""
        return self._of(group).proposals

    def _of(self, group: GroupId) -> _Around:
        if group not in self._around:
            self._around[group] = self._looked_up(group)
        return self._around[group]

    def _looked_up(self, group: GroupId) -> _Around:
        incoming: dict[Edge, None] = {}
        outgoing: dict[Edge, None] = {}
        for expr in self.ordered(group):
            for tensor in expr.tensor_inputs:
                maker = self.owner(tensor)
                if maker is not None and maker != group:
                    incoming[maker, tensor, group] = None
            for tensor in expr.tensor_outputs:
                for user in self.fusion.users.get(tensor, ()):
                    reader = self._owner.get(user.name)
                    if reader is not None and reader != group:
                        outgoing[group, tensor, reader] = None
        return self._seen_from(group, (*incoming, *outgoing))

    def _seen_from(self, group: GroupId, edges: Iterable[Edge]) -> _Around:
        """Return edges without repeats, in their order, and what follows from them."""
        found = tuple(dict.fromkeys(edges))
        before = [(a, tensor) for a, tensor, b in found if b == group]
        after = [(b, tensor) for a, tensor, b in found if a == group]
        return _Around(
            edges=found,
            producers=tuple(dict.fromkeys(other for other, _ in before)),
            consumers=tuple(dict.fromkeys(other for other, _ in after)),
            proposals=tuple(dict.fromkeys(o for o, tensor in before + after if tensor not in self._outputs)),
        )

    def output_edges(self) -> list[int]:
        """Return the edges that carry a fusion output, each the bit mask of its two groups."""
        found: dict[int, None] = {}
        for maker, users in self._read_outputs:
            owner = self._owner.get(maker)
            for reader in map(self._owner.get, users if owner is not None else ()):
                if owner is not None and reader is not None and reader != owner:
                    found[1 << owner | 1 << reader] = None
        return list(found)

    def reads_input(self, group: GroupId) -> bool:
        """Whether a group reads a fusion input or a forwarded value (nvFuser: has an auxiliary producer)."""
        return bool(self.aux_values(group))

    def aux_values(self, group: GroupId) -> tuple[TensorView, ...]:
        """Return the inputs and forwarded values that a group reads, in the order of its expressions."""
        if group not in self._aux:
            read = (tensor for expr in self.ordered(group) for tensor in expr.tensor_inputs)
            self._aux[group] = tuple(dict.fromkeys(tensor for tensor in read if self.owner(tensor) is None))
        return self._aux[group]

    def topological(self) -> tuple[GroupId, ...]:
        """Return the groups so that producers come first."""
        if self._order is None:
            waiting = {group: len(self.producers(group)) for group in self.groups}
            ready = [group for group, count in waiting.items() if count == 0]
            for group in ready:
                for consumer in self.consumers(group):
                    waiting[consumer] -= 1
                    if waiting[consumer] == 0:
                        ready.append(consumer)
            self._order = tuple(ready)
        return self._order

    def levels(self) -> dict[GroupId, int]:
        """Return the longest path to each group from a source; inputs are sources on level 0."""
        level: dict[GroupId, int] = {}
        for group in self.topological():
            above = [level[p] for p in self.producers(group)]
            if self.reads_input(group):
                above.append(0)
            level[group] = 1 + max(above) if above else 0
        return level

    def reach(self) -> "Reach":
        """Return the reachability of groups, which merges with ``keep_reach`` update."""
        if self._reach is None:
            self._reach = Reach(self.topological(), {g: self.producers(g) for g in self.groups})
        return self._reach


class Reach:
    """All known producers and all known consumers of each group, as bit masks over group ids."""

    def __init__(self, order: Sequence[GroupId], producers: dict[GroupId, tuple[GroupId, ...]]) -> None:
        self.above: dict[GroupId, int] = {}
        self.below: dict[GroupId, int] = dict.fromkeys(order, 0)
        for group in order:
            mask = 0
            for producer in producers[group]:
                mask |= self.above[producer] | 1 << producer
            self.above[group] = mask
        for group in reversed(order):
            whole = self.below[group] | 1 << group
            for producer in producers[group]:
                self.below[producer] |= whole

    def leads(self, a: GroupId, b: GroupId) -> bool:
        """Whether a path leads from one group to another."""
        return bool(self.above[b] >> a & 1)

    def between(self, a: GroupId, b: GroupId) -> int:
        """Return two groups and all on paths from one to the other, as a bit mask: the convex hull."""
        return self.below[a] & self.above[b] | 1 << a | 1 << b

    def is_convex(self, mask: int) -> bool:
        """Whether no path leaves these groups and comes back."""
        above = below = 0
        for group in bits(mask):
            above |= self.above[group]
            below |= self.below[group]
        return not above & below & ~mask

    def merge(self, gone: Iterable[GroupId], union: GroupId) -> None:
        """Replace several groups that form a convex set by one."""
        mask = above = below = 0
        for member in gone:
            mask |= 1 << member
            above |= self.above.pop(member)
            below |= self.below.pop(member)
        above, below = above & ~mask, below & ~mask
        for group in bits(below):
            self.above[group] = self.above[group] & ~mask | above | 1 << union
        for group in bits(above):
            self.below[group] = self.below[group] & ~mask | below | 1 << union
        self.above[union], self.below[union] = above, below


def mask_of(groups: Iterable[GroupId]) -> int:
    """Return a set of groups as a bit mask."""
    return sum(1 << group for group in groups)


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the ones of a bit mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest

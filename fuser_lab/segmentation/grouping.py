"""Groups under construction: the working state that the phases of the segmenter share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, NamedTuple

from fuser_lab.analysis.bit_masks import bits, union_at
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.segmentation.events import Names

GroupId = int
Edge = tuple[GroupId, TensorView, GroupId]


class _Read(NamedTuple):
    """A tensor that leads into or out of a group, and the expression at its other end; in the order of expressions."""

    place: int
    number: int
    tensor: TensorView
    other: str
    proposes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boundary:
    """The reads that lead into a group from other groups, out of it, and into it from values that no group makes."""

    incoming: list[_Read]
    outgoing: list[_Read]
    aux: list[_Read]


@dataclass(slots=True, kw_only=True)
class _Near:
    """The groups around each group, cached until a group around it is merged."""

    edges: dict[GroupId, tuple[Edge, ...]] = field(default_factory=dict)
    producers: dict[GroupId, tuple[GroupId, ...]] = field(default_factory=dict)
    consumers: dict[GroupId, tuple[GroupId, ...]] = field(default_factory=dict)
    proposals: dict[GroupId, tuple[GroupId, ...]] = field(default_factory=dict)

    def forget(self, groups: set[GroupId]) -> None:
        """Remove the cached neighbours of some groups."""
        tables: tuple[dict[GroupId, Any], ...] = (self.edges, self.producers, self.consumers, self.proposals)
        for table in tables:
            for group in groups if len(groups) < len(table) else table.keys() & groups:
                table.pop(group, None)


class Grouping:
    """Disjoint groups of expressions over the part of a fusion that is not recomputed.

    Merged groups go to the end of the list, as in nvFuser, so that list order, which is the order of ids, is the order
    of proposals. A boundary names expressions, whose groups are looked up, so that a merge leaves the boundaries of
    other groups as they are.
    """

    def __init__(self, fusion: Fusion, groups: Iterable[Iterable[Expr]], recomputed: frozenset[str]) -> None:
        self.fusion = fusion
        self.recomputed = recomputed
        self.groups: dict[GroupId, frozenset[Expr]] = {}
        self._owner: dict[str, GroupId] = {}
        self._next = 0
        self._read_outputs = [  # the names of the expressions that make a fusion output and read it
            (fusion.producers[tensor].name, [user.name for user in fusion.users[tensor]])
            for tensor in fusion.outputs if tensor in fusion.producers and fusion.users.get(tensor)
        ]
        self._boundary: dict[GroupId, _Boundary] = {}
        self._near = _Near()
        self._names: dict[GroupId, Names] = {}
        self._order: tuple[GroupId, ...] | None = None
        self._level: dict[GroupId, int] = {}
        self._stale: set[GroupId] = set()  # groups whose levels may have changed
        self._reach: Reach | None = None
        for group in groups:
            exprs = frozenset(group)
            self._add(exprs, (expr.name for expr in exprs))

    def _add(self, exprs: frozenset[Expr], names: Iterable[str]) -> GroupId:
        group = self._next
        self._next += 1
        self.groups[group] = exprs
        self._names[group] = ordered = tuple(sorted(names, key=self.fusion.positions.__getitem__))
        self._owner.update(dict.fromkeys(ordered, group))
        return group

    def merge(self, members: Iterable[GroupId], *, keep_reach: bool = False) -> GroupId:
        """Replace groups by their union and return its id.

        ``keep_reach`` updates the ancestors instead of discarding them, which is faster if they are needed after each
        merge.
        """
        gone = tuple(dict.fromkeys(members))
        before = {member: self.consumers(member) for member in gone} if self._level else {}
        parts = [self._bounds(member) for member in gone]
        names = chain.from_iterable([self._names.pop(member) for member in gone])
        union = self._add(frozenset().union(*[self.groups.pop(member) for member in gone]), names)
        owner = self._owner
        bounds = self._boundary[union] = _Boundary(
            incoming=sorted([read for part in parts for read in part.incoming if owner[read.other] != union]),
            outgoing=sorted([read for part in parts for read in part.outgoing if owner[read.other] != union]),
            aux=sorted([read for part in parts for read in part.aux]),
        )
        for member in gone:
            del self._boundary[member]
        self._near.forget(set(gone))
        self._near.forget({owner[read.other] for read in chain(bounds.incoming, bounds.outgoing)})
        if self._level:
            self._follow_level(before, union)
        self._order = None
        if keep_reach and self._reach is not None:
            self._reach.merge(gone, union)
        else:
            self._reach = None
        return union

    def names(self, group: GroupId) -> Names:
        """Return a group's expression names in topological order."""
        return self._names[group]

    def ordered(self, group: GroupId) -> list[Expr]:
        """Return a group's expressions in topological order."""
        return [self.fusion.exprs[self.fusion.positions[name]] for name in self.names(group)]

    def owner(self, tensor: TensorView) -> GroupId | None:
        """Return the group that computes a tensor; None for inputs and recomputed values."""
        maker = self.fusion.producers.get(tensor)
        return None if maker is None else self._owner.get(maker.name)

    def readers(self, tensor: TensorView) -> list[GroupId]:
        """Return the groups that read a tensor, in order."""
        owners = (self._owner.get(user.name) for user in self.fusion.users.get(tensor, ()))
        return sorted({owner for owner in owners if owner is not None})

    def edges(self, group: GroupId) -> tuple[Edge, ...]:
        """Return the (producer, tensor, consumer) edges of a group, incoming first."""
        near, bounds = self._near.edges, self._bounds(group)
        if group not in near:
            into = [(self._owner[read.other], read.tensor, group) for read in bounds.incoming]
            out = [(group, read.tensor, self._owner[read.other]) for read in bounds.outgoing]
            near[group] = tuple(dict.fromkeys(into + out))
        return near[group]

    def producers(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the distinct groups that a group reads from, in edge order."""
        near = self._near.producers
        if group not in near:
            near[group] = self._owners(self._bounds(group).incoming)
        return near[group]

    def consumers(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the distinct groups that read from a group, in edge order."""
        near = self._near.consumers
        if group not in near:
            near[group] = self._owners(self._bounds(group).outgoing)
        return near[group]

    def neighbours(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return producers, then consumers."""
        return self.producers(group) + self.consumers(group)

    def proposals(self, group: GroupId) -> tuple[GroupId, ...]:
        """Return the neighbours that level rounds may propose: edges that carry a fusion output do not count."""
        near, bounds = self._near.proposals, self._bounds(group)
        if group not in near:
            near[group] = self._owners(read for read in bounds.incoming + bounds.outgoing if read.proposes)
        return near[group]

    def _owners(self, reads: Iterable[_Read]) -> tuple[GroupId, ...]:
        owner = self._owner
        return tuple(dict.fromkeys([owner[read.other] for read in reads]))

    def _bounds(self, group: GroupId) -> _Boundary:
        if group not in self._boundary:
            self._boundary[group] = self._looked_up(group)
        return self._boundary[group]

    def _looked_up(self, group: GroupId) -> _Boundary:
        fusion, owner, results = self.fusion, self._owner, self.fusion.output_names
        bounds = _Boundary(incoming=[], outgoing=[], aux=[])
        for expr in self.ordered(group):
            place = fusion.positions[expr.name]
            for number, tensor in enumerate(expr.tensor_inputs):
                maker = fusion.producers.get(tensor)
                name = "" if maker is None else maker.name
                read = _Read(place, number, tensor, name, tensor.name not in results)
                if owner.get(name) is None:
                    bounds.aux.append(read)
                elif owner[name] != group:
                    bounds.incoming.append(read)
            number = 0
            for tensor in expr.tensor_outputs:
                for user in fusion.users.get(tensor, ()):
                    if owner.get(user.name, group) != group:
                        bounds.outgoing.append(_Read(place, number, tensor, user.name, tensor.name not in results))
                        number += 1
        return bounds

    def output_edges(self) -> list[int]:
        """Return the edges that carry a fusion output, each the bit mask of its two groups."""
        edges: dict[int, None] = {}
        for maker, users in self._read_outputs:
            owner = self._owner.get(maker)
            for reader in map(self._owner.get, users if owner is not None else ()):
                if owner is not None and reader is not None and reader != owner:
                    edges[1 << owner | 1 << reader] = None
        return list(edges)

    def reads_out(self, group: GroupId) -> int:
        """Return the number of operands elsewhere that are results of a group; one that is given twice counts twice."""
        exprs, positions = self.fusion.exprs, self.fusion.positions
        outgoing = dict.fromkeys((read.other, read.tensor) for read in self._bounds(group).outgoing)
        return sum(exprs[positions[other]].inputs.count(tensor) for other, tensor in outgoing)

    def reads_input(self, group: GroupId) -> bool:
        """Whether a group reads a fusion input or a forwarded value (nvFuser: has an auxiliary producer)."""
        return bool(self._bounds(group).aux)

    def aux_values(self, group: GroupId) -> tuple[TensorView, ...]:
        """Return the inputs and forwarded values that a group reads, in the order of its expressions."""
        return tuple({read.tensor.name: read.tensor for read in self._bounds(group).aux}.values())

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
        """Return the longest path to each group from a source; inputs are sources on level 0.

        After merges only groups whose level may differ are visited. The returned mapping follows later merges.
        """
        level = self._level
        if not level:
            for group in self.topological():
                level[group] = self._level_below(group)
            return level
        # In the order of the levels before, so that most groups are visited after all of their producers.
        waiting = [(level[group], group) for group in self._stale if group in self.groups]
        heapify(waiting)
        queued = {group for _, group in waiting}
        while waiting:
            _, group = heappop(waiting)
            queued.discard(group)
            now = self._level_below(group)
            if now != level[group]:
                level[group] = now
                for consumer in self.consumers(group):
                    if consumer not in queued:
                        queued.add(consumer)
                        heappush(waiting, (level[consumer], consumer))
        self._stale.clear()
        return level

    def _level_below(self, group: GroupId) -> int:
        above = [self._level[producer] for producer in self.producers(group)]
        if self.reads_input(group):
            above.append(0)
        return 1 + max(above) if above else 0

    def _follow_level(self, before: dict[GroupId, tuple[GroupId, ...]], union: GroupId) -> None:
        """Give a union the level of the member with most consumers; levels after other members become stale."""
        levels = {member: self._level.pop(member) for member in before}
        self._level[union] = levels[max(before, key=lambda member: len(before[member]))]
        self._stale.add(union)
        for member, consumers in before.items():
            if levels[member] != self._level[union]:
                self._stale.update(consumers)

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
        return not union_at(self.above, mask) & union_at(self.below, mask) & ~mask

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

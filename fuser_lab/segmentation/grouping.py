"""Groups under construction: the working state that the phases of the segmenter share."""

from collections.abc import Iterable, Iterator

from fuser_lab.events import Names
from fuser_lab.ir import Expr, Fusion, TensorView

GroupId = int


class Grouping:
    """Disjoint groups of expressions over the part of a fusion that is not recomputed.

    Merged groups go to the end of the list, as in nvFuser, so that list order is the order of proposals.
    """

    def __init__(self, fusion: Fusion, groups: Iterable[Iterable[Expr]], recomputed: frozenset[str]) -> None:
        self.fusion = fusion
        self.recomputed = recomputed
        self.groups: dict[GroupId, frozenset[Expr]] = {}
        self._owner: dict[str, GroupId] = {}
        self._next = 0
        self._outputs = frozenset(fusion.outputs)
        self._edges: dict[GroupId, tuple[tuple[GroupId, TensorView, GroupId], ...]] = {}
        for group in groups:
            self._add(frozenset(group))

    def _add(self, exprs: frozenset[Expr]) -> GroupId:
        group = self._next
        self._next += 1
        self.groups[group] = exprs
        for expr in exprs:
            self._owner[expr.name] = group
        return group

    def merge(self, members: Iterable[GroupId]) -> GroupId:
        """Replace groups by their union and return its id."""
        union = frozenset(expr for member in dict.fromkeys(members) for expr in self.groups.pop(member))
        self._edges.clear()
        return self._add(union)

    def names(self, group: GroupId) -> Names:
        """Return a group's expression names in topological order."""
        return tuple(sorted((e.name for e in self.groups[group]), key=self.fusion.positions.__getitem__))

    def ordered(self, group: GroupId) -> list[Expr]:
        """Return a group's expressions in topological order."""
        return [self.fusion.exprs[self.fusion.positions[name]] for name in self.names(group)]

    def owner(self, tensor: TensorView) -> GroupId | None:
        """Return the group that computes a tensor; None for inputs and recomputed values."""
        maker = self.fusion.producers.get(tensor)
        return None if maker is None else self._owner.get(maker.name)

    def edges(self, group: GroupId) -> tuple[tuple[GroupId, TensorView, GroupId], ...]:
        """Return the (producer, tensor, consumer) edges of a group, incoming first."""
        if group not in self._edges:
            incoming: dict[tuple[GroupId, TensorView, GroupId], None] = {}
            outgoing: dict[tuple[GroupId, TensorView, GroupId], None] = {}
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
            self._edges[group] = (*incoming, *outgoing)
        return self._edges[group]

    def producers(self, group: GroupId) -> list[GroupId]:
        """Return the distinct groups that a group reads from, in edge order."""
        return list(dict.fromkeys(a for a, _, b in self.edges(group) if b == group))

    def consumers(self, group: GroupId) -> list[GroupId]:
        """Return the distinct groups that read from a group, in edge order."""
        return list(dict.fromkeys(b for a, _, b in self.edges(group) if a == group))

    def neighbours(self, group: GroupId) -> list[GroupId]:
        """Return producers, then consumers."""
        return [*self.producers(group), *self.consumers(group)]

    def proposals(self, group: GroupId) -> list[GroupId]:
        """Return the neighbours that level rounds may propose: edges that carry a fusion output do not count."""
        return list(
            dict.fromkeys(
                a if b == group else b for a, tensor, b in self.edges(group) if tensor not in self._outputs
            ),
        )

    def carries_output(self, members: Iterable[GroupId]) -> bool:
        """Whether an edge between two of these groups carries a fusion output."""
        inside = set(members)
        return any(
            tensor in self._outputs
            for member in inside
            for a, tensor, b in self.edges(member)
            if a in inside and b in inside
        )

    def reads_input(self, group: GroupId) -> bool:
        """Whether a group reads a fusion input or a forwarded value (nvFuser: has an auxiliary producer)."""
        return any(self.owner(tensor) is None for expr in self.groups[group] for tensor in expr.tensor_inputs)

    def aux_values(self, group: GroupId) -> set[TensorView]:
        """Return the inputs and forwarded values that a group reads."""
        return {t for expr in self.groups[group] for t in expr.tensor_inputs if self.owner(t) is None}

    def topological(self) -> Iterator[GroupId]:
        """Yield the groups so that producers come first."""
        waiting = {group: len(self.producers(group)) for group in self.groups}
        ready = [group for group, count in waiting.items() if count == 0]
        for group in ready:
            yield group
            for consumer in self.consumers(group):
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    ready.append(consumer)

    def levels(self) -> dict[GroupId, int]:
        """Return the longest path to each group from a source; inputs are sources on level 0."""
        level: dict[GroupId, int] = {}
        for group in self.topological():
            above = [level[p] for p in self.producers(group)]
            if self.reads_input(group):
                above.append(0)
            level[group] = 1 + max(above) if above else 0
        return level

    def ancestors(self) -> dict[GroupId, int]:
        """Return all known producers of each group, as bit masks over group ids."""
        found: dict[GroupId, int] = {}
        for group in self.topological():
            mask = 0
            for producer in self.producers(group):
                mask |= found[producer] | 1 << producer
            found[group] = mask
        return found

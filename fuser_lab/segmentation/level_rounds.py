"""Rounds of level-based merging: pairs of groups on adjacent levels (csrc/fusion_segmenter.cpp).

The rule is theorem 4.2 of Herrmann et al., "Multilevel algorithms for acyclic partitioning of directed acyclic graphs".
"""

from collections.abc import Collection, Iterable, Iterator

from fuser_lab.events import Attempt, Kind
from fuser_lab.ir import Expr, OpKind
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.segmentation.asking import Asker
from fuser_lab.segmentation.grouping import GroupId, Grouping


class LevelRound:
    """One round of level-based merging: pairs far enough apart that all can be contracted together."""

    def __init__(
        self,
        grouping: Grouping,
        asker: Asker,
        phase: str,
        pairs: list[tuple[GroupId, GroupId]],
        tried: set[tuple[GroupId, GroupId]],
        final: Collection[GroupId],
    ) -> None:
        self._grouping = grouping
        self._asker = asker
        self._phase = phase
        self._pairs = pairs
        self._tried = tried
        self._final = final
        self._partner: dict[GroupId, GroupId] = {}
        self._level = grouping.levels()

    def run(self) -> Iterator[Attempt]:
        """Yield the attempts of the round; accepted pairs are added to the list of pairs."""
        for producer, consumer in self._preferred():
            if consumer in self._candidates(producer):
                yield from self._pair(producer, consumer)
        if self._pairs:
            return
        for group in list(self._grouping.groups):
            for other in self._candidates(group):
                yield from self._pair(group, other)
                if group in self._partner:
                    break

    def _preferred(self) -> Iterator[tuple[GroupId, GroupId]]:
        """Yield pairs to try first (PR #4297).

        The producer of a lookup table (unless that is an input) with the single indexed read that reduces the axis to
        one element; and a group that pads a tensor from outside with the reader of the padded tensor.
        """
        for group, exprs in list(self._grouping.groups.items()):
            lookup = next(iter(exprs)) if len(exprs) == 1 else None
            if lookup is not None and _leaves_one(lookup):
                table = self._grouping.owner(lookup.tensor_inputs[0])
                if table is not None:
                    yield table, group
            for expr in exprs:
                if expr.op.name == "pad" and self._grouping.owner(expr.tensor_inputs[0]) != group:
                    for a, tensor, b in self._grouping.edges(group):
                        if a == group and tensor is expr.out:
                            yield group, b

    def _pair(self, group: GroupId, other: GroupId) -> Iterator[Attempt]:
        grouping = self._grouping
        producer, consumer = (group, other) if other in grouping.consumers(group) else (other, group)
        if (producer, consumer) in self._tried:
            return
        self._tried.add((producer, consumer))
        attempt, answer = self._asker.attempt(
            self._phase,
            Kind.MERGE,
            (grouping.names(producer), grouping.names(consumer)),
            (expr for member in (group, other) for expr in grouping.groups[member]),
        )
        if answer.chosen is not None:
            self._partner[group], self._partner[other] = other, group
            self._pairs.append((group, other))
        yield attempt

    def _near(self, a: GroupId, b: GroupId) -> bool:
        return abs(self._level[a] - self._level[b]) <= 1

    def _blocked(self, group: GroupId, towards: Iterable[GroupId]) -> bool:
        """Whether a neighbour of ``group`` is already paired and it or its partner has a level near ``towards``."""
        targets = tuple(towards)
        for neighbour in self._grouping.neighbours(group):
            partner = self._partner.get(neighbour)
            if partner is not None and any(self._near(x, t) for x in (neighbour, partner) for t in targets):
                return True
        return False

    def _candidates(self, group: GroupId) -> list[GroupId]:
        if group in self._partner or self._blocked(group, (group,)):
            return []
        final = self._final if group in self._final else ()
        return [
            other
            for other in self._grouping.proposals(group)
            if other not in self._partner and other not in final
            and self._near(other, group) and not self._blocked(other, (group, other))
        ]


def _leaves_one(expr: Expr) -> bool:
    """Whether an expression reads one element of an axis at an index that is data."""
    if expr.kind is not OpKind.INDEXING:
        return False
    return expr.op.name == "select" or expr.out.domain.axes[indexed_axis(dict(expr.attrs))].is_broadcast

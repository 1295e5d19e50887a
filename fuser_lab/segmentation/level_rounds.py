"""Rounds of level-based merging: pairs of groups on adjacent levels.

The rule is theorem 4.2 of Herrmann et al., "Multilevel algorithms for acyclic partitioning of directed acyclic graphs".
"""

from collections.abc import Collection, Iterator

from fuser_lab.cost.rules import follows
from fuser_lab.ir import Expr, OpKind
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.segmentation.events import Attempt
from fuser_lab.segmentation.grouping import GroupId, Grouping
from fuser_lab.segmentation.scheduler_attempts import Asker


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
        first: Collection[Expr],
    ) -> None:
        self._grouping = grouping
        self._asker = asker
        self._phase = phase
        self._pairs = pairs
        self._tried = tried
        self._final = final
        self._partner: dict[GroupId, GroupId] = {}
        self._barred: set[GroupId] = set()  # a neighbour of each is paired, and it or its partner is near
        self._level = grouping.levels()
        self._first = first

    def run(self) -> Iterator[Attempt]:
        """Yield the attempts of the round; accepted pairs are added to the list of pairs."""
        for producer, consumer in self._preferred_pairs():
            if consumer in self._candidates(producer):
                yield from self._pair(producer, consumer)
        if self._pairs:
            return
        for group in list(self._grouping.groups):
            for other in () if group in self._barred else self._candidates(group):
                yield from self._pair(group, other)
                if group in self._partner:
                    break

    @follows("fusion_segmenter", "PreferredMergeCandidatePicker", 3527, 3707)
    def _preferred_pairs(self) -> Iterator[tuple[GroupId, GroupId]]:
        """Yield pairs to try first (PR #4297).

        The producer of a lookup table (unless that is an input) with the single indexed read that reduces the axis to
        one element; and a group that pads a tensor from outside with the first near reader of the padded tensor.
        """
        owners = (self._grouping.owner(expr.out) for expr in self._first)
        for group in sorted({owner for owner in owners if owner is not None}):
            exprs = self._grouping.groups[group]
            lookup = next(iter(exprs)) if len(exprs) == 1 else None
            if lookup is not None and _leaves_one(lookup):
                table = self._grouping.owner(lookup.tensor_inputs[0])
                if table is not None:
                    yield table, group
            padded = {
                expr.out for expr in exprs
                if expr.op.name == "pad" and self._grouping.owner(expr.tensor_inputs[0]) != group
            }
            near = [other for other in self._grouping.proposals(group) if self._near(group, other)]
            edges = self._grouping.edges(group) if padded else ()
            reader = next((b for a, tensor, b in edges if a == group and tensor in padded and b in near), None)
            if reader is not None:
                yield group, reader

    def _pair(self, group: GroupId, other: GroupId) -> Iterator[Attempt]:
        grouping = self._grouping
        producer, consumer = (group, other) if other in grouping.consumers(group) else (other, group)
        if (producer, consumer) in self._tried:
            return
        self._tried.add((producer, consumer))
        attempt, answer = self._asker.merge(
            self._phase, (grouping.names(producer), grouping.names(consumer)),
            [grouping.groups[member] for member in (group, other)],
        )
        if answer.chosen is not None:
            self._partner[group], self._partner[other] = other, group
            self._pairs.append((group, other))
            self._bar(group, other)
        yield attempt

    def _near(self, a: GroupId, b: GroupId) -> bool:
        return abs(self._level[a] - self._level[b]) <= 1

    def _bar(self, group: GroupId, other: GroupId) -> None:
        """Bar the neighbours of a pair from this round, except neighbours on levels that are not near either level."""
        level = self._level
        least, most = sorted((level[group], level[other]))
        for paired in (group, other):
            self._barred.update([n for n in self._grouping.neighbours(paired) if least - 1 <= level[n] <= most + 1])

    def _is_blocked(self, group: GroupId, target: GroupId) -> bool:
        """Whether a neighbour of ``group`` is already paired and it or its partner has a level near ``target``."""
        partners = self._partner
        paired = [neighbour for neighbour in self._grouping.neighbours(group) if neighbour in partners]
        return any(self._near(neighbour, target) or self._near(partners[neighbour], target) for neighbour in paired)

    @follows("fusion_segmenter", "SegmentedGroup::getMergeCandidates", 110, 191)
    def _candidates(self, group: GroupId) -> list[GroupId]:
        if group in self._partner or group in self._barred:
            return []
        final = self._final if group in self._final else ()
        return [
            other
            for other in self._grouping.proposals(group)
            if other not in self._partner and other not in self._barred and other not in final
            and self._near(other, group) and not (self._partner and self._is_blocked(other, group))
        ]


def is_tried_first(expr: Expr) -> bool:
    """Return whether rounds begin with pairs that contain an expression: a pad, or a read of one indexed element."""
    return expr.op.name == "pad" or _leaves_one(expr)


def _leaves_one(expr: Expr) -> bool:
    """Whether an expression reads one element of an axis at an index that is data."""
    if expr.kind is not OpKind.INDEXING:
        return False
    return expr.op.name == "select" or expr.out.domain.axes[indexed_axis(dict(expr.attrs))].is_broadcast

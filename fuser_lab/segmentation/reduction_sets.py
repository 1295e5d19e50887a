"""Sets of groups whose reductions may be computed together."""

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.rules import follows
from fuser_lab.segmentation.grouping import GroupId, Grouping, bits, mask_of

Signature = tuple[int, tuple[int, ...]]


class ReductionSets:
    """The convex sets of groups that contain reductions of one signature and no others.

    Parameters
    ----------
    fusion
        The fusion of the groups.
    grouping
        The groups; the sets follow its merges.
    committed
        Groups that no set contains.
    """

    def __init__(self, fusion: Fusion, grouping: Grouping, committed: Collection[GroupId]) -> None:
        self._grouping, self._committed = grouping, mask_of(committed)
        self._followed = 0  # number of merged groups whose entries were replaced below
        # Entries of groups, in their order; a merge changes the entries of the groups around it.
        self._read: dict[GroupId, tuple[TensorView, ...]] = {}
        outside = {value for group in grouping.groups for value in grouping.aux_values(group)}
        self._readers = {value: 0 for value in fusion.tensors.values() if value in outside}
        self._signed: dict[GroupId, Signature] = {}
        self._alike: dict[Signature, int] = {}

    def _follow_merges(self) -> None:
        """Replace the entries of merged groups by entries of their union."""
        groups = self._grouping.groups
        merged = self._grouping.merged
        gone, self._followed = merged[self._followed:], len(merged)
        for group in gone:
            for value in self._read.pop(group, ()):
                self._readers[value] &= ~(1 << group)
            if group in self._signed:
                self._alike[self._signed.pop(group)] &= ~(1 << group)
        for group in reversed(list(itertools.takewhile(lambda group: group not in self._read, reversed(groups)))):
            self._read[group] = self._grouping.aux_values(group)
            for value in self._read[group]:
                self._readers[value] |= 1 << group
            reductions = (expr for expr in groups[group] if expr.kind is OpKind.REDUCTION)
            signatures = {_reduction_signature(expr) for expr in reductions}
            if len(signatures) == 1 and not self._committed >> group & 1:
                (self._signed[group],) = signatures
                self._alike[self._signed[group]] = self._alike.get(self._signed[group], 0) | 1 << group

    @follows("fusion_segmenter", "CombineReductions", 2711, 3211)
    def masks(self) -> Iterator[int]:
        """Yield the convex sets that may be combined as bit masks, in nvFuser's order; some come twice."""
        self._follow_merges()
        if not any(map(_several, self._alike.values())):
            return
        reach, signed, alike = self._grouping.reach(), self._signed, dict(self._alike)
        with_reduction = functools.reduce(operator.or_, alike.values())
        output_edges = self._grouping.output_edges()
        siblings = [readers for readers in self._readers.values() if _several(readers)]
        for first, signature in signed.items():
            barred = self._committed | with_reduction & ~alike[signature]
            for second in bits(alike[signature]):
                if first == second:
                    continue
                if reach.leads(first, second):
                    masks: Iterable[int] = (reach.between(first, second),)
                elif first < second and not reach.leads(second, first):
                    masks = self._beside(first, second, siblings, barred)
                else:
                    continue
                for mask in masks:
                    if not mask & barred and not any(mask & edge == edge for edge in output_edges):
                        yield mask

    def _beside(
        self, first: GroupId, second: GroupId, siblings: Sequence[int], barred: int,
    ) -> Iterator[int]:
        """Yield sets that lead from readers of a common source to two groups side by side, nearest first.

        Only sources that lead to no other common source count.
        """
        grouping, reach = self._grouping, self._grouping.reach()
        to_first, to_second = reach.above[first] | 1 << first, reach.above[second] | 1 << second
        common = to_first & to_second
        last = common & ~functools.reduce(operator.or_, (reach.above[group] for group in bits(common)), 0)
        order = reversed(grouping.topological()) if common else ()
        nearest = (grouping.consumers(g) for g in order if last >> g & 1)
        of_inputs = (tuple(bits(readers & (to_first | to_second))) for readers in siblings if not readers & common)
        seen: set[int] = set()
        for readers in itertools.chain(nearest, of_inputs):
            left = [h for r in readers if to_first >> r & 1 and not (h := reach.between(r, first)) & barred]
            right = [h for r in readers if to_second >> r & 1 and not (h := reach.between(r, second)) & barred]
            for a in left:
                for b in right:
                    if a | b not in seen:
                        seen.add(a | b)
                        if reach.is_convex(a | b):
                            yield a | b


class Cores:
    """Sets of groups that no larger set may contain."""

    def __init__(self) -> None:
        self._partners: dict[GroupId, int] = {}  # the other members of forbidden pairs, as a mask
        self._larger: set[int] = set()

    def add(self, core: int) -> None:
        """Add a set of groups."""
        first, *others = bits(core)
        if len(others) != 1:
            self._larger.add(core)
            return
        for group, other in ((first, others[0]), (others[0], first)):
            self._partners[group] = self._partners.get(group, 0) | 1 << other

    def within(self, mask: int) -> bool:
        """Return whether a set of groups contains one of these."""
        partners = self._partners
        return any(partners.get(group, 0) & mask for group in bits(mask)) or any(
            mask & core == core for core in self._larger
        )

    def merge(self, members: Iterable[GroupId], union: GroupId) -> None:
        """Replace some groups by their union."""
        members = tuple(members)
        mask = mask_of(members)
        partners = functools.reduce(operator.or_, [self._partners.pop(member, 0) for member in members], 0)
        for partner in bits(partners & ~mask):
            self._partners[partner] &= ~mask
            self.add(1 << partner | 1 << union)
        changed = {core for core in self._larger if core & mask}
        self._larger -= changed
        for core in changed:
            self.add(core & ~mask | 1 << union)


def _several(mask: int) -> bool:
    """Whether a bit mask has more than one group."""
    return bool(mask & (mask - 1))


def _reduction_signature(expr: Expr) -> Signature:
    """Return rank and reduced positions of a reduction's result."""
    logical = expr.out.domain.logical
    return len(logical), tuple(i for i, axis in enumerate(logical) if axis.is_reduction)

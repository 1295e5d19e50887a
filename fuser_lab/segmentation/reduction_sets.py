"""Sets of groups whose reductions may be computed together."""

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush

from fuser_lab.analysis.bit_masks import bits, mask_of
from fuser_lab.cost.rules import follows
from fuser_lab.ir import Expr, Fusion, OpKind
from fuser_lab.segmentation.grouping import GroupId, Grouping, Reach

Signature = tuple[int, tuple[int, ...]]


class ReductionSets:
    """The convex sets of groups that contain reductions of one signature and no others.

    Pairs of reductions wait until their sets were yielded. After a merge only those wait again whose sets may differ:
    a set is new if it contains the union, or if the union is the common source of its two halves.

    Parameters
    ----------
    fusion
        The fusion of the groups.
    grouping
        The groups.
    committed
        Groups that no set contains.
    """

    def __init__(self, fusion: Fusion, grouping: Grouping, committed: Collection[GroupId]) -> None:
        self._grouping, self._committed = grouping, mask_of(committed)
        self._signed: dict[GroupId, Signature] = {}
        self._alike: dict[Signature, int] = {}
        self._first: list[GroupId] = []  # a heap of the groups with which pairs that wait begin
        self._begun = 0  # groups of which not all pairs wait, but those below
        self._waiting: dict[GroupId, int] = {}  # by group: those that it is to be combined with
        for group in grouping.groups:
            self._sign(group)
        if any(map(_several, self._alike.values())):
            self._read_inputs(fusion)
        else:
            self._first.clear()

    def _sign(self, group: GroupId) -> Signature | None:
        """Return the signature of the reductions in a group, or None; the group joins those alike."""
        reductions = (expr for expr in self._grouping.groups[group] if expr.kind is OpKind.REDUCTION)
        signatures = {_reduction_signature(expr) for expr in reductions}
        if len(signatures) != 1 or self._committed >> group & 1:
            return None
        (signature,) = signatures
        self._signed[group] = signature
        self._alike[signature] = self._alike.get(signature, 0) | 1 << group
        heappush(self._first, group)
        return signature

    def _read_inputs(self, fusion: Fusion) -> None:
        grouping = self._grouping
        read = {group: grouping.aux_values(group) for group in grouping.groups}
        outside = {value for values in read.values() for value in values}
        places = {value: place for place, value in enumerate(v for v in fusion.tensors.values() if v in outside)}
        self._readers = [0] * len(places)  # by value that no group computes: the groups that read it
        self._read: dict[GroupId, int] = {}  # by group: the places of these values among those
        self._read_above: dict[GroupId, int] = {}  # and of those that are read above it too
        for group in grouping.topological():
            self._read[group] = mask_of(places[value] for value in read[group])
            for place in bits(self._read[group]):
                self._readers[place] |= 1 << group
            above = [self._read_above[producer] for producer in grouping.producers(group)]
            self._read_above[group] = functools.reduce(operator.or_, above, self._read[group])
        self._output_edges = Cores()
        for edge in grouping.output_edges():
            self._output_edges.add(edge)

    def _wait(self, group: GroupId, others: int) -> None:
        others &= -2 << group | self._grouping.reach().below[group]
        if others:
            heappush(self._first, group)
            self._waiting[group] = self._waiting.get(group, 0) | others

    def merge(self, members: Collection[GroupId]) -> GroupId:
        """Replace a set of groups by their union and return its id."""
        grouping, mask = self._grouping, mask_of(members)
        union = grouping.merge(members, keep_reach=True)
        for member in members:
            self._waiting.pop(member, None)
            if member in self._signed:
                self._alike[self._signed.pop(member)] &= ~(1 << member)
        self._output_edges.merge(members, union)
        read, above = (
            functools.reduce(operator.or_, [table.pop(member) for member in members])
            for table in (self._read, self._read_above)
        )
        self._read[union], self._read_above[union] = read, above
        for place in bits(read):
            self._readers[place] = self._readers[place] & ~mask | 1 << union
        for group in bits(grouping.reach().below[union]):
            self._read_above[group] |= above
        signature = self._sign(union)
        if signature is None:  # groups that could not be combined with the members may be with the union
            self._begun, self._first = 0, sorted(self._signed)
        else:
            self._wait_for_union(union, signature)
        return union

    def _wait_for_union(self, union: GroupId, signature: Signature) -> None:
        """Let pairs wait whose sets may contain a union or have it as their common source."""
        for other, alike in self._alike.items():
            begun = alike & self._begun
            if not begun:
                continue
            barred = self._groups_outside(other)
            if other == signature:
                behind = alike & self._clear_below(union, barred)
                near = self._clear_above(union, barred) | self._beside_pairs(behind, barred)
                for group in bits(begun & (near | behind)):
                    self._wait(group, near & alike if behind >> group & 1 else behind)
            else:
                readers = self._grouping.consumers(union)
                behind = alike & self._union(self._clear_below(reader, barred) for reader in readers)
                for group in bits(begun & behind):
                    self._wait(group, behind)

    @staticmethod
    def _union(masks: Iterable[int]) -> int:
        return functools.reduce(operator.or_, masks, 0)

    def _groups_outside(self, signature: Signature) -> int:
        """Return the groups that no set of a signature contains."""
        return self._committed | self._union(alike for other, alike in self._alike.items() if other != signature)

    def _clear_below(self, group: GroupId, barred: int) -> int:
        """Return a group and those below that no barred group is on a path to, or none if the group is barred."""
        return 0 if barred >> group & 1 else _clear(group, self._grouping.reach().below, barred)

    def _clear_above(self, group: GroupId, barred: int) -> int:
        """Return a group and those above that no barred group is on a path from."""
        return _clear(group, self._grouping.reach().above, barred)

    def _beside_pairs(self, groups: int, barred: int) -> int:
        """Return groups that include all to which a set may lead from a source in common with one of some groups."""
        grouping = self._grouping
        if groups.bit_count() > MOST_SEARCHED:
            return -1
        above = self._union(self._clear_above(group, barred) for group in bits(groups))
        if above.bit_count() > MOST_SEARCHED:
            return -1
        sources = {producer for group in bits(above) for producer in grouping.producers(group)}
        places = self._union(self._read[group] for group in bits(above))
        readers = self._union(self._readers[place] for place in bits(places)) | mask_of(
            {consumer for source in sources for consumer in grouping.consumers(source)},
        )
        if readers.bit_count() > MOST_SEARCHED:
            return -1
        return self._union(self._clear_below(reader, barred) for reader in bits(readers))

    @follows("fusion_segmenter", "CombineReductions", 2711, 3211)
    def masks(self) -> Iterator[int]:
        """Yield the convex sets that may be combined as bit masks, in nvFuser's order; some come twice.

        After a merge, only sets that were not yielded before are certain to come.
        """
        reach = self._grouping.reach() if self._first else None
        while self._first and reach is not None:
            first = self._first[0]
            signature = self._signed.get(first)
            if signature is not None and not self._begun >> first & 1:
                self._begun |= 1 << first
                self._waiting[first] = self._alike[signature] & ~(1 << first)
            if signature is None or not self._waiting.get(first):
                heappop(self._first)
                continue
            barred = self._groups_outside(signature)
            beside = self._beside_pairs(1 << first, barred) & ~reach.below[first] & ~reach.above[first]
            self._waiting[first] &= self._alike[signature] & (self._clear_below(first, barred) | beside & -2 << first)
            while self._waiting[first]:
                lowest = self._waiting[first] & -self._waiting[first]
                self._waiting[first] ^= lowest
                second = lowest.bit_length() - 1
                path = reach.leads(first, second)
                masks = (reach.between(first, second),) if path else self._beside(first, second, barred)
                for mask in masks:
                    if not mask & barred and not self._output_edges.within(mask):
                        yield mask

    def _beside(self, first: GroupId, second: GroupId, barred: int) -> Iterator[int]:
        """Yield sets that lead from readers of a common source to two groups side by side, nearest first.

        Only sources that lead to no other common source count.
        """
        grouping, reach = self._grouping, self._grouping.reach()
        to_first, to_second = reach.above[first] | 1 << first, reach.above[second] | 1 << second
        common = to_first & to_second
        last = _ends(common, reach)
        if len(last) > 1:
            last = [group for group in reversed(grouping.topological()) if group in set(last)]
        nearest = (grouping.consumers(group) for group in last)
        read = self._read_above[first] & self._read_above[second]
        places = read & ~self._union(self._read_above[group] for group in last)
        of_inputs = (tuple(bits(self._readers[place] & (to_first | to_second))) for place in bits(places))
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


MOST_SEARCHED = 8  # groups around a reduction whose surroundings are looked up; otherwise all reductions are tried


def _clear(group: GroupId, reached: Mapping[GroupId, int], barred: int) -> int:
    """Return a group and those it reaches, without those that a barred group reaches too."""
    clear = reached[group] | 1 << group
    waiting = barred & reached[group]
    while waiting:
        barrier = (waiting & -waiting).bit_length() - 1
        behind = reached[barrier] | 1 << barrier
        clear, waiting = clear & ~behind, waiting & ~behind
    return clear


def _ends(groups: int, reach: Reach) -> list[GroupId]:
    """Return those groups of a set that lead to no other one of the set."""
    ends = []
    while groups:
        group = groups.bit_length() - 1
        while further := reach.below[group] & groups:
            group = further.bit_length() - 1
        ends.append(group)
        groups &= ~(reach.above[group] | 1 << group)
    return ends


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

"""Sets of groups whose reductions may be computed together: CombineReductions of csrc/fusion_segmenter.cpp."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.segmentation.grouping import GroupId, Grouping

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
        self._tensors = tuple(fusion.tensors.values())
        self._grouping, self._committed = grouping, frozenset(committed)
        self._signed: dict[GroupId, frozenset[Signature]] = {}

    def _signatures(self) -> dict[GroupId, Signature]:
        found = {}
        for group, exprs in self._grouping.groups.items():
            if group not in self._signed:
                reductions = (e for e in exprs if e.kind is OpKind.REDUCTION)
                self._signed[group] = frozenset(_reduction_signature(e) for e in reductions)
            if len(self._signed[group]) == 1 and group not in self._committed:
                found[group] = next(iter(self._signed[group]))
        return found

    def masks(self) -> Iterator[int]:
        """Yield the convex sets that may be combined as bit masks, in nvFuser's order; some come twice."""
        reach = self._grouping.reach()
        signatures = self._signatures()
        alike: dict[Signature, list[GroupId]] = {}
        for group, signature in signatures.items():
            alike.setdefault(signature, []).append(group)
        if all(len(groups) < 2 for groups in alike.values()):
            return
        all_of = {signature: _mask(groups) for signature, groups in alike.items()}
        committed, with_reduction = _mask(self._committed), _mask(signatures)
        output_edges = self._grouping.output_edges()
        siblings: list[tuple[GroupId, ...]] | None = None
        for first, signature in signatures.items():
            barred = committed | with_reduction & ~all_of[signature]
            for second in alike[signature]:
                if first == second:
                    continue
                if reach.leads(first, second):
                    masks: Iterable[int] = (reach.between(first, second),)
                elif first < second and not reach.leads(second, first):
                    siblings = list(self._readers_of_inputs()) if siblings is None else siblings
                    masks = self._beside(first, second, siblings, barred)
                else:
                    continue
                for mask in masks:
                    if not mask & barred and not any(mask & edge == edge for edge in output_edges):
                        yield mask

    def _beside(
        self, first: GroupId, second: GroupId, siblings: Sequence[tuple[GroupId, ...]], barred: int,
    ) -> Iterator[int]:
        """Yield sets that lead from readers of a common source to two groups side by side, nearest first."""
        grouping, reach = self._grouping, self._grouping.reach()
        to_first, to_second = reach.above[first] | 1 << first, reach.above[second] | 1 << second
        common = to_first & to_second
        nearest = (grouping.consumers(g) for g in reversed(grouping.topological()) if common >> g & 1)
        seen: set[int] = set()
        for readers in (*nearest, *siblings):
            left = [h for r in readers if to_first >> r & 1 and not (h := reach.between(r, first)) & barred]
            right = [h for r in readers if to_second >> r & 1 and not (h := reach.between(r, second)) & barred]
            for a in left:
                for b in right:
                    if a | b not in seen:
                        seen.add(a | b)
                        if reach.is_convex(a | b):
                            yield a | b

    def _readers_of_inputs(self) -> Iterator[tuple[GroupId, ...]]:
        """Yield the sets of several groups that read the same input or forwarded value."""
        readers: dict[TensorView, list[GroupId]] = {}
        for group in self._grouping.groups:
            for value in self._grouping.aux_values(group):
                readers.setdefault(value, []).append(group)
        for value in self._tensors:
            if len(readers.get(value, ())) > 1:
                yield tuple(readers[value])


def _mask(groups: Iterable[GroupId]) -> int:
    return sum(1 << group for group in groups)


def _reduction_signature(expr: Expr) -> Signature:
    """Return rank and reduced positions of a reduction's result."""
    logical = expr.out.domain.logical
    return len(logical), tuple(i for i, axis in enumerate(logical) if axis.is_reduction)

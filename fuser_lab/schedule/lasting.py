"""Refusals for good that follow from the rules of all schedulers together, where none of them alone is one.

Each scheduler stops at the first rule that is broken, which a larger candidate may keep. What stands here holds for
every larger candidate too, because expressions that are inside stay inside, and with them what depends on what:

* Only Reduction, InnerPersistent, OuterPersistent and InnerOuterPersistent ever hold a reduction.
* The first three take reductions of one kind (inner or outer) and of the same places and extents only.
* InnerOuterPersistent takes both kinds, of complementary places. No reduction may need an outer one, nothing may join
  what follows the two kinds, and no column's result may be widened to rows again.

Which axes a reduction takes away, their extents, and whether the innermost is among them are properties of the
expression; they do not depend on what else is in a candidate.
"""

from functools import lru_cache

from fuser_lab.analysis.reductions import ReductionPattern
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Reason, reason
from fuser_lab.ir import Fusion
from fuser_lab.schedule.facts import CandidateFacts

Places = tuple[tuple[int, bool], ...]


def lasting_reason(facts: CandidateFacts) -> Reason | None:
    """Return why a candidate and every larger one are refused by all schedulers, as far as reductions tell."""
    found = facts.patterns if facts.reduction is not None else ()
    if len(found) < 2 or _has_empty_tensor(facts.candidate.fusion):  # NoOp takes what has no elements
        return None
    inner = [p for p in found if p.inner]
    outer = [p for p in found if not p.inner]
    return _other_places(facts, inner) or _other_places(facts, outer) or _both_kinds(facts, inner, outer)


@lru_cache(maxsize=64)
def _has_empty_tensor(fusion: Fusion) -> bool:
    return any(tensor.numel == 0 for tensor in fusion.tensors.values())


def _places(facts: CandidateFacts, pattern: ReductionPattern) -> Places:
    """Return the extent of each axis and whether it is reduced; patterns with equal axes have equal places."""
    return tuple((facts.exact.extent[c], reduced) for c, reduced in pattern.axes)


def _other_places(facts: CandidateFacts, found: list[ReductionPattern]) -> Reason | None:
    """Return which two reductions of one kind no scheduler accepts together, or None."""
    for other in found[1:]:
        if _places(facts, other) != _places(facts, found[0]):
            first = found[0]
            return reason(
                ReasonCode.PATTERN_MISMATCH, first=first.name, second=other.name, first_numel=first.numel,
                first_rows=first.rows, second_numel=other.numel, second_rows=other.rows,
            )
    return None


def _both_kinds(
    facts: CandidateFacts, inner: list[ReductionPattern], outer: list[ReductionPattern],
) -> Reason | None:
    """Return why inner and outer reductions can never share a kernel, or None."""
    if not inner or not outer:
        return None
    rows, columns = inner[0], outer[0]
    if _places(facts, columns) != tuple((extent, not reduced) for extent, reduced in _places(facts, rows)):
        return reason(
            ReasonCode.NOT_COMPLEMENTARY, inner=rows.name, inner_axes=_reduced(rows), outer=columns.name,
            outer_axes=_reduced(columns),
        )
    return _tied(facts, {p.name for p in inner}, {p.name for p in outer}) or _widened(facts)


def _reduced(pattern: ReductionPattern) -> str:
    return f"{[i for i, (_, reduced) in enumerate(pattern.axes) if reduced]} of {len(pattern.axes)} axes"


def _tied(facts: CandidateFacts, inner: set[str], outer: set[str]) -> Reason | None:
    """Return a reduction that needs an outer one, or what joins the results of both kinds, or None."""
    after_outer: dict[str, str] = {}
    after_inner: dict[str, str] = {}
    for link in facts.links:
        column = next((after_outer[name] for name in link.operands if name in after_outer), None)
        row = next((after_inner[name] for name in link.operands if name in after_inner), None)
        if column is not None and link.name in inner | outer:
            return reason(ReasonCode.OUTER_BEFORE_INNER, first=column, second=link.name)
        if column is not None and row is not None:
            return reason(ReasonCode.SHARED_CONSUMER, user=link.name, inner=row, outer=column)
        if link.name in outer:
            after_outer[link.name] = link.name  # what a column adds up may well come after a row's reduction
        elif column is not None:
            after_outer[link.name] = column
        elif link.name in inner:
            after_inner[link.name] = link.name
        elif row is not None:
            after_inner[link.name] = row
    return None


def _widened(facts: CandidateFacts) -> Reason | None:
    """Return what widens a column's result to rows again, or None."""
    columns = sum(1 << i for i, p in enumerate(facts.patterns) if not p.inner)
    for name, new in facts.flow.broadcasts_after():
        for number in new if facts.flow.after[name] & columns else ():
            for target, user in facts.exact.concretized.get(number, {}).items():
                extent = facts.exact.extent[target]
                return reason(ReasonCode.BROADCAST_AFTER_REDUCTION, tensor=name, user=user, extent=extent)
    return None

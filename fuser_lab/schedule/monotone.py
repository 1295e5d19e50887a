"""Monotone refusals that follow from the rules of all schedulers together, although no single rule implies them.

Each scheduler stops at the first rule that is broken, and a larger candidate may satisfy that rule. The refusals here
hold for every larger candidate too, because it contains the same expressions with the same dependences:

* Only Reduction, InnerPersistent, OuterPersistent and InnerOuterPersistent accept a reduction.
* The first three accept only reductions of one kind (inner or outer) with the same positions and extents.
* InnerOuterPersistent accepts both kinds, with complementary positions. No reduction may depend on an outer one,
  nothing may combine results of the two kinds, and no column's result may be broadcast to rows again.

The axes that a reduction reduces, their extents, and whether the innermost is among them are properties of the
expression and do not depend on the rest of a candidate.
"""

from fuser_lab.analysis.reductions import ReductionPattern
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Reason, reason
from fuser_lab.schedule.facts import CandidateFacts, mismatch

Places = tuple[tuple[int, bool], ...]


def monotone_reason(facts: CandidateFacts) -> Reason | None:
    """Return why all schedulers refuse a candidate and every larger one because of its reductions, or None."""
    patterns = facts.patterns if facts.reduction is not None else ()
    if len(patterns) < 2 or facts.candidate.fusion.has_empty_tensor:  # NoOp accepts tensors without elements
        return None
    inner = [p for p in patterns if p.inner]
    outer = [p for p in patterns if not p.inner]
    return _other_places(facts, inner) or _other_places(facts, outer) or _both_kinds(facts, inner, outer)


def _places(facts: CandidateFacts, pattern: ReductionPattern) -> Places:
    """Return the extent of each axis and whether it is reduced; equal for patterns with equal axes."""
    return tuple((facts.exact.extent[c], reduced) for c, reduced in pattern.axes)


def _other_places(facts: CandidateFacts, patterns: list[ReductionPattern]) -> Reason | None:
    """Return two reductions of one kind that no scheduler accepts together, or None."""
    for other in patterns[1:]:
        if _places(facts, other) != _places(facts, patterns[0]):
            return mismatch(patterns[0], other)
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
            ReasonCode.NOT_COMPLEMENTARY, inner=rows.name, inner_axes=rows.places, outer=columns.name,
            outer_axes=columns.places,
        )
    return _tied_reductions(facts, {p.name for p in inner}, {p.name for p in outer}) or _widened_result(facts)


def _tied_reductions(facts: CandidateFacts, inner: set[str], outer: set[str]) -> Reason | None:
    """Return a reduction that depends on an outer one, or an expression that combines both kinds, or None."""
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
            after_outer[link.name] = link.name  # a column may add up values that come after a row's reduction
        elif column is not None:
            after_outer[link.name] = column
        elif link.name in inner:
            after_inner[link.name] = link.name
        elif row is not None:
            after_inner[link.name] = row
    return None


def _widened_result(facts: CandidateFacts) -> Reason | None:
    """Return what broadcasts a column's result to rows again, or None."""
    columns = sum(1 << i for i, p in enumerate(facts.patterns) if not p.inner)
    for name, new in facts.flow.broadcasts_after:
        for number in new if facts.flow.after[name] & columns else ():
            for target, user in facts.exact.concretized.get(number, {}).items():
                extent = facts.exact.extent[target]
                return reason(ReasonCode.BROADCAST_AFTER_REDUCTION, tensor=name, user=user, extent=extent)
    return None

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
from fuser_lab.schedule.inner_outer_persistent import other_places, tied_reductions

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
        return other_places(rows, columns)
    tied = tied_reductions(facts)
    return _widened_result(facts) if tied is None else tied[0]


def _widened_result(facts: CandidateFacts) -> Reason | None:
    """Return what broadcasts a column's result to rows again, or None."""
    columns = sum(1 << i for i, p in enumerate(facts.patterns) if not p.inner)
    for name, new in facts.flow.broadcasts_after:
        for number in new if facts.flow.after[name] & columns else ():
            for target, user in facts.exact.concretized.get(number, {}).items():
                extent = facts.exact.extent[target]
                return reason(ReasonCode.BROADCAST_AFTER_REDUCTION, tensor=name, user=user, extent=extent)
    return None

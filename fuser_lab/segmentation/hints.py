"""The rule about ``segment_set`` that comes before any scheduler."""

from functools import lru_cache

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, Reason, SchedulerType, reason, refuse
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import Candidate


def has_hints(fusion: Fusion, options: SegmenterOptions) -> bool:
    """Whether a ``segment_set`` in the fusion counts."""
    return options.segment_set is not SegmentSetMeaning.IGNORE and any(map(is_hint, fusion.exprs))


def is_hint(expr: Expr) -> bool:
    """Whether an expression is a ``segment_set``."""
    return expr.op.name == "segment_set"


def refused_by_hint(group: Candidate, options: SegmenterOptions) -> Answer | None:
    """Return the refusal of a group that a hint forbids, or None.

    As a hint, ``segment_set`` may only be a sink of its group: its result is an output and nothing inside reads it
    (csrc/fusion_segmenter.cpp, tryingToMergeSegmenterSet). As a cut, the group also may not hold expressions before
    and after it.
    """
    if options.segment_set is SegmentSetMeaning.IGNORE:
        return None
    inside = set(group.exprs)
    for expr in group.exprs:
        if is_hint(expr) and (
            expr.out not in group.outputs or any(u in inside for u in group.fusion.users.get(expr.out, ()))
        ):
            return _refusal(reason(ReasonCode.SEGMENT_SET_INSIDE, tensor=expr.name), expr.name)
    if options.segment_set is SegmentSetMeaning.CUT:
        members = sum(1 << group.fusion.positions[expr.name] for expr in group.exprs)
        for hint, (before, after) in sides_of_hints(group.fusion).items():
            if members & before and members & after:
                names = [_first(group, mask) for mask in (before, after)]
                why = reason(ReasonCode.ACROSS_CUT, before=names[0], after=names[1], tensor=hint)
                return _refusal(why, *names)
    return None


def _first(group: Candidate, mask: int) -> str:
    return next(expr.name for expr in group.exprs if mask >> group.fusion.positions[expr.name] & 1)


def _refusal(why: Reason, *core: str) -> Answer:
    return Answer(tuple(refuse(kind, why, *core, monotone=True) for kind in SchedulerType))


@lru_cache(maxsize=64)
def sides_of_hints(fusion: Fusion) -> dict[str, tuple[int, int]]:
    """Return, per hint, the expressions up to and including it and those behind it, as bit masks over positions."""
    above: dict[str, int] = {}
    for place, expr in enumerate(fusion.exprs):
        makers = [fusion.producers[v] for v in expr.inputs if v in fusion.producers]
        mask = 1 << place
        for maker in makers:
            mask |= above[maker.name]
        above[expr.name] = mask
    found = {}
    for place, expr in enumerate(fusion.exprs):
        if is_hint(expr):
            behind = sum(1 << i for i, e in enumerate(fusion.exprs) if i != place and above[e.name] >> place & 1)
            found[expr.name] = (above[expr.name], behind)
    return found

"""The rule about ``segment_set`` that comes before any scheduler."""

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Answer, Reason, SchedulerType, reason, refuse
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import Candidate

# Codes of the refusals that come before any scheduler.
BY_HINT = frozenset({ReasonCode.SEGMENT_SET_INSIDE.value, ReasonCode.ACROSS_CUT.value})


def has_hints(fusion: Fusion, options: SegmenterOptions) -> bool:
    """Whether the fusion has a ``segment_set`` that is not ignored."""
    return options.segment_set is not SegmentSetMeaning.IGNORE and any(map(is_hint, fusion.exprs))


def is_hint(expr: Expr) -> bool:
    """Whether an expression is a ``segment_set``."""
    return expr.op.name == "segment_set"


@follows("fusion_segmenter", "tryingToMergeSegmenterSet", 1943, 1958, ReasonCode.SEGMENT_SET_INSIDE)
def refused_by_hint(group: Candidate, options: SegmenterOptions) -> Answer | None:
    """Return the refusal of a group that a hint forbids, or None.

    As a hint, ``segment_set`` may only be a sink of its group: its result is an output and nothing inside reads it. As
    a cut, the group also may not contain expressions both before and after it.
    """
    if options.segment_set is SegmentSetMeaning.IGNORE or not sides_of_hints(group.fusion).hints:
        return None
    inside = set(group.exprs)
    for expr in group.exprs:
        if is_hint(expr) and (
            expr.out not in group.outputs or any(u in inside for u in group.fusion.users.get(expr.out, ()))
        ):
            return _refusal(reason(ReasonCode.SEGMENT_SET_INSIDE, tensor=expr.name), expr.name)
    return _refused_by_cut(group) if options.segment_set is SegmentSetMeaning.CUT else None


def _refused_by_cut(group: Candidate) -> Answer | None:
    sides, place = sides_of_hints(group.fusion), group.fusion.positions
    here = [(expr.name, *sides.of[place[expr.name]]) for expr in group.exprs if expr.tensor_outputs]
    before = after = 0
    for _, above, below in here:
        before |= above
        after |= below
    crossed = before & after
    if not crossed:
        return None
    first = crossed & -crossed
    a = next(name for name, above, _ in here if above & first)
    b = next(name for name, _, below in here if below & first)
    hint = group.fusion.exprs[sides.hints[first.bit_length() - 1]].name
    why = reason(ReasonCode.ACROSS_CUT, before=a, after=b, tensor=hint)
    return _refusal(why, a, b)


def _refusal(why: Reason, *core: str) -> Answer:
    return Answer(tuple(refuse(kind, why, *core, monotone=True) for kind in SchedulerType))


@dataclass(frozen=True, slots=True)
class Sides:
    """By places among the expressions: the hints in order, and for each expression two bit masks over them.

    The one has the hints that need the expression, itself included, the other those that the expression needs.
    """

    hints: tuple[int, ...]
    of: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def sides_of_hints(fusion: Fusion) -> Sides:
    """Return the side of each hint on which each expression is; names of values do not matter."""
    place = fusion.positions
    hints = tuple(i for i, expr in enumerate(fusion.exprs) if is_hint(expr))
    bit_of = {i: 1 << number for number, i in enumerate(hints)}
    needed: list[int] = []
    for expr in fusion.exprs:
        makers = (place[fusion.producers[v].name] for v in expr.inputs if v in fusion.producers)
        needed.append(reduce(or_, (needed[maker] | bit_of.get(maker, 0) for maker in makers), 0))
    needing: dict[int, int] = {}
    for i, expr in reversed(tuple(enumerate(fusion.exprs))):
        users = (place[user.name] for value in expr.outputs for user in fusion.users.get(value, ()))
        needing[i] = reduce(or_, (needing[user] for user in users), bit_of.get(i, 0))
    return Sides(hints, tuple((needing[i], needed[i]) for i in range(len(fusion.exprs))))

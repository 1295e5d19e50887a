"""Open schedulers: nvFuser's schedulers with some rules lifted that a lowering does not need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Reason, SchedulerType, Verdict, accept, reason, refuse
from fuser_lab.schedule.base import OtherVerdicts, Scheduler
from fuser_lab.schedule.expr_eval import ExprEval
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.segmentation.oracle import Candidate

# Rules of nvFuser's schedulers that state what its kernels cannot do, or do not do because it would be slow. The other
# rules state what a scheduler is for, or apply to every kernel: matrix products, hints and cuts.
LIFTABLE: tuple[ReasonCode, ...] = (
    ReasonCode.EVALUATED_ONLY, ReasonCode.SELF_MAPPED, ReasonCode.RESIZE_AND_INDEXING, ReasonCode.CYCLIC_RESHAPE,
    ReasonCode.CONFLICTING_RESHAPES, ReasonCode.INDEX_INPUT, ReasonCode.INDEXED_BEFORE_REDUCTION,
    ReasonCode.BROADCAST_NOT_UNIQUE, ReasonCode.OUTPUT_NOT_COVERED,
    ReasonCode.INPUT_NOT_COVERED, ReasonCode.AXIS_LOST, ReasonCode.RESIZED_BROADCAST, ReasonCode.RESIZED_WITH_BROADCAST,
    ReasonCode.RESIZE_BETWEEN_OUTPUTS, ReasonCode.TRANSPOSE_LIKE,
    ReasonCode.RESHAPE_MIXES, ReasonCode.PATTERN_MISMATCH, ReasonCode.PERSISTENT_BUFFER,
    ReasonCode.BROADCAST_AFTER_REDUCTION, ReasonCode.BROADCAST_ELSEWHERE, ReasonCode.NEW_INPUT_AFTER_REDUCTION,
    ReasonCode.EXPANDED_AFTER_REDUCTION, ReasonCode.REDUCTIONS_OF_BOTH_KINDS, ReasonCode.BUFFER_TOO_LARGE,
    ReasonCode.NOT_ENOUGH_BLOCKS, ReasonCode.COLUMNS_TOO_LARGE, ReasonCode.COLUMNS_NOT_WELFORD,
    ReasonCode.COLUMNS_NOT_VECTORIZED, ReasonCode.COLUMNS_TOO_FEW, ReasonCode.COLUMNS_NO_GRID,
    ReasonCode.COLUMNS_UNEVEN, ReasonCode.NOT_ENOUGH_COLUMNS,
    ReasonCode.AXES_INTERLEAVED, ReasonCode.NOT_COMPLEMENTARY, ReasonCode.NO_SHARED_INPUT, ReasonCode.SHARED_CONSUMER,
    ReasonCode.CONNECTED_BESIDES,
    ReasonCode.OUTER_BEFORE_INNER, ReasonCode.ROWS_AND_SUMS_TOO_LARGE, ReasonCode.NO_PERSISTENT_BUFFER,
    ReasonCode.PARTLY_REDUCED, ReasonCode.GREEDY_FOREIGN_OP, ReasonCode.GREEDY_OTHER_AXES, ReasonCode.GREEDY_MERGED,
    ReasonCode.GREEDY_LONG_PAD, ReasonCode.GREEDY_REGISTERS,
)


class Lowering(Protocol):
    """The lowering that an open scheduler asks whether a candidate can be one kernel."""

    def refusal(self, candidate: Candidate, scheduler: SchedulerType, device: Device) -> Reason | None:
        """Return why the candidate cannot be one kernel of a scheduler's kind on a device, or None."""


@dataclass(frozen=True, slots=True)
class OpenScheduler(OtherVerdicts):
    """Accepts what a scheduler would accept without the rules ``lifted``, if the lowering makes one kernel of it.

    The acceptance names the rules that were lifted. A candidate that the scheduler accepts by itself, or refuses
    because of another rule, is refused with the scheduler's reason.
    """

    lifted: tuple[ReasonCode, ...]
    lowering: Lowering

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance with the lifted rules that it breaks, or the refusal with its reason."""
        opened = facts.lifting(frozenset(self.lifted))
        verdict = self.scheduler.can_schedule(opened, device)
        beyond = tuple(opened.exceeded)
        if not verdict.accepted and verdict.reason is not None:
            if verdict.reason.code not in opened.lifted:
                return verdict
            beyond = (*beyond, verdict.reason.code)  # rules about sizes and outputs come last
        why = self.lowering.refusal(facts.candidate, self.type, device)
        if why is not None:
            return refuse(self.type, why, *facts.names)
        if not beyond:
            return verdict
        text = reason(ReasonCode.BEYOND, rules=", ".join(code.value for code in beyond))
        return accept(self.type, text, persistent=verdict.persistent, beyond=beyond)


def open_versions(
    schedulers: tuple[Scheduler, ...], lifted: tuple[ReasonCode, ...], lowering: Lowering,
) -> tuple[Scheduler, ...]:
    """Return nvFuser's schedulers, followed by open versions of those with kernels, without the rules ``lifted``.

    A candidate that nvFuser accepts is accepted by the same scheduler as before, but for a scan or a gather alone, of
    which only nvFuser has no kernel. Among the open schedulers, those that keep rows are asked before the one that
    keeps nothing. There is no open Transpose, because an open PointWise accepts the same candidates and the lowering
    chooses tiles where they are faster.
    """
    by_type = {scheduler.type: scheduler for scheduler in schedulers}
    opened = ReasonCode.EVALUATED_ONLY in lifted
    return (
        *(replace(each, has_kernels=True) if isinstance(each, ExprEval) and opened else each for each in schedulers),
        *(OpenScheduler(by_type[kind], _lifted_of(kind, lifted), lowering) for kind in _ORDER),
    )


def rules_lifted(schedulers: Sequence[Scheduler], closed: tuple[Scheduler, ...]) -> tuple[ReasonCode, ...]:
    """Return the rules that `open_versions` lifted to make these schedulers; empty for schedulers from elsewhere."""
    rest = [scheduler for scheduler in schedulers[len(closed) :] if isinstance(scheduler, OpenScheduler)]
    rules = tuple(code for code in LIFTABLE if any(code in scheduler.lifted for scheduler in rest))
    return rules if rest and tuple(schedulers) == open_versions(closed, rules, rest[0].lowering) else ()


def _lifted_of(kind: SchedulerType, lifted: tuple[ReasonCode, ...]) -> tuple[ReasonCode, ...]:
    """Return the rules that are lifted for a scheduler.

    Rows and columns are traversed in the same way whether rows are kept or not; everything else that keeps nothing is a
    Reduction.
    """
    if kind is SchedulerType.INNER_OUTER_PERSISTENT:
        return lifted
    return tuple(code for code in lifted if code is not ReasonCode.NO_PERSISTENT_BUFFER)


_ORDER = (
    SchedulerType.RESIZE, SchedulerType.POINTWISE, SchedulerType.INNER_PERSISTENT, SchedulerType.OUTER_PERSISTENT,
    SchedulerType.INNER_OUTER_PERSISTENT, SchedulerType.REDUCTION, SchedulerType.GREEDY,
)

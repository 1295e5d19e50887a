"""Reduction: one pass over the operand, without a persistent buffer."""

from collections.abc import Iterator
from dataclasses import dataclass

from fuser_lab.analysis.reductions import ReductionPattern, mixing_reshape
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.schedule.base import Heuristics, common_gate, refusal_of_reductions
from fuser_lab.schedule.facts import CandidateFacts, Refusal


@dataclass(frozen=True, slots=True)
class Reduction(Heuristics):
    """Accepts reductions of the same axes whose operands are not needed again afterwards."""

    type: SchedulerType = SchedulerType.REDUCTION

    @follows("scheduler/reduction", "canScheduleCompileTime", 43, 48, ReasonCode.NO_REDUCTION)
    @follows("scheduler/reduction", "canScheduleCompileTime", 50, 54, ReasonCode.NO_TENSOR_INPUT)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        return refusal_of_reductions(self.type, facts, _rules) or accept(self.type)


def _rules(facts: CandidateFacts) -> Iterator[Refusal | None]:
    yield common_gate(facts)
    yield facts.index_input
    yield facts.indexed_before_reduction
    yield _kept_axes_refusal(facts)
    yield facts.pattern_mismatch
    yield facts.unique_broadcasts
    yield _widened_again(facts)
    yield _new_input(facts)
    yield reshape_mixes(facts, facts.patterns[0])
    yield facts.covered_by_reduction(inputs=True)
    yield facts.expanded_after


@follows("scheduler/registry_utils", "reductionInterferingView", 433, 554, ReasonCode.RESHAPE_MIXES)
def reshape_mixes(facts: CandidateFacts, pattern: ReductionPattern) -> Refusal | None:
    """Return why a reshape is incompatible with the loops of a reduction, or None."""
    if facts.reshape is None:
        return None
    mixing = mixing_reshape(facts.exact, pattern)
    if mixing is None:
        return None
    return reason(ReasonCode.RESHAPE_MIXES, tensor=mixing, reduction=pattern.name), (mixing, pattern.name)


@follows("scheduler/reduction", "canScheduleCompileTime", 161, 168, ReasonCode.PERSISTENT_BUFFER)
def _kept_axes_refusal(facts: CandidateFacts) -> Refusal | None:
    if not facts.buffers:
        return None
    buffer = facts.buffers[0]
    why = reason(
        ReasonCode.PERSISTENT_BUFFER, tensor=buffer.tensor.name, reduction=buffer.reduction, user=buffer.resolved_at,
    )
    return why, facts.names


@follows("scheduler/registry_utils", "hasPostReductionBCast", 867, 901, ReasonCode.BROADCAST_AFTER_REDUCTION)
def _widened_again(facts: CandidateFacts) -> Refusal | None:
    meets = facts.exact.concretized
    for name, new in facts.flow.broadcasts_after:
        for number in new:
            for target, user in meets.get(number, {}).items():
                extent = facts.exact.extent[target]
                why = reason(ReasonCode.BROADCAST_AFTER_REDUCTION, tensor=name, user=user, extent=extent)
                return why, facts.names
    return None


@follows("scheduler/registry_utils", "supportedPostReductionFusion", 909, 983, ReasonCode.NEW_INPUT_AFTER_REDUCTION)
def _new_input(facts: CandidateFacts) -> Refusal | None:
    pattern = facts.patterns[0]
    late_read = facts.flow.new_input_after() if pattern.inner else None
    if late_read is None:
        return None
    user, tensor = late_read
    why = reason(ReasonCode.NEW_INPUT_AFTER_REDUCTION, user=user, reduction=pattern.name, tensor=tensor)
    return why, facts.names

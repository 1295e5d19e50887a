"""PointWise: one loop nest over all elements of the widest output."""

from collections.abc import Iterator
from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept
from fuser_lab.ir import TensorView
from fuser_lab.schedule.base import Heuristics, common_gate, reference_without_reductions, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts, Refusal


@dataclass(frozen=True, slots=True)
class PointWise(Heuristics):
    """Accepts candidates without reductions, one output of which has loops that reach all axes of all tensors."""

    type: SchedulerType = SchedulerType.POINTWISE

    @follows("scheduler/pointwise", "canScheduleCompileTime", 262, 266, ReasonCode.HAS_REDUCTION)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        reference = reference_without_reductions(self.type, facts, _rules(facts))
        if not isinstance(reference, TensorView):
            return reference
        lost = facts.first_broken((facts.lost_axis,))
        return accept(self.type) if lost is None else refusal_verdict(self.type, lost)


def _rules(facts: CandidateFacts) -> Iterator[Refusal | None]:
    yield common_gate(facts)
    yield facts.index_input
    yield facts.unique_broadcasts

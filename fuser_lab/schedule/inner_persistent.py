"""InnerPersistent: rows are kept on chip while they are reduced, then used again (softmax, normalizations)."""

from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.rules import follows
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.persistent import LARGE_REDUCTION, keep_exp_up_to, kept_bytes, refusal_of_any_size


@dataclass(frozen=True, slots=True)
class InnerPersistent(Heuristics):
    """Accepts reductions of the innermost axis whose operands are needed again, if a row fits."""

    type: SchedulerType = SchedulerType.INNER_PERSISTENT

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance with the bytes kept, or the first rule that is broken."""
        return refusal_of_any_size(self.type, facts, inner_only) or self._fits(facts, device)

    @follows("scheduler/normalization_inner", "canScheduleRunTime", 134, 161, ReasonCode.BUFFER_TOO_LARGE)
    @follows("scheduler/normalization_inner", "canScheduleRunTime", 179, 193, ReasonCode.NOT_ENOUGH_BLOCKS)
    def _fits(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return whether one multiprocessor, or the largest cluster that the device launches, keeps a row."""
        pattern = facts.patterns[0]
        size, kept = kept_bytes(facts.flow, device.persistent_bytes, keep_exp_up_to(device))
        most = 1 if pattern.is_split else device.largest_cluster  # clusters reduce only rows that are contiguous
        limit = device.persistent_bytes * most
        names = ", ".join(kept)
        if size > limit:
            return no(
                self.type, ReasonCode.BUFFER_TOO_LARGE, *facts.names, bytes=size, tensors=names, limit=limit,
                sm=device.persistent_bytes, cluster=most,
            )
        needed = device.sms // 8
        if pattern.numel >= LARGE_REDUCTION and pattern.rows < needed:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_BLOCKS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=pattern.rows, needed=needed,
            )
        if size <= device.persistent_bytes:
            why = reason(ReasonCode.BUFFER_FITS, bytes=size, tensors=names, limit=device.persistent_bytes)
            return accept(self.type, why, persistent=True)
        cluster = 2
        while cluster * device.persistent_bytes < size:
            cluster *= 2
        why = reason(
            ReasonCode.BUFFER_NEEDS_CLUSTER, bytes=size, tensors=names, limit=device.persistent_bytes, cluster=cluster,
        )
        return accept(self.type, why, persistent=True)


@follows(
    "scheduler/normalization_utils", "compileTimeCheck", 1220, 1231,
    ReasonCode.REDUCTION_IS_OUTER, ReasonCode.REDUCTIONS_OF_BOTH_KINDS,
)
def inner_only(facts: CandidateFacts) -> Refusal | None:
    """Return why not every reduction touches the innermost axis, or None."""
    outer = next((p for p in facts.patterns if not p.inner), None)
    if outer is None:
        return None
    inner = next((p for p in facts.patterns if p.inner), None)
    if inner is None:
        return reason(ReasonCode.REDUCTION_IS_OUTER, tensor=outer.name), (outer.name,)
    return reason(ReasonCode.REDUCTIONS_OF_BOTH_KINDS, inner=inner.name, outer=outer.name), (inner.name, outer.name)

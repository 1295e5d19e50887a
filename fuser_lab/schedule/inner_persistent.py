"""InnerPersistent: rows are kept on chip while they are reduced, then used again (softmax, normalizations)."""

from dataclasses import dataclass

from fuser_lab.analysis.buffer_sizes import buffer_sizes
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.rules import follows
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.persistent import (
    ACCESS_BYTES,
    SHARED_ALIGNMENT,
    aligned,
    keep_exp_up_to,
    kept_bytes,
    reduction_workspace,
    refusal_of_any_size,
)


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
        room = _room(facts, device, again=False)
        size, kept = kept_bytes(facts.flow, room, keep_exp_up_to(device))
        if room > device.persistent_bytes:
            room = _room(facts, device, again=size < buffer_sizes(facts.flow).kept)
        most = 1 if pattern.is_split else device.largest_cluster  # clusters reduce only rows that are contiguous
        # The blocks of a cluster run at once, on at most half of all multiprocessors.
        limit = min(room * most, max(room, device.persistent_bytes * (device.sms // 2)))
        names = ", ".join(kept)
        if size > limit:
            return no(
                self.type, ReasonCode.BUFFER_TOO_LARGE, *facts.names, bytes=size, tensors=names, limit=limit,
                sm=room, cluster=most,
            )
        needed = device.sms // 8
        if pattern.numel >= device.large_reduction and pattern.rows < needed:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_BLOCKS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=pattern.rows, needed=needed,
            )
        if size <= room:
            why = reason(ReasonCode.BUFFER_FITS, bytes=size, tensors=names, limit=room)
            return accept(self.type, why, persistent=True)
        cluster = 2
        while cluster * device.persistent_bytes < size:
            cluster *= 2
        why = reason(
            ReasonCode.BUFFER_NEEDS_CLUSTER, bytes=size, tensors=names, limit=device.persistent_bytes, cluster=cluster,
        )
        return accept(self.type, why, persistent=True)


@follows(
    "scheduler/normalization_utils", "getMaxRegOrSharedMemorySizeBitForPersistentBuffer", 765, 846,
    ReasonCode.BUFFER_TOO_LARGE,
)
def _room(facts: CandidateFacts, device: Device, *, again: bool) -> int:
    """Return the bytes of a row that one multiprocessor keeps, in registers or, before clusters, in shared memory.

    ``again`` says whether buffers are computed again from inputs. Each thread stores whole accesses, whose width
    depends on the length of the row, so that some of the shared memory is lost.
    """
    if facts.patterns[0].is_split or device.max_cluster > 1:
        return device.persistent_bytes
    sizes = buffer_sizes(facts.flow)
    threads, lost = device.max_threads_per_block, 0
    for size, element in (sizes.rows[name] for name in (sizes.inputs if again else sizes.buffers)):
        widths = (1 << power for power in range((ACCESS_BYTES // element).bit_length()))
        rounds = [width * element * threads for width in widths if size // element % width == 0]
        lost += aligned(max(-(-size // stored) * stored for stored in rounds)) - size
    workspace = reduction_workspace(facts, threads)
    return max(device.persistent_bytes, device.shared_per_block - workspace - aligned(lost) - SHARED_ALIGNMENT)


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

"""InnerPersistent: rows are kept on chip while they are reduced, then used again (softmax, normalizations)."""

from collections.abc import Iterable
from dataclasses import dataclass

from fuser_lab.analysis.buffer_sizes import RowBuffer, buffer_sizes
from fuser_lab.cost.device import ACCESS_BYTES, Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.persistent import (
    align,
    few_blocks,
    is_projected,
    keep_exp_up_to,
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

    @follows("scheduler/normalization_inner", "canScheduleRunTime", 134, 177, ReasonCode.BUFFER_TOO_LARGE)
    @follows("scheduler/normalization_inner", "canScheduleRunTime", 179, 193, ReasonCode.NOT_ENOUGH_BLOCKS)
    def _fits(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return whether one multiprocessor, or the largest cluster that the device launches, keeps a row."""
        pattern, sizes = facts.patterns[0], buffer_sizes(facts.flow)
        projected = is_projected(sizes, _room(facts, device, sizes.buffers), keep_exp_up_to(device))
        size, names = sizes.chosen(projected=projected)
        room = _room(facts, device, sizes.inputs if projected else sizes.buffers)
        # Clusters reduce only rows that are contiguous, and no row takes more than half of the device.
        most = 1 if pattern.is_split else min(device.largest_cluster, max(device.sms // 2, 1))
        if size > room * most:
            return no(
                self.type, ReasonCode.BUFFER_TOO_LARGE, *facts.names, bytes=size, tensors=names, limit=room * most,
                sm=room, cluster=most,
            )
        if (few := few_blocks(self.type, facts, pattern, device)) is not None:
            return few
        if size <= room:
            where = "registers" if size <= device.persistent_bytes else "shared memory"
            why = reason(ReasonCode.BUFFER_FITS, bytes=size, tensors=names, limit=room, where=where)
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
def _room(facts: CandidateFacts, device: Device, buffers: Iterable[RowBuffer]) -> int:
    """Return the bytes of a row that one multiprocessor keeps in registers or, without clusters, in shared memory."""
    if facts.patterns[0].is_split or device.cc >= (9, 0):
        return device.persistent_bytes
    threads = device.max_threads_per_block
    added = align(sum(_in_shared_memory(buffer, threads) - buffer.bytes for buffer in buffers))
    return max(device.persistent_bytes, device.shared_per_block - reduction_workspace(facts, threads) - added)


def _in_shared_memory(buffer: RowBuffer, threads: int) -> int:
    """Return the most bytes that a row needs in shared memory, where it is rounded up to whole rounds of a block."""
    elements = buffer.bytes // buffer.itemsize
    widths = [1 << place for place in range((ACCESS_BYTES // buffer.itemsize).bit_length())]
    rounds = (-(-elements // (width * threads)) * width for width in widths if elements % width == 0)
    return align(max(rounds) * threads * buffer.itemsize)


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

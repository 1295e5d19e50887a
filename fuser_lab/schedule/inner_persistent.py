"""InnerPersistent: rows are kept on chip while they are reduced, then used again (softmax, normalizations)."""

from collections.abc import Iterable, Sequence
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
    keep_exp_up_to,
    kept_bytes,
    recomputes,
    refusal_of_any_size,
)

STATIC_SHARED = 128  # bytes of shared memory of every kernel (nvFuser: csrc/scheduler/utils.h:60)


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
        room, size, kept = _room_and_row(facts, device)
        most = 1 if pattern.is_split else device.largest_cluster  # clusters reduce only rows that are contiguous
        # The blocks of a cluster run at once, on at most half of all multiprocessors.
        limit = min(room * most, max(room, device.persistent_bytes * (device.sms // 2)))
        names = ", ".join(kept)
        if size > limit:
            return no(
                self.type, ReasonCode.BUFFER_TOO_LARGE, *facts.names, bytes=size, tensors=names, limit=limit, sm=room,
                memory=_memory(room, device), cluster=most,
            )
        needed = device.sms // 8
        if pattern.numel >= device.large_reduction and pattern.rows < needed:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_BLOCKS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=pattern.rows, needed=needed,
            )
        if size <= room:
            why = reason(
                ReasonCode.BUFFER_FITS, bytes=size, tensors=names, limit=room, memory=_memory(room, device),
            )
            return accept(self.type, why, persistent=True)
        cluster = 2
        while cluster * room < size:
            cluster *= 2
        why = reason(ReasonCode.BUFFER_NEEDS_CLUSTER, bytes=size, tensors=names, limit=room, cluster=cluster)
        return accept(self.type, why, persistent=True)


def _memory(room: int, device: Device) -> str:
    return "registers" if room == device.persistent_bytes else "shared memory"


def _room_and_row(facts: CandidateFacts, device: Device) -> tuple[int, int, Sequence[str]]:
    """Return the bytes that one block can keep, the bytes of a row, and the tensors that are kept.

    Registers keep rows. Before compute capability 9.0, shared memory keeps contiguous rows that are longer.
    """
    registers, exp = device.persistent_bytes, keep_exp_up_to(device)
    if device.max_cluster > 1 or facts.patterns[0].is_split:
        return registers, *kept_bytes(facts.flow, registers, exp)
    sizes = buffer_sizes(facts.flow)
    room = _shared_room(facts, device, sizes.rows)
    rows = sizes.input_rows if recomputes(sizes, room, exp) else sizes.rows
    return _shared_room(facts, device, rows), *kept_bytes(facts.flow, room, exp)


@follows(
    "scheduler/normalization_utils", "getMaxRegOrSharedMemorySizeBitForPersistentBuffer", 765, 846,
    ReasonCode.BUFFER_TOO_LARGE,
)
def _shared_room(facts: CandidateFacts, device: Device, rows: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of registers or, if these are more, of shared memory that rows can have.

    The reduction needs an element per thread, a Welford three of 8 bytes; whole rounds of all threads are stored.
    """
    threads = device.max_threads_per_block
    welford = any(link.op == "welford" for link in facts.reductions)
    workspace = threads * (24 if welford else max(link.out.dtype.itemsize for link in facts.reductions))
    rounds = sum(_whole_rounds(size, itemsize, threads) - size for size, itemsize in rows)
    return max(device.persistent_bytes, device.shared_per_block - STATIC_SHARED - workspace - rounds)


def _whole_rounds(size: int, itemsize: int, threads: int) -> int:
    """Return the bytes of a row in whole rounds, for the vector width that needs most."""
    count = size // itemsize
    widths = [width for width in (1, 2, 4, 8, 16) if width * itemsize <= ACCESS_BYTES and count % width == 0]
    return max((-(-count // width // threads) * width * threads * itemsize for width in widths), default=size)


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

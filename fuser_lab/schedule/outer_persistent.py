"""OuterPersistent: columns are kept on chip while they are reduced, then used again (batch norm, channels last)."""

from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.rules import follows
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.persistent import kept_bytes, refusal_of_any_size, vector_width

LANES = 8  # minimum number of adjacent threads of a block along the kept axes
LEAST_VECTOR = 4  # elements per access from which sharing columns across blocks is worthwhile
BLOCK_THREADS = 256
REGISTERS_OF_ADDRESSES = 40  # per thread, for everything but kept values
MOST_REGISTERS = 255  # per thread


@dataclass(frozen=True, slots=True)
class OuterPersistent(Heuristics):
    """Accepts reductions that keep the innermost axis and whose operands are needed again, if columns fit."""

    type: SchedulerType = SchedulerType.OUTER_PERSISTENT

    @follows("scheduler/normalization_outer", "canScheduleRunTime", 519, 537, ReasonCode.COLUMNS_TOO_LARGE)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 545, 552, ReasonCode.COLUMNS_NOT_VECTORIZED)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 554, 566, ReasonCode.COLUMNS_NO_GRID)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 611, 621, ReasonCode.NOT_ENOUGH_COLUMNS)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 623, 638, ReasonCode.COLUMNS_NOT_WELFORD)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance with the bytes kept, or the first rule that is broken."""
        return refusal_of_any_size(self.type, facts, _outer_only) or self._fits(facts, device)

    def _fits(self, facts: CandidateFacts, device: Device) -> Verdict:
        pattern = facts.patterns[0]
        size, kept = kept_bytes(facts.flow, room=0)  # the smaller size counts, whatever this repeats
        vector = vector_width(facts, pattern)
        columns, names, most = vector * LANES, ", ".join(kept), device.sms // 2
        needed = -(-size * columns // device.register_file)
        if needed > most:
            return no(
                self.type, ReasonCode.COLUMNS_TOO_LARGE, *facts.names, bytes=size, tensors=names, columns=columns,
                needed=needed, most=most,
            )
        groups = -(-pattern.rows // columns)
        if pattern.numel >= device.large_reduction and groups * max(needed, 1) < device.sms // 8:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_COLUMNS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=pattern.rows, used=groups * max(needed, 1), needed=device.sms // 8,
            )
        if needed <= 1:
            why = reason(ReasonCode.COLUMNS_FIT, bytes=size, tensors=names, columns=columns)
            return accept(self.type, why, persistent=True)
        return self._across(facts, device, size, names, vector)

    def _across(self, facts: CandidateFacts, device: Device, size: int, names: str, vector: int) -> Verdict:
        """Return whether blocks can keep columns together; they synchronize at a barrier of the whole grid."""
        columns = vector * LANES
        needed = -(-size * columns // device.register_file)
        plain = next((link for link in facts.reductions if link.op != "welford"), None)
        if plain is not None:
            return no(
                self.type, ReasonCode.COLUMNS_NOT_WELFORD, *facts.names, tensor=plain.name, op=plain.op,
                columns=columns, needed=needed,
            )
        if vector < LEAST_VECTOR:
            return no(
                self.type, ReasonCode.COLUMNS_NOT_VECTORIZED, *facts.names, columns=columns, needed=needed,
                least=LEAST_VECTOR, vector=vector,
            )
        rows = facts.patterns[0].rows
        grid = _grid(rows, size, vector, device)
        if grid is None:
            return no(
                self.type, ReasonCode.COLUMNS_NO_GRID, *facts.names, sms=device.sms, rows=rows, bytes=size,
                least=device.sms // 2,
            )
        wide, across = grid
        why = reason(
            ReasonCode.COLUMNS_ACROSS_BLOCKS, bytes=size, tensors=names, across=across, blocks=wide * across,
        )
        return accept(self.type, why, persistent=True, cross_grid=True)


def _grid(rows: int, size: int, vector: int, device: Device) -> tuple[int, int] | None:
    """Return the blocks along the kept and along the reduced axes that keep all columns at once, or None."""
    room = BLOCK_THREADS * (MOST_REGISTERS - REGISTERS_OF_ADDRESSES) * 4
    lanes = LANES
    while lanes <= BLOCK_THREADS:
        columns = lanes * vector
        wide = min(-(-rows // columns), device.sms)
        across = device.sms // wide
        if rows % columns == 0 and size * columns <= room * across and 2 * wide * across >= device.sms and across > 1:
            return wide, across
        lanes *= 2
    return None


@follows(
    "scheduler/normalization_utils", "compileTimeCheck", 1220, 1231,
    ReasonCode.REDUCTION_IS_INNER, ReasonCode.REDUCTIONS_OF_BOTH_KINDS,
)
def _outer_only(facts: CandidateFacts) -> Refusal | None:
    inner = next((p for p in facts.patterns if p.inner), None)
    if inner is None:
        return None
    outer = next((p for p in facts.patterns if not p.inner), None)
    if outer is None:
        return reason(ReasonCode.REDUCTION_IS_INNER, tensor=inner.name), (inner.name,)
    return reason(ReasonCode.REDUCTIONS_OF_BOTH_KINDS, inner=inner.name, outer=outer.name), (inner.name, outer.name)

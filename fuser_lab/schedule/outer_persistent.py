"""OuterPersistent: columns are kept on chip while they are reduced, then used again (batch norm, channels last)."""

from dataclasses import dataclass

from fuser_lab.analysis.buffer_sizes import buffer_sizes
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.outer_launch import LANES, NoLaunch, outer_launch
from fuser_lab.schedule.persistent import is_projected, refusal_of_any_size, vector_width

LEAST_VECTOR = 4  # elements per access from which columns are kept across blocks (normalization_outer.cpp:545-548)
VOLTA = 7  # major compute capability that requires columns to be divided evenly (normalization_outer.cpp:640-655)


@dataclass(frozen=True, slots=True)
class OuterPersistent(Heuristics):
    """Accepts reductions that keep the innermost axis and whose operands are needed again, if columns fit."""

    type: SchedulerType = SchedulerType.OUTER_PERSISTENT

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance with the bytes kept, or the first rule that is broken."""
        return refusal_of_any_size(self.type, facts, _outer_only) or self._fits(facts, device)

    @follows("scheduler/normalization_outer", "canScheduleRunTime", 523, 537, ReasonCode.COLUMNS_TOO_LARGE)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 591, 621, ReasonCode.NOT_ENOUGH_COLUMNS)
    def _fits(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return whether one multiprocessor keeps the fewest columns of a block, or several keep them together."""
        pattern = facts.patterns[0]
        sizes = buffer_sizes(facts.flow)
        projected = is_projected(sizes, room=0)  # the smaller size counts, whatever this repeats
        size, names = sizes.chosen(projected=projected)
        vector = vector_width(facts, pattern)
        columns, half = vector * LANES, max(device.sms // 2, 1)
        needed = -(-size * columns // device.register_file)
        if needed > half:
            return no(
                self.type, ReasonCode.COLUMNS_TOO_LARGE, *facts.names, bytes=size, tensors=names, columns=columns,
                needed=needed, most=half,
            )
        if needed > 1:
            return self._across(facts, device, size, names, vector)
        least = max(device.sms // 8, 1)
        used = -(-pattern.rows * size // device.register_file)
        if pattern.numel >= device.large_reduction and used < least:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_COLUMNS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=pattern.rows, used=used, needed=least,
            )
        why = reason(ReasonCode.COLUMNS_FIT, bytes=size, tensors=names, columns=columns)
        return accept(self.type, why, persistent=True)

    @follows("scheduler/normalization_outer", "canScheduleRunTime", 545, 552, ReasonCode.COLUMNS_NOT_VECTORIZED)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 554, 567, ReasonCode.COLUMNS_NO_GRID)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 623, 638, ReasonCode.COLUMNS_NOT_WELFORD)
    @follows("scheduler/normalization_outer", "canScheduleRunTime", 640, 655, ReasonCode.COLUMNS_UNEVEN)
    def _across(self, facts: CandidateFacts, device: Device, size: int, names: str, vector: int) -> Verdict:
        """Return whether blocks can keep columns together; they synchronize at a barrier of the whole grid."""
        pattern = facts.patterns[0]
        columns, rows = vector * LANES, pattern.rows
        needed = -(-size * columns // device.register_file)
        if vector < LEAST_VECTOR:
            return no(
                self.type, ReasonCode.COLUMNS_NOT_VECTORIZED, *facts.names, columns=columns, needed=needed,
                least=LEAST_VECTOR, vector=vector,
            )
        launch = outer_launch(pattern.numel, rows, size, vector, device)
        if isinstance(launch, NoLaunch):
            if not launch.tried:
                return no(self.type, ReasonCode.COLUMNS_TOO_FEW, *facts.names, rows=rows, vector=vector, least=LANES)
            return no(
                self.type, ReasonCode.COLUMNS_NO_GRID, *facts.names, rows=rows, bytes=size, sms=device.sms,
                vector=vector, tried=launch.tried, spilled=launch.spilled, uneven=launch.uneven, idle=launch.idle,
            )
        (wide, across), (x, y) = launch.blocks, launch.threads
        at_once = vector * x
        used, least = -(-rows // at_once) * across, max(device.sms // 2, 1)
        if used < least:
            return no(
                self.type, ReasonCode.NOT_ENOUGH_COLUMNS, *facts.names, tensor=pattern.name, numel=pattern.numel,
                rows=rows, used=used, needed=least,
            )
        plain = next((link for link in facts.reductions if link.op != "welford"), None)
        if plain is not None:
            return no(
                self.type, ReasonCode.COLUMNS_NOT_WELFORD, *facts.names, tensor=plain.name, op=plain.op, wide=wide,
                across=across,
            )
        if rows % (at_once * wide) and device.cc[0] == VOLTA:
            return no(self.type, ReasonCode.COLUMNS_UNEVEN, *facts.names, rows=rows, columns=at_once * wide, wide=wide)
        why = reason(
            ReasonCode.COLUMNS_ACROSS_BLOCKS, bytes=size, tensors=names, wide=wide, across=across, x=x, y=y,
            buffer=launch.buffer, vector=vector,
        )
        return accept(self.type, why, persistent=True, cross_grid=True)


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

"""OuterPersistent: columns are kept on chip while they are reduced, then used again (batch norm, channels last).

The scheduler needs a launch configuration with which nvFuser keeps columns across blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from fuser_lab.analysis.buffer_sizes import buffer_sizes
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.schedule.base import Heuristics, no
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.persistent import is_projected, refusal_of_any_size, vector_width

LANES = 8  # fewest adjacent threads of a block along the kept axes (nvFuser: normalization_utils.h:42, kMinBdimx)
MOST_LANES = 16  # (nvFuser: normalization_utils.h:44, kMaxBdimx)
BLOCK_THREADS = 256  # (nvFuser: normalization_utils.cpp:50)
# Registers of 4 bytes per thread for kept values: 255, less 40 for everything else, and 5 that may be spilled
# (nvFuser: normalization_utils.cpp:166-175, scheduler/utils.h:47-48).
REGISTERS = 255 - 40 + 5
REGISTER_BITS = 32  # of a register of NVIDIA's GPUs
LAST_BLOCK_WORK = 0.25  # share of another block's work that the last block should stay below (ibid. 273)
FEWEST_BLOCKS = 0.9  # share of the blocks along the reduced axes that an adjustment leaves (ibid. 285)
TURING = (7, 5)  # compute capability without that adjustment (ibid. 471-477)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterLaunch:
    """A launch configuration; x is along the kept axes, y along the reduced ones.

    Each thread keeps ``buffer`` elements of each of ``vector`` adjacent columns.
    """

    vector: int
    threads: tuple[int, int]
    blocks: tuple[int, int]
    buffer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLaunch:
    """How many configurations were rejected, by cause; none if the columns are too few for a block.

    ``spilled`` need more registers than a thread has, ``uneven`` give some blocks more columns than others, and
    ``idle`` give some blocks or threads none. Configurations that leave much work to the last block are not
    counted, because the last configuration that fits is taken whatever it leaves.
    """

    spilled: int = 0
    uneven: int = 0
    idle: int = 0

    @property
    def tried(self) -> int:
        """Number of configurations."""
        return self.spilled + self.uneven + self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """``rows`` columns of ``numel`` elements, with the ``bits`` that each keeps; a thread reads ``vector`` columns."""

    numel: int
    rows: int
    bits: int
    vector: int

    def fit(self, threads: int, blocks: int) -> bool:
        """Whether ``blocks`` with ``threads`` along a column keep it; each element needs a register for its predicate.

        nvFuser: csrc/scheduler/normalization_utils.cpp:195-222 (checkIfWithinRegisterSpace).
        """
        elements = _quotient(_quotient(self.numel, threads), blocks)
        bits = _quotient(_quotient(self.bits, threads), blocks) * self.vector
        return _quotient(bits, REGISTER_BITS) + elements <= REGISTERS

    def work_of_last(self, threads: int, buffer: int) -> float:
        """Return the share of ``buffer`` elements per thread that is left for the last block, 0 if all are equal.

        nvFuser: csrc/scheduler/normalization_utils.cpp:230-237 (getLastBlockWorkRatio).
        """
        return self.numel % (buffer * threads) // threads / buffer


@follows("scheduler/normalization_utils", "getGridOuterNormalizationParams", 387, 519, ReasonCode.COLUMNS_TOO_FEW)
def outer_launch(numel: int, rows: int, size: int, vector: int, device: Device) -> OuterLaunch | NoLaunch:
    """Return the launch configuration for ``rows`` columns of ``numel`` elements, of which ``size`` bytes are kept.

    Configurations have as many blocks as there are multiprocessors, and are tried from wide blocks to narrow ones, and
    from few blocks along the reduced axes to many.
    """
    columns = _Columns(numel=numel, rows=rows, bits=8 * size, vector=vector)
    grids = block_grids(device.sms)
    spilled = uneven = idle = 0
    for lanes in _lanes(_quotient(rows, vector)):
        threads = BLOCK_THREADS // lanes
        groups = _quotient(rows // vector, lanes)
        for place, (wide, across) in enumerate(grids):
            following = grids[place + 1][0] if place + 1 < len(grids) else None
            if groups > wide and groups % wide and following is not None:
                uneven += 1
            elif not columns.fit(threads, across):
                spilled += 1
            elif groups < wide:
                idle += 1
            elif lanes > LANES and vector * lanes * wide > rows:
                idle += 1
                break  # narrower blocks may have no idle threads
            else:
                adjusted = _with_short_last_block(columns, lanes, (wide, across), following, device)
                if adjusted is not None:
                    blocks, buffer = (wide, adjusted[0]), adjusted[1]
                    return OuterLaunch(vector=vector, threads=(lanes, threads), blocks=blocks, buffer=buffer)
    return NoLaunch(spilled=spilled, uneven=uneven, idle=idle)


def block_grids(sms: int) -> list[tuple[int, int]]:
    """Return the numbers of blocks (x, y) that fill a device once, in the order of y, which is at least 2.

    nvFuser: csrc/scheduler/normalization_utils.cpp:67-96 (PreferredLaunchConfig::initValidGdims).
    """
    tall = [(sms // across, across) for across in range(2, isqrt(sms) + 1)]
    return [*tall, *((across, wide) for wide, across in reversed(tall) if wide != across)]


def _lanes(most: int) -> Iterator[int]:
    """Return the numbers of threads of a block along the kept axes, at most ``most``, from many to few."""
    lanes = MOST_LANES
    while lanes >= LANES:
        if lanes <= most:
            yield lanes
        lanes //= 2


def _with_short_last_block(
    columns: _Columns, lanes: int, grid: tuple[int, int], following: int | None, device: Device,
) -> tuple[int, int] | None:
    """Return the number of blocks along the reduced axes and the elements per thread, or None to continue the search.

    A few blocks fewer may leave less work for the last block, which the others wait for. If they do not, the search
    continues unless the next configuration, with ``following`` blocks along the kept axes, needs more rounds.
    nvFuser: csrc/scheduler/normalization_utils.cpp:239-379 (reduceWorkOfLastBlock), 462-491.
    """
    wide, across = grid
    threads = BLOCK_THREADS // lanes
    steps = _quotient(columns.numel, threads)
    buffer = _quotient(steps, across)
    if device.cc == TURING:
        return across, buffer
    best = columns.work_of_last(threads, buffer), across, buffer
    blocks, fewest = across, int(across * FEWEST_BLOCKS)
    while blocks >= fewest and columns.fit(threads, blocks):
        work = columns.work_of_last(threads, buffer)
        if work < best[0]:
            best = work, blocks, buffer
        if work < LAST_BLOCK_WORK:
            break
        buffer += 1
        blocks = _quotient(steps, buffer)
    if best[0] >= LAST_BLOCK_WORK and following is not None:
        groups = _quotient(_quotient(columns.rows, columns.vector), lanes)
        if _quotient(groups, following) <= _quotient(groups, wide):
            return None
    return best[1:]


def _quotient(a: int, b: int) -> int:
    """Return a quotient rounded up."""
    return -(-a // b)


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

"""Choice of the loops of a nest with scans on a GPU: threads along the scanned axis, and elements per thread."""

from dataclasses import replace

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import SECTOR_BYTES, STATIC_SHARED, THREAD_WORDS, WARP
from fuser_lab.schedule.gpu_limits import MOST_THREADS, power_of_two
from fuser_lab.schedule.gpu_row_loops import row_loops
from fuser_lab.schedule.state import LoopSchedule, NestKind, Refused, Space, eviction

ELEMENTS = crossover("gpu.scans.elements")
COLUMN_ELEMENTS = THREAD_WORDS // 2  # elements in all columns of a thread; the other registers are for computing
MOST_ROWS = crossover("gpu.scans.rows")
ROW_THREADS = crossover("gpu.scans.row_threads")
COLUMN_THREADS = crossover("gpu.scans.column_threads")
RESIDENT = crossover("gpu.scans.resident")
LEAST_PARTS = crossover("gpu.rows.least_parts")
MOST_PARTS = WARP * WARP  # parts of a row or column, whose totals each block adds up
LEAST_BYTES = 2 * SECTOR_BYTES  # contiguous bytes of a block that walks down columns; memory sends sectors in pairs


def scan_loops(space: Space) -> LoopSchedule:
    """Return the loops of a nest with scans; correct for any extents."""
    return _rows(space) if space.inner_reduced else _columns(space)


def loops_with_scans(space: Space) -> LoopSchedule | Refused:
    """Return the loops of rows in registers that are scanned between passes, or why there are none."""
    loops = replace(row_loops(space), kind=NestKind.BLOCK_ROWS_WITH_SCANS)
    if space.inner_reduced and not space.column_sums and (why := scans_refused(space, loops)):
        return Refused(why)
    return loops if space.inner_reduced and not space.column_sums else Refused("only rows are scanned between passes")


def scans_refused(space: Space, loops: LoopSchedule) -> str:
    """Return why rows cannot be scanned between passes: a thread has all of its elements, a warp all totals."""
    lanes = loops.threads[0]
    steps = -(-max(space.groups(loops.vector), 1) // lanes)
    if loops.cluster > 1 or loops.split > 1 or loops.staged or not loops.persistent or loops.registers < steps:
        return f"rows of {space.depth} elements do not stay in the registers of a block, where they would be scanned"
    totals = max(lanes // WARP, 1) * loops.registers
    return "" if totals <= WARP else f"{totals} totals of a scan are more than the {WARP} that a warp can combine"


def _rows(space: Space) -> LoopSchedule:
    width = space.vector
    groups = max(space.groups(width), 1)
    unroll = max(ELEMENTS // (width * space.scans), 1)
    if groups <= WARP * unroll and space.rows > 1:
        lanes = power_of_two(min(groups, WARP))
        reason = f"{lanes} lanes run along each row and need no barrier"
        height, unroll = max(ROW_THREADS // lanes, 1), -(-groups // lanes)
    else:
        # As few rounds as possible, all of the same size, so that few threads are idle in the last.
        most = WARP * WARP // unroll
        rounds = -(-groups // (most * unroll))
        lanes = min(-(-groups // (rounds * unroll * WARP)) * WARP, most)
        height = 1
        reason = f"{lanes} threads run along each row, {lanes * unroll * width} elements at a time"
    split = 1 if height > 1 else _split(space, space.rows, lanes, -(-groups // (lanes * unroll)))
    return LoopSchedule(
        kind=NestKind.BLOCK_SCANNED_ROWS, threads=(lanes, height), vector=width, unroll=unroll, split=split,
        evict=eviction(space), reasons=(reason, *_why_parts(space, "rows", split)),
    )


def _split(space: Space, blocks: int, threads: int, rounds: int) -> int:
    """Return the parts of each row or column; 1 if there are enough blocks, several scans, or reductions beside them.

    The parts are read twice. So that a block loads while others exchange totals, each multiprocessor needs two blocks
    at least; with parts, there are as many threads as fit.
    """
    if space.scans > 1 or space.reduces or blocks >= 2 * space.device.sms:
        return 1
    resident = space.device.registers // THREAD_WORDS
    split = min(space.device.sms * resident // (threads * max(blocks, 1)), rounds // 2, MOST_PARTS)
    return split if split >= LEAST_PARTS else 1  # fewer take more time for another launch than they save


def _why_parts(space: Space, lines: str, split: int) -> tuple[str, ...]:
    """Return the reason of parts of rows or columns, if there are several."""
    if split == 1:
        return ()
    return (f"{space.rows} {lines} give too few blocks: a first phase adds up {split} parts of each",)


def _columns(space: Space) -> LoopSchedule:
    width, depth = space.vector, max(space.depth, 1)
    groups = max(-(-space.rows // width), 1)
    sms, item = space.device.sms, max(space.read_bytes // space.streams, 1)
    lanes = widest = power_of_two(min(WARP, groups))
    while -(-groups // lanes) < 2 * sms and lanes * width * item > LEAST_BYTES:
        lanes //= 2
    unroll = max(min(COLUMN_ELEMENTS // (width * space.scans), MOST_ROWS), 1)
    is_cut = _split(space, -(-groups // lanes), COLUMN_THREADS, -(-depth // (WARP * unroll))) > 1
    if is_cut:
        lanes = widest
    most = MOST_THREADS if is_cut else COLUMN_THREADS
    height = 1
    # Each thread that adds up the totals of a column has all of them in registers.
    while (
        lanes * height < most and height * unroll < depth and height < WARP
        and 2 * height * lanes * width * max(space.sum_bytes, 1) <= STATIC_SHARED
        and (is_cut or lanes * height < WARP or groups * height < sms * RESIDENT)
    ):
        height *= 2
    split = _split(space, -(-groups // lanes), lanes * height, -(-depth // (height * unroll))) if is_cut else 1
    reason = f"{lanes} adjacent threads walk down {lanes * width} columns"
    if height > 1:
        reason += f", {height * unroll} rows at a time: {height} threads share each column"
    return LoopSchedule(
        kind=NestKind.BLOCK_SCANNED_COLUMNS, threads=(lanes, height), vector=width, unroll=unroll, split=split,
        evict=eviction(space), reasons=(reason, *_why_parts(space, "columns", split)),
    )

"""Choice of the loops of a nest with scans on a GPU: threads along the scanned axis, and elements per thread."""

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import SECTOR_BYTES, THREAD_WORDS, WARP
from fuser_lab.schedule.gpu_limits import power_of_two
from fuser_lab.schedule.state import LoopSchedule, NestKind, Space, eviction

ELEMENTS = crossover("gpu.scans.elements")
COLUMN_ELEMENTS = THREAD_WORDS // 2  # elements in all columns of a thread; the other registers are for computing
MOST_ROWS = crossover("gpu.scans.rows")
ROW_THREADS = crossover("gpu.scans.row_threads")
COLUMN_THREADS = crossover("gpu.scans.column_threads")
RESIDENT = crossover("gpu.scans.resident")
LEAST_BYTES = 2 * SECTOR_BYTES  # contiguous bytes of a block that walks down columns; memory sends sectors in pairs


def scan_loops(space: Space) -> LoopSchedule:
    """Return the loops of a nest with scans; correct for any extents."""
    return _rows(space) if space.inner_reduced else _columns(space)


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
    return LoopSchedule(
        kind=NestKind.BLOCK_SCANNED_ROWS, threads=(lanes, height), vector=width, unroll=unroll, evict=eviction(space),
        reasons=(reason,),
    )


def _columns(space: Space) -> LoopSchedule:
    width, depth = space.vector, max(space.depth, 1)
    groups = max(-(-space.rows // width), 1)
    sms, item = space.device.sms, max(space.read_bytes // space.streams, 1)
    lanes = power_of_two(min(WARP, groups))
    while -(-groups // lanes) < 2 * sms and lanes * width * item > LEAST_BYTES:
        lanes //= 2
    unroll = max(min(COLUMN_ELEMENTS // (width * space.scans), MOST_ROWS), 1)
    height = 1
    while (
        lanes * height < COLUMN_THREADS and height * unroll < depth
        and (lanes * height < WARP or groups * height < sms * RESIDENT)
    ):
        height *= 2
    reason = f"{lanes} adjacent threads walk down {lanes * width} columns"
    if height > 1:
        reason += f", {height * unroll} rows at a time: {height} threads share each column"
    return LoopSchedule(
        kind=NestKind.BLOCK_SCANNED_COLUMNS, threads=(lanes, height),
        vector=width, unroll=unroll, evict=eviction(space),
        reasons=(reason,),
    )

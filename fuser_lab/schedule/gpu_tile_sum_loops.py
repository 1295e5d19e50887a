"""Choice of the loops of reductions on a GPU whose inputs are contiguous along different axes."""

from math import prod

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import LINE_BYTES, STATIC_BUFFER, STATIC_SHARED
from fuser_lab.schedule.gpu_element_loops import SMALLEST_TILE, tile_sides
from fuser_lab.schedule.state import Evict, LoopSchedule, NestKind, Space, eviction

TILE_BYTES = 2 * LINE_BYTES  # bytes per row of a tile
LARGEST_TILE = crossover("gpu.tile_sums.largest")
THREADS = crossover("gpu.tile_sums.threads")
MEETING_BYTES = STATIC_SHARED - STATIC_BUFFER  # bytes through which threads combine results; the rest is for tiles
MEETING_BUFFER = STATIC_BUFFER  # bytes of that memory for the values of one reduction
RESIDENT = crossover("gpu.tile_sums.resident")


def tile_sum_loops(space: Space) -> LoopSchedule | None:
    """Return the loops of reductions over tiles of two axes; None if shared memory is too small to combine results."""
    tile = min(max(TILE_BYTES // space.itemsize, SMALLEST_TILE), LARGEST_TILE)
    (across, along), sides = space.transposed, tile_sides(tile, space.transposed)
    threads = THREADS
    while threads > tile and threads * space.vector > prod(sides):
        threads //= 2
    while threads > tile and not tile_sums_meet(space, threads):
        threads //= 2
    if not tile_sums_meet(space, threads):
        return None
    down, over = (-(-extent // side) for extent, side in zip((across, along), sides, strict=True))
    bands = space.rows // max(along, 1) * over
    steps = space.depth // max(across, 1) * down
    split = max(1, min(RESIDENT * space.device.sms // max(bands, 1), steps // 2))
    reasons = [
        f"some tensors are contiguous along a reduced axis of {across}, others along a kept one of {along}",
        f"each block reduces {sides[1]} results, from tiles of {sides[1]} x {sides[0]} in shared memory",
    ]
    if space.mirrored:
        reasons.append("tiles that are read both straight and transposed are read at the same time, once from memory")
    if split > 1:
        reasons.append(f"{bands} blocks are too few: {split} blocks divide the tiles of each")
    return LoopSchedule(
        kind=NestKind.BLOCK_TILE_SUMS, threads=(threads, 1),
        tile=tile, vector=space.vector, split=split, resident=RESIDENT,
        evict=Evict.NORMAL if space.mirrored else eviction(space), reasons=tuple(reasons),
    )


def tile_sums_meet(space: Space, threads: int) -> bool:
    """Whether shared memory has room for the results of the threads of a block besides the tiles."""
    each = threads * space.vector
    return each * space.sum_bytes <= MEETING_BYTES and each * space.widest_sum <= MEETING_BUFFER

"""Choice of the loops of GPU nests without reductions, by extents and sizes only."""

from collections.abc import Sequence
from math import prod

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import BLOCK_THREADS, LINE_BYTES, MOST_BLOCKS, WARP
from fuser_lab.schedule.state import LoopSchedule, NestKind, Space, eviction

SHARING = crossover("gpu.elements.sharing")
LOOKUPS = crossover("gpu.lookups.chunks")
MANY_BLOCKS = crossover("gpu.elements.many_blocks")
THREADS = crossover("gpu.elements.threads")
TILE_BLOCKS = 2  # per multiprocessor, so that one loads while another one stores
TILE_THREADS = BLOCK_THREADS // TILE_BLOCKS
TILE_BYTES = LINE_BYTES  # bytes per row of a tile; twice as many for large tensors
LARGEST_TILE = crossover("gpu.tiles.largest")
SMALLEST_TILE = crossover("gpu.tiles.smallest")
TILES = crossover("gpu.tiles.many")
LARGE_TILE_BYTES = crossover("gpu.tiles.large_bytes")


def element_loops(space: Space) -> LoopSchedule:
    """Return the loops of a nest in which every element is computed separately.

    Each thread processes one vector and ends, so that new blocks keep the memory busy while others end. If inputs
    repeat, a thread processes the vectors that read the same elements.
    """
    if space.transposed != (0, 0):
        return _tiles(space)
    chunks = -(-space.rows // (space.vector * space.halves))
    unroll = space.repeats
    chunks_per_thread = LOOKUPS if space.looked_up else SHARING if space.slow_shared else 1
    if unroll == 1 and chunks >= chunks_per_thread * MANY_BLOCKS * THREADS * space.device.sms:
        unroll = chunks_per_thread
    blocks = min(-(-chunks // (THREADS * unroll)), MOST_BLOCKS)
    reasons = [
        f"{space.vector} adjacent elements per thread: the fewest memory accesses of at most 16 bytes"
        if space.vector > 1
        else "one element per thread: wider accesses would not reduce their number",
    ]
    if space.halves > 1:
        reasons.append("each thread computes elements of both halves of a row, which need the same elements")
    if space.looked_up and unroll > 1:
        reasons.append(f"{unroll} chunks per thread: their positions are loaded together, then the elements there")
    elif space.slow_shared and unroll > space.repeats:
        reasons.append(f"{unroll} chunks per thread: they share values of functions that take long")
    if space.repeats > 1:
        reasons.append(f"{unroll} chunks per thread: they share the elements of an input that repeats")
    return LoopSchedule(
        kind=NestKind.BLOCK_ELEMENTS, threads=(THREADS, 1), blocks=max(blocks, 1), vector=space.vector, unroll=unroll,
        evict=eviction(space),
        reasons=tuple(reasons),
    )


def tile_sides(tile: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the sides of tiles over axes of these extents; a side is at most as long as its axis needs."""
    return tuple(min(tile, 1 << (extent - 1).bit_length()) for extent in extents)


def _tiles(space: Space) -> LoopSchedule:
    tile = min(max(TILE_BYTES // space.itemsize, SMALLEST_TILE), LARGEST_TILE)
    large = 2 * tile
    many = space.rows >= TILES * space.device.sms * large**2 and min(space.transposed) >= large
    if many and large**2 * space.transposed_bytes <= min(LARGE_TILE_BYTES, space.device.shared_per_block):
        tile = large
    # Several vectors per thread, all loaded before the first is used.
    across, along = space.transposed
    sides = tile_sides(tile, space.transposed)
    threads = max(min(prod(sides) // (2 * space.vector), TILE_THREADS), WARP)
    return LoopSchedule(
        kind=NestKind.BLOCK_TILES, threads=(threads, 1), tile=tile, vector=space.vector, evict=eviction(space),
        resident=TILE_BLOCKS,
        reasons=(
            f"some tensors are contiguous along an axis of {across}, others along one of {along}",
            f"tiles of {tile}: rows of {tile * space.itemsize} bytes" if min(sides) == tile
            else f"tiles of {sides[0]} x {sides[1]}: one of the axes is shorter than {tile}",
        ),
    )

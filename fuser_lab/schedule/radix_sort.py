"""The shared memory of a block that sorts with CUB, whose radix sort nvFuser calls for argsort and topk."""

from fuser_lab.cost.device import WARP

COUNTER_BYTES = 4  # of one counter of digits
COUNTERS = 9  # per thread: two of the 16 digits of 4 bits share a counter, and one is padding
ALIGNMENT = 16  # bytes
INDEX_BYTES = 8  # each key is sorted with its position
UNPADDED_ITEMS = 4  # per thread; from the next power of two on, elements are padded against bank conflicts


def sort_bytes(threads: int, items: int, key_bytes: int) -> int:
    """Return the bytes in which a block ranks its digits and exchanges keys and positions, one after the other.

    nvFuser: scheduler/tools/cub_utils.cpp:117-204, computeBlockRadixSortTempStorageBytes.
    """
    rank = COUNTERS * COUNTER_BYTES * threads + _prefix_sum_bytes(threads)
    tile = threads * items
    padding = tile // WARP if items > UNPADDED_ITEMS and items & (items - 1) == 0 else 0
    return _align(max(rank, max(key_bytes, INDEX_BYTES) * (tile + padding)))


def _prefix_sum_bytes(threads: int) -> int:
    """Return the bytes of a prefix sum of one counter per thread."""
    if threads % WARP == 0:
        warps = threads // WARP
        # The sum of each warp, a byte of its empty storage, and the sum of the block.
        return _align(warps * (COUNTER_BYTES + 1) + COUNTER_BYTES, 32)
    # Some of the threads add the counters of all.
    length = -(-threads // min(threads, WARP))
    adding = -(-threads // length)
    padded = length % 2 == 0 and length > 2
    # Adding threads whose number is a power of two exchange sums in registers, others in memory with half a warp more.
    steps = (adding - 1).bit_length()
    exchanged = 1 if adding == 1 << steps else COUNTER_BYTES * (adding + (1 << (steps - 1)))
    grid = COUNTER_BYTES * adding * (length + padded)
    return _align(_align(exchanged) + _align(grid) + COUNTER_BYTES)


def _align(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment

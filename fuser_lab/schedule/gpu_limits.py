"""Limits that the loops of several kinds of GPU nests share."""

from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import BLOCK_THREADS, THREAD_WORDS, Device

LEAST_THREADS = crossover("gpu.rows.least_threads")
ALL_THREADS = BLOCK_THREADS  # threads per block at most
MOST_THREADS = ALL_THREADS // 2  # threads per block, so that a second block loads while one block stores
WAVE = crossover("gpu.concurrent_blocks")
FEW_ROWS = crossover("gpu.rows.few")
ELEMENTS = THREAD_WORDS // 2  # elements of a row per thread that stay in registers; the others are for computing
IN_FLIGHT = crossover("gpu.loads_in_flight")
RESERVED = 4 << 10  # bytes of a multiprocessor's shared memory that reductions and the system need


def shared_room(device: Device, resident: int) -> int:
    """Return the bytes of shared memory that a block may use if this many are to fit on a multiprocessor."""
    return max(min((device.shared_per_sm - RESERVED) // resident, device.shared_per_block - RESERVED // 2), 0)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()

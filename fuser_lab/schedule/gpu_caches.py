"""Choice of the data that the L2 cache of a GPU evicts first while a kernel runs.

On an H200, kernels that read and write much more than the cache holds are up to 4 % faster if their inputs have the
higher priority (docs/benchmarks.md): outputs are then written back to memory soon, in the order in which they were
stored. Inputs that are read once and reduced to a few numbers have the lower priority: the cache keeps what other
kernels wrote.
"""

from fuser_lab.cost.crossovers import crossover
from fuser_lab.schedule.state import Evict, Space

STREAMED_BYTES = crossover("gpu.streamed")
HINTS_FROM = (8, 0)  # compute capability from which loads have a cache hint (PTX ISA, ld)


def eviction(space: Space) -> Evict:
    """Return the eviction priority of loads of a nest's inputs in the L2 cache."""
    if space.device.cc < HINTS_FROM:
        return Evict.NORMAL
    if space.reduces and space.is_one_pass and space.rows * space.depth * space.read_bytes <= STREAMED_BYTES:
        return Evict.FIRST
    # A smaller output might still be in the cache when the next kernel reads it.
    return Evict.LAST if space.stored_bytes > 2 * space.device.l2 > 0 else Evict.NORMAL


def why(evict: Evict) -> tuple[str, ...]:
    """Return the reason of a choice; nothing for the normal priority."""
    if evict is Evict.LAST:
        return ("the outputs exceed the L2 cache, so it keeps inputs and evicts outputs first",)
    return ()

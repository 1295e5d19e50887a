"""Choice of the data that a GPU's L2 cache evicts first while a kernel runs.

On an H200 kernels that read and write much more than the cache holds are faster by up to 4 in a hundred if what they
read has the higher priority (docs/benchmarks.md): what they write then leaves for memory soon, in the order in which it
came. What is read once and answered by a few numbers has the lower one: the cache keeps what others wrote.
"""

from fuser_lab.schedule.state import Evict, Space

STREAMED_BYTES = 384 << 20  # several times the L2 cache, which then keeps what others wrote
HINTS_FROM = (8, 0)  # compute capability


def eviction(space: Space) -> Evict:
    """Return the eviction priority of loads of a nest's inputs in the L2 cache."""
    if space.device.cc < HINTS_FROM:
        return Evict.NORMAL
    if space.reduces and space.is_one_pass and space.rows * space.depth * space.read_bytes <= STREAMED_BYTES:
        return Evict.FIRST
    # A smaller output might still be in the cache when the next kernel reads it.
    return Evict.LAST if space.stored_bytes > 2 * space.device.l2 > 0 else Evict.NORMAL


def why(evict: Evict) -> tuple[str, ...]:
    """Return the reason of a choice, if it is one."""
    if evict is Evict.LAST:
        return ("the outputs exceed the L2 cache: it keeps inputs and evicts outputs first",)
    return ()

"""The memory of this machine, and how much of it is free.

Linux may grant more memory than exists, and in some containers it always does: an array that cannot fit is allocated,
and the process is killed when it writes to it. Sizes are therefore compared with the machine's memory before the
allocation.
"""

import functools
import mmap
import re
from contextlib import suppress
from pathlib import Path

import numpy as np

_LARGEST_MAPPED = 32 << 20  # bytes; DEFAULT_MMAP_THRESHOLD_MAX of glibc, header and rounding to pages included
_SYSTEM, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_bytes() -> int | None:
    """Return how many bytes are available to this process; None if the system does not say."""
    return free_bytes_of(_SYSTEM, _GROUP)


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB of freed memory for the next allocations.

    glibc returns the free end of its heap to the system if it is larger than twice the largest block that was mapped
    by itself and freed. A program whose temporary tensors are a little larger, step by step, then pays for a fault of
    each page: a fifth of the time of a small convolutional network. glibc raises this limit when such a block is freed,
    up to one of 32 MB. So one is allocated and freed; none of its pages is touched. The environment variables of glibc
    that set its limits keep their effect, and other C libraries just allocate and free.
    """
    with suppress(MemoryError):
        np.empty(_LARGEST_MAPPED - 2 * mmap.PAGESIZE, np.uint8)


def check_fits(nbytes: int) -> None:
    """Raise MemoryError if the machine, or the container, has less memory than this."""
    most = _all_bytes()
    if most is not None and nbytes > most:
        raise MemoryError


def free_bytes_of(system: Path, group: Path) -> int | None:
    """Return the bytes that Linux reports as available, or the rest of a container's limit if that is less.

    Parameters
    ----------
    system, group
        The file with the system's figures, and the folder of the process's control group (version 2).
    """
    free = _figure(system, "MemAvailable")
    if free is None:
        return None
    most, used = _number(group / "memory.max"), _number(group / "memory.current")
    return free if most is None or used is None else min(free, max(most - used, 0))


def all_bytes_of(system: Path, group: Path) -> int | None:
    """Return the bytes of memory and swap, or a container's limits if they are lower.

    None if the system does not say.
    """
    memory = _figure(system, "MemTotal")
    if memory is None:
        return None
    most, swapped = _number(group / "memory.max"), _number(group / "memory.swap.max")
    swap = _figure(system, "SwapTotal") or 0
    allowed = memory if most is None else min(memory, most)
    return allowed + (swap if swapped is None else min(swap, swapped))


@functools.cache
def _all_bytes() -> int | None:
    return all_bytes_of(_SYSTEM, _GROUP)


def _figure(system: Path, name: str) -> int | None:
    try:
        figure = re.search(rf"^{name}:\s*(\d+) kB", system.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return None if figure is None else int(figure[1]) << 10


def _number(file: Path) -> int | None:
    """Return the number in a file of a control group; None if there is none, or no limit."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None

"""The processors of this machine: their name, how many there are, and how many threads share the loops of kernels."""

import contextlib
import functools
import os
import platform
import sys
from pathlib import Path


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def processor_name() -> str:
    """Return the processor's model name as reported by the system."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def threads_here() -> int:
    """Return how many threads share the loops of kernels, as Numba does or will once it is loaded."""
    if "numba" in sys.modules:
        from fuser_lab.runtime.numba_compat import cpu_threads

        return cpu_threads()
    set_to = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(set_to) if set_to.isdecimal() and int(set_to) else processors()

"""The import of Numba, with the settings that it needs.

The waiting threads of GNU OpenMP spin unless configured otherwise before it is loaded, which costs milliseconds per
parallel region on a busy machine. It also ends a process that was forked from one with threads.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numba
from numba.np.ufunc import parallel

from fuser_lab.process.forks import after_fork, new_lock, renew_in_forks

# If unset, OpenMP may already have been loaded; if Numba loads its own copy, that reads this when threads start.
_OPENMP_SPINS = "OMP_WAIT_POLICY" not in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def launch_threads() -> None:
    """Start Numba's threads; Numba resets OpenMP's number of threads, which is also torch's, so that is restored."""
    library = ctypes.CDLL(None)
    threads = library.omp_get_max_threads() if hasattr(library, "omp_get_max_threads") else None
    parallel._launch_threads()  # type: ignore[no-untyped-call]  # noqa: SLF001 - as Numba's own code
    if threads is not None:
        library.omp_set_num_threads(threads)


def cpu_threads() -> int:
    """Return the number of threads of a parallel loop."""
    launch_threads()
    return numba.get_num_threads()


class ParallelRegions:
    """Serializes parallel kernels on the one threading layer that does not support concurrent callers."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.free = False  # whether callers need not wait for each other
        self.started = False  # whether something parallel has run
        self.lost = False  # whether this process was forked from one with threads

    def call(self, function: Callable[..., None], arguments: list[Any]) -> None:
        """Call a parallel kernel; in a process forked from one with threads, without threads."""
        if self.free:
            function(*arguments)
            return
        with self.lock:
            if self.lost:
                # Numba has a count of threads for each calling thread.
                numba.set_num_threads(1)
            elif not self.started and _OPENMP_SPINS:
                _let_threads_sleep()
            self.started = True
            function(*arguments)
            self.free = _threading_layer() not in {"", "workqueue"} and not self.lost

    def forked(self) -> None:
        """Record that this process is a fork of another one, without its threads."""
        self.free, self.lost = False, self.lost or bool(_threading_layer())


def _threading_layer() -> str:
    """Return the name of Numba's threading layer; empty if there are no threads yet."""
    try:
        return numba.threading_layer()
    except ValueError:
        return ""


def _let_threads_sleep() -> None:
    """Make threads of GNU OpenMP sleep early, if it was loaded before the environment could be set.

    They spin for milliseconds unless there are more threads than processors, so this starts idle threads.
    """
    if sys.platform != "linux" or numba.get_num_threads() < len(os.sched_getaffinity(0)):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "GOMP_parallel"):
        return  # a copy that Numba loads has read the environment
    started = renew_in_forks(threading.Event())

    def idle() -> None:
        # Any function will do.
        library.GOMP_parallel(ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p), None, 2, 0)
        started.set()
        renew_in_forks(threading.Event()).wait()

    threading.Thread(target=idle, name="OpenMP of fuser_lab, idle", daemon=True).start()
    started.wait()


PARALLEL = ParallelRegions()
after_fork(PARALLEL.forked)

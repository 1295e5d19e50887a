"""Numba, imported the way it has to be; with `intrinsics_cuda`, the only file that imports numba.cuda.

GNU OpenMP's waiting threads spin unless configured otherwise before it is loaded, which costs milliseconds per parallel
region on a busy machine; it ends a process that was forked from one with threads; and numba-cuda 0.30 needs a function
that NumPy 2.5 removed.
"""

import ctypes
import functools
import importlib
import os
import re
import sys
import threading
import types as python_types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from fuser_lab.errors import UnsupportedError

# Unset, OpenMP may have been loaded for all; where Numba loads one of its own, that reads this once threads start.
_OPENMP_SPINS = "OMP_WAIT_POLICY" not in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if not hasattr(np, "row_stack"):
    setattr(np, "row_stack", np.vstack)  # noqa: B010 - no such name for type checkers


def cpu_threads() -> int:
    """Return how many threads a parallel loop uses."""
    return numba.get_num_threads()


class ParallelRegions:
    """Keeps parallel kernels apart on the one threading layer that does not bear concurrent callers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
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
                # Numba counts threads for each thread that asks.
                numba.set_num_threads(1)
            elif not self.started and _OPENMP_SPINS:
                _let_threads_sleep()
            self.started = True
            function(*arguments)
            self.free = _threading_layer() not in {"", "workqueue"} and not self.lost

    def forked(self) -> None:
        """Take note that this process is a copy of another one, without its threads."""
        self.lock, self.free, self.lost = threading.Lock(), False, self.lost or bool(_threading_layer())


def _threading_layer() -> str:
    """Return what Numba's threads are made with; empty while there are none."""
    try:
        return numba.threading_layer()
    except ValueError:
        return ""


def _let_threads_sleep() -> None:
    """Make GNU OpenMP's threads sleep soon, where it was loaded too early for the environment to say so.

    They spin for milliseconds unless there are more threads than processors: threads of two that never work are enough.
    """
    if sys.platform != "linux" or numba.get_num_threads() < len(os.sched_getaffinity(0)):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "GOMP_parallel"):
        return  # what Numba loads for itself has read the environment
    started = threading.Event()

    def idle() -> None:
        # Any function will do.
        library.GOMP_parallel(ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p), None, 2, 0)
        started.set()
        threading.Event().wait()

    threading.Thread(target=idle, name="OpenMP of fuser_lab, idle", daemon=True).start()
    started.wait()


PARALLEL = ParallelRegions()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PARALLEL.forked)


@functools.cache
def _numba_cuda() -> Any:
    """Return numba-cuda's module, or None; with NumPy 2.5 it warns of its own doings when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from numba import cuda
        except ImportError:
            return None
    # Numba's own numba.cuda is another, older code.
    return cuda if "numba_cuda" in str(cuda.__file__) else None


def has_numba_cuda() -> bool:
    """Whether numba-cuda is installed."""
    return _numba_cuda() is not None


def require_numba_cuda() -> Any:
    """Return numba-cuda's module.

    Raises
    ------
    UnsupportedError
        If it is not installed.
    """
    cuda = _numba_cuda()
    if cuda is None:
        msg = "compiling for CUDA needs numba-cuda: pip install 'fuser_lab[cuda]'."
        raise UnsupportedError(msg)
    return cuda


def _find_singly_assigned_variables(lower: Any) -> None:
    """Find the variables that need no memory: assigned once, and used in the block of the assignment only.

    numba-cuda's own method looks for each variable through all statements of its block.
    """
    analysis: Any = importlib.import_module("numba.cuda.lowering")
    assignments = importlib.import_module("numba.cuda.core.ir").assign_types
    blocks, found = lower.func_ir.blocks, set[str]()
    if not lower.func_ir.func_id.is_generator:
        reach = analysis.compute_use_defs(blocks)
        times = Counter(s.target.name for block in blocks.values() for s in block.body if isinstance(s, assignments))
        elsewhere = set[str]().union(*reach.usemap.values(), analysis.must_use_alloca(blocks))
        found = {name for name, count in times.items() if count == 1} - elsewhere
    lower._singly_assigned_vars, lower._blk_local_varmap = found, {}  # noqa: SLF001 - what the method sets


_PTX_LOCK = threading.Lock()


def compile_ptx(
    function: Callable[..., None], pointers: Sequence[str], scalars: Sequence[str], *, cc: tuple[int, int],
    threads: int, resident: int = 0, lineinfo: bool = False,
) -> tuple[str, str]:
    """Return PTX and the name of its entry; no device and no driver are needed.

    Parameters
    ----------
    function
        A generated kernel: a plain Python function.
    pointers, scalars
        Numba's names of the types that its first parameters point to, and of the types of the others.
    cc
        Compute capability.
    threads
        Threads of a block: registers are limited so that it fits.
    resident
        Blocks of a multiprocessor that they are limited for, 0 for one.
    lineinfo
        Whether lines of the source are noted in the PTX, in ``.loc`` directives.
    """
    cuda = require_numba_cuda()
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    types: Any = importlib.import_module("numba.cuda.types")
    signature = types.void(
        *(types.CPointer(getattr(types, name)) for name in pointers), *(getattr(types, name) for name in scalars),
    )
    with _PTX_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        lowering: Any = importlib.import_module("numba.cuda.lowering").Lower
        known, quadratic = dispatcher.get_current_device, lowering._find_singly_assigned_variable  # noqa: SLF001
        # Device functions ask the current device for its capability, which needs a driver: answer for the target.
        dispatcher.get_current_device = lambda: python_types.SimpleNamespace(compute_capability=cc)
        lowering._find_singly_assigned_variable = _find_singly_assigned_variables  # noqa: SLF001
        try:
            bounds = (threads, resident) if resident else threads
            text, _ = cuda.compile_ptx(function, signature, cc=cc, launch_bounds=bounds, lineinfo=lineinfo)
        finally:
            dispatcher.get_current_device = known
            lowering._find_singly_assigned_variable = quadratic  # noqa: SLF001
    ptx = text.decode() if isinstance(text, bytes) else text
    entry = re.search(r"\.entry\s+([^\s(]+)", ptx)
    if entry is None:
        msg = f"the PTX of {function.__name__} has no entry."
        raise UnsupportedError(msg)
    return ptx, entry.group(1)


"""Numba, imported the way it has to be.

GNU OpenMP's waiting threads spin unless told otherwise before it is loaded, which costs milliseconds per parallel
region on a busy machine; and numba-cuda 0.30 needs a function that NumPy 2.5 removed.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba  # noqa: E402
import numpy as np  # noqa: E402

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # type: ignore[attr-defined]


def versions() -> str:
    """Return what compiled code depends on, apart from its source."""
    return f"numba {numba.__version__}, numpy {np.__version__}"


def cpu_threads() -> int:
    """Return how many threads a parallel loop uses."""
    return numba.get_num_threads()


class ParallelRegions:
    """Keeps parallel kernels apart on the one threading layer that does not bear concurrent callers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free = False  # whether callers need not wait for each other

    def call(self, function: Callable[..., None], arguments: list[Any]) -> None:
        """Call a parallel kernel."""
        if self.free:
            function(*arguments)
            return
        with self.lock:
            function(*arguments)
            try:
                self.free = numba.threading_layer() != "workqueue"
            except ValueError:
                return  # nothing parallel has run yet


PARALLEL = ParallelRegions()

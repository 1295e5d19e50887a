"""Python's cyclic garbage collector, paused or run rarely while there is nothing for it to free."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fuser_lab.process.forks import after_fork, new_lock

ALLOCATIONS = 200_000  # allocations between two rare collections of the youngest generation

_LOCK = new_lock()
_PAUSING: set[int] = set()  # threads
_BEFORE: list[tuple[int, tuple[int, int, int]]] = []  # the thread of each `collecting_rarely`, and what to restore


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector, unless it is paused already; memory outside cycles is still freed.

    Segmentation keeps many verdicts and attempts, whose references form no cycles. The collector traverses all of them
    repeatedly, which took an eighth of the time without a log and a third with one.
    """
    if not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _PAUSING.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _PAUSING.discard(thread)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the cyclic collector run rarely.

    A capture creates millions of objects that nearly all live until it ends, and so does Numba when it compiles a
    kernel: at Python's own threshold, the collector takes a fifth of a capture's time. Contexts may overlap in several
    threads.
    """
    with _LOCK:
        before = _BEFORE[0][1] if _BEFORE else gc.get_threshold()
        entry = threading.get_ident(), before
        _BEFORE.append(entry)
        least, *older = before
        if least:  # 0: the collector is off
            gc.set_threshold(max(least, ALLOCATIONS), *older)
    try:
        yield
    finally:
        with _LOCK:
            _BEFORE.remove(entry)
            if not _BEFORE:
                gc.set_threshold(*before)


def _after_fork() -> None:
    """End the pauses of threads that a child does not have."""
    thread = threading.get_ident()
    if _PAUSING - {thread}:
        gc.enable()
    _PAUSING.intersection_update({thread})
    before = [thresholds for _, thresholds in _BEFORE]
    _BEFORE[:] = [entry for entry in _BEFORE if entry[0] == thread]
    if before and not _BEFORE:
        gc.set_threshold(*before[0])


after_fork(_after_fork)

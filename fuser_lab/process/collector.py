"""Python's cyclic garbage collector, paused or run rarely while there is nothing for it to free."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fuser_lab.process.forks import after_fork, new_lock

ALLOCATIONS = 200_000  # allocations between two rare collections of the youngest generation

_LOCK = new_lock()
_PAUSING: list[int] = []  # the thread of each `collector_paused`
_BEFORE: list[tuple[int, tuple[int, int, int]]] = []  # the thread of each `collecting_rarely`, and what to restore


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector, unless it is off already; memory outside cycles is still freed.

    Segmentation keeps many verdicts and attempts, whose references form no cycles. The collector traverses all of them
    repeatedly, which took an eighth of the time without a log and a third with one. While Python builds the objects of
    a syntax tree, nothing but the collector runs other code: callbacks, finalizers, and then other threads. CPython
    before 3.11.8 and 3.12.2 raises SystemError if one of these builds a tree, so texts are parsed in a pause.

    Contexts may overlap in several threads.
    """
    thread = threading.get_ident()
    with _LOCK:
        is_on = bool(_PAUSING) or gc.isenabled()
        if is_on:
            _PAUSING.append(thread)
            gc.disable()
    try:
        yield
    finally:
        if is_on:
            with _LOCK:
                if len(_PAUSING) == 1:
                    gc.enable()
                _PAUSING.remove(thread)


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
    paused, _PAUSING[:] = bool(_PAUSING), [pausing for pausing in _PAUSING if pausing == thread]
    if paused and not _PAUSING:
        gc.enable()
    before = [thresholds for _, thresholds in _BEFORE]
    _BEFORE[:] = [entry for entry in _BEFORE if entry[0] == thread]
    if before and not _BEFORE:
        gc.set_threshold(*before[0])


after_fork(_after_fork)

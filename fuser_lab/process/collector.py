"""Python's cyclic garbage collector, paused or run rarely while there is nothing for it to free."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fuser_lab.process.forks import after_fork, new_lock

RARELY = 250  # collections of the middle generation between two of all objects, each after 7,000 allocations: a capture
# of 12 layers has 30 of them
FROZEN = 1_000  # objects; CPython 3.12 itself freezes 375 at its start, and a user who freezes modules many thousands

_LOCK = new_lock()
_PAUSING: list[int] = []  # the thread of each `collector_paused`
_LEFT: dict[int, int] = {}  # collections that remain of `RARELY`, by the number of collections of all objects so far
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
    """Let the cyclic collector visit old objects rarely; cycles of young ones are freed as usual.

    A capture creates millions of objects that nearly all live until it ends, and so does Numba when it compiles a
    kernel: at Python's own thresholds, the collector takes a fifth of a capture's time, most of it for all objects of
    the process. Young objects are still in the processor's cache, so they are visited in small numbers. At the end, the
    collection that is due is postponed. Contexts may overlap in several threads.
    """
    with _LOCK:
        before = _BEFORE[0][1] if _BEFORE else gc.get_threshold()
        entry = threading.get_ident(), before
        _BEFORE.append(entry)
        gc.set_threshold(*before[:2], max(before[2], RARELY))
    try:
        yield
    finally:
        with _LOCK:
            _BEFORE.remove(entry)
            if not _BEFORE:
                _postpone()
                gc.set_threshold(*before)


def _postpone() -> None:
    """Let the collection of all objects that is due now wait for as many new objects as if it had just been.

    `RARELY` bounds how often that is done. The few objects that are young become old ones. Objects that are frozen
    would no longer be, so that nothing is done if there are more than `FROZEN`.
    """
    full = gc.get_stats()[2]["collections"]
    left = _LEFT.get(full, RARELY) - gc.get_count()[2] - 1
    _LEFT.clear()
    _LEFT[full] = left
    if left > 0 and gc.get_freeze_count() <= FROZEN:
        gc.freeze()
        gc.unfreeze()


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

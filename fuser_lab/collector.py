"""Python's cyclic garbage collector, paused or made rare while there is nothing to free for it."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 200_000  # between two collections of the youngest generation that are to be rare

_LOCK = threading.Lock()
_BEFORE: list[tuple[int, int, int]] = []  # one entry for each `collecting_rarely`; the first is what to put back


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector, unless it is paused already; memory outside cycles is still freed.

    Segmentation keeps many verdicts and attempts, whose references form no cycles. The collector traverses all of them
    repeatedly, which took an eighth of the time without a log and a third with one.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the cyclic collector run rarely.

    A capture makes millions of objects, nearly all of which stay until it ends, and so does Numba for a kernel that it
    compiles: at Python's own threshold a fifth of a capture's time goes into looking at them repeatedly. Contexts may
    overlap in several threads.
    """
    with _LOCK:
        _BEFORE.append(gc.get_threshold() if not _BEFORE else _BEFORE[0])
        least, *older = _BEFORE[0]
        if least:  # 0: the collector is off
            gc.set_threshold(max(least, ALLOCATIONS), *older)
    try:
        yield
    finally:
        with _LOCK:
            before = _BEFORE.pop()
            if not _BEFORE:
                gc.set_threshold(*before)

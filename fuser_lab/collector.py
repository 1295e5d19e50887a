"""Python's cyclic garbage collector, paused or run rarely while there is nothing for it to free."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 200_000  # allocations between two rare collections of the youngest generation

_LOCK = threading.Lock()
_BEFORE: list[tuple[int, int, int]] = []  # one entry per `collecting_rarely`; the first one is restored


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

    A capture creates millions of objects that nearly all live until it ends, and so does Numba when it compiles a
    kernel: at Python's own threshold, the collector takes a fifth of a capture's time. Contexts may overlap in several
    threads.
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

"""Garbage collection while a graph is captured."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 200_000  # between two collections of the youngest generation

_LOCK = threading.Lock()
_BEFORE: list[tuple[int, int, int]] = []  # one entry for each capture under way; the first is what to put back


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector run rarely.

    A capture makes millions of objects, nearly all of which stay until it ends: at Python's own threshold a fifth of
    its time goes into looking at them again and again. Captures may overlap in several threads.
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

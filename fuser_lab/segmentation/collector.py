"""Python's cyclic garbage collector, which finds nothing while a fusion is cut and looks for it all the same."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector, unless it is paused already; memory that is in no cycle is freed as ever.

    Verdicts and attempts are kept in great numbers and refer to each other in one direction only. The collector
    walks over all of them again and again, which took an eighth of the time without a log and a third with one.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""Numbered random cases distributed over processes in chunks.

A run can be split by the number of its first case. If it is interrupted, finished work is not lost.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Libraries read these variables when they are imported. One process per core is enough parallelism.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1", "FUSER_LAB_VERIFY": "1",
}

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def one_thread_each() -> None:
    """Give this process and those that it starts one thread, and have fusions verified between passes."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def chunks(first: int, count: int, size: int) -> list[range]:
    """Return the numbers from ``first``, ``count`` of them, in chunks."""
    return [range(i, min(i + size, first + count)) for i in range(first, first + count, size)]


def results(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], workers: int) -> Iterator[Any]:
    """Yield ``function(*call)`` of each call, in the order of completion.

    After SIGINT or SIGTERM, which ``timeout`` sends, no further call begins, and running ones are completed. Exceptions
    of a call, or from the death of a process, are raised here.
    """
    context = get_context("spawn")
    number = context.Value("i", 0)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(number,)) as pool:
        pending = [pool.submit(function, *call) for call in calls]
        with _ending(pending):
            for future in as_completed(pending):
                if not future.cancelled():
                    yield future.result()


def _begin(number: Any) -> None:
    """Leave signals to the parent, and take the next GPU of a machine that has several."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    with number.get_lock():
        if gpus > 1:
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(number.value % gpus))
        number.value += 1


@contextmanager
def _ending(pending: Iterable[Future[Any]]) -> Iterator[None]:
    """Cancel pending calls at the first of these signals, and restore the earlier handlers for the next one."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restored() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def cancel(number: int, frame: Any) -> None:
        restored()
        for future in pending:
            future.cancel()

    for number in _SIGNALS:
        signal.signal(number, cancel)
    try:
        yield
    finally:
        restored()
        for future in pending:
            future.cancel()

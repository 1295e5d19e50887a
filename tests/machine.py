"""The speed of this machine relative to the one on which the time limits were measured."""

import functools
import time

_LOOP = 0.028  # processor seconds of `_loop` on one core of an EPYC 9004 at 2.6 GHz


def _loop() -> float:
    start = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return time.process_time() - start


@functools.cache
def _slowness() -> float:
    return max(1.0, min(_loop() for _ in range(5)) / _LOOP)


def allowed(seconds: float) -> float:
    """Return a time limit scaled to this machine: longer if the machine is slower."""
    return seconds * _slowness()

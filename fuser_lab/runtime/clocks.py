"""Clocks for measurements, and the clock rates of the processors during them."""

import ctypes
import functools
import importlib
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fuser_lab.targets import CUDA

WARM_UP = 3  # calls before the first sample, which compile and fill caches
LEAST_SAMPLES = 5  # samples even if the time limit has passed: fewer have no quartiles
MOST_SAMPLES = 300  # samples at most, for calls that take little of the time limit
SHORTEST = 50e-6  # seconds; faster calls run several times per sample
_TURNS = 10  # rounds in which candidates are timed in turn
_HEAD_START = 100_000  # cycles that the GPU waits, so that the host has launched everything before the clock starts
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # constants of NVML


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds of repeated calls."""

    seconds: tuple[float, ...]

    def quartiles(self) -> tuple[float, float, float]:
        """Return lower quartile, median, upper quartile; NaN without samples."""
        if not self.seconds:
            return math.nan, math.nan, math.nan
        low, median, high = np.percentile(self.seconds, (25, 50, 75))
        return float(low), float(median), float(high)


class HostClock:
    """Wall clock, for synchronous calls."""

    def __init__(self, name: str = "perf_counter") -> None:
        """Take the name shown in tables."""
        self.name = name

    def measured(self, call: Callable[[], object]) -> Callable[[], float]:
        """Return a function that measures a call, in seconds; warm the call up first, and batch short calls."""
        begin = time.perf_counter()
        for _ in range(WARM_UP):
            call()
        once = (time.perf_counter() - begin) / WARM_UP
        repeats = max(1, min(1000, math.ceil(SHORTEST / max(once, 1e-9))))

        def measured() -> float:
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - begin) / repeats

        return measured

    def measured_in_order(self, calls: Sequence[Callable[[], object]]) -> list[Callable[[], float]]:
        """Return functions that measure each of several calls within runs of all of them in order, in seconds.

        Each call finds the caches as the previous call left them, so that the times add up to that of a run. One run
        gives a sample of every call.
        """
        for _ in range(WARM_UP):
            for call in calls:
                call()

        def run() -> list[float]:
            ends = [time.perf_counter()]
            for call in calls:
                call()
                ends.append(time.perf_counter())
            return [end - begin for begin, end in pairwise(ends)]

        return _calls_of_run(run, len(calls))

    def measured_in_order_warm(self, calls: Sequence[Callable[[], object]]) -> list[None]:
        """Return None for each call: this clock never finds the caches cold."""
        return [None for _ in calls]

    def measured_warm(self, call: Callable[[], object]) -> None:
        """Return None: this clock never finds the caches cold."""

    def sample(self, call: Callable[[], object], seconds: float) -> Sample:
        """Return samples of a call, with short calls in batches."""
        return _sample(self.measured(call), seconds)

    def rates(self) -> str:
        """Return the processor's clock rate as reported by the system, or ``""``."""
        try:
            said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            return ""
        frequencies = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", said, re.MULTILINE)
        return f"CPU {max(map(float, frequencies)):.0f} MHz" if frequencies else ""


def _calls_of_run(run: Callable[[], list[float]], count: int) -> list[Callable[[], float]]:
    """Return functions that measure the calls of a run; one run gives a sample of every call."""
    waiting: list[deque[float]] = [deque(maxlen=MOST_SAMPLES) for _ in range(count)]

    def measured(number: int) -> float:
        if not waiting[number]:
            for times, seconds in zip(waiting, run(), strict=True):
                times.append(seconds)
        return waiting[number].popleft()

    return [partial(measured, number) for number in range(count)]


class DeviceClock:
    """CUDA events around each call, on torch's current stream.

    The L2 cache is cold: it is overwritten before a call, or before a run of several calls in order. `warm` leaves it
    as the previous call or run left it. In both cases the GPU stays busy until the host has launched what it can, so
    that events exclude the host's time for a single kernel; for many launches they include the time that the GPU waits.
    """

    name = "CUDA events, cold L2"
    flushed = 1 << 28

    def __init__(self) -> None:
        """Allocate the memory that overwrites the cache."""
        self._torch: Any = importlib.import_module("torch")
        self._flush = self._torch.empty(self.flushed, dtype=self._torch.int8, device=CUDA.name)

    def measured(self, call: Callable[[], object]) -> Callable[[], float]:
        """Return a function that measures a call with a cold L2 cache, in seconds."""
        return self._measure(call, self._flush.zero_)

    def measured_warm(self, call: Callable[[], object]) -> Callable[[], float]:
        """Return a function that measures a call with the cache as the previous call left it, in seconds."""

        def before() -> None:
            call()
            self._torch.cuda._sleep(_HEAD_START)  # noqa: SLF001 - as torch's own benchmarks do

        return self._measure(call, before)

    def measured_in_order(self, calls: Sequence[Callable[[], object]]) -> list[Callable[[], float]]:
        """Return functions that measure each of several calls within runs of all of them in order, in seconds.

        The L2 cache is cold when a run starts; each call finds it as the previous calls left it, so that the
        times add up to that of a run. One run gives a sample of every call.
        """
        return self._measured_in_order(calls, self._flush.zero_)

    def measured_in_order_warm(self, calls: Sequence[Callable[[], object]]) -> list[Callable[[], float]]:
        """Return functions that measure the calls of runs with the cache as the previous run left it."""

        def before() -> None:
            for call in calls:
                call()

        return self._measured_in_order(calls, before)

    def _measured_in_order(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object],
    ) -> list[Callable[[], float]]:
        cuda = self._torch.cuda
        for _ in range(WARM_UP):
            for call in calls:
                call()
        cuda.synchronize()

        def run() -> list[float]:
            events = [cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
            before()
            # The host launches the calls one by one: the GPU must never wait between two events.
            cuda._sleep(_HEAD_START * len(calls))  # noqa: SLF001 - as torch's own benchmarks do
            events[0].record()
            for call, end in zip(calls, events[1:], strict=True):
                call()
                end.record()
            cuda.synchronize()
            return [float(begin.elapsed_time(end)) * 1e-3 for begin, end in pairwise(events)]

        return _calls_of_run(run, len(calls))

    def sample(self, call: Callable[[], object], seconds: float) -> Sample:
        """Return samples of a call with a cold L2 cache."""
        return _sample(self.measured(call), seconds)

    def warm(self, call: Callable[[], object], seconds: float) -> Sample:
        """Return samples of a call with the cache as the previous call left it."""
        return _sample(self.measured_warm(call), seconds)

    def _measure(self, call: Callable[[], object], before: Callable[[], object]) -> Callable[[], float]:
        torch = self._torch
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()

        def measured() -> float:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before()
            start.record()
            call()
            stop.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(stop)) * 1e-3

        return measured

    def rates(self) -> str:
        """Return the clock rates of multiprocessors and memory as reported by the driver; empty if unavailable."""
        properties = self._torch.cuda.get_device_properties(self._torch.cuda.current_device())
        clocks = _gpu_clocks(f"GPU-{getattr(properties, 'uuid', '')}")
        return "" if clocks is None else f"SM {clocks[0]} MHz, memory {clocks[1]} MHz"


def _sample(measured: Callable[[], float], seconds: float) -> Sample:
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < LEAST_SAMPLES or (time.perf_counter() < end and len(samples) < MOST_SAMPLES):
        samples.append(measured())
    return Sample(seconds=tuple(samples))


class Turns:
    """Interleaved samples of several calls, so that other load on the machine affects all of them equally."""

    def __init__(self, seconds: float) -> None:
        """Take the maximum time to spend on each call after warm-up."""
        self._seconds = seconds
        self._calls: list[Callable[[], float]] = []
        self._found: list[list[float]] = []

    def add(self, measured: Callable[[], float]) -> int:
        """Add the function that measures a call; return its number."""
        self._calls.append(measured)
        self._found.append([])
        return len(self._calls) - 1

    def sample(self, number: int) -> Sample:
        """Return the samples of a call taken so far."""
        return Sample(seconds=tuple(self._found[number]))

    def first(self, number: int) -> None:
        """Take a few provisional samples of a call, one if it is slow; later turns replace them."""
        samples, begin = self._found[number], time.perf_counter()
        while not samples or (len(samples) < LEAST_SAMPLES and time.perf_counter() - begin < self._seconds / _TURNS):
            samples.append(self._calls[number]())

    def rounds(self, ended: Callable[[], bool] = lambda: False) -> Iterator[float]:
        """Sample all calls in rounds, and yield the completed share after each round.

        Parameters
        ----------
        ended
            Called before each turn; if true, sampling stops.
        """
        spent = [0.0] * len(self._calls)
        taken: list[list[float]] = [[] for _ in self._calls]
        for turn in range(_TURNS):
            order = range(len(self._calls)) if turn % 2 == 0 else reversed(range(len(self._calls)))
            for number in order:
                if ended():
                    return
                if spent[number] >= self._seconds and len(taken[number]) >= LEAST_SAMPLES:
                    continue
                spent[number] += self._turn(number, taken[number], spent[number], turn)
                self._found[number] = taken[number]
            yield (turn + 1) / _TURNS

    def _turn(self, number: int, taken: list[float], spent: float, turn: int) -> float:
        """Take the samples of a turn; return its duration in seconds."""
        call, begin = self._calls[number], time.perf_counter()
        share = max(self._seconds - spent, 0) / (_TURNS - turn)
        most = len(taken) + MOST_SAMPLES // _TURNS
        # The previous call has changed the caches, and threads have gone to sleep.
        once = call()
        if once > share:
            taken.append(once)
            return time.perf_counter() - begin
        while True:
            taken.append(call())
            if time.perf_counter() - begin >= share or len(taken) >= most:
                return time.perf_counter() - begin


@functools.cache
def _management() -> ctypes.CDLL | None:
    """Return NVML, initialized, or None if unavailable."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _gpu_clocks(uuid: str) -> tuple[int, int] | None:
    """Return the current clock rates of a GPU in MHz."""
    library = _management()
    handle = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return None
    clocks = []
    for kind in (_SM_CLOCK, _MEMORY_CLOCK):
        clock = ctypes.c_uint()
        if library.nvmlDeviceGetClockInfo(handle, kind, ctypes.byref(clock)) != 0:
            return None
        clocks.append(clock.value)
    return clocks[0], clocks[1]

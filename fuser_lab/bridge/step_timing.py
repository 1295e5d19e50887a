"""Measured seconds of each unit of a captured step: host time on a CPU, time between events on a GPU."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from fuser_lab.bridge.graph_walk import Around, Unit

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph

_WARM_UPS = 2  # runs that compile kernels, and let caches and clocks settle
_FEWEST = 3  # measured steps
_MOST = 50  # timed steps, however short they are
_CYCLES = 2e9  # per second: the clock of a current GPU, for the wait that lets the host run ahead
_LONGEST_WAIT = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Median seconds of each unit in a step, of the whole step, and the name of the processor."""

    units: Mapping[Unit, float]
    step: float
    processor: str


class _Clock(Protocol):
    def around(self, unit: Unit) -> Any:
        """Return the context that measures a unit."""

    def times(self) -> Mapping[Unit, float]:
        """Return the seconds of each unit since the previous call."""


class _HostClock:
    def __init__(self) -> None:
        self._times: dict[Unit, float] = {}

    @contextmanager
    def around(self, unit: Unit) -> Iterator[None]:
        begin = perf_counter()
        yield
        self._times[unit] = perf_counter() - begin

    def times(self) -> Mapping[Unit, float]:
        """Return the seconds of each unit since the previous call."""
        times, self._times = self._times, {}
        return times


class _EventClock:
    """Times between two events on the stream of a GPU.

    The GPU first waits as long as the host took for the previous step, so that units are in its queue before they run;
    otherwise an interval would contain the time in which the host prepares the launch.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._events: list[tuple[Unit, Any, Any]] = []
        self._host = 0.0

    @contextmanager
    def around(self, unit: Unit) -> Iterator[None]:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        if not self._events:
            self._begun = perf_counter()
            wait = min(2 * self._host, _LONGEST_WAIT)
            self._torch.cuda._sleep(int(wait * _CYCLES))  # noqa: SLF001 - torch has no other wait on the GPU
        begin.record()
        yield
        end.record()
        self._events.append((unit, begin, end))

    def times(self) -> Mapping[Unit, float]:
        """Return the seconds of each unit since the previous call."""
        self._host = perf_counter() - self._begun if self._events else 0.0
        self._torch.cuda.synchronize()
        times = {unit: begin.elapsed_time(end) * 1e-3 for unit, begin, end in self._events}
        self._events = []
        return times


def measured_on_host(
    graphs: Sequence["CapturedGraph"], step: Callable[[], object], seconds: float, threads: int,
) -> MeasuredStep:
    """Return measured seconds of a step on the CPU and of its units, each the median of several steps.

    ``seconds`` is the maximum time for the steps after warm-up, and again for those in which each unit is timed.
    """
    name = f"CPU ({threads} thread{'s' if threads != 1 else ''})"
    return _measured(graphs, step, _HostClock(), _nothing, name, seconds)


def measured_on_gpu(
    torch: Any, graphs: Sequence["CapturedGraph"], step: Callable[[], object], seconds: float,
) -> MeasuredStep:
    """Return measured seconds of a step on torch's current GPU and of its units; see `measured_on_host`."""
    name = str(torch.cuda.get_device_name())
    return _measured(graphs, step, _EventClock(torch), torch.cuda.synchronize, name, seconds)


def _nothing() -> None:
    pass


def _measured(
    graphs: Sequence["CapturedGraph"], step: Callable[[], object], clock: _Clock, finish: Callable[[], object],
    processor: str, seconds: float,
) -> MeasuredStep:
    for _ in range(_WARM_UPS):
        step()
    finish()
    begin = perf_counter()
    step()
    finish()
    count = max(_FEWEST, min(_MOST, int(seconds / max(perf_counter() - begin, 1e-6))))
    samples = []
    for _ in range(count):
        begin = perf_counter()
        step()
        finish()
        samples.append(perf_counter() - begin)
    times: defaultdict[Unit, list[float]] = defaultdict(list)
    with _watched(graphs, clock.around):
        for number in range(count + 1):
            step()
            measured = clock.times()
            for unit, duration in measured.items() if number else ():
                times[unit].append(duration)
    units = {unit: statistics.median(durations) for unit, durations in times.items()}
    return MeasuredStep(units=units, step=statistics.median(samples) if samples else math.nan, processor=processor)


@contextmanager
def _watched(graphs: Sequence["CapturedGraph"], around: Around) -> Iterator[None]:
    """Let all graphs enter a context around each unit; graphs that a library runs whole have no units."""
    runs = [graph.run for graph in graphs if hasattr(graph.run, "around")]
    try:
        for run in runs:
            run.around = around
        yield
    finally:
        for run in runs:
            run.around = None

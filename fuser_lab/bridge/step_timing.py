"""Measured seconds of each unit and graph break of a step: host time on a CPU, time between events on a GPU."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fuser_lab.bridge.graph_walk import Unit, while_set
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.step_memory import units_of
from fuser_lab.report.units import plural

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph, GraphBreak

    Timed = Unit | GraphBreak

_WARM_UPS = 2  # runs that compile kernels, and let caches and clocks settle
_FEWEST = 3  # measured steps
_MOST = 50  # timed steps, however short they are
_CYCLES = 2e9  # per second: the clock of a current GPU, for the wait that lets the host run ahead
_LONGEST_WAIT = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Median seconds of each unit and graph break in a step, of the whole step, and the name of the processor.

    The time of a unit is that of all its runs. The time of a graph break is that between the last unit of the graph
    that it ends and the next unit.
    """

    units: "Mapping[Timed, float]"
    step: float
    processor: str


class _Interval(NamedTuple):
    """One run of a unit: its seconds, and those from its end to the begin of the next unit, or NaN."""

    unit: Unit
    seconds: float
    gap: float


class _Clock(Protocol):
    def around(self, unit: Unit) -> Any:
        """Return the context that measures a unit."""

    def intervals(self) -> Sequence[_Interval]:
        """Return the runs of units since the previous call, in order."""


class _HostClock:
    def __init__(self) -> None:
        self._runs: list[tuple[Unit, float, float]] = []

    @contextmanager
    def around(self, unit: Unit) -> Iterator[None]:
        begin = perf_counter()
        yield
        self._runs.append((unit, begin, perf_counter()))

    def intervals(self) -> Sequence[_Interval]:
        """Return the runs of units since the previous call, in order."""
        runs, self._runs = self._runs, []
        begins = [begin for _, begin, _ in runs[1:]]
        return [
            _Interval(unit, end - begin, following - end)
            for (unit, begin, end), following in zip(runs, [*begins, math.nan], strict=True)
        ]


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

    def intervals(self) -> Sequence[_Interval]:
        """Return the runs of units since the previous call, in order."""
        self._host = perf_counter() - self._begun if self._events else 0.0
        self._torch.cuda.synchronize()
        runs, self._events = self._events, []
        gaps = [end.elapsed_time(begin) for (_, _, end), (_, begin, _) in pairwise(runs)]
        return [
            _Interval(unit, begin.elapsed_time(end) * 1e-3, gap * 1e-3)
            for (unit, begin, end), gap in zip(runs, [*gaps, math.nan][: len(runs)], strict=True)
        ]


def measured_on_host(
    graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], step: Callable[[], object], seconds: float,
    threads: int,
) -> MeasuredStep:
    """Return measured seconds of a step on the CPU, of its units and graph breaks, each the median of several steps.

    ``seconds`` is the maximum time for the steps after warm-up, and again for those in which each unit is timed.
    """
    name = f"CPU ({plural(threads, 'thread')})"
    return _measure(graphs, breaks, step, _HostClock(), lambda: None, name, seconds)


def measured_on_gpu(
    torch: Any, graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], step: Callable[[], object],
    seconds: float,
) -> MeasuredStep:
    """Return measured seconds of a step on torch's current GPU and of its units; see `measured_on_host`."""
    name = str(torch.cuda.get_device_name())
    return _measure(graphs, breaks, step, _EventClock(torch), torch.cuda.synchronize, name, seconds)


def _measure(
    graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], step: Callable[[], object], clock: _Clock,
    finish: Callable[[], object], processor: str, seconds: float,
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
    times: defaultdict[Timed, list[float]] = defaultdict(list)
    ends = _last_units(graphs, breaks)
    # Graphs that a library runs whole have no units.
    with while_set([graph.run for graph in graphs if hasattr(graph.run, "around")], "around", clock.around):
        for number in range(count + 1):
            step()
            measured = _sums(clock.intervals(), ends)
            for unit, duration in measured.items() if number else ():
                times[unit].append(duration)
    units = {unit: statistics.median(durations) for unit, durations in times.items()}
    return MeasuredStep(units=units, step=statistics.median(samples) if samples else math.nan, processor=processor)


def _sums(intervals: Iterable[_Interval], ends: "Mapping[Unit, GraphBreak]") -> "Mapping[Timed, float]":
    """Return the seconds of each unit, and those at each graph break, in one step; ``ends`` are breaks by last unit."""
    sums: defaultdict[Timed, float] = defaultdict(float)
    for unit, duration, gap in intervals:
        sums[unit] += duration
        if unit in ends and not math.isnan(gap):
            sums[ends[unit]] += gap
    return sums


def _last_units(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"]) -> "Mapping[Unit, GraphBreak]":
    """Return the graph breaks by the last unit that runs before them."""
    ends = {each.graph: each for each in breaks}
    last: dict[Unit, GraphBreak] = {}
    for number, graph in enumerate(graphs):
        units = [unit for unit in units_of(graph) if isinstance(unit, Region) or unit.op == "call_function"]
        if number in ends and units:
            last[units[-1]] = ends[number]
    return last

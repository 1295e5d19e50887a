"""Measure plans: results checked first, outputs allocated beforehand, median and quartiles of many samples."""

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from fuser_lab.cost.timings import TimingRow, Timings
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Expr, Fusion
from fuser_lab.ops.registry import Array
from fuser_lab.runtime.arrays import describe, inputs_to_numpy, to_numpy
from fuser_lab.runtime.executor import BoundRun, PreparedPlan
from fuser_lab.runtime.generator import with_seeds

Progress = Callable[[int, int, Timings], None]

WARM_UP = 3
LEAST_SAMPLES = 5
MOST_SAMPLES = 300
SHORTEST = 50e-6  # seconds; what is faster is run several times per sample
CHECKED_ELEMENTS = 1 << 26  # beyond, the reference evaluation would take longer than the measurement

# What rounding explains, as a share of the largest value of an output.
_TOLERANCE = {
    DataType.Double: 1e-9, DataType.Float: 1e-3, DataType.Half: 2e-2, DataType.BFloat16: 6e-2,
    DataType.ComplexFloat: 1e-3, DataType.ComplexDouble: 1e-9,
}


class TimedSegment(Protocol):
    """What a measurement says about a segment."""

    @property
    def index(self) -> int:
        """Number in run order."""

    @property
    def scheduler(self) -> SchedulerType | None:
        """Who runs it."""

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """Its expressions."""

    @property
    def bytes_in(self) -> int:
        """Bytes read."""

    @property
    def bytes_out(self) -> int:
        """Bytes written."""

    @property
    def bytes_crossing(self) -> int:
        """Bytes that pass between segments."""


class TimedPlan(Protocol):
    """What can be measured."""

    @property
    def name(self) -> str:
        """Name in the table."""

    @property
    def fusion(self) -> Fusion:
        """The fusion with all sizes known."""

    @property
    def segments(self) -> Sequence[TimedSegment]:
        """Segments in run order."""

    @property
    def bytes_crossing(self) -> int:
        """Bytes of the tensors that pass between segments, each counted once."""

    def prepared(self, target: str = "cpu") -> PreparedPlan:
        """Return the plan compiled for a target."""


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


def measure(
    plans: Sequence[TimedPlan], inputs: Sequence[Any], *, progress: Progress | bool | None = None,
    cancelled: Callable[[], bool] | None = None, seconds: float = 1.0,
) -> Timings:
    """Return measured times of plans, per segment and in total; the first plan is the baseline of the ratios.

    A plan whose results differ from the reference evaluation by more than rounding explains is not timed: its rows
    have NaN and the error.

    Parameters
    ----------
    plans
        Plans for the same inputs.
    inputs
        Arrays and numbers.
    progress
        Called as ``progress(done, total, timings so far)``; None or True shows a bar, False none.
    cancelled
        Asked between measurements; once true, the rows measured so far are returned.
    seconds
        Time to spend on each row at most, after warm-up.
    """
    on_gpu = any(_on_gpu(value) for value in inputs)
    run = _Measurement("cuda" if on_gpu else "cpu", list(inputs), cancelled or (lambda: False), seconds)
    total = sum(len(plan.segments) + 2 for plan in plans)
    if progress is None or progress is True:
        return _with_bar(run, plans, total)
    return run.measure(plans, total, progress if callable(progress) else _silent)


def _with_bar(run: "_Measurement", plans: Sequence[TimedPlan], total: int) -> Timings:
    from tqdm.auto import tqdm

    # disable=None: no bar where the output is no terminal.
    bar: Any = tqdm(total=total, desc="timing", leave=False, disable=None)

    def show(done: int, _: int, __: Timings) -> None:
        bar.update(done - bar.n)

    try:
        return run.measure(plans, total, show)
    finally:
        bar.close()


def _silent(done: int, total: int, timings: Timings) -> None:
    """Say nothing."""


def _on_gpu(value: Any) -> bool:
    spec = describe(value)
    return isinstance(spec, TensorSpec) and spec.device.startswith("cuda")


class _Measurement:
    def __init__(self, target: str, inputs: list[Any], cancelled: Callable[[], bool], seconds: float) -> None:
        self._target, self._inputs, self._cancelled, self._seconds = target, inputs, cancelled, seconds
        self._rows: list[TimingRow] = []
        self._given: dict[Fusion, list[Any]] = {}
        self._reference: dict[Fusion, tuple[Array, ...] | None] = {}

    @property
    def _so_far(self) -> Timings:
        return Timings(rows=tuple(self._rows)).compared()

    def measure(self, plans: Sequence[TimedPlan], total: int, progress: Progress) -> Timings:
        done = 0
        for plan in plans:
            if self._cancelled():
                break
            prepared = plan.prepared(self._target)
            inputs = self._seeded(plan.fusion)
            outputs = prepared.run(inputs)
            error = self._error(plan.fusion, inputs, outputs)
            progress(done := done + 1, total, self._so_far)
            kept = prepared.reusable(outputs)
            bound = prepared.bind(inputs, kept)
            clock = _clock(prepared)
            runs = [step.runs for step in prepared.steps(inputs)]
            for row, call in self._calls(plan, bound, runs, partial(prepared.run, inputs, kept)):
                if self._cancelled():
                    break
                sample = Sample(seconds=()) if error >= 1 else clock.sample(call, self._seconds)
                self._rows.append(_filled(row, sample, prepared.memory.label(), clock.name, error))
                progress(done := done + 1, total, self._so_far)
        return self._so_far

    def _seeded(self, fusion: Fusion) -> list[Any]:
        """Return the inputs of a fusion: what is measured is compared with the same random numbers."""
        if fusion not in self._given:
            self._given[fusion] = with_seeds(fusion, self._inputs)
        return self._given[fusion]

    @staticmethod
    def _calls(
        plan: TimedPlan, bound: BoundRun, runs: Sequence[bool], complete: Callable[[], object],
    ) -> list[tuple[TimingRow, Callable[[], object]]]:
        """Return rows with what to measure for them; a segment that does not run reads and writes nothing."""
        found: list[tuple[TimingRow, Callable[[], object]]] = []
        for segment, step, moves in zip(plan.segments, bound.steps, runs, strict=True):
            found.append(
                (
                    TimingRow(
                        plan=plan.name, segment=segment.index, ops=len(segment.exprs),
                        scheduler=segment.scheduler.value if segment.scheduler else "",
                        bytes_in=segment.bytes_in if moves else 0, bytes_out=segment.bytes_out if moves else 0,
                        bytes_crossing=segment.bytes_crossing if moves else 0,
                    ),
                    step,
                ),
            )
        whole = TimingRow(
            plan=plan.name, segment=None, scheduler="", ops=sum(row.ops for row, _ in found),
            bytes_in=sum(row.bytes_in for row, _ in found), bytes_out=sum(row.bytes_out for row, _ in found),
            bytes_crossing=plan.bytes_crossing,
        )
        return [*found, (whole, complete)]

    def _error(self, fusion: Fusion, inputs: Sequence[Any], outputs: Sequence[Any]) -> float:
        """Return the worst deviation from the reference evaluation; NaN if it was not made."""
        if fusion.aliases or sum(tv.numel for tv in fusion.tensors.values()) > CHECKED_ELEMENTS:
            return math.nan
        if fusion not in self._reference:
            self._reference[fusion] = evaluate(fusion, inputs_to_numpy(inputs))
        wanted = self._reference[fusion] or ()
        return max((deviation(to_numpy(got), ref) for got, ref in zip(outputs, wanted, strict=True)), default=0.0)


def deviation(got: Array, wanted: Array) -> float:
    """Return the largest difference as a share of what rounding explains; infinite if NaN or infinity differ."""
    from fuser_lab.dtypes import from_numpy

    if not got.size:
        return 0.0
    tolerance = _TOLERANCE.get(from_numpy(got.dtype), 0.0)
    if not tolerance:
        return 0.0 if np.array_equal(got, wanted) else math.inf
    wide = np.complex128 if np.iscomplexobj(got) else np.float64
    a, b = got.astype(wide), wanted.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.all(same | finite):
        return math.inf
    scale = float(np.abs(b[finite]).max(initial=0.0))
    worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return worst / (tolerance * max(scale, 1e-30))


def _filled(row: TimingRow, sample: Sample, device: str, timer: str, error: float) -> TimingRow:
    low, median, high = sample.quartiles()
    return replace(
        row, median=median, low=low, high=high, iqr=high - low, samples=len(sample.seconds), device=device,
        timer=timer, error=error,
    )


class _HostClock:
    """Wall clock; for what is done when it returns."""

    name = "perf_counter"

    def sample(self, call: Callable[[], object], seconds: float) -> Sample:
        """Return samples of a call, short calls several at a time."""
        begin = time.perf_counter()
        for _ in range(WARM_UP):
            call()
        once = (time.perf_counter() - begin) / WARM_UP
        repeats = max(1, min(1000, math.ceil(SHORTEST / max(once, 1e-9))))
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < LEAST_SAMPLES or (time.perf_counter() < end and len(found) < MOST_SAMPLES):
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            found.append((time.perf_counter() - begin) / repeats)
        return Sample(seconds=tuple(found))


class _DeviceClock:
    """CUDA events around each call, the second-level cache flushed before it."""

    name = "CUDA events, cold L2"
    flushed = 1 << 28

    def sample(self, call: Callable[[], object], seconds: float) -> Sample:
        """Return samples of a call."""
        torch: Any = importlib.import_module("torch")
        flush = torch.empty(self.flushed, dtype=torch.int8, device="cuda")
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < LEAST_SAMPLES or (time.perf_counter() < end and len(found) < MOST_SAMPLES):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            start.record()
            call()
            stop.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(stop) * 1e-3)
        return Sample(seconds=tuple(found))


def _clock(prepared: PreparedPlan) -> _HostClock | _DeviceClock:
    return _DeviceClock() if prepared.target == "cuda" else _HostClock()

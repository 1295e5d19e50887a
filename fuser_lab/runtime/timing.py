"""Measure plans: results checked first, outputs allocated beforehand, median and quartiles of many samples."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from fuser_lab.cost.timings import TimingRow, Timings
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Expr, Fusion
from fuser_lab.ops.registry import Array
from fuser_lab.passes import offsets_of
from fuser_lab.runtime.arrays import describe, inputs_to_numpy, is_torch, to_numpy
from fuser_lab.runtime.binding import device_of
from fuser_lab.runtime.clocks import DeviceClock, HostClock
from fuser_lab.runtime.executor import BoundRun, PreparedPlan
from fuser_lab.runtime.generator import with_seeds

Progress = Callable[[int, int, Timings], None]
Peer = Callable[..., Any]

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
    def hash(self) -> str:
        """Hash of its content."""

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


def measure(
    plans: Sequence[TimedPlan], inputs: Sequence[Any], *, peers: Mapping[str, Peer] | None = None,
    progress: Progress | bool | None = None, cancelled: Callable[[], bool] | None = None, seconds: float = 1.0,
) -> Timings:
    """Return measured times of plans, per segment and in total, then of peers; ratios are to the first plan.

    What gives results that differ from the reference evaluation by more than rounding explains is not timed: its rows
    have NaN and the error. Where the reference evaluation would take too long, results are compared with those of the
    first plan.

    Parameters
    ----------
    plans
        Plans for the same inputs.
    inputs
        Arrays and numbers.
    peers
        Functions that compute the same, by the names of their rows: called with the inputs, and with ``out``, the array
        to write to or a list of them, if they have a parameter of that name.
    progress
        Called as ``progress(done, total, timings so far)``; None or True shows a bar, False none.
    cancelled
        Asked between measurements; once true, the rows measured so far are returned.
    seconds
        Time to spend on each row at most, after warm-up.
    """
    target = device_of([describe(value) for value in inputs])
    run = _Measurement(target, list(inputs), dict(peers or {}), cancelled or (lambda: False), seconds)
    total = sum(len(plan.segments) + 2 for plan in plans) + len(peers or {})
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


class _Measurement:
    def __init__(
        self, target: str, inputs: list[Any], peers: dict[str, Peer], cancelled: Callable[[], bool], seconds: float,
    ) -> None:
        self._target, self._inputs, self._cancelled, self._seconds = target, inputs, cancelled, seconds
        self._peers = peers
        self._first: list[Any] = []  # results of the first plan
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
            error, note = self._compared(plan.fusion, inputs, outputs)
            self._first = self._first or list(outputs)
            progress(done := done + 1, total, self._so_far)
            kept = prepared.reusable(outputs)
            bound = prepared.bind(inputs, kept)
            clock = _clock(prepared)
            runs = [step.runs for step in prepared.steps(inputs)]
            for row, call in self._calls(plan, bound, runs, partial(prepared.run, inputs, kept)):
                if self._cancelled():
                    break
                self._add(replace(row, device=prepared.memory.label(), error=error, note=note), call, clock)
                progress(done := done + 1, total, self._so_far)
        for name, peer in self._peers.items():
            if self._cancelled() or not plans:
                break
            self._measure_peer(name, peer, plans[0])
            progress(done := done + 1, total, self._so_far)
        return self._so_far

    def _add(self, row: TimingRow, call: Callable[[], object], clock: HostClock | DeviceClock) -> None:
        """Measure a call unless its results are wrong, and add its row."""
        if row.error >= 1:
            self._rows.append(replace(row, timer=clock.name, note=f"wrong results, not timed{_after(row.note)}"))
            return
        sample = clock.sample(call, self._seconds)
        low, median, high = sample.quartiles()
        clocks = clock.rates()
        _, warm, _ = clock.warm(call, self._seconds / 2).quartiles()
        parts = [r.median for r in self._rows if r.plan == row.plan and r.segment is not None]
        self._rows.append(
            replace(
                row, median=median, low=low, high=high, iqr=high - low, samples=len(sample.seconds), warm=warm,
                timer=clock.name, clocks=clocks, kernels=sum(parts) if row.segment is None and parts else math.nan,
            ),
        )

    def _measure_peer(self, name: str, peer: Peer, plan: TimedPlan) -> None:
        """Call a peer, compare what it returns, and add its row; what goes wrong stands in the row's note."""
        prepared = plan.prepared(self._target)
        row = TimingRow(
            plan=name, segment=None, scheduler="", ops=0, bytes_crossing=0, device=prepared.memory.label(),
            bytes_in=sum(tv.nbytes for tv in plan.fusion.tensor_inputs),
            bytes_out=sum(tv.nbytes for tv in plan.fusion.outputs),
        )
        try:
            call, results, clock = self._peer_call(peer, prepared)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way, and the others are still measured
            said = str(error).strip().partition("\n")[0]
            self._rows.append(replace(row, note=f"not measured: {type(error).__name__}: {said}"))
            return
        wanted = len(self._first)
        if len(results) != wanted:
            note = f"not measured: it returns {len(results)} results, the first plan {wanted}"
            self._rows.append(replace(row, note=note))
            return
        worst, note = self._compared(plan.fusion, self._seeded(plan.fusion), results)
        made = "" if _takes_out(peer) else "it allocates its results"
        self._add(replace(row, error=worst, note="; ".join(filter(None, (made, note)))), call, clock)

    def _peer_call(
        self, peer: Peer, prepared: PreparedPlan,
    ) -> tuple[Callable[[], object], list[Any], HostClock | DeviceClock]:
        """Return what to measure of a peer, its results, and the clock that sees it."""
        call = partial(peer, *self._inputs)
        if _takes_out(peer):
            given = [_like(array) for array in self._first]
            call = partial(peer, *self._inputs, out=given[0] if len(given) == 1 else given)
        results = call()
        flat = list(results) if isinstance(results, tuple | list) else [results]
        waits = [result for result in flat if hasattr(result, "block_until_ready")]
        if not waits:
            return call, flat, _clock(prepared)

        def until_ready() -> None:
            found = call()
            for result in found if isinstance(found, tuple | list) else [found]:
                result.block_until_ready()

        return until_ready, flat, HostClock("perf_counter, block_until_ready")

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
                        plan=plan.name, plan_hash=plan.hash, segment=segment.index, ops=len(segment.exprs),
                        scheduler=segment.scheduler.value if segment.scheduler else "",
                        bytes_in=segment.bytes_in if moves else 0, bytes_out=segment.bytes_out if moves else 0,
                        bytes_crossing=segment.bytes_crossing if moves else 0,
                    ),
                    step,
                ),
            )
        whole = TimingRow(
            plan=plan.name, plan_hash=plan.hash, segment=None, scheduler="", ops=sum(row.ops for row, _ in found),
            bytes_in=sum(row.bytes_in for row, _ in found), bytes_out=sum(row.bytes_out for row, _ in found),
            bytes_crossing=plan.bytes_crossing,
        )
        return [*found, (whole, complete)]

    def _compared(
        self, fusion: Fusion, inputs: Sequence[Any], outputs: Sequence[Any],
    ) -> tuple[float, str]:
        """Return the worst deviation from the reference evaluation, or else from the first plan, and what it is from.

        NaN if there is nothing to compare with.
        """
        if fusion.aliases:
            return math.nan, "not checked: it writes over its inputs"
        if sum(tv.numel for tv in fusion.tensors.values()) > CHECKED_ELEMENTS:
            if not self._first:
                return math.nan, "not checked: too large for the reference evaluation"
            if offsets_of(fusion):
                return math.nan, "not checked: random numbers"
            pairs = zip(outputs, self._first, strict=True)
            return max((distance(got, first) for got, first in pairs), default=0.0), "checked against the first plan"
        if fusion not in self._reference:
            self._reference[fusion] = evaluate(fusion, inputs_to_numpy(inputs))
        wanted = self._reference[fusion] or ()
        return max((deviation(to_numpy(got), ref) for got, ref in zip(outputs, wanted, strict=True)), default=0.0), ""


def distance(got: Any, wanted: Any) -> float:
    """Return the deviation of arrays of any library; on the GPU if they are there."""
    if not (is_torch(got) and is_torch(wanted) and got.is_cuda and wanted.is_cuda):
        return deviation(to_numpy(got), to_numpy(wanted))
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return math.inf
    tolerance = _TOLERANCE.get(describe(got).dtype, 0.0)  # type: ignore[union-attr]
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    if not tolerance or not got.numel():
        return 0.0 if bool(same.all()) else math.inf
    finite = got.isfinite() & wanted.isfinite()
    if not bool((same | finite).all()):
        return math.inf
    scale = float(wanted.abs().where(finite, 0).max())
    return float((got - wanted).abs().where(finite, 0).max()) / (tolerance * max(scale, 1e-30))


def _takes_out(peer: Peer) -> bool:
    try:
        return "out" in inspect.signature(peer).parameters
    except (TypeError, ValueError):  # a function written in C
        return False


def _like(array: Any) -> Any:
    return array.clone() if is_torch(array) else array.copy()


def _after(note: str) -> str:
    return f"; {note}" if note else ""


def deviation(got: Array, wanted: Array) -> float:
    """Return the largest difference as a share of what rounding explains; infinite if NaN or infinity differ."""
    from fuser_lab.dtypes import from_numpy

    if got.shape != wanted.shape:
        return math.inf
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


def _clock(prepared: PreparedPlan) -> HostClock | DeviceClock:
    return DeviceClock() if prepared.target == "cuda" else HostClock()

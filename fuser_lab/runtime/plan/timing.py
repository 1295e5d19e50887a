"""Measurement of plans: results are checked and outputs allocated first; many samples give median and quartiles.

Rows are measured round-robin, so that drift of the machine affects all of them equally.
"""

import inspect
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.cost.traffic import traffic_of
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Expr, Fusion
from fuser_lab.ops.rules import Array
from fuser_lab.passes import offsets_drawn
from fuser_lab.runtime.arrays import describe, inputs_to_numpy, is_torch, to_numpy
from fuser_lab.runtime.binding import device_of
from fuser_lab.runtime.clocks import DeviceClock, HostClock, Sample, Turns
from fuser_lab.runtime.interrupts import progress_bar
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.runtime.plan.generator import with_seeds
from fuser_lab.runtime.plan.steps import BoundRun
from fuser_lab.targets import CPU, target_of

Progress = Callable[[int, int, Timings], None]
Peer = Callable[..., Any]
_Inside = tuple[Callable[[], float], Callable[[], float] | None]  # measures part of a run, cold and warm

CHECKED_ELEMENTS = 1 << 26  # beyond this, the reference evaluation would take longer than the measurement
IN_LOCK_STEP = "evaluated in lock step: its time says nothing about speed"
_RANDOM = "not checked: random numbers"

# The difference that rounding can explain, as a share of the largest value of an output.
_TOLERANCE = {
    DataType.Double: 1e-9, DataType.Float: 1e-3, DataType.Half: 2e-2, DataType.BFloat16: 6e-2,
    DataType.ComplexFloat: 1e-3, DataType.ComplexDouble: 1e-9,
    DataType.Float8_e4m3fn: 0.125, DataType.Float8_e5m2: 0.25,
}


class TimedSegment(Protocol):
    """The part of a segment's interface that measurements use."""

    @property
    def index(self) -> int:
        """Number in run order."""

    @property
    def scheduler(self) -> SchedulerType | None:
        """The scheduler that accepts it, or None."""

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
    """The part of a plan's interface that measurements use."""

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

    def prepare(self, target: str = CPU.name) -> PreparedPlan:
        """Return the plan compiled for a target."""


def measure(
    plans: Sequence[TimedPlan], inputs: Sequence[Any], *, peers: Mapping[str, Peer] | None = None,
    progress: Progress | bool | None = None, cancelled: Callable[[], bool] | None = None, seconds: float = 1.0,
) -> Timings:
    """Return measured times of plans, per segment and in total, then of peers; ratios are relative to the first plan.

    A plan or peer whose results differ from the reference evaluation by more than rounding can explain is not timed:
    its rows have NaN and the error. If the reference evaluation would take too long, results are compared with those of
    the first plan. Plans with equal names are numbered.

    Parameters
    ----------
    plans
        Plans for the same inputs.
    inputs
        Arrays and numbers.
    peers
        Functions that compute the same, by the names of their rows. They are called with the inputs, and with ``out``,
        the array or list of arrays to write to, if they have a parameter of that name. Their return value is compared,
        or ``out`` if it is None. A function that changes its inputs is not measured, and the inputs are restored.
    progress
        Called as ``progress(done, total, timings so far)``; None or True shows a bar, False none. A row has few samples
        until each has been measured once.
    cancelled
        Called between measurements; once it returns True, the rows measured so far are returned.
    seconds
        Maximum time to spend on each row, after warm-up.
    """
    target = device_of([describe(value) for value in inputs])
    run = _Measurement(target, list(inputs), dict(peers or {}), cancelled or (lambda: False), seconds)
    total = sum(len(plan.segments) + 2 for plan in plans) + len(peers or {})
    return with_progress(partial(run.measure, plans, total), total, progress)


def with_progress(measured: Callable[[Progress], Timings], total: int, progress: Progress | bool | None) -> Timings:
    """Return the rows of a measurement, which reports progress: None or True shows a bar, False nothing."""
    if progress is not None and progress is not True:
        return measured(progress if callable(progress) else _silent)
    bar = progress_bar("timing", total)

    def show(done: int, _: int, __: Timings) -> None:
        bar.update(done - bar.n)

    try:
        return measured(show)
    finally:
        bar.close()


def _silent(done: int, total: int, timings: Timings) -> None:
    """Report nothing."""


@dataclass(slots=True, kw_only=True)
class _Measured:
    """A row and the numbers of its calls in the round-robin; None if it is not measured."""

    row: TimingRow
    clock: HostClock | DeviceClock | None = None
    cold: int | None = None
    warm: int | None = None
    clocks: str = ""


class Measurement:
    """Rows that are measured round-robin: callers add rows, then run the rounds."""

    def __init__(self, cancelled: Callable[[], bool], seconds: float) -> None:
        """Take the maximum seconds per row, and a function that cancels the measurement."""
        self._cancelled = cancelled
        # Read before the measurement, which itself loads the system.
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
        self._found: list[_Measured] = []
        self._turns, self._warm_turns = Turns(seconds), Turns(seconds / 2)
        self._clocks: dict[str, HostClock | DeviceClock] = {}

    @property
    def _so_far(self) -> Timings:
        rows: list[TimingRow] = []
        for measured in self._found:
            row = self._row(measured)
            parts = [r.median for r in rows if r.plan == row.plan]
            rows.append(replace(row, kernels=sum(parts)) if row.segment is None and parts and row.samples else row)
        return Timings(rows=tuple(rows), system_load=self._load, cores=os.cpu_count() or 1).compared()

    def _row(self, measured: _Measured) -> TimingRow:
        if measured.cold is None or measured.clock is None:
            return measured.row
        sample = self._turns.sample(measured.cold)
        low, median, high = sample.quartiles()
        _, warm, _ = (
            Sample(seconds=()) if measured.warm is None else self._warm_turns.sample(measured.warm)
        ).quartiles()
        return replace(
            measured.row, median=median, low=low, high=high, iqr=high - low, samples=len(sample.seconds),
            seconds=sample.seconds, warm=warm, timer=measured.clock.name, clocks=measured.clocks,
        )

    def _take_turns(self, done: int, total: int, progress: Progress) -> None:
        left, complete = total - done, False
        for share in self._turns.rounds(self._cancelled):
            # Read during the work, because an idle processor has other clock rates.
            rates = {clock: clock.rates() for clock in dict.fromkeys(entry.clock for entry in self._found) if clock}
            for measured in self._found:
                measured.clocks = rates[measured.clock] if measured.clock else ""
            complete = share == 1
            progress(done + min(int(left * share), left - 1), total, self._so_far)
        for share in self._warm_turns.rounds(self._cancelled):
            complete = share == 1
        if complete and self._found:
            progress(total, total, self._so_far)

    def _say(self, row: TimingRow) -> None:
        """Add a row that is not measured; its note says why."""
        self._found.append(_Measured(row=row))

    def _add(
        self, row: TimingRow, call: Callable[[], object], clock: HostClock | DeviceClock,
        inside: _Inside | None = None,
    ) -> None:
        """Add a row, and add its calls to the round-robin unless its results are wrong.

        ``inside`` measures the call as part of a run, cold and warm; without it, the call is measured in isolation.
        """
        if row.error >= 1:
            wrong = replace(row, timer=clock.name, note=f"wrong results, not timed{_after(row.note)}")
            self._found.append(_Measured(row=wrong))
            return
        first, measured = inside or (clock.measured(call), clock.measured_warm(call))
        cold = self._turns.add(first)
        self._turns.first(cold)
        warm = None if measured is None else self._warm_turns.add(measured)
        self._found.append(_Measured(row=row, clock=clock, cold=cold, warm=warm))

    def _clock(self, target: str) -> HostClock | DeviceClock:
        """Return the clock of a target, which is cached because that of a GPU allocates memory."""
        if target not in self._clocks:
            self._clocks[target] = target_of(target).clock()()
        return self._clocks[target]


class _Measurement(Measurement):
    def __init__(
        self, target: str, inputs: list[Any], peers: dict[str, Peer], cancelled: Callable[[], bool], seconds: float,
    ) -> None:
        super().__init__(cancelled, seconds)
        self._target, self._inputs, self._peers = target, inputs, peers
        self._first: list[Any] = []  # results of the first plan
        self._given: dict[Fusion, list[Any]] = {}
        self._reference: dict[Fusion, tuple[Array, ...] | None] = {}

    def measure(self, plans: Sequence[TimedPlan], total: int, progress: Progress) -> Timings:
        done = 0
        for name, plan in zip(_distinct([plan.name for plan in plans]), plans, strict=True):
            if self._cancelled():
                break
            prepared = plan.prepare(self._target)
            inputs = self._inputs_with_seeds(plan.fusion)
            outputs = prepared.run(inputs)
            error, note = self._compare(plan.fusion, inputs, outputs)
            self._first = self._first or list(outputs)
            progress(done := done + 1, total, self._so_far)
            outs = prepared.reusable(outputs)
            bound = prepared.bind(inputs, outs)
            clock = self._clock(prepared.target)
            steps = prepared.steps(inputs)
            runs = [step.runs for step in steps]
            slow: set[int | None] = {n for n, step in enumerate(steps) if step.runs and step.in_lock_step}
            slow |= {None} if slow else set()  # the whole plan is slow as well
            rows = self._calls(plan, bound, runs, partial(prepared.run, inputs, outs))
            inside: list[_Inside] = []
            if not error >= 1:
                cold, warm = clock.measured_in_order(bound.steps), clock.measured_in_order_warm(bound.steps)
                inside = list(zip(cold, warm, strict=True))
            for (row, call), measured in itertools.zip_longest(rows, inside):
                if self._cancelled():
                    break
                notes = "; ".join(filter(None, (note, IN_LOCK_STEP if row.segment in slow else "")))
                placed = replace(row, plan=name, device=prepared.memory.label(), error=error, note=notes)
                self._add(placed, call, clock, measured)
                progress(done, total, self._so_far)
        for name, peer in self._peers.items():
            if self._cancelled() or not plans:
                break
            self._add_peer(name, peer, plans[0])
            progress(done, total, self._so_far)
        self._take_turns(done, total, progress)
        return self._so_far

    def _add_peer(self, name: str, peer: Peer, plan: TimedPlan) -> None:
        """Call a peer, compare its results, and add its row; the row's note reports failures."""
        prepared = plan.prepare(self._target)
        moved = traffic_of(plan.fusion.tensor_exprs, plan.fusion.tensor_inputs, plan.fusion.outputs)
        row = TimingRow(
            plan=name, segment=None, scheduler="", ops=0, bytes_crossing=0, device=prepared.memory.label(),
            bytes_in=moved.read, bytes_out=moved.written,
        )
        try:
            call, results, clock = self._peer_call(peer, prepared)
            refused = _mismatch(results, self._first)
        except InputError as error:
            refused = str(error)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way, and the others are still measured
            said = str(error).strip().partition("\n")[0]
            refused = f"{type(error).__name__}: {said}"
        if refused:
            self._found.append(_Measured(row=replace(row, note=f"not measured: {refused}")))
            return
        arguments = self._inputs_with_seeds(plan.fusion)
        draws = len(arguments) > len(self._inputs)  # a peer draws other numbers
        worst, note = (math.nan, _RANDOM) if draws else self._compare(plan.fusion, arguments, results)
        made = "" if _takes_out(peer) else "it allocates its results"
        self._add(replace(row, error=worst, note="; ".join(filter(None, (made, note)))), call, clock)

    def _peer_call(
        self, peer: Peer, prepared: PreparedPlan,
    ) -> tuple[Callable[[], object], list[Any], HostClock | DeviceClock]:
        """Return the call of a peer to measure, its results, and its clock; raise if it changes inputs."""
        call = partial(peer, *self._inputs)
        outs: list[Any] = []
        if _takes_out(peer):
            outs = [_spoil(array) for array in self._first]
            call = partial(peer, *self._inputs, out=outs[0] if len(outs) == 1 else outs)
        arrays = {n: value for n, value in enumerate(self._inputs) if is_torch(value) or isinstance(value, np.ndarray)}
        before = {number: _like(value) for number, value in arrays.items()}
        try:
            results = call()
        finally:
            changed = [number for number, array in before.items() if _restore(self._inputs[number], array)]
        if changed and not prepared.fusion.aliases:
            raise InputError(f"it changes input {' and '.join(map(str, changed))}, which has been restored")
        flat = list(results) if isinstance(results, tuple | list) else [results]
        if results is None and outs:
            flat = outs
        waits = [result for result in flat if hasattr(result, "block_until_ready")]
        if not waits:
            return call, flat, self._clock(prepared.target)

        def until_ready() -> None:
            returned = call()
            for result in returned if isinstance(returned, tuple | list) else [returned]:
                result.block_until_ready()

        return until_ready, flat, HostClock("perf_counter, block_until_ready")

    def _inputs_with_seeds(self, fusion: Fusion) -> list[Any]:
        """Return the inputs of a fusion with seeds, so that results are compared for the same random numbers."""
        if fusion not in self._given:
            self._given[fusion] = with_seeds(fusion, self._inputs)
        return self._given[fusion]

    @staticmethod
    def _calls(
        plan: TimedPlan, bound: BoundRun, runs: Sequence[bool], complete: Callable[[], object],
    ) -> list[tuple[TimingRow, Callable[[], object]]]:
        """Return rows with their calls; a segment that does not run reads and writes nothing."""
        calls: list[tuple[TimingRow, Callable[[], object]]] = []
        for segment, step, moves in zip(plan.segments, bound.steps, runs, strict=True):
            calls.append(
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
            plan=plan.name, plan_hash=plan.hash, segment=None, scheduler="", ops=sum(row.ops for row, _ in calls),
            bytes_in=sum(row.bytes_in for row, _ in calls), bytes_out=sum(row.bytes_out for row, _ in calls),
            bytes_crossing=plan.bytes_crossing,
        )
        return [*calls, (whole, complete)]

    def _compare(
        self, fusion: Fusion, inputs: Sequence[Any], outputs: Sequence[Any],
    ) -> tuple[float, str]:
        """Return the worst deviation from the reference evaluation, or from the first plan, and which one it is from.

        NaN if there is nothing to compare with.
        """
        if fusion.aliases:
            return math.nan, "not checked: it writes over its inputs"
        if sum(tv.numel for tv in fusion.tensors.values()) > CHECKED_ELEMENTS:
            if not self._first:
                return math.nan, "not checked: too large for the reference evaluation"
            if offsets_drawn(fusion, len(self._inputs)):
                return math.nan, _RANDOM
            pairs = zip(outputs, self._first, strict=True)
            return max((distance(got, first) for got, first in pairs), default=0.0), "checked against the first plan"
        if fusion not in self._reference:
            self._reference[fusion] = evaluate(fusion, inputs_to_numpy(inputs))
        reference = self._reference[fusion] or ()
        return max(
            (deviation(to_numpy(got), ref) for got, ref in zip(outputs, reference, strict=True)), default=0.0,
        ), ""


def distance(got: Any, reference: Any) -> float:
    """Return the deviation of arrays of any library, computed on the GPU if they are there."""
    if not (is_torch(got) and is_torch(reference) and got.is_cuda and reference.is_cuda):
        return deviation(to_numpy(got), to_numpy(reference))
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return math.inf
    dtype = describe(got).dtype  # type: ignore[union-attr]
    tolerance = _TOLERANCE.get(dtype, 0.0)
    if dtype.is_float8:  # torch does not compute with this dtype
        got, reference = got.float(), reference.float()
    same = (got == reference) | (got.isnan() & reference.isnan())
    if not tolerance or not got.numel():
        return 0.0 if bool(same.all()) else math.inf
    finite = got.isfinite() & reference.isfinite()
    if not bool((same | finite).all()):
        return math.inf
    scale = float(reference.abs().where(finite, 0).max())
    return float((got - reference).abs().where(finite, 0).max()) / (tolerance * max(scale, 1e-30))


def _takes_out(peer: Peer) -> bool:
    try:
        return "out" in inspect.signature(peer).parameters
    except (TypeError, ValueError):  # a function implemented in C
        return False


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names, with a number appended to repeated ones."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        distinct.append(name if name not in distinct else next(n for n in numbered if n not in distinct))
    return distinct


def _mismatch(results: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return a sentence on wrong numbers, dtypes or shapes of a peer's results; empty if they are right."""
    if len(results) != len(expected):
        return f"it returns {len(results)} results, the first plan {len(expected)}"
    for number, (got, want) in enumerate(zip(results, expected, strict=True)):
        of = f"result {number}" if len(expected) > 1 else "its result"
        if got is None:
            return f"{of} is None"
        result, asked = describe(got), describe(want)
        if isinstance(asked, TensorSpec) and (
            not isinstance(result, TensorSpec) or (result.dtype, result.shape) != (asked.dtype, asked.shape)
        ):
            shown = f"{result.dtype.ir_name} {list(result.shape)}" if isinstance(result, TensorSpec) else f"{result!r}"
            return f"{of} is {shown}, the first plan's {asked.dtype.ir_name} {list(asked.shape)}"
    return ""


def _like(array: Any) -> Any:
    return array.detach().clone() if is_torch(array) else array.copy()


def _spoil(array: Any) -> Any:
    """Return an array like a result but with different values, so that it shows what a peer writes."""
    spoiled, spec = _like(array), describe(array)
    inexact = isinstance(spec, TensorSpec) and (spec.dtype.is_float or spec.dtype.is_complex)
    spoiled[...] = math.nan if inexact else spoiled == 0
    return spoiled


def _restore(array: Any, before: Any) -> bool:
    """Whether an array was changed; it is restored."""
    flat = array.detach() if is_torch(array) else array
    now, then = flat, before
    if is_torch(array) and array.is_floating_point() and array.element_size() == 1:
        now, then = flat.float(), before.float()  # torch does not compare 8-bit floats
    if bool(((now == then) | ((now != now) & (then != then))).all()):  # noqa: PLR0124 - NaN
        return False
    flat[...] = before
    return True


def _after(note: str) -> str:
    return f"; {note}" if note else ""


def deviation(got: Array, expected: Array) -> float:
    """Return the largest difference relative to rounding error; infinite if NaN or infinities differ."""
    from fuser_lab.dtypes import from_numpy

    if got.shape != expected.shape:
        return math.inf
    if not got.size:
        return 0.0
    tolerance = _TOLERANCE.get(from_numpy(got.dtype), 0.0)
    if not tolerance:
        return 0.0 if np.array_equal(got, expected) else math.inf
    wide = np.complex128 if np.iscomplexobj(got) else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.all(same | finite):
        return math.inf
    scale = float(np.abs(b[finite]).max(initial=0.0))
    worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return worst / (tolerance * max(scale, 1e-30))


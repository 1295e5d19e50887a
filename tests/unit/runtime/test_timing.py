"""Measurements: checked first, explicit about what was not measured, cancellable, bounded; and the cost of a run."""

import importlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from machine import allowed
from needs import needs

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.ir import Expr, Fusion
from fuser_lab.runtime import clocks
from fuser_lab.runtime.clocks import LEAST_SAMPLES, MOST_SAMPLES, DeviceClock, HostClock, Turns
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.runtime.plan.timing import _Measurement as Measurement
from fuser_lab.runtime.plan.timing import deviation, measure
from tests.kernels import prepare


@dataclass
class Segment:
    index: int
    scheduler: S
    fusion: Fusion
    bytes_crossing: int = 0

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.fusion.exprs

    @property
    def bytes_in(self) -> int:
        return sum(tv.nbytes for tv in self.fusion.tensor_inputs)

    @property
    def bytes_out(self) -> int:
        return sum(tv.nbytes for tv in self.fusion.outputs)


@dataclass
class Plan:
    name: str
    fusion: Fusion
    segments: Sequence[Segment]
    damage: float = 0.0
    bytes_crossing: int = 0
    hash: str = ""
    made: list[PreparedPlan] = field(default_factory=list)

    def prepare(self, target: str = "cpu") -> PreparedPlan:
        if not self.made:
            segments = [(s.fusion, s.scheduler) for s in self.segments]
            self.made.append(prepare(self.fusion, segments, target, allow_fallback=False))
            if self.damage:
                self._damage(self.made[0])
        return self.made[0]

    def _damage(self, plan: PreparedPlan) -> None:
        run = plan.run

        def wrong(*args: Any, **kwargs: Any) -> list[Any]:
            outputs = run(*args, **kwargs)
            outputs[0] += self.damage
            return outputs

        plan.run = wrong  # type: ignore[method-assign]


def exp_plan(name: str = "one", damage: float = 0.0) -> Plan:
    fusion = build(lambda fd, x: fd.ops.exp(x), [(40, 50)], D.Float)
    return Plan(name, fusion, [Segment(0, S.POINTWISE, fusion)], damage)


X = numbers((40, 50), D.Float)


def test_rows_and_ratios() -> None:
    seen: list[tuple[int, int, int]] = []
    timings = measure(
        [exp_plan("one"), exp_plan("two")], [X], seconds=0.02,
        progress=lambda done, total, so_far: seen.append((done, total, len(so_far.rows))),
    )
    assert [(r.plan, r.segment) for r in timings.rows] == [("one", 0), ("one", None), ("two", 0), ("two", None)]
    assert seen[-1] == (6, 6, 4)
    first, second = timings.totals
    assert first.ratio == 1
    assert second.ratio == pytest.approx(second.median / first.median)
    for row in timings.rows:
        assert row.samples >= 5
        assert row.low <= row.median <= row.high
        assert row.iqr == pytest.approx(row.high - row.low)
        assert row.bytes_io == 2 * X.nbytes
        assert row.bandwidth == pytest.approx(row.bytes_io / row.median / 1e9)
        assert row.device.startswith("CPU (")
        assert row.error < 1
    assert timings.preallocated
    assert [row["plan"] for row in timings.to_json()] == ["one", "one", "two", "two"]


def test_a_wrong_result_is_not_timed() -> None:
    timings = measure([exp_plan("good"), exp_plan("bad", damage=1.0)], [X], seconds=0.01, progress=False)
    good, bad = timings.totals
    assert not math.isnan(good.median)
    assert math.isnan(bad.median)
    assert bad.error > 1
    assert bad.samples == 0


def test_cancelled_between_measurements() -> None:
    calls = iter([False, False, True, True, True])
    timings = measure(
        [exp_plan("one"), exp_plan("two")], [X], seconds=0.01, progress=False, cancelled=lambda: next(calls),
    )
    assert [(r.plan, r.segment) for r in timings.rows] == [("one", 0)]


def test_time_is_bounded() -> None:
    plan = exp_plan()
    plan.prepare()
    begin = time.process_time()
    measure([plan], [X], seconds=0.05, progress=False)
    assert time.process_time() - begin < allowed(2)


def row(plan: str, low: float, median: float, high: float) -> TimingRow:
    return TimingRow(
        plan=plan, segment=None, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=median, low=low,
        high=high, iqr=high - low, samples=9,
    )


def test_what_overlaps_is_a_tie() -> None:
    timings = Timings(rows=(row("a", 1, 2, 3), row("b", 2.5, 3, 4), row("c", 5, 6, 7))).compared()
    assert [r.tie for r in timings.rows] == [False, True, False]
    assert [r.ratio for r in timings.rows] == [1, 1.5, 3]


def test_not_measured_is_never_a_number() -> None:
    empty = TimingRow(plan="a", segment=0, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0)
    assert math.isnan(empty.median)
    assert math.isnan(empty.bandwidth)
    assert not empty.ties_with(empty)


def test_deviation() -> None:
    x = np.array([1.0, 100.0, np.nan, np.inf], np.float32)
    assert deviation(x, x) == 0
    assert deviation(x + np.float32(0.05), x) < 1
    assert deviation(x + 5, x) > 1
    assert deviation(np.nan_to_num(x), x) == math.inf
    assert deviation(np.array([1]), np.array([2])) == math.inf


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_8_bits_may_be_rounded_to_their_neighbours(dtype: Any) -> None:
    largest = float(ml_dtypes.finfo(dtype).max)
    x = np.array([1.0, largest, 0.0], dtype)
    below = np.nextafter(x[1:2], np.array([0.0], dtype))
    assert deviation(x, x) == 0
    assert 0 < deviation(np.array([1.0, below[0], 0.0], dtype), x) < 1
    assert deviation(np.array([1.0, largest / 2, 0.0], dtype), x) > 1


@pytest.mark.benchmark
def test_a_run_costs_less_than_50_microseconds_a_segment_beyond_its_kernels() -> None:
    whole = build(lambda fd, x: fd.ops.neg(fd.ops.tanh(fd.ops.neg(fd.ops.exp(x)))), [(16,)], D.Float)
    segments = [
        (Fusion(inputs=expr.tensor_inputs, exprs=(expr,), outputs=(expr.out,)), S.POINTWISE) for expr in whole.exprs
    ]
    plan = prepare(whole, segments, allow_fallback=False)
    x, out = numbers((16,), D.Float), [np.empty(16, np.float32)]

    def best(call: Any) -> float:
        samples = []
        for _ in range(300):
            begin = time.perf_counter()
            call()
            samples.append(time.perf_counter() - begin)
        return min(samples)

    # Sixteen elements take nanoseconds: the rest is overhead, including Numba's dispatchers.
    assert best(lambda: plan.run([x], out)) / len(segments) < allowed(50e-6)


def plain_exp(x):
    """A peer without a parameter for buffers, which `numpy.exp` itself has."""
    return np.exp(x)


def test_peers_are_rows_of_the_same_table() -> None:
    def with_out(x: np.ndarray, out: np.ndarray) -> np.ndarray:
        return np.exp(x, out=out)

    def failing(x: np.ndarray) -> np.ndarray:
        msg = "no such backend\nand more"
        raise RuntimeError(msg)

    peers = {
        "numpy": plain_exp, "given": with_out, "wrong": lambda x: np.exp(x) + 1, "two": lambda x: (x, x),
        "shape": lambda x: np.exp(x)[:1], "failing": failing,
    }
    timings = measure([exp_plan("ours")], [X], peers=peers, seconds=0.01, progress=False)
    rows = {row.plan: row for row in timings.totals}
    assert list(rows) == ["ours", *peers]
    for name in ("numpy", "given"):
        assert rows[name].median > 0
        assert rows[name].error < 1
        assert rows[name].ratio == pytest.approx(rows[name].median / rows["ours"].median)
        assert rows[name].bytes_io == rows["ours"].bytes_io
    assert rows["numpy"].note == "it allocates its results"
    assert rows["given"].note == ""
    for name in ("wrong", "two", "shape", "failing"):
        assert math.isnan(rows[name].median)
        assert math.isnan(rows[name].ratio)
        assert rows[name].samples == 0
    assert rows["wrong"].note.startswith("wrong results, not timed")
    assert rows["two"].note == "not measured: it returns 2 results, the first plan 1"
    assert rows["failing"].note == "not measured: RuntimeError: no such backend"


def test_what_is_too_large_for_the_reference_is_compared_with_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuser_lab.runtime.plan.timing.CHECKED_ELEMENTS", 10)
    peers = {"good": plain_exp, "bad": lambda x: np.exp(x) * 1.1}
    first, good, bad = measure([exp_plan("ours")], [X], peers=peers, seconds=0.01, progress=False).totals
    assert math.isnan(first.error)
    assert first.note == "not checked: too large for the reference evaluation"
    assert first.median > 0
    assert good.error < 1
    assert "checked against the first plan" in good.note
    assert math.isnan(bad.median)


def test_gaps_are_what_a_plan_takes_beyond_its_segments() -> None:
    timings = measure([exp_plan("one")], [X], seconds=0.02, progress=False)
    segment, whole = timings.rows
    assert whole.kernels == segment.median
    assert whole.gaps == pytest.approx(max(whole.median - segment.median, 0))
    assert math.isnan(segment.gaps)
    assert math.isnan(whole.warm), "CPU caches are never cold here"


def test_equal_plans_are_a_tie_with_names_and_parts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(1)

    def measured(_: HostClock, call: Any) -> Any:
        def sample() -> float:
            call()
            return 1e-4 * float(noise.uniform(0.98, 1.02))

        return sample

    monkeypatch.setattr(HostClock, "measured", measured)
    monkeypatch.setattr(HostClock, "measured_in_order", lambda clock, calls: [measured(clock, call) for call in calls])
    timings = measure([exp_plan("one"), exp_plan("one"), exp_plan("one")], [X], seconds=0.02, progress=False)
    assert [r.plan for r in timings.rows] == ["one", "one", "one (2)", "one (2)", "one (3)", "one (3)"]
    for segment, whole in zip(timings.rows[::2], timings.rows[1::2], strict=True):
        assert whole.kernels == segment.median
    assert [r.tie for r in timings.totals] == [False, True, True]


def test_a_machine_that_slows_down_slows_all_rows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def measured(_: HostClock, call: Any) -> Any:
        def sample() -> float:
            call()
            calls[0] += 1
            return 1e-4 if calls[0] < 14 else 1e-2  # a hundred times slower from a certain moment on

        return sample

    monkeypatch.setattr(HostClock, "measured", measured)
    monkeypatch.setattr(HostClock, "measured_in_order", lambda clock, calls: [measured(clock, call) for call in calls])
    timings = measure([exp_plan("one"), exp_plan("two")], [X], seconds=0, progress=False)
    assert {r.samples for r in timings.rows} == {LEAST_SAMPLES}
    assert all((r.low, r.high) == (1e-4, 1e-2) for r in timings.rows)
    assert timings.totals[1].tie


def test_turns_are_bounded_and_each_call_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    now = [0.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow() -> float:
        taken.append("slow")
        now[0] += 0.02
        return 0.02

    def fast() -> float:
        taken.append("fast")
        now[0] += 1e-5
        return 1e-5

    turns = Turns(0.05)
    slow_number, fast_number = turns.add(slow), turns.add(fast)
    shares = list(turns.rounds())
    assert now[0] < 0.2
    assert shares == pytest.approx([n / 10 for n in range(1, 11)])
    assert LEAST_SAMPLES <= len(turns.sample(slow_number).seconds) <= 10
    assert len(turns.sample(fast_number).seconds) == MOST_SAMPLES
    first_slow_turns = [number for number, name in enumerate(taken) if name == "slow"][:3]
    assert "fast" in taken[first_slow_turns[0] : first_slow_turns[2]], "others are measured in between"


def test_what_a_peer_gives_back() -> None:
    def written(x: np.ndarray, out: np.ndarray) -> None:
        np.exp(x, out=out)

    def both(x: np.ndarray) -> tuple[np.ndarray, None]:
        return np.exp(x), None

    peers = {
        "written": written, "left": lambda x, out: None, "nothing": lambda x: None, "two": both,
        "wide": lambda x: np.exp(x.astype(np.float64)), "shape": lambda x: np.exp(x)[:1],
        "words": lambda x: "exp",
    }
    timings = measure([exp_plan("ours")], [X], peers=peers, seconds=0.01, progress=False)
    notes = {row.plan: row.note for row in timings.totals}
    assert notes["written"] == ""
    assert notes["left"].startswith("wrong results, not timed")
    assert notes["nothing"] == "not measured: its result is None"
    assert notes["two"] == "not measured: it returns 2 results, the first plan 1"
    assert notes["wide"] == "not measured: its result is double [40, 50], the first plan's float [40, 50]"
    assert notes["shape"] == "not measured: its result is float [1, 50], the first plan's float [40, 50]"
    assert notes["words"] == "not measured: an input must be an array or a number, given str."
    assert [row.plan for row in timings.totals if row.samples] == ["ours", "written"]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("fails", [False, True])
def test_inputs_are_what_they_were_after_a_peer_has_changed_them(library: str, fails: bool) -> None:
    def changing(x: Any) -> Any:
        x += 1
        if fails:
            raise ZeroDivisionError
        return x

    x: Any = X.copy()
    x[0, 0] = np.nan
    if library == "torch":
        torch = needs("torch")
        x = torch.from_numpy(x)
    before = np.asarray(x).copy()
    peers = {"changing": changing, "eager": plain_exp if library == "numpy" else lambda x: x.exp()}
    timings = measure([exp_plan("ours")], [x], peers=peers, seconds=0.01, progress=False)
    np.testing.assert_array_equal(np.asarray(x), before)
    _, changed, eager = timings.totals
    said = "ZeroDivisionError: " if fails else "it changes input 0, which has been restored"
    assert changed.note == f"not measured: {said}"
    assert eager.error < 1
    assert eager.samples


def test_a_clock_that_finds_caches_cold_measures_warm_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_warm(_: HostClock, call: Any) -> Any:
        return lambda: (call(), 0.5)[1]

    def measured_in_order_warm(clock: HostClock, calls: Sequence[Any]) -> list[Any]:
        return [measured_warm(clock, call) for call in calls]

    monkeypatch.setattr(HostClock, "measured_warm", measured_warm)
    monkeypatch.setattr(HostClock, "measured_in_order_warm", measured_in_order_warm)
    seen: list[tuple[int, int]] = []
    timings = measure(
        [exp_plan("one")], [X], peers={"numpy": plain_exp}, seconds=0.01,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    assert [row.warm for row in timings.rows] == [0.5] * 3
    assert all(0 < row.median < 0.5 for row in timings.rows)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (4, 4)
    assert seen[-2][0] < 4


def stub_torch(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """A torch that records its calls and whose clock advances by 2 ms with each of them."""

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at = math.nan

        def record(self) -> None:
            self.at = 2.0 * sum(one.startswith("call") for one in done)
            done.append("event")

        def elapsed_time(self, other: "Event") -> float:
            return other.at - self.at

    class Flush:
        def zero_(self) -> None:
            done.append("flush")

    cuda = SimpleNamespace(
        Event=Event, synchronize=lambda: done.append("wait"), _sleep=lambda cycles: done.append("sleep"),
    )
    torch = SimpleNamespace(cuda=cuda, empty=lambda *_, **__: Flush(), int8=None)
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: torch if name == "torch" else real(name))


def test_device_clocks_put_events_around_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stub_torch(monkeypatch, done)
    clock = DeviceClock()
    cold, warm = (measured(lambda: done.append("call")) for measured in (clock.measured, clock.measured_warm))
    assert done == ["call", "call", "call", "wait"] * 2
    done.clear()
    assert cold() == 2e-3
    assert done == ["flush", "event", "call", "event", "wait"]
    done.clear()
    assert warm() == 2e-3
    assert done == ["call", "sleep", "event", "call", "event", "wait"]
    done.clear()
    call = lambda: done.append("call")  # noqa: E731
    assert set(clock.sample(call, 0.001).seconds) == set(clock.warm(call, 0.001).seconds) == {2e-3}


def test_device_clocks_measure_segments_in_runs_of_their_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stub_torch(monkeypatch, done)
    clock = DeviceClock()
    calls = [lambda: done.append("call a"), lambda: done.extend(["call b", "call b again"])]
    cold, warm = clock.measured_in_order(calls), clock.measured_in_order_warm(calls)
    run = ["event", "call a", "event", "call b", "call b again", "event", "wait"]
    done.clear()
    assert [one() for one in cold] == [2e-3, 4e-3]
    assert done == ["flush", "sleep", *run], "the cache is cold once, when the run starts"
    done.clear()
    assert [one() for one in warm] == [2e-3, 4e-3]
    assert done == ["call a", "call b", "call b again", "sleep", *run], "a preceding run has warmed the cache"


def test_segments_on_a_device_are_timed_inside_runs_cold_and_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stub_torch(monkeypatch, done)
    monkeypatch.setattr(Measurement, "_clock", lambda self, _: self._clocks.setdefault("cuda", DeviceClock()))
    monkeypatch.setattr(DeviceClock, "rates", lambda _: "")
    monkeypatch.setattr(PreparedPlan, "bind", lambda *_: SimpleNamespace(steps=(lambda: done.append("call"),)))
    timings = measure([exp_plan()], [X], seconds=0, progress=False)
    segment, whole = timings.rows
    assert segment.median == segment.warm == whole.kernels == 2e-3
    assert "flush" in done
    assert {row.timer for row in timings.rows} == {DeviceClock.name}

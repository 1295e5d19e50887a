"""Measurements: checked first, honest about what was not measured, cancellable, bounded; and what a run costs."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers

from fuser_lab.cost.timings import TimingRow, Timings
from fuser_lab.ir import Expr, Fusion
from fuser_lab.runtime.executor import PreparedPlan, prepare
from fuser_lab.runtime.timing import deviation, measure


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

    def prepared(self, target: str = "cpu") -> PreparedPlan:
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
    plan.prepared()
    begin = time.perf_counter()
    measure([plan], [X], seconds=0.05, progress=False)
    assert time.perf_counter() - begin < 2


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

    # Sixteen elements take nanoseconds: what is left is overhead, Numba's dispatchers included.
    assert best(lambda: plan.run([x], out)) / len(segments) < 50e-6


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
    monkeypatch.setattr("fuser_lab.runtime.timing.CHECKED_ELEMENTS", 10)
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
    assert math.isnan(whole.warm), "caches of the CPU are never cold here"

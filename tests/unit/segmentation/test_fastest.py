"""The strategy "fastest": never slower than bottom-up by the model, reproduced from log and code, above its bound."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.cost.device import host_device
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import OpKind
from fuser_lab.process.ending import check_time
from fuser_lab.segmentation import replay, segment
from fuser_lab.segmentation.bottom_up import bottom_up
from fuser_lab.segmentation.events import Kind
from fuser_lab.segmentation.fastest import COMPILED, _Search, fastest
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.rationed import RationedSchedulers
from fuser_lab.segmentation.replay import Fold
from fuser_lab.segmentation.timed_plan import TimedPlan, time_model_of
from fuser_lab.segmentation.timed_space import TimedSpace, partition_of, with_tables
from tests.benchmarks.optimal import irregular
from tests.unit.test_plan import made_by
from tests.unit.test_this_cpu import PLANTED

FEW = SegmenterOptions(search_states=20_000)


def sums_of_both_kinds(compute):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        a = compute(fd, x)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(a, [dim]))
    return fd


@pytest.mark.parametrize("schedulers", [None, fl.SCHEDULERS], ids=["open", "nvfuser"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_not_slower_than_bottom_up_and_can_be_made_again(seed, schedulers):
    fd = irregular(seed, 12, 64, 64)
    plan = fl.segment(fd, strategy="fastest", schedulers=schedulers, options=FEW)
    found = plan.time_bound()
    assert found.bound <= found.seconds <= fl.segment(fd).time_bound().seconds
    assert sum(seconds for seconds, _ in found.terms) == pytest.approx(found.bound)
    assert all(segment.scheduler for segment in plan.segments)
    assert fl.segment(fd, strategy="fastest", schedulers=schedulers, options=FEW).hash == plan.hash
    assert made_by(plan.to_python()) == plan
    assert replay(fl.segment(fd, strategy="unfused").fusion, plan.decisions, plan.oracle) == plan.segmented
    if schedulers is not None:
        assert not any(segment.beyond for segment in plan.segments)
    given = [spec.materialize(n) for n, spec in enumerate(plan.inputs)]
    before = fl.segment(fd, strategy="unfused").fusion
    for a, b in zip(evaluate(before, given), evaluate(plan.fusion, given), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_a_search_takes_a_part_of_what_it_may_save_in_the_expected_calls(monkeypatch):
    with FusionDefinition() as fd:
        x = fd.define_tensor([16384, 4096], contiguity=True)
        fd.add_output(fd.ops.softmax(x, 0))
    limits = []
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "limit", lambda budget, seconds: limits.append(seconds))
        many = fl.segment(fd, strategy="fastest", options=SegmenterOptions(search_calls=1000))
    before, after = (plan.predicted_time().seconds for plan in (fl.segment(fd), many))
    of_runs = limits[0] - COMPILED * (len(fl.segment(fd).segments) - 1)
    assert 0.1 * 1000 * (before - after) < of_runs < 0.1 * 1000 * before
    assert before > 1.2 * after
    none = fl.segment(fd, strategy="fastest", options=SegmenterOptions(search_calls=0))
    assert [s.group.names for s in none.segments] == [s.group.names for s in fl.segment(fd).segments]
    assert made_by(none.to_python()) == none


def test_a_search_in_limited_time_recomputes_first(monkeypatch):
    with FusionDefinition() as fd:
        x = fd.define_tensor([16384, 1000], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(fd.ops.cast(fd.ops.mul(x, 0.125), dtype=DataType.BFloat16), dtype=DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.softmax(wide, 0), dtype=DataType.BFloat16))
    monkeypatch.setattr(_Search, "improve", lambda search: search.budget.limit(-1.0))
    options = SegmenterOptions(search_calls=10_000_000)
    plan = fl.segment(fd, strategy="fastest", target="H200", options=options)
    assert sum(segment.bytes for segment in plan.segments) < 0.6 * sum(s.bytes for s in fl.segment(fd).segments)
    assert max(tensor.nbytes for tensor in plan.segmented.crossing) < 16384 * 1000


@pytest.mark.parametrize(("rows", "launches"), [(4096, 1), (2**24, 3)])
def test_a_search_in_limited_time_merges_first_if_the_host_launches_longer_than_kernels_run(
    rows, launches, monkeypatch,
):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([rows, 1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.cat([fd.ops.neg(x), fd.ops.exp(y)], 1))
    for step in ("recompute", "open", "improve"):
        monkeypatch.setattr(_Search, step, lambda search: None)
    options = SegmenterOptions(search_calls=100_000)
    assert len(fl.segment(fd, strategy="fastest", target="H200", options=options).segments) == launches


def reflected(fd, x, dim, extent):
    last = extent - 1
    at = fd.ops.sub(last, fd.ops.abs(fd.ops.sub(last, fd.ops.abs(fd.ops.iota(extent + 2, start=-1)))))
    return fd.ops.index_select(x, at, dim=dim)


@pytest.mark.parametrize("target", ["H200", "typical CPU"])
def test_a_stored_chain_that_is_merged_with_its_readers_is_a_part_of_their_segment(target):
    with FusionDefinition() as fd:
        first = fd.define_tensor([509, 1], contiguity=True)
        queue = fd.define_tensor([509, 65536], contiguity=True, dtype=DataType.BFloat16)
        x = fd.ops.cat([first, fd.ops.cast(queue, dtype=DataType.Float)], 1)
        low = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
        for out in (x, fd.ops.sum(fd.ops.exp(low), [1]), fd.ops.sum(fd.ops.argmax(x, 1))):
            fd.add_output(out)
    plan = fl.segment(fd, strategy="fastest", target=target, options=SegmenterOptions(search_calls=100_000))
    unfused = fl.segment(fd, strategy="unfused").fusion
    assert replay(unfused, plan.decisions, plan.oracle) == plan.segmented
    wide = unfused.exprs[0].name
    assert any(wide in attempt.subjects[0] for attempt in plan.decisions if attempt.kind is Kind.FORWARD)
    assert all(len(segment.group.names) > 1 for segment in plan.segments if wide in segment.group.names)


def test_a_search_in_limited_time_finds_one_kernel_where_nvfusers_rules_need_two():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 481, 641], contiguity=True)
        fd.add_output(reflected(fd, reflected(fd, x, 1, 481), 2, 641))
    assert len(fl.segment(fd, target="H200").segments) == 2
    options = SegmenterOptions(search_calls=100_000)
    assert len(fl.segment(fd, strategy="fastest", target="H200", options=options).segments) == 1


def test_functions_of_small_tensors_are_stored_where_a_kernel_would_compute_them_for_every_element():
    with FusionDefinition() as fd:
        position = fd.ops.broadcast(fd.ops.iota(2048, dtype=DataType.Float), [False, True, True])
        rate = fd.ops.pow(1e4, fd.ops.mul(fd.ops.iota(64, dtype=DataType.Float), -1 / 64))
        angle = fd.ops.mul(position, rate)
        for _ in range(2):
            x = fd.define_tensor([4, 2048, 16, 64], contiguity=True)
            pairs = fd.ops.reshape(x, [4, 2048, 16, 32, 2])
            first, second = (fd.ops.slice(pairs, [0, 0, 0, 0, n], [4, 2048, 16, 32, n + 1]) for n in (0, 1))
            pairs = fd.ops.cat([fd.ops.neg(second), first], 4)
            turned = fd.ops.reshape(pairs, [4, 2048, 16, 64])
            fd.add_output(fd.ops.add(fd.ops.mul(x, fd.ops.cos(angle)), fd.ops.mul(turned, fd.ops.sin(angle))))
    plan = fl.segment(fd, strategy="fastest", target="H200")
    bound = plan.time_bound().bound
    assert plan.predicted_time().seconds < 1.8 * bound


def straight_and_transposed():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8192, 8192], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))
    return fd


def variance_of_both():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8192, 8192], contiguity=True)
        d = fd.ops.sub(x, fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.var_mean(d, [1])[0])
    return fd


def squares_of_both():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8192, 8192], contiguity=True)
        d = fd.ops.sub(x, fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.sum(fd.ops.mul(d, d), [1]))
    return fd


def batches_of_both():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 1000, 1000], contiguity=True, dtype=DataType.BFloat16)
        y = fd.ops.cast(x, dtype=DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.add(y, fd.ops.permute(y, [0, 2, 1])), dtype=DataType.BFloat16))
    return fd


def three_parts():
    """Slices of a permuted tensor, each in a required order."""
    with FusionDefinition() as fd:
        o = fd.ops
        x = fd.define_tensor([16, 128, 2304], contiguity=True)
        y = o.permute(o.reshape(x, [16, 128, 3, 12, 64]), [2, 0, 3, 1, 4])
        for part in range(3):
            piece = o.slice(y, start_indices=[part, 0, 0, 0, 0], end_indices=[part + 1, 16, 12, 128, 64])
            fd.add_output(o.stride_order(o.mul(o.squeeze(piece, [0]), 0.5), [3, 2, 1, 0]))
    return fd


@pytest.mark.parametrize(
    "make", [straight_and_transposed, variance_of_both, squares_of_both, batches_of_both, three_parts],
)
def test_it_is_not_slower_than_bottom_up_as_scheduled(make):
    """By bytes alone, both reads would be in kept rows, each of whose lanes reads a separate sector."""
    fd = make()
    plan, before = fl.segment(fd, strategy="fastest"), fl.segment(fd)
    assert plan.predicted_time().seconds <= before.predicted_time().seconds
    rough = segment(before.fusion, plan.oracle, strategy="fastest")
    if make is squares_of_both:
        assert len(plan.segments) == 1
    if make is variance_of_both:
        assert len(rough.groups) < len(plan.segments), "without a clock the search uses only bytes"


LARGE = [entry.name for entry in fl.corpus() if entry.ops > 50]


@pytest.mark.parametrize("name", [
    "phi_2/backward/11", "convnext_t/forward/18",
    *(pytest.param(name, marks=pytest.mark.matrix) for name in LARGE[7::40]),
])
def test_no_fusion_of_the_corpus_is_predicted_slower_than_bottom_up(name):
    fd, inputs = fl.corpus()[name].load()
    plan = fl.segment(fd, inputs, strategy="fastest", options=FEW)
    assert plan.predicted_time().seconds <= fl.segment(fd, inputs).predicted_time().seconds * (1 + 1e-9)


class Told:
    """A clock that knows what the whole fusion takes, and what each part of it takes."""

    def __init__(self, whole, part):
        self._whole, self._part = whole, part

    def seconds(self, segmented, *, limited=True):
        parts = len(segmented.groups)
        return [self._whole if parts == 1 else self._part] * parts

    def idle(self, _segmented):
        return frozenset()

    def is_sure(self, faster, slower):
        return False


@pytest.mark.parametrize(("part", "segments"), [(47e-6, 1), (40e-6, 1), (30e-6, 2)])
def test_a_kernel_is_divided_only_if_that_saves_more_than_the_error_of_the_times_of_all_three(part, segments):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.sum(x, [1])))
    plan = fl.segment(fd)
    assert len(plan.segments) == 1
    made = list(fastest(plan.fusion, plan.oracle, FEW, Told(100e-6, part)))
    fold = Fold(plan.fusion)
    for attempt in made:
        fold.apply(attempt)
    assert len(fold.groups()) == segments


class ByParts:
    """A clock that knows what plans take by their number of segments, all of which take equally long."""

    def __init__(self, **seconds):
        self._seconds = [seconds[name] for name in ("one", "two", "three")]

    def seconds(self, segmented, *, limited=True):
        parts = len(segmented.groups)
        return [self._seconds[parts - 1] / parts] * parts


@pytest.mark.parametrize(("three", "chosen"), [(95e-6, 1), (90e-6, 1), (60e-6, 3)])
def test_a_plan_that_moves_more_bytes_has_to_save_more_than_the_error_of_any_other(three, chosen):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.sin(fd.ops.exp(fd.ops.neg(x))))
    plan = fl.segment(fd)
    made = (plan.cut("T1"), plan, plan.cut("T1").cut("T2"))
    clock = ByParts(one=100e-6, two=150e-6, three=three)
    search = _Search(plan.fusion, plan.oracle, FEW, time_model_of(plan.oracle), Budget(states=1, seconds=60), clock)
    search.known = [TimedPlan(segmented=one.segmented, times=(), attempts=()) for one in made]
    assert len(search.checked().segmented.groups) == chosen


def test_if_the_best_plans_save_too_little_for_the_bytes_that_they_move_the_next_one_is_chosen():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.cos(fd.ops.sin(fd.ops.exp(fd.ops.neg(x)))))
    whole = fl.segment(fd)
    two, three = whole.cut("T2"), whole.cut("T1").cut("T3")
    made = (two, three, three.cut("T2"), whole)
    clock = ByParts(one=140e-6, two=160e-6, three=132e-6)
    clock._seconds.append(133e-6)
    search = _Search(whole.fusion, whole.oracle, FEW, time_model_of(whole.oracle), Budget(states=1, seconds=60), clock)
    search.known = [
        TimedPlan(segmented=plan.segmented, times=tuple(clock.seconds(plan.segmented)), attempts=()) for plan in made
    ]
    assert len(search.checked().segmented.groups) == 1


@pytest.mark.parametrize(("two", "three", "segments"), [(6e-4, 8e-4, 2), (6e-4, 5e-4, 3), (12e-4, 5e-4, 1)])
def test_merges_of_bottom_up_are_undone_as_long_as_that_saves_time(two, three, segments):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.sin(fd.ops.exp(fd.ops.neg(x))))
    plan, clock = fl.segment(fd), ByParts(one=1e-3, two=two, three=three)
    options = replace(FEW, whole_fusion=False, forward_inputs=False)
    search = _Search(plan.fusion, plan.oracle, options, time_model_of(plan.oracle), Budget(), clock)
    search._add("bottom-up", bottom_up(plan.fusion, plan.oracle, options))
    search.opened = search.best
    assert len(search.opened.segmented.groups) == 1
    search.undo_merges()
    assert len(search.best.segmented.groups) == segments
    assert replay(plan.fusion, search.best.attempts, plan.oracle) == search.best.segmented


@pytest.mark.parametrize(("table", "chosen"), [("sin", 2), ("neg", 1)])
def test_a_plan_that_moves_more_bytes_is_sure_if_it_computes_what_copies_share_once(table, chosen):
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 1024, 1024], contiguity=True)
        y = fd.define_tensor([1024, 1024], contiguity=True)
        for _ in range(16):
            y = getattr(fd.ops, table)(y)
        fd.add_output(fd.ops.add(x, fd.ops.broadcast(y, [True, False, False])))
    whole = fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS)
    made = (whole.cut("T17"), whole, whole.cut("T17"))
    clock = ByParts(one=186e-6, two=142e-6, three=300e-6)
    search = _Search(whole.fusion, whole.oracle, FEW, time_model_of(whole.oracle), Budget(states=1, seconds=60), clock)
    search.known = [TimedPlan(segmented=plan.segmented, times=(), attempts=()) for plan in made]
    search.known[0] = TimedPlan(segmented=fl.segment(fd, strategy="unfused").segmented, times=(), attempts=())
    clock._seconds += [1.0] * 20
    assert len(search.checked().segmented.groups) == chosen


def test_a_tensor_is_recomputed_in_all_segments_that_read_it_if_only_that_saves_bytes():
    with FusionDefinition() as fd:
        x = fd.define_tensor([512, 256, 512], contiguity=True)
        a = fd.ops.mul(fd.ops.exp(x), 2.0)
        for dim in (0, 1, 2):
            fd.add_output(fd.ops.sum(a, [dim]))
    before = fl.segment(fd)
    plan = fl.segment(fd, strategy="fastest", schedulers=fl.SCHEDULERS)
    assert before.bytes_crossing
    assert plan.bytes_crossing == 0
    assert plan.predicted_time().seconds < before.predicted_time().seconds


@pytest.mark.parametrize(("three", "chosen"), [(98e-6, 1), (60e-6, 3)])
def test_of_equally_fast_plans_the_one_with_the_fewest_bytes_is_chosen_whatever_its_rank(three, chosen):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.sin(fd.ops.exp(fd.ops.neg(x))))
    whole = fl.segment(fd)
    parts = whole.cut("T1").cut("T2")
    clock = ByParts(one=100e-6, two=150e-6, three=three)
    search = _Search(whole.fusion, whole.oracle, FEW, time_model_of(whole.oracle), Budget(states=1, seconds=60), clock)
    search.known = [
        TimedPlan(segmented=plan.segmented, times=(seconds,), attempts=())
        for plan, seconds in ((whole.cut("T1"), 150e-6), (parts, three), (parts, three), (whole, 100e-6))
    ]
    assert len(search.checked().segmented.groups) == chosen


def test_what_takes_too_long_to_lower_counts_as_refused():
    with FusionDefinition() as fd:
        x = fd.ops.exp(fd.define_tensor([64, 64], contiguity=True))
        fd.add_output(fd.ops.index_select(x, fd.define_tensor([64], contiguity=True, dtype=DataType.Int), dim=0))
    plan, closed = fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS), fl.segment(fd).oracle
    (group,) = plan.segmented.groups
    assert closed.ask(group.candidate).chosen is None

    def lowered(candidate):
        check_time()
        return plan.oracle.ask(candidate)

    for seconds, accepted in ((60.0, True), (0.0, False)):
        part = Budget()
        part.limit(seconds)
        left = SimpleNamespace(is_late=False, share=lambda parts, of_work, part=part: part)
        asked = RationedSchedulers(SimpleNamespace(ask=lowered), closed, 400, left)
        assert [asked.ask(group.candidate).chosen is not None for _ in range(2)] == [accepted] * 2


def test_a_slow_kernel_is_split_where_data_change_places():
    fd, inputs = fl.corpus()["swin_t/backward/64"].load()
    plan, whole = (fl.segment(fd, inputs, strategy=strategy) for strategy in ("fastest", "bottom_up"))
    assert len(plan.segments) > len(whole.segments)
    assert plan.predicted_time().seconds < 0.7 * whole.predicted_time().seconds


def test_a_reader_of_which_nothing_is_needed_moves_nothing():
    with FusionDefinition() as fd:
        o, x = fd.ops, fd.define_tensor([64, 4096], contiguity=True)
        y = o.sin(o.sum(x, [1]))
        fd.add_output(o.slice(o.cat([o.neg(y), o.exp(y)], 0), [0], [32]))
    plan = fl.segment(fd)
    space = TimedSpace(plan.fusion, plan.oracle, FEW, time_model_of(plan.oracle), ())
    unneeded, = (1 << number for number, unit in enumerate(space.units) if unit.op.name == "exp")
    assert space.sums(unneeded).bytes == 64 * 4  # of its result


@pytest.mark.parametrize("strategy", ["fastest", "optimal", "saving"])
def test_a_search_may_cut_what_bottom_up_keeps_whole_once_its_welford_is_written_out(strategy):
    with FusionDefinition() as fd:
        o, bf16 = fd.ops, DataType.BFloat16
        x, y, z = (fd.define_tensor([1, 2048, 2560], contiguity=[None, True, True], dtype=bf16) for _ in range(3))
        w, b = (fd.define_tensor([2560], contiguity=True, dtype=bf16) for _ in range(2))
        first = o.cast(o.add(o.cast(x, dtype=DataType.Float), o.cast(y, dtype=DataType.Float)), dtype=bf16)
        both = o.cast(o.add(o.cast(first, dtype=DataType.Float), o.cast(z, dtype=DataType.Float)), dtype=bf16)
        wide = o.cast(both, dtype=DataType.Float)
        mean, squares, _ = o.welford(wide, dims=[2])
        scale = o.rsqrt(o.add(o.broadcast(o.truediv(squares, 2560.0), [False, False, True]), 1e-5))
        center = o.broadcast(mean, [False, False, True])
        placed = [o.broadcast(o.cast(one, dtype=DataType.Float), [True, True, False]) for one in (w, b)]
        normed = o.add(o.mul(o.mul(o.sub(wide, center), scale), placed[0]), placed[1])
        for out in (both, center, scale, o.cast(normed, dtype=bf16)):
            fd.add_output(out)
    before = fl.segment(fd)
    assert before.decisions.filter(kind="rewrite", accepted=True)
    plan = fl.segment(fd, strategy=strategy)
    assert plan.time_bound().seconds <= before.time_bound().seconds
    assert replay(fl.segment(fd, strategy="unfused").fusion, plan.decisions, plan.oracle) == plan.segmented


def test_a_cheap_tensor_is_recomputed_and_an_expensive_one_is_not():
    cheap = fl.segment(sums_of_both_kinds(lambda fd, x: fd.ops.mul(fd.ops.exp(x), 2.0)), strategy="fastest",
                       schedulers=fl.SCHEDULERS)
    assert cheap.decisions.filter(kind="recompute", accepted=True)
    assert cheap.bytes_crossing == 0

    def expensive(fd, x):
        for _ in range(60):
            x = fd.ops.exp(fd.ops.sin(x))
        return x

    stored = fl.segment(sums_of_both_kinds(expensive), strategy="fastest", schedulers=fl.SCHEDULERS)
    assert not stored.decisions.filter(kind="recompute", accepted=True)
    assert stored.bytes_crossing >= 4096 * 4096 * 4


def test_an_expensive_table_of_positions_is_computed_once_and_not_for_each_row():
    with FusionDefinition() as fd:
        scores = fd.define_tensor([64, 1024, 1024], contiguity=True)
        place = fd.ops.iota(1024, dtype=DataType.Int)
        row, column = (fd.ops.broadcast(place, [dim != 0, dim != 1]) for dim in (0, 1))
        table = fd.ops.cast(fd.ops.maximum(fd.ops.abs(fd.ops.sub(row, column)), 1), DataType.Float)
        for _ in range(7):
            table = fd.ops.log(fd.ops.add(fd.ops.mul(table, table), 1.0))
        x = fd.ops.add(scores, fd.ops.broadcast(table, [True, False, False]))
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [2]), [False, False, True])))
        fd.add_output(fd.ops.div(e, fd.ops.broadcast(fd.ops.sum(e, [2]), [False, False, True])))
    plan = fl.segment(fd, strategy="fastest", target="H200", schedulers=fl.SCHEDULERS)
    *others, softmax = [{expr.op.name for expr in segment.exprs} for segment in plan.segments]
    assert {"exp", "max", "sum"} <= softmax
    assert "log" not in softmax
    assert sum("log" in ops for ops in others) == 1
    assert plan.predicted_time().seconds < fl.segment(fd, target="H200").predicted_time().seconds


def test_a_column_softmax_reads_its_input_twice():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16384, 4096], contiguity=True)
        fd.add_output(fd.ops.softmax(x, 0))
    plan = fl.segment(fd, strategy="fastest")
    sums, result = plan.segments
    assert [expr.op.name for expr in sums.exprs if expr.kind is OpKind.REDUCTION] == ["fmax", "sum"]
    assert sums.params("cuda")[0].schedule.online
    assert sums.beyond == ("columns_not_welford",)
    assert [tv.shape for tv in sums.outputs] == [(1, 4096), (1, 4096)]
    assert result.inputs[0] is sums.inputs[0]
    assert made_by(plan.to_python()) == plan


def picked_rows(compute, *, summed):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2048, 4096], contiguity=True)
        rows = fd.define_tensor([64], contiguity=True, dtype=DataType.Int)
        y = compute(fd, x)
        if summed:
            fd.add_output(fd.ops.sum(y, [0]))
        fd.add_output(fd.ops.index_select(y, rows, 0))
    return fd


def test_picked_rows_are_computed_again_from_the_results_of_reductions():
    fd = picked_rows(lambda fd, x: fd.ops.log_softmax(x, 1), summed=False)
    before, plan = fl.segment(fd), fl.segment(fd, strategy="fastest")
    assert [tensor.shape for tensor in before.segmented.crossing] == [(2048, 4096)]
    assert [tensor.shape for tensor in plan.segmented.crossing] == [(2048,), (2048, 1)]
    assert plan.predicted_time().seconds < 0.7 * before.predicted_time().seconds
    found = plan.time_bound()
    assert found.bound <= found.seconds <= before.time_bound().seconds
    assert made_by(plan.to_python()) == plan
    assert replay(fl.segment(fd, strategy="unfused").fusion, plan.decisions, plan.oracle) == plan.segmented
    given = [spec.materialize(n) for n, spec in enumerate(plan.inputs)]
    for a, b in zip(plan.definitions().reference(given), evaluate(before.fusion, given), strict=True):
        assert np.array_equal(a, b)


def test_an_expensive_tensor_is_recomputed_for_few_rows_and_not_for_all():
    device = host_device(PLANTED)
    picked = fl.segment(picked_rows(lambda fd, x: fd.ops.gelu(x), summed=True), strategy="fastest", target=device)
    assert any("T6_again" in group.names for group in picked.segmented.groups)
    every = fl.segment(sums_of_both_kinds(lambda fd, x: fd.ops.gelu(x)), strategy="fastest", target=device)
    assert not any("again" in name for group in every.segmented.groups for name in group.names)


def test_open_schedulers_are_the_default_and_nvfusers_can_be_kept():
    fd, inputs = fl.example("reshape_decides", "full")
    opened = fl.segment(fd, inputs, strategy="fastest")
    kept = fl.segment(fd, inputs, strategy="fastest", schedulers=fl.SCHEDULERS)
    assert any(segment.beyond for segment in opened.segments)
    assert opened.time_bound().seconds < kept.time_bound().seconds < fl.segment(fd, inputs).time_bound().seconds
    assert made_by(kept.to_python()) == kept


def test_a_product_is_a_launch_of_its_own_in_the_bound():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([256, 256], contiguity=True, dtype=DataType.Half) for _ in range(2))
        fd.add_output(fd.ops.relu(fd.ops.matmul(a, b)))
    found = fl.segment(fd, strategy="fastest").time_bound()
    assert len(found.terms) == 3
    assert "1 matrix products" not in str(found)
    assert found.bound == pytest.approx(found.seconds)


@pytest.mark.parametrize(("ratio", "corrected"), [(0.74, True), (0.76, False), (1.32, False), (1.34, True)])
def test_a_price_is_corrected_if_the_measured_time_differs_by_more_than_a_quarter(ratio, corrected):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4096, 4096], contiguity=True)))
    plan = fl.segment(fd)
    space = TimedSpace(plan.fusion, plan.oracle, FEW, time_model_of(plan.oracle), ())
    mask = space.mask(plan.segmented.groups[0].names)
    price = space.price(mask)
    seconds = ratio * price / time_model_of(plan.oracle).bandwidth
    assert space.correct(plan.segmented, [seconds]) == corrected
    assert space.price(mask) == pytest.approx(ratio * price if corrected else price)


def test_a_plan_in_which_each_reader_has_a_copy_of_a_cast_is_a_start_of_the_search():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(wide, [dim]))
    plan, fusion = fl.segment(fd), fl.segment(fd, strategy="unfused").fusion
    assert len(plan.segmented.groups) == 2
    assert len(plan.fusion.exprs) == len(fusion.exprs) + 1
    space = TimedSpace(fusion, plan.oracle, FEW, time_model_of(plan.oracle), ())
    assert space.has(plan.segmented)
    start = partition_of(space, plan.segmented)
    assert start is not None
    assert {space.names(mask) for mask in start.segments} == {("T1", "T2"), ("T3",)}


@pytest.mark.parametrize(
    ("rows", "with_parts", "tables"),
    [(3, False, []), (3, True, [{"sin"}]), (1, True, []), (0, False, [{"sin"}]), (0, True, [{"sin"}])],
)  # fmt: skip
def test_tables_and_functions_of_which_several_parts_are_read_are_segments_without_their_parts(
    rows, with_parts, tables,
):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([max(rows, 1), n], contiguity=True) for n in (64, 64 if rows else 4096))
        sines = fd.ops.sin(x)
        if rows:
            read = [fd.ops.slice(sines, [i, 0], [i + 1, 64]) for i in range(rows)]
        else:
            read = [fd.ops.broadcast(fd.ops.slice(sines, [0, 3], [1, 4]), [False, False])]
        for part in read:
            fd.add_output(fd.ops.mul(y, part))
    plan = fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS)
    space = TimedSpace(plan.fusion, plan.oracle, FEW, time_model_of(plan.oracle), ())
    parts = with_tables(space, space.all, with_parts=with_parts)
    names = [{unit.op.name for n, unit in enumerate(space.units) if mask >> n & 1} for mask in parts]
    assert [ops for ops in names if "mul" not in ops] == tables
    assert sum(parts) == space.all


def test_the_best_plans_are_measured_and_the_fastest_is_kept():
    fd = irregular(1, 8, 32, 32)
    result = fl.fastest(fd, options=FEW)
    assert [one.predicted for one in result] == sorted(one.predicted for one in result)
    assert result.plan is result.plans[0].plan
    assert result.bound.status in repr(result)
    timed = fl.fastest(fd, options=FEW, measure=2, seconds=0.01)
    measured = [one for one in timed if one.measured > 0]
    assert len(measured) == min(2, len(timed))
    assert timed.plan is min(measured, key=lambda one: one.measured).plan
    assert list(timed.to_pandas()["kept"]).count(True) == 1


def test_the_names_of_compared_plans_are_distinct_and_say_which_rules_a_plan_breaks():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.slice(fd.ops.sum(x, [1]), [3], [40])))  # index_input: a slice of totals
    names = {}
    for one in fl.fastest(fd, options=FEW):
        beyond = {rule for segment in one.plan.segments for rule in segment.beyond}
        assert one.plan.name not in names
        names[one.plan.name] = beyond
        assert ("beyond" in one.plan.name) == bool(beyond)
        assert all(rule in one.plan.name for rule in beyond)
    assert any(names.values())
    assert not all(names.values())

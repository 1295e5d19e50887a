"""Welford's statistics become sums if rows stay on chip: the conditions, the log, and edits of such plans."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.interpreter import evaluate
from fuser_lab.plan.planning import rewrite_fusion
from fuser_lab.segmentation import replay, verify
from fuser_lab.segmentation.events import DecisionLog, Kind
from fuser_lab.segmentation.welford import written_out

ROWS, COLUMNS = [1], [0]
FLAGS = {1: [False, True], 0: [True, False]}


def normed(shape, dims, *, results=(True, True, False), dtype=DataType.Float, hint=False):
    """Return a definition that subtracts the mean and returns some of a Welford's results."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, contiguity=True, dtype=dtype)
        first = fd.ops.segment_set(fd.ops.exp(x)) if hint else x
        moments = fd.ops.welford(first, dims)
        if results[0]:
            fd.add_output(fd.ops.sub(first, fd.ops.broadcast(moments[0], FLAGS[dims[0]])))
        for moment, wanted in zip(moments[1:], results[1:], strict=True):
            if wanted:
                fd.add_output(moment)
    return fd


def data(shape, dtype="float32", offset=0.0):
    return (np.random.default_rng(3).normal(size=shape) + offset).astype(dtype)


def ops(plan):
    return [e.op.name for e in plan.fusion.exprs]


def rewrites(plan):
    return list(plan.decisions.filter(kind=Kind.REWRITE))


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "optimal"])
@pytest.mark.parametrize(("dims", "scheduler"), [(ROWS, "inner_persistent"), (COLUMNS, "outer_persistent")])
def test_a_persistent_fusion_is_rewritten_whole(strategy, dims, scheduler):
    fd = normed([64, 128], dims)
    x = data((64, 128), offset=5)
    plan = fl.segment(fd, [x], strategy=strategy)
    assert [s.scheduler.value for s in plan.segments] == [scheduler]
    assert ops(plan) == ["sum", "truediv", "broadcast", "sub", "mul", "sum", "sub"]  # the broadcast is shared
    (attempt,) = rewrites(plan)
    assert attempt.accepted
    assert attempt.code == scheduler
    assert attempt.verdicts[-1].accepted
    found = plan.run([x])
    exact = x.astype(np.float64)
    axis = dims[0]
    np.testing.assert_allclose(found[0], exact - exact.mean(axis, keepdims=True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], ((exact - exact.mean(axis, keepdims=True)) ** 2).sum(axis), rtol=1e-5)


def test_the_switch_keeps_the_op():
    fd = normed([64, 128], ROWS)
    for options in (
        SegmenterOptions(welford=False),
        SegmenterOptions.from_nvfuser(segmenter={"run_translate_welford": False}),
    ):
        plan = fl.segment(fd, options=options)
        assert "welford" in ops(plan)
        assert not rewrites(plan)


def test_a_reduction_without_a_kept_row_keeps_the_op():
    with FusionDefinition() as fd:
        x = fd.define_tensor([128, 65536], contiguity=True)
        _, squares, _ = fd.ops.welford(x, ROWS)
        fd.add_output(squares)
    plan = fl.segment(fd)
    assert [s.scheduler for s in plan.segments] == [SchedulerType.REDUCTION]
    assert ops(plan) == ["welford"]
    assert not rewrites(plan)


def test_a_lone_welford_is_rewritten_before_groups_grow():
    fd = normed([64, 128], ROWS, hint=True)
    x = data((64, 128))
    plan = fl.segment(fd, [x])
    (attempt,) = rewrites(plan)
    assert (attempt.accepted, attempt.phase) == (True, "welford")
    assert len(attempt.subjects[0]) == 1
    assert "welford" not in ops(plan)
    assert len(plan.segments) == 2
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(plan.run([x])[0], exact - exact.mean(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_rows_that_do_not_fit_are_refused_with_the_numbers():
    fd = normed([128, 2**21], ROWS, hint=True)
    plan = fl.segment(fd)
    (attempt,) = rewrites(plan)
    assert not attempt.accepted
    assert attempt.code == "buffer_too_large"
    assert {v.scheduler: v.code for v in attempt.verdicts}["inner_persistent"] == "buffer_too_large"
    assert "welford" in ops(plan)


def test_columns_across_the_grid_keep_the_op():
    fd = normed([8192, 512], COLUMNS)
    plan = fl.segment(fd, target="A100")
    assert [s.scheduler for s in plan.segments] == [SchedulerType.OUTER_PERSISTENT]
    verdict = plan.segments[0].verdicts[-1]
    assert verdict.persistent
    assert verdict.cross_grid
    (attempt,) = rewrites(plan)
    assert not attempt.accepted
    assert attempt.code == "columns_not_welford"
    assert "welford" in ops(plan)


def test_pieces_of_top_down_are_rewritten_each():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 128], contiguity=True)
        for _ in range(2):
            mean, _, _ = fd.ops.welford(x, ROWS)
            x = fd.ops.segment_set(fd.ops.sub(x, fd.ops.broadcast(mean, FLAGS[1])))
        fd.add_output(x)
    plan = fl.segment(fd, strategy="top_down")
    assert len(rewrites(plan)) == 2
    assert all(a.accepted and a.phase.startswith("top-down") for a in rewrites(plan))
    assert "welford" not in ops(plan)
    assert [s.scheduler for s in plan.segments] == [SchedulerType.INNER_PERSISTENT] * 2
    kept = fl.segment(fd, strategy="top_down", options=SegmenterOptions(welford=False))
    assert len(kept.segments) == len(plan.segments)


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "optimal"])
def test_a_rewritten_plan_can_all_that_a_plan_can(strategy, hint):
    fd = normed([64, 128], ROWS, hint=hint)
    x = data((64, 128))
    plan = fl.segment(fd, [x], strategy=strategy)
    assert replay(plan.fusion, plan.decisions, plan.oracle) == plan.segmented
    definition = rewrite_fusion(bind(fd.fusion, default_inputs(fd.fusion)).fusion, plan.options, DecisionLog())
    read = DecisionLog.from_json(plan.decisions.to_json())
    assert replay(definition, read, plan.oracle) == plan.segmented
    space: dict[str, fl.Plan] = {}
    exec(plan.to_python(), space)
    assert space["plan"].hash == plan.hash
    certificate = plan.certificate()
    assert certificate.is_optimal
    assert verify(certificate, plan.segmented, plan.oracle).holds
    mean = next(e.name for e in plan.fusion.exprs if e.op.name == "truediv")
    assert "together" in str(plan.why(mean, f"{mean}_total"))
    assert mean in plan.segments[-1].source("cuda")
    cut = plan.cut(mean)
    exec(cut.to_python(), space)
    assert space["plan"].hash == cut.hash
    for got, wanted in zip(cut.run([x]), plan.run([x]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("results", [(True, False, False), (False, True, False), (True, True, True)])
@pytest.mark.parametrize(("dtype", "name"), [(DataType.Float, "float32"), (DataType.Half, "float16")])
def test_only_what_is_wanted_is_computed(results, dtype, name):
    fd = normed([8, 16], ROWS, results=results, dtype=dtype)
    fusion = bind(fd.fusion, default_inputs(fd.fusion)).fusion
    welford = next(e for e in fusion.exprs if e.op.name == "welford")
    new = written_out(fusion, {welford.name})
    assert [tv.name for tv in new.outputs] == [tv.name for tv in fusion.outputs]
    assert [tv.dtype for tv in new.outputs] == [tv.dtype for tv in fusion.outputs]
    used = {v for e in new.exprs for v in e.inputs} | set(new.outputs)
    assert all(not used.isdisjoint(e.outputs) for e in new.exprs)
    x = data((8, 16), name)
    for a, b in zip(evaluate(new, [x]), evaluate(fusion, [x]), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-3, atol=2e-3)


def test_two_of_one_tensor_share_a_segment():
    """nvFuser's test of translating twice: more than four expressions in one kernel."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([128, 64], contiguity=True)
        for _ in range(2):
            mean, _, _ = fd.ops.welford(x, ROWS)
            fd.add_output(fd.ops.add(x, fd.ops.broadcast(mean, FLAGS[1])))
    plan = fl.segment(fd)
    assert len(plan.segments) == 1
    assert len(plan.segments[0].exprs) > 4
    assert "welford" not in ops(plan)


def test_a_wanted_count_keeps_the_op():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 16], contiguity=True)
        fd.add_output(fd.ops.welford(x, ROWS)[2])
    plan = fl.segment(fd, options=SegmenterOptions(whole_fusion=False))
    assert not rewrites(plan)  # there is no mean to compute first
    assert ops(plan) == ["welford"]
    plan = fl.segment(normed([64, 128], ROWS, results=(True, True, True)))
    (attempt,) = rewrites(plan)
    assert (attempt.accepted, attempt.code) == (False, "not_connected")
    assert "welford" in ops(plan)

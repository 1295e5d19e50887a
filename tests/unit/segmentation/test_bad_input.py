"""Invalid input, and chains of 10,000 ops: a sentence, or a plan that reports the problem, never a crash."""

import json

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.cli import commands as cli
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError, SegmentationError
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation import Relation, segment
from tests.unit.segmentation.toy import everything, sum_broadcast_add

OPS = 1000
NOBODY = frozenset(
    {"expr_eval", "no_op", "matmul", "reduction", "resize", "transpose", "pointwise", "inner_persistent",
     "outer_persistent", "inner_outer_persistent", "greedy"},
)


class Endless:
    """An object without members."""

    def __repr__(self):
        return "x" * 1000


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "the strategy must return groups of expressions or names, but returned None."),
        (
            Endless(),
            "the strategy must return groups of expressions or names, but returned xxxxxxxxxxxxx...xxxxxxxxxxxxxx.",
        ),
        ([3], "the strategy returned the group 3; a group must be a list of expressions or names."),
        ({"T2": 0}, "the strategy returned the group 'T2'; a group must be a list of expressions or names."),
        ([[3]], "the strategy put 3 into a group; a group must be a list of expressions or names."),
        ([[["T2"]]], "the strategy put ['T2'] into a group; a group must be a list of expressions or names."),
        ([["T0", "T2", "T3", "T4"]], "the strategy returned 'T0', which the fusion does not compute."),
        ([], "the strategy left out T2, T3, T4."),
        ([["T2", "T2"], ["T3", "T4"]], "the strategy put T2 into group 0 twice."),
        ([["T2", "T3"], ["T4", "T3"]], "the strategy put T3 into the groups 0 and 1."),
        ([["T2", "T4"], ["T3"]], "the strategy did not return a legal partition: the segments form a cycle."),
    ],
)
def test_strategies_that_return_nonsense_are_told_so_in_a_sentence(returned, text):
    with pytest.raises(InputError) as raised:
        segment(sum_broadcast_add(), everything(), strategy=lambda *_: returned)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("strategy", "taken"),
    [(lambda fusion: [], "fusion"), (lambda: None, "no arguments"), (lambda a, b, c, d=1: [], "a, b, c, d=1")],
)
def test_strategies_of_other_parameters_are_told_what_they_are_called_with(strategy, taken):
    with pytest.raises(ArgumentTypeError) as raised:
        fl.segment(additions(3), strategy=strategy)
    assert str(raised.value) == f"the strategy is called with fusion and oracle, but accepts {taken}."


def test_strategies_may_return_generators_expressions_and_empty_groups():
    fusion = sum_broadcast_add()
    for returned in ((e for e in (fusion.exprs[:2], fusion.exprs[2:])), [["T4"], [], ["T3", "T2"]]):
        found = segment(fusion, everything(), strategy=lambda *_, r=returned: r)
        assert [g.names for g in found.groups] == [("T2", "T3"), ("T4",)]


def test_a_strategy_that_leaves_out_many_names_some():
    with pytest.raises(InputError, match=r"^the strategy left out T1, T2, .*, T8 and 992 more\.$"):
        fl.segment(additions(), strategy=lambda *_: [])


def test_what_a_strategy_raises_comes_through():
    def broken(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fl.segment(additions(3), strategy=broken)


def disconnected():
    with fl.FusionDefinition() as fd:
        x, y = fd.define_tensor([4, 6], contiguity=True), fd.define_tensor([5], contiguity=True)
        fd.add_output(fd.ops.sum(x, dims=[1]))
        fd.add_output(fd.ops.add(y, 2.0))
    return fd


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "saving", "optimal", "unfused"])
def test_disconnected_fusions_are_cut_where_nothing_is(strategy):
    plan = fl.segment(disconnected(), strategy=strategy)
    assert len(plan.segments) == 2
    assert plan.boundaries() == ()
    assert plan.segmented.crossing == ()
    x, y = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(5, dtype=np.float32)
    first, second = plan.run([x, y])
    np.testing.assert_allclose(first, x.sum(1))
    np.testing.assert_allclose(second, y + 2)
    assert plan.why("T2", "T3").relation is Relation.REFUSED
    with pytest.raises(IllegalEdit, match=r"no scheduler accepts segments 0 and 1 as one; .*share no tensor"):
        plan.glue(0, 1)


@pytest.mark.parametrize("whole", [True, False])
def test_a_segment_that_no_scheduler_takes_is_drawn_and_marked_with_all_reasons(whole, tmp_path):
    groups = [["T2", "T3"]] if whole else [["T2"], ["T3"]]
    options = fl.SegmenterOptions(disabled_schedulers=NOBODY - {"pointwise"})
    plan = fl.segment(disconnected(), strategy=lambda *_: groups, options=options)
    view = view_plan(plan)
    marked = [s for s in view.segments if not s.ok]
    assert [s.index for s in marked] == ([0] if whole else [])
    for suffix in ("svg", "html", "json", "txt", "mmd", "py"):
        assert plan.save(tmp_path / f"plan.{suffix}").stat().st_size
    assert ("no scheduler" in (tmp_path / "plan.svg").read_text()) is whole
    assert ("S0 has no scheduler" in str(plan)) is whole
    if not whole:
        return
    assert {v.scheduler for v in marked[0].verdicts} == NOBODY
    assert all(v.text for v in marked[0].verdicts)
    assert plan.boundaries() == ()
    assert "no scheduler accepts segment 0" in plan.certificate().obstacle
    with pytest.raises(SegmentationError, match=r"plan cannot run: no scheduler accepts segment 0 \(T2, T3\); .+\."):
        plan.run([np.zeros((4, 6), np.float32), np.zeros(5, np.float32)])


def test_single_expressions_that_no_scheduler_takes_are_evaluated():
    plan = fl.segment(disconnected(), options=fl.SegmenterOptions(disabled_schedulers=NOBODY))
    assert [s.scheduler.value for s in plan.segments] == ["expr_eval", "expr_eval"]
    assert [len([v for v in s.verdicts if v.code == "disabled"]) for s in plan.segments] == [len(NOBODY)] * 2
    np.testing.assert_array_equal(plan.run([np.ones((4, 6), np.float32), np.zeros(5, np.float32)])[1], np.full(5, 2.0))


def test_edits_that_cannot_be_say_why_in_a_sentence():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([8, 8], contiguity=True)
        a = fd.ops.add(x, x)
        b = fd.ops.exp(a)
        fd.add_output(fd.ops.add(a, b))
    plan = fl.segment(fd, strategy="unfused")
    for edit, text in (
        (lambda: plan.cut("T9"), "the fusion has no tensor called 'T9'; it has T0, T1, T2, T3."),
        (lambda: plan.cut("T0"), "T0 is a fusion input, which is already in memory; there is nothing to cut."),
        (lambda: plan.cut("T3"), "T3 is not read inside segment 2; there is nothing to cut."),
        (lambda: plan.cut(("T1", "T3")), "T1 is not read by T3 inside segment 0; there is nothing to cut."),
        (lambda: plan.cut(("T1", "T99")), "the fusion has no tensor called 'T99'; it has T0, T1, T2, T3."),
        (lambda: plan.glue(0, 2), "segments 0 and 2 cannot be merged: that would close a cycle through 0 -> 1 -> 2."),
        (lambda: plan.glue(1, 1), "segment 1 is already one."),
        (lambda: plan.glue(0, 3), "there is no segment 3; the plan has segments 0 to 2."),
        (lambda: plan.move("T1", 2), "the segments would form a cycle."),
        (lambda: plan.move("T1", 0), "T1 is already in segment 0."),
    ):
        with pytest.raises(IllegalEdit) as raised:
            edit()
        assert str(raised.value) == text


def additions(ops=OPS):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([8], contiguity=True)
        y = x
        for _ in range(ops):
            y = fd.ops.add(y, x)
        fd.add_output(y)
    return fd


def negations():
    """Return a chain that bottom-up forwards as a whole, and that no scheduler accepts in one piece."""
    with fl.FusionDefinition() as fd:
        y = fd.define_tensor([8], contiguity=True)
        for _ in range(OPS):
            y = fd.ops.neg(y)
        fd.add_output(y)
    return fd


def widened_twice():
    """Return a chain in which each widening cast has two readers, so a quarter of it is replicated."""
    with fl.FusionDefinition() as fd:
        y = fd.define_tensor([8], contiguity=True, dtype=DataType.BFloat16)
        for _ in range(OPS // 4):
            wide = fd.ops.cast(y, DataType.Float)
            y = fd.ops.cast(fd.ops.add(fd.ops.sin(wide), wide), DataType.BFloat16)
        fd.add_output(y)
    return fd


@pytest.mark.parametrize("make", [additions, negations, widened_twice])
def test_nothing_recurses_over_a_long_chain(make, few_frames):
    plan = fl.segment(make())
    assert len(plan.segments) == 1
    assert len(plan.fusion.tensor_exprs) == OPS
    check_edits(plan, "T500")


@pytest.mark.parametrize("make", [additions, widened_twice])
def test_nothing_recurses_where_many_are_merged_pair_by_pair(make, few_frames):
    plan = fl.segment(make(), options=fl.SegmenterOptions(whole_fusion=False))
    assert len(plan.segments) == 1
    assert len(plan.fusion.tensor_exprs) == OPS
    assert bool(plan.decisions.filter(phase="privatize")) is (make is widened_twice)
    check_edits(plan, "T500")


def test_a_chain_that_is_forwarded_whole_is_one_segment(few_frames):
    assert len(fl.segment(negations(), options=fl.SegmenterOptions(whole_fusion=False)).segments) == 1


def check_edits(plan, tensor):
    """Query and edit a plan of one segment around a tensor in its middle."""
    cut = plan.cut(tensor)
    assert len(cut.segments) == 2
    assert [w.relation for w in cut.boundaries()] == [Relation.EDITED]
    assert cut.glue(0, 1) == plan
    assert len(cut.move(tensor, 1).segments) == 2
    assert "plan = plan.cut(" in cut.to_python()
    assert len(fl.diff(plan, cut).now_crossing) == 1


def test_long_chains_are_explained_and_saved(tmp_path, capsys, few_frames):
    assert json.loads(fl.segment(additions()).save(tmp_path / "plan.json").read_text())
    script = tmp_path / "chain.py"
    script.write_text(fl.segment(additions()).to_python())
    assert cli.main(["explain", str(script), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["segments"][0]["exprs"]) == OPS

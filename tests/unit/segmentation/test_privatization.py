"""Replicas of widening casts and squeezes: which readers get one, where replicas merge, and how a plan shows them."""

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.definition.binding import bind
from fuser_lab.dtypes import DataType
from fuser_lab.errors import IllegalEdit, SegmentationError
from fuser_lab.interpreter import evaluate
from fuser_lab.plan.planning import rewrite_fusion
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation import Relation, SegmenterOptions, replay, segment, verify
from fuser_lab.segmentation.edits import glue, move
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, Outcome
from fuser_lab.segmentation.privatization import replicas_of, with_replicas
from tests.agreement import lock_step
from tests.fuzz_segmentation import case_of
from tests.unit.builders import record
from tests.unit.segmentation.plain import plain_privatized
from tests.unit.segmentation.toy import Rule, everything

BF16, FLOAT = DataType.BFloat16, DataType.Float
CASES = {c["id"]: c for c in json.loads((Path(__file__).parents[2] / "data" / "segmentation_cases.json").read_text())}
OFF = SegmenterOptions(privatize=False)


def plan_of(name, **options):
    """Return the plan of a known answer."""
    case = CASES[name]
    with fl.FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    return fl.segment(fd, [fl.spec(x["shape"], x["dtype"]) for x in case["inputs"]], **options)


def made(fusion, **options):
    """Return (original, replica, reader) in the order of creation."""
    return [(r.original, r.name, r.reader) for r in replicas_of(fusion, **options)]


def chain(*ops, readers):
    """Return a fusion of unary ops from a bfloat16 input of [1, 4, 4], then readers of the last one."""

    def body(fd):
        x = fd.define_tensor([1, 4, 4], contiguity=True, dtype=BF16)
        makers = {
            "cast": lambda v: fd.ops.cast(v, dtype=FLOAT),
            "double": lambda v: fd.ops.cast(v, dtype=DataType.Double),
            "narrow": lambda v: fd.ops.cast(v, dtype=BF16),
            "squeeze": lambda v: fd.ops.squeeze(v, [0]),
            "neg": fd.ops.neg,
        }
        for op in ops:
            x = makers[op](x)
        for _ in range(readers):
            fd.add_output(fd.ops.set(x))

    return record(body)


def test_each_reader_but_the_first_gets_a_replica():
    assert made(chain("cast", readers=1)) == []
    assert made(chain("cast", readers=3)) == [("T1", "T1_replica", "T3"), ("T1", "T1_replica2", "T4")]
    fusion = chain("cast", readers=2)
    private = with_replicas(fusion, replicas_of(fusion))
    assert [(e.name, e.inputs[0].name) for e in private.exprs] == [
        ("T1", "T0"), ("T2", "T1"), ("T1_replica", "T0"), ("T3", "T1_replica"),
    ]


def test_neither_narrowing_casts_nor_other_unary_ops_are_replicated():
    assert made(chain("cast", "narrow", readers=2)) == []
    assert made(chain("cast", "neg", readers=2)) == []


def test_a_squeeze_with_more_than_two_readers_is_left_alone():
    assert made(chain("squeeze", readers=2)) == [("T1", "T1_replica", "T3")]
    assert made(chain("squeeze", readers=3)) == []


def test_replicas_expose_what_they_read():
    assert made(chain("cast", "squeeze", readers=2)) == [("T2", "T2_replica", "T4"), ("T1", "T1_replica", "T2_replica")]
    assert made(chain("squeeze", "cast", readers=2)) == [("T2", "T2_replica", "T4"), ("T1", "T1_replica", "T2_replica")]
    # The cast then has three readers, and the squeeze that they read is not replicated.
    assert [r[:2] for r in made(chain("squeeze", "cast", readers=3))] == [("T2", "T2_replica"), ("T2", "T2_replica2")]
    assert len(made(chain("cast", "double", readers=3))) == 4


def test_an_operand_that_is_read_twice_by_one_expression_has_one_reader():
    def body(fd):
        wide = fd.ops.cast(fd.define_tensor([4], contiguity=True, dtype=BF16), dtype=FLOAT)
        fd.add_output(fd.ops.mul(wide, wide))

    assert made(record(body)) == []


def test_fixed_expressions_are_neither_replicated_nor_given_replicas():
    fusion = chain("cast", readers=3)
    exprs = {e.name: e for e in fusion.exprs}
    assert made(fusion, fixed=[exprs["T1"]]) == []
    assert made(fusion, fixed=[exprs["T3"]]) == [("T1", "T1_replica", "T4")]


def test_a_replica_is_in_the_log_before_what_is_replicated_for_it():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([1], [None], BF16)
        t = fd.ops.squeeze(fd.ops.broadcast_in_dim(x, [1, 5], [0]), [0])
        c = fd.ops.cast(t, FLOAT)
        y = fd.ops.mul(c, c)
        fd.add_output(fd.ops.where(fd.ops.cast(t, DataType.Bool), y, c))
        fd.add_output(fd.ops.max(y, [0], keepdim=True))
    plan = fl.segment(fd)
    log = [a for a in plan.decisions if a.kind is Kind.PRIVATIZE]
    assert [a.subjects[0] for a in log] == [("T3",), ("T4",), ("T3",)]
    before = rewrite_fusion(bind(plan.definition, plan.inputs).fusion, plan.options, DecisionLog())
    assert replay(before, plan.decisions, plan.oracle) == plan.segmented


def test_replicas_are_those_that_are_made_one_by_one():
    some = 0
    for index in range(300):
        fusion = case_of(23, index).fusion
        private = with_replicas(fusion, replicas_of(fusion))
        some += private is not fusion
        assert private == plain_privatized(fusion), index
    assert some > 50


def test_replicas_keep_the_meaning():
    x = np.random.default_rng(0).normal(size=(1, 4, 4)).astype(ml_dtypes.bfloat16)
    for ops in (("cast",), ("cast", "squeeze"), ("squeeze", "cast", "double")):
        fusion = chain(*ops, readers=3)
        for a, b in zip(evaluate(with_replicas(fusion, replicas_of(fusion)), [x]), evaluate(fusion, [x]), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "tensor"), [("privatize_upcast", "T1"), ("privatize_upcast_and_squeeze", "T2")])
def test_kernels_read_the_narrow_tensor(name, tensor):
    plan = plan_of(name)
    kernels = [s for s in plan.segments if s.scheduler.value != "expr_eval"]
    assert len(kernels) == 2
    assert [[tv.name for tv in s.inputs] for s in kernels] == [[tensor], [tensor]]
    assert {tv.dtype for tv in plan.segmented.crossing} == {BF16}
    without = plan_of(name, options=OFF)
    assert FLOAT in {tv.dtype for tv in without.segmented.crossing}
    assert plan.bytes_crossing < without.bytes_crossing


@pytest.mark.parametrize(
    ("name", "casts", "squeezes"), [("revert_privatized_upcast", 1, 0), ("revert_privatized_upcast_and_squeeze", 1, 1)],
)
def test_replicas_in_one_group_become_one_expression(name, casts, squeezes):
    plan = plan_of(name)
    ops = [e.op.name for s in plan.segments for e in s.exprs]
    assert (ops.count("cast"), ops.count("squeeze")) == (casts, squeezes)
    assert plan.segmented.replicas == {}
    assert plan.decisions.filter(kind=Kind.PRIVATIZE)
    (revert,) = plan.decisions.filter(kind=Kind.REVERT)
    assert revert.accepted
    assert {group[0] for group in revert.subjects} <= plan.fusion.positions.keys()


def two_sums(squeeze=False):
    """Return a plan of two sums along different axes of a hinted and widened input."""
    return plan_of("privatize_upcast_and_squeeze" if squeeze else "privatize_upcast")


def test_the_log_says_who_computes_what_again_and_rebuilds_the_plan():
    plan = two_sums(squeeze=True)
    first, second = plan.decisions.filter(kind=Kind.PRIVATIZE)
    assert first.text == "each reader of T4 computes it for itself: T6 has T4_replica"
    assert second.subjects == (("T3",), ("T3_replica", "T4_replica"))
    assert plan.segmented.replicas == {"T4_replica": "T4", "T3_replica": "T3"}
    log = DecisionLog.from_json(plan.decisions.to_json())
    definition_fusion = plan_of("privatize_upcast_and_squeeze", options=OFF).fusion
    again = replay(definition_fusion, log, plan.oracle)
    assert again == plan.segmented
    assert [g.names for g in again.groups] == [g.names for g in plan.segmented.groups]
    assert again.fusion.digest == plan.fusion.digest


@pytest.mark.parametrize(
    ("kind", "subjects", "text"),
    [
        (Kind.PRIVATIZE, (("T9",), ("T9_replica", "T3")), "makes T9_replica a replica of T9 for T3, which is not"),
        (Kind.PRIVATIZE, (("T2",), ("T3", "T4")), "the log makes T3 a replica of T2 for T4, which is not possible"),
        (Kind.REVERT, (("T3", "T4"),), "the log merges T4 with T3, which is in another group"),
    ],
)
def test_logs_that_do_not_fit(kind, subjects, text):
    fusion = plan_of("privatize_upcast", options=OFF).fusion
    attempt = Attempt(phase="by hand", kind=kind, subjects=subjects, outcome=Outcome.ACCEPTED)
    with pytest.raises(SegmentationError, match=text):
        replay(fusion, [attempt], everything())


def test_why_knows_replicas_under_the_name_of_the_original():
    plan = two_sums()
    assert plan.why("T2", "T3").relation is Relation.TOGETHER
    assert plan.why("T2", "T4").relation is Relation.TOGETHER
    assert plan.why("T2_replica", "T4").relation is Relation.TOGETHER
    apart = plan.why("T2_replica", "T3")
    assert apart.relation is Relation.REFUSED
    assert apart.segments == (1, 2)
    assert [w.segments for w in plan.boundaries()] == [(0, 1), (0, 2)]
    assert all(w.attempts for w in plan.boundaries())


def test_why_knows_what_was_tried_before_replicas_became_one():
    plan = plan_of("revert_privatized_upcast")
    (boundary,) = plan.boundaries()
    assert boundary.attempts
    edited = plan.cut("T3")
    assert edited.why("T3", "T5").relation is Relation.EDITED


def test_edits_of_plans_with_replicas():
    plan = two_sums()
    cut = plan.cut("T2_replica")
    assert len(cut.segments) == 4
    assert cut.why("T2", "T4").relation is Relation.EDITED
    assert len({cut.hash, plan.hash}) == 2
    made_again = {}
    exec(cut.to_python(), made_again)
    assert made_again["plan"] == cut
    glued = cut.glue(2, 3)
    assert glued.segmented == plan.segmented
    with pytest.raises(IllegalEdit, match="no scheduler accepts segments 1 and 2 as one"):
        plan.glue(1, 2)


def pairs_of_sums():
    """Return sums along one axis of a widened input, which could be one kernel."""

    def body(fd):
        x = fd.ops.segment_set(fd.define_tensor([8, 8], contiguity=True, dtype=BF16))
        wide = fd.ops.cast(x, dtype=FLOAT)
        for _ in range(2):
            fd.add_output(fd.ops.sum(wide, [1]))

    return record(body)


def test_segments_that_are_glued_compute_once_what_both_did():
    few = Rule(lambda c: len(c.exprs) < 3)
    segmented = segment(pairs_of_sums(), few)
    assert [g.names for g in segmented.groups] == [("T1",), ("T2", "T3"), ("T2_replica", "T4")]
    one = glue(segmented, 1, 2, everything())
    assert [g.names for g in one.groups] == [("T1",), ("T2", "T3", "T4")]
    assert one.replicas == {}
    moved = move(segmented, "T2_replica", 1, everything())
    assert [g.names for g in moved.groups] == [("T1",), ("T2", "T3"), ("T4",)]
    assert [tv.name for tv in moved.groups[1].outputs] == ["T2", "T3"]


def test_replicas_stay_where_no_scheduler_takes_what_is_left_of_a_group():
    picky = Rule(lambda c: len(c.exprs) == 1 or any("replica" in e.name for e in c.exprs))
    log = DecisionLog()
    segmented = segment(pairs_of_sums(), picky, log=log)
    reverts = log.filter(kind=Kind.REVERT)
    assert [a.accepted for a in reverts] == [False] * len(reverts)
    assert "T2_replica" in segmented.replicas
    assert replay(pairs_of_sums(), log, picky) == segmented


def test_replicas_stay_where_a_reader_would_no_longer_be_taken():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([1, 2, 1, 1, 31, 1], False, DataType.Half)
        y = fd.define_tensor([1, 2, 1, 1, 31], False, FLOAT)
        wide = fd.ops.cast(fd.ops.reshape(x, [1, 2, 1, 1, 31]), FLOAT)
        other = fd.ops.sub(y, wide)
        fd.add_output(fd.ops.maximum(fd.ops.reshape(wide, [1, 1, 2, 1, 31]), wide))
        fd.add_output(fd.ops.cast(other, DataType.Half))
    plan = fl.segment(fd)
    # With one cast the maximum would be over x and x.T, which no scheduler accepts.
    assert None not in [s.scheduler for s in plan.segments]
    reverts = [a for a in plan.decisions if a.kind is Kind.REVERT]
    assert [(a.subjects, a.accepted) for a in reverts] == [
        ((("T3", "T3_replica", "T3_replica2"),), False),
        ((("T3", "T3_replica"),), True),
    ]
    before = rewrite_fusion(bind(plan.definition, plan.inputs).fusion, plan.options, DecisionLog())
    assert replay(before, plan.decisions, plan.oracle) == plan.segmented
    # An edit elsewhere keeps them separate as well.
    assert None not in [s.scheduler for s in plan.cut("T4").segments]
    numbers = np.arange(62, dtype=np.float16).reshape(1, 2, 1, 1, 31)
    inputs = [numbers[..., None], np.full(numbers.shape, 3, np.float32)]
    for got, wanted in zip(lock_step(plan, inputs, "cpu"), fd.reference(inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_input_that_is_widened_for_two_readers_is_no_chain_to_forward():
    def body(fd):
        x, y = (fd.define_tensor([8, 8], contiguity=True, dtype=BF16) for _ in range(2))
        wide, other = (fd.ops.cast(v, dtype=FLOAT) for v in (x, y))
        fd.add_output(fd.ops.segment_set(fd.ops.add(wide, other)))
        fd.add_output(fd.ops.mul(wide, 2.0))

    log = DecisionLog()
    segmented = segment(record(body), everything(), log=log)
    assert [a.subjects for a in log.filter(kind=Kind.FORWARD)] == [(("T3",),)]
    assert segmented.replicas == {"T2_replica": "T2"}


def test_committed_pieces_compute_their_own():
    plan = plan_of("privatize_upcast", strategy="top_down")
    # Both sums read the cast in one piece, which no scheduler accepts whole: shattered expressions get replicas.
    assert plan.segmented.replicas == {"T2_replica": "T2"}

    log = DecisionLog()
    segment(pairs_of_sums(), everything(), strategy="top_down", log=log)
    assert not log.filter(kind=Kind.PRIVATIZE)


def test_a_plan_with_replicas_runs_is_drawn_certified_and_compared():
    plan = two_sums()
    x = np.random.default_rng(0).normal(size=(16, 32)).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float64)
    for got, dim in zip(plan.run([x]), (0, 1), strict=True):
        np.testing.assert_allclose(got, wide.sum(axis=dim), rtol=1e-5, atol=1e-5)
    assert all("T2" in s.source() for s in plan.segments[1:])
    assert verify(plan.certificate(), plan.segmented, plan.oracle).holds
    nodes = {n.tensor: n.copies for n in view_plan(plan).nodes if n.kind == "op"}
    assert (nodes["T2"], nodes["T2_replica"], nodes["T3"]) == (2, 2, 1)
    found = fl.diff(plan_of("privatize_upcast", options=OFF), plan)
    assert found.only_before == found.only_after == ()
    assert [(m.name, m.before, m.after) for m in found.moved] == [("T2", (1,), (1, 2))]
    assert [c.name for c in found.no_longer_crossing] == ["T2"]


def test_what_is_off_is_off():
    assert not plan_of("privatize_upcast", options=OFF).decisions.filter(kind=Kind.PRIVATIZE)
    assert replace(SegmenterOptions(), privatize=False) == OFF

"""Recomputation: what is copied, what is refused, and that code, log and annotations reproduce the plan."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import IllegalEdit, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.segmentation import replay
from fuser_lab.segmentation.events import DecisionLog, Kind
from tests.fuzz.check import Checked
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import generate
from tests.unit.test_plan import made_by


def sums_of_both_kinds():
    """T3 = exp(T0 + T1) is stored for a sum of columns, after a sum of rows has used it."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([32, 64], contiguity=True) for _ in range(2))
        a = fd.ops.exp(fd.ops.add(x, y))
        fd.add_output(fd.ops.sum(a, [1]))
        fd.add_output(fd.ops.sum(a, [0]))
    return fd


def arrays(count=2):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((32, 64), np.float32) for _ in range(count)]


def names(plan):
    return [[e.name for e in s.exprs] for s in plan.segments]


def test_a_tensor_is_computed_again_where_it_is_read():
    plan = fl.segment(sums_of_both_kinds())
    assert names(plan) == [["T2", "T3", "T4"], ["T5"]]
    now = plan.recompute("T3")
    assert names(now) == [["T2", "T3", "T4"], ["T2_again", "T3_again", "T5"]]
    assert now.bytes_crossing == 0
    assert len(plan.decisions) < len(now.decisions), "the earlier plan keeps its log, for undo"
    attempt = now.decisions[len(now.decisions) - 1]
    assert attempt.kind is Kind.RECOMPUTE
    assert attempt.text.startswith("T3 is recomputed in segment 1: that saves 0 B of reads and writes, and 4,096 more")
    assert DecisionLog.from_json(now.decisions.to_json()) == now.decisions
    replayed = replay(plan.fusion, now.decisions, now.oracle)
    assert replayed == now.segmented
    assert made_by(now.to_python()) == now
    for got, wanted in zip(now.definitions().reference(arrays()), evaluate(plan.fusion, arrays()), strict=True):
        assert np.array_equal(got, wanted)
    assert "together in segment 1" in now.why("T3_again", "T5").text


def test_a_copy_may_need_what_is_computed_after_an_expression_that_moves():
    """T6 and T2 move to its reader; the copy of T5, which T6 reads, needs T4, which comes after T2."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([32, 64], contiguity=True) for _ in range(2))
        a = fd.ops.exp(x)
        total = fd.ops.sum(y, [1])
        wide = fd.ops.broadcast(total, [False, True])
        z = fd.ops.mul(a, wide)
        fd.add_output(fd.ops.sum(z, [0]))
        fd.add_output(fd.ops.neg(wide))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T3"], ["T2", "T4", "T5", "T7"], ["T6"]])
    now = plan.recompute("T5")
    assert now.bytes_crossing == plan.fusion.tensors["T3"].nbytes
    for got, wanted in zip(now.definitions().reference(arrays()), evaluate(plan.fusion, arrays()), strict=True):
        assert np.array_equal(got, wanted)
    assert replay(plan.fusion, now.decisions, now.oracle) == now.segmented


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("index", [37, 81, 171, 187])
def test_a_log_replays_to_random_plans_with_copies(index):
    """Copies read forwarded chains, which are copied with them, and may leave only scalars in a segment."""
    checked = Checked(generate(Seeded(71, index), 14))
    given, tried = list(checked.inputs), 0
    wanted = evaluate(fl.segment(checked.fd, given, strategy="unfused").fusion, given)
    for strategy in ("bottom_up", "unfused"):
        plan = fl.segment(checked.fd, given, strategy=strategy)
        for tensor in plan.segmented.crossing[:6]:
            try:
                now = plan.recompute(tensor.name, reductions=True)
            except IllegalEdit:
                continue
            tried += 1
            assert replay(plan.fusion, now.decisions, now.oracle) == now.segmented
            assert all(any(expr.tensor_outputs for expr in segment.exprs) for segment in now.segments)
            for got, value in zip(evaluate(now.fusion, given), wanted, strict=True):
                assert np.array_equal(got, value, equal_nan=got.dtype.kind in "fc")
    assert tried


def test_what_nothing_needs_any_more_moves():
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64], contiguity=True)
        a = fd.ops.add(fd.ops.exp(x), 1.0)
        fd.add_output(fd.ops.sum(a, [1]))
        fd.add_output(fd.ops.sum(a, [0]))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1", "T2"], ["T3"], ["T4"]])
    now = plan.recompute("T2")
    assert names(now) == [["T1", "T2", "T3"], ["T1_again", "T2_again", "T4"]]
    one = plan.recompute("T2", 2)
    assert names(one) == [["T1", "T2"], ["T3"], ["T1_again", "T2_again", "T4"]]
    for each in (now, one):
        assert made_by(each.to_python()) == each


def test_what_moves_may_read_copies_that_read_what_its_segment_stores():
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64], contiguity=True)
        a = fd.ops.mul(x, 2.0)
        b = fd.ops.abs(a)
        c, d = fd.ops.maximum(b, x), fd.ops.neg(b)
        fd.add_output(a)
        fd.add_output(fd.ops.sum(fd.ops.add(c, d), [0]))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1", "T2", "T3", "T4"], ["T5", "T6"]])
    now = plan.recompute("T4")
    assert names(now) == [["T1", "T2", "T3"], ["T2_again", "T4", "T5", "T6"]]
    for got, wanted in zip(evaluate(now.fusion, arrays(1)), evaluate(plan.fusion, arrays(1)), strict=True):
        assert np.array_equal(got, wanted)


def test_copies_that_meet_become_one_expression():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([32, 64], contiguity=True) for _ in range(2))
        a = fd.ops.exp(fd.ops.add(x, y))
        for factor in (2.0, 3.0):
            fd.add_output(fd.ops.mul(a, factor))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T2", "T3"], ["T4"], ["T5"]])
    now = plan.recompute("T3")
    assert len(now.segments) == 2
    assert names(now.glue(0, 1)) == [["T2", "T3", "T4", "T5"]]


def test_annotations_of_the_definition_with_the_copies_give_the_plan():
    plan = fl.segment(sums_of_both_kinds()).recompute("T3")
    told = plan.to_annotations(strategy="bottom_up", segment_set="hint")
    assert told
    assert names(told.plan) == names(plan)
    assert "T3_again" in told.plan.definition.tensors
    fd, inputs = fl.load_repro(told.plan.to_python("nvfuser_direct"))
    assert len(fl.segment(fd, inputs).segments) == 2


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda fd, x: fd.ops.uniform(0.0, 1.0, shape=[32, 64], dtype=DataType.Float), "drawn once"),
        (lambda fd, x: fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True]), "only repeated with reductions=True"),
        (lambda fd, x: fd.ops.cumsum(x, 1), "which is not a cheap op"),
    ],
)
def test_what_must_not_be_repeated_is_refused(build, says):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([32, 64], contiguity=True) for _ in range(2))
        a = fd.ops.add(build(fd, x), y)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(a, [dim]))
    plan = fl.segment(fd, strategy="unfused")
    while True:  # everything before the sums in one segment, as far as schedulers accept it
        try:
            plan = plan.glue(0, 1)
        except IllegalEdit:
            break
        if len(plan.segments) == 3:
            break
    with pytest.raises(IllegalEdit, match=says):
        plan.recompute(plan.segmented.crossing[0].name)


def test_reductions_are_repeated_if_asked():
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64], contiguity=True)
        s = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.mul(x, s))
        fd.add_output(fd.ops.add(x, s))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1", "T2"], ["T3"], ["T4"]])
    with pytest.raises(IllegalEdit, match=r"T1 is computed by sum, a reduction"):
        plan.recompute("T2")
    now = plan.recompute("T2", reductions=True)
    assert [s.scheduler.value for s in now.segments] == ["inner_persistent"] * 2
    assert made_by(now.to_python()) == now


def test_other_refusals_name_the_reason():
    plan = fl.segment(sums_of_both_kinds())
    for arguments, says in (
        (("T0",), "is a fusion input"),
        (("T9",), "has no tensor called 'T9'"),
        (("T4",), "does not pass between segments; choose from T3"),
        (("T3", 0), "segment 0 does not read T3 from memory; segment 1 does"),
    ):
        with pytest.raises(IllegalEdit, match=says):
            plan.recompute(*arguments)
    with pytest.raises(IllegalEdit, match=r"T3 does not pass between segments; no tensor does\."):
        plan.recompute("T3").recompute("T3")
    with pytest.raises(InputError, match=r"segments must be a list of numbers of segments, at least 1, given \[\]"):
        plan.recompute("T3", [])

"""A shrunk fusion is still cut, or refused, like the large one."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import ArgumentTypeError, InputError


@pytest.fixture(scope="module")
def rope():
    return fl.example("llama3_rope_backward", "full")


def ops_of(plan):
    return [expr.op.name for expr in plan.fusion.tensor_exprs]


def test_the_widest_cut_of_rope_backward_is_resize_before_reduction(rope):
    shrunk = fl.shrink(*rope)
    before, after = shrunk.ops
    assert before == len(fl.segment(*rope).definition.tensor_exprs)
    assert after <= 12
    assert [s.scheduler.value for s in shrunk.plan.segments] == ["resize", "reduction"]
    assert "sum" in ops_of(shrunk.plan)
    assert not {"slice", "pad"}.isdisjoint(ops_of(shrunk.plan))
    assert shrunk.kept.endswith("(refused, index_input)")


def test_the_script_defines_the_small_fusion(rope):
    shrunk = fl.shrink(*rope)
    fd, specs = fl.load_repro(shrunk.script)
    assert fl.segment(fd, specs) == shrunk.plan
    assert repr(fd) == repr(shrunk.fd)


def test_a_reason_is_kept_and_little_else():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[512, 256], dtype=DataType.Float)
        y = fd.define_tensor(shape=[512, 256], dtype=DataType.Float)
        w = fd.define_tensor(shape=[512, 256], dtype=DataType.Float)
        z = fd.ops.exp(fd.ops.mul(x, y))
        total = fd.ops.sum(fd.ops.relu(z), dims=[1])
        fd.add_output(fd.ops.add(fd.ops.sin(w), fd.ops.broadcast_in_dim(total, shape=[512, 256], broadcast_dims=[0])))
        fd.add_output(fd.ops.cos(x))
    shrunk = fl.shrink(fd, keep="broadcast_after_reduction")
    assert sorted(set(ops_of(shrunk.plan)) - {"expand"}) == ["add", "broadcast", "sum"]
    assert len(shrunk.plan.segments) == 2
    given = [np.random.default_rng(0).random((512, 256), np.float32) for _ in shrunk.inputs]
    (got,) = shrunk.fd.execute(given)
    expected = given[0].astype(np.float64).sum(1, keepdims=True) + given[-1]
    assert np.allclose(got, expected, rtol=1e-4)


def test_a_function_of_the_plan_decides(rope):
    shrunk = fl.shrink(*rope, keep=lambda plan: any(e.op.name == "neg" for e in plan.fusion.exprs))
    assert shrunk.ops[1] == 1
    assert ops_of(shrunk.plan) == ["neg"]


def test_no_more_plans_are_made_than_allowed(rope):
    shrunk = fl.shrink(*rope, most_plans=5)
    assert shrunk.tried <= 5


def test_options_of_the_segmenter_are_passed_on(rope):
    top_down = fl.shrink(*rope, strategy="unfused")
    assert top_down.plan.strategy == "unfused"
    assert top_down.ops[1] == 2


@pytest.mark.parametrize(
    ("keep", "error", "says"),
    [
        ("broadcast_after_reductions", InputError, "did you mean broadcast_after_reduction?"),
        (("T1", "nowhere"), InputError, "keep names nowhere, which is not a tensor of the plan"),
        (("T2", "T3"), InputError, "in the plan of the given fusion: T2 and T3 are in different segments"),
        (3, ArgumentTypeError, "two tensor names, a reason code, or a function of the plan; given 3"),
        (None, InputError, "no tensor passes between segments"),
    ],
)
def test_what_cannot_be_kept_is_said(keep, error, says):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 16], dtype=DataType.Float)
        fd.add_output(fd.ops.exp(fd.ops.exp(fd.ops.neg(x))))
    with pytest.raises(error, match=says):
        fl.shrink(fd, keep=keep)

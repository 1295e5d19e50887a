"""Plans of XLA, read from its dumps."""

import pytest

import fuser_lab as fl
from fuser_lab.compilers.xla import plan_of
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, UnsupportedError
from tests.needs import needs

HLO = """HloModule jit_f, is_scheduled=true

FileNames
1 "/home/me/model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=8 end_column=33}
2 {file_name_id=1 function_name_id=1 line=4 end_line=4 column=8 end_column=33}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %exp.1 = f32[8,4]{1,0} exponential(%p), metadata={op_name="jit(f)/exp" stack_frame_id=1}
  ROOT %neg.1 = f32[8,4]{1,0} negate(%exp.1), metadata={op_name="jit(f)/neg" stack_frame_id=2}
}

ENTRY %main (x: f32[8,4], w: bf16[4,2]) -> (f32[8,2]) {
  %x = f32[8,4]{1,0} parameter(0)
  %w = bf16[4,2]{1,0} parameter(1)
  %neg_fusion = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%fused
  %view = f32[8,4]{1,0} bitcast(%neg_fusion)
  %dot.2 = f32[8,2]{1,0} dot(%view, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %tanh.3 = f32[8,4]{1,0} tanh(%neg_fusion), metadata={op_name="jit(f)/tanh" stack_frame_id=2}
  ROOT %tuple = (f32[8,2]{1,0}, f32[8,4]{1,0}) tuple(%dot.2, %tanh.3)
}
"""
PAGE = """<script>
  const frames = [[0, "About to fuse |exp.1| into |neg.1| inside InstructionFusion with may_duplicate=1", ""],\
 [1, "Fused |exp.1| into |neg_fusion| inside InstructionFusion with may_duplicate=1", ""],\
 [1, "Not fusing |neg.1| into |tanh.3| as Fusion is not profitable. ; multi-output fusion not supported by this pass",\
 ""]];
"""


def test_the_text_of_a_module_is_a_plan():
    plan = plan_of(HLO, [PAGE])
    assert [kernel.names for kernel in plan.segments] == [("neg_fusion",), ("dot.2",), ("tanh.3",)]
    assert [kernel.opaque for kernel in plan.segments] == [False, True, False]
    assert [kernel.bytes for kernel in plan.segments] == [256, 8 * 4 * 4 + 4 * 2 * 2 + 8 * 2 * 4, 256]
    assert plan.segments[0].lines == ("model.py:3", "model.py:4")
    assert plan.segments[0].source().startswith("%fused (p: f32[8,4])")
    assert plan.successors == (frozenset({1, 2}), frozenset(), frozenset())


def test_reasons_are_those_of_xla_under_the_names_of_kernels():
    plan = plan_of(HLO, [PAGE])
    profit = plan.why("neg", "tanh")
    assert (profit.text, profit.by) == ("Fusion is not profitable.", "xla")
    product = plan.why("exp", "dot.2")
    assert (product.code, product.by) == ("opaque", "fuser_lab")
    assert plan.why("model.py:3", "exp").together


def test_a_plan_of_xla_is_read_only():
    plan = plan_of(HLO, [PAGE])
    assert not plan.is_editable
    with pytest.raises(IllegalEdit, match="a plan of xla is read-only"):
        plan.to_code()
    with pytest.raises(UnsupportedError, match="without a capture of its graph"):
        _ = plan.fusions
    with pytest.raises(UnsupportedError, match="no entry computation"):
        plan_of("HloModule nothing", [])


def test_plans_stand_side_by_side_and_lines_of_a_source_have_instructions():
    fused = plan_of(HLO, [])
    apart = plan_of(HLO.replace("%fused (p", "%other (p").replace("calls=%fused", "calls=%other"), [])
    comparison = fl.compare([fused, apart])
    first, second = comparison.figures
    assert (first.segments, first.moved, second.moved, first.predicted) == (3, 0, 0, None)
    assert first.bytes_crossing == 8 * 4 * 4
    assert [row[-1] for row in comparison.table().rows] == ["", ""]
    with pytest.raises(UnsupportedError, match="'optimal' cannot stand beside a plan that was read without a capture"):
        fl.compare([fused, "optimal"])
    with pytest.raises(UnsupportedError, match="cannot be called"):
        fl.compare([fused, apart], measure=True)
    lines = [(line.op, line.place) for line in fused.segments[0].source_lines() if line.inside]
    assert lines == [("exponential", "model.py:3"), ("negate", "model.py:4")]


def test_a_function_of_jax_has_a_plan():
    jax = needs("jax")

    def normalized(x):
        return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)

    (plan,) = fl.from_xla(normalized, jax.numpy.ones((8, 16))).plans
    primitives = {call.original for call in plan.record.calls.values()}
    assert {"sub", "div", "reduce_sum"} <= primitives
    assert len(plan.decisions) > 0
    assert all(why.text for why in (*plan.boundaries(), *plan.siblings()))
    first = normalized.__code__.co_firstlineno + 1
    assert any(f"test_xla.py:{first}" in kernel.lines for kernel in plan.segments)
    with pytest.raises(ArgumentTypeError, match="function must be a function, given 3"):
        fl.from_xla(3)

"""Calls that do less than their name says become what nvFuser's builders make of them, once sizes are known."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from tests.pages.builders import BUILT, OPERAND, bound_ops, recorded
from tests.pages.rules import definition, schedulers


@pytest.mark.parametrize("built", BUILT, ids=lambda built: f"{built.call} of {list(built.shape)}")
def test_a_row_of_the_table(built):
    assert bound_ops(built) == built.ours


@pytest.mark.parametrize("call", ["cast", "pad", "slice", "reshape"])
def test_the_definition_keeps_the_call(call):
    rows = [built for built in BUILT if built.call.startswith(f"ops.{call}(") and built.ours in {"set", OPERAND}]
    assert rows
    for built in rows:
        assert call in [expr.op.name for expr in recorded(built).exprs]


def cut(source, *inputs):
    fd = definition(source)
    return fl.segment(fd, list(inputs) or None, strategy="bottom_up")


@pytest.mark.parametrize(
    "call",
    ["ops.pad(e, [0, 0])", "ops.slice(e, [0, 0], [8, 16])", "ops.cast(e, DataType.Float)", "ops.reshape(e, [8, 16])"],
)
def test_a_softmax_through_a_call_without_effect_is_one_kernel(call):
    plan = cut(f"e = ops.exp(tensor(8, 16))\nfd.add_output(ops.div({call}, ops.sum(e, [1], keepdim=True)))")
    assert schedulers(plan) == "inner_persistent"
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
    (result,) = evaluate(plan.fusion, [x])
    np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-6)


def test_only_sizes_that_the_definition_states_make_a_slice_whole():
    source = """
x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
fd.add_output(ops.neg(ops.slice(ops.exp(x), [0, 0], [8, 16])))"""
    plan = cut(source, np.zeros((8, 16), np.float32))
    assert "slice" in [expr.op.name for expr in plan.fusion.exprs]
    whole = source.replace("[8, 16]", "[fd.ops.size(x, 0), fd.ops.size(x, 1)]")
    assert "slice" not in [expr.op.name for expr in cut(whole, np.zeros((8, 16), np.float32)).fusion.exprs]


def test_sizes_of_the_call_make_a_reshape_whole():
    source = """
x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
fd.add_output(ops.neg(ops.reshape(ops.exp(x), [8, -1])))"""
    ops = [[e.op.name for e in cut(source, np.zeros(shape, np.float32)).fusion.exprs] for shape in ((8, 16), (4, 16))]
    assert ["reshape" in names for names in ops] == [False, True]


def test_an_output_may_be_its_operand():
    plan = cut("x = ops.exp(tensor(8, 16))\nfd.add_output(ops.reshape(x, [8, 16]))\nfd.add_output(x)")
    assert schedulers(plan) == "pointwise"
    x = np.ones((8, 16), np.float32)
    for result in evaluate(plan.fusion, [x]):
        np.testing.assert_allclose(result, np.exp(x))


@pytest.mark.parametrize("last", ["alias_input=x", "stride_order=[0, 1]"])
def test_an_output_with_a_place_or_a_layout_stays_a_tensor(last):
    source = f"x = tensor(8, 16)\nfd.add_output(ops.reshape(x, [8, 16]), {last})\nfd.add_output(ops.exp(x))"
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
    plan = cut(source)
    results = evaluate(plan.fusion, [x])
    np.testing.assert_allclose(results[-1], np.exp(x), rtol=1e-6)
    assert plan.fusion.outputs[0] not in plan.fusion.inputs


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Int, DataType.Bool])
def test_equal_dtypes_are_copied_whatever_they_are(dtype):
    source = f"fd.add_output(ops.cast(tensor(4, 6, dtype=DataType.{dtype.name}), DataType.{dtype.name}))"
    assert [expr.op.name for expr in cut(source).fusion.exprs] == ["set"]

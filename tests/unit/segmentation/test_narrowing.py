"""Narrowing of tensors between segments: dtypes, the stated error, refusals, and the same plan from code and log."""

import re

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import ArgumentTypeError, IllegalEdit
from fuser_lab.interpreter import evaluate
from fuser_lab.segmentation import replay
from tests.unit.test_plan import made_by


def plan_of(compute, dtype=DataType.BFloat16):
    """Return a plan in which T3 = compute(T1 = cast(T0)), or T2, passes between a sum of rows and one of columns."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64], contiguity=True, dtype=dtype)
        wide = compute(fd, fd.ops.cast(x, DataType.Float) if dtype is not DataType.Float else x)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(wide, [dim]))
    return fl.segment(fd, options=fl.SegmenterOptions(forward_inputs=False, privatize=False))


def test_a_widened_tensor_passes_as_what_it_was_and_states_its_error():
    plan = plan_of(lambda fd, x: fd.ops.exp(x))
    now = plan.narrow("T2")
    (crossing,) = now.segmented.crossing
    assert (crossing.name, crossing.dtype, crossing.nbytes) == ("T2_lower", DataType.BFloat16, 2 * 32 * 64)
    text = now.decisions[len(now.decisions) - 1].text
    assert text.startswith("T2 passes as BFloat16, 4.10 kB instead of 8.19 kB: each element is rounded by at most 0.39")
    given = [s.materialize(n) for n, s in enumerate(plan.inputs)]
    pairs = zip(evaluate(plan.fusion, given), evaluate(now.fusion, given), strict=True)
    worst = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)
    assert worst > 0
    assert f"at most {100 * worst:.2g} % of their largest" in text
    assert made_by(now.to_python()) == now
    assert replay(plan.fusion, now.decisions, now.oracle) == now.segmented
    told = now.to_annotations()
    assert told
    assert "T2_lower" in told.plan.definition.tensors


def test_values_of_the_narrow_type_stay_exact():
    plan = plan_of(lambda fd, x: fd.ops.permute(x, [1, 0]))
    (name,) = plan.segmented.crossing_names or {"none"}
    now = plan.narrow(name)
    assert now.decisions[len(now.decisions) - 1].text.endswith("exactly, because its values have that dtype")
    given = [s.materialize(n) for n, s in enumerate(plan.inputs)]
    for a, b in zip(evaluate(plan.fusion, given), evaluate(now.fusion, given), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(("dtype", "bound"), [(DataType.Half, 2.0**-11), (DataType.BFloat16, 2.0**-8)])
def test_each_element_is_within_the_bound(dtype, bound):
    plan = plan_of(lambda fd, x: fd.ops.exp(x), DataType.Float)
    now = plan.narrow("T1", dtype)
    wide = np.exp(plan.inputs[0].materialize(0).astype(np.float64))
    found = evaluate(now.fusion, [plan.inputs[0].materialize(0)])[0]
    assert np.all(np.abs(found - wide.sum(0)) <= (bound + 1e-5) * wide.sum(0))


def test_refusals_name_the_reason():
    plain = plan_of(lambda fd, x: fd.ops.exp(x), DataType.Float)
    wide = plan_of(lambda fd, x: fd.ops.exp(x))
    for plan, arguments, says in (
        (plain, ("T1",), "T1 does not depend on a tensor that was widened from 16 bits; name a dtype"),
        (plain, ("T1", DataType.Int), "T1 is Float and cannot be narrowed to Int; choose from BFloat16, Half."),
        (plain, ("T0", DataType.Half), "T0 is a fusion input, which is in memory in any case"),
        (wide, ("T3",), "T3 does not pass between segments; choose from T2."),
    ):
        with pytest.raises(IllegalEdit, match=re.escape(says)):
            plan.narrow(*arguments)
    with pytest.raises(ArgumentTypeError, match="narrow: dtype must be a DataType"):
        plain.narrow("T1", "bfloat16")

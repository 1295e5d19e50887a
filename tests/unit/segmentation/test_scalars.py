"""Scalars in several segments: none is passed between segments; each computes its scalars from the inputs."""

import json
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Scalar, TensorView
from fuser_lab.segmentation import verify

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
STRATEGIES = ["bottom_up", "top_down", "optimal", "unfused"]


def from_two_scalars(fd):
    """(a + b) * 2 is used before and after a hint, a alone after it."""
    t = fd.define_tensor([-1, -1], contiguity=True)
    a, b = fd.define_scalar(dtype=DataType.Double), fd.define_scalar(dtype=DataType.Double)
    twice = fd.ops.mul(fd.ops.add(a, b), 2.0)
    u = fd.ops.mul(t, twice)
    v = fd.ops.segment_set(u)
    fd.add_output(fd.ops.sum(u, dims=[0]))
    fd.add_output(fd.ops.add(v, twice))
    fd.add_output(fd.ops.add(v, a))


def from_sizes(fd):
    """The number of elements divides before a hint and multiplies after it."""
    t = fd.define_tensor([-1, -1], contiguity=True)
    rows = fd.ops.size(t, 0)
    elements = fd.ops.mul(rows, fd.ops.size(t, 1))
    u = fd.ops.truediv(t, fd.ops.cast(elements, DataType.Double))
    v = fd.ops.segment_set(u)
    fd.add_output(fd.ops.sum(u, dims=[0]))
    fd.add_output(fd.ops.mul(v, elements))
    fd.add_output(fd.ops.add(v, rows))


def deciding_sizes(fd):
    """A scalar input and scalars computed from it are sizes in two segments and a factor in a third."""
    t = fd.define_tensor([-1, -1], contiguity=True)
    n = fd.define_scalar(dtype=DataType.Int)
    twice = fd.ops.mul(n, 2)
    columns = fd.ops.div(fd.ops.mul(fd.ops.size(t, 0), fd.ops.size(t, 1)), n)
    r = fd.ops.reshape(fd.ops.segment_set(fd.ops.exp(t)), [n, columns])
    fd.add_output(r)
    fd.add_output(fd.ops.full([twice], fd.ops.cast(twice, DataType.Double), DataType.Float))
    fd.add_output(fd.ops.mul(r, twice))


CASES = {
    "two scalars": (from_two_scalars, [X, 1.5, 0.25], [(3.5 * X).sum(0), 3.5 * X + 3.5, 3.5 * X + 1.5]),
    "sizes": (from_sizes, [X], [(X / 32).sum(0), X, X / 32 + 4]),
    "deciding": (
        deciding_sizes, [X, 16],
        [np.exp(X).reshape(16, 2), np.full(32, 32.0), np.exp(X).reshape(16, 2) * 32],
    ),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_segments_compute_the_scalars_that_they_need(name, strategy):
    body, inputs, expected = CASES[name]
    with fl.FusionDefinition() as fd:
        body(fd)
    plan = fl.segment(fd, inputs, strategy=strategy)
    assert len(plan.segments) > 1
    given = {v.name for v in plan.fusion.inputs}
    for segment in plan.segments:
        assert all(isinstance(tv, TensorView) for tv in segment.outputs)
        scalars = {v.name for v in segment.group.inputs if isinstance(v, Scalar)}
        assert scalars <= given, "a scalar that is not an input of the fusion would have to come from another segment"
    for got, wanted in zip(plan.run(inputs), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert verify(plan.certificate(), plan.segmented, plan.oracle).holds
    made_again = {}
    exec(plan.to_python(), made_again)
    assert made_again["plan"] == plan


def test_other_values_of_scalars_need_no_other_plan():
    with fl.FusionDefinition() as fd:
        from_two_scalars(fd)
    plan = fl.segment(fd, [X, 1.5, 0.25])
    assert plan.segments[0].source() == fl.segment(fd, [X, -3.0, 1.0]).segments[0].source()
    np.testing.assert_allclose(plan.run([X, -3.0, 1.0])[1], -4 * X - 4, rtol=1e-5)


def test_a_scalar_of_two_scalars_stands_in_each_segment_that_reads_it():
    with fl.FusionDefinition() as fd:
        from_two_scalars(fd)
    plan = fl.segment(fd, [X, 1.5, 0.25])
    products = [[e.name for e in s.exprs if not e.tensor_outputs and e.op.name == "mul"] for s in plan.segments]
    assert [len(names) for names in products] == [1, 1, 0]
    assert products[0] == products[1]


def test_sizes_of_a_tensor_that_no_kernel_reads():
    cases = json.loads((Path(__file__).parents[2] / "data" / "segmentation_cases.json").read_text())
    (case,) = (c for c in cases if c["id"] == "reshape_cross_segment_extent")
    with fl.FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    shapes = [(4, 6, 8), (4, 2, 6, 4)]
    inputs = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)]
    plan = fl.segment(fd, inputs)
    assert len(plan.segments) == case["segments"]
    assert all("T1" not in [tv.name for tv in s.inputs] for s in plan.segments)
    got = plan.run(inputs)
    np.testing.assert_allclose(got[0], inputs[0].sum(axis=(0, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[1], inputs[0].reshape(shapes[1]).transpose(0, 2, 1, 3))
    # Other sizes of the second input give another plan.
    other = [inputs[0], np.zeros((2, 2, 6, 8), np.float32)]
    np.testing.assert_array_equal(fd.execute(other)[1], inputs[0].reshape(2, 2, 6, 8).transpose(0, 2, 1, 3))

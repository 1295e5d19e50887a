"""Results that are other shapes of an intermediate lie in the memory that the intermediate is written to."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.plan import Plan

torch = needs("torch")

F = DataType.Float


def grouped(*, twice: bool = False, turned: bool = False) -> Plan:
    """Rows of [4, 6, 10] less their mean, seen as [4, 60]: once, twice, or with axes turned before."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4, 6, 10], contiguity=True, dtype=F)
        average = fd.ops.mul(fd.ops.sum(x, dims=[2], keepdim=True), 0.1)
        rest = fd.ops.sub(x, fd.ops.expand(average, shape=[4, 6, 10]))
        if turned:
            rest = fd.ops.permute(rest, dims=[1, 0, 2])
        fd.add_output(fd.ops.reshape(rest, new_shape=[6, 40] if turned else [4, 60]))
        if twice:
            fd.add_output(fd.ops.reshape(rest, new_shape=[24, 10]))
    return fl.segment(fd)


def expected(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) - x.astype(np.float64).mean(axis=2, keepdims=True)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, 6, 10)).astype(np.float32)


def evaluated(plan: Plan, x: np.ndarray) -> int:
    return sum(step.runs and step.generated is None for step in plan.prepared("cpu").steps([x]))


def test_no_segment_runs_for_the_other_shape(x):
    plan = grouped()
    assert [s.scheduler.value for s in plan.segments] == ["inner_persistent", "expr_eval"]
    assert evaluated(plan, x) == 0
    assert plan.prepared("cpu").storage_bytes == 0
    (result,) = plan.run([x])
    np.testing.assert_allclose(result, expected(x).reshape(4, 60), atol=1e-6)


def test_the_second_shape_of_an_intermediate_is_a_copy(x):
    plan = grouped(twice=True)
    first, second = plan.run([x])
    assert not np.shares_memory(first, second)
    np.testing.assert_allclose(first, expected(x).reshape(4, 60), atol=1e-6)
    np.testing.assert_allclose(second, expected(x).reshape(24, 10), atol=1e-6)


def test_axes_that_are_turned_are_moved(x):
    (result,) = grouped(turned=True).run([x])
    np.testing.assert_allclose(result, expected(x).transpose(1, 0, 2).reshape(6, 40), atol=1e-6)


def test_arrays_of_the_caller_are_written_anew_in_each_run(x):
    prepared = grouped().prepared("cpu")
    inputs = [torch.from_numpy(x * factor) for factor in (1, 2, 3, 4)]
    outs = [torch.full((4, 60), torch.nan) for _ in inputs]
    for given, out in zip(inputs, outs, strict=True):
        assert prepared.run([given], out=[out])[0] is out
    for given, out in zip(inputs, outs, strict=True):
        np.testing.assert_allclose(out, expected(given.numpy()).reshape(4, 60), atol=1e-6)


def test_an_array_of_the_caller_with_other_strides_is_filled(x):
    out = np.full((4, 120), np.nan, np.float32)[:, ::2]
    grouped().prepared("cpu").run([x], out=[out])
    np.testing.assert_allclose(out, expected(x).reshape(4, 60), atol=1e-6)


def test_an_array_that_overlaps_the_input_is_filled_after_the_input_was_read(x):
    wanted = expected(x).reshape(4, 60)
    grouped().prepared("cpu").run([x], out=[x.reshape(4, 60)])
    np.testing.assert_allclose(x.reshape(4, 60), wanted, atol=1e-6)

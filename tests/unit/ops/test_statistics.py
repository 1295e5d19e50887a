"""Welford, var and var_mean: values, text, segmentation and lowering."""

import numpy as np
import pytest
from needs import needs

from fuser_lab import FusionDefinition
from fuser_lab.api.functions import example, segment
from fuser_lab.codegen.decompose import decompose
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir.printer import math_text
from fuser_lab.segmentation import SegmenterOptions

torch = needs("torch")


def data(shape, offset=0.0, dtype=np.float32):
    return (np.random.default_rng(0).normal(size=shape) + offset).astype(dtype)


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("correction", [0, 1, 500])
def test_var_mean_is_torchs(dims, correction):
    x = data((6, 7, 9), 10)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1, -1], True)
        for result in (*fd.ops.var_mean(t, dims, correction), fd.ops.var(t, dims, correction, True)):
            fd.add_output(result)
    variance, mean, kept = fd.execute([x])
    count = int(np.prod([x.shape[d] for d in dims]))
    with np.errstate(all="ignore"):
        squares = ((x - x.mean(tuple(dims), keepdims=True)) ** 2).sum(tuple(dims))
        wanted = squares / np.float32(max(count - correction, 0))
    np.testing.assert_allclose(variance, wanted, rtol=1e-4)
    np.testing.assert_allclose(np.squeeze(kept, tuple(dims)), wanted, rtol=1e-4)
    np.testing.assert_allclose(mean, x.mean(tuple(dims)), rtol=1e-5)
    if correction < count:
        theirs = torch.var_mean(torch.from_numpy(x), dims, correction=correction)
        np.testing.assert_allclose(variance, theirs[0].numpy(), rtol=1e-4)


def test_a_large_mean_does_not_spoil_the_variance():
    x = data((4, 3000), 3e4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 3000], True)
        fd.add_output(fd.ops.welford(t, [1])[1])
    exact = ((x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)) ** 2).sum(1)
    np.testing.assert_allclose(fd.execute([x])[0], exact, rtol=1e-4)


def test_welford_counts():
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], True)
        mean, square, number = fd.ops.welford(t, [0])
        assert number.dtype is DataType.Int
        for result in (mean, square, number):
            fd.add_output(result)
    x = data((11, 5))
    mean, square, number = fd.execute([x])
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(square, x.var(0) * 11, rtol=1e-5)
    assert number.dtype == np.int64
    assert (number == 11).all()
    assert mean.shape == number.shape == (5,)


def test_complex_variance_is_that_of_both_parts():
    x = (data((5, 40)) + 1j * data((5, 40), 3)).astype(np.complex64)
    with FusionDefinition() as fd:
        t = fd.define_tensor([5, 40], True, DataType.ComplexFloat)
        for result in fd.ops.var_mean(t, [1], correction=0):
            fd.add_output(result)
    variance, mean = fd.execute([x])
    assert variance.dtype == np.float32
    np.testing.assert_allclose(variance, x.var(1), rtol=1e-4)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-4, atol=1e-5)


def test_text_names_the_three_results():
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 5], True)
        mean, square, _ = fd.ops.welford(t, [1])
        fd.add_output(fd.ops.add(mean, square))
    text = math_text(fd.fusion)
    for word in ("(Avg),", "(Var),", "(Count)\n", "Welford", "T0_g_float"):
        assert word in text
    assert ", _ = fd.ops.welford(" in repr(fd)


def test_a_layer_norm_is_one_persistent_segment():
    fd, inputs = example("layer_norm")
    plan = segment(fd, inputs)
    assert [s.scheduler for s in plan.segments] == [SchedulerType.INNER_PERSISTENT]
    assert "welford" not in {e.op.name for e in plan.segments[0].exprs}
    kept = segment(fd, inputs, options=SegmenterOptions(welford=False))
    assert [s.scheduler for s in kept.segments] == [SchedulerType.INNER_PERSISTENT]
    assert "welford" in {e.op.name for e in kept.segments[0].exprs}
    for got, wanted in zip(plan.run(inputs), fd.reference(inputs), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(wanted, np.float32), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16])
def test_kernels_have_no_welford_and_the_results_keep_their_names(dtype):
    with FusionDefinition() as fd:
        t = fd.define_tensor([8, 16], True, dtype)
        results = fd.ops.welford(t, [1])
        for result in results:
            fd.add_output(result)
    new = decompose(fd.fusion)
    assert [tv.name for tv in new.outputs] == [tv.name for tv in fd.fusion.outputs]
    assert [tv.dtype for tv in new.outputs] == [tv.dtype for tv in fd.fusion.outputs]
    assert "welford" not in {e.op.name for e in new.exprs}
    assert decompose(new) is new
    names = [e.name for e in new.exprs]
    assert len(set(names)) == len(names)


def test_lines_of_a_kernel_lead_to_the_welford():
    with FusionDefinition() as fd:
        t = fd.define_tensor([8, 16], True)
        mean, square, _ = fd.ops.welford(t, [1])
        fd.add_output(mean)
        fd.add_output(square)
    plan = segment(fd, [data((8, 16))])
    from tests.kernels import generate

    kernel = generate(plan.segments[0].fusion, plan.segments[0].scheduler, "cpu")
    name = fd.fusion.exprs[0].name
    assert set(kernel.line_origins) == {None, name}
    assert len(kernel.lines_of(name)) > 3

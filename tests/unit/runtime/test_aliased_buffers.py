"""Results and intermediates that are views of a stored tensor share its memory."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.plan import Plan

torch = needs("torch")

F = DataType.Float


def grouped(*, twice: bool = False, turned: bool = False) -> Plan:
    """Rows of [4, 6, 10] minus their mean, viewed as [4, 60]: once, twice, or with axes permuted first."""
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
    return sum(step.runs and step.generated is None for step in plan.prepare("cpu").steps([x]))


def test_no_segment_runs_for_the_other_shape(x):
    plan = grouped()
    assert [s.scheduler.value for s in plan.segments] == ["inner_persistent", "expr_eval"]
    assert evaluated(plan, x) == 0
    assert plan.prepare("cpu").storage_bytes == 0
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
    prepared = grouped().prepare("cpu")
    inputs = [torch.from_numpy(x * factor) for factor in (1, 2, 3, 4)]
    outs = [torch.full((4, 60), torch.nan) for _ in inputs]
    for given, out in zip(inputs, outs, strict=True):
        assert prepared.run([given], out=[out])[0] is out
    for given, out in zip(inputs, outs, strict=True):
        np.testing.assert_allclose(out, expected(given.numpy()).reshape(4, 60), atol=1e-6)


def test_an_array_of_the_caller_with_other_strides_is_filled(x):
    out = np.full((4, 120), np.nan, np.float32)[:, ::2]
    grouped().prepare("cpu").run([x], out=[out])
    np.testing.assert_allclose(out, expected(x).reshape(4, 60), atol=1e-6)


def test_an_array_that_overlaps_the_input_is_filled_after_the_input_was_read(x):
    wanted = expected(x).reshape(4, 60)
    grouped().prepare("cpu").run([x], out=[x.reshape(4, 60)])
    np.testing.assert_allclose(x.reshape(4, 60), wanted, atol=1e-6)


def test_other_shapes_between_segments_lie_in_one_memory():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(shape=shape, contiguity=True, dtype=F) for shape in ([8, 16], [2, 64]))
        square = fd.ops.matmul(a, fd.ops.permute(a, dims=[1, 0]))
        column = fd.ops.reshape(square, new_shape=[64, 1])
        fd.add_output(fd.ops.exp(fd.ops.reshape(fd.ops.neg(square), new_shape=[4, 16])))
        fd.add_output(fd.ops.neg(fd.ops.matmul(b, column)))
    plan = fl.segment(fd)
    prepared = plan.prepare("cpu")
    rng = np.random.default_rng(1)
    views = [s for s in plan.segments if {e.op.name for e in s.exprs} == {"reshape", "broadcast"}]
    assert views, "a separate segment computes the column"
    for _ in range(3):
        x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (2, 64)))
        first, second = prepared.run([x, y])
        np.testing.assert_allclose(first, np.exp(-(x @ x.T)).reshape(4, 16), rtol=1e-4)
        np.testing.assert_allclose(second, -(y @ (x @ x.T).reshape(64, 1)), rtol=1e-4)
    running = [step.runs for step in prepared.steps()]
    assert [running[s.index] for s in views] == [False] * len(views)


def test_a_shape_of_what_was_overwritten_since_is_not_seen():
    # The memory of the first product is reused only after the last read of its view.
    with FusionDefinition() as fd:
        a = fd.define_tensor(shape=[8, 8], contiguity=True, dtype=F)
        first = fd.ops.matmul(a, a)
        other = fd.ops.reshape(first, new_shape=[4, 16])
        later = fd.ops.matmul(fd.ops.matmul(a, first), a)
        fd.add_output(fd.ops.neg(later))
        fd.add_output(fd.ops.neg(fd.ops.matmul(fd.ops.reshape(later, new_shape=[16, 4]), other)))
    a = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
    got = fl.segment(fd).run([a])
    later = a @ (a @ a) @ a
    np.testing.assert_allclose(got[0], -later, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[1], -(later.reshape(16, 4) @ (a @ a).reshape(4, 16)), rtol=1e-3, atol=1e-2)


def heads() -> Plan:
    """Queries, keys and values of [2, 5, 3 * 4 * 8], heads before tokens, each scaled by a separate kernel."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[2, 5, 96], contiguity=False, dtype=F)
        parts = fd.ops.permute(fd.ops.reshape(x, new_shape=[2, 5, 3, 4, 8]), dims=[2, 0, 3, 1, 4])
        for part in range(3):
            piece = fd.ops.slice(parts, [part, 0, 0, 0, 0], [part + 1, 2, 4, 5, 8])
            scaled = fd.ops.mul(fd.ops.squeeze(piece, [0]), float(part + 2))
            fd.add_output(fd.ops.stride_order(fd.ops.segment_set(scaled), stride_order=[3, 2, 1, 0]))
    return fl.segment(fd)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("padding", [0, 7])
def test_kernels_read_views_of_an_input_where_they_lie(library, padding):
    plan, random = heads(), np.random.default_rng(1)
    assert "expr_eval" in [s.scheduler.value for s in plan.segments]
    prepared = plan.prepare("cpu")
    for _ in range(3):  # the second run replaces the addresses in the arguments of the first
        x = random.standard_normal((2, 5, 96 + padding), np.float32)[..., padding:]
        given = x if library == "numpy" else torch.from_numpy(x)
        results = prepared.run([given])
        parts = x.reshape(2, 5, 3, 4, 8).transpose(2, 0, 3, 1, 4)
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, parts[number] * np.float32(number + 2))
    assert not any(step.runs and step.generated is None for step in prepared.steps([given]))
    assert prepared.storage_bytes == 0


def test_results_of_one_segment_lie_in_the_memory_of_different_intermediates(x):
    with FusionDefinition() as fd:
        given = fd.define_tensor(shape=[4, 6, 10], contiguity=True, dtype=F)
        for factor in (2.0, 3.0):
            fd.add_output(fd.ops.reshape(fd.ops.mul(given, factor), new_shape=[4, 60]))
    names = ["T1", "T3"], ["T2", "T4"]
    plan = fl.segment(fd, strategy=lambda fusion, oracle: names, passes=())
    assert [s.scheduler.value for s in plan.segments] == ["pointwise", "expr_eval"]
    assert evaluated(plan, x) == 0
    assert plan.prepare("cpu").storage_bytes == 0
    for result, factor in zip(plan.run([x]), (2.0, 3.0), strict=True):
        np.testing.assert_array_equal(result, x.reshape(4, 60) * np.float32(factor))


def test_a_segment_runs_if_two_of_its_results_are_shapes_of_one_intermediate(x):
    with FusionDefinition() as fd:
        doubled = fd.ops.mul(fd.define_tensor(shape=[4, 6, 10], contiguity=True, dtype=F), 2.0)
        for shape in ([4, 60], [24, 10]):
            fd.add_output(fd.ops.reshape(doubled, new_shape=shape))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1"], ["T2", "T3"]], passes=())
    assert evaluated(plan, x) == 1
    first, second = plan.run([x])
    assert not np.shares_memory(first, second)
    for result in (first, second):
        np.testing.assert_array_equal(result.ravel(), x.ravel() * np.float32(2))


def test_a_view_that_the_array_library_reads_is_a_copy():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[6, 10], contiguity=True, dtype=F)
        part = fd.ops.segment_set(fd.ops.slice(x, [1, 2], [5, 10]))
        fd.add_output(fd.ops.argsort(part, 1))
        fd.add_output(fd.ops.neg(part))
    x = np.random.default_rng(2).standard_normal((6, 10)).astype(np.float32)
    plan = fl.segment(fd)
    for _ in range(2):
        order, negated = plan.run([x])
        np.testing.assert_array_equal(order, x[1:5, 2:].argsort(1))
        np.testing.assert_array_equal(negated, -x[1:5, 2:])


def test_torch_adds_up_and_looks_up_in_its_tensors():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[3, 5000], contiguity=True, dtype=F)
        places = fd.define_tensor(shape=[3, 7], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.cumsum(x, 1))
        fd.add_output(fd.ops.gather(x, places, 1))
    x = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
    places = torch.randint(5000, (3, 7))
    sums, found = fl.segment(fd).run([x, places])
    assert torch.equal(sums, x.cumsum(1))  # NumPy sums Floats one by one, which is less accurate
    assert torch.equal(found, x.gather(1, places))


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_kernels_read_parts_of_results_and_intermediates_where_they_are(library, returned):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 16], contiguity=True, dtype=F)
        square = fd.ops.segment_set(fd.ops.mul(x, x))
        part = fd.ops.segment_set(fd.ops.permute(fd.ops.slice(square, [1, 3], [7, 15]), [1, 0]))
        # The memory of the square is not used again before the last read of its part.
        others = fd.ops.segment_set(fd.ops.neg(fd.ops.segment_set(fd.ops.exp(x))))
        fd.add_output(fd.ops.mul(fd.ops.slice(fd.ops.permute(others, [1, 0]), [3, 1], [15, 7]), part))
        if returned:
            fd.add_output(square)
    plan, random = fl.segment(fd), np.random.default_rng(1)
    views = [s.index for s in plan.segments if s.scheduler.value == "expr_eval"]
    assert len(views) == 2, "separate segments make the parts"
    prepared = plan.prepare("cpu")
    for _ in range(3):  # the second run replaces the addresses in the arguments of the first
        x = random.standard_normal((8, 16), np.float32)
        first, *rest = prepared.run([x if library == "numpy" else torch.from_numpy(x)])
        np.testing.assert_allclose(first, (-np.exp(x) * x * x)[1:7, 3:15].T, rtol=1e-5)
        for result in rest:
            np.testing.assert_array_equal(result, x * x)
    assert not any(prepared.steps()[index].runs for index in views)

"""Scans and sorts against torch: values, dtypes, ties, NaN, initial values, sizes given by scalar inputs."""

import numpy as np
import pytest
from needs import needs

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ops import OPS
from fuser_lab.runtime.arrays import from_numpy_as
from tests.unit.builders import apply, describe

torch = needs("torch")

D = DataType
REAL = ("Double", "Float", "Half", "BFloat16", "Int", "Int32", "Bool")
TOLERANCE = {"Double": 1e-12, "Float": 1e-5, "Half": 2e-3, "BFloat16": 2e-2, "ComplexFloat": 1e-5}
SPECIAL = [3.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, -1.0, 3.0]


def data(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if D[dtype] is D.Bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if D[dtype].is_integral:
        return rng.integers(-4, 5, shape).astype(D[dtype].numpy)
    return rng.uniform(-2, 2, shape).astype(D[dtype].numpy)


def as_torch(x):
    return from_numpy_as("torch", np.ascontiguousarray(x))


def near(got, wanted, dtype):
    assert got.shape == tuple(wanted.shape)
    assert got.dtype == D[dtype].numpy
    other = wanted.to(torch.complex128 if D[dtype].is_complex else torch.float64).numpy()
    tolerance = TOLERANCE.get(dtype, 0)
    np.testing.assert_allclose(got.astype(other.dtype), other, rtol=tolerance, atol=4 * tolerance)


SCANS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummin": lambda x, dim: torch.cummin(x, dim).values,
    "cummax": lambda x, dim: torch.cummax(x, dim).values,
    "logcumsumexp": torch.logcumsumexp,
}


def in_float64(x):
    """An exact result: integers and booleans do not overflow at these sizes."""
    return torch.from_numpy(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))


@pytest.mark.parametrize("name", sorted(SCANS))
class TestScans:
    @pytest.mark.parametrize("dtype", REAL)
    def test_values(self, name, dtype):
        if name == "logcumsumexp" and not D[dtype].is_float:
            with pytest.raises(DefinitionError, match="floating point numbers are required"):
                apply(name, data((3,), dtype), 0)
            return
        for shape, dim in (((3, 4, 5), 0), ((3, 4, 5), 1), ((3, 4, 5), -1), ((7,), 0), ((0, 3), 0), ((3, 0), 0)):
            x = data(shape, dtype)
            want = SCANS[name](in_float64(x), dim)
            near(apply(name, x, dim), want.bool() if dtype == "Bool" else want, dtype)

    def test_dtype_is_kept(self, name):
        x = np.full((4,), 1 << 10 if name == "logcumsumexp" else 1 << 30, np.int32)
        x = x.astype(np.float16) if name == "logcumsumexp" else x
        got = apply(name, x, 0)
        assert got.dtype == x.dtype
        if name == "cumsum":
            np.testing.assert_array_equal(got, torch.cumsum(torch.from_numpy(x), 0, dtype=torch.int32))

    def test_nan_stays(self, name):
        x = np.array(SPECIAL, np.float32)
        np.testing.assert_array_equal(apply(name, x, 0), SCANS[name](torch.from_numpy(x), 0))

    @pytest.mark.parametrize("init", [2.0, -0.5])
    def test_an_initial_value_stands_before_the_first_element(self, name, init):
        x = data((3, 4), "Float")
        with FusionBuilder() as fd:
            a, first = fd.define_tensor([-1, -1]), fd.define_scalar(None, D.Double)
            fd.add_output(getattr(fd.ops, name)(a, 1, init=first))
            fd.add_output(getattr(fd.ops, name)(a, 1, fd.define_scalar(init)))
        got = evaluate(bind(fd.fusion, [describe(x), init]).fusion, [x, init])
        want = SCANS[name](torch.cat([torch.full((3, 1), init), torch.from_numpy(x)], 1), 1)[:, 1:]
        for found in got:
            np.testing.assert_allclose(found, want, rtol=1e-6)

    @pytest.mark.parametrize("dtype", [*REAL, "UInt64"])
    def test_torch_evaluates_as_numpy(self, name, dtype):
        dtype = "Float" if name == "logcumsumexp" and not D[dtype].is_float else dtype
        x = np.abs(data((3, 6), "Int")).astype(np.uint64) if dtype == "UInt64" else data((3, 6), dtype)
        if dtype == "UInt64":
            x[0, 0] = (1 << 64) - 1
        first = x.dtype.type(1)
        for init in ((), (first,)):
            got = OPS[name].library(torch, as_torch(x), *(v.item() for v in init), dim=1)
            assert got.dtype == as_torch(x).dtype
            want = OPS[name].reference(x if dtype not in TOLERANCE else x.astype(np.float64), *init, dim=1)
            wide = got.to(torch.float64) if dtype in TOLERANCE else got
            allowed = 3 * TOLERANCE.get(dtype, 0)
            np.testing.assert_allclose(wide.numpy().astype(want.dtype), want, rtol=allowed, atol=allowed)

    def test_along_an_expanded_axis_elements_differ(self, name):
        x = data((3, 1), "Float")
        with FusionBuilder() as fd:
            a = fd.define_tensor([3, 1])
            fd.add_output(getattr(fd.ops, name)(fd.ops.expand(a, [3, 4]), 1))
            fd.add_output(getattr(fd.ops, name)(a, 1))
        wide, copied = evaluate(bind(fd.fusion, [describe(x)]).fusion, [x])
        np.testing.assert_allclose(wide, SCANS[name](torch.from_numpy(x).expand(3, 4), 1), rtol=1e-6)
        np.testing.assert_array_equal(copied, x)
        assert [e.op.name for e in fd.fusion.exprs] == ["expand", name, "set"]


def test_complex_sums_and_products():
    x = (data((3, 5), "Float") + 1j * data((3, 5), "Float", 1)).astype(np.complex64)
    for name in ("cumsum", "cumprod"):
        near(apply(name, x, 1), SCANS[name](torch.from_numpy(x), 1), "ComplexFloat")


@pytest.mark.parametrize("dtype", [*REAL, "UInt64"])
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sorts_keep_ties_in_order(dtype, descending):
    x = np.abs(data((4, 40), "Int")).astype(D[dtype].numpy)
    for dim in (0, 1, -1):
        got = apply("argsort", x, dim, descending=descending, stable=True)
        assert got.dtype == np.int64
        wide = torch.from_numpy(x.astype(np.float64))
        np.testing.assert_array_equal(got, torch.argsort(wide, dim=dim, descending=descending, stable=True))
        torch_found = OPS["argsort"].library(torch, as_torch(x), dim=dim, descending=descending, stable=True)
        np.testing.assert_array_equal(got, torch_found)


@pytest.mark.parametrize("dtype", ["Double", "Float", "Half", "BFloat16"])
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(dtype, descending):
    x = np.array(SPECIAL).astype(D[dtype].numpy)
    got = apply("argsort", x, 0, descending, True)
    np.testing.assert_array_equal(got, torch.argsort(as_torch(x), dim=0, descending=descending, stable=True))
    values, indices = topk(x, 5, largest=descending)
    want = torch.sort(as_torch(x), dim=0, descending=descending, stable=True)
    np.testing.assert_array_equal(values.astype(np.float64), want.values[:5].to(torch.float64))
    np.testing.assert_array_equal(indices, want.indices[:5])


def topk(x, k, **options):
    """The results for a symbolic count."""
    with FusionBuilder() as fd:
        a = fd.define_tensor([-1 if n != 1 else 1 for n in x.shape], dtype=fd_dtype(x))
        values, indices = fd.ops.topk(a, fd.define_scalar(None, D.Int), **options)
        fd.add_output(values)
        fd.add_output(indices)
    return evaluate(bind(fd.fusion, [describe(x), k]).fusion, [x, k])


def fd_dtype(x):
    from fuser_lab.dtypes import from_numpy

    return from_numpy(x.dtype)


@pytest.mark.parametrize("dtype", [*REAL, "UInt64"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, -1])
def test_topk(dtype, largest, dim):
    x = np.abs(data((9, 9), "Int")).astype(np.uint64) if dtype == "UInt64" else data((9, 9), dtype)
    for k in (0, 1, 4, 9):
        values, indices = topk(x, k, dim=dim, largest=largest, sorted=True)
        want = torch.topk(torch.from_numpy(x.astype(np.float64)), k, dim, largest, True)
        assert values.dtype == x.dtype
        assert indices.dtype == np.int64
        np.testing.assert_array_equal(values.astype(np.float64), want.values)
        # With ties several results are right: each position must hold its value, and none may occur twice.
        np.testing.assert_array_equal(np.take_along_axis(x, indices, dim), values)
        assert (np.diff(np.sort(indices, axis=dim), axis=dim) > 0).all()
        found = OPS["topk"].library(torch, as_torch(x), k=k, dim=dim, largest=largest, sorted=True)
        np.testing.assert_array_equal(found[0].to(torch.float64), want.values)


def test_a_count_outside_the_axis():
    x = data((3, 4), "Float")
    for k in (5, -1):
        with pytest.raises(InputError, match=f"k is {k}, out of range for axis 1 of size 4"):
            topk(x, k)
        with FusionBuilder() as fd, pytest.raises(DefinitionError, match="topk: k .* range"):
            fd.ops.topk(fd.define_tensor([3, 4]), fd.define_scalar(k))


def test_segments_without_a_kernel_run_on_the_library_of_the_inputs():
    with FusionDefinition() as fd:
        x, k = fd.define_tensor([-1, -1], True), fd.define_scalar(None, D.Int)
        values, indices = fd.ops.topk(fd.ops.neg(x), fd.ops.add(k, 1), sorted=True)
        fd.add_output(fd.ops.cumsum(values, 1))
        fd.add_output(fd.ops.add(fd.ops.argsort(indices, 1, stable=True), 1))
    x = data((5, 8), "Float")
    want = torch.topk(-torch.from_numpy(x), 3, sorted=True)
    for given in (x, torch.from_numpy(x)):
        sums, order = fd.execute([given, 2])
        assert type(sums) is type(given)
        np.testing.assert_allclose(sums, torch.cumsum(want.values, 1), rtol=1e-6)
        np.testing.assert_array_equal(order, torch.argsort(want.indices, dim=1, stable=True) + 1)
    segments = segment(fd, [x, 2]).segments
    held = [
        (expr.op.name, bool(evaluated_because(one.fusion, one.scheduler)))
        for one in segments for expr in one.fusion.exprs if expr.kind.is_reserved
    ]
    assert sorted(held) == [("argsort", True), ("cumsum", True), ("topk", True)]

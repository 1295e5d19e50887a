"""JAX arrays in, JAX arrays out, on the CPU."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import InputError

jax = needs("jax")


def scaled_rows(dtype: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        y = fd.ops.cast(x, dtype=DataType.Float)
        total = fd.ops.sum(y, dims=[1], keepdim=True)
        fd.add_output(fd.ops.cast(fd.ops.mul(y, total), dtype=dtype))
        fd.add_output(fd.ops.permute(x, dims=[1, 0]))
    return fd


def given(name: str) -> "jax.Array":
    return jax.numpy.asarray(np.random.default_rng(0).standard_normal((5, 33)), dtype=name)


@pytest.mark.parametrize(("dtype", "name"), [(DataType.Float, "float32"), (DataType.BFloat16, "bfloat16")])
def test_results_are_jax_arrays(dtype, name):
    x = given(name)
    product, turned = fl.segment(scaled_rows(dtype), [x]).run([x])
    assert isinstance(product, jax.Array)
    assert product.dtype == turned.dtype == x.dtype
    exact = np.asarray(x, np.float64)
    rounding = 2.0**-7 if name == "bfloat16" else 1e-6
    expected = exact * exact.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(product, np.float64), expected, rtol=rounding, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(turned, np.float64), exact.T)


def test_plans_on_jax_arrays_are_timed_beside_jax():
    x = given("float32")
    peer = jax.jit(lambda x: (x * x.sum(1, keepdims=True), x.T))
    times = fl.time([fl.segment(scaled_rows(DataType.Float), [x])], [x], peers={"jax": peer}, seconds=0.1)
    assert all(row.median > 0 for row in times.rows)
    assert {row.plan for row in times.rows} == {"bottom-up", "jax"}


def test_jax_arrays_as_outputs_are_refused():
    x = given("float32")
    plan = fl.segment(scaled_rows(DataType.Float), [x])
    with pytest.raises(InputError, match="of type ArrayImpl, cannot be written to"):
        plan.prepare("cpu").run([x], out=[jax.numpy.zeros_like(x), None])

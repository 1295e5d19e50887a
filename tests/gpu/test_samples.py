"""Every legal call of the registry on a real GPU, with torch tensors, against the reference."""

import warnings
from typing import Any

import numpy as np
import pytest
from needs import needs

from fuser_lab.errors import EvaluationWarning
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from fuser_lab.runtime.plan.generator import reference_form
from tests import agreement
from tests.unit.ops.sampling import ENTRIES, build

torch = needs("torch")
pytestmark = pytest.mark.gpu


def on_gpu(x: np.ndarray) -> Any:
    return from_numpy_as("torch", np.ascontiguousarray(x).reshape(x.shape)).cuda()


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_agrees_with_the_reference(name: str) -> None:
    for sample in ENTRIES[name].samples:
        built = build(sample)
        fusion = agreement.bound(built.fd, built.inputs)
        tolerance = agreement.tolerance_of(fusion)
        given = [on_gpu(x) for x in built.inputs]
        # Without a seed, each run draws new numbers.
        wanted = evaluate(*reference_form(fusion, given, ahead=True))
        with warnings.catch_warnings():
            # Torch or NumPy evaluates segments without a kernel; their values must be right too.
            warnings.simplefilter("ignore", EvaluationWarning)
            got = built.fd.execute(given)
        for tv, a, b in zip(fusion.outputs, got, wanted, strict=True):
            agreement.close(to_numpy(a), b, tolerance, f"{sample.call}: {tv.name}")
            # Without inputs there is no tensor to follow: such results are NumPy arrays.
            assert not built.inputs or a.is_cuda, f"{sample.call}: {tv.name} is not on the GPU"


def test_a_scalar_tensor_on_the_cpu_beside_tensors_on_the_gpu() -> None:
    from fuser_lab import DataType, FusionDefinition

    with FusionDefinition() as fd:
        scale = fd.define_tensor([], dtype=DataType.Float, is_cpu=True)
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, scale))
    x_gpu = torch.randn(8, 32, device="cuda")
    (got,) = fd.execute([torch.tensor(3.0), x_gpu])
    assert got.device == x_gpu.device
    torch.testing.assert_close(got, 3 * x_gpu)


@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_drawn_numbers_continue_from_the_seed_of_torch(name: str) -> None:
    from fuser_lab import DataType, FusionDefinition

    def define(*, seeded: bool) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([5, 9], contiguity=True, dtype=DataType.Float)
            given = {}
            if seeded:
                given = {"rng_seed": fd.define_scalar(DataType.Int), "rng_offset": fd.define_scalar(DataType.Int)}
            drawn = getattr(fd.ops, name)(0.3, 1.7, [5, 9], dtype=DataType.Float, **given)
            fd.add_output(fd.ops.mul(x, drawn))
        return fd

    drawing, stateless = define(seeded=False), define(seeded=True)
    x = torch.randn(5, 9, device="cuda")
    for seed in (0, 1234, 2**62 + 1):
        torch.manual_seed(seed)
        for offset in range(0, 40, 4):
            (got,), (wanted,) = drawing.execute([x]), stateless.execute([x, seed, offset])
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", ["ComplexFloat", "ComplexDouble"])
@pytest.mark.parametrize("shape", [(4, 4096), (4096, 4), (3, 70000)])
def test_complex_sums_have_kernels(dtype: str, shape: tuple[int, int]) -> None:
    from fuser_lab import DataType, FusionDefinition

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType[dtype])
        scale = fd.define_scalar(None, DataType[dtype])
        fd.add_output(fd.ops.sum(fd.ops.mul(x, scale), [1]))
        fd.add_output(fd.ops.sum(x, [0]))
    rng = np.random.default_rng(0)
    x_cpu = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(DataType[dtype].numpy)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvaluationWarning)
        got = fd.execute([on_gpu(x_cpu), 2 - 3j])
    tolerance = 1e-3 if dtype == "ComplexFloat" else 1e-10
    for a, b in zip(got, ((x_cpu * (2 - 3j)).sum(1), x_cpu.sum(0)), strict=True):
        assert a.is_cuda
        np.testing.assert_allclose(to_numpy(a), b, rtol=tolerance, atol=tolerance * 100)


@pytest.mark.parametrize("dtype", ["Half", "BFloat16", "Float8_e4m3fn", "Float8_e5m2", "UInt64", "Int32", "Bool"])
def test_scalar_inputs_of_every_dtype(dtype: str) -> None:
    from fuser_lab import DataType, FusionDefinition

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType[dtype])
        scalar = fd.define_scalar(None, DataType[dtype])
        fd.add_output(fd.ops.where(fd.ops.eq(x, scalar), x, x))
        fd.add_output(fd.ops.eq(x, scalar))
    x_cpu = np.array([0, 1, 1, 0, 1]).astype(DataType[dtype].numpy)
    value = True if dtype == "Bool" else 1 if DataType[dtype].is_integral else 1.0
    same, equal = fd.execute([on_gpu(x_cpu), value])
    np.testing.assert_array_equal(to_numpy(same), x_cpu)
    np.testing.assert_array_equal(to_numpy(equal), [False, True, True, False, True])

"""Kernels without reductions on a GPU: dtypes, shapes, views and addresses with and without wide accesses."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

torch = needs("torch")
pytestmark = pytest.mark.gpu

DTYPES = {
    "float64": DataType.Double, "float32": DataType.Float, "float16": DataType.Half, "bfloat16": DataType.BFloat16,
    "int64": DataType.Int, "int32": DataType.Int32, "bool": DataType.Bool, "complex64": DataType.ComplexFloat,
    "complex128": DataType.ComplexDouble,
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "complex64": 1e-6}


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    return (torch.randn(shape, device="cuda") * 4).to(getattr(torch, dtype))


def defined(body: Callable[..., Any], *arrays: Any, names: dict[Any, DataType] | None = None) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensors = [
            fd.define_tensor([-1] * x.ndim, contiguity=False, dtype=DTYPES[str(x.dtype).removeprefix("torch.")])
            for x in arrays
        ]
        result = body(fd, *tensors)
        for output in result if isinstance(result, tuple) else (result,):
            fd.add_output(output)
    return fd


def close(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    tolerance = TOLERANCE.get(str(got.dtype).removeprefix("torch."), 0.0)
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=4 * tolerance, equal_nan=True)


def both(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.where(fd.ops.cast(y, DataType.Bool), fd.ops.cast(fd.ops.add(x, y), x.dtype), x)


def wanted(x: Any, y: Any) -> Any:
    total = (x | y) if x.dtype == torch.bool else (x + y).to(x.dtype)
    return torch.where(y.bool(), total, x)


def views(rows: int, columns: int, dtype: str) -> Iterator[Any]:
    big = numbers((2 * rows + 2, 2 * columns + 3), dtype)
    yield numbers((rows, columns), dtype)
    yield from (numbers((rows * columns + 9,), dtype)[k : k + rows * columns].view(rows, columns) for k in (1, 2, 4, 8))
    yield big[:rows, :columns]
    yield big[1 : rows + 1, 1 : columns + 1]
    yield big[: 2 * rows : 2, : 2 * columns : 2]
    yield numbers((columns, rows), dtype).T
    yield numbers((1, columns), dtype).expand(rows, columns)
    yield numbers((rows, 1), dtype).expand(rows, columns)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype: str) -> None:
    for rows, columns in ((64, 128), (33, 65), (1, 7), (40, 1)):
        y = numbers((rows, columns), dtype)
        fd = defined(both, y, y)
        for x in views(rows, columns, dtype):
            for a, b in ((x, y), (y, x)):
                out = torch.empty((rows, columns), dtype=y.dtype, device="cuda").fill_(77)
                fl.segment(fd, [a, b]).prepare("cuda").run([a, b], [out])
                close(out, wanted(a, b))


def test_results_at_any_address() -> None:
    x = numbers((96, 40), "bfloat16")
    plan = fl.segment(defined(lambda fd, t: fd.ops.neg(t), x), [x]).prepare("cuda")
    for shift in range(1, 9):
        memory = torch.full((96 * 40 + 16,), 7.0, device="cuda")
        out = memory[shift : shift + 96 * 40].view(96, 40)
        plan.run([x], [out])
        torch.testing.assert_close(out, -x.float(), rtol=0, atol=0)
        assert (memory[:shift] == 7).all()
        assert (memory[shift + 96 * 40 :] == 7).all()


@pytest.mark.parametrize("shape", [(2048, 1030), (64, 64), (65, 4097), (17, 16)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "bool", "complex64"])
def test_transposes(shape: tuple[int, int], dtype: str) -> None:
    x, y = numbers(shape, dtype), numbers(shape[::-1], dtype)
    fd = defined(lambda fd, a, b: both(fd, fd.ops.permute(a, [1, 0]), b), x, y)
    close(fd.execute([x, y])[0], wanted(x.T, y))


def test_more_elements_than_32_bits_count() -> None:
    count = (1 << 31) + 48
    x = torch.zeros(count, dtype=torch.bool, device="cuda")
    x[-5:] = True
    x[1 << 20] = True
    (out,) = defined(lambda fd, t: fd.ops.logical_not(t), x).execute([x])
    assert int(out.sum(dtype=torch.int64)) == count - 6
    assert not out[-5:].any()
    assert not out[1 << 20]


def relative(name: str, x: Any) -> Any:
    """The relative errors of an op, by float64."""
    (got,) = defined(lambda fd, t: getattr(fd.ops, name)(t), x).execute([x])
    exact = getattr(torch, name)(x.double())
    return ((got.double() - exact) / exact).abs()


def test_exp_and_tanh_are_as_exact_as_they_say() -> None:
    x = torch.linspace(-86, 88, 4_000_001, device="cuda")
    assert bool((relative("exp", x) <= 3e-7 + 9e-8 * x.abs()).all())
    x = torch.cat([torch.linspace(-12, 12, 4_000_001, device="cuda"), torch.logspace(-30, 0, 100_000, device="cuda")])
    assert float(relative("tanh", x[x != 0]).max()) < 1e-6
    edges = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 100.0, -100.0], device="cuda")
    for name in ("exp", "tanh"):
        (got,) = defined(lambda fd, t, name=name: getattr(fd.ops, name)(t), edges).execute([edges])
        torch.testing.assert_close(got, getattr(torch, name)(edges), rtol=0, atol=1e-37, equal_nan=True)


def test_one_plus_tanh_keeps_its_digits_near_zero() -> None:
    x = torch.linspace(-20, 20, 4_000_001, device="cuda")
    (got,) = defined(lambda fd, t: fd.ops.add(1.0, fd.ops.tanh(t)), x).execute([x])
    exact = 2 / (1 + torch.exp(-2 * x.double()))
    assert bool((((got.double() - exact) / exact).abs() <= 6e-7 + 2e-7 * x.abs()).all())

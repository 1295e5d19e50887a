"""Scans on a GPU: rows and columns of every number and length, scans backwards, and reductions beside them."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from needs import needs

from fuser_lab.errors import RegionWarning

torch = needs("torch")
bridge = importlib.import_module("fuser_lab.torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# Rows of a warp and of a block, few and many; columns that fill the GPU, that do not, and one; a tensor of one axis.
SHAPES = [
    ((5000, 100), 1), ((700, 1023), 1), ((3, 300_001), 1), ((1_000_003,), 0), ((20_000, 100), 0), ((20_001, 63), 0),
    ((3000, 768), 0), ((500, 16384), 0), ((100_000, 1), 0), ((7, 300, 33), 1),
]
FUNCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "alone": lambda x, dim: x.cumsum(dim),
    "with its neighbours": lambda x, dim: (x * 0.5).cumsum(dim).sin(),
    "backwards": lambda x, dim: x.flip(dim).cumsum(dim).flip(dim),
    "two": lambda x, dim: (x.cumsum(dim) * 0.01).cumsum(dim),
    "logarithms": lambda x, dim: (x * 0.5).logcumsumexp(dim),
    "between passes": lambda x, dim: (run := x.softmax(dim).cumsum(dim)) - run.mean(dim, keepdim=True),
    "with reductions": lambda x, dim: ((run := x.cumsum(dim)).amin(dim), run.mean(dim), run),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scans_agree_with_float64(name: str, shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    compiled = torch.compile(lambda x: FUNCTIONS[name](x, dim), backend="fuser_lab", dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        found = compiled(x)
    assert not [left for left in bridge.last().left_to_torch if not left.is_free]
    wanted = FUNCTIONS[name](x.double(), dim)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for got, want in pairs:
        assert got.dtype is dtype
        error = (got.double() - want).abs().amax().item()
        assert error <= {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.02}[dtype] * (
            x.double().cumsum(dim).abs().amax().item() + want.abs().amax().item()
        )


@pytest.mark.parametrize("strides", [(1, 4000), (70, 1), (128, 1)], ids=["transposed", "dense", "padded"])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_integers_are_exact_in_every_layout(strides: tuple[int, int], dim: int) -> None:
    torch._dynamo.reset()
    x = torch.empty_strided((4000, 70), strides, device="cuda", dtype=torch.int64).random_(-100, 100)
    compiled = torch.compile(lambda x: x.neg().cumsum(dim), backend="fuser_lab", dynamic=False)
    torch.testing.assert_close(compiled(x), x.neg().cumsum(dim), rtol=0, atol=0)

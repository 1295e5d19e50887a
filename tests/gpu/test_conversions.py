"""Conversions on a GPU: every 8-bit float and small integer, and numbers around each rounding boundary."""

from typing import Any

import numpy as np
import pytest
from needs import needs

from fuser_lab import DataType, FusionDefinition
from fuser_lab.dtypes import narrow

torch = needs("torch")
pytestmark = pytest.mark.gpu

FLOAT8 = {
    DataType.Float8_e4m3fn: torch.float8_e4m3fn, DataType.Float8_e5m2: torch.float8_e5m2,
    DataType.Float8_e8m0fnu: torch.float8_e8m0fnu,
}
WIDE = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16}


def around(dtype: DataType) -> np.ndarray:
    """Float32 numbers: each value of a dtype, midpoints, the floats adjacent to these, and random bits."""
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    largest = np.float32(np.abs(values).max())
    with np.errstate(over="ignore"):
        beyond = largest * np.asarray([1, 1.01, 1.0625, 1.07, 1.125, 1.5, 2, 4, 1e3], np.float32)
    points = np.concatenate([values, middles, beyond, -beyond, np.float32([0.0, 1e-45, 1e-38, 3e38])])
    points = np.concatenate([points, *(np.nextafter(points, np.float32(end)) for end in (np.inf, -np.inf))])
    words = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    return np.concatenate([points, -points, words, np.float32([np.nan, np.inf, -np.inf, -0.0])])


def every(dtype: DataType) -> np.ndarray:
    """All numbers of 16 bits, or those around the boundaries of 8-bit floats."""
    if dtype is DataType.Float:
        return np.concatenate([around(narrow) for narrow in FLOAT8])
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)


def tensor(array: np.ndarray, kind: Any) -> Any:
    size = array.dtype.itemsize
    words = array.view({1: np.uint8, 2: np.int16, 4: np.int32}[size])
    return torch.from_numpy(words.copy()).cuda().view(kind)


def bits(value: Any) -> np.ndarray:
    return value.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.element_size()]).cpu().numpy()


def padded(array: np.ndarray, columns: int) -> np.ndarray:
    """The numbers in a matrix of at least two rows, the rest zeros."""
    full = np.zeros((max(-(-array.size // columns), 2), columns), array.dtype)
    full.reshape(-1)[: array.size] = array
    return full


def execute(array: np.ndarray, dtype: DataType, record: Any) -> Any:
    with FusionDefinition() as fd:
        fd.add_output(record(fd, fd.define_tensor(list(array.shape), contiguity=True, dtype=dtype)))
    (out,) = fd.execute([tensor(array, {**FLOAT8, **WIDE}[dtype])])
    return out


def rounded(array: np.ndarray, dtype: DataType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return narrow(array.astype(np.float32), dtype)


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal bits, apart from those of NaN."""
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    word = np.dtype(f"u{got.dtype.itemsize}")
    np.testing.assert_array_equal(got.view(word)[~nan], wanted.view(word)[~nan])


# Whole vectors, and rows that vectors do not divide.
@pytest.mark.parametrize("columns", [64, 7])
@pytest.mark.parametrize("narrow", FLOAT8, ids=lambda d: d.name)
class TestFloat8:
    @pytest.mark.parametrize("wide", WIDE, ids=lambda d: d.name)
    def test_every_value_is_widened(self, narrow: DataType, wide: DataType, columns: int) -> None:
        x = padded(np.arange(256, dtype=np.uint8).view(narrow.numpy), columns)
        got = bits(execute(x, narrow, lambda fd, t: fd.ops.cast(t, dtype=wide))).view(wide.numpy)
        same(got, rounded(x, wide))

    @pytest.mark.parametrize("wide", WIDE, ids=lambda d: d.name)
    def test_numbers_are_rounded(self, narrow: DataType, wide: DataType, columns: int) -> None:
        x = padded(every(wide), columns)
        got = bits(execute(x, wide, lambda fd, t: fd.ops.cast(t, dtype=narrow))).view(narrow.numpy)
        same(got, rounded(x, narrow))

    def test_a_rounded_number_that_is_used_again(self, narrow: DataType, columns: int) -> None:
        x = padded(every(DataType.Float), columns)

        def record(fd: Any, t: Any) -> Any:
            return fd.ops.cast(fd.ops.cast(fd.ops.cast(t, dtype=narrow), dtype=DataType.Float), dtype=narrow)

        same(bits(execute(x, DataType.Float, record)).view(narrow.numpy), rounded(x, narrow))

    def test_words_that_are_transposed(self, narrow: DataType, columns: int) -> None:
        x = padded(np.tile(np.arange(256, dtype=np.uint8), 16).view(narrow.numpy), columns)
        got = bits(execute(x, narrow, lambda fd, t: fd.ops.set(fd.ops.permute(fd.ops.set(t), [1, 0]))))
        same(got.view(narrow.numpy), np.ascontiguousarray(x.T))


@pytest.mark.parametrize("columns", [64, 7])
@pytest.mark.parametrize("dtype", [DataType.Char, DataType.Byte, DataType.Short], ids=lambda d: d.name)
def test_small_integers_become_floats(dtype: DataType, columns: int) -> None:
    word = np.dtype(f"u{dtype.itemsize}")
    x = padded(np.arange(1 << 8 * dtype.itemsize, dtype=word).view(dtype.numpy), columns)
    with FusionDefinition() as fd:
        t = fd.define_tensor(list(x.shape), contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.cast(t, dtype=DataType.Float))
    (out,) = fd.execute([torch.from_numpy(x).cuda()])
    np.testing.assert_array_equal(out.cpu().numpy(), x.astype(np.float32))


@pytest.mark.parametrize("columns", [64, 7])
def test_bounds_keep_nan(columns: int) -> None:
    x = padded(np.concatenate([around(DataType.Float8_e4m3fn), np.float32([np.nan, -448, 448])]), columns)
    got = execute(x, DataType.Float, lambda fd, t: fd.ops.clamp(t, -448.0, 448.0)).cpu().numpy()
    np.testing.assert_array_equal(got, np.clip(x, np.float32(-448), np.float32(448)))

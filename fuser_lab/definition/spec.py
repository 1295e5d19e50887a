"""Abstract inputs: shape, dtype and strides of an array that need not exist."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuser_lab.dtypes import DataType, parse_dtype
from fuser_lab.errors import InputError
from fuser_lab.ops.arguments import wholes
from fuser_lab.ops.registry import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape, dtype, strides in elements and kind of device of a tensor input."""

    shape: tuple[int, ...]
    dtype: DataType
    strides: tuple[int, ...]
    device: str = "cpu"

    @property
    def nbytes(self) -> int:
        """Bytes that the elements occupy, expanded (stride 0) axes counted once."""
        stored = (n for n, s in zip(self.shape, self.strides, strict=True) if s != 0)
        return int(np.prod(list(stored), dtype=np.int64)) * self.dtype.itemsize

    def materialize(self, seed: int = 0) -> Array:
        """Return an array as described: standard normal floats, integers in 0..9, random booleans."""
        rng = np.random.default_rng(seed)
        if not self.shape or 0 in self.shape:
            count = int(np.prod(self.shape, dtype=np.int64))
        else:
            count = 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.strides, strict=True))
        if self.dtype is DataType.Bool:
            flat = rng.integers(0, 2, count).astype(np.bool_)
        elif self.dtype.is_integral:
            flat = rng.integers(0, 10, count).astype(self.dtype.numpy)
        elif self.dtype.is_complex:
            flat = (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(self.dtype.numpy)
        else:
            flat = rng.standard_normal(count, dtype=np.float32).astype(self.dtype.numpy)
        steps = tuple(s * flat.itemsize for s in self.strides)
        # An axis with a negative stride begins at its far end.
        begin = sum(max(n - 1, 0) * -s for n, s in zip(self.shape, self.strides, strict=True) if s < 0)
        return np.lib.stride_tricks.as_strided(flat[begin if count > begin else 0 :], self.shape, steps)


def spec(
    shape: Sequence[int], dtype: "str | DataType | npt.DTypeLike" = "float32", strides: Sequence[int] | None = None,
) -> TensorSpec:
    """Return an abstract input, accepted wherever nothing runs.

    Parameters
    ----------
    shape
        Sizes, each 0 or more.
    dtype
        A DataType, a NumPy dtype or a name such as ``"bfloat16"``.
    strides
        In elements, negative ones too; row-major if left out.

    Raises
    ------
    ArgumentTypeError
        If sizes or strides are no lists of ints, or the dtype is none.
    InputError
        If a size is negative, or the number of strides is wrong.
    """
    sizes = wholes(shape, "spec", "shape")
    if any(n < 0 for n in sizes):
        msg = f"spec: shape {sizes} has a negative size."
        raise InputError(msg)
    parsed = parse_dtype(dtype)
    if parsed is DataType.Null:
        msg = "spec: dtype is DataType.Null, which is not a dtype that values can have."
        raise InputError(msg)
    steps = _row_major(sizes) if strides is None else wholes(strides, "spec", "strides")
    if len(steps) != len(sizes):
        msg = f"spec: {len(steps)} strides for {len(sizes)} sizes."
        raise InputError(msg)
    return TensorSpec(shape=tuple(sizes), dtype=parsed, strides=tuple(steps))


def _row_major(sizes: Sequence[int]) -> list[int]:
    steps: list[int] = []
    step = 1
    for size in reversed(sizes):
        steps.insert(0, step)
        step *= max(size, 1)
    return steps

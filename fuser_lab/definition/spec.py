"""Abstract inputs: shape, dtype and strides of an array that need not exist."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fuser_lab.arguments import instance, list_of, number, one_of, short_text, take_fields, takes, whole
from fuser_lab.dtypes import DataType, parse_dtype
from fuser_lab.errors import ArgumentTypeError, InputError, OutOfMemoryError
from fuser_lab.ops.arguments import wholes
from fuser_lab.ops.rules import Array
from fuser_lab.process.host_memory import check_fits
from fuser_lab.targets import CPU

_FILLS = ("normal", "uniform", "integers", "range", "values")
_BOUND = (number() | instance(bool)).but(lambda bound: abs(bound) < 2.0**1023, "a finite number")
_VALUES = list_of(instance(bool, int, float, complex, accepted="a number"), "a tuple of numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """The values in the memory of an input.

    ``normal``: standard normal numbers; ``uniform`` and ``integers``: random in [low, high); ``range``: ``values[0]``,
    then steps of ``values[1]``; ``values``: these, repeated.
    """

    kind: Literal["normal", "uniform", "integers", "range", "values"]
    low: int | float = 0
    high: int | float = 1
    values: tuple[bool | int | float | complex, ...] = ()

    def __post_init__(self) -> None:
        """Reject an unknown kind, an empty range and missing values."""
        take_fields(self, kind=one_of(*_FILLS), low=_BOUND, high=_BOUND, values=_VALUES)
        object.__setattr__(self, "values", tuple(self.values))
        if self.kind in {"uniform", "integers"} and not self.low < self.high:
            raise InputError(f"Fill: low is {self.low} and high is {self.high}; low must be below high.")
        if len(self.values) < {"range": 2, "values": 1}.get(self.kind, 0):
            msg = f"Fill: values is {self.values}; {self.kind!r} needs {'two' if self.kind == 'range' else 'some'}."
            raise InputError(msg)

    def numbers(self, count: int, dtype: DataType, rng: np.random.Generator) -> Array:
        """Return ``count`` elements of a dtype."""
        if self.kind == "range":
            first, step = self.values
            # Exact for integers of any size, rounded once for floats.
            numbers: Array = np.asarray(first + np.arange(count) * step)
        elif self.kind == "values":
            numbers = np.resize(np.asarray(self.values, None if dtype.is_complex else dtype.numpy), count)
        elif self.kind == "integers":
            wide = np.uint64 if self.high > np.iinfo(np.int64).max else np.int64
            numbers = rng.integers(int(self.low), int(self.high), count, dtype=wide)
        else:
            numbers = self._random(count, rng)
            if dtype.is_complex:
                numbers = numbers + 1j * self._random(count, rng)
        cast = numbers.astype(dtype.numpy)
        if self.kind == "uniform" and dtype.is_float:
            # Rounding to a narrower type may reach the excluded upper end.
            low, high = (np.asarray(bound, dtype.numpy) for bound in (self.low, self.high))
            cast = np.where(cast >= high, np.nextafter(high, low), cast)
        return cast

    def _random(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal(count) if self.kind == "normal" else rng.uniform(self.low, self.high, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape, dtype, strides in elements and kind of device of a tensor input.

    ``fill`` defines the values of `materialize`; plans do not depend on it, so it is ignored in comparisons.
    """

    shape: tuple[int, ...]
    dtype: DataType
    strides: tuple[int, ...]
    device: str = CPU.name
    fill: Fill | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes that the elements occupy, with expanded (stride 0) axes counted once."""
        stored = (n for n, s in zip(self.shape, self.strides, strict=True) if s != 0)
        return int(np.prod(list(stored), dtype=np.int64)) * self.dtype.itemsize

    @takes(seed=whole(0))
    def materialize(self, seed: int = 0) -> Array:
        """Return an array as described; without `fill`: standard normal floats, integers in 0..9, random booleans.

        Raises
        ------
        OutOfMemoryError
            If there is not enough memory for it.
        """
        if not self.shape or 0 in self.shape:
            count = int(np.prod(self.shape, dtype=np.int64))
        else:
            count = 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.strides, strict=True))
        try:
            check_fits(count * self.dtype.itemsize)
            return self._materialize(count, np.random.default_rng(seed))
        except MemoryError:
            raise OutOfMemoryError(
                f"materialize: not enough memory for {self.dtype.ir_name} {list(self.shape)}: "
                f"{count * self.dtype.itemsize} bytes are needed."
            ) from None

    def _materialize(self, count: int, rng: np.random.Generator) -> Array:
        """Return the array over memory of ``count`` elements."""
        if self.fill is not None:
            flat = self.fill.numbers(count, self.dtype, rng)
        elif self.dtype is DataType.Bool:
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
        offset = begin * flat.itemsize if count > begin else 0
        # As bytes, since not every library's dtype supports buffers.
        return np.ndarray(self.shape, flat.dtype, flat.view(np.uint8), offset, steps)


def spec(
    shape: Sequence[int], dtype: "str | DataType | npt.DTypeLike" = "float32", strides: Sequence[int] | None = None,
    fill: Fill | None = None,
) -> TensorSpec:
    """Return an abstract input, accepted wherever nothing runs.

    Parameters
    ----------
    shape
        Sizes, each 0 or more.
    dtype
        A DataType, a NumPy dtype or a name such as ``"bfloat16"``.
    strides
        In elements, possibly negative; row-major by default.
    fill
        The values of `TensorSpec.materialize`; typical ones by default.

    Raises
    ------
    ArgumentTypeError
        If sizes or strides are not lists of ints, or the dtype is invalid.
    InputError
        If a size is negative, or the number of strides is wrong.
    """
    sizes = wholes(shape, "spec", "shape")
    if any(n < 0 for n in sizes):
        raise InputError(f"spec: shape {sizes} has a negative size.")
    parsed = parse_dtype(dtype)
    if parsed is DataType.Null:
        raise InputError("spec: dtype is DataType.Null, which is not a dtype that values can have.")
    steps = _row_major(sizes) if strides is None else wholes(strides, "spec", "strides")
    if len(steps) != len(sizes):
        raise InputError(f"spec: {len(steps)} strides for {len(sizes)} sizes.")
    if fill is not None and not isinstance(fill, Fill):
        raise ArgumentTypeError(f"spec: fill must be a Fill, given {short_text(fill)}.")
    return TensorSpec(shape=tuple(sizes), dtype=parsed, strides=tuple(steps), fill=fill)


def _row_major(sizes: Sequence[int]) -> list[int]:
    steps: list[int] = []
    step = 1
    for size in reversed(sizes):
        steps.insert(0, step)
        step *= max(size, 1)
    return steps

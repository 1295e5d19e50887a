"""Numbers and types as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fuser_lab.dtypes import DataType
from fuser_lab.report.keeping import kept

if TYPE_CHECKING:
    from fuser_lab.ir import TensorView

_SHORT_DTYPES = {
    DataType.Double: "f64",
    DataType.Float: "f32",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Int: "i64",
    DataType.Int32: "i32",
    DataType.Bool: "bool",
    DataType.ComplexFloat: "c64",
    DataType.ComplexDouble: "c128",
}
_STEP = 1000.0


def dtype_label(dtype: DataType) -> str:
    """Return the short name of an element type, such as ``bf16``."""
    return _SHORT_DTYPES.get(dtype, dtype.name.lower())


@kept
def shape_label(tensor: TensorView) -> tuple[str, ...]:
    """Return each extent as text; symbols keep their names."""
    return tuple(map(str, tensor.extents))


@kept
def tensor_bytes(tensor: TensorView) -> int:
    """Return the bytes a tensor takes in memory, or 0 while an extent is unknown."""
    return tensor.nbytes if all(isinstance(e, int) for e in tensor.extents) else 0


def bytes_label(count: float) -> str:
    """Return bytes with a decimal unit, as the timing tables do: ``8.39 MB``."""
    names = ("B", "kB", "MB", "GB", "TB")
    power = 0 if count < _STEP else min(int(math.log(count, _STEP) + 1e-9), len(names) - 1)
    value = count / _STEP**power
    return f"{value:.0f} B" if power == 0 else f"{three_digits(value)} {names[power]}"


def seconds_label(seconds: float) -> str:
    """Return a duration with the unit that suits it, or ``not measured`` for NaN."""
    if math.isnan(seconds):
        return "not measured"
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1.0), ("µs", 1e6))
    return f"{three_digits(seconds * factor)} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 segment`` or ``3 segments``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def three_digits(value: float) -> str:
    """Return a number with three significant digits, and never in exponent form."""
    digits = next((d for d, limit in ((2, 9.995), (1, 99.95)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"

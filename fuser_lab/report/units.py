"""Numbers and types as readable text."""

from collections.abc import Sequence

from fuser_lab.cost.amounts import bytes_label, seconds_label, three_digits
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.report.identity_cache import cached_by_identity

_SHORT_DTYPES = {
    DataType.Double: "f64",
    DataType.Float: "f32",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Int: "i64",
    DataType.Int32: "i32",
    DataType.Short: "i16",
    DataType.Char: "i8",
    DataType.Byte: "u8",
    DataType.Bool: "bool",
    DataType.ComplexFloat: "c64",
    DataType.ComplexDouble: "c128",
}


def dtype_label(dtype: DataType) -> str:
    """Return the short name of an element type, such as ``bf16``."""
    return _SHORT_DTYPES.get(dtype, dtype.name.lower())


@cached_by_identity
def shape_label(tensor: TensorView) -> tuple[str, ...]:
    """Return each extent as text; symbols keep their names."""
    return tuple(map(str, tensor.extents))


@cached_by_identity
def tensor_bytes(tensor: TensorView) -> int:
    """Return the bytes of a tensor in memory, or 0 if an extent is unknown."""
    return tensor.nbytes if all(isinstance(e, int) for e in tensor.extents) else 0


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 segment`` or ``3 segments``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def conjunction(names: Sequence[str]) -> str:
    """Return names in a sentence, such as ``a``, ``a and b`` or ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


__all__ = [
    "bytes_label", "conjunction", "dtype_label", "plural", "seconds_label", "shape_label", "tensor_bytes",
    "three_digits",
]

"""Scalar values: fusion inputs, constants and results of scalar arithmetic."""

from dataclasses import dataclass

from fuser_lab.dtypes import DataType

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A value with no axes; ``value`` is set for constants and None for symbols."""

    name: str
    dtype: DataType
    value: Number | None = None

    def __hash__(self) -> int:
        """Hash by name and value; dtype rarely differs between equal names."""
        return hash((self.name, repr(self.value)))

    def __eq__(self, other: object) -> bool:
        """Compare by name, dtype and value; a NaN constant equals itself."""
        if not isinstance(other, Scalar):
            return NotImplemented
        return self.name == other.name and self.dtype is other.dtype and repr(self.value) == repr(other.value)

    def __str__(self) -> str:
        """Return ``i0`` for a symbol, ``double(3)`` for a constant."""
        if self.value is None:
            return self.name
        if self.dtype is DataType.Bool:
            return str(bool(self.value)).lower()
        if isinstance(self.value, complex):
            return f"{self.dtype.ir_name}({_digits(self.value.real)},{_digits(self.value.imag)})"
        text = _digits(self.value)
        return text if self.dtype is DataType.Int else f"{self.dtype.ir_name}({text})"


def _digits(number: Number) -> str:
    """Return a real number with as few digits as identify it, without a zero fraction."""
    return repr(number).removesuffix(".0")


Extent = int | Scalar

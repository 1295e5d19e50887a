"""nvFuser's element types: names, NumPy storage, arithmetic type and promotion.

Promotion follows nvFuser (``csrc/type_promotion.cpp``): operands fall into three categories, tensors with
dimensions, zero-dimensional tensors and scalars; a lower category matters only if its kind (bool, integer,
float, complex) is higher. Reduced-precision results are widened to Float.
"""

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fuser_lab.arguments import short_text
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError


class Kind(enum.IntEnum):
    """Order of dtype kinds in promotion."""

    BOOL = 0
    INTEGER = 1
    FLOAT = 2
    COMPLEX = 3


class DataType(enum.Enum):
    """Element type of a tensor or scalar, with nvFuser's member names."""

    Double = "double"
    Float = "float"
    Half = "__half"
    BFloat16 = "__bfloat"
    Int = "int64_t"
    Int32 = "int"
    Short = "int16_t"
    Char = "int8_t"
    Byte = "uint8_t"
    UInt64 = "uint64_t"
    Index = "nvfuser_index_t"
    Bool = "bool"
    Float8_e4m3fn = "__e4m3"
    Float8_e5m2 = "__e5m2"
    Float8_e8m0fnu = "__e8m0"
    Float4_e2m1fn = "__e2m1"
    Float4_e2m1fn_x2 = "__e2m1_x2"
    ComplexFloat = "std::complex<float>"
    ComplexDouble = "std::complex<double>"
    Null = "null"

    def __repr__(self) -> str:
        """Return the spelling that Python code uses, ``DataType.Float``."""
        return f"DataType.{self.name}"

    # By identity, like the comparison of members: Enum's own hash runs in Python, and terms are hashed very often.
    __hash__ = object.__hash__

    @property
    def ir_name(self) -> str:
        """Name printed in IR text, such as ``__bfloat``."""
        return self.value

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """NumPy dtype that stores this type; ml_dtypes' for BFloat16 and the 8-bit floats."""
        return _info(self).numpy

    @property
    def kind(self) -> Kind:
        """Position in the promotion order."""
        return _info(self).kind

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return int(_info(self).numpy.itemsize)

    @property
    def compute(self) -> "DataType":
        """Type that arithmetic runs in: Float or Int32 for narrow types, otherwise the type itself."""
        return _COMPUTE.get(self, self)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type.

        Raises
        ------
        TypeError
            If the type is not one of integers.
        """
        if not self.is_integral:
            raise TypeError(f"limits: {self!r} is not an integer type.")
        bits = 8 * self.itemsize
        return (0, 2**bits - 1) if self in _UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Values of a real type that no other value is below or above: infinities for floats."""
        return self.limits if self.is_integral else (-math.inf, math.inf) if self.is_float else (False, True)

    @property
    def real(self) -> "DataType":
        """Type of the real part: Float or Double for complex types, otherwise the type itself."""
        return _PARTS.get(self, self)

    @property
    def wider(self) -> "DataType":
        """Double for Float, the same for its complex type, otherwise the type itself."""
        return _WIDER.get(self, self)

    @property
    def is_float8(self) -> bool:
        """Whether this is a float of 8 bits."""
        return self in _FLOAT8

    @property
    def is_float4(self) -> bool:
        """Whether this is a float of 4 bits, which exists only as a name: no value has such a type here."""
        return self in _FLOAT4

    @property
    def is_reduced_float(self) -> bool:
        """Whether arithmetic widens this type to Float."""
        return self in _REDUCED

    @property
    def is_small_integer(self) -> bool:
        """Whether this is an integer of 16 or 8 bits: tensors are stored as such, arithmetic widens it to Int32."""
        return self in _SMALL_INTEGERS

    @property
    def is_narrow(self) -> bool:
        """Whether arithmetic runs in a wider type than elements are stored in."""
        return self in _COMPUTE

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type."""
        return self.kind is Kind.FLOAT

    @property
    def is_integral(self) -> bool:
        """Whether this is an integer type other than Bool."""
        return self.kind is Kind.INTEGER

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self.kind is Kind.COMPLEX


@dataclass(frozen=True, slots=True)
class _Info:
    numpy: np.dtype[np.generic]
    kind: Kind


_FLOAT8 = frozenset({DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float8_e8m0fnu})
_FLOAT4 = frozenset({DataType.Float4_e2m1fn, DataType.Float4_e2m1fn_x2})
_REDUCED = frozenset({DataType.Half, DataType.BFloat16, *_FLOAT8})
_SMALL_INTEGERS = frozenset({DataType.Short, DataType.Char, DataType.Byte})
_UNSIGNED = frozenset({DataType.UInt64, DataType.Byte})
_COMPUTE = dict.fromkeys(_REDUCED, DataType.Float) | dict.fromkeys(_SMALL_INTEGERS, DataType.Int32)
_WIDER = {DataType.Float: DataType.Double, DataType.ComplexFloat: DataType.ComplexDouble}
_PARTS = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}
_TABLE: dict[DataType, _Info] = {
    DataType.Double: _Info(np.dtype(np.float64), Kind.FLOAT),
    DataType.Float: _Info(np.dtype(np.float32), Kind.FLOAT),
    DataType.Half: _Info(np.dtype(np.float16), Kind.FLOAT),
    DataType.BFloat16: _Info(np.dtype(ml_dtypes.bfloat16), Kind.FLOAT),
    DataType.Float8_e4m3fn: _Info(np.dtype(ml_dtypes.float8_e4m3fn), Kind.FLOAT),
    DataType.Float8_e5m2: _Info(np.dtype(ml_dtypes.float8_e5m2), Kind.FLOAT),
    DataType.Float8_e8m0fnu: _Info(np.dtype(ml_dtypes.float8_e8m0fnu), Kind.FLOAT),
    DataType.Int: _Info(np.dtype(np.int64), Kind.INTEGER),
    DataType.Int32: _Info(np.dtype(np.int32), Kind.INTEGER),
    DataType.Short: _Info(np.dtype(np.int16), Kind.INTEGER),
    DataType.Char: _Info(np.dtype(np.int8), Kind.INTEGER),
    DataType.Byte: _Info(np.dtype(np.uint8), Kind.INTEGER),
    DataType.UInt64: _Info(np.dtype(np.uint64), Kind.INTEGER),
    DataType.Index: _Info(np.dtype(np.int64), Kind.INTEGER),
    DataType.Bool: _Info(np.dtype(np.bool_), Kind.BOOL),
    DataType.ComplexFloat: _Info(np.dtype(np.complex64), Kind.COMPLEX),
    DataType.ComplexDouble: _Info(np.dtype(np.complex128), Kind.COMPLEX),
}
# Names unknown to NumPy.
_ML_NAMES = {str(info.numpy): dtype for dtype, info in _TABLE.items() if info.numpy.kind == "V" or dtype in _FLOAT8}
_FROM_NUMPY = {info.numpy: dtype for dtype, info in _TABLE.items() if dtype is not DataType.Index}


def _info(dtype: DataType) -> _Info:
    try:
        return _TABLE[dtype]
    except KeyError:
        pass
    if dtype.is_float4:
        raise UnsupportedError(f"values of {dtype!r} are not supported; the smallest floats here have 8 bits.")
    raise DefinitionError(f"{dtype!r} has no storage; it is accepted only where nvFuser allows a dtype to be omitted.")


def narrow(array: npt.NDArray[Any], dtype: DataType) -> npt.NDArray[Any]:
    """Return real numbers as ``dtype``, rounded to nearest even; reduced floats are rounded from float32.

    Numbers too large become infinite, except in Float8_e4m3fn, which has no infinity: they become its largest number,
    as on a GPU and in torch. Float8_e8m0fnu has neither sign nor zero: it keeps magnitudes, and its smallest for 0.
    Floats become integers as by `truncate`, wider integers by dropping bits.
    """
    if dtype.is_integral and array.dtype.kind not in "biu":
        return truncate(array, dtype, of_double=array.dtype == np.float64)
    if array.dtype == dtype.numpy or not dtype.is_reduced_float:
        return array.astype(dtype.numpy, copy=False)
    wide = array.astype(np.float32)
    if dtype is DataType.Float8_e4m3fn:
        largest = np.float32(448)
        wide = np.clip(wide, -largest, largest)
    elif dtype is DataType.Float8_e8m0fnu:
        wide = np.maximum(np.abs(wide), np.float32(2.0**-127))
    return wide.astype(dtype.numpy)


def integer_of_nan(dtype: DataType, *, of_double: bool) -> int:
    """Return the integer that NaN becomes: 0 from Float to Int32, else the one whose only bit is the highest.

    Source: NaN in float-to-integer conversions of the PTX instruction ``cvt`` (PTX ISA).
    """
    if dtype is DataType.Int32 and not of_double:
        return 0
    return 2**63 if dtype is DataType.UInt64 else dtype.limits[0]


def truncate(array: npt.NDArray[Any], dtype: DataType, *, of_double: bool) -> npt.NDArray[Any]:
    """Return real numbers as integers by CUDA's rule: rounded toward zero and limited to the range of ``dtype``.

    NaN becomes `integer_of_nan`. ``of_double`` says whether the numbers count as Double; floats of 16 and 8 bits count
    as Float. Integers of 16 and 8 bits result from Int32 by dropping bits, as in torch.
    """
    if dtype.is_small_integer:
        return truncate(array, DataType.Int32, of_double=of_double).astype(dtype.numpy)
    low, high = dtype.limits
    wide = array.astype(np.float64)
    nan, above = np.isnan(wide), wide >= float(high + 1)  # the limits themselves are not all float64 numbers
    below = wide <= float(low)
    inside = np.where(nan | above | below, 0, wide).astype(dtype.numpy)
    replacements = (integer_of_nan(dtype, of_double=of_double), high, low)
    return np.select([nan, above, below], [dtype.numpy.type(value) for value in replacements], inside)


def number_of(value: complex | np.generic, dtype: DataType) -> Any:
    """Return a number as a NumPy scalar of ``dtype``, whatever its type is."""
    with np.errstate(all="ignore"):
        return narrow(np.asarray(value), dtype)[()]


# The types in which narrow arrays are computed.
COMPUTE_NUMPY = {dtype.numpy: wide.numpy for dtype, wide in _COMPUTE.items()}


def from_numpy(dtype: npt.DTypeLike) -> DataType:
    """Return the DataType stored by a NumPy (or ml_dtypes) dtype.

    Raises
    ------
    ArgumentTypeError
        If there is no such tensor type (uint16, uint32, ...).
    """
    resolved = np.dtype(dtype)
    try:
        return _FROM_NUMPY[resolved]
    except KeyError:
        accepted = ", ".join(sorted({str(d) for d in _FROM_NUMPY}))
        msg = f"dtype {resolved} is not a tensor type of a fusion; accepted are {accepted}."
        raise ArgumentTypeError(msg) from None


def parse_dtype(text: "str | DataType | npt.DTypeLike") -> DataType:
    """Return a DataType from itself, a name (``"bfloat16"``, ``"Float"``) or a NumPy dtype.

    Raises
    ------
    ArgumentTypeError
        If it is not one of these, or nvFuser has no such tensor type.
    """
    if isinstance(text, DataType):
        return text
    if isinstance(text, str):
        if text in DataType.__members__:
            return DataType[text]
        if text in _ML_NAMES:
            return _ML_NAMES[text]
    try:
        # NumPy reads None as float64.
        resolved = None if text is None else np.dtype(text)
    except Exception:  # noqa: BLE001 - NumPy asks whatever it is given for its dtype, which may fail in any way
        resolved = None
    if resolved is None:
        raise ArgumentTypeError(f"{short_text(text)} is not a dtype; use a DataType, a NumPy dtype or its name.")
    return from_numpy(resolved)


def of_python(value: bool | complex) -> DataType:
    """Return the dtype nvFuser gives a Python number: Bool, Int, Double or ComplexDouble."""
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    if isinstance(value, float):
        return DataType.Double
    if isinstance(value, complex):
        return DataType.ComplexDouble
    raise ArgumentTypeError(f"a scalar must be a bool, int, float or complex, not {type(value).__name__}.")


class Category(enum.IntEnum):
    """How strongly an operand takes part in promotion."""

    SCALAR = 0
    ZERO_DIM = 1
    TENSOR = 2


def promote(operands: Iterable[tuple[DataType, Category]], *, widen: bool = True) -> DataType:
    """Return the common dtype of operands under nvFuser's three-category rule.

    ``widen`` converts a narrow result to the type that arithmetic runs in (off only for ``where``).

    Raises
    ------
    DefinitionError
        If two dtypes have no common one, such as UInt64 and Int.
    """
    pairs = list(operands)
    if not pairs:
        raise DefinitionError("promotion needs at least one operand.")
    result = pairs[0][0]
    if any(dtype is not result for dtype, _ in pairs):
        result = _common(pairs)
    return result.compute if widen else result


def _common(operands: Iterable[tuple[DataType, Category]]) -> DataType:
    best: dict[Category, DataType] = {}
    for dtype, category in operands:
        # A narrow scalar counts as the type it is computed in, so a Python number never narrows a result.
        seen = dtype.compute if category is Category.SCALAR else dtype
        seen = DataType.Int if seen is DataType.Index else seen
        best[category] = seen if category not in best else _join(best[category], seen)
    highest, *others = sorted(best, reverse=True)
    result = best[highest]
    for candidate in (best[category] for category in others):
        if candidate.kind > result.kind:
            # A complex scalar adopts a float tensor's precision.
            result = _complex_of(result) if candidate.is_complex and result.is_float else candidate
    return result


def _complex_of(dtype: DataType) -> DataType:
    return DataType.ComplexDouble if dtype is DataType.Double else DataType.ComplexFloat


def _join(a: DataType, b: DataType) -> DataType:
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: (d.kind, d.itemsize))
    unsigned = DataType.UInt64 in {a, b} and high.kind <= Kind.INTEGER
    if unsigned or a.is_float8 or b.is_float8:
        # As in torch, which nvFuser uses, there is no promotion for these types.
        raise DefinitionError(f"{a!r} and {b!r} have no common dtype; cast one of them first.")
    if high is DataType.ComplexFloat and low is DataType.Double:
        return DataType.ComplexDouble
    if {a, b} == {DataType.Half, DataType.BFloat16}:
        return DataType.Float
    if {a, b} == {DataType.Char, DataType.Byte}:
        return DataType.Short
    return high

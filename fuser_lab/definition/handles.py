"""Light handles of tensors and scalars inside a definition."""

from collections.abc import Callable
from typing import Any, Union

import numpy as np

from fuser_lab.definition.owner import Owner
from fuser_lab.definition.schedulable import Schedulable
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Extent, Number, Scalar, TensorView
from fuser_lab.ops.operands import wrap_dim

Operand = Union["Handle", Number]


def _operators(name: str) -> "tuple[Callable[[Handle, Operand], Handle], Callable[[Handle, Operand], Handle]]":
    """Return the methods that record an op of two operands: of the handle as the first, and as the second."""

    def record(self: "Handle", other: Operand) -> "Handle":
        return self._record(name, self, other)

    def record_reversed(self: "Handle", other: Operand) -> "Handle":
        return self._record(name, other, self)

    record.__doc__ = record_reversed.__doc__ = f"Record ``{name}``."
    return record, record_reversed


class Handle:
    """A value of a definition; Python operators record the op of the same meaning."""

    __slots__ = ("builder", "val")
    # Arrays and scalars of NumPy leave operators to the handle.
    __array_ufunc__ = None

    def __init__(self, val: TensorView | Scalar, builder: Owner) -> None:
        self.val = val
        self.builder = builder

    @property
    def name(self) -> str:
        """Name in IR text, ``T3`` or ``i0``."""
        return self.val.name

    @property
    def dtype(self) -> DataType:
        """Element type."""
        return self.val.dtype

    def __str__(self) -> str:
        """Return the value as IR text."""
        return str(self.val)

    def __repr__(self) -> str:
        """Return the value as IR text."""
        return str(self.val)

    def _record(self, name: str, *operands: Any) -> "Handle":
        result: Handle = getattr(self.builder.ops, name)(*operands)
        return result

    def __hash__(self) -> int:
        """Hash by identity: ``==`` records an op."""
        return id(self)

    def __bool__(self) -> bool:
        """Refuse to be a condition: there is no value yet."""
        msg = f"{self} has no value while a fusion is defined, so it cannot be a condition; use fd.ops.where."
        raise DefinitionError(msg)

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("truediv")
    __mod__, __rmod__ = _operators("remainder")
    __pow__, __rpow__ = _operators("pow")
    __and__, __rand__ = _operators("bitwise_and")
    __or__, __ror__ = _operators("bitwise_or")
    __xor__, __rxor__ = _operators("bitwise_xor")
    __matmul__ = _operators("matmul")[0]
    __lt__ = _operators("lt")[0]
    __le__ = _operators("le")[0]
    __gt__ = _operators("gt")[0]
    __ge__ = _operators("ge")[0]

    def __floordiv__(self, other: Operand) -> "Handle":
        """Record the quotient rounded down, as Python's."""
        return self._rounded_down(self, other)

    def __rfloordiv__(self, other: Operand) -> "Handle":
        """Record the quotient rounded down, as Python's."""
        return self._rounded_down(other, self)

    def _rounded_down(self, dividend: Operand, divisor: Operand) -> "Handle":
        left = self._record("sub", dividend, self._record("remainder", dividend, divisor))
        quotient = self._record("div", left, divisor)
        return quotient if quotient.val.dtype.is_integral else self._record("round", quotient)

    def __eq__(self, other: object) -> Any:
        """Record ``eq``, with another value or a number."""
        return self._record("eq", self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def __ne__(self, other: object) -> Any:
        """Record ``ne``, with another value or a number."""
        return self._record("ne", self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def __neg__(self) -> "Handle":
        """Record ``neg``."""
        return self._record("neg", self)

    def __pos__(self) -> "Handle":
        """Return the value itself."""
        return self

    def __abs__(self) -> "Handle":
        """Record ``abs``."""
        return self._record("abs", self)

    def __invert__(self) -> "Handle":
        """Record ``bitwise_not``."""
        return self._record("bitwise_not", self)


_OPERANDS = (Handle, bool, int, float, complex, np.generic)


class Tensor(Schedulable, Handle):
    """A tensor of a definition; it can be scheduled by hand once that is finished."""

    __slots__ = ()
    val: TensorView

    @property
    def ndim(self) -> int:
        """Number of axes, without reductions."""
        return self.val.ndim

    def size(self, dim: int) -> "Handle | int":
        """Return the size of an axis: an int if it is static, otherwise an integer scalar."""
        return self._extent(self.val.extents[wrap_dim(dim, self.ndim, "size")])

    def shape(self) -> "list[Handle | int]":
        """Return all sizes."""
        return [self._extent(extent) for extent in self.val.extents]

    def _extent(self, extent: Extent) -> "Handle | int":
        return extent if isinstance(extent, int) else Handle(extent, self.builder)

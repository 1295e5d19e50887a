"""Light handles of tensors and scalars inside a definition."""

from typing import Any, Union

import numpy as np

from fuser_lab.definition.owner import Owner
from fuser_lab.definition.schedulable import Schedulable
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Extent, Number, Scalar, TensorView
from fuser_lab.ops.registry import wrap_dim

Operand = Union["Handle", Number]


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

    def __add__(self, other: Operand) -> "Handle":
        """Record ``add``."""
        return self._record("add", self, other)

    def __radd__(self, other: Operand) -> "Handle":
        """Record ``add``."""
        return self._record("add", other, self)

    def __sub__(self, other: Operand) -> "Handle":
        """Record ``sub``."""
        return self._record("sub", self, other)

    def __rsub__(self, other: Operand) -> "Handle":
        """Record ``sub``."""
        return self._record("sub", other, self)

    def __mul__(self, other: Operand) -> "Handle":
        """Record ``mul``."""
        return self._record("mul", self, other)

    def __rmul__(self, other: Operand) -> "Handle":
        """Record ``mul``."""
        return self._record("mul", other, self)

    def __truediv__(self, other: Operand) -> "Handle":
        """Record ``truediv``."""
        return self._record("truediv", self, other)

    def __rtruediv__(self, other: Operand) -> "Handle":
        """Record ``truediv``."""
        return self._record("truediv", other, self)

    def __mod__(self, other: Operand) -> "Handle":
        """Record ``remainder``."""
        return self._record("remainder", self, other)

    def __rmod__(self, other: Operand) -> "Handle":
        """Record ``remainder``."""
        return self._record("remainder", other, self)

    def __pow__(self, other: Operand) -> "Handle":
        """Record ``pow``."""
        return self._record("pow", self, other)

    def __rpow__(self, other: Operand) -> "Handle":
        """Record ``pow``."""
        return self._record("pow", other, self)

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

    def __and__(self, other: Operand) -> "Handle":
        """Record ``bitwise_and``."""
        return self._record("bitwise_and", self, other)

    def __rand__(self, other: Operand) -> "Handle":
        """Record ``bitwise_and``."""
        return self._record("bitwise_and", other, self)

    def __or__(self, other: Operand) -> "Handle":
        """Record ``bitwise_or``."""
        return self._record("bitwise_or", self, other)

    def __ror__(self, other: Operand) -> "Handle":
        """Record ``bitwise_or``."""
        return self._record("bitwise_or", other, self)

    def __xor__(self, other: Operand) -> "Handle":
        """Record ``bitwise_xor``."""
        return self._record("bitwise_xor", self, other)

    def __rxor__(self, other: Operand) -> "Handle":
        """Record ``bitwise_xor``."""
        return self._record("bitwise_xor", other, self)

    def __lt__(self, other: Operand) -> "Handle":
        """Record ``lt``."""
        return self._record("lt", self, other)

    def __le__(self, other: Operand) -> "Handle":
        """Record ``le``."""
        return self._record("le", self, other)

    def __gt__(self, other: Operand) -> "Handle":
        """Record ``gt``."""
        return self._record("gt", self, other)

    def __ge__(self, other: Operand) -> "Handle":
        """Record ``ge``."""
        return self._record("ge", self, other)

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

    def __matmul__(self, other: "Handle") -> "Handle":
        """Record ``matmul``."""
        return self._record("matmul", self, other)


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

"""What a user holds inside a definition: light handles of tensors and scalars."""

from typing import TYPE_CHECKING, Any, Union

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Extent, Number, Scalar, TensorView
from fuser_lab.ops.registry import OPS, wrap_dim

if TYPE_CHECKING:
    from fuser_lab.definition.builder import FusionBuilder

Operand = Union["Handle", Number]


class Handle:
    """A value of a definition; Python operators record the op of the same meaning."""

    __slots__ = ("builder", "val")

    def __init__(self, val: TensorView | Scalar, builder: "FusionBuilder") -> None:
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
        result: Handle = self.builder.wrap(OPS[name].frontend(self.builder, *operands))
        return result

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

    def __neg__(self) -> "Handle":
        """Record ``neg``."""
        return self._record("neg", self)


class Tensor(Handle):
    """A tensor of a definition."""

    __slots__ = ()
    val: TensorView

    @property
    def ndim(self) -> int:
        """Number of axes, reductions not counted."""
        return self.val.ndim

    def size(self, dim: int) -> "Handle | int":
        """Return the size of an axis: an int if it is static, else an integer scalar."""
        return self._extent(self.val.extents[wrap_dim(dim, self.ndim, "size")])

    def shape(self) -> "list[Handle | int]":
        """Return all sizes."""
        return [self._extent(extent) for extent in self.val.extents]

    def _extent(self, extent: Extent) -> "Handle | int":
        return extent if isinstance(extent, int) else Handle(extent, self.builder)

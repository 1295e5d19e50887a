"""The values of a definition that a script handles: tensors, scalars and vectors of scalars."""

from typing import Any

from fuser_lab.definition import handles


class Scalar(handles.Handle):
    """A scalar of a definition."""

    __slots__ = ()


class Vector(list[Any]):
    """A list of scalars, such as sizes: each entry is a `Scalar`; ops accept it in place of a list of sizes."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self)


class Tensor(handles.Tensor):
    """A tensor of a definition; its sizes are values that ops record."""

    __slots__ = ()

    def size(self, dim: int) -> Any:
        """Record ``size`` and return the scalar."""
        return self.builder.ops.size(self, dim)

    def shape(self) -> Any:
        """Record ``shape`` and return the vector of all sizes."""
        return self.builder.ops.shape(self)

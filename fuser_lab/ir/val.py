"""Tensors of a fusion."""

from dataclasses import dataclass
from math import prod

from fuser_lab.dtypes import DataType
from fuser_lab.errors import VerificationError
from fuser_lab.ir.domain import TensorDomain
from fuser_lab.ir.scalar import Extent, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """A tensor value: ``name`` is ``T<number>`` in creation order."""

    name: str
    dtype: DataType
    domain: TensorDomain
    is_cpu: bool = False

    def __hash__(self) -> int:
        """Hash by name: names do not repeat within a fusion."""
        return hash(self.name)

    @property
    def ndim(self) -> int:
        """Number of axes of the value, without reductions."""
        return len(self.domain.axes)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Visible extent of each axis; may be symbolic before inputs are bound."""
        return self.domain.extents

    @property
    def shape(self) -> tuple[int, ...]:
        """Visible extents as ints; the fusion must be concretized.

        Raises
        ------
        VerificationError
            If an extent is still symbolic.
        """
        sizes = self.domain.sizes
        if sizes is None:
            symbolic = next(extent for extent in self.extents if not isinstance(extent, int))
            raise VerificationError(f"{self.name} has the symbolic extent {symbolic}; bind inputs first.")
        return sizes

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in memory: expanded broadcast axes count as 1, since they have stride 0."""
        return tuple([
            1 if axis.expanded is not None else size
            for axis, size in zip(self.domain.axes, self.shape, strict=True)
        ])

    @property
    def numel(self) -> int:
        """Number of visible elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the value occupies in memory."""
        stored = self.domain.stored
        return (prod(self.stored_shape) if stored is None else stored) * self.dtype.itemsize

    def __str__(self) -> str:
        """Return nvFuser's spelling for a global tensor, ``T0_g_float[iS0{i0}]``."""
        return self.to_text("g")

    def to_text(self, memory: str) -> str:
        """Return IR text with the memory letter ``g`` (global) or ``l`` (local)."""
        root = self.domain.root
        # Axes that an op derives from others are marked as nvFuser's rfactor products.
        made = () if root is None else set(self.domain.logical).difference(root)
        axes = ", ".join(f"{axis}rf" if axis in made else str(axis) for axis in self.domain.logical)
        return f"{self.name}_{memory}_{self.dtype.ir_name}[{axes}]"


Val = TensorView | Scalar

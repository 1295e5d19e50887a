"""New axes and symbols of a fusion."""

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Extent, IterDomain, IterType, Scalar


class AxisNumbers:
    """Creates axes and size symbols with numbers that are unused in one fusion."""

    def __init__(self) -> None:
        self._axes = 0
        self._symbols = 0

    def fresh(
        self, extent: Extent, kind: IterType = IterType.ITERATION, expanded: Extent | None = None,
    ) -> IterDomain:
        """Return a new axis."""
        axis = IterDomain(id=self._axes, extent=extent, kind=kind, expanded=expanded)
        self._axes += 1
        return axis

    def copy(self, axis: IterDomain) -> IterDomain:
        """Return a new axis with the extent, kind and expansion of another."""
        return self.fresh(axis.extent, axis.kind, axis.expanded)

    def symbol(self) -> Scalar:
        """Return a new integer scalar."""
        return self.scalar(DataType.Int)

    def scalar(self, dtype: DataType) -> Scalar:
        """Return a new scalar; the letter of its name indicates its kind, as in IR text."""
        letter = "bifc"[dtype.kind] if dtype is not DataType.Double else "d"
        scalar = Scalar(name=f"{letter}{self._symbols}", dtype=dtype)
        self._symbols += 1
        return scalar

"""The views' requirements for a plan: protocols that Plan, and small substitutes in tests, satisfy structurally."""

from collections.abc import Sequence
from typing import Protocol

from fuser_lab.ir import Expr, Fusion, TensorView, Val


class SegmentLike(Protocol):
    """One segment, which becomes one kernel. Views show ``bytes_*`` and ``verdicts`` if present."""

    @property
    def index(self) -> int:
        """Its position in run order."""

    @property
    def scheduler(self) -> object:
        """The scheduler type that accepted it, or None."""

    @property
    def exprs(self) -> Sequence[Expr]:
        """Its expressions in topological order, replicas among them."""

    @property
    def inputs(self) -> Sequence[Val]:
        """Values that it reads; the tensors among them come from memory."""

    @property
    def outputs(self) -> Sequence[TensorView]:
        """Tensors that it writes to memory."""


class PlanLike(Protocol):
    """A fusion with its segments in run order; views show ``decisions`` if present."""

    @property
    def name(self) -> str:
        """The name of the plan."""

    @property
    def strategy(self) -> str:
        """How the plan was made."""

    @property
    def hash(self) -> str:
        """The content hash."""

    @property
    def fusion(self) -> Fusion:
        """The fusion that is cut."""

    @property
    def segments(self) -> Sequence[SegmentLike]:
        """The segments in run order."""

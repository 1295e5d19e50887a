"""Iteration domains of tensors, after nvFuser's root / logical / allocation / loop domains."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from fuser_lab.errors import VerificationError
from fuser_lab.ir.scalar import Extent


class IterType(enum.Enum):
    """The role of an axis; the values are the letters of IR text."""

    ITERATION = "i"
    REDUCTION = "r"
    BROADCAST = "b"
    SYMBOLIC = "?"  # an axis of a result that may become a broadcast axis once its size is known


@dataclass(frozen=True, slots=True, kw_only=True)
class IterDomain:
    """One axis: ``id`` is unique in its fusion, a broadcast axis has extent 1 and possibly an expanded extent."""

    id: int
    extent: Extent
    kind: IterType = IterType.ITERATION
    expanded: Extent | None = None

    def __post_init__(self) -> None:
        """Reject extents below zero and broadcast axes whose extent is not 1."""
        if isinstance(self.extent, int) and self.extent < 0:
            raise VerificationError(f"axis {self.id} has extent {self.extent}; an extent is 0 or more.")
        if self.kind is IterType.BROADCAST and self.extent != 1:
            raise VerificationError(f"broadcast axis {self.id} has extent {self.extent}; it must be 1.")
        if self.expanded is not None and self.kind in _PLAIN:
            raise VerificationError(f"axis {self.id} is expanded but is not a broadcast axis.")

    def __hash__(self) -> int:
        """Hash by id: ids do not repeat within a fusion."""
        return hash(self.id)

    @property
    def is_broadcast(self) -> bool:
        """Whether the axis is a broadcast axis."""
        return self.kind is IterType.BROADCAST

    @property
    def is_reduction(self) -> bool:
        """Whether the axis is reduced."""
        return self.kind is IterType.REDUCTION

    @property
    def visible_extent(self) -> Extent:
        """Size that readers of the tensor see: the expanded extent if there is one."""
        return self.extent if self.expanded is None else self.expanded

    def __str__(self) -> str:
        """Return nvFuser's spelling, ``iS0{i0}`` or ``bS4{1 ex 8}``."""
        inside = f"{self.extent}" if self.expanded is None else f"{self.extent} ex {self.expanded}"
        return f"{self.kind.value}S{self.id}{{{inside}}}"


_PLAIN = (IterType.ITERATION, IterType.SYMBOLIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """``source -> outer, inner`` with the inner extent, or else the outer one, equal to ``factor``."""

    source: IterDomain
    factor: int
    outer: IterDomain
    inner: IterDomain
    inner_split: bool = True

    def __str__(self) -> str:
        """Return nvFuser's line for a split."""
        kind = "Split" if self.inner_split else "Outer split"
        return f"{kind}: {self.source} by factor {self.factor} -> {self.outer}, {self.inner}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """``outer, inner -> result``, row-major."""

    outer: IterDomain
    inner: IterDomain
    result: IterDomain

    def __str__(self) -> str:
        """Return nvFuser's line for a merge."""
        return f"Merge: {self.outer} and {self.inner} -> {self.result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """``source -> result`` with ``left`` and ``right`` elements added (negative: removed)."""

    source: IterDomain
    left: Extent
    right: Extent
    result: IterDomain

    def __str__(self) -> str:
        """Return nvFuser's line for a resize."""
        return f"Resize: {self.source} by {self.left} and {self.right} -> {self.result}"


DomainTransform = Split | Merge | Resize


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderHint:
    """A proposed memory order of a tensor, which may be ignored.

    ``order`` lists positions of axes, slowest first. ``origin`` names the tensor that it follows, ``strength`` is the
    number of innermost axes that agree with it.
    """

    order: tuple[int, ...]
    origin: str
    strength: int


def allocation_of(stride_order: Sequence[int]) -> tuple[int, ...]:
    """Return positions of axes, slowest in memory first, from the rank of each axis counted from the fastest."""
    return tuple(sorted(range(len(stride_order)), key=lambda axis: -stride_order[axis]))


def stride_order_of(allocation: Sequence[int]) -> tuple[int, ...]:
    """Return the rank of each axis counted from the fastest, from positions of axes, slowest in memory first."""
    ranks = [0] * len(allocation)
    for rank, axis in enumerate(reversed(allocation)):
        ranks[axis] = rank
    return tuple(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDomain:
    """Axes of a tensor.

    ``logical`` holds the axes a user sees plus the reduction axes of the defining expression. ``root`` is set when
    ``transforms`` lead from it to ``logical`` (reshape, resize). ``allocation`` lists positions among the non-reduction
    axes, slowest in memory first. ``contiguity`` follows ``allocation`` and is None exactly for broadcast axes.
    ``axes`` are the logical axes without reductions: the axes of the value in memory. ``extents`` are their visible
    sizes and ``sizes`` the same as ints, None while one of them is symbolic; ``stored`` is the number of elements in
    memory, in which an expanded axis counts once. ``hint`` is a layout that an inference proposed: it is not part of
    the tensor's identity, and ``allocation`` need not follow it.
    """

    logical: tuple[IterDomain, ...]
    root: tuple[IterDomain, ...] | None = None
    transforms: tuple[DomainTransform, ...] = ()
    allocation: tuple[int, ...] | None = None
    contiguity: tuple[bool | None, ...] | None = None
    hint: OrderHint | None = field(default=None, compare=False)
    axes: tuple[IterDomain, ...] = field(init=False, repr=False, compare=False)
    extents: tuple[Extent, ...] = field(init=False, repr=False, compare=False)
    sizes: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    stored: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the non-reduction axes, and check that the layout describes them."""
        axes = tuple([axis for axis in self.logical if axis.kind is not IterType.REDUCTION])
        extents = tuple([axis.extent if axis.expanded is None else axis.expanded for axis in axes])
        sizes = tuple([extent for extent in extents if isinstance(extent, int)])
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "extents", extents)
        has_sizes = len(sizes) == len(extents)
        object.__setattr__(self, "sizes", sizes if has_sizes else None)
        stored = [size for axis, size in zip(axes, sizes, strict=True) if axis.expanded is None] if has_sizes else ()
        object.__setattr__(self, "stored", prod(stored) if has_sizes else None)
        if self.allocation is not None and sorted(self.allocation) != list(range(len(axes))):
            raise VerificationError(f"allocation order {self.allocation} is not a permutation of {len(axes)} axes.")
        if self.contiguity is not None:
            if len(self.contiguity) != len(axes):
                raise VerificationError(f"contiguity has {len(self.contiguity)} entries for {len(axes)} axes.")
            for position, flag in zip(self.allocation_order, self.contiguity, strict=True):
                if (flag is None) is not axes[position].is_broadcast:
                    raise VerificationError(
                        f"contiguity is {flag} on axis {position} ({axes[position]}); "
                        "it is None exactly on broadcast axes."
                    )

    @property
    def root_or_logical(self) -> tuple[IterDomain, ...]:
        """Axes that match the producers' axes: root if there is one, else logical."""
        return self.logical if self.root is None else self.root

    @property
    def allocation_order(self) -> tuple[int, ...]:
        """Positions of the non-reduction axes, slowest in memory first."""
        return tuple(range(len(self.axes))) if self.allocation is None else self.allocation

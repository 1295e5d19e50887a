"""A segment's schedule set by hand, and the part of a plan's interface that segments use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fuser_lab import targets
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion
from fuser_lab.ir.transform import Transform
from fuser_lab.report.subject import PlanLike
from fuser_lab.schedule.parameters import LoopChange, NestChoice
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmentedFusion


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEdit:
    """A segment's schedule set by hand, identified by the names of its expressions so that other edits keep it.

    ``changes`` are the parameters of a schedule that the scheduler writes; ``loops`` is any other schedule, lowered
    loop by loop. At most one of the two is non-empty.
    """

    exprs: tuple[str, ...]
    changes: tuple[LoopChange, ...] = ()
    loops: tuple[Transform, ...] = ()


class SegmentsPlan(PlanLike, Protocol):
    """The part of a plan's interface that segments use."""

    @property
    def segmented(self) -> SegmentedFusion:
        """The fusion with its segments."""

    @property
    def oracle(self) -> SchedulerRegistry:
        """The schedulers, and the device that they are for."""

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Names of tensors with their lines in the user's code."""

    @property
    def inputs(self) -> Sequence[object]:
        """The inputs as they were described."""

    @property
    def idle(self) -> frozenset[int]:
        """Numbers of the segments that only make views, for which nothing is launched."""

    @property
    def bases(self) -> Mapping[str, str]:
        """The tensor in whose memory each result of the segments that launch nothing is, by name."""

    @property
    def crossing_bytes(self) -> Mapping[str, int]:
        """Bytes that a kernel writes and another reads, by the name of each tensor that passes between segments."""

    @property
    def schedules(self) -> tuple[SegmentEdit, ...]:
        """The schedules set by hand."""


class ScheduledSegment(Protocol):
    """The part of a segment's interface that its schedule uses."""

    @property
    def plan(self) -> SegmentsPlan:
        """The plan."""

    @property
    def fusion(self) -> Fusion:
        """The segment as a separate fusion."""

    @property
    def scheduler(self) -> SchedulerType | None:
        """The scheduler that accepts the segment, or None."""

    @property
    def changes(self) -> tuple[LoopChange, ...]:
        """Parameters set by hand."""

    @property
    def loops(self) -> tuple[Transform, ...]:
        """The schedule set by hand if it is lowered loop by loop."""

    def params(self, target: str = targets.CUDA.name) -> tuple[NestChoice, ...]:
        """Return the nests of the kernel for a target."""

"""Plans with the predicted seconds of their segments, and which of two plans is faster despite the errors of these."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import Work, product_flops, repeated_work
from fuser_lab.segmentation.events import Attempt
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup

PHASE = "fastest"  # of the attempts that make these plans
# Part of the time of a launch by which a gap between two kernels is longer if the host launches each than in a CUDA
# graph: plans of 5, 12, 23 and 37 tiny kernels took 0.5 to 0.7 us per kernel longer than predicted (H200, 2026-11-30).
IN_STREAM = 0.15
DISTINCT = 0.05  # part of the bottom-up plan's time that another plan has to save
LEAST_SAVED = 0.5e-6  # seconds that it has to save besides: smaller differences are within the clock's error
# Errors of two kernels' times are independent, so the error of the difference of two plans grows with the root of the
# sum of the squares of the times of the kernels that only one of them has. A plan has to save the first part of that
# error; the second part if it moves more bytes than the other plan and its arithmetic does not make up for them, so
# that only the clock prefers it. Errors are not independent if a plan does a part of the work of the other plan; then
# the clock is sure.
ERROR, ERROR_ONE_MODEL = 0.08, 0.22


class Clock(Protocol):
    """Predicts times of kernels as scheduled, which depend on their memory accesses."""

    def idle(self, segmented: SegmentedFusion) -> AbstractSet[int]:
        """Return the numbers of the segments of a plan that only make views, which take no time."""

    def seconds(self, segmented: SegmentedFusion, *, limited: bool = True) -> Sequence[float | None]:
        """Return the seconds of each segment; None for one that it does not know and is, if limited, too expensive."""

    def is_sure(self, faster: SegmentedFusion, slower: SegmentedFusion) -> bool:
        """Return whether one plan is faster than another whatever the errors of what both times depend on."""


def time_model_of(oracle: object) -> TimeModel:
    """Return the time model of an oracle's device by its data sheet, or of the default device."""
    device = getattr(oracle, "device", None)
    return TimeModel.of() if device is None else TimeModel.of(device)


def predict_seconds(segmented: SegmentedFusion, model: TimeModel, views: AbstractSet[int]) -> float:
    """Return the predicted seconds of a plan by bytes and arithmetic; ``views`` are segments that only make views."""
    return sum(seconds_by_bytes(segmented, model, views))


def seconds_by_bytes(
    segmented: SegmentedFusion, model: TimeModel, views: AbstractSet[int] = frozenset(),
) -> list[float]:
    """Return the predicted seconds of each segment by bytes and arithmetic; those of ``views`` are 0."""
    return [
        0.0 if number in views else model.seconds(group.moved, work_in(group, model), product_flops(group.exprs))
        for number, group in enumerate(segmented.groups)
    ]


def work_in(group: SegmentedGroup, model: TimeModel) -> Work:
    """Return the work of a segment on the device of a model."""
    return model.work(group.exprs) if model.repeats else group.work


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlan:
    """A plan that schedulers accept, the predicted seconds of its segments, and the attempts that make it.

    ``launch`` are the seconds in which the host launches a kernel of a program that runs on a GPU; 0 if a CUDA graph
    launches all kernels, as the clock assumes.
    """

    segmented: SegmentedFusion
    times: tuple[float, ...]
    attempts: tuple[Attempt, ...]
    launch: float = 0.0

    @property
    def seconds(self) -> float:
        """Predicted seconds of the plan's kernels and of the gaps between them."""
        return sum(self.times) + IN_STREAM * self.on_host

    @property
    def on_host(self) -> float:
        """Seconds in which the host launches the plan's kernels."""
        return self.launch * sum(map(bool, self.times))

    @property
    def moved(self) -> int:
        """Bytes that the plan moves."""
        return sum(group.moved for group in self.segmented.groups)

    @property
    def kernels(self) -> frozenset[tuple[object, ...]]:
        """A key that two plans of one definition share if they have the same kernels."""
        return frozenset(map(_kernel, self.segmented.groups))

    @property
    def is_beyond(self) -> bool:
        """Whether an open scheduler accepts some segment that nvFuser's schedulers refuse."""
        return any(verdict.beyond for group in self.segmented.groups for verdict in group.verdicts[-1:])


def is_faster(plan: TimedPlan, first: TimedPlan, clock: Clock, model: TimeModel) -> bool:
    """Whether a plan saves more of the time of another than the clock's error, or does not depend on it."""
    saved = first.seconds - plan.seconds
    if saved < LEAST_SAVED:
        return False
    squares = sum(
        seconds**2 for either, others in ((plan, first.kernels), (first, plan.kernels))
        for group, seconds in zip(either.segmented.groups, either.times, strict=True) if _kernel(group) not in others
    )
    more = plan.moved > first.moved
    alone = more and _seconds_with_repeats(plan, model) >= _seconds_with_repeats(first, model)
    error = max(DISTINCT * first.seconds + LEAST_SAVED, (ERROR_ONE_MODEL if alone else ERROR) * sqrt(squares))
    return saved >= error or (not more and clock.is_sure(plan.segmented, first.segmented))


def _seconds_with_repeats(plan: TimedPlan, model: TimeModel) -> float:
    """Return the seconds of a plan by bytes and arithmetic; copies of a broadcast value are computed one by one."""
    return sum(
        model.seconds(group.moved, repeated_work(group.exprs), product_flops(group.exprs))
        for group in plan.segmented.groups
    )


def _kernel(group: SegmentedGroup) -> tuple[object, ...]:
    """Return a key that segments of two plans of one definition share if they are the same kernel."""
    return group.names, tuple([tensor.name for tensor in group.outputs]), group.scheduler

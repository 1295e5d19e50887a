"""One loop of a tensor that is scheduled by hand, as ``tensor.axis(position)`` gives it."""

from enum import Enum
from typing import Any, Protocol

from fuser_lab.definition.owner import Owner
from fuser_lab.errors import ScheduleError
from fuser_lab.ir import IterDomain
from fuser_lab.ir.transform import ScheduledTensor, axis_text


class Looped(Protocol):
    """A tensor with loops, as its axes see it."""

    val: Any
    builder: Owner

    @property
    def scheduled(self) -> ScheduledTensor:
        """The tensor with its loops."""

    def parallelize(self, axis: int, ptype: Enum) -> None:
        """Let blocks, threads or a vector access run the iterations of a loop."""


class LoopAxis:
    """A loop of a tensor; it remains the same loop when others are moved, split or merged."""

    __slots__ = ("axis", "tensor")

    def __init__(self, axis: IterDomain, tensor: Looped) -> None:
        self.axis, self.tensor = axis, tensor

    def _position(self, method: str) -> int:
        for position, axis in enumerate(self.tensor.scheduled.loop):
            if axis.id == self.axis.id:
                return position
        raise ScheduleError(f"{method}: {self.axis} is not, or is no longer, a loop of {self.tensor.val.name}.")

    def is_reduction(self) -> bool:
        """Whether the axis is reduced."""
        return self.axis.is_reduction

    def is_broadcast(self) -> bool:
        """Whether the axis is a broadcast axis."""
        return self.axis.is_broadcast

    def extent(self) -> Any:
        """Return the number of iterations: an int if it is known, otherwise an integer scalar."""
        return self.tensor.builder.wrap(self.axis.extent)

    def parallelize(self, ptype: Enum) -> None:
        """Let blocks, threads or a vector access run this loop's iterations; ScheduleError if it is not a loop now."""
        self.tensor.parallelize(self._position("parallelize"), ptype)

    def __str__(self) -> str:
        """Return IR text with the current parallel type."""
        places = [n for n, axis in enumerate(self.tensor.scheduled.loop) if axis.id == self.axis.id]
        return axis_text(self.axis, self.tensor.scheduled.parallel_type(places[0])) if places else str(self.axis)

    __repr__ = __str__

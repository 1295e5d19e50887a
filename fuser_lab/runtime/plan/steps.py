"""The segments of a prepared plan as steps of a run, which may be bound to arrays, and cancelled between steps."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion
from fuser_lab.process.forks import renew_in_forks

Segment = tuple[Fusion, SchedulerType | None]


class Cancelled(Exception):  # noqa: N818 - an outcome that the caller asked for
    """Raised between two segments after `CancelFlag.set`."""


class CancelFlag(threading.Event):
    """Set from another thread to end a run or a measurement at the next segment."""

    def __init__(self) -> None:
        super().__init__()
        renew_in_forks(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One segment, ready to run: its kernel, or None and the reason if the array library evaluates it.

    A segment that leads only to results that are views of inputs does not run, nor does one that only reshapes a
    result. ``in_lock_step`` says that the kernel is a CUDA kernel scheduled by hand, which the host evaluates.
    """

    request: KernelRequest
    generated: GeneratedKernel | None
    evaluated_because: str = ""
    runs: bool = True
    in_lock_step: bool = False

    @property
    def fusion(self) -> Fusion:
        """The segment."""
        return self.request.fusion

    @property
    def scheduler(self) -> SchedulerType | None:
        """The scheduler that accepts the segment, or None."""
        return self.request.scheduler


@dataclass(slots=True, kw_only=True)
class BoundRun:
    """A plan bound to inputs and outputs: call the `steps` one by one, any number of times, then `finish`."""

    steps: tuple[Callable[[], None], ...]
    outputs: list[Any]
    finish: Callable[[], None]

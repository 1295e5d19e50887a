"""The type of ``fd.sched`` inside ``schedule(self)``: transforms, and queries about the given inputs."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fuser_lab.bindings import schedule as questions
from fuser_lab.bindings.enums import SchedulerType, own_scheduler
from fuser_lab.bindings.schedule import HeuristicParams
from fuser_lab.definition.owner import Owner
from fuser_lab.definition.schedulable import Transforms
from fuser_lab.errors import DefinitionError, StateError, UnsupportedError
from fuser_lab.schedule.by_hand import apply_schedule


class Params:
    """The open parameters of a scheduler's schedule as transforms, which can be changed before `Sched.schedule`.

    Attributes
    ----------
    vectorization_factor
        Elements of one memory access.
    threads
        Threads of a block.
    """

    def __init__(self, params: HeuristicParams) -> None:
        self.scheduler = params.scheduler
        self._found = params
        self.vectorization_factor = params.hand.vector
        self.threads = params.hand.threads

    def heuristic(self) -> HeuristicParams:
        """Return the current parameters."""
        hand = replace(self._found.hand, vector=int(self.vectorization_factor), threads=int(self.threads))
        return replace(self._found, hand=hand)

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{self.scheduler.value}: vectorization_factor={self.vectorization_factor}, threads={self.threads}>"


class Scheduled(Owner, Protocol):
    """A definition with the requests of its ``schedule``."""

    scheduler: HeuristicParams | None
    chosen: Params | None


class Sched(Transforms):
    """The schedule by hand of a definition; axes are named ``dim`` as in nvFuser."""

    def __init__(self, fd: Scheduled, inputs: Sequence[Any] | None) -> None:
        super().__init__(fd)
        self._fd = fd
        self._inputs = inputs

    def split(self, arg: Any, dim: int, factor: int, inner_split: bool = True) -> None:
        """Split an axis into two, the inner or the outer one of extent ``factor``."""
        super().split(arg, dim, factor, inner_split)

    def merge(self, arg: Any, dim: int, dim_inner: int | None = None) -> None:
        """Merge an axis with the next one, or with another."""
        super().merge(arg, dim, dim_inner)

    def reorder(self, arg: Any, old2new: Mapping[int, int] | Sequence[int]) -> None:
        """Move axes to new positions."""
        super().reorder(arg, old2new)

    def rfactor(self, arg: Any, dims: Iterable[int]) -> Any:
        """Compute part of a reduction in a separate tensor, and return it."""
        return super().rfactor(arg, dims)

    def reduction_factor(self, arg: Any, dims: Iterable[int]) -> Any:
        """Same as `rfactor`."""
        return self.rfactor(arg, dims)

    def _ready(self, name: str) -> Sequence[Any]:
        if self._inputs is None:
            msg = f"{name}: schedulers can be queried only inside schedule(self), which execute calls with the inputs."
            raise StateError(msg)
        return self._inputs

    def can_schedule(self, scheduler_type: SchedulerType) -> tuple[bool, str]:
        """Return whether a scheduler accepts the whole fusion for the given inputs, and the reason if not."""
        return questions.can_schedule(self._fd, scheduler_type, self._ready("can_schedule"))

    def find_compatible_schedulers(self) -> list[SchedulerType]:
        """Return the schedulers that accept the whole fusion for the given inputs."""
        return questions.find_compatible_schedulers(self._fd, self._ready("find_compatible_schedulers"))

    def compute_heuristics(self, scheduler_type: SchedulerType) -> Params:
        """Return a scheduler's parameters for the given inputs; `schedule` without arguments uses them.

        Raises
        ------
        DefinitionError
            If it does not accept the fusion; the message says why.
        """
        params = questions.compute_heuristics(self._fd, scheduler_type, self._ready("compute_heuristics"))
        self._fd.chosen = Params(params)
        return self._fd.chosen

    def compute_pointwise_heuristics(self) -> Params:
        """Return the pointwise scheduler's parameters."""
        return self.compute_heuristics(SchedulerType.pointwise)

    def compute_reduction_heuristics(self) -> Params:
        """Return the reduction scheduler's parameters."""
        return self.compute_heuristics(SchedulerType.reduction)

    def compute_matmul_heuristics(self) -> Params:
        """Return the matmul scheduler's parameters."""
        return self.compute_heuristics(SchedulerType.matmul)

    def schedule(self, scheduler_type: SchedulerType | None = None) -> None:
        """Let a scheduler schedule the fusion: with the parameters that were computed last, or with its own.

        If its schedule exists as transforms, these are added and can be read and changed; otherwise the automatic
        kernel is generated.

        Raises
        ------
        DefinitionError
            If the scheduler does not accept the fusion, or none is named and no parameters were computed.
        """
        chosen = self._fd.chosen
        if scheduler_type is not None and (chosen is None or chosen.scheduler is not own_scheduler(scheduler_type)):
            chosen = Params(questions.compute_heuristics(self._fd, scheduler_type, self._ready("schedule")))
        if chosen is None:
            msg = "schedule: no parameters were computed; name a scheduler, or call compute_heuristics first."
            raise DefinitionError(msg)
        params = self._fd.scheduler = chosen.heuristic()
        with contextlib.suppress(UnsupportedError):
            apply_schedule(self._hand, params.scheduler, params.hand)

"""Queries to schedulers, and the schedule by hand of a definition, under nvFuser's names."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.bindings.enums import SchedulerType, own_scheduler
from fuser_lab.cost import verdict
from fuser_lab.definition.binding import bind
from fuser_lab.definition.schedulable import Transforms
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError
from fuser_lab.ir import Fusion
from fuser_lab.passes import PRESEGMENTATION
from fuser_lab.plan.planning import definition_of, described_input, flatten
from fuser_lab.schedule.by_hand import HandParams, apply_schedule, params_for
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation.oracle import candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicParams:
    """The scheduler of a kernel, and the open parameters of its schedule as transforms.

    Everything else is decided when the kernel is generated.
    """

    scheduler: verdict.SchedulerType
    hand: HandParams = field(default_factory=HandParams)

    def __str__(self) -> str:
        """Return the parameters as nvFuser prints those of its schedulers: a title, then one line each."""
        title = f"===== {self.scheduler.value.replace('_', ' ').title()} Parameters ========"
        chosen = f" vectorization_factor: {self.hand.vector}\n block(x): {self.hand.threads}"
        return f"\n{title}\n{chosen}\n{'=' * len(title)}\n"


def can_schedule(fusion: object, scheduler_type: object, inputs: Iterable[Any]) -> tuple[bool, str]:
    """Return whether a scheduler accepts the whole fusion for these inputs, and the reason if not.

    Parameters
    ----------
    fusion
        A fusion or a definition.
    scheduler_type
        The scheduler to ask.
    inputs
        Arrays, abstract inputs and numbers.
    """
    scheduler = own_scheduler(scheduler_type)
    if scheduler is None:
        return False, "SchedulerType.none does not accept any fusion."
    described = [described_input(value) for value in flatten(inputs)]
    whole = PRESEGMENTATION.run(bind(definition_of(fusion), described).fusion)
    others = frozenset(verdict.SchedulerType) - {scheduler}
    answer = SchedulerRegistry(disabled=others).ask(candidate(whole, whole.exprs))
    said = next(v for v in answer.verdicts if v.scheduler is scheduler)
    return said.accepted, "" if said.accepted else f"Scheduler _{scheduler.value}_ ***rejected*** because : {said.text}"


def find_compatible_schedulers(fusion: object, inputs: Iterable[Any]) -> list[SchedulerType]:
    """Return the schedulers that accept the whole fusion for these inputs."""
    flat = flatten(inputs)
    return [s for s in SchedulerType if s is not SchedulerType.none and can_schedule(fusion, s, flat)[0]]


def compute_heuristics(fusion: object, scheduler_type: object, inputs: Iterable[Any]) -> HeuristicParams:
    """Return the parameters for `schedule` and ``manual_execute`` of a scheduler that accepts the fusion.

    Raises
    ------
    DefinitionError
        If it does not accept it; the message says why.
    """
    flat = flatten(inputs)
    scheduler = own_scheduler(scheduler_type)
    taken, why = can_schedule(fusion, scheduler_type, flat)
    if scheduler is None or not taken:
        raise DefinitionError(f"compute_heuristics: {why}")
    return HeuristicParams(scheduler=scheduler, hand=params_for(definition_of(fusion)))


def schedule(fusion: Any, scheduler_type: object, inputs: Any) -> HeuristicParams:
    """Let a scheduler generate the fusion's kernel, for ``manual_execute`` and KernelExecutor.

    If its schedule exists as transforms (`fuser_lab.schedule.by_hand`), these are added and can be read and changed;
    otherwise only the scheduler is recorded, and the automatic kernel is generated.

    Parameters
    ----------
    fusion
        A Fusion.
    scheduler_type
        The scheduler.
    inputs
        Inputs, or the result of `compute_heuristics` for them.
    """
    params = _params(fusion, scheduler_type, inputs)
    fusion.scheduler = params.scheduler
    hand = fusion.hand
    if not hand.transforms:
        with contextlib.suppress(UnsupportedError):
            apply_schedule(hand, params.scheduler, params.hand)
    return params


def _params(fusion: Any, scheduler_type: object, inputs: Any) -> HeuristicParams:
    if not isinstance(inputs, HeuristicParams):
        return compute_heuristics(fusion, scheduler_type, inputs)
    if inputs.scheduler is not own_scheduler(scheduler_type):
        raise DefinitionError(f"schedule: the parameters are for {inputs.scheduler.value}, not for {scheduler_type}.")
    return inputs


class Sched(Transforms):
    """The type of ``fd.sched``: the schedule by hand of a definition, and queries to schedulers."""

    can_schedule = staticmethod(can_schedule)
    find_compatible_schedulers = staticmethod(find_compatible_schedulers)
    compute_heuristics = staticmethod(compute_heuristics)

    def schedule(self, *args: Any) -> HeuristicParams | None:
        """Add the transforms of a scheduler: ``schedule(scheduler_type)``, or ``schedule(fusion, type, inputs)``.

        The first form needs no inputs, and raises UnsupportedError if there are no transforms; the second is that of
        nvFuser's module (`schedule`).
        """
        if len(args) == 1:
            scheduler = own_scheduler(args[0])
            if scheduler is None:
                raise DefinitionError("schedule: SchedulerType.none is not a scheduler.")
            apply_schedule(self._hand, scheduler)
            return None
        if len(args) == 3 and isinstance(args[0], Fusion):
            params = _params(args[0], args[1], args[2])
            apply_schedule(self._hand, params.scheduler, params.hand)
            return params
        if len(args) != 3:
            msg = f"schedule: give a SchedulerType, or a fusion, a SchedulerType and inputs; given {len(args)}."
            raise ArgumentTypeError(msg)
        return schedule(*args)

"""Questions to schedulers under nvFuser's names; schedules of the user's own are not supported."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from fuser_lab.cost import verdict
from fuser_lab.definition.binding import bind
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.nvfuser_direct.enums import SchedulerType, own_scheduler
from fuser_lab.passes import PRESEGMENTATION
from fuser_lab.planning import definition_of, described_input, flattened
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation.oracle import candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicParams:
    """Who shall make the kernel; what it chooses is decided when the kernel is generated."""

    scheduler: verdict.SchedulerType


def can_schedule(fusion: object, scheduler_type: object, inputs: Iterable[Any]) -> tuple[bool, str]:
    """Return whether a scheduler takes the whole fusion for these inputs, and if not why.

    Parameters
    ----------
    fusion
        A fusion or a definition.
    scheduler_type
        The scheduler to ask.
    inputs
        Arrays, abstract inputs and numbers.
    """
    wanted = own_scheduler(scheduler_type)
    if wanted is None:
        return False, "SchedulerType.none takes no fusion."
    described = [described_input(value) for value in flattened(inputs)]
    whole = PRESEGMENTATION.run(bind(definition_of(fusion), described).fusion)
    others = frozenset(verdict.SchedulerType) - {wanted}
    answer = SchedulerRegistry(disabled=others).ask(candidate(whole, whole.exprs))
    said = next(v for v in answer.verdicts if v.scheduler is wanted)
    return said.accepted, "" if said.accepted else f"Scheduler {wanted.value} ***rejected*** because : {said.text}"


def find_compatible_schedulers(fusion: object, inputs: Iterable[Any]) -> list[SchedulerType]:
    """Return the schedulers that take the whole fusion for these inputs."""
    flat = flattened(inputs)
    return [s for s in SchedulerType if s is not SchedulerType.none and can_schedule(fusion, s, flat)[0]]


def compute_heuristics(fusion: object, scheduler_type: object, inputs: Iterable[Any]) -> HeuristicParams:
    """Return what `schedule` and ``manual_execute`` take, for a scheduler that takes the fusion.

    Raises
    ------
    DefinitionError
        If it does not; the text says why.
    """
    flat = flattened(inputs)
    wanted = own_scheduler(scheduler_type)
    taken, why = can_schedule(fusion, scheduler_type, flat)
    if wanted is None or not taken:
        msg = f"compute_heuristics: {why}"
        raise DefinitionError(msg)
    return HeuristicParams(scheduler=wanted)


def schedule(fusion: Any, scheduler_type: object, inputs: Any) -> HeuristicParams:
    """Note that a scheduler shall make the kernel of the fusion, for ``manual_execute`` and KernelExecutor.

    Parameters
    ----------
    fusion
        A Fusion.
    scheduler_type
        The scheduler.
    inputs
        Inputs, or what `compute_heuristics` has returned for them.
    """
    if isinstance(inputs, HeuristicParams):
        params = inputs
        if params.scheduler is not own_scheduler(scheduler_type):
            msg = f"schedule: the parameters are for {params.scheduler.value}, not for {scheduler_type}."
            raise DefinitionError(msg)
    else:
        params = compute_heuristics(fusion, scheduler_type, inputs)
    fusion.scheduler = params.scheduler
    return params


def _unsupported(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        msg = f"schedule.{name}: schedules of the user's own are not supported; execute schedules by itself."
        raise UnsupportedError(msg)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raise UnsupportedError."
    return refuse


bounded_transform_backward = _unsupported("bounded_transform_backward")
transform_like = _unsupported("transform_like")
parallelize_like = _unsupported("parallelize_like")
inline_most = _unsupported("inline_most")
inline_at = _unsupported("inline_at")
warp_specialize = _unsupported("warp_specialize")

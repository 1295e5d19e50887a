"""The schedule of a plan's segment as transforms: what its scheduler proposes, and what a user gives instead."""

import html
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.generate import GeneratedKernel
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.schedule_reading import read_schedule
from fuser_lab.definition.scheduling import RULES, HandSchedule, Steps, steps_of
from fuser_lab.errors import ArgumentTypeError, ScheduleError, UnsupportedError
from fuser_lab.ir import Fusion
from fuser_lab.ir.loop_nest import nest_or_reason
from fuser_lab.ir.replay import apply, replay
from fuser_lab.ir.transform import ScheduledFusion, Transform
from fuser_lab.runtime.by_hand import generate_scheduled
from fuser_lab.schedule.by_hand import left_out, params_of, proposals
from fuser_lab.schedule.parameters import NestChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchedule:
    """The schedule of one segment: transforms over its fusion, and the reasons for their parameters.

    It prints as the Python that schedules the segment's fusion ``fd`` by hand. `fuser_lab.Plan.with_schedule` accepts
    this text, edited, or the transforms. In ``fusion`` all sizes are known, and a Welford is a mean and a sum of
    squares.
    """

    fusion: Fusion
    transforms: tuple[Transform, ...]
    reasons: tuple[str, ...] = ()

    @property
    def scheduled(self) -> ScheduledFusion:
        """The fusion with the loops, memories and compute-at positions that the transforms give it."""
        return replay(self.fusion, self.transforms, RULES)

    def to_python(self) -> str:
        """Return the transforms as Python for a definition ``fd`` of the segment; empty if there are none."""
        hand = HandSchedule(lambda: self.fusion)
        hand.extend(self.transforms)
        return hand.python_text()

    def steps(self) -> Steps:
        """Return each transform with the tensors that it changed, before and after; tables in a notebook."""
        return steps_of(self.fusion, self.transforms)

    def nests(self) -> tuple[str, ...]:
        """Return the loop nest as text before the first transform and after each, so one more than transforms."""
        scheduled = ScheduledFusion.start(self.fusion)
        found = [nest_or_reason(scheduled, RULES)]
        for transform in self.transforms:
            scheduled = apply(scheduled, transform, RULES)
            found.append(nest_or_reason(scheduled, RULES))
        return tuple(found)

    def __str__(self) -> str:
        """Return the reasons as comments, then the transforms as Python."""
        return "".join([*(f"# {reason}\n" for reason in self.reasons), self.to_python()])

    def _repr_html_(self) -> str:
        """Return the text as HTML."""
        return f"<pre>{html.escape(str(self))}</pre>"


Given = str | SegmentSchedule | Sequence[Transform] | Callable[[Any], object]


def proposed(
    fusion: Fusion, scheduler: SchedulerType, nests: Sequence[NestChoice], taken: Collection[str],
) -> SegmentSchedule:
    """Return the schedule that a scheduler proposes for a segment: the first of its forms that can be lowered.

    Parameters
    ----------
    fusion, scheduler
        The segment, and the scheduler that accepts it.
    nests
        The loops that the heuristics chose for the automatic CUDA kernel: their parameters are those of the schedule.
    taken
        Names that no new tensor may have.

    Raises
    ------
    UnsupportedError
        If transforms cannot express a schedule of this segment; the sentence says what they lack.
    """
    plain = decompose(fusion)
    nest = next((one for one in nests if one.space.reduces), nests[0])
    refused: Exception | None = None
    for found in proposals(plain, scheduler, params_of(nest.schedule), lambda: tuple(taken)):
        if isinstance(found, ScheduledFusion):
            try:
                generate_scheduled(found)
            except (ScheduleError, UnsupportedError) as error:
                refused = refused or error
                continue
            reasons = (*nest.schedule.reasons, *left_out(nest.schedule))
            return SegmentSchedule(fusion=plain, transforms=found.transforms, reasons=reasons)
        refused = refused or found
    msg = f"schedule: the transforms of {scheduler.value} do not fit this segment: {refused}"
    raise UnsupportedError(msg)


def kept(fusion: Fusion, transforms: Sequence[Transform]) -> SegmentSchedule:
    """Return the schedule that was given for a segment."""
    return SegmentSchedule(fusion=decompose(fusion), transforms=tuple(transforms))


def _check_takes_one(function: Callable[..., object]) -> None:
    """Raise for a function that cannot be called with one argument; an error inside it keeps its own message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        msg = (
            "with_schedule: schedule must be a function of one argument, the definition of the segment, given "
            f"{getattr(function, '__name__', type(function).__name__)}{signature} ({error})."
        )
        raise ArgumentTypeError(msg) from None


def given_schedule(fusion: Fusion, given: Given, taken: Collection[str]) -> SegmentSchedule:
    """Return the schedule that a user gives for a segment, after its kernel has been generated for dense inputs.

    Parameters
    ----------
    fusion
        The segment.
    given
        The Python of a schedule, a `SegmentSchedule`, transforms, or a function that schedules a definition of the
        segment by hand.
    taken
        Names that no new tensor may have.

    Raises
    ------
    ScheduleError
        If a transform is illegal or the schedule cannot be lowered for these sizes.
    UnsupportedError
        If it needs what no kernel here has.
    ArgumentTypeError
        If what is given is none of these.
    """
    plain = decompose(fusion)
    hand = HandSchedule(lambda: plain, taken=lambda: taken)
    builder = (FusionBuilder.public or FusionBuilder).of(plain)
    builder.hand = hand
    if isinstance(given, str):
        read_schedule(given, builder)
    elif isinstance(given, SegmentSchedule):
        hand.extend(given.transforms)
    elif isinstance(given, list | tuple) and all(isinstance(one, Transform) for one in given):
        hand.extend(given)
    elif callable(given):
        _check_takes_one(given)
        given(builder)
    else:
        msg = (
            "with_schedule: schedule must be the Python of a schedule, a SegmentSchedule, a list of transforms or a "
            f"function of a definition, given {type(given).__name__}."
        )
        raise ArgumentTypeError(msg)
    if not hand.transforms:
        msg = "with_schedule: the schedule has no transforms; None returns to the automatic kernel."
        raise ScheduleError(msg)
    generate_scheduled(hand.scheduled)
    return SegmentSchedule(fusion=plain, transforms=hand.transforms)


def scheduled_kernel(fusion: Fusion, transforms: Sequence[Transform], name: str | None = None) -> GeneratedKernel:
    """Return the CUDA kernel of a segment as transforms schedule it, for dense inputs."""
    return generate_scheduled(replay(decompose(fusion), transforms, RULES), name, outputs=fusion.outputs)


def content(fusion: Fusion, transforms: Sequence[Transform]) -> str:
    """Return what a schedule is, whatever the tensors are called: equal for equal schedules of equal segments."""
    names = {name: f"t{place}" for place, name in enumerate(decompose(fusion).tensors)}
    words = []
    for transform in transforms:
        for key, value in transform.args:
            if key == "result":
                names[str(value)] = f"m{len(names)}"
        words.append((transform.kind, names.get(transform.tensor, ""), _renamed(transform.args, names)))
    return repr(words)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(entry, names) for entry in value)
    return names.get(value, value) if isinstance(value, str) else value

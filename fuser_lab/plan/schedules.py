"""The schedule of a plan's segment as transforms: the scheduler's proposal, or a schedule set by the user."""

import html
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.pipeline import generate_scheduled, schedules_of
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.schedule_reading import read_schedule
from fuser_lab.definition.scheduling import RULES, HandSchedule, Steps, steps_of
from fuser_lab.errors import ArgumentTypeError, ScheduleError
from fuser_lab.ir import Fusion
from fuser_lab.ir.loop_nest import nest_or_reason
from fuser_lab.ir.replay import apply, replay
from fuser_lab.ir.transform import ScheduledFusion, Transform
from fuser_lab.plan.requests import request_of
from fuser_lab.plan.segment_edit import ScheduledSegment
from fuser_lab.schedule.parameters import LoopChange, NestChoice
from fuser_lab.schedule.templates import LOOPS_TARGET, Choices, Reading, following, line_of, read
from fuser_lab.targets import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchedule:
    """The schedule of one segment: transforms over its fusion, and the reasons for their parameters.

    ``meanings`` maps the index of a split among the transforms to the parameter that its factor is. ``params`` are the
    loops of the kernel's nests as the writers receive them, of which the transforms are the text; there are none if the
    transforms are lowered loop by loop.

    It prints as the Python that schedules the segment's fusion ``fd`` by hand. `fuser_lab.Plan.with_schedule` accepts
    this text, edited, or the transforms. In ``fusion`` all sizes are known, and a Welford is a mean and a sum of
    squares.
    """

    fusion: Fusion
    transforms: tuple[Transform, ...]
    reasons: tuple[str, ...] = ()
    meanings: tuple[tuple[int, str], ...] = ()
    params: tuple[NestChoice, ...] = field(default=(), compare=False, repr=False)

    @property
    def scheduled(self) -> ScheduledFusion:
        """The fusion with the loops, memories and compute-at positions that the transforms give it."""
        return replay(self.fusion, self.transforms, RULES)

    def to_python(self) -> str:
        """Return the transforms as Python for a definition ``fd`` of the segment; empty if there are none."""
        return self._text({})

    def _text(self, notes: Mapping[int, str]) -> str:
        hand = HandSchedule(lambda: self.fusion)
        hand.extend(self.transforms)
        return hand.python_text(notes)

    def steps(self) -> Steps:
        """Return each transform with the tensors that it changed, before and after; shown as tables in a notebook."""
        return steps_of(self.fusion, self.transforms)

    def nests(self) -> tuple[str, ...]:
        """Return the loop nest as text before the first transform and after each transform."""
        scheduled = ScheduledFusion.start(self.fusion)
        reasons = [nest_or_reason(scheduled, RULES)]
        for transform in self.transforms:
            scheduled = apply(scheduled, transform, RULES)
            reasons.append(nest_or_reason(scheduled, RULES))
        return tuple(reasons)

    def __str__(self) -> str:
        """Return the reasons as comments, then the transforms as Python."""
        return "".join([*(f"# {reason}\n" for reason in self.reasons), self._text(dict(self.meanings))])

    def _repr_html_(self) -> str:
        """Return the text as HTML."""
        return f"<pre>{html.escape(str(self))}</pre>"


Given = str | SegmentSchedule | Sequence[Transform] | Callable[[Any], object]


def running(segment: ScheduledSegment, target: str | None = None) -> SegmentSchedule:
    """Return the schedule of a segment's kernel for a target, by default of the CUDA kernel.

    Without a target, parameters set by hand for other targets follow as templates.
    """
    plain = decompose(segment.fusion)
    chosen = LOOPS_TARGET if target is None else target
    if segment.loops and target_of(chosen).has_blocks:
        because = kept_because(segment)
        return SegmentSchedule(fusion=plain, transforms=segment.loops, reasons=(because,) if because else ())
    nests = segment.params(chosen)
    taken = segment.plan.segmented.fusion.tensors
    assert segment.scheduler is not None
    schedule = segment.plan.oracle.heuristics(segment.scheduler).apply(plain, nests, taken)
    reasons = tuple(dict.fromkeys(reason for nest in nests for reason in nest.schedule.reasons))
    others = {change.target for change in segment.changes} - {chosen} if target is None else set()
    lines = [line_of(nest) for other in sorted(others) for nest in segment.params(other) if nest.is_changed]
    return SegmentSchedule(
        fusion=plain, transforms=(*schedule.transforms, *lines), reasons=(*reasons, *following(nests)),
        meanings=schedule.meanings, params=nests,
    )


def kept_because(segment: ScheduledSegment) -> str:
    """Return why a schedule set by hand is lowered loop by loop."""
    because = _reading(segment, segment.loops).because
    return f"Lowered loop by loop: {because}." if because else ""


def _reading(segment: ScheduledSegment, transforms: Sequence[Transform]) -> Reading:
    """Return what a schedule says about a segment's kernels."""
    def choices(target: str) -> Choices:
        request = replace(request_of(segment, target), loops=())

        def nests(changes: Sequence[LoopChange]) -> Sequence[NestChoice]:
            return schedules_of(replace(request, changes=changes))

        return nests

    return read(decompose(segment.fusion), transforms, choices, segment.plan.segmented.fusion.tensors)


def _check_takes_one(function: Callable[..., object]) -> None:
    """Raise for a function that cannot be called with one argument; an error inside it keeps its message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ArgumentTypeError(
            "with_schedule: schedule must be a function of one argument, the definition of the segment, given "
            f"{getattr(function, '__name__', type(function).__name__)}{signature} ({error})."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSchedule:
    """A schedule set by the user: its text, and what it says about the segment's kernels."""

    text: str
    reading: Reading


def given_schedule(segment: ScheduledSegment, given: Given) -> GivenSchedule:
    """Return the schedule that a user sets for a segment; its kernels are checked for dense inputs.

    Parameters
    ----------
    segment
        The segment.
    given
        The Python of a schedule, a `SegmentSchedule`, transforms, or a function that schedules a definition of the
        segment by hand.

    Raises
    ------
    ScheduleError
        If a transform is illegal or the schedule cannot be lowered for these sizes.
    UnsupportedError
        If it needs a feature that kernels do not support.
    ArgumentTypeError
        If ``given`` has another type.
    """
    fusion, taken = segment.fusion, segment.plan.segmented.fusion.tensors
    plain = decompose(fusion)
    hand = HandSchedule(lambda: plain, taken=lambda: taken)
    builder = (FusionBuilder.public or FusionBuilder).of(plain)
    builder.hand = hand
    if isinstance(given, str):
        read_schedule(given, builder)
    elif isinstance(given, SegmentSchedule):
        hand.extend(given.transforms)
    elif isinstance(given, list | tuple) and all(isinstance(entry, Transform) for entry in given):
        hand.extend(given)
    elif callable(given):
        _check_takes_one(given)
        given(builder)
    else:
        raise ArgumentTypeError(
            "with_schedule: schedule must be the Python of a schedule, a SegmentSchedule, a list of transforms or a "
            f"function of a definition, given {type(given).__name__}."
        )
    if not hand.transforms:
        raise ScheduleError("with_schedule: the schedule has no transforms; None returns to the automatic kernel.")
    reading = _reading(segment, hand.transforms)
    if reading.loops:
        generate_scheduled(hand.scheduled)
    return GivenSchedule(text=hand.python_text(), reading=reading)

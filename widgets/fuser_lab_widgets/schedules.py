"""The Schedule tab: the transforms of a kernel, each with the loop nest after it, and buttons that change one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from xml.etree.ElementTree import Element

from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.ir.kernel_transforms import TEMPLATES
from fuser_lab.ir.transform import Transform
from fuser_lab.report.markup import element, to_html
from fuser_lab_widgets.elements import button, note, table
from fuser_lab_widgets.session import EditablePlan

_MOST_LISTED: Final = 40  # segments with a button
_MOST_RANKED: Final = 8  # candidates


def panel(plan: EditablePlan, chosen: int, number: int, *, ranked: bool = False) -> str:
    """Return the schedule of a segment: its reasons, and each step with the loop nest after it.

    Parameters
    ----------
    plan
        The plan on show.
    chosen
        Number of the segment; the last one if there are fewer.
    number
        The plan's number, which buttons send, so that buttons of an earlier plan do nothing.
    ranked
        Whether other parameters are listed, in the order of their predicted times, which takes a second.
    """
    if not hasattr(plan, "with_schedule"):
        return to_html(note("This plan has no schedules."))
    chosen = min(chosen, len(plan.segments) - 1)
    segment: Any = plan.segments[chosen]
    event = {"type": "schedule", "segment": chosen, "plan": number}
    parts = [_segments(plan, chosen, number)]
    try:
        schedule = segment.schedule
    except FuserLabError as error:
        return to_html(element("div", *parts)) + to_html(note(str(error)))
    is_edited = segment.edit is not None
    parts.append(note(f"{len(schedule.transforms)} steps. {_about(segment)}"))
    parts += [note(_sentence(reason)) for reason in schedule.reasons]
    if is_edited:
        back = button("Return to the automatic kernel", event | {"given": False})
        parts.append(element("div", back, css="fx-actions"))
    if not segment.loops:
        parts.append(_ranking(segment, event, ranked=ranked))
    nests, meanings = schedule.nests(), dict(schedule.meanings)
    steps = [
        _step(place, transform, nests[place + 1], {"segment": chosen, "plan": number}, meanings.get(place, ""))
        for place, transform in enumerate(schedule.transforms)
    ]
    parts.append(element("ol", *steps, css="fx-decisions"))
    return "".join(map(to_html, parts))


def _ranking(segment: Any, event: dict[str, Any], *, ranked: bool) -> Element:
    """Return the first nest's candidates, predicted fastest first, or a button that asks for them."""
    if not ranked:
        return element("div", button("Rank other parameters", event | {"rank": True}), css="fx-actions")
    ranking = segment.candidates()
    rows = [
        (
            element("code", candidate.text), candidate.ratio_text,
            button("Use", event | {"nest": 0, "values": dict(candidate.values)}),
        )
        for candidate in ranking.ranked[:_MOST_RANKED]
    ]
    columns = ("parameters", "predicted ratio", "")
    return element("div", table(columns, rows, numeric=columns[1:2], caption=ranking.note), css="fx-scroll")


def _about(segment: Any) -> str:
    """Return what runs: the scheduler's kernel, with these numbers or others, or the loops one by one."""
    if segment.edit is None:
        return (
            "This is the schedule of the kernel that runs. Open a step for the loops after it, and for buttons that "
            "change one of its numbers, and so the kernel; an illegal change is refused with a reason."
        )
    if segment.loops:
        return "The schedule was changed by hand, and the kernel is generated loop by loop. Undo reverts the change."
    return "This is the scheduler's kernel with numbers that were set by hand. Undo reverts the change."


def change_step(
    transforms: Sequence[Transform], step: int, number: int | None, name: str = "factor",
) -> list[Transform]:
    """Return transforms with another number in one of them, or without one of them.

    Raises
    ------
    InputError
        If there is no such step, or it has no such number.
    """
    if not 0 <= step < len(transforms):
        raise InputError(f"The schedule has no step {step + 1}; there are {len(transforms)}.")
    if number is None:
        return [*transforms[:step], *transforms[step + 1 :]]
    transform = transforms[step]
    if name not in dict(transform.args):
        raise InputError(f"Step {step + 1} of the schedule, {transform}, has no {name}.")
    args = tuple((key, _with_number(value, number) if key == name else value) for key, value in transform.args)
    return [*transforms[:step], replace(transform, args=args), *transforms[step + 1 :]]


def _with_number(value: object, number: int) -> Any:
    """Return a number in the place of another; of a pair of threads, the first."""
    return (number, *value[1:]) if isinstance(value, tuple) else number


def _segments(plan: EditablePlan, chosen: int, number: int) -> Element:
    buttons = []
    for segment in plan.segments[:_MOST_LISTED]:
        made = button(f"S{segment.index}", {"type": "schedule", "segment": segment.index, "plan": number})
        made.set("aria-pressed", "true" if segment.index == chosen else "false")
        buttons.append(made)
    return element("div", *buttons, css="fx-actions", role="group", aria_label="Segment")


def _step(place: int, transform: Transform, nest: str, event: dict[str, Any], meaning: str) -> Element:
    change = {"type": "schedule", **event, "step": place}
    buttons = [
        button(f"{name} {other}", {**change, "factor": other, "name": name})
        for name, value in _numbers(transform) for other in (value // 2, value * 2) if 0 < other != value
    ]
    buttons.append(button("Leave out", change | {"factor": None}))
    inside = element("div", *buttons, css="fx-actions")
    nested = element("pre", nest, css="fx-code", tabindex="0", aria_label=f"Loop nest after step {place + 1}")
    said = f"{transform}  # {meaning}" if meaning else str(transform)
    return element("li", element("details", element("summary", element("code", said)), nested, inside))


def _numbers(transform: Transform) -> list[tuple[str, int]]:
    """Return the numbers of a step that buttons double and halve: factors, and parameters of a template."""
    names = {"factor", "blocks"} if transform.kind not in TEMPLATES else dict(transform.args).keys() - {"nest"}
    arguments = [
        (name, value[0] if isinstance(value, tuple) else value) for name, value in transform.args if name in names
    ]
    return [(name, value) for name, value in arguments if isinstance(value, int) and not isinstance(value, bool)]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."

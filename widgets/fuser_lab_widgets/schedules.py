"""The Schedule tab: the transforms of one segment, each with the loop nest after it, and buttons that change one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.json_text import json_text
from fuser_lab.report.markup import element, to_html

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from fuser_lab.ir.transform import Transform
    from fuser_lab_widgets.session import EditablePlan

_MOST_LISTED: Final = 40  # segments with a button


def panel(plan: EditablePlan, chosen: int, number: int) -> str:
    """Return the schedule of a segment: its reasons, and each step with the loop nest after it.

    Parameters
    ----------
    plan
        The plan on show.
    chosen
        Number of the segment; the last one if there are fewer.
    number
        The plan's number, which buttons send, so that those of a plan that is no longer on show do nothing.
    """
    if not hasattr(plan, "with_schedule"):
        return _note("This plan has no schedules.")
    chosen = min(chosen, len(plan.segments) - 1)
    segment: Any = plan.segments[chosen]
    parts = [_segments(plan, chosen, number)]
    try:
        schedule = segment.schedule
    except FuserLabError as error:
        return to_html(element("div", *parts)) + _note(str(error))
    given = bool(segment.transforms)
    about = "Set by hand; undo removes it." if given else "Proposed by the scheduler; not yet the kernel that runs."
    parts.append(element("p", f"{len(schedule.transforms)} steps. {about}", css="fx-note"))
    parts += [element("p", reason, css="fx-note") for reason in schedule.reasons]
    nests = schedule.nests()
    steps = [
        _step(place, transform, nests[place + 1], {"segment": chosen, "plan": number})
        for place, transform in enumerate(schedule.transforms)
    ]
    parts.append(element("ol", *steps, css="fx-decisions"))
    run = "Run this schedule" if not given else "Return to the automatic kernel"
    event = {"type": "schedule", "segment": chosen, "plan": number, "given": not given}
    parts.append(element("div", _button(run, event), css="fx-actions"))
    return "".join(map(to_html, parts))


def changed(transforms: Sequence[Transform], step: int, factor: int | None) -> list[Transform]:
    """Return transforms with another factor in one split, or without one of them.

    Raises
    ------
    InputError
        If there is no such step, or it is not a split.
    """
    if not 0 <= step < len(transforms):
        msg = f"The schedule has no step {step + 1}; there are {len(transforms)}."
        raise InputError(msg)
    if factor is None:
        return [*transforms[:step], *transforms[step + 1 :]]
    one = transforms[step]
    if "factor" not in dict(one.args):
        msg = f"Step {step + 1} of the schedule, {one}, has no factor."
        raise InputError(msg)
    args = tuple((name, factor if name == "factor" else value) for name, value in one.args)
    return [*transforms[:step], replace(one, args=args), *transforms[step + 1 :]]


def _segments(plan: EditablePlan, chosen: int, number: int) -> Element:
    buttons = []
    for segment in plan.segments[:_MOST_LISTED]:
        made = _button(f"S{segment.index}", {"type": "schedule", "segment": segment.index, "plan": number})
        made.set("aria-pressed", "true" if segment.index == chosen else "false")
        buttons.append(made)
    return element("div", *buttons, css="fx-actions", role="group", aria_label="Segment")


def _step(place: int, transform: Transform, nest: str, event: dict[str, Any]) -> Element:
    change = {"type": "schedule", **event, "step": place}
    factor = dict(transform.args).get("factor")
    factors = [factor // 2, factor * 2] if isinstance(factor, int) else []
    buttons = [_button(f"factor {one}", {**change, "factor": one}) for one in factors if one > 0]
    buttons.append(_button("Leave out", change | {"factor": None}))
    inside = element("div", *buttons, css="fx-actions")
    nested = element("pre", nest, aria_label=f"Loop nest after step {place + 1}")
    return element("li", element("details", element("summary", element("code", str(transform))), nested, inside))


def _button(text: str, event: dict[str, Any]) -> Element:
    return element("button", text, css="fx-button", type="button", data_send=json_text(event))


def _note(text: str) -> str:
    return to_html(element("p", text, css="fx-note"))

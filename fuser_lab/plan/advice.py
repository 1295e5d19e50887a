"""The largest known gain of a plan as one sentence: the edit that saves the most predicted time, or the bound."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir.tensor_names import named_text, names_by_tensor
from fuser_lab.segmentation.previews import LEAST_SAVED, EditPreview

_VERBS: Final = {"cut": "Cutting at", "glue": "Gluing", "move": "Moving", "annotate": "A segment_set"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice:
    """The edit that saves the most time among those that were examined, or how far the plan is from its bound.

    Attributes
    ----------
    text
        The sentence, with the fusion's names of tensors; printed with the user's names.
    edit
        The edit, which `Plan.with_edit` makes; None if no edit saves time.
    seconds
        The predicted time that the edit saves; 0 without one.
    called
        The user's names of tensors.
    """

    text: str
    edit: EditPreview | None = None
    seconds: float = 0.0
    called: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the sentence with the user's names."""
        return named_text(self.text, names_by_tensor(self.called))

    __repr__ = __str__


def advice(plan: Any, previews: Iterable[EditPreview]) -> Advice:
    """Return the first gain among previews of a plan's edits, best first, checked by making the edit, or the bound."""
    now = plan.predicted_time().seconds
    for preview in previews:
        if not preview.legal or -preview.seconds < LEAST_SAVED * now:
            continue
        try:
            saved = now - plan.with_edit(preview).predicted_time().seconds
        except IllegalEdit:
            continue
        if saved >= LEAST_SAVED * now:
            verb, rest = _VERBS[preview.edit[0]], preview.name.partition(" ")[2]
            text = f"{verb} {rest} saves {seconds_label(saved)} of {seconds_label(now)} (predicted, {plan.target})."
            text += f" {preview.times}" if preview.times else ""
            return Advice(text=text, edit=preview, seconds=saved, called=plan.names)
    status = plan.time_bound().status  # a ratio: its times are not predicted_time, which depends on schedules
    status = f"{status[:1].upper()}{status[1:]}" if status.startswith("no plan") else f"This plan is {status}"
    text = f"No edit that was examined is predicted to save time. {status} ({plan.target})."
    return Advice(text=text, called=plan.names)

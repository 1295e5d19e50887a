"""The largest known gain of a plan as one sentence: the edit that saves the most predicted time, or the bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir.tensor_names import named_text, names_by_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fuser_lab.segmentation.previews import EditPreview

_LEAST: Final = 0.01  # part of the predicted time that an edit has to save: less is within the model's error
_NEAR: Final = 0.05  # part of the bound within which a plan is said to be near it
_VERBS: Final = {"cut": "Cutting at", "glue": "Gluing", "move": "Moving"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice:
    """The edit that saves the most time among those that were examined, or how close the plan is to the bound.

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
    """Return the largest gain among previews of a plan's edits, checked by making the edit, or the bound."""
    now = plan.predicted_time().seconds
    for preview in sorted(previews, key=lambda preview: preview.seconds):
        if not preview.legal or -preview.seconds < _LEAST * now:
            continue
        try:
            saved = now - plan.with_edit(preview).predicted_time().seconds
        except IllegalEdit:
            continue
        if saved >= _LEAST * now:
            verb, rest = _VERBS[preview.edit[0]], preview.name.partition(" ")[2]
            text = f"{verb} {rest} saves {seconds_label(saved)} of {seconds_label(now)} (predicted, {plan.target})."
            return Advice(text=text, edit=preview, seconds=saved, called=plan.names)
    none = f"No cut, glue or move of this plan is predicted to save time; it takes {seconds_label(now)} ({plan.target})"
    least = plan.time_bound().bound
    beyond = now / least - 1 if least else 0.0
    by = f"no plan takes less than {seconds_label(least)} by bytes and arithmetic"
    if beyond <= _NEAR:
        percent = max(round(100 * beyond), 0)
        text = f"This plan is within {percent or 1} % of the bound: {seconds_label(now)} predicted, and {by}."
        return Advice(text=text, called=plan.names)
    return Advice(text=f"{none}, and {by}.", called=plan.names)

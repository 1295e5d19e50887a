"""The control of a question in a lesson: choices or a field, a button that answers and one that skips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import ipywidgets

if TYPE_CHECKING:
    from collections.abc import Callable


class Asked(Protocol):
    """A question that accepts an answer."""

    @property
    def predicted(self) -> Any:
        """The prediction: None, or a dict with a None for each part."""

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The possible answers; None for any."""

    def answer(self, value: Any) -> None:
        """Take an answer."""

    def skip(self) -> None:
        """Show the answer without one."""


def question_control(question: Asked, key: str, shown: Callable[[Any], str]) -> ipywidgets.VBox:
    """Return the control of a question, which hides the static note with the same key.

    Parameters
    ----------
    question
        The question that accepts the answers.
    key
        The value of ``data-question`` of the note.
    shown
        Returns the text of a choice.
    """
    parts = question.predicted if isinstance(question.predicted, dict) and question.predicted else {"": None}
    fields = {name: _field(str(name), question.choices, shown) for name in parts}
    state = ipywidgets.Label("The answer stays hidden until you answer or skip.")
    answer = ipywidgets.Button(description="Answer", button_style="primary")
    skip = ipywidgets.Button(description="Skip")

    def give(_button: Any) -> None:
        values = {name: field.value for name, field in fields.items()}
        answers = {name: value for name, value in values.items() if value not in (None, "")}
        if not answers:
            state.value = "Predict something first, or skip the question."
            return
        question.answer(answers if "" not in fields else values[""])
        state.value = "The outcome is below."

    def leave(_button: Any) -> None:
        question.skip()
        state.value = "Skipped. The answer is below."

    answer.on_click(give)
    skip.on_click(leave)
    instead = f'.fl-asked[data-question="{key}"]>div:first-child>div:last-child'  # the invitation to edit the cell
    hides = ipywidgets.HTML(f"<style>{instead}{{display:none}}</style>")
    hides.layout.display = "none"
    return ipywidgets.VBox([*fields.values(), ipywidgets.HBox([answer, skip, state]), hides])


def _field(name: str, choices: tuple[Any, ...] | None, shown: Callable[[Any], str]) -> Any:
    if choices is None:
        wide = ipywidgets.Layout(width="30em")
        style = {"description_width": "initial"}
        words = name or "Prediction"
        return ipywidgets.Text(description=words, placeholder="your prediction", layout=wide, style=style)
    options = [(shown(choice), choice) for choice in choices]
    return ipywidgets.RadioButtons(options=options, value=None, description=name or "Prediction")

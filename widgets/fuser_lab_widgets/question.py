"""The control of a question in a lesson: choices or a field, a button that answers and one that skips."""

from collections.abc import Callable
from typing import Any, Protocol

import ipywidgets

_OPEN = "The answer stays hidden until you answer or skip."
_ANSWERED = "Answered: the next cell shows the outcome."


class Asked(Protocol):
    """A question that accepts an answer."""

    @property
    def latest(self) -> Any:
        """The latest answer; None without one."""

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
    before = question.latest if "" not in parts else {"": question.latest}
    fields = {name: _field(str(name), question.choices, shown, (before or {}).get(name)) for name in parts}
    state = ipywidgets.Label(_OPEN if not question.latest else _ANSWERED)
    answer = ipywidgets.Button(description="Answer", button_style="primary")
    skip = ipywidgets.Button(description="Skip")

    def give(_button: Any) -> None:
        values = {name: field.value for name, field in fields.items()}
        answers = {name: value for name, value in values.items() if value not in (None, "")}
        if not answers:
            state.value = "Predict something first, or skip the question."
            return
        question.answer(answers if "" not in fields else values[""])
        state.value = _ANSWERED

    def leave(_button: Any) -> None:
        question.skip()
        state.value = "Skipped: the next cell shows the answer."

    answer.on_click(give)
    skip.on_click(leave)
    instead = f'.fl-asked[data-question="{key}"]>div:first-child>div:last-child'  # the invitation to edit the cell
    hides = ipywidgets.HTML(f"<style>{instead}{{display:none}}</style>")
    hides.layout.display = "none"
    return ipywidgets.VBox([*fields.values(), ipywidgets.HBox([answer, skip, state]), hides])


def _field(name: str, choices: tuple[Any, ...] | None, shown: Callable[[Any], str], answer: Any) -> Any:
    if choices is None:
        wide = ipywidgets.Layout(width="30em")
        style = {"description_width": "initial"}
        words = name or "Prediction"
        text = "" if answer is None else str(answer)
        return ipywidgets.Text(text, description=words, placeholder="your prediction", layout=wide, style=style)
    options = [(shown(choice), choice) for choice in choices]
    value = answer if answer in choices else None
    return ipywidgets.RadioButtons(options=options, value=value, description=name or "Prediction")

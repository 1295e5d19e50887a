"""Questions of lessons: the reader predicts, and then sees whether the prediction is right.

In a notebook, a question is a control. Elsewhere, the prediction replaces None in the cell.
"""

import ctypes
import importlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuser_lab import arguments
from fuser_lab.arguments import ANYTHING, PATH, TEXT, instance, list_of, mapping, number, optional, takes
from fuser_lab.codegen.kernel_steps import KernelSteps
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.plan import Segment
from fuser_lab.plan.accepted import TARGET
from fuser_lab.report import theme
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.shown import Shown
from fuser_lab.targets import CPU
from fuser_lab.teaching.answer_sheets import Answer, AnswerSheet, read_answers
from fuser_lab.teaching.grading import Tolerance, agrees, answer_text, hints_for, is_empty, parts_graded, read

INVITATION = "Replace None with your prediction, then run the next cell."
AGAIN = "Change the prediction; the answer stays hidden until then."
HIDDEN = "The answer stays hidden until the question above is answered or skipped."
_SHOW = "Skip the question and show the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Shown):
    """A prediction compared with the answer.

    Attributes
    ----------
    question
        The question as the reader sees it.
    predicted
        What the reader predicts; None without a prediction.
    answer
        The answer as the tool or a measurement gives it.
    because
        The reason for the answer, in a sentence or two.
    right
        Whether the prediction is right; None without one. A prediction in parts is right if all parts are.
    hint
        What a reader with this prediction overlooks; empty if there is no hint for it.
    unclear
        Why the prediction cannot be compared, such as a word where the answer is a number; empty if it can.
    skipped
        Whether the reader skipped the question to see the answer.
    evidence
        What is shown with the answer: texts, and objects with HTML such as plans and tables.
    """

    question: str
    predicted: Any
    answer: Any
    because: str
    right: bool | None
    hint: str = ""
    unclear: str = ""
    skipped: bool = False
    evidence: tuple[Any, ...] = field(default=(), repr=False)
    _reply: "Reply | None" = field(default=None, compare=False, repr=False)
    _again: "Callable[[], Outcome] | None" = field(default=None, compare=False, repr=False)

    @property
    def hidden(self) -> bool:
        """Whether the answer is hidden: nothing was predicted, and the question was not skipped."""
        return self.right is None and not self.skipped and not self.unclear

    @property
    def now(self) -> "Outcome":
        """The outcome with the reader's latest answer."""
        return self if self._again is None else self._again()

    def __repr__(self) -> str:
        """Return the verdict, the answer and the reason as text."""
        if self.hidden:
            return HIDDEN
        evidence = () if self.unclear else (str(shown).rstrip("\n") for shown in self.evidence)
        return "\n".join(part for part in (self._verdict, self._reason, *evidence) if part)

    @property
    def _reason(self) -> str:
        return AGAIN if self.unclear else " ".join(part for part in (self.hint, self.because) if part)

    @property
    def _verdict(self) -> str:
        if self.unclear:
            return f"? {self.unclear}"
        answer = answer_text(self.answer)
        if self.right is None:
            return f"The answer: {answer}."
        if self.right and answer_text(self.predicted).strip().casefold() != answer.casefold():
            return f"✓ Predicted: {answer_text(self.predicted)}. The answer: {answer}, which is close enough."
        if self.right:
            return f"✓ As predicted: {answer}."
        return f"✗ Predicted: {answer_text(self.predicted)}. The answer: {answer}."

    def _repr_html_(self) -> str:
        """Return static HTML; a hidden answer is behind a summary that skips the question."""
        name = {None: "accent", True: "good", False: "bad"}[self.right]
        note = _note(self._verdict, self._reason, colour=name)
        if not self.unclear:
            note += "".join(map(_evidence_html, self.evidence))
        if self.hidden:
            held = _note(HIDDEN, "", colour="accent")
            note = f'{held}<details class="fl-skip"><summary>{_SHOW}</summary>{note}</details>'
        return note

    def _ipython_display_(self) -> None:
        """Display the outcome, and again once the reader has answered or skipped the question."""
        from IPython.core.display_functions import display

        handle: Any = display(self._repr_mimebundle_(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if self._reply is not None and handle is not None:
            self._reply.listeners.append(lambda: handle.update(self.now._repr_mimebundle_(), raw=True))


@dataclass(slots=True)
class Reply:
    """The reader's answer in the control of a question: a choice, a text, or texts by part.

    A question that is asked again shares it, so that its control and its outcome still have the answer.
    """

    value: Any = None
    skipped: bool = False
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def give(self, value: Any = None, *, skipped: bool = False) -> None:
        """Record an answer, or that the question was skipped, and update the displayed outcomes."""
        self.value, self.skipped = value, skipped
        for tell in self.listeners:
            tell()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a question bank says about an answer.

    Attributes
    ----------
    because
        The reason; ``{ratio:.2f}`` stands for a fact that `Prediction.reveal` receives.
    hints
        What common wrong predictions overlook, as `Prediction.reveal` takes it.
    """

    because: str = ""
    hints: Mapping[Any, Any] = field(default_factory=dict)

    def reason(self, facts: Mapping[str, Any]) -> str:
        """Return the reason with its facts.

        Raises
        ------
        InputError
            If the reason names a fact that is not among them.
        """
        try:
            return self.because.format_map(dict(facts))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"Prediction.reveal: facts={arguments.short_text(dict(facts))} does not fit {self.because!r} "
                f"({error!r})."
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Shown):
    """A question, and what the reader predicts before seeing the answer."""

    question: str
    predicted: Any
    choices: tuple[Any, ...] | None = None
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)
    explanation: Explanation = field(default_factory=Explanation, compare=False, repr=False)
    _evidence: list[Any] = field(default_factory=list, compare=False, repr=False)

    @property
    def latest(self) -> Any:
        """What was predicted, in the call or in the control."""
        return self.reply.value if is_empty(self.predicted) else self.predicted

    @takes(value=ANYTHING)
    def answer(self, value: Any) -> None:
        """Predict, as the control does; displayed outcomes are updated.

        Parameters
        ----------
        value
            As `predict` takes it. A text is converted to the kind of the answer: ``"3"`` to a number, ``"a, b"`` to a
            list.
        """
        self.reply.give(value)

    def skip(self) -> None:
        """Show the answer without a prediction."""
        self.reply.give(skipped=True)

    @property
    def unclear(self) -> str:
        """Why the prediction is not one of the choices; empty if it is, or if there are no choices."""
        if self.choices is None or is_empty(self.latest):
            return ""
        if answer_text(self.latest).strip().casefold() in {answer_text(choice).casefold() for choice in self.choices}:
            return ""
        choices = ", ".join(map(answer_text, self.choices))
        return f"{answer_text(self.latest)} is not one of the choices; choose from {choices}."

    @takes(sep=TEXT, end=TEXT)
    def show(self, *values: Any, sep: str = " ", end: str = "\n") -> None:
        """Keep values for the next `reveal`, which shows them with the answer and hides them until then.

        Parameters
        ----------
        values
            A plan, a table or another object that a notebook displays as HTML; other values are written as ``print``
            writes them.
        sep
            The text between values.
        end
            The text after the last value.
        """
        if len(values) == 1 and hasattr(values[0], "_repr_html_"):
            self._evidence.append(values[0])
            return
        text = sep.join(map(_print_text, values)) + end
        if self._evidence and isinstance(self._evidence[-1], str):
            text = self._evidence.pop() + text
        self._evidence.append(text)

    @takes(
        because=TEXT, within=number(0), exact=list_of(ANYTHING, "a list of parts of the answer"),
        hints=optional(mapping(ANYTHING, ANYTHING, "a dict of hints by prediction")),
        facts=optional(mapping(TEXT, ANYTHING, "a dict of values by name")),
    )
    def reveal(
        self, answer: Any, *, because: str = "", within: float = 0.0, exact: Sequence[Any] = (),
        hints: Mapping[Any, Any] | None = None, facts: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Return the outcome, whose answer stays hidden until there is a prediction or the question is skipped.

        Texts are compared regardless of case and surrounding spaces, lists and tuples in order, sets in any order.
        A question with parts has a dict as its answer; the prediction is then a dict as well, and parts that are None
        or missing count as not predicted. If a prediction cannot be compared, such as a word where the answer is a
        number, the outcome says so and hides the answer.

        Parameters
        ----------
        answer
            The answer as the tool or a measurement gives it.
        because
            The reason, shown below the answer; by default that of the question bank.
        within
            How far a number may be off, as a fraction of the answer: 0.1 is 10 %.
        exact
            The parts of the answer for which ``within`` does not hold.
        hints
            What common wrong predictions overlook: ``{3: "The write counts as well."}``. For a question with parts,
            one such mapping for each part that has hints. By default those of the question bank.
        facts
            The values that the reason in the question bank names.
        """
        reason = because or self.explanation.reason(facts or {})
        evidence = tuple(self._evidence)
        self._evidence.clear()
        tolerance = Tolerance(within=within, exact=tuple(exact))
        return self._outcome(answer, reason, tolerance, self.explanation.hints if hints is None else hints, evidence)

    def _outcome(
        self, answer: Any, because: str, tolerance: "Tolerance", hints: Mapping[Any, Any], evidence: tuple[Any, ...],
    ) -> Outcome:
        unclear, right, reply = self.unclear, None, self.latest
        if is_empty(self.predicted) and not is_empty(reply):
            reply = read(reply, answer)
        if not unclear:
            try:
                right = agrees(reply, answer, tolerance)
            except FuserLabError as error:
                unclear = str(error)
        hint = ""
        if right is False:
            notes = (parts_graded(reply, answer, tolerance), hints_for(reply, hints, tolerance))
            hint = " ".join(filter(None, notes))
        return Outcome(
            question=self.question, predicted=reply, answer=answer, because=because, right=right, hint=hint,
            unclear=unclear, skipped=self.reply.skipped, evidence=evidence, _reply=self.reply,
            _again=partial(self._outcome, answer, because, tolerance, hints, evidence),
        )

    def __repr__(self) -> str:
        """Return the question, and the prediction or how to make one."""
        return "\n".join(self._lines)

    @property
    def _lines(self) -> tuple[str, str]:
        stop = "" if self.question.endswith(("?", ".", ":")) else "."
        options = "" if self.choices is None else f"{stop} One of: {', '.join(map(answer_text, self.choices))}."
        state = INVITATION if is_empty(self.latest) else f"Your prediction: {answer_text(self.latest)}."
        state = f"? {self.unclear}" if self.unclear else state
        return f"{self.question}{options}", state

    def _repr_html_(self) -> str:
        """Return static HTML."""
        return _note(*self._lines, colour="accent")

    def _ipython_display_(self) -> None:
        """Display the question; in a live notebook with a control, which hides the text shown by a saved notebook."""
        from IPython.core.display_functions import display

        control, bundle, key = None, self._repr_mimebundle_(), secrets.token_hex(6)
        if is_empty(self.predicted) and _is_live():
            with suppress(ImportError):  # without ipywidgets, the prediction replaces None in the cell
                from fuser_lab_widgets.question import question_control

                control = question_control(self, key, answer_text)
        if control is not None:
            bundle["text/html"] = f'<div class="fl-asked" data-question="{key}">{bundle["text/html"]}{_UNLIVE}</div>'
        display(bundle, raw=True)  # type: ignore[no-untyped-call]
        if control is not None:
            display(control)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Shown):
    """How many predictions are right."""

    outcomes: tuple[Outcome, ...]

    @property
    def right(self) -> int:
        """The number of right predictions."""
        return sum(outcome.right is True for outcome in self._now)

    @property
    def predicted(self) -> int:
        """The number of questions with a prediction."""
        return sum(outcome.right is not None for outcome in self._now)

    @property
    def _now(self) -> tuple[Outcome, ...]:
        return tuple(outcome.now for outcome in self.outcomes)

    @takes(path=PATH, name=TEXT)
    def save(self, path: str | Path, name: str = "") -> Path:
        """Return the path of a .json file with the predictions, to hand in; `read_answers` reads those of a class.

        Parameters
        ----------
        path
            The file.
        name
            The name of the reader.

        Raises
        ------
        InputError
            If the extension is not .json, or the file cannot be written.
        """
        answers = tuple(
            Answer(
                question=o.question, predicted="" if is_empty(o.predicted) else answer_text(o.predicted), right=o.right,
                skipped=o.skipped,
            )
            for o in self._now
        )
        return AnswerSheet(name=name, answers=answers).save(path)

    def __repr__(self) -> str:
        """Return a summary, and one line for each question whose prediction is wrong or missing."""
        rest = [f"{_mark(o, nothing='no prediction')}: {o.question}" for o in self._now if not o.right]
        return "\n".join([self._line, *rest])

    @property
    def _line(self) -> str:
        count = len(self.outcomes)
        return f"{self.right} of {count} questions answered correctly, {count - self.predicted} without a prediction."

    def _repr_html_(self) -> str:
        """Return static HTML."""
        rows = [
            [
                _mark(o, nothing="–"), o.question, "" if is_empty(o.predicted) else answer_text(o.predicted),
                "" if o.unclear or o.hidden else answer_text(o.answer),
            ]
            for o in self._now
        ]
        names = ("", "question", "prediction", "answer")
        head = element("tr", *(element("th", name, style=_LEFT) for name in names))
        body = [element("tr", *(element("td", text, style=_LEFT) for text in row)) for row in rows]
        return to_html(element("div", element("p", self._line), element("table", head, *body)))


@takes(question=TEXT, choices=optional(list_of(ANYTHING, "a list of choices", lazy=True)))
def predict(question: str, predicted: Any = None, *, choices: Iterable[Any] | None = None) -> Prediction:
    """Return a question with the reader's prediction, which `Prediction.reveal` compares with the answer.

    Parameters
    ----------
    question
        A sentence.
    predicted
        A number, a text, True or False, a list, a set, or a dict of these for a question with parts; None if open.
    choices
        The predictions to choose from; the outcome says so if a prediction is not one of them.
    """
    listed = None if choices is None else tuple(choices)
    return Prediction(question=question, predicted=predicted, choices=listed)


@takes(outcomes=instance(Outcome))
def score(*outcomes: Outcome) -> Score:
    """Return how many of these predictions are right."""
    return Score(outcomes=outcomes)


@takes(inputs=list_of(ANYTHING, "a list of arrays and numbers"))
def on_gpu(inputs: Sequence[Any]) -> list[Any] | None:
    """Return the inputs with NumPy arrays as torch tensors on the GPU; None without a GPU or without torch."""
    try:
        ctypes.CDLL("libcuda.so.1")  # loading torch takes seconds, even if there is no driver
        torch: Any = importlib.import_module("torch")
    except (OSError, ImportError):
        return None
    if not torch.cuda.is_available():
        return None
    return [torch.from_numpy(value).cuda() if isinstance(value, np.ndarray) else value for value in inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played(Shown):
    """The steps of a segment's kernel, which a notebook shows as a player and elsewhere are text."""

    title: str
    steps: KernelSteps

    def __repr__(self) -> str:
        """Return the first steps, a line each."""
        return str(self.steps)

    def _repr_html_(self) -> str:
        """Return the steps as a page of its own that needs no kernel."""
        from fuser_lab_widgets.playing import player_html

        return player_html(self.steps, self.title)


@takes(segment=instance(Segment), target=TARGET)
def play(segment: Segment, target: str = CPU.name) -> Played:
    """Return a player of a segment's kernel: each step with its line, and the elements that it reads and writes.

    Large segments are played with smaller extents; see `Segment.steps`.

    Parameters
    ----------
    segment
        A segment of a plan.
    target
        ``"cpu"`` or ``"cuda"``; no GPU is needed.

    Raises
    ------
    CodegenError
        If the segment has no kernel.
    UnsupportedError
        If no smaller extents fit the ops, or the kernel takes too many steps.
    """
    return Played(title=f"Steps of segment {segment.index} on {target}", steps=segment.steps(target))


def _print_text(value: Any) -> str:
    """Return a value as ``print`` writes it, or if it has no text, as messages do."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - as in `answer_text`
        return arguments.short_text(value)


def _mark(outcome: Outcome, *, nothing: str) -> str:
    if outcome.unclear:
        return "?"
    return {None: nothing, True: "✓", False: "✗"}[outcome.right]


def _is_live() -> bool:
    """Return whether this runs in the kernel of a notebook."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


# Where a saved notebook has no kernel, JupyterLab puts one sentence in place of the control.
_LEAF = '.jupyter-widgets:not(:has(*), [class*="widget-"])'
_UNLIVE = f"<style>.jp-OutputArea:has(.fl-asked) {_LEAF}{{display:none}}</style>"
_LEFT = "text-align:left"
def _evidence_html(value: Any) -> str:
    markup = None if isinstance(value, str) else value._repr_html_()
    return to_html(element("pre", str(value).rstrip("\n"))) if markup is None else str(markup)


def _note(first: str, second: str, *, colour: str) -> str:
    """Return two lines of HTML beside a coloured bar; text keeps the colour of the notebook's theme."""
    lines = [element("div", first, style="font-weight:600"), *([element("div", second)] if second else [])]
    bar = f"border-left:4px solid {theme.colour(colour)};padding:2px 0 2px 10px;max-width:46em"
    return to_html(element("div", *lines, style=bar))


__all__ = [
    "Explanation",
    "Outcome",
    "Played",
    "Prediction",
    "Score",
    "answer_text",
    "on_gpu",
    "play",
    "predict",
    "read_answers",
    "score",
]

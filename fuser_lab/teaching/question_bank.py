"""Question banks: files beside the lessons, with the reasons and hints that a lesson must not show too early."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import ANYTHING, PATH, TEXT, list_of, optional, short_text, takes
from fuser_lab.errors import InputError
from fuser_lab.files.reading import UnreadableError, content_of, decode
from fuser_lab.teaching.questions import Explanation, Prediction, Reply

_FORM: Final = (
    "each [[question]] has the texts 'asks' and 'because', and may have 'hints' (tables of 'if' and 'says', and of "
    "'part' for a question with parts) and 'gives_away' (a list of texts)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BankEntry:
    """A question with its explanation, and patterns of what gives its answer away, for a test of the lesson."""

    asks: str
    explanation: Explanation
    gives_away: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionBank:
    """The questions of a lesson, from one file; a question that is asked again keeps the reader's answer."""

    name: str
    entries: tuple[BankEntry, ...]
    _replies: dict[str, Reply] = field(default_factory=dict, compare=False, repr=False)

    @takes(
        "QuestionBank.predict", question=TEXT, predicted=ANYTHING,
        choices=optional(list_of(ANYTHING, "a list of choices", lazy=True)),
    )
    def predict(self, question: str, predicted: Any = None, *, choices: Iterable[Any] | None = None) -> Prediction:
        """Return a question of the bank, as `fuser_lab.teaching.predict` does; the bank explains its answer.

        Raises
        ------
        InputError
            If the bank has no such question.
        """
        for entry in self.entries:
            if entry.asks == question:
                options = None if choices is None else tuple(choices)
                return Prediction(
                    question=question, predicted=predicted, choices=options, explanation=entry.explanation,
                    reply=self._replies.setdefault(question, Reply()),
                )
        asked = ", ".join(repr(entry.asks) for entry in self.entries)
        msg = f"QuestionBank.predict: {short_text(self.name)} has no question {short_text(question)}; it has {asked}."
        raise InputError(msg)


@takes(path=PATH)
def read_questions(path: str | Path) -> QuestionBank:
    """Return the question bank in a TOML file, such as ``questions/02_why_fusions_split.toml`` beside the lessons.

    Parameters
    ----------
    path
        The file. Each ``[[question]]`` has ``asks``, the text of the question, ``because``, the reason of the answer,
        and may have ``hints = [{ if = 3, says = "The write counts as well." }]``, with ``part`` for a question
        with parts.

    Raises
    ------
    InputError
        If the file cannot be read or is not a question bank.
    """
    try:
        data = tomllib.loads(decode(content_of(Path(path))))
    except (UnreadableError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"read_questions: {short_text(Path(path).name)} cannot be read ({error}); it is a file beside the "
            "lessons."
        ) from None
    try:
        entries = tuple(_entry(**entry) for entry in data["question"])
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"read_questions: {short_text(Path(path).name)} is not a question bank: {_FORM}.") from None
    return QuestionBank(name=Path(path).name, entries=entries)


def _entry(
    asks: str, because: str, hints: Iterable[Mapping[str, Any]] = (), gives_away: Iterable[str] = (),
) -> BankEntry:
    by_prediction: dict[Any, Any] = {}
    for hint in hints:
        of_part = by_prediction.setdefault(hint["part"], {}) if "part" in hint else by_prediction
        of_part[_hashable(hint["if"])] = str(hint["says"])
    explanation = Explanation(because=str(because), hints=by_prediction)
    return BankEntry(asks=str(asks), explanation=explanation, gives_away=tuple(map(str, gives_away)))


def _hashable(prediction: Any) -> Any:
    return tuple(map(_hashable, prediction)) if isinstance(prediction, list) else prediction

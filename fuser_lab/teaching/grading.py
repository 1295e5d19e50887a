"""Whether a prediction is right: kinds of answers, what readers type, tolerances, and parts of a question."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from fuser_lab import arguments
from fuser_lab.errors import ArgumentTypeError, FuserLabError, InputError

_YES_OR_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_KINDS = {
    "yes or no": "True or False", "number": "a number", "list": "a list", "set": "a set",
    "text": "a text",
}  # fmt: skip


def answer_text(value: Any) -> str:
    """Return a prediction or an answer as a reader writes it: words without quotes, numbers with separators."""
    try:
        return _value_text(value)
    except Exception:  # noqa: BLE001 - a number too long for text, a list in itself, a repr of the user's that fails
        return arguments.short_text(value)


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool() | np.bool():
            return "yes" if value else "no"
        case Integral():
            return f"{int(value):,}"
        case Real():
            number = float(value)
            return f"{number:,.4g}" if abs(number) < 10_000 else f"{number:,.0f}"
        case Mapping():
            return ", ".join(f"{name}: {_inside(part)}" for name, part in value.items())
        case list() | tuple():
            return ", ".join(map(_inside, value)) or "none"
        case set() | frozenset():
            return f"{{{', '.join(map(answer_text, _order(value)))}}}" if value else "none"
    return str(value)


def _inside(value: Any) -> str:
    """Return what `answer_text` returns, with lists in brackets, because commas separate the parts around them."""
    return f"[{_value_text(value)}]" if isinstance(value, list | tuple) else _value_text(value)


def _order(values: Iterable[Any]) -> list[Any]:
    """Return the elements of a set in the order in which a reader expects them: numbers by size, words by letter."""
    return sorted(values, key=lambda value: (0, value, "") if isinstance(value, Real) else (1, 0, answer_text(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far numbers of a prediction may be off: a fraction of the answer, but nothing in parts that are exact."""

    within: float = 0.0
    exact: tuple[Any, ...] = ()

    def part(self, name: Any) -> "Tolerance":
        """Return the tolerance of a part of the answer."""
        return Tolerance() if name in self.exact else self


def agrees(predicted: Any, answer: Any, tolerance: Tolerance) -> bool | None:
    """Return whether a prediction is the answer, or None where there is none."""
    if is_empty(predicted):
        return None
    if isinstance(answer, Mapping):
        return _parts_agree(predicted, answer, tolerance)
    kind, kind_predicted = _kind(answer), _kind(predicted)
    if kind != kind_predicted:
        expected, actual = (_KINDS.get(either, f"a {either}") for either in (kind, kind_predicted))
        raise ArgumentTypeError(f"The answer is {expected}; the prediction is {answer_text(predicted)}, {actual}.")
    if kind == "text":
        return str(predicted).strip().casefold() == str(answer).strip().casefold()
    if kind == "number":
        return _is_close(predicted, answer, tolerance)
    if kind == "list":
        pairs = zip(predicted, answer, strict=False)
        return len(predicted) == len(answer) and all(agrees(p, a, tolerance) for p, a in pairs)
    return bool(predicted == answer)


def _is_close(predicted: Any, answer: Any, tolerance: Tolerance) -> bool:
    try:
        return math.isclose(predicted, answer, rel_tol=0.0, abs_tol=tolerance.within * abs(answer))
    except OverflowError:  # whole numbers beyond those of floats
        are_whole = isinstance(predicted, Integral) and isinstance(answer, Integral)
        return are_whole and abs(int(predicted) - int(answer)) <= Fraction(tolerance.within) * abs(int(answer))


def _parts_agree(predicted: Any, answer: Mapping[Any, Any], tolerance: Tolerance) -> bool:
    """Return whether every part of the answer was predicted."""
    if not isinstance(predicted, Mapping):
        msg = f"The answer has parts: give a dict with {', '.join(map(str, answer))}, not {answer_text(predicted)}."
        raise ArgumentTypeError(msg)
    unknown = [name for name in predicted if name not in answer]
    if unknown:
        raise InputError(f"The question has no part {unknown[0]!r}; choose from {', '.join(map(str, answer))}.")
    right = True
    for name, part in answer.items():
        try:
            right &= agrees(predicted.get(name), part, tolerance.part(name)) is True
        except FuserLabError as error:
            raise ArgumentTypeError(f"{name}: {error}") from None
    return right


def parts_graded(predicted: Any, answer: Any, tolerance: Tolerance) -> str:
    """Return which parts of a question are right, wrong, and not predicted; an empty text if all are wrong."""
    if not isinstance(answer, Mapping):
        return ""
    names: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for name, part in answer.items():
        names[agrees(predicted.get(name), part, tolerance.part(name))].append(str(name))
    if not names[True] and not names[None]:
        return ""
    words = {True: "right", False: "wrong", None: "not predicted"}
    graded = "; ".join(f"{word}: {', '.join(names[state])}" for state, word in words.items() if names[state])
    return f"{graded[:1].upper()}{graded[1:]}."


def read(reply: Any, answer: Any) -> Any:
    """Return what the reader typed as a value of the kind of the answer, or as text if it is not of that kind."""
    if isinstance(reply, Mapping) and isinstance(answer, Mapping):
        return {name: read(part, answer.get(name)) for name, part in reply.items()}
    if not isinstance(reply, str):
        return reply
    text = reply.strip()
    if not text:
        return None
    match _kind(answer):
        case "yes or no":
            return _YES_OR_NO.get(text.casefold(), text)
        case "number":
            return _number(text)
        case "list" | "set" as kind:
            first = next(iter(answer), "")
            parts = [read(part, first) for part in text.strip("[]{}()").split(",") if part.strip()]
            return parts if kind == "list" else set(parts)
    return text


def _number(text: str) -> Any:
    """Return a text such as ``1,024`` or ``20 %`` as a number, or unchanged if it is not a number."""
    plain = text.replace(",", "").replace("_", "")
    share = plain.endswith("%")
    try:
        number = float(plain.removesuffix("%"))
    except ValueError:
        return text
    if share:
        return number / 100
    return int(number) if number.is_integer() else number


def hints_for(predicted: Any, hints: Mapping[Any, Any], tolerance: Tolerance) -> str:
    """Return the hints for this prediction, or for its parts."""
    if isinstance(predicted, Mapping):
        parts = (hints_for(predicted.get(name), of, tolerance.part(name)) for name, of in hints.items())
        return " ".join(filter(None, parts))
    of_kind = (expected for expected in hints if _kind(expected) == _kind(predicted))
    return next((str(hints[expected]) for expected in of_kind if agrees(predicted, expected, tolerance)), "")


def is_empty(predicted: Any) -> bool:
    """Return whether nothing was predicted, or no part of a question with parts."""
    if isinstance(predicted, Mapping):
        return all(part is None for part in predicted.values())
    return predicted is None or predicted == ()


def _kind(value: Any) -> str:
    match value:
        case bool() | np.bool():
            return "yes or no"
        case Real():
            return "number"
        case list() | tuple():
            return "list"
        case set() | frozenset():
            return "set"
        case str():
            return "text"
    return type(value).__name__

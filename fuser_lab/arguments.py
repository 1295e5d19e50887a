"""The arguments of public functions: each is described once, and checked before the function runs.

``@takes(title=optional(TEXT), seconds=number(least=0))`` raises `ArgumentTypeError` for a value of another type and
`InputError` for one that is out of range, with one sentence that names function, argument, what was given and what is
accepted. A missing argument or an unknown keyword still raises Python's own TypeError.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fuser_lab.errors import ArgumentTypeError, FuserLabError, InputError

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST = 60  # characters or entries of a value in a sentence
_MOST_NAMED = 40  # names that an error lists
_MOST_ENTRIES = 1 << 20  # limit of a list's length; an iterable may be infinite
_WHOLE = object()
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)


def short_text(value: object) -> str:
    """Return any value as text for a sentence: short, printable and on one line."""
    if isinstance(value, int) and value.bit_length() > 3 * _LONGEST:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, _SIZED) and len(value) > _LONGEST:
        return f"a {type(value).__name__} of length {len(value)}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the repr of a class of the user's may fail in any way
        text = ""
    return text if text and len(text) <= _LONGEST and text.isprintable() else f"a value of type {type(value).__name__}"


def brief(text: str, most: int = 200) -> str:
    """Return a user's name or path as text for a sentence: on one line, shortened in the middle if it is long."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= most else f"{line[: most // 2]}...{line[-(most // 2) :]}"


def listing(names: Iterable[str]) -> str:
    """Return names as a list for a sentence; of many names, only the first."""
    listed_names = list(names)
    more = len(listed_names) - _MOST_NAMED
    return ", ".join(listed_names) if more <= 0 else f"{', '.join(listed_names[:_MOST_NAMED])} and {more} more"


def is_whole(value: object) -> bool:
    """Whether a value is an int of Python or NumPy; bools are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class _Refused(Exception):  # noqa: N818 - a signal between the kinds of this module
    """A value that a kind does not accept: ``accepted`` describes what it accepts, ``place`` the wrong part."""

    def __init__(self, value: object, accepted: str, place: str = "", *, of_type: bool) -> None:
        super().__init__(accepted)
        self.value, self.accepted, self.place, self.of_type = value, accepted, place, of_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of argument.

    Attributes
    ----------
    accepted
        What is accepted, as the end of the sentence "... must be".
    take
        Returns the value that the function gets: an int for NumPy's integers, a list for any iterable.
    """

    accepted: str
    take: Callable[[Any], Any]

    def of(self, value: object, function: str, argument: str, error: type[FuserLabError] = InputError) -> Any:
        """Return the value that a function gets for an argument.

        Raises
        ------
        ArgumentTypeError
            If the value is of another type.
        InputError
            If it has the right type but is not an accepted value; ``error`` selects another exception.
        """
        try:
            return self.take(value)
        except _Refused as refused:
            refusal = refused.with_traceback(None)  # which would be in a cycle with this frame
        named = f"{argument}{refusal.place}"
        raise (ArgumentTypeError if refusal.of_type else error)(
            f"{f'{function}: ' if function else ''}{named} must be {refusal.accepted}, given "
            f"{short_text(refusal.value)}."
        )

    def __or__(self, other: "Kind") -> "Kind":
        """Return the kind that accepts what either accepts."""
        accepted = f"{self.accepted} or {other.accepted}"

        def take(value: Any) -> Any:
            refusals = []
            for kind in (self, other):
                try:
                    return kind.take(value)
                except _Refused as refused:
                    # Its traceback would keep the frames of all callers, with their arrays, in a cycle with this list.
                    refusals.append(refused.with_traceback(None))
            # The kind whose type fits gives the most specific message.
            near = [r for r in refusals if not r.of_type or r.place]
            raise near[0] if near else _Refused(value, accepted, of_type=True)

        return Kind(accepted=accepted, take=take)

    def but(self, test: Callable[[Any], bool], accepted: str) -> "Kind":
        """Return the kind of those values that pass a test; ``accepted`` describes them."""

        def take(value: Any) -> Any:
            taken = self.take(value)
            if not test(taken):
                raise _Refused(value, accepted, of_type=False)
            return taken

        return Kind(accepted=accepted, take=take)

    def worded(self, accepted: str) -> "Kind":
        """Return the same kind with another description, such as "a tensor's name" for a str."""

        def take(value: Any) -> Any:
            try:
                return self.take(value)
            except _Refused as refused:
                if not refused.of_type or refused.place:
                    raise
            raise _Refused(value, accepted, of_type=True)

        return Kind(accepted=accepted, take=take)


def instance(*types: type, accepted: str = "") -> Kind:
    """Return the kind of instances of these classes."""
    said = accepted or f"a {' or '.join(kind.__name__ for kind in types)}"

    def take(value: Any) -> Any:
        if not isinstance(value, types):
            raise _Refused(value, said, of_type=True)
        return value

    return Kind(accepted=said, take=take)


def having(*attributes: str, accepted: str) -> Kind:
    """Return the kind of objects that have these attributes."""

    def take(value: Any) -> Any:
        if not all(hasattr(value, name) for name in attributes):
            raise _Refused(value, accepted, of_type=True)
        return value

    return Kind(accepted=accepted, take=take)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused(value, "a str", of_type=True)
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refused(value, "text without surrogates, which UTF-8 cannot write", of_type=False) from None
    return text


def _flag(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise _Refused(value, "True or False", of_type=True)


def _none(value: Any) -> None:
    if value is not None:
        raise _Refused(value, "None", of_type=True)


def _function(value: Any) -> Any:
    if not callable(value):
        raise _Refused(value, "a function", of_type=True)
    return value


def _path(value: Any) -> Any:
    said = "a path, as str or Path"
    if not isinstance(value, str | os.PathLike):
        raise _Refused(value, said, of_type=True)
    try:
        text = os.fspath(value)
        refused = not isinstance(text, str) or b"\0" in os.fsencode(text)
    except Exception:  # noqa: BLE001 - a PathLike of the user's may fail in any way
        refused = True
    if refused:
        raise _Refused(value, "a path that the file system can name", of_type=False)
    return value


TEXT = Kind(accepted="a str", take=_text)
FLAG = Kind(accepted="True or False", take=_flag)
NONE = Kind(accepted="None", take=_none)
FUNCTION = Kind(accepted="a function", take=_function)
PATH = Kind(accepted="a path, as str or Path", take=_path)
ANYTHING = Kind(accepted="anything", take=lambda value: value)


def optional(kind: Kind, meaning: str = "") -> Kind:
    """Return the kind that also accepts None; ``meaning`` says what None means, such as "for no limit"."""
    return kind | (Kind(accepted=f"None {meaning}", take=_none) if meaning else NONE)


def whole(least: int | None = None, most: int | None = None, accepted: str = "a whole number") -> Kind:
    """Return the kind of Python's and NumPy's ints from ``least`` to ``most``, in 64 bits, without bools."""
    said = _range_text(accepted, least, most)

    def take(value: Any) -> int:
        if not is_whole(value):
            raise _Refused(value, said, of_type=True)
        if (least is not None and value < least) or (most is not None and value > most):
            raise _Refused(value, said, of_type=False)
        if not -(1 << 63) <= value < 1 << 63:
            raise _Refused(value, f"{said} in 64 bits", of_type=False)
        return int(value)

    return Kind(accepted=said, take=take)


def number(least: float | None = None, *, above: float | None = None) -> Kind:
    """Return the kind of finite real numbers of at least ``least``, or above ``above``, without bools."""
    said = "a finite number" + (f" above {above:g}" if above is not None else "")
    said = _range_text(said, least, None)

    def take(value: Any) -> float:
        if not (isinstance(value, float | np.floating) or is_whole(value)):
            raise _Refused(value, said, of_type=True)
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        low = (least is not None and real < least) or (above is not None and real <= above)
        if low or not math.isfinite(real):
            raise _Refused(value, said, of_type=False)
        return value if type(value) in {int, float} else real

    return Kind(accepted=said, take=take)


def _range_text(accepted: str, least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"{accepted} from {least:,} to {most:,}"
    return accepted if least is None else f"{accepted} of at least {least:,}"


def one_of(*names: str) -> Kind:
    """Return the kind that accepts only these words."""
    quoted = [repr(name) for name in names]
    said = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"

    def take(value: Any) -> str:
        if not isinstance(value, str):
            raise _Refused(value, said, of_type=True)
        if value not in names:
            raise _Refused(value, said, of_type=False)
        return str.__str__(value)

    return Kind(accepted=said, take=take)


def list_of(kind: Kind, accepted: str, *, least: int = 0, most: int = _MOST_ENTRIES, lazy: bool = False) -> Kind:
    """Return the kind of lists and tuples of a kind, with ``least`` to ``most`` entries; the function gets a list.

    With ``lazy``, any other iterable is accepted and read to its end, except text and mappings.
    """

    def take(value: Any) -> list[Any]:
        classes = Iterable if lazy else list | tuple | range
        if not isinstance(value, classes) or isinstance(value, str | bytes | Mapping):
            raise _Refused(value, accepted, of_type=True)
        try:
            entries = list(islice(value, most + 1))
        except TypeError:  # a 0-d array claims to be iterable
            raise _Refused(value, accepted, of_type=True) from None
        if not least <= len(entries) <= most:
            limit = f"at least {least:,}" if len(entries) < least else f"at most {most:,}"
            raise _Refused(value, accepted if least == most else f"{accepted}, {limit}", of_type=False)
        return [_part(kind, entry, place) for place, entry in enumerate(entries)]

    return Kind(accepted=accepted, take=take)


def mapping(key: Kind, value: Kind, accepted: str) -> Kind:
    """Return the kind of mappings from a kind to a kind; the function gets a dict."""

    def take(entries: Any) -> dict[Any, Any]:
        if not isinstance(entries, Mapping):
            raise _Refused(entries, accepted, of_type=True)
        return {_part(key, k): _part(value, v, k) for k, v in entries.items()}

    return Kind(accepted=accepted, take=take)


def _part(kind: Kind, entry: object, index: object = _WHOLE) -> Any:
    """Return the value that a kind gives for an entry; a refusal names its ``index``."""
    try:
        return kind.take(entry)
    except _Refused as refused:
        place = "" if index is _WHOLE else f"[{short_text(index)}]"
        raise _Refused(
            refused.value, refused.accepted, f"{place}{refused.place}", of_type=refused.of_type,
        ) from None


def takes(title: str = "", /, **kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator of a function whose arguments are of these kinds; defaults are not checked.

    Parameters
    ----------
    what
        The beginning of messages; the function's name by default.
    **kinds
        Kinds by the names of parameters; those of ``*args`` and ``**kwargs`` apply to each entry.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = title or function.__name__
        parameters = inspect.signature(function).parameters
        unknown = kinds.keys() - parameters.keys()
        if unknown:
            raise TypeError(f"{name} has no parameter {min(unknown)}")
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        places = [(p.name, kinds.get(p.name)) for p in parameters.values() if p.kind in positional]
        checked = [(place, argument, kind) for place, (argument, kind) in enumerate(places) if kind is not None]
        variable = {p.kind: (p.name, kinds.get(p.name)) for p in parameters.values()}
        rest, rest_kind = variable.get(inspect.Parameter.VAR_POSITIONAL, ("", None))
        _, other_kind = variable.get(inspect.Parameter.VAR_KEYWORD, ("", None))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            converted: list[Any] = list(args)
            for place, argument, kind in checked:
                if place < len(converted):
                    converted[place] = kind.of(converted[place], name, argument)
            if rest_kind is not None:
                for place in range(len(places), len(converted)):
                    converted[place] = rest_kind.of(converted[place], name, f"{rest}[{place - len(places)}]")
            for argument, value in kwargs.items():
                named = kinds.get(argument) if argument in parameters else other_kind
                if named is not None:
                    kwargs[argument] = named.of(value, name, argument)
            return function(*converted, **kwargs)

        return call

    return decorate


def take_fields(record: object, **kinds: Kind) -> None:
    """Check fields of a frozen dataclass in its ``__post_init__``, and convert them as their kinds do."""
    for field, kind in kinds.items():
        value = getattr(record, field)
        taken = kind.of(value, type(record).__name__, field)
        if taken is not value:
            object.__setattr__(record, field, taken)

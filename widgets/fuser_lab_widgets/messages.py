"""The messages that pages send: each type with its fields, and the one place that reads them.

A page may be older than its Python side, or a script may write into a widget's model, so a message can be anything that
JSON can express. What is not described here is refused with one sentence, and later messages are read as before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from fuser_lab.arguments import (
    ANYTHING,
    FLAG,
    TEXT,
    Kind,
    instance,
    list_of,
    mapping,
    one_of,
    optional,
    short_text,
    whole,
)
from fuser_lab.errors import InputError
from fuser_lab_widgets import answers, scenes, tabs
from fuser_lab_widgets.session import SWITCHES

Message = Mapping[str, Any]

_MOST_WAITING: Final = 10_000  # events: more than a user can cause until the first of them is handled
_MESSAGE: Final = instance(Mapping, accepted="an object with a type")
_COUNT: Final = whole(0)
_EDIT: Final = list_of(TEXT | _COUNT, "a list of an edit and its arguments", least=2, most=3)
_LISTED: Final = ("cut", "glue", "move", "annotate")  # edits that the list of the best ones may have
_SWITCHES: Final = mapping(one_of(*SWITCHES), FLAG | one_of("hint", "cut", "ignore"), "an object of switches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The fields of a type of message: those that it has, and those that it may have, of which ``any_of`` needs one."""

    has: Mapping[str, Kind] = field(default_factory=dict)
    may: Mapping[str, Kind] = field(default_factory=dict)
    any_of: str = ""  # the names of the fields, as a sentence says them


_AT: Final = Form(has={"id": TEXT})
_PLAIN: Final = Form()
_FIND: Final = Form(has={"text": TEXT})

# What the explorer receives. Buttons of a plan also send its number, so that they do nothing once another is shown.
EXPLORER: Final[Mapping[str, Form]] = {
    "act": Form(has={"id": TEXT}, may={"kind": TEXT}),
    "select": Form(has={"id": TEXT}),
    "cut": _AT, "glue": _AT, "recompute": _AT, "preview": _AT, "mark": _AT, "unannotate": _AT,
    "move": Form(has={"id": TEXT, "segment": _COUNT}),
    "narrow": Form(has={"id": TEXT, "dtype": one_of(*answers.NARROW)}),
    "edit": Form(has={"edit": _EDIT.but(lambda edit: edit[0] in _LISTED, "a cut, a glue, a move or a segment_set")}),
    "annotate": Form(has={"id": TEXT}, may={"all": FLAG}),
    "lift": Form(has={"rule": TEXT}),
    "switches": Form(has={"switches": _SWITCHES}),
    "strategy": Form(has={"strategy": TEXT}),
    "alternative": _PLAIN, "undo": _PLAIN, "redo": _PLAIN, "reset": _PLAIN,
    "detail": Form(has={"detail": one_of(*get_args(scenes.Detail))}, may={"quiet": FLAG}),
    "open": Form(
        may={"segment": _COUNT, "block": TEXT, "module": TEXT}, any_of="a segment, a block or a module",
    ),
    "panel": Form(has={"name": one_of(*tabs.WRITTEN)}),
    "decisions": Form(has={"first": _COUNT}),
    "compare": Form(has={"with": TEXT}),
    "run": _PLAIN, "run_all": _PLAIN, "cancel": _PLAIN, "stop": _PLAIN, "certificate": _PLAIN,
    "source": Form(has={"segment": _COUNT, "target": TEXT}, may={"view": TEXT}),
    "schedule": Form(has={"segment": _COUNT}, may={
        "rank": FLAG, "given": FLAG, "step": _COUNT, "factor": optional(_COUNT), "name": TEXT, "nest": _COUNT,
        "values": mapping(TEXT, ANYTHING, "an object of parameters"),
    }),
    "profile": Form(has={"target": TEXT}),
    "code": Form(may={"form": TEXT}),
}

# What the map of a model receives.
MAP: Final[Mapping[str, Form]] = {
    "box": _AT, "out": _AT, "graph": Form(has={"n": _COUNT}), "depth": Form(has={"n": _COUNT}),
    "fold": _PLAIN, "costs": _PLAIN, "step": _PLAIN, "find": _FIND,
    "open": Form(has={"graph": _COUNT, "region": _COUNT}, may={"tensor": TEXT}),
}

# What the map of a compiled plan receives.
COMPILED: Final[Mapping[str, Form]] = {
    "box": _AT, "out": _AT, "graph": Form(has={"n": _COUNT}), "cut": Form(has={"at": TEXT}),
    "glue": Form(has={"n": _COUNT, "with": _COUNT}), "edited": _PLAIN,
    "find": _FIND,
    "open": Form(has={"graph": _COUNT, "region": _COUNT}),
}


def read(message: object, forms: Mapping[str, Form]) -> dict[str, Any]:
    """Return the type of a message and those of its fields that its form describes.

    Raises
    ------
    FuserLabError
        If its type is unknown, or a field is missing or has another kind; the sentence says which.
    """
    sent = _MESSAGE.of(message, "", "a message of the page")
    name = TEXT.of(sent.get("type"), "message", "type")
    form = forms.get(name)
    if form is None:
        msg = f"message: type must be one that this version of fuser_lab describes, given {short_text(name)}."
        raise InputError(msg)
    fields = {key: kind.of(sent.get(key), f"message {name!r}", key) for key, kind in form.has.items()}
    if form.any_of and not form.may.keys() & sent.keys():
        raise InputError(f"message {name!r}: {form.any_of} must be named, given none of them.")
    may = {**form.may, "plan": _COUNT}
    return {"type": name} | fields | {
        key: kind.of(sent[key], f"message {name!r}", key) for key, kind in may.items() if key in sent
    }


def number_of(message: object, last: int) -> int:
    """Return the number of an event; ``last`` is that of the last event that was handled.

    Raises
    ------
    FuserLabError
        If it has none, or one so far ahead that the page's own numbers could not follow it.
    """
    sent = _MESSAGE.of(message, "", "a message of the page")
    return int(whole(0, last + _MOST_WAITING).of(sent.get("n"), "message", "n"))

"""The rules of nvFuser that functions here follow, declared beside each function."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

COMMIT = "81c4b22fd750d377d69e24928c32233162f6b2bd"  # of NVIDIA/Fuser, to which files and lines belong

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The lines of nvFuser's source that a function here follows, and the reasons that it gives for refusals.

    ``ours`` is the dotted name of the function, ``text`` the first sentence of its documentation.
    """

    ours: str
    text: str
    file: str
    function: str
    lines: tuple[int, int]
    reasons: tuple[enum.Enum, ...]


RULES: list[Rule] = []


def follows(file: str, function: str, first: int, last: int, *reasons: enum.Enum) -> Callable[[_Function], _Function]:
    """Return a decorator that declares which lines of a function of nvFuser a function or class here follows.

    ``file`` is relative to ``csrc`` and lacks its suffix. A function that follows several has several decorators.
    """

    def declared(rule: _Function) -> _Function:
        text = " ".join((rule.__doc__ or "").strip().partition("\n\n")[0].split())
        RULES.append(
            Rule(
                ours=f"{rule.__module__}.{rule.__qualname__}", text=text, file=f"csrc/{file}.cpp", function=function,
                lines=(first, last), reasons=reasons,
            ),
        )
        return rule

    return declared

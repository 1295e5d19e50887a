"""Whether functions that a user brings along can be called as they will be, said before the first call."""

import inspect
from collections.abc import Callable
from typing import Any

from fuser_lab.errors import ArgumentTypeError


def check_called(what: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ArgumentTypeError if a function does not take these arguments by position; they are given by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        taken = ", ".join(map(str, signature.parameters.values())) or "no arguments"
        msg = f"{what} is called with {' and '.join(arguments)}; it takes {taken}."
        raise ArgumentTypeError(msg) from None

"""Checks, before the first call, that a user's function accepts the arguments of its calls."""

import inspect
from collections.abc import Callable
from typing import Any

from fuser_lab.errors import ArgumentTypeError


def check_called(label: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ArgumentTypeError if a function does not accept these arguments, given here by name, by position."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        taken = ", ".join(map(str, signature.parameters.values())) or "no arguments"
        msg = f"{label} is called with {' and '.join(arguments)}, but accepts {taken}."
        raise ArgumentTypeError(msg) from None

"""Computations that end early: the caller sets an end, and a long computation asks whether it is reached."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_LATE: ContextVar[Callable[[], bool]] = ContextVar("_IS_LATE", default=lambda: False)


class EndedError(Exception):
    """A computation was given up at the end that its caller set."""


@contextmanager
def ending(is_late: Callable[[], bool]) -> Iterator[None]:
    """Return a context in which `check_time` raises once ``is_late()`` is true."""
    token = _IS_LATE.set(is_late)
    try:
        yield
    finally:
        _IS_LATE.reset(token)


def check_time() -> None:
    """Raise `EndedError` if it is late."""
    if _IS_LATE.get()():
        raise EndedError

"""Computations that end early: the caller sets an end, and a long computation asks whether it is reached.

A search then returns what it has found (`ending_when`), while a lowering is given up (`ending`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

IsLate = Callable[[], bool]

ENDED: ContextVar[IsLate] = ContextVar("ENDED", default=lambda: False)
_IS_LATE: ContextVar[IsLate] = ContextVar("_IS_LATE", default=lambda: False)


class EndedError(Exception):
    """A computation was given up at the end that its caller set."""


@contextmanager
def _set(variable: ContextVar[IsLate], is_late: IsLate) -> Iterator[None]:
    token = variable.set(is_late)
    try:
        yield
    finally:
        variable.reset(token)


def ending_when(ended: IsLate) -> AbstractContextManager[None]:
    """Return a context in which searches stop, as at a time limit, once ``ended()`` is true."""
    return _set(ENDED, ended)


def ending(is_late: IsLate) -> AbstractContextManager[None]:
    """Return a context in which `check_time` raises once ``is_late()`` is true."""
    return _set(_IS_LATE, is_late)


def check_time() -> None:
    """Raise `EndedError` if it is late."""
    if _IS_LATE.get()():
        raise EndedError

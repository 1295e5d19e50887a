"""Attributes of libraries that have another value for a while: Numba has no options for what they change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fuser_lab.process.forks import new_lock

_LOCK = new_lock()
_REPLACED: dict[tuple[int, str], list[Any]] = {}  # the owner, the former value and the number of blocks


@contextmanager
def replace_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute in a block by what ``make`` returns for its value.

    Blocks of several threads may overlap: the value of the first one to begin is used, and the former value is back
    when the last one ends.
    """
    key = id(owner), name
    with _LOCK:
        if key not in _REPLACED:
            former = getattr(owner, name)
            _REPLACED[key] = [owner, former, 0]
            setattr(owner, name, make(former))
        _REPLACED[key][2] += 1
    try:
        yield
    finally:
        with _LOCK:
            _REPLACED[key][2] -= 1
            if not _REPLACED[key][2]:
                setattr(owner, name, _REPLACED.pop(key)[1])

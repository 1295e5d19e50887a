"""Objects that take long to make, on disk by what was asked for, so that other processes do not make them again.

They are pickles in files of `fuser_lab.runtime.store`, which returns only what this user has written.
"""

import contextlib
import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fuser_lab.runtime import store

T = TypeVar("T")


def kept(folder: str, asked: str, make: Callable[[], T]) -> T:
    """Return the object on disk for a text that determines it, or else the one that ``make`` returns, which is kept."""
    found: T | None = find(folder, asked)
    if found is not None:
        return found
    made = make()
    keep(folder, asked, made)
    return made


def find(folder: str, asked: str) -> Any:
    """Return the object on disk for a text that determines it; None if there is none."""
    content = store.read(_file(folder, asked))
    if content is not None:
        with contextlib.suppress(Exception):  # another version of a library may have written it
            return pickle.loads(content)  # noqa: S301 - written by this user and sealed
    return None


def keep(folder: str, asked: str, made: object) -> None:
    """Keep an object on disk; one that cannot be pickled is made in each process."""
    with contextlib.suppress(Exception):
        store.write(_file(folder, asked), pickle.dumps(made))


def _file(folder: str, asked: str) -> str:
    return f"{folder}/{hashlib.sha256(f'{files_digest()} {asked}'.encode()).hexdigest()}"


@functools.cache
def files_digest() -> str:
    """Return a digest of the package's files, on which objects and their pickles depend."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for place in sorted(package.rglob("*")):
        if place.suffix in {".py", ".json", ".toml"}:
            digest.update(f"{place.relative_to(package)} {place.stat().st_size} ".encode() + place.read_bytes())
    return digest.hexdigest()

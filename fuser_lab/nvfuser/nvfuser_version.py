"""Versions that scripts compare."""

import re
from typing import Self

from fuser_lab import __version__
from fuser_lab.arguments import short_text
from fuser_lab.errors import InputError

_FORM = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)(?:[-_.]?(?P<kind>a|b|rc|alpha|beta|post|dev|git)[-_.]?(?P<number>\w*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE,
)
# Before a release, the release itself, and after it.
_ORDER = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3, "": 4, "git": 5, "post": 5}


class Version(str):
    """A version that is compared by its numbers, with others and with strings; ``0.2.10`` follows ``0.2.9``.

    Raises
    ------
    InputError
        If the text is not a version.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Return a version."""
        _key(text)
        return super().__new__(cls, text.strip())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return a version; raise InputError if the text is not one."""
        return cls(text)

    def __eq__(self, other: object) -> bool:
        """Compare with a version or a string."""
        return _key(self) == _key(other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        """Compare with a version or a string."""
        return not self == other

    def __lt__(self, other: str) -> bool:
        """Whether this is older than a version or a string."""
        return _key(self) < _key(other)

    def __le__(self, other: str) -> bool:
        """Whether this is not newer than a version or a string."""
        return _key(self) <= _key(other)

    def __gt__(self, other: str) -> bool:
        """Whether this is newer than a version or a string."""
        return _key(self) > _key(other)

    def __ge__(self, other: str) -> bool:
        """Whether this is not older than a version or a string."""
        return _key(self) >= _key(other)

    def __hash__(self) -> int:
        """Hash by the compared numbers."""
        return hash(_key(self))


def _key(text: str) -> tuple[tuple[int, ...], int, int, str]:
    match = _FORM.fullmatch(str.strip(text)) if isinstance(text, str) else None
    if match is None:
        msg = f"Version: {short_text(text)} is not a version; one looks like 0.2.31, 0.2.31rc1 or 0.2.31+git1a2b3c."
        raise InputError(msg)
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    number = match["number"] or ""
    return tuple(release), _ORDER[(match["kind"] or "").lower()], int(number) if number.isdecimal() else 0, (
        match["local"] or ""
    )


nvfuser_version = Version(__version__)

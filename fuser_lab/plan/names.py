"""The user's names of tensors, which are variables in the user's code, in addition to the fusion's names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from fuser_lab.arguments import listing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fuser_lab.errors import FuserLabError

Names = tuple[tuple[str, str], ...]  # the user's names of tensors, each with the fusion's name
_MOST_MATCHES: Final = 4  # names that an error suggests


def tensor_called(called: str, tensors: Collection[str], names: Names, kind: type[FuserLabError]) -> str:
    """Return the fusion's name of a tensor that is given by this name or by the user's name.

    An unknown name that resembles no other is returned unchanged, so that the caller refuses it.

    Raises
    ------
    FuserLabError
        Of this ``kind``, if the user has several tensors of this name, or the name only resembles others.
    """
    if called in tensors:
        return called
    matches = tuple(dict.fromkeys(tensor for name, tensor in names if name == called))
    if len(matches) == 1:
        return matches[0]
    if matches:
        msg = f"{called} is the name of several tensors: {listing(matches)}; choose from these."
        raise kind(msg)
    matches = close_matches(called, tensors, names)
    if matches:
        msg = f"the fusion has no tensor called {called!r}; close matches are {', '.join(matches)}."
        raise kind(msg)
    return called


def close_matches(called: str, tensors: Iterable[str], names: Names) -> tuple[str, ...]:
    """Return names that resemble a name, the user's names with the fusion's name in brackets."""
    tensors_of: dict[str, Sequence[str]] = {}
    for name, tensor in names:
        tensors_of[name] = (*tensors_of.get(name, ()), tensor)
    words = {word.lower(): word for word in (*tensors, *tensors_of)}
    similar = [words[word] for word in get_close_matches(called.lower(), words, _MOST_MATCHES)]
    return tuple(f"{w} ({', '.join(dict.fromkeys(tensors_of[w]))})" if w in tensors_of else w for w in similar)

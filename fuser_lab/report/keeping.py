"""Results kept for the next drawing: an edit makes a new plan of the same tensors and expressions."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Given = TypeVar("Given")
Result = TypeVar("Result")

_MOST: Final = 1 << 14


def kept(function: Callable[[Given], Result]) -> Callable[[Given], Result]:
    """Return the function with its results kept by the identity of what it is given, which must not change.

    Keeping them by equality would compare the tensors of all fusions that have the same names.
    """
    results: dict[int, tuple[Given, Result]] = {}

    @wraps(function)
    def remembering(given: Given) -> Result:
        found = results.get(id(given))  # what is kept is alive, so that nothing else has its id
        if found is None:
            if len(results) >= _MOST:
                results.clear()
            found = results[id(given)] = given, function(given)
        return found[1]

    return remembering

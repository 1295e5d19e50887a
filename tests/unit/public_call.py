"""A legal call of a public function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A legal call: ``make()`` returns what is called anew, so that no call sees what another left behind."""

    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

"""The interface of a definition for its handles."""

from typing import Any, Protocol

from fuser_lab.definition.scheduling import HandSchedule


class Owner(Protocol):
    """The definition of a handle; `FusionBuilder` implements this."""

    ops: Any

    @property
    def hand(self) -> HandSchedule:
        """The schedule by hand."""

    def wrap(self, result: Any) -> Any:
        """Return values as handles, inside lists and tuples too."""

"""What a handle needs of the definition that it belongs to."""

from typing import Any, Protocol

from fuser_lab.definition.scheduling import HandSchedule


class Owner(Protocol):
    """A definition as its handles see it; `FusionBuilder` is one."""

    ops: Any

    @property
    def hand(self) -> HandSchedule:
        """The schedule by hand."""

    def wrap(self, result: Any) -> Any:
        """Return values as handles, inside lists and tuples too."""

"""Named sets of schedulers, which printed code refers to by name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuser_lab.schedule.base import Scheduler


@dataclass(frozen=True, slots=True)
class SchedulerSet:
    """Schedulers in the order in which they are asked, under the name that they have in ``fuser_lab``."""

    name: str
    schedulers: tuple[Scheduler, ...]

    def __iter__(self) -> Iterator[Scheduler]:
        """Iterate over the schedulers in order."""
        return iter(self.schedulers)

    def __len__(self) -> int:
        """Return the number of schedulers."""
        return len(self.schedulers)

    def __getitem__(self, index: int) -> Scheduler:
        """Return a scheduler by position."""
        return self.schedulers[index]

    def __repr__(self) -> str:
        """Return the name in ``fuser_lab``."""
        return f"fl.{self.name}"


_SETS: list[SchedulerSet] = []


def register(chosen: SchedulerSet) -> SchedulerSet:
    """Return a set after registering it; a name or tuple of schedulers is registered once.

    Raises
    ------
    ValueError
        If the name is taken, or another set has the same schedulers.
    """
    if any(chosen.name == other.name or chosen.schedulers == other.schedulers for other in _SETS):
        msg = f"a set of schedulers named {chosen.name}, or with the same schedulers, is registered already."
        raise ValueError(msg)
    _SETS.append(chosen)
    return chosen


def known_set(schedulers: Sequence[Scheduler]) -> SchedulerSet | None:
    """Return the registered set of exactly these schedulers in this order, or None."""
    chosen = tuple(schedulers)
    return next((other for other in _SETS if other.schedulers == chosen), None)

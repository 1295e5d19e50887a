"""Sources of a generator's decisions: a seed, or hypothesis, which can then shrink them."""

import random
from collections.abc import Sequence
from typing import Any, Protocol


class Choices(Protocol):
    """A source of decisions; smaller numbers and earlier entries are the simpler ones."""

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases on average."""


class Seeded:
    """Decisions of a seeded generator: the same for the same seed, on every machine."""

    def __init__(self, *seed: int) -> None:
        self._random = random.Random(".".join(map(str, seed)))

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self._random.randrange(len(options))]

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent

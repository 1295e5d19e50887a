"""Sources of a generator's decisions: a seed, or hypothesis, which can then shrink them."""

import random
from collections.abc import Sequence
from typing import Any, Protocol

from hypothesis import strategies as st


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


class Drawn:
    """Decisions that hypothesis draws, and can make simpler."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent

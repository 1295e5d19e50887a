"""What the pictures of a page are made of: each piece is sent once, and pictures consist of numbers of pieces."""

from collections.abc import Hashable
from typing import Any, Final, Literal

Kind = Literal["shapes", "rows", "parts"]
_KINDS: Final[tuple[Kind, ...]] = ("shapes", "rows", "parts")
MOST: Final = 50_000  # pieces after which the next picture begins a new stock


class Stock:
    """Numbered pieces: shapes (markup), rows (the data of drawn things) and parts (insides of segments).

    Equal pieces have one number. The pieces that are new in a picture are one chunk; the page takes the chunks from
    ``first`` on in their order.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.chunks: list[dict[str, list[Any]]] = []
        self._numbers: dict[Kind, dict[Hashable, int]] = {kind: {} for kind in _KINDS}
        self._new: dict[str, list[Any]] = {kind: [] for kind in _KINDS}

    @property
    def end(self) -> int:
        """The number of the next chunk."""
        return self.first + len(self.chunks)

    @property
    def is_full(self) -> bool:
        """Whether there are so many pieces that most belong to earlier pictures."""
        return sum(map(len, self._numbers.values())) > MOST

    def number(self, kind: Kind, piece: Hashable) -> int:
        """Return the number of a piece, the same each time."""
        numbers = self._numbers[kind]
        number = numbers.get(piece)
        if number is None:
            number = numbers[piece] = len(numbers)
            self._new[kind].append(piece)
        return number

    def shut(self) -> None:
        """End a chunk, if there are new pieces."""
        if any(self._new.values()):
            self.chunks.append(self._new)
            self._new = {kind: [] for kind in _KINDS}

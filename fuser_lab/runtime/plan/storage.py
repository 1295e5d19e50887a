"""Memory for the values between segments, planned once and shared by values that are not live at the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """The bytes of a value, and the first and last step that access it."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """Sizes of the blocks to allocate, and the block of each value."""

    blocks: tuple[int, ...]
    block_of: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self.blocks)


def plan_storage(lifetimes: Sequence[Lifetime]) -> StoragePlan:
    """Return blocks such that values live at the same step have different ones; the best fit is reused first."""
    blocks: list[int] = []
    busy_until: list[int] = []
    chosen: dict[str, int] = {}
    for value in sorted(lifetimes, key=lambda v: (v.first, -v.nbytes)):
        free = [i for i, last in enumerate(busy_until) if last < value.first]
        fitting = [i for i in free if blocks[i] >= value.nbytes]
        if fitting:
            place = min(fitting, key=lambda i: blocks[i])
        elif free:
            place = max(free, key=lambda i: blocks[i])
            blocks[place] = value.nbytes
        else:
            place = len(blocks)
            blocks.append(value.nbytes)
            busy_until.append(-1)
        busy_until[place] = value.last
        chosen[value.name] = place
    return StoragePlan(blocks=tuple(blocks), block_of=chosen)

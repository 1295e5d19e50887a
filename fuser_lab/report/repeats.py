"""Repeating runs of segments, such as the layers of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.report.parts import crossing
from fuser_lab.report.view_model import ViewModel

_LONGEST: Final = 64  # segments of one period
_FEWEST: Final = 3  # repetitions that are worth folding


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``count`` repetitions of ``period`` segments, from segment ``first`` on."""

    first: int
    period: int
    count: int

    @property
    def id(self) -> str:
        """The id of the node that represents the block."""
        return f"block:{self.first}-{self.last}"

    @property
    def last(self) -> int:
        """The last segment."""
        return self.first + self.period * self.count - 1

    def __contains__(self, segment: object) -> bool:
        return isinstance(segment, int) and self.first <= segment <= self.last


def blocks(view: ViewModel) -> tuple[Block, ...]:
    """Return the blocks of a plan, from the first segment to the last; no two overlap.

    Segments are equal if they have the same scheduler and the same ops in the same order. There are no blocks if a
    segment reads what a later one writes, as a run of segments could then not be one box.
    """
    if any(a is not None and b is not None and a > b for _, (a, b) in crossing(view.edges)):
        return ()
    numbers: dict[object, int] = {}
    signatures = [numbers.setdefault((s.scheduler, s.ops), len(numbers)) for s in view.segments]
    blocks_in_order, at = list[Block](), 0
    while at < len(signatures):
        periods = [n for n, other in enumerate(signatures[at + 1 : at + 1 + _LONGEST], 1) if other == signatures[at]]
        best = max(
            (Block(first=at, period=period, count=_count(signatures, at, period)) for period in periods),
            key=lambda block: (block.count >= _FEWEST) * block.period * block.count, default=None,
        )
        if best is not None and best.count >= _FEWEST:
            blocks_in_order.append(best)
            at += best.period * best.count
        else:
            at += 1
    return tuple(blocks_in_order)


def _count(signatures: Sequence[int], first: int, period: int) -> int:
    """Return how often the segments from ``first`` on repeat with this period."""
    count = 1
    pattern = signatures[first : first + period]
    while len(pattern) == period and signatures[first + count * period : first + (count + 1) * period] == pattern:
        count += 1
    return count

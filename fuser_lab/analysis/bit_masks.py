"""Sets of small numbers as the ones of an integer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence


def mask_of(places: Iterable[int]) -> int:
    """Return a set of different places as a bit mask."""
    return sum(1 << place for place in places)


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the ones of a bit mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def union_at(masks: Sequence[int] | Mapping[int, int], places: int) -> int:
    """Return the union of the masks at the ones of a bit mask."""
    union = 0
    for place in bits(places):
        union |= masks[place]
    return union

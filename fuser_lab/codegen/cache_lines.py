"""The memory that the loops of a CPU kernel touch, and the bytes that a cache of some size fetches more than once.

An access touches a number of *runs* of neighbouring bytes. A loop whose step is at most the length of a run makes the
runs longer; any other loop makes more runs. If a cache holds all bytes that a round of a loop touches, the next round
fetches only new bytes. Otherwise each round fetches all of its bytes (the layer conditions of Stengel, Treibig, Hager
and Wellein, ICS 2015). Lines whose distance is a multiple of a large power of two share a few sets of the cache and
leave the other sets unused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final

from fuser_lab.codegen.kernel_ir import Buffer
from fuser_lab.codegen.loop_tree import Rounds, Steps

LINE: Final = 64  # bytes
_SETS: Final = 64  # sets of the smallest cache


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of ``length`` bytes each. ``steps`` has the bytes between neighbouring runs, one number per loop."""

    count: float
    length: float
    steps: tuple[int, ...] = ()

    def over(self, digits: Steps, size: int) -> "Runs":
        """Return the runs that all rounds of a loop touch by an access to elements of ``size`` bytes."""
        count, length, steps = self.count, self.length, self.steps
        for step, turns in digits:
            apart = step * size
            if apart == 0 or turns <= 1:
                continue
            if apart <= length + LINE / 4:
                length += (turns - 1) * apart
            else:
                count *= turns
                steps = (*steps, apart)
        return Runs(count, length, steps)

    @property
    def nbytes(self) -> float:
        """The bytes of the cache lines that the runs touch."""
        lines = (self.length - 1) // LINE + 1 if self.length < 4 * LINE else self.length / LINE + 0.5
        return self.count * lines * LINE

    @property
    def crowding(self) -> float:
        """The bytes of a cache that the runs occupy, over their own bytes: more than 1 if they share few sets."""
        apart = gcd(*self.steps) if self.steps else 0
        return min(max((apart & -apart) / max(self.length, LINE), 1.0), _SETS)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes that a cache fetches, and the number of runs that contain them."""

    nbytes: float = 0.0
    runs: float = 0.0

    def __add__(self, other: "Fetched") -> "Fetched":
        """Return the sums of bytes and runs."""
        return Fetched(self.nbytes + other.nbytes, self.runs + other.runs)

    def times(self, factor: float) -> "Fetched":
        """Return bytes and runs, multiplied by a factor."""
        return Fetched(self.nbytes * factor, self.runs * factor)


# A buffer, the steps of an access along the loops around it, and the line that it touches in their first turn.
_Key = tuple[Buffer, tuple[tuple[int, Steps], ...], int]
_Touched = Mapping[_Key, Runs]


class CacheLines:
    """Bytes that the loops of a tree touch, and bytes that they fetch."""

    def __init__(self, root: Rounds) -> None:
        """Store the tree of a phase; nothing is counted yet."""
        self._root = root
        self._inside: dict[int, _Touched] = {}
        self._whole: dict[int, _Touched] = {}

    def touched(self) -> dict[Buffer, float]:
        """Return the bytes of each buffer that the phase touches at least once."""
        return {buffer: lines.nbytes for buffer, lines in _by_buffer(self._one_round(self._root)).items()}

    def fetched(self, cache: float) -> dict[Buffer, Fetched]:
        """Return the bytes of each buffer that a cache of this size fetches if it is empty at first."""
        return self._fetched_lines(self._root, cache)

    def _one_round(self, rounds: Rounds) -> _Touched:
        """Return the runs that one round of a loop touches."""
        touched = self._inside.get(id(rounds))
        if touched is None:
            pieces: dict[_Key, Runs] = {}
            for access in rounds.accesses:
                size = access.buffer.dtype.itemsize
                steps = tuple((depth, step) for depth, step in access.steps.items() if depth <= rounds.depth)
                pieces.setdefault((access.buffer, steps, access.place * size // LINE), Runs(1.0, size))
            for inner in rounds.inner:
                for (buffer, steps, place), runs in self._all_rounds(inner).items():
                    key = buffer, steps[: rounds.depth], place
                    other = pieces.get(key)
                    if other is None or other.count * other.length < runs.count * runs.length:
                        pieces[key] = runs
            touched = self._inside[id(rounds)] = _join_runs(pieces)
        return touched

    def _all_rounds(self, rounds: Rounds) -> _Touched:
        """Return the runs that all rounds of a loop touch."""
        touched = self._whole.get(id(rounds))
        if touched is None:
            touched = self._whole[id(rounds)] = {
                key: runs.over(dict(key[1]).get(rounds.depth, ()), key[0].dtype.itemsize)
                for key, runs in self._one_round(rounds).items()
            }
        return touched

    def _fetched_lines(self, rounds: Rounds, cache: float) -> dict[Buffer, Fetched]:
        inside = self._one_round(rounds)
        whole = self._all_rounds(rounds) if rounds.depth else inside
        once = _by_buffer(whole)
        if _occupied_bytes(whole) <= cache or (rounds.depth and _occupied_bytes(inside) <= cache):
            return once
        fetched: dict[Buffer, Fetched] = {}
        for inner in rounds.inner:
            for buffer, moved in self._fetched_lines(inner, cache).items():
                fetched[buffer] = fetched.get(buffer, Fetched()) + moved.times(inner.times)
        for access in rounds.accesses:
            fetched[access.buffer] = fetched.get(access.buffer, Fetched()) + Fetched(LINE, 1.0).times(access.times)
        turns = rounds.turns if rounds.depth else 1.0
        each = {buffer: moved.times(turns) for buffer, moved in fetched.items()}
        return {key: lines if lines.nbytes >= once[key].nbytes else once[key] for key, lines in each.items()}


def _join_runs(touched: _Touched) -> _Touched:
    """Return the runs, joined where they have equal steps and one begins where another ends."""
    joined: dict[_Key, Runs] = {}
    last: dict[tuple[Buffer, tuple[tuple[int, Steps], ...]], _Key] = {}
    for key, runs in sorted(touched.items(), key=lambda item: item[0][2]):
        before = last.get(key[:2])
        if before is not None:
            first = joined[before]
            apart = (key[2] - before[2]) * LINE
            if first.count == runs.count and apart <= first.length + LINE:
                joined[before] = Runs(first.count, max(first.length, apart + runs.length), first.steps)
                continue
        joined[key] = runs
        last[key[:2]] = key
    return joined


def _by_buffer(touched: _Touched) -> dict[Buffer, Fetched]:
    """Return the lines of each buffer, at most all of its lines."""
    totals: dict[Buffer, Fetched] = {}
    for (buffer, _, _), runs in touched.items():
        totals[buffer] = totals.get(buffer, Fetched()) + Fetched(runs.nbytes, runs.count)
    return {
        buffer: lines.times(min((buffer.nbytes + LINE) / max(lines.nbytes, 1.0), 1.0))
        for buffer, lines in totals.items()
    }


def _occupied_bytes(touched: _Touched) -> float:
    """Return the bytes of a cache that the runs occupy, including the sets that they leave unused."""
    once = _by_buffer(touched)
    taken: dict[Buffer, list[float]] = {}
    for (buffer, _, _), runs in touched.items():
        taken.setdefault(buffer, []).extend((runs.nbytes, runs.nbytes * runs.crowding))
    return sum(once[buffer].nbytes * _ratio(sizes) for buffer, sizes in taken.items())


def _ratio(sizes: Iterable[float]) -> float:
    numbers = list(sizes)
    return sum(numbers[1::2]) / max(sum(numbers[::2]), 1.0)

"""A cache of compiled objects by fusion: equal definitions share an entry, and the least recently used is evicted."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fuser_lab.arguments import short_text
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Fusion
from fuser_lab.process.forks import new_lock

Payload = TypeVar("Payload")


@dataclass(slots=True)
class _Kept(Generic[Payload]):
    payload: Payload
    hits: int = 0


class LruCache(Generic[Payload]):
    """Caches the result of `make` for a fusion, and returns it for every equal fusion.

    Definitions are equal if their order of arguments, dtypes, contiguity and constants are; names do not matter. Any
    number of threads may call it; each payload is made once.

    Parameters
    ----------
    max_fusions
        Maximum number of entries; the least recently used one is evicted.
    make
        Makes the payload of an unknown fusion.
    """

    def __init__(self, max_fusions: int, make: Callable[[Fusion], Payload]) -> None:
        if not isinstance(max_fusions, int) or isinstance(max_fusions, bool):
            raise ArgumentTypeError(f"LRUCache: max_fusions must be an int, given {short_text(max_fusions)}.")
        if max_fusions < 1:
            raise DefinitionError(f"LRUCache: max_fusions must be at least 1, given {max_fusions}.")
        self._max = max_fusions
        self._make = make
        self._kept: OrderedDict[Fusion, _Kept[Payload]] = OrderedDict()
        self._lookups = 0
        self._hits = 0
        self._lock = new_lock()

    def cached(self, fusion: Fusion) -> Payload:
        """Return the payload of an equal fusion; make it if there is none."""
        with self._lock:
            self._lookups += 1
            entry = self._kept.get(fusion)
            if entry is not None:
                self._hits += 1
                entry.hits += 1
                self._kept.move_to_end(fusion)
                return entry.payload
            entry = self._kept[fusion] = _Kept(self._make(fusion))
            if len(self._kept) > self._max:
                self._kept.popitem(last=False)
            return entry.payload

    def num_fusions(self) -> int:
        """Return the number of stored fusions."""
        with self._lock:
            return len(self._kept)

    def stats(self) -> str:
        """Return counts of lookups and hits as text, most recently used fusion first."""
        with self._lock:
            head = f"Max Fusions Allowed: {self._max}\n"
            if not self._kept:
                return f"{head}The fusion cache is empty.\n"
            rate = 100.0 * self._hits / self._lookups
            lines = [
                f"Total Fusions in Cache: {len(self._kept)}",
                f"Total Unique Fusions Compiled: {self._lookups - self._hits}",
                "Cache Hits by LRU ordering:",
                *(f"\t{place} -> {entry.hits} hits" for place, entry in enumerate(reversed(self._kept.values()))),
                f"Cache Lookups: {self._lookups}",
                f"Cache Hits: {self._hits}",
                f"Hit Rate: {rate:g}%",
            ]
            return head + "\n".join(lines) + "\n"

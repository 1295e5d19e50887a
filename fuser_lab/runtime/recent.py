"""A cache of the most recently used values."""

from collections import OrderedDict
from typing import Generic, TypeVar

from fuser_lab.process.forks import new_lock

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key; beyond ``most``, the least recently used is evicted. Any number of threads may use it.

    An evicted value lives as long as it is referenced elsewhere, so values in use stay valid.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = new_lock()

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which becomes the most recently used; None if there is none."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: Key, value: Value) -> Value:
        """Return the value of a key, which is the given one unless there already is another."""
        with self._lock:
            stored = self._kept.setdefault(key, value)
            self._kept.move_to_end(key)
            forgotten = [self._kept.popitem(last=False) for _ in range(len(self._kept) - self._most)]
        # A value whose last reference is dropped here is destroyed outside the lock.
        del forgotten
        return stored

    def __contains__(self, key: object) -> bool:
        """Whether there is a value for a key."""
        with self._lock:
            return key in self._kept

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._kept)

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            dropped, self._kept = self._kept, OrderedDict()
        del dropped

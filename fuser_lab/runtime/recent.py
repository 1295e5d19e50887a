"""The most recently used of what can be made again."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, the least recently used forgotten beyond ``most``; any number of threads may ask.

    A value that is forgotten lives on as long as someone else holds it: what is in use is never taken away.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which becomes the most recently used; None if there is none."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: Key, value: Value) -> Value:
        """Return what is kept for a key: the given value, unless another one has been kept before."""
        with self._lock:
            found = self._kept.setdefault(key, value)
            self._kept.move_to_end(key)
            forgotten = [self._kept.popitem(last=False) for _ in range(len(self._kept) - self._most)]
        # What ends with its last reference ends outside of the lock.
        del forgotten
        return found

    def __contains__(self, key: object) -> bool:
        """Whether there is a value for a key."""
        with self._lock:
            return key in self._kept

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._kept)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
        del kept

"""The cache of the process, in which every definition of this frontend is looked up and stored."""

import atexit
import contextlib
import threading
from pathlib import Path
from typing import ClassVar, Self
from weakref import WeakKeyDictionary

from fuser_lab.definition.cache import FusionCache as Known
from fuser_lab.definition.trie import FusionSchedules
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.execution.executors import FusionExecutorCache, KernelExecutor
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime import store

MAX_FUSIONS = 8192  # fusions per cache, the default of nvFuser's FusionCache.get

UserSchedules = dict[tuple[object, ...], KernelExecutor]


class FusionCache:
    """All fusions that the process has defined; `get` returns the only instance.

    When the cache is full, nvFuser refuses a new fusion; here the least recently used one is evicted.
    """

    _lock: ClassVar[threading.Lock] = new_lock()
    _only: ClassVar["FusionCache | None"] = None

    def __init__(self, max_fusions: int = MAX_FUSIONS) -> None:
        self.known: Known[FusionExecutorCache] = Known(max_fusions)
        # By stored data, because numbers begin again after a reset.
        self._scheduled: WeakKeyDictionary[FusionSchedules[FusionExecutorCache], UserSchedules] = WeakKeyDictionary()

    @classmethod
    def get(cls, max_fusions: int = MAX_FUSIONS, load_from_default_workspace: bool = True) -> "FusionCache":
        """Return the cache of the process, created if there is none.

        Parameters
        ----------
        max_fusions
            Capacity of a new cache.
        load_from_default_workspace
            Whether a new cache loads the file that `serialize` wrote; a file that cannot be read is skipped.
        """
        with cls._lock:
            if cls._only is None:
                cls._only = cls(max_fusions)
                workspace = default_workspace() if load_from_default_workspace else None
                if workspace is not None and workspace.is_file():
                    with contextlib.suppress(FuserLabError):
                        cls._only.deserialize(workspace)
            return cls._only

    @classmethod
    def reset(cls) -> None:
        """Remove all fusions and counts; existing definitions keep their data."""
        with cls._lock:
            only = cls._only
            if only is not None:
                only.known = Known(only.known.max_fusions)

    def num_fusions(self) -> int:
        """Return the number of fusions."""
        return self.known.num_fusions()

    def user_schedules(self, schedules: FusionSchedules[FusionExecutorCache]) -> UserSchedules:
        """Return the kernels of a fusion that were scheduled by hand, by the inputs they were scheduled for."""
        return self._scheduled.setdefault(schedules, {})

    def serialize(self, path: str | Path) -> None:
        """Write all definitions to a file; kernels are compiled again when they are needed."""
        self.known.save(path)

    def deserialize(self, path: str | Path) -> Self:
        """Load the definitions of a file into an empty cache.

        Raises
        ------
        InputError
            If the cache contains fusions, or the file is not a saved cache.
        """
        if self.num_fusions():
            raise InputError(
                f"FusionCache.deserialize: deserialization is prohibited if FusionCache is already populated, "
                f"and it knows {self.num_fusions()} fusions; call FusionCache.reset() first."
            )
        self.known = Known.load(path, self.known.max_fusions)
        return self

    def stats(self) -> str:
        """Return counts of fusions, records, lookups and hits as text."""
        return str(self.known.stats())

    def print(self) -> None:
        """Print the trie."""
        print(self)  # noqa: T201

    def __str__(self) -> str:
        """Return the trie as text."""
        return str(self.known)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the trie for a notebook."""
        return self.known._repr_html_()


def default_workspace() -> Path | None:
    """Return the file that `serialize` writes; None if no directory is private to this user."""
    kernels = store.directory()
    return None if kernels is None else kernels.parent / "nvfuser_fusions.json"


def serialize() -> None:
    """Write the cache of the process to the file that the next process loads.

    Raises
    ------
    InputError
        If the directory cannot be written.
    """
    workspace = default_workspace()
    if workspace is None:
        raise InputError(
            f"serialize: the directory {store.configured_folder()} cannot be used; set FUSER_LAB_CACHE to another "
            "one."
        )
    FusionCache.get().serialize(workspace)


def enable_automatic_serialization() -> None:
    """Let the process write its cache when it exits."""
    atexit.register(serialize)


def disable_automatic_serialization() -> None:
    """Do not let the process write its cache when it exits."""
    atexit.unregister(serialize)

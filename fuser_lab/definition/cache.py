"""FusionCache: known definitions, and their form on disk."""

from pathlib import Path
from typing import Any, NoReturn

from fuser_lab.arguments import PATH, optional, takes, whole
from fuser_lab.definition.cache_file import read_cache, write_cache
from fuser_lab.definition.known import MAX_FUSIONS, KnownDefinitions, Payload
from fuser_lab.errors import StateError


class FusionCache(KnownDefinitions[Payload]):
    """Known definitions, by their calls; pass it to each definition, ``FusionDefinition(cache=cache)``.

    Calls that do the same in the same order are one definition; the spelling of arguments and the names of variables do
    not matter. Any number of threads may define at once. A refused call is recorded, and refused again.

    Parameters
    ----------
    max_fusions
        Maximum number of fusions; beyond it, the least recently used one is evicted.

    Raises
    ------
    ArgumentTypeError
        If it is not an int.
    DefinitionError
        If it is below 1.
    """

    def __init__(self, max_fusions: int = MAX_FUSIONS) -> None:
        super().__init__(max_fusions)
        # The classmethod creates a new cache; calling it on this one would not change this one.
        self.load = _refuse_to_load  # type: ignore[method-assign]

    @takes("FusionCache.save", path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the calls of all fusions to a JSON file, without compiled kernels, and return its path.

        Raises
        ------
        ArgumentTypeError
            If the path is not a path.
        InputError
            If the directory cannot be written.
        """
        target = Path(path)
        write_cache(self, target)
        return target

    @classmethod
    @takes("FusionCache.load", path=PATH, max_fusions=optional(whole(1)))
    def load(cls, path: str | Path, max_fusions: int | None = None) -> "FusionCache[Any]":
        """Return the cache that `save` wrote; reading executes nothing, and each fusion is defined and checked again.

        Parameters
        ----------
        path
            The file.
        max_fusions
            Maximum number of fusions; by default, that of the saved cache.

        Raises
        ------
        ArgumentTypeError
            If the path is not a path.
        InputError
            If the file is not a saved cache.
        """
        return read_cache(Path(path), max_fusions, FusionCache)


def _refuse_to_load(*_: object, **__: object) -> NoReturn:
    msg = "load: an existing cache cannot be filled from a file; cache = FusionCache.load(path) creates a new one."
    raise StateError(msg)

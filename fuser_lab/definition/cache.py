"""FusionCache: the definitions that are known, and their form on disk."""

from pathlib import Path
from typing import Any, NoReturn

from fuser_lab.arguments import PATH, optional, takes, whole
from fuser_lab.definition.cache_file import read_cache, write_cache
from fuser_lab.definition.known import MAX_FUSIONS, KnownDefinitions, Payload
from fuser_lab.errors import StateError


class FusionCache(KnownDefinitions[Payload]):
    """Definitions that are known, by the calls they are made of; give it to each, ``FusionDefinition(cache=cache)``.

    Calls that do the same in the same order are one definition: neither the spelling of arguments counts nor names of
    variables. Any number of threads may define at once. A call that is refused is remembered, and refused again.

    Parameters
    ----------
    max_fusions
        How many fusions are kept; then the least recently used one is forgotten.

    Raises
    ------
    ArgumentTypeError
        If it is not an int.
    DefinitionError
        If it is below 1.
    """

    def __init__(self, max_fusions: int = MAX_FUSIONS) -> None:
        super().__init__(max_fusions)
        # The classmethod makes a new cache: called on this one, it would leave this one as it is.
        self.load = _refuse_to_load  # type: ignore[method-assign]

    @takes("FusionCache.save", path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the calls of all fusions to a JSON file, without what is compiled, and return its path.

        Raises
        ------
        ArgumentTypeError
            If the path is none.
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
            How many fusions are kept; by default, as many as in the saved cache.

        Raises
        ------
        ArgumentTypeError
            If the path is none.
        InputError
            If the file is not a saved cache.
        """
        return read_cache(Path(path), max_fusions, FusionCache)


def _refuse_to_load(*_: object, **__: object) -> NoReturn:
    msg = "load: a cache that exists is not filled from a file; cache = FusionCache.load(path) makes a new one."
    raise StateError(msg)

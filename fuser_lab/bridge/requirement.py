"""The versions of torch and JAX that the bridge supports."""

import importlib
import re
from typing import Any

from fuser_lab.errors import UnsupportedError

OLDEST = (2, 6)
OLDEST_JAX = (0, 10)


def torch_for(what: str) -> Any:
    """Return the module torch; ``what`` needs it.

    Raises
    ------
    UnsupportedError
        If torch is not installed, or is older than 2.6.
    """
    return _library_for(what, "torch", OLDEST)


def jax_for(what: str) -> Any:
    """Return the module jax; ``what`` needs it.

    Raises
    ------
    UnsupportedError
        If JAX is not installed, or is older than 0.10.
    """
    return _library_for(what, "jax", OLDEST_JAX)


def _library_for(what: str, name: str, oldest: tuple[int, int]) -> Any:
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        msg = f"{what} needs {name}: pip install 'fuser_lab[{name}]' ({error})."
        raise UnsupportedError(msg) from None
    found = re.match(r"(\d+)\.(\d+)", str(library.__version__))
    if found is not None and (int(found[1]), int(found[2])) < oldest:
        least = ".".join(map(str, oldest))
        msg = f"{what} needs {name} {least} or newer; {name} {library.__version__} is installed."
        raise UnsupportedError(msg)
    return library

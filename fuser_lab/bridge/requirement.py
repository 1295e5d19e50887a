"""The versions of torch and JAX that the bridge supports."""

import importlib
import re
from typing import Any

from fuser_lab.errors import UnsupportedError

OLDEST = (2, 6)  # version of torch that `make test-torch-oldest` tests
OLDEST_JAX = (0, 10)  # version of JAX


def torch_for(caller: str) -> Any:
    """Return the module torch; ``caller`` needs it.

    Raises
    ------
    UnsupportedError
        If torch is not installed, or is older than 2.6.
    """
    return _library_for(caller, "torch", OLDEST)


def jax_for(caller: str) -> Any:
    """Return the module jax; ``caller`` needs it.

    Raises
    ------
    UnsupportedError
        If JAX is not installed, or is older than 0.10.
    """
    return _library_for(caller, "jax", OLDEST_JAX)


def _library_for(caller: str, name: str, oldest: tuple[int, int]) -> Any:
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        msg = f"{caller} needs {name}: pip install 'fuser_lab[{name}]' ({error})."
        raise UnsupportedError(msg) from None
    version = re.match(r"(\d+)\.(\d+)", str(library.__version__))
    if version is not None and (int(version[1]), int(version[2])) < oldest:
        least = ".".join(map(str, oldest))
        msg = f"{caller} needs {name} {least} or newer; {name} {library.__version__} is installed."
        raise UnsupportedError(msg)
    return library

"""The torch that the bridge works with."""

import importlib
import re
from typing import Any

from fuser_lab.errors import UnsupportedError

OLDEST = (2, 6)


def torch_for(what: str) -> Any:
    """Return the module torch, for what needs it.

    Raises
    ------
    UnsupportedError
        If torch is not installed, or is older than 2.6.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        msg = f"{what} needs torch: pip install 'fuser_lab[torch]' ({error})."
        raise UnsupportedError(msg) from None
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        least = ".".join(map(str, OLDEST))
        msg = f"{what} needs torch {least} or newer; torch {torch.__version__} is installed."
        raise UnsupportedError(msg)
    return torch

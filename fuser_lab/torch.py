"""``import fuser_lab.torch``: the backend of ``torch.compile``, and its last result.

Importing it registers ``"fuser_lab"`` with torch; if the package is installed, its entry point does so as well.
"""

from fuser_lab.bridge.backend import backend, last_capture, register
from fuser_lab.bridge.model import CapturedModel, from_torch

register()


def last() -> CapturedModel | None:
    """Return the model that this thread compiled last with ``torch.compile(..., backend="fuser_lab")``.

    None before the first.
    """
    capture = last_capture()
    return None if capture is None else CapturedModel(capture, None)


__all__ = ["CapturedModel", "backend", "from_torch", "last", "register"]

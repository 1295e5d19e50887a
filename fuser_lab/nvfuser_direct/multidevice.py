"""nvFuser's names for several devices; fusions here run on one, so using a name raises UnsupportedError."""

from typing import Any, NoReturn

from fuser_lab.errors import UnsupportedError


class _Unsupported:
    """A feature of distributed fusions."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedError(f"{type(self).__name__}: fusions over several devices are not supported.")


class Communicator(_Unsupported):
    """Raises UnsupportedError."""


class CommunicatorBackend(_Unsupported):
    """Raises UnsupportedError."""


class DeviceMesh(_Unsupported):
    """Raises UnsupportedError."""


class Sharding(_Unsupported):
    """Raises UnsupportedError."""


def execute_with_dtensors(*_: Any, **__: Any) -> NoReturn:
    """Raise UnsupportedError."""
    raise UnsupportedError("execute_with_dtensors: fusions over several devices are not supported.")

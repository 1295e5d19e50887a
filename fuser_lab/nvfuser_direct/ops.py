"""nvFuser's ops as free functions; each records into the definition that is open (`recording.active`)."""

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from fuser_lab.errors import UnsupportedError
from fuser_lab.nvfuser_direct.recording import active
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.ops.unsupported import UNSUPPORTED, refusal


@cache
def _function(name: str) -> Callable[..., Any]:
    if name in UNSUPPORTED:

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise UnsupportedError(refusal(name))

        return refuse
    entry = OPS.get(name) or COMPOSITES[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(active().ops, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = entry.doc
    call.__signature__ = entry.signature  # type: ignore[attr-defined]
    return call


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the op called ``name``."""
    if name in OPS or name in COMPOSITES or name in UNSUPPORTED:
        return _function(name)
    raise AttributeError(f"unknown op fd.ops.{name}; dir(fd.ops) lists all ops.")


def __dir__() -> list[str]:
    """Return the names of all ops."""
    return sorted([*OPS, *COMPOSITES])

from collections.abc import Callable
from typing import Any, TypeVar

_C = TypeVar("_C", bound=type[Any])
_F = TypeVar("_F", bound=Callable[..., Any])

class Magics:
    shell: Any

def magics_class(cls: _C) -> _C: ...
def cell_magic(name: str) -> Callable[[_F], _F]: ...
def line_magic(name: str) -> Callable[[_F], _F]: ...

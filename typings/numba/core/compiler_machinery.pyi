from collections.abc import Callable
from typing import Any, TypeVar

P = TypeVar("P", bound=type[Any])

class PassManager:
    passes: list[tuple[type[Any], str]]
    def add_pass_after(self, pass_cls: type[Any], location: type[Any]) -> None: ...
    def finalize(self) -> None: ...

def register_pass(mutates_CFG: bool, analysis_only: bool) -> Callable[[P], P]: ...

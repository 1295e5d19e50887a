from typing import Any

class PyCallWrapper:
    def __init__(
        self, context: Any, module: Any, func: Any, fndesc: Any, env: Any, call_helper: Any, release_gil: bool,
    ) -> None: ...
    def build(self) -> tuple[Any, Any]: ...

from typing import Any

class Lower:
    context: Any
    library: Any
    fndesc: Any
    env: Any
    call_helper: Any
    def create_cpython_wrapper(self, release_gil: bool = ...) -> None: ...

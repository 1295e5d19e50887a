from typing import Any

class PythonLexer:
    def __init__(self, **options: Any) -> None: ...

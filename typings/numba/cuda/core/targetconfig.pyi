from typing import Any

class ConfigStack:
    def top(self) -> Any: ...

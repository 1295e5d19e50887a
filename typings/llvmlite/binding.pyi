from typing import Any

def __getattr__(name: str) -> Any: ...  # making machine code of IR, used in few places

from typing import Any

class csr_array:
    shape: tuple[int, int]

class coo_array:
    def __init__(self, arg: Any, shape: tuple[int, int] = ...) -> None: ...
    def tocsr(self) -> csr_array: ...

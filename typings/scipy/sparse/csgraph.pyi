from typing import Any

from scipy.sparse import csr_array

def connected_components(
    csgraph: csr_array, directed: bool = ..., connection: str = ...
) -> tuple[int, Any]: ...

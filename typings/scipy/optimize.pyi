from typing import Any

import numpy as np

class _Marginals:
    marginals: np.ndarray[tuple[int], np.dtype[np.float64]]

class OptimizeResult:
    x: np.ndarray[tuple[int], np.dtype[np.float64]] | None
    ineqlin: _Marginals

def linprog(
    c: np.ndarray[tuple[int], np.dtype[np.float64]],
    *,
    A_ub: Any = ...,
    b_ub: np.ndarray[tuple[int], np.dtype[np.float64]] | None = ...,
    method: str = ...,
) -> OptimizeResult: ...

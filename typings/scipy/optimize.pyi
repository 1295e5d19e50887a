from collections.abc import Callable
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

class FittedResult:
    cost: float
    x: np.ndarray[tuple[Any, ...], np.dtype[np.float64]]

def least_squares(
    fun: Callable[
        [np.ndarray[tuple[Any, ...], np.dtype[np.float64]]], np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
    ],
    x0: np.ndarray[tuple[Any, ...], np.dtype[np.float64]],
    *,
    bounds: tuple[float, float] = ...,
    loss: str = ...,
    f_scale: float = ...,
    ftol: float = ...,
    xtol: float = ...,
    max_nfev: int | None = ...,
) -> FittedResult: ...

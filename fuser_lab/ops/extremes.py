"""The larger and the smaller of numbers in NumPy: NaN propagates, and 0.0 is larger than -0.0 (IEEE 754-2019, 9.6).

NumPy does not specify which of the two zeros it returns; kernels of both targets follow the rule here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def larger(a: Any, b: Any) -> Array:
    """Return the elementwise maximum."""
    maximum = np.asarray(np.maximum(a, b))
    if maximum.dtype.kind != "f":
        return maximum
    # Of two zeros the sum is -0.0 only if both are.
    return np.asarray(np.where((maximum == 0) & (np.equal(a, b)), np.add(a, b), maximum))


def smaller(a: Any, b: Any) -> Array:
    """Return the elementwise minimum."""
    minimum = np.asarray(np.minimum(a, b))
    return -larger(np.negative(a), np.negative(b)) if minimum.dtype.kind == "f" else minimum


def largest(x: Array, dims: tuple[int, ...], initial: float) -> Array:
    """Return the maximum over axes, ``initial`` if there are no elements."""
    maximum = np.asarray(np.max(x, axis=dims, initial=initial))
    if maximum.dtype.kind != "f":
        return maximum
    positive = np.any((x == 0) & ~np.signbit(x), axis=dims)
    return np.asarray(np.where(maximum == 0, np.where(positive, 0.0, -0.0), maximum)).astype(maximum.dtype)


def smallest(x: Array, dims: tuple[int, ...], initial: float) -> Array:
    """Return the minimum over axes, ``initial`` if there are no elements."""
    if x.dtype.kind == "f":
        return -largest(-x, dims, -initial)
    return np.asarray(np.min(x, axis=dims, initial=initial))

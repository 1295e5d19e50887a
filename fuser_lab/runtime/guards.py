"""Runs that are kept for reuse, and checks that their arrays are like those of an earlier run, for both targets."""

import functools
import importlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

GUARDS = 4  # kept guards, because guards also distinguish tensors by irrelevant properties such as requires_grad
LARGEST_WORD = 1 << 31  # of integers that any word of a kernel can hold; others take the slow path
_KEPT = 2  # stored runs per plan, the most recent ones


class KeptRuns:
    """The last runs of a plan, for reuse; a caller takes one out and puts it back."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[Any] = deque(maxlen=_KEPT)

    def keep(self, run: Any) -> None:
        """Keep a run."""
        self._kept.append(run)

    def clear(self) -> None:
        """Drop all runs and their storage."""
        self._kept.clear()


@functools.cache
def _guards() -> Any:
    """Return the function with which Dynamo checks tensors in one call; None if torch has it elsewhere."""
    try:
        return importlib.import_module("torch._C._dynamo.guards").TensorGuards
    except (ImportError, AttributeError):
        return None


def guard_of(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return a check for tensors of equal class, device, dtype, shape and strides, none lazily negated or conjugated.

    It takes a fifth of the time of checking each tensor. It also fails if tensors differ in irrelevant properties, such
    as whether they need gradients.
    """
    guards = _guards()
    if guards is None or not tensors:
        return None
    made: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return made


def span_of(array: Any) -> int:
    """Return the number of bytes from the start of an array's first element to the end of its last."""
    if isinstance(array, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(array)
        return int(high - low)
    if not array.numel():
        return 0
    steps = zip(array.shape, array.stride(), strict=True)
    return int((sum((n - 1) * step for n, step in steps) + 1) * array.element_size())


def are_apart(spans: Sequence[tuple[int, int]], first_written: int) -> bool:
    """Whether no span of memory from a position on overlaps another one."""
    for place in range(first_written, len(spans)):
        begin, end = spans[place]
        for other, (first, last) in enumerate(spans):
            if begin < last and first < end and other != place:
                return False
    return True

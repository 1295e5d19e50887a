"""Arrays on a GPU, as torch's tensors with the strides of NumPy's arrays."""

import functools
from typing import Any

import numpy as np

from fuser_lab.runtime.arrays import from_numpy_as


@functools.cache
def has_gpu() -> bool:
    """Return whether torch is installed and finds a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def on_gpu(x: Any) -> Any:
    """The array on the GPU with its strides, which torch requires to be 0 or more; numbers are unchanged."""
    if not isinstance(x, np.ndarray):
        return x
    dense = from_numpy_as("torch", np.require(x, requirements=("C", "W"))).cuda()
    steps = [s // x.itemsize for s in x.strides]
    return dense if any(s < 0 for s in steps) else _placed(dense, steps)


def _placed(dense: Any, steps: list[int]) -> Any:
    """Return a tensor with these strides and the elements of a dense one."""
    if not dense.numel():
        return dense
    size = 1 + sum((n - 1) * s for n, s in zip(dense.shape, steps, strict=True))
    import torch

    target = torch.empty(size, dtype=dense.dtype, device="cuda").as_strided(dense.shape, steps)
    once = [slice(0, 1) if s == 0 else slice(None) for s in steps]
    target[tuple(once)] = dense[tuple(once)]
    return target

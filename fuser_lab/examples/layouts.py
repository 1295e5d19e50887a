"""Fusions in which the memory order of axes determines the cost of a kernel.

Each function records one into an open definition, with fixed sizes; `inputs_of` returns its inputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ops.rules import Array

CHANNELS_LAST = (3, 0, 2, 1)  # of [n, c, h, w]: c is the fastest


def channels_last_norm(fd: Any, batch: int = 8, channels: int = 64, side: int = 56) -> None:
    """Record an instance norm of a channels-last image, then, after a cut, a scale and a relu.

    The tensor between the segments is row-major in nvFuser, so both kernels access memory across rows.
    """
    x = fd.define_tensor([batch, channels, side, side], contiguity=True, stride_order=CHANNELS_LAST)
    scale = fd.define_tensor([1, channels, 1, 1], contiguity=True)
    variance, mean = fd.ops.var_mean(x, [2, 3], 0, True)
    normal = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    fd.add_output(fd.ops.relu(fd.ops.mul(fd.ops.segment_set(normal), scale)))


def vanishing_transpose(fd: Any, rows: int = 2048, columns: int = 1024) -> None:
    """Record a transpose of a column-major matrix after a cut; if the order is kept, no kernel has to transpose."""
    x = fd.define_tensor([rows, columns], contiguity=True, stride_order=(0, 1))
    y = fd.define_tensor([columns, rows], contiguity=True)
    fd.add_output(fd.ops.add(fd.ops.permute(fd.ops.segment_set(fd.ops.exp(x)), [1, 0]), y))


def reader_decides(fd: Any, rows: int = 2048, columns: int = 1024) -> None:
    """Record an outer sum whose producer accepts any order, and whose reader also reads a column-major matrix.

    No input determines the order of the sum, so an inference leaves it row-major.
    """
    u = fd.define_tensor([rows, 1], contiguity=True)
    v = fd.define_tensor([1, columns], contiguity=True)
    y = fd.define_tensor([rows, columns], contiguity=True, stride_order=(0, 1))
    fd.add_output(fd.ops.mul(fd.ops.segment_set(fd.ops.exp(fd.ops.add(u, v))), y))


def linear_and_product(fd: Any) -> None:
    """Record NVIDIA/Fuser issue #2354: a linear and its product with a constant, both returned."""
    x = fd.define_tensor([6, 2, 4], contiguity=True)
    weight = fd.define_tensor([8, 4], contiguity=True)
    product = fd.ops.linear(x, weight)
    fd.add_output(product)
    fd.add_output(fd.ops.mul(product, 2.0))


def required_copy(fd: Any) -> None:
    """Record the same with the linear required as (b, n, m), so that the library's result has to be copied."""
    x = fd.define_tensor([6, 2, 4], contiguity=True)
    weight = fd.define_tensor([8, 4], contiguity=True)
    product = fd.ops.linear(x, weight)
    fd.add_output(product)
    fd.add_output(fd.ops.mul(product, 2.0))
    fd.set_output_stride_order(product, (2, 0, 1))


ALL: tuple[Callable[[Any], None], ...] = (
    channels_last_norm, vanishing_transpose, reader_decides, linear_and_product, required_copy,
)


def inputs_of(fusion: Fusion, seed: int = 0) -> list[Array]:
    """Return standard normal numbers for the tensor inputs of a fusion with fixed sizes, laid out as declared."""
    rng = np.random.default_rng(seed)
    return [_laid_out(rng.standard_normal(tv.shape, dtype=np.float32), tv) for tv in fusion.tensor_inputs]


def _laid_out(values: Array, tensor: TensorView) -> Array:
    order = tensor.domain.allocation_order
    return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))

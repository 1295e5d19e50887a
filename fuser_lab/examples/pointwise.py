"""Pointwise examples and the smallest fusion that splits."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.examples.example import Example, Sizes
from fuser_lab.ops.rules import Array

BF16 = ml_dtypes.bfloat16


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: Any = BF16) -> Array:
    """Return standard normal numbers in a dtype."""
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def wide(x: Any) -> Array:
    """Return float64 values."""
    return np.asarray(x).astype(np.float64)


def _sum_broadcast_add(fd: Any, sizes: Sizes) -> None:
    shape = [sizes["rows"], sizes["columns"]]
    x = fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float)
    y = fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.Float)
    total = fd.ops.sum(x, dims=[1])
    column = fd.ops.broadcast(total, is_broadcast_dim=[False, True])
    fd.add_output(fd.ops.add(y, column))


def _sum_broadcast_add_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    x, y = map(wide, inputs)
    return [y + x.sum(axis=1, keepdims=True)]


SUM_BROADCAST_ADD = Example(
    name="sum_broadcast_add",
    title="Sum over rows, broadcast, add another tensor",
    look_at=(
        "Two segments: the reduction cannot include the add, which reads a new tensor of full size after the sum. "
        "If you cut between sum and broadcast, a third kernel appears that only copies the sums."
    ),
    full={"rows": 16384, "columns": 8192},
    small={"rows": 256, "columns": 384},
    record=_sum_broadcast_add,
    make=lambda rng, s: [normal(rng, (s["rows"], s["columns"]), np.float32) for _ in range(2)],
    reference=_sum_broadcast_add_reference,
    rtol=1e-5,
    atol=1e-4,
)


def _bias_gelu(fd: Any, sizes: Sizes) -> None:
    rows, columns = sizes["rows"], sizes["columns"]
    x = fd.define_tensor(shape=[rows, columns], contiguity=True, dtype=DataType.BFloat16)
    bias = fd.define_tensor(shape=[columns], contiguity=True, dtype=DataType.BFloat16)
    wide_bias = fd.ops.broadcast_in_dim(bias, shape=[rows, columns], broadcast_dims=[1])
    z = fd.ops.add(fd.ops.cast(x, dtype=DataType.Float), fd.ops.cast(wide_bias, dtype=DataType.Float))
    cube = fd.ops.mul(fd.ops.mul(z, z), z)
    inner = fd.ops.mul(fd.ops.add(z, fd.ops.mul(cube, 0.044715)), 0.7978845608028654)
    out = fd.ops.mul(fd.ops.mul(z, 0.5), fd.ops.add(fd.ops.tanh(inner), 1.0))
    fd.add_output(fd.ops.cast(out, dtype=DataType.BFloat16))


def _bias_gelu_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    x, bias = map(wide, inputs)
    z = x + bias
    return [0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))]


BIAS_GELU = Example(
    name="bias_gelu",
    title="Bias and GELU (tanh form)",
    look_at="Twelve expressions in one kernel, which reads x once and writes the result once.",
    full={"rows": 16384, "columns": 8192},
    small={"rows": 64, "columns": 256},
    record=_bias_gelu,
    make=lambda rng, s: [normal(rng, (s["rows"], s["columns"])), normal(rng, (s["columns"],))],
    reference=_bias_gelu_reference,
    rtol=1e-2,
    atol=1e-2,
)


def _silu_mul(fd: Any, sizes: Sizes) -> None:
    shape = [sizes["rows"], sizes["columns"]]
    gate = fd.ops.cast(fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.BFloat16), dtype=DataType.Float)
    up = fd.ops.cast(fd.define_tensor(shape=shape, contiguity=True, dtype=DataType.BFloat16), dtype=DataType.Float)
    out = fd.ops.mul(fd.ops.mul(gate, fd.ops.sigmoid(gate)), up)
    fd.add_output(fd.ops.cast(out, dtype=DataType.BFloat16))


def _silu_mul_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    gate, up = map(wide, inputs)
    return [gate / (1 + np.exp(-gate)) * up]


SILU_MUL = Example(
    name="silu_mul",
    title="SiLU of a gate times another tensor (the SwiGLU middle)",
    look_at="Forwarding: the casts of both inputs are unary chains, which are added back to the single segment.",
    full={"rows": 16384, "columns": 14336},
    small={"rows": 64, "columns": 256},
    record=_silu_mul,
    make=lambda rng, s: [normal(rng, (s["rows"], s["columns"])) for _ in range(2)],
    reference=_silu_mul_reference,
    rtol=1e-2,
    atol=1e-2,
)

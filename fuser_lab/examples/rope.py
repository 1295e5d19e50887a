"""Llama-3 rotary embedding, backward, as in nvFuser PR #4269."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.examples.example import Example, Inputs, Sizes
from fuser_lab.examples.pointwise import BF16, normal, wide
from fuser_lab.ops.rules import Array


def _record(fd: Any, sizes: Sizes) -> None:
    length, groups, repeats, depth = sizes["T"], sizes["G"], sizes["R"], sizes["D"]
    heads, half = groups * repeats, depth // 2
    table, gradient = [1, length, depth], [1, heads, length, depth]

    def float_of(value: Any) -> Any:
        return fd.ops.cast(value, dtype=DataType.Float)

    def narrow(value: Any) -> Any:
        return fd.ops.cast(value, dtype=DataType.BFloat16)

    def define(shape: list[int]) -> Any:
        return fd.define_tensor(shape=shape, contiguity=[None] + [True] * (len(shape) - 1), dtype=DataType.BFloat16)

    sin, dk, dq, cos = define(table), define(gradient), define(gradient), define(table)

    def to_heads(value: Any) -> Any:
        return float_of(fd.ops.broadcast_in_dim(value, shape=gradient, broadcast_dims=[0, 2, 3]))

    sine, cosine = to_heads(sin), to_heads(cos)
    zero = fd.ops.full(shape=gradient, fill_value=0.0, dtype=DataType.BFloat16)

    def rotate_back(upstream: Any) -> Any:
        g = float_of(upstream)
        rotated = narrow(fd.ops.mul(sine, g))
        low = fd.ops.slice(rotated, start_indices=[0, 0, 0, 0], end_indices=[1, heads, length, half])
        high = fd.ops.slice(rotated, start_indices=[0, 0, 0, half], end_indices=gradient)
        low = fd.ops.pad(narrow(fd.ops.neg(float_of(low))), [half, 0, 0, 0, 0, 0, 0, 0], 0.0)
        high = fd.ops.pad(high, [0, half, 0, 0, 0, 0, 0, 0], 0.0)
        total = fd.ops.add(float_of(zero), fd.ops.mul(cosine, g))
        total = fd.ops.add(total, float_of(low))
        return narrow(fd.ops.add(total, float_of(high)))

    grouped = [1, groups, repeats, length, depth]
    gk = fd.ops.sum(float_of(fd.ops.reshape(rotate_back(dk), new_shape=grouped)), dims=[2])
    gk = fd.ops.broadcast_in_dim(narrow(gk), shape=[1, groups, 1, length, depth], broadcast_dims=[0, 1, 3, 4])
    gq = fd.ops.reshape(rotate_back(dq), new_shape=grouped)
    # The values were not rotated; their gradient is zero, a slice of the zeros above.
    gv = fd.ops.slice(
        fd.ops.reshape(zero, new_shape=grouped), start_indices=[0] * 5, end_indices=[1, groups, 1, length, depth],
    )
    joined = fd.ops.permute(fd.ops.cat([gq, gk, gv], dim=2), dims=[0, 3, 1, 2, 4])
    fd.add_output(fd.ops.reshape(joined, new_shape=[1, length, (repeats + 2) * groups * depth]))


def _make(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    length, heads, depth = sizes["T"], sizes["G"] * sizes["R"], sizes["D"]
    angle = rng.uniform(-np.pi, np.pi, (1, length, depth // 2))
    angle = np.concatenate([angle, angle], axis=-1)
    gradient = (1, heads, length, depth)
    return [np.sin(angle).astype(BF16), normal(rng, gradient), normal(rng, gradient), np.cos(angle).astype(BF16)]


def _reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    sin, dk, dq, cos = map(wide, inputs)
    batch, heads, length, depth = dq.shape
    half = depth // 2

    def rotate_back(g: Array) -> Array:
        rotated = sin[:, None] * g
        return np.asarray(cos[:, None] * g + np.concatenate([rotated[..., half:], -rotated[..., :half]], axis=-1))

    # The width is (repeats + 2) * groups * depth, and heads is repeats * groups.
    groups = (outputs[0].shape[-1] // depth - heads) // 2
    shape = (batch, groups, heads // groups, length, depth)
    gq = rotate_back(dq).reshape(shape)
    gk = rotate_back(dk).reshape(shape).sum(axis=2, keepdims=True)
    joined = np.concatenate([gq, gk, np.zeros_like(gk)], axis=2)
    return [joined.transpose(0, 3, 1, 2, 4).reshape(batch, length, -1)]


ROPE_BACKWARD = Example(
    name="llama3_rope_backward",
    title="Llama-3 rotary embedding, backward (nvFuser PR #4269)",
    look_at=(
        "Two segments read a full of zeros: it is forwarded like an input, and each segment makes its own, so it "
        "crosses no boundary. Slices, pads and the final cat determine where the cuts are."
    ),
    full={"T": 8192, "G": 8, "R": 4, "D": 128},
    small={"T": 32, "G": 2, "R": 2, "D": 16},
    record=_record,
    make=_make,
    reference=_reference,
    rtol=2e-2,
    atol=6e-2,
)

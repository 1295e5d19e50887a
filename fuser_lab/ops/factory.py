"""Ops that make tensors from scalars: constants, ranges and random numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.ir import Extent, IterType, OpKind, Scalar, TensorDomain, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import element_type
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import (
    Array,
    Attrs,
    AxisFactory,
    Element,
    OpDef,
    Operand,
    Recorder,
    Result,
    linear_index,
    register,
)


def _dtype(attrs: Attrs) -> DataType:
    dtype = attrs["dtype"]
    return dtype if isinstance(dtype, DataType) else DataType.Null


def _sizes(attrs: Attrs) -> tuple[Extent, ...]:
    shape = attrs["shape"]
    return tuple(s for s in shape if isinstance(s, int | Scalar)) if isinstance(shape, tuple) else ()


def _infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del inputs
    logical = tuple(axes.fresh(1, IterType.BROADCAST) if n == 1 else axes.fresh(n) for n in _sizes(attrs))
    return (Result(_dtype(attrs), TensorDomain(logical=logical)),)


def _shape(rec: Recorder, shape: Sequence[Operand], op: str) -> tuple[Extent, ...]:
    sizes = rec.extents(shape, op, "shape")
    for size in sizes:
        if isinstance(size, int) and size < 0:
            msg = f"{op}: shape has the entry {size}; sizes are 0 or more."
            raise DefinitionError(msg)
    return sizes


def _full(rec: Recorder, shape: Sequence[Operand], fill_value: Operand, dtype: DataType) -> Val:
    wanted = element_type(dtype, "full")
    fill = convert(rec, rec.value(fill_value, "full", "fill_value"), wanted, "full", "fill_value")
    return rec.emit(FULL, [fill], shape=_shape(rec, shape, "full"), dtype=wanted)[0]


FULL = register(
    OpDef(
        name="full",
        kind=OpKind.FACTORY,
        frontend=_full,
        infer=_infer,
        reference=lambda fill, *, shape, dtype: np.full(shape, fill, dtype=dtype.numpy),
        element=lambda e: e.read(0, ()),
        doc="A tensor of one value.",
    ),
)


def _iota(
    rec: Recorder, length: Operand, start: Operand = None, step: Operand = None, dtype: DataType = DataType.Int,
) -> Val:
    wanted = element_type(dtype, "iota")
    first = convert(rec, rec.value(0 if start is None else start, "iota", "start"), wanted, "iota", "start")
    stride = convert(rec, rec.value(1 if step is None else step, "iota", "step"), wanted, "iota", "step")
    if isinstance(stride, Scalar) and stride.value == 0:
        msg = "iota: step is 0; it must not be."
        raise DefinitionError(msg)
    return rec.emit(IOTA, [first, stride], shape=_shape(rec, [length], "iota"), dtype=wanted)[0]


def _element_iota(e: Element) -> Term:
    return e.read(0, ()) + t.cast(e.index[0], e.out.dtype) * e.read(1, ())


IOTA = register(
    OpDef(
        name="iota",
        kind=OpKind.FACTORY,
        frontend=_iota,
        infer=_infer,
        reference=lambda start, step, *, shape, dtype: (
            (np.arange(shape[0]) * step + start).astype(dtype.numpy)
        ),
        element=_element_iota,
        doc="start + step * i for i below length.",
    ),
)

# Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011).
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(seed: int, offset: int, position: Array) -> Array:
    """Return Philox 4x32-10 words, uint32 of shape [n, 4], for the counter (offset, position) and key ``seed``.

    ``position`` is the element's row-major index divided by four; word ``i % 4`` belongs to element ``i``.
    """
    mask = np.uint64(0xFFFFFFFF)
    where = position.astype(np.uint64)
    counter = [
        np.full(where.shape, offset & 0xFFFFFFFF, np.uint64),
        np.full(where.shape, (offset >> 32) & 0xFFFFFFFF, np.uint64),
        where & mask,
        where >> np.uint64(32),
    ]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(PHILOX_ROUNDS):
        first = counter[0] * np.uint64(PHILOX_MULTIPLIERS[0])
        second = counter[2] * np.uint64(PHILOX_MULTIPLIERS[1])
        counter = [
            (second >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]),
            second & mask,
            (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]),
            first & mask,
        ]
        key = [(k + step) & 0xFFFFFFFF for k, step in zip(key, PHILOX_KEY_STEPS, strict=True)]
    return np.stack(counter, axis=-1).astype(np.uint32)


def uniform_numbers(seed: int, offset: int, shape: tuple[int, ...]) -> Array:
    """Return float64 numbers in [0, 1) with 24 random bits, one per element of ``shape``."""
    count = int(np.prod(shape))
    element = np.arange(count)
    words = philox(int(seed), int(offset), element // 4)
    bits = words[element, element % 4] if count else np.zeros(0, np.uint32)
    return ((bits >> np.uint32(8)) * 2.0**-24).reshape(shape)


def _random(
    rec: Recorder, name: str, ends: tuple[Operand, Operand], shape: Sequence[Operand],
    seeds: tuple[Operand, Operand], dtype: DataType,
) -> Val:
    if not element_type(dtype, name).is_float:
        msg = f"{name}: random distributions only create floating point types, given {dtype!r}."
        raise DefinitionError(msg)
    seed, offset = seeds
    if (seed is None) is not (offset is None):
        msg = f"{name}: rng_seed and rng_offset must be given together."
        raise DefinitionError(msg)
    if seed is None:
        msg = f"{name}: numbers without rng_seed and rng_offset are not implemented; give both."
        raise UnsupportedError(msg)
    operands = [
        convert(rec, rec.value(given, name, argument), wanted, name, argument)
        for wanted, values, names in ((dtype.compute, ends, _ENDS[name]), (DataType.Int, seeds, _SEEDS))
        for given, argument in zip(values, names, strict=True)
    ]
    return rec.emit(_BY_NAME[name], operands, shape=_shape(rec, shape, name), dtype=dtype)[0]


_ENDS = {"uniform": ("minval", "maxval")}
_SEEDS = ("rng_seed", "rng_offset")


def _uniform(
    rec: Recorder, minval: Operand, maxval: Operand, shape: Sequence[Operand], *,
    rng_seed: Operand = None, rng_offset: Operand = None, dtype: DataType = DataType.Float,
) -> Val:
    return _random(rec, "uniform", (minval, maxval), shape, (rng_seed, rng_offset), dtype)


def _reference_uniform(
    low: Any, high: Any, seed: Any, offset: Any, *, shape: tuple[int, ...], dtype: DataType,
) -> Array:
    unit = uniform_numbers(int(seed), int(offset), shape).astype(dtype.compute.numpy)
    return np.asarray(low + (high - low) * unit)


def _element_uniform(e: Element) -> Term:
    low, high, seed, offset = (e.read(k, ()) for k in range(4))
    where = linear_index(e.index, e.out.shape)
    unit = t.apply("philox_uniform", seed, offset, where, dtype=low.dtype)
    return t.cast(low + (high - low) * unit, e.out.dtype)


UNIFORM = register(
    OpDef(
        name="uniform",
        kind=OpKind.RANDOM,
        frontend=_uniform,
        infer=_infer,
        reference=_reference_uniform,
        element=_element_uniform,
        doc="Uniform numbers in [minval, maxval), Philox 4x32-10 counted by element.",
    ),
)
_BY_NAME = {"uniform": UNIFORM}

"""Random numbers: each element's number depends only on seed, offset and the element's position."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import OpKind, Scalar, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import element_type
from fuser_lab.ops.factory import given_scalar, given_shape, infer_filled
from fuser_lab.ops.operands import linear_index
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import Arg, Composite, OpDef, Recorder, Sample, register, register_composite
from fuser_lab.ops.rules import Array, Element, Operand

# Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011).
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of Philox 4x32 (Salmon et al., Parallel random numbers, 2011)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # that each round adds to the key (ibid.)


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
    element = np.arange(math.prod(shape))
    return _uniform_at(seed, offset, element).reshape(shape)


def normal_numbers(seed: int, offset: int, shape: tuple[int, ...]) -> Array:
    """Return float64 numbers of the standard normal distribution: Box and Muller's pairs of neighbouring elements."""
    element = np.arange(math.prod(shape))
    odd = element % 2
    radius = np.sqrt(-2.0 * np.log(1.0 - _uniform_at(seed, offset, element - odd)))
    turns = _uniform_at(seed, offset, element - odd + 1) - 0.25 * odd
    return np.asarray(radius * np.cos(2 * math.pi * turns)).reshape(shape)


def _uniform_at(seed: int, offset: int, element: Array) -> Array:
    words = philox(int(seed), int(offset), element // 4)
    bits = words[np.arange(element.size), element % 4] if element.size else np.zeros(0, np.uint32)
    return np.asarray((bits >> np.uint32(8)) * 2.0**-24)


def _record(
    rec: Recorder, op: OpDef, ends: tuple[Operand, Operand], shape: Sequence[Operand],
    seeds: tuple[Operand, Operand], dtype: DataType,
) -> Val:
    name = op.name
    if not element_type(dtype, name).is_float:
        raise DefinitionError(f"{name}: random distributions only create floating point types, given {dtype!r}.")
    seed, offset = seeds
    if (seed is None) is not (offset is None):
        raise DefinitionError(f"{name}: rng_seed and rng_offset must be given together.")
    operands = [_end(rec, name, end, argument, dtype) for end, argument in zip(ends, _ENDS[name], strict=True)]
    if seed is not None:
        operands += [_seed(rec, name, seed, "rng_seed"), _seed(rec, name, offset, "rng_offset")]
    return rec.emit(op, operands, shape=given_shape(rec, shape, name), dtype=dtype)[0]


_ENDS = {"uniform": ("minval", "maxval"), "normal": ("mean", "std")}


def _end(rec: Recorder, op: str, operand: Operand, argument: str, dtype: DataType) -> Val:
    value = given_scalar(rec, operand, op, argument)
    if value.dtype.kind is Kind.COMPLEX:
        raise DefinitionError(f"{op}: {argument} is {short_text(operand)}; it must be a real number.")
    return convert(rec, value, dtype.compute, op, argument)


def _seed(rec: Recorder, op: str, operand: Operand, argument: str) -> Val:
    if isinstance(operand, bool | int | float | complex):
        msg = f"{op}: {argument} must be a scalar of the definition (fd.define_scalar), given {short_text(operand)}."
        raise ArgumentTypeError(msg)
    value = given_scalar(rec, operand, op, argument)
    if not value.dtype.is_integral:
        raise DefinitionError(f"{op}: {argument} must be an integer scalar, given {value} of dtype {value.dtype!r}.")
    return convert(rec, value, DataType.Int, op, argument)


def _scale(numbers: Array, dtype: DataType) -> Array:
    return numbers.astype(dtype.compute.numpy)


def _reference_uniform(
    low: Any, high: Any, seed: Any = None, offset: Any = None, *, shape: tuple[int, ...], dtype: DataType,
) -> Array:
    _require_seed("uniform", seed)
    return np.asarray(low + (high - low) * _scale(uniform_numbers(int(seed), int(offset), shape), dtype))


def _reference_normal(
    mean: Any, std: Any, seed: Any = None, offset: Any = None, *, shape: tuple[int, ...], dtype: DataType,
) -> Array:
    _require_seed("normal", seed)
    return np.asarray(mean + std * _scale(normal_numbers(int(seed), int(offset), shape), dtype))


def _require_seed(op: str, seed: object) -> None:
    if seed is None:
        msg = f"{op}: rng_seed and rng_offset are not drawn yet; the pass explicit_seeds turns them into inputs."
        raise DefinitionError(msg)


def _ends_and_unit(e: Element) -> tuple[Term, Term, Any]:
    """Return both ends, and the uniform number of an element as a function of its position."""
    if len(e.inputs) < 4:
        _require_seed("uniform", None)
    first, second, seed, offset = (e.read(k, ()) for k in range(4))

    def unit(where: Term) -> Term:
        return t.apply("philox_uniform", seed, offset, where, dtype=first.dtype)

    return first, second, unit


def _element_uniform(e: Element) -> Term:
    low, high, unit = _ends_and_unit(e)
    return t.cast(low + (high - low) * unit(linear_index(e.index, e.out.shape)), e.out.dtype)


def _element_normal(e: Element) -> Term:
    mean, std, unit = _ends_and_unit(e)
    where = linear_index(e.index, e.out.shape)
    odd = t.apply("mod", where, 2)
    radius = t.apply("sqrt", -2.0 * t.apply("log", 1.0 - unit(where - odd)))
    # The sine is a cosine shifted by a quarter turn; this difference of a 24-bit number is exact.
    turns = unit(where - odd + 1) - t.cast(odd, mean.dtype) * 0.25
    return t.cast(mean + std * (radius * t.apply("cos", turns * (2 * math.pi))), e.out.dtype)


def _uniform(
    rec: Recorder, minval: Operand, maxval: Operand, shape: Sequence[Operand], *,
    rng_seed: Operand = None, rng_offset: Operand = None, dtype: DataType = DataType.Float,
) -> Val:
    return _record(rec, UNIFORM, (minval, maxval), shape, (rng_seed, rng_offset), dtype)


def _normal(
    rec: Recorder, mean: Operand, std: Operand, shape: Sequence[Operand], *,
    rng_seed: Operand = None, rng_offset: Operand = None, dtype: DataType = DataType.Float,
) -> Val:
    return _record(rec, NORMAL, (mean, std), shape, (rng_seed, rng_offset), dtype)


def _samples(name: str) -> tuple[Sample, ...]:
    seeds = "rng_seed=fd.define_scalar(7, DataType.Int), rng_offset=fd.define_scalar(4, DataType.Int)"
    far = "rng_seed=fd.define_scalar(-3, DataType.Int), rng_offset=fd.define_scalar(2**40, DataType.Int)"
    return (
        Sample(f"fd.ops.{name}(0.0, 1.0, [5, 7], {seeds})", ()),
        Sample(f"fd.ops.{name}(-2, 3.5, [3], {far}, dtype=DataType.Double)", ()),
        Sample(f"fd.ops.{name}(0, 1, [4, 3], {seeds}, dtype=DataType.Half)", ()),
        Sample(f"fd.ops.{name}(1.0, 2.0, [4, 3], {far}, dtype=DataType.BFloat16)", ()),
        Sample(f"fd.ops.{name}(0.0, 1.0, [], {seeds})", ()),
        Sample(f"fd.ops.{name}(0.0, 1.0, [0, 3], {seeds})", ()),
        Sample(f"fd.ops.{name}(0.0, 1.0, [1, 3], {seeds})", ()),
        Sample(f"fd.ops.add(a, fd.ops.{name}(0.0, 1.0, fd.ops.shape(a), {seeds}))"),
    )


UNIFORM = register(
    OpDef(
        name="uniform",
        kind=OpKind.RANDOM,
        frontend=_uniform,
        infer=infer_filled,
        reference=_reference_uniform,
        element=_element_uniform,
        doc="Uniform random numbers in [minval, maxval), from Philox 4x32-10 counted by element.",
        samples=_samples("uniform"),
    ),
)
NORMAL = register(
    OpDef(
        name="normal",
        kind=OpKind.RANDOM,
        frontend=_normal,
        infer=infer_filled,
        reference=_reference_normal,
        element=_element_normal,
        doc="Normal random numbers with this mean and standard deviation, from Philox 4x32-10 counted by element.",
        samples=_samples("normal"),
    ),
)


def _like(rec: Recorder, name: str, x: Operand, op: OpDef) -> Val:
    tensor = rec.tensor(x, name, "x")
    if not tensor.dtype.is_float:
        raise DefinitionError(f"{name}: x must be of a floating point type, given {tensor.dtype!r}.")
    result: Val = op.frontend(rec, 0.0, 1.0, list(tensor.extents), dtype=tensor.dtype)
    return result


def _rand_like(rec: Recorder, x: Operand, /) -> Val:
    return _like(rec, "rand_like", x, UNIFORM)


def _randn_like(rec: Recorder, x: Operand, /) -> Val:
    return _like(rec, "randn_like", x, NORMAL)


for _name, _frontend, _doc in (
    ("rand_like", _rand_like, "Uniform random numbers in [0, 1) with x's shape and dtype."),
    ("randn_like", _randn_like, "Standard normal random numbers with x's shape and dtype."),
):
    _call = f"fd.ops.{_name}"
    register_composite(
        Composite(
            name=_name,
            frontend=_frontend,
            doc=_doc,
            samples=(
                Sample(f"{_call}(a)"),
                Sample(f"{_call}(a)", (Arg((2, 3, 4), DataType.Double),)),
                Sample(f"{_call}(a)", (Arg((1, 5), DataType.Half),)),
                Sample(f"fd.ops.mul(a, {_call}(a))", (Arg((6,), DataType.BFloat16),)),
                Sample(f"{_call}(a)", (Arg(()),)),
                Sample(f"[{_call}(a), {_call}(a)]"),
            ),
            positional_only=True,
        ),
    )


def is_seedless(inputs: Sequence[Val]) -> bool:
    """Whether a random expression with these operands still needs seed and offset."""
    return len(inputs) == 2 and all(isinstance(v, Scalar) for v in inputs)

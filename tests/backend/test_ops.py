"""Every op that has a formula, compiled for the CPU, against the reference evaluation: all dtypes, special values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.fusions import TOLERANCE, D, S, build, close, numbers

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.ops import OPS
from fuser_lab.runtime.executor import prepare

DTYPES = (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool)
POINTWISE = [op for op in OPS.values() if op.kind is OpKind.POINTWISE and op.positional_only and op.name != "where"]
# A NumPy integer cannot be raised to a negative power; silu keeps the dtype, which has no meaning for integers.
NOT_OF_INTEGERS = {"pow", "silu"}


def applicable(arity: int, dtype: DataType) -> list[str]:
    """Names of the ops that take operands of a dtype."""
    found = []
    for op in POINTWISE:
        if op.arity != arity or (op.name in NOT_OF_INTEGERS and not dtype.is_float):
            continue
        try:
            fusion = build(lambda fd, *xs, name=op.name: getattr(fd.ops, name)(*xs), [(1,)] * arity, dtype)
            evaluate(fusion, [np.ones(1, dtype.numpy)] * arity)
        except (FuserLabError, TypeError):
            continue
        found.append(op.name)
    return found


def all_of(names: list[str]) -> Callable[..., Any]:
    return lambda fd, *xs: [getattr(fd.ops, name)(*xs) for name in names]


def run_and_compare(fusion: Fusion, inputs: list[np.ndarray], names: list[str], factor: float = 1.0) -> None:
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for name, got, wanted, tv in zip(names, plan.run(inputs), evaluate(fusion, inputs), fusion.outputs, strict=True):
        try:
            close(got, wanted, tv.dtype, factor)
        except AssertionError as error:
            raise AssertionError(f"{name} of {[x.dtype.name for x in inputs]}: {error}") from None


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_unary(dtype: DataType) -> None:
    names = applicable(1, dtype)
    assert len(names) >= (30 if dtype.is_float else 20)
    x = np.linspace(0.05, 0.95, 37).astype(dtype.numpy) if dtype.is_float else numbers((37,), dtype)
    run_and_compare(build(all_of(names), [(37,)], dtype), [x], names)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_binary(dtype: DataType) -> None:
    names = applicable(2, dtype)
    x, y = numbers((8, 9), dtype, 1), numbers((8, 9), dtype, 2)
    if dtype.is_float:
        x = np.abs(x)  # a negative number has no real powers
    run_and_compare(build(all_of(names), [(8, 9), (8, 9)], dtype), [x, y], names)


@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.Half, D.BFloat16], ids=lambda d: d.name)
def test_special_values(dtype: DataType) -> None:
    names = [n for n in applicable(1, dtype) if n not in {"sin", "cos", "tan"}]
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 60.0, -60.0]).astype(dtype.numpy)
    fusion = build(all_of(names), [x.shape], dtype)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for name, got, wanted, tv in zip(names, plan.run([x]), evaluate(fusion, [x]), fusion.outputs, strict=True):
        if tv.dtype in TOLERANCE:
            a, b = got.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=TOLERANCE[tv.dtype], atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_nan_goes_through_maxima_and_relu() -> None:
    x = np.array([[1.0, np.nan, 3.0], [-1.0, 2.0, -5.0]], np.float32)
    for dims, largest, smallest in (([1], [np.nan, 2], [np.nan, -5]), ([0], [1, np.nan, 3], [-1, np.nan, -5])):
        fusion = build(lambda fd, a, dims=dims: [fd.ops.max(a, dims), fd.ops.min(a, dims)], [(2, 3)], D.Float)
        got = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False).run([x])
        np.testing.assert_array_equal(got[0], largest)
        np.testing.assert_array_equal(got[1], smallest)
    relu = build(lambda fd, a: fd.ops.relu(a), [(2, 3)], D.Float)
    (got,) = prepare(relu, [(relu, S.POINTWISE)], allow_fallback=False).run([x])
    np.testing.assert_array_equal(got, [[1, np.nan, 3], [0, 2, 0]])


def test_integer_division_by_zero_is_zero() -> None:
    names = ["div", "mod", "fmod", "remainder"]
    for dtype in (D.Int, D.Int32):
        lowest = np.iinfo(dtype.numpy).min
        x = np.array([7, -7, 0, 5, -5, lowest, 9], dtype.numpy)
        y = np.array([0, 0, 0, 2, 2, -1, -4], dtype.numpy)
        fusion = build(all_of(names), [x.shape, x.shape], dtype)
        got = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y])
        np.testing.assert_array_equal(got[0], np.array([0, 0, 0, 2, -2, lowest, -2]))
        np.testing.assert_array_equal(got[1], np.array([0, 0, 0, 1, -1, 0, 1]))
        np.testing.assert_array_equal(got[3], np.array([0, 0, 0, 1, 1, 0, -3]))


@pytest.mark.parametrize("dtype", [D.BFloat16, D.Half], ids=lambda d: d.name)
def test_rounding_to_16_bits_is_to_nearest_even(dtype: DataType) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32)
    halfway = (np.arange(0x3F00, 0x4100, dtype=np.uint32) << 16) | 0x8000
    x = np.concatenate([bits, halfway, halfway + 1, halfway - 1]).view(np.float32)
    fusion = build(
        lambda fd, a: [fd.ops.cast(a, dtype), fd.ops.cast(fd.ops.cast(a, dtype), D.Float)], [x.shape], D.Float,
    )
    got, back = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x])
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype.numpy)
    nan = np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])
    np.testing.assert_array_equal(back[~nan], wanted.astype(np.float32)[~nan])
    assert np.isnan(got.astype(np.float32)[nan]).all()


@pytest.mark.parametrize("dtype", [*DTYPES, D.ComplexFloat, D.ComplexDouble], ids=lambda d: d.name)
def test_reductions(dtype: DataType) -> None:
    names = ["sum", "prod"] if dtype.is_complex else ["sum", "prod", "max", "min"]
    for shape, dims in (((4, 50), [1]), ((50, 4), [0])):
        fusion = build(lambda fd, x, dims=dims: [getattr(fd.ops, n)(x, dims) for n in names], [shape], dtype)
        x = numbers(shape, dtype)
        plan = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False)
        for got, wanted, tv in zip(plan.run([x]), evaluate(fusion, [x]), fusion.outputs, strict=True):
            close(got, wanted, tv.dtype, 5)


def test_casts_between_all_dtypes() -> None:
    for source in (*DTYPES, D.ComplexFloat):
        targets = [*DTYPES, D.ComplexFloat]
        fusion = build(lambda fd, x: [fd.ops.cast(x, t) for t in targets], [(40,)], source)  # noqa: B023
        x = np.abs(numbers((40,), source).real * 3).astype(source.numpy)
        run_and_compare(fusion, [x], [t.name for t in targets])


def test_complex_arithmetic() -> None:
    names = ["neg", "exp", "sqrt", "sin"]
    fusion = build(all_of(names), [(20,)], D.ComplexFloat)
    run_and_compare(fusion, [numbers((20,), D.ComplexFloat)], names, 10)


def test_uniform_is_the_reference_bit_for_bit() -> None:
    def record(fd: Any, x: Any) -> Any:
        seed, offset = fd.define_scalar(11), fd.define_scalar((1 << 33) + 4)
        random = fd.ops.uniform(0.0, 1.0, [37, 5], rng_seed=seed, rng_offset=offset, dtype=D.Float)
        return fd.ops.add(x, random), random

    fusion = build(record, [(37, 5)], D.Float)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    x = np.zeros((37, 5), np.float32)
    for got, wanted in zip(plan.run([x]), evaluate(fusion, [x]), strict=True):
        np.testing.assert_array_equal(got, wanted)

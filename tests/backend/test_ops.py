"""Every op that has a formula, compiled for the CPU, against the reference evaluation: all dtypes, special values."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.fusions import TOLERANCE, D, S, build, close, numbers, one_of_each_kind
from scipy import special

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.ops import OPS
from tests.kernels import generate, prepare

SMALL = (D.Short, D.Char, D.Byte)
DTYPES = (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, *SMALL, D.UInt64, D.Bool)
FLOAT8 = (D.Float8_e4m3fn, D.Float8_e5m2, D.Float8_e8m0fnu)
COMPLEX = (D.ComplexFloat, D.ComplexDouble)
POINTWISE = [op for op in OPS.values() if op.kind is OpKind.POINTWISE and op.positional_only and op.name != "where"]


def applicable(arity: int, dtype: DataType) -> list[str]:
    """Names of the ops that take operands of a dtype."""
    found = []
    for op in POINTWISE:
        if op.arity != arity:
            continue
        try:
            build(lambda fd, *xs, name=op.name: getattr(fd.ops, name)(*xs), [(1,)] * arity, dtype)
        except FuserLabError:
            continue
        found.append(op.name)
    return found


def all_of(names: list[str]) -> Callable[..., Any]:
    return lambda fd, *xs: [getattr(fd.ops, name)(*xs) for name in names]


def run_and_compare(fusion: Fusion, inputs: list[np.ndarray], names: list[str], factor: float = 1.0) -> None:
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for name, got, wanted, tv in zip(names, plan.run(inputs), evaluate(fusion, inputs), fusion.outputs, strict=True):
        try:
            if tv.dtype.is_float8:
                np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
            else:
                close(got, wanted, tv.dtype, factor)
        except AssertionError as error:
            raise AssertionError(f"{name} of {[x.dtype.name for x in inputs]}: {error}") from None


@pytest.mark.parametrize("dtype", one_of_each_kind([*DTYPES, *FLOAT8, *COMPLEX]), ids=lambda d: d.name)
def test_unary(dtype: DataType) -> None:
    names = applicable(1, dtype)
    assert len(names) >= (30 if dtype.is_complex else 43)
    x = np.linspace(0.05, 0.95, 37).astype(dtype.numpy) if dtype.is_float else numbers((37,), dtype)
    run_and_compare(build(all_of(names), [(37,)], dtype), [x], names)


@pytest.mark.parametrize("dtype", one_of_each_kind([*DTYPES, *FLOAT8, *COMPLEX]), ids=lambda d: d.name)
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


@pytest.mark.parametrize("dtype", one_of_each_kind([*DTYPES, D.ComplexFloat, D.ComplexDouble]), ids=lambda d: d.name)
def test_reductions(dtype: DataType) -> None:
    names = ["sum", "prod"] if dtype.is_complex else ["sum", "prod", "max", "min"]
    for shape, dims in (((4, 50), [1]), ((50, 4), [0])):
        fusion = build(lambda fd, x, dims=dims: [getattr(fd.ops, n)(x, dims) for n in names], [shape], dtype)
        x = numbers(shape, dtype)
        plan = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False)
        for got, wanted, tv in zip(plan.run([x]), evaluate(fusion, [x]), fusion.outputs, strict=True):
            close(got, wanted, tv.dtype, 5)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("source", [*DTYPES, *FLOAT8, *COMPLEX], ids=lambda d: d.name)
def test_casts_between_all_dtypes(source: DataType) -> None:
    targets = [*DTYPES, *FLOAT8, *COMPLEX]
    fusion = build(lambda fd, x: [fd.ops.cast(x, t) for t in targets], [(40,)], source)
    wide = numbers((40,), D.Float if source.is_float8 else source).real.astype(np.float32)
    x = (np.abs(wide) * 3 + 1).astype(source.numpy)
    run_and_compare(fusion, [x], [t.name for t in targets])


@pytest.mark.parametrize("source", [D.Double, D.Float, D.BFloat16], ids=lambda d: d.name)
def test_floats_out_of_range_become_the_integers_of_the_reference(source: DataType) -> None:
    edges = [s * (2.0**bits + step) for bits in (31, 32, 63, 64) for step in (-1, -0.5, 0, 1, 2048) for s in (1, -1)]
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.75, -0.75, 1e10, -1e10, 3e38, *edges]).astype(source.numpy)
    targets = [D.Int, D.Int32, *SMALL, D.UInt64, D.Bool]
    fusion = build(lambda fd, a: [fd.ops.cast(a, t) for t in targets], [x.shape], source)
    run_and_compare(fusion, [x], [t.name for t in targets])


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.name)
def test_rounding_to_8_bits_is_the_reference_s(dtype: DataType) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    known = np.sort(every.astype(np.float64)[np.isfinite(every.astype(np.float64))])
    between = ((known[1:] + known[:-1]) / 2).astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61439, 61440, 1e9, -1e9], np.float32)
    near = [np.nextafter(between, np.float32(end)) for end in (np.inf, -np.inf)]
    x = np.concatenate([bits, known.astype(np.float32), between, *near, ends])
    fusion = build(
        lambda fd, a: [fd.ops.cast(a, dtype), fd.ops.cast(fd.ops.cast(a, dtype), D.Float)], [x.shape], D.Float,
    )
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for got, wanted in zip(plan.run([x]), evaluate(fusion, [x]), strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
    (back,) = prepare(
        widened := build(lambda fd, a: fd.ops.cast(a, D.Float), [(256,)], dtype), [(widened, S.POINTWISE)],
        allow_fallback=False,
    ).run([every])
    np.testing.assert_array_equal(back, every.astype(np.float32))


@pytest.mark.parametrize("dtype", [D.Int, D.Int32, D.UInt64], ids=lambda d: d.name)
def test_shifts_past_the_width_and_divisors_of_the_smallest_integer(dtype: DataType) -> None:
    names = ["bitwise_left_shift", "bitwise_right_shift", "logical_right_shift", "gcd", "pow"]
    low, high = dtype.limits
    values = [low, low + 1, high, 0, 1, 2, 3, 12, *([-1, -2, -12] if low else [])]
    shifts = [0, 1, 5, 31, 32, 33, 63, 64, 65, *([-1, -64] if low else [])]
    x, y = (np.array(v).ravel() for v in np.meshgrid(np.array(values, dtype.numpy), np.array(shifts, dtype.numpy)))
    fusion = build(all_of(names), [x.shape] * 2, dtype)
    got = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y])
    for name, a, b in zip(names, got, evaluate(fusion, [x, y]), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    bits = 8 * dtype.itemsize
    unsigned = x.astype(object) % (1 << bits)
    inside = (y.astype(object) >= 0) & (y.astype(object) < bits)
    logical = [int(u) >> int(s) if k else 0 for u, s, k in zip(unsigned, y, inside, strict=True)]
    assert (got[2].astype(object) % (1 << bits)).tolist() == logical
    divisors = [math.gcd(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    assert (got[3].astype(object) % (1 << bits)).tolist() == divisors


def test_next_numbers() -> None:
    for dtype in (D.Float, D.Double):
        ends = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-149, np.finfo(dtype.numpy).max, np.inf, -np.inf, np.nan])
        x, y = (v.ravel().astype(dtype.numpy) for v in np.meshgrid(ends, ends))
        fusion = build(lambda fd, a, b: fd.ops.nextafter(a, b), [x.shape] * 2, dtype)
        (got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y])
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, np.nextafter(x, y))


def test_inverse_error_functions_are_accurate() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 2000), 1 - 10 ** -rng.uniform(1, 16, 200), [0.0, 1.0, -1.0, 1.5, np.nan]])
    y = np.concatenate([rng.uniform(0, 2, 2000), 10 ** -rng.uniform(0, 300, 200), [0.0, 1.0, 2.0, -0.5, np.nan]])
    fusion = build(lambda fd, a, b: [fd.ops.erfinv(a), fd.ops.erfcinv(b)], [x.shape, y.shape], D.Double)
    got = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y])
    np.testing.assert_allclose(got[0], special.erfinv(x), rtol=3e-15)
    np.testing.assert_allclose(got[1], special.erfcinv(y), rtol=3e-15)


def test_complex_parts_and_numbers_made_of_parts() -> None:
    def record(fd: Any, x: Any, y: Any, z: Any) -> Any:
        ops = fd.ops
        return ops.complex(x, y), ops.real(z), ops.imag(z), ops.isreal(z), ops.abs(z), ops.mul(z, 2 - 1j)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 30)).astype(np.float32)
    x[:3], y[1:5] = [np.inf, np.nan, 0.0], [np.inf, 1.0, np.nan, -0.0]
    z = x.astype(np.complex64)
    z.imag = np.where(np.arange(30) % 3, y, 0)
    fusion = build(record, [(30,)] * 3, [D.Float, D.Float, D.ComplexFloat])
    got = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y, z])
    np.testing.assert_array_equal(got[0].real, x)
    np.testing.assert_array_equal(got[0].imag, y)
    np.testing.assert_array_equal(got[1], z.real)
    np.testing.assert_array_equal(got[2], z.imag)
    np.testing.assert_array_equal(got[3], z.imag == 0)
    np.testing.assert_allclose(got[4][5:], np.abs(z)[5:], rtol=1e-6)
    np.testing.assert_allclose(got[5][5:], (z * (2 - 1j))[5:], rtol=1e-5, atol=1e-6)


def test_ternary_ops_keep_half_and_numbers_are_rounded_to_it() -> None:
    x = np.concatenate([np.linspace(-2, 2, 60), [0.3, 0.7, np.nan]]).astype(np.float16)

    def record(fd: Any, a: Any) -> Any:
        ops = fd.ops
        return [
            ops.clamp(a, -0.3, 0.7), ops.clamp(a, None, 0.1), ops.threshold(a, 0.3, 0.1), ops.lerp(a, 1.0, 0.3),
            ops.where(ops.gt(a, 0.0), a, 0.1), ops.addcmul(a, a, 0.1, 3), ops.sign(a),
        ]

    fusion = build(record, [x.shape], D.Half)
    assert [tv.dtype for tv in fusion.outputs] == [D.Half, D.Half, D.Half, D.Float, D.Half, D.Float, D.Half]
    names = ["clamp", "clamp below", "threshold", "lerp", "where", "addcmul", "sign"]
    run_and_compare(fusion, [x], names)


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


@pytest.mark.parametrize("dtype", [D.ComplexFloat, D.ComplexDouble], ids=lambda d: d.name)
def test_complex_division_by_zero_is_infinite_or_nan(dtype: DataType) -> None:
    x = np.array([1 + 1j, 2, 0, -1 - 2j, 3 + 4j]).astype(dtype.numpy)
    y = np.array([0j, 1j, 0, 0, 1e30 + 1e-30j]).astype(dtype.numpy)

    def record(fd: Any, a: Any, b: Any) -> Any:
        ops = fd.ops
        return [ops.div(a, b), ops.truediv(a, b), ops.div(a, 0.0), ops.reciprocal(b), ops.rsqrt(b)]

    fusion = build(record, [x.shape, y.shape], dtype)
    run_and_compare(fusion, [x, y], ["div", "truediv", "by a number", "reciprocal", "rsqrt"])


@pytest.mark.parametrize("dtype", [D.Float, D.Double], ids=lambda d: d.name)
def test_zeros_have_signs_in_maxima_and_minima(dtype: DataType) -> None:
    x, y = (v.ravel() for v in np.meshgrid(np.array([0.0, -0.0, 1.0, np.nan]), np.array([0.0, -0.0, -1.0])))
    x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    names = ["maximum", "minimum"]
    fusion = build(all_of(names), [x.shape] * 2, dtype)
    results = [prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, y]), evaluate(fusion, [x, y])]
    for largest, smallest in results:
        np.testing.assert_array_equal(largest, np.maximum(x, y))
        np.testing.assert_array_equal(smallest, np.minimum(x, y))
        zeros = (x == 0) & (y == 0)
        np.testing.assert_array_equal(np.signbit(largest[zeros]), np.signbit(x[zeros]) & np.signbit(y[zeros]))
        np.testing.assert_array_equal(np.signbit(smallest[zeros]), np.signbit(x[zeros]) | np.signbit(y[zeros]))


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.BFloat16], ids=lambda d: d.name)
def test_maxima_of_magnitudes(dtype: DataType, dims: list[int]) -> None:
    x = numbers((40, 70), dtype)
    x[3, 7], x[5, 8], x[:, 9], x[6] = np.nan, -np.inf, -0.0, -0.0
    fusion = build(lambda fd, x: fd.ops.max(fd.ops.abs(x), dims), [x.shape], dtype)
    plan = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False)
    for given in (x, np.zeros_like(x), -np.zeros_like(x)):
        (got,), (wanted,) = plan.run([given]), evaluate(fusion, [given])
        np.testing.assert_array_equal(got.astype(np.float64), np.asarray(wanted).astype(np.float64))
        assert not np.signbit(got[~np.isnan(got)]).any()


@pytest.mark.parametrize("dims", [[0], [1]], ids=str)
def test_zeros_are_told_apart_unless_all_are_positive(dims: list[int]) -> None:
    def where_set(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.max(fd.ops.where(fd.ops.gt(y, 0.5), fd.ops.abs(x), x), dims)

    def squares(fd: Any, x: Any, y: Any) -> Any:
        difference = fd.ops.sub(x, y)
        return fd.ops.max(fd.ops.mul(difference, difference), dims)

    cases: list[tuple[Callable[..., Any], bool]] = [
        (lambda fd, x, y: fd.ops.max(fd.ops.abs(fd.ops.sub(x, y)), dims), True),
        (squares, True),
        (lambda fd, x, y: fd.ops.max(fd.ops.exp(fd.ops.sub(x, y)), dims), True),
        (lambda fd, x, y: fd.ops.max(fd.ops.mul(x, y), dims), False),
        (where_set, False),
    ]
    for record, unsigned in cases:
        source = generate(build(record, [(40, 70)] * 2, D.Float), S.REDUCTION, "cpu").source
        assert ("maximum_unsigned(" in source) is unsigned, source


def test_complex_functions_give_numbers_where_the_reference_does() -> None:
    part = np.array([0.0, 1.0, -0.5, -2.0, 30.0, -100.0, 710.0, -1e10, 1.7e308, np.inf, -np.inf, np.nan])
    real, imag = (v.ravel() for v in np.meshgrid(part, part))
    x = real.astype(np.complex128)
    x.imag = imag
    names = ["acosh", "cos", "log2", "tanh", "exp2", "sigmoid"]
    fusion = build(all_of(names), [x.shape], D.ComplexDouble)
    got = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x])
    known = ~(np.isnan(x.real) ^ np.isnan(x.imag))  # otherwise, either part of a result may be NaN
    for name, a, b in zip(names, got, evaluate(fusion, [x]), strict=True):
        for of_a, of_b in ((a.real, b.real), (a.imag, b.imag)):
            wrong = known & np.isnan(of_a) & ~np.isnan(of_b)
            assert not wrong.any(), f"{name} of {x[wrong]}: {a[wrong]}, {b[wrong]}"
        finite = np.isfinite(b) & (np.abs(x) < 1e9)
        np.testing.assert_allclose(a[finite], b[finite], rtol=1e-12, err_msg=name)

"""Mathematical functions of CPU kernels against float64, over all of float32, in vectorized loops."""

import ctypes
import inspect
import math
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import float32, njit
from thorough import THOROUGH

from fuser_lab.codegen.numba_cpu import FASTMATH
from fuser_lab.runtime import called_functions, cpu_kernels, polynomials
from fuser_lab.runtime.intrinsics_cpu import scratch
from fuser_lab.runtime.narrow_floats_cpu import (
    bf16_to_float,
    e4m3_bits,
    e5m2_bits,
    float_to_bf16,
    float_to_half,
    half_to_float,
    round_e4m3,
    round_e5m2,
)
from tests.processor import has, vector_instructions

# Between tested bit patterns: 4.2 million numbers of every exponent and both signs, or half a million in `make test`.
STRIDE = 1021 if THOROUGH else 8191
EDGES = np.float32([
    0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754944e-38, -1.1754942e-38, 3.4028235e38, 1.0, -1.0,
    88.7228, 88.7229, -87.3365, -103.97, -103.98, -104.0, 89.0, 0.625, 0.62500006, 4.0, -4.0, 0.70710677, 0.70710683,
    -0.99999994, -1.0000001, -0.29289323, 0.41421354, 0.34657359, -0.34657359, 20.0, -20.0,
])
FLAGS = set(FASTMATH)

# Function, its expected value in float64, and the error in units in the last place with and without fused multiply-add.
FUNCTIONS: tuple[tuple[str, Callable[[np.ndarray], np.ndarray], float, float], ...] = (
    ("exp32", np.exp, 1.1, 1.1),
    ("exp2_32", np.exp2, 1.1, 1.2),
    ("expm1_32", np.expm1, 1.4, 1.6),
    ("log32", np.log, 0.8, 0.8),
    ("log2_32", np.log2, 1.3, 1.3),
    ("log10_32", np.log10, 1.6, 1.7),
    ("log1p32", np.log1p, 1.5, 1.5),
    ("sin32", np.sin, 1.1, 0.6),
    ("cos32", np.cos, 1.1, 0.6),
    ("tanh32", np.tanh, 4.5, 5.5),
    ("erf32", np.vectorize(math.erf, otypes=[np.float64]), 7.0, 7.0),
)


CALLED = r"\b(expf|exp2f|logf|log2f|log10f|powf|sinf|cosf|tanhf|erff|exp|log|pow|sin|cos|tanh|erf)\b@?"


def assert_within(got: np.ndarray, wanted: np.ndarray, nearest: np.ndarray, most: float) -> None:
    """Assert that float32s are within some units in the last place of the expected values."""
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(got[~finite], nearest[~finite])
    assert np.isfinite(got[finite]).all()
    # The smallest normal numbers and all subnormal ones have the same last place.
    place = np.maximum(np.spacing(np.abs(nearest[finite])), np.float32(1e-45)).astype(np.float64)
    units = np.abs(got[finite].astype(np.float64) - wanted[finite]) / place
    assert units.max() <= most, (np.flatnonzero(finite)[units.argmax()], float(units.max()))


def numbers() -> np.ndarray:
    bits = np.arange(0, 1 << 32, STRIDE, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), EDGES])


def loop(function: Any, store: Any) -> Any:
    """A compiled loop over arrays, with the flags of kernels and the functions that their machine code may call."""
    cpu_kernels._unknown_symbols()

    @njit(error_model="numpy", fastmath=FLAGS)
    def run(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i])

    run.compile(store)
    return run


def vectors(compiled: Any) -> list[str]:
    return vector_instructions(compiled.inspect_asm(compiled.signatures[0]))


@pytest.mark.parametrize(("name", "exact", "fused", "separate"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_error_over_all_of_float32(name: str, exact: Any, fused: float, separate: float) -> None:
    most = fused if has("fma") else separate
    x = numbers()
    got = np.empty_like(x)
    loop(getattr(polynomials, name), "void(float32[::1], float32[::1])")(x, got)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
        nearest = wanted.astype(np.float32)
    assert_within(got, wanted, nearest, most)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(nearest[x == 0]))


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="reads the status of SSE")
@pytest.mark.parametrize(("name", "limit"), [("exp32", -104.0), ("exp2_32", -151.0)])
def test_powers_that_round_to_zero_do_not_underflow(name: str, limit: float) -> None:
    """Each underflow takes Intel's processors over a hundred cycles."""
    math_library, underflow = ctypes.CDLL(None), 0x10
    run = loop(getattr(polynomials, name), "void(float32[::1], float32[::1])")
    x = np.full(256, np.nextafter(np.float32(limit), np.float32(-math.inf)))
    x[1::2] = -1e4
    out = np.ones_like(x)
    math_library.feclearexcept(underflow)
    run(x, out)
    assert not math_library.fetestexcept(underflow)
    assert not out.any()
    run(np.full_like(x, limit + 10.3), out)
    assert math_library.fetestexcept(underflow), "a subnormal result"


@pytest.mark.parametrize("name", [f[0] for f in FUNCTIONS])
def test_functions_are_computed_in_vectors(name: str) -> None:
    compiled = loop(getattr(polynomials, name), "void(float32[::1], float32[::1])")
    found = vectors(compiled)
    assert sum(op.endswith("ps") for op in found) > 15, found
    asm = compiled.inspect_asm(compiled.signatures[0])
    assert not re.search(CALLED, asm.replace(name, ""))


def powers() -> tuple[np.ndarray, np.ndarray]:
    """Bases and exponents: of every magnitude, such that results are finite, and all pairs of special values."""
    generator = np.random.default_rng(0)
    x = np.exp2(generator.uniform(-149, 128, 1 << 20)).astype(np.float32)
    y = (generator.uniform(-150, 128, x.size) / np.log2(x)).astype(np.float32)
    near = (1 + generator.uniform(-1e-3, 1e-3, 1 << 18)).astype(np.float32)
    large = generator.uniform(-1e5, 1e5, near.size).astype(np.float32)
    whole = generator.integers(-40, 40, 1 << 18).astype(np.float32)
    signed = generator.uniform(-8, 8, whole.size).astype(np.float32)
    special = np.concatenate([EDGES, np.float32([2, 3, -2, -3, 0.5, -0.5, 2.4, 16777215, -16777215, 16777216, 1e30])])
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    return np.concatenate([x, near, signed, pairs[0]]), np.concatenate([y, large, whole, pairs[1]])


def test_powers_are_those_of_c_in_vectors() -> None:
    @njit(error_model="numpy", fastmath=FLAGS)
    def run(x: Any, y: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = polynomials.pow32(x[i], y[i])

    run.compile("void(float32[::1], float32[::1], float32[::1])")
    x, y = powers()
    got = np.empty_like(x)
    run(x, y, got)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64))
        nearest = wanted.astype(np.float32)
        assert_within(got, wanted, nearest, 0.51)
    ends = np.isinf(nearest) | (nearest == 0)
    np.testing.assert_array_equal(np.signbit(got[ends]), np.signbit(nearest[ends]))
    asm = run.inspect_asm(run.signatures[0])
    assert sum(op.endswith("pd") for op in vector_instructions(asm)) > 20
    assert not re.search(CALLED, asm.replace("pow32", ""))


@pytest.mark.parametrize(("widen", "narrow", "dtype"), [
    (half_to_float, float_to_half, np.float16), (bf16_to_float, float_to_bf16, None),
], ids=["half", "bfloat16"])
def test_16_bit_storage_is_exact_and_vectorized(widen: Any, narrow: Any, dtype: Any) -> None:
    import ml_dtypes

    kind = np.dtype(dtype or ml_dtypes.bfloat16)
    words = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(1 << 16, np.float32)
    up = loop(widen, "void(uint16[::1], float32[::1])")
    up(words, wide)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(wide, words.view(kind).astype(np.float32))
    x = numbers()
    back = np.empty(x.size, np.uint16)
    down = loop(narrow, "void(float32[::1], uint16[::1])")
    down(x, back)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(back.view(kind).astype(np.float32), x.astype(kind).astype(np.float32))
    if dtype is not np.float16 or has("f16c"):
        fewest = 4 if has("avx") else 2
        assert len(vectors(up)) >= fewest
        assert len(vectors(down)) >= fewest
    else:  # a function of the compiler's runtime library converts one number
        assert "__extendhfsf2" in up.inspect_asm(up.signatures[0])


@pytest.mark.parametrize(("rounded", "bits", "name", "largest"), [
    (round_e4m3, e4m3_bits, "float8_e4m3fn", 448.0), (round_e5m2, e5m2_bits, "float8_e5m2", math.inf),
], ids=["e4m3", "e5m2"])
def test_8_bit_floats_are_rounded_once_and_in_vectors(rounded: Any, bits: Any, name: str, largest: float) -> None:
    import ml_dtypes

    @njit(error_model="numpy", fastmath=FLAGS)
    def run(x: Any, wide: Any, out: Any) -> None:
        for i in range(x.size):
            wide[i] = rounded(x[i])
            out[i] = bits(wide[i])

    run.compile("void(float32[::1], float32[::1], uint8[::1])")
    kind, x = np.dtype(getattr(ml_dtypes, name)), numbers()
    wide, back = np.empty(x.size, np.float32), np.empty(x.size, np.uint8)
    run(x, wide, back)
    with np.errstate(all="ignore"):
        expected = np.clip(x, -largest, largest).astype(kind).astype(np.float32)
        np.testing.assert_array_equal(back.view(kind).astype(np.float32), expected)
    np.testing.assert_array_equal(wide, expected)
    found = vectors(run)
    assert len(found) > (12 if has("avx") else 6), found


def test_scratch_memory_is_aligned_and_of_its_own() -> None:
    @njit
    def run(out: Any) -> None:
        for i in range(out.size):
            first, second = scratch(8, float32), scratch(8, float32)
            for k in range(8):
                first[k], second[k] = i, 2 * i
            out[i] = first.sum() + second.sum() + 1000 * (first.ctypes.data % 64 + second.ctypes.data % 64)

    out = np.empty(5, np.float32)
    run(out)
    assert list(out) == [0, 24, 48, 72, 96]


def called_and_written(name: str) -> tuple[Callable[..., None], str]:
    """A kernel that applies a function of one or two numbers to arrays, called and written out, and its assembly."""
    inputs = ["x", "y"][: len(inspect.signature(polynomials.RULES[name]).parameters)]
    names: dict[str, Any] = {"called": getattr(called_functions, name), "written": getattr(polynomials, name)}
    given = ", ".join(f"{x}[i]" for x in inputs)
    loops = "".join(f"  for i in range(len(a)):\n    {out} = {call}({given})\n"
                    for out, call in (("a[i]", "called"), ("b[i]", "written")))
    exec(f"def kernel({', '.join(inputs)}, a, b):\n{loops}", names)
    definition = cpu_kernels.Definition(
        function=names["kernel"], signature=f"void({', '.join(['float32[::1]'] * (len(inputs) + 2))})",
        options={"error_model": "numpy", "fastmath": FLAGS, "nogil": True},
    )
    library, _ = cpu_kernels.compiled_library(definition)
    return cpu_kernels.load_kernel(cpu_kernels.compile_kernel(definition)), library.get_asm_str()


@pytest.mark.parametrize("name", [
    name if name in {"pow32", "tanh32"} else pytest.param(name, marks=pytest.mark.matrix) for name in polynomials.RULES
])
def test_functions_that_are_called_compute_the_same_bits_in_vectors(name: str) -> None:
    kernel, asm = called_and_written(name)
    some = powers() if name == "pow32" else (numbers(),)
    inputs = [np.concatenate([part[::97], part[-len(EDGES):]]) for part in some]
    for length in (len(inputs[0]), 1, 3, 7):
        given = [x[-length:] for x in inputs]
        got, wanted = np.empty_like(given[0]), np.empty_like(given[0])
        kernel(*given, got, wanted)
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))
    bodies = dict(re.findall(rf"^fuser_lab_{name}\.?(\d*):$(.*?)^\s+ret", asm, re.MULTILINE | re.DOTALL))
    assert bodies.keys() == {"", "4", "8", "16"}
    widest = next(lanes for lanes in (16, 8, 4) if re.search(rf"[$\s]fuser_lab_{name}\.{lanes}, %r", asm))
    assert sum(op.endswith("ps") for op in vector_instructions(bodies[str(widest)])) > 10
    for lanes in ("4", "8", "16"):
        assert not re.search(r"\bv?(mul|add)ss\b", bodies[lanes])

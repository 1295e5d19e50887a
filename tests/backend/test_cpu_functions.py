"""Mathematical functions of CPU kernels against longer floats, over all numbers, in vectorized loops."""

import ctypes
import math
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import float32, njit
from thorough import THOROUGH

from fuser_lab.codegen.cpu_functions import BRANCHING
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

def exact(name: str) -> Callable[..., Any]:
    """The values of a function, in the longest floats of NumPy where it has the function."""
    if name == "lgamma":  # Python's own has few right digits near 1 and 2
        lgamma = ctypes.CDLL(None).lgamma
        lgamma.argtypes, lgamma.restype = [ctypes.c_double], ctypes.c_double
        return np.vectorize(lambda x: lgamma(float(x)), otypes=[np.longdouble])
    if name in {"erf", "erfc"}:
        return np.vectorize(lambda x: of_c(getattr(math, name), float(x)), otypes=[np.longdouble])
    names = {f"a{kind}": f"arc{kind}" for kind in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")}
    names["pow"] = "power"
    function: Callable[..., Any] = getattr(np, names.get(name, name))
    return function


def of_c(function: Callable[[float], float], x: float) -> float:
    """A function of Python's, with the infinities that it raises errors for."""
    try:
        return function(x)
    except (OverflowError, ValueError):
        return math.inf


# Functions of one number, and their error in units in the last place for a float32 with and without fused multiply-add,
# and for a float64. References of erf, erfc and lgamma are rounded.
FUNCTIONS = (
    ("acos", 1.0, 1.3, 1.3), ("acosh", 1.6, 1.8, 1.8), ("asin", 1.7, 1.7, 1.7), ("asinh", 1.6, 1.8, 1.8),
    ("atan", 2.2, 2.4, 2.1), ("atanh", 2.1, 2.3, 2.1), ("cos", 1.9, 0.6, 1.1), ("cosh", 1.5, 1.7, 1.5),
    ("erf", 7.0, 7.0, 2.5), ("erfc", 4.3, 5.0, 4.5), ("exp", 1.1, 1.1, 1.1), ("exp2", 1.1, 1.2, 1.1),
    ("expm1", 1.4, 1.6, 1.8), ("lgamma", 1.6, 1.6, 5.0), ("log", 0.8, 0.8, 0.9), ("log10", 1.6, 1.7, 0.9),
    ("log1p", 1.5, 1.6, 1.5), ("log2", 1.3, 1.3, 0.9), ("sin", 1.9, 0.6, 1.1), ("sinh", 1.7, 1.9, 1.8),
    ("tan", 3.5, 1.1, 2.3), ("tanh", 4.5, 5.5, 2.4),
)
KINDS = {"32": np.float32, "64": np.float64}
UNARY = [
    pytest.param(f"{name}{'_' * name[-1:].isdigit()}{bits}", name, (fused, separate), id=f"{name}{bits}")
    for name, single, rounded, double in FUNCTIONS
    for bits, fused, separate in (("32", single, rounded), ("64", double, double + 1.0))
]
OFTEN = {"pow32", "sin64", "tanh32"}  # the functions that `make test` calls and writes out


CALLED = r"\bcall\w*\s+\S*\b(a?(sin|cos|tan)h?|exp|exp2|expm1|log|log2|log10|log1p|pow|erfc?|fmod)f?\b"


def assert_within(got: np.ndarray, wanted: np.ndarray, nearest: np.ndarray, most: float) -> None:
    """Assert that numbers are within some units in the last place of the expected values."""
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(got[~finite], nearest[~finite])
    assert np.isfinite(got[finite]).all()
    # The smallest normal numbers and all subnormal ones have the same last place.
    smallest = np.finfo(nearest.dtype).smallest_subnormal
    place = np.maximum(np.spacing(np.abs(nearest[finite])), smallest).astype(wanted.dtype)
    units = np.abs(got[finite].astype(wanted.dtype) - wanted[finite]) / place
    assert units.max() <= most, (np.flatnonzero(finite)[units.argmax()], float(units.max()))


def numbers(kind: Any = np.float32) -> np.ndarray:
    """Numbers of every exponent and both signs, more of usual size, and special ones."""
    if kind is np.float32:
        bits = np.arange(0, 1 << 32, STRIDE, dtype=np.uint64).astype(np.uint32)
        return np.concatenate([bits.view(np.float32), EDGES])
    generator, count = np.random.default_rng(0), (1 << 28) // STRIDE
    info = np.finfo(np.float64)
    ends = [info.max, info.tiny, info.smallest_subnormal, 709.7, 709.8, 710.4, 745.1, 745.2, 746.0, 1e22, 2.0**30, 27.3]
    return np.concatenate([
        generator.integers(0, 1 << 64, count, dtype=np.uint64).view(np.float64), generator.uniform(-1, 1, count),
        generator.uniform(-30, 30, count), 1 + generator.uniform(-1e-3, 1e-3, count), EDGES.astype(np.float64), ends,
        np.negative(ends),
    ])


def wanted_of(name: str, *inputs: np.ndarray) -> np.ndarray:
    """The exact values of a function, with more digits than the inputs."""
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64 if x.dtype == np.float32 else np.longdouble) for x in inputs]
        wanted: np.ndarray = exact(name)(*wide)
        return wanted


def loop(function: Any, store: Any, arity: int = 1) -> Any:
    """A compiled loop over arrays, with the flags of kernels and the functions that their machine code may call."""
    cpu_kernels._unknown_symbols()

    @njit(error_model="numpy", fastmath=FLAGS)
    def unary(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i])

    @njit(error_model="numpy", fastmath=FLAGS)
    def binary(x: Any, y: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i], y[i])

    run = unary if arity == 1 else binary
    run.compile(store)
    return run


def vectors(compiled: Any) -> list[str]:
    return vector_instructions(compiled.inspect_asm(compiled.signatures[0]))


def computed(name: str, *inputs: np.ndarray) -> np.ndarray:
    """What a loop computes, which must have vector instructions."""
    kind = inputs[0].dtype.name
    function = getattr(called_functions if name in BRANCHING else polynomials, name)
    run = loop(function, f"void({', '.join([f'{kind}[::1]'] * (len(inputs) + 1))})", len(inputs))
    got = np.empty_like(inputs[0])
    run(*inputs, got)
    found = vectors(run)
    assert sum(op.endswith(("ps", "pd")) for op in found) > 10, found
    if name not in BRANCHING:
        assert not re.search(CALLED, run.inspect_asm(run.signatures[0]))
    return got


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "function", "bounds"), UNARY)
def test_error_over_all_numbers_in_vectors(name: str, function: str, bounds: tuple[float, float]) -> None:
    x = numbers(KINDS[name[-2:]])
    if function in {"erf", "erfc", "lgamma"}:  # whose references take a microsecond each
        x = np.concatenate([x[::23], x[-len(EDGES):]])
    got = computed(name, x)
    wanted = wanted_of(function, x)
    with np.errstate(all="ignore"):
        nearest = wanted.astype(x.dtype)
    assert_within(got, wanted, nearest, bounds[0 if has("fma") else 1])
    zero = nearest == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(nearest[zero]))


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


@pytest.mark.parametrize(("name", "most"), [("pow32", 0.51), ("pow64", 1.3)])
def test_powers_are_those_of_c_in_vectors(name: str, most: float) -> None:
    step = 1 if name == "pow32" else 11  # NumPy's powers of its longest floats take a microsecond each
    x, y = (np.concatenate([part[::step], part[-(len(EDGES) + 11) ** 2 :]]) for part in powers())
    x, y = x.astype(KINDS[name[-2:]]), y.astype(KINDS[name[-2:]])
    got = computed(name, x, y)
    wanted = wanted_of("pow", x, y)
    with np.errstate(all="ignore"):
        nearest = wanted.astype(x.dtype)
        assert_within(got, wanted, nearest, most)
    ends = np.isinf(nearest) | (nearest == 0)
    np.testing.assert_array_equal(np.signbit(got[ends]), np.signbit(nearest[ends]))


def pairs(kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers of every magnitude, of similar magnitude, and all pairs of special values."""
    generator = np.random.default_rng(1)
    some = numbers(kind)
    x, y = generator.choice(some, (2, 1 << 17))
    near, ratio = generator.uniform(-9, 9, (2, 1 << 17))
    special = np.concatenate([EDGES.astype(kind), np.array([np.finfo(kind).max, 3, 0.1, -0.1, 2, 1e30], kind)])
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    return (
        np.concatenate([x, near.astype(kind), grid[0]]), np.concatenate([y, (near * ratio).astype(kind), grid[1]]),
    )


@pytest.mark.parametrize("bits", KINDS)
def test_remainders_are_exact(bits: str) -> None:
    x, y = pairs(KINDS[bits])
    got = computed(f"fmod{bits}", x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.fmod(x, y))
        np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(x)[~np.isnan(got)])
        rest, wanted = computed(f"remainder{bits}", x, y), np.remainder(x, y)
    np.testing.assert_array_equal(rest, wanted)


@pytest.mark.parametrize("bits", KINDS)
def test_quotients_are_rounded_down(bits: str) -> None:
    x, y = pairs(KINDS[bits])
    got, last_place = computed(f"floordiv{bits}", x, y), np.finfo(x.dtype).eps
    with np.errstate(all="ignore"):
        wanted, exact = np.floor_divide(x, y), np.abs(x / y) < 0.25 / last_place
    np.testing.assert_array_equal(got[exact], wanted[exact])
    np.testing.assert_allclose(got, wanted, rtol=2 * last_place)


@pytest.mark.parametrize("bits", KINDS)
def test_angles_of_points_are_those_of_c(bits: str) -> None:
    y, x = pairs(KINDS[bits])
    got = computed(f"atan2_{bits}", y, x)
    wanted = wanted_of("atan2", y, x)
    numbers = ~np.isnan(wanted)
    assert_within(got, wanted, wanted.astype(x.dtype), 2.2)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))


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
    inputs, kind = ["x", "y"][: polynomials.RULES[name].arity], KINDS[name[-2:]].__name__
    names: dict[str, Any] = {"called": getattr(called_functions, name), "written": getattr(polynomials, name)}
    given = ", ".join(f"{x}[i]" for x in inputs)
    loops = "".join(f"  for i in range(len(a)):\n    {out} = {call}({given})\n"
                    for out, call in (("a[i]", "called"), ("b[i]", "written")))
    exec(f"def kernel({', '.join(inputs)}, a, b):\n{loops}", names)
    definition = cpu_kernels.Definition(
        function=names["kernel"], signature=f"void({', '.join([f'{kind}[::1]'] * (len(inputs) + 2))})",
        options={"error_model": "numpy", "fastmath": FLAGS, "nogil": True},
    )
    library, _ = cpu_kernels.compiled_library(definition)
    return cpu_kernels.load_kernel(cpu_kernels.compile_kernel(definition))[0], library.get_asm_str()


@pytest.mark.skipif(not has("avx"), reason="vectors of SSE are as long as the stack is aligned")
def test_vectors_on_the_stack_cross_no_cache_line() -> None:
    _, asm = called_and_written("sin32")
    kernel = asm[:asm.index("\nfuser_lab_sin32:")]
    stored = re.findall(r"vmov(\w)p[sd]\s+%[yz]mm\d+, \d*\(%rsp\)", kernel)
    assert "a" in stored
    assert "u" not in stored


@pytest.mark.parametrize("name", [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.matrix) for name in polynomials.RULES
])
def test_functions_that_are_called_compute_the_same_bits_in_vectors(name: str) -> None:
    kernel, asm = called_and_written(name)
    kind, suffix = KINDS[name[-2:]], "ps" if name.endswith("32") and name not in {"lgamma32", "pow32"} else "pd"
    lanes = ("4", "8", "16") if name.endswith("32") else ("2", "4", "8")
    some = (numbers(kind),) if polynomials.RULES[name].arity == 1 else pairs(kind)
    inputs = [np.concatenate([part[::97], part[-len(EDGES):]]) for part in some]
    for length in (len(inputs[0]), 1, 3, 7):
        given = [x[-length:] for x in inputs]
        got, wanted = np.empty_like(given[0]), np.empty_like(given[0])
        kernel(*given, got, wanted)
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(wanted) & ~np.isnan(got))
    bodies = dict(re.findall(rf"^fuser_lab_{name}\.?(\d*):$(.*?)^\s+ret", asm, re.MULTILINE | re.DOTALL))
    assert bodies.keys() == {"", *lanes}
    widest = next(count for count in lanes[::-1] if re.search(rf"[$\s]fuser_lab_{name}\.{count}, %r", asm))
    assert sum(op.endswith(suffix) for op in vector_instructions(bodies[widest])) > 8
    for count in lanes:
        assert not re.search(r"\bv?(mul|add)s[sd]\b", bodies[count])

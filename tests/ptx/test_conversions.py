"""Instructions for conversions in CUDA kernels: one per two 8-bit floats on devices that have it, none for copies."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backend.fusions import D, S, build

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]

LETTERS = {D.Float8_e4m3fn: "e4m3", D.Float8_e5m2: "e5m2"}
DEVICES = {(8, 0): False, (8, 6): False, (8, 9): True, (9, 0): True}  # whether they convert 8-bit floats


def ptx_of(record: Any, dtype: D, shape: tuple[int, int] = (1 << 12, 64), cc: tuple[int, int] = (9, 0)) -> str:
    (phase,) = compile_phases(generate(build(record, [shape], dtype), S.POINTWISE, "cuda"), cc)
    machine_code(phase.ptx, cc)  # the device has all instructions
    return phase.ptx


def to(dtype: D) -> Any:
    return lambda fd, x: fd.ops.cast(x, dtype=dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cc", DEVICES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize("dtype", LETTERS, ids=lambda d: d.name)
class TestFloat8:
    def test_two_are_rounded_at_a_time(self, dtype: D, cc: tuple[int, int]) -> None:
        ptx = ptx_of(to(dtype), D.Float, cc=cc)
        assert ptx.count(f"cvt.rn.satfinite.{LETTERS[dtype]}x2.f32") == (2 if DEVICES[cc] else 0)
        assert ("cvt.rni.u32.f32" in ptx) is not DEVICES[cc]
        assert ".local" not in ptx
        assert re.findall(r"st\.global\S*", ptx) == ["st.global.u32"]

    def test_both_of_two_are_widened(self, dtype: D, cc: tuple[int, int]) -> None:
        ptx = ptx_of(to(D.Float), dtype, cc=cc)
        converted = re.findall(rf"cvt\.rn\.f16x2\.{LETTERS[dtype]}x2 \S+, (\S+);", ptx)
        # The assembler merges two that convert the same value.
        assert len(set(converted)) == (2 if DEVICES[cc] else 0)
        assert ".local" not in ptx

    def test_numbers_that_no_vector_holds(self, dtype: D, cc: tuple[int, int]) -> None:
        strides = {"T0": (130, 2)}
        fusion = build(lambda fd, x: fd.ops.cast(fd.ops.neg(x), dtype=dtype), [(64, 65)], dtype)
        (phase,) = compile_phases(generate(fusion, S.POINTWISE, "cuda", strides=strides), cc)
        assert (f"cvt.rn.f16x2.{LETTERS[dtype]}x2" in phase.ptx) is DEVICES[cc]
        assert (f"cvt.rn.satfinite.{LETTERS[dtype]}x2.f32" in phase.ptx) is DEVICES[cc]


def test_a_device_keeps_its_own_form_whichever_is_compiled_first() -> None:
    found = [("e4m3x2" in ptx_of(to(D.Float8_e4m3fn), D.Float, cc=cc)) for cc in ((9, 0), (8, 0), (9, 0), (8, 0))]
    assert found == [True, False, True, False]


def test_what_becomes_infinite() -> None:
    from fuser_lab.runtime.cuda_compilers.float8_functions import E5M2

    limit = np.float32(E5M2.infinite_from)
    with np.errstate(over="ignore"):
        assert np.isinf(limit.astype(ml_dtypes.float8_e5m2))
    below = np.nextafter(limit, np.float32(0)).astype(ml_dtypes.float8_e5m2)
    assert below == ml_dtypes.finfo(ml_dtypes.float8_e5m2).max
    # The instruction gives the largest number, whose bits are one less than those of infinity.
    assert below.view(np.uint8) + 1 == np.float32(np.inf).astype(ml_dtypes.float8_e5m2).view(np.uint8)


def test_a_half_is_rounded_once() -> None:
    ptx = ptx_of(to(D.Half), D.Float)
    assert ptx.count("cvt.rn.f16.f32") == 4
    assert "cvt.f32.f16" not in ptx


@pytest.mark.parametrize("dtype", [*LETTERS, D.Half, D.BFloat16], ids=lambda d: d.name)
def test_words_that_are_transposed_are_not_converted(dtype: D) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([512, 512], contiguity=True, dtype=dtype)
        y = fd.define_tensor([512, 512], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.permute(x, [1, 0]), y), dtype=dtype))
    (segment,) = fl.segment(fd).segments
    source = segment.source("cuda")
    assert "_tile[" in source
    first = source[source.index("def ") : source.index("syncthreads")]
    assert "_to_float(" not in first
    assert "_among(" not in first
    assert "float_to" not in first
    assert "_bits(" not in first
    compile_phases(segment.kernel("cuda"))


def test_bounds_are_one_instruction_each() -> None:
    ptx = ptx_of(lambda fd, x: fd.ops.clamp(x, -448.0, 448.0), D.Float)
    assert ptx.count("max.NaN.f32") == ptx.count("min.NaN.f32") == 4
    assert "setp" not in ptx.split("bra", 1)[1]
    # The sign of a zero is kept, which max might change.
    assert "max.NaN.f32" not in ptx_of(lambda fd, x: fd.ops.clamp(x, 0.0, 1.0), D.Float)


@pytest.mark.parametrize("dtype", [D.Char, D.Byte, D.Short], ids=lambda d: d.name)
def test_small_integers_are_widened_by_arithmetic(dtype: D) -> None:
    ptx = ptx_of(to(D.Float), dtype)
    assert not re.search(r"cvt\.\S*f32\.[su]", ptx)
    # A product has more bits than the arithmetic represents exactly.
    product = ptx_of(lambda fd, x: fd.ops.cast(fd.ops.cast(fd.ops.mul(x, x), dtype=D.Int32), dtype=D.Float), D.Int32)
    assert re.search(r"cvt\.rn\.f32\.s32", product)

"""Accesses in the machine code of kernels without reductions: 16 bytes at a time where promised."""

import re
from typing import Any

import pytest
from backend.fusions import D, S, build
from needs import with_numba_only

import fuser_lab as fl
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


def ptx_of(fusion: Any, **options: Any) -> str:
    (phase,) = compile_phases(generate(fusion, S.POINTWISE, "cuda", **options))
    return phase.ptx


def accesses(ptx: str) -> list[str]:
    return re.findall(r"(?:ld|st)\.global\S*", ptx)


def add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.cast(fd.ops.add(x, y), x.dtype)


WIDE = {
    D.Double: "v2.f64", D.Float: "v4.f32", D.Half: "v4.u32", D.BFloat16: "v4.u32", D.Int: "v2.u64", D.Int32: "v4.u32",
    D.UInt64: "v2.u64", D.ComplexFloat: "v4.f32",
}


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: d.name)
def test_sixteen_bytes_at_a_time(dtype: D) -> None:
    found = accesses(ptx_of(build(add, [(1 << 12, 64), (1 << 12, 64)], dtype)))
    assert sorted(found) == [f"ld.global.{WIDE[dtype]}"] * 2 + [f"st.global.{WIDE[dtype]}"]


def test_booleans_sixteen_at_a_time() -> None:
    ptx = ptx_of(build(lambda fd, x, y: fd.ops.logical_and(x, y), [(1 << 12, 64)] * 2, D.Bool))
    assert sorted(accesses(ptx)) == ["ld.global.v4.u32"] * 2 + ["st.global.v4.u32"]


def test_pairs_of_neighbours_are_read_sixteen_bytes_at_a_time() -> None:
    def products(fd: Any, x: Any) -> Any:
        pairs = fd.ops.reshape(x, [1 << 12, 64, 2])
        first, second = (fd.ops.slice(pairs, [0, 0, n], [1 << 12, 64, n + 1]) for n in range(2))
        return fd.ops.mul(first, second)

    found = accesses(ptx_of(build(products, [(1 << 12, 128)], D.Float)))
    assert sorted(found) == ["ld.global.v4.f32"] * 2 + ["st.global.v4.f32"]


@with_numba_only("8 bytes are in local memory")
def test_a_roll_along_two_axes_needs_no_local_memory() -> None:
    def roll(fd: Any, x: Any) -> Any:
        for axis in range(2):
            start = [3 if n == axis else 0 for n in range(3)]
            first = fd.ops.slice(x, start, x.shape())
            end = [size if n != axis else 3 for n, size in enumerate(x.shape())]
            x = fd.ops.cat([first, fd.ops.slice(x, [0, 0, 0], end)], axis)
        return fd.ops.neg(x)

    (phase,) = compile_phases(generate(build(roll, [(64, 56, 64)], D.Float), S.RESIZE, "cuda"))
    assert ".local" not in phase.ptx
    assert accesses(phase.ptx) == ["ld.global.v4.f32", "st.global.v4.f32"]


@pytest.mark.parametrize("alignment", [8, 4])
def test_less_where_an_address_does_not_allow_it(alignment: int) -> None:
    fusion = build(add, [(1 << 12, 64)] * 2, D.Float)
    found = accesses(ptx_of(fusion, alignment={"T0": alignment}))
    loads = ["ld.global.v2.f32"] * 2 if alignment == 8 else ["ld.global.f32"] * 4
    assert sorted(found) == sorted([*loads, "ld.global.v4.f32", "st.global.v4.f32"])


def test_rows_of_odd_length_are_read_one_by_one_and_written_together() -> None:
    fusion = build(add, [(64, 64), (64, 64)], D.Float)
    found = accesses(ptx_of(fusion, strides={"T0": (65, 1)}))
    assert sorted(found) == sorted(["ld.global.f32"] * 4 + ["ld.global.v4.f32", "st.global.v4.f32"])


def element_wise() -> list[Any]:
    names = {"bias_gelu", "silu_mul", "transpose_add", "rope_fwd"}
    return [load for load in WORKLOADS if load.name in names]


@pytest.mark.parametrize("load", element_wise(), ids=lambda load: load.name)
def test_workloads_are_one_kernel_of_whole_vectors(load: Any) -> None:
    (segment,) = fl.segment(load.definition(), load.specs()).segments
    (phase,) = compile_phases(generate(segment.fusion, segment.scheduler, "cuda"))
    assert set(accesses(phase.ptx)) == {"ld.global.L2::cache_hint.v4.b32", "st.global.v4.u32"}
    assert set(re.findall(r"L2::evict_\w+", phase.ptx)) == {"L2::evict_last"}
    assert ".f64" not in phase.ptx
    assert ".local" not in phase.ptx
    _, log = machine_code(phase.ptx, (9, 0))
    assert "0 bytes spill stores, 0 bytes spill loads" in log
    assert "div.s64" not in phase.ptx
    assert "rem.s64" not in phase.ptx


def test_indices_take_64_bits_only_where_a_tensor_is_that_large() -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.expand(x, [3, 1 << 30]))

    large = ptx_of(build(record, [(1, 1 << 30)], D.Float))
    small = ptx_of(build(lambda fd, x: fd.ops.neg(fd.ops.expand(x, [3, 1 << 10])), [(1, 1 << 10)], D.Float))
    for ptx in (large, small):
        # Chunks of four are numbered in 32 bits; their products do not fit and are computed in 64 bits.
        assert "mul.wide.u32" in ptx or "cvt.u64.u32" in ptx
        assert not re.search(r"mul\.lo\.s64|mad\.lo\.s64", ptx)
        assert "rem." not in ptx

    def odd(fd: Any, x: Any) -> Any:
        return fd.ops.neg(fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [5, 6, 7]))

    assert not re.search(r"(div|rem)\.[us]64", ptx_of(build(odd, [(6, 7)], D.Float)))


@with_numba_only("44 products of integers")
def test_normal_numbers_need_no_double_precision_and_no_memory() -> None:
    def record(fd: Any, x: Any) -> Any:
        seeds = {"rng_seed": fd.define_scalar(dtype=D.Int), "rng_offset": fd.define_scalar(dtype=D.Int)}
        return fd.ops.normal(0.0, 1.0, [64, 8192], **seeds, dtype=D.Float)

    ptx = ptx_of(build(record, [(64, 8192)], D.Float))
    assert ".f64" not in ptx
    assert ".local" not in ptx
    # One run of the generator, twenty products, for four numbers.
    assert len(re.findall(r"\bmul\.(?:lo|wide|hi)\.\S*64|\bmul\.wide\.u32|\bmul\.hi", ptx)) < 30


@with_numba_only("loops of two long iterations are not written out")
@pytest.mark.parametrize(
    ("dtype", "fn", "calls"), [(D.Double, "erfc", 4), (D.Double, "exp", 16), (D.BFloat16, "tanh", 14)],
)
def test_elements_of_a_thread_are_registers_however_many_instructions_they_take(dtype: D, fn: str, calls: int) -> None:
    def chain(fd: Any, x: Any) -> Any:
        for _ in range(calls):
            x = fd.ops.add(fd.ops.mul(getattr(fd.ops, fn)(x), 1.5), 0.25)
        return fd.ops.cast(x, dtype)

    assert ".local" not in ptx_of(build(chain, [(1 << 20,)], dtype))


def test_arrays_loaded_on_two_sides_of_a_branch_are_registers() -> None:
    def joined(fd: Any, x: Any, y: Any, z: Any) -> Any:
        return fd.ops.cat([x, fd.ops.cast(fd.ops.mul(y, z), D.BFloat16)], 1)

    ptx = ptx_of(build(joined, [(1 << 12, 64)] * 3, D.BFloat16))
    assert ".local" not in ptx
    assert sum(access.startswith("ld") for access in accesses(ptx)) == 3


def test_a_concatenation_of_many_selects_one_address() -> None:
    def joined(fd: Any, x: Any, *parts: Any) -> Any:
        return fd.ops.cast(fd.ops.mul(x, fd.ops.cat(list(parts), 1)), D.BFloat16)

    ptx = ptx_of(build(joined, [(1 << 12, 64), (1 << 12, 16), (1 << 12, 24), (1 << 12, 24)], D.BFloat16))
    assert [access[:2] for access in accesses(ptx)] == ["ld", "ld", "st"]
    assert len(re.findall(r"\bbra\b", ptx)) == 1  # of threads beyond the last element

"""Reductions as PTX and machine code: the promised 16-byte accesses, no spills, no double arithmetic."""

import re
import time
from typing import Any

import pytest
from backend.fusions import D, S, build, one_of_each_kind
from backend.reductions import add_norm, backward, softmax, totals
from machine import allowed

from fuser_lab.codegen.kernel_ir import Alloc, Role, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code, spills
from fuser_lab.schedule.parameters import LoopChange
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]

ROWS = 4096


def fusion_of(record: Any, columns: int, dtype: DataType, inputs: int) -> Fusion:
    shapes = [(ROWS, columns), (ROWS, columns), (columns,), (ROWS, 1)][:inputs]
    return build(record, shapes, dtype)


def both_ways(fd: Any, x: Any) -> Any:
    return fd.ops.sum(fd.ops.abs(fd.ops.sub(x, fd.ops.permute(x, [1, 0]))), [1])


# Computation, scheduler, columns, dtype, inputs, and the vector accesses that each phase makes at least once.
LOADED, STORED = r"ld\.global\S*\.v4", r"st\.global\S*\.v4"
def gelu_and_columns(fd: Any, x: Any) -> Any:
    """The backward pass of GELU for one number, stored and summed over columns."""
    y = fd.ops.cast(x, D.Float)
    t = fd.ops.tanh(y)
    slope = fd.ops.mul(y, fd.ops.sub(1.0, fd.ops.mul(t, t)))
    z = fd.ops.add(fd.ops.mul(0.5, fd.ops.add(1.0, t)), slope)
    return fd.ops.cast(z, x.dtype), fd.ops.sum(z, [0])


PROMISED = [
    ("softmax, a warp to a row", softmax, S.INNER_PERSISTENT, 1024, D.BFloat16, 1, [(LOADED, STORED)]),
    ("softmax in registers", softmax, S.INNER_PERSISTENT, 8192, D.BFloat16, 1, [(LOADED, STORED)]),
    ("softmax in float32", softmax, S.INNER_PERSISTENT, 4096, D.Float, 1, [(LOADED, STORED)]),
    (
        "softmax in shared memory", softmax, S.INNER_PERSISTENT, 32_768, D.BFloat16, 1,
        [(LOADED, STORED, r"ld\.shared\.v4", r"st\.shared\.v4")],
    ),
    (
        "softmax in all there is", softmax, S.INNER_PERSISTENT, 131_072, D.BFloat16, 1,
        [(LOADED, STORED, r"ld\.shared\.v4", r"st\.shared\.v4")],
    ),
    ("softmax of odd rows", softmax, S.INNER_PERSISTENT, 50_001, D.BFloat16, 1, [(LOADED, STORED)]),
    ("softmax of half a vector", softmax, S.INNER_PERSISTENT, 5004, D.BFloat16, 1, [(r"ld\.global\S*\.v2",)]),
    ("sum and norm", add_norm, S.INNER_PERSISTENT, 8192, D.BFloat16, 3, [(LOADED, STORED)]),
    ("row sums", totals(1), S.REDUCTION, 8192, D.BFloat16, 1, [(LOADED,)]),
    ("column sums", totals(0), S.REDUCTION, 8192, D.BFloat16, 1, [(LOADED,), ()]),
    ("columns of a long formula", gelu_and_columns, S.REDUCTION, 4096, D.BFloat16, 1, [(LOADED, STORED), ()]),
    ("sum of all", totals(0, 1), S.REDUCTION, 8192, D.Float, 1, [(LOADED,), ()]),
    ("straight and transposed", both_ways, S.REDUCTION, ROWS, D.Float, 1, [(LOADED, r"ld\.shared\.v4", "bar"), ()]),
    ("backward", backward, S.INNER_OUTER_PERSISTENT, 8192, D.BFloat16, 4, [(LOADED, STORED), ()]),
    ("backward in float32", backward, S.INNER_OUTER_PERSISTENT, 4096, D.Float, 4, [(LOADED, STORED), ()]),
    ("backward of short rows", backward, S.INNER_OUTER_PERSISTENT, 1024, D.Half, 4, [(LOADED, STORED), ()]),
]


# Kernels of the same form as those of another promise.
MORE = {
    "softmax in float32", "softmax in all there is", "softmax of half a vector", "sum of all", "backward in float32",
    "backward of short rows",
}
# The longest rows take more shared memory than compute capability 8.0 has.
COMPILED = [(c, cc) for c in PROMISED for cc in ((8, 0), (9, 0)) if c[3] < 100_000 or cc >= (9, 0)]


@pytest.mark.parametrize(
    ("promise", "cc"),
    [pytest.param(c, cc, marks=[] if cc == (9, 0) and c[0] not in MORE else pytest.mark.matrix) for c, cc in COMPILED],
    ids=[f"{c[0]}, cc {cc[0]}.{cc[1]}" for c, cc in COMPILED],
)
def test_promises(promise: tuple[Any, ...], cc: tuple[int, int]) -> None:
    _, record, scheduler, columns, dtype, inputs, promised = promise
    generated = generate(fusion_of(record, columns, dtype, inputs), scheduler, "cuda")
    phases = compile_phases(generated, cc)
    assert len(phases) == len(promised)
    for phase, patterns in zip(phases, promised, strict=True):
        for pattern in patterns:
            assert re.search(pattern, phase.ptx), f"{phase.phase.name} has no {pattern}"
        assert ".f64" not in phase.ptx
        assert ".local" not in phase.ptx
        assert "trap" not in phase.ptx
        _, log = machine_code(phase.ptx, cc)
        assert not spills(log)
        used = re.search(r"Used (\d+) registers", log)
        assert used is not None
        launch = phase.phase.launch
        threads = launch.threads[0] * launch.threads[1]
        assert int(used.group(1)) * threads <= 65536
        static = [
            s.buffer for s in walk(phase.phase.body)
            if isinstance(s, Alloc) and s.buffer.role is Role.SHARED and not s.buffer.is_dynamic
        ]
        assert sum(b.size * b.dtype.itemsize for b in static) <= 48 << 10
        assert launch.shared * max(launch.resident, 1) <= 227 << 10


@pytest.mark.parametrize(
    "dtype", one_of_each_kind([D.ComplexFloat, D.ComplexDouble, D.Bool, D.Half]), ids=lambda d: d.name,
)
@pytest.mark.parametrize("columns", [3, 9000])
def test_sums_between_threads_compile_in_every_dtype(dtype: DataType, columns: int) -> None:
    for dims in ((1,), (0,), (0, 1)):
        for phase in compile_phases(generate(build(totals(*dims), [(40, columns)], dtype), S.REDUCTION, "cuda")):
            assert "trap" not in phase.ptx


def test_elements_of_a_row_are_divided_by_its_sum_with_one_reciprocal() -> None:
    (phase,) = compile_phases(generate(fusion_of(softmax, 8192, D.BFloat16, 1), S.INNER_PERSISTENT, "cuda"))
    assert (phase.ptx.count("rcp.approx"), phase.ptx.count("div.")) == (1, 0)


def test_a_limit_on_registers_that_would_spill_is_dropped() -> None:
    """More simultaneous values per element than a quarter of the registers holds."""
    def record(fd: Any, *rows: Any) -> Any:
        f = [fd.ops.cast(x, D.Float) for x in rows]
        largest = [fd.ops.max(x, [1], keepdim=True) for x in f]
        return [fd.ops.sub(x, m) for x in f for m in largest]

    generated = generate(build(record, [(ROWS, 4096)] * 3, D.BFloat16), S.INNER_PERSISTENT, "cuda")
    assert generated.kernel_ir.phases[0].launch.resident > 0
    for phase in compile_phases(generated):
        assert not spills(machine_code(phase.ptx, (9, 0))[1])


def test_spills_are_seen_in_a_report() -> None:
    assert not spills("info : 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
    assert spills("info : 8 bytes stack frame, 12 bytes spill stores, 0 bytes spill loads")


def test_rows_shared_by_a_cluster() -> None:
    change = LoopChange(target="cuda", nest=0, values=(("cluster", 4),))
    fusion = fusion_of(softmax, 262_144, D.BFloat16, 1)
    (phase,) = compile_phases(generate(fusion, S.INNER_PERSISTENT, "cuda", changes=(change,)))
    found = r"\.explicitcluster\n\.reqnctapercluster 4, 1, 1", r"st\.async", r"barrier\.cluster"
    for pattern in (LOADED, STORED, *found):
        assert re.search(pattern, phase.ptx), pattern
    code, log = machine_code(phase.ptx, (9, 0))
    assert code
    assert not spills(log)


def test_columns_shared_by_a_cluster_stay_in_registers() -> None:
    def record(fd: Any, x: Any) -> Any:
        f = fd.ops.cast(x, D.Float)
        e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [0], keepdim=True)))
        return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [0], keepdim=True)), D.BFloat16)

    change = LoopChange(target="cuda", nest=0, values=(("cluster", 4),))
    fusion = build(record, [(1024, 32_768)], D.BFloat16)
    (phase,) = compile_phases(generate(fusion, S.OUTER_PERSISTENT, "cuda", changes=(change,)))
    for pattern in (LOADED, STORED, r"\.reqnctapercluster 4, 1, 1", r"st\.async"):
        assert re.search(pattern, phase.ptx), pattern
    code, log = machine_code(phase.ptx, (9, 0))
    assert code
    assert not spills(log)


@pytest.mark.benchmark
def test_a_long_row_compiles_in_seconds() -> None:
    generated = generate(fusion_of(softmax, 131_072, D.BFloat16, 1), S.INNER_PERSISTENT, "cuda")
    began = time.process_time()
    compile_phases(generated)
    assert time.process_time() - began < allowed(3)


def test_all_blocks_that_divide_columns_run_together() -> None:
    generated = generate(fusion_of(gelu_and_columns, 4096, D.BFloat16, 1), S.REDUCTION, "cuda")
    phase = compile_phases(generated)[0]
    launch = phase.phase.launch
    registers = re.search(r"Used (\d+) registers", machine_code(phase.ptx, (9, 0))[1])
    assert registers is not None
    fit = (64 << 10) // (int(registers.group(1)) * launch.threads[0] * launch.threads[1])
    assert fit * 132 >= launch.blocks > 3 * 132


def test_tanh_and_one_more_than_it_share_an_exponential() -> None:
    def record(fd: Any, x: Any) -> Any:
        t = fd.ops.tanh(x)
        return t, fd.ops.add(1.0, t)

    (phase,) = compile_phases(generate(build(record, [(4096, 4096)], D.Float), S.POINTWISE, "cuda"))
    elements = 4  # per thread
    assert len(re.findall(r"ex2\.approx", phase.ptx)) == len(re.findall(r"rcp\.approx", phase.ptx)) == elements

"""Compiled CPU kernels: vector instructions where they are documented, the same bits in every run, awkward shapes."""

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import backward, softmax

from fuser_lab.codegen import long_loops
from fuser_lab.codegen.index_math import variables
from fuser_lab.codegen.kernel_ir import Alloc, Load, Loop, Role, terms_of, walk
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, index
from fuser_lab.runtime.compile import defined_in
from fuser_lab.runtime.cpu_kernels import compiled_library
from tests.kernels import generate, prepare
from tests.processor import has, vector_instructions


def transpose_add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.permute(x, [1, 0]), y)


def gelu(fd: Any, x: Any) -> Any:
    return fd.ops.mul(x, fd.ops.add(fd.ops.tanh(fd.ops.mul(x, 0.8)), 1.0))


def column_sums(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [0])


def rows_across(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.softmax(fd.ops.add(x, fd.ops.permute(y, [0, 2, 1])), 2)


def sums_across(fd: Any, x: Any, y: Any) -> Any:
    difference = fd.ops.sub(x, fd.ops.permute(y, [0, 2, 1]))
    return fd.ops.sum(difference, [2]), fd.ops.max(fd.ops.mul(difference, difference), [2]), difference


def gated_rows(fd: Any, gate: Any, x: Any) -> Any:
    """Short rows with one number each that functions compute; another one is only divided."""
    o = fd.ops
    wide = o.sigmoid(o.broadcast(gate, [False, False, True]))
    other = o.broadcast(o.truediv(gate, 3.0), [False, False, True])
    return o.mul(o.add(x, other), wide), o.tanh(x)


def patches(fd: Any, x: Any) -> Any:
    parts = fd.ops.permute(fd.ops.reshape(x, [2, 3, 12, 16, 14, 16]), [0, 2, 4, 1, 3, 5])
    return fd.ops.mul(fd.ops.reshape(parts, [336, 768]), 2.0)


def run(fusion: Fusion, scheduler: S, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    plan = prepare(fusion, [(fusion, scheduler)], "cpu", allow_fallback=False, compile_now=False)
    return [np.asarray(a) for a in plan.run(list(inputs))]


def check(fusion: Fusion, scheduler: S, inputs: Sequence[np.ndarray]) -> None:
    for tv, got, want in zip(
        fusion.outputs, run(fusion, scheduler, inputs), evaluate(fusion, list(inputs), exact=False), strict=True,
    ):
        close(got, np.asarray(want).astype(tv.dtype.numpy), tv.dtype)


# Large enough to be shared among cores, with sides that no tile, band or vector divides.
LARGE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], S]] = {
    "transposes": (transpose_add, ((397, 451), (451, 397)), S.TRANSPOSE),
    "rows and columns": (backward, ((523, 301), (523, 301), (301,), (523, 1)), S.INNER_OUTER_PERSISTENT),
    "columns": (column_sums, ((611, 403),), S.REDUCTION),
    "gated rows": (gated_rows, ((67, 211), (67, 211, 13)), S.POINTWISE),
    "wide columns": (column_sums, ((37, 9001),), S.REDUCTION),
    "rows": (softmax, ((301, 517),), S.INNER_PERSISTENT),
    "rows of a transposed tensor": (rows_across, ((3, 301, 205), (3, 205, 301)), S.INNER_PERSISTENT),
    "sums of a transposed tensor": (sums_across, ((3, 301, 205), (3, 205, 301)), S.REDUCTION),
    "patches of a picture": (patches, ((2, 3, 192, 224),), S.POINTWISE),
    "rows longer than the stack": (softmax, ((3, 70_001),), S.INNER_PERSISTENT),
}


@pytest.mark.parametrize(("name", "dtype"), [
    # Loops do not depend on how many bits a wide or a narrow float has.
    pytest.param(name, dtype, marks=[] if dtype in {D.Float, D.BFloat16} or name == "rows" else [pytest.mark.matrix])
    for dtype in (D.Double, D.Float, D.BFloat16, D.Half) for name in LARGE
], ids=lambda value: getattr(value, "name", value))
def test_awkward_shapes_shared_among_cores(name: str, dtype: DataType) -> None:
    record, shapes, scheduler = LARGE[name]
    check(build(record, shapes, dtype), scheduler, [numbers(shape, dtype, n) for n, shape in enumerate(shapes)])


def _negative(x: np.ndarray) -> np.ndarray:
    return x[::-1, ::-1]


def _late(x: np.ndarray) -> np.ndarray:
    return np.pad(x.ravel(), (1, 0))[1:].reshape(x.shape)


def _apart(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, 1)[:, ::2]


def _expanded(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[:1], x.shape)


@pytest.mark.parametrize("view", [_negative, _late, _apart, _expanded, np.asfortranarray])
@pytest.mark.parametrize("name", ["transposes", "rows and columns", "columns"])
def test_inputs_of_any_strides(name: str, view: Callable[[np.ndarray], np.ndarray]) -> None:
    record, shapes, scheduler = LARGE[name]
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(shapes)]
    check(build(record, shapes, D.Float), scheduler, [view(inputs[0]), *inputs[1:]])


@pytest.mark.parametrize("dtype", [D.Bool, D.Char, D.Short, D.Int32, D.Int], ids=lambda dtype: dtype.name)
def test_transposes_of_bits(dtype: DataType) -> None:
    shapes = (512, 384), (384, 512)
    inputs = [numbers(shape, D.Int32, n).astype(dtype.numpy) for n, shape in enumerate(shapes)]
    fusion = build(lambda fd, x, y: fd.ops.bitwise_or(fd.ops.permute(x, [1, 0]), y), shapes, dtype)
    check(fusion, S.TRANSPOSE, inputs)


@pytest.mark.parametrize("name", ["rows and columns", "columns", "rows"])
def test_runs_are_the_same_to_the_bit(name: str) -> None:
    record, shapes, scheduler = LARGE[name]
    fusion = build(record, shapes, D.Float)
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(shapes)]
    first = run(fusion, scheduler, inputs)
    for _ in range(3):
        for a, b in zip(first, run(fusion, scheduler, inputs), strict=True):
            np.testing.assert_array_equal(a, b)


_DIGEST = """
import hashlib, sys
import numpy as np
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[611, 403], contiguity=True, dtype=DataType.Float)
    fd.add_output(fd.ops.sum(x, dims=[0]))
(out,) = fd.execute([np.random.default_rng(0).standard_normal((611, 403), dtype=np.float32)])
print(hashlib.sha256(out.tobytes()).hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    found = set()
    for threads in ("1", "2"):
        env = {**os.environ, "NUMBA_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", _DIGEST], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1


# Vector instructions


def assembly(fusion: Fusion, scheduler: S) -> list[str]:
    """The machine code of each phase."""
    generated = generate(fusion, scheduler, "cpu")
    defined = defined_in(generated.source)
    return [compiled_library(defined[phase.name])[0].get_asm_str() for phase in generated.kernel_ir.phases]


KERNELS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], S, str]] = {
    "pointwise": (gelu, ((512, 512),), S.POINTWISE, "mulps"),
    "softmax": (softmax, ((512, 512),), S.INNER_PERSISTENT, "addps"),
    "rows and columns": (backward, ((512, 512), (512, 512), (512,), (512, 1)), S.INNER_OUTER_PERSISTENT, "mulps"),
    "columns": (column_sums, ((512, 512),), S.REDUCTION, "addps"),
    "transpose": (transpose_add, ((512, 512), (512, 512)), S.TRANSPOSE, "addps"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "dtype"), [
    pytest.param(name, dtype, marks=[pytest.mark.matrix] if dtype is D.Half and name != "pointwise" else [])
    for dtype in (D.Float, D.BFloat16, D.Half) for name in KERNELS
], ids=lambda value: getattr(value, "name", value))
def test_inner_loops_use_wide_vectors(name: str, dtype: DataType) -> None:
    record, shapes, scheduler, operation = KERNELS[name]
    asm = assembly(build(record, shapes, dtype), scheduler)[0]
    wide = vector_instructions(asm)
    assert any(op == operation or op.startswith("fm") for op in wide), set(wide)
    assert not re.search(r"\b(expf|tanhf)\b", asm)


@pytest.mark.parametrize(("record", "scheduler"), [(rows_across, S.INNER_PERSISTENT), (sums_across, S.REDUCTION)])
def test_rows_of_a_transposed_tensor_are_read_a_band_at_a_time(record: Callable[..., Any], scheduler: S) -> None:
    fusion = build(record, ((3, 301, 205), (3, 205, 301)), D.Float)
    body = generate(fusion, scheduler, "cpu").kernel_ir.phases[0].body
    read = {
        (term.buffer.name, loop.var) for loop in walk(body) if isinstance(loop, Loop) for s in loop.body
        for root in terms_of(s) for term in root.walk() if isinstance(term, Load) and term.buffer.role is Role.INPUT
    }
    assert read == {("T0", "r"), ("T1", "row")}


def test_no_access_of_an_inner_loop_divides() -> None:
    body = generate(build(patches, ((2, 3, 192, 224),), D.Float), S.POINTWISE, "cpu").kernel_ir.phases[0].body
    loops = [s for s in walk(body) if isinstance(s, Loop)]
    assert [loop.stop for loop in loops[1:]] == [index(3), index(16), index(16)]
    inner = {loop.var for loop in loops[1:]}
    divided = [
        term for s in walk(body) for root in terms_of(s) for term in root.walk()
        if isinstance(term, Apply) and term.fn in {"floordiv", "mod"} and inner & variables(term)
    ]
    assert not divided


@pytest.mark.parametrize(("length", "staged"), [(16, True), (64, True), (65, False), (1, False)])
def test_functions_of_one_number_for_a_short_row_are_computed_for_many_rows_together(length: int, staged: bool) -> None:
    fusion = build(gated_rows, [(100, 90), (100, 90, length)], D.Float)
    phases = generate(fusion, S.POINTWISE, "cpu", "kernel").kernel_ir.phases
    names = {s.buffer.name for phase in phases for s in walk(phase.body) if isinstance(s, Alloc)}
    assert bool(names) == staged
    assert len(names) <= 1  # not worthwhile for a quotient


@pytest.mark.parametrize(("name", "fill"), [("max", -math.inf), ("min", math.inf)])
def test_extremes_of_masked_rows_are_vectorized(name: str, fill: float) -> None:
    def masked(fd: Any, x: Any, y: Any) -> Any:
        return getattr(fd.ops, name)(fd.ops.where(fd.ops.gt(y, 0.0), fd.ops.mul(x, 0.125), fill), [1])

    (asm,) = assembly(build(masked, ((512, 512), (512, 512)), D.Float), S.REDUCTION)
    assert f"{name}ps" in vector_instructions(asm)


def test_neighbouring_sums_of_a_few_rows_each_are_vectorized_together() -> None:
    def pooled(fd: Any, x: Any) -> Any:
        return fd.ops.sum(fd.ops.reshape(x, [64, 8, 1024]), [1])

    (asm,) = assembly(build(pooled, ((512, 1024),), D.Float), S.REDUCTION)
    assert re.search(r"\bv?addps\b", asm)
    assert not re.search(r"\bv?addss\b", asm)


@pytest.mark.parametrize("length", [16, 48, 96])
def test_short_rows_are_read_along_them_and_not_gathered_from_many(length: int) -> None:
    (asm,) = assembly(build(lambda fd, x: fd.ops.sum(x, [1]), ((65536, length),), D.Float), S.REDUCTION)
    read = r"vaddps" if has("avx") else r"(addps|movups)"  # without AVX, addps needs addresses that are multiples of 16
    assert re.search(rf"^\s+{read}\s.*\(%r\w+(,%r\w+)?\), .*%[xyz]mm", asm.replace(", %r", ",%r"), re.MULTILINE)
    assert "vgather" not in asm


def test_loops_over_more_columns_than_registers_hold_are_not_unrolled() -> None:
    parts, _ = assembly(build(lambda fd, x: fd.ops.sum(x, [0]), ((16384, 1024),), D.Float), S.REDUCTION)
    added = re.findall(r"\bv?addps\b", parts)
    assert 4 <= len(added) <= 32, len(added)


def test_sums_of_rows_have_several_accumulators() -> None:
    (asm,) = assembly(build(lambda fd, x: fd.ops.sum(x, [1]), ((512, 512),), D.Float), S.REDUCTION)
    added = r"vaddps\s.*, (%[yz]mm\d+)" if has("avx") else r"addps\s.*, (%xmm\d+)"
    registers = set(re.findall(rf"^\s+{added}$", asm, re.MULTILINE))
    assert len(registers) >= 2, registers


@pytest.mark.parametrize(("record", "wanted"), [
    (lambda fd, x: fd.ops.sum(fd.ops.sub(x, x), [1]), [0, np.nan, np.nan]),
    (lambda fd, x: fd.ops.prod(fd.ops.truediv(x, x), [1]), [1, np.nan, np.nan]),
    (lambda fd, x: fd.ops.sum(fd.ops.sub(fd.ops.add(x, 2.0**30), 2.0**30), [1]), [0, np.nan, np.inf]),
], ids=["x - x", "x / x", "rounding"])
def test_reductions_are_reordered_and_nothing_else(record: Callable[..., Any], wanted: list[float]) -> None:
    x = np.full((3, 64), 1.0, np.float32)
    x[1, 5], x[2, 40] = np.nan, np.inf
    (got,) = run(build(record, (x.shape,), D.Float), S.REDUCTION, [x])
    np.testing.assert_array_equal(got, np.float32(wanted))


def test_no_scratch_memory_is_allocated_by_calls() -> None:
    asm = assembly(build(softmax, ((512, 512),), D.Float), S.INNER_PERSISTENT)[0]
    assert "NRT_MemInfo_alloc" not in asm


def functions(fd: Any, x: Any, y: Any) -> Any:
    """Functions, choices and sums of rows, with values that are used much later."""
    o = fd.ops
    z = x
    for number in range(10):
        z = o.where(o.gt(z, y), o.tanh(o.add(z, y)), o.mul(z, 0.75))
        z = o.sub(z, x) if number % 2 else o.exp(z)
    return o.mul(z, o.sin(y)), o.gt(z, x), o.max(z, [1])


@pytest.mark.parametrize(("shape", "called"), [((3, 20), False), ((70, 600), False), ((70, 600), True)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_divided_loops_compute_the_same_bits(
    shape: tuple[int, int], called: bool, dtype: DataType, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fusion, inputs = build(functions, [shape, shape], dtype), [numbers(shape, dtype), numbers(shape, dtype, 1)]
    wanted = run(fusion, S.REDUCTION, inputs)
    monkeypatch.setattr(long_loops, "LONG", 100)
    monkeypatch.setattr(long_loops, "PART", 90)
    monkeypatch.setattr(long_loops, "MANY", 1 if called else 1 << 60)
    generated = generate(fusion, S.REDUCTION, "cpu")
    assert ("@called" in generated.source) == called
    (phase,) = generated.kernel_ir.phases
    assert sum(isinstance(s, Loop) and s.var.startswith("r") for s in walk(phase.body)) > 3
    for got, other in zip(run(fusion, S.REDUCTION, inputs), wanted, strict=True):
        assert got.tobytes() == other.tobytes()

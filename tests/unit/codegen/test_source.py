"""Generated source: readable, traceable to the fusion, and printed without its compilers."""

import ast
import re
import subprocess
import sys
from typing import Any

import pytest
from backend.fusions import CASES, Case, D, S, build

from fuser_lab.codegen.cpu_functions import MOST_WRITTEN
from fuser_lab.codegen.kernel_ir import Load, Loop, walk
from fuser_lab.codegen.numba_cpu import CpuEmitter
from fuser_lab.codegen.numba_cuda import CudaEmitter
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Apply, Const, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.parameters import choose_loops, describe
from fuser_lab.schedule.state import Space
from tests.kernels import generate, lower

TARGETS = ("cpu", "cuda")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_python_with_the_names_of_the_fusion(case: Case, target: str) -> None:
    fusion = case.fusion()
    generated = generate(fusion, case.scheduler, target)
    ast.parse(generated.source)
    head = generated.source.split("\n\n", maxsplit=1)[0]
    assert case.scheduler.value in head
    for expr in fusion.exprs:
        assert f"{expr.name} = {expr.op.name}(" in head
    assert len(generated.line_origins) == len(generated.source.splitlines())
    for phase in generated.kernel_ir.phases:
        assert f"def {phase.name}(" in generated.source


@pytest.mark.parametrize("target", TARGETS)
def test_lines_lead_to_ops_and_back(target: str) -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    generated = generate(softmax.fusion(), softmax.scheduler, target)
    lines = generated.source.splitlines()
    exponential = next(e for e in softmax.fusion().exprs if e.op.name == "exp")
    found = [lines[number - 1].strip() for number in generated.lines_of(exponential.name)]
    assert any("exp" in line and line.startswith("t5 = ") for line in found)
    assert all(origin is None or origin.startswith("T") for origin in generated.line_origins)


def test_the_same_segment_has_the_same_source() -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    first, second = (generate(softmax.fusion(), softmax.scheduler).source for _ in range(2))
    assert first == second
    assert "def inner_persistent_T9(" in first


def test_a_printer_refuses_loops_of_the_other_target() -> None:
    fusion = build(lambda fd, x: fd.ops.exp(x), [(600, 500)], D.Float)
    with pytest.raises(CodegenError, match="lowered for cuda and cannot be printed as loops over cores"):
        CpuEmitter(lower(fusion, S.POINTWISE, "cuda", "kernel", {})).source()
    with pytest.raises(CodegenError, match="lowered for cpu and cannot be printed as grids of blocks of threads"):
        CudaEmitter(lower(fusion, S.POINTWISE, "cpu", "kernel", {})).source()
    rows = build(lambda fd, x: fd.ops.sum(x, [1]), [(3, 5000)], D.Float)
    with pytest.raises(CodegenError):
        CpuEmitter(lower(rows, S.REDUCTION, "cuda", "kernel", {})).source()


def test_says_why_there_is_no_kernel() -> None:
    product = build(lambda fd, a, b: fd.ops.matmul(a, b), [(3, 4), (4, 5)], D.Float)
    with pytest.raises(CodegenError, match="array library"):
        generate(product, S.EXPR_EVAL)
    with pytest.raises(CodegenError, match="matmul .* has no rule for one element"):
        generate(product, S.POINTWISE)
    with pytest.raises(CodegenError, match="unknown target 'tpu'"):
        generate(product, S.POINTWISE, "tpu")


def test_printing_needs_no_compiler() -> None:
    program = """
import sys
from typing import Any
sys.modules["numba"] = sys.modules["torch"] = None
from backend.fusions import CASES
from tests.kernels import generate
for case in CASES:
    for target in ("cpu", "cuda"):
        generate(case.fusion(), case.scheduler, target)
import fuser_lab.runtime.arrays, fuser_lab.runtime.plan.executor
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr


def test_small_kernels_run_alone_and_large_ones_in_parallel() -> None:
    def parallel(n: int) -> bool:
        fusion = build(lambda fd, x: fd.ops.exp(x), [(n,)], D.Float)
        (phase,) = lower(fusion, S.POINTWISE, "cpu", "kernel", {}).phases
        return any(isinstance(s, Loop) and s.parallel is ParallelType.grid_x for s in walk(phase.body))

    assert not parallel(1000)
    assert parallel(1_000_000)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kept", [(), (1,), (7, 3), (100_000,)])
@pytest.mark.parametrize("reduced", [(), (1,), (0,), (300,), (4, 50_000)])
def test_loops_fit_any_extents(kept: tuple[int, ...], reduced: tuple[int, ...], target: str) -> None:
    for inner in (True, False):
        for passes in (1, 3):
            space = Space(
                kept=kept, reduced=reduced, kept_run=kept[-1] if kept else 1, reduced_run=reduced[-1] if reduced else 1,
                inner_reduced=inner and bool(reduced), passes=passes, reduces=True,
            )
            schedule = choose_loops(space, target)
            assert schedule.threads[0] * schedule.threads[1] <= 1024
            assert schedule.split >= 1
            assert schedule.grain >= 1
            assert schedule.tile >= 1
            assert describe(schedule, space)


@pytest.mark.parametrize("target", TARGETS)
def test_a_chain_longer_than_calls_may_nest(target: str) -> None:
    def chain(fd: Any, x: Any) -> Any:
        for _ in range(1500):
            x = fd.ops.add(x, 1.0)
        return x

    kernel = generate(build(chain, [(5,)], D.Float), S.POINTWISE, target)
    lines = [line.strip() for line in kernel.source.splitlines() if re.search(r" \+ (c0|float32\(1)", line)]
    assert [line.partition(" = ")[0] for line in lines] == [f"t{number}" for number in range(1, 1501)]


@pytest.mark.parametrize(("fn", "dtype", "cpu", "cuda"), [
    ("neg", D.Float, "where(c, x, -x)", "where(c, x, -x)"),
    ("exp", D.Float, "where(c, x, exp32(x))", "where(c, x, fast_exp(x))"),
    ("expm1", D.Float, "where(c, x, expm1_32(x))", "x if c else math.expm1(x)"),
    ("exp", D.Double, "where(c, x, exp64(x))", "x if c else math.exp(x)"),
    ("lgamma", D.Double, "where(c, x, lgamma64(x))", "x if c else math.lgamma(x)"),
    ("erfinv", D.Double, "x if c else float64(erfinv(x))", "x if c else libdevice.erfinv(x)"),
    ("neg", D.ComplexFloat, "x if c else -x", "x if c else -x"),
])
def test_choices_are_branches_only_where_these_skip_slow_functions(
    fn: str, dtype: DataType, cpu: str, cuda: str,
) -> None:
    x, c = Var(dtype, "x"), Var(D.Bool, "c")
    choice = Apply(dtype, "select", (c, x, Apply(dtype, fn, (x,))))
    for target, emitter, wanted in (("cpu", CpuEmitter, cpu), ("cuda", CudaEmitter, cuda)):
        kernel = lower(CASES[0].fusion(), S.POINTWISE, target, "kernel", {})
        printer = emitter(kernel)
        printer.prologue(kernel.phases[0])
        assert printer.term(choice) == wanted


def test_a_choice_between_elements_reads_one() -> None:
    kernel = lower(CASES[0].fusion(), S.POINTWISE, "cpu", "kernel", {})
    element = Load(D.Float, kernel.inputs[0], index(3))
    choice = Apply(D.Float, "select", (Var(D.Bool, "c"), element, Const(D.Float, 0.0)))
    assert CpuEmitter(kernel).term(choice) == "T0[3] if c else float32(0.0)"


@pytest.mark.parametrize("count", [MOST_WRITTEN, MOST_WRITTEN + 1])
def test_many_functions_are_called(count: int) -> None:
    def functions(fd: Any, x: Any) -> Any:
        for _ in range(count):
            x = fd.ops.exp(x)
        return x

    source = generate(build(functions, [(7, 64)], D.Float), S.POINTWISE, "cpu").source
    module = "polynomials" if count == MOST_WRITTEN else "called_functions"
    assert f"from fuser_lab.runtime.{module} import exp32" in source
    doubles = generate(build(functions, [(7, 64)], D.Double), S.POINTWISE, "cpu").source
    assert f"from fuser_lab.runtime.{module} import exp64" in doubles


def test_functions_with_rare_paths_are_called() -> None:
    def remainder(fd: Any, x: Any) -> Any:
        return fd.ops.exp(fd.ops.fmod(x, 3.0))

    source = generate(build(remainder, [(7, 64)], D.Float), S.POINTWISE, "cpu").source
    assert "from fuser_lab.runtime.called_functions import fmod32" in source
    assert "from fuser_lab.runtime.polynomials import exp32" in source

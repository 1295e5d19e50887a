"""Generated CUDA source compiles for Hopper without a device, and the machine code is as expected."""

import re
from dataclasses import replace
from typing import Any

import pytest
from backend.fusions import CASES, Case, D, S, build, one_of_each_kind
from thorough import THOROUGH

from fuser_lab.codegen.kernel_list import list_kernel
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import OpKind
from fuser_lab.ops import OPS
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import CompiledPhase, compile_phases, kernel_key, machine_code
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


def compiled(case: Case) -> tuple[CompiledPhase, ...]:
    return compile_phases(generate(case.fusion(), case.scheduler, "cuda"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", [c for c in CASES if 0 not in c.shapes[0]], ids=lambda case: case.name)
def test_compiles_for_hopper(case: Case) -> None:
    phases = compiled(case)
    assert phases
    for phase in phases:
        assert ".target sm_90" in phase.ptx
        assert re.search(rf"\.visible \.entry {re.escape(phase.entry)}\(", phase.ptx)
        assert ".f64" not in phase.ptx, "double arithmetic in a kernel of floats"
        assert ".local" not in phase.ptx, "a row buffer in memory instead of registers"
        assert "trap" not in phase.ptx
        parameters = len(re.findall(r"\.param \.", phase.ptx.split("{")[0]))
        given = (*phase.phase.buffers, *phase.phase.scalars, *phase.phase.sizes)
        assert parameters == len(given), "a pointer is one parameter"


def test_a_row_buffer_lies_in_registers_and_does_not_spill() -> None:
    softmax = next(c for c in CASES if c.name == "softmax of long rows")
    for phase in compiled(softmax):
        _, log = machine_code(phase.ptx, (9, 0))
        assert "0 bytes spill stores" in log
        used = re.search(r"Used (\d+) registers", log)
        assert used is not None
        threads = phase.phase.launch.threads[0] * phase.phase.launch.threads[1]
        assert int(used.group(1)) * threads <= 65536


@pytest.mark.parametrize("dtype", one_of_each_kind([D.Float, D.BFloat16, D.Int, D.ComplexFloat, D.Bool, D.UInt64]))
def test_running_values_of_every_kind_of_number_are_exchanged(dtype: DataType) -> None:
    shapes = (((4, 8192), 1), ((64, 40), 1), ((3000, 8), 0))
    for shape, dim in shapes if THOROUGH or dtype is D.Float else shapes[:1]:
        fusion = build(lambda fd, x, dim=dim: fd.ops.cumprod(fd.ops.cumsum(x, dim), dim), [shape], dtype)
        (phase,) = compile_phases(generate(fusion, S.GREEDY, "cuda"))
        assert ".local" not in phase.ptx
        threads = phase.phase.launch.threads
        assert ("shfl.sync.up" in phase.ptx) == (dim == 1)
        assert ("bar.sync" in phase.ptx) == (threads[0] > 32 or dim == 0)


DTYPES = (
    D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Short, D.Char, D.Byte, D.UInt64, D.Bool,
    D.Float8_e4m3fn, D.Float8_e5m2,
    D.Float8_e8m0fnu, D.ComplexFloat, D.ComplexDouble,
)


@pytest.mark.parametrize("dtype", one_of_each_kind(DTYPES), ids=lambda d: d.name)
def test_every_op_compiles(dtype: DataType) -> None:
    for arity in (1, 2):
        names = []
        for op in OPS.values():
            if op.kind is OpKind.POINTWISE and op.positional_only and op.arity == arity and op.name != "where":
                try:
                    build(lambda fd, *xs, n=op.name: getattr(fd.ops, n)(*xs), [(1,)] * arity, dtype)
                except FuserLabError:
                    continue
                names.append(op.name)
        fusion = build(lambda fd, *xs, names=names: [getattr(fd.ops, n)(*xs) for n in names], [(300,)] * arity, dtype)
        for phase in compile_phases(generate(fusion, S.POINTWISE, "cuda")):
            assert "trap" not in phase.ptx


@pytest.mark.parametrize(("dtype", "name"), [(D.Float, "f32"), (D.Double, "f64")], ids=["Float", "Double"])
def test_integers_are_made_of_floats_by_the_instruction_whose_rule_is_stated(dtype: DataType, name: str) -> None:
    targets = {D.Int32: "s32", D.Int: "s64", D.UInt64: "u64"}
    fusion = build(lambda fd, x: [fd.ops.cast(x, t) for t in targets], [(300,)], dtype)
    (phase,) = compile_phases(generate(fusion, S.POINTWISE, "cuda"))
    assert {f"cvt.rzi.{t}.{name}" for t in targets.values()} == set(re.findall(r"cvt\.rzi\.\w+\.\w+", phase.ptx))


def test_random_numbers_and_all_reductions_compile() -> None:
    def record(fd: object, x: object) -> object:
        ops, scalar = fd.ops, fd.define_scalar  # type: ignore[attr-defined]
        seeds = {"rng_seed": scalar(1), "rng_offset": scalar(2)}
        numbers = ops.add(x, ops.uniform(0.0, 1.0, [64, 80], **seeds, dtype=D.Float))
        return ops.add(numbers, ops.normal(0.0, 1.0, [64, 80], **seeds, dtype=D.Float))

    compile_phases(generate(build(record, [(64, 80)], D.Float), S.POINTWISE, "cuda"))
    for dtype in (D.Double, D.Float, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool) if THOROUGH else (D.BFloat16, D.Int):
        for dims in ([1], [0]):
            fusion = build(
                lambda fd, x, dims=dims: [getattr(fd.ops, n)(x, dims) for n in ("sum", "prod", "max", "min")],
                [(64, 80)], dtype,
            )
            compile_phases(generate(fusion, S.REDUCTION, "cuda"))


def test_kernels_that_differ_in_the_shape_of_their_blocks_only_are_two_kernels() -> None:
    generated = generate(build(lambda fd, x: fd.ops.relu(x), [(4096,)], D.Float), S.POINTWISE, "cuda")
    (phase,) = generated.kernel_ir.phases

    def with_launch(**changes: Any) -> object:
        launched = replace(phase, launch=replace(phase.launch, **changes))
        return kernel_key(replace(generated, kernel_ir=replace(generated.kernel_ir, phases=(launched,))))

    for argument in ({"blocks": 7}, {"shared": 1024}):
        assert with_launch(**argument) == kernel_key(generated), "it is an argument of the launch"
    for changes in ({"threads": (32, 4)}, {"cluster": 2}, {"resident": 3}):
        assert with_launch(**changes) != kernel_key(generated)


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.ComplexFloat, D.Bool])
def test_a_list_of_kernels_is_one_entry_that_calls_nothing(dtype: DataType) -> None:
    sizes = [(64, 17), (64,), (7,), (1,), (6,), (3, 5)]
    kernels = [
        generate(build(lambda fd, x, y: fd.ops.where(fd.ops.ne(x, y), x, y), [size, size], dtype), S.POINTWISE, "cuda")
        for size in sizes
    ]
    generated, _ = list_kernel(kernels * 6)
    (phase,) = compile_phases(generated)
    assert len(re.findall(r"\.visible \.entry", phase.ptx)) == 1
    assert not re.search(r"\bcall\b", phase.ptx)
    parameters = (*phase.phase.buffers, *phase.phase.sizes)
    assert len(re.findall(r"\.param \.", phase.ptx.split("{")[0])) == len(parameters)
    assert len(phase.ptx) < 200_000, "the name of an entry, which is in the name of each parameter, is short"
    _, log = machine_code(phase.ptx, (9, 0))
    assert "0 bytes spill stores" in log

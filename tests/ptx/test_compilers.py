"""numba-cuda-mlir compiles the same kernels as numba-cuda to the same accesses to memory; needs no device."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from accesses import accesses_of
from backend.fusions import CASES, D, S, build
from backend.lookups import LOOKUPS

from fuser_lab.codegen.pipeline import EVALUATED, GeneratedKernel
from fuser_lab.errors import CompilationError
from fuser_lab.ir import Fusion
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.cubins import machine_code_of
from fuser_lab.runtime.gpu.ptx import compile_phases
from fuser_lab.targets.cuda_compiler import COMPILERS, VARIABLE
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.mlir,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]
FUSIONS = {case.name: (case.fusion, case.scheduler) for case in (*CASES[::3], *LOOKUPS[::3])}
COUNTED = {
    "parameters": r"\.param \.\w+ ", "exchanges": r"shfl\.sync", "arrays in memory": "__local_depot",
    "bounds": r"\.maxntid|\.minnctapersm",
}


def by_both(
    monkeypatch: pytest.MonkeyPatch, fusion: Fusion, scheduler: S, **options: object,
) -> dict[str, GeneratedKernel]:
    found = {}
    for compiler in COMPILERS:
        monkeypatch.setenv(VARIABLE, compiler)
        found[compiler] = generate(fusion, scheduler, "cuda", **options)
    return found


@pytest.mark.parametrize(("fusion", "scheduler"), FUSIONS.values(), ids=FUSIONS)
def test_kernels_have_the_same_accesses(
    fusion: Callable[[], Fusion], scheduler: S, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if scheduler in EVALUATED:
        return
    kernels = by_both(monkeypatch, fusion(), scheduler)
    numba, mlir = (compile_phases(kernels[compiler]) for compiler in COMPILERS)
    assert len(numba) == len(mlir)
    for one, other in zip(numba, mlir, strict=True):
        assert other.entry in other.ptx
        counts = [
            {name: len(re.findall(text, phase.ptx)) for name, text in COUNTED.items()} | accesses_of(phase.ptx)
            for phase in (one, other)
        ]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("dtype", [D.Float8_e4m3fn, D.Float8_e5m2], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_eight_bit_floats_are_converted_by_instructions_where_there_are_some(
    dtype: D, cc: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    fusion = build(lambda fd, x: fd.ops.cast(fd.ops.neg(x), dtype=dtype), [(64, 64)], dtype)
    for kernel in by_both(monkeypatch, fusion, S.POINTWISE).values():
        (phase,) = compile_phases(kernel, cc)
        assert f".target sm_{cc[0]}{cc[1]}" in phase.ptx
        assert bool(re.search(r"cvt\.rn\.f16x2\.e\dm\dx2", phase.ptx)) is (cc == (9, 0))


@pytest.mark.parametrize("dtype", [D.Double, D.Int, D.ComplexDouble], ids=lambda dtype: dtype.name)
def test_values_of_two_words_are_exchanged_whole(dtype: D, monkeypatch: pytest.MonkeyPatch) -> None:
    fusion = build(lambda fd, x: fd.ops.sum(x, [1]), [(9, 130)], dtype)
    counts = set()
    for kernel in by_both(monkeypatch, fusion, S.REDUCTION).values():
        (phase,) = compile_phases(kernel)
        assert "cvt.rn.f32.f64" not in phase.ptx
        counts.add(phase.ptx.count("shfl.sync"))
    assert len(counts) == 1


def test_machine_code_is_kept_apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
    fusion = build(lambda fd, x: fd.ops.exp(x), [(64, 65)], D.Float)
    for _ in range(2):  # compiled, then from disk
        kernels = by_both(monkeypatch, fusion, S.POINTWISE)
        (numba,), (mlir,) = (machine_code_of(kernels[compiler], (9, 0)) for compiler in COMPILERS)
        assert "__numba_cuda_mlir" in mlir.ptx
        assert "__numba_cuda_mlir" not in numba.ptx
        assert numba.cubin != mlir.cubin


def test_what_is_refused_is_said_with_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mlir")
    kernel = generate(build(lambda fd, x: fd.ops.exp(x), [(64, 65)], D.Float), S.POINTWISE, "cuda")
    broken = replace(kernel, source=kernel.source.replace("index32(cuda.threadIdx.x)", "index32(cuda.threads.x)"))
    with pytest.raises(CompilationError, match=r"does not compile for cc 9\.0"):
        compile_phases(broken)

"""The choice of the compiler of CUDA kernels: its effects, and the errors if it is not available."""

import sys

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.errors import UnsupportedError
from fuser_lab.plan import Segment
from fuser_lab.runtime.cuda_compilers import compiler_named, distributions_of, function_sources
from fuser_lab.runtime.gpu import cubins
from fuser_lab.runtime.gpu.ptx import compile_phases, kernel_key
from fuser_lab.targets.cuda_compiler import COMPILERS, VARIABLE, chosen_compiler


def segment_of_a_gelu() -> Segment:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.BFloat16)
        y = fd.ops.exp2(fd.ops.cast(x, dtype=fl.DataType.Float))
        fd.add_output(fd.ops.cast(y, dtype=fl.DataType.BFloat16))
    return fl.segment(fd, [fl.spec((64, 128), "bfloat16")]).segments[0]


def test_numba_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for unset in ("", None):
        monkeypatch.delenv(VARIABLE, raising=False)
        if unset is not None:
            monkeypatch.setenv(VARIABLE, unset)
        assert chosen_compiler() == "numba"
    monkeypatch.setenv(VARIABLE, "mlir")
    assert chosen_compiler() == "mlir"


def test_another_name_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nvcc")
    with pytest.raises(UnsupportedError, match=r"^FUSER_LAB_CUDA_COMPILER is 'nvcc'; it must be 'numba' or 'mlir'\.$"):
        segment_of_a_gelu().source("cuda")
    assert "def pointwise" in segment_of_a_gelu().source("cpu")  # other targets have no such choice


def test_the_source_is_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {}
    for name in COMPILERS:
        monkeypatch.setenv(VARIABLE, name)
        kernel = segment_of_a_gelu().kernel("cuda")
        assert (kernel.compiler, kernel.source) == (name, segment_of_a_gelu().source("cuda"))
        texts[name] = kernel.source.splitlines()
    imports = {name: [line for line in lines if "import" in line] for name, lines in texts.items()}
    assert imports["numba"][:2] == ["from numba import cuda, uint16", "from numba.cuda import libdevice"]
    assert imports["mlir"][:2] == [
        "from numba_cuda_mlir import cuda", "from numba_cuda_mlir.types import uint16",
    ]
    rest = [[line for line in lines if "import" not in line] for lines in texts.values()]
    assert rest[0] == rest[1]


@pytest.mark.parametrize(
    ("dtype", "own"),
    [("float64", True), ("int64", True), ("complex128", True), ("float32", False), ("complex64", False)],
)
def test_shuffles_move_all_of_a_value(dtype: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba-cuda-mlir's move 32 bits; numba-cuda's move 64 as well."""
    for name in COMPILERS:
        monkeypatch.setenv(VARIABLE, name)
        with fl.FusionDefinition() as fd:
            x = fd.from_array(np.zeros((9, 130), dtype), static_sizes=True)
            fd.add_output(fd.ops.sum(x, [1]))
        source = fl.segment(fd).segments[0].source("cuda")
        assert ("wide_shfl_xor_sync(" in source) is (own and name == "mlir")
        assert ("cuda.shfl_xor_sync(" in source) is not ("wide_shfl_xor_sync(" in source)


def test_the_key_on_disk_has_the_compiler_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {}
    for name in COMPILERS:
        monkeypatch.setenv(VARIABLE, name)
        kernels[name] = segment_of_a_gelu().kernel("cuda")
    assert kernel_key(kernels["numba"]) != kernel_key(kernels["mlir"])
    assert "numba-cuda" in distributions_of("numba")
    assert "numba-cuda-mlir" in distributions_of("mlir")
    versions = {"numba-cuda": "1", "numba-cuda-mlir": "1"}
    monkeypatch.setattr(cubins.importlib.metadata, "version", lambda package: versions.get(package, "0"))

    def places() -> dict[str, str]:
        cubins._compilers.cache_clear()
        return {name: cubins._place(kernel, (9, 0)) for name, kernel in kernels.items()}

    try:
        before = places()
        versions["numba-cuda-mlir"] = "2"
        after = places()
    finally:
        cubins._compilers.cache_clear()
    assert before["numba"] == after["numba"]
    assert len({*before.values(), *after.values()}) == 3


def test_a_compiler_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.runtime.cuda_compilers import numba_cuda_mlir

    for name in ("numba_cuda_mlir", "numba_cuda_mlir.cuda"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    numba_cuda_mlir._part.cache_clear()
    monkeypatch.setenv(VARIABLE, "mlir")
    kernel = segment_of_a_gelu().kernel("cuda")
    needed = r"^FUSER_LAB_CUDA_COMPILER=mlir needs numba-cuda-mlir: pip install 'fuser_lab\[cuda-mlir\]'\.$"
    with pytest.raises(UnsupportedError, match=needed):
        compile_phases(kernel)
    with pytest.raises(UnsupportedError, match=needed):
        compiler_named("mlir").require()


def test_all_functions_that_kernels_call_are_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("numba.cuda")
    from fuser_lab.codegen.numba_cuda import _INTRINSICS
    from fuser_lab.runtime.cuda_compilers import numba_functions

    assert [name for name in _INTRINSICS if not hasattr(numba_functions, name)] == []
    assert "def complex_sqrt" in function_sources()["complex_functions.py"]

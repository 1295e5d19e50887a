"""The compilers by name."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuser_lab.runtime.cuda_compilers.language import Compiler
from fuser_lab.targets import Later

_NVIDIA: Final = (
    "cuda-core", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12",
)
_PACKAGE: Final = "fuser_lab.runtime.cuda_compilers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A compiler: how to load it, and the packages whose versions its machine code depends on."""

    load: Later
    distributions: tuple[str, ...]


_KNOWN: Final = {
    "numba": _Known(
        load=Later(module=f"{_PACKAGE}.numba_cuda", name="NumbaCuda"),
        distributions=("numba-cuda", "llvmlite", *_NVIDIA),
    ),
    "mlir": _Known(
        load=Later(module=f"{_PACKAGE}.numba_cuda_mlir", name="NumbaCudaMlir"),
        distributions=("numba-cuda-mlir", *_NVIDIA),
    ),
}


@functools.cache
def compiler_named(name: str) -> Compiler:
    """Return a compiler, which may not be installed; that is checked when it compiles."""
    compiler: Compiler = _KNOWN[name].load()()
    return compiler


def distributions_of(name: str) -> tuple[str, ...]:
    """Return the packages whose versions the machine code of a compiler depends on."""
    return _KNOWN[name].distributions


def function_sources() -> dict[str, str]:
    """Return the text of each module of this package by file name; they define the functions that kernels call."""
    return {place.name: place.read_text(encoding="utf-8") for place in sorted(Path(__file__).parent.glob("*.py"))}

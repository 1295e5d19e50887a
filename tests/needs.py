"""Libraries that only some tests need: without one, its tests are skipped, and the run ends with how to install it."""

import importlib.util
from types import ModuleType

import pytest

from fuser_lab.targets.cuda_compiler import DEFAULT_COMPILER, chosen_compiler

# The default wheel of torch includes several GB of CUDA libraries; the CPU build is enough.
INSTALL = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "transformers": "pip install transformers",
    "cupy": "pip install cupy-cuda13x",
    "numba.cuda": "pip install 'fuser_lab[cuda]'",
    "numba_cuda_mlir": "pip install 'fuser_lab[cuda-mlir]'",
}
NEEDS_DEVICE = "needs a CUDA device"
# Markers of tests that may be skipped when no others may: CI has no GPU, and does not install numba-cuda-mlir, whose
# wheel has 70 MB (`make test-mlir` does).
MAY_BE_SKIPPED = ("gpu", "mlir")


def needs(library: str) -> ModuleType:
    """The module of this name; if it is not installed, the test or the file that requests it is skipped."""
    return pytest.importorskip(library, reason=f"needs {library}: {INSTALL[library]}")


def with_numba_only(reason: str) -> pytest.MarkDecorator:
    """A mark for what the machine code of numba-cuda-mlir, which `make test-mlir` tests, does not fulfil."""
    return pytest.mark.skipif(chosen_compiler() != DEFAULT_COMPILER, reason=f"numba-cuda-mlir: {reason}")


def missing(*libraries: str) -> list[str]:
    """One line per library that is not installed, with the command that installs it."""
    return [
        f"{library} is not installed, so tests that need it were skipped: {INSTALL[library]}"
        for library in libraries
        if importlib.util.find_spec(library) is None
    ]

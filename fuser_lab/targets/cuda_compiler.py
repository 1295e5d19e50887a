"""The compiler of CUDA kernels, which the user chooses by an environment variable read when kernels are generated."""

import os
from typing import Final

from fuser_lab.errors import UnsupportedError

VARIABLE: Final = "FUSER_LAB_CUDA_COMPILER"
DEFAULT_COMPILER: Final = "numba"
COMPILERS: Final = (DEFAULT_COMPILER, "mlir")


def chosen_compiler() -> str:
    """Return the name of the compiler in the environment variable, by default numba.

    Raises
    ------
    UnsupportedError
        If no compiler has this name.
    """
    chosen = os.environ.get(VARIABLE) or DEFAULT_COMPILER
    if chosen not in COMPILERS:
        raise UnsupportedError(f"{VARIABLE} is {chosen!r}; it must be {' or '.join(map(repr, COMPILERS))}.")
    return chosen

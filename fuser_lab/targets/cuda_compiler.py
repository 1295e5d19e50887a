"""Which compiler makes machine code of the kernels for CUDA: a choice of the user, read when kernels are generated."""

import os
from typing import Final

from fuser_lab.errors import UnsupportedError

VARIABLE: Final = "FUSER_LAB_CUDA_COMPILER"
DEFAULT_COMPILER: Final = "numba"
COMPILERS: Final = (DEFAULT_COMPILER, "mlir")


def chosen_compiler() -> str:
    """Return the name of the compiler that the environment variable names, by default numba.

    Raises
    ------
    UnsupportedError
        If there is no compiler of this name.
    """
    chosen = os.environ.get(VARIABLE) or DEFAULT_COMPILER
    if chosen not in COMPILERS:
        msg = f"{VARIABLE} is {chosen!r}; it must be {' or '.join(map(repr, COMPILERS))}."
        raise UnsupportedError(msg)
    return chosen

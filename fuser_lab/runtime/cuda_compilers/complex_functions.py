"""Functions of complex numbers: those shared by both targets, and magnitude, quotient and square root."""

import cmath
import math
from typing import Any

from fuser_lab.runtime.complex_functions import complex_div, complex_functions
from fuser_lab.runtime.cuda_compilers.language import Library


def define_complex_functions(library: Library) -> None:
    """Define these functions for a compiler."""

    @library.device
    def complex_abs(x: Any) -> Any:
        """Return the magnitude of a complex number without intermediate overflow."""
        return math.hypot(x.real, x.imag)

    library.device(complex_div)

    @library.device
    def complex_sqrt(x: Any) -> Any:
        """Return the square root of a complex number that has a non-negative real part."""
        size = math.sqrt((math.hypot(x.real, x.imag) + abs(x.real)) / 2)
        if size == 0:
            return complex(size, x.imag)
        other = x.imag / (2 * size)
        if x.real >= 0:
            return complex(size, other)
        return complex(abs(other), math.copysign(size, x.imag))

    definitions = complex_functions(library.helper, library.types.float64, cmath.acos)
    library.functions.update((f"complex_{name}", function) for name, function in definitions.items())

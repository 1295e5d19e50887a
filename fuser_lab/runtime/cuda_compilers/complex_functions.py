"""Functions of complex numbers: those shared by both targets, and magnitude, quotient and square root."""

import cmath
import math
from typing import Any

from fuser_lab.runtime.complex_functions import complex_functions
from fuser_lab.runtime.cuda_compilers.language import Library


def define_complex_functions(library: Library) -> None:
    """Define these functions for a compiler."""

    @library.device
    def complex_abs(x: Any) -> Any:
        """Return the magnitude of a complex number without intermediate overflow."""
        return math.hypot(x.real, x.imag)

    @library.device
    def complex_div(a: Any, b: Any) -> Any:
        """Return the quotient of complex numbers by Smith's method, which overflows only if the quotient does."""
        if b.real == 0 and b.imag == 0:  # infinite or NaN in each part, as in NumPy
            return complex(a.real / abs(b.real), a.imag / abs(b.real))
        if abs(b.real) >= abs(b.imag):
            ratio = b.imag / b.real
            divisor = b.real + b.imag * ratio
            return complex((a.real + a.imag * ratio) / divisor, (a.imag - a.real * ratio) / divisor)
        ratio = b.real / b.imag
        divisor = b.real * ratio + b.imag
        return complex((a.real * ratio + a.imag) / divisor, (a.imag * ratio - a.real) / divisor)

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

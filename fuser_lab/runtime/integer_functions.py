"""Functions of integers, with the semantics of eager libraries, shared by both targets."""

from collections.abc import Callable
from typing import Any


def integer_functions(jit: Callable[..., Any], uint64: Any) -> dict[str, Any]:
    """Return the functions by name, compiled by ``jit``; ``uint64`` converts numbers."""

    @jit
    def shift_left(a: Any, b: Any, width: Any) -> Any:
        """Return ``a`` shifted left; 0 if the distance is negative or at least the width."""
        if b < 0 or b >= width:
            return a - a
        return a << b

    @jit
    def shift_right(a: Any, b: Any, width: Any) -> Any:
        """Return ``a`` shifted right; all sign bits if the distance is negative or at least the width."""
        if b < 0 or b >= width:
            return (a >> (width - 1)) >> 1
        return a >> b

    @jit
    def common_divisor(a: Any, b: Any) -> Any:
        """Return the greatest common divisor of the magnitudes, as uint64."""
        x, y = uint64(a), uint64(b)
        if a < 0:
            x = uint64(uint64(0) - x)
        if b < 0:
            y = uint64(uint64(0) - y)
        while y != 0:
            rest = x % y
            x = y
            y = rest
        return x

    @jit
    def divide_int(a: Any, b: Any) -> Any:
        """Return the quotient truncated toward zero; x / 0 is 0."""
        if b == 0:
            return a - a
        if b == -1:  # the smallest integer has no negation: wrap around like NumPy
            return -a
        quotient = a // b
        if quotient < 0 and quotient * b != a:
            quotient += 1
        return quotient

    @jit
    def modulo_int(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``a``; x % 0 is 0."""
        if b == 0 or b == -1:  # noqa: PLR1714 - Numba compares with a tuple element by element
            return a - a
        rest = a % b
        if rest != 0 and (rest < 0) != (a < 0):
            rest -= b
        return rest

    @jit
    def remainder_int(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``b``; x % 0 is 0."""
        if b == 0 or b == -1:  # noqa: PLR1714
            return a - a
        return a % b

    @jit
    def divide_uint(a: Any, b: Any) -> Any:
        """Return the quotient of unsigned integers; x / 0 is 0."""
        if b == 0:
            return a - a
        return a // b

    @jit
    def modulo_uint(a: Any, b: Any) -> Any:
        """Return the remainder of unsigned integers; x % 0 is 0."""
        if b == 0:
            return a - a
        return a % b

    @jit
    def power_int(a: Any, b: Any) -> Any:
        """Return a to the power b for integers; negative exponents give 0 unless a is 1 or -1."""
        if b < 0:
            if a == 1:
                return a
            if a == -1:
                return a if b & 1 else -a
            return a - a
        result = a - a + 1
        while b > 0:
            if b & 1:
                result = result * a
            a = a * a
            b = b >> 1
        return result

    @jit
    def power_uint(a: Any, b: Any) -> Any:
        """Return a to the power b for unsigned integers."""
        result = uint64(1)
        while b > uint64(0):
            if b & uint64(1):
                result = result * a
            a = a * a
            b = b >> uint64(1)
        return result

    return {
        "shift_left": shift_left, "shift_right": shift_right, "common_divisor": common_divisor,
        "divide_int": divide_int, "modulo_int": modulo_int, "remainder_int": remainder_int,
        "divide_uint": divide_uint, "modulo_uint": modulo_uint,
        "power_int": power_int, "power_uint": power_uint,
    }

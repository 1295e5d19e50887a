"""Functions of integers and the remainders of floats, with the semantics of eager libraries."""

import math
from typing import Any

from fuser_lab.runtime.cuda_compilers.language import Library


def define_integer_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    _define_shifts(library)
    _define_divisions(library)
    _define_powers(library)


def _define_shifts(library: Library) -> None:
    @library.device
    def shift_left(a: Any, b: Any, width: Any) -> Any:
        """Return ``a`` shifted left; 0 if the distance is negative or at least the width."""
        if b < 0 or b >= width:
            return a - a
        return a << b

    @library.device
    def shift_right(a: Any, b: Any, width: Any) -> Any:
        """Return ``a`` shifted right; all sign bits if the distance is negative or at least the width."""
        if b < 0 or b >= width:
            return (a >> (width - 1)) >> 1
        return a >> b


def _define_divisions(library: Library) -> None:
    types = library.types

    @library.device
    def common_divisor(a: Any, b: Any) -> Any:
        """Return the greatest common divisor of the magnitudes, as uint64."""
        x, y = types.uint64(a), types.uint64(b)
        if a < 0:
            x = types.uint64(types.uint64(0) - x)
        if b < 0:
            y = types.uint64(types.uint64(0) - y)
        while y != 0:
            rest = x % y
            x = y
            y = rest
        return x

    @library.device
    def divide_int(a: Any, b: Any) -> Any:
        """Return the quotient truncated toward zero; x / 0 is 0."""
        if b == 0:
            return a - a
        if b == -1:
            return -a
        quotient = a // b
        if quotient < 0 and quotient * b != a:
            quotient += 1
        return quotient

    @library.device
    def modulo_int(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``a``; x % 0 is 0."""
        if b == 0 or b == -1:  # noqa: PLR1714 - Numba compares with a tuple element by element
            return a - a
        rest = a % b
        if rest != 0 and (rest < 0) != (a < 0):
            rest -= b
        return rest

    @library.device
    def remainder_int(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``b``; x % 0 is 0."""
        if b == 0 or b == -1:  # noqa: PLR1714
            return a - a
        return a % b

    @library.device
    def divide_uint(a: Any, b: Any) -> Any:
        """Return the quotient of unsigned integers; x / 0 is 0."""
        if b == 0:
            return a - a
        return a // b

    @library.device
    def modulo_uint(a: Any, b: Any) -> Any:
        """Return the remainder of unsigned integers; x % 0 is 0."""
        if b == 0:
            return a - a
        return a % b

    @library.device
    def remainder_float(a: Any, b: Any) -> Any:
        """Return the remainder with the sign of ``b``, like Python's ``%``."""
        rest = math.fmod(a, b)
        if rest != 0 and (rest < 0) != (b < 0):
            rest += b
        return rest


def _define_powers(library: Library) -> None:
    types = library.types

    @library.device
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

    @library.device
    def power_uint(a: Any, b: Any) -> Any:
        """Return a to the power b for unsigned integers."""
        result = types.uint64(1)
        while b > types.uint64(0):
            if b & types.uint64(1):
                result = result * a
            a = a * a
            b = b >> types.uint64(1)
        return result

"""The bits of floats as integers, and back, in CPU kernels."""

from typing import Any

from llvmlite import ir
from numba import float32, float64, int64, uint32
from numba.extending import intrinsic


def _reinterpret(source: Any, result: Any, kind: Any) -> Any:
    """Return a function that reinterprets the bits of a number as another type."""

    def rule(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], kind)

        return result(source), generate

    return intrinsic(rule)


float_of_bits = _reinterpret(uint32, float32, ir.FloatType())
bits_of_float = _reinterpret(float32, uint32, ir.IntType(32))
double_of_bits = _reinterpret(int64, float64, ir.DoubleType())
bits_of_double = _reinterpret(float64, int64, ir.IntType(64))

"""Mathematical functions of a float32 or float64 by polynomials, for generated CPU kernels.

They are written into the kernel as LLVM instructions: a function that Numba compiles adds a tenth of a second to a
first call, and these add almost nothing. If the processor has fused multiply-add, products and sums are rounded once,
which is faster and never less exact. Other fast-math flags of the kernel do not apply, so that rounding tricks stay
exact.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import float32, float64
from numba.extending import intrinsic

from fuser_lab.runtime.cpu.elementary.error_functions import erf, erfc, lgamma
from fuser_lab.runtime.cpu.elementary.exponentials import cosh, exp, exp2, expm1, sinh, tanh
from fuser_lab.runtime.cpu.elementary.logarithms import acosh, asinh, atanh, log, log1p, log2, log10, logaddexp, power
from fuser_lab.runtime.cpu.elementary.number import DOUBLE, FLOAT, Number
from fuser_lab.runtime.cpu.elementary.remainders import floor_quotient, fmod, remainder
from fuser_lab.runtime.cpu.elementary.trigonometry import acos, asin, atan, atan2, cos, sin, tan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A function of one or two numbers of a type, as LLVM instructions."""

    compute: Callable[..., Number]
    is_double: bool

    @property
    def element(self) -> Any:
        """LLVM's type of a number."""
        return DOUBLE if self.is_double else FLOAT

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(inspect.signature(self.compute).parameters)

    def intrinsic(self, generate: Callable[..., Any]) -> Any:
        """Return a function for kernels, whose calls are generated as Numba's intrinsics are."""
        kind = float64 if self.is_double else float32

        def unary(context: Any, x: Any) -> Any:
            return kind(kind), generate

        def binary(context: Any, x: Any, y: Any) -> Any:
            return kind(kind, kind), generate

        typed = unary if self.arity == 1 else binary
        typed.__doc__ = self.compute.__doc__
        return intrinsic(typed)


_OF_BOTH: dict[str, Callable[..., Number]] = {
    "acos": acos, "acosh": acosh, "asin": asin, "asinh": asinh, "atan": atan, "atan2_": atan2, "atanh": atanh,
    "cos": cos, "cosh": cosh, "erf": erf, "erfc": erfc, "exp": exp, "exp2_": exp2, "expm1_": expm1,
    "floordiv": floor_quotient, "fmod": fmod, "lgamma": lgamma, "log": log, "log10_": log10, "log1p": log1p,
    "log2_": log2, "logaddexp": logaddexp, "pow": power, "remainder": remainder, "sin": sin, "sinh": sinh, "tan": tan,
    "tanh": tanh,
}
RULES: dict[str, Rule] = {
    **{f"{name}32": Rule(compute=rule, is_double=False) for name, rule in _OF_BOTH.items()},
    **{f"{name}64": Rule(compute=rule, is_double=True) for name, rule in _OF_BOTH.items()},
}
"""The functions by the names that kernels call them by."""


def _inlined_function(rule: Rule) -> Any:
    """Return a function for kernels whose instructions are written into its caller."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return rule.compute(*(Number(builder, argument) for argument in args)).value

    return rule.intrinsic(generate)


globals().update({name: _inlined_function(rule) for name, rule in RULES.items()})

"""The functions of `polynomials` as calls.

They are for kernels with so many that compiling their instructions takes seconds, and for functions with a path that
few numbers take: LLVM vectorizes no loop with such a branch.

A module contains each function that it calls once for one number, and once for each width of vectors. The function for
one number names the others in the attribute of LLVM's vector function ABI, so that LLVM replaces its calls when it
vectorizes a loop.
"""

from typing import Any

from llvmlite import ir

from fuser_lab.runtime.cpu.elementary.number import Number
from fuser_lab.runtime.polynomials import RULES, Rule

_LANES = {False: (4, 8, 16), True: (2, 4, 8)}  # by whether numbers are float64: of vectors of SSE, AVX and AVX-512


def _calling(name: str, rule: Rule) -> Any:
    """Return a function for kernels that calls the function of a rule."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        symbol = f"fuser_lab_{name}"
        if symbol not in builder.module.globals:
            _define(builder.module, symbol, rule)
        return builder.call(builder.module.globals[symbol], args)

    return rule.intrinsic(generate)


def _define(module: Any, symbol: str, rule: Rule) -> None:
    """Add the function of a rule to a module, and those for vectors."""
    function = _defined(module, symbol, rule, rule.element)
    variants = []
    for lanes in _LANES[rule.is_double]:
        _defined(module, f"{symbol}.{lanes}", rule, ir.VectorType(rule.element, lanes))
        variants.append(f"_ZGV_LLVM_N{lanes}{'v' * rule.arity}_{symbol}({symbol}.{lanes})")
    set.add(function.attributes, f'"vector-function-abi-variant"="{",".join(variants)}"')


def _defined(module: Any, symbol: str, rule: Rule, kind: Any) -> Any:
    """Return a new function of a module that computes a rule for numbers or vectors of a type."""
    function = ir.Function(module, ir.FunctionType(kind, [kind] * rule.arity), symbol)
    for attribute in ("noinline", "nounwind", "readnone", "willreturn"):
        set.add(function.attributes, attribute)  # llvmlite does not know all of them
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(rule.compute(*(Number(builder, arg) for arg in function.args)).value)
    return function


globals().update({name: _calling(name, rule) for name, rule in RULES.items()})

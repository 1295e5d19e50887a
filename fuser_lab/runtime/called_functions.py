"""The functions of `polynomials` as calls, for kernels with so many that compiling their instructions takes seconds.

A module contains each function that it calls once for one number, and once for each width of vectors. The function for
one number names the others in the attribute of LLVM's vector function ABI, so that LLVM replaces its calls when it
vectorizes a loop. The others are loops over the elements of a vector, of which LLVM makes vector instructions.
"""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32
from numba.extending import intrinsic

from fuser_lab.runtime.polynomials import RULES, Number

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_LANES = (4, 8, 16)  # of the vectors of SSE, AVX and AVX-512


def _calling(name: str, rule: Callable[..., Number]) -> Any:
    """Return a function for kernels that calls the function of a rule."""
    arity = len(inspect.signature(rule).parameters)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        symbol = f"fuser_lab_{name}"
        if symbol not in builder.module.globals:
            _define(builder.module, symbol, rule, arity)
        return builder.call(builder.module.globals[symbol], args)

    def unary(context: Any, x: Any) -> Any:
        return float32(float32), generate

    def binary(context: Any, x: Any, y: Any) -> Any:
        return float32(float32, float32), generate

    typed = unary if arity == 1 else binary
    typed.__doc__ = rule.__doc__
    return intrinsic(typed)


def _define(module: Any, symbol: str, rule: Callable[..., Number], arity: int) -> None:
    """Add the function of a rule to a module, and those for vectors."""
    function = ir.Function(module, ir.FunctionType(_FLOAT, [_FLOAT] * arity), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(rule(*(Number(builder, arg) for arg in function.args)).value)
    variants = []
    for lanes in _LANES:
        _define_vectors(module, f"{symbol}.{lanes}", rule, arity, lanes)
        variants.append(f"_ZGV_LLVM_N{lanes}{'v' * arity}_{symbol}({symbol}.{lanes})")
    _mark(function, "readnone", f'"vector-function-abi-variant"="{",".join(variants)}"')


def _define_vectors(module: Any, symbol: str, rule: Callable[..., Number], arity: int, lanes: int) -> None:
    """Add a rule's function for vectors: a loop over their elements in memory, which LLVM's optimizer removes."""
    vector = ir.VectorType(_FLOAT, lanes)
    function = ir.Function(module, ir.FunctionType(vector, [vector] * arity), symbol)
    _mark(function)
    entry, body, end = (function.append_basic_block() for _ in range(3))
    builder = ir.IRBuilder(entry)
    places = [builder.alloca(vector) for _ in function.args]
    for arg, place in zip(function.args, places, strict=True):
        builder.store(arg, place)
    elements = [builder.bitcast(place, _FLOAT.as_pointer()) for place in places]
    builder.branch(body)
    builder.position_at_end(body)
    lane = builder.phi(_INDEX)
    following = builder.add(lane, _INDEX(1))
    lane.add_incoming(_INDEX(0), entry)
    lane.add_incoming(following, body)
    addresses = [builder.gep(element, [lane]) for element in elements]
    result = rule(*(Number(builder, builder.load(address)) for address in addresses))
    builder.store(result.value, addresses[0])
    jump = builder.cbranch(builder.icmp_unsigned("<", following, _INDEX(lanes)), body, end)
    jump.set_metadata("llvm.loop", _as_vectors(module, lanes))
    builder.position_at_end(end)
    builder.ret(builder.load(places[0]))


def _mark(function: Any, *attributes: str) -> None:
    """Give a function attributes, some of which llvmlite does not know."""
    for attribute in ("noinline", "nounwind", *attributes):
        set.add(function.attributes, attribute)


def _as_vectors(module: Any, lanes: int) -> Any:
    """Return the metadata of a loop that LLVM vectorizes as a whole, and does not unroll before; it names itself."""
    hints = {
        "llvm.loop.vectorize.enable": (ir.IntType(1)(1),), "llvm.loop.vectorize.width": (ir.IntType(32)(lanes),),
        "llvm.loop.interleave.count": (ir.IntType(32)(1),), "llvm.loop.unroll.disable": (),
    }
    loop = ir.MDValue(module, [], name=str(len(module.metadata)))
    loop.operands = (loop, *(module.add_metadata([name, *values]) for name, values in hints.items()))
    return loop


globals().update({name: _calling(name, rule) for name, rule in RULES.items()})

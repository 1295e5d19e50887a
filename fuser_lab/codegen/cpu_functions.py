"""What long CPU kernels share: the functions that they compute for vectors, and names for constants.

A name saves compile time: each use of ``float32(0.5)`` takes Numba six statements, and a use of a name none.

    t1 = t0 * float32(0.5)          c0 = float32(0.5)
    t2 = t1 * float32(0.5)    ->    t1 = t0 * c0
                                    t2 = t1 * c0

LLVM compiles both alike. In short phases, constants stay where they are used, and the source is easier to read. A loop
that is printed as a function has its own names, at the beginning of its body.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.rewrites import variables_read
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

_STEMS = {
    name: f"{name}_" if name[-1].isdigit() else name
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2"),
        *("expm1", "floordiv", "fmod", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "pow", "remainder"),
        *("sin", "sinh", "tan", "tanh"),
    )
} | {"mod": "fmod"}
VECTORIZED = {
    **{(fn, DataType.Float): f"{stem}32" for fn, stem in _STEMS.items()},
    **{(fn, DataType.Double): f"{stem}64" for fn, stem in _STEMS.items()},
}
"""Their names in kernels, by function and dtype."""

# They have paths that few numbers take, and LLVM vectorizes no loop with such a branch.
BRANCHING = (
    "cos32", "cos64", "fmod32", "fmod64", "lgamma32", "lgamma64", "remainder32", "remainder64", "sin32", "sin64",
    "tan32", "tan64",
)

MOST_WRITTEN = crossover("cpu.functions.written")


def vectorized_name(term: Term) -> str | None:
    """Return the name in kernels of the function of a term, if it is one of these."""
    return VECTORIZED.get((term.fn, term.args[0].dtype.compute)) if isinstance(term, Apply) else None


def is_vectorized(term: Term) -> bool:
    """Whether a term is one of these functions."""
    return vectorized_name(term) is not None


def are_called(body: tuple[ir.Statement, ...]) -> bool:
    """Whether a phase has so many of these functions that it calls them, instead of having their instructions."""
    terms = (term for statement in ir.walk(body) for term in ir.every_term(statement))
    return sum(map(is_vectorized, terms)) > MOST_WRITTEN


MOST_UNNAMED = crossover("cpu.named_constants")

_Key = tuple[DataType, str]  # the value as text: 0.0 and -0.0 are equal

EXAMPLE = """
loop(c, 64, serial, let(t0, T0[c]), let(t1, t0 * 0.5), let(t2, t1 + t0), store(T1, c, t2 * 0.5))
"""


def with_named_constants(body: ir.Block) -> ir.Block:
    """Return a phase's body in which constants are variables that are assigned first, if there are many."""
    used = variables_read(body)
    used |= {s.name if isinstance(s, ir.Let) else s.var for s in ir.walk(body) if isinstance(s, ir.Let | ir.Loop)}
    return _with_names(body, (name for name in map("c{}".format, itertools.count()) if name not in used))


def _with_names(body: ir.Block, free: Iterator[str]) -> ir.Block:
    """Return the body of a function with names for its constants."""
    uses = [term for inside in _of_function(body) for term in ir.every_term(inside) if _is_named(term)]
    if len(uses) <= MOST_UNNAMED and not any(isinstance(inside, ir.Loop) and inside.called for inside in ir.walk(body)):
        return body
    constants = {_key(term): term for term in uses} if len(uses) > MOST_UNNAMED else {}
    names = {key: Var(term.dtype, next(free)) for key, term in constants.items()}
    lets = (ir.Let(name=names[key].name, value=term) for key, term in constants.items())
    return (*lets, *_block(body, names, free))


def _of_function(body: ir.Block) -> Iterator[ir.Statement]:
    """Yield the statements of a function, without those of loops that are functions themselves."""
    for statement in body:
        if isinstance(statement, ir.Loop) and not statement.called:
            yield from _of_function(statement.body)
        elif isinstance(statement, ir.If):
            yield from _of_function((*statement.then, *statement.otherwise))
        yield statement


def _is_named(term: Term) -> TypeGuard[Const]:
    """Whether a term is a constant that is printed as a call, unlike those of Double and of integers."""
    return isinstance(term, Const) and term.dtype.is_float and term.dtype.compute is DataType.Float


def _key(term: Const) -> _Key:
    return term.dtype, repr(term.value)


def _block(body: ir.Block, names: Mapping[_Key, Var], free: Iterator[str]) -> ir.Block:
    return tuple(_statement(statement, names, free) for statement in body)


def _statement(statement: ir.Statement, names: Mapping[_Key, Var], free: Iterator[str]) -> ir.Statement:
    if isinstance(statement, ir.Loop) and statement.called:
        return replace(statement, body=_with_names(statement.body, free))

    def named(term: Term) -> Term | None:
        return names.get(_key(term)) if isinstance(term, Const) else None

    renamed = ir.map_terms(statement, partial(ir.replace_terms, replaced=named)) if names else statement
    return ir.map_blocks(renamed, partial(_block, names=names, free=free))

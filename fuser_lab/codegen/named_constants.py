"""Names for the constants of long phases: each use of ``float32(0.5)`` takes Numba six statements, and of a name none.

    t1 = t0 * float32(0.5)          c0 = float32(0.5)
    t2 = t1 * float32(0.5)    ->    t1 = t0 * c0
                                    t2 = t1 * c0

LLVM compiles both alike. In short phases, constants stay where they are used, and the source is easier to read.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import If, Let, Loop, Statement, Store, terms_of, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

MANY = 100  # constants of a phase up to which they have no names

Block = tuple[Statement, ...]
_Key = tuple[DataType, str]  # the value as text: 0.0 and -0.0 are equal


def with_named_constants(body: Block) -> Block:
    """Return a phase's body in which constants are variables that are assigned first, if there are many."""
    roots = [root for statement in walk(body) for root in terms_of(statement)]
    found = [term for root in roots for term in root.walk() if isinstance(term, Const) and _is_named(term)]
    if len(found) <= MANY:
        return body
    used = {term.name for root in roots for term in root.walk() if isinstance(term, Var)}
    used |= {one.name if isinstance(one, Let) else one.var for one in walk(body) if isinstance(one, Let | Loop)}
    free = (name for name in map("c{}".format, itertools.count()) if name not in used)
    constants = {_key(term): term for term in found}
    names = {key: Var(term.dtype, next(free)) for key, term in constants.items()}
    lets = (Let(name=names[key].name, value=term) for key, term in constants.items())
    return (*lets, *_block(body, names))


def _is_named(term: Const) -> bool:
    """Whether a constant is printed as a call, unlike those of Double and of integers."""
    return term.dtype.is_float and term.dtype.compute is DataType.Float


def _key(term: Const) -> _Key:
    return term.dtype, repr(term.value)


def _block(body: Block, names: Mapping[_Key, Var]) -> Block:
    return tuple(_statement(statement, names) for statement in body)


def _statement(statement: Statement, names: Mapping[_Key, Var]) -> Statement:
    match statement:
        case Let(value=value) | Store(value=value):
            return replace(statement, value=_term(value, names))
        case If(condition=condition, then=then, otherwise=otherwise):
            return replace(
                statement, condition=_term(condition, names), then=_block(then, names),
                otherwise=_block(otherwise, names),
            )
        case Loop(body=body):
            return replace(statement, body=_block(body, names))
        case _:
            return statement


def _term(term: Term, names: Mapping[_Key, Var]) -> Term:
    match term:
        case Const():
            return names.get(_key(term), term)
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(_term(arg, names) for arg in args))
        case _:
            return term

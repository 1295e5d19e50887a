"""Initial values of the variables that are read outside of the loop or branch that sets them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fuser_lab.codegen.kernel_ir import If, Let, Loop, Statement, every_term, map_blocks, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Const, Var


def with_initial_values(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return statements in which such variables are zero at the beginning, and updated where they are set."""
    begun = _begun(body)
    return (*begun, *_updating(body, frozenset(let.name for let in begun)))


def _begun(body: tuple[Statement, ...]) -> tuple[Let, ...]:
    """Return initial values of the variables that are read outside of the loop or branch that sets them."""
    outside = set(_read_outside(body, frozenset()))
    dtypes: dict[str, DataType] = {}
    for statement in walk(body):
        if isinstance(statement, Let) and statement.name in outside:
            dtypes.setdefault(statement.name, statement.value.dtype)
    return tuple(Let(name=name, value=Const(dtype, 0)) for name, dtype in dtypes.items())


def _read_outside(statements: Sequence[Statement], visible: frozenset[str]) -> Iterator[str]:
    """Yield the names that statements read where no block around them has set them before."""
    for statement in statements:
        names = {t.name for t in every_term(statement) if isinstance(t, Var)}
        yield from names - visible
        match statement:
            case Let(name=name, update=update):
                if update and name not in visible:
                    yield name
                visible |= {name}
            case Loop(body=inner):
                yield from _read_outside(inner, visible)
            case If(then=then, otherwise=otherwise):
                yield from _read_outside(then, visible)
                yield from _read_outside(otherwise, visible)


def _updating(body: tuple[Statement, ...], begun: frozenset[str]) -> tuple[Statement, ...]:
    """Return a body that updates the variables that have an initial value."""
    def updating(statement: Statement) -> Statement:
        if isinstance(statement, Let) and statement.name in begun:
            return replace(statement, update=True)
        return map_blocks(statement, partial(_updating, begun=begun))

    return tuple(map(updating, body))

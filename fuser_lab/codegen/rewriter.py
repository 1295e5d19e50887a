"""Statements of Kernel IR with other terms and buffers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import BUFFERS, TERMS, Buffer, Load, Statement, map_blocks
from fuser_lab.ir.term import Apply, Term

Block = tuple[Statement, ...]


def map_terms(statement: Statement, rewrite: Callable[[Term], Term]) -> Statement:
    """Return a statement whose terms are rewritten, without those of nested statements.

    The carry of a `Scan`, which it assigns, has to remain a variable.
    """
    return _with_fields(statement, {name: rewrite(getattr(statement, name)) for name in TERMS.get(type(statement), ())})


def map_buffers(statement: Statement, rewrite: Callable[[Buffer], Buffer]) -> Statement:
    """Return a statement with other buffers, without those that its terms read."""
    names = BUFFERS.get(type(statement), ())
    return _with_fields(statement, {name: rewrite(getattr(statement, name)) for name in names})


def _with_fields(statement: Statement, values: Mapping[str, Term | Buffer]) -> Statement:
    """Return a statement with other values of some fields; the same object if there are none."""
    return replace(statement, **values) if values else statement  # type: ignore[arg-type] # fields by name


def replace_terms(
    term: Term, replaced: Callable[[Term], Term | None], memory: Callable[[Buffer], Buffer] = lambda buffer: buffer,
) -> Term:
    """Return a term of which some parts are replaced: those for which ``replaced`` returns a term, outermost first.

    ``memory`` returns what replaces a buffer that is read.
    """
    if (replacement := replaced(term)) is not None:
        return replacement
    match term:
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(replace_terms(arg, replaced, memory) for arg in args))
        case Load(dtype, buffer, position):
            return Load(dtype, memory(buffer), replace_terms(position, replaced, memory))
        case _:
            return term


def rewrite_statements(
    statements: Block, replaced: Callable[[Term], Term | None],
    memory: Callable[[Buffer], Buffer] = lambda buffer: buffer,
) -> Block:
    """Return statements with other terms and buffers, nested ones included.

    Terms are seen in the same order for all kernels with the same statements.
    """
    def rewrite(term: Term) -> Term:
        return replace_terms(term, replaced, memory)

    def block(inner: Block) -> Block:
        return rewrite_statements(inner, replaced, memory)

    return tuple(map_blocks(map_buffers(map_terms(s, rewrite), memory), block) for s in statements)

"""Statements of Kernel IR with other terms and buffers."""

from collections.abc import Callable
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import Alloc, Buffer, If, Let, Load, Loop, Statement, Store, Transpose, map_blocks
from fuser_lab.ir.term import Apply, Term

Block = tuple[Statement, ...]


def map_terms(statement: Statement, rewrite: Callable[[Term], Term]) -> Statement:
    """Return a statement of a kernel without blocks of threads whose terms are rewritten, without nested ones."""
    match statement:
        case Let(value=value):
            return replace(statement, value=rewrite(value))
        case Store(position=position, value=value):
            return replace(statement, position=rewrite(position), value=rewrite(value))
        case If(condition=condition):
            return replace(statement, condition=rewrite(condition))
        case Loop(start=start, stop=stop):
            return replace(statement, start=rewrite(start), stop=rewrite(stop))
        case Transpose(start=start):
            return replace(statement, start=rewrite(start))
        case _:
            return statement


def map_buffers(statement: Statement, rewrite: Callable[[Buffer], Buffer]) -> Statement:
    """Return a statement of a kernel without blocks of threads with other buffers, without those in its terms."""
    match statement:
        case Store(buffer=buffer) | Alloc(buffer=buffer):
            return replace(statement, buffer=rewrite(buffer))
        case Transpose(source=source, target=target):
            return replace(statement, source=rewrite(source), target=rewrite(target))
        case _:
            return statement


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
    """Return the statements of a kernel without blocks of threads with other terms and buffers.

    Terms are seen in the same order for all kernels with the same statements.
    """
    def rewrite(term: Term) -> Term:
        return replace_terms(term, replaced, memory)

    def block(inner: Block) -> Block:
        return rewrite_statements(inner, replaced, memory)

    return tuple(map_blocks(map_buffers(map_terms(s, rewrite), memory), block) for s in statements)

"""Statements of Kernel IR with other terms and buffers."""

from collections.abc import Callable
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Buffer,
    If,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Transpose,
    Uniforms,
)
from fuser_lab.ir.term import Apply, Term


class Rewriter:
    """Rewrites the statements of kernels without blocks of threads.

    Parameters
    ----------
    term
        Returns what replaces a term, or None if its parts are rewritten. It sees terms in the same order for all
        kernels with the same statements.
    memory
        Returns what replaces a buffer.
    is_key
        Whether the result is compared with that for other kernels; it then has no notes or origins.
    """

    def __init__(
        self, term: Callable[[Term], Term | None], memory: Callable[[Buffer], Buffer] = lambda buffer: buffer, *,
        is_key: bool = False,
    ) -> None:
        self._replaced, self._memory, self._is_key = term, memory, is_key

    def block(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Return rewritten statements."""
        return tuple(map(self._statement, statements))

    def _statement(self, statement: Statement) -> Statement:
        if self._is_key:
            statement = replace(statement, origin=None, note="")
        match statement:
            case Let(value=value):
                return replace(statement, value=self._term(value))
            case Store(buffer=buffer, position=position, value=value):
                return replace(
                    statement, buffer=self._memory(buffer), position=self._term(position), value=self._term(value),
                )
            case If(condition=condition, then=then, otherwise=otherwise):
                return replace(
                    statement, condition=self._term(condition), then=self.block(then), otherwise=self.block(otherwise),
                )
            case Loop(start=start, stop=stop, body=body):
                return replace(statement, start=self._term(start), stop=self._term(stop), body=self.block(body))
            case Alloc(buffer=buffer):
                return replace(statement, buffer=self._memory(buffer))
            case Transpose(source=source, target=target, start=start):
                return replace(
                    statement, source=self._memory(source), target=self._memory(target), start=self._term(start),
                )
            case Uniforms(numbers=numbers, slot=slot, position=position):
                return replace(
                    statement, numbers=self._memory(numbers), slot=self._term(slot), position=self._term(position),
                )
            case _:
                return statement

    def _term(self, term: Term) -> Term:
        if (replaced := self._replaced(term)) is not None:
            return replaced
        match term:
            case Apply(dtype, fn, args):
                return Apply(dtype, fn, tuple(map(self._term, args)))
            case Load(dtype, buffer, position):
                return Load(dtype, self._memory(buffer), self._term(position))
            case _:
                return term

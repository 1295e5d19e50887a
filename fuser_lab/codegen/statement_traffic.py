"""Bytes of global memory that each statement of a kernel accesses, counted on a sample of its iterations.

A sample walks the kernel once, with one iteration of every loop, and its counts are multiplied by the trip counts of
the enclosing loops. The iterations of all samples are evenly spread, so a statement without a condition is counted
exactly, and one with a condition to about 1 %. Nothing is run: index arithmetic is evaluated, values that depend on
data are not, and a condition that depends on data counts as true.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.kernel_ir import (
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Phase,
    Reduce,
    Role,
    Statement,
    Store,
    VectorLoad,
    VectorStore,
    terms_of,
)
from fuser_lab.codegen.kernel_profile import whole_value
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

_SAMPLES: Final = 2048
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)  # one per loop depth
_GLOBAL: Final = frozenset({Role.INPUT, Role.OUTPUT, Role.WORKSPACE})

Known = npt.NDArray[np.int64] | None  # one value per sample, or one for all; None for data-dependent values
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementTraffic:
    """The accesses of a statement, given by its position in the order of `walk`, to a buffer.

    ``bytes`` counts an element as often as it is accessed, whether or not a cache serves it; ``at_most`` says that a
    data-dependent condition was assumed to be true.
    """

    place: Place
    buffer: Buffer
    write: bool
    bytes: float
    at_most: bool = False


def statement_traffic(kernel: Kernel) -> tuple[StatementTraffic, ...]:
    """Return the accesses to inputs, outputs and workspaces of every statement, in the order of the source."""
    found: list[StatementTraffic] = []
    for number, phase in enumerate(kernel.phases):
        samples = _Samples(number, phase)
        samples.run()
        found += [one for one in samples.found.values() if one.bytes > 0]
    return tuple(found)


class _Samples:
    """The samples of one phase; arrays have one entry per sample."""

    def __init__(self, number: int, phase: Phase) -> None:
        self._number, self._phase = number, phase
        self._place = -1  # position of the last statement walked
        self._env: dict[str, Known] = {
            size.name: None if size.dtype.is_float else np.asarray([int(size.value)]) for size in phase.sizes
        }
        self._mask: Mask = np.ones(_SAMPLES, bool)
        self._weight = np.ones(_SAMPLES)  # iterations that a sample represents
        self._guessed = False  # whether an enclosing condition depends on data
        self._depth = 0
        self._known: dict[Term, Known] = {}  # of the current statement
        self.found: dict[tuple[int, str, bool], StatementTraffic] = {}

    def run(self) -> None:
        """Walk the phase."""
        self._block(self._phase.body)

    def _block(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._place += 1
            self._known = {}
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self._loop(statement)
            case If(condition=condition, then=then, otherwise=otherwise):
                holds, outer, guessed = self._value(condition), self._mask, self._guessed
                self._guessed = guessed or holds is None
                for body, chosen in ((then, holds), (otherwise, None if holds is None else holds == 0)):
                    self._mask = outer if chosen is None else outer & (chosen != 0)
                    self._block(body)
                self._mask, self._guessed = outer, guessed
            case Let(name=name, value=value):
                self._assign(name, None if statement.update else self._value(value))
                if statement.update:
                    self._value(value)
            case Reduce(name=name, value=value):
                self._value(value)
                self._assign(name, None)
            case Store(buffer=buffer, position=position, value=value):
                self._value(position)
                self._value(value)
                self._access(buffer, 1, write=True)
            case VectorLoad(buffer=buffer, count=count):
                self._access(buffer, count, write=False)
            case VectorStore(buffer=buffer, count=count):
                self._access(buffer, count, write=True)
            case _:
                for term in terms_of(statement):
                    self._value(term)

    def _assign(self, name: str, value: Known) -> None:
        before = self._env.get(name)
        if value is not None and before is not None and not self._mask.all():
            value = np.where(self._mask, value, before)
        self._env[name] = value

    def _loop(self, loop: Loop) -> None:
        start, stop = self._value(loop.start), self._value(loop.stop)
        first = np.zeros(1, np.int64) if start is None else start
        turns = np.ones(1, np.int64) if stop is None else np.maximum(stop - first, 0)
        outside = self._mask, self._weight, self._guessed
        part = (np.arange(_SAMPLES) * sqrt(_PRIMES[self._depth % len(_PRIMES)]) + 0.5) % 1
        self._env[loop.var] = first + (turns * part).astype(np.int64)
        self._mask = self._mask & (turns > 0)
        self._weight = self._weight * turns
        self._guessed = self._guessed or stop is None
        self._depth += 1
        self._block(loop.body)
        self._depth -= 1
        self._mask, self._weight, self._guessed = outside

    def _access(self, buffer: Buffer, count: int, *, write: bool) -> None:
        if buffer.role not in _GLOBAL:
            return
        moved = count * buffer.dtype.itemsize * float((self._weight * self._mask).mean())
        key = self._place, buffer.name, write
        before = self.found.get(key)
        self.found[key] = StatementTraffic(
            place=(self._number, self._place), buffer=buffer, write=write, at_most=self._guessed,
            bytes=moved + (before.bytes if before else 0.0),
        )

    def _value(self, term: Term) -> Known:
        match term:
            case Const():
                whole = term.dtype.is_integral or term.dtype is DataType.Bool
                return np.asarray([int(term.value.real)]) if whole else None
            case Var():
                return self._env.get(term.name)
        if term not in self._known:
            self._known[term] = self._made(term)
        return self._known[term]

    def _made(self, term: Term) -> Known:
        if isinstance(term, Load):
            self._value(term.position)
            self._access(term.buffer, 1, write=False)
            return None
        if not isinstance(term, Apply):
            return None
        if term.fn != "select":
            values = [self._value(arg) for arg in term.args]
            return None if any(value is None for value in values) else whole_value(term, values)
        condition = self._value(term.args[0])
        outer, guessed, sides = self._mask, self._guessed, []
        self._guessed = guessed or condition is None
        for arg, chosen in zip(term.args[1:], (True, False), strict=True):
            self._mask = outer if condition is None else outer & ((condition != 0) == chosen)
            sides.append(self._value(arg))
        self._mask, self._guessed = outer, guessed
        if condition is None or sides[0] is None or sides[1] is None:
            return None
        return np.where(condition != 0, sides[0], sides[1])

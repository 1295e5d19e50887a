"""Bytes of global memory that each statement of a kernel accesses, counted on a sample of its iterations.

A sample walks the kernel once, with one iteration of every loop, and its counts are multiplied by the trip counts of
the enclosing loops. The iterations of all samples are evenly spread, so a statement without a condition is counted
exactly, and one with a condition to about 1 %. Nothing is run: index arithmetic is evaluated, values that depend on
data are not, and a condition that depends on data counts as true.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from fuser_lab.codegen.emitter import Place
from fuser_lab.codegen.kernel_ir import Buffer, If, Kernel, Let, Load, Loop, Phase, Statement
from fuser_lab.codegen.samples import GLOBAL, Samples, Value
from fuser_lab.ir.term import Term

_SAMPLES: Final = 2048  # sampled iterations of a phase
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)  # one per loop depth


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
    walks = [_Walk(number, phase) for number, phase in enumerate(kernel.phases)]
    return tuple(traffic for walk in walks for traffic in walk.traffic.values() if traffic.bytes > 0)


class _Walk(Samples):
    """The samples of one phase; arrays have one entry per sample."""

    def __init__(self, number: int, phase: Phase) -> None:
        super().__init__(phase, (1,), np.ones(_SAMPLES, bool))
        self._number = number
        self._place = -1  # position of the last statement walked
        self._weight = np.ones(_SAMPLES)  # iterations that a sample represents
        self._guessed = False  # whether an enclosing condition depends on data
        self._depth = 0
        self.traffic: dict[tuple[int, str, bool], StatementTraffic] = {}
        self._block(phase.body)

    @property
    def _inside(self) -> int:
        return self._depth

    def _statement(self, statement: Statement) -> None:
        self._place += 1
        self._forget()  # each statement makes its own accesses
        super()._statement(statement)

    def _assign(self, statement: Let) -> None:
        before, value = self._env.get(statement.name), self._term(statement.value)
        if statement.update:
            value = Value(None, self._depth)
        elif value.numbers is not None and before is not None and before.numbers is not None and not self._mask.all():
            value = Value(np.where(self._mask, value.numbers, before.numbers), self._depth)
        self._env[statement.name] = value

    def _if(self, statement: If) -> None:
        condition = self._term(statement.condition)
        for holds, body in ((True, statement.then), (False, statement.otherwise)):
            with self._where(condition, holds=holds):
                self._block(body)

    @contextmanager
    def _where(self, condition: Value, *, holds: bool) -> Iterator[bool]:
        guessed = self._guessed
        self._guessed = guessed or condition.numbers is None
        with super()._where(condition, holds=holds) as any_left:
            yield any_left
        self._guessed = guessed

    def _loop(self, loop: Loop) -> None:
        first, turns, is_known = self._ends(loop)
        outside = self._mask, self._weight, self._guessed
        part = (np.arange(_SAMPLES) * sqrt(_PRIMES[self._depth % len(_PRIMES)]) + 0.5) % 1
        self._env[loop.var] = Value(first + (turns * part).astype(np.int64), self._depth)
        self._mask = self._mask & (turns > 0)
        self._weight = self._weight * turns
        self._guessed = self._guessed or not is_known
        self._depth += 1
        self._block(loop.body)
        self._depth -= 1
        self._mask, self._weight, self._guessed = outside

    def _load_value(self, load: Load) -> Value:
        """Return an unknown value: a condition on data counts as true."""
        super()._load_value(load)
        return Value(None, self._depth)

    def _access(self, buffer: Buffer, position: Term, count: int, width: int, *, stored: bool) -> Value:
        place = self._term(position)
        if buffer.role in GLOBAL:
            moved = count * buffer.dtype.itemsize * float((self._weight * self._mask).mean())
            key = self._place, buffer.name, stored
            before = self.traffic.get(key)
            self.traffic[key] = StatementTraffic(
                place=(self._number, self._place), buffer=buffer, write=stored, at_most=self._guessed,
                bytes=moved + (before.bytes if before else 0.0),
            )
        return place

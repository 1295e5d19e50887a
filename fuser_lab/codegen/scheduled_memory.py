"""Where the values of a fusion scheduled by hand are: variables and arrays of a thread, arrays of a block.

A value that every reader uses in the same iteration is a variable. Other values are in an array of the thread (local)
or of the block (shared), with an element for each iteration of the loops inside which the value is live.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Buffer, Let, Load, Role, Statement, Store
from fuser_lab.codegen.scheduled_loops import Loops, Ranges
from fuser_lab.ir import Expr, OpKind
from fuser_lab.ir.loop_nest import complete_in
from fuser_lab.ir.term import Term, Var, index
from fuser_lab.ir.transform import GLOBAL, MemoryType

Array = tuple[Buffer, tuple[int, ...]]  # with the positions of the loops that index its elements


class Memory:
    """The variables and arrays of the tensors that a kernel computes; ``arrays`` are those in use, by name."""

    def __init__(self, loops: Loops, ranges: Ranges) -> None:
        self._loops, self._scheduled, self._ranges = loops, loops.scheduled, ranges
        self._local = self._allocate()
        self.arrays: dict[str, Buffer] = {}

    def held(self, name: str) -> int:
        """Return the number of outer loops inside which a tensor's array or running value is live."""
        return complete_in(self._scheduled, name)

    def running(self, name: str, at: Sequence[Term]) -> Term:
        """Return the location of a reduction's running value: its own array, or one that is copied to it."""
        buffer, positions = self._local[name]
        if buffer.role is Role.SHARED:
            buffer = replace(buffer, name=f"{name}_local", role=Role.SCRATCH, dtype=buffer.dtype.compute)
            positions = tuple(p for p in positions if not self._loops.kind((name, p)).is_thread)
            buffer = replace(buffer, size=max(prod(self._loops.extent((name, p)) for p in positions), 1))
        dtype = buffer.dtype
        if buffer.size == 1:
            return Var(dtype, _variable(name))
        return Load(dtype, self.used(buffer), self._position(name, positions, at))

    def place(self, name: str, at: Sequence[Term]) -> Term:
        """Return the location of an element of a tensor: a variable, or an element of an array."""
        expr = self._scheduled.producer(name)
        if expr is not None and expr.kind is OpKind.REDUCTION:
            return self.running(name, at)
        buffer, positions = self._local[name]
        dtype = self._scheduled.tensors[name].tensor.dtype
        if buffer.role is Role.SCRATCH and buffer.size == 1:
            return Var(dtype, _variable(name))
        return Load(dtype, self.used(buffer), self._position(name, positions, at))

    def shared(self, name: str, at: Sequence[Term]) -> tuple[Buffer, Term]:
        """Return a tensor's array of the block, and the position of an element."""
        buffer, positions = self._local[name]
        return self.used(buffer), self._position(name, positions, at)

    def used(self, buffer: Buffer) -> Buffer:
        """Return an array, which the kernel allocates from now on."""
        return self.arrays.setdefault(buffer.name, buffer)

    def _allocate(self) -> dict[str, Array]:
        """Return the array of each intermediate tensor."""
        arrays: dict[str, Array] = {}
        for name, tensor in self._scheduled.tensors.items():
            expr = self._scheduled.producer(name)
            if expr is None or (tensor.memory is GLOBAL and expr.kind is not OpKind.REDUCTION):
                continue
            first = self.held(name)
            shared = tensor.memory is MemoryType.shared
            single = self._loops.single(name)
            # The threads of a block also share an array in the enclosing loops.
            positions = tuple(
                position for position, axis in enumerate(tensor.loop)
                if (position >= first or (shared and self._loops.kind((name, position)).is_thread))
                and not axis.is_reduction and position not in single and not self._is_private_round(name, position)
            )
            size = prod(self._loops.extent((name, position)) for position in positions)
            buffer = Buffer(
                name=f"{name}_{'shared' if shared else 'local'}", size=max(size, 1),
                dtype=tensor.tensor.dtype if shared else tensor.tensor.dtype.compute,
                role=Role.SHARED if shared else Role.SCRATCH,
            )
            arrays[name] = (buffer, positions)
        return arrays

    def _is_private_round(self, name: str, position: int) -> bool:
        """Whether each thread that can access an array of a tensor runs only one iteration of a loop."""
        kind = self._loops.kind((name, position))
        return kind.is_block or (kind.is_thread and self._scheduled.tensors[name].memory is not MemoryType.shared)

    def _position(self, name: str, positions: Sequence[int], at: Sequence[Term]) -> Term:
        position: Term = index(0)
        for place in positions:
            position = position * self._loops.extent((name, place)) + at[place]
        return simplify(position, self._ranges)


def assignment(place: Term, value: Term, expr: Expr, note: str, *, update: bool = False) -> Statement:
    """Return the statement that sets a location to a value of an expression."""
    if isinstance(place, Load):
        return Store(buffer=place.buffer, position=place.position, value=value, origin=expr.name, note=note)
    assert isinstance(place, Var)
    return Let(name=place.name, value=value, origin=expr.name, note="" if update else note, update=update)


def _variable(name: str) -> str:
    return name.lower()

"""Elements of tensors in the loops of a schedule by hand, and the conditions under which threads compute them.

A reader that needs an element in another thread's local array, or of another iteration of a loop, is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from fuser_lab.codegen.index_map import ZERO, Read, ReadScalar, element_term, operand_index
from fuser_lab.codegen.index_math import is_index, simplify
from fuser_lab.codegen.kernel_ir import Buffer, If, Layout, Load, Statement, Store
from fuser_lab.codegen.scheduled_loops import Loops, index_of
from fuser_lab.codegen.scheduled_memory import Memory
from fuser_lab.codegen.values import result_element
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ScheduleError
from fuser_lab.ir import Expr, Scalar, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var, apply
from fuser_lab.ir.transform import MemoryType, ParallelType, ScheduledFusion
from fuser_lab.ops import OPS

# Directions of a launch, the fastest first (CUDA C++ Programming Guide, thread hierarchy).
BLOCKS = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)
THREADS = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)
NUMBERS = dict(zip((*BLOCKS, *THREADS), ("bidx", "bidy", "bidz", "tidx", "tidy", "tidz"), strict=True))
"""The names of the numbers of a block and of a thread in each direction."""

_TRUE = Const(DataType.Bool, value=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The memory of a fusion scheduled by hand, and the loops that are open.

    ``ranges`` are the values of index variables, and ``terms`` those of open loops by class; both change as loops are
    opened.
    """

    loops: Loops
    memory: Memory
    layouts: Mapping[str, Layout]
    buffers: Mapping[str, Buffer]
    ranges: dict[str, tuple[int, int]]
    terms: dict[object, Term]

    @property
    def scheduled(self) -> ScheduledFusion:
        """The fusion with its schedule."""
        return self.loops.scheduled

    # Conditions

    def within(self, name: str, *, kept_only: bool = False) -> list[Term]:
        """Return the condition that the thread and block have an iteration of the tensor's loops."""
        tensor = self.scheduled.tensors[name]
        single = self.loops.single(name)
        conditions = []
        for position, axis in enumerate(tensor.loop):
            kind = self.loops.kind((name, position))
            if not (kind.is_block or kind.is_thread) or (kept_only and axis.is_reduction) or position in single:
                continue
            size = self.loops.extent((name, position))
            if size < self.loops.hardware[kind]:
                conditions.append(apply("lt", index_of(NUMBERS[kind]), size))
        return conditions

    def alone(self, name: str) -> list[Term]:
        """Return the condition that this thread is the first of those with the same value of a tensor."""
        tensor = self.scheduled.tensors[name]
        single = self.loops.single(name)
        tensor_kinds = {
            self.loops.kind((name, position)) for position, axis in enumerate(tensor.loop)
            if not axis.is_reduction and position not in single
        }
        kinds = THREADS if tensor.memory is MemoryType.shared else (*BLOCKS, *THREADS)
        return [
            apply("eq", index_of(NUMBERS[kind]), 0)
            for kind in kinds if self.loops.hardware.get(kind, 1) > 1 and kind not in tensor_kinds
        ]

    def first(self, name: str) -> list[Term]:
        """Return the condition that this is the first of the iterations in which a thread has an equal element."""
        conditions = []
        for position in sorted(self.loops.single(name)):
            kind = self.loops.kind((name, position))
            term = self.terms.get(self.loops.class_of((name, position)), ZERO)
            if term != ZERO and not (kind.is_block or kind.is_thread):
                conditions.append(apply("eq", term, 0))
        return conditions

    def guard(self, conditions: Sequence[Term], statement: Statement) -> Statement:
        """Return a statement that is executed if all conditions hold."""
        condition: Term = _TRUE
        for part in dict.fromkeys(simplify(c, self.ranges) for c in conditions):
            if not isinstance(part, Const) or not part.value:
                condition = part if condition == _TRUE else Apply(DataType.Bool, "and", (condition, part))
        return statement if condition == _TRUE else If(condition=condition, then=(statement,))

    def store(self, expr: Expr, at: Sequence[Term], value: Term, note: str) -> Store:
        """Return the statement that stores an element of an output."""
        name = expr.out.name
        position = simplify(self.layouts[name].position(at), self.ranges)
        return Store(buffer=self.buffers[name], position=position, value=value, origin=expr.name, note=note)

    # Values

    def value(self, expr: Expr, indices: Mapping[int, Term], at: Sequence[Term]) -> Term:
        """Return one element of the result of an expression."""
        out = expr.out
        at_axes = tuple(indices[axis.id] for axis in out.domain.axes)
        if OPS[expr.op.name].scalar is not None:
            operands = []
            for value in expr.inputs:
                if isinstance(value, Scalar):
                    operands.append(self._scalar(value))
                else:
                    place = operand_index(value, at_axes)
                    operands.append(self.read(value, place, expr, at))
            return result_element(expr, operands)
        return self._resolve(element_term(expr, at_axes), expr, at)

    def _resolve(self, term: Term, expr: Expr, at: Sequence[Term]) -> Term:
        if isinstance(term, Read):
            place = tuple(self._resolve(i, expr, at) for i in term.index)
            return self.read(term.tensor, place, expr, at)
        if isinstance(term, ReadScalar):
            return self._scalar(term.scalar)
        if not isinstance(term, Apply) or is_index(term):
            return simplify(term, self.ranges)
        if term.fn == "select":
            condition = simplify(self._resolve(term.args[0], expr, at), self.ranges)
            if isinstance(condition, Const):
                return self._resolve(term.args[1 if condition.value else 2], expr, at)
            sides = tuple(self._resolve(side, expr, at) for side in term.args[1:])
            return Apply(term.dtype, "select", (condition, *sides))
        return Apply(term.dtype, term.fn, tuple(self._resolve(arg, expr, at) for arg in term.args))

    def _scalar(self, value: Scalar) -> Term:
        dtype = DataType.Int if value.dtype is DataType.Index else value.dtype
        if value.value is not None:
            return Const(dtype, value.value)
        expr = self.scheduled.fusion.producers.get(value)
        if expr is None:
            return Var(dtype, value.name)
        return result_element(expr, [self._scalar(v) for v in expr.inputs if isinstance(v, Scalar)])

    def read(self, tensor: TensorView, place: Sequence[Term], reader: Expr, at: Sequence[Term]) -> Term:
        """Return an element of an operand at a reader, with ``at`` as the terms of the reader's loops."""
        name, ranges = tensor.name, self.ranges
        place = [simplify(i, ranges) for i in place]
        if name in self.layouts:
            if not self.scheduled.is_input(name):
                self._check_reader(tensor, place, reader, at)
                if self.alone(name):
                    raise ScheduleError(
                        f"{reader.out.name} reads the output {name} in threads that have not written it; "
                        f"use cache_fork on {name}, so that the value read stays in the kernel."
                    )
            return Load(tensor.dtype, self.buffers[name], simplify(self.layouts[name].position(place), ranges))
        terms = self._check_reader(tensor, place, reader, at)
        if self.scheduled.tensors[name].memory is MemoryType.shared:
            return Load(tensor.dtype, *self.memory.shared(name, terms))
        location = self.memory.place(name, terms)
        # A running value has the compute type; a read value has the tensor's dtype.
        return Var(tensor.dtype, location.name) if isinstance(location, Var) else location

    def _check_reader(
        self, tensor: TensorView, place: Sequence[Term], reader: Expr, at: Sequence[Term],
    ) -> list[Term]:
        """Return the terms of an operand's loops for one of its elements; raise if this thread does not hold it."""
        name = tensor.name
        scheduled = self.scheduled.tensors[name]
        single = self.loops.single(name)
        index_ = {axis.id: term for axis, term in zip(tensor.domain.axes, place, strict=True)}
        indices: dict[int, Term] | None = None
        terms: list[Term] = []
        for position, axis in enumerate(scheduled.loop):
            if axis.is_reduction or position in single:
                terms.append(ZERO)
                continue
            theirs = self.loops.same_elements(name, position, reader)
            if theirs is not None:
                terms.append(at[theirs])
            else:
                if indices is None:
                    indices = {} if name in self.loops.followed else self.loops.forward(name, index_, self.ranges)
                if axis.id not in indices:
                    self._refuse(name, position, reader, "which has no such loop")
                terms.append(indices[axis.id])
            self._check_holder(name, position, terms[-1], reader)
        return terms

    def _check_holder(self, name: str, position: int, term: Term, reader: Expr) -> None:
        tensor = self.scheduled.tensors[name]
        slot = self.loops.class_of((name, position))
        if position < tensor.compute_at and slot in self.terms and term != self.terms[slot]:
            self._refuse(name, position, reader, "which reads another iteration of that loop")
        kind = self.loops.kind((name, position))
        apart = kind.is_block or (kind.is_thread and tensor.memory is not MemoryType.shared)
        if apart and term != index_of(NUMBERS[kind]) and self.loops.extent((name, position)) > 1:
            who = "another block" if kind.is_block else "another thread"
            advice = "" if kind.is_block else "; shared memory would allow that"
            self._refuse(name, position, reader, f"which reads a value computed by {who}{advice}")

    def _refuse(self, name: str, position: int, reader: Expr, why: str) -> NoReturn:
        axis = self.scheduled.tensors[name].loop[position]
        kind = self.loops.kind((name, position))
        raise ScheduleError(f"loop {position} of {name} ({axis}, {kind.name}) does not fit {reader.out.name}, {why}.")

"""Lowering of a fusion scheduled by hand to Kernel IR: the loops, predicates, buffers and barriers of its schedule.

Each tensor is computed by its own loops; loops that several tensors share (`Loops.class_of`) are opened once. Loops
over blocks and threads are bound to their indices. Values are in variables and arrays (`scheduled_memory`), with a
barrier between writes to and reads from an array of the block. A reader that needs an element in another thread's local
array is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from fuser_lab.codegen.index_map import ZERO, Read, ReadScalar, element_term, operand_index
from fuser_lab.codegen.index_math import is_index, linear, simplify, substitute, variables
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Barrier,
    Buffer,
    If,
    Kernel,
    Launch,
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
    walk,
)
from fuser_lab.codegen.kernel_passes import with_passes
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.scheduled_loops import Loops, index_of, operand_of
from fuser_lab.codegen.scheduled_memory import Memory, assignment
from fuser_lab.codegen.sizes import with_sizes
from fuser_lab.codegen.thread_reductions import Direction, over_threads
from fuser_lab.codegen.values import call_text, result_element
from fuser_lab.cost.device import BLOCK_THREADS, MOST_BLOCKS, STATIC_SHARED
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError, ScheduleError, UnsupportedError
from fuser_lab.ir import Expr, OpKind, Scalar, TensorView
from fuser_lab.ir.kernel_transforms import is_template
from fuser_lab.ir.loop_order import Item, group_items
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, cast, index
from fuser_lab.ir.transform import GLOBAL, MemoryType, ParallelType, Rules, ScheduledFusion
from fuser_lab.ir.transform_arguments import int_of
from fuser_lab.ops import OPS
from fuser_lab.ops.registry import Combine
from fuser_lab.targets import target_of, with_blocks

_BLOCKS = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)
_THREADS = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)
_NAMES = dict(zip((*_BLOCKS, *_THREADS), ("bidx", "bidy", "bidz", "tidx", "tidy", "tidz"), strict=True))
_WITHIN = frozenset({ParallelType.unroll, ParallelType.vectorize})  # loops inside a thread
_TRUE = Const(DataType.Bool, value=True)


def lower_scheduled(
    scheduled: ScheduledFusion, rules: Rules, target: str, name: str,
    strides: Mapping[str, Sequence[int] | Layout] | None = None, alignments: Mapping[str, int] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> Kernel:
    """Return the Kernel IR of a scheduled fusion.

    Parameters
    ----------
    scheduled
        A scheduled fusion with known extents.
    rules
        The rules with which the schedule was replayed.
    target
        Name of a target with blocks.
    name
        Name of the kernel's function; if it is empty, made from the first output.
    strides
        Strides in elements of inputs that are not dense in their allocation order, or their layouts.
    alignments
        Alignment in bytes of the addresses of inputs and outputs, if it is less than 16.
    outputs
        Names of the kernel's outputs, by the names of tensors, if they differ.

    Raises
    ------
    ScheduleError
        If the schedule cannot be lowered; the message names the tensors and loops.
    UnsupportedError
        If an op has no rule for one element, or several results.
    CodegenError
        If the target has no blocks.
    """
    if not target_of(target).has_blocks:
        msg = (
            f"loops over blocks and threads have no kernel for {target!r}: they run on GPUs, and the CPU evaluates "
            f"that kernel in lock step; see source({with_blocks().name!r})."
        )
        raise CodegenError(msg)
    function = name or f"by_hand_{scheduled.fusion.outputs[0].name}"
    return _Lowering(scheduled, rules, target, function, strides or {}, alignments or {}, outputs or {}).kernel()


class _Lowering:
    def __init__(
        self, scheduled: ScheduledFusion, rules: Rules, target: str, name: str,
        strides: Mapping[str, Sequence[int] | Layout], alignments: Mapping[str, int], outputs: Mapping[str, str],
    ) -> None:
        self._scheduled, self._fusion, self._target, self._name = scheduled, scheduled.fusion, target, name
        self._resident = self._launch_bounds()
        self._check_ops()
        self._loops = Loops(scheduled, rules)
        self._sizes = self._loops.hardware
        self._check_hardware()
        outside = [*self._fusion.tensor_inputs, *dict.fromkeys(self._fusion.outputs)]
        self._layouts: dict[str, Layout] = {tv.name: layout_of(tv, strides.get(tv.name)) for tv in outside}
        self._buffers: dict[str, Buffer] = {
            tv.name: Buffer(
                name=outputs.get(tv.name, tv.name), dtype=tv.dtype, size=self._layouts[tv.name].size,
                role=Role.INPUT if tv in self._fusion.inputs else Role.OUTPUT,
                alignment=alignments.get(tv.name, 16),
            )
            for tv in outside
        }
        self._ranges: dict[str, tuple[int, int]] = {
            _NAMES[kind]: (0, size - 1) for kind, size in self._sizes.items()
        }
        self._vars: dict[object, Term] = {}
        self._counts: dict[object, int] = {}
        self._names: dict[str, int] = {}
        self._memory = Memory(self._loops, self._ranges)
        self._block = tuple(
            Direction(kind=kind, threads=self._sizes.get(kind, 1), number=index_of(_NAMES[kind])) for kind in _THREADS
        )

    def kernel(self) -> Kernel:
        """Return the kernel; it has no phase if there is nothing to write."""
        computed = tuple(tv for tv in dict.fromkeys(self._fusion.outputs) if tv not in self._fusion.inputs)
        phases = (self._phase(),) if any(tv.numel for tv in computed) else ()
        reduces = any(expr.kind is OpKind.REDUCTION for expr in self._fusion.exprs)
        kernel = Kernel(
            name=self._name,
            target=self._target,
            scheduler=SchedulerType.REDUCTION if reduces else SchedulerType.POINTWISE,
            inputs=tuple(self._buffers[tv.name] for tv in self._fusion.tensor_inputs),
            scalars=tuple(_parameter(v) for v in self._fusion.inputs if isinstance(v, Scalar)),
            outputs=tuple(self._buffers[tv.name] for tv in computed),
            workspace=(),
            phases=phases,
            ops=tuple((expr.name, call_text(expr)) for expr in self._fusion.exprs),
        )
        return kernel if self._is_specialized() else with_sizes(kernel)

    def _is_specialized(self) -> bool:
        """Whether the schedule asks for all sizes as constants."""
        said = [transform.arg("sizes") for transform in self._scheduled.transforms if transform.kind == "specialize"]
        return bool(said and said[-1])

    # Checks

    def _launch_bounds(self) -> int:
        """Return the blocks per multiprocessor for which registers are limited; raise for unsupported transforms."""
        resident = 0
        for transform in self._scheduled.transforms:
            if transform.kind == "launch_bounds":
                resident = int_of(transform, "blocks")
            elif is_template(transform):
                msg = f"{transform} is a template for a plan's segment and cannot be combined with other loops."
                raise ScheduleError(msg)
            elif transform.kind in {"grid", "cluster", "read_again"}:
                msg = f"{transform} applies only to loops that the scheduler of a plan's segment writes; remove it."
                raise ScheduleError(msg)
        return resident

    def _check_ops(self) -> None:
        for expr in self._fusion.tensor_exprs:
            op = OPS[expr.op.name]
            is_supported = op.scalar is not None or op.element is not None or op.combine is not None
            if not is_supported or len(expr.tensor_outputs) > 1:
                msg = (
                    f"{op.name} ({expr.name}) cannot be scheduled by hand: it has several results, or no "
                    "rule for one element."
                )
                raise UnsupportedError(msg)
            for tensor in expr.tensor_outputs:
                for axis in tensor.domain.logical:
                    if axis.is_reduction and axis.expanded is not None:
                        msg = f"{tensor.name} reduces the expanded axis {axis}, which cannot be scheduled by hand."
                        raise UnsupportedError(msg)
                    if axis.is_reduction and axis.extent == 0:
                        msg = f"{tensor.name} reduces {axis}, which has no elements, so it cannot be scheduled."
                        raise ScheduleError(msg)

    def _check_hardware(self) -> None:
        threads = prod(self._sizes.get(kind, 1) for kind in _THREADS)
        if threads > BLOCK_THREADS:
            parts = " x ".join(str(self._sizes.get(kind, 1)) for kind in _THREADS)
            msg = f"the schedule needs {parts} = {threads} threads per block; at most {BLOCK_THREADS} are allowed."
            raise ScheduleError(msg)
        blocks = prod(self._sizes.get(kind, 1) for kind in _BLOCKS)
        if blocks > MOST_BLOCKS:
            msg = f"the schedule needs {blocks} blocks; at most {MOST_BLOCKS} are allowed."
            raise ScheduleError(msg)

    # The order of statements

    def _items(self) -> list[Item]:
        items: list[Item] = []
        for expr in self._fusion.tensor_exprs:
            if not expr.out.numel and expr.kind is not OpKind.REDUCTION:
                continue
            name = expr.out.name
            tensor = self._scheduled.tensors[name]
            self._register(name)
            path: tuple[object, ...] = self._loops.around(name, len(tensor.loop))
            if expr.kind is not OpKind.REDUCTION:
                items.append(Item(expr=expr, part="all", path=path, order=len(items)))
                continue
            held = self._memory.held(name)
            around = self._loops.around(name, held)
            kept_positions = [i for i in range(held, len(tensor.loop)) if not tensor.loop[i].is_reduction]
            for part in ("begin", "update", "end"):
                part_loops = tuple(self._part_slots(name, kept_positions, part))
                whole = path if part == "update" else (*around, *part_loops)
                items.append(Item(expr=expr, part=part, path=whole, order=len(items)))
        return items

    def _register(self, name: str) -> None:
        """Record the terms of a tensor's loops over blocks and threads, and the extents of the others."""
        for position in range(len(self._scheduled.tensors[name].loop)):
            kind = self._loops.kind((name, position))
            slot = self._loops.class_of((name, position))
            if kind.is_block or kind.is_thread:
                self._vars[slot] = index_of(_NAMES[kind]) if self._sizes[kind] > 1 else ZERO
            else:
                self._counts[slot] = max(self._counts.get(slot, 0), self._loops.extent((name, position)))

    def _part_slots(self, name: str, positions: Sequence[int], part: str) -> Iterator[object]:
        """Yield the loops that a part of a reduction runs over separately."""
        for position in positions:
            slot = self._loops.class_of((name, position))
            part_slot = (*slot, part)
            if slot in self._counts and self._counts[slot] > 1:
                self._counts[part_slot] = self._counts[slot]
                yield part_slot

    def _body(self, items: Sequence[Item], depth: int) -> tuple[Statement, ...]:
        """Return the statements of items inside the same ``depth`` loops, with barriers around shared memory."""
        statements: list[Statement] = []
        shared_written = False
        ordered = group_items(items, depth)
        for place, (key, members) in enumerate(ordered):
            if depth < len(members[0].path):
                statements.append(self._loop(key, members, depth))
            else:
                statements += self._statement(members[0])
            later = {item.expr for _, others in ordered[place + 1 :] for item in others}
            if any(self._is_shared(item) and self._readers(item.expr) & later for item in members):
                statements.append(Barrier())
                shared_written = True
        if shared_written and depth:
            # The next iteration of the enclosing loop writes to memory that this one still reads.
            statements.append(Barrier())
        return tuple(_merge_ifs(statements))

    def _is_shared(self, item: Item) -> bool:
        memory = self._scheduled.tensors[item.expr.out.name].memory
        return memory is MemoryType.shared and item.part in {"all", "end"}

    def _readers(self, expr: Expr) -> set[Expr]:
        return set(self._scheduled.consumers(expr.out.name))

    def _loop(self, key: object, items: Sequence[Item], depth: int) -> Loop | If:
        count = self._counts[key]
        kind = self._loops.parallel.get(key) if isinstance(key, tuple) and len(key) == 2 else None
        loop_kind = kind if kind in _WITHIN else ParallelType.serial
        name = self._fresh("v" if loop_kind is ParallelType.vectorize else "i")
        self._ranges[name] = (0, max(count - 1, 0))
        self._vars[key] = index_of(name) if count > 1 else ZERO
        body = self._body(items, depth + 1)
        del self._vars[key]
        loop = Loop(var=name, start=index(0), stop=index(count), parallel=loop_kind, body=body)
        if loop_kind is ParallelType.vectorize and len(body) == 1 and isinstance(body[0], If):
            outside = self._without(body[0].condition, name, count)
            if outside is not None:
                return If(condition=outside, then=(replace(loop, body=body[0].then),))
        return loop

    def _without(self, condition: Term, name: str, count: int) -> Term | None:
        """Return a condition without the number of a vector's element if it is equal for all of them, else None."""
        if isinstance(condition, Apply) and condition.fn == "and":
            parts = [self._without(arg, name, count) for arg in condition.args]
            return None if None in parts else Apply(DataType.Bool, "and", tuple(p for p in parts if p is not None))
        if name not in variables(condition):
            return condition
        if not (isinstance(condition, Apply) and condition.fn == "lt" and isinstance(condition.args[1], Const)):
            return None
        form = linear(condition.args[0], self._ranges)
        rest = [(atom, c) for atom, c in form.parts if atom != index_of(name)]
        step = sum(c for atom, c in form.parts if atom == index_of(name))
        limit = int(condition.args[1].value.real) - form.constant
        even = step == 1 and limit % count == 0 and all(
            c % count == 0 and name not in variables(atom) for atom, c in rest
        )
        first = substitute(condition.args[0], {name: ZERO})
        return apply("lt", simplify(first, self._ranges), condition.args[1]) if even else None

    def _fresh(self, base: str) -> str:
        # Scalar inputs may also be named i0.
        taken = {value.name for value in self._fusion.inputs}
        number = self._names.get(base, 0)
        while f"{base}{number}" in taken:
            number += 1
        self._names[base] = number + 1
        return f"{base}{number}"

    # Statements

    def _terms(self, name: str, part: str = "all") -> list[Term]:
        """Return the terms of a tensor's loops at one of its statements, with 0 for loops that are absent."""
        terms: list[Term] = []
        tensor = self._scheduled.tensors[name]
        for position in range(len(tensor.loop)):
            slot = self._loops.class_of((name, position))
            terms.append(self._vars.get((*slot, part), self._vars.get(slot, ZERO)))
        single = self._loops.single(name)
        return [ZERO if position in single else term for position, term in enumerate(terms)]

    def _statement(self, item: Item) -> list[Statement]:
        expr, name = item.expr, item.expr.out.name
        at = self._terms(name, item.part)
        if item.part == "begin":
            return self._begin(expr, at)
        if item.part == "end":
            return self._end(expr, at)
        ranges = self._ranges
        indices = self._loops.logical(name, at, ranges)
        conditions = [*self._loops.conditions(name, at, ranges), *self._within(name)]
        note = call_text(expr)
        if item.part == "update":
            source = expr.tensor_inputs[0]
            value = self._read(source, operand_of(expr, expr.out, source, indices), expr, at)
            combine = _combine(expr)
            place = self._memory.place(name, at)
            dtype = expr.out.dtype.compute
            total = Apply(dtype, combine.fn, (place, cast(value, dtype)))
            return [self._guard(conditions, assignment(place, total, expr, note, update=True))]
        value = self._value(expr, indices, at)
        if self._scheduled.tensors[name].memory is GLOBAL:
            index_ = [indices[axis.id] for axis in expr.out.domain.axes]
            conditions += self._alone(name)
            return [self._guard(conditions, self._store(expr, index_, value, note))]
        if self._scheduled.tensors[name].memory is MemoryType.shared:
            conditions += self._alone(name)
        return [self._guard(conditions, assignment(self._memory.place(name, at), value, expr, note))]

    def _begin(self, expr: Expr, at: Sequence[Term]) -> list[Statement]:
        dtype = expr.out.dtype.compute
        identity = Const(dtype, _combine(expr).identity(expr.out.dtype))
        return [assignment(self._memory.running(expr.out.name, at), identity, expr, call_text(expr))]

    def _end(self, expr: Expr, at: Sequence[Term]) -> list[Statement]:
        name = expr.out.name
        tensor = self._scheduled.tensors[name]
        total = self._memory.running(name, at)
        statements: list[Statement] = []
        among = self._reduced_threads(name)
        if among:
            statements += over_threads(
                expr, _combine(expr), total, among, self._block, self._memory, self._ranges,
                name=self._fresh(f"{name}_all"), repeated=self._is_repeated(),
            )
        result = cast(total, expr.out.dtype)
        if tensor.memory is MemoryType.local:
            if result != total:
                statements.append(assignment(total, result, expr, "", update=True))
            return statements
        ranges = self._ranges
        indices = self._loops.logical(name, at, ranges)
        reduced = {axis.id for axis in tensor.tensor.domain.logical if axis.is_reduction}
        inner = {t.name for i in reduced for t in indices[i].walk() if isinstance(t, Var)} if reduced else set()
        outer = {t.name for axis in tensor.tensor.domain.axes for t in indices[axis.id].walk() if isinstance(t, Var)}
        conditions = [
            c for c in self._loops.conditions(name, at, ranges) if not (variables(c) & (inner - outer))
        ]
        conditions += [*self._within(name, kept_only=True), *self._alone(name)]
        if tensor.memory is GLOBAL:
            store = self._store(expr, [indices[axis.id] for axis in expr.out.domain.axes], result, "")
        else:
            buffer, position = self._memory.shared(name, at)
            store = Store(buffer=buffer, position=position, value=result, origin=expr.name)
        return [*statements, self._guard(conditions, store)]

    def _reduced_threads(self, name: str) -> list[Direction]:
        """Return the directions of the block whose threads a reduction combines."""
        tensor = self._scheduled.tensors[name]
        single = self._loops.single(name)
        over = [i for i, axis in enumerate(tensor.loop) if axis.is_reduction and i not in single]
        kinds = {self._loops.kind((name, position)) for position in over}
        return [direction for direction in self._block if direction.kind in kinds]

    def _is_repeated(self) -> bool:
        """Whether a loop of the thread is open."""
        return any(isinstance(term, Var) and term.name not in _NAMES.values() for term in self._vars.values())

    def _within(self, name: str, *, kept_only: bool = False) -> list[Term]:
        """Return the condition that the thread and block have an iteration of the tensor's loops."""
        tensor = self._scheduled.tensors[name]
        single = self._loops.single(name)
        conditions = []
        for position, axis in enumerate(tensor.loop):
            kind = self._loops.kind((name, position))
            if not (kind.is_block or kind.is_thread) or (kept_only and axis.is_reduction) or position in single:
                continue
            size = self._loops.extent((name, position))
            if size < self._sizes[kind]:
                conditions.append(apply("lt", index_of(_NAMES[kind]), size))
        return conditions

    def _alone(self, name: str) -> list[Term]:
        """Return the condition that this thread is the first of those with the same value of a tensor."""
        tensor = self._scheduled.tensors[name]
        single = self._loops.single(name)
        tensor_kinds = {
            self._loops.kind((name, position)) for position, axis in enumerate(tensor.loop)
            if not axis.is_reduction and position not in single
        }
        kinds = _THREADS if tensor.memory is MemoryType.shared else (*_BLOCKS, *_THREADS)
        return [
            apply("eq", index_of(_NAMES[kind]), 0)
            for kind in kinds if self._sizes.get(kind, 1) > 1 and kind not in tensor_kinds
        ]

    def _guard(self, conditions: Sequence[Term], statement: Statement) -> Statement:
        condition: Term = _TRUE
        for part in dict.fromkeys(simplify(c, self._ranges) for c in conditions):
            if not isinstance(part, Const) or not part.value:
                condition = part if condition == _TRUE else Apply(DataType.Bool, "and", (condition, part))
        return statement if condition == _TRUE else If(condition=condition, then=(statement,))

    def _store(self, expr: Expr, at: Sequence[Term], value: Term, note: str) -> Store:
        name = expr.out.name
        position = simplify(self._layouts[name].position(at), self._ranges)
        return Store(buffer=self._buffers[name], position=position, value=value, origin=expr.name, note=note)

    # Values

    def _value(self, expr: Expr, indices: Mapping[int, Term], at: Sequence[Term]) -> Term:
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
                    operands.append(self._read(value, place, expr, at))
            return result_element(expr, operands)
        return self._resolve(element_term(expr, at_axes), expr, at)

    def _resolve(self, term: Term, expr: Expr, at: Sequence[Term]) -> Term:
        if isinstance(term, Read):
            place = tuple(self._resolve(i, expr, at) for i in term.index)
            return self._read(term.tensor, place, expr, at)
        if isinstance(term, ReadScalar):
            return self._scalar(term.scalar)
        if not isinstance(term, Apply) or is_index(term):
            return simplify(term, self._ranges)
        if term.fn == "select":
            condition = simplify(self._resolve(term.args[0], expr, at), self._ranges)
            if isinstance(condition, Const):
                return self._resolve(term.args[1 if condition.value else 2], expr, at)
            sides = tuple(self._resolve(side, expr, at) for side in term.args[1:])
            return Apply(term.dtype, "select", (condition, *sides))
        return Apply(term.dtype, term.fn, tuple(self._resolve(arg, expr, at) for arg in term.args))

    def _scalar(self, value: Scalar) -> Term:
        dtype = DataType.Int if value.dtype is DataType.Index else value.dtype
        if value.value is not None:
            return Const(dtype, value.value)
        expr = self._fusion.producers.get(value)
        if expr is None:
            return Var(dtype, value.name)
        return result_element(expr, [self._scalar(v) for v in expr.inputs if isinstance(v, Scalar)])

    def _read(self, tensor: TensorView, place: Sequence[Term], reader: Expr, at: Sequence[Term]) -> Term:
        """Return an element of an operand at a reader, with ``at`` as the terms of the reader's loops."""
        name, ranges = tensor.name, self._ranges
        place = [simplify(i, ranges) for i in place]
        if name in self._layouts:
            if not self._scheduled.is_input(name):
                self._check_reader(tensor, place, reader, at)
                if self._alone(name):
                    msg = (
                        f"{reader.out.name} reads the output {name} in threads that have not written it; "
                        f"use cache_fork on {name}, so that the value read stays in the kernel."
                    )
                    raise ScheduleError(msg)
            return Load(tensor.dtype, self._buffers[name], simplify(self._layouts[name].position(place), ranges))
        terms = self._check_reader(tensor, place, reader, at)
        if self._scheduled.tensors[name].memory is MemoryType.shared:
            return Load(tensor.dtype, *self._memory.shared(name, terms))
        location = self._memory.place(name, terms)
        # A running value has the compute type; a read value has the tensor's dtype.
        return Var(tensor.dtype, location.name) if isinstance(location, Var) else location

    def _check_reader(
        self, tensor: TensorView, place: Sequence[Term], reader: Expr, at: Sequence[Term],
    ) -> list[Term]:
        """Return the terms of an operand's loops for one of its elements; raise if this thread does not hold it."""
        name = tensor.name
        scheduled = self._scheduled.tensors[name]
        single = self._loops.single(name)
        index_ = {axis.id: term for axis, term in zip(tensor.domain.axes, place, strict=True)}
        indices: dict[int, Term] | None = None
        terms: list[Term] = []
        for position, axis in enumerate(scheduled.loop):
            if axis.is_reduction or position in single:
                terms.append(ZERO)
                continue
            theirs = self._loops.same_elements(name, position, reader)
            if theirs is not None:
                terms.append(at[theirs])
            else:
                if indices is None:
                    indices = {} if name in self._loops.followed else self._loops.forward(name, index_, self._ranges)
                if axis.id not in indices:
                    self._refuse(name, position, reader, "which has no such loop")
                terms.append(indices[axis.id])
            self._check_holder(name, position, terms[-1], reader)
        return terms

    def _check_holder(self, name: str, position: int, term: Term, reader: Expr) -> None:
        tensor = self._scheduled.tensors[name]
        slot = self._loops.class_of((name, position))
        if position < tensor.compute_at and slot in self._vars and term != self._vars[slot]:
            self._refuse(name, position, reader, "which reads another iteration of that loop")
        kind = self._loops.kind((name, position))
        apart = kind.is_block or (kind.is_thread and tensor.memory is not MemoryType.shared)
        if apart and term != index_of(_NAMES[kind]) and self._loops.extent((name, position)) > 1:
            who = "another block" if kind.is_block else "another thread"
            advice = "" if kind.is_block else "; shared memory would allow that"
            self._refuse(name, position, reader, f"which reads a value computed by {who}{advice}")

    def _refuse(self, name: str, position: int, reader: Expr, why: str) -> NoReturn:
        axis = self._scheduled.tensors[name].loop[position]
        kind = self._loops.kind((name, position))
        msg = f"loop {position} of {name} ({axis}, {kind.name}) does not fit {reader.out.name}, {why}."
        raise ScheduleError(msg)

    # The whole function

    def _phase(self) -> Phase:
        body = self._body(self._items(), 0)
        shared = [b for b in self._memory.arrays.values() if b.role is Role.SHARED]
        nbytes = sum(b.size * b.dtype.itemsize for b in shared)
        if nbytes > STATIC_SHARED:
            parts = ", ".join(f"{b.name} {b.size * b.dtype.itemsize}" for b in shared)
            room = f"at most {STATIC_SHARED} fit"
            msg = f"the schedule needs {nbytes} bytes of shared memory per block ({parts}); {room}."
            raise ScheduleError(msg)
        body = with_passes(body, self._target)
        begun = _begun(body)
        body = (*begun, *_updating(body, frozenset(let.name for let in begun)))
        local = tuple(Alloc(buffer=b) for b in self._memory.arrays.values() if b.role is not Role.SHARED)
        body = self._bound((*local, *body), tuple(Alloc(buffer=b) for b in shared))
        threads = [self._sizes.get(kind, 1) for kind in _THREADS]
        return Phase(
            name=self._name,
            buffers=tuple(b for b in self._buffers.values() if b.name in _used_buffers(body)),
            scalars=_scalars(body),
            body=body,
            launch=Launch(
                blocks=prod(self._sizes.get(kind, 1) for kind in _BLOCKS),
                threads=(threads[0], threads[1] * threads[2]), resident=self._resident,
            ),
        )

    def _bound(self, body: tuple[Statement, ...], shared: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Return a body inside its blocks and threads; the directions of a grid are one dimension of the launch."""
        x, y, z = (self._sizes.get(kind, 1) for kind in _THREADS)
        lets, rows = self._unfold("row", (ParallelType.block_y, ParallelType.block_z))
        body = (*lets, *body)
        # Threads that are adjacent in x are adjacent lanes.
        if x > 1:
            body = (Loop(var="tidx", start=index(0), stop=index(x), parallel=ParallelType.block_x, body=body),)
        if y * z > 1:
            body = (Loop(var=rows, start=index(0), stop=index(y * z), parallel=ParallelType.block_y, body=body),)
        lets, block = self._unfold("block", _BLOCKS)
        body = (*lets, *shared, *body)
        count = prod(self._sizes.get(kind, 1) for kind in _BLOCKS)
        return (Loop(var=block, start=index(0), stop=index(count), parallel=ParallelType.grid_x, body=body),)

    def _unfold(self, name: str, kinds: Sequence[ParallelType]) -> tuple[tuple[Statement, ...], str]:
        """Return the index in each direction from one index over all of them, and the name of that index."""
        used = [kind for kind in kinds if self._sizes.get(kind, 1) > 1]
        if len(used) < 2:
            return (), _NAMES[used[0] if used else kinds[0]]
        whole: Term = index_of(name)
        lets = []
        for kind in used:
            last = kind is used[-1]
            part = whole if last else apply("mod", whole, self._sizes[kind])
            lets.append(Let(name=_NAMES[kind], value=part))
            whole = apply("floordiv", whole, self._sizes[kind])
        return tuple(lets), name


def _combine(expr: Expr) -> Combine:
    combine = OPS[expr.op.name].combine
    assert combine is not None
    return combine


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)


def _merge_ifs(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Yield statements, with consecutive ones under the same condition in one If."""
    waiting: If | None = None
    for statement in statements:
        plain = isinstance(statement, If) and not statement.otherwise and not statement.origin
        if plain and waiting is not None and isinstance(statement, If) and statement.condition == waiting.condition:
            waiting = replace(waiting, then=(*waiting.then, *statement.then))
            continue
        if waiting is not None:
            yield waiting
        waiting = statement if plain and isinstance(statement, If) else None
        if waiting is None:
            yield statement
    if waiting is not None:
        yield waiting


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
        names = {t.name for root in terms_of(statement) for t in root.walk() if isinstance(t, Var)}
        yield from names - visible
        match statement:
            case Let(name=name):
                visible |= {name}
            case Loop(body=inner):
                yield from _read_outside(inner, visible)
            case If(then=then, otherwise=otherwise):
                yield from _read_outside(then, visible)
                yield from _read_outside(otherwise, visible)


def _updating(body: tuple[Statement, ...], begun: frozenset[str]) -> tuple[Statement, ...]:
    """Return a body that updates the variables that have an initial value."""
    def updating(statement: Statement) -> Statement:
        match statement:
            case Let(name=name) if name in begun:
                return replace(statement, update=True)
            case Loop(body=inner):
                return replace(statement, body=_updating(inner, begun))
            case If(then=then, otherwise=otherwise):
                return replace(statement, then=_updating(then, begun), otherwise=_updating(otherwise, begun))
            case _:
                return statement

    return tuple(map(updating, body))


def _used_buffers(body: tuple[Statement, ...]) -> set[str]:
    names: set[str] = set()
    for statement in walk(body):
        if isinstance(statement, Store | VectorLoad | VectorStore):
            names.add(statement.buffer.name)
        for root in terms_of(statement):
            names |= {t.buffer.name for t in root.walk() if isinstance(t, Load)}
    return names


def _scalars(body: tuple[Statement, ...]) -> tuple[Var, ...]:
    defined = {s.name for s in walk(body) if isinstance(s, Let | Reduce)}
    scalars: dict[Var, None] = {}
    for statement in walk(body):
        for root in terms_of(statement):
            for term in root.walk():
                if isinstance(term, Var) and term.dtype is not DataType.Index and term.name not in defined:
                    scalars[term] = None
    return tuple(scalars)

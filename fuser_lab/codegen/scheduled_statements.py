"""The statements of a fusion scheduled by hand, in the order of its loops.

Each tensor is computed by its own loops; loops that several tensors share (`Loops.class_of`) are opened once. There is
a barrier between writes to and reads from an array of the block.

Reductions over the threads of one direction of a block: the threads of whole warps, and those of a power of two within
a warp, exchange registers (`Reduce`). Others combine their values in shared memory by a tree: its lower half adds the
upper half's, until one thread has the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.codegen.index_map import ZERO
from fuser_lab.codegen.index_math import linear, simplify, substitute, variables
from fuser_lab.codegen.kernel_ir import Barrier, Buffer, If, Load, Loop, Reduce, Role, Scope, Statement, Store
from fuser_lab.codegen.scheduled_elements import NUMBERS, THREADS, Elements
from fuser_lab.codegen.scheduled_loops import Ranges, index_of, operand_of
from fuser_lab.codegen.scheduled_memory import Memory, assignment
from fuser_lab.codegen.values import call_text
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, OpKind
from fuser_lab.ir.loop_order import Item, group_items
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, cast, index
from fuser_lab.ir.transform import GLOBAL, MemoryType, ParallelType
from fuser_lab.ops import OPS
from fuser_lab.ops.rules import Combine

_WITHIN = frozenset({ParallelType.unroll, ParallelType.vectorize})  # loops inside a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A direction of a block: its parallel type, its number of threads, and the variable of a thread's number."""

    kind: ParallelType
    threads: int
    number: Var


def over_threads(
    expr: Expr, combine: Combine, total: Term, among: Sequence[Direction], block: Sequence[Direction],
    memory: Memory, ranges: Ranges, *, name: str, repeated: bool,
) -> list[Statement]:
    """Return the statements after which every thread has the combined values of the threads of some directions.

    ``total`` is the location of a thread's value, ``block`` all directions of the block in x, y, z; ``name`` is an
    unused variable, and ``repeated`` whether the thread runs the statements several times.
    """
    statements: list[Statement] = []
    for direction in among:
        scope = _scope(direction, block)
        if scope is None:
            statements += _tree(expr, combine, total, direction, block, memory, ranges)
            continue
        dtype = expr.out.dtype.compute
        statements.append(
            Reduce(
                name=name, fn=combine.fn, value=total, identity=combine.identity(expr.out.dtype), scope=scope,
                origin=expr.name, note=f"{expr.name} over the {direction.threads} threads of {direction.kind.value}",
            ),
        )
        statements.append(assignment(total, Var(dtype, name), expr, "", update=True))
        if scope is Scope.BLOCK and repeated:
            # The next iteration writes to the memory through which the warps exchange their results.
            statements.append(Barrier(origin=expr.name))
    return statements


def _scope(direction: Direction, block: Sequence[Direction]) -> Scope | None:
    """Return the scope of a `Reduce` over the threads of one direction; None if only a tree combines them."""
    count = direction.threads
    if direction.kind is not ParallelType.block_x:
        return None
    if count <= WARP:
        return Scope.WARP if count & (count - 1) == 0 else None
    alone = all(other.threads == 1 for other in block if other is not direction)
    return Scope.BLOCK if alone and count % WARP == 0 else None


def _tree(
    expr: Expr, combine: Combine, total: Term, direction: Direction, block: Sequence[Direction], memory: Memory,
    ranges: Ranges,
) -> list[Statement]:
    """Return the tree that combines the values of the threads along one direction, through shared memory."""
    dtype = expr.out.dtype.compute
    size = prod(other.threads for other in block)
    tree = memory.used(Buffer(name=f"{expr.name}_threads", dtype=dtype, size=size, role=Role.SHARED))
    count, step, distance, place = direction.threads, 1, 1, index(0)
    for other in block:
        if other is direction:
            distance = step
        if other.threads > 1:
            place = place + other.number * step
        step *= other.threads
    place = simplify(place, ranges)
    note = f"{expr.name} over the {count} threads of {direction.kind.value}, halving their number each time"
    statements: list[Statement] = [Store(buffer=tree, position=place, value=total, origin=expr.name, note=note)]
    half = 1 << (count - 1).bit_length()
    while half > 1:
        half //= 2
        other_place = simplify(place + index(half * distance), ranges)
        sums = Apply(dtype, combine.fn, (Load(dtype, tree, place), Load(dtype, tree, other_place)))
        store = Store(buffer=tree, position=place, value=sums, origin=expr.name)
        statements += [
            Barrier(origin=expr.name),
            If(condition=apply("lt", direction.number, min(half, count - half)), origin=expr.name, then=(store,)),
        ]
    first = simplify(place - direction.number * distance, ranges)
    return [
        *statements,
        Barrier(origin=expr.name),
        assignment(total, Load(dtype, tree, first), expr, "", update=True),
        Barrier(origin=expr.name),
    ]


class StatementWriter:
    """Writes the statements of all tensors inside the loops of the schedule, without those over blocks and threads."""

    def __init__(self, elements: Elements) -> None:
        self._elements, self._open, self._ranges = elements, elements.terms, elements.ranges
        self._loops, self._scheduled, self._memory = elements.loops, elements.scheduled, elements.memory
        self._counts: dict[object, int] = {}  # iterations of loops inside a thread, by class
        self._names: dict[str, int] = {}
        self._block = tuple(
            Direction(kind=kind, threads=elements.loops.hardware.get(kind, 1), number=index_of(NUMBERS[kind]))
            for kind in THREADS
        )

    def body(self) -> tuple[Statement, ...]:
        """Return the statements."""
        return self._body(self._items(), 0)

    # The order of statements

    def _items(self) -> list[Item]:
        items: list[Item] = []
        for expr in self._scheduled.fusion.tensor_exprs:
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
                self._open[slot] = index_of(NUMBERS[kind]) if self._loops.hardware[kind] > 1 else ZERO
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
        self._open[key] = index_of(name) if count > 1 else ZERO
        body = self._body(items, depth + 1)
        del self._open[key]
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
        taken = {value.name for value in self._scheduled.fusion.inputs}
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
            terms.append(self._open.get((*slot, part), self._open.get(slot, ZERO)))
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
        conditions = [*self._loops.conditions(name, at, ranges), *self._elements.within(name)]
        note = call_text(expr)
        if item.part == "update":
            source = expr.tensor_inputs[0]
            value = self._elements.read(source, operand_of(expr, expr.out, source, indices), expr, at)
            combine = _combine(expr)
            place = self._memory.place(name, at)
            dtype = expr.out.dtype.compute
            total = Apply(dtype, combine.fn, (place, cast(value, dtype)))
            return [self._elements.guard(conditions, assignment(place, total, expr, note, update=True))]
        value = self._elements.value(expr, indices, at)
        if self._scheduled.tensors[name].memory is GLOBAL:
            index_ = [indices[axis.id] for axis in expr.out.domain.axes]
            conditions += [*self._elements.alone(name), *self._elements.first(name)]
            return [self._elements.guard(conditions, self._elements.store(expr, index_, value, note))]
        if self._scheduled.tensors[name].memory is MemoryType.shared:
            conditions += self._elements.alone(name)
        return [self._elements.guard(conditions, assignment(self._memory.place(name, at), value, expr, note))]

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
        conditions += [*self._elements.within(name, kept_only=True), *self._elements.alone(name)]
        if tensor.memory is GLOBAL:
            store = self._elements.store(expr, [indices[axis.id] for axis in expr.out.domain.axes], result, "")
        else:
            buffer, position = self._memory.shared(name, at)
            store = Store(buffer=buffer, position=position, value=result, origin=expr.name)
        return [*statements, self._elements.guard(conditions, store)]

    def _reduced_threads(self, name: str) -> list[Direction]:
        """Return the directions of the block whose threads a reduction combines."""
        tensor = self._scheduled.tensors[name]
        single = self._loops.single(name)
        over = [i for i, axis in enumerate(tensor.loop) if axis.is_reduction and i not in single]
        kinds = {self._loops.kind((name, position)) for position in over}
        return [direction for direction in self._block if direction.kind in kinds]

    def _is_repeated(self) -> bool:
        """Whether a loop of the thread is open."""
        return any(isinstance(term, Var) and term.name not in NUMBERS.values() for term in self._open.values())


def _combine(expr: Expr) -> Combine:
    combine = OPS[expr.op.name].combine
    assert combine is not None
    return combine


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

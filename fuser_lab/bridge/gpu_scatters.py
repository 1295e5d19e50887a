"""Writes at positions that are data, such as the gradients of look-ups, as kernels on a GPU.

Torch's kernels for some of them sort all positions first. These kernels visit the source in the order of its memory,
and add by atomic instructions, as other compilers do: the order of additions, and with it the last bits of sums of
floats, differs from run to run. 16-bit floats are added in Float, and rounded once. Where the source replaces elements,
torch does not define which of several at one position stays, and ``add`` stores them in any order. Nothing is written
at a position outside its axis.

The launches of a kernel, in which ``sums`` is the result, or memory of its own if the result has 16-bit floats:

    fill:  sums[i] = start[i]
    add:   sums[position] += source[element]
    round: result[i] = sums[i]

If the target is small enough, ``add`` has tables: each block adds in shared memory, and adds its table to ``sums`` at
the end. A table has several copies, so that threads rarely add to the same element at the same time. If one block is
enough, that launch is the only one, and stores start[i] + table[i]. If the target is too large, but the outermost loop
visits its rows one after another, as in a histogram of each row, a table has one row, and each block adds to one row.

If the target is too large for tables, the kernel of the source may add what it would store
(`fuser_lab.bridge.gpu_scatters_in_regions`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from operator import and_
from typing import Any

from fuser_lab.bridge.lowerings import TracedTensor
from fuser_lab.bridge.lowerings.registry import DTYPES
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.scatters import Loops, Scatter, constant, is_read, loops_over, span_of
from fuser_lab.bridge.traced import tensor_of
from fuser_lab.codegen.kernel_ir import (
    ALIGNED,
    Alloc,
    AtomicAdd,
    Barrier,
    Buffer,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    Loop,
    Phase,
    Role,
    Statement,
    Store,
)
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.cost.device import BLOCK_THREADS, KIB, WARP, Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Term, Var, apply, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_limits import IN_FLIGHT
from fuser_lab.targets import with_blocks

_SUMS = {"float16": DataType.Float, "bfloat16": DataType.Float} | {
    name: DTYPES[name] for name in ("float32", "float64", "int32", "int64")}  # the dtype of sums, by that of the target
_THREADS = 256  # of a block without a table: eight blocks fill a multiprocessor
_LAUNCHES = 2  # that fill memory and write at positions
_AT_ONCE = IN_FLIGHT // 2  # elements that a thread loads before it adds the first, each with its position
# Waves of blocks that add to rows: at most a fourth of the multiprocessors is idle at the end. Not measured alone.
_WAVES = 4
_RESERVED = KIB  # bytes of shared memory that each block takes besides its own (CUDA C++ Programming Guide)


def refusal(scatter: Scatter) -> str | None:
    """Return why torch writes at positions on a GPU, or None if a kernel does."""
    if scatter.combine not in {"add", None}:
        return "kernels on a GPU only add or replace at positions"
    if scatter.target.dtype not in (_SUMS if scatter.combine else DTYPES):
        return f"no instruction of these kernels writes elements of {scatter.target.dtype} at positions"
    if torch_for("fuser_lab.bridge").are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on, and writes at equal positions have no order"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """How blocks of threads visit ``count`` elements, `_AT_ONCE` per thread in each round.

    With ``copies`` of a table of ``size`` elements in shared memory, registers are limited so that ``resident`` blocks
    run at a time. ``count`` and ``blocks`` are those of each of some rows.
    """

    count: int
    threads: int
    blocks: int
    rounds: int = 1
    resident: int = 0
    copies: int = 0
    size: int = 0
    rows: int = 1

    @property
    def grid(self) -> int:
        """The number of all blocks."""
        return self.rows * self.blocks

    @property
    def part(self) -> Term:
        """The number of a block among those of its row."""
        return _BLOCK if self.rows == 1 else apply("mod", _BLOCK, self.blocks)

    @property
    def row(self) -> Term:
        """The row of a block."""
        return index(0) if self.rows == 1 else apply("floordiv", _BLOCK, self.blocks)


def visits_of(loops: Loops, size: int, reach: int, dtype: DataType, device: Device, launches: int) -> Visits:
    """Return how a source, visited by loops, is added to a target of some size.

    A table takes ``size`` additions to global memory for each block, so there are tables if that is less than one for
    each element. One block is enough if it needs no more rounds, for source and target, than there are launches
    otherwise, because a round and a launch both wait for memory about once. A table has as many copies as fit and as
    threads can use, but no more elements than its block adds, so that clearing it is less work than the additions.
    Positions reach ``reach`` elements of the target beyond its place in the loops. Tables of rows are for rows that
    have elements for all threads of a block.
    """
    made = _with_tables(loops, size, dtype, device, launches, rows=1)
    if made is None and len(loops) > 1:
        (rows, (_, step, *_)), *inner = loops
        size = 1 + reach + sum((extent - 1) * steps[1] for extent, steps in inner)
        if step >= size and prod(extent for extent, _ in inner) >= BLOCK_THREADS * _AT_ONCE:
            made = _with_tables(tuple(inner), size, dtype, device, 0, rows)
    return made or _plain_visits(prod(extent for extent, _ in loops))


def _with_tables(loops: Loops, size: int, dtype: DataType, device: Device, launches: int, rows: int) -> Visits | None:
    """Return how a source is added in tables of some size, or None if that is no less work."""
    count = prod(extent for extent, _ in loops)
    resident = max(device.threads_per_sm // BLOCK_THREADS, 1)
    budget = min(device.shared_per_block, device.shared_per_sm // resident - _RESERVED)
    if size * dtype.itemsize > budget:
        resident, budget = 1, device.shared_per_block
    fitting = budget // (size * dtype.itemsize)
    at_once = BLOCK_THREADS * _AT_ONCE
    rounds, most = _parts(count, at_once), device.sms * resident
    is_enough = rounds + _parts(size, at_once) <= launches
    blocks = 1 if is_enough else min(most if rows == 1 else _parts(most * _WAVES, rows), rounds)
    if not fitting or (not is_enough and blocks * size >= count):
        return None
    owners = BLOCK_THREADS // WARP if _is_adjacent(loops) else BLOCK_THREADS
    copies = min(fitting, owners, max(count // (blocks * size), 1))
    return Visits(
        count=count, threads=BLOCK_THREADS, blocks=blocks, rounds=_parts(rounds, blocks), size=size, rows=rows,
        resident=resident if resident > 1 else 0, copies=1 << copies.bit_length() - 1,
    )


def _plain_visits(count: int) -> Visits:
    return Visits(count=count, threads=_THREADS, blocks=_parts(count, _THREADS * _AT_ONCE))


def _replacing_visits(count: int, size: int) -> Visits:
    """Return how elements of a target are replaced: by one block if its rounds take no longer than two launches."""
    rounds = _parts(count, BLOCK_THREADS * _AT_ONCE)
    if rounds + _parts(size, BLOCK_THREADS * _AT_ONCE) > _LAUNCHES:
        return _plain_visits(count)
    return Visits(count=count, threads=BLOCK_THREADS, blocks=1, rounds=rounds)


def add_kernel(scatter: Scatter, device: Device, *, over_start: bool = False) -> GeneratedKernel:
    """Return the kernel of writes; its buffers are the operands in order, the result, and ``sums`` if separate.

    With ``over_start``, the result is in the memory of what is added to.
    """
    names = [f"x{number}" for number, _ in enumerate(scatter.operands)]
    made = Additions.of(scatter, device, names, over_start=over_start)
    phases = (made.add(),) if made.is_alone or over_start else (made.fill(), made.add(), *made.rounding())
    return generated_from(
        Kernel(
            name=scatter.op, target=with_blocks().name, scheduler=SchedulerType.EXPR_EVAL, scalars=(), phases=phases,
            inputs=made.inputs, outputs=(made.result,), workspace=() if len(phases) == 1 else made.workspace,
            ops=((scatter.op, scatter.op),),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """The launches of a kernel."""

    scatter: Scatter
    loops: Loops  # over the elements of the source, with its steps, those of the target, and those of the positions
    row: tuple[int, ...]  # the steps between rows, if blocks add to rows, which is outside of the loops
    visits: Visits
    start: Buffer | None  # None for a number, as ``source``
    positions: tuple[Buffer, ...]
    source: Buffer | None
    result: Buffer
    sums: Buffer

    @classmethod
    def of(
        cls, scatter: Scatter, device: Device, names: Iterable[str], prefix: str = "", *, over_start: bool,
    ) -> "Additions":
        """Return the launches of a write; ``names`` are those of the operands' buffers, others begin with a prefix."""
        left = iter(names)

        def read(value: Any) -> Buffer | None:
            return _buffer(next(left), tensor_of(value), Role.INPUT) if is_read(value) else None

        sums = result = _buffer(f"{prefix}result", scatter.target, Role.UPDATED if over_start else Role.OUTPUT)
        if scatter.combine and (dtype := _SUMS[scatter.target.dtype]) is not result.dtype:
            sums = Buffer(name=f"{prefix}sums", dtype=dtype, size=result.size, role=Role.WORKSPACE)
        loops = _in_order(
            scatter.extents, (scatter.source_steps, scatter.steps, *(each.steps for each in scatter.positions)))
        reach = sum((each.size - 1) * each.step for each in scatter.positions)
        launches = _LAUNCHES if sums is result else _LAUNCHES + 1
        visits = visits_of(loops, result.size, reach, sums.dtype, device, launches) if scatter.combine else (
            _replacing_visits(prod(extent for extent, _ in loops), result.size))
        start = read(scatter.start)
        return cls(
            scatter=scatter, visits=visits, loops=loops if visits.rows == 1 else loops[1:],
            row=(0,) * len(loops[0][1]) if visits.rows == 1 else loops[0][1], start=start,
            positions=tuple(filter(None, (read(each.node) for each in scatter.positions))),
            source=read(scatter.source), result=result, sums=sums,
        )

    @property
    def is_alone(self) -> bool:
        """Whether one block writes everything."""
        return self.visits.grid == 1 and self.visits.threads == BLOCK_THREADS

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The buffers of the operands."""
        return tuple(filter(None, (self.start, *self.positions, self.source)))

    @property
    def workspace(self) -> tuple[Buffer, ...]:
        """The memory of sums that are not the result."""
        return () if self.sums is self.result else (self.sums,)

    @property
    def _start_buffers(self) -> tuple[Buffer, ...]:
        return () if self.start is None else (self.start,)

    def fill(self) -> Phase:
        """Return the launch that stores the elements before anything is written at positions."""
        return self._of_elements("fill", (*self._start_buffers, self.sums), self._fill_element)

    def _fill_element(self, at: Term, other: Term) -> Statement:
        return self._put(self.sums, at, self._start_term(other))

    def rounding(self) -> tuple[Phase, ...]:
        """Return the launch that rounds sums, if they are not the result."""
        return tuple(
            self._of_elements("round", (sums, self.result), lambda at, _: self._put(
                self.result, at, Load(self.sums.dtype, self.sums, at)))
            for sums in self.workspace
        )

    @staticmethod
    def _put(buffer: Buffer, at: Term, value: Term) -> Statement:
        return Store(buffer=buffer, position=at, value=cast(value, buffer.dtype))

    def _start_term(self, place: Term) -> Term:
        """Return the element that is added to, in the dtype of sums."""
        if self.start is None:
            return constant(self.sums.dtype, self.scatter.start)
        return cast(Load(self.start.dtype, self.start, place), self.sums.dtype)

    def _elements(self) -> Loops:
        """Return loops over the elements of the target, with its steps and those of ``start``."""
        target = self.scatter.target
        read = target if self.start is None else tensor_of(self.scatter.start)
        return _in_order(target.shape, (target.strides, read.strides))

    def _of_elements(self, name: str, buffers: Sequence[Buffer], store: Callable[[Term, Term], Statement]) -> Phase:
        """Return a launch with a statement for each element of the target, of its places there and in ``start``."""
        loops = self._elements()
        visits = _plain_visits(prod(extent for extent, _ in loops))

        def visit(numbers: Sequence[Term], prefix: str) -> Iterator[Statement]:
            for k, number in enumerate(numbers):
                lets, (at, other) = _places(loops, number, f"{prefix}{k}")
                yield from (*lets, store(at, other))

        return self._phase(name, visits, buffers, _visits_in(visits, visit))

    def _fill_number(self, elements: Loops, number: Term) -> tuple[Statement, ...]:
        lets, (at, other) = _places(elements, number, "c")
        return *lets, self._fill_element(at, other)

    def add(self) -> Phase:
        """Return the launch that writes all elements of the source."""
        visits, table = self.visits, None
        if visits.copies:
            table = _Table(
                buffer=Buffer(name="table", dtype=self.sums.dtype, size=visits.size * visits.copies,
                              role=Role.SHARED),
                copies=visits.copies, by_warp=_is_adjacent(self.loops),
            )
        body = _visits_in(visits, partial(self._reads_and_additions, table))
        buffers = [*self.positions, *([self.source] if self.source else [])]
        if table is None:
            elements = self._elements()
            if self.is_alone:
                filled = _by_block(
                    prod(extent for extent, _ in elements), visits.threads, "s", partial(self._fill_number, elements))
                body = (*filled, Barrier(), *body)
            started = self._start_buffers if self.is_alone else ()
            return self._phase("add", visits, list(dict.fromkeys((*started, *buffers, self.sums))), body)
        shared = table.buffer.nbytes if table.buffer.is_dynamic else 0
        body = (Alloc(buffer=table.buffer), *table.clear(visits.threads), Barrier(), *body, Barrier())
        if not self.is_alone:
            flushed = _by_block(visits.size, visits.threads, "s", lambda at: table.sum(at, lambda total: AtomicAdd(
                buffer=self.sums, position=at + visits.row * self.row[1], value=total,
                condition=apply("ne", total, 0))))
            return self._phase("add", visits, [*buffers, self.sums], (*body, *flushed), shared)
        elements = self._elements()

        def finish(number: Term) -> tuple[Statement, ...]:
            lets, (at, other) = _places(elements, number, "c")
            return *lets, *table.sum(at, lambda total: self._put(self.result, at, self._start_term(other) + total))

        body = (*body, *_by_block(prod(extent for extent, _ in elements), visits.threads, "s", finish))
        buffers = list(dict.fromkeys((*self._start_buffers, *buffers, self.result)))
        return self._phase("add", visits, buffers, body, shared)

    def _phase(
        self, name: str, visits: Visits, buffers: Sequence[Buffer], body: tuple[Statement, ...], shared: int = 0,
    ) -> Phase:
        parts = ((_THREAD, visits.threads, ParallelType.block_x), (_BLOCK, visits.grid, ParallelType.grid_x))
        for variable, extent, parallel in parts:
            body = (Loop(var=variable.name, start=index(0), stop=index(extent), parallel=parallel, body=body),)
        return Phase(
            name=f"{self.scatter.op}_{name}", buffers=tuple(buffers), scalars=(), body=body,
            launch=Launch(
                blocks=visits.grid, threads=(visits.threads, 1), shared=shared, resident=visits.resident),
        )

    def _reads_and_additions(
        self, table: "_Table | None", numbers: Sequence[Term], prefix: str,
    ) -> Iterator[Statement]:
        """Yield the loads of all elements with some numbers, then their additions."""
        dtype, added = self.sums.dtype, list[Statement]()
        for k, number in enumerate(numbers):
            loads, wraps, source_at, at, condition = self.position(number, f"{prefix}{k}")
            read = constant(dtype, self.scatter.source, source_at) if self.source is None else cast(
                Load(self.source.dtype, self.source, source_at), dtype)
            value = Var(dtype, f"{prefix}{k}_value")
            yield from (*loads, Let(name=value.name, value=read))
            buffer, at = (self.sums, at) if table is None else (table.buffer, table.place(at))
            added += (*wraps, self.write(buffer, at, value, condition))
        yield from added

    def write(self, buffer: Buffer, at: Term, value: Term, condition: Term) -> Statement:
        """Return the write of one element if a condition holds."""
        if self.scatter.combine is None:
            return If(condition=condition, then=(self._put(buffer, at, value),))
        return AtomicAdd(buffer=buffer, position=at, value=cast(value, buffer.dtype), condition=condition)

    def position(self, number: Term, name: str) -> tuple[list[Statement], list[Statement], Term, Term, Term]:
        """Return the place in the source of an element with a number, that in the target, and whether it exists.

        Before them are the statements that load positions, and those that make them count from the beginning.
        """
        lets, (source_at, at, *places) = _places(self.loops, number, name)
        wraps: list[Statement] = []
        conditions: list[Term] = []
        if self.visits.rows > 1:
            source_at, *places = (
                place + self.visits.row * step
                for place, step in zip((source_at, *places), (self.row[0], *self.row[2:]), strict=True)
            )
        for n, (each, buffer, place) in enumerate(zip(self.scatter.positions, self.positions, places, strict=True)):
            here = Var(DataType.Index, f"{name}_at_{n}")
            lets.append(Let(name=here.name, value=cast(Load(buffer.dtype, buffer, place), DataType.Index)))
            if each.wraps:
                wrapped = Var(DataType.Index, f"{name}_within_{n}")
                wraps.append(Let(name=wrapped.name, value=select(here < 0, here + each.size, here)))
                here = wrapped
            conditions += [here >= 0, here < each.size]
            if self.scatter.skipped is not None:
                conditions.append(apply("ne", here, self.scatter.skipped))
            at = at + here * each.step
        return lets, wraps, source_at, at, reduce(and_, conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Copies of a target in shared memory.

    With ``by_warp``, a warp adds to adjacent elements, and warps have different copies, one after another. Otherwise
    the lanes of a warp have different copies, and those of an element are adjacent, which is in different banks.
    """

    buffer: Buffer
    copies: int
    by_warp: bool

    def _at(self, element: Term, copy: Term) -> Term:
        if self.by_warp:
            return element + copy * (self.buffer.size // self.copies)
        return element * self.copies + copy

    def place(self, element: Term) -> Term:
        """Return the place of an element in the copy of a thread."""
        owner = apply("floordiv", _THREAD, WARP) if self.by_warp else _THREAD
        return self._at(element, apply("mod", owner, self.copies))

    def clear(self, threads: int) -> tuple[Statement, ...]:
        """Return the stores of zeros."""
        zero = constant(self.buffer.dtype, 0)
        return _by_block(self.buffer.size, threads, "z", lambda at: (
            Store(buffer=self.buffer, position=at, value=zero),))

    def sum(self, element: Term, used: Callable[[Term], Statement]) -> tuple[Statement, ...]:
        """Return the sum of all copies of an element, and a statement that uses it."""
        copy, total = Var(DataType.Index, "copy"), Var(self.buffer.dtype, "total")
        # Threads begin with different copies, which are in different banks.
        place = self._at(element, copy if self.by_warp else apply("mod", copy + _THREAD, self.copies))
        more = Let(name=total.name, value=total + Load(self.buffer.dtype, self.buffer, place), update=True)
        zero = Let(name=total.name, value=constant(self.buffer.dtype, 0))
        return zero, _serial(copy, self.copies, (more,)), used(total)


_BLOCK, _THREAD = Var(DataType.Index, "block"), Var(DataType.Index, "thread")


def _buffer(name: str, tensor: TracedTensor, role: Role) -> Buffer:
    dtype = DTYPES[tensor.dtype]
    alignment = dtype.itemsize if role is Role.INPUT else ALIGNED
    return Buffer(name=name, dtype=dtype, size=span_of(tensor), role=role, alignment=alignment)


def _is_adjacent(loops: Loops) -> bool:
    """Whether the threads of most warps add to different elements of one position."""
    extent, (_, target, *positions) = loops[-1]
    return extent >= WARP and target != 0 and not any(positions)


def _parts(count: int, size: int) -> int:
    return -(-count // size)


def _in_order(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> Loops:
    """Return loops in which adjacent threads visit adjacent elements of the first tensor that has steps."""
    first = [next((step for step in along if step), 0) for along in zip(*steps, strict=True)]
    order = sorted(range(len(extents)), key=lambda axis: -first[axis])
    loops = loops_over([extents[axis] for axis in order], [[along[axis] for axis in order] for along in steps])
    return loops or ((1, (0,) * len(steps)),)


def _places(loops: Loops, number: Term, name: str) -> tuple[list[Statement], list[Term]]:
    """Return the places in all tensors of the element with a number, and the statements that they need."""
    lets: list[Statement] = []
    places = [index(0)] * len(loops[0][1])
    for depth, (extent, steps) in reversed(list(enumerate(loops))):
        at = number
        if depth:
            at, rest = Var(DataType.Index, f"{name}_{depth}"), Var(DataType.Index, f"{name}_to_{depth}")
            lets += [
                Let(name=at.name, value=apply("mod", number, extent)),
                Let(name=rest.name, value=apply("floordiv", number, extent)),
            ]
            number = rest
        places = [place + at * step for place, step in zip(places, steps, strict=True)]
    return lets, places


def _visits_in(visits: Visits, visit: Callable[[Sequence[Term], str], Iterator[Statement]]) -> tuple[Statement, ...]:
    """Return the statements for the elements of a thread; adjacent threads visit adjacent elements.

    ``visit`` yields those for elements that exist, given their numbers; the names that they define have a prefix.
    """
    step, first, turn, last = (Var(DataType.Index, name) for name in ("step", "first", "turn", "last"))
    part = visits.part if visits.rounds == 1 else step * visits.blocks + visits.part
    whole = tuple(visit([first + k * visits.threads for k in range(_AT_ONCE)], "e"))
    if visits.blocks * visits.rounds * visits.threads * _AT_ONCE > visits.count:
        rest = _serial(turn, _AT_ONCE, (
            Let(name=last.name, value=first + turn * visits.threads),
            If(condition=last < visits.count, then=tuple(visit([last], "r"))),
        ))
        exist = first < visits.count - (_AT_ONCE - 1) * visits.threads
        whole = (If(condition=exist, then=whole, otherwise=(rest,)),)
    body = (Let(name=first.name, value=part * (visits.threads * _AT_ONCE) + _THREAD), *whole)
    return body if visits.rounds == 1 else (_serial(step, visits.rounds, body),)


def _by_block(
    size: int, threads: int, name: str, statements: Callable[[Term], tuple[Statement, ...]],
) -> tuple[Statement, ...]:
    """Return statements for each of some elements, which the threads of a block visit in turns."""
    turn, at = Var(DataType.Index, f"{name}_turn"), Var(DataType.Index, f"{name}_at")
    body = (Let(name=at.name, value=turn * threads + _THREAD), If(condition=at < size, then=statements(at)))
    return (_serial(turn, _parts(size, threads), body),)


def _serial(variable: Var, extent: int, body: tuple[Statement, ...]) -> Loop:
    return Loop(var=variable.name, start=index(0), stop=index(extent), parallel=ParallelType.serial, body=body)

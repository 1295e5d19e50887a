"""Scans on a GPU: the threads of a block or warp scan a row together, or adjacent threads scan columns.

Both are processed in rounds. In each, a thread has a few consecutive elements, or a few rows of a few columns; they are
loaded once, before anything waits for them, and stay in registers. The threads exchange the totals of preceding
threads, and the total of preceding rounds is carried.

If rows or columns are too few to fill the GPU, each is cut into parts of some rounds. A first phase stores the total of
each part, and a block of the second phase begins with those of the preceding parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from fuser_lab.codegen.gpu_common import (
    bound,
    each_neighbour,
    each_round,
    fetch,
    gpu_phase,
    know_word,
    neighbours,
    open_lanes,
    open_lines,
    open_rounds,
    scope_of,
    share,
    words_of,
)
from fuser_lab.codegen.gpu_facts import gpu_facts
from fuser_lab.codegen.gpu_row_steps import RowGroups, each_of_group, fetch_group, place_in_row
from fuser_lab.codegen.gpu_rows import divide_groups
from fuser_lab.codegen.kernel_ir import Barrier, Buffer, Launch, Let, Load, Phase, Role
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import (
    ZERO,
    Fold,
    PhaseCode,
    Places,
    close_folds,
    open_folds,
    open_loop,
    update,
    write_point,
)
from fuser_lab.codegen.scan_writing import (
    Running,
    carried_values,
    check_scanned_columns,
    know_results,
    open_scan,
    operand,
    scan_levels,
)
from fuser_lab.codegen.values import Values
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Term, apply, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import NestKind

_FEW_ROUNDS = 16  # of which a sum of Float is within 1e-6 of the exact one: each has an error of 6e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """How threads share the rows or columns of a nest with scans."""

    nest: NestPlan = field(repr=False)
    groups: int  # of adjacent elements of a row, or of adjacent columns
    rounds: int  # in which a row or a column is processed
    loads: Mapping[TensorView, int]  # inputs whose groups are loaded, with the width of accesses
    levels: tuple[tuple[Expr, ...], ...]  # the scans by the number of other scans they depend on
    is_wide: bool  # whether sums are carried in a wider type, because there are many rounds
    clears: bool  # whether some elements of threads are beyond the end
    each: int  # rounds of a part, of which blocks process one each

    @property
    def size(self) -> int:
        """Elements of a thread in a round."""
        return self.nest.schedule.unroll * self.nest.schedule.vector


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scans:
    """The scans of a thread while they are written, in levels, and the words of its inputs."""

    plan: ScanPlan
    code: PhaseCode
    words: Mapping[TensorView, Buffer]
    levels: tuple[tuple[Running, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns of a thread: its numbers in the block, and the block's number."""

    block: Term
    line: Term
    lane: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """The exchange of threads that share columns for one scan: the last element of each thread's columns.

    ``carried`` holds the totals before a round, for the columns that a thread adds up for all others; ``before`` holds
    the totals before the rows of a thread.
    """

    shared: Buffer | None
    carried: Buffer
    before: Buffer


def scan_plan(nest: NestPlan) -> ScanPlan:
    """Return how threads share the rows or columns of a nest with scans."""
    facts, schedule, space = gpu_facts(nest.facts), nest.schedule, nest.facts.space
    lanes, height = schedule.threads
    if schedule.kind is NestKind.BLOCK_SCANNED_ROWS:
        axes, groups = facts.nest.reduced, space.groups(schedule.vector)
        rounds = -(-groups // (lanes * schedule.unroll))
        divides = facts.lead is not None and schedule.vector > 1
    else:
        check_scanned_columns(facts.nest)
        axes, groups = facts.nest.kept, -(-space.rows // schedule.vector)
        rounds = -(-space.depth // (height * schedule.unroll))
        divides = -(-groups // lanes) * lanes > groups
    each = -(-rounds // schedule.split)
    along = each * schedule.split * schedule.unroll * (lanes if axes is facts.nest.reduced else height)
    clears = divides or along > (groups if axes is facts.nest.reduced else space.depth)
    fast = axes[-1] if axes else None
    return ScanPlan(
        nest=nest, groups=groups, rounds=rounds, levels=scan_levels(facts.fusion, facts.nest),
        loads={tv: size for tv in facts.scanned_inputs if (size := facts.width_of_group(tv, fast, schedule.vector))},
        is_wide=rounds > _FEW_ROUNDS, clears=clears, each=each,
    )


def write_scans(plan: ScanPlan) -> Iterator[Phase]:
    """Yield the phases of a nest with scans along rows or columns."""
    write = _rows if plan.nest.schedule.kind is NestKind.BLOCK_SCANNED_ROWS else _columns
    if plan.nest.schedule.split > 1:
        yield replace(gpu_phase(plan.nest, "_totals", partial(write, plan, totals=True)), prepares=True)
    yield gpu_phase(plan.nest, "", partial(write, plan, totals=False))


def _open(plan: ScanPlan, code: PhaseCode, size: int) -> _Scans:
    """Allocate the words of inputs and ``size`` elements of scans."""
    return _Scans(
        plan=plan, code=code, words={tv: words_of(code.values, tv, plan.size, "next") for tv in plan.loads},
        levels=tuple(
            tuple(open_scan(code.values, expr, size, wide=plan.is_wide) for expr in level)
            for level in plan.levels
        ),
    )


def _parts(plan: ScanPlan, scan: Running) -> Buffer:
    """Return the memory of the totals of parts, which has the parts of a row or of all columns one after another."""
    size = plan.nest.facts.space.rows * plan.nest.schedule.split
    return Buffer(name=f"{scan.expr.name}_parts", dtype=scan.first.dtype, size=size, role=Role.WORKSPACE)


def _combine(scan: Running, a: Term, b: Term) -> Term:
    """Return two values of a scan combined, in the dtype of the first."""
    return Apply(a.dtype, scan.fn, (a, cast(b, a.dtype)))


def _fold(scan: Running, total: Term) -> Fold:
    """Return the reduction of the elements of a scan."""
    return Fold(expr=scan.expr, fn=scan.fn, identity=scan.identity, total=total)


def _clear(values: Values, level: Sequence[Running]) -> None:
    """Set elements beyond the end to a value without effect."""
    with each_round(values, "slot", level[0].elements.size) as slot:
        for scan in level:
            values.put(scan.elements, slot, scan.identity)


def _keep(code: PhaseCode, level: Sequence[Running], places: Places, slot: Term) -> None:
    """Compute the operands of some scans at one position, and keep them at a slot."""
    slot = code.values.simplify(slot)
    for scan in level:
        value = operand(code, scan.expr, places)
        code.values.put(scan.elements, slot, value, scan.expr.name)


# Along rows


def _rows(plan: ScanPlan, code: PhaseCode, *, totals: bool) -> Launch:
    """Write scans along rows, or the ``totals`` of their parts."""
    values, schedule, facts = code.values, plan.nest.schedule, gpu_facts(plan.nest.facts)
    (lanes, height), width, unroll, count = schedule.threads, schedule.vector, schedule.unroll, facts.space.rows
    blocks, split = -(-count // height), schedule.split
    with ExitStack() as stack:
        number: Term = open_loop(values, stack, "block", blocks * split, ParallelType.grid_x)
        block = values.quotient(number, split) if split > 1 else number
        part = values.remainder(number, split) if split > 1 else ZERO
        position = block * height + open_lines(values, stack, height)
        lane = open_lanes(values, stack, "lane", lanes)
        row: Term = ZERO
        if count > 1:
            # Lanes that share a row are all active or all inactive. The guard is written even if all blocks are full.
            reach = blocks if height == 1 else max(blocks * height, count + 1)
            row = bound(values, stack, "row", position, count, reach)
        groups = RowGroups(code=code, width=width, places=code.flat(code.nest.kept, row))
        if facts.lead is not None and width > 1:
            groups = divide_groups(facts, stack, groups)
        scans = _open(plan, code, 0 if totals else plan.size)
        (first,) = scans.levels[0][:1]
        total = _fold(first, ZERO if split == 1 else values.let(f"{first.name}_total", first.identity))
        parts = _parts(plan, first)
        carried = {} if totals else carried_values(values, scans.levels)
        if split > 1 and not totals:
            with ExitStack() as earlier:
                step = open_rounds(values, earlier, "step", -(-split // lanes))
                before = values.let("preceding", values.simplify(step * lanes + lane))
                earlier.enter_context(values.guard(before < part))
                update(values, total, Load(parts.dtype, parts, values.simplify(row * split + before)))
            (total,) = share(values, [total], scope_of(schedule))
            values.emit(Let(
                name=carried[first.expr].name, value=_combine(first, carried[first.expr], total.total), update=True,
                origin=first.expr.name,
            ))
        folds = open_folds(values, code.nest.reductions)
        rounds = stack.enter_context(ExitStack())
        start = values.simplify((part * plan.each + open_rounds(values, rounds, "round", plan.each)) * unroll)

        @contextmanager
        def each_step() -> Iterator[tuple[Term, Term]]:
            """Open a loop over the groups of a thread in a round."""
            with ExitStack() as steps:
                u = open_rounds(values, steps, "u", unroll)
                reach = plan.each * split * unroll * lanes
                yield u, bound(values, steps, "g", (start + u) * lanes + lane, plan.groups, reach)

        def each_element(preceding: Sequence[Running], write: Callable[[Places, Term], None]) -> None:
            """Write something for each element of a thread, with inputs and the results of some scans available."""
            with each_step() as (u, group):

                def write_element(v: Term) -> None:
                    here, slot = place_in_row(groups, group, v), values.simplify(u * width + v)
                    for tensor, words in scans.words.items():
                        know_word(code, tensor, words, here, slot)
                    elements = {scan.expr: Load(scan.elements.dtype, scan.elements, slot) for scan in preceding}
                    know_results(code, elements, here)
                    write(here, slot)

                each_of_group(groups, group, write_element)

        with each_step() as (u, group):
            for tensor, words in scans.words.items():
                fetch_group(groups, tensor, plan.loads[tensor], words, group, u * width)
        if totals:
            each_element((), lambda here, _: update(values, total, operand(code, first.expr, here)))
            rounds.close()
            (total,) = share(values, [total], scope_of(schedule))
            with values.guard(apply("eq", lane, 0)):
                values.put(parts, values.simplify(row * split + part), cast(total.total, parts.dtype), first.expr.name)
            return Launch(blocks=blocks * split, threads=schedule.threads)
        preceding: list[Running] = []
        for level in scans.levels:
            if plan.clears:
                _clear(values, level)
            each_element(preceding, partial(_keep, code, level))
            for scan in level:
                values.emit(scan.over(unroll, width, carried[scan.expr], scope_of(schedule)))
            preceding += level
        each_element(preceding, lambda here, slot: write_point(code, here, folds, code.nest.full, {}, slot))
        rounds.close()
        close_folds(code, share(values, folds, scope_of(schedule)), groups.places)
        if code.nest.rows:
            with values.guard(apply("eq", lane, 0)):
                code.store(code.nest.rows, groups.places)
    return Launch(blocks=blocks * split, threads=schedule.threads)


# Down columns


def _columns(plan: ScanPlan, code: PhaseCode, *, totals: bool) -> Launch:
    """Write scans down columns, of which adjacent ones are adjacent in memory, or the ``totals`` of their parts."""
    values, schedule = code.values, plan.nest.schedule
    (lanes, height), width, unroll, split = schedule.threads, schedule.vector, schedule.unroll, schedule.split
    blocks = -(-plan.groups // lanes)
    with ExitStack() as stack:
        number: Term = open_loop(values, stack, "block", blocks * split, ParallelType.grid_x)
        block = values.remainder(number, blocks) if split > 1 else number
        part = values.quotient(number, blocks) if split > 1 else ZERO
        columns = _Columns(
            block=block, line=open_lines(values, stack, height), lane=open_lanes(values, stack, "lane", lanes),
        )
        scans = _open(plan, code, 0 if totals else plan.size)
        exchanges = {scan: _exchange(plan, code, scan) for level in scans.levels for scan in level}
        ((first, exchange),) = [*exchanges.items()][:1]
        if split > 1:
            with each_round(values, "slot", width) as slot:
                values.put(exchange.before, slot, first.identity, first.expr.name)
        if split > 1 and not totals:
            _begin_with_parts(plan, code, columns, first, exchange, part)
        rounds = stack.enter_context(ExitStack())
        start = part * plan.each + open_rounds(values, rounds, "round", plan.each)
        start = values.simplify(start * (height * unroll) + columns.line * unroll)
        with _each_row(plan, code, columns, start) as (u, q, group):
            place = {**code.flat(code.nest.reduced, q), **neighbours(code, code.nest.kept, width, group, ZERO)}
            for tensor, words in scans.words.items():
                fetch(code, tensor, place, plan.loads[tensor], words, u * width, width)
        if totals:
            with _each_row(plan, code, columns, start) as (u, q, group), each_neighbour(values, width) as v:
                value = operand(code, first.expr, _place_in_column(scans, {}, q, group, u, v))
                values.put(exchange.before, v, _combine(first, Load(value.dtype, exchange.before, v), value))
            rounds.close()
            _store_parts(plan, code, columns, first, exchange, part)
            return Launch(blocks=blocks * split, threads=schedule.threads)
        preceding: dict[Running, _Exchange] = {}
        for level in scans.levels:
            if plan.clears:
                _clear(values, level)
            with _each_row(plan, code, columns, start) as (u, q, group), each_neighbour(values, width) as v:
                _keep(code, level, _place_in_column(scans, preceding, q, group, u, v), u * width + v)
            for scan in level:
                _exchange_totals(plan, code, columns, scan, exchanges[scan])
            preceding |= {scan: exchanges[scan] for scan in level}
        with _each_row(plan, code, columns, start) as (u, q, group), each_neighbour(values, width) as v:
            code.store(code.nest.full, _place_in_column(scans, preceding, q, group, u, v))
    return Launch(blocks=blocks * split, threads=schedule.threads)


def _begin_with_parts(
    plan: ScanPlan, code: PhaseCode, columns: _Columns, scan: Running, exchange: _Exchange, part: Term,
) -> None:
    """Carry the totals of preceding parts: each line of threads adds up some of them."""
    values, schedule, parts, space = code.values, plan.nest.schedule, _parts(plan, scan), plan.nest.facts.space
    (lanes, height), width, before = schedule.threads, schedule.vector, exchange.before
    with ExitStack() as stack:
        group = bound(
            values, stack, "g", columns.block * lanes + columns.lane, plan.groups, -(-plan.groups // lanes) * lanes,
        )
        step = open_rounds(values, stack, "step", -(-schedule.split // height))
        preceding = values.let("preceding", values.simplify(step * height + columns.line))
        stack.enter_context(values.guard(preceding < part))
        with each_round(values, "v", width) as v:
            value = Load(parts.dtype, parts, values.simplify(preceding * space.rows + group * width + v))
            values.put(before, v, _combine(scan, Load(before.dtype, before, v), value), scan.expr.name)
    with _each_total(plan, code, columns, scan, exchange) as (_, slot, total):
        carried = Load(exchange.carried.dtype, exchange.carried, slot)
        values.put(exchange.carried, slot, _combine(scan, carried, total), scan.expr.name)
    values.emit(Barrier())


def _store_parts(
    plan: ScanPlan, code: PhaseCode, columns: _Columns, scan: Running, exchange: _Exchange, part: Term,
) -> None:
    """Store the totals of a part of the columns of a block."""
    values, schedule, parts, space = code.values, plan.nest.schedule, _parts(plan, scan), plan.nest.facts.space
    lanes = schedule.threads[0]
    with _each_total(plan, code, columns, scan, exchange) as (column, _, total), ExitStack() as stack:
        group = bound(
            values, stack, "g", columns.block * lanes + columns.lane, plan.groups, -(-plan.groups // lanes) * lanes,
        )
        position = values.simplify(part * space.rows + group * schedule.vector + column)
        values.put(parts, position, cast(total, parts.dtype), scan.expr.name)


@contextmanager
def _each_total(
    plan: ScanPlan, code: PhaseCode, columns: _Columns, scan: Running, exchange: _Exchange,
) -> Iterator[tuple[Term, Term, Term]]:
    """Open a loop over the columns that a thread adds up for all others: a column, its slot and its total."""
    values, (lanes, height), width = code.values, plan.nest.schedule.threads, plan.nest.schedule.vector
    before, shared = exchange.before, exchange.shared
    if shared is None:
        with each_round(values, "v", width) as v:
            yield v, v, Load(before.dtype, before, v)
        return
    line, mine = lanes * width, columns.line * (lanes * width) + columns.lane * width
    with each_round(values, "v", width) as v:
        values.put(shared, values.simplify(mine + v), Load(before.dtype, before, v))
    values.emit(Barrier())
    with ExitStack() as stack:
        slot = open_rounds(values, stack, "slot", exchange.carried.size)
        column = bound(values, stack, "column", slot * height + columns.line, width, exchange.carried.size * height)
        total = values.let(f"{scan.name}_all", scan.identity, origin=scan.expr.name)
        with values.loop("other", height, ParallelType.serial) as other:
            value = Load(shared.dtype, shared, values.simplify(other * line + columns.lane * width + column))
            values.emit(Let(name=total.name, value=_combine(scan, total, value), update=True, origin=scan.expr.name))
        yield column, slot, total


@contextmanager
def _each_row(plan: ScanPlan, code: PhaseCode, columns: _Columns, start: Term) -> Iterator[tuple[Term, Term, Term]]:
    """Open a loop over the rows of a thread in a round; threads beyond the last row or column skip it."""
    values, schedule, depth = code.values, plan.nest.schedule, plan.nest.facts.space.depth
    lanes, height = schedule.threads
    blocks, reach = -(-plan.groups // lanes), plan.each * schedule.split * height * schedule.unroll
    with ExitStack() as stack:
        group = bound(values, stack, "g", columns.block * lanes + columns.lane, plan.groups, blocks * lanes)
        u = open_rounds(values, stack, "u", schedule.unroll)
        q = bound(values, stack, "q", start + u, depth, reach)
        # With a single row, values depend on no variable that would keep them after the scan.
        stack.enter_context(values.inlined({}, pinned=True))
        yield u, q, group


def _place_in_column(
    scans: _Scans, preceding: Mapping[Running, _Exchange], q: Term, group: Term, u: Term, v: Term,
) -> Places:
    """Return the position of an element of a column, with inputs and results of preceding scans available."""
    code, width = scans.code, scans.plan.nest.schedule.vector
    here = {**code.flat(code.nest.reduced, q), **neighbours(code, code.nest.kept, width, group, v)}
    slot = code.values.simplify(u * width + v)
    for tensor, words in scans.words.items():
        know_word(code, tensor, words, here, slot)
    know_results(code, {
        scan.expr: Apply(scan.elements.dtype, scan.fn, (
            Load(scan.elements.dtype, exchange.before, v), Load(scan.elements.dtype, scan.elements, slot),
        ))
        for scan, exchange in preceding.items()
    }, here)
    return here


def _exchange(plan: ScanPlan, code: PhaseCode, scan: Running) -> _Exchange:
    """Allocate the memory that a scan needs besides its elements; initial values precede the first round."""
    (lanes, height), width = plan.nest.schedule.threads, plan.nest.schedule.vector
    values, dtype, name = code.values, scan.elements.dtype, scan.expr.name
    carried = values.allocate(f"{name}_carried", scan.first.dtype, -(-width // height), origin=name)
    before = values.allocate(f"{name}_before", dtype, width, origin=name)
    shared = None
    if height > 1:
        shared = values.allocate(f"{name}_shared", dtype, lanes * height * width, Role.SHARED, origin=name)
    with each_round(values, "slot", carried.size) as slot:
        values.put(carried, slot, scan.first, name)
    return _Exchange(shared=shared, carried=carried, before=before)


def _exchange_totals(
    plan: ScanPlan, code: PhaseCode, columns: _Columns, scan: Running, exchange: _Exchange,
) -> None:
    """Write the scan of a thread's own rows, and the exchange of totals of the preceding rows.

    The totals of all threads are written to shared memory. Some threads then replace them by prefix sums, each for one
    or a few columns; only these threads carry the totals to the next round.
    """
    values, (lanes, height) = code.values, plan.nest.schedule.threads
    width, unroll, name = plan.nest.schedule.vector, plan.nest.schedule.unroll, scan.expr.name
    dtype, elements, carried, at = scan.elements.dtype, scan.elements, exchange.carried, values.simplify

    def put(buffer: Buffer, position: Term, value: Term) -> None:
        values.put(buffer, position, value, name)

    def folded(a: Term, b: Term) -> Term:
        return Apply(a.dtype, scan.fn, (a, cast(b, a.dtype)))

    if unroll > 1:
        with values.loop("u", unroll, ParallelType.serial, start=index(1), smallest=1) as u, ExitStack() as stack:
            slot = at(u * width + open_rounds(values, stack, "v", width))
            put(elements, slot, folded(Load(dtype, elements, at(slot - width)), Load(dtype, elements, slot)))
    shared, line, last = exchange.shared, lanes * width, (unroll - 1) * width
    if shared is None:
        with each_round(values, "v", width) as v:
            before = Load(carried.dtype, carried, v)
            put(exchange.before, v, cast(before, dtype))
            put(carried, v, folded(before, Load(dtype, elements, at(v + last))))
        return
    mine = columns.line * line + columns.lane * width
    with each_round(values, "v", width) as v:
        put(shared, at(mine + v), Load(dtype, elements, at(v + last)))
    values.emit(Barrier())
    with ExitStack() as stack:
        slot = open_rounds(values, stack, "slot", carried.size)
        column = bound(values, stack, "column", slot * height + columns.line, width, carried.size * height)
        before = Load(carried.dtype, carried, slot)
        start = values.let(f"{scan.name}_start", cast(before, dtype), origin=name)
        running = values.let(f"{scan.name}_round", scan.identity, origin=name)
        lines = values.allocate(f"{name}_lines", dtype, height, origin=name)
        with values.loop("other", height, ParallelType.serial) as other:  # all loads before the first store
            put(lines, other, Load(dtype, shared, at(other * line + columns.lane * width + column)))
        with values.loop("other", height, ParallelType.serial) as other:
            put(shared, at(other * line + columns.lane * width + column), folded(start, running))
            total = folded(running, Load(dtype, lines, other))
            values.emit(Let(name=running.name, value=total, update=True, origin=name))
        put(carried, slot, folded(before, running))
    values.emit(Barrier())
    with each_round(values, "v", width) as v:
        put(exchange.before, v, Load(dtype, shared, at(mine + v)))

"""Columns on the CPU: adjacent ones in vector lanes, or blocks of them to which a core adds row after row."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from fuser_lab.codegen import cpu_common as cpu
from fuser_lab.codegen.cpu_facts import UNROLLED
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Load, Phase, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_writing import (
    ZERO,
    PhaseCode,
    Places,
    cells,
    close_folds,
    folds_of,
    open_loop,
    parts_of,
    store_parts,
    update,
    write_point,
    written_phase,
)
from fuser_lab.codegen.persistence import choose_saved, constant_along
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.cpu_loops import CPU_SUMS_BYTES

_ITERATIONS = 64  # of the outermost loop, that remain for the cores if blocks are joined
_JOINED = 4096  # elements of the blocks that are joined, so that small blocks are not distributed one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """How cores visit columns."""

    nest: NestPlan = field(repr=False)
    passes: tuple[cpu.Pass, ...]  # over the rows of a block, with the expensive values that all rows share in each
    is_short: bool  # whether a vector lane adds up a column in registers, without blocks
    units: int  # blocks of columns, times the parts of a column
    grain: int  # blocks of an iteration of the outermost loop
    length: int  # elements of a column that a core adds up
    has_subtotals: bool  # whether rows are added to subtotals, for accurate totals


def column_plan(nest: NestPlan) -> ColumnPlan:
    """Return how columns are visited."""
    facts, schedule = nest.facts, nest.choice.schedule
    depth, tile, split = facts.space.depth, schedule.tile, schedule.split
    units = extent_of(facts.kept_outer) * -(-extent_of(facts.kept_run) // tile) * split
    length = -(-depth // split)
    is_short = split == 1 and depth <= UNROLLED and facts.passes == 1
    ahead = [() if is_short else constant_along(facts, number) for number in range(facts.passes)]
    passes = cpu.with_values_ahead(_with_kept(nest, cpu.passes_of(nest)), ahead)
    return ColumnPlan(
        nest=nest, passes=passes, is_short=is_short, units=units,
        grain=max(1, min(units // _ITERATIONS, _JOINED // max(depth * tile, 1))), length=length,
        has_subtotals=length > schedule.partial and any(fold.rounds for fold in folds_of(facts.nest.reductions)),
    )


def _with_kept(nest: NestPlan, passes: Sequence[cpu.Pass]) -> tuple[cpu.Pass, ...]:
    """Return passes that keep expensive values of a block for later ones, as far as these fit in a core's cache."""
    facts, schedule = nest.facts, nest.choice.schedule
    room, chosen = CPU_SUMS_BYTES, []
    # Values of later passes come first, because they contain those of earlier ones.
    for entry in reversed(choose_saved(facts) if schedule.split == 1 and len(passes) > 1 else ()):
        nbytes = facts.space.depth * schedule.tile * entry.tensor.dtype.compute.itemsize
        if nbytes <= room:
            chosen.append(entry)
            room -= nbytes
    return tuple(
        replace(
            step, saved=tuple(entry.tensor for entry in chosen if entry.written == number),
            restored=tuple(entry.tensor for entry in chosen if entry.written < number),
        )
        for number, step in enumerate(passes)
    )


def write_columns(plan: ColumnPlan) -> Iterator[Phase]:
    """Yield the phase of columns, or one that computes parts of them and one that adds up the parts."""
    if plan.nest.choice.schedule.split > 1:
        yield written_phase(plan.nest, "_parts", partial(_blocks, plan))
        yield written_phase(plan.nest, "_total", partial(_lanes, plan))
    else:
        yield written_phase(plan.nest, "", partial(_lanes if plan.is_short else _blocks, plan))


def _lanes(plan: ColumnPlan, code: PhaseCode) -> Launch:
    """Write one result per vector lane."""
    values, facts = code.values, plan.nest.facts
    many, run = cpu.outer_loop(plan.nest), extent_of(facts.kept_run)
    with ExitStack() as stack:
        places: dict[str, Term] = {}
        row: Term = ZERO
        if facts.kept_outer:
            i = open_loop(values, stack, "i", extent_of(facts.kept_outer), many)
            places.update(code.flat(facts.kept_outer, i))
            row = i * run
            many = ParallelType.vectorize
        lane = stack.enter_context(values.loop("c", run, many, pinned=True))
        places.update(code.flat(facts.kept_run, lane))
        _write_lane(plan, code, places, values.simplify(row + lane))
    return Launch()


def _write_lane(plan: ColumnPlan, code: PhaseCode, places: Places, row: Term) -> None:
    """Write the reductions of one lane, over its elements or over their parts."""
    values, nest, space, split = code.values, code.nest, plan.nest.facts.space, plan.nest.choice.schedule.split
    folds = cpu.open_totals(plan.nest, values, nest.reductions)
    if split > 1:
        with values.loop("part", split, ParallelType.serial) as part:
            cpu.add_parts(values, parts_of(plan.nest), folds, part * space.rows + row)
    else:
        with ExitStack() as stack:
            inside, q = cpu.open_block(
                plan.nest, values, stack, "q", (ZERO, index(space.depth)), space.depth, space.depth, folds,
                ParallelType.serial,
            )
            write_point(code, {**places, **code.flat(nest.reduced, q)}, inside, nest.full, {}, ZERO)
    close_folds(code, folds, places)
    code.store(nest.rows, places)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The columns from ``first`` to ``last`` whose rows from ``begin`` to ``end`` a core visits."""

    places: Places  # of the block in the nest
    first: Term
    last: Term
    begin: Term
    end: Term
    done: Mapping[Expr, Buffer] = field(default_factory=dict)  # results of reductions, for each column
    ahead: Mapping[TensorView, Buffer] = field(default_factory=dict)  # values that are computed before a pass
    elements: Mapping[TensorView, Buffer] = field(default_factory=dict)  # values of all elements, row after row


def _blocks(plan: ColumnPlan, code: PhaseCode) -> Launch:
    """Write blocks of adjacent columns: the loop over rows adds each row to a row of running sums.

    If other sums or stored values depend on the sums, all rows of the block are traversed once more.
    """
    values, facts, schedule = code.values, plan.nest.facts, plan.nest.choice.schedule
    tile, split, run, outer = schedule.tile, schedule.split, extent_of(facts.kept_run), extent_of(facts.kept_outer)
    tiles = -(-run // tile)
    many = ParallelType.grid_x if schedule.parallel else ParallelType.serial
    with ExitStack() as stack:
        group = stack.enter_context(values.loop("group", -(-plan.units // plan.grain), many, pinned=True))
        totals = cpu.running_sums(plan.nest, values, tile, "sums", wide=plan.has_subtotals)
        subtotals = cpu.running_sums(plan.nest, values, tile, "block_sums") if plan.has_subtotals else {}
        saved = [tensor for step in plan.passes for tensor in step.saved]
        # The size is for any number of rows, so that kernels for others are the same.
        elements: dict[TensorView, Buffer] = {}
        for tensor in saved:
            elements |= cpu.scratch_of(values, [tensor], "kept", CPU_SUMS_BYTES // tensor.dtype.compute.itemsize)
        start, stop = cpu.chunk(values, group, plan.grain, plan.units)
        unit: Term = group
        if plan.grain > 1:
            unit = stack.enter_context(
                values.loop("unit", stop, ParallelType.serial, start=start, largest=plan.units, pinned=True),
            )
        place, part = unit, ZERO
        if split > 1:
            place, part = values.remainder(unit, outer * tiles), values.quotient(unit, outer * tiles)
        i, column = values.quotient(place, tiles), values.remainder(place, tiles)
        first, last = cpu.chunk(values, column, tile, run)
        first, last = cpu.index_variable(values, "first", first), cpu.index_variable(values, "last", last)
        guarded = split > 1 and not schedule.specialized
        begin, end = cpu.chunk(values, part, plan.length, facts.space.depth, guarded=guarded, count=split)
        block = _Block(
            places=code.flat(facts.kept_outer, i), first=first, last=last, begin=begin, end=end, elements=elements,
        )
        for number, step in enumerate(plan.passes):
            block = _write_pass(plan, code, step, block, totals, subtotals, is_last=number + 1 == len(plan.passes))
        with _each_column(plan, code, block, pinned=True) as (slot, c, places):
            folds = cells(totals, slot)
            if split > 1:
                row = values.simplify(part * facts.space.rows + i * run + c)
                store_parts(values, parts_of(plan.nest), folds, row)
            else:
                close_folds(code, folds, places)
                cpu.know_ahead(code, block.ahead, places, slot)
                code.store(code.nest.rows, places)
    return Launch()


def _write_pass(
    plan: ColumnPlan, code: PhaseCode, step: cpu.Pass, block: _Block, totals: Mapping[Expr, Buffer],
    subtotals: Mapping[Expr, Buffer], *, is_last: bool,
) -> _Block:
    """Write one pass over the rows of a block, and return the block with the results that later passes read."""
    values, size = code.values, plan.nest.choice.schedule.partial
    block, sums = _with_ahead(plan, code, step, block), {expr: totals[expr] for expr in step.reductions}
    with _each_column(plan, code, block) as (slot, _, _):
        cpu.clear(values, cells(sums, slot))
    if not plan.has_subtotals or not sums:
        _write_rows(plan, code, step, block, sums)
        return replace(block, done={**block.done, **sums})
    parts = {expr: subtotals[expr] for expr in sums}
    with values.loop("q_block", -(-plan.length // size), ParallelType.serial) as number:
        with _each_column(plan, code, block) as (slot, _, _):
            cpu.clear(values, cells(parts, slot))
        low = cpu.index_variable(values, "low", values.simplify(block.begin + number * size))
        _write_rows(plan, code, step, replace(block, begin=low, end=apply("min", low + size, block.end)), parts)
        with _each_column(plan, code, block) as (slot, _, _):
            for fold in cells(sums, slot):
                update(values, fold, Load(parts[fold.expr].dtype, parts[fold.expr], slot))
    if not is_last:
        # Later passes read the results for each element.
        with _each_column(plan, code, block) as (slot, _, _):
            for fold in cells(sums, slot):
                buffer = parts[fold.expr]
                total = cast(fold.total, buffer.dtype)
                values.emit(Store(buffer=buffer, position=slot, origin=fold.expr.name, value=total))
    return replace(block, done={**block.done, **parts})


def _with_ahead(plan: ColumnPlan, code: PhaseCode, step: cpu.Pass, block: _Block) -> _Block:
    """Compute what all rows share in a pass, and is expensive, once for each column; return the block with it."""
    if not step.ahead:
        return block
    buffers = cpu.scratch_of(code.values, step.ahead, "columns", plan.nest.choice.schedule.tile)
    with _each_column(plan, code, block) as (slot, _, places):
        close_folds(code, cells(block.done, slot), places)
        cpu.write_ahead(code, buffers, places, slot)
    return replace(block, ahead={**block.ahead, **buffers})


def _write_rows(
    plan: ColumnPlan, code: PhaseCode, step: cpu.Pass, block: _Block, sums: Mapping[Expr, Buffer],
) -> None:
    """Write the loop of a pass over the rows of a block, which updates running sums and stores results."""
    with code.values.loop(
        "q", block.end, ParallelType.serial, start=block.begin, largest=plan.nest.facts.space.depth,
    ) as q:
        around = code.flat(code.nest.reduced, q)
        with _each_column(plan, code, block) as (slot, _, places):
            close_folds(code, cells(block.done, slot), places)
            cpu.know_ahead(code, block.ahead, places, slot)
            here, element = {**places, **around}, code.values.simplify(q * plan.nest.choice.schedule.tile + slot)
            cpu.know_ahead(code, {tv: block.elements[tv] for tv in step.restored}, here, element)
            saved = {tv: block.elements[tv] for tv in step.saved}
            write_point(code, here, cells(sums, slot), step.stored, saved, element)


@contextmanager
def _each_column(
    plan: ColumnPlan, code: PhaseCode, block: _Block, *, pinned: bool = False,
) -> Iterator[tuple[Term, Term, Places]]:
    """Open the loop over the columns of a block; yield a column's place in the block, its index, and its position."""
    values, run = code.values, plan.nest.facts.kept_run
    with values.loop(
        "c", block.last, ParallelType.vectorize, start=block.first, largest=extent_of(run), pinned=pinned,
    ) as c:
        yield values.simplify(c - block.first), c, {**block.places, **code.flat(run, c)}

"""Rows on the CPU: one at a time, in groups, in groups with stages, in parts, or with sums of columns.

A core iterates over a row once per pass, with scratch memory for the values that later passes read again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from fuser_lab.codegen import cpu_common as cpu
from fuser_lab.codegen.column_sums import column_index, rows_each
from fuser_lab.codegen.cpu_scans import open_row_scans, write_row_scan
from fuser_lab.codegen.index_math import substitute
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Load, Phase, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_writing import (
    ZERO,
    Fold,
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
from fuser_lab.codegen.persistence import (
    CALLED,
    Saved,
    calls_functions,
    choose_saved,
    constant_along,
    reads_several,
)
from fuser_lab.codegen.scan_writing import Running, carried_values, know_results, operand
from fuser_lab.codegen.values import Values
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.cpu_loops import PARTIAL_ELEMENTS, PARTIAL_ROWS

FEW_RUNS = crossover("cpu.rows.runs")
SHORT_RUN = crossover("cpu.rows.short_run")
SHORT_ROW = crossover("cpu.rows.short")
SHORT_ROUNDED_ROW = crossover("cpu.rows.short_rounded")
VECTOR = 8  # elements from which the compiler makes vectors of a row's elements, and not of several rows
IN_ONE_INSTRUCTION = frozenset({"ceil", "floor", "round", "rsqrt", "sqrt", "trunc"})



@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How cores visit rows."""

    nest: NestPlan = field(repr=False)
    passes: tuple[cpu.Pass, ...]
    saved: tuple[TensorView, ...]  # values of a row that passes keep for later ones

    @property
    def is_one_pass(self) -> bool:
        """Whether rows are traversed once by one loop, so that a part of a row can be used as soon as it is read."""
        facts = self.nest.facts
        return len(self.passes) == 1 and bool(facts.nest.reductions) and not facts.reduced_outer


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMemory:
    """Scratch memory with values of a row.

    ``saved`` are values that passes keep for later ones, from the position ``first_saved`` on. ``read`` are inputs that
    were read for several rows; those of the row begin at ``first_read``. ``scans`` are scans between passes.
    """

    saved: Mapping[TensorView, Buffer]
    first_saved: Term = ZERO
    read: Mapping[TensorView, Buffer] = field(default_factory=dict)
    first_read: Term = ZERO
    scans: Mapping[Expr, Running] = field(default_factory=dict)


def row_plan(nest: NestPlan) -> RowPlan:
    """Return how rows are visited."""
    facts = nest.facts
    saved = choose_saved(facts) if nest.choice.schedule.persistent else ()
    read_back = _results_read_back(nest, saved) if nest.choice.schedule.persistent else ()
    passes = tuple(
        replace(
            step, stored=tuple(tv for tv in step.stored if _is_stored(nest, tv)),
            saved=tuple(s.tensor for s in saved if s.written == number),
            restored=tuple(s.tensor for s in saved if s.written < number),
            read_back=tuple(tv for tv in read_back if facts.levels.get(tv, 0) < number),
            added=tuple(expr for expr in facts.column_sums if expr.tensor_inputs[0] in step.stored),
        )
        for number, step in enumerate(cpu.passes_of(nest))
    )
    return RowPlan(nest=nest, passes=passes, saved=tuple(s.tensor for s in saved))


def _is_stored(nest: NestPlan, tensor: TensorView) -> bool:
    """Whether a result is stored; operands of column sums are among the results, but not in memory."""
    return not nest.facts.column_sums or tensor in nest.stored


def _results_read_back(nest: NestPlan, saved: Sequence[Saved]) -> tuple[TensorView, ...]:
    """Return the results that a pass stores and a later one reads, because computing them again reads more."""
    facts, tensors = nest.facts, {s.tensor for s in saved}
    return tuple(
        tv for tv in facts.nest.full
        if facts.levels.get(tv, 0) < facts.passes - 1 and tv not in tensors and _is_stored(nest, tv)
        and not tv.dtype.is_float8
        and (facts.steps(tv) or {}).get(facts.nest.reduced[-1].name) == 1
        and reads_several(facts, tv)
    )


def write_row(
    plan: RowPlan, code: PhaseCode, row: Term, memory: RowMemory, sums: Mapping[Expr, Buffer] | None = None,
) -> None:
    """Write the passes over one row, then the results of the whole row; ``sums`` are running sums of columns."""
    places, values, depth = code.flat(code.nest.kept, row), code.values, plan.nest.facts.space.depth
    carried = carried_values(values, [tuple(memory.scans.values())]) if memory.scans else {}
    for step in plan.passes:
        close_folds(code, write_pass(plan, code, step, places, memory, sums), places)
        for scan in (memory.scans[expr] for expr in step.unscanned):
            write_row_scan(values, scan, carried[scan.expr], depth)
    code.store(code.nest.rows, places)


def write_pass(
    plan: RowPlan, code: PhaseCode, step: cpu.Pass, places: Places, memory: RowMemory,
    sums: Mapping[Expr, Buffer] | None = None,
) -> list[Fold]:
    """Write one pass over a row and return its reductions."""
    folds = cpu.open_totals(plan.nest, code.values, step.reductions)
    with ExitStack() as stack:
        inside, inner, place = walk_row(plan, code, stack, folds)
        here, slot = {**places, **inner}, code.values.simplify(memory.first_saved + place)
        know_row(code, step, here, memory, slot, place)
        write_point(code, here, inside, step.stored, {tv: memory.saved[tv] for tv in step.saved}, slot)
        for scan in (memory.scans[expr] for expr in step.unscanned):
            code.values.put(scan.elements, place, operand(code, scan.expr, here), scan.expr.name)
        if sums:
            write_point(code, here, cells({expr: sums[expr] for expr in step.added}, place), (), {}, slot)
    return folds


def know_row(code: PhaseCode, step: cpu.Pass, places: Places, memory: RowMemory, slot: Term, place: Term) -> None:
    """Make the values of a row's element that are in memory available to a pass."""
    for tensor in step.read_back:
        code.know(tensor, places, Load(tensor.dtype, code.buffers[tensor.name], code.position(tensor, places)))
    for tensor in step.restored:
        buffer = memory.saved[tensor]
        code.know(tensor, places, Load(buffer.dtype, buffer, slot))
    for tensor, buffer in memory.read.items():
        code.know(tensor, places, Load(tensor.dtype, buffer, code.values.simplify(memory.first_read + place)))
    for expr in step.scanned:
        elements = memory.scans[expr].elements
        know_results(code, {expr: Load(elements.dtype, elements, place)}, places)


def walk_row(
    plan: RowPlan, code: PhaseCode, stack: ExitStack, folds: Sequence[Fold],
) -> tuple[list[Fold], Places, Term]:
    """Open the loops over a row; return the running values inside, the position in the nest, and that in the row."""
    values, facts, partial = code.values, plan.nest.facts, plan.nest.choice.schedule.partial
    outer, run = extent_of(facts.reduced_outer), extent_of(facts.reduced_run)
    q: Term = ZERO
    if folds and outer >= FEW_RUNS and run <= SHORT_RUN:
        folds, q, r = _in_lanes(plan, values, stack, folds)
    else:
        if facts.reduced_outer:
            q = open_loop(values, stack, "q", outer, ParallelType.serial)
            if run <= partial < facts.space.depth:
                folds = stack.enter_context(cpu.partials(values, folds))
        folds, r = cpu.open_block(
            plan.nest, values, stack, "r", (ZERO, index(run)), run, run, folds, ParallelType.vectorize,
        )
    places = {**code.flat(facts.reduced_outer, q), **code.flat(facts.reduced_run, r)}
    return list(folds), places, values.simplify(q * run + r)


def _in_lanes(
    plan: RowPlan, values: Values, stack: ExitStack, folds: Sequence[Fold],
) -> tuple[list[Fold], Term, Term]:
    """Open the loops over many short runs, with a running value for each element of a run.

    Vectors then hold running values of adjacent elements, and are not reduced to one number after each run.
    """
    facts, size = plan.nest.facts, min(plan.nest.choice.schedule.partial, PARTIAL_ROWS)
    outer, run = extent_of(facts.reduced_outer), extent_of(facts.reduced_run)
    start, stop = ZERO, index(outer)
    if any(fold.rounds for fold in folds) and outer > size:
        block = open_loop(values, stack, "q_block", -(-outer // size), ParallelType.serial)
        start = cpu.index_variable(values, "low", values.simplify(block * size))
        stop = apply("min", start + size, index(outer))
    lanes = {
        fold.expr: values.allocate(values.fresh(f"{fold.name}_lanes"), fold.identity.dtype, run) for fold in folds
    }
    stack.enter_context(_added_lanes(values, folds, lanes))
    q = stack.enter_context(values.loop("q", stop, ParallelType.serial, start=start, largest=outer))
    r = stack.enter_context(values.loop("r", run, ParallelType.vectorize))
    return cells(lanes, r), q, r


@contextmanager
def _added_lanes(values: Values, folds: Sequence[Fold], lanes: Mapping[Expr, Buffer]) -> Iterator[None]:
    """Clear a running value for each element of a run; combine them at the end."""
    (run,) = {buffer.size for buffer in lanes.values()}
    with values.loop("r", run, ParallelType.vectorize) as r:
        for fold in folds:
            values.emit(Store(buffer=lanes[fold.expr], position=r, value=fold.identity, origin=fold.expr.name))
    yield
    with values.loop("r", run, ParallelType.serial) as r:
        for fold in folds:
            update(values, fold, Load(lanes[fold.expr].dtype, lanes[fold.expr], r))



def with_stages(plan: RowPlan) -> RowPlan | None:
    """Return a plan of rows with values ahead of passes, if functions of a row's sums take long beside its elements.

    Between two passes over one row, a core would wait for the functions of a single sum; vectors compute those of many
    rows. While a core computes a root, it begins with the next row, unless it is busy with rounding elements.
    """
    facts, schedule = plan.nest.facts, plan.nest.choice.schedule
    rounds = any(tensor.dtype.itemsize < DataType.Float.itemsize for tensor in facts.nest.full)
    longest = SHORT_ROUNDED_ROW if rounds else SHORT_ROW
    if schedule.grain == 1 or schedule.split > 1 or not VECTOR <= facts.space.depth <= longest:
        return None
    slow: Collection[str] = CALLED if rounds else CALLED - IN_ONE_INSTRUCTION

    def are_slow(tensors: Collection[TensorView]) -> list[TensorView]:
        return [tensor for tensor in tensors if calls_functions(facts, tensor, slow)]

    later = (are_slow(constant_along(facts, number)) for number in range(1, len(plan.passes)))
    passes = cpu.with_values_ahead(plan.passes, [(), *later])
    if not any(step.ahead for step in passes) and not are_slow(facts.nest.rows):
        return None
    return replace(plan, passes=passes)


def write_rows(plan: RowPlan) -> Iterator[Phase]:
    """Yield the phase of rows, or one that computes parts of them and one that adds up the parts."""
    if plan.nest.choice.schedule.split == 1:
        yield written_phase(plan.nest, "", partial(_rows, plan, write_row))
    else:
        # Several passes over a row are one phase, so only single passes are cut.
        yield written_phase(plan.nest, "_parts", partial(_parts, plan))
        yield written_phase(plan.nest, "_total", partial(_rows, plan, _write_totals))


def write_staged_rows(plan: RowPlan) -> Iterator[Phase]:
    """Yield the only phase of rows in groups: a pass over each row, then what the next pass needs of all rows."""
    yield written_phase(plan.nest, "", partial(_staged_rows, plan))


def _row_memory(plan: RowPlan, code: PhaseCode) -> RowMemory:
    """Allocate scratch memory for the values of a row that passes keep, and for scans between them."""
    values, depth, nest = code.values, plan.nest.facts.space.depth, plan.nest.facts.nest
    scans = open_row_scans(values, nest.scans, depth) if nest.scans else {}
    return RowMemory(saved=cpu.scratch_of(values, plan.saved, "row", depth), scans=scans)


def _rows(plan: RowPlan, write: Callable[[RowPlan, PhaseCode, Term, RowMemory], None], code: PhaseCode) -> Launch:
    values, space, grain = code.values, plan.nest.facts.space, plan.nest.choice.schedule.grain
    with ExitStack() as stack:
        if grain > 1:
            group = open_loop(values, stack, "group", -(-space.rows // grain), cpu.outer_loop(plan.nest))
            memory = _row_memory(plan, code)
            start, stop = cpu.chunk(values, group, grain, space.rows, guarded=True)
            row: Term = stack.enter_context(
                values.loop("row", stop, ParallelType.serial, start=start, largest=space.rows, pinned=True),
            )
        else:
            row = ZERO
            if space.rows > 1:
                row = stack.enter_context(values.loop("row", space.rows, cpu.outer_loop(plan.nest), pinned=True))
            else:
                stack.enter_context(values.inlined({}, pinned=True))
            memory = _row_memory(plan, code)
        write(plan, code, row, memory)
    return Launch()


def _staged_rows(plan: RowPlan, code: PhaseCode) -> Launch:
    values, space, grain = code.values, plan.nest.facts.space, plan.nest.choice.schedule.grain
    with ExitStack() as stack:
        group = open_loop(values, stack, "group", -(-space.rows // grain), cpu.outer_loop(plan.nest))
        start, stop = cpu.chunk(values, group, grain, space.rows, guarded=True)
        start = cpu.index_variable(values, "first", start)
        # The size is for any number of rows, so that kernels for others are the same.
        most = max(grain, PARTIAL_ELEMENTS // space.depth)
        totals = cpu.running_sums(plan.nest, values, most, "rows", wide=True)
        saved = cpu.scratch_of(values, plan.saved, "row", most * space.depth)
        done: dict[Expr, Buffer] = {}
        ahead: dict[TensorView, Buffer] = {}

        @contextmanager
        def each_row(kind: ParallelType) -> Iterator[tuple[Places, Term]]:
            with values.loop("row", stop, kind, start=start, largest=space.rows, pinned=True) as row:
                places, slot = code.flat(code.nest.kept, row), values.simplify(row - start)
                close_folds(code, cells(done, slot), places)
                cpu.know_ahead(code, ahead, places, slot)
                yield places, slot

        for step in plan.passes:
            new = cpu.scratch_of(values, step.ahead, "rows", most)
            with each_row(ParallelType.vectorize) as (places, slot):
                cpu.write_ahead(code, new, places, slot)
            ahead |= new
            with each_row(ParallelType.serial) as (places, slot):
                memory = RowMemory(saved=saved, first_saved=slot * space.depth)
                for fold in write_pass(plan, code, step, places, memory):
                    buffer = totals[fold.expr]
                    values.emit(Store(buffer=buffer, position=slot, value=fold.total, origin=fold.expr.name))
            done |= {expr: totals[expr] for expr in step.reductions}
        with each_row(ParallelType.vectorize) as (places, _):
            code.store(code.nest.rows, places)
    return Launch()


def _write_totals(plan: RowPlan, code: PhaseCode, row: Term, _: RowMemory) -> None:
    """Add up the parts of a row's reductions, and write the results of the row."""
    values, split, parts = code.values, plan.nest.choice.schedule.split, parts_of(plan.nest)
    places, folds = code.flat(code.nest.kept, row), cpu.open_totals(plan.nest, values, code.nest.reductions)
    with values.loop("part", split, ParallelType.serial) as part:
        cpu.add_parts(values, parts, folds, row * split + part)
    close_folds(code, folds, places)
    code.store(code.nest.rows, places)


def _parts(plan: RowPlan, code: PhaseCode) -> Launch:
    """Write the first phase of reductions cut into parts; the longest loop of a row is cut."""
    values, facts, split = code.values, plan.nest.facts, plan.nest.choice.schedule.split
    outer, run = extent_of(facts.reduced_outer), extent_of(facts.reduced_run)
    with ExitStack() as stack:
        unit = stack.enter_context(
            values.loop("unit", facts.space.rows * split, ParallelType.grid_x, pinned=True),
        )
        row, part = values.quotient(unit, split), values.remainder(unit, split)
        places = code.flat(code.nest.kept, row)
        folds = cpu.open_totals(plan.nest, values, code.nest.reductions)
        with ExitStack() as inner:
            ends, length, inside = (ZERO, index(run)), run, folds
            if outer >= split:
                start, stop = cpu.chunk(values, part, -(-outer // split), outer, count=split)
                q: Term = inner.enter_context(
                    values.loop("q", stop, ParallelType.serial, start=start, largest=outer),
                )
                if not cpu.has_blocks(plan.nest, run, folds):
                    inside = inner.enter_context(cpu.partials(values, folds))
            else:
                q = open_loop(values, inner, "q", outer, ParallelType.serial) if outer > 1 else ZERO
                length = -(-run // split)
                ends = cpu.chunk(values, part, length, run, count=split)
            inside, r = cpu.open_block(
                plan.nest, values, inner, "r", ends, length, run, inside, ParallelType.vectorize,
            )
            here = {**places, **code.flat(facts.reduced_outer, q), **code.flat(facts.reduced_run, r)}
            write_point(code, here, inside, code.nest.full, {}, ZERO)
        store_parts(values, parts_of(plan.nest), folds, unit)
    return Launch()


def write_rows_with_column_sums(plan: RowPlan) -> Iterator[Phase]:
    """Yield the phase that iterates over rows once and adds them to sums of columns, as backward passes of norms do.

    A core iterates over a band of rows, and the sums of all columns stay in its cache. They are one part of each
    column's sum; a second phase, a separate fusion, adds up the parts. The number of bands depends only on the shape,
    so that results do not depend on the number of threads.
    """
    yield written_phase(plan.nest, "_rows", partial(_rows_with_column_sums, plan))


def _rows_with_column_sums(plan: RowPlan, code: PhaseCode) -> Launch:
    values, nest, space = code.values, code.nest, plan.nest.facts.space
    each = rows_each(plan.nest.choice.schedule, space.rows)
    with ExitStack() as stack:
        band = stack.enter_context(values.loop("band", -(-space.rows // each), cpu.outer_loop(plan.nest), pinned=True))
        memory = RowMemory(saved=cpu.scratch_of(values, plan.saved, "row", space.depth))
        folds = folds_of(plan.nest.facts.column_sums)
        sums = {
            fold.expr: values.allocate(
                f"{fold.expr.name}_sums", fold.identity.dtype, space.depth, origin=fold.expr.name,
            )
            for fold in folds
        }
        with values.loop("c", space.depth, ParallelType.vectorize) as c:
            for fold in folds:
                values.emit(Store(buffer=sums[fold.expr], position=c, value=fold.identity, origin=fold.expr.name))
        start, stop = cpu.chunk(values, band, each, space.rows, guarded=True)
        with values.loop("row", stop, ParallelType.serial, start=start, largest=space.rows, pinned=True) as row:
            write_row(plan, code, row, memory, sums)
        with values.loop("c", space.depth, ParallelType.vectorize) as c:
            here = code.flat(nest.reduced, c)
            for expr, buffer in sums.items():
                column = tuple(substitute(i, here) for i in column_index(nest, expr))
                part = plan.nest.column_parts[expr]
                position = part.layout.position((band, *values.simplified(column)))
                values.put(part.buffer, position, Load(buffer.dtype, buffer, c), expr.name)
    return Launch()

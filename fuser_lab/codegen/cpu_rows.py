"""Rows on the CPU: one at a time, in groups, in groups with stages, or in parts that a second phase adds up."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from fuser_lab.codegen.cpu_common import (
    add_parts,
    cells,
    chunk,
    know_ahead,
    named,
    open_block,
    open_totals,
    partials,
    running_sums,
    scratch_of,
    with_values_ahead,
    write_ahead,
)
from fuser_lab.codegen.cpu_row_passes import RowMemory, RowPlan, allocate_kept, write_pass, write_row
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Phase, Store
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_writing import (
    ZERO,
    PhaseCode,
    Places,
    close_folds,
    open_loop,
    parts_of,
    store_parts,
    write_point,
    written_phase,
)
from fuser_lab.codegen.persistence import CALLED, calls_functions, constant_along
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.loops import PARTIAL_ELEMENTS

SHORT_ROW = 64  # elements; shorter rows take no longer than a scalar function call
SHORT_ROUNDED_ROW = 512  # the same, if results are rounded to fewer bits than those of Float
VECTOR = 8  # elements from which the compiler makes vectors of a row's elements, and not of several rows
IN_ONE_INSTRUCTION = frozenset({"ceil", "floor", "round", "rsqrt", "sqrt", "trunc"})


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
    passes = with_values_ahead(plan.passes, [(), *later])
    if not any(step.ahead for step in passes) and not are_slow(facts.nest.rows):
        return None
    return RowPlan(nest=plan.nest, outer=plan.outer, passes=passes, kept=plan.kept)


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


def _rows(plan: RowPlan, write: Callable[[RowPlan, PhaseCode, Term, RowMemory], None], code: PhaseCode) -> Launch:
    values, space, grain = code.values, plan.nest.facts.space, plan.nest.choice.schedule.grain
    with ExitStack() as stack:
        if grain > 1:
            group = open_loop(values, stack, "group", -(-space.rows // grain), plan.outer)
            memory = RowMemory(kept=allocate_kept(plan, values, space.depth))
            start, stop = chunk(values, group, grain, space.rows, guarded=True)
            row: Term = stack.enter_context(
                values.loop("row", stop, ParallelType.serial, start=start, largest=space.rows, pinned=True),
            )
        else:
            row = ZERO
            if space.rows > 1:
                row = stack.enter_context(values.loop("row", space.rows, plan.outer, pinned=True))
            else:
                stack.enter_context(values.inlined({}, pinned=True))
            memory = RowMemory(kept=allocate_kept(plan, values, space.depth))
        write(plan, code, row, memory)
    return Launch()


def _staged_rows(plan: RowPlan, code: PhaseCode) -> Launch:
    values, space, grain = code.values, plan.nest.facts.space, plan.nest.choice.schedule.grain
    with ExitStack() as stack:
        group = open_loop(values, stack, "group", -(-space.rows // grain), plan.outer)
        start, stop = chunk(values, group, grain, space.rows, guarded=True)
        start = named(values, "first", start)
        # The size is for any number of rows, so that kernels for others are the same.
        most = max(grain, PARTIAL_ELEMENTS // space.depth)
        totals = running_sums(plan.nest, values, most, "rows", wide=True)
        kept = allocate_kept(plan, values, most * space.depth)
        done: dict[Expr, Buffer] = {}
        ahead: dict[TensorView, Buffer] = {}

        @contextmanager
        def each_row(kind: ParallelType) -> Iterator[tuple[Places, Term]]:
            with values.loop("row", stop, kind, start=start, largest=space.rows, pinned=True) as row:
                places, slot = code.flat(code.nest.kept, row), values.simplify(row - start)
                close_folds(code, cells(done, slot), places)
                know_ahead(code, ahead, places, slot)
                yield places, slot

        for step in plan.passes:
            new = scratch_of(values, step.ahead, "rows", most)
            with each_row(ParallelType.vectorize) as (places, slot):
                write_ahead(code, new, places, slot)
            ahead |= new
            with each_row(ParallelType.serial) as (places, slot):
                memory = RowMemory(kept=kept, first_kept=slot * space.depth)
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
    places, folds = code.flat(code.nest.kept, row), open_totals(plan.nest, values, code.nest.reductions)
    with values.loop("part", split, ParallelType.serial) as part:
        add_parts(values, parts, folds, row * split + part)
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
        folds = open_totals(plan.nest, values, code.nest.reductions)
        with ExitStack() as inner:
            ends, length, inside = (ZERO, index(run)), run, folds
            if outer >= split:
                start, stop = chunk(values, part, -(-outer // split), outer, count=split)
                q: Term = inner.enter_context(
                    values.loop("q", stop, ParallelType.serial, start=start, largest=outer),
                )
                inside = inner.enter_context(partials(values, folds))
            else:
                q = open_loop(values, inner, "q", outer, ParallelType.serial) if outer > 1 else ZERO
                length = -(-run // split)
                ends = chunk(values, part, length, run, count=split)
            inside, r = open_block(
                plan.nest, values, inner, "r", ends, length, run, inside, ParallelType.vectorize,
            )
            here = {**places, **code.flat(facts.reduced_outer, q), **code.flat(facts.reduced_run, r)}
            write_point(code, here, inside, code.nest.full, {}, ZERO)
        store_parts(values, parts_of(plan.nest), folds, unit)
    return Launch()

"""Row and column reductions in one pass on a GPU, as in backward passes of norms, reading each input once.

A block iterates over consecutive rows and keeps one of them in registers, like `gpu_rows`, or several short ones, each
in a line of threads. If elements of consecutive rows are adjacent, blocks that run at the same time have these rows
instead. Each thread also adds to the columns that it owns. The result of a block, whose first line adds up those of its
lines, is one part of each column's sum, and a second phase, a separate fusion, adds up the parts. The next row is
loaded while the threads compute the current one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.column_sums import column_index, rows_each
from fuser_lab.codegen.gpu_columns import combined_lines, met_in_block
from fuser_lab.codegen.gpu_common import (
    bound,
    each_neighbour,
    each_round,
    gpu_phase,
    open_lanes,
    open_lines,
    open_rounds,
    words_of,
)
from fuser_lab.codegen.gpu_row_steps import (
    Loads,
    Row,
    RowGroups,
    RowPlan,
    RowSection,
    allocated_sections,
    group_of,
    load_row,
    place_in_row,
)
from fuser_lab.codegen.gpu_rows import at_row, load_if_any, passes_over, row_plan
from fuser_lab.codegen.gpu_staged_rows import copied_across
from fuser_lab.codegen.index_math import ACCESS_BYTES, substitute
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import Fold, PhaseCode, Places, folds_of, open_loop, update, write_point
from fuser_lab.codegen.persistence import inputs_needed
from fuser_lab.codegen.values import Values
from fuser_lab.cost.device import WARP
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply
from fuser_lab.ir.transform import ParallelType


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSum:
    """The sum of a column, one for each column of a thread: in registers, or ``first`` in shared memory."""

    fold: Fold
    buffer: ir.Buffer
    first: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPlan:
    """How the blocks of a grid iterate over rows that they add to columns."""

    row: RowPlan
    each: int  # rows of a block
    height: int  # rows that a block processes at a time
    apart: int  # rows from those that a block processes at a time to the next ones of the block
    sums: tuple[ColumnSum, ...]  # of a thread's columns
    ahead: tuple[TensorView, ...]  # inputs that all rows share and that are loaded once
    following: tuple[TensorView, ...]  # inputs of which the next row is loaded while the current one is computed


def backward_plan(nest: NestPlan) -> BackwardPlan:
    """Return how blocks iterate over the rows of a nest."""
    row = row_plan(nest)
    facts, schedule = row.facts, nest.schedule
    needed = dict.fromkeys(tv for number in range(facts.passes) for tv in inputs_needed(facts, number, row.saved))
    saved = [s.tensor for s in row.saved if s.written == 0 and s.tensor in row.widths]
    each, height = rows_each(schedule, facts.space.rows), schedule.threads[1]
    # The sectors that consecutive rows share do not stay in a cache until a block reads its next row, but blocks that
    # read these rows at the same time share them in the L2 cache.
    shares = not schedule.staged and 2 * height < facts.space.crossed
    return BackwardPlan(
        row=row, each=each, height=height, apart=height * (-(-facts.space.rows // each) if shares else 1),
        sums=tuple(_column_sums(row, facts.column_sums)),
        ahead=tuple(tv for tv in needed if schedule.constants and tv in row.widths and not facts.varies(tv)),
        following=tuple(saved if schedule.unroll > 1 else ()),
    )


def _column_sums(row: RowPlan, exprs: Sequence[Expr]) -> Iterator[ColumnSum]:
    """Yield the sums of a thread's columns; the first ones are in shared memory."""
    schedule, size, end = row.nest.schedule, row.steps * row.width, 0
    threads = schedule.threads[0] * schedule.threads[1]
    room = size * threads * sum(e.out.dtype.compute.itemsize for e in exprs[: schedule.shared])
    for number, fold in enumerate(folds_of(exprs)):
        dtype, first = fold.identity.dtype, None
        buffer = ir.Buffer(name=f"{fold.expr.name}_sums", dtype=dtype, size=size, role=ir.Role.SCRATCH)
        if number < schedule.shared:
            # Dynamic buffers begin at the same address; each uses a separate part.
            first = -(-end // dtype.itemsize) if room > ir.LARGEST_STATIC else 0
            end = (first + size * threads) * dtype.itemsize
            least = ir.LARGEST_STATIC + dtype.itemsize if room > ir.LARGEST_STATIC else 0
            buffer = replace(buffer, size=max(end, least) // dtype.itemsize, role=ir.Role.SHARED)
        yield ColumnSum(fold=fold, buffer=buffer, first=first)


def write_backward(plan: BackwardPlan) -> Iterator[ir.Phase]:
    """Yield the phase that iterates over the rows and stores the parts of column sums."""
    yield gpu_phase(plan.row.nest, "_rows", partial(_rows_of_blocks, plan))


def _rows_of_blocks(plan: BackwardPlan, code: PhaseCode) -> ir.Launch:
    values, count, each = code.values, plan.row.facts.space.rows, plan.each
    blocks, lanes, width = -(-count // each), plan.row.nest.schedule.threads[0], plan.row.width
    with ExitStack() as stack:
        block = open_loop(values, stack, "block", blocks, ParallelType.grid_x)
        line = open_lines(values, stack, plan.height)
        lane = open_lanes(values, stack, "lane", lanes)
        thread = line * lanes + lane
        row = Row(
            plan=plan.row, groups=RowGroups(code=code, width=width, places={}), lane=lane, place=lane,
            sections=allocated_sections(plan.row, code),
        )
        (section,) = row.sections
        _begin_sums(plan, values, thread)
        row = replace(row, ahead=_load_shared_by_rows(plan, row))
        first = block * (each if plan.apart == plan.height else plan.height)
        following = _load_first(plan, row, first + line)
        with ExitStack() as inner:
            i = open_loop(values, inner, "i", each // plan.height, ParallelType.serial)
            begin = values.simplify(first + i * plan.apart)
            staged = plan.row.nest.schedule.staged
            row_in_block = inner.enter_context(copied_across(row, begin, line) if staged else nullcontext(row))
            with ExitStack() as guarded:
                number = bound(values, guarded, "row", begin + line, count, blocks * each)
                guarded.enter_context(values.inlined({}, pinned=True))
                passes_over(replace(
                    at_row(row_in_block, number), point=partial(_add_to_columns, plan, thread),
                    load=partial(_load_ahead, plan, following, i, number),
                ))
                if lanes > WARP and len(code.nest.reductions) == 1:
                    # All threads read what the warps exchanged before the next row overwrites it.
                    values.emit(ir.Barrier())
        with ExitStack() as inner:
            if plan.height > 1:
                met = met_in_block(
                    values, partial(_sums_at, plan, values, thread), plan.row.steps * width,
                    lambda k: k * (lanes * plan.height) + thread, plan.row.steps * width * lanes * plan.height,
                    name="k",
                )
                inner.enter_context(values.guard(apply("eq", line, 0)))
                _add_lines(plan, values, lane, met)
            step = open_rounds(values, inner, "step", plan.row.steps)
            group, _ = group_of(row, inner, section, step)
            with each_neighbour(values, width) as v:
                here = place_in_row(row.groups, group, v)
                for column in plan.sums:
                    expr, slot = column.fold.expr, values.simplify(step * width + v)
                    place = (substitute(i, here) for i in column_index(code.nest, expr))
                    at = (block, *values.simplified(tuple(place)))
                    part = plan.row.nest.column_parts[expr]
                    total = _sum_at(plan, values, column, thread, slot)
                    values.put(part.buffer, part.layout.position(at), total, expr.name)
    return ir.Launch(blocks=blocks, threads=(lanes, plan.height))


# Columns


def _begin_sums(plan: BackwardPlan, values: Values, thread: Term) -> None:
    """Allocate the sums of a thread's columns and set them to the identity."""
    for column in plan.sums:
        buffer, name = column.buffer, column.fold.expr.name
        values.emit(ir.Alloc(buffer=buffer, origin=name))
        with values.loop("k", plan.row.steps * plan.row.width, ParallelType.serial) as k:
            at = _sum_at(plan, values, column, thread, k).position
            values.put(buffer, at, column.fold.identity, name)


def _sum_at(plan: BackwardPlan, values: Values, column: ColumnSum, thread: Term, slot: Term) -> ir.Load:
    """Return the sum of one of a thread's columns; those of adjacent threads are adjacent in shared memory."""
    if column.first is not None:
        slot = values.simplify(slot * (plan.row.nest.schedule.threads[0] * plan.height) + thread + column.first)
    return ir.Load(column.buffer.dtype, column.buffer, slot)


def _sums_at(plan: BackwardPlan, values: Values, thread: Term, slot: Term) -> list[Fold]:
    """Return the sums of one of a thread's columns."""
    return [replace(column.fold, total=_sum_at(plan, values, column, thread, slot)) for column in plan.sums]


def _add_lines(plan: BackwardPlan, values: Values, lane: Term, met: Mapping[Expr, ir.Buffer]) -> None:
    """Add the sums of all lines of a block to those of its first line, whose threads do it."""
    lanes = plan.row.nest.schedule.threads[0]
    with each_round(values, "k", plan.row.steps * plan.row.width) as k:
        folds = combined_lines(values, met, k * (lanes * plan.height) + lane, lanes, plan.height, online=False)
        for column, fold in zip(plan.sums, folds, strict=True):
            at = _sum_at(plan, values, column, lane, k).position
            values.put(column.buffer, at, fold.total, column.fold.expr.name)


def _add_to_columns(
    plan: BackwardPlan, thread: Term, code: PhaseCode, places: Places, folds: Sequence[Fold],
    stored: Sequence[TensorView], buffers: Mapping[TensorView, ir.Buffer], slot: Term, inside: Term | None,
) -> None:
    """Write what is computed at one position of a row, and add it to its columns."""
    in_memory = [tv for tv in stored if tv in plan.row.nest.stored]
    write_point(code, places, folds, in_memory, buffers, slot, inside)
    for column in plan.sums:
        operand = column.fold.expr.tensor_inputs[0]
        if operand in stored:
            fold = replace(column.fold, total=_sum_at(plan, code.values, column, thread, slot))
            update(code.values, fold, code.element(operand, places), inside)


# Loads ahead


def _load_shared_by_rows(plan: BackwardPlan, row: Row) -> dict[TensorView, ir.Buffer]:
    """Load the inputs that all rows share, once."""
    ahead, (section,) = {}, row.sections
    for tensor in plan.ahead:
        ahead[tensor] = words_of(row.code.values, tensor, plan.row.steps * plan.row.width, "all")
        load_row(row, section, {tensor: (plan.row.widths[tensor], ahead[tensor])})
    return ahead


def _load_first(plan: BackwardPlan, row: Row, number: Term) -> dict[TensorView, ir.Buffer]:
    """Load the first row of a block into words for the row after the current one."""
    values, (section,) = row.code.values, row.sections
    if not plan.row.nest.schedule.unroll > 1:
        return {}
    following = {
        tv: words_of(values, tv, plan.row.steps * plan.row.width, "next_row") for tv in plan.following
    }
    loads = {tv: (plan.row.widths[tv], words) for tv, words in following.items()}
    load_if_any(row, section, "first", number, loads)
    return following


def _load_ahead(
    plan: BackwardPlan, following: Mapping[TensorView, ir.Buffer], i: Term, number: Term, row: Row, section: RowSection,
    loads: Loads,
) -> None:
    """Load a row, partly from the words that were loaded ahead, and then the next row into these."""
    load_row(row, section, {tv: load for tv, load in loads.items() if tv not in following})
    waiting = {tv: load for tv, load in loads.items() if tv in following}
    if not waiting:
        return
    values, width = row.code.values, plan.row.width
    for tensor, (_, buffer) in waiting.items():
        with each_round(values, "step", plan.row.steps) as step:
            slot = values.simplify(step * width)
            if width == 1:
                values.put(buffer, slot, ir.Load(tensor.dtype, following[tensor], slot))
            else:
                values.emit(ir.VectorLoad(
                    buffer=following[tensor], position=slot, words=buffer, slot=slot, count=width,
                    width=min(ACCESS_BYTES // tensor.dtype.itemsize, width),
                ))
    next_loads = {tv: (load[0], following[tv]) for tv, load in waiting.items()}
    with values.guard(apply("lt", i, plan.each // plan.height - 1)):
        load_if_any(row, section, "row_after", values.simplify(number + plan.apart), next_loads)

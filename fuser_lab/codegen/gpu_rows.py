"""Row reductions on a GPU: the threads of a block or warp share a row; values for several passes stay on chip.

A row is processed in steps, in each of which every thread processes one group of adjacent elements. The last steps stay
in registers, those before them in shared memory, and the first, if the row is longer still, are read again in every
pass, in alternating directions so that the L2 cache still holds what was read last.

If rows do not begin at memory lines, lanes do: the first lane processes the first group of a line within the row, and
the groups before it follow the last one. A row's first and last group, which may belong to it only in part, are then
processed in the last steps, and all other steps need no conditions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.codegen.gpu_common import (
    bound,
    each_round,
    gpu_phase,
    open_lanes,
    open_lines,
    open_rounds,
    scope_of,
    share,
    wait_for_cluster,
)
from fuser_lab.codegen.gpu_facts import GpuFacts, gpu_facts
from fuser_lab.codegen.gpu_row_steps import (
    Loads,
    Row,
    RowGroups,
    RowPlan,
    RowSection,
    allocated_sections,
    load_row,
    planned_sections,
    write_section,
)
from fuser_lab.codegen.index_math import linear
from fuser_lab.codegen.kernel_ir import (
    Arrive,
    Await,
    Barrier,
    Launch,
    Load,
    Phase,
    Role,
    Scope,
    Send,
)
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import ZERO, Fold, PhaseCode, close_folds, open_folds, open_loop, update
from fuser_lab.codegen.persistence import (
    Saved,
    extreme_of_place,
    finite,
    inputs_needed,
    online_pair,
    rows_kept,
    scale,
    whole_sum,
)
from fuser_lab.codegen.scan_writing import carried_values, open_scan
from fuser_lab.codegen.vector_widths import SMALL
from fuser_lab.cost.device import LINE_BYTES, WARP
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView, needed_exprs
from fuser_lab.ir.term import Const, Term, apply, index
from fuser_lab.ir.transform import ParallelType


def row_plan(nest: NestPlan) -> RowPlan:
    """Return how threads share the rows of a nest whose reduced axes are the fastest in memory."""
    facts, schedule, space = gpu_facts(nest.facts), nest.schedule, nest.facts.space
    groups, lanes = space.groups(schedule.vector), schedule.threads[0] * schedule.cluster
    steps, general = -(-groups // lanes), space.reduces_outermost and not schedule.specialized
    if general and not facts.column_sums:
        # One kernel for many lengths has at least the steps that are kept, and whole rounds of the others.
        kept_steps = schedule.registers + schedule.shared
        steps = kept_steps + -(-max(steps - kept_steps, 0) // schedule.unroll) * schedule.unroll
    fast = facts.nest.reduced[-1] if facts.nest.reduced else None
    copied = facts.crossed if schedule.staged else {}
    widths = {
        tv: width for tv in facts.nest.index
        if tv not in copied and (width := facts.width_of_group(tv, fast, schedule.vector))
    }
    saved = _saved_values(nest, facts, widths) if schedule.persistent else ()
    sections, first = planned_sections(nest, saved, steps)
    scope, pair = scope_of(schedule), online_pair(facts.fusion, facts.nest, facts.levels)
    online = pair if schedule.online and space.online else None
    # What the second pass keeps must not depend on the maximum, which is that of a warp then.
    once = pair if scope is Scope.CLUSTER and online is None and not any(s.written == 1 for s in saved) else None
    return RowPlan(
        nest=nest, groups=groups, lanes=lanes, steps=steps, scope=scope, general=general, widths=widths, saved=saved,
        sections=sections, first=first, online=online, once=once,
    )


def _saved_values(nest: NestPlan, facts: GpuFacts, widths: Mapping[TensorView, int]) -> tuple[Saved, ...]:
    """Return the values of a row that stay on chip."""
    schedule = nest.schedule
    # Blocks that add rows to columns load the inputs that all rows share once, before the first row.
    early = schedule.constants and not facts.column_sums
    without = facts.passes_joined if schedule.shared else ()
    saved = rows_kept(facts, values=schedule.values, early=early, without=without)
    if saved or not facts.column_sums or facts.passes > 1:
        return saved
    # Such rows are also kept in a single pass: all of their inputs are in flight at once.
    return tuple(
        Saved(tensor=tv, written=0) for tv in inputs_needed(facts, 0, ()) if facts.varies(tv) and tv in widths
    )


def write_rows(plan: RowPlan) -> Iterator[Phase]:
    """Yield the only phase of rows that are neither cut into parts nor copied to shared memory."""
    write = _rows_in_turn if plan.nest.schedule.blocks else _separate_row
    yield gpu_phase(plan.nest, "", partial(rows_of_lanes, plan, write))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOfBlock:
    """The row of some lanes of a block: its number, a bound of the numbers, and consecutive rows of the block."""

    block: Term
    position: Term
    reach: int
    each: int


def rows_of_lanes(plan: RowPlan, write: Callable[[Row, RowOfBlock], None], code: PhaseCode) -> Launch:
    """Write the loops over blocks and threads, in which a function writes the row or the rows of a thread."""
    values, schedule, count = code.values, plan.nest.schedule, plan.facts.space.rows
    (lanes, height), cluster = schedule.threads, schedule.cluster
    each = -(-count // schedule.blocks) if schedule.blocks else height
    blocks = -(-count // each)
    with ExitStack() as stack:
        block: Term = open_loop(values, stack, "block", blocks * cluster, ParallelType.grid_x)
        line = open_lines(values, stack, height)
        place: Term = open_lanes(values, stack, "lane", lanes)
        lane, rank, position = place, ZERO, block * height + line
        if cluster > 1:
            values.emit(Arrive())
            rank = values.remainder(block, cluster)
            member = place = values.let("member", rank * lanes + lane)
            stack.enter_context(values.inlined({member.name: (0, plan.lanes - 1)}, pinned=True))
            block = position = values.quotient(block, cluster)
        row = Row(
            plan=plan, groups=RowGroups(code=code, width=plan.width, places={}), lane=lane, place=place, rank=rank,
            sections=allocated_sections(plan, code), scans=tuple(
                open_scan(values, expr, plan.sections[0].count * plan.width) for expr in code.nest.scans
            ),
        )
        # Lanes that share a row are either all active or all inactive, so that their exchanges are defined. The guard
        # is written even if all blocks are full, so that kernels for other numbers of rows are the same.
        reach = blocks if height == 1 else max(blocks * height, count + 1)
        write(row, RowOfBlock(block=block, position=position, reach=reach, each=each))
    return Launch(blocks=blocks * cluster, threads=(lanes, height), cluster=cluster)


def at_row(row: Row, number: Term) -> Row:
    """Return the row with a number, which begins with an access."""
    return replace(row, groups=replace(row.groups, places=row.code.flat(row.code.nest.kept, number)))


def load_if_any(row: Row, section: RowSection, name: str, number: Term, loads: Loads) -> None:
    """Write the loads of the row with a number, which is named, if there is one."""
    values, count = row.code.values, row.plan.facts.space.rows
    with values.guard(apply("lt", number, count)):
        row_number = values.let(name, values.simplify(number))
        with values.inlined({row_number.name: (0, count - 1)}):
            load_row(at_row(row, row_number), section, loads)


def open_row(row: Row, stack: ExitStack, here: RowOfBlock) -> tuple[Term, Row]:
    """Name the row of a thread and where it begins; return its number and the row."""
    count, values = row.plan.facts.space.rows, row.code.values
    number = bound(values, stack, "row", here.position, count, here.reach) if count > 1 else ZERO
    row = at_row(row, number)
    return number, replace(row, groups=divide_groups(row.plan.facts, stack, row.groups)) if row.plan.is_divided else row


def _separate_row(row: Row, here: RowOfBlock) -> None:
    """Write all passes over a row."""
    with ExitStack() as stack:
        _, row = open_row(row, stack, here)
        row = replace(row, groups=begun_with_lines(row.plan, row.groups))
        _read_for_results(row)
        passes_over(row)


def _read_for_results(row: Row) -> None:
    """Load inputs that only a row's results need before the row, to hide their latency."""
    nest, facts = row.code.nest, row.plan.facts
    if nest.full or facts.passes < 2:
        return
    needed = {*nest.rows, *(value for expr in needed_exprs(facts.fusion.exprs, nest.rows) for value in expr.inputs)}
    row_axes = {axis.name for axis in nest.kept}
    for tensor in facts.fusion.tensor_inputs:
        names = nest.axes_of(tensor)
        if tensor in needed and names and names <= row_axes:
            row.code.element(tensor, row.groups.places)


# Rows that begin anywhere in an access


def divide_groups(facts: GpuFacts, stack: ExitStack, groups: RowGroups) -> RowGroups:
    """Name the access in which a row begins, and its beginning and end relative to the preceding access."""
    lead, values, width = facts.lead, groups.code.values, groups.width
    assert lead is not None
    start = facts.start_of_row(lead, groups.places, values.scope.ranges)
    first = values.let("first", values.quotient(start, width))
    before = values.remainder(start, width)
    ends = values.simplify(before + width), before + (width + facts.space.depth)
    low, high = (values.let(name, end) for name, end in zip(("low", "high"), ends, strict=True))
    stack.enter_context(values.inlined({first.name: (0, facts.buffers[lead.name].size // width)}))
    return replace(groups, begin=(first, start), ends=(low, high))


# Rows that begin anywhere in a line of memory


def begun_with_lines(plan: RowPlan, groups: RowGroups) -> RowGroups:
    """Assign groups to lanes so that those of a warp fill whole lines of all large tensors, wherever a row begins.

    Lanes whose group would be before the row process one after the last group instead: the number of steps is the same,
    and every access of a warp begins at a line. An access that begins within a line would touch another line, and write
    two sectors partially.
    """
    facts, width, values, nest = plan.facts, groups.width, groups.code.values, groups.code.nest
    if len(nest.reduced) != 1 or plan.nest.schedule.threads[0] < WARP or plan.groups < 2 * WARP or nest.scans:
        return groups  # a scan needs the groups in the order of lanes
    moved = [tv for tv in (*nest.full, *facts.fusion.tensor_inputs) if tv in nest.index and facts.is_fast(tv)]
    largest = max((tv.nbytes for tv in moved), default=0)
    large = [tv for tv in moved if tv.nbytes * SMALL >= largest]
    starts = {facts.start_of_row(tv, groups.places, values.scope.ranges) for tv in large}
    lines = {LINE_BYTES // (width * tv.dtype.itemsize) for tv in large}
    if groups.begin is None and (len(starts) != 1 or len(lines) != 1):
        return groups  # lines of some tensors would begin at other positions
    start = next(iter(starts), ZERO)
    if any(step < 0 for _, step in linear(start, values.scope.ranges).parts):
        return groups  # targets disagree on the remainder of negative numbers
    groups_of_line = max((*lines, 1))
    first = groups.begin[0] if groups.begin is not None else values.quotient(start, width)
    before = values.simplify(values.remainder(first, groups_of_line))
    leading: Term | None
    if isinstance(before, Const):
        # All rows begin at a line; the first group of a divided row is also processed last.
        leading = index(groups_of_line) if groups.begin is not None else None
    else:
        leading = values.let("leading", index(groups_of_line) - before)
    return replace(groups, leading=leading, groups_of_line=groups_of_line)


# Passes over rows


def passes_over(row: Row, after: Callable[[], None] | None = None) -> None:
    """Write the passes over one row, then the values of the whole row; ``after`` the last read of its last section."""
    plan, code, values = row.plan, row.code, row.code.values
    first, passes, is_seen = 0, plan.facts.passes, dict[Expr, Term]()
    carried = carried_values(values, [row.scans]) if row.scans else {}
    if plan.online is not None:
        _online(row, plan.online)
        first = 2
    elif plan.once is not None:
        _relative_to_warps(row, plan.once)
        first = 2
    for number in range(first, passes):
        exprs, stored = plan.facts.reductions_in(number), plan.facts.stored_in(number)
        scans = [scan for scan in row.scans if scan.expr in plan.facts.scans_in(number)]
        if not exprs and not stored and not scans and not any(s.written == number for s in plan.saved):
            continue
        if plan.is_divided or plan.groups < plan.steps * plan.lanes:
            for scan in scans:  # elements beyond the row have no effect
                with each_round(values, "slot", scan.elements.size) as slot:
                    values.put(scan.elements, slot, scan.identity)
        folds = [replace(fold, matters=is_seen.get(fold.expr)) for fold in open_folds(values, exprs)]
        for section in row.sections if number == 0 else reversed(row.sections):
            write_section(row, section, number, folds, stored)
            if after is not None and number == passes - 1 and section is row.sections[-1]:
                after()
        shared = share(values, folds, plan.scope)
        close_folds(code, shared, row.groups.places)
        is_seen |= _has_extremes(row, folds, shared)
        for scan in scans:
            values.emit(scan.over(plan.sections[0].count, plan.width, carried[scan.expr], plan.scope))
    write_results(row)


def _has_extremes(row: Row, folds: Sequence[Fold], shared: Sequence[Fold]) -> dict[Expr, Term]:
    """Name whether a thread has seen the extreme of the row, for each reduction that finds the place of one.

    Warps without the extreme do not compute their elements again to find its place.
    """
    values, plan, has = row.code.values, row.plan, dict[Expr, Term]()
    for expr in plan.facts.nest.reductions if plan.lanes > WARP else ():
        extreme = extreme_of_place(plan.facts.fusion, expr)
        for fold, whole in zip(folds, shared, strict=True):
            if fold.expr is extreme:
                equal = apply("eq", fold.total, whole.total)
                nan = apply("isnan", fold.total, dtype=DataType.Bool) if fold.total.dtype.is_float else None
                has[expr] = values.let(f"{fold.name}_is_seen", equal if nan is None else equal | nan)
    return has


def write_results(row: Row) -> None:
    """Write the stores of the values of a whole row, by one of its threads."""
    if row.code.nest.rows:
        with row.code.values.guard(apply("eq", row.place, 0)):
            row.code.store(row.code.nest.rows, row.groups.places)


# Rows of one block, each loaded in part while the previous one is written


def _rows_in_turn(row: Row, here: RowOfBlock) -> None:
    """Write the loop over consecutive rows; the next row is loaded while the current one is stored."""
    plan, values, count, each = row.plan, row.code.values, row.plan.facts.space.rows, here.each
    section = row.sections[-1]
    first = [s.tensor for s in plan.saved if s.written == 0 and section.place is Role.WORDS]
    sent = {tv: (plan.widths[tv], section.kept[tv]) for tv in first if tv in plan.widths}

    def load_others(current: Row, section: RowSection, loads: Loads) -> None:
        load_row(current, section, {tv: load for tv, load in loads.items() if tv not in sent})

    begin = values.simplify(here.block * each)
    with values.guard(apply("lt", begin, count)):
        load_row(at_row(row, begin), section, sent)
    with ExitStack() as stack:
        i = open_loop(values, stack, "i", each, ParallelType.serial)
        number = bound(values, stack, "row", begin + i, count, -(-count // each) * each)
        stack.enter_context(values.inlined({}, pinned=True))

        def send_for_next() -> None:
            """Load the part of the next row that stays in registers."""
            with values.guard(apply("lt", i, each - 1)):
                load_if_any(row, section, "row_after", values.simplify(number + 1), sent)

        passes_over(replace(at_row(row, number), load=load_others), send_for_next if sent else None)
        if len(row.code.nest.reductions) == 1:
            # All threads read what the warps exchanged before the next row overwrites it.
            values.emit(Barrier())


# Maximum and sum of exponentials in one pass or one exchange


def _online(row: Row, pair: tuple[Expr, Expr]) -> None:
    """Write the pass that computes a row's maximum together with the sum of exponentials relative to it.

    Each thread's sum is relative to the largest element that it has seen, and is rescaled when a larger one follows
    (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
    """
    values, meets = row.code.values, row.plan.scope is Scope.CLUSTER
    scope = Scope.WARP if meets else row.plan.scope
    largest, total = open_folds(values, pair)
    for section in row.sections:
        write_section(row, section, 0, [largest, total], ())
    largest_seen = largest.total
    (largest,) = share(values, [largest], scope)
    update(values, total, total.total * scale(largest_seen, finite(largest.total)), replacing=True)
    (total,) = share(values, [total], scope)
    if meets:
        largest, total = _met_in_cluster(row, [largest, total])
    _close_pair(row, largest, total)


def _relative_to_warps(row: Row, pair: tuple[Expr, Expr]) -> None:
    """Write the first two passes over a row: sums of exponentials are relative to the maximum of a warp.

    No thread needs the results of other warps between the passes, so blocks wait for each other once.
    """
    code, values = row.code, row.code.values
    largest, total = open_folds(values, pair)
    for section in row.sections:
        write_section(row, section, 0, [largest], ())
    (largest,) = share(values, [largest], Scope.WARP)
    with values.inlined({}, pinned=True):
        # Values that are computed from this maximum stay in this scope.
        origin = values.let(f"{largest.name}_origin", finite(largest.total), origin=largest.expr.name)
        code.know(largest.expr.out, row.groups.places, origin)
        for section in reversed(row.sections):
            write_section(row, section, 1, [total], ())
    (total,) = share(values, [total], Scope.WARP)
    _close_pair(row, *_met_in_cluster(row, [largest, total]))


def _close_pair(row: Row, largest: Fold, total: Fold) -> None:
    """Make a maximum and the whole sum of exponentials available."""
    whole = whole_sum(largest.total, total.total)
    name = row.code.values.let(f"{total.name}_whole", whole, origin=total.expr.name)
    close_folds(row.code, [largest, replace(total, total=name)], row.groups.places)


def _met_in_cluster(row: Row, folds: Sequence[Fold]) -> list[Fold]:
    """Return the maximum and the sum relative to it of all warps of a cluster, which each send both at once."""
    values, schedule = row.code.values, row.plan.nest.schedule
    warps = schedule.threads[0] // WARP
    count = warps * schedule.cluster
    met = [
        values.allocate(
            values.fresh(f"{fold.name}_warps"), fold.total.dtype, count, Role.SHARED, origin=fold.expr.name,
        )
        for fold in folds
    ]
    wait_for_cluster(values)
    peer = values.remainder(row.lane, WARP)
    with values.guard(peer < schedule.cluster):
        at = values.simplify(row.rank * warps + values.quotient(row.lane, WARP))
        for fold, buffer in zip(folds, met, strict=True):
            values.emit(Send(buffer=buffer, position=at, value=fold.total, rank=peer, origin=fold.expr.name))
    for fold, buffer in zip(folds, met, strict=True):
        values.emit(Await(buffer=buffer, origin=fold.expr.name))
    rounds, shared = -(-count // WARP), list[Fold]()
    for fold in open_folds(values, [fold.expr for fold in folds]):
        with ExitStack() as stack:
            step = open_rounds(values, stack, "step", rounds)
            warp = bound(values, stack, "warp", step * WARP + peer, count, rounds * WARP)
            value: Term = Load(met[0].dtype, met[0], warp)
            if shared:
                value = Load(met[1].dtype, met[1], warp) * scale(value, finite(shared[0].total))
            update(values, fold, value)
        shared += share(values, [fold], Scope.WARP)
    return shared

"""Column reductions on a GPU: adjacent threads each own a few adjacent results and loop over the rows of a block.

Rows are distributed round-robin over the lines (rows of threads) of a block, whose results are combined in shared
memory. If there are too few columns to fill the GPU, several blocks share the rows of each, and a second phase adds up
their parts. A maximum and the sum of exponentials relative to it are computed together, as in `gpu_rows`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from fuser_lab.codegen.gpu_common import (
    ElementsAt,
    bound,
    each_neighbour,
    each_round,
    fetch,
    gpu_phase,
    know_word,
    looked_up,
    neighbours,
    open_lanes,
    open_lines,
    open_rounds,
    words_of,
)
from fuser_lab.codegen.gpu_facts import gpu_facts
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Launch, Load, Phase, Role, VectorStore
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nest_writing import (
    ZERO,
    Fold,
    PhaseCode,
    Places,
    cells,
    close_folds,
    folds_of,
    open_folds,
    open_loop,
    parts_of,
    store_parts,
    update,
    write_point,
)
from fuser_lab.codegen.persistence import finite, inputs_needed, online_pair, scale, shared_along, whole_sum
from fuser_lab.codegen.values import Values
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import MEETING_BYTES, SECTOR_BYTES, WARP, WORD_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType

# Opens loops over elements; returns the position in the nest, the thread's column, and a slot among the elements.
_Visit = Callable[[ExitStack], tuple[Places, Term, Term]]
_TOTAL_THREADS = crossover("gpu.columns.total_threads")
_SHARED_WORDS = crossover("gpu.columns.shared_words")
_NO_SUMS: Mapping[Expr, Buffer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The reductions of a column, or of a band of tiles, and the memory of their partial results."""

    nest: NestPlan = field(repr=False)
    exprs: tuple[Expr, ...]  # the reductions, a maximum before the sum of exponentials relative to it
    online: bool  # whether they are such a pair, and computed together
    parts: Mapping[Expr, Buffer]  # memory of partial results; none if there is a single phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """How the rows of columns are distributed over blocks, lines and rounds.

    Inputs are loaded in groups of columns or in lines of adjacent windows, before values of a round are computed.
    """

    results: Results
    groups: int  # of adjacent columns, of which a thread has one
    wide: int  # blocks with different columns
    turn: int  # rows of a block in a round
    whole: int  # rounds of a column in which all rows exist
    rest: int  # rows after these
    general: bool  # whether one kernel is for many depths
    fetched: Mapping[TensorView, int]  # inputs that are loaded in groups, with the width of accesses
    lines: Mapping[TensorView, int]  # inputs that are loaded in lines of windows, with the width of accesses
    written: Mapping[TensorView, int]  # results that are stored in lines of windows, with the width of accesses
    shared: tuple[TensorView, ...]  # values of a thread's columns that its rows share, and that stay in registers
    lookups: Mapping[Expr, int]  # reads at positions that are data and are done in advance; how many precede each


@dataclass(frozen=True, slots=True)
class _RowsOfThread:
    """The rows that a thread processes at a time: their number, the ``u``-th of them, and a bound of their indices."""

    count: int
    reach: int
    row: Callable[[Term], Term]


def results_of(nest: NestPlan) -> Results:
    """Return the reductions of a nest and the memory of their partial results."""
    facts, online = nest.facts, nest.schedule.online
    pair = online_pair(facts.fusion, facts.nest, facts.levels) if online else None
    return Results(nest=nest, exprs=pair or facts.nest.reductions, online=online, parts=parts_of(nest))


def column_plan(nest: NestPlan) -> ColumnPlan:
    """Return how a nest's rows are distributed, whose kept axes are the fastest in memory."""
    facts, schedule, space = gpu_facts(nest.facts), nest.schedule, nest.facts.space
    width, (lanes, height) = schedule.vector, schedule.threads
    needed = inputs_needed(facts, 0, ())
    fast = facts.nest.kept[-1] if facts.nest.kept else None
    by_line = space.window > 1 and schedule.unroll % space.window == 0 and height == 1
    groups, turn = space.rows // width, height * schedule.unroll
    return ColumnPlan(
        results=results_of(nest), groups=groups, wide=max(-(-groups // lanes), 1), turn=turn,
        whole=space.depth // turn, rest=space.depth % turn,
        general=space.reduces_outermost and not schedule.specialized,
        fetched={tv: size for tv in needed if (size := facts.width_of_group(tv, fast, width))},
        lines={tv: size for tv in needed if by_line and (size := facts.width_of_window(tv, width)) > 1},
        written={tv: size for tv in facts.nest.full if by_line and (size := facts.width_of_window(tv, width)) > 1},
        shared=shared_values(facts, width), lookups={} if schedule.online or schedule.unroll == 1 else facts.lookups(),
    )


def shared_values(facts: NestFacts, width: int, number: int = 0) -> tuple[TensorView, ...]:
    """Return the values of columns that a pass needs in all rows, as far as a thread has registers for them."""
    shared, room = [], _SHARED_WORDS
    for tensor in shared_along(facts, facts.nest.reduced, number):
        room -= width * max(tensor.dtype.compute.itemsize // 4, 1)
        if room < 0:
            break
        shared.append(tensor)
    return tuple(shared)


def write_columns(plan: ColumnPlan) -> Iterator[Phase]:
    """Yield the phase of a nest whose kept axes are the fastest in memory, or two if reductions are cut into parts."""
    yield gpu_phase(plan.results.nest, "_parts" if plan.results.parts else "", partial(_row_loops, plan))
    yield from total_phase(plan.results)


def total_phase(results: Results) -> Iterator[Phase]:
    """Yield the phase that adds up partial results, if there are any."""
    if results.parts:
        yield gpu_phase(results.nest, "_total", partial(_totals, results))


def _row_loops(plan: ColumnPlan, code: PhaseCode) -> Launch:
    values, schedule, space = code.values, plan.results.nest.schedule, plan.results.nest.facts.space
    split, width, (lanes, height), wide = schedule.split, schedule.vector, schedule.threads, plan.wide
    launch = Launch(blocks=wide * split, threads=schedule.threads)
    with ExitStack() as stack:
        block = open_loop(values, stack, "block", wide * split, ParallelType.grid_x)
        line = open_lines(values, stack, height)
        lane = open_lanes(values, stack, "lane", lanes)
        column, part = values.remainder(block, wide), values.quotient(block, wide)
        sums = running_values(values, plan.results.exprs, width)
        with ExitStack() as inner:
            g = bound(values, inner, "g", column * lanes + lane, plan.groups, wide * lanes)
            _walk_rows(plan, code, g, line, part, sums)
        if height == 1:
            g = bound(values, stack, "g", column * lanes + lane, plan.groups, wide * lanes)
            with each_neighbour(values, width) as v:
                places = neighbours(code, code.nest.kept, width, g, v)
                column_result(plan.results, code, cells(sums, v), places, g * width + v, part)
            return launch
        threads, across = lanes * height, lanes * width
        # The columns of one thread are strided and those of adjacent threads are adjacent, which avoids bank conflicts.
        met = met_in_block(
            values, partial(cells, sums), width, lambda v: (line * width + v) * lanes + lane, threads * width,
        )
        rounds = -(-across // threads)
        k = open_rounds(values, stack, "k", rounds)
        j = bound(values, stack, "j", k * threads + line * lanes + lane, across, rounds * threads)
        c = bound(values, stack, "c", column * across + j, space.rows, wide * across)
        place = values.remainder(j, width) * lanes + values.quotient(j, width)
        folds = combined_lines(values, met, place, across, height, online=plan.results.online)
        column_result(plan.results, code, folds, code.flat(code.nest.kept, c), c, part)
    return launch


def column_result(
    results: Results, code: PhaseCode, folds: Sequence[Fold], places: Places, column: Term, part: Term,
) -> None:
    """Write the stores of the results of a column, or of a part of them."""
    if results.parts:
        position = code.values.simplify(part * results.nest.facts.space.rows + column)
        store_parts(code.values, results.parts, folds, position)
    else:
        _store_results(results, code, folds, places)


def _store_results(results: Results, code: PhaseCode, folds: Sequence[Fold], places: Places) -> None:
    """Write the stores of complete results."""
    if results.online:
        # The sum of exponentials is corrected for a maximum of minus infinity.
        largest, total = folds
        whole = whole_sum(largest.total, total.total)
        name = f"{total.name}_all"
        folds = [largest, replace(total, total=code.values.let(name, whole, origin=total.expr.name))]
    close_folds(code, folds, places)
    code.store(code.nest.rows, places)


# The running values of a thread: one for each of its adjacent columns


def running_values(values: Values, exprs: Sequence[Expr], size: int) -> dict[Expr, Buffer]:
    """Allocate the running values of reductions and set them to the identity."""
    totals = {
        expr: values.allocate(f"{expr.name}_sums", expr.out.dtype.compute, size, origin=expr.name) for expr in exprs
    }
    for fold in folds_of(exprs):
        with each_round(values, "v", size) as v:
            values.put(totals[fold.expr], v, fold.identity, fold.expr.name)
    return totals


# Rows are traversed


def _walk_rows(
    plan: ColumnPlan, code: PhaseCode, g: Term, line: Term, part: Term, sums: Mapping[Expr, Buffer],
) -> None:
    """Write the loops over the rows of a block: rounds of a few rows, the loads of a round first."""
    values, schedule = code.values, plan.results.nest.schedule
    split, ahead, height, turn, whole = schedule.split, schedule.unroll, schedule.threads[1], plan.turn, plan.whole
    words = {tv: words_of(values, tv, ahead * schedule.vector, "next") for tv in (*plan.fetched, *plan.lines)}
    shared = values_of_columns(code, plan.shared, schedule.vector, g)

    def rows(start: Term, reach: int) -> None:
        rows_here = _RowsOfThread(ahead, reach, lambda u: start + u * height + line)
        _some_rows(plan, code, g, rows_here, sums, words, shared)

    # If depth is an argument, a block may have no rows in its last round: kernels do not depend on whether rounds and
    # parts divide the depth.
    if whole:
        rounds = -(-whole // split)
        with ExitStack() as stack:
            turns = open_loop(values, stack, "turn", rounds, ParallelType.serial) * split + part
            reach = (rounds + (plan.general and split > 1)) * split
            number = bound(values, stack, "number", turns, whole, reach)
            rows(number * turn, whole * turn)
    if plan.rest or plan.general:
        with values.guard(apply("eq", part, whole % split)):
            # As many steps as in other rounds, guarded, so that kernels for other depths are the same.
            rows(index(whole * turn), (whole + 1) * turn)


def values_of_columns(
    code: PhaseCode, tensors: Sequence[TensorView], width: int, g: Term, earlier: Mapping[Expr, Buffer] = _NO_SUMS,
) -> dict[TensorView, Buffer]:
    """Compute the values of a thread's columns that its rows share, given the results of earlier passes."""
    values = code.values
    buffers = {tv: values.allocate(values.fresh(f"{tv.name}_column"), tv.dtype.compute, width) for tv in tensors}
    if buffers:
        with each_neighbour(values, width) as v:
            here = neighbours(code, code.nest.kept, width, g, v)
            close_folds(code, cells(earlier, v), here)
            for tensor, buffer in buffers.items():
                values.put(buffer, v, code.element(tensor, here))
    return buffers


def _some_rows(
    plan: ColumnPlan, code: PhaseCode, g: Term, rows: _RowsOfThread, sums: Mapping[Expr, Buffer],
    words: Mapping[TensorView, Buffer], shared: Mapping[TensorView, Buffer],
) -> None:
    """Write a few rows of a thread, loads first."""
    nest, values, space = code.nest, code.values, plan.results.nest.facts.space
    width, given_before = plan.results.nest.schedule.vector, dict(code.values.given)
    taken = list[tuple[ElementsAt, list[Buffer]]]()
    side = space.window if plan.lines or plan.written else 1
    made = {tv: words_of(values, tv, rows.count * width, "line") for tv in plan.written}

    def open_rows(stack: ExitStack, step: int) -> tuple[Term, Places]:
        """Open a loop over every ``step``-th row, and return the row and the place of its first element."""
        u = open_rounds(values, stack, "u", rows.count // step) * step
        q = bound(values, stack, "q", rows.row(u), space.depth, rows.reach)
        return u, {**code.flat(nest.reduced, q), **neighbours(code, nest.kept, width, g, ZERO)}

    for step, tensors in ((1, plan.fetched), (side, plan.lines)):
        if tensors:
            with ExitStack() as stack:
                u, first = open_rows(stack, step)
                for tensor, size in tensors.items():
                    fetch(code, tensor, first, size, words[tensor], u * width, step * width)

    def visit(stack: ExitStack) -> tuple[Places, Term, Term]:
        """Open loops over the elements, and make what was read in advance available."""
        line = open_rounds(values, stack, "u", rows.count // side) * side
        w = open_rounds(values, stack, "w", side)
        q = bound(values, stack, "q", rows.row(line + w), space.depth, rows.reach)
        v = stack.enter_context(each_neighbour(values, width))
        here = {**code.flat(nest.reduced, q), **neighbours(code, nest.kept, width, g, v)}
        slot = line * width + v * side + w
        for tensor in plan.fetched:
            know_word(code, tensor, words[tensor], here, (line + w) * width + v)
        for tensor in plan.lines:
            know_word(code, tensor, words[tensor], here, slot)
        for tensor, buffer in shared.items():
            know_word(code, tensor, buffer, here, v)
        for elements_at, buffers in taken:
            for (tensor, at), buffer in zip(elements_at(here), buffers, strict=True):
                values.know(tensor, at, Load(buffer.dtype, buffer, slot))
        return here, v, slot

    for elements_at in chain.from_iterable(looked_up(code, gpu_facts(plan.results.nest.facts), plan.lookups)):
        taken.append((elements_at, _take(code, elements_at, visit, rows.count * width)))

    if plan.results.online:
        _add_exponentials(code, sums, width, visit)
    else:
        with ExitStack() as stack:
            here, v, slot = visit(stack)
            write_point(code, here, cells(sums, v), [tv for tv in nest.full if tv not in made], made, slot)
    if made:
        with ExitStack() as stack:
            u, first = open_rows(stack, side)
            for tensor, buffer in made.items():
                values.emit(VectorStore(
                    buffer=code.buffers[tensor.name], position=code.position(tensor, first), words=buffer,
                    slot=values.simplify(u * width), count=side * width, width=plan.written[tensor],
                    origin=code.fusion.producers[tensor].name,
                ))
    values.given = given_before


def _take(code: PhaseCode, elements_at: ElementsAt, visit: _Visit, size: int) -> list[Buffer]:
    """Write the loop that reads some elements of a few rows; return the memory of each."""
    values, allocated, buffers = code.values, len(code.values.scope.body), list[Buffer]()
    with ExitStack() as stack:
        here, _, slot = visit(stack)
        for tensor, at in elements_at(here):
            dtype = DataType.Int if tensor.dtype is DataType.Index else tensor.dtype.compute
            words = Buffer(name=values.fresh(f"{tensor.name}_taken"), dtype=dtype, size=size, role=Role.SCRATCH)
            buffers.append(words)
            values.put(words, slot, values.value(tensor, at))
    values.scope.names |= {words.name for words in buffers}
    values.scope.body[allocated:allocated] = [Alloc(buffer=words) for words in buffers]
    return buffers


def _add_exponentials(
    code: PhaseCode, sums: Mapping[Expr, Buffer], width: int, visit: _Visit,
) -> None:
    """Write the maxima of a few rows, then add their exponentials to sums relative to these maxima."""
    values, expr = code.values, next(iter(sums))
    seen, origin = (
        values.allocate(values.fresh(f"{expr.name}_{word}"), sums[expr].dtype, width, origin=expr.name)
        for word in ("seen", "origin")
    )
    with each_round(values, "v", width) as v:
        largest, total = cells(sums, v)
        values.put(seen, v, largest.total, expr.name)
    with ExitStack() as stack:
        here, v, _ = visit(stack)
        largest, total = cells(sums, v)
        update(values, largest, code.element(expr.tensor_inputs[0], here))
    with each_round(values, "v", width) as v:
        largest, total = cells(sums, v)
        values.put(origin, v, finite(largest.total), expr.name)
        largest_seen = Load(seen.dtype, seen, v)
        update(values, total, total.total * scale(largest_seen, Load(origin.dtype, origin, v)), replacing=True)
    with ExitStack() as stack:
        # The maximum changes in the next rows, so values computed from it stay in this scope.
        stack.enter_context(values.inlined({}, pinned=True))
        here, v, _ = visit(stack)
        largest, total = cells(sums, v)
        code.know(expr.out, here, Load(origin.dtype, origin, v))
        update(values, total, code.element(total.expr.tensor_inputs[0], here))


# Combining the lines of a block


def met_in_block(
    values: Values, folds_at: Callable[[Term], Sequence[Fold]], count: int, place: Callable[[Term], Term], size: int,
    *, name: str = "v",
) -> dict[Expr, Buffer]:
    """Write the running values of all threads of a block to shared memory.

    A thread has ``count`` of each reduction: ``folds_at(v)`` has the ``v``-th, which is written at ``place(v)``.
    """
    met = {}
    for number, fold in enumerate(folds_at(ZERO)):
        expr = fold.expr
        met[expr] = values.allocate(f"{expr.name}_lines", fold.total.dtype, size, Role.SHARED, origin=expr.name)
        with each_round(values, name, count) as v:
            values.put(met[expr], place(v), folds_at(v)[number].total, expr.name)
    values.emit(Barrier())
    return met


def combined_lines(
    values: Values, met: Mapping[Expr, Buffer], place: Term, stride: int, height: int, *, online: bool,
) -> list[Fold]:
    """Return the combined results of the lines of a block for one column, always in the same order."""
    folds = open_folds(values, tuple(met))

    def visit(stack: ExitStack) -> Callable[[Fold], Term]:
        h = open_loop(values, stack, "h", height, ParallelType.serial)
        at = values.simplify(h * stride + place)
        return lambda fold: Load(fold.identity.dtype, met[fold.expr], at)

    _add_up(values, folds, visit, online=online)
    return folds


def _add_up(
    values: Values, folds: Sequence[Fold], visit: Callable[[ExitStack], Callable[[Fold], Term]], *, online: bool,
) -> None:
    """Combine partial results; ``visit`` opens the loops over them and returns a function that gives a part."""
    if not online:
        with ExitStack() as stack:
            part = visit(stack)
            for fold in folds:
                update(values, fold, part(fold))
        return
    largest, total = folds
    with ExitStack() as stack:
        update(values, largest, visit(stack)(largest))
    origin = values.let(f"{largest.name}_origin", finite(largest.total), origin=largest.expr.name)
    with ExitStack() as stack:
        part = visit(stack)
        update(values, total, part(total) * scale(part(largest), origin))


# Parts are added up


def _totals(results: Results, code: PhaseCode) -> Launch:
    values, space, split = code.values, results.nest.facts.space, results.nest.schedule.split
    count = space.rows
    # Each line of threads adds some of the parts. If columns occupy few multiprocessors, more lines add fewer each.
    widest = WARP if 2 * count >= WARP * space.device.sms else SECTOR_BYTES // WORD_BYTES
    lanes = 1
    while lanes < widest and lanes < count:
        lanes *= 2
    height = 1
    most = MEETING_BYTES // (lanes * max(space.sum_bytes, 1))
    while height < _TOTAL_THREADS // lanes and height * 2 <= most:
        height *= 2
    blocks = -(-count // lanes)
    with ExitStack() as stack:
        block = open_loop(values, stack, "block", blocks, ParallelType.grid_x)
        line = open_lines(values, stack, height)
        lane = open_lanes(values, stack, "lane", lanes)
        folds = open_folds(values, results.exprs)

        def visit(inner: ExitStack) -> Callable[[Fold], Term]:
            c = bound(values, inner, "c", block * lanes + lane, count, blocks * lanes)
            # Guarded for any number of parts, so that kernels for other depths are the same.
            rounds = -(-split // height)
            step = open_loop(values, inner, "step", rounds, ParallelType.serial)
            part = bound(values, inner, "part", step * height + line, split, (rounds + 1) * height)
            at = values.simplify(part * count + c)
            return lambda fold: Load(fold.identity.dtype, results.parts[fold.expr], at)

        _add_up(values, folds, visit, online=results.online)
        if height > 1:
            met = met_in_block(values, lambda _: folds, 1, lambda _: line * lanes + lane, height * lanes)
            stack.enter_context(values.guard(apply("eq", line, 0)))
        c = bound(values, stack, "c", block * lanes + lane, count, blocks * lanes)
        if height > 1:
            folds = combined_lines(values, met, lane, lanes, height, online=results.online)
        _store_results(results, code, folds, code.flat(code.nest.kept, c))
    return Launch(blocks=blocks, threads=(lanes, height))


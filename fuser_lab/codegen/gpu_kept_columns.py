"""Columns that a GPU block keeps in registers between passes, as for a softmax over an outer axis.

    each thread loads its rows of a few adjacent columns
    for each pass:
        each thread reduces what it holds; the lines of the block or cluster combine results in shared memory
    each thread computes and stores what depends on the results

Columns that are computed from what adjacent ones share, such as windows, have no rows to load: the first pass computes
and keeps their values. Memory is read once, whereas one kernel per pass would read it again. nvFuser's outer persistent
scheduler does the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod

from fuser_lab.codegen import gpu_common as gpu
from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.gpu_columns import combined_lines, running_values, shared_values, values_of_columns
from fuser_lab.codegen.gpu_facts import gpu_facts
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_writing import ZERO, Fold, PhaseCode, cells, close_folds, open_loop, write_point
from fuser_lab.codegen.persistence import Saved, inputs_needed, memory_of_kept, rows_kept
from fuser_lab.cost.device import THREAD_REGISTERS, THREAD_WORDS, WORD_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_limits import ELEMENTS, IN_FLIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptColumnPass:
    """What a pass over columns loads, with the width of accesses, and what it reduces and stores."""

    loads: Mapping[TensorView, int]
    exprs: tuple[Expr, ...]
    stored: tuple[TensorView, ...]
    shared: tuple[TensorView, ...]  # values of a thread's columns that its rows share, and that stay in registers
    ahead: int  # rows of which a thread loads what it does not keep, before it computes them


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptColumnPlan:
    """How the rows of columns that stay on chip are distributed, and what is kept of them."""

    nest: NestPlan = field(repr=False)
    groups: int  # of adjacent columns, of which a thread has one
    wide: int  # blocks, or clusters of blocks, with different columns
    reach: int  # rows of all threads that share a column, and one more if one kernel is for many depths
    saved: tuple[Saved, ...]  # the values that are kept, and the pass that computes each
    passes: Mapping[int, KeptColumnPass]  # by number, without passes that compute nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns of a thread while they are written."""

    plan: KeptColumnPlan
    code: PhaseCode
    group: Term  # number of the thread's group
    line: Term
    lane: Term
    rank: Term  # number of the block in its cluster
    words: Mapping[TensorView, ir.Buffer]  # of the values that are kept
    rooms: dict[tuple[str, DataType], list[ir.Buffer]]  # shared memory in which the results of each pass meet

    @property
    def thread(self) -> Term:
        """The number of the thread in its block."""
        return self.line * self.plan.nest.schedule.threads[0] + self.lane


def kept_column_plan(nest: NestPlan) -> KeptColumnPlan:
    """Return how a nest's columns are read in several passes while they stay on chip."""
    facts, schedule, space = gpu_facts(nest.facts), nest.schedule, nest.facts.space
    saved = rows_kept(facts, values=schedule.values, early=schedule.constants)
    passes, on_chip = {}, {entry.tensor for entry in saved}
    for number in range(facts.passes):
        exprs, stored = facts.reductions_in(number), facts.stored_in(number)
        needed = inputs_needed(facts, number, saved)
        fast = facts.nest.kept[-1]
        loads = {tv: size for tv in needed if (size := facts.width_of_group(tv, fast, schedule.vector))}
        if exprs or stored:
            passes[number] = KeptColumnPass(
                loads=loads, exprs=exprs, stored=stored, shared=shared_values(facts, schedule.vector, number),
                ahead=_rows_ahead(nest, saved, [tv for tv in loads if tv not in on_chip]),
            )
    groups, (lanes, height) = space.rows // schedule.vector, schedule.threads
    # If depth is an argument, kernels do not depend on whether the depth fills all steps.
    general = space.reduces_outermost and not schedule.specialized
    return KeptColumnPlan(
        nest=nest, groups=groups, wide=max(-(-groups // lanes), 1),
        reach=schedule.registers * height * schedule.cluster + general, saved=saved, passes=passes,
    )


def _rows_ahead(nest: NestPlan, saved: Sequence[Saved], tensors: Sequence[TensorView]) -> int:
    """Return of how many rows a thread can load tensors, beside what it keeps: of all if its registers suffice."""
    schedule, device = nest.schedule, nest.facts.space.device
    threads = prod(schedule.threads) * max(schedule.resident, 1)
    room = min(device.registers // threads, THREAD_REGISTERS) - (THREAD_WORDS - ELEMENTS)
    words = sum(map(_words, memory_of_kept(nest.facts, saved)[1]))
    loaded = sum(_words(tv.dtype.itemsize) for tv in tensors)
    if not tensors or schedule.registers * schedule.vector * (words + loaded) <= room:
        return schedule.registers
    return max(IN_FLIGHT // (len(tensors) * schedule.vector), 1)


def _words(nbytes: int) -> int:
    """Return the registers that an element takes."""
    return -(-nbytes // WORD_BYTES)


def write_kept_columns(plan: KeptColumnPlan) -> Iterator[ir.Phase]:
    """Yield the only phase of a nest whose kept axes are the fastest and whose columns are read in several passes."""
    yield gpu.gpu_phase(plan.nest, "", partial(_kept_columns, plan))


def _kept_columns(plan: KeptColumnPlan, code: PhaseCode) -> ir.Launch:
    values, schedule = code.values, plan.nest.schedule
    width, cluster, (lanes, height) = schedule.vector, schedule.cluster, schedule.threads
    with ExitStack() as stack:
        block: Term = open_loop(values, stack, "block", plan.wide * cluster, ParallelType.grid_x)
        line = gpu.open_lines(values, stack, height)
        lane = gpu.open_lanes(values, stack, "lane", lanes)
        rank = ZERO
        if cluster > 1:
            values.emit(ir.Arrive())
            rank, block = values.remainder(block, cluster), values.quotient(block, cluster)
        columns = _Columns(
            plan=plan, code=code, group=block * lanes + lane, line=line, lane=lane, rank=rank,
            words={saved.tensor: _column_words(plan, code, saved.tensor, "column") for saved in plan.saved}, rooms={},
        )
        earlier: dict[Expr, ir.Buffer] = {}
        for number, step in plan.passes.items():
            sums = running_values(values, step.exprs, width)
            with ExitStack() as inner:
                g = _column_group(columns, inner)
                _pass(columns, number, step, g, sums, earlier)
            if height * cluster > 1 and sums:
                sums = _results_of_lines(columns, sums)
            earlier |= sums
        if code.nest.rows:
            with ExitStack() as inner:
                if height > 1:
                    inner.enter_context(values.guard(apply("eq", line, 0)))
                if cluster > 1:
                    inner.enter_context(values.guard(apply("eq", rank, 0)))
                g = _column_group(columns, inner)
                v = inner.enter_context(gpu.each_neighbour(values, width))
                places = gpu.neighbours(code, code.nest.kept, width, g, v)
                close_folds(code, cells(earlier, v), places)
                code.store(code.nest.rows, places)
    return ir.Launch(blocks=plan.wide * cluster, threads=(lanes, height), cluster=cluster)


def _column_words(plan: KeptColumnPlan, code: PhaseCode, tensor: TensorView, suffix: str) -> ir.Buffer:
    """Allocate words for all rows of a thread."""
    schedule = plan.nest.schedule
    return gpu.words_of(code.values, tensor, schedule.registers * schedule.vector, suffix)


def _column_group(columns: _Columns, stack: ExitStack) -> Term:
    """Name the group of columns of a thread."""
    plan, lanes = columns.plan, columns.plan.nest.schedule.threads[0]
    return gpu.bound(columns.code.values, stack, "g", columns.group, plan.groups, plan.wide * lanes)


def _pass(
    columns: _Columns, number: int, step: KeptColumnPass, g: Term, sums: Mapping[Expr, ir.Buffer],
    earlier: Mapping[Expr, ir.Buffer],
) -> None:
    """Write what a pass computes from the rows of a thread, loads first."""
    plan, code, values, nest = columns.plan, columns.code, columns.code.values, columns.code.nest
    schedule, given_before = plan.nest.schedule, dict(values.given)
    width, steps = schedule.vector, schedule.registers
    saved = {s.tensor: columns.words[s.tensor] for s in plan.saved if s.written < number}
    loaded = {tv: columns.words[tv] for tv in step.loads if tv in columns.words}
    ahead = {tv: gpu.words_of(values, tv, step.ahead * width, "next") for tv in step.loads if tv not in loaded}
    # Elements that are not adjacent in memory are loaded one by one, so nothing has filled their words yet.
    new = {s.tensor: columns.words[s.tensor] for s in plan.saved if s.written == number and s.tensor not in loaded}
    shared = values_of_columns(code, step.shared, width, g, earlier)
    _load(columns, step, g, loaded, range(steps))
    for first in range(0, steps, step.ahead):
        rows = range(first, min(first + step.ahead, steps))
        _load(columns, step, g, ahead, rows)
        with (
            _each_row(columns, rows, gpu.guard_index if step.stored else gpu.clamp_index) as (u, q, inside),
            gpu.each_neighbour(values, width) as v,
        ):
            places = {**code.flat(nest.reduced, q), **gpu.neighbours(code, nest.kept, width, g, v)}
            slot = values.simplify((u + first) * width + v)
            for tensor, buffer in {**saved, **loaded}.items():
                gpu.know_word(code, tensor, buffer, places, slot)
            for tensor, buffer in ahead.items():
                gpu.know_word(code, tensor, buffer, places, u * width + v)
            for tensor, buffer in shared.items():
                gpu.know_word(code, tensor, buffer, places, v)
            close_folds(code, cells(earlier, v), places)
            write_point(code, places, cells(sums, v), step.stored, new, slot, inside)
        values.given = dict(given_before)


def _load(
    columns: _Columns, step: KeptColumnPass, g: Term, words: Mapping[TensorView, ir.Buffer], rows: range,
) -> None:
    """Write the loads of some rows of a thread, all before any of their values is used."""
    code, width = columns.code, columns.plan.nest.schedule.vector
    if not words:
        return
    with _each_row(columns, rows, gpu.clamp_index) as (u, q, _):
        places = {**code.flat(code.nest.reduced, q), **gpu.neighbours(code, code.nest.kept, width, g, ZERO)}
        for tensor, buffer in words.items():
            gpu.fetch(code, tensor, places, step.loads[tensor], buffer, u * width, width)


@contextmanager
def _each_row(columns: _Columns, rows: range, named: gpu.Named) -> Iterator[tuple[Term, Term, Term | None]]:
    """Open a loop over some rows of a thread.

    Yield the number among these, the number among those of the column, and the condition of `Named`.
    """
    schedule, values, line = columns.plan.nest.schedule, columns.code.values, columns.line
    height = schedule.threads[1]
    if schedule.cluster > 1:
        line = values.simplify(columns.rank * height + line)
        height *= schedule.cluster
    with ExitStack() as stack:
        u = gpu.open_rounds(values, stack, "u", len(rows))
        depth = columns.plan.nest.facts.space.depth
        yield u, *named(values, stack, "q", (u + rows.start) * height + line, depth, columns.plan.reach)


def _results_of_lines(columns: _Columns, sums: Mapping[Expr, ir.Buffer]) -> dict[Expr, ir.Buffer]:
    """Return the results of all lines of a block, or of a cluster, for the columns of each thread."""
    values, schedule = columns.code.values, columns.plan.nest.schedule
    width, (lanes, height) = schedule.vector, schedule.threads
    threads, across = lanes * height, lanes * width
    parts = threads // across
    if parts == height and 2 * sum(_two_steps(height)) <= height:
        parts = _two_steps(height)[0]  # half as many steps in sequence take less time, in spite of one more barrier
    # The columns of a thread are adjacent, so that they are moved together.
    met = _meeting(columns, sums, "lines", threads * width)
    for expr, buffer in sums.items():
        with gpu.each_round(values, "v", width) as v:
            at = values.simplify(columns.thread * width + v)
            values.put(met[expr], at, ir.Load(buffer.dtype, buffer, v), expr.name)
    values.emit(ir.Barrier())
    if 1 < parts < height:
        # Each thread adds a few lines, so that no thread has to add all of them.
        lines = height // parts

        def first(j: Term) -> Term:
            return values.quotient(j, across) * (lines * across) + values.remainder(j, across)

        met = _combine_words(columns, met, "parts", parts * across, first, lines)
        height = parts
    if schedule.cluster > 1:
        met, height = _over_cluster(columns, met, across, height), schedule.cluster
    shared = _combine_words(columns, met, "columns", across, lambda j: j, height)
    results = {}
    for expr, buffer in shared.items():
        result = values.allocate(f"{expr.name}_own", buffer.dtype, width, origin=expr.name)
        with gpu.each_round(values, "v", width) as v:
            at = values.simplify(columns.lane * width + v)
            values.put(result, v, ir.Load(buffer.dtype, buffer, at), expr.name)
        results[expr] = result
    return results


def _two_steps(height: int) -> tuple[int, int]:
    """Return into how many parts lines are divided, and the lines of each, to add them in the fewest steps."""
    parts = 1 << height.bit_length() // 2
    return parts, height // parts


def _combine_words(
    columns: _Columns, met: Mapping[Expr, ir.Buffer], word: str, count: int, place: Callable[[Term], Term], height: int,
) -> dict[Expr, ir.Buffer]:
    """Return ``count`` values in shared memory; the j-th combines ``height`` lines that begin at ``place(j)``."""
    values, shared = columns.code.values, _meeting(columns, met, word, count)
    for j, fold in _each_combination(columns, met, count, place, height):
        values.put(shared[fold.expr], j, fold.total, fold.expr.name)
    values.emit(ir.Barrier())
    return shared


def _over_cluster(columns: _Columns, met: Mapping[Expr, ir.Buffer], across: int, height: int) -> dict[Expr, ir.Buffer]:
    """Combine the lines of a block and send the results to all blocks of the cluster, one line per block."""
    values, cluster = columns.code.values, columns.plan.nest.schedule.cluster
    # Of this pass only: other blocks may send the results of the next pass before this block has read these.
    shared = {
        expr: values.allocate(
            f"{expr.name}_blocks", buffer.dtype, across * cluster, ir.Role.SHARED, origin=expr.name,
        )
        for expr, buffer in met.items()
    }
    gpu.wait_for_cluster(values)
    for j, fold in _each_combination(columns, met, across, lambda j: j, height):
        at = values.simplify(columns.rank * across + j)
        with values.loop("peer", cluster, ParallelType.serial) as peer:
            values.emit(ir.Send(
                buffer=shared[fold.expr], position=at, value=fold.total, rank=peer, origin=fold.expr.name,
            ))
    for expr, buffer in shared.items():
        values.emit(ir.Await(buffer=buffer, origin=expr.name))
    return shared


def _meeting(columns: _Columns, met: Mapping[Expr, ir.Buffer], word: str, count: int) -> dict[Expr, ir.Buffer]:
    """Return shared memory for ``count`` values of each reduction.

    Passes use the same memory: between the last read in a pass and the first write in the next is a barrier.
    """
    values, shared = columns.code.values, dict[Expr, ir.Buffer]()
    for expr, buffer in met.items():
        rooms = columns.rooms.setdefault((word, buffer.dtype), [])
        number = sum(other.dtype is buffer.dtype for other in shared.values())
        if number == len(rooms):
            rooms.append(values.allocate(values.fresh(word), buffer.dtype, count, ir.Role.SHARED))
        shared[expr] = rooms[number]
    return shared


def _each_combination(
    columns: _Columns, met: Mapping[Expr, ir.Buffer], count: int, place: Callable[[Term], Term], height: int,
) -> Iterator[tuple[Term, Fold]]:
    """Yield ``count`` positions, distributed over the threads, with the sum of ``height`` lines at each."""
    values, schedule = columns.code.values, columns.plan.nest.schedule
    lanes, lines = schedule.threads
    rounds, across = -(-count // (lanes * lines)), lanes * schedule.vector
    with ExitStack() as stack:
        k = gpu.open_rounds(values, stack, "k", rounds)
        j = gpu.bound(values, stack, "j", k * (lanes * lines) + columns.thread, count, rounds * lanes * lines)
        for fold in combined_lines(values, met, place(j), across, height, online=schedule.online):
            yield j, fold

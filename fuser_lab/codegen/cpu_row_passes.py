"""The passes over one row on the CPU: its loops, the values that are kept for later passes, and its results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from fuser_lab.codegen.cpu_common import Pass, cells, named, open_block, open_totals, outer_loop, partials, passes_of
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Load, Role, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_writing import ZERO, Fold, PhaseCode, Places, close_folds, open_loop, update, write_point
from fuser_lab.codegen.persistence import Saved, choose_saved, reads_several
from fuser_lab.codegen.values import Values
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.loops import PARTIAL_ROWS

FEW_RUNS = 8  # of a row, from which running values of its elements are worth combining once
SHORT_RUN = 128  # elements, of which a vector's running values are combined as long as it takes to add them up


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How cores visit rows.

    Attributes
    ----------
    nest
        The nest with its schedule.
    outer
        How the outermost loop runs.
    passes
        The passes over a row.
    kept
        The values of a row that passes keep for later ones.
    """

    nest: NestPlan = field(repr=False)
    outer: ParallelType
    passes: tuple[Pass, ...]
    kept: tuple[TensorView, ...]

    @property
    def is_one_pass(self) -> bool:
        """Whether rows are traversed once by one loop, so that a part of a row can be used as soon as it is read."""
        facts = self.nest.facts
        return len(self.passes) == 1 and bool(facts.nest.reductions) and not facts.reduced_outer


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMemory:
    """Scratch memory with values of a row.

    ``kept`` are values that passes keep for later ones, from the position ``first_kept`` on. ``read`` are inputs that
    were read for several rows; those of the row begin at ``first_read``.
    """

    kept: Mapping[TensorView, Buffer]
    first_kept: Term = ZERO
    read: Mapping[TensorView, Buffer] = field(default_factory=dict)
    first_read: Term = ZERO


def row_plan(nest: NestPlan) -> RowPlan:
    """Return how rows are visited."""
    facts = nest.facts
    saved = choose_saved(facts) if nest.choice.schedule.persistent else ()
    read_back = _results_read_back(nest, saved) if nest.choice.schedule.persistent else ()
    passes = tuple(
        replace(
            step, stored=tuple(tv for tv in step.stored if _is_stored(nest, tv)),
            kept=tuple(s.tensor for s in saved if s.written == number),
            restored=tuple(s.tensor for s in saved if s.written < number),
            read_back=tuple(tv for tv in read_back if facts.levels.get(tv, 0) < number),
            added=tuple(expr for expr in facts.column_sums if expr.tensor_inputs[0] in step.stored),
        )
        for number, step in enumerate(passes_of(nest))
    )
    return RowPlan(nest=nest, outer=outer_loop(nest), passes=passes, kept=tuple(s.tensor for s in saved))


def _is_stored(nest: NestPlan, tensor: TensorView) -> bool:
    """Whether a result is stored; operands of column sums are among the results, but not in memory."""
    return not nest.facts.column_sums or tensor in nest.stored


def _results_read_back(nest: NestPlan, saved: Sequence[Saved]) -> tuple[TensorView, ...]:
    """Return the results that a pass stores and a later one reads, because computing them again reads more."""
    facts, kept = nest.facts, {s.tensor for s in saved}
    if not facts.nest.reduced:
        return ()
    return tuple(
        tv for tv in facts.nest.full
        if facts.levels.get(tv, 0) < facts.passes - 1 and tv not in kept and _is_stored(nest, tv)
        and not tv.dtype.is_float8
        and (facts.steps(tv) or {}).get(facts.nest.reduced[-1].name) == 1
        and reads_several(facts, tv)
    )


def allocate_kept(plan: RowPlan, values: Values, size: int) -> dict[TensorView, Buffer]:
    """Allocate scratch memory for the values of a row that passes keep."""
    buffers = {}
    for tensor in plan.kept:
        buffers[tensor] = Buffer(
            name=f"{tensor.name}_row", dtype=tensor.dtype.compute, size=max(size, 1), role=Role.SCRATCH,
        )
        values.emit(Alloc(buffer=buffers[tensor]))
    return buffers


def write_row(
    plan: RowPlan, code: PhaseCode, row: Term, memory: RowMemory, sums: Mapping[Expr, Buffer] | None = None,
) -> None:
    """Write the passes over one row, then the results of the whole row; ``sums`` are running sums of columns."""
    places = code.flat(code.nest.kept, row)
    for step in plan.passes:
        close_folds(code, write_pass(plan, code, step, places, memory, sums), places)
    code.store(code.nest.rows, places)


def write_pass(
    plan: RowPlan, code: PhaseCode, step: Pass, places: Places, memory: RowMemory,
    sums: Mapping[Expr, Buffer] | None = None,
) -> list[Fold]:
    """Write one pass over a row and return its reductions."""
    folds = open_totals(plan.nest, code.values, step.reductions)
    with ExitStack() as stack:
        inside, inner, place = walk_row(plan, code, stack, folds)
        here, slot = {**places, **inner}, code.values.simplify(memory.first_kept + place)
        know_row(code, step, here, memory, slot, place)
        write_point(code, here, inside, step.stored, {tv: memory.kept[tv] for tv in step.kept}, slot)
        if sums:
            write_point(code, here, cells({expr: sums[expr] for expr in step.added}, place), (), {}, slot)
    return folds


def know_row(code: PhaseCode, step: Pass, places: Places, memory: RowMemory, slot: Term, place: Term) -> None:
    """Make the values of a row's element that are in memory available to a pass."""
    for tensor in step.read_back:
        code.know(tensor, places, Load(tensor.dtype, code.buffers[tensor.name], code.position(tensor, places)))
    for tensor in step.restored:
        buffer = memory.kept[tensor]
        code.know(tensor, places, Load(buffer.dtype, buffer, slot))
    for tensor, buffer in memory.read.items():
        code.know(tensor, places, Load(tensor.dtype, buffer, code.values.simplify(memory.first_read + place)))


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
                folds = stack.enter_context(partials(values, folds))
        folds, r = open_block(
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
        start = named(values, "low", values.simplify(block * size))
        stop = apply("min", start + size, index(outer))
    lanes = {
        fold.expr: Buffer(
            name=values.fresh(f"{fold.name}_lanes"), dtype=fold.identity.dtype, size=run, role=Role.SCRATCH,
        )
        for fold in folds
    }
    stack.enter_context(_added_lanes(values, folds, lanes))
    q = stack.enter_context(values.loop("q", stop, ParallelType.serial, start=start, largest=outer))
    r = stack.enter_context(values.loop("r", run, ParallelType.vectorize))
    return cells(lanes, r), q, r


@contextmanager
def _added_lanes(values: Values, folds: Sequence[Fold], lanes: Mapping[Expr, Buffer]) -> Iterator[None]:
    """Allocate and clear a running value for each element of a run; combine them at the end."""
    for buffer in lanes.values():
        values.emit(Alloc(buffer=buffer))
    (run,) = {buffer.size for buffer in lanes.values()}
    with values.loop("r", run, ParallelType.vectorize) as r:
        for fold in folds:
            values.emit(Store(buffer=lanes[fold.expr], position=r, value=fold.identity, origin=fold.expr.name))
    yield
    with values.loop("r", run, ParallelType.serial) as r:
        for fold in folds:
            update(values, fold, Load(lanes[fold.expr].dtype, lanes[fold.expr], r))

"""Loops of nests without reductions on the CPU, over rows of adjacent elements."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from fuser_lab.codegen.cpu_common import chunk, know_ahead, outer_loop, scratch_of, write_ahead
from fuser_lab.codegen.cpu_facts import UNROLLED
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import Ranges, thresholds, variables
from fuser_lab.codegen.kernel_ir import If, Launch, Phase, Statement, every_term, walk
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode, Places, open_loop, written_phase
from fuser_lab.codegen.nests import axis_indices
from fuser_lab.codegen.persistence import calls_functions, shared_along
from fuser_lab.codegen.values import REPEATED
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.planned_cpu import CORES
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Const, Term, index
from fuser_lab.ir.transform import ParallelType

CHUNK = crossover("cpu.rows.chunk")
MOST_SECTIONS = crossover("cpu.rows.sections")
SHORTEST_RUN = crossover("cpu.rows.shortest_run")
SHORT_ROW = crossover("cpu.rows.short")
STAGED_ROWS = crossover("cpu.rows.together")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementPlan:
    """How cores visit the elements of a nest, row by row."""

    nest: NestPlan = field(repr=False)
    rows: int
    length: int  # of a row
    chunks: int = 0  # of a row that are distributed over cores; 0 if rows are not cut
    staged: tuple[TensorView, ...] = ()  # values whose functions are computed for many short rows, to fill vectors
    limits: tuple[int, ...] = ()  # where loops over a row begin, then the end; none if its elements are distributed
    digits: tuple[int, ...] = ()  # extents of nested loops over a row, innermost last; none if there is one loop


def element_plan(nest: NestPlan) -> ElementPlan:
    """Return how the elements of a nest are visited.

    A row is split into sections in which the conditions of pads and cats are constant. If accesses split the index of
    an element into digits, as with a reshape between transposes, there is one loop per digit.
    """
    facts, parallel = nest.facts, nest.choice.schedule.parallel
    outer, run = facts.kept_outer, facts.kept_run
    rows, length = extent_of(outer), extent_of(run)
    plan = partial(ElementPlan, nest=nest, rows=rows, length=length)
    if parallel and rows < CORES and length >= CHUNK:
        return plan(chunks=-(-length // CHUNK))
    if parallel and not outer:
        return plan()
    staged = () if not outer or length > SHORT_ROW else tuple(
        tensor for tensor in shared_along(facts, run) if calls_functions(facts, tensor)
    )
    ranges = {"i": (0, max(rows - 1, 0)), "j": (0, max(length - 1, 0))}
    places = {**axis_indices(outer, index_var("i"), ranges), **axis_indices(run, index_var("j"), ranges)}
    statements = tuple(walk(facts.trial(places, ranges)))
    changes = _changes(statements, ranges, length)
    return plan(
        staged=staged, limits=(0, *changes, length), digits=() if changes else _digits(statements, length),
    )


def write_elements(plan: ElementPlan) -> Iterator[Phase]:
    """Yield the only phase of a nest in which every element is computed separately."""
    yield written_phase(plan.nest, "", partial(_elements, plan))


def _elements(plan: ElementPlan, code: PhaseCode) -> Launch:
    values, facts = code.values, plan.nest.facts
    outer, run, parallel = facts.kept_outer, facts.kept_run, outer_loop(plan.nest)
    with ExitStack() as stack:
        if plan.chunks:
            unit = open_loop(values, stack, "unit", plan.rows * plan.chunks, parallel)
            places = code.flat(outer, values.quotient(unit, plan.chunks))
            start, stop = chunk(values, values.remainder(unit, plan.chunks), CHUNK, plan.length, guarded=not outer)
            j = stack.enter_context(
                values.loop("j", stop, ParallelType.vectorize, start=start, largest=plan.length),
            )
            code.store(code.nest.full, {**places, **code.flat(run, j)})
        elif not plan.limits:
            code.store(code.nest.full, code.flat(run, open_loop(values, stack, "i", plan.length, parallel)))
        elif plan.staged:
            _write_stages(plan, code, stack)
        else:
            i: Term = open_loop(values, stack, "i", plan.rows, parallel) if outer else ZERO
            _write_row(plan, code, code.flat(outer, i))
    return Launch()


def _write_stages(plan: ElementPlan, code: PhaseCode, stack: ExitStack) -> None:
    """Write rows in blocks: first the staged values of all rows of a block, then the rows."""
    values = code.values
    unit = open_loop(values, stack, "unit", -(-plan.rows // STAGED_ROWS), outer_loop(plan.nest))
    buffers = scratch_of(values, plan.staged, "rows", STAGED_ROWS)
    start, stop = chunk(values, unit, STAGED_ROWS, plan.rows, guarded=True)
    for kind in (ParallelType.vectorize, ParallelType.serial):
        with values.loop("i", stop, kind, start=start, largest=plan.rows, pinned=True) as i:
            places, slot = code.flat(plan.nest.facts.kept_outer, i), values.simplify(i - start)
            if kind is ParallelType.vectorize:
                write_ahead(code, buffers, places, slot)
            else:
                know_ahead(code, buffers, places, slot)
                _write_row(plan, code, places)


def _write_row(plan: ElementPlan, code: PhaseCode, places: Places) -> None:
    """Write the loops over the elements of a row."""
    values, run = code.values, plan.nest.facts.kept_run
    if plan.digits:
        with ExitStack() as stack:
            flat: Term = index(0)
            for number, size in enumerate(plan.digits):
                kind = ParallelType.vectorize if number == len(plan.digits) - 1 else ParallelType.serial
                flat = flat * size + open_loop(values, stack, f"j{number}", size, kind)
            code.store(code.nest.full, {**places, **code.flat(run, values.simplify(flat))})
        return
    for start, stop in itertools.pairwise(plan.limits):
        with values.loop(
            "j", stop, ParallelType.vectorize, start=index(start), smallest=start, pinned=len(plan.limits) > 2,
        ) as j:
            values.begin_section()
            code.store(code.nest.full, {**places, **code.flat(run, j)})


def _changes(statements: Sequence[Statement], ranges: Ranges, length: int) -> list[int]:
    """Return the indices of the innermost loop at which a condition changes; none if there would be too many loops."""
    changes: set[int] = set()
    for statement in statements:
        if isinstance(statement, If):
            changes |= thresholds(statement.condition, "j", ranges)
    inner = sorted(n for n in changes if 0 < n < length)
    # The loops of a short row are written out, and the compiler makes vectors of several rows. Sections repeat all
    # statements, and the time of the compiler is that of all copies.
    is_short = len(inner) <= MOST_SECTIONS or length <= UNROLLED
    return inner if is_short and (len(inner) + 1) * len(statements) <= REPEATED else []


def _digits(statements: Sequence[Statement], length: int) -> tuple[int, ...]:
    """Return the extents of loops that replace the innermost loop so that no access divides its variable, or none.

    There are none if no access divides it, if divisors do not divide each other, or if runs are too short for a vector.
    """
    divisors: set[int] = set()
    for statement in statements:
        for term in every_term(statement):
            match term:
                case Apply(_, "floordiv" | "mod", (whole, Const(_, size))) if "j" in variables(whole):
                    divisors.add(int(size.real))
    steps = [length, *sorted(divisors, reverse=True)]
    if not divisors or steps[-1] < SHORTEST_RUN or any(big % small for big, small in itertools.pairwise(steps)):
        return ()
    extents = (*(big // small for big, small in itertools.pairwise(steps)), steps[-1])
    return tuple(extent for extent in extents if extent > 1)

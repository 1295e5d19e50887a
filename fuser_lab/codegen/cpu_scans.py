"""Scans on the CPU: a core processes a row, or a tile of adjacent columns.

A row is processed in sections: a loop that the compiler vectorizes computes the operands into scratch memory, the
section is scanned there, and another loop computes the stored values. Each column has its own running value.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from fuser_lab.codegen.cpu_common import chunk, index_variable, outer_loop
from fuser_lab.codegen.kernel_ir import Launch, Load, Phase, Scope, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import extent_of
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
    written_phase,
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
from fuser_lab.cost.crossovers import crossover
from fuser_lab.ir import Expr
from fuser_lab.ir.term import Apply, Term, Var, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.cpu_loops import SECTION
from fuser_lab.schedule.state import NestKind

PARTS = crossover("cpu.scans.parts")
VECTOR = 8  # the number of elements of a part is a multiple of this
SHORT = crossover("cpu.scans.short")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """How cores visit rows or columns that are scanned."""

    nest: NestPlan = field(repr=False)
    levels: tuple[tuple[Expr, ...], ...]  # scans, by the number of other scans that they depend on
    sections: int = 0  # of a row; 0 if columns are scanned, or rows element by element
    parts: int = 0  # of a section, scanned together
    each: int = 0  # elements of a part


def scan_plan(nest: NestPlan) -> ScanPlan:
    """Return how the scans of a nest are visited."""
    depth, levels = nest.facts.space.depth, scan_levels(nest.facts.fusion, nest.facts.nest)
    if nest.schedule.kind is NestKind.CORE_SCANNED_COLUMNS:
        check_scanned_columns(nest.facts.nest)
    if nest.schedule.kind is not NestKind.CORE_SCANNED_ROWS or depth <= SHORT:
        return ScanPlan(nest=nest, levels=levels)
    sections = -(-depth // SECTION)
    parts, each = _parts(-(-depth // sections))
    return ScanPlan(nest=nest, levels=levels, sections=sections, parts=parts, each=each)


def _parts(size: int) -> tuple[int, int]:
    """Return the number of parts of a section that are scanned together, and the elements of each."""
    each = -(-size // (PARTS * VECTOR)) * VECTOR
    return -(-size // each), each


def open_row_scans(values: Values, scans: Sequence[Expr], depth: int) -> dict[Expr, Running]:
    """Allocate the elements of scans of a row that is one section."""
    parts, each = _parts(depth)
    return {expr: open_scan(values, expr, parts * each, wide=True) for expr in scans}


def write_row_scan(values: Values, scan: Running, carry: Var, depth: int) -> None:
    """Write the scan of a row that is one section; elements beyond the row have no effect."""
    parts, each = _parts(depth)
    if depth < parts * each:
        with values.loop("rest", parts * each, ParallelType.serial, start=index(depth)) as rest:
            values.put(scan.elements, rest, scan.identity)
    values.emit(scan.over(parts, each, carry, Scope.THREAD))


def write_scanned_rows(plan: ScanPlan) -> Iterator[Phase]:
    """Yield the only phase of a nest with scans along rows."""
    yield written_phase(plan.nest, "", partial(_rows, plan))


def write_scanned_columns(plan: ScanPlan) -> Iterator[Phase]:
    """Yield the only phase of a nest with scans along columns."""
    yield written_phase(plan.nest, "", partial(_columns, plan))


def _rows(plan: ScanPlan, code: PhaseCode) -> Launch:
    values, space = code.values, plan.nest.facts.space
    with ExitStack() as stack:
        row: Term = ZERO
        if space.rows > 1:
            row = stack.enter_context(values.loop("row", space.rows, outer_loop(plan.nest), pinned=True))
        else:
            stack.enter_context(values.inlined({}, pinned=True))
        places = code.flat(code.nest.kept, row)
        folds = open_folds(values, code.nest.reductions)
        if plan.sections:
            _write_sections(plan, code, places, folds)
        else:
            _write_short_row(code, places, space.depth, folds)
        close_folds(code, folds, places)
        code.store(code.nest.rows, places)
    return Launch()


def _write_sections(plan: ScanPlan, code: PhaseCode, places: Places, folds: Sequence[Fold]) -> None:
    """Write the scans of a row, and its reductions, section by section."""
    values, depth, size = code.values, plan.nest.facts.space.depth, plan.parts * plan.each
    levels = [[open_scan(values, expr, size, wide=True) for expr in level] for level in plan.levels]
    carried = carried_values(values, levels)
    with ExitStack() as stack:
        section: Term = ZERO
        if plan.sections > 1:
            section = open_loop(values, stack, "section", plan.sections, ParallelType.serial)
        start, stop = chunk(values, section, size, depth)
        earlier: list[Running] = []
        for level in levels:
            _write_operands(code, level, earlier, places, (start, stop), depth)
            for scan in level:
                values.emit(scan.over(plan.parts, plan.each, carried[scan.expr], Scope.THREAD))
            earlier += level
        # The totals of a section are added up before they are added to those of the row, which bounds their errors.
        parts = open_folds(values, code.nest.reductions)
        with values.loop("r", stop, ParallelType.vectorize, start=start, largest=depth) as r:
            write_point(code, _place_with_results(code, earlier, places, r, start), parts, code.nest.full, {}, ZERO)
        for fold, part in zip(folds, parts, strict=True):
            update(values, fold, part.total)


def _write_short_row(code: PhaseCode, places: Places, depth: int, folds: Sequence[Fold]) -> None:
    """Write scans and reductions of a row element by element, without a loop; a core computes several rows at once."""
    values = code.values
    scans = [open_scan(values, expr, 0, wide=True) for expr in code.nest.scans]
    carried = carried_values(values, [scans])
    for r in range(depth):
        here = {**places, **code.flat(code.nest.reduced, index(r))}
        for scan in scans:
            before = carried[scan.expr]
            value = cast(operand(code, scan.expr, here), before.dtype)
            carried[scan.expr] = values.let(
                scan.name, Apply(before.dtype, scan.fn, (before, value)), origin=scan.expr.name,
            )
            know_results(code, {scan.expr: carried[scan.expr]}, here)
        write_point(code, here, folds, code.nest.full, {}, ZERO)


def _write_operands(
    code: PhaseCode, level: Sequence[Running], earlier: Sequence[Running], places: Places, ends: tuple[Term, Term],
    depth: int,
) -> None:
    """Compute the operands of some scans in a section; elements beyond the row have no effect."""
    values, (start, stop) = code.values, ends
    size = level[0].elements.size
    with values.loop("r", stop, ParallelType.vectorize, start=start, largest=depth) as r:
        here = _place_with_results(code, earlier, places, r, start)
        slot = values.simplify(r - start)
        for scan in level:
            value = operand(code, scan.expr, here)
            values.emit(Store(buffer=scan.elements, position=slot, value=value, origin=scan.expr.name))
    if depth % size:
        with values.loop("rest", size, ParallelType.serial, start=values.simplify(stop - start)) as rest:
            for scan in level:
                values.emit(Store(buffer=scan.elements, position=rest, value=scan.identity))


def _place_with_results(code: PhaseCode, scans: Sequence[Running], places: Places, r: Term, start: Term) -> Places:
    """Return the position in the nest of an element of a row, with the results of scans available."""
    here = {**places, **code.flat(code.nest.reduced, r)}
    slot = code.values.simplify(r - start)
    know_results(code, {s.expr: Load(s.elements.dtype, s.elements, slot) for s in scans}, here)
    return here


def _columns(plan: ScanPlan, code: PhaseCode) -> Launch:
    values, nest, facts, tile = code.values, code.nest, plan.nest.facts, plan.nest.choice.schedule.tile
    run = extent_of(facts.kept_run)
    tiles = -(-run // tile)
    units = extent_of(facts.kept_outer) * tiles
    with ExitStack() as stack:
        unit = stack.enter_context(values.loop("unit", units, outer_loop(plan.nest), pinned=True))
        scans = [open_scan(values, expr, tile, wide=True, sums=True) for expr in nest.scans]
        places = code.flat(facts.kept_outer, values.quotient(unit, tiles))
        first, last = chunk(values, values.remainder(unit, tiles), tile, run, guarded=True)
        first, last = index_variable(values, "first", first), index_variable(values, "last", last)
        with values.loop("c", last, ParallelType.vectorize, start=first, largest=run) as c:
            slot = values.simplify(c - first)
            for scan in scans:
                values.emit(Store(buffer=scan.elements, position=slot, value=scan.first, origin=scan.expr.name))
        q = open_loop(values, stack, "q", facts.space.depth, ParallelType.serial)
        # With a single row, values depend on no variable that would keep them after the scan.
        c = stack.enter_context(values.loop(
            "c", last, ParallelType.vectorize, start=first, largest=run, pinned=not nest.reduced,
        ))
        here = {**places, **code.flat(nest.reduced, q), **code.flat(facts.kept_run, c)}
        slot = values.simplify(c - first)
        for scan in scans:
            buffer = scan.elements
            value = cast(operand(code, scan.expr, here), buffer.dtype)
            result = values.let(
                scan.name, Apply(buffer.dtype, scan.fn, (Load(buffer.dtype, buffer, slot), value)),
                origin=scan.expr.name,
            )
            values.emit(Store(buffer=buffer, position=slot, value=result, origin=scan.expr.name))
            know_results(code, {scan.expr: result}, here)
        code.store(nest.full, here)
    return Launch()

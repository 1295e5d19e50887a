"""Scans on the CPU: a core processes a row, or a tile of adjacent columns.

A row is processed in sections: a loop that the compiler vectorizes computes the operands into scratch memory, the
section is scanned there, and another loop computes the stored values. Each column has its own running value.
"""

from contextlib import ExitStack

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Launch, Load, Scan, Scope, Store
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.scan_lowering import Running, ScanLowering
from fuser_lab.cost.crossovers import crossover
from fuser_lab.ir.term import Apply, Term, cast, index
from fuser_lab.ir.transform import ParallelType

PARTS = crossover("cpu.scans.parts")
VECTOR = 8  # the number of elements of a part is a multiple of this
SHORT = crossover("cpu.scans.short")
SECTION = crossover("cpu.scans.section")


class CpuScans(ScanLowering):
    """Writes nests with scans for the CPU."""

    @property
    def _outer(self) -> ParallelType:
        return ParallelType.grid_x if self.schedule.parallel else ParallelType.serial

    def _rows(self) -> Launch:
        values, count, depth = self._values, self.space.rows, self.space.depth
        sections = -(-depth // SECTION)
        each = -(-depth // (sections * PARTS * VECTOR)) * VECTOR
        parts = -(-depth // (sections * each))
        with ExitStack() as stack:
            row: Term = index(0)
            if count > 1:
                row = stack.enter_context(values.loop("row", count, self._outer, pinned=True))
            else:
                stack.enter_context(self._inline({}, pinned=True))
            places = self._flat(self._nest.kept, row)
            if depth <= SHORT:
                self._short_row(places)
                return Launch()
            levels = [[self._running(e, parts * each, wide=True) for e in level] for level in self._levels_of_scans()]
            carried = self._carried_values(levels)
            section: Term = index(0)
            if sections > 1:
                section = self._loop(stack, "section", sections, ParallelType.serial)
            start, stop = self._chunk(section, parts * each, depth)
            earlier: list[Running] = []
            for level in levels:
                self._operands(level, earlier, places, (start, stop))
                for scan in level:
                    values.emit(Scan(
                        buffer=scan.elements, parts=parts, each=each, carry=carried[scan.expr], fn=scan.fn,
                        identity=scan.identity.value, scope=Scope.THREAD, origin=scan.expr.name,
                    ))
                earlier += level
            with values.loop("r", stop, ParallelType.vectorize, start=start, largest=depth) as r:
                self._stores(self._place_with_results(earlier, places, r, start))
        return Launch()

    def _short_row(self, places: Places) -> None:
        """Write the scans of a row element by element, without a loop; a core computes several rows at once."""
        values = self._values
        scans = [self._running(e, 0, wide=True) for e in self._nest.scans]
        carried = self._carried_values([scans])
        for r in range(self.space.depth):
            here = {**places, **self._flat(self._nest.reduced, index(r))}
            for scan in scans:
                before = carried[scan.expr]
                value = cast(self._operand(scan.expr, here), before.dtype)
                carried[scan.expr] = values.let(
                    scan.name, Apply(before.dtype, scan.fn, (before, value)), origin=scan.expr.name,
                )
                self._give({scan.expr: carried[scan.expr]}, here)
            self._stores(here)

    def _operands(self, level: list[Running], earlier: list[Running], places: Places, ends: tuple[Term, Term]) -> None:
        """Compute the operands of some scans in a section; elements beyond the row have no effect."""
        values, depth, (start, stop) = self._values, self.space.depth, ends
        size = level[0].elements.size
        with values.loop("r", stop, ParallelType.vectorize, start=start, largest=depth) as r:
            here = self._place_with_results(earlier, places, r, start)
            slot = simplify(r - start, values.scope.ranges)
            for scan in level:
                value = self._operand(scan.expr, here)
                values.emit(Store(buffer=scan.elements, position=slot, value=value, origin=scan.expr.name))
        if depth % size:
            first = simplify(stop - start, values.scope.ranges)
            with values.loop("rest", size, ParallelType.serial, start=first) as rest:
                for scan in level:
                    values.emit(Store(buffer=scan.elements, position=rest, value=scan.identity))

    def _place_with_results(self, scans: list[Running], places: Places, r: Term, start: Term) -> Places:
        """Return the position in the nest of an element of a row, with the results of scans available."""
        here = {**places, **self._flat(self._nest.reduced, r)}
        slot = simplify(r - start, self._values.scope.ranges)
        self._give({s.expr: Load(s.elements.dtype, s.elements, slot) for s in scans}, here)
        return here

    def _columns(self) -> Launch:
        values, nest, tile = self._values, self._nest, self.schedule.tile
        run, depth = extent_of(self._kept_run), self.space.depth
        tiles = -(-run // tile)
        units = extent_of(self._kept_outer) * tiles
        with ExitStack() as stack:
            unit = stack.enter_context(values.loop("unit", units, self._outer, pinned=True))
            scans = [self._running(e, tile, wide=True, sums=True) for e in self._nest.scans]
            sums = {scan.expr: scan.elements for scan in scans}
            places = self._flat(self._kept_outer, self._quotient(unit, tiles))
            first, last = self._chunk(self._remainder(unit, tiles), tile, run, guarded=True)
            first, last = self._index_variable("first", first), self._index_variable("last", last)
            with values.loop("c", last, ParallelType.vectorize, start=first, largest=run) as c:
                for scan in scans:
                    slot = simplify(c - first, values.scope.ranges)
                    values.emit(Store(buffer=sums[scan.expr], position=slot, value=scan.first, origin=scan.expr.name))
            q = stack.enter_context(values.loop("q", depth, ParallelType.serial))
            # With a single row, values depend on no variable that would keep them after the scan.
            c = stack.enter_context(values.loop(
                "c", last, ParallelType.vectorize, start=first, largest=run, pinned=not nest.reduced,
            ))
            here = {**places, **self._flat(nest.reduced, q), **self._flat(self._kept_run, c)}
            slot = simplify(c - first, values.scope.ranges)
            for scan in scans:
                buffer = sums[scan.expr]
                value = cast(self._operand(scan.expr, here), buffer.dtype)
                result = values.let(
                    scan.name, Apply(buffer.dtype, scan.fn, (Load(buffer.dtype, buffer, slot), value)),
                    origin=scan.expr.name,
                )
                values.emit(Store(buffer=buffer, position=slot, value=result, origin=scan.expr.name))
                self._give({scan.expr: result}, here)
            self._stores(here)
        return Launch()

"""The loops of CPU kernels: the outermost is distributed over cores, and the compiler vectorizes the innermost."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from fuser_lab.codegen.cpu_bands import CpuBands
from fuser_lab.codegen.cpu_facts import UNROLLED
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import Ranges, simplify, thresholds, variables
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, If, Launch, Load, Phase, Role, Statement, Store, terms_of, walk
from fuser_lab.codegen.nest_facts import extent_of
from fuser_lab.codegen.nest_lowering import Fold, Places, base_name
from fuser_lab.codegen.nests import axis_indices
from fuser_lab.codegen.persistence import CALLED, calls_functions, constant_along, shared_along
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Apply, Const, Term, apply, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.loops import PARTIAL_ELEMENTS, PARTIAL_ROWS
from fuser_lab.schedule.state import Style

CHUNK = crossover("cpu.rows.chunk")
FEW_ROWS = crossover("cpu.rows.few")
FEW_RUNS = crossover("cpu.rows.runs")
MOST_SECTIONS = crossover("cpu.rows.sections")
SHORTEST_RUN = crossover("cpu.rows.shortest_run")
SHORT_RUN = crossover("cpu.rows.short_run")
SHORT_ROW = crossover("cpu.rows.short")
SHORT_ROUNDED_ROW = crossover("cpu.rows.short_rounded")
VECTOR = 8  # elements from which the compiler makes vectors of a row's elements, and not of several rows
STAGED_ROWS = crossover("cpu.rows.together")
IN_ONE_INSTRUCTION = frozenset({"ceil", "floor", "round", "rsqrt", "sqrt", "trunc"})


class CpuNest(CpuBands):
    """Writes nests for the CPU."""

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or two if reductions are cut into parts."""
        style = self.schedule.style
        if style is Style.ELEMENTS:
            yield self._phase(self._elements)
        elif self._parts:
            # Several passes over a row are one phase, so only single passes are cut.
            yield self._phase(self._row_parts if style is Style.ROWS else self._blocks, "_parts")
            yield self._phase(self._rows if style is Style.ROWS else self._lanes, "_total")
        elif style is Style.ROWS:
            yield self._phase(self._rows)
        else:
            is_short = self.space.depth <= UNROLLED and self._passes == 1
            yield self._phase(self._lanes if is_short else self._blocks)

    def _elements(self) -> Launch:
        values, outer, run = self._values, self._kept_outer, self._kept_run
        count, length = extent_of(outer), extent_of(run)
        many = self._outer
        with ExitStack() as stack:
            if not outer and not self.schedule.parallel:
                self._inner_loops({}, length)
            elif count >= FEW_ROWS or not self.schedule.parallel or length < CHUNK:
                if not outer:
                    i: Term = self._loop(stack, "i", length, many)
                    self._stores(self._flat(run, i))
                elif staged := self._staged_tensors(length):
                    self._in_stages(stack, staged, count, length)
                else:
                    i = self._loop(stack, "i", count, many)
                    self._inner_loops(self._flat(outer, i), length)
            else:
                chunks = -(-length // CHUNK)
                unit = self._loop(stack, "unit", count * chunks, many)
                i = self._quotient(unit, chunks)
                part = self._remainder(unit, chunks)
                start, stop = self._chunk(part, CHUNK, length, guarded=not outer)
                places = self._flat(outer, i)
                j = stack.enter_context(
                    values.loop("j", stop, ParallelType.vectorize, start=start, largest=length),
                )
                self._stores({**places, **self._flat(run, j)})
        return Launch()

    def _staged_tensors(self, length: int) -> tuple[TensorView, ...]:
        """Return the values of short rows whose mathematical functions are computed for many rows, to fill vectors."""
        if length > SHORT_ROW:
            return ()
        shared = shared_along(self._facts, self._kept_run)
        return tuple(tensor for tensor in shared if calls_functions(self._facts, tensor))

    def _in_stages(self, stack: ExitStack, staged: Sequence[TensorView], count: int, length: int) -> None:
        """Write rows in blocks: first the staged values of all rows of a block, then the rows."""
        values, nest = self._values, self._nest
        unit = self._loop(stack, "unit", -(-count // STAGED_ROWS), self._outer)
        row_buffers = {
            tv: Buffer(name=f"{tv.name}_rows", dtype=tv.dtype.compute, size=STAGED_ROWS, role=Role.SCRATCH)
            for tv in staged
        }
        for buffer in row_buffers.values():
            values.emit(Alloc(buffer=buffer))
        start, stop = self._chunk(unit, STAGED_ROWS, count, guarded=True)
        for kind in (ParallelType.vectorize, ParallelType.serial):
            with values.loop("i", stop, kind, start=start, largest=count, pinned=True) as i:
                places, slot = self._flat(self._kept_outer, i), simplify(i - start, values.scope.ranges)
                for tensor, buffer in row_buffers.items():
                    at = values.simplified(nest.at(tensor, places))
                    if kind is ParallelType.vectorize:
                        values.emit(Store(buffer=buffer, position=slot, value=values.value(tensor, at)))
                    else:
                        values.know(tensor, at, Load(tensor.dtype, buffer, slot))
                if kind is ParallelType.serial:
                    self._inner_loops(places, length)

    def _inner_loops(self, places: Places, length: int) -> None:
        """Write the innermost loop, split into sections in which the conditions of pads and cats are constant.

        If accesses split its variable into digits, as with a reshape between transposes, there is one loop per digit.
        """
        values, run = self._values, self._kept_run
        ranges = {**values.scope.ranges, "j": (0, max(length - 1, 0))}
        statements = self._trial_statements(places, ranges)
        limits = [0, *_changes(statements, ranges, length), length]
        sizes = _digits(statements, length) if len(limits) == 2 else ()
        if sizes:
            with ExitStack() as stack:
                flat: Term = index(0)
                for number, size in enumerate(sizes):
                    kind = ParallelType.vectorize if number == len(sizes) - 1 else ParallelType.serial
                    digit = stack.enter_context(values.loop(f"j{number}", size, kind))
                    flat = flat * size + digit
                self._stores({**places, **self._flat(run, simplify(flat, values.scope.ranges))})
            return
        for start, stop in itertools.pairwise(limits):
            with values.loop(
                "j", stop, ParallelType.vectorize, start=index(start), smallest=start, pinned=len(limits) > 2,
            ) as j:
                self._stores({**places, **self._flat(run, j)})

    def _trial_statements(self, places: Places, ranges: Ranges) -> tuple[Statement, ...]:
        """Return the statements of one iteration of the innermost loop."""
        inside = {**places, **axis_indices(self._kept_run, index_var("j"), ranges)}
        return tuple(walk(self._facts.trial(inside, ranges)))

    def _rows(self) -> Launch:
        values, count, grain = self._values, self.space.rows, self.schedule.grain
        many = self._outer
        if across := self._read_across():
            return self._write_bands(across, self._walk)
        with ExitStack() as stack:
            if grain > 1:
                group = self._loop(stack, "group", -(-count // grain), many)
                if self._has_stages():
                    self._rows_in_stages(group)
                    return Launch()
                buffers = self._allocate(self.space.depth)
                start, stop = self._chunk(group, grain, count, guarded=True)
                row: Term = stack.enter_context(
                    values.loop("row", stop, ParallelType.serial, start=start, largest=count, pinned=True),
                )
            elif count > 1:
                row = stack.enter_context(values.loop("row", count, many, pinned=True))
                buffers = self._allocate(self.space.depth)
            else:
                row = index(0)
                stack.enter_context(self._inline({}, pinned=True))
                buffers = self._allocate(self.space.depth)
            self._row(row, buffers, self._walk_parts if self._parts else self._walk)
        return Launch()

    def _staged_in_rows(self, number: int) -> tuple[TensorView, ...]:
        """Return the values of a whole row that a pass needs and whose functions are computed for many rows."""
        constants = constant_along(self._facts, number) if number else ()
        return tuple(tensor for tensor in constants if calls_functions(self._facts, tensor, self._slow))

    @property
    def _slow(self) -> Collection[str]:
        """The functions of a whole row that take long beside the work on its elements.

        While a core computes a root, it begins with the next row, unless it is busy with rounding elements.
        """
        return CALLED if self._rounds_elements else CALLED - IN_ONE_INSTRUCTION

    @property
    def _rounds_elements(self) -> bool:
        return any(tensor.dtype.itemsize < DataType.Float.itemsize for tensor in self._nest.full)

    def _has_stages(self) -> bool:
        """Whether rows are so short that functions of their sums take long, unless vectors compute those of many."""
        longest = SHORT_ROUNDED_ROW if self._rounds_elements else SHORT_ROW
        if not VECTOR <= self.space.depth <= longest or self._parts:
            return False
        return any(map(self._staged_in_rows, range(self._passes))) or any(
            calls_functions(self._facts, tensor, self._slow) for tensor in self._nest.rows
        )

    def _rows_in_stages(self, group: Term) -> None:
        """Write a group of rows in stages: a pass over each row, then what the next pass needs of all rows, and so on.

        Between two passes over one row, a core would wait for the functions of a single sum.
        """
        values, nest, grain, depth = self._values, self._nest, self.schedule.grain, self.space.depth
        start, stop = self._chunk(group, grain, self.space.rows, guarded=True)
        start = self._index_variable("first", start)
        most = max(grain, PARTIAL_ELEMENTS // depth)  # for any number of rows, so that kernels for others are the same
        totals, saved = self._sums(most, "rows", wide=True), self._allocate(most * depth)
        done: dict[Expr, Buffer] = {}
        held: dict[TensorView, Buffer] = {}

        @contextmanager
        def each_row(kind: ParallelType) -> Iterator[tuple[Places, Term]]:
            with values.loop("row", stop, kind, start=start, largest=self.space.rows, pinned=True) as row:
                places, slot = self._flat(nest.kept, row), simplify(row - start, values.scope.ranges)
                self._close(self._cells(done, slot), places)
                self._know_held(held, places, slot)
                yield places, slot

        for number in range(self._passes):
            new = {
                tv: Buffer(name=f"{tv.name}_rows", dtype=tv.dtype.compute, size=most, role=Role.SCRATCH)
                for tv in self._staged_in_rows(number) if tv not in held
            }
            for buffer in new.values():
                values.emit(Alloc(buffer=buffer))
            with each_row(ParallelType.vectorize) as (places, slot):
                for tensor, buffer in new.items():
                    value = values.value(tensor, values.simplified(nest.at(tensor, places)))
                    values.emit(Store(buffer=buffer, position=slot, value=value))
            held |= new
            exprs = [e for e in nest.reductions if self._levels.get(e.inputs[0], 0) == number]
            with each_row(ParallelType.serial) as (places, slot):
                for fold in self._pass_over_row(places, number, exprs, saved, self._walk, slot * depth):
                    values.emit(Store(
                        buffer=totals[fold.expr], position=slot, value=fold.total, origin=fold.expr.name,
                    ))
            done.update((expr, totals[expr]) for expr in exprs)
        with each_row(ParallelType.vectorize) as (places, _):
            self._row_stores(nest.rows, places)

    def _walk(self, stack: ExitStack, folds: Sequence[Fold]) -> tuple[Places, Term]:
        """Open the loops over the reduced axes of a row."""
        outer, run = extent_of(self._reduced_outer), extent_of(self._reduced_run)
        places: dict[str, Term] = {}
        slot: Term = index(0)
        if folds and outer >= FEW_RUNS and run <= SHORT_RUN:
            q, r = self._in_lanes(stack, folds, outer, run)
            places.update(self._flat(self._reduced_outer, q))
            places.update(self._flat(self._reduced_run, r))
            return places, simplify(q * run + r, self._values.scope.ranges)
        if self._reduced_outer:
            q = self._loop(stack, "q", outer, ParallelType.serial)
            places.update(self._flat(self._reduced_outer, q))
            slot = q * run
            if run <= self.schedule.partial < self.space.depth:
                stack.enter_context(self._partials(folds))
        r = self._open_block(stack, "r", index(0), index(run), run, run, folds, ParallelType.vectorize)
        places.update(self._flat(self._reduced_run, r))
        return places, simplify(slot + r, self._values.scope.ranges)

    def _in_lanes(self, stack: ExitStack, folds: Sequence[Fold], outer: int, run: int) -> tuple[Term, Term]:
        """Open the loops over many short runs, with a running value for each element of a run.

        Vectors then hold running values of adjacent elements, and are not reduced to one number after each run.
        """
        values, size = self._values, min(self.schedule.partial, PARTIAL_ROWS)
        start, stop = index(0), index(outer)
        if any(fold.rounds for fold in folds) and outer > size:
            block = self._loop(stack, "q_block", -(-outer // size), ParallelType.serial)
            start = self._index_variable("low", simplify(block * size, values.scope.ranges))
            stop = apply("min", start + size, index(outer))
        names = [values.fresh(f"{base_name(fold)}_lanes") for fold in folds]
        lanes = [
            Buffer(name=name, dtype=fold.identity.dtype, size=run, role=Role.SCRATCH)
            for name, fold in zip(names, folds, strict=True)
        ]
        stack.enter_context(self._added_lanes(folds, lanes))
        q = stack.enter_context(values.loop("q", stop, ParallelType.serial, start=start, largest=outer))
        r = stack.enter_context(values.loop("r", run, ParallelType.vectorize))
        for fold, buffer in zip(folds, lanes, strict=True):
            fold.partial = Load(buffer.dtype, buffer, r)
        return q, r

    @contextmanager
    def _added_lanes(self, folds: Sequence[Fold], lanes: Sequence[Buffer]) -> Iterator[None]:
        """Allocate and clear a running value for each element of a run; combine them at the end."""
        values = self._values
        for buffer in lanes:
            values.emit(Alloc(buffer=buffer))
        with values.loop("r", lanes[0].size, ParallelType.vectorize) as r:
            for fold, buffer in zip(folds, lanes, strict=True):
                values.emit(Store(buffer=buffer, position=r, value=fold.identity, origin=fold.expr.name))
        yield
        for fold in folds:
            fold.partial = None
        with values.loop("r", lanes[0].size, ParallelType.serial) as r:
            for fold, buffer in zip(folds, lanes, strict=True):
                self._update(fold, Load(buffer.dtype, buffer, r))

    def _walk_parts(self, stack: ExitStack, folds: Sequence[Fold]) -> tuple[Places, Term]:
        return {}, self._loop(stack, "part", self.schedule.split, ParallelType.serial)

    def _row_parts(self) -> Launch:
        """Write the first phase of reductions cut into parts; the longest loop of a row is cut."""
        values, split = self._values, self.schedule.split
        outer, run = extent_of(self._reduced_outer), extent_of(self._reduced_run)
        with ExitStack() as stack:
            unit = stack.enter_context(
                values.loop("unit", self.space.rows * split, ParallelType.grid_x, pinned=True),
            )
            row, part = self._quotient(unit, split), self._remainder(unit, split)
            places = dict(self._flat(self._nest.kept, row))
            folds = self._open(self._nest.reductions)
            with ExitStack() as inner:
                if outer >= split:
                    start, stop = self._chunk(part, -(-outer // split), outer, count=split)
                    q: Term = inner.enter_context(
                        values.loop("q", stop, ParallelType.serial, start=start, largest=outer),
                    )
                    inner.enter_context(self._partials(folds))
                    r = self._open_block(inner, "r", index(0), index(run), run, run, folds, ParallelType.vectorize)
                else:
                    q = self._loop(inner, "q", outer, ParallelType.serial) if outer > 1 else index(0)
                    length = -(-run // split)
                    start, stop = self._chunk(part, length, run, count=split)
                    r = self._open_block(inner, "r", start, stop, length, run, folds, ParallelType.vectorize)
                places.update(self._flat(self._reduced_outer, q))
                places.update(self._flat(self._reduced_run, r))
                self._point(places, folds, self._nest.full, (), index(0))
            self._store_parts(folds, unit)
        return Launch()

    def _lanes(self) -> Launch:
        """Write one result per vector lane, its few elements added up in registers."""
        many = self._outer
        with ExitStack() as stack:
            places: dict[str, Term] = {}
            row: Term = index(0)
            if self._kept_outer:
                i = self._loop(stack, "i", extent_of(self._kept_outer), many)
                places.update(self._flat(self._kept_outer, i))
                row = i * extent_of(self._kept_run)
                many = ParallelType.vectorize
            lane = stack.enter_context(
                self._values.loop("c", extent_of(self._kept_run), many, pinned=True),
            )
            places.update(self._flat(self._kept_run, lane))
            self._lane_result(places, simplify(row + lane, self._values.scope.ranges))
        return Launch()

    def _blocks(self) -> Launch:
        """Write blocks of adjacent columns: the loop over rows adds each row to a row of running sums.

        If other sums or stored values depend on the sums, all rows of the block are traversed once more.
        """
        values, nest, tile, split = self._values, self._nest, self.schedule.tile, self.schedule.split
        run, depth = extent_of(self._kept_run), self.space.depth
        tiles, outer = -(-run // tile), extent_of(self._kept_outer)
        many = ParallelType.grid_x if self.schedule.parallel else ParallelType.serial
        units = outer * tiles * split
        grain = max(1, min(units // 64, 4096 // max(depth * tile, 1)))
        with ExitStack() as stack:
            group = stack.enter_context(values.loop("group", -(-units // grain), many, pinned=True))
            length = -(-depth // split)
            blocked = length > self.schedule.partial and any(f.rounds for f in self._folds_of(nest.reductions))
            totals = self._sums(tile, "sums", wide=blocked)
            partials = self._sums(tile, "block_sums") if blocked else {}
            done: dict[Expr, Buffer] = {}
            held: dict[TensorView, Buffer] = {}
            start, stop = self._chunk(group, grain, units)
            if grain == 1:
                unit: Term = group
            else:
                unit = stack.enter_context(
                    values.loop("unit", stop, ParallelType.serial, start=start, largest=units, pinned=True),
                )
            place, part = unit, index(0)
            if split > 1:
                place, part = self._remainder(unit, outer * tiles), self._quotient(unit, outer * tiles)
            i, column = self._quotient(place, tiles), self._remainder(place, tiles)
            places = self._flat(self._kept_outer, i)
            first, last = self._chunk(column, tile, run)
            first, last = self._index_variable("first", first), self._index_variable("last", last)
            guarded = split > 1 and not self.schedule.specialized
            begin, end = self._chunk(part, length, depth, guarded=guarded, count=split)
            for number in range(self._passes):
                sums = {e: b for e, b in totals.items() if self._levels.get(e.inputs[0], 0) == number or self._parts}
                stored = [tv for tv in nest.full if self._levels.get(tv, 0) == number]
                if not sums and not stored:
                    continue
                self._hold(held, number, done, places, (first, last))
                if sums:
                    self._each_column(sums, first, last, self._clear)
                if blocked and sums:
                    size = self.schedule.partial
                    with values.loop("q_block", -(-length // size), ParallelType.serial) as block:
                        blocks = {e: partials[e] for e in sums}
                        self._each_column(blocks, first, last, self._clear)
                        low = self._index_variable("low", simplify(begin + block * size, values.scope.ranges))
                        around = (low, apply("min", low + size, end))
                        self._row_pass(places, blocks, done, held, stored, (first, last), around)
                        self._each_column(sums, first, last, lambda fold, slot: self._update(
                            fold, Load(partials[fold.expr].dtype, partials[fold.expr], slot),
                        ))
                    if number + 1 < self._passes:
                        # Later passes read the results for each element.
                        self._each_column(sums, first, last, lambda fold, slot: values.emit(Store(
                            buffer=partials[fold.expr], position=slot, origin=fold.expr.name,
                            value=cast(fold.total, partials[fold.expr].dtype),
                        )))
                    done.update(blocks)
                else:
                    self._row_pass(places, sums, done, held, stored, (first, last), (begin, end))
                    done.update(sums)
            with values.loop("c", last, ParallelType.vectorize, start=first, largest=run, pinned=True) as c:
                slot, inner = simplify(c - first, values.scope.ranges), {**places, **self._flat(self._kept_run, c)}
                folds = self._cells(totals, slot)
                if self._parts:
                    row = simplify(part * self.space.rows + i * run + c, values.scope.ranges)
                    self._store_parts(folds, row)
                else:
                    self._close(folds, inner)
                    self._know_held(held, inner, slot)
                    self._row_stores(nest.rows, inner)
        return Launch()

    def _know_held(self, held: Mapping[TensorView, Buffer], places: Places, slot: Term) -> None:
        """Make values that are kept for several rows or columns available at one of them."""
        for tensor, buffer in held.items():
            self._values.know(tensor, self._nest.at(tensor, places), Load(tensor.dtype, buffer, slot))

    def _hold(
        self, held: dict[TensorView, Buffer], number: int, done: Mapping[Expr, Buffer], places: Places,
        columns: tuple[Term, Term],
    ) -> None:
        """Compute what all rows share in a pass, and is expensive, once for each column."""
        values, nest, run, (first, last) = self._values, self._nest, extent_of(self._kept_run), columns
        shared = constant_along(self._facts, number)
        new = {
            tv: Buffer(name=f"{tv.name}_columns", dtype=tv.dtype.compute, size=self.schedule.tile, role=Role.SCRATCH)
            for tv in shared if tv not in held
        }
        if not new:
            return
        for buffer in new.values():
            values.emit(Alloc(buffer=buffer))
        with values.loop("c", last, ParallelType.vectorize, start=first, largest=run) as c:
            slot, inner = simplify(c - first, values.scope.ranges), {**places, **self._flat(self._kept_run, c)}
            self._close(self._cells(done, slot), inner)
            for tensor, buffer in new.items():
                value = values.value(tensor, values.simplified(nest.at(tensor, inner)))
                values.emit(Store(buffer=buffer, position=slot, value=value))
        held |= new

    def _row_pass(
        self, places: Places, sums: Mapping[Expr, Buffer], done: Mapping[Expr, Buffer],
        held: Mapping[TensorView, Buffer], stored: Sequence[TensorView], columns: tuple[Term, Term],
        rows: tuple[Term, Term],
    ) -> None:
        """Write one pass over the rows, given the sums to update, values of columns, and the tensors to store."""
        values, nest, run = self._values, self._nest, extent_of(self._kept_run)
        (first, last), (begin, end) = columns, rows
        with values.loop("q", end, ParallelType.serial, start=begin, largest=self.space.depth) as q:
            around = {**places, **self._flat(nest.reduced, q)}
            with values.loop("c", last, ParallelType.vectorize, start=first, largest=run) as c:
                slot = simplify(c - first, values.scope.ranges)
                inner = self._flat(self._kept_run, c)
                self._close(self._cells(done, slot), {**places, **inner})
                self._know_held(held, {**places, **inner}, slot)
                self._point({**around, **inner}, self._cells(sums, slot), stored, (), index(0))

    def _each_column(
        self, sums: Mapping[Expr, Buffer], first: Term, last: Term, write: "Callable[[Fold, Term], None]",
    ) -> None:
        values, run = self._values, extent_of(self._kept_run)
        with values.loop("c", last, ParallelType.vectorize, start=first, largest=run) as c:
            slot = simplify(c - first, values.scope.ranges)
            for fold in self._cells(sums, slot):
                write(fold, slot)


def _changes(statements: Sequence[Statement], ranges: Ranges, length: int) -> list[int]:
    """Return the indices of the innermost loop at which a condition changes; none if there would be too many loops."""
    changes: set[int] = set()
    for statement in statements:
        if isinstance(statement, If):
            changes |= thresholds(statement.condition, "j", ranges)
    inner = sorted(n for n in changes if 0 < n < length)
    return inner if len(inner) <= MOST_SECTIONS else []


def _digits(statements: Sequence[Statement], length: int) -> tuple[int, ...]:
    """Return the extents of loops that replace the innermost loop so that no access divides its variable, or none.

    There are none if no access divides it, if divisors do not divide each other, or if runs are too short for a vector.
    """
    divisors: set[int] = set()
    for statement in statements:
        for term in (t for root in terms_of(statement) for t in root.walk()):
            match term:
                case Apply(_, "floordiv" | "mod", (whole, Const(_, size))) if "j" in variables(whole):
                    divisors.add(int(size.real))
    steps = [length, *sorted(divisors, reverse=True)]
    if not divisors or steps[-1] < SHORTEST_RUN or any(big % small for big, small in itertools.pairwise(steps)):
        return ()
    extents = (*(big // small for big, small in itertools.pairwise(steps)), steps[-1])
    return tuple(extent for extent in extents if extent > 1)

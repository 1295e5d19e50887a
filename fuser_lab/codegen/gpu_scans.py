"""Scans on a GPU: the threads of a block or warp scan a row together, or adjacent threads scan columns.

Both are processed in rounds. In each, a thread has a few consecutive elements, or a few rows of a few columns; they are
loaded once, before anything waits for them, and stay in registers. The threads exchange the totals of preceding
threads, and the total of preceding rounds is carried.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from fuser_lab.codegen.gpu_rows import RowNest
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Launch, Let, Load, Role, Scan, Store
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.nests import Axis
from fuser_lab.codegen.scan_lowering import Running, ScanLowering
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Term, cast, index
from fuser_lab.ir.transform import ParallelType

FEW_ROUNDS = 16  # of which a sum of Float is within 1e-6 of the exact one: each has an error of 6e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """The exchange of threads that share columns for one scan: the last element of each thread's columns.

    ``carried`` holds the totals before a round, for the columns that a thread adds up for all others; ``before`` holds
    the totals before the rows of a thread.
    """

    shared: Buffer | None
    carried: Buffer
    before: Buffer


class GpuScans(ScanLowering, RowNest):
    """Writes nests with scans for a GPU."""

    _line: Term = index(0)  # number of the thread among those that share columns
    _block: Term = index(0)

    def _fetch_buffers(self, fast: Axis | None) -> dict[TensorView, tuple[int, Buffer]]:
        """Allocate words for inputs with adjacent elements; return them with the width of accesses."""
        widths = {tv: width for tv in self._facts.scanned_inputs if (width := self._width_of(tv, fast))}
        size = self.schedule.unroll * self.schedule.vector
        return {tv: (width, self._words(tv, size, "next")) for tv, width in widths.items()}

    # Along rows

    def _rows(self) -> Launch:
        values, count = self._values, self.space.rows
        lanes, height = self.schedule.threads
        blocks = -(-count // height)
        unroll = self.schedule.unroll
        rounds = -(-self._row_groups // (lanes * unroll))
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.grid_x)
            position: Term = block
            if height > 1:
                position = block * height + self._loop(stack, "line", height, ParallelType.block_y)
            self._lane = stack.enter_context(values.loop("lane", lanes, ParallelType.block_x, pinned=True))
            row: Term = index(0)
            if count > 1:
                # Lanes that share a row are all active or all inactive. The guard is written even if all blocks are
                # full.
                reach = blocks if height == 1 else max(blocks * height, count + 1)
                row = self._bound(stack, "row", position, count, reach)
            if self._is_divided:
                self._divide(stack, row)
            places = self._flat(self._nest.kept, row)
            words = self._fetch_buffers(self._nest.reduced[-1])
            levels = [
                [self._running(e, unroll * self.schedule.vector, wide=rounds > FEW_ROUNDS) for e in level]
                for level in self._levels_of_scans()
            ]
            carried = self._carried_values(levels)
            start = self._round(stack, "round", rounds) * unroll
            with self._each_step(start, rounds * unroll) as (u, group):
                for tensor, (width, buffer) in words.items():
                    self._fetch_group(tensor, width, buffer, places, group, u * self.schedule.vector)
            preceding: list[Running] = []
            for level in levels:
                if self._is_divided or rounds * unroll * lanes > self._row_groups:
                    self._clear(level)
                with self._each_step(start, rounds * unroll) as (u, group):
                    here = partial(self._place_with_results, preceding, words, places, group, u)
                    self._each_of_group(group, partial(self._keep, level, here, u * self.schedule.vector))
                for scan in level:
                    values.emit(Scan(
                        buffer=scan.elements, parts=unroll, each=self.schedule.vector, carry=carried[scan.expr],
                        fn=scan.fn, identity=scan.identity.value, scope=self._scope(), origin=scan.expr.name,
                    ))
                preceding += level
            with self._each_step(start, rounds * unroll) as (u, group):
                here = partial(self._place_with_results, preceding, words, places, group, u)
                self._each_of_group(group, partial(self._store, here))
        return Launch(blocks=blocks, threads=(lanes, height))

    @contextmanager
    def _each_step(self, start: Term, steps: int) -> Iterator[tuple[Term, Term]]:
        """Open a loop over the groups of a thread in a round."""
        lanes = self.schedule.threads[0]
        assert self._lane is not None
        with ExitStack() as stack:
            u = self._round(stack, "u", self.schedule.unroll)
            group = self._bound(stack, "g", (start + u) * lanes + self._lane, self._row_groups, steps * lanes)
            yield u, group

    def _place_with_results(
        self, scans: Sequence[Running], words: dict[TensorView, tuple[int, Buffer]], places: Places, group: Term,
        u: Term, v: Term,
    ) -> Places:
        """Return the position of an element of a row, with inputs and results of scans available."""
        here = {**places, **self._neighbours(self._nest.reduced, group, v)}
        slot = simplify(u * self.schedule.vector + v, self._values.scope.ranges)
        for tensor, (_, buffer) in words.items():
            self._know(tensor, buffer, here, slot)
        self._give({scan.expr: Load(scan.elements.dtype, scan.elements, slot) for scan in scans}, here)
        return here

    def _clear(self, level: Sequence[Running]) -> None:
        """Set elements beyond the end to a value without effect."""
        size = level[0].elements.size
        with ExitStack() as stack:
            slot = self._round(stack, "slot", size)
            for scan in level:
                self._values.emit(Store(buffer=scan.elements, position=slot, value=scan.identity))

    def _keep(self, level: Sequence[Running], here: Callable[[Term], Places], first: Term, v: Term) -> None:
        """Compute the operands of some scans for one element of a group, and keep them from a slot on."""
        places, slot = here(v), simplify(first + v, self._values.scope.ranges)
        for scan in level:
            value = self._operand(scan.expr, places)
            self._values.emit(Store(buffer=scan.elements, position=slot, value=value, origin=scan.expr.name))

    def _store(self, here: Callable[[Term], Places], v: Term) -> None:
        """Write the stores for one element of a group."""
        self._stores(here(v))

    # Down columns

    def _columns(self) -> Launch:
        values, (lanes, height), unroll = self._values, self.schedule.threads, self.schedule.unroll
        depth, width = self.space.depth, self.schedule.vector
        blocks = -(-self._column_groups // lanes)
        rounds = -(-depth // (height * unroll))
        with ExitStack() as stack:
            self._block = self._loop(stack, "block", blocks, ParallelType.grid_x)
            self._line = self._loop(stack, "line", height, ParallelType.block_y) if height > 1 else index(0)
            self._lane = stack.enter_context(values.loop("lane", lanes, ParallelType.block_x, pinned=True))
            words = self._fetch_buffers(self._nest.kept[-1] if self._nest.kept else None)
            levels = [
                [self._running(e, unroll * width, wide=rounds > FEW_ROUNDS) for e in level]
                for level in self._levels_of_scans()
            ]
            exchanges = {scan.expr: self._exchange(scan) for level in levels for scan in level}
            start: Term = self._round(stack, "round", rounds) * (height * unroll)
            start = simplify(start + self._line * unroll, values.scope.ranges)
            reach = rounds * height * unroll
            with self._each_row(start, reach) as (u, q, group):
                first = {**self._flat(self._nest.reduced, q), **self._neighbours(self._nest.kept, group, index(0))}
                for tensor, (access, buffer) in words.items():
                    self._fetch(tensor, access, buffer, first, u * width)
            preceding: dict[Running, _Exchange] = {}
            for level in levels:
                if reach > depth or blocks * lanes > self._column_groups:
                    self._clear(level)
                with self._each_row(start, reach) as (u, q, group), self._each_neighbour() as v:
                    self._keep(level, partial(self._place_in_column, preceding, words, q, group, u), u * width, v)
                for scan in level:
                    self._exchange_totals(scan, exchanges[scan.expr])
                preceding |= {scan: exchanges[scan.expr] for scan in level}
            with self._each_row(start, reach) as (u, q, group), self._each_neighbour() as v:
                self._stores(self._place_in_column(preceding, words, q, group, u, v))
        return Launch(blocks=blocks, threads=(lanes, height))

    @property
    def _column_groups(self) -> int:
        return -(-self.space.rows // self.schedule.vector)

    @contextmanager
    def _each_row(self, start: Term, reach: int) -> Iterator[tuple[Term, Term, Term]]:
        """Open a loop over the rows of a thread in a round; threads beyond the last row or column skip it."""
        lanes, blocks = self.schedule.threads[0], -(-self._column_groups // self.schedule.threads[0])
        assert self._lane is not None
        with ExitStack() as stack:
            group = self._bound(
                stack, "g", self._block * lanes + self._lane, self._column_groups, blocks * lanes,
            )
            u = self._round(stack, "u", self.schedule.unroll)
            q = self._bound(stack, "q", start + u, self.space.depth, reach)
            # With a single row, values depend on no variable that would keep them after the scan.
            stack.enter_context(self._inline({}, pinned=True))
            yield u, q, group

    def _place_in_column(
        self, scans: dict[Running, _Exchange], words: dict[TensorView, tuple[int, Buffer]], q: Term, group: Term,
        u: Term, v: Term,
    ) -> Places:
        """Return the position of an element of a column, with inputs and results of scans available."""
        values = self._values
        here = {**self._flat(self._nest.reduced, q), **self._neighbours(self._nest.kept, group, v)}
        slot = simplify(u * self.schedule.vector + v, values.scope.ranges)
        for tensor, (_, buffer) in words.items():
            self._know(tensor, buffer, here, slot)
        self._give({scan.expr: self._element(scan, exchange, v, slot) for scan, exchange in scans.items()}, here)
        return here

    def _element(self, scan: Running, exchange: _Exchange, v: Term, slot: Term) -> Term:
        dtype = scan.elements.dtype
        return Apply(dtype, scan.fn, (Load(dtype, exchange.before, v), Load(dtype, scan.elements, slot)))

    def _exchange(self, scan: Running) -> _Exchange:
        """Allocate the memory that a scan needs besides its elements; initial values precede the first round."""
        (lanes, height), width = self.schedule.threads, self.schedule.vector
        values, dtype = self._values, scan.elements.dtype
        sizes = {"carried": (scan.first.dtype, -(-width // height)), "before": (dtype, width)}
        carried, before = (
            Buffer(name=f"{scan.expr.name}_{name}", dtype=kind, size=size, role=Role.SCRATCH)
            for name, (kind, size) in sizes.items()
        )
        shared = Buffer(
            name=f"{scan.expr.name}_shared", dtype=dtype, size=lanes * height * width, role=Role.SHARED,
        ) if height > 1 else None
        for buffer in (carried, before, *((shared,) if shared else ())):
            values.emit(Alloc(buffer=buffer, origin=scan.expr.name))
        with ExitStack() as stack:
            slot = self._round(stack, "slot", carried.size)
            values.emit(Store(buffer=carried, position=slot, value=scan.first, origin=scan.expr.name))
        return _Exchange(shared=shared, carried=carried, before=before)

    def _exchange_totals(self, scan: Running, exchange: _Exchange) -> None:
        """Write the scan of a thread's own rows, and the exchange of totals of the preceding rows.

        The totals of all threads are written to shared memory. Some threads then replace them by prefix sums, each for
        one or a few columns; only these threads carry the totals to the next round.
        """
        values, (lanes, height) = self._values, self.schedule.threads
        width, unroll, name = self.schedule.vector, self.schedule.unroll, scan.expr.name
        dtype, elements, carried = scan.elements.dtype, scan.elements, exchange.carried

        def at(term: Term) -> Term:
            return simplify(term, values.scope.ranges)

        def put(buffer: Buffer, position: Term, value: Term) -> None:
            values.emit(Store(buffer=buffer, position=position, value=value, origin=name))

        def folded(a: Term, b: Term) -> Term:
            return Apply(a.dtype, scan.fn, (a, cast(b, a.dtype)))

        if unroll > 1:
            with values.loop("u", unroll, ParallelType.serial, start=index(1), smallest=1) as u, ExitStack() as stack:
                slot = at(u * width + self._round(stack, "v", width))
                put(elements, slot, folded(Load(dtype, elements, at(slot - width)), Load(dtype, elements, slot)))
        shared, line, last = exchange.shared, lanes * width, (unroll - 1) * width
        if shared is None:
            with ExitStack() as stack:
                v = self._round(stack, "v", width)
                before = Load(carried.dtype, carried, v)
                put(exchange.before, v, cast(before, dtype))
                put(carried, v, folded(before, Load(dtype, elements, at(v + last))))
            return
        assert self._lane is not None
        mine = self._line * line + self._lane * width
        with ExitStack() as stack:
            v = self._round(stack, "v", width)
            put(shared, at(mine + v), Load(dtype, elements, at(v + last)))
        values.emit(Barrier())
        with ExitStack() as stack:
            slot = self._round(stack, "slot", carried.size)
            column = self._bound(stack, "column", slot * height + self._line, width, carried.size * height)
            before = Load(carried.dtype, carried, slot)
            start = values.let(f"{scan.name}_start", cast(before, dtype), origin=name)
            running = values.let(f"{scan.name}_round", scan.identity, origin=name)
            with values.loop("other", height, ParallelType.serial) as other:
                place = at(other * line + self._lane * width + column)
                total = values.let(f"{scan.name}_total", Load(dtype, shared, place), origin=name)
                put(shared, place, folded(start, running))
                values.emit(Let(name=running.name, value=folded(running, total), update=True, origin=name))
            put(carried, slot, folded(before, running))
        values.emit(Barrier())
        with ExitStack() as stack:
            v = self._round(stack, "v", width)
            put(exchange.before, v, Load(dtype, shared, at(mine + v)))

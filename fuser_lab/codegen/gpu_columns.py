"""Column reductions on a GPU: adjacent threads each own a few adjacent results and loop over the rows of a block.

Rows are distributed round-robin over the lines (rows of threads) of a block, whose results are combined in shared
memory. If there are too few columns to fill the GPU, several blocks share the rows of each, and a second phase adds up
their parts. A maximum and the sum of exponentials relative to it are computed together, as in `RowNest`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from fuser_lab.codegen.gpu_common import GpuReductions
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Launch, Load, Phase, Role, Store
from fuser_lab.codegen.nest_lowering import Fold, Places, base_name
from fuser_lab.codegen.online import finite, online_pair, scale, whole_sum
from fuser_lab.codegen.persistence import inputs_needed, shared_along
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import SECTOR_BYTES, WARP, WORD_BYTES
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_loops import MEETING_BYTES

TOTAL_THREADS = crossover("gpu.columns.total_threads")
_SHARED_WORDS = crossover("gpu.columns.shared_words")


@dataclass(frozen=True, slots=True)
class _RowsOfThread:
    """The rows that a thread processes at a time: their number, the ``u``-th of them, and a bound of their indices."""

    count: int
    reach: int
    row: Callable[[Term], Term]


class ColumnNest(GpuReductions):
    """Writes nests whose kept axes are the fastest in memory."""

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or two if reductions are cut into parts."""
        if self.schedule.split > 1:
            yield self._phase(partial(self._row_loops, parted=True), "_parts")
            yield self._phase(self._lanes, "_total")
        else:
            yield self._phase(partial(self._row_loops, parted=False))

    def _row_loops(self, *, parted: bool) -> Launch:
        values, split, width = self._values, self.schedule.split, self.schedule.vector
        lanes, height = self.schedule.threads
        groups = self.space.rows // width
        wide = max(-(-groups // lanes), 1)
        with ExitStack() as stack:
            block = self._loop(stack, "block", wide * split, ParallelType.grid_x)
            line = self._line(stack, height)
            lane = stack.enter_context(values.loop("lane", lanes, ParallelType.block_x, pinned=True))
            column, part = self._remainder(block, wide), self._quotient(block, wide)
            sums = self._sums(width, self._exprs_together)
            with ExitStack() as inner:
                g = self._bound(inner, "g", column * lanes + lane, groups, wide * lanes)
                self._walk_rows(g, line, part, self._cells(sums))
            if height == 1:
                g = self._bound(stack, "g", column * lanes + lane, groups, wide * lanes)
                with self._each_neighbour() as v:
                    folds = self._cells(sums, v)
                    self._column_result(folds, self._neighbours(self._nest.kept, g, v), g * width + v, part, parted)
                return Launch(blocks=wide * split, threads=(lanes, height))
            threads, across = lanes * height, lanes * width
            met = self._meet(sums, line, lane)
            rounds = -(-across // threads)
            k = self._round(stack, "k", rounds)
            j = self._bound(stack, "j", k * threads + line * lanes + lane, across, rounds * threads)
            c = self._bound(stack, "c", column * across + j, self.space.rows, wide * across)
            place = self._remainder(j, width) * lanes + self._quotient(j, width)
            folds = self._combine_lines(met, place, across, height)
            self._column_result(folds, self._flat(self._nest.kept, c), c, part, parted)
        return Launch(blocks=wide * split, threads=(lanes, height))

    def _line(self, stack: ExitStack, height: int) -> Term:
        return self._loop(stack, "line", height, ParallelType.block_y) if height > 1 else index(0)

    def _column_result(
        self, folds: Sequence[Fold], places: Places, column: Term, part: Term, parted: bool,
    ) -> None:
        if parted:
            self._store_parts(folds, simplify(part * self.space.rows + column, self._values.scope.ranges))
        else:
            self._complete_sums(folds)
            self._close(folds, places)
            self._row_stores(self._nest.rows, places)

    # The running values of a thread: one for each of its adjacent columns

    def _sums(self, size: int, exprs: Sequence[Expr]) -> dict[Expr, Buffer]:
        """Allocate the running values of reductions and set them to the identity."""
        totals = {}
        for expr in exprs:
            buffer = Buffer(name=f"{expr.name}_sums", dtype=expr.out.dtype.compute, size=size, role=Role.SCRATCH)
            self._values.emit(Alloc(buffer=buffer, origin=expr.name))
            totals[expr] = buffer
        for fold in self._folds_of(tuple(totals)):
            with self._each_slot(size) as v:
                self._values.emit(
                    Store(buffer=totals[fold.expr], position=v, value=fold.identity, origin=fold.expr.name),
                )
        return totals

    @property
    def _exprs_together(self) -> tuple[Expr, ...]:
        """The reductions, a maximum before the sum of exponentials relative to it."""
        pair = online_pair(self._fusion, self._nest, self._levels) if self.schedule.online else None
        return self._nest.reductions if pair is None else pair

    @contextmanager
    def _each_slot(self, size: int) -> Iterator[Term]:
        """Open a loop over the running values of a thread."""
        with ExitStack() as stack:
            yield self._round(stack, "v", size)

    def _cells(self, sums: Mapping[Expr, Buffer], place: Term | None = None) -> list[Fold]:
        """Return the folds, each with one running value; the loop over adjacent columns chooses it if none is given."""
        folds = self._folds_of(tuple(sums))
        for fold in folds:
            buffer = sums[fold.expr]
            fold.total = Load(buffer.dtype, buffer, index(0) if place is None else place)
        return folds

    # Rows are traversed

    def _walk_rows(self, g: Term, line: Term, part: Term, folds: Sequence[Fold]) -> None:
        """Write the loops over the rows of a block: rounds of a few rows, the loads of a round first."""
        split, ahead, depth = self.schedule.split, self.schedule.unroll, self.space.depth
        height = self.schedule.threads[1]
        turn = height * ahead
        whole = depth // turn
        needed = inputs_needed(self._facts, 0, ())
        fetched = {tv: w for tv in needed if self._nest.kept and (w := self._width_of(tv, self._nest.kept[-1]))}
        if self.space.window > 1 and ahead % self.space.window == 0 and height == 1:
            lines = {tv: w for tv in needed if (w := self._facts.width_of_window(tv, self.schedule.vector)) > 1}
        else:
            lines = {}
        words = {tv: self._words(tv, ahead * self.schedule.vector, "next") for tv in (*fetched, *lines)}
        shared = self._values_of_columns(g)

        def rows(start: Term, count: int, reach: int) -> None:
            taken = _RowsOfThread(count=count, reach=reach, row=lambda u: start + u * height + line)
            self._some_rows(g, taken, folds, fetched, lines, words, shared)

        # If depth is an argument, a block may have no rows in its last round: kernels do not depend on whether rounds
        # and parts divide the depth.
        general = self.space.reduces_outermost and not self.schedule.specialized
        if whole:
            rounds = -(-whole // split)
            with ExitStack() as stack:
                turns = self._loop(stack, "turn", rounds, ParallelType.serial) * split + part
                reach = (rounds + (general and split > 1)) * split
                number = self._bound(stack, "number", turns, whole, reach)
                rows(number * turn, ahead, whole * turn)
        rest = depth - whole * turn
        if rest or general:
            with self._values.guard(apply("eq", part, whole % split)):
                # As many steps as in other rounds, guarded, so that kernels for other depths are the same.
                rows(index(whole * turn), ahead, (whole + 1) * turn)

    def _values_of_columns(self, g: Term) -> dict[TensorView, Buffer]:
        """Compute the values of a thread's columns that its rows share, as far as registers allow."""
        nest, values, width = self._nest, self._values, self.schedule.vector
        room, buffers = _SHARED_WORDS, {}
        for tensor in shared_along(self._facts, nest.reduced):
            dtype = tensor.dtype.compute
            room -= width * max(dtype.itemsize // 4, 1)
            if room < 0:
                break
            buffer = Buffer(name=values.fresh(f"{tensor.name}_column"), dtype=dtype, size=width, role=Role.SCRATCH)
            values.emit(Alloc(buffer=buffer))
            buffers[tensor] = buffer
        if buffers:
            with self._each_neighbour() as v:
                here = self._neighbours(nest.kept, g, v)
                for tensor, buffer in buffers.items():
                    values.emit(Store(buffer=buffer, position=v, value=values.value(tensor, nest.at(tensor, here))))
        return buffers

    def _some_rows(
        self, g: Term, taken: "_RowsOfThread", folds: Sequence[Fold], fetched: Mapping[TensorView, int],
        lines: Mapping[TensorView, int], words: Mapping[TensorView, Buffer], shared: Mapping[TensorView, Buffer],
    ) -> None:
        """Write a few rows of a thread, loads first: ``fetched`` are loaded by row, ``lines`` by line of windows."""
        nest, values, width = self._nest, self._values, self.schedule.vector
        given_before, side = dict(values.given), self.space.window if lines else 1

        def ahead(step: int, tensors: Mapping[TensorView, int]) -> None:
            with ExitStack() as stack:
                u = self._round(stack, "u", taken.count // step) * step
                q = self._bound(stack, "q", taken.row(u), self.space.depth, taken.reach)
                first = {**self._flat(nest.reduced, q), **self._neighbours(nest.kept, g, index(0))}
                for tensor, size in tensors.items():
                    self._fetch(tensor, size, words[tensor], first, u * width, step * width)

        if fetched:
            ahead(1, fetched)
        if lines:
            ahead(side, lines)

        def visit(stack: ExitStack) -> tuple[Places, Term]:
            """Open loops over the elements; return the position in the nest and the number of the thread's column."""
            line = self._round(stack, "u", taken.count // side) * side
            w = self._round(stack, "w", side)
            q = self._bound(stack, "q", taken.row(line + w), self.space.depth, taken.reach)
            v = stack.enter_context(self._each_neighbour())
            here = {**self._flat(nest.reduced, q), **self._neighbours(nest.kept, g, v)}
            for tensor in fetched:
                self._know(tensor, words[tensor], here, (line + w) * width + v)
            for tensor in lines:
                self._know(tensor, words[tensor], here, line * width + v * side + w)
            for tensor, buffer in shared.items():
                self._know(tensor, buffer, here, v)
            for fold in folds:
                assert isinstance(fold.total, Load)
                fold.total = Load(fold.total.dtype, fold.total.buffer, v)
            return here, v

        if self.schedule.online:
            self._add_exponentials(folds, visit)
        else:
            with ExitStack() as stack:
                here, _ = visit(stack)
                self._point(here, folds, nest.full, (), index(0))
        values.given = given_before

    def _add_exponentials(
        self, folds: Sequence[Fold], visit: Callable[[ExitStack], tuple[Places, Term]],
    ) -> None:
        """Write the maxima of a few rows, then add their exponentials to sums relative to these maxima."""
        values, nest, width = self._values, self._nest, self.schedule.vector
        largest, total = folds
        seen, origin = (
            Buffer(name=values.fresh(f"{largest.expr.name}_{word}"), dtype=largest.total.dtype, size=width,
                   role=Role.SCRATCH)
            for word in ("seen", "origin")
        )
        for buffer in (seen, origin):
            values.emit(Alloc(buffer=buffer, origin=largest.expr.name))
        with self._each_slot(width) as v:
            before = self._cell_at(largest, v)
            values.emit(Store(buffer=seen, position=v, value=before, origin=largest.expr.name))
        with ExitStack() as stack:
            here, _ = visit(stack)
            source = largest.expr.tensor_inputs[0]
            self._update(largest, values.value(source, nest.at(source, here)))
        with self._each_slot(width) as v:
            largest.total, total.total = self._cell_at(largest, v), self._cell_at(total, v)
            values.emit(Store(buffer=origin, position=v, value=finite(largest.total), origin=largest.expr.name))
            largest_seen = Load(seen.dtype, seen, v)
            self._update(total, total.total * scale(largest_seen, Load(origin.dtype, origin, v)), replacing=True)
        with ExitStack() as stack:
            # The maximum changes in the next rows, so values computed from it stay in this scope.
            stack.enter_context(self._inline({}, pinned=True))
            here, v = visit(stack)
            values.know(largest.expr.out, nest.at(largest.expr.out, here), Load(origin.dtype, origin, v))
            source = total.expr.tensor_inputs[0]
            self._update(total, values.value(source, nest.at(source, here)))

    def _complete_sums(self, folds: Sequence[Fold]) -> None:
        """Correct the complete sums of exponentials for a maximum of minus infinity."""
        if self.schedule.online:
            largest, total = folds
            whole = whole_sum(largest.total, total.total)
            total.total = self._values.let(f"{base_name(total)}_all", whole, origin=total.expr.name)

    @staticmethod
    def _cell_at(fold: Fold, place: Term) -> Load:
        assert isinstance(fold.total, Load)
        return Load(fold.total.dtype, fold.total.buffer, place)

    # Combining the lines of a block

    def _meet(self, sums: Mapping[Expr, Buffer], line: Term, lane: Term) -> dict[Expr, Buffer]:
        """Write the running values of all threads of a block to shared memory."""
        values, width = self._values, self.schedule.vector
        lanes, height = self.schedule.threads
        met = {}
        for expr, buffer in sums.items():
            shared = Buffer(
                name=f"{expr.name}_lines", dtype=buffer.dtype, size=height * lanes * width, role=Role.SHARED,
            )
            values.emit(Alloc(buffer=shared, origin=expr.name))
            with self._each_slot(width) as v:
                # The columns of one thread are strided and those of adjacent threads are adjacent, which avoids bank
                # conflicts.
                place = simplify((line * width + v) * lanes + lane, values.scope.ranges)
                value = Load(buffer.dtype, buffer, v)
                values.emit(Store(buffer=shared, position=place, value=value, origin=expr.name))
            met[expr] = shared
        values.emit(Barrier())
        return met

    def _combine_lines(self, met: Mapping[Expr, Buffer], place: Term, stride: int, height: int) -> list[Fold]:
        """Combine the results of the lines of a block for one column, always in the same order."""
        folds = self._open(tuple(met))

        def visit(stack: ExitStack) -> Callable[[Fold], Term]:
            h = self._loop(stack, "h", height, ParallelType.serial)
            at = simplify(h * stride + place, self._values.scope.ranges)
            return lambda fold: Load(fold.identity.dtype, met[fold.expr], at)

        self._add_up(folds, visit)
        return folds

    def _add_up(self, folds: Sequence[Fold], visit: Callable[[ExitStack], Callable[[Fold], Term]]) -> None:
        """Combine partial results; ``visit`` opens the loops over them and returns a function that gives a part."""
        if not self.schedule.online:
            with ExitStack() as stack:
                part = visit(stack)
                for fold in folds:
                    self._update(fold, part(fold))
            return
        largest, total = folds
        with ExitStack() as stack:
            self._update(largest, visit(stack)(largest))
        origin = self._values.let(f"{base_name(largest)}_origin", finite(largest.total), origin=largest.expr.name)
        with ExitStack() as stack:
            part = visit(stack)
            self._update(total, part(total) * scale(part(largest), origin))

    # Parts are added up

    def _lanes(self) -> Launch:
        values, split, count = self._values, self.schedule.split, self.space.rows
        # Each line of threads adds some of the parts. If columns occupy few multiprocessors, more lines add fewer each.
        widest = WARP if 2 * count >= WARP * self.space.device.sms else SECTOR_BYTES // WORD_BYTES
        lanes = 1
        while lanes < widest and lanes < count:
            lanes *= 2
        height = 1
        most = MEETING_BYTES // (lanes * max(self.space.sum_bytes, 1))
        while height < TOTAL_THREADS // lanes and height * 2 <= most:
            height *= 2
        blocks = -(-count // lanes)
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.grid_x)
            line = self._line(stack, height)
            lane = stack.enter_context(values.loop("lane", lanes, ParallelType.block_x, pinned=True))
            folds = self._open(self._exprs_together)

            def visit(inner: ExitStack) -> Callable[[Fold], Term]:
                c = self._bound(inner, "c", block * lanes + lane, count, blocks * lanes)
                # Guarded for any number of parts, so that kernels for other depths are the same.
                rounds = -(-split // height)
                step = self._loop(inner, "step", rounds, ParallelType.serial)
                part = self._bound(inner, "part", step * height + line, split, (rounds + 1) * height)
                at = simplify(part * count + c, values.scope.ranges)
                return lambda fold: Load(fold.identity.dtype, self._parts[fold.expr], at)

            self._add_up(folds, visit)
            if height > 1:
                met = self._meet_totals(folds, line, lane, lanes, height)
                stack.enter_context(values.guard(apply("eq", line, 0)))
            c = self._bound(stack, "c", block * lanes + lane, count, blocks * lanes)
            if height > 1:
                folds = self._combine_lines(met, lane, lanes, height)
            places = self._flat(self._nest.kept, c)
            self._complete_sums(folds)
            self._close(folds, places)
            self._row_stores(self._nest.rows, places)
        return Launch(blocks=blocks, threads=(lanes, height))

    def _meet_totals(
        self, folds: Sequence[Fold], line: Term, lane: Var, lanes: int, height: int,
    ) -> dict[Expr, Buffer]:
        met = {}
        for fold in folds:
            shared = Buffer(
                name=f"{fold.expr.name}_lines", dtype=fold.total.dtype, size=height * lanes, role=Role.SHARED,
            )
            self._values.emit(Alloc(buffer=shared, origin=fold.expr.name))
            place = simplify(line * lanes + lane, self._values.scope.ranges)
            self._values.emit(Store(buffer=shared, position=place, value=fold.total, origin=fold.expr.name))
            met[fold.expr] = shared
        self._values.emit(Barrier())
        return met

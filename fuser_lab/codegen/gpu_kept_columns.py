"""Columns that a GPU block keeps in registers between passes, as for a softmax over an outer axis.

    each thread loads its rows of a few adjacent columns
    for each pass:
        each thread reduces what it holds; the lines of the block or cluster combine results in shared memory
    each thread computes and stores what depends on the results

Memory is read once, whereas one kernel per pass would read it again. nvFuser's outer persistent scheduler does the
same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from fuser_lab.codegen.gpu_columns import ColumnNest
from fuser_lab.codegen.gpu_rows import Named
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Buffer,
    Launch,
    Load,
    Phase,
    Role,
    Scope,
    Send,
    Store,
)
from fuser_lab.codegen.nest_lowering import Fold
from fuser_lab.codegen.persistence import inputs_needed
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType


@dataclass(frozen=True, slots=True)
class _ColumnGroup:
    """The group of adjacent columns of a thread, the number of groups, and a bound of the group's index."""

    group: Term
    groups: int
    reach: int


class KeptColumnNest(ColumnNest):
    """Writes nests whose kept axes are the fastest in memory and whose columns are read in several passes."""

    _rank: Term = index(0)  # of the block in its cluster
    _rooms: dict[tuple[str, DataType], list[Buffer]]  # shared memory in which the results of each pass meet

    def phases(self) -> Iterator[Phase]:
        """Yield the only phase."""
        yield self._phase(self._kept_columns)

    def _kept_columns(self) -> Launch:
        values, width, cluster = self._values, self.schedule.vector, self.schedule.cluster
        self._rooms = {}
        lanes, height = self.schedule.threads
        groups = self.space.rows // width
        wide = max(-(-groups // lanes), 1)
        with ExitStack() as stack:
            block: Term = self._loop(stack, "block", wide * cluster, ParallelType.grid_x)
            line = self._line(stack, height)
            lane = stack.enter_context(values.loop("lane", lanes, ParallelType.block_x, pinned=True))
            if cluster > 1:
                values.emit(Arrive())
                self._rank, block = self._remainder(block, cluster), self._quotient(block, cluster)
                self._waits = True
            mine = _ColumnGroup(block * lanes + lane, groups, wide * lanes)
            words = {saved.tensor: self._room(saved.tensor, "column") for saved in self._saved}
            earlier: list[Fold] = []
            for number in range(self._passes):
                exprs = [e for e in self._nest.reductions if self._levels.get(e.inputs[0], 0) == number]
                stored = [tv for tv in self._nest.full if self._levels.get(tv, 0) == number]
                if not exprs and not stored:
                    continue
                sums = self._sums(width, exprs)
                with ExitStack() as inner:
                    g = self._bound(inner, "g", mine.group, mine.groups, mine.reach)
                    self._pass(number, g, line, self._cells(sums), stored, words, earlier)
                if height * cluster > 1 and sums:
                    sums = self._results_of_lines(sums, line, lane)
                earlier.extend(self._cells(sums))
            if self._nest.rows:
                with ExitStack() as inner:
                    if height > 1:
                        inner.enter_context(values.guard(apply("eq", line, 0)))
                    if cluster > 1:
                        inner.enter_context(values.guard(apply("eq", self._rank, 0)))
                    g = self._bound(inner, "g", mine.group, mine.groups, mine.reach)
                    v = inner.enter_context(self._each_neighbour())
                    places = self._neighbours(self._nest.kept, g, v)
                    self._close(_at(earlier, v), places)
                    self._row_stores(self._nest.rows, places)
        return Launch(blocks=wide * cluster, threads=(lanes, height), cluster=cluster)

    def _room(self, tensor: TensorView, suffix: str) -> Buffer:
        return self._words(tensor, self.schedule.registers * self.schedule.vector, suffix)

    def _pass(
        self, number: int, g: Term, line: Term, folds: Sequence[Fold], stored: Sequence[TensorView],
        words: Mapping[TensorView, Buffer], earlier: Sequence[Fold],
    ) -> None:
        """Write what a pass computes from the rows of a thread, loads first."""
        nest, values, width = self._nest, self._values, self.schedule.vector
        before = dict(values.given)
        needed = inputs_needed(self._facts, number, self._saved)
        widths = {tv: self._width_of(tv, nest.kept[-1]) for tv in needed}
        here = {tv: words.get(tv) or self._room(tv, "next") for tv, size in widths.items() if size}
        if here:
            with self._each_row(line, self._load_index) as (u, q):
                first = {**self._flat(nest.reduced, q), **self._neighbours(nest.kept, g, index(0))}
                for tensor, buffer in here.items():
                    self._fetch(tensor, widths[tensor], buffer, first, u * width)
        saved = {s.tensor: words[s.tensor] for s in self._saved if s.written < number}
        # Elements that are not adjacent in memory are loaded one by one, so nothing has filled their words yet.
        new = tuple((s.tensor, words[s.tensor]) for s in self._saved if s.written == number and s.tensor not in here)
        with self._each_row(line, self._bound if stored else self._fold_index) as (u, q), self._each_neighbour() as v:
            places = {**self._flat(nest.reduced, q), **self._neighbours(nest.kept, g, v)}
            for tensor, buffer in {**saved, **here}.items():
                self._know(tensor, buffer, places, u * width + v)
            self._close(_at(earlier, v), places)
            self._point(places, _at(folds, v), stored, new, simplify(u * width + v, values.scope.ranges))
        values.given = before

    @contextmanager
    def _each_row(self, line: Term, named: Named) -> Iterator[tuple[Term, Term]]:
        """Open a loop over the rows of a thread; return the number among its own rows and among those of the column."""
        steps, height, cluster = self.schedule.registers, self.schedule.threads[1], self.schedule.cluster
        if cluster > 1:
            line = simplify(self._rank * height + line, self._values.scope.ranges)
            height *= cluster
        # If depth is an argument, kernels do not depend on whether the depth fills all steps.
        general = self.space.reduces_outermost and not self.schedule.specialized
        with ExitStack() as stack:
            u = self._round(stack, "u", steps)
            yield u, named(stack, "q", u * height + line, self.space.depth, steps * height + general)

    def _results_of_lines(self, sums: Mapping[Expr, Buffer], line: Term, lane: Term) -> dict[Expr, Buffer]:
        """Return the results of all lines of a block, or of a cluster, for the columns of each thread."""
        values, width = self._values, self.schedule.vector
        lanes, height = self.schedule.threads
        threads, across = lanes * height, lanes * width
        thread, parts = line * lanes + lane, threads // across
        # The columns of a thread are adjacent, so that they are moved together.
        met = self._meeting(sums, "lines", threads * width)
        for expr, buffer in sums.items():
            self._put(buffer, met[expr], expr, thread)
        values.emit(Barrier())
        if 1 < parts < height:
            # Each thread adds a few lines, so that no thread has to add all of them.
            lines = height // parts

            def first(j: Term) -> Term:
                return self._quotient(j, across) * (lines * across) + self._remainder(j, across)

            met = self._combine_words(met, "parts", threads, thread, first, lines)
            height = parts
        if self.schedule.cluster > 1:
            met, height = self._over_cluster(met, across, thread, height), self.schedule.cluster
        shared = self._combine_words(met, "columns", across, thread, lambda j: j, height)
        results = {}
        for expr, buffer in shared.items():
            result = Buffer(name=f"{expr.name}_own", dtype=buffer.dtype, size=width, role=Role.SCRATCH)
            values.emit(Alloc(buffer=result, origin=expr.name))
            with self._each_slot(width) as v:
                at = simplify(lane * width + v, values.scope.ranges)
                values.emit(
                    Store(buffer=result, position=v, value=Load(buffer.dtype, buffer, at), origin=expr.name),
                )
            results[expr] = result
        return results

    def _put(self, sums: Buffer, shared: Buffer, expr: Expr, thread: Term) -> None:
        """Write the running values of all threads to shared memory."""
        values, width = self._values, self.schedule.vector
        with self._each_slot(width) as v:
            at = simplify(thread * width + v, values.scope.ranges)
            values.emit(Store(buffer=shared, position=at, value=Load(sums.dtype, sums, v), origin=expr.name))

    def _combine_words(
        self, met: Mapping[Expr, Buffer], word: str, count: int, thread: Term, place: Callable[[Term], Term],
        height: int,
    ) -> dict[Expr, Buffer]:
        """Return ``count`` values in shared memory; the j-th combines ``height`` lines that begin at ``place(j)``."""
        values, shared = self._values, self._meeting(met, word, count)
        for j, fold in self._each_combination(met, count, thread, place, height):
            values.emit(Store(buffer=shared[fold.expr], position=j, value=fold.total, origin=fold.expr.name))
        values.emit(Barrier())
        return shared

    def _over_cluster(self, met: Mapping[Expr, Buffer], across: int, thread: Term, height: int) -> dict[Expr, Buffer]:
        """Combine the lines of a block and send the results to all blocks of the cluster, one line per block."""
        values, cluster = self._values, self.schedule.cluster
        # Of this pass only: other blocks may send the results of the next pass before this block has read these.
        shared = {
            expr: Buffer(name=f"{expr.name}_blocks", dtype=buffer.dtype, size=across * cluster, role=Role.SHARED)
            for expr, buffer in met.items()
        }
        for expr, buffer in shared.items():
            values.emit(Alloc(buffer=buffer, origin=expr.name))
        if self._waits:
            values.emit(Barrier(scope=Scope.CLUSTER))
        self._waits = False
        for j, fold in self._each_combination(met, across, thread, lambda j: j, height):
            at = simplify(self._rank * across + j, values.scope.ranges)
            with values.loop("peer", cluster, ParallelType.serial) as peer:
                values.emit(Send(
                    buffer=shared[fold.expr], position=at, value=fold.total, rank=peer, origin=fold.expr.name,
                ))
        for expr, buffer in shared.items():
            values.emit(Await(buffer=buffer, origin=expr.name))
        return shared

    def _meeting(self, met: Mapping[Expr, Buffer], word: str, count: int) -> dict[Expr, Buffer]:
        """Return shared memory for ``count`` values of each reduction.

        Passes use the same memory: between the last read in a pass and the first write in the next is a barrier.
        """
        shared: dict[Expr, Buffer] = {}
        for expr, buffer in met.items():
            rooms = self._rooms.setdefault((word, buffer.dtype), [])
            number = sum(other.dtype is buffer.dtype for other in shared.values())
            if number == len(rooms):
                rooms.append(
                    Buffer(name=self._values.fresh(word), dtype=buffer.dtype, size=count, role=Role.SHARED),
                )
                self._values.emit(Alloc(buffer=rooms[number]))
            shared[expr] = rooms[number]
        return shared

    def _each_combination(
        self, met: Mapping[Expr, Buffer], count: int, thread: Term, place: Callable[[Term], Term], height: int,
    ) -> Iterator[tuple[Term, Fold]]:
        """Yield ``count`` positions, distributed over the threads, with the sum of ``height`` lines at each."""
        lanes, lines = self.schedule.threads
        rounds, across = -(-count // (lanes * lines)), lanes * self.schedule.vector
        with ExitStack() as stack:
            k = self._round(stack, "k", rounds)
            j = self._bound(stack, "j", k * (lanes * lines) + thread, count, rounds * lanes * lines)
            for fold in self._combine_lines(met, place(j), across, height):
                yield j, fold


def _at(folds: Sequence[Fold], place: Term) -> list[Fold]:
    """Return folds with the running value of one of the columns of a thread."""
    cells = []
    for fold in folds:
        assert isinstance(fold.total, Load)
        cells.append(replace(fold, total=Load(fold.total.dtype, fold.total.buffer, place)))
    return cells

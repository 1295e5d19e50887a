"""The loops of GPU kernels: blocks and threads by their numbers, grid-stride steps where there are more elements."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Launch, Reduce, Scope, Statement
from fuser_lab.codegen.nest_lowering import Fold, NestLowering, Places, base_name, extent_of
from fuser_lab.codegen.nests import flattened, trial
from fuser_lab.codegen.vectorize import best_width
from fuser_lab.ir.term import Term, Var, apply, index
from fuser_lab.schedule.state import ParallelType


class GpuNest(NestLowering):
    """Writes nests for a GPU."""

    def _vector(self) -> int:
        if self._nest.reductions or not self._nest.full:
            return 1

        def one(size: int) -> tuple[Statement, ...]:
            chunk, v = index_var("chunk"), index_var("v")
            ranges = {"chunk": (0, max(-(-extent_of(self._nest.kept) // size) - 1, 0)), "v": (0, size - 1)}
            places = flattened(self._nest.kept, chunk * size + v, ranges)
            return trial(self._fusion, self._nest, self._buffers, self._layouts, places, ranges)

        return best_width(one, "v")

    def _elements(self) -> Launch:
        schedule, count = self.schedule, self.space.rows
        vector, threads, blocks = schedule.vector, schedule.threads[0], schedule.blocks
        whole = count // vector
        with ExitStack() as stack:
            chunk = self._grid_stride(stack, "chunk" if vector > 1 else "i", -(-count // vector), blocks, threads)
            if vector == 1:
                self._stores(self._flat(self._nest.kept, chunk))
            else:
                with self._values.guard(chunk < whole):
                    self._chunk_of(chunk, vector, ParallelType.VECTORIZE)
                if count % vector:
                    with self._values.guard(apply("eq", chunk, whole)):
                        self._chunk_of(chunk, count % vector, ParallelType.SERIAL)
        return Launch(blocks=blocks, threads=(threads, 1))

    def _chunk_of(self, chunk: Var, length: int, parallel: ParallelType) -> None:
        """Write the elements of one chunk."""
        with ExitStack() as stack:
            v = self._loop(stack, "v", length, parallel)
            flat = chunk * self.schedule.vector + v
            self._stores(self._flat(self._nest.kept, flat))

    def _grid_stride(self, stack: ExitStack, name: str, count: int, blocks: int, threads: int) -> Var:
        """Open loops in which the threads of the grid visit every index up to a count; return the index.

        A thread visits ``unroll`` indices, ``threads`` apart, then the next as many, the whole grid further on.
        """
        unroll = self.schedule.unroll
        b = self._loop(stack, "block", blocks, ParallelType.BIDX)
        t = self._loop(stack, "thread", threads, ParallelType.TIDX)
        position: Term = b * (threads * unroll) + t
        reach = blocks * threads * unroll
        rounds = -(-count // reach)
        if rounds > 1:
            position = self._loop(stack, "step", rounds, ParallelType.SERIAL) * reach + position
        if unroll > 1:
            position = self._loop(stack, "u", unroll, ParallelType.UNROLL) * threads + position
        return self._bound(stack, name, position, count, rounds * reach)

    def _bound(self, stack: ExitStack, name: str, position: Term, count: int, reach: int) -> Var:
        """Name an index and guard it where it may reach beyond ``count``."""
        values = self._values
        variable = values.let(name, simplify(position, values.scope.ranges))
        stack.enter_context(self._inlined({variable.name: (0, max(reach - 1, 0))}))
        if reach > count:
            stack.enter_context(values.guard(variable < count))
        return variable

    def _rows(self) -> Launch:
        values, count = self._values, self.space.rows
        lanes, height = self.schedule.threads
        blocks = -(-count // height)
        scope = Scope.WARP if lanes <= 32 else Scope.BLOCK
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.BIDX)
            position: Term = block
            if height > 1:
                position = block * height + self._loop(stack, "line", height, ParallelType.TIDY)
            lane = stack.enter_context(values.loop("lane", lanes, ParallelType.TIDX, pinned=True))
            buffers = self._allocate(-(-max(self.space.depth, 1) // lanes))
            # A row beyond the last is skipped by whole warps, so the shuffles inside stay uniform.
            row = self._bound(stack, "row", position, count, blocks * height) if count > 1 else index(0)
            self._row(row, buffers, self._walk(lane, scope))
        return Launch(blocks=blocks, threads=(lanes, height))

    def _walk(
        self, lane: Var, scope: Scope,
    ) -> "Callable[[ExitStack, Sequence[Fold]], tuple[Places, Term]]":
        """Return how the lanes of a row share its elements, and who combines what they found."""
        lanes = self.schedule.threads[0]
        depth = self.schedule.split if self._parts else self.space.depth

        def walking(stack: ExitStack, folds: Sequence[Fold]) -> tuple[Places, Term]:
            rounds = -(-depth // lanes)
            stack.callback(lambda: self._share(folds, scope))
            step: Term = index(0)
            if rounds != 1:
                step = self._loop(stack, "step", rounds, ParallelType.SERIAL)
            r = self._bound(stack, "r", step * lanes + lane, depth, rounds * lanes)
            if self._parts:
                return {}, r
            return self._flat(self._nest.reduced, r), step

        self._lane = lane
        return walking

    def _share(self, folds: Sequence[Fold], scope: Scope) -> None:
        """Combine the totals of all lanes."""
        for fold in folds:
            name = self._values.fresh(f"{base_name(fold)}_all")
            value = fold.identity.value
            assert not isinstance(value, complex)
            self._values.emit(
                Reduce(name=name, fn=fold.fn, value=fold.total, identity=value, scope=scope, origin=fold.expr.name),
            )
            fold.total = Var(fold.total.dtype, name)

    def _row_parts(self) -> Launch:
        values, split = self._values, self.schedule.split
        lanes = self.schedule.threads[0]
        blocks = self.space.rows * split
        depth, length = self.space.depth, -(-self.space.depth // split)
        with ExitStack() as stack:
            unit = self._loop(stack, "block", blocks, ParallelType.BIDX)
            lane = stack.enter_context(values.loop("lane", lanes, ParallelType.TIDX, pinned=True))
            row, part = self._quotient(unit, split), self._remainder(unit, split)
            places = dict(self._flat(self._nest.kept, row))
            folds = self._open(self._nest.reductions)
            with ExitStack() as inner:
                rounds = -(-length // lanes)
                step = self._loop(inner, "step", rounds, ParallelType.SERIAL)
                within = self._bound(inner, "within", step * lanes + lane, length, rounds * lanes)
                r = self._bound(inner, "r", part * length + within, depth, split * length)
                places.update(self._flat(self._nest.reduced, r))
                self._point(places, folds, self._nest.full, (), index(0))
            self._share(folds, Scope.WARP if lanes <= 32 else Scope.BLOCK)
            with values.guard(apply("eq", lane, 0)):
                self._store_parts(folds, unit)
        return Launch(blocks=blocks, threads=(lanes, 1))

    def _lanes(self) -> Launch:
        count, (threads, _) = self.space.rows, self.schedule.threads
        blocks = -(-count // threads)
        with ExitStack() as stack:
            b = self._loop(stack, "block", blocks, ParallelType.BIDX)
            t = stack.enter_context(self._values.loop("thread", threads, ParallelType.TIDX, pinned=True))
            i = self._bound(stack, "i", b * threads + t, count, blocks * threads)
            self._lane_result(self._flat(self._nest.kept, i), i)
        return Launch(blocks=blocks, threads=(threads, 1))

    def _lane_parts(self) -> Launch:
        count, (threads, _), split = self.space.rows, self.schedule.threads, self.schedule.split
        blocks = -(-count * split // threads)
        depth, length = self.space.depth, -(-self.space.depth // split)
        with ExitStack() as stack:
            b = self._loop(stack, "block", blocks, ParallelType.BIDX)
            t = stack.enter_context(self._values.loop("thread", threads, ParallelType.TIDX, pinned=True))
            unit = self._bound(stack, "unit", b * threads + t, count * split, blocks * threads)
            i, part = self._remainder(unit, count), self._quotient(unit, count)
            folds = self._open(self._nest.reductions)
            places = self._flat(self._nest.kept, i)
            with ExitStack() as inner:
                start, stop = self._chunk(part, length, depth)
                q = self._blocked(inner, "q", start, stop, length, depth, folds, ParallelType.SERIAL)
                self._point(
                    {**places, **self._flat(self._nest.reduced, q)}, folds, self._nest.full, (), index(0),
                )
            self._store_parts(folds, unit)
        return Launch(blocks=blocks, threads=(threads, 1))

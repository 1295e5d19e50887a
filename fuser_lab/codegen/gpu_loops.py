"""The loops of GPU kernels: blocks and threads by their numbers, grid-stride steps where there are more elements."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Launch, Reduce, Scope
from fuser_lab.codegen.nest_lowering import Fold, NestLowering, Places, base_name
from fuser_lab.ir.term import Term, Var, apply, index
from fuser_lab.schedule.state import ParallelType


class GpuNest(NestLowering):
    """Writes nests for a GPU."""

    def _elements(self) -> Launch:
        count, (threads, _) = self.space.rows, self.schedule.threads
        blocks = self.schedule.blocks
        with ExitStack() as stack:
            i = self._grid_stride(stack, "i", count, blocks, threads)
            self._stores(self._flat(self._nest.kept, i))
        return Launch(blocks=blocks, threads=(threads, 1))

    def _grid_stride(self, stack: ExitStack, name: str, count: int, blocks: int, threads: int) -> Var:
        """Open loops in which every thread of the grid visits every (blocks * threads)-th index; return the index."""
        b = self._loop(stack, "block", blocks, ParallelType.BIDX)
        t = self._loop(stack, "thread", threads, ParallelType.TIDX)
        position: Term = b * threads + t
        rounds = -(-count // (blocks * threads))
        if rounds > 1:
            position = self._loop(stack, "step", rounds, ParallelType.SERIAL) * (blocks * threads) + position
        return self._bound(stack, name, position, count, rounds * blocks * threads)

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

"""Loops, accumulators and row buffers of one nest; what stands inside the loops is written down by `Values`."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import simplify, thresholds
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Buffer,
    If,
    Launch,
    Let,
    Load,
    Phase,
    Reduce,
    Role,
    Scope,
    Store,
    terms_of,
    walk,
)
from fuser_lab.codegen.layout import Layout
from fuser_lab.codegen.nests import Axis, Nest, even_run, fastest_is_reduced, flattened, trial
from fuser_lab.codegen.persistence import Saved, choose_saved
from fuser_lab.codegen.values import Values, call_text, level_of
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, cast, index
from fuser_lab.ops import OPS
from fuser_lab.schedule.loops import CPU_PARALLEL_FROM, choose_loops
from fuser_lab.schedule.state import ParallelType, Space, Style

CPU_CHUNK = 16384  # elements of a long row that one parallel iteration computes
CPU_FEW_ROWS = 16
MOST_STRETCHES = 6
CPU_UNROLLED = 16  # reductions this short keep their sums in registers, one result per lane

Places = Mapping[str, Term]


@dataclass(slots=True, kw_only=True)
class Fold:
    """A reduction while its loops are written: where its running value is."""

    expr: Expr
    fn: str
    identity: Const
    total: Term
    partial: Term | None = None

    @property
    def running(self) -> Term:
        """The value that the innermost loop updates."""
        return self.total if self.partial is None else self.partial

    @property
    def rounds(self) -> bool:
        """Whether the order of additions changes the result."""
        dtype = self.identity.dtype
        return self.fn in {"add", "mul"} and (dtype.is_float or dtype.is_complex)


class NestLowering:
    """Writes the phases of one nest."""

    def __init__(
        self, fusion: Fusion, nest: Nest, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout],
        target: str, name: str,
    ) -> None:
        self._fusion, self._nest, self._gpu, self._name = fusion, nest, target == "cuda", name
        self._buffers, self._layouts = buffers, layouts
        self._levels = level_of(fusion)
        self._passes = self._count_passes()
        kept = even_run(fusion, nest, buffers, layouts, nest.kept)
        reduced = even_run(fusion, nest, buffers, layouts, nest.reduced)
        self._kept_outer, self._kept_run = nest.kept[: len(nest.kept) - kept], nest.kept[len(nest.kept) - kept :]
        self._reduced_outer = nest.reduced[: len(nest.reduced) - reduced]
        self._reduced_run = nest.reduced[len(nest.reduced) - reduced :]
        self.space = Space(
            kept=tuple(a.extent for a in nest.kept),
            reduced=tuple(a.extent for a in nest.reduced),
            kept_run=_extent(self._kept_run),
            reduced_run=_extent(self._reduced_run),
            inner_reduced=fastest_is_reduced(fusion, nest, buffers, layouts),
            passes=self._passes,
            reduces=bool(nest.reductions),
        )
        self.schedule = choose_loops(self.space, target)
        self._parts = {
            expr: Buffer(
                name=f"{expr.name}_parts", dtype=expr.out.dtype.compute, size=self.space.rows * self.schedule.split,
                role=Role.WORKSPACE,
            )
            for expr in (nest.reductions if self.schedule.split > 1 else ())
        }
        self._saved: tuple[Saved, ...] = ()
        if self.schedule.persistent:
            self._saved = choose_saved(
                fusion, nest, buffers, layouts, self._levels, self._passes, everything=self._gpu,
            )
        self._values = Values(fusion, buffers, layouts)
        self._lane: Var | None = None

    def _count_passes(self) -> int:
        folds = [self._levels.get(expr.inputs[0], 0) + 1 for expr in self._nest.reductions]
        stores = [self._levels.get(tv, 0) + 1 for tv in self._nest.full]
        return max([*folds, *stores], default=1)

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or two if reductions are cut into parts."""
        style, split = self.schedule.style, self.schedule.split
        if style is Style.ELEMENTS:
            yield self._phase(self._elements_gpu if self._gpu else self._elements_cpu)
        elif style is Style.ROWS:
            rows = self._rows_gpu if self._gpu else self._rows_cpu
            if split > 1:
                yield self._phase(self._row_parts_gpu if self._gpu else self._row_parts_cpu, "_parts")
            yield self._phase(rows, "_total" if split > 1 else "")
        else:
            lanes = self._lanes_gpu if self._gpu else self._lanes_cpu
            if split > 1:
                yield self._phase(self._lane_parts_gpu if self._gpu else self._tiles_cpu, "_parts")
                yield self._phase(lanes, "_total")
            elif self._gpu or self.space.depth <= CPU_UNROLLED:
                yield self._phase(lanes)
            else:
                yield self._phase(self._tiles_cpu)

    def _phase(self, write: Callable[[], Launch], suffix: str = "") -> Phase:
        self._values = Values(self._fusion, self._buffers, self._layouts)
        launch = write()
        body = tuple(self._values.scope.body)
        used: dict[Buffer, None] = {}
        scalars: dict[Var, None] = {}
        defined = {s.name for s in walk(body) if isinstance(s, Let | Reduce)}
        for statement in walk(body):
            if isinstance(statement, Store):
                used[statement.buffer] = None
            for root in terms_of(statement):
                for term in root.walk():
                    if isinstance(term, Load):
                        used[term.buffer] = None
                    elif isinstance(term, Var) and term.dtype is not DataType.Index and term.name not in defined:
                        scalars[term] = None
        return Phase(
            name=self._name + suffix,
            buffers=tuple(sorted((b for b in used if b.role is not Role.SCRATCH), key=self._parameter_order)),
            scalars=tuple(scalars),
            body=body,
            launch=launch,
            schedule=self.schedule,
        )

    @property
    def _outer(self) -> ParallelType:
        """How the outermost CPU loop runs; adding up the parts of a reduction is too little work to share."""
        small = self._parts and self.space.rows * self.schedule.split < CPU_PARALLEL_FROM
        return ParallelType.PARALLEL if self.schedule.parallel and not small else ParallelType.SERIAL

    def _parameter_order(self, buffer: Buffer) -> tuple[int, int]:
        """Inputs and outputs in the fusion's order, then the workspace."""
        names = list(self._buffers)
        return (Role.INPUT, Role.OUTPUT, Role.WORKSPACE).index(buffer.role), (
            names.index(buffer.name) if buffer.name in names else 0
        )

    # No reduction

    def _elements_cpu(self) -> Launch:
        values, outer, run = self._values, self._kept_outer, self._kept_run
        count, length = _extent(outer), _extent(run)
        many = self._outer
        with ExitStack() as stack:
            if not outer and not self.schedule.parallel:
                self._inner_loops({}, length)
            elif count >= CPU_FEW_ROWS or not self.schedule.parallel or length < CPU_CHUNK:
                if not outer:
                    i: Term = self._loop(stack, "i", length, many)
                    self._stores(self._flat(run, i))
                else:
                    i = self._loop(stack, "i", count, many)
                    self._inner_loops(self._flat(outer, i), length)
            else:
                chunks = -(-length // CPU_CHUNK)
                unit = self._loop(stack, "unit", count * chunks, many)
                i = self._quotient(unit, chunks)
                part = self._remainder(unit, chunks)
                start, stop = self._chunk(part, CPU_CHUNK, length)
                places = self._flat(outer, i)
                j = stack.enter_context(
                    values.loop("j", stop, ParallelType.SIMD, start=start, largest=length),
                )
                self._stores({**places, **self._flat(run, j)})
        return Launch()

    def _inner_loops(self, places: Places, length: int) -> None:
        """Write the innermost loop, one for each stretch in which the choices of pads and cats stay the same."""
        values, run = self._values, self._kept_run
        limits = [0, *self._changes(places, length), length]
        for start, stop in itertools.pairwise(limits):
            with values.loop(
                "j", stop, ParallelType.SIMD, start=index(start), smallest=start, pinned=len(limits) > 2,
            ) as j:
                self._stores({**places, **self._flat(run, j)})

    def _changes(self, places: Places, length: int) -> list[int]:
        """Return where in the innermost loop some choice changes; none if it would become too many loops."""
        ranges = {**self._values.scope.ranges, "j": (0, max(length - 1, 0))}
        inside = {**places, **flattened(self._kept_run, index_var("j"), ranges)}
        found: set[int] = set()
        for statement in walk(trial(self._fusion, self._nest, self._buffers, self._layouts, inside, ranges)):
            if isinstance(statement, If):
                found |= thresholds(statement.condition, "j", ranges)
        inner = sorted(n for n in found if 0 < n < length)
        return inner if len(inner) <= MOST_STRETCHES else []

    def _elements_gpu(self) -> Launch:
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

    @contextmanager
    def _inlined(self, binds: Mapping[str, tuple[int, int]], *, pinned: bool = False) -> Iterator[None]:
        """Open a scope whose statements go straight into the enclosing block when it is closed."""
        with self._values.block(binds, pinned=pinned) as inner:
            yield
        self._values.scope.body.extend(inner.body)

    # Reductions: rows

    def _rows_cpu(self) -> Launch:
        values, count, grain = self._values, self.space.rows, self.schedule.grain
        many = self._outer
        with ExitStack() as stack:
            if grain > 1:
                group = self._loop(stack, "group", -(-count // grain), many)
                buffers = self._allocate(self.space.depth)
                start, stop = self._chunk(group, grain, count)
                row: Term = stack.enter_context(
                    values.loop("row", stop, ParallelType.SERIAL, start=start, largest=count, pinned=True),
                )
            elif count > 1:
                row = stack.enter_context(values.loop("row", count, many, pinned=True))
                buffers = self._allocate(self.space.depth)
            else:
                row = index(0)
                stack.enter_context(self._inlined({}, pinned=True))
                buffers = self._allocate(self.space.depth)
            self._row(row, buffers, self._walk_parts if self._parts else self._walk_cpu)
        return Launch()

    def _row(
        self, row: Term, buffers: Mapping[TensorView, Buffer],
        walking: "Callable[[ExitStack, Sequence[Fold]], tuple[Places, Term]]",
    ) -> None:
        """Write the passes over one row, then the values that belong to the whole row."""
        nest, values = self._nest, self._values
        places = self._flat(nest.kept, row)
        first = 0
        if self._parts:
            with ExitStack() as stack:
                folds = self._open(nest.reductions)
                _, part = walking(stack, folds)
                for fold in folds:
                    buffer = self._parts[fold.expr]
                    at = simplify(row * self.schedule.split + part, values.scope.ranges)
                    self._update(fold, Load(buffer.dtype, buffer, at))
            self._close(folds, places)
            first = 1
        for number in range(first, self._passes):
            folds = self._open([e for e in nest.reductions if self._levels.get(e.inputs[0], 0) == number])
            written = [s.tensor for s in self._saved if s.written == number]
            stored = [tv for tv in nest.full if self._levels.get(tv, 0) == number]
            if not folds and not stored and not written:
                continue
            with ExitStack() as stack:
                inner, slot = walking(stack, folds)
                self._know_saved({**places, **inner}, number, buffers, slot)
                self._point({**places, **inner}, folds, stored, [(tv, buffers[tv]) for tv in written], slot)
            self._close(folds, places)
        if not nest.rows:
            return
        if self._lane is None:
            self._row_stores(nest.rows, places)
        else:
            with values.guard(apply("eq", self._lane, 0)):
                self._row_stores(nest.rows, places)

    def _know_saved(
        self, places: Places, number: int, buffers: Mapping[TensorView, Buffer], slot: Term,
    ) -> None:
        """Let this pass read what earlier passes kept."""
        for saved in self._saved:
            if saved.written < number:
                buffer = buffers[saved.tensor]
                at = self._values.simplified(self._nest.at(saved.tensor, places))
                self._values.given[saved.tensor.name, at] = Load(buffer.dtype, buffer, slot)

    def _point(
        self, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
        kept: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        """Write what happens at one element of a row."""
        values, nest = self._values, self._nest
        for tensor, buffer in kept:
            value = values.value(tensor, nest.at(tensor, places))
            values.emit(Store(buffer=buffer, position=slot, value=value, origin=_origin(self._fusion, tensor)))
        for fold in folds:
            source = fold.expr.tensor_inputs[0]
            self._update(fold, values.value(source, nest.at(source, places)))
        for tensor in stored:
            values.store(tensor, nest.at(tensor, places), self._layouts[tensor])

    def _row_stores(self, tensors: Sequence[TensorView], places: Places) -> None:
        for tensor in tensors:
            self._values.store(tensor, self._nest.at(tensor, places), self._layouts[tensor])

    def _allocate(self, size: int) -> dict[TensorView, Buffer]:
        """Allocate a row buffer for each kept value; one that is read for the last time is written over."""
        buffers = {}
        for saved in self._saved:
            buffer = Buffer(
                name=f"{saved.tensor.name}_row", dtype=saved.tensor.dtype.compute, size=max(size, 1), role=Role.SCRATCH,
            )
            self._values.emit(Alloc(buffer=buffer))
            buffers[saved.tensor] = buffer
        return buffers

    def _walk_cpu(self, stack: ExitStack, folds: Sequence[Fold]) -> tuple[Places, Term]:
        """Open the loops over the reduced axes of a row."""
        outer, run = _extent(self._reduced_outer), _extent(self._reduced_run)
        places: dict[str, Term] = {}
        slot: Term = index(0)
        if self._reduced_outer:
            q = self._loop(stack, "q", outer, ParallelType.SERIAL)
            places.update(self._flat(self._reduced_outer, q))
            slot = q * run
            if run <= self.schedule.partial < self.space.depth:
                stack.enter_context(self._partials(folds))
        r = self._blocked(stack, "r", index(0), index(run), run, run, folds, ParallelType.SIMD)
        places.update(self._flat(self._reduced_run, r))
        return places, simplify(slot + r, self._values.scope.ranges)

    def _blocked(
        self, stack: ExitStack, name: str, start: Term, stop: Term, length: int, extent: int,
        folds: Sequence[Fold], parallel: ParallelType,
    ) -> Var:
        """Open a loop over at most ``length`` indices, in blocks with sums of their own where that is more exact."""
        values, size = self._values, self.schedule.partial
        if length > size and any(fold.rounds for fold in folds):
            block = self._loop(stack, f"{name}_block", -(-length // size), ParallelType.SERIAL)
            stack.enter_context(self._partials(folds))
            start = simplify(start + block * size, values.scope.ranges)
            end = simplify(start + size, values.scope.ranges)
            exact = length % size == 0 and isinstance(stop, Const)
            stop = end if exact else apply("min", end, stop)
        return stack.enter_context(values.loop(name, stop, parallel, start=start, largest=extent))

    @contextmanager
    def _partials(self, folds: Sequence[Fold]) -> Iterator[None]:
        """Give every fold a running value of its own that is added to the total in the end."""
        for fold in folds:
            fold.partial = self._values.let(f"{_base(fold)}_part", fold.identity, origin=fold.expr.name)
        yield
        for fold in folds:
            partial, fold.partial = fold.partial, None
            if partial is not None:
                self._update(fold, partial)

    def _walk_parts(self, stack: ExitStack, folds: Sequence[Fold]) -> tuple[Places, Term]:
        return {}, self._loop(stack, "part", self.schedule.split, ParallelType.SERIAL)

    def _row_parts_cpu(self) -> Launch:
        """Write the first phase of reductions cut into parts: the longest loop of a row is cut."""
        values, split = self._values, self.schedule.split
        outer, run = _extent(self._reduced_outer), _extent(self._reduced_run)
        with ExitStack() as stack:
            unit = stack.enter_context(
                values.loop("unit", self.space.rows * split, ParallelType.PARALLEL, pinned=True),
            )
            row, part = self._quotient(unit, split), self._remainder(unit, split)
            places = dict(self._flat(self._nest.kept, row))
            folds = self._open(self._nest.reductions)
            with ExitStack() as inner:
                if outer >= split:
                    start, stop = self._chunk(part, -(-outer // split), outer)
                    q: Term = inner.enter_context(
                        values.loop("q", stop, ParallelType.SERIAL, start=start, largest=outer),
                    )
                    inner.enter_context(self._partials(folds))
                    r = self._blocked(inner, "r", index(0), index(run), run, run, folds, ParallelType.SIMD)
                else:
                    q = self._loop(inner, "q", outer, ParallelType.SERIAL) if outer > 1 else index(0)
                    length = -(-run // split)
                    start, stop = self._chunk(part, length, run)
                    r = self._blocked(inner, "r", start, stop, length, run, folds, ParallelType.SIMD)
                places.update(self._flat(self._reduced_outer, q))
                places.update(self._flat(self._reduced_run, r))
                self._point(places, folds, self._nest.full, (), index(0))
            self._store_parts(folds, unit)
        return Launch()

    def _store_parts(self, folds: Sequence[Fold], position: Term) -> None:
        for fold in folds:
            self._values.emit(
                Store(buffer=self._parts[fold.expr], position=position, value=fold.total, origin=fold.expr.name),
            )

    def _rows_gpu(self) -> Launch:
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
            self._row(row, buffers, self._gpu_walk(lane, scope))
        return Launch(blocks=blocks, threads=(lanes, height))

    def _gpu_walk(
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
            name = self._values.fresh(f"{_base(fold)}_all")
            value = fold.identity.value
            assert not isinstance(value, complex)
            self._values.emit(
                Reduce(name=name, fn=fold.fn, value=fold.total, identity=value, scope=scope, origin=fold.expr.name),
            )
            fold.total = Var(fold.total.dtype, name)

    def _row_parts_gpu(self) -> Launch:
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

    # Reductions: columns

    def _lanes_cpu(self) -> Launch:
        """Write one result per vector lane, its few elements added up in registers."""
        many = self._outer
        with ExitStack() as stack:
            places: dict[str, Term] = {}
            row: Term = index(0)
            if self._kept_outer:
                i = self._loop(stack, "i", _extent(self._kept_outer), many)
                places.update(self._flat(self._kept_outer, i))
                row = i * _extent(self._kept_run)
                many = ParallelType.SIMD
            lane = stack.enter_context(
                self._values.loop("c", _extent(self._kept_run), many, pinned=True),
            )
            places.update(self._flat(self._kept_run, lane))
            self._lane_result(places, simplify(row + lane, self._values.scope.ranges))
        return Launch()

    def _lane_result(self, places: Places, row: Term) -> None:
        """Write the reduction that one lane does alone."""
        values, nest = self._values, self._nest
        folds = self._open(nest.reductions)
        with ExitStack() as stack:
            if self._parts:
                part = self._loop(stack, "part", self.schedule.split, ParallelType.SERIAL)
                at = simplify(part * self.space.rows + row, values.scope.ranges)
                for fold in folds:
                    buffer = self._parts[fold.expr]
                    self._update(fold, Load(buffer.dtype, buffer, at))
            else:
                depth = self.space.depth
                q = self._blocked(stack, "q", index(0), index(depth), depth, depth, folds, ParallelType.SERIAL)
                inner = self._flat(nest.reduced, q)
                self._point({**places, **inner}, folds, nest.full, (), index(0))
        self._close(folds, places)
        self._row_stores(nest.rows, places)

    def _lanes_gpu(self) -> Launch:
        count, (threads, _) = self.space.rows, self.schedule.threads
        blocks = -(-count // threads)
        with ExitStack() as stack:
            b = self._loop(stack, "block", blocks, ParallelType.BIDX)
            t = stack.enter_context(self._values.loop("thread", threads, ParallelType.TIDX, pinned=True))
            i = self._bound(stack, "i", b * threads + t, count, blocks * threads)
            self._lane_result(self._flat(self._nest.kept, i), i)
        return Launch(blocks=blocks, threads=(threads, 1))

    def _lane_parts_gpu(self) -> Launch:
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

    def _tiles_cpu(self) -> Launch:
        """Write blocks of neighbouring columns: rows go by, each added to a row of running sums."""
        values, nest, tile, split = self._values, self._nest, self.schedule.tile, self.schedule.split
        run, depth = _extent(self._kept_run), self.space.depth
        tiles, outer = -(-run // tile), _extent(self._kept_outer)
        many = ParallelType.PARALLEL if self.schedule.parallel else ParallelType.SERIAL
        units = outer * tiles * split
        grain = max(1, min(units // 64, 4096 // max(depth * tile, 1)))
        with ExitStack() as stack:
            group = stack.enter_context(values.loop("group", -(-units // grain), many, pinned=True))
            length = -(-depth // split)
            blocked = length > self.schedule.partial and any(f.rounds for f in self._made_folds(nest.reductions))
            totals = self._sums(tile, "sums")
            partials = self._sums(tile, "block_sums") if blocked else {}
            start, stop = self._chunk(group, grain, units)
            if grain == 1:
                unit: Term = group
            else:
                unit = stack.enter_context(
                    values.loop("unit", stop, ParallelType.SERIAL, start=start, largest=units, pinned=True),
                )
            place, part = self._remainder(unit, outer * tiles), self._quotient(unit, outer * tiles)
            i, column = self._quotient(place, tiles), self._remainder(place, tiles)
            places = self._flat(self._kept_outer, i)
            first, last = self._chunk(column, tile, run)
            first, last = self._named("first", first), self._named("last", last)
            self._each_column(totals, first, last, self._clear)
            begin, end = self._chunk(part, length, depth)
            if blocked:
                size = self.schedule.partial
                with values.loop("q_block", -(-length // size), ParallelType.SERIAL) as block:
                    self._each_column(partials, first, last, self._clear)
                    low = self._named("low", simplify(begin + block * size, values.scope.ranges))
                    self._rows_go_by(places, partials, first, last, (low, apply("min", low + size, end)))
                    self._each_column(
                        totals, first, last,
                        lambda fold, slot: self._update(fold, Load(fold.total.dtype, partials[fold.expr], slot)),
                    )
            else:
                self._rows_go_by(places, totals, first, last, (begin, end))
            with values.loop("c", last, ParallelType.SIMD, start=first, largest=run, pinned=True) as c:
                folds = self._cells(totals, simplify(c - first, values.scope.ranges))
                inner = {**places, **self._flat(self._kept_run, c)}
                if self._parts:
                    row = simplify(part * self.space.rows + i * run + c, values.scope.ranges)
                    self._store_parts(folds, row)
                else:
                    self._close(folds, inner)
                    self._row_stores(nest.rows, inner)
        return Launch()

    def _rows_go_by(
        self, places: Places, sums: Mapping[Expr, Buffer], first: Term, last: Term, rows: tuple[Term, Term],
    ) -> None:
        values, nest, run = self._values, self._nest, _extent(self._kept_run)
        begin, end = rows
        with values.loop("q", end, ParallelType.SERIAL, start=begin, largest=self.space.depth) as q:
            around = {**places, **self._flat(nest.reduced, q)}
            with values.loop("c", last, ParallelType.SIMD, start=first, largest=run) as c:
                folds = self._cells(sums, simplify(c - first, values.scope.ranges))
                self._point({**around, **self._flat(self._kept_run, c)}, folds, nest.full, (), index(0))

    def _sums(self, size: int, suffix: str) -> dict[Expr, Buffer]:
        found = {}
        for expr in self._nest.reductions:
            buffer = Buffer(
                name=f"{expr.name}_{suffix}", dtype=expr.out.dtype.compute, size=max(size, 1), role=Role.SCRATCH,
            )
            self._values.emit(Alloc(buffer=buffer, origin=expr.name))
            found[expr] = buffer
        return found

    def _cells(self, sums: Mapping[Expr, Buffer], slot: Term) -> list[Fold]:
        folds = self._made_folds(tuple(sums))
        for fold in folds:
            buffer = sums[fold.expr]
            fold.total = Load(buffer.dtype, buffer, slot)
        return folds

    def _each_column(
        self, sums: Mapping[Expr, Buffer], first: Term, last: Term, write: "Callable[[Fold, Term], None]",
    ) -> None:
        values, run = self._values, _extent(self._kept_run)
        with values.loop("c", last, ParallelType.SIMD, start=first, largest=run) as c:
            slot = simplify(c - first, values.scope.ranges)
            for fold in self._cells(sums, slot):
                write(fold, slot)

    def _clear(self, fold: Fold, slot: Term) -> None:
        total = fold.total
        assert isinstance(total, Load)
        self._values.emit(Store(buffer=total.buffer, position=slot, value=fold.identity, origin=fold.expr.name))

    # Pieces

    def _loop(self, stack: ExitStack, name: str, count: int, parallel: ParallelType) -> Var:
        return stack.enter_context(self._values.loop(name, count, parallel))

    def _flat(self, axes: Sequence[Axis], flat: Term) -> dict[str, Term]:
        return flattened(axes, flat, self._values.scope.ranges)

    def _named(self, name: str, term: Term) -> Term:
        """Emit an index as a variable where it is more than one; its range stays known."""
        if isinstance(term, Const | Var):
            return term
        return self._values.let(name, term)

    def _quotient(self, term: Term, divisor: int) -> Term:
        return simplify(apply("floordiv", term, divisor), self._values.scope.ranges)

    def _remainder(self, term: Term, divisor: int) -> Term:
        return simplify(apply("mod", term, divisor), self._values.scope.ranges)

    def _chunk(self, number: Term, size: int, extent: int) -> tuple[Term, Term]:
        """Return start and stop of one of the stretches of ``size`` that cover ``extent``."""
        ranges = self._values.scope.ranges
        start = simplify(number * size, ranges)
        if isinstance(start, Const) and size >= extent:
            return start, index(extent)
        end = simplify(start + size, ranges)
        return start, end if extent % size == 0 and size else apply("min", end, extent)

    def _made_folds(self, exprs: Sequence[Expr]) -> list[Fold]:
        folds = []
        for expr in exprs:
            combine = OPS[expr.op.name].combine
            assert combine is not None
            dtype = expr.out.dtype.compute
            identity = Const(dtype, combine.identity(expr.out.dtype))
            folds.append(Fold(expr=expr, fn=combine.fn, identity=identity, total=identity))
        return folds

    def _open(self, exprs: Sequence[Expr]) -> list[Fold]:
        folds = self._made_folds(exprs)
        for fold in folds:
            fold.total = self._values.let(
                _base(fold), fold.identity, origin=fold.expr.name, note=call_text(fold.expr),
            )
        return folds

    def _update(self, fold: Fold, value: Term) -> None:
        """Emit ``running = running fn value``."""
        running = fold.running
        given = value if value.dtype is running.dtype else cast(value, running.dtype)
        term = Apply(running.dtype, fold.fn, (running, given))
        if isinstance(running, Load):
            self._values.emit(
                Store(buffer=running.buffer, position=running.position, value=term, origin=fold.expr.name),
            )
        elif isinstance(running, Var):
            self._values.emit(Let(name=running.name, value=term, update=True, origin=fold.expr.name))

    def _close(self, folds: Sequence[Fold], places: Places) -> None:
        """Make results known to what comes after."""
        for fold in folds:
            out = fold.expr.out
            at = self._values.simplified(self._nest.at(out, places))
            self._values.given[out.name, at] = cast(fold.total, out.dtype)

    def _stores(self, places: Places) -> None:
        for tensor in self._nest.full:
            self._values.store(tensor, self._nest.at(tensor, places), self._layouts[tensor])


def _extent(axes: Sequence[Axis]) -> int:
    return prod(a.extent for a in axes)


def _base(fold: Fold) -> str:
    return f"{fold.expr.name.lower()}_{fold.expr.op.name}"


def _origin(fusion: Fusion, tensor: TensorView) -> str | None:
    expr = fusion.producers.get(tensor)
    return None if expr is None else expr.name

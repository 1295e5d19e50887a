"""Row and column reductions in one pass on a GPU, as in backward passes of norms, reading each input once.

A block iterates over consecutive rows and keeps one of them in registers, like `RowNest`. Each thread also adds to the
columns that it owns. The result of a block is one part of each column's sum, and a second phase, a separate fusion,
adds up the parts. The next row is loaded while the threads compute the current one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from fuser_lab.codegen.column_sums import column_index, rows_each
from fuser_lab.codegen.gpu_rows import RowNest, RowSection
from fuser_lab.codegen.index_math import simplify, substitute
from fuser_lab.codegen.kernel_ir import (
    LARGEST_STATIC,
    Alloc,
    Barrier,
    Buffer,
    Launch,
    Load,
    Phase,
    Role,
    Store,
    VectorLoad,
)
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_lowering import Fold, Places
from fuser_lab.codegen.persistence import Saved, inputs_needed
from fuser_lab.cost.device import WARP
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType


class BackwardNest(RowNest):
    """Writes rows with the sums of their columns."""

    _early = False  # inputs that all rows share are loaded before the first row

    def __init__(self, plan: NestPlan) -> None:
        super().__init__(plan)
        self._columns_of, self._stored, self._column_parts = plan.facts.column_sums, plan.stored, plan.column_parts
        self._each = rows_each(self.schedule, self.space.rows)
        self._sums: dict[Expr, Buffer] = {}
        self._this_row: Term = index(0)
        self._next: dict[TensorView, Buffer] = {}
        self._i: Term = index(0)
        self._sums_first: dict[Expr, int] = {}

    def _chosen_saved(self) -> tuple[Saved, ...]:
        """Return the values to keep of a row, or, in a single pass, its inputs, all of which are in flight at once."""
        saved = super()._chosen_saved()
        if saved or self._passes > 1:
            return saved
        rows = inputs_needed(self._facts, 0, ())
        return tuple(
            Saved(tensor=tv, written=0) for tv in rows if self._facts.varies(tv) and self._width_of(tv, self._fast)
        )

    @property
    def _row_steps(self) -> int:
        """Number of steps over a row, which a thread keeps in registers; ``shared`` is a number of column sums here."""
        return -(-self._row_groups // self._row_lanes)

    def _inputs(self) -> list[TensorView]:
        needed = (inputs_needed(self._facts, number, self._saved) for number in range(self._passes))
        return list(dict.fromkeys(tensor for tensors in needed for tensor in tensors))

    def phases(self) -> Iterator[Phase]:
        """Yield the phase that iterates over the rows and stores the parts of column sums."""
        yield self._phase(self._walk_rows, "_rows")

    def _walk_rows(self) -> Launch:
        values, nest, count, each = self._values, self._nest, self.space.rows, self._each
        blocks = -(-count // each)
        lanes = self.schedule.threads[0]
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.grid_x)
            self._lane = self._place = stack.enter_context(
                values.loop("lane", lanes, ParallelType.block_x, pinned=True),
            )
            self._shared_first = {}
            sections = self._sections()
            (section,) = sections
            self._columns_begin()
            self._load_constants(section)
            self._begin_ahead(section, block * each)
            with ExitStack() as inner:
                i = self._loop(inner, "i", each, ParallelType.serial)
                self._this_row = self._bound(inner, "row", block * each + i, count, blocks * each)
                inner.enter_context(self._inline({}, pinned=True))
                self._i = i
                self._passes_over(self._this_row, sections)
                if lanes > WARP and len(nest.reductions) == 1:
                    # All threads read what the warps exchanged before the next row overwrites it.
                    values.emit(Barrier())
            with ExitStack() as inner:
                step = self._round(inner, "step", self._row_steps)
                group = self._group(inner, section, step)
                with self._each_neighbour() as v:
                    here = self._neighbours(nest.reduced, group, v)
                    for expr, buffer in self._sums.items():
                        slot = simplify(step * self.schedule.vector + v, values.scope.ranges)
                        column_sum = Load(buffer.dtype, buffer, self._sum_place(expr, slot))
                        column = (substitute(i, here) for i in column_index(nest, expr))
                        at = (block, *values.simplified(tuple(column)))
                        part = self._column_parts[expr]
                        values.emit(Store(
                            buffer=part.buffer, position=simplify(part.layout.position(at), values.scope.ranges),
                            value=column_sum, origin=expr.name,
                        ))
        return Launch(blocks=blocks, threads=(lanes, 1))

    # Columns

    def _columns_begin(self) -> None:
        """Allocate the sums of a thread's columns, in registers or in shared memory, and set them to the identity."""
        size, values = self._row_steps * self.schedule.vector, self._values
        self._sums, self._sums_first, end = {}, {}, 0
        moved = self._columns_of[: self.schedule.shared]
        room = size * self.schedule.threads[0] * sum(e.out.dtype.compute.itemsize for e in moved)
        for number, fold in enumerate(self._folds_of(self._columns_of)):
            expr, dtype = fold.expr, fold.identity.dtype
            buffer = Buffer(name=f"{expr.name}_sums", dtype=dtype, size=size, role=Role.SCRATCH)
            if number < self.schedule.shared:
                # Dynamic buffers begin at the same address; each uses a separate part.
                first = -(-end // dtype.itemsize) if room > LARGEST_STATIC else 0
                end = (first + size * self.schedule.threads[0]) * dtype.itemsize
                self._sums_first[expr] = first
                least = LARGEST_STATIC + dtype.itemsize if room > LARGEST_STATIC else 0
                buffer = replace(buffer, size=max(end, least) // dtype.itemsize, role=Role.SHARED)
            values.emit(Alloc(buffer=buffer, origin=expr.name))
            self._sums[expr] = buffer
            with values.loop("k", size, ParallelType.serial) as k:
                at = self._sum_place(expr, k)
                values.emit(Store(buffer=buffer, position=at, value=fold.identity, origin=expr.name))

    def _sum_place(self, expr: Expr, slot: Term) -> Term:
        """Return the position of the sum of one of a thread's columns; those of adjacent threads are adjacent."""
        if expr not in self._sums_first:
            return slot
        assert self._lane is not None
        place = slot * self.schedule.threads[0] + self._lane + self._sums_first[expr]
        return simplify(place, self._values.scope.ranges)

    def _point(
        self, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
        row_buffers: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        super()._point(places, folds, [tv for tv in stored if tv in self._stored], row_buffers, slot)
        for fold in self._folds_of(self._columns_of):
            operand = fold.expr.tensor_inputs[0]
            if operand in stored:
                buffer = self._sums[fold.expr]
                fold.total = Load(buffer.dtype, buffer, self._sum_place(fold.expr, slot))
                self._update(fold, self._values.value(operand, self._nest.at(operand, places)))

    # Loads ahead

    def _load_constants(self, section: RowSection) -> None:
        """Load the inputs that all rows share, once."""
        self._ahead: dict[TensorView, Buffer] = {}
        if not self.schedule.constants:
            return
        for tensor in self._inputs():
            width = self._width_of(tensor, self._fast)
            if width and not self._facts.varies(tensor):
                self._ahead[tensor] = self._words(tensor, self._row_steps * self.schedule.vector, "all")
                self._load_row({}, section, {tensor: (width, self._ahead[tensor])})

    def _begin_ahead(self, section: RowSection, row: Term) -> None:
        """Load the first row of a block."""
        self._next = {}
        if self.schedule.unroll < 2:
            return
        for saved in self._saved:
            if saved.written == 0 and self._width_of(saved.tensor, self._fast):
                self._next[saved.tensor] = self._words(saved.tensor, self._row_steps * self.schedule.vector, "next_row")
        loads = {tv: (self._width_of(tv, self._fast), buffer) for tv, buffer in self._next.items()}
        with self._values.guard(apply("lt", row, self.space.rows)):
            first = self._values.let("first", simplify(row, self._values.scope.ranges))
            with self._inline({first.name: (0, self.space.rows - 1)}):
                self._load_row(self._flat(self._nest.kept, first), section, loads)

    def _fetch_row(
        self, places: Places, section: RowSection, loads: Mapping[TensorView, tuple[int, Buffer]],
    ) -> None:
        waiting = {tv: load for tv, load in loads.items() if tv in self._next}
        super()._fetch_row(places, section, {tv: load for tv, load in loads.items() if tv not in waiting})
        if not waiting:
            return
        values, width = self._values, self.schedule.vector
        for tensor, (_, buffer) in waiting.items():
            with ExitStack() as stack:
                step = self._round(stack, "step", self._row_steps)
                slot = simplify(step * width, values.scope.ranges)
                if width == 1:
                    load = Load(tensor.dtype, self._next[tensor], slot)
                    values.emit(Store(buffer=buffer, position=slot, value=load))
                else:
                    values.emit(VectorLoad(
                        buffer=self._next[tensor], position=slot, words=buffer, slot=slot, count=width,
                        width=min(16 // tensor.dtype.itemsize, width),
                    ))
        after = simplify(self._this_row + 1, values.scope.ranges)
        last = apply("lt", self._i, self._each - 1)
        with values.guard(last), values.guard(apply("lt", after, self.space.rows)):
            row = values.let("row_after", after)
            with self._inline({row.name: (0, self.space.rows - 1)}):
                loads = {tv: (load[0], self._next[tv]) for tv, load in waiting.items()}
                self._load_row(self._flat(self._nest.kept, row), section, loads)

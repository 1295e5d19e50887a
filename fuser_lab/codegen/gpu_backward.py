"""Row and column reductions in one pass on a GPU, as in backward passes of norms, reading each input once.

A block iterates over consecutive rows and keeps one of them in registers, like `RowNest`. Each thread also adds to the
columns that it owns. The result of a block is one part of each column's sum, and a second phase, a separate fusion,
adds up the parts. The next row is loaded while the threads compute the current one.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.codegen.gpu_rows import RowNest, RowSection
from fuser_lab.codegen.index_map import Index
from fuser_lab.codegen.index_math import simplify, substitute, variables
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
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.nest_lowering import Fold, Places, WithGivenNamed
from fuser_lab.codegen.nests import Nest, nests_of
from fuser_lab.codegen.persistence import Saved, inputs_needed
from fuser_lab.cost.device import DEFAULT, WARP, Device
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ir.term import Term, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.passes.rewriter import Axes
from fuser_lab.schedule.gpu_loops import backward_loops
from fuser_lab.schedule.parameters import BACKWARD_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """A segment cut into a part that iterates over rows and a part that adds up the column sums."""

    rows: Fusion  # its outputs include the operands of the column sums
    columns: tuple[Expr, ...]
    stored: frozenset[TensorView]


def backward_of(segment: Fusion) -> Backward | None:
    """Return a segment's rows and columns; None if column sums depend on each other, or rows on column sums."""
    reductions = [e for e in segment.tensor_exprs if e.kind is OpKind.REDUCTION]
    columns = tuple(e for e in reductions if not _reduces_last(e))
    if not columns or len(columns) == len(reductions):
        return None
    after: set[Val] = set()
    for expr in segment.exprs:
        if not after.isdisjoint(expr.inputs):
            if expr.kind is OpKind.REDUCTION:
                return None
            after.update(expr.outputs)
        elif expr in columns:
            after.update(expr.outputs)
    stored = tuple(tv for tv in segment.outputs if tv not in after)
    outputs = tuple(dict.fromkeys((*stored, *(e.tensor_inputs[0] for e in columns))))
    exprs = tuple(e for e in segment.exprs if after.isdisjoint(e.outputs))
    rows = Fusion(inputs=segment.inputs, exprs=exprs, outputs=outputs)
    return Backward(rows=rows, columns=columns, stored=frozenset(stored))


def _reduces_last(expr: Expr) -> bool:
    """Whether a reduction is along the last axis of its operand that has more than one element."""
    pairs = zip(expr.out.domain.logical, expr.tensor_inputs[0].shape, strict=True)
    sized = [axis.is_reduction for axis, extent in pairs if extent != 1]
    return bool(sized) and sized[-1]


def rows_nest(
    cut: Backward, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout],
) -> tuple[Nest, dict[str, Buffer], dict[TensorView, Layout]] | None:
    """Return the nest of the rows, and its buffers and layouts; None if rows and columns have different spaces."""
    all_buffers, all_layouts = dict(buffers), dict(layouts)
    for tensor in cut.rows.outputs:
        layout = all_layouts.setdefault(tensor, layout_of(tensor))
        all_buffers.setdefault(
            tensor.name, Buffer(name=tensor.name, dtype=tensor.dtype, size=layout.size, role=Role.WORKSPACE),
        )
    try:
        nests = nests_of(cut.rows, all_buffers, all_layouts)
    except CodegenError:  # not all of it matches the rows
        return None
    if len(nests) != 1:
        return None
    nest = nests[0]
    names = [{a.name for a in axes} for axes in (nest.kept, nest.reduced)]
    for expr in cut.columns:
        if expr.tensor_inputs[0] not in nest.full:
            return None
        if set().union(*(variables(i) for i in column_index(nest, expr))) != names[1]:
            return None
    if not nest.kept or not nest.reduced or prod(a.extent for a in nest.axes) == 0:
        return None
    return nest, all_buffers, all_layouts


def column_index(nest: Nest, expr: Expr) -> Index:
    """Return the index of a column sum's result in axis variables of the rows' nest."""
    pairs = zip(nest.index[expr.tensor_inputs[0]], expr.out.domain.logical, strict=True)
    return tuple(component for component, axis in pairs if not axis.is_reduction)


def totals(segment: Fusion, cut: Backward, parts: int) -> tuple[Fusion, dict[Expr, TensorView]]:
    """Return the fusion that computes the rest of a segment from parts of its column sums, and these parts."""
    axes = Axes(segment)
    known: dict[Val, Val] = {}
    found: dict[Expr, TensorView] = {}
    exprs: list[Expr] = []
    for expr in cut.columns:
        old = expr.out
        kept = [axes.fresh(n) for n in old.stored_shape]
        part = TensorView(
            name=f"{expr.name}_blocks", dtype=old.dtype.compute,
            domain=TensorDomain(logical=(axes.fresh(parts), *kept)),
        )
        logical = (axes.fresh(parts, IterType.REDUCTION), *map(axes.copy, old.domain.axes))
        new = replace(old, domain=TensorDomain(logical=logical, allocation=old.domain.allocation))
        attrs = tuple((key, (0,) if key == "dims" else value) for key, value in expr.attrs)
        exprs.append(Expr(op=expr.op, inputs=(part,), outputs=(new,), attrs=attrs))
        known[old], found[expr] = new, part
    after: set[Val] = set(known)
    for expr in segment.exprs:
        if expr not in cut.columns and not after.isdisjoint(expr.inputs):
            after.update(expr.outputs)
            inputs = tuple(known.get(v, v) for v in expr.inputs)
            exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
    outputs = tuple(known.get(tv, tv) for tv in segment.outputs if tv in after)
    # Other operands: factories and scalars are computed again.
    made = {out for e in exprs for out in e.outputs}
    missing = {v for e in exprs for v in e.inputs if v not in made and v not in segment.inputs} - set(found.values())
    again: list[Expr] = []
    for expr in reversed(segment.exprs):
        if not missing.isdisjoint(expr.outputs):
            again.insert(0, expr)
            missing |= {v for v in expr.inputs if v not in segment.inputs}
    tensors = tuple(tv for tv in outputs if isinstance(tv, TensorView))
    return Fusion(inputs=(*segment.inputs, *found.values()), exprs=(*again, *exprs), outputs=tensors), found


class BackwardNest(RowNest):
    """Writes rows with the sums of their columns."""

    _may_divide = False
    _early = False  # inputs that all rows share are loaded before the first row

    def __init__(
        self, cut: Backward, nest: Nest, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout],
        target: str, name: str, device: Device = DEFAULT,
    ) -> None:
        self._cut = cut
        self._sums: dict[Expr, Buffer] = {}
        self._this_row: Term = index(0)
        self._next: dict[TensorView, Buffer] = {}
        self._part_layouts: dict[Expr, Layout] = {}
        self._i: Term = index(0)
        self._sums_first: dict[Expr, int] = {}
        super().__init__(cut.rows, nest, buffers, layouts, target, name, device=device)
        constant = sum(tv.dtype.itemsize for tv in self._inputs() if not self._varies(tv))
        sums = tuple(e.out.dtype.compute.itemsize for e in cut.columns)
        self.space = replace(self.space, column_sums=sums, constant_bytes=constant)
        found = backward_loops(self.space, sums=sums, constant=constant) if self._inner_reduced else None
        self.fits = found is not None
        if found is not None:
            self.schedule = found
            self._saved = self._chosen_saved()

    def _chosen_saved(self) -> tuple[Saved, ...]:
        """Return the values to keep of a row, or, in a single pass, its inputs, all of which are in flight at once."""
        saved = super()._chosen_saved()
        if saved or self._passes > 1:
            return saved
        rows = inputs_needed(self._fusion, self._nest, self._buffers, self._layouts, self._levels, 0, ())
        return tuple(
            Saved(tensor=tv, written=0) for tv in rows if self._varies(tv) and self._width_of(tv, self._fast)
        )

    def apply_given(self, with_given: WithGivenNamed) -> None:
        """Put in what was given by hand."""
        self.schedule = with_given(self.space, self.schedule, BACKWARD_NAMES)

    @property
    def refusal(self) -> str:
        """Why rows and column sums are not computed in one pass, if they do not fit."""
        if not self._inner_reduced:
            return "rows are not contiguous in memory, so column sums read them again"
        return (
            f"no block of the {self.space.device.name} has registers and shared memory for a row of {self.space.depth} "
            f"elements and {len(self.space.column_sums)} column sums, so the sums read the rows again"
        )

    @property
    def blocks(self) -> int:
        """The number of parts of each column's sum."""
        return -(-self.space.rows // self._rows_each)

    @property
    def _rows_each(self) -> int:
        return max(-(-self.space.rows // max(self.schedule.blocks, 1)), 1)

    @property
    def _row_steps(self) -> int:
        """Number of steps over a row, which a thread keeps in registers; ``shared`` is a number of column sums here."""
        return -(-self._row_groups // self._row_lanes)

    def _inputs(self) -> list[TensorView]:
        found: dict[TensorView, None] = {}
        for number in range(self._passes):
            needed = inputs_needed(
                self._fusion, self._nest, self._buffers, self._layouts, self._levels, number, self._saved,
            )
            found |= dict.fromkeys(needed)
        return list(found)

    def _varies(self, tensor: TensorView) -> bool:
        """Whether the elements of a tensor differ between rows."""
        rows = {axis.name for axis in self._nest.kept}
        return bool(rows & set().union(*(variables(i) for i in self._nest.index[tensor])))

    def write(self, parts: Mapping[Expr, Buffer], layouts: Mapping[Expr, Layout]) -> Phase:
        """Return the phase that iterates over the rows and stores the parts of column sums."""
        self._part_layouts = dict(layouts)
        return self._phase(lambda: self._walk_rows(parts), "_rows")

    def _walk_rows(self, parts: Mapping[Expr, Buffer]) -> Launch:
        values, nest, count, each = self._values, self._nest, self.space.rows, self._rows_each
        lanes = self.schedule.threads[0]
        with ExitStack() as stack:
            block = self._loop(stack, "block", self.blocks, ParallelType.grid_x)
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
                self._this_row = self._bound(inner, "row", block * each + i, count, self.blocks * each)
                inner.enter_context(self._inlined({}, pinned=True))
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
                        found = Load(buffer.dtype, buffer, self._sum_place(expr, slot))
                        column = (substitute(i, here) for i in column_index(nest, expr))
                        at = (block, *values.simplified(tuple(column)))
                        place = self._part_layouts[expr].position(at)
                        values.emit(Store(
                            buffer=parts[expr], position=simplify(place, values.scope.ranges), value=found,
                            origin=expr.name,
                        ))
        return Launch(blocks=self.blocks, threads=(lanes, 1))

    # Columns

    def _columns_begin(self) -> None:
        """Allocate the sums of a thread's columns, in registers or in shared memory, and set them to the identity."""
        size, values = self._row_steps * self.schedule.vector, self._values
        self._sums, self._sums_first, end = {}, {}, 0
        moved = self._cut.columns[: self.schedule.shared]
        room = size * self.schedule.threads[0] * sum(e.out.dtype.compute.itemsize for e in moved)
        for number, fold in enumerate(self._made_folds(self._cut.columns)):
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
        kept: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        super()._point(places, folds, [tv for tv in stored if tv in self._cut.stored], kept, slot)
        for fold in self._made_folds(self._cut.columns):
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
            if width and not self._varies(tensor):
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
            with self._inlined({first.name: (0, self.space.rows - 1)}):
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
        last = apply("lt", self._i, self._rows_each - 1)
        with values.guard(last), values.guard(apply("lt", after, self.space.rows)):
            row = values.let("row_after", after)
            with self._inlined({row.name: (0, self.space.rows - 1)}):
                loads = {tv: (load[0], self._next[tv]) for tv, load in waiting.items()}
                self._load_row(self._flat(self._nest.kept, row), section, loads)

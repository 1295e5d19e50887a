"""Row reductions on the CPU of which some inputs are contiguous across rows, such as sums of x and its transpose.

A core processes a band of adjacent rows. Inputs that are contiguous across rows are read for the whole band, along
memory, and transposed into scratch memory through vector registers, part by part. If rows are traversed once, each part
is added to the rows' sums while it is in the L1 cache; otherwise the whole band is kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from fuser_lab.codegen.cpu_tiles import blocks_up, by_registers
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Role, Store, Transpose
from fuser_lab.codegen.nest_lowering import Fold, NestLowering, Places, Walking
from fuser_lab.codegen.vectorize import SMALL
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Const, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.loops import CPU_FEW_UNITS, CPU_PARALLEL_FROM, CPU_SUMS_BYTES

_BAND = 16  # rows: a cache line of Float
_WIDEST = crossover("cpu.bands.widest")
_PART = crossover("cpu.bands.part")
_PADDING = 4  # padding elements between the rows of a band, so that a column does not map to one set of the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """The rows from ``first`` to ``last``, and the memory for them.

    ``tiles`` hold inputs in rows with a stride of ``pitch`` elements. ``columns`` columns are transposed together from
    ``moved``, by dtype, whose rows have ``wide`` elements. ``saved`` holds the values of one row that are kept between
    passes.
    """

    tiles: Mapping[TensorView, Buffer]
    moved: Mapping[DataType, Buffer]
    saved: Mapping[TensorView, Buffer]
    first: Term
    last: Term
    rows: int
    columns: int
    wide: int
    pitch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowOfBand:
    """The position at which the current row begins in the memory of a band."""

    tiles: Mapping[TensorView, Buffer]
    first: Term


class CpuBands(NestLowering):
    """Writes rows in bands."""

    _row_of_band: _RowOfBand | None = None

    def _read_across(self) -> tuple[TensorView, ...]:
        """Return the large inputs that are contiguous across rows, if other inputs are contiguous along rows."""
        nest, count = self._nest, self.space.rows
        few = self._outer is ParallelType.grid_x and count < CPU_FEW_UNITS * _BAND
        if self._parts or few or not nest.kept or not nest.reduced or nest.kept[-1].extent < _BAND:
            return ()
        kept_axis, reduced = nest.kept[-1].name, nest.reduced[-1].name
        tensors = []
        inputs = [tv for tv in nest.index if tv in self._fusion.inputs and tv.numel]
        for tensor in inputs:
            steps = self._facts.steps(tensor) or {}
            fast = steps.get(kept_axis) == 1 and steps.get(reduced, 0) > 1
            if fast and tensor.nbytes * SMALL >= max(tv.nbytes for tv in inputs):
                tensors.append(tensor)
        rows, length = (_WIDEST, _PART) if self._is_one_pass else (max(self.schedule.grain, _BAND), self.space.depth)
        nbytes = sum(tv.dtype.compute.itemsize for tv in tensors) * rows * (length + _PADDING)
        return tuple(tensors) if nbytes <= CPU_SUMS_BYTES else ()

    @property
    def _is_one_pass(self) -> bool:
        """Whether rows are traversed once by one loop, so that part of a band can be used as soon as it is read."""
        return self._passes == 1 and bool(self._nest.reductions) and not self._reduced_outer

    def _write_bands(self, across: Sequence[TensorView], walking: Walking) -> Launch:
        """Write rows in bands; ``walking`` opens the loops over a row."""
        depth, grain = self.space.depth, max(self.schedule.grain, _BAND)
        columns = min(blocks_up(depth), _PART)
        with ExitStack() as stack:
            if self._is_one_pass:
                rows = _WIDEST
                while rows > grain and self.space.rows < CPU_FEW_UNITS * rows:
                    rows //= 2
                band = self._open_band(stack, across, rows, columns, columns)
                self._by_parts(band)
            else:
                band = self._open_band(stack, across, grain, columns, -(-depth // columns) * columns)
                self._by_rows(band, walking)
        self._row_of_band = None
        return Launch()

    def _open_band(
        self, stack: ExitStack, across: Sequence[TensorView], rows: int, columns: int, length: int,
    ) -> _Band:
        """Open the loop over bands of rows, and allocate the memory of a band."""
        count = self.space.rows
        rows = min(rows, count)
        wide, pitch = blocks_up(rows), length + _PADDING
        group = self._loop(stack, "group", -(-count // rows), self._outer)
        tiles = {
            tv: Buffer(name=f"{tv.name}_band", dtype=tv.dtype.compute, size=wide * pitch, role=Role.SCRATCH)
            for tv in across
        }
        moved = {
            dtype: Buffer(name=f"part_{dtype.name.lower()}", dtype=dtype, size=columns * wide, role=Role.SCRATCH)
            for dtype in dict.fromkeys(tile.dtype for tile in tiles.values()) if by_registers(dtype)
        }
        saved = self._allocate(self.space.depth)
        for buffer in (*tiles.values(), *moved.values()):
            self._values.emit(Alloc(buffer=buffer))
        first, last = self._chunk(group, rows, count, guarded=True)
        return _Band(
            tiles=tiles, moved=moved, saved=saved, first=first, last=last, rows=rows, columns=columns, wide=wide,
            pitch=pitch,
        )

    def _by_rows(self, band: _Band, walking: Walking) -> None:
        """Read a whole band, then compute each row."""
        parts = -(-self.space.depth // band.columns)
        for tensor in band.tiles:
            with self._values.loop("part", parts, ParallelType.serial) as part:
                self._read(band, tensor, part, part * band.columns)
        with self._each_row(band, ParallelType.serial) as row:
            self._enter(band, row)
            self._row(row, band.saved, walking)

    def _by_parts(self, band: _Band) -> None:
        """Read a band in parts, add each part to the sums of each row, and then compute the rows' results."""
        values, nest, depth = self._values, self._nest, self.space.depth
        sums = self._sums(band.rows, "sums", wide=True)
        with self._each_row(band, ParallelType.vectorize) as row:
            for fold, slot in self._cells_of(band, sums, row):
                self._clear(fold, slot)
        with values.loop("part", -(-depth // band.columns), ParallelType.serial) as part:
            for tensor in band.tiles:
                self._read(band, tensor, part, index(0))
            first, last = self._chunk(part, band.columns, depth)
            with self._each_row(band, ParallelType.serial) as row, ExitStack() as stack:
                self._enter(band, row)
                folds = [fold for fold, _ in self._cells_of(band, sums, row)]
                stack.enter_context(self._partials(folds))
                r = stack.enter_context(values.loop("r", last, ParallelType.vectorize, start=first, largest=depth))
                places = {**self._flat(nest.kept, row), **self._flat(nest.reduced, r)}
                self._know_saved(places, 0, {}, simplify(r - first, values.scope.ranges))
                self._point(places, folds, nest.full, (), index(0))
        with self._each_row(band, ParallelType.serial) as row:
            places = self._flat(nest.kept, row)
            self._close([fold for fold, _ in self._cells_of(band, sums, row)], places)
            self._row_stores(nest.rows, places)

    def _each_row(self, band: _Band, parallel: ParallelType) -> AbstractContextManager[Var]:
        return self._values.loop(
            "row", band.last, parallel, start=band.first, largest=self.space.rows,
            pinned=parallel is ParallelType.serial,
        )

    def _cells_of(self, band: _Band, sums: Mapping[Expr, Buffer], row: Term) -> list[tuple[Fold, Term]]:
        slot = simplify(row - band.first, self._values.scope.ranges)
        return [(fold, slot) for fold in self._cells(sums, slot)]

    def _read(self, band: _Band, tensor: TensorView, part: Term, start: Term) -> None:
        """Read a part of an input, along memory, into the columns of its tile that begin at ``start``."""
        values, nest, depth = self._values, self._nest, self.space.depth
        tile = band.tiles[tensor]
        moved = band.moved.get(tile.dtype)
        first, last = self._chunk(part, band.columns, depth)
        with ExitStack() as stack:
            r = stack.enter_context(values.loop("r", last, ParallelType.serial, start=first, largest=depth))
            row = stack.enter_context(self._each_row(band, ParallelType.vectorize))
            value = values.value(tensor, nest.at(tensor, {**self._flat(nest.kept, row), **self._flat(nest.reduced, r)}))
            line, column = row - band.first, r - first
            cell = line * band.pitch + start + column if moved is None else column * band.wide + line
            values.emit(Store(buffer=moved or tile, position=simplify(cell, values.scope.ranges), value=value))
        if moved is not None:
            values.emit(Transpose(
                source=moved, target=tile, start=start, rows=band.columns, columns=band.wide,
                pitches=(band.wide, band.pitch),
            ))

    def _enter(self, band: _Band, row: Term) -> None:
        """Make a row of the band available to subsequent reads."""
        first = simplify((row - band.first) * band.pitch, self._values.scope.ranges)
        self._row_of_band = _RowOfBand(tiles=band.tiles, first=first)

    def _know_saved(
        self, places: Places, number: int, buffers: Mapping[TensorView, Buffer], slot: Term,
    ) -> None:
        super()._know_saved(places, number, buffers, slot)
        if self._row_of_band is None:
            return
        for tensor, tile in self._row_of_band.tiles.items():
            position = simplify(self._row_of_band.first + slot, self._values.scope.ranges)
            self._values.know(tensor, self._nest.at(tensor, places), Load(tensor.dtype, tile, position))

    def _total_type(self, expr: Expr) -> DataType:
        """Return the dtype of a total: twice as wide as subtotals, if many of these are added up one after another."""
        dtype = super()._total_type(expr)
        (fold,) = self._folds_of([expr])
        return dtype.wider if fold.rounds and self.space.depth > self.schedule.partial else dtype

    def _sums(self, size: int, suffix: str, *, wide: bool = False) -> dict[Expr, Buffer]:
        """Allocate running values: totals of subtotals if ``wide``."""
        totals = {}
        for expr in self._nest.reductions:
            dtype = self._total_type(expr) if wide else expr.out.dtype.compute
            buffer = Buffer(name=f"{expr.name}_{suffix}", dtype=dtype, size=max(size, 1), role=Role.SCRATCH)
            self._values.emit(Alloc(buffer=buffer, origin=expr.name))
            totals[expr] = buffer
        return totals

    def _cells(self, sums: Mapping[Expr, Buffer], slot: Term) -> list[Fold]:
        folds = self._folds_of(tuple(sums))
        for fold in folds:
            buffer = sums[fold.expr]
            fold.total = Load(buffer.dtype, buffer, slot)
        return folds

    def _clear(self, fold: Fold, slot: Term) -> None:
        total = fold.total
        assert isinstance(total, Load)
        first = Const(total.dtype, fold.identity.value)
        self._values.emit(Store(buffer=total.buffer, position=slot, value=first, origin=fold.expr.name))

    @property
    def _outer(self) -> ParallelType:
        """How the outermost CPU loop runs; adding up the parts of a reduction is too little work to distribute."""
        small = self._parts and self.space.rows * self.schedule.split < CPU_PARALLEL_FROM
        return ParallelType.grid_x if self.schedule.parallel and not small else ParallelType.serial

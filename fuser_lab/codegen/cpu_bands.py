"""Row reductions on the CPU of which some inputs are contiguous across rows, such as sums of x and its transpose.

A core processes a band of adjacent rows. Inputs that are contiguous across rows are read for the whole band, along
memory, and transposed into scratch memory through vector registers, part by part. If rows are traversed once, each part
is added to the rows' sums while it is in the L1 cache; otherwise the whole band is kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from fuser_lab.codegen.cpu_common import chunk, clear, outer_loop, partials, running_sums, scratch_of
from fuser_lab.codegen.cpu_rows import RowMemory, RowPlan, know_row, write_row
from fuser_lab.codegen.cpu_tiles import blocks_up, by_registers
from fuser_lab.codegen.kernel_ir import Buffer, Launch, Phase, Store, Transpose
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode, cells, close_folds, open_loop, write_point, written_phase
from fuser_lab.codegen.values import Values
from fuser_lab.codegen.vector_widths import SMALL
from fuser_lab.cost.planned_cpu import LINE, SIDE
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Term, Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.cpu_loops import CPU_FEW_UNITS, CPU_SUMS_BYTES

_PADDING = 4  # padding elements between the rows of a band, so that a column does not map to one set of the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPlan:
    """How cores visit rows in bands."""

    rows: RowPlan
    across: tuple[TensorView, ...]  # inputs that are read for a whole band
    height: int  # rows of a band
    columns: int  # transposed together
    length: int  # elements of a row that are in scratch memory at a time

    @property
    def pitch(self) -> int:
        """The stride between the rows of a band in scratch memory, in elements."""
        return self.length + _PADDING

    @property
    def wide(self) -> int:
        """The stride between columns that are transposed together, in elements."""
        return blocks_up(self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """The rows from ``first`` to ``last``, and the memory of their inputs, in rows and as it is read, by dtype."""

    first: Term
    last: Term
    tiles: Mapping[TensorView, Buffer]
    read: Mapping[DataType, Buffer]


def band_plan(rows: RowPlan) -> BandPlan | None:
    """Return bands of rows if large inputs are contiguous across rows, and others along rows."""
    facts, schedule = rows.nest.facts, rows.nest.choice.schedule
    nest, count, depth = facts.nest, facts.space.rows, facts.space.depth
    few = outer_loop(rows.nest) is ParallelType.grid_x and count < CPU_FEW_UNITS * LINE
    if schedule.split > 1 or few or not nest.kept or not nest.reduced or nest.kept[-1].extent < LINE:
        return None
    kept_axis, reduced = nest.kept[-1].name, nest.reduced[-1].name
    across = []
    inputs = [tv for tv in nest.index if tv in facts.fusion.inputs and tv.numel]
    for tensor in inputs:
        steps = facts.steps(tensor) or {}
        fast = steps.get(kept_axis) == 1 and steps.get(reduced, 0) > 1
        if fast and tensor.nbytes * SMALL >= max(tv.nbytes for tv in inputs):
            across.append(tensor)
    grain = max(schedule.grain, LINE)
    height, length = (SIDE, SIDE) if rows.is_one_pass else (grain, depth)
    nbytes = sum(tv.dtype.compute.itemsize for tv in across) * height * (length + _PADDING)
    if not across or nbytes > CPU_SUMS_BYTES:
        return None
    while rows.is_one_pass and height > grain and count < CPU_FEW_UNITS * height:
        height //= 2
    columns = min(blocks_up(depth), SIDE)
    return BandPlan(
        rows=rows, across=tuple(across), height=min(height, count), columns=columns,
        length=columns if rows.is_one_pass else -(-depth // columns) * columns,
    )


def write_bands(plan: BandPlan) -> Iterator[Phase]:
    """Yield the only phase of rows in bands."""
    yield written_phase(plan.rows.nest, "", partial(_bands, plan))


def _bands(plan: BandPlan, code: PhaseCode) -> Launch:
    values, facts = code.values, plan.rows.nest.facts
    count, wide = facts.space.rows, plan.wide
    with ExitStack() as stack:
        group = open_loop(values, stack, "group", -(-count // plan.height), outer_loop(plan.rows.nest))
        saved = scratch_of(values, plan.rows.saved, "row", facts.space.depth)
        tiles = scratch_of(values, plan.across, "band", wide * plan.pitch)
        read = {
            dtype: values.allocate(f"part_{dtype.name.lower()}", dtype, plan.columns * wide)
            for dtype in dict.fromkeys(tile.dtype for tile in tiles.values()) if by_registers(dtype)
        }
        first, last = chunk(values, group, plan.height, count, guarded=True)
        band = _Band(first=first, last=last, tiles=tiles, read=read)
        if plan.rows.is_one_pass:
            _write_parts(plan, code, band)
        else:
            _write_rows(plan, code, band, saved)
    return Launch()


def _write_rows(plan: BandPlan, code: PhaseCode, band: _Band, saved: Mapping[TensorView, Buffer]) -> None:
    """Read a whole band, then compute each row."""
    values = code.values
    for tensor in band.tiles:
        with values.loop("part", plan.length // plan.columns, ParallelType.serial) as part:
            _read(plan, code, band, tensor, part, part * plan.columns)
    with _each_row(plan, values, band, ParallelType.serial) as row:
        memory = RowMemory(saved=saved, read=band.tiles, first_read=_first_of(plan, values, band, row))
        write_row(plan.rows, code, row, memory)


def _write_parts(plan: BandPlan, code: PhaseCode, band: _Band) -> None:
    """Read a band in parts, add each part to the sums of each row, and then compute the rows' results."""
    values, nest, depth, (step,) = code.values, code.nest, plan.rows.nest.facts.space.depth, plan.rows.passes
    sums = running_sums(plan.rows.nest, values, plan.height, "sums", wide=True)
    with _each_row(plan, values, band, ParallelType.vectorize) as row:
        clear(values, cells(sums, values.simplify(row - band.first)))
    with values.loop("part", -(-depth // plan.columns), ParallelType.serial) as part:
        for tensor in band.tiles:
            _read(plan, code, band, tensor, part, ZERO)
        first, last = chunk(values, part, plan.columns, depth)
        with _each_row(plan, values, band, ParallelType.serial) as row, ExitStack() as stack:
            memory = RowMemory(saved={}, read=band.tiles, first_read=_first_of(plan, values, band, row))
            folds = stack.enter_context(partials(values, cells(sums, values.simplify(row - band.first))))
            r = stack.enter_context(values.loop("r", last, ParallelType.vectorize, start=first, largest=depth))
            places = {**code.flat(nest.kept, row), **code.flat(nest.reduced, r)}
            know_row(code, step, places, memory, ZERO, values.simplify(r - first))
            write_point(code, places, folds, nest.full, {}, ZERO)
    with _each_row(plan, values, band, ParallelType.serial) as row:
        places = code.flat(nest.kept, row)
        close_folds(code, cells(sums, values.simplify(row - band.first)), places)
        code.store(nest.rows, places)


def _each_row(plan: BandPlan, values: Values, band: _Band, parallel: ParallelType) -> AbstractContextManager[Var]:
    return values.loop(
        "row", band.last, parallel, start=band.first, largest=plan.rows.nest.facts.space.rows,
        pinned=parallel is ParallelType.serial,
    )


def _first_of(plan: BandPlan, values: Values, band: _Band, row: Term) -> Term:
    """Return where a row begins in the memory of its band."""
    return values.simplify((row - band.first) * plan.pitch)


def _read(plan: BandPlan, code: PhaseCode, band: _Band, tensor: TensorView, part: Term, start: Term) -> None:
    """Read a part of an input, along memory, into the columns of its tile that begin at ``start``."""
    values, nest, depth = code.values, code.nest, plan.rows.nest.facts.space.depth
    tile = band.tiles[tensor]
    read = band.read.get(tile.dtype)
    first, last = chunk(values, part, plan.columns, depth)
    with ExitStack() as stack:
        r = stack.enter_context(values.loop("r", last, ParallelType.serial, start=first, largest=depth))
        row = stack.enter_context(_each_row(plan, values, band, ParallelType.vectorize))
        value = code.element(tensor, {**code.flat(nest.kept, row), **code.flat(nest.reduced, r)})
        line, column = row - band.first, r - first
        cell = line * plan.pitch + start + column if read is None else column * plan.wide + line
        values.emit(Store(buffer=read or tile, position=values.simplify(cell), value=value))
    if read is not None:
        values.emit(Transpose(
            source=read, target=tile, start=start, rows=plan.columns, columns=plan.wide,
            pitches=(plan.wide, plan.pitch),
        ))

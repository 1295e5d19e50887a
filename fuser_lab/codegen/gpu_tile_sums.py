"""Reductions on a GPU over tensors of which some are contiguous along a kept axis, others along a reduced one.

    each block owns a band of adjacent results
    for each tile of the band:
        tensors that are contiguous along the reduced axis are read along it into shared memory; a barrier
        each thread adds up elements of a few adjacent results
    the threads of the block combine their sums in shared memory

So every access to global memory is contiguous. If there are too few bands to keep the GPU busy, several blocks share
the tiles of each, and a second phase adds up their parts.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from math import prod

from fuser_lab.codegen.gpu_columns import ColumnNest
from fuser_lab.codegen.gpu_tiles import TileNest
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Launch, Load, Phase, Role, Store, VectorLoad
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term, index
from fuser_lab.ir.transform import ParallelType


class TileSumNest(TileNest, ColumnNest):
    """Writes reductions over tiles, as well as nests without reductions."""

    # The kernel

    def phases(self) -> Iterator[Phase]:
        """Yield one phase, or two if reductions are cut into parts."""
        if self.schedule.split > 1:
            yield self._phase(partial(self._tile_sums, parted=True), "_parts")
            yield self._phase(self._lanes, "_total")
        else:
            yield self._phase(partial(self._tile_sums, parted=False) if self._nest.reductions else self._tiles)

    def _tile_sums(self, *, parted: bool) -> Launch:
        tiled, schedule, values, nest = self._facts.tiled, self.schedule, self._values, self._nest
        assert tiled is not None
        side, split, threads = self._side(tiled.along), schedule.split, schedule.threads[0]
        kept_axes, reduced = ([a for a in axes if a in tiled.others] for axes in (nest.kept, nest.reduced))
        over, down = (-(-axis.extent // self._side(axis)) for axis in (tiled.along, tiled.across))
        bands, steps = over * prod(a.extent for a in kept_axes), down * prod(a.extent for a in reduced)
        taken = self._elements_of_thread(tiled.along, self._facts.fast_along(tiled.along))
        shared = self._tiles_of(tiled.inputs)
        with ExitStack() as stack:
            block = self._loop(stack, "block", bands * split, ParallelType.grid_x)
            thread = stack.enter_context(values.loop("thread", threads, ParallelType.block_x, pinned=True))
            for buffer in shared.values():
                values.emit(Alloc(buffer=buffer))
            band, part = self._remainder(block, bands), self._quotient(block, bands)
            number = self._number(stack, "tile_along", self._remainder(band, over), over)
            rest = self._quotient(band, over)
            if kept_axes:
                rest = self._number(stack, "rest", rest, prod(a.extent for a in kept_axes))
            outside = axis_indices(kept_axes, rest, values.scope.ranges)
            sums = self._sums(taken, nest.reductions)
            with ExitStack() as inner:
                rounds = -(-steps // split)
                step = self._bound(inner, "step", self._round(inner, "round", rounds) * split + part, steps,
                                   rounds * split)
                other = self._remainder(step, down)
                if self.space.mirrored:
                    other = self._mirror_tile(inner, number, other, down)
                behind = axis_indices(reduced, self._quotient(step, down), values.scope.ranges)
                corner = {tiled.along: number * side, tiled.across: other * self._side(tiled.across)}
                self._add_tile(corner, {**outside, **behind}, thread, taken, shared, sums)
                if rounds > 1:
                    values.emit(Barrier())
            lanes = side // taken
            met = self._met_in_block(sums, thread, lanes, taken)
            j = self._bound(stack, "j", self._round(stack, "k", -(-side // threads)) * threads + thread, side,
                            -(-side // threads) * threads)
            place = self._remainder(j, taken) * lanes + self._quotient(j, taken)
            i = self._bound(stack, "i", number * side + j, tiled.along.extent, over * side)
            places = {**outside, tiled.along.name: i}
            column: Term = index(0)
            for axis in nest.kept:
                column = column * axis.extent + places[axis.name]
            folds = self._combine_lines(met, simplify(place, values.scope.ranges), side, max(threads // lanes, 1))
            self._column_result(folds, places, column, part, parted)
        return Launch(blocks=bands * split, threads=schedule.threads)

    def _add_tile(
        self, corner: Mapping[Axis, Term], outside: Places, thread: Term, taken: int,
        shared: Mapping[TensorView, Buffer], sums: Mapping[Expr, Buffer],
    ) -> None:
        """Write one tile: the loads to shared memory, then the elements of each thread."""
        tiled, values, nest = self._facts.tiled, self._values, self._nest
        assert tiled is not None
        before = dict(values.given)
        across = self._elements_of_thread(tiled.across, tiled.inputs)
        words = {tv: self._words(tv, taken, "transposed") for tv in tiled.inputs if taken > 1}
        for tensor in tiled.inputs:
            with self._each(tiled.across, tiled.along, corner, outside, thread, across) as (places, row, column):
                value = values.value(tensor, nest.at(tensor, places))
                cell = self._cell(tensor, column, row)
                values.emit(Store(buffer=shared[tensor], position=cell, value=value))
        values.emit(Barrier())

        def fetch(row: Term, column: Term) -> None:
            for tensor, buffer in words.items():
                values.emit(VectorLoad(
                    buffer=shared[tensor], position=self._cell(tensor, row, column), words=buffer, slot=index(0),
                    count=taken, width=taken,
                ))

        with self._each(tiled.along, tiled.across, corner, outside, thread, taken, fetch) as (places, row, column):
            for tensor in tiled.inputs:
                source, cell = shared[tensor], self._cell(tensor, row, column)
                if tensor in words:
                    source, cell = words[tensor], self._remainder(column, taken)
                values.know(tensor, nest.at(tensor, places), Load(tensor.dtype, source, cell))
            self._point(places, self._cells(sums, self._remainder(column, taken)), (), (), index(0))
        values.given = before

    def _met_in_block(
        self, sums: Mapping[Expr, Buffer], thread: Term, lanes: int, taken: int,
    ) -> dict[Expr, Buffer]:
        """Write the running values of all threads of a block to shared memory."""
        values, threads = self._values, self.schedule.threads[0]
        line, lane = self._quotient(thread, lanes), self._remainder(thread, lanes)
        met = {}
        for expr, buffer in sums.items():
            shared = Buffer(name=f"{expr.name}_lines", dtype=buffer.dtype, size=threads * taken, role=Role.SHARED)
            values.emit(Alloc(buffer=shared, origin=expr.name))
            with self._each_slot(taken) as v:
                place = simplify((line * taken + v) * lanes + lane, values.scope.ranges)
                values.emit(
                    Store(buffer=shared, position=place, value=Load(buffer.dtype, buffer, v), origin=expr.name),
                )
            met[expr] = shared
        values.emit(Barrier())
        return met

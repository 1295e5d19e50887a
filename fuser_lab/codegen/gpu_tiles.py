"""Transposes on a GPU: tensors whose fastest axis differs from that of the others are transposed in shared memory.

A block processes a tile of two axes. Tensors that are contiguous along ``across`` are read along it into shared memory;
after a barrier, all elements of the tile are computed along ``along``; results that are contiguous along ``across`` are
written through shared memory in the same way. So every access to global memory is contiguous.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import gcd, prod

from fuser_lab.codegen.gpu_common import GpuReductions
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import LARGEST_STATIC, Alloc, Barrier, Buffer, Launch, Load, Role, Store, VectorLoad
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.progressions import ACCESS_BYTES, Access
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Term, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_element_loops import tile_sides

_BANKS = 8  # vectors of 16 bytes that the banks of shared memory hold at once


class TileNest(GpuReductions):
    """Writes nests in which some tensors are transposed."""

    def _mirror_tile(self, stack: ExitStack, number: Term, turn: Term, count: int) -> Term:
        """Return the tile of the other axis in a given round.

        Distances from the diagonal are 0, -1, 1, -2, 2, ..., so that a tile that is read straight by one block and
        transposed by another is read in the same round or in consecutive rounds.
        """
        half = self._quotient(turn, 2)
        is_even = apply("eq", self._remainder(turn, 2), 0)
        distance = Apply(DataType.Index, "select", (is_even, half, index(count - 1) - half))
        variable = self._number(stack, "distance", distance, count)
        return self._number(stack, "tile_other", self._remainder(number + variable, count), count)

    # The kernel

    def _tiles(self) -> Launch:
        tiled, schedule, values = self._facts.tiled, self.schedule, self._values
        assert tiled is not None
        sides = {axis: self._side(axis) for axis in (tiled.along, tiled.across)}
        over, down = (-(-axis.extent // side) for axis, side in sides.items())
        blocks = over * down * prod(a.extent for a in tiled.others)
        shared = self._tiles_of((*tiled.inputs, *tiled.outputs))
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.grid_x)
            thread = self._loop(stack, "thread", schedule.threads[0], ParallelType.block_x)
            for buffer in shared.values():
                values.emit(Alloc(buffer=buffer))
            number = self._number(stack, "tile_along", self._remainder(block, over), over)
            other = self._remainder(self._quotient(block, over), down)
            if self.space.mirrored:
                other = self._mirror_tile(stack, number, other, down)
            else:
                other = self._number(stack, "tile_across", other, down)
            corner = {tiled.along: number * sides[tiled.along], tiled.across: other * sides[tiled.across]}
            rest = self._quotient(block, over * down)
            if tiled.others:
                rest = self._number(stack, "rest", rest, prod(a.extent for a in tiled.others))
            outside = axis_indices(tiled.others, rest, values.scope.ranges)
            across = self._elements_of_thread(tiled.across, (*tiled.inputs, *tiled.outputs))
            walked = [tv for tv in (*self._fusion.tensor_inputs, *self._nest.full) if tv in self._nest.index]
            along = self._elements_of_thread(tiled.along, [tv for tv in walked if tv not in shared])
            words = {tv: self._words(tv, along, "transposed") for tv in tiled.inputs if along > 1}
            for tensor in tiled.inputs:
                with self._each(tiled.across, tiled.along, corner, outside, thread, across) as (places, row, column):
                    value = values.value(tensor, self._nest.at(tensor, places))
                    cell = self._cell(tensor, column, row)
                    values.emit(Store(buffer=shared[tensor], position=cell, value=value))
            if tiled.inputs:
                values.emit(Barrier())

            def fetch(row: Term, column: Term) -> None:
                for tensor, buffer in words.items():
                    values.emit(VectorLoad(
                        buffer=shared[tensor], position=self._cell(tensor, row, column), words=buffer, slot=index(0),
                        count=along, width=along,
                    ))

            with self._each(tiled.along, tiled.across, corner, outside, thread, along, fetch) as (places, row, column):
                for tensor in tiled.inputs:
                    source, cell = shared[tensor], self._cell(tensor, row, column)
                    if tensor in words:
                        source, cell = words[tensor], self._remainder(column, along)
                    values.know(tensor, self._nest.at(tensor, places), Load(tensor.dtype, source, cell))
                for tensor in self._nest.full:
                    at = self._nest.at(tensor, places)
                    if tensor in tiled.outputs:
                        cell = self._cell(tensor, row, column)
                        values.emit(Store(buffer=shared[tensor], position=cell, value=values.value(tensor, at)))
                    else:
                        values.store(tensor, at, self._layouts[tensor])
            if tiled.outputs:
                values.emit(Barrier())
            for tensor in tiled.outputs:
                with self._each(tiled.across, tiled.along, corner, outside, thread, across) as (places, row, column):
                    cell = self._cell(tensor, column, row)
                    at = values.simplified(self._nest.at(tensor, places))
                    position = simplify(self._layouts[tensor].position(at), values.scope.ranges)
                    value = Load(tensor.dtype, shared[tensor], cell)
                    values.emit(Store(buffer=self._buffers[tensor.name], position=position, value=value))
        return Launch(blocks=blocks, threads=schedule.threads)

    def _side(self, axis: Axis) -> int:
        """Return the number of elements of a tile along one of its two axes."""
        (side,) = tile_sides(self.schedule.tile, (axis.extent,))
        return side

    def _tiles_of(self, tensors: Sequence[TensorView]) -> dict[TensorView, Buffer]:
        """Return the shared memory of tensors' tiles, in rows along ``along``."""
        tiled = self._facts.tiled
        assert tiled is not None
        area = self._side(tiled.along) * self._side(tiled.across)
        dynamic = area * sum(tv.dtype.itemsize for tv in tensors) > LARGEST_STATIC
        tiles, end = {}, 0
        self._tile_first: dict[TensorView, int] = {}
        for tensor in tensors:
            # Dynamic buffers begin at the same address; each uses a separate part.
            size = tensor.dtype.itemsize
            first = -(-end // ACCESS_BYTES) * ACCESS_BYTES if dynamic else 0
            end = first + area * size
            self._tile_first[tensor] = first // size
            reach = max(end, LARGEST_STATIC + size) if dynamic else end
            tiles[tensor] = Buffer(name=f"{tensor.name}_tile", dtype=tensor.dtype, size=reach // size, role=Role.SHARED)
        return tiles

    def _cell(self, tensor: TensorView, across: Term, along: Term) -> Term:
        """Return the position of an element in a tile.

        Each row is rotated by one vector more than the row ``vector`` rows before it, so that threads that write the
        same column of such rows access different banks, and a vector of a row stays one access. Rows of less than
        `_BANKS` vectors share a longer one.
        """
        tiled, vector = self._facts.tiled, self.schedule.vector
        assert tiled is not None
        row = self._side(tiled.along) // vector
        shared = max(_BANKS // row, 1)  # rows; at most ``vector``, so that they are rotated equally
        group = self._remainder(across, shared) * row + self._quotient(along, vector) + self._quotient(across, vector)
        group = self._remainder(group, shared * row)
        start = self._quotient(across, shared) * (shared * row)
        place = (start + group) * vector + self._remainder(along, vector) + self._tile_first[tensor]
        return simplify(place, self._values.scope.ranges)

    def _number(self, stack: ExitStack, name: str, term: Term, count: int) -> Term:
        """Name an index below ``count``."""
        value = simplify(term, self._values.scope.ranges)
        if not isinstance(value, Apply):
            return value
        variable = self._values.let(name, value)
        stack.enter_context(self._inline({variable.name: (0, max(count - 1, 0))}))
        return variable

    def _elements_of_thread(self, fast: Axis, tensors: Sequence[TensorView]) -> int:
        """Return how many adjacent elements along an axis a thread processes; one if no access can have several."""
        tiled, vector = self._facts.tiled, self.schedule.vector
        assert tiled is not None
        name = tiled.parts[fast.name][-1].name
        for tensor in tensors:
            steps = self._facts.steps(tensor) or {}
            others = gcd(vector, self._layouts[tensor].offset, *(s for axis, s in steps.items() if axis != name))
            if Access(buffer=self._buffers[tensor.name], step=steps.get(name), divisor=others).width(vector) > 1:
                return vector
        return 1

    @contextmanager
    def _each(
        self, fast: Axis, slow: Axis, corner: Mapping[Axis, Term], outside: Places, thread: Term, vector: int,
        fetch: Callable[[Term, Term], None] | None = None,
    ) -> Iterator[tuple[Places, Term, Term]]:
        """Open loops over a tile, with ``vector`` adjacent elements along ``fast`` per thread.

        Yield the position in the nest and the row (along ``slow``) and column (along ``fast``) in the tile; ``fetch``
        is called with those of the first element before the loop over them.
        """
        tiled, schedule, values = self._facts.tiled, self.schedule, self._values
        assert tiled is not None
        side, threads = self._side(fast), schedule.threads[0]
        chunks = side * self._side(slow) // vector
        rounds = -(-chunks // threads)
        with ExitStack() as stack:
            chunk: Term = thread
            if rounds > 1:
                chunk = chunk + self._loop(stack, "u", rounds, ParallelType.unroll) * threads
            if rounds * threads > chunks:
                stack.enter_context(values.guard(chunk < chunks))
            row = self._quotient(chunk, side // vector)
            start = simplify(self._remainder(chunk, side // vector) * vector, values.scope.ranges)
            if fetch is not None:
                fetch(row, start)
            v = self._loop(stack, "v", vector, ParallelType.vectorize) if vector > 1 else index(0)
            column = simplify(start + v, values.scope.ranges)
            places = dict(outside)
            for axis, place in ((fast, column), (slow, row)):
                at = simplify(corner[axis] + place, values.scope.ranges)
                stack.enter_context(values.guard(at < axis.extent))
                places[axis.name] = at
            yield tiled.spread(places, values.scope.ranges), row, column

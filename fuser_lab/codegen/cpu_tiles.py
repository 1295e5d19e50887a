"""Transposes on the CPU: tensors whose fastest axis differs from that of the others are transposed in small tiles.

A core processes a tile of two axes. Tensors that are contiguous along ``across`` are read along it into a tile of
scratch memory in the L1 cache; then all elements are computed along ``along``; results that are contiguous along
``across`` are kept in a tile and written along it. So whole cache lines are read and written. A tile is transposed
through vector registers, in blocks of `TRANSPOSED` rows and columns.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from fuser_lab.codegen.cpu_facts import CpuFacts
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import TRANSPOSED, Alloc, Buffer, Launch, Load, Phase, Role, Store, Transpose
from fuser_lab.codegen.nest_lowering import NestLowering, Places
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.transposed import TiledAxes
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Term, index
from fuser_lab.ir.transform import ParallelType

_MOVED = frozenset({DataType.BFloat16, DataType.Half})
_PADDING = 4  # padding elements between the rows of a tile, so that a column does not map to one set of the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side of a tile: an axis, the beginning and end of the tile on it, and the number of elements it fills."""

    axis: Axis
    first: Term
    last: Term
    filled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """The memory of a tensor's tile, in the order of computation and in the order of the tensor.

    Both are the same if the tile is not transposed through registers.
    """

    computed: Buffer
    moved: Buffer

    @property
    def is_moved(self) -> bool:
        """Whether the tile has two orders."""
        return self.computed is not self.moved


def by_registers(dtype: DataType) -> bool:
    """Whether scratch memory of a dtype can be transposed in vector registers, which have no complex elements."""
    return not dtype.is_complex


def blocks_up(count: int) -> int:
    """Return a number of rows or columns rounded up to whole blocks of a `Transpose`."""
    return -(-count // TRANSPOSED) * TRANSPOSED


class CpuTiles(NestLowering):
    """Writes nests in which some tensors are transposed."""

    _facts: CpuFacts

    def phases(self) -> Iterator[Phase]:
        """Yield the only phase."""
        yield self._phase(self._tiles)

    def _tiles(self) -> Launch:
        tiled, values, side = self._facts.tiled, self._values, self.schedule.tile
        assert tiled is not None
        over, down = -(-tiled.along.extent // side), -(-tiled.across.extent // side)
        count = over * down * prod(a.extent for a in tiled.others)
        many = ParallelType.grid_x if self.schedule.parallel else ParallelType.serial
        tiles = {tv: self._tile_of(tv) for tv in (*tiled.inputs, *tiled.outputs)}
        with ExitStack() as stack:
            unit = stack.enter_context(values.loop("unit", count, many, pinned=True))
            for buffer in dict.fromkeys(b for tile in tiles.values() for b in (tile.computed, tile.moved)):
                values.emit(Alloc(buffer=buffer))
            numbers = (self._remainder(self._quotient(unit, over), down), self._remainder(unit, over))
            across, along = (
                self._ends(name, axis, number)
                for name, axis, number in zip(("across", "along"), (tiled.across, tiled.along), numbers, strict=True)
            )
            outside = axis_indices(self._outer_axes(tiled), self._quotient(unit, over * down), values.scope.ranges)
            for tensor in tiled.inputs:
                tile = tiles[tensor]
                with self._each(outside, along, across) as (places, slots):
                    value = values.value(tensor, self._nest.at(tensor, places))
                    cell = self._cell(slots, along if tile.is_moved else across)
                    values.emit(Store(buffer=tile.moved, position=cell, value=value))
                if tile.is_moved:
                    values.emit(self._transpose(tile.moved, tile.computed, along, across))
            with self._each(outside, across, along) as (places, slots):
                cell = self._cell(slots, across)
                for tensor in tiled.inputs:
                    element = Load(tensor.dtype, tiles[tensor].computed, cell)
                    values.know(tensor, self._nest.at(tensor, places), element)
                for tensor in self._nest.full:
                    at = self._nest.at(tensor, places)
                    if tensor in tiled.outputs:
                        values.emit(
                            Store(buffer=tiles[tensor].computed, position=cell, value=values.value(tensor, at)),
                        )
                    else:
                        values.store(tensor, at, self._layouts[tensor])
            for tensor in tiled.outputs:
                tile = tiles[tensor]
                if tile.is_moved:
                    values.emit(self._transpose(tile.computed, tile.moved, across, along))
                with self._each(outside, along, across) as (places, slots):
                    at = values.simplified(self._nest.at(tensor, places))
                    position = simplify(self._layouts[tensor].position(at), values.scope.ranges)
                    value = Load(tensor.dtype, tile.moved, self._cell(slots, along if tile.is_moved else across))
                    values.emit(Store(buffer=self._buffers[tensor.name], position=position, value=value))
        return Launch()

    def _tile_of(self, tensor: TensorView) -> _Tile:
        # Elements of 16 bits are only moved, so they stay as they are, and a vector holds twice as many.
        dtype = tensor.dtype if tensor.dtype in _MOVED else tensor.dtype.compute
        computed = self._scratch(f"{tensor.name}_tile", dtype)
        moved = self.schedule.tile % TRANSPOSED == 0 and by_registers(dtype)
        # All tensors of a dtype reuse the memory of the other order, so that little L1 cache is occupied.
        return _Tile(computed=computed, moved=self._scratch(f"rows_{dtype.name.lower()}", dtype) if moved else computed)

    def _scratch(self, name: str, dtype: DataType) -> Buffer:
        return Buffer(name=name, dtype=dtype, size=self.schedule.tile * self._pitch, role=Role.SCRATCH)

    def _transpose(self, source: Buffer, target: Buffer, slow: _Side, fast: _Side) -> Transpose:
        """Return the transposition of a tile with rows along ``slow`` into one with columns along ``slow``."""
        return Transpose(
            source=source, target=target, start=index(0), rows=slow.filled, columns=fast.filled,
            pitches=(self._pitch, self._pitch),
        )

    def _outer_axes(self, tiled: TiledAxes) -> tuple[Axis, ...]:
        """Return the axes that are not cut into tiles; the last is fast in the tensor with the shortest runs.

        A tile has one run of adjacent elements per iteration of its outer loop. If runs are short, those of successive
        tiles should be adjacent, so that the processor prefetches them.
        """
        steps = {tv: self._steps_of(tiled, tv) for tv in (*tiled.outputs, *self._nest.full, *tiled.inputs)}
        choices = [strides for strides in steps.values() if strides is not None]  # at least those of the tiled tensors
        shortest = min(choices, key=lambda strides: self._run(tiled, strides))
        return tuple(sorted(tiled.others, key=lambda axis: -shortest[axis]))

    def _steps_of(self, tiled: TiledAxes, tensor: TensorView) -> dict[Axis, int] | None:
        steps = self._facts.steps(tensor)
        return None if steps is None else {a: abs(steps.get(tiled.parts[a.name][-1].name, 0)) for a in tiled.axes}

    def _run(self, tiled: TiledAxes, strides: Mapping[Axis, int]) -> int:
        """Return how many adjacent elements in memory a tile has of a tensor with these strides."""
        run = 1
        for axis in sorted(tiled.axes, key=lambda axis: strides[axis]):
            if strides[axis] != run or axis in tiled.others:
                continue
            run *= min(axis.extent, self.schedule.tile)
        return run

    @property
    def _pitch(self) -> int:
        """The stride between rows of a tile, in elements."""
        return self.schedule.tile + _PADDING

    def _ends(self, name: str, axis: Axis, number: Term) -> _Side:
        """Return one side of a tile, with variables for its beginning and end."""
        first, last = self._chunk(number, self.schedule.tile, axis.extent)
        filled = blocks_up(min(axis.extent, self.schedule.tile))
        first, last = self._index_variable(name, first), self._index_variable(f"{name}_end", last)
        return _Side(axis=axis, first=first, last=last, filled=filled)

    def _cell(self, slots: Mapping[Axis, Term], slow: _Side) -> Term:
        """Return a position in a tile with rows along ``slow``."""
        row, column = (at for _, at in sorted(slots.items(), key=lambda slot: slot[0] is not slow.axis))
        return row * self._pitch + column

    @contextmanager
    def _each(self, outside: Places, slow: _Side, fast: _Side) -> Iterator[tuple[Places, Mapping[Axis, Term]]]:
        """Open loops over a tile; yield the position in the nest, and the position in the tile by axis."""
        tiled, values = self._facts.tiled, self._values
        assert tiled is not None
        with ExitStack() as stack:
            places = dict(outside)
            slots: dict[Axis, Term] = {}
            for side, kind in ((slow, ParallelType.serial), (fast, ParallelType.vectorize)):
                name = "i" if side.axis is tiled.across else "j"
                at = stack.enter_context(
                    values.loop(name, side.last, kind, start=side.first, largest=side.axis.extent),
                )
                places[side.axis.name] = at
                slots[side.axis] = at - side.first
            yield tiled.spread(places, values.scope.ranges), slots

"""Transposes on the CPU: tensors whose fastest axis differs from the others' are transposed in small tiles.

A core takes a tile of two axes. What is fast along ``across`` is read along it into a tile of scratch memory that the
first-level cache holds; then all elements are computed along ``along``; results that are fast along ``across`` are
kept in a tile and written along it. So whole cache lines are read and written.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Role, Store
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.nests import Axis, flattened
from fuser_lab.codegen.turned import TurnedNest
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Term
from fuser_lab.schedule.state import ParallelType, Space

_APART = 4  # elements between the rows of a tile, so that a column does not fall into one set of the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side of a tile: an axis, and where the tile begins and ends on it."""

    axis: Axis
    first: Term
    last: Term


class CpuTiles(TurnedNest):
    """Writes nests in which some tensors are transposed."""

    def _space(self) -> Space:
        space = super()._space()
        self._transposed = turn = self._found()
        if turn is None:
            return space
        size = max(tv.dtype.compute.itemsize for tv in (*turn.inputs, *turn.outputs))
        return replace(space, turned=(turn.across.extent, turn.along.extent), itemsize=size)

    def _tiles(self) -> Launch:
        turn, values, tile = self._transposed, self._values, self.schedule.tile
        assert turn is not None
        over, down = -(-turn.along.extent // tile), -(-turn.across.extent // tile)
        count = over * down * prod(a.extent for a in turn.others)
        many = ParallelType.PARALLEL if self.schedule.parallel else ParallelType.SERIAL
        tiles = {tv: self._tile_of(tv) for tv in (*turn.inputs, *turn.outputs)}
        with ExitStack() as stack:
            unit = stack.enter_context(values.loop("unit", count, many, pinned=True))
            for buffer in tiles.values():
                values.emit(Alloc(buffer=buffer))
            numbers = (self._remainder(self._quotient(unit, over), down), self._remainder(unit, over))
            across, along = (
                self._ends(name, axis, number)
                for name, axis, number in zip(("across", "along"), (turn.across, turn.along), numbers, strict=True)
            )
            known = flattened(turn.others, self._quotient(unit, over * down), values.scope.ranges)
            for tensor in turn.inputs:
                with self._each(known, along, across) as (places, cell):
                    value = values.value(tensor, self._nest.at(tensor, places))
                    values.emit(Store(buffer=tiles[tensor], position=cell, value=value))
            with self._each(known, across, along) as (places, cell):
                for tensor in turn.inputs:
                    at = values.simplified(self._nest.at(tensor, places))
                    values.given[tensor.name, at] = Load(tensor.dtype, tiles[tensor], cell)
                for tensor in self._nest.full:
                    at = self._nest.at(tensor, places)
                    if tensor in turn.outputs:
                        values.emit(Store(buffer=tiles[tensor], position=cell, value=values.value(tensor, at)))
                    else:
                        values.store(tensor, at, self._layouts[tensor])
            for tensor in turn.outputs:
                with self._each(known, along, across) as (places, cell):
                    at = values.simplified(self._nest.at(tensor, places))
                    position = simplify(self._layouts[tensor].position(at), values.scope.ranges)
                    value = Load(tensor.dtype, tiles[tensor], cell)
                    values.emit(Store(buffer=self._buffers[tensor.name], position=position, value=value))
        return Launch()

    def _tile_of(self, tensor: TensorView) -> Buffer:
        return Buffer(
            name=f"{tensor.name}_tile", dtype=tensor.dtype.compute, size=self.schedule.tile * self._pitch,
            role=Role.SCRATCH,
        )

    @property
    def _pitch(self) -> int:
        """The elements from one row of a tile to the next."""
        return self.schedule.tile + _APART

    def _ends(self, name: str, axis: Axis, number: Term) -> _Side:
        """Return one side of a tile, its beginning and end named."""
        first, last = self._chunk(number, self.schedule.tile, axis.extent)
        return _Side(axis=axis, first=self._named(name, first), last=self._named(f"{name}_end", last))

    @contextmanager
    def _each(self, known: Places, slow: _Side, fast: _Side) -> Iterator[tuple[Places, Term]]:
        """Open loops over a tile; yield the place in the nest, and in the tile, whose rows go along ``along``."""
        turn, values = self._transposed, self._values
        assert turn is not None
        with ExitStack() as stack:
            places = dict(known)
            slots: dict[Axis, Term] = {}
            for side, kind in ((slow, ParallelType.SERIAL), (fast, ParallelType.SIMD)):
                name = "i" if side.axis is turn.across else "j"
                at = stack.enter_context(
                    values.loop(name, side.last, kind, start=side.first, largest=side.axis.extent),
                )
                places[side.axis.name] = at
                slots[side.axis] = at - side.first
            cell = slots[turn.across] * self._pitch + slots[turn.along]
            yield self._spread(places), cell

"""Transposes on the CPU: tensors whose fastest axis differs from that of the others are transposed in small tiles.

A core processes a tile of two axes. Tensors that are contiguous along ``across`` are read along it into a tile of
scratch memory in the L1 cache; then all elements are computed along ``along``; results that are contiguous along
``across`` are kept in a tile and written along it. So whole cache lines are read and written. A tile is transposed
through vector registers, in blocks of `TRANSPOSED` rows and columns.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod

from fuser_lab.codegen.cpu_common import chunk, index_variable, outer_loop
from fuser_lab.codegen.cpu_facts import CpuFacts
from fuser_lab.codegen.kernel_ir import TRANSPOSED, Alloc, Buffer, Launch, Load, Phase, Role, Store, Transpose
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import TiledAxes
from fuser_lab.codegen.nest_writing import PhaseCode, Places, written_phase
from fuser_lab.codegen.nests import Axis
from fuser_lab.codegen.values import Values
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """How cores visit tiles of two axes."""

    nest: NestPlan = field(repr=False)
    tiled: TiledAxes
    others: tuple[Axis, ...]  # not cut into tiles; the last is fast in the tensor with the shortest runs
    side: int  # elements along both axes of a tile

    @property
    def pitch(self) -> int:
        """The stride between rows of a tile, in elements."""
        return self.side + _PADDING


def by_registers(dtype: DataType) -> bool:
    """Whether scratch memory of a dtype can be transposed in vector registers, which have no complex elements."""
    return not dtype.is_complex


def blocks_up(count: int) -> int:
    """Return a number of rows or columns rounded up to whole blocks of a `Transpose`."""
    return -(-count // TRANSPOSED) * TRANSPOSED


def tile_plan(nest: NestPlan) -> TilePlan:
    """Return how the tiles of a nest are visited.

    A tile has one run of adjacent elements per iteration of its outer loop. If runs are short, those of successive
    tiles should be adjacent, so that the processor prefetches them.
    """
    facts, side = nest.facts, nest.choice.schedule.tile
    assert isinstance(facts, CpuFacts)
    tiled = facts.tiled
    assert tiled is not None
    tensors = (*tiled.outputs, *facts.nest.full, *tiled.inputs)
    choices = [steps for tv in tensors if (steps := _steps_of(facts, tiled, tv)) is not None]  # of all tiled tensors
    shortest = min(choices, key=lambda steps: _run(tiled, side, steps))
    outer = tuple(sorted(tiled.others, key=lambda axis: -shortest[axis]))
    return TilePlan(nest=nest, tiled=tiled, others=outer, side=side)


def _steps_of(facts: CpuFacts, tiled: TiledAxes, tensor: TensorView) -> dict[Axis, int] | None:
    steps = facts.steps(tensor)
    return None if steps is None else {a: abs(steps.get(tiled.parts[a.name][-1].name, 0)) for a in tiled.axes}


def _run(tiled: TiledAxes, side: int, strides: Mapping[Axis, int]) -> int:
    """Return how many adjacent elements in memory a tile has of a tensor with these strides."""
    run = 1
    for axis in sorted(tiled.axes, key=lambda axis: strides[axis]):
        if strides[axis] == run and axis not in tiled.others:
            run *= min(axis.extent, side)
    return run


def write_tiles(plan: TilePlan) -> Iterator[Phase]:
    """Yield the only phase of a nest in which some tensors are transposed."""
    yield written_phase(plan.nest, "", partial(_tiles, plan))


def _tiles(plan: TilePlan, code: PhaseCode) -> Launch:
    tiled, values, nest = plan.tiled, code.values, code.nest
    over, down = -(-tiled.along.extent // plan.side), -(-tiled.across.extent // plan.side)
    count = over * down * prod(a.extent for a in tiled.others)
    tiles = {tv: _tile_of(plan, tv) for tv in (*tiled.inputs, *tiled.outputs)}
    with ExitStack() as stack:
        unit = stack.enter_context(values.loop("unit", count, outer_loop(plan.nest), pinned=True))
        for buffer in dict.fromkeys(b for tile in tiles.values() for b in (tile.computed, tile.moved)):
            values.emit(Alloc(buffer=buffer))
        numbers = (values.remainder(values.quotient(unit, over), down), values.remainder(unit, over))
        across, along = (
            _side(plan, values, name, axis, number)
            for name, axis, number in zip(("across", "along"), (tiled.across, tiled.along), numbers, strict=True)
        )
        outside = code.flat(plan.others, values.quotient(unit, over * down))
        for tensor in tiled.inputs:
            tile = tiles[tensor]
            with _each(plan, values, outside, along, across) as (places, slots):
                value = code.element(tensor, places)
                cell = _cell(plan, slots, along if tile.is_moved else across)
                values.emit(Store(buffer=tile.moved, position=cell, value=value))
            if tile.is_moved:
                values.emit(_transpose(plan, tile.moved, tile.computed, along, across))
        with _each(plan, values, outside, across, along) as (places, slots):
            cell = _cell(plan, slots, across)
            for tensor in tiled.inputs:
                code.know(tensor, places, Load(tensor.dtype, tiles[tensor].computed, cell))
            for tensor in nest.full:
                if tensor in tiled.outputs:
                    value = code.element(tensor, places)
                    values.emit(Store(buffer=tiles[tensor].computed, position=cell, value=value))
                else:
                    code.store((tensor,), places)
        for tensor in tiled.outputs:
            tile = tiles[tensor]
            if tile.is_moved:
                values.emit(_transpose(plan, tile.computed, tile.moved, across, along))
            with _each(plan, values, outside, along, across) as (places, slots):
                position = code.position(tensor, places)
                value = Load(tensor.dtype, tile.moved, _cell(plan, slots, along if tile.is_moved else across))
                values.emit(Store(buffer=code.buffers[tensor.name], position=position, value=value))
    return Launch()


def _tile_of(plan: TilePlan, tensor: TensorView) -> _Tile:
    # Elements of 16 bits are only moved, so they stay as they are, and a vector holds twice as many.
    dtype = tensor.dtype if tensor.dtype in _MOVED else tensor.dtype.compute
    size = plan.side * plan.pitch
    computed = Buffer(name=f"{tensor.name}_tile", dtype=dtype, size=size, role=Role.SCRATCH)
    if plan.side % TRANSPOSED or not by_registers(dtype):
        return _Tile(computed=computed, moved=computed)
    # All tensors of a dtype reuse the memory of the other order, so that little L1 cache is occupied.
    moved = Buffer(name=f"rows_{dtype.name.lower()}", dtype=dtype, size=size, role=Role.SCRATCH)
    return _Tile(computed=computed, moved=moved)


def _transpose(plan: TilePlan, source: Buffer, target: Buffer, slow: _Side, fast: _Side) -> Transpose:
    """Return the transposition of a tile with rows along ``slow`` into one with columns along ``slow``."""
    return Transpose(
        source=source, target=target, start=index(0), rows=slow.filled, columns=fast.filled,
        pitches=(plan.pitch, plan.pitch),
    )


def _side(plan: TilePlan, values: Values, name: str, axis: Axis, number: Term) -> _Side:
    """Return one side of a tile, with variables for its beginning and end."""
    first, last = chunk(values, number, plan.side, axis.extent)
    first, last = index_variable(values, name, first), index_variable(values, f"{name}_end", last)
    return _Side(axis=axis, first=first, last=last, filled=blocks_up(min(axis.extent, plan.side)))


def _cell(plan: TilePlan, slots: Mapping[Axis, Term], slow: _Side) -> Term:
    """Return a position in a tile with rows along ``slow``."""
    row, column = (at for _, at in sorted(slots.items(), key=lambda slot: slot[0] is not slow.axis))
    return row * plan.pitch + column


@contextmanager
def _each(
    plan: TilePlan, values: Values, outside: Places, slow: _Side, fast: _Side,
) -> Iterator[tuple[Places, Mapping[Axis, Term]]]:
    """Open loops over a tile; yield the position in the nest, and the position in the tile by axis."""
    with ExitStack() as stack:
        places = dict(outside)
        slots: dict[Axis, Term] = {}
        for side, kind in ((slow, ParallelType.serial), (fast, ParallelType.vectorize)):
            name = "i" if side.axis is plan.tiled.across else "j"
            at = stack.enter_context(
                values.loop(name, side.last, kind, start=side.first, largest=side.axis.extent),
            )
            places[side.axis.name] = at
            slots[side.axis] = at - side.first
        yield plan.tiled.spread(places, values.scope.ranges), slots

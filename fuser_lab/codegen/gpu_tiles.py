"""Tiles on a GPU: tensors whose fastest axis differs from that of the others are transposed in shared memory.

A block processes a tile of two axes. Tensors that are contiguous along ``across`` are read along it into shared memory;
after a barrier, all elements of the tile are computed along ``along``; results that are contiguous along ``across`` are
written through shared memory in the same way. So every access to global memory is contiguous.

Tiles that end within both axes have code of their own, without conditions on elements: accesses under conditions wait
for one another. Tiles at the ends of the axes are few.

Reductions over a kept and a reduced axis use such tiles, too:

    each block owns a band of adjacent results
    for each tile of the band:
        tensors that are contiguous along the reduced axis are read along it into shared memory; a barrier
        each thread adds up elements of a few adjacent results
    the threads of the block combine their sums in shared memory

If there are too few bands to keep the GPU busy, several blocks share the tiles of each, and a second phase adds up
their parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from math import gcd, prod

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.gpu_columns import (
    Results,
    column_result,
    combined_lines,
    met_in_block,
    results_of,
    running_values,
    total_phase,
)
from fuser_lab.codegen.gpu_common import bound, fetch, gpu_phase, open_lanes, open_rounds, words_of
from fuser_lab.codegen.gpu_facts import GpuFacts, gpu_facts
from fuser_lab.codegen.index_math import ACCESS_BYTES, Access, negate
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_facts import TiledAxes
from fuser_lab.codegen.nest_writing import ZERO, PhaseCode, Places, cells, open_loop, write_point
from fuser_lab.codegen.nests import Axis
from fuser_lab.codegen.values import Values
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Term, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.gpu_element_loops import tile_sides
from fuser_lab.schedule.gpu_limits import IN_FLIGHT

_BANKS, _BANK = 32, 4  # banks of shared memory, and bytes of each


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """The tiles of a nest, and how the threads of a block process one."""

    results: Results
    tiled: TiledAxes = field(repr=False)
    sides: Mapping[Axis, int]  # elements of a tile along its two axes
    counts: Mapping[Axis, int]  # tiles along these axes
    loaded: int  # adjacent elements of a thread along ``across``, where it loads or stores
    computed: int  # adjacent elements of a thread along ``along``, where it computes
    tiles: Mapping[TensorView, tuple[ir.Buffer, int]]  # shared memory per transposed tensor, and the tile's beginning
    ahead: tuple[TensorView, ...]  # other inputs of which a thread loads single elements
    together: int  # rounds of a thread whose elements of ``ahead`` are loaded before the first is computed

    @property
    def nest(self) -> NestPlan:
        """The nest with its schedule."""
        return self.results.nest


def tile_plan(nest: NestPlan) -> TilePlan:
    """Return the tiles of a nest in which some tensors are transposed, or which reduces one of the tiles' axes."""
    facts, schedule = gpu_facts(nest.facts), nest.schedule
    tiled = facts.tiled
    assert tiled is not None
    axes = (tiled.along, tiled.across)
    sides = {axis: tile_sides(schedule.tile, (axis.extent,))[0] for axis in axes}
    transposed = (*tiled.inputs, *tiled.outputs)
    if facts.nest.reductions:
        walked = facts.fast_along(tiled.along)
    else:
        tensors = (*facts.fusion.tensor_inputs, *facts.nest.full)
        walked = [tv for tv in tensors if tv in facts.nest.index and tv not in transposed]
    computed = _elements_of_thread(facts, tiled, schedule.vector, tiled.along, walked)
    rounds = -(-prod(sides.values()) // schedule.threads[0])
    fast = tiled.parts[tiled.along.name][-1].name
    ahead = tuple(
        tv for tv in facts.fusion.tensor_inputs
        if computed == 1 and tv in walked and tv not in transposed and (facts.steps(tv) or {}).get(fast)
    )
    return TilePlan(
        results=results_of(nest), tiled=tiled, sides=sides,
        counts={axis: -(-axis.extent // side) for axis, side in sides.items()},
        loaded=_elements_of_thread(facts, tiled, schedule.vector, tiled.across, transposed),
        computed=computed, tiles=_tiles_of(prod(sides.values()), transposed), ahead=ahead,
        together=gcd(rounds, max(IN_FLIGHT // max(len(ahead), 1), 1)),
    )


def _elements_of_thread(
    facts: GpuFacts, tiled: TiledAxes, vector: int, fast: Axis, tensors: Sequence[TensorView],
) -> int:
    """Return how many adjacent elements along an axis a thread processes; one if no access can have several."""
    name = tiled.parts[fast.name][-1].name
    for tensor in tensors:
        steps = facts.steps(tensor) or {}
        divisor = gcd(vector, facts.layouts[tensor].offset, *(s for axis, s in steps.items() if axis != name))
        if Access(buffer=facts.buffers[tensor.name], step=steps.get(name), divisor=divisor).width(vector) > 1:
            return vector
    return 1


def _tiles_of(area: int, tensors: Sequence[TensorView]) -> dict[TensorView, tuple[ir.Buffer, int]]:
    """Return the shared memory of tensors' tiles, in rows along ``along``, and where each tile begins in it."""
    dynamic = area * sum(tv.dtype.itemsize for tv in tensors) > ir.LARGEST_STATIC
    tiles, end = {}, 0
    for tensor in tensors:
        # Dynamic buffers begin at the same address; each uses a separate part.
        size = tensor.dtype.itemsize
        first = -(-end // ACCESS_BYTES) * ACCESS_BYTES if dynamic else 0
        end = first + area * size
        reach = max(end, ir.LARGEST_STATIC + size) if dynamic else end
        buffer = ir.Buffer(name=f"{tensor.name}_tile", dtype=tensor.dtype, size=reach // size, role=ir.Role.SHARED)
        tiles[tensor] = buffer, first // size
    return tiles


def write_tiles(plan: TilePlan) -> Iterator[ir.Phase]:
    """Yield the only phase of a nest over tiles."""
    yield gpu_phase(plan.nest, "", partial(_tiles, plan))


def write_tile_sums(plan: TilePlan) -> Iterator[ir.Phase]:
    """Yield the phase of reductions over tiles, or two if they are cut into parts."""
    yield gpu_phase(plan.nest, "_parts" if plan.results.parts else "", partial(_tile_sums, plan))
    yield from total_phase(plan.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """A tile that is written: its numbers along the two axes, the position along others, and the thread's number."""

    plan: TilePlan
    code: PhaseCode
    number: Mapping[Axis, Term]
    outside: Places
    thread: Term


def _tiles(plan: TilePlan, code: PhaseCode) -> ir.Launch:
    """Write tiles of a nest without reductions."""
    tiled, schedule, values = plan.tiled, plan.nest.schedule, code.values
    along, across = tiled.along, tiled.across
    over, down = plan.counts[along], plan.counts[across]
    blocks = over * down * prod(a.extent for a in tiled.others)
    with ExitStack() as stack:
        block = open_loop(values, stack, "block", blocks, ParallelType.grid_x)
        thread = open_loop(values, stack, "thread", schedule.threads[0], ParallelType.block_x)
        for buffer, _ in plan.tiles.values():
            values.emit(ir.Alloc(buffer=buffer))
        number = _number(values, stack, "tile_along", values.remainder(block, over), over)
        number_across = values.remainder(values.quotient(block, over), down)
        if plan.nest.facts.space.mirrored:
            number_across = _mirror_tile(values, stack, number, number_across, down)
        else:
            number_across = _number(values, stack, "tile_across", number_across, down)
        rest = values.quotient(block, over * down)
        if tiled.others:
            rest = _number(values, stack, "rest", rest, prod(a.extent for a in tiled.others))
        tile = _Tile(
            plan=plan, code=code, number={along: number, across: number_across},
            outside=code.flat(tiled.others, rest), thread=thread,
        )
        for places, row, column in _transposed_elements(tile):
            for tensor in code.nest.full:
                if tensor in tiled.outputs:
                    cell = _cell(tile, tensor, row, column)
                    value = code.element(tensor, places)
                    values.put(plan.tiles[tensor][0], cell, value)
                else:
                    code.store([tensor], places)
        if tiled.outputs:
            values.emit(ir.Barrier())
        for _ in _versions(tile):
            for tensor in tiled.outputs:
                with _visit(tile, across, along, plan.loaded) as (places, row, column, _):
                    cell = _cell(tile, tensor, column, row)
                    position, buffer = code.position(tensor, places), code.buffers[tensor.name]
                    value = ir.Load(tensor.dtype, plan.tiles[tensor][0], cell)
                    values.put(buffer, position, value)
    return ir.Launch(blocks=blocks, threads=schedule.threads, resident=schedule.resident)


def _tile_sums(plan: TilePlan, code: PhaseCode) -> ir.Launch:
    """Write reductions over tiles."""
    tiled, schedule, values, nest = plan.tiled, plan.nest.schedule, code.values, code.nest
    along, across, taken = tiled.along, tiled.across, plan.computed
    side, split, threads = plan.sides[along], schedule.split, schedule.threads[0]
    kept_axes, reduced = ([a for a in axes if a in tiled.others] for axes in (nest.kept, nest.reduced))
    over, down = plan.counts[along], plan.counts[across]
    bands, steps = over * prod(a.extent for a in kept_axes), down * prod(a.extent for a in reduced)
    with ExitStack() as stack:
        block = open_loop(values, stack, "block", bands * split, ParallelType.grid_x)
        thread = open_lanes(values, stack, "thread", threads)
        for buffer, _ in plan.tiles.values():
            values.emit(ir.Alloc(buffer=buffer))
        band, part = values.remainder(block, bands), values.quotient(block, bands)
        number = _number(values, stack, "tile_along", values.remainder(band, over), over)
        rest = values.quotient(band, over)
        if kept_axes:
            rest = _number(values, stack, "rest", rest, prod(a.extent for a in kept_axes))
        outside = code.flat(kept_axes, rest)
        sums = running_values(values, plan.results.exprs, taken)
        with ExitStack() as inner:
            rounds = -(-steps // split)
            turn = open_rounds(values, inner, "round", rounds)
            step = bound(values, inner, "step", turn * split + part, steps, rounds * split)
            number_across = values.remainder(step, down)
            if plan.nest.facts.space.mirrored:
                number_across = _mirror_tile(values, inner, number, number_across, down)
            behind = code.flat(reduced, values.quotient(step, down))
            tile = _Tile(
                plan=plan, code=code, number={along: number, across: number_across},
                outside={**outside, **behind}, thread=thread,
            )
            given_before = dict(values.given)
            for places, _, column in _transposed_elements(tile):
                write_point(code, places, cells(sums, values.remainder(column, taken)), (), {}, ZERO)
            values.given = given_before
            if rounds > 1:
                values.emit(ir.Barrier())
        lanes = side // taken
        line, lane = values.quotient(thread, lanes), values.remainder(thread, lanes)
        met = met_in_block(
            values, partial(cells, sums), taken, lambda v: (line * taken + v) * lanes + lane, threads * taken,
        )
        rounds = -(-side // threads)
        k = open_rounds(values, stack, "k", rounds)
        j = bound(values, stack, "j", k * threads + thread, side, rounds * threads)
        place = values.remainder(j, taken) * lanes + values.quotient(j, taken)
        i = bound(values, stack, "i", number * side + j, along.extent, over * side)
        places = {**outside, along.name: i}
        result: Term = ZERO
        for axis in nest.kept:
            result = result * axis.extent + places[axis.name]
        lines = max(threads // lanes, 1)
        folds = combined_lines(values, met, values.simplify(place), side, lines, online=plan.results.online)
        column_result(plan.results, code, folds, places, result, part)
    return ir.Launch(blocks=bands * split, threads=schedule.threads)


def _mirror_tile(values: Values, stack: ExitStack, number: Term, turn: Term, count: int) -> Term:
    """Return the tile of the other axis in a given round.

    Distances from the diagonal are 0, -1, 1, -2, 2, ..., so that a tile that is read straight by one block and
    transposed by another is read in the same round or in consecutive rounds.
    """
    half = values.quotient(turn, 2)
    is_even = apply("eq", values.remainder(turn, 2), 0)
    distance = Apply(DataType.Index, "select", (is_even, half, index(count - 1) - half))
    variable = _number(values, stack, "distance", distance, count)
    return _number(values, stack, "tile_other", values.remainder(number + variable, count), count)


def _number(values: Values, stack: ExitStack, name: str, term: Term, count: int) -> Term:
    """Name an index below ``count``."""
    value = values.simplify(term)
    if not isinstance(value, Apply):
        return value
    variable = values.let(name, value)
    stack.enter_context(values.inlined({variable.name: (0, max(count - 1, 0))}))
    return variable


# One tile


def _transposed_elements(tile: _Tile) -> Iterator[tuple[Places, Term, Term]]:
    """Load the transposed inputs of a tile, then open the loops over a thread's elements and yield one.

    The inputs are available there; it is given as a position in the nest and a row and column in the tile.
    """
    plan, code, values = tile.plan, tile.code, tile.code.values
    along, across, inputs, count = plan.tiled.along, plan.tiled.across, plan.tiled.inputs, plan.computed
    words = {tv: words_of(values, tv, count, "transposed") for tv in inputs if count > 1}
    ahead = {tv: words_of(values, tv, plan.together, "next") for tv in plan.ahead}
    for _ in _versions(tile):
        for tensor in inputs:
            with _visit(tile, across, along, plan.loaded, loads=plan.loaded == 1) as (places, row, column, _):
                value = code.element(tensor, places)
                values.put(plan.tiles[tensor][0], _cell(tile, tensor, column, row), value)
    if inputs:
        values.emit(ir.Barrier())

    def unpack(row: Term, column: Term) -> None:
        for tensor, buffer in words.items():
            values.emit(ir.VectorLoad(
                buffer=plan.tiles[tensor][0], position=_cell(tile, tensor, row, column), words=buffer, slot=ZERO,
                count=count, width=count,
            ))

    rounds = _rounds(tile, count)
    together = plan.together if ahead else rounds
    for _ in _versions(tile):
        with ExitStack() as stack:
            first: Term = ZERO
            if rounds > together:
                first = open_loop(values, stack, "batch", rounds // together, ParallelType.unroll) * together
            if ahead:
                with _visit(tile, along, across, 1, first, together, loads=True) as (places, _, _, u):
                    for tensor, buffer in ahead.items():
                        fetch(code, tensor, places, 1, buffer, u, 1)
            visit = _visit(tile, along, across, count, first, together, unpack=unpack)
            places, row, column, u = stack.enter_context(visit)
            for tensor, buffer in ahead.items():
                code.know(tensor, places, ir.Load(tensor.dtype, buffer, u))
            for tensor in inputs:
                source, cell = plan.tiles[tensor][0], _cell(tile, tensor, row, column)
                if tensor in words:
                    source, cell = words[tensor], values.remainder(column, count)
                code.know(tensor, places, ir.Load(tensor.dtype, source, cell))
            yield places, row, column


def _cell(tile: _Tile, tensor: TensorView, across: Term, along: Term) -> Term:
    """Return the position of an element in a tile.

    Each row is rotated by one unit more than the row ``loaded`` rows before it, so that threads that write the same
    column of such rows access different banks. A unit is a bank, or the vector that a thread reads of a row, which
    stays one access. Rows of less than all banks share a longer one, and are rotated equally.
    """
    plan, values = tile.plan, tile.code.values
    unit = max(plan.computed, _BANK // tensor.dtype.itemsize)
    row = plan.sides[plan.tiled.along] // unit
    shared = max(_BANKS * _BANK // (unit * tensor.dtype.itemsize) // row, 1)  # rows
    rotation = values.quotient(across, max(plan.loaded, shared))
    group = values.remainder(across, shared) * row + values.quotient(along, unit) + rotation
    group = values.remainder(group, shared * row)
    start = values.quotient(across, shared) * (shared * row)
    return values.simplify((start + group) * unit + values.remainder(along, unit) + plan.tiles[tensor][1])


def _versions(tile: _Tile) -> Iterator[None]:
    """Open the conditions for each version of the code in turn: tiles that end within both axes, and others."""
    plan, values = tile.plan, tile.code.values
    ends = [axis for axis, side in plan.sides.items() if axis.extent % side]
    if not ends or any(axis.extent < plan.sides[axis] for axis in ends):
        yield
        return
    whole = reduce(partial(apply, "and"), (tile.number[axis] < axis.extent // plan.sides[axis] for axis in ends))
    for condition in (whole, negate(whole)):
        with values.guard(condition):
            yield


def _rounds(tile: _Tile, vector: int) -> int:
    """Return how many chunks of ``vector`` elements of a tile a thread processes."""
    return -(-prod(tile.plan.sides.values()) // (vector * tile.plan.nest.schedule.threads[0]))


@contextmanager
def _visit(
    tile: _Tile, fast: Axis, slow: Axis, vector: int, first: Term = ZERO, rounds: int = 0, *, loads: bool = False,
    unpack: Callable[[Term, Term], None] | None = None,
) -> Iterator[tuple[Places, Term, Term, Term]]:
    """Open loops over ``rounds`` chunks of a thread from the ``first`` on, or all, and over the elements of each.

    A chunk has ``vector`` elements along ``fast``. Yield the position in the nest, the row (along ``slow``) and column
    (along ``fast``) in the tile, and the round. If the elements are only loaded (``loads``), those beyond an end are
    other ones, so that no load is under a condition. ``unpack`` is called with the row and column of a chunk's first
    element before the loop over its elements.
    """
    plan, values = tile.plan, tile.code.values
    side, threads = plan.sides[fast], plan.nest.schedule.threads[0]
    chunks, rounds = side * plan.sides[slow] // vector, rounds or _rounds(tile, vector)
    with ExitStack() as stack:
        u = open_loop(values, stack, "u", rounds, ParallelType.unroll) if rounds > 1 else ZERO
        chunk = values.simplify((first + u) * threads + tile.thread)
        stack.enter_context(values.guard(chunk < chunks))
        row = values.quotient(chunk, side // vector)
        start = values.simplify(values.remainder(chunk, side // vector) * vector)
        if unpack is not None:
            unpack(row, start)
        v = open_loop(values, stack, "v", vector, ParallelType.vectorize) if vector > 1 else ZERO
        column = values.simplify(start + v)
        places = dict(tile.outside)
        for axis, place in ((fast, column), (slow, row)):
            at = values.simplify(tile.number[axis] * plan.sides[axis] + place)
            inside = values.simplify(at < axis.extent)
            if not loads:
                stack.enter_context(values.guard(inside))
            elif isinstance(inside, Apply):
                at = Apply(DataType.Index, "select", (inside, at, ZERO))
                at = bound(values, stack, "within", at, axis.extent, axis.extent)
            places[axis.name] = at
        yield plan.tiled.spread(places, values.scope.ranges), row, column, u

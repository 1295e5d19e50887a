"""Transposes on a GPU: tensors that walk through memory along another axis than the rest are turned in shared memory.

A block takes a tile of two axes. What is fast along ``across`` is read along it, a tile at a time, into shared memory;
after a barrier all elements of the tile are computed along ``along``; results that are fast along ``across`` go through
shared memory the other way. So every access to memory outside is made of whole neighbours.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import gcd, prod

from fuser_lab.codegen.gpu_common import GpuReductions
from fuser_lab.codegen.index_math import linear, simplify, variables
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, Buffer, Launch, Load, Role, Store, terms_of, walk
from fuser_lab.codegen.nest_lowering import Places
from fuser_lab.codegen.nests import Axis, flattened, trial
from fuser_lab.codegen.vectorize import ACCESS_BYTES, SMALL, Access
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Apply, Term, Var, index
from fuser_lab.schedule.state import ParallelType, Space

MOST_TILES = 4  # in the shared memory of a block
_BANK = 4  # bytes: an odd number of them from row to row, and columns are spread over the banks
_LEAST = 16  # elements along both axes: with fewer, neighbours share cache lines anyhow


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A nest's axes, those that all accesses walk through as one made one, and what is fast along ``across``."""

    axes: tuple[Axis, ...]
    parts: Mapping[str, tuple[Axis, ...]]  # the nest's axes in each of ``axes``
    across: Axis
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]

    @property
    def along(self) -> Axis:
        """The axis that the rest is fast along."""
        return self.axes[-1]

    @property
    def others(self) -> tuple[Axis, ...]:
        """The axes that are not cut into tiles."""
        return tuple(a for a in self.axes if a not in (self.across, self.along))


class TileNest(GpuReductions):
    """Writes nests in which some tensors are transposed."""

    def _space(self) -> Space:
        space = super()._space()
        self._transposed = None if self._nest.reductions or not self._nest.full else self._found()
        if self._transposed is None:
            return space
        turn = self._transposed
        size = max(tv.dtype.itemsize for tv in (*turn.inputs, *self._nest.full))
        return replace(
            space, turned=(turn.across.extent, turn.along.extent), itemsize=size, vector=max(ACCESS_BYTES // size, 1),
        )

    # Which tensors are transposed

    def _found(self) -> Turn | None:
        """Return the two axes along which most bytes are fast, or None if all agree."""
        nest = self._nest
        if len(nest.kept) < 2:
            return None
        axes, parts = self._merged()
        along = axes[-1]
        tensors = [tv for tv in nest.index if (tv in self._fusion.inputs or tv in nest.full) and tv.numel]
        largest = max(tv.nbytes for tv in tensors)
        votes: dict[str, list[TensorView]] = {}
        for tensor in tensors:
            steps = self._steps(tensor)
            if steps is None or steps.get(parts[along.name][-1].name, 0) in (0, 1) or tensor.nbytes * SMALL < largest:
                continue
            for axis in axes[:-1]:
                if steps.get(parts[axis.name][-1].name) == 1:
                    votes.setdefault(axis.name, []).append(tensor)
        if not votes:
            return None
        name, moved = max(votes.items(), key=lambda vote: sum(tv.nbytes for tv in vote[1]))
        across = next(a for a in axes if a.name == name)
        if min(across.extent, along.extent) < _LEAST:
            return None
        moved = sorted(moved, key=lambda tv: -tv.nbytes)[:MOST_TILES]
        return Turn(
            axes=axes, parts=parts, across=across,
            inputs=tuple(tv for tv in moved if tv not in nest.full),
            outputs=tuple(tv for tv in moved if tv in nest.full),
        )

    def _steps(self, tensor: TensorView) -> dict[str, int] | None:
        """Return a tensor's strides along the nest's axes; None where it is not a plain walk along each."""
        form = linear(self._layouts[tensor].position(self._nest.index[tensor]), self._ranges())
        if not all(isinstance(atom, Var) for atom, _ in form.parts):
            return None
        return {atom.name: step for atom, step in form.parts if isinstance(atom, Var)}

    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {a.name: (0, max(a.extent - 1, 0)) for a in self._nest.axes}

    def _merged(self) -> tuple[tuple[Axis, ...], dict[str, tuple[Axis, ...]]]:
        """Return the axes, neighbours that every access walks through evenly made one, and what each is made of."""
        ranges = self._ranges()
        bound: set[str] = set()  # axes that conditions, quotients or remainders look at
        walks: list[dict[str, int]] = []
        for statement in walk(trial(self._fusion, self._nest, self._buffers, self._layouts, {}, ranges)):
            positions = [statement.position] if isinstance(statement, Store) else []
            for root in terms_of(statement):
                positions += [term.position for term in root.walk() if isinstance(term, Load)]
                if root not in positions and not isinstance(root, Var):
                    bound |= {n for t in root.walk() if not isinstance(t, Load) for n in _looked_at(t)}
            for position in positions:
                parts = linear(position, ranges).parts
                bound |= {name for atom, _ in parts if not isinstance(atom, Var) for name in variables(atom)}
                walks.append({atom.name: step for atom, step in parts if isinstance(atom, Var)})
        groups: list[list[Axis]] = []
        for axis in self._nest.kept:
            last = groups[-1][-1] if groups else None
            even = last is not None and not {last.name, axis.name} & bound and all(
                steps.get(last.name, 0) == steps.get(axis.name, 0) * axis.extent for steps in walks
            )
            if even:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        named = {"_".join(a.name for a in group): tuple(group) for group in groups}
        axes = tuple(Axis(name=name, extent=prod(a.extent for a in group)) for name, group in named.items())
        return axes, named

    # The kernel

    def _tiles(self) -> Launch:
        turn, schedule, values = self._transposed, self.schedule, self._values
        assert turn is not None
        tile = schedule.tile
        over, down = -(-turn.along.extent // tile), -(-turn.across.extent // tile)
        blocks = over * down * prod(a.extent for a in turn.others)
        shared = {tv: self._tile_of(tv) for tv in (*turn.inputs, *turn.outputs)}
        with ExitStack() as stack:
            block = self._loop(stack, "block", blocks, ParallelType.BIDX)
            thread = self._loop(stack, "thread", schedule.threads[0], ParallelType.TIDX)
            for buffer in shared.values():
                values.emit(Alloc(buffer=buffer))
            corner = {
                turn.along: self._number(stack, "tile_along", self._remainder(block, over), over) * tile,
                turn.across: self._number(
                    stack, "tile_across", self._remainder(self._quotient(block, over), down), down,
                ) * tile,
            }
            rest = self._quotient(block, over * down)
            if turn.others:
                rest = self._number(stack, "rest", rest, prod(a.extent for a in turn.others))
            known = flattened(turn.others, rest, values.scope.ranges)
            across = self._taken(turn.across, (*turn.inputs, *turn.outputs))
            walked = [tv for tv in (*self._fusion.tensor_inputs, *self._nest.full) if tv in self._nest.index]
            along = self._taken(turn.along, [tv for tv in walked if tv not in shared])
            for tensor in turn.inputs:
                with self._each(turn.across, turn.along, corner, known, thread, across) as (places, row, column):
                    value = values.value(tensor, self._nest.at(tensor, places))
                    cell = self._cell(shared[tensor], column, row)
                    values.emit(Store(buffer=shared[tensor], position=cell, value=value))
            if turn.inputs:
                values.emit(Barrier())
            with self._each(turn.along, turn.across, corner, known, thread, along) as (places, row, column):
                for tensor in turn.inputs:
                    at = values.simplified(self._nest.at(tensor, places))
                    cell = self._cell(shared[tensor], row, column)
                    values.given[tensor.name, at] = Load(tensor.dtype, shared[tensor], cell)
                for tensor in self._nest.full:
                    at = self._nest.at(tensor, places)
                    if tensor in turn.outputs:
                        cell = self._cell(shared[tensor], row, column)
                        values.emit(Store(buffer=shared[tensor], position=cell, value=values.value(tensor, at)))
                    else:
                        values.store(tensor, at, self._layouts[tensor])
            if turn.outputs:
                values.emit(Barrier())
            for tensor in turn.outputs:
                with self._each(turn.across, turn.along, corner, known, thread, across) as (places, row, column):
                    cell = self._cell(shared[tensor], column, row)
                    at = values.simplified(self._nest.at(tensor, places))
                    position = simplify(self._layouts[tensor].position(at), values.scope.ranges)
                    value = Load(tensor.dtype, shared[tensor], cell)
                    values.emit(Store(buffer=self._buffers[tensor.name], position=position, value=value))
        return Launch(blocks=blocks, threads=schedule.threads)

    def _tile_of(self, tensor: TensorView) -> Buffer:
        """Return the shared memory of a tensor's tile, rows along ``along``, a little apart."""
        tile, size = self.schedule.tile, tensor.dtype.itemsize
        pitch = tile + max(_BANK // size, 1)
        return Buffer(name=f"{tensor.name}_tile", dtype=tensor.dtype, size=tile * pitch, role=Role.SHARED)

    def _cell(self, buffer: Buffer, across: Term, along: Term) -> Term:
        """Return the place of an element in a tile."""
        return simplify(across * (buffer.size // self.schedule.tile) + along, self._values.scope.ranges)

    def _number(self, stack: ExitStack, name: str, term: Term, count: int) -> Term:
        """Name an index below ``count``."""
        known = simplify(term, self._values.scope.ranges)
        if not isinstance(known, Apply):
            return known
        variable = self._values.let(name, known)
        stack.enter_context(self._inlined({variable.name: (0, max(count - 1, 0))}))
        return variable

    def _taken(self, fast: Axis, tensors: Sequence[TensorView]) -> int:
        """Return how many neighbours along an axis a thread takes: one where no access could take several."""
        turn, vector = self._transposed, self.schedule.vector
        assert turn is not None
        name = turn.parts[fast.name][-1].name
        for tensor in tensors:
            steps = self._steps(tensor) or {}
            others = gcd(vector, self._layouts[tensor].offset, *(s for axis, s in steps.items() if axis != name))
            if Access(buffer=self._buffers[tensor.name], step=steps.get(name), divisor=others).width(vector) > 1:
                return vector
        return 1

    @contextmanager
    def _each(
        self, fast: Axis, slow: Axis, corner: Mapping[Axis, Term], known: Places, thread: Term, vector: int,
    ) -> Iterator[tuple[Places, Term, Term]]:
        """Open loops over a tile, a thread's ``vector`` neighbours along ``fast``.

        Yield the place in the nest and the numbers of row (along ``slow``) and column (along ``fast``) in the tile.
        """
        turn, schedule, values = self._transposed, self.schedule, self._values
        assert turn is not None
        tile, threads = schedule.tile, schedule.threads[0]
        chunks = tile * tile // vector
        rounds = -(-chunks // threads)
        with ExitStack() as stack:
            chunk: Term = thread
            if rounds > 1:
                chunk = chunk + self._loop(stack, "u", rounds, ParallelType.UNROLL) * threads
            if rounds * threads > chunks:
                stack.enter_context(values.guard(chunk < chunks))
            v = self._loop(stack, "v", vector, ParallelType.VECTORIZE) if vector > 1 else index(0)
            row = self._quotient(chunk, tile // vector)
            column = simplify(self._remainder(chunk, tile // vector) * vector + v, values.scope.ranges)
            places = dict(known)
            for axis, place in ((fast, column), (slow, row)):
                at = simplify(corner[axis] + place, values.scope.ranges)
                stack.enter_context(values.guard(at < axis.extent))
                places[axis.name] = at
            yield self._spread(places), row, column

    def _spread(self, places: Places) -> Places:
        """Return the nest's axes as terms, given those that are made of them."""
        turn = self._transposed
        assert turn is not None
        result: dict[str, Term] = {}
        for axis in turn.axes:
            result.update(flattened(turn.parts[axis.name], places[axis.name], self._values.scope.ranges))
        return result


def _looked_at(term: Term) -> Sequence[str]:
    """Return the axes whose values a term uses, other than as a position."""
    return (term.name,) if isinstance(term, Var) else ()

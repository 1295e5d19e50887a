"""The facts about a nest of loops of a GPU: how wide its accesses to memory are, and what passes over it read."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from fuser_lab.codegen.gpu_element_facts import GpuElementFacts
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import ACCESS_BYTES, Ranges, access_of, linear, simplify, substitute, variables
from fuser_lab.codegen.nest_facts import LEAST, MOST_TILES, NestFacts, TiledAxes, extent_of, tiles_of
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.persistence import bytes_kept, inputs_needed, memory_of_kept, moments, online_pair, rows_kept
from fuser_lab.codegen.vector_widths import SMALL, accesses, tensor_accesses
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import SECTOR_BYTES, WORD_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Term, index
from fuser_lab.schedule.gpu_column_loops import MANY, SHORT
from fuser_lab.schedule.gpu_row_loops import STAGED_BYTES, gains_from_copies
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sum_loops
from fuser_lab.schedule.state import Space

Places = Mapping[str, Term]

NARROW = SECTOR_BYTES // WORD_BYTES // 2  # elements of a window of Float, up to which two lanes read a sector
MOST_NEIGHBOURS = ACCESS_BYTES // DataType.Half.itemsize  # adjacent elements that a thread computes at a time
_DIVIDED_FROM = crossover("gpu.shifted_rows.divided_from")
_NARROW_BYTES = WORD_BYTES  # bytes per element, above which lanes would read distant parts of lines
_WIDE_ENOUGH = 8  # bytes of an access that begins with the row's first element


class GpuFacts(GpuElementFacts):
    """The facts about a nest of loops of a GPU."""

    @property
    def space(self) -> Space:
        """The properties by which loops are chosen."""
        return self._space_and_tiles[0]

    @property
    def tiled(self) -> TiledAxes | None:
        """The axes of tiles, if some tensors are transposed."""
        return self._space_and_tiles[1]

    @property
    def lead(self) -> TensorView | None:
        """The tensor whose accesses divide rows into groups, if rows begin anywhere in an access."""
        return self._space_and_tiles[2]

    @cached_property
    def _space_and_tiles(self) -> tuple[Space, TiledAxes | None, TensorView | None]:
        """Return the space, the axes of tiles, and the tensor that divides rows."""
        nest, elements = self.nest, not self.nest.reductions and not self.nest.scans and bool(self.nest.full)
        space = replace(
            self._extents(), vector=self._element_vector() if elements else self._row_vector(),
            window=nest.reduced[-1].extent if self._windows_of_access() else 1,
            stored_bytes=extent_of(nest.axes) * sum(tv.dtype.itemsize for tv in nest.full),
        )
        if nest.reductions and not self.is_scanned:
            space = self._with_passes(space)
        if self.is_scanned:
            needed = self.scanned_inputs
            space = replace(
                space, streams=max(len(needed), 1), read_bytes=sum(tv.dtype.itemsize for tv in needed),
                sum_bytes=sum(expr.out.dtype.compute.itemsize for expr in nest.scans),
            )
        space, lead = self._with_wide_accesses(space)
        if nest.reductions and not nest.scans:
            space = self._with_crossing_rows(space)
        if self.column_sums:
            shared = sum(tv.dtype.itemsize for tv in self._inputs_of_rows() if not self.varies(tv))
            return replace(space, constant_bytes=shared), None, lead
        tiled = tiles_of(self) if elements else self._tiles_of_sums()
        if tiled is not None:
            tiles = self._with_tiles(space, tiled)
            # Reductions over tiles combine results in shared memory, which may be too small.
            return (tiles, tiled, None) if elements or tile_sum_loops(tiles) is not None else (space, None, lead)
        return (self._with_chunks(space) if elements else space), None, lead

    @property
    def _reads(self) -> int:
        return 1  # a GPU keeps a row on chip, or reads it again from the L2 cache

    @cached_property
    def has_windows(self) -> bool:
        """Whether windows are so many, small and narrow that a thread reduces whole windows."""
        kept_axes, reduced = self.nest.kept, self.nest.reduced
        return (
            self.passes == 1 and not self.nest.scans and bool(kept_axes) and bool(reduced)
            and reduced[-1].extent <= NARROW and extent_of(reduced) <= SHORT
            and extent_of(kept_axes) >= MANY * self.device.sms
        )

    # Reductions

    def _with_passes(self, space: Space) -> Space:
        """Return a space with the bytes per element of a row that passes read and keep."""
        nest = self.nest
        choices = [rows_kept(self, values=values) for values in (True, False)]
        values, inputs = (bytes_kept(saved, self.fusion) for saved in choices)
        first = set(inputs_needed(self, 0, ()))
        later = {tv for number in range(1, self.passes) for tv in inputs_needed(self, number, choices[1])} - first
        computed = rows_kept(self, values=True, without=self.passes_joined)
        is_computed = any(s.tensor in self.fusion.producers for s in computed)
        fast = {axis.name for axis in nest.reduced[-1:]}
        varying = [tv for tv in later if any(fast & variables(term) for term in nest.index[tv])]
        # What adjacent columns share is in the L1 cache once a warp has read it.
        along = {axis.name for axis in (nest.axes if self.inner_reduced else nest.kept[-1:])}
        streams = [tv for tv in first if any(along & variables(term) for term in nest.index[tv])]
        # Numbers of elements would be constants of a kernel, which is for many lengths if these grow with the batch.
        is_fixed = not (self.column_sums or space.reduces_outermost)
        return replace(
            space, streams=max(len(streams), 1), read_bytes=sum(tv.dtype.itemsize for tv in streams),
            input_bytes=inputs, value_bytes=values + sum(expr.out.dtype.compute.itemsize for expr in nest.scans),
            computed_bytes=sum(memory_of_kept(self, computed)[1]) if is_computed else 0,
            constant_bytes=sum(tv.dtype.itemsize for tv in later),
            varying_bytes=sum(tv.dtype.itemsize for tv in varying),
            sum_bytes=sum(expr.out.dtype.compute.itemsize for expr in nest.reductions),
            met_bytes=self._bytes_of_passes(),
            widest_sum=max(expr.out.dtype.compute.itemsize for expr in nest.reductions),
            online=bool(self.passes_joined), apart=self._is_apart(),
            moments=is_fixed and moments(self.fusion, nest, self.levels, space.depth) is not None,
        )

    @property
    def passes_joined(self) -> tuple[int, ...]:
        """The passes that may be part of the one before, with a maximum that is not that of the row."""
        return () if online_pair(self.fusion, self.nest, self.levels) is None else (1,)

    def _bytes_of_passes(self) -> int:
        """Return the bytes of the running values of one result, if passes use the same memory for those of a dtype."""
        passes = Counter((e.out.dtype.compute, self.levels.get(e.inputs[0], 0)) for e in self.nest.reductions)
        most: dict[DataType, int] = {}
        for (dtype, _), count in passes.items():
            most[dtype] = max(most.get(dtype, 0), count)
        return sum(dtype.itemsize * count for dtype, count in most.items())

    @property
    def scanned_inputs(self) -> tuple[TensorView, ...]:
        """The inputs of which an element is read at each point of a scanned axis."""
        return inputs_needed(self, 0, ())

    def _is_apart(self) -> bool:
        """Whether no access depends on both a row and a place in it; one at a position that is data may."""
        rows, places = ({axis.name for axis in axes} for axes in (self.nest.kept, self.nest.reduced))
        used = [variables(position) for _, position, _ in tensor_accesses(self.at_one_point())]
        return not self.nest.full and all(names <= rows or names <= places for names in used)

    def _inputs_of_rows(self) -> set[TensorView]:
        """Return the inputs of which any pass over a row reads an element at each point."""
        return {tv for number in range(self.passes) for tv in inputs_needed(self, number, ())}

    def varies(self, tensor: TensorView) -> bool:
        """Whether the elements of a tensor differ between rows."""
        return not self.nest.axes_of(tensor).isdisjoint(axis.name for axis in self.nest.kept)

    # Accesses of several adjacent elements

    def _row_vector(self) -> int:
        """Return how many adjacent elements of rows or columns a thread moves with one access."""
        axes = self.nest.reduced if self.inner_reduced else self.nest.kept
        if not axes:
            return 1
        return self._windows_of_access() or self._neighbours_along(axes[-1])

    def _windows_of_access(self) -> int:
        """Return how many adjacent windows have lines of 16 bytes together; 0 if no number does."""
        if not self.has_windows or self.inner_reduced:
            return 0

        def is_full(tensor: TensorView, count: int) -> bool:
            return self.width_of_window(tensor, count) * tensor.dtype.itemsize == ACCESS_BYTES

        counts = (n for n in (1, 2, 4, MOST_NEIGHBOURS) if self.nest.kept[-1].extent % n == 0)
        return next((n for n in counts if any(is_full(tensor, n) for tensor in self.nest.index)), 0)

    def width_of_window(self, tensor: TensorView, count: int) -> int:
        """Return how many elements an access has of a line of ``count`` adjacent windows of an input or a result.

        0 unless the elements of a window are adjacent in memory and followed by those of the next window.
        """
        kept_axes, reduced = self.nest.kept, self.nest.reduced
        is_made = tensor in self.fusion.producers and tensor not in self.nest.full
        if is_made or tensor not in self.nest.index or not kept_axes or not reduced:
            return 0
        side = reduced[-1]
        places, ranges = self.trial_places(kept_axes[-1], count)
        at = self.nest.at(tensor, {**places, side.name: index_var("w")})
        ranges["w"] = (0, side.extent - 1)
        position = simplify(self.layouts[tensor].position(tuple(simplify(i, ranges) for i in at)), ranges)
        buffer = self.buffers[tensor.name]
        first = simplify(substitute(position, {"v": index(0)}), ranges)
        is_next = count == 1 or access_of(buffer, position, "v").step == side.extent
        if access_of(buffer, position, "w").step != 1 or not is_next:
            return 0
        return access_of(buffer, first, "w").width(count * side.extent)

    def trial_places(
        self, fast: Axis, count: int, lead: TensorView | None = None,
    ) -> tuple[Places, dict[str, tuple[int, int]]]:
        """Return an axis in groups of adjacent elements, and the ranges of all variables.

        If ``lead`` divides rows, a group begins with an access to it.
        """
        ranges = self.ranges()
        ranges |= {"chunk": (0, max(fast.extent // count - 1, 0)), "v": (0, count - 1)}
        if lead is None:
            return {fast.name: index_var("chunk") * count + index_var("v")}, ranges
        ranges["first"] = (0, self.buffers[lead.name].size // count)
        start = self.start_of_row(lead, {}, ranges)
        return {fast.name: (index_var("first") + index_var("chunk")) * count + index_var("v") - start}, ranges

    def width_of_group(self, tensor: TensorView, fast: Axis | None, count: int) -> int:
        """Return how many elements of a group of adjacent ones an access to an input has; 0 if they are not adjacent.

        Elements of a divided row are read one by one, where they are known to belong to the row.
        """
        if fast is None or tensor in self.fusion.producers or tensor not in self.nest.index:
            return 0
        lead = self.lead if count > 1 else None
        places, ranges = self.trial_places(fast, count, lead)
        at = tuple(simplify(i, ranges) for i in self.nest.at(tensor, places))
        access = access_of(self.buffers[tensor.name], simplify(self.layouts[tensor].position(at), ranges), "v")
        width = 1 if count == 1 and access.step is None else access.width(count)
        return width if lead is None or width > 1 else 0

    def is_fast(self, tensor: TensorView) -> bool:
        """Whether the elements of a row are adjacent in a tensor."""
        at = self.nest.at(tensor, {self.nest.reduced[-1].name: index_var("v")})
        position = simplify(self.layouts[tensor].position(at), self.ranges())
        return access_of(self.buffers[tensor.name], position, "v").step == 1

    def start_of_row(self, lead: TensorView, places: Places, ranges: Ranges) -> Term:
        """Return the position of a row's first element in a tensor."""
        at = self.nest.at(lead, {**places, self.nest.reduced[-1].name: index(0)})
        return simplify(self.layouts[lead].position(tuple(simplify(i, ranges) for i in at)), ranges)

    def _neighbours_along(self, fast: Axis) -> int:
        """Return how many adjacent elements along an axis a thread processes: accesses of 16 bytes, or all.

        Threads that scan rows exchange a total for each group, which takes more than narrower accesses to its elements.
        """
        exchanges = self.is_scanned and self.inner_reduced
        # If groups do not divide the axis, positions in the last group are outside the tensor.
        size = math.gcd(MOST_NEIGHBOURS, fast.extent)
        while size > 1:
            places, ranges = self.trial_places(fast, size)
            statements = self.trial(places, ranges)
            adjacent = [a for a in accesses(statements, "v") if a.step == 1]
            least = min((a.buffer.dtype.itemsize for a in adjacent), default=ACCESS_BYTES)
            is_wide = all(a.width(size) >= min(size, ACCESS_BYTES // a.buffer.dtype.itemsize) for a in adjacent)
            if size * least <= ACCESS_BYTES and (exchanges or is_wide):
                return size
            size //= 2
        return 1

    # Rows whose elements are adjacent to those of other rows

    @cached_property
    def crossed(self) -> Mapping[TensorView, int]:
        """The tensors in which the same element of consecutive rows is adjacent, and the axis along a row of each.

        Every access to such a tensor must be in the row that the nest is at: a block copies its own rows only.
        """
        nest = self.nest
        if len(nest.kept) != 1 or len(nest.reduced) != 1 or not self.inner_reduced:
            return {}
        (kept_axis,), (reduced_axis,), ranges = nest.kept, nest.reduced, self.ranges()
        positions = list(tensor_accesses(self.at_one_point()))
        crossed: dict[TensorView, int] = {}
        for tensor in (*self.fusion.tensor_inputs, *nest.full):
            layout, shape = self.layouts[tensor], tensor.shape
            far = [n for n, stride in enumerate(layout.strides) if stride * tensor.dtype.itemsize >= SECTOR_BYTES]
            near = [n for n, stride in enumerate(layout.strides) if stride == 1 and shape[n] == kept_axis.extent]
            further_elements = prod(n for axis, n in enumerate(shape) if axis not in {*near, *far})
            read = [position for buffer, position, _ in positions if buffer.name == tensor.name]
            if not read or (len(far), len(near), further_elements) != (1, 1, 1) or shape[far[0]] != reduced_axis.extent:
                continue
            if all(self._is_in_row(position, kept_axis, layout.strides[far[0]], ranges) for position in read):
                crossed[tensor] = far[0]
        return crossed

    @staticmethod
    def _is_in_row(position: Term, kept_axis: Axis, stride: int, ranges: Ranges) -> bool:
        """Whether a position is that of an element of the row of the nest, whose elements are ``stride`` apart."""
        form = linear(simplify(position, ranges), ranges)
        along = [(atom, step) for atom, step in form.parts if kept_axis.name not in variables(atom)]
        across = [(atom, step) for atom, step in form.parts if kept_axis.name in variables(atom)]
        steps = (form.constant, *(step for _, step in along))
        return across == [(index_var(kept_axis.name), 1)] and all(step % stride == 0 for step in steps)

    def _with_crossing_rows(self, space: Space) -> Space:
        """Return a space with the rows that fill sectors of tensors that cross rows, and the bytes of an element."""
        if not self.crossed:
            return space
        sizes = [tv.dtype.itemsize for tv in self.crossed]
        # A sector of a result that is written in part is also read.
        size = min((tv.dtype.itemsize for tv in self.crossed if tv in self.nest.full), default=max(sizes))
        return replace(space, crossed=SECTOR_BYTES // size, crossed_bytes=sum(sizes))

    # Rows that begin anywhere in an access

    def _with_wide_accesses(self, space: Space) -> tuple[Space, TensorView | None]:
        """Return a space with wide accesses to rows that begin anywhere in one, and the tensor that divides rows.

        Short rows are copied to shared memory, several at a time; others are divided at accesses.
        """
        if self.column_sums:
            return space, None
        packed = self._packed_rows(space)
        nbytes = space.depth * sum(tv.dtype.itemsize for tv in self.row_tensors()) if packed else 0
        if packed and packed * nbytes <= STAGED_BYTES:
            return replace(space, packed=packed, packed_bytes=nbytes), None
        division = self._division(space.vector)
        return (space, None) if division is None else (replace(space, vector=division[1], shifted=True), division[0])

    def row_tensors(self) -> list[TensorView]:
        """Return the inputs and results that have elements for each point of a row, and others for other rows."""
        nest = self.nest
        fast, row_axes = nest.reduced[-1].name, {axis.name for axis in nest.kept if axis.extent > 1}
        tensors = dict.fromkeys((*(tv for tv in self.fusion.tensor_inputs if tv in nest.index), *nest.full))
        return [tv for tv in tensors if fast in (along := nest.axes_of(tv)) and row_axes & along]

    def _packed_rows(self, space: Space) -> int:
        """Return the smallest number of rows that are whole accesses in each tensor of rows; 0 if there is none.

        The rows of each tensor must follow one another without gaps, so that those of a block are contiguous.
        """
        nest = self.nest
        if not (nest.reductions and self.inner_reduced) or len(nest.reduced) != 1 or nest.scans:
            return 0
        if space.rows < 2 or not gains_from_copies(space.depth) or self.has_windows:
            return 0
        tensors = self.row_tensors()
        if not tensors or space.vector * max(tv.dtype.itemsize for tv in tensors) >= _WIDE_ENOUGH:
            return 0
        ranges = {"row": (0, space.rows - 1), "place": (0, space.depth - 1)}
        row, place = index_var("row"), index_var("place")
        packed = 1
        for tensor in tensors:
            at = nest.at(tensor, {**axis_indices(nest.kept, row, ranges), nest.reduced[-1].name: place})
            position = simplify(self.layouts[tensor].position(tuple(simplify(i, ranges) for i in at)), ranges)
            buffer, width = self.buffers[tensor.name], ACCESS_BYTES // tensor.dtype.itemsize
            whole = buffer.alignment % ACCESS_BYTES == 0 and space.rows * space.depth % width == 0
            if position != simplify(row * space.depth + place, ranges) or not whole:
                return 0
            packed = max(packed, width // math.gcd(width, space.depth))
        return packed

    def _division(self, plain: int) -> tuple[TensorView, int] | None:
        """Return the tensor whose accesses divide rows into groups, and the number of elements of a group.

        None if groups of ``plain`` elements that begin with the row are wide enough, or if accesses to large tensors
        begin at different positions of a row.
        """
        nest = self.nest
        fast = nest.reduced[-1] if nest.reduced else None
        if not ((nest.reductions or nest.scans) and self.inner_reduced) or fast is None:
            return None
        if len(nest.reduced) != 1 or fast.extent < _DIVIDED_FROM:
            return None
        ranges = self.ranges()
        all_accesses = list(accesses(self.at_one_point(), fast.name))
        near = [a.buffer for a in all_accesses if a.step == 1]
        named = {tv.name: tv for tv in nest.index}
        lead = named.get(max(near, key=lambda b: b.size * b.dtype.itemsize).name) if near else None
        if lead is None or plain * lead.dtype.itemsize >= _WIDE_ENOUGH:
            return None
        largest = max(a.buffer.size * a.buffer.dtype.itemsize for a in all_accesses)
        start = self.start_of_row(lead, {}, ranges)
        if any(step < 0 for _, step in linear(start, ranges).parts):
            return None  # targets disagree on the remainder of negative numbers
        size = MOST_NEIGHBOURS
        while size > plain:
            reach = {"first": (0, self.buffers[lead.name].size // size), "chunk": (0, fast.extent // size + 1)}
            places = {fast.name: (index_var("first") + index_var("chunk")) * size + index_var("v") - start}
            tried = accesses(self.trial(places, {**ranges, **reach, "v": (0, size - 1)}), "v")
            moving = [a for a in tried if a.step]
            large = [a for a in moving if a.buffer.size * a.buffer.dtype.itemsize * SMALL >= largest]
            least = min((a.buffer.dtype.itemsize for a in large), default=ACCESS_BYTES)
            narrow = [a for a in moving if a.width(size) < min(size, ACCESS_BYTES // a.buffer.dtype.itemsize)]
            nbytes = sum({a.buffer: a.buffer.dtype.itemsize for a in narrow}.values())
            if size * least <= ACCESS_BYTES and not set(narrow) & set(large) and nbytes <= _NARROW_BYTES:
                return lead, size
            size //= 2
        return None

    # Tiles of two axes

    def _with_tiles(self, space: Space, tiled: TiledAxes) -> Space:
        """Return a space with the tiles of tensors that are transposed."""
        others = self.fast_along(tiled.along) if self.nest.reductions else self.nest.full
        size = max(tv.dtype.itemsize for tv in (*tiled.inputs, *others))
        return replace(
            space, transposed=(tiled.across.extent, tiled.along.extent), itemsize=size,
            vector=max(ACCESS_BYTES // size, 1),
            transposed_bytes=sum(tv.dtype.itemsize for tv in (*tiled.inputs, *tiled.outputs)),
            mirrored=self._is_mirrored(tiled), shifted=False, window=1,
        )

    def _is_mirrored(self, tiled: TiledAxes) -> bool:
        """Whether a tensor is read along both axes: each tile straight and, at another position, transposed.

        If the whole tensor fits in the L2 cache, the order of tiles does not matter.
        """
        if tiled.across.extent != tiled.along.extent:
            return False
        item = max((tv.dtype.itemsize for tv in tiled.inputs), default=0)
        if 2 * tiled.across.extent * tiled.along.extent * item <= self.device.l2:
            return False
        names = [tiled.parts[axis.name][-1].name for axis in (tiled.across, tiled.along)]
        read = [tv for tv in self.nest.index if tv in self.fusion.inputs and tv.numel]
        steps = {tv: self.steps(tv) or {} for tv in read}
        return any(
            self.buffers[a.name] is self.buffers[b.name]
            and [steps[a].get(name) for name in names] == [steps[b].get(name) for name in reversed(names)]
            for a in tiled.inputs for b in read if b not in tiled.inputs
        )

    def _tiles_of_sums(self) -> TiledAxes | None:
        """Return the axes of tiles: a kept and a reduced axis along which inputs are contiguous; None without both."""
        nest = self.nest
        if not nest.reductions or nest.full or nest.scans or self.passes > 1:
            return None
        votes = {axis: self.fast_along(axis) for axis in nest.axes}

        def chosen(axes: Sequence[Axis]) -> Axis | None:
            voted = [axis for axis in axes if votes[axis]]
            return max(voted, key=lambda axis: sum(tv.nbytes for tv in votes[axis]), default=None)

        along, across = chosen(nest.kept), chosen(nest.reduced)
        if along is None or across is None or min(along.extent, across.extent) < LEAST:
            return None
        # The direction of a tensor that varies along one axis only does not count: it has one element for a whole side.
        moved, straight = (
            [tv for tv in votes[axis] if other.name in (self.steps(tv) or {})]
            for axis, other in ((across, along), (along, across))
        )
        if not moved or not straight:
            return None
        if len(moved) > MOST_TILES:
            return None
        axes = (*(axis for axis in nest.axes if axis is not along), along)
        return TiledAxes(
            axes=axes, parts={axis.name: (axis,) for axis in axes}, across=across, inputs=tuple(moved), outputs=(),
        )

    def fast_along(self, axis: Axis) -> list[TensorView]:
        """Return the large inputs that are contiguous along an axis."""
        inputs = [tv for tv in self.nest.index if tv in self.fusion.inputs and tv.numel]
        largest = max((tv.nbytes for tv in inputs), default=0)
        return [
            tv for tv in inputs
            if tv.nbytes * SMALL >= largest and (steps := self.steps(tv)) is not None and steps.get(axis.name) == 1
        ]


def gpu_facts(facts: NestFacts) -> GpuFacts:
    """Return the facts about a nest that is planned for a GPU."""
    assert isinstance(facts, GpuFacts)
    return facts

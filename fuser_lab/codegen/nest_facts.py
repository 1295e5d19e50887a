"""The facts about one nest of loops by which its schedule is chosen: its axes, passes and accesses to memory.

`tiles_of` gives the tensors that are transposed, because their fastest axis differs from that of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from fuser_lab.codegen.index_math import Ranges, linear, simplify, variables
from fuser_lab.codegen.kernel_ir import Buffer, Layout, Load, Statement, Store, terms_of, walk
from fuser_lab.codegen.nests import (
    Axis,
    Nest,
    at_one_point,
    axis_indices,
    even_run,
    fastest_is_reduced,
    ranges_of,
    trial,
)
from fuser_lab.codegen.values import level_of
from fuser_lab.codegen.vector_widths import SMALL
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.planned_cpu import LINE
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.term import Term, Var, apply
from fuser_lab.schedule.state import Space


@dataclass(frozen=True, kw_only=True, eq=False)
class NestFacts:
    """A nest with the memory of its tensors, and the facts that follow from both, whatever loops are chosen.

    Attributes
    ----------
    fusion
        The ops that the nest computes.
    nest
        The nest.
    buffers, layouts
        The memory of inputs and outputs, by name, and the positions of tensors in it.
    device
        The GPU for which loops are chosen.
    column_sums
        Sums over rows to which the nest adds each of its rows, besides the reductions along rows.
    """

    fusion: Fusion
    nest: Nest
    buffers: Mapping[str, Buffer]
    layouts: Mapping[TensorView, Layout]
    device: Device = DEFAULT
    column_sums: tuple[Expr, ...] = ()
    # What each pass needs, once `persistence` has computed it.
    needs: dict[tuple[object, ...], frozenset[TensorView]] = field(init=False, default_factory=dict, repr=False)

    @cached_property
    def levels(self) -> Mapping[Val, int]:
        """How many reductions, and scans between passes, precede each value, one after another."""
        return level_of(self.fusion, scans=self.nest.scans_between_passes)

    @property
    def is_scanned(self) -> bool:
        """Whether the points of a row are visited once for all scans, and not in passes."""
        return bool(self.nest.scans) and not self.nest.scans_between_passes

    @cached_property
    def passes(self) -> int:
        """How often the points of the nest are visited, because values depend on complete reductions."""
        folds = [self.levels.get(expr.inputs[0], 0) + 1 for expr in (*self.nest.reductions, *self.nest.scans)]
        stores = [self.levels.get(tv, 0) + 1 for tv in self.nest.full]
        return max([*folds, *stores], default=1)

    def reductions_in(self, number: int) -> tuple[Expr, ...]:
        """Return the reductions that a pass computes."""
        return tuple(expr for expr in self.nest.reductions if self.levels.get(expr.inputs[0], 0) == number)

    def scans_in(self, number: int) -> tuple[Expr, ...]:
        """Return the scans whose operands a pass computes."""
        return tuple(expr for expr in self.nest.scans if self.levels.get(expr.inputs[0], 0) == number)

    def stored_in(self, number: int) -> tuple[TensorView, ...]:
        """Return the results with an element per point that a pass stores."""
        return tuple(tv for tv in self.nest.full if self.levels.get(tv, 0) == number)

    @cached_property
    def kept_run(self) -> tuple[Axis, ...]:
        """The innermost kept axes that can be one loop, because every access has one stride along them."""
        return self._run_of(self.nest.kept)

    @property
    def kept_outer(self) -> tuple[Axis, ...]:
        """The other kept axes."""
        return self.nest.kept[: len(self.nest.kept) - len(self.kept_run)]

    @cached_property
    def reduced_run(self) -> tuple[Axis, ...]:
        """The innermost reduced axes that can be one loop."""
        return self._run_of(self.nest.reduced)

    @property
    def reduced_outer(self) -> tuple[Axis, ...]:
        """The other reduced axes."""
        return self.nest.reduced[: len(self.nest.reduced) - len(self.reduced_run)]

    def _run_of(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        count = even_run(self.fusion, self.nest, self.buffers, self.layouts, axes)
        return axes[len(axes) - count :]

    @cached_property
    def inner_reduced(self) -> bool:
        """Whether loops are over rows, whose reduced elements are contiguous in memory."""
        return not self.has_windows and fastest_is_reduced(
            self.fusion, self.nest, self.buffers, self.layouts, self._reads,
        )

    @property
    def has_windows(self) -> bool:
        """Whether a thread or vector lane reduces whole windows, as of a pool, although these are contiguous."""
        raise NotImplementedError

    @property
    def _reads(self) -> int:
        """How often each element of a row is read from memory."""
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """The properties by which loops are chosen."""
        raise NotImplementedError

    def _extents(self) -> Space:
        """Return the space of the nest without properties that differ between targets."""
        nest = self.nest
        return Space(
            kept=tuple(axis.extent for axis in nest.kept),
            reduced=tuple(axis.extent for axis in nest.reduced),
            kept_run=extent_of(self.kept_run),
            reduced_run=extent_of(self.reduced_run),
            inner_reduced=self.inner_reduced,
            reduces_outermost=nest.reduces_outermost,
            passes=self.passes,
            reduces=bool(nest.reductions),
            scans=len(nest.scans),
            device=self.device,
            column_sums=tuple(expr.out.dtype.compute.itemsize for expr in self.column_sums),
        )

    def steps(self, tensor: TensorView) -> dict[str, int] | None:
        """Return a tensor's strides along the nest's axes; None if an access has no single stride along each."""
        form = linear(self.layouts[tensor].position(self.nest.index[tensor]), self.ranges())
        if not all(isinstance(atom, Var) for atom, _ in form.parts):
            return None
        return {atom.name: step for atom, step in form.parts if isinstance(atom, Var)}

    def trial(self, places: Mapping[str, Term], ranges: Ranges) -> tuple[Statement, ...]:
        """Return the statements of the nest at one point, without loops, to inspect its accesses."""
        return trial(self.fusion, self.nest, self.buffers, self.layouts, places, ranges)

    def at_one_point(self) -> tuple[Statement, ...]:
        """Return the statements of the nest at one point, whose indices are the axis variables."""
        return at_one_point(self.fusion, self.nest, self.buffers, self.layouts)

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest value of each axis."""
        return ranges_of(self.nest.axes)


def extent_of(axes: Sequence[Axis]) -> int:
    """Return the number of points of some axes."""
    return prod(axis.extent for axis in axes)


MOST_TILES = crossover("tiles.together")
LEAST = LINE  # elements along both axes of a tile; with fewer, adjacent rows share cache lines


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledAxes:
    """A nest's axes, merged where all accesses allow it, and the tensors that are fast along ``across``."""

    axes: tuple[Axis, ...]
    parts: Mapping[str, tuple[Axis, ...]]  # the nest's axes in each of ``axes``
    across: Axis
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]

    @property
    def along(self) -> Axis:
        """The fastest axis of the other tensors."""
        return self.axes[-1]

    @property
    def others(self) -> tuple[Axis, ...]:
        """The axes that are not cut into tiles."""
        return tuple(a for a in self.axes if a not in (self.across, self.along))

    def spread(self, places: Mapping[str, Term], ranges: Ranges) -> dict[str, Term]:
        """Return the nest's axes as terms of the merged axes, which are within their extents."""
        result: dict[str, Term] = {}
        for axis in self.axes:
            outermost, *parts = self.parts[axis.name]
            inner = prod(part.extent for part in parts)
            result.update(axis_indices(parts, places[axis.name], ranges))
            # A remainder would cost one multiplication per access; partial tiles are guarded instead.
            result[outermost.name] = simplify(apply("floordiv", places[axis.name], inner), ranges)
        return result


def tiles_of(facts: NestFacts) -> TiledAxes | None:
    """Return tiles of the two axes along which most bytes of a nest without reductions are contiguous, or None."""
    nest = facts.nest
    if nest.reductions or not nest.full or len(nest.kept) < 2:
        return None
    axes, parts = _merged_axes(facts)
    along = axes[-1]
    tensors = [tv for tv in nest.index if (tv in facts.fusion.inputs or tv in nest.full) and tv.numel]
    largest = max(tv.nbytes for tv in tensors)
    votes: dict[str, list[TensorView]] = {}
    for tensor in tensors:
        steps = facts.steps(tensor)
        if steps is None or steps.get(parts[along.name][-1].name, 0) in (0, 1) or tensor.nbytes * SMALL < largest:
            continue
        for axis in axes[:-1]:
            if steps.get(parts[axis.name][-1].name) == 1:
                votes.setdefault(axis.name, []).append(tensor)
    if not votes:
        return None
    name, moved = max(votes.items(), key=lambda vote: sum(tv.nbytes for tv in vote[1]))
    across = next(a for a in axes if a.name == name)
    if min(across.extent, along.extent) < LEAST:
        return None
    moved = sorted(moved, key=lambda tv: -tv.nbytes)[:MOST_TILES]
    return TiledAxes(
        axes=axes, parts=parts, across=across,
        inputs=tuple(tv for tv in moved if tv not in nest.full),
        outputs=tuple(tv for tv in moved if tv in nest.full),
    )


def _merged_axes(facts: NestFacts) -> tuple[tuple[Axis, ...], dict[str, tuple[Axis, ...]]]:
    """Return the axes, with adjacent ones merged if every access has one stride for both, and their parts."""
    ranges = facts.ranges()
    bound: set[str] = set()  # axes that occur in conditions, quotients or remainders
    walks: list[dict[str, int]] = []
    for statement in walk(facts.at_one_point()):
        positions = [statement.position] if isinstance(statement, Store) else []
        for root in terms_of(statement):
            positions += [term.position for term in root.walk() if isinstance(term, Load)]
            if root not in positions:
                bound |= _looked_at(root)
        for position in positions:
            parts = linear(position, ranges).parts
            bound |= {name for atom, _ in parts if not isinstance(atom, Var) for name in variables(atom)}
            walks.append({atom.name: step for atom, step in parts if isinstance(atom, Var)})
    groups: list[list[Axis]] = []
    for axis in facts.nest.kept:
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


def _looked_at(term: Term) -> set[str]:
    """Return the index variables that a term uses other than as a position."""
    if isinstance(term, Load):
        return set()
    if isinstance(term, Var) and term.dtype is DataType.Index:
        return {term.name}
    return set().union(*map(_looked_at, term.children))

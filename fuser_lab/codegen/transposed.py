"""The tensors of a nest that are transposed, because their fastest axis differs from that of the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fuser_lab.codegen.index_math import Ranges, linear, simplify, variables
from fuser_lab.codegen.kernel_ir import Load, Store, terms_of, walk
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nests import Axis, axis_indices
from fuser_lab.codegen.vectorize import SMALL
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.term import Term, Var, apply

MOST_TILES = crossover("tiles.together")
LEAST = crossover("tiles.least")


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

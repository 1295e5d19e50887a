"""Reductions of a set of expressions: patterns, what happens after them, what must be kept across them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, Self

from fuser_lab.analysis.domain_map import ExactMap, Link
from fuser_lab.ir import OpKind, TensorView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionPattern:
    """The axes that one reduction keeps and reduces, as classes, without broadcast axes.

    ``axes`` are the classes of the operand with a flag for reduced ones, in order. ``inner`` says whether the fastest
    axis is reduced, ``numel`` how many elements each result is reduced from, and ``rows`` how many results there are.
    """

    name: str
    axes: tuple[tuple[int, bool], ...]
    inner: bool
    numel: int
    rows: int

    @property
    def kept(self) -> frozenset[int]:
        """Classes of the axes that stay."""
        return frozenset(c for c, reduced in self.axes if not reduced)

    @property
    def reduced(self) -> frozenset[int]:
        """Classes of the axes that are reduced."""
        return frozenset(c for c, reduced in self.axes if reduced)

    @property
    def is_split(self) -> bool:
        """Whether kept axes lie between reduced ones, so that rows are not contiguous (nvFuser: 3-D)."""
        flags = [reduced for _, reduced in self.axes]
        return sum(a is not b for a, b in pairwise(flags)) > 1

    @property
    def places(self) -> str:
        """The positions of the reduced axes among all axes that are not broadcast axes, as text."""
        return f"{[i for i, (_, reduced) in enumerate(self.axes) if reduced]} of {len(self.axes)} axes"

    def contrast(self, other: Self) -> str:
        """Return how the axes of two reductions differ, to follow a demand for the same axes; empty if sizes say it."""
        if (self.numel, self.rows) != (other.numel, other.rows):
            return ""
        if (self.kept, self.reduced) == (other.kept, other.reduced):
            return " in the same order"
        if self.kept | self.reduced == other.kept | other.reduced:
            return f", but {self.name} reduces {self.places} and {other.name} reduces {other.places}"
        gap = f"no op of the candidate relates all axes of {self.name} to those of {other.name}"
        return f", which equal sizes do not prove: {gap}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentBuffer:
    """A tensor that must stay on chip while a reduction of it runs.

    ``resolved_at`` names the last expression that needs both the tensor and the reduction's result.
    """

    tensor: TensorView
    reduction: str
    resolved_at: str


NewValues = tuple[dict[str, str], tuple[str, str] | None]


class PartlyReduced(NamedTuple):
    """A tensor with only some of the axes of a reduction that it feeds."""

    tensor: str
    reduction: str
    present: int
    axes: int


def patterns(exact: ExactMap, links: Iterable[Link]) -> tuple[ReductionPattern, ...]:
    """Return the pattern of each reduction, in order."""
    shared: dict[tuple[object, ...], ReductionPattern] = {}  # the same but for the name
    reductions = []
    for link in links:
        if link.kind is OpKind.REDUCTION:
            key = exact.classes[link.operands[0]], link.reduced, link.root_extents
            same = shared.get(key)
            if same is None:
                same = shared[key] = _pattern(exact, link)
            reductions.append(
                ReductionPattern(name=link.name, axes=same.axes, inner=same.inner, numel=same.numel, rows=same.rows),
            )
    return tuple(reductions)


def _pattern(exact: ExactMap, link: Link) -> ReductionPattern:
    operand = exact.classes[link.operands[0]]
    gone = set(link.reduced)
    axes = tuple(
        (c, place in gone)
        for place, c in enumerate(operand)
        if not exact.broadcast[c] or (place in gone and link.root_extents[place] != 1)
    )
    return ReductionPattern(
        name=link.name,
        axes=axes,
        inner=axes[-1][1] if axes else True,
        numel=prod(link.root_extents[place] for place in gone),
        rows=prod(exact.extent[c] for c, reduced in axes if not reduced),
    )


@dataclass
class ReductionFlow:
    """How values flow around reductions.

    ``after[tensor]`` is the set of reductions (as bits, in order) that a tensor depends on, ``feeds[tensor]`` the set
    of those that depend on it.
    """

    exact: ExactMap
    links: Sequence[Link]
    names: list[str]
    after: dict[str, int]
    full: dict[tuple[int, ...], bool]
    reduced: frozenset[int]

    @classmethod
    def of(cls, exact: ExactMap, links: Sequence[Link], patterns: Sequence[ReductionPattern]) -> "ReductionFlow":
        """Return the flow of expressions whose reductions have the given patterns."""
        after: dict[str, int] = {}
        names: list[str] = []
        for link in links:
            bits = 0
            for name in link.operands:
                bits |= after.get(name, 0)
            if link.kind is OpKind.REDUCTION:
                bits |= 1 << len(names)
                names.append(link.name)
            after[link.name] = bits
        every = {pattern.axes for pattern in patterns}
        reduced = frozenset().union(*[frozenset(c for c, gone in axes if gone) for axes in every])
        return cls(exact, links, names, after, {}, reduced)

    def followed_by(self, exact: ExactMap, links: Sequence[Link], further: Collection[Link]) -> "ReductionFlow":
        """Return the flow with further expressions, which are no reductions and which these ones do not read.

        ``links`` has both in order; the classes of ``exact`` begin with those here.
        """
        after = self.after.copy()
        for link in further:
            bits = 0
            for name in link.operands:
                bits |= after.get(name, 0)
            after[link.name] = bits
        flow = ReductionFlow(exact, links, self.names, after, self.full, self.reduced)
        flow.feeds = self.feeds
        if not flow.broadcasts_among(further):
            flow.broadcasts_after = self.broadcasts_after
        values, first = self.new_values
        if first is None:
            flow.new_values = flow.new_among(further, values.copy())
        return flow

    @cached_property
    def feeds(self) -> dict[str, int]:
        """The reductions that depend on each tensor."""
        feeds: dict[str, int] = {}
        bit = 1 << len(self.names)
        for link in reversed(self.links):
            bits = feeds.get(link.name, 0)
            if link.kind is OpKind.REDUCTION:
                bit >>= 1
                bits |= bit
            if bits:
                for name in link.operands:
                    feeds[name] = feeds.get(name, 0) | bits
        return feeds

    def has_reduced_axis(self, tensor: str) -> bool:
        """Whether a tensor has an axis that some reduction removes."""
        numbers = self.exact.classes[tensor]
        is_reduced = self.full.get(numbers)
        if is_reduced is None:
            is_reduced = self.full[numbers] = not self.reduced.isdisjoint(numbers)
        return is_reduced

    def buffers(self) -> tuple[PersistentBuffer, ...]:
        """Return what must be kept across reductions and can be, in order of first need."""
        return tuple(buffer for buffer in self.needed_again() if self.partly_reduced(buffer.tensor.name) is None)

    def partly_reduced(self, tensor: str) -> PartlyReduced | None:
        """Return a reduction that prevents a tensor from being kept, or None.

        The threads that a reduction distributes over all of its axes as one cannot each keep their elements of a tensor
        that has only some of these axes. Reductions that another reduction of the tensor leads to do not count.
        nvFuser: csrc/scheduler/normalization_utils.cpp:1918-2024 (isCacheableUnmappableTv).
        """
        numbers, waiting = self.exact.classes[tensor], self.feeds.get(tensor, 0)
        while waiting:
            place = (waiting & -waiting).bit_length() - 1
            name = self.names[place]
            waiting &= ~(self.feeds.get(name, 0) | 1 << place)
            # A broadcast axis of size 1 is squeezed rather than reduced.
            reduced = self.exact.reduced.get(name, ())
            axes = [c for c in reduced if not self.exact.broadcast[c] or self.exact.extent[c] > 1]
            present = sum(c in numbers for c in axes)
            if 0 < present < len(axes):
                return PartlyReduced(tensor, name, present, len(axes))
        return None

    def needed_again(self) -> tuple[PersistentBuffer, ...]:
        """Return the tensors that are needed before a reduction and again after it, in order of first need."""
        return self.needed_by(self.links)

    def needed_by(self, links: Iterable[Link]) -> tuple[PersistentBuffer, ...]:
        """Return the tensors that some expressions need again after a reduction, in order of first need."""
        buffers: dict[str, PersistentBuffer] = {}
        after = self.after
        joining = [link for link in links if len(link.operands) > 1 and after[link.name]]
        by_name = {link.name: link for link in self.links} if joining else {}
        for link in joining:
            operands = link.operands
            bits = [after.get(name, 0) for name in operands]
            total = after[link.name]
            for name, before in zip(operands, bits, strict=True):
                new = total & ~before
                if new and self.has_reduced_axis(name):
                    self._keep(name, new, link.name, by_name, buffers)
        return tuple(buffers.values())

    def _keep(
        self, start: str, new: int, resolved: str, by_name: dict[str, Link], buffers: dict[str, PersistentBuffer],
    ) -> None:
        stack, seen = [start], {start}
        while stack:
            name = stack.pop()
            both = self.feeds.get(name, 0) & new
            if both:
                old = buffers.get(name)
                first = self.names[(both & -both).bit_length() - 1] if old is None else old.reduction
                buffers[name] = PersistentBuffer(
                    tensor=self.tensors[name], reduction=first, resolved_at=resolved,
                )
                continue
            maker = by_name.get(name)
            if maker is None or maker.kind is OpKind.REDUCTION:
                continue
            for operand in maker.operands:
                if operand not in seen and self.has_reduced_axis(operand):
                    seen.add(operand)
                    stack.append(operand)

    @cached_property
    def tensors(self) -> dict[str, TensorView]:
        """The tensors of all expressions by name."""
        tensors: dict[str, TensorView] = {}
        for link in self.links:
            for tensor in (*link.tensors, link.out):
                tensors.setdefault(tensor.name, tensor)
        return tensors

    @cached_property
    def broadcasts_after(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Broadcasts of values that depend on a reduction, with the classes of their new axes.

        A reshape to more axes of size 1 is one of them, as in nvFuser, whose reshape ends with a broadcast.
        """
        return self.broadcasts_among(self.links)

    def broadcasts_among(self, links: Iterable[Link]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return those of `broadcasts_after` that are among some expressions."""
        broadcasts = []
        for link in links:
            if link.kind not in {OpKind.BROADCAST, OpKind.RESHAPE} or not self.after[link.name]:
                continue
            sources = link.sources[0] if link.kind is OpKind.BROADCAST else link.axes
            numbers = zip(self.exact.classes[link.name], sources, strict=True)
            new = tuple(number for number, source in numbers if source < 0)
            if new:
                broadcasts.append((link.name, new))
        return tuple(broadcasts)

    def new_input_after(self) -> tuple[str, str] | None:
        """Return an expression after a reduction with an operand that is computed from an input no reduction reads.

        Inputs are compared, not operands: an input that a reduction reads is not new, whatever is computed from it,
        and a scalar tensor that none reads is new.
        nvFuser: csrc/scheduler/registry_utils.cpp:909-985 (supportedPostReductionFusion).
        """
        return self.new_values[1]

    @cached_property
    def new_values(self) -> NewValues:
        """The values that are computed from an input that no reduction reads, up to `new_input_after`."""
        return self.new_among(self.links, {})

    def new_among(self, links: Collection[Link], new: dict[str, str]) -> NewValues:
        """Return ``new``, values with an input that each is computed from, together with those of some expressions.

        The second item is the first of the expressions that reads such a value after a reduction, and the input.
        """
        made = {link.name for link in links}
        read = {name for link in links for name in link.operands}
        new.update((name, name) for name in (read - made).difference(self.after) if not self.feeds.get(name))
        for link in links if new else ():
            source = next((new[name] for name in link.operands if name in new), None)
            if source is None:
                continue
            if self.after[link.name]:
                return new, (link.name, source)
            new[link.name] = source
        return new, None


def mixing_reshape(exact: ExactMap, pattern: ReductionPattern) -> str | None:
    """Return a reshape that connects axes which the loops of a reduction merge separately.

    These are the innermost axes of one kind, kept or reduced, the axes of the other kind, and the rest. Reshapes that
    only split prevent no loops (nvFuser: csrc/scheduler/registry_utils.cpp:418-560, scheduler/utils.cpp:2305-2332).
    """
    merge = next((derivation.expr for derivation in exact.derivations if derivation.name == "merge"), None)
    if merge is None:
        return None
    edges: dict[int, list[int]] = {}
    for derivation in exact.derivations:
        numbers = (*derivation.sources, *derivation.results)
        for number in numbers:
            edges.setdefault(number, []).extend(numbers)
    kinds = [flag for _, flag in pattern.axes]
    inner = next((place for place in range(len(kinds), 0, -1) if kinds[place - 1] is not kinds[-1]), 0)
    groups = (
        {number for number, _ in pattern.axes[inner:]},
        {number for number, flag in pattern.axes if flag is not kinds[-1]},
        {number for number, flag in pattern.axes[:inner] if flag is kinds[-1]},
    )
    for place, group in enumerate(groups):
        connected = _reach(group, edges)
        if any(not connected.isdisjoint(other) for other in groups[place + 1 :]):
            return next((d.expr for d in exact.derivations if d.name == "merge" and connected & {*d.sources}), merge)
    return None


def _reach(start: Iterable[int], edges: dict[int, list[int]]) -> set[int]:
    stack = list(start)
    seen: set[int] = set()
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            stack.extend(edges.get(number, ()))
    return seen

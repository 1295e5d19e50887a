"""Loops of a fusion scheduled by hand: which loops are shared, their extents, and the element of each iteration.

Tensors that are computed inside loops of others share these loops. A tensor with a broadcast axis that is merged into a
shared loop runs over the consumer's extent (nvFuser promotes such loops), and its index comes from the consumer.
Otherwise the index of an element follows from the tensor's own splits and merges, applied backwards.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.codegen.index_map import ZERO, Index, Read, element_term, operand_index
from fuser_lab.codegen.index_math import simplify
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ScheduleError
from fuser_lab.ir import DomainTransform, Expr, IterDomain, Merge, OpKind, Split, TensorView
from fuser_lab.ir.axis_match import Match, match
from fuser_lab.ir.loop_order import LoopClasses, Slot
from fuser_lab.ir.term import Apply, Const, Term, Var, apply
from fuser_lab.ir.transform import ParallelType, Rules, ScheduledFusion, ScheduledTensor
from fuser_lab.ops import OPS

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The consumer whose loops a tensor uses."""

    expr: Expr
    consumer: str
    match: Match


class Loops:
    """The loops of all tensors of a scheduled fusion with known sizes."""

    def __init__(self, scheduled: ScheduledFusion, rules: Rules) -> None:
        self.scheduled = scheduled
        self._rules = rules
        self._matches: dict[tuple[str, str], Match] = {}
        self._classes = LoopClasses(scheduled, rules)
        self.followed: dict[str, Followed] = {}
        self._extents: dict[Slot, int] = {}
        self._decide_extents()
        self.parallel = self._parallel_types()
        self._check_reductions()
        self.hardware = self._hardware()

    # Shared loops

    def match(self, producer: str, expr: Expr) -> Match:
        """Return the pairs of loops that a producer and the result of an expression share."""
        key = (producer, expr.name)
        if key not in self._matches:
            tensors = self.scheduled.tensors
            self._matches[key] = match(tensors[producer], tensors[expr.out.name], expr, self._rules)
        return self._matches[key]

    def class_of(self, slot: Slot) -> Slot:
        """Return the representative of all loops that are shared with a loop."""
        return self._classes.of(slot)

    def around(self, name: str, count: int) -> tuple[Slot, ...]:
        """Return the kernel's loops that contain the first loops of a tensor, except blocks and threads."""
        slots = self._classes.around(name, count)
        kinds = ((slot, self.parallel.get(slot, ParallelType.serial)) for slot in slots)
        return tuple(slot for slot, kind in kinds if not (kind.is_block or kind.is_thread))

    # Extents

    def extent(self, slot: Slot) -> int:
        """Return the extent of a loop."""
        return self._extents[slot]

    def _decide_extents(self) -> None:
        """Determine extents, consumers first: the tensor's own, or a consumer's if they share merged broadcasts."""
        for name in reversed(list(self.scheduled.tensors)):
            tensor = self.scheduled.tensors[name]
            spread = broadcast_loops(tensor)
            other = self._shares_others(name, tensor, spread)
            if not other:
                self._use_own_loops(name, tensor, spread)
            elif not self._follow(name, tensor, spread):
                raise ScheduleError(
                    f"{name} shares loops with {other} in which broadcast axes are merged with others, but not all of "
                    f"its loops are loops of one reader; transform it like that reader, or inline it less."
                )

    def _shares_others(self, name: str, tensor: ScheduledTensor, spread: frozenset[int]) -> str:
        """Return a consumer whose shared loops run over elements other than those of the tensor's own transforms."""
        mixed = mixed_loops(tensor)
        for expr in self.scheduled.consumers(name):
            pairs = self.match(name, expr).pairs
            for position in range(tensor.compute_at):
                merged = position in mixed or self._is_mixed(expr.out.name, pairs[position])
                if merged and position not in spread:
                    return expr.out.name
        return ""

    def _use_own_loops(self, name: str, tensor: ScheduledTensor, spread: frozenset[int]) -> None:
        for position, axis in enumerate(tensor.loop):
            # A broadcast axis has one element, however it is split.
            self._extents[name, position] = 1 if position in spread else _size(axis)
        for expr in self.scheduled.consumers(name):
            pairs = self.match(name, expr).pairs
            for position in range(tensor.compute_at):
                if position in spread:
                    self._extents[name, position] = self._extents[expr.out.name, pairs[position]]

    def same_elements(self, producer: str, position: int, expr: Expr) -> int | None:
        """Return the loop of a reader that runs over the same elements as a loop of a producer, or None."""
        place = self.match(producer, expr).pairs.get(position)
        reader = expr.out.name
        if place is None or self._extents[producer, position] != self._extents[reader, place]:
            return None
        # Merged with promoted broadcast axes, equal loops run over different elements.
        mixed = self._is_mixed(producer, position) or self._is_mixed(reader, place)
        return place if producer in self.followed or not mixed else None

    def _is_mixed(self, name: str, position: int) -> bool:
        followed = self.followed.get(name)
        if position in mixed_loops(self.scheduled.tensors[name]):
            return True
        place = None if followed is None else followed.match.pairs.get(position)
        return followed is not None and place is not None and self._is_mixed(followed.consumer, place)

    def _follow(self, name: str, tensor: ScheduledTensor, spread: frozenset[int]) -> bool:
        """Use the loops of the first consumer that has all of them; return whether there is one."""
        for expr in self.scheduled.consumers(name):
            loop_match = self.match(name, expr)
            if len(loop_match.pairs) + len(loop_match.absent_in_consumer) < len(tensor.loop):
                continue
            self.followed[name] = Followed(expr=expr, consumer=expr.out.name, match=loop_match)
            for position in range(len(tensor.loop)):
                inner = position >= tensor.compute_at and position in spread
                partner = None if inner else loop_match.pairs.get(position)
                self._extents[name, position] = 1 if partner is None else self._extents[expr.out.name, partner]
            return True
        return False

    # Parallel types

    def _parallel_types(self) -> dict[Slot, ParallelType]:
        """Return the parallel type of each class of loops, which all tensors that share a loop have."""
        kinds: dict[Slot, tuple[ParallelType, str]] = {}
        for name, tensor in self.scheduled.tensors.items():
            if self.scheduled.is_input(name):
                continue
            for position in range(len(tensor.loop)):
                kind = tensor.parallel_type(position)
                if kind is ParallelType.serial:
                    continue
                slot = self.class_of((name, position))
                first_kind, other = kinds.setdefault(slot, (kind, name))
                if first_kind is not kind:
                    raise ScheduleError(
                        f"{name} and {other} share a loop that is parallelized as {kind.value} in the first and "
                        f"as {first_kind.value} in the second."
                    )
        return {slot: kind for slot, (kind, _) in kinds.items()}

    def _check_reductions(self) -> None:
        """Raise if a reduction shares its loop with a tensor that distributes it over blocks."""
        for name, tensor in self.scheduled.tensors.items():
            for position, axis in enumerate(tensor.loop):
                if axis.is_reduction and self.kind((name, position)).is_block and self._extents[name, position] > 1:
                    raise ScheduleError(
                        f"{name} reduces loop {position}, {axis}, which it shares with a tensor that splits it among "
                        "blocks; blocks cannot combine their results in one kernel."
                    )

    def kind(self, slot: Slot) -> ParallelType:
        """Return the parallel type of a loop."""
        return self.parallel.get(self.class_of(slot), ParallelType.serial)

    def _hardware(self) -> dict[ParallelType, int]:
        """Return the number of blocks and threads in each direction."""
        sizes: dict[ParallelType, int] = {}
        for name, tensor in self.scheduled.tensors.items():
            for position in range(len(tensor.loop)):
                kind = self.kind((name, position))
                if (kind.is_block or kind.is_thread) and not self.scheduled.is_input(name):
                    sizes[kind] = max(sizes.get(kind, 1), self._extents[name, position])
        return sizes

    def single(self, name: str) -> frozenset[int]:
        """Return the positions of loops along which a tensor has a single element in every thread."""
        spread = frozenset() if name in self.followed else broadcast_loops(self.scheduled.tensors[name])
        count = len(self.scheduled.tensors[name].loop)
        return spread | {position for position in range(count) if self._extents[name, position] == 1}

    # The element of an iteration

    def logical(self, name: str, at: Sequence[Term], ranges: Ranges) -> dict[int, Term]:
        """Return the index of each axis of a tensor, root and logical, from the terms of its loops."""
        tensor = self.scheduled.tensors[name]
        followed = self.followed.get(name)
        if followed is None:
            indices = {axis.id: term for axis, term in zip(tensor.loop, at, strict=True)}
            return backwards((*tensor.tensor.domain.transforms, *tensor.steps), indices, ranges)
        inside = self.logical(followed.consumer, self._consumer_terms(followed, at), ranges)
        index = operand_of(followed.expr, self.scheduled.tensors[followed.consumer].tensor, tensor.tensor, inside)
        indices = {
            axis.id: simplify(term, ranges) for axis, term in zip(tensor.tensor.domain.axes, index, strict=True)
        }
        return backwards(tensor.tensor.domain.transforms, indices, ranges)

    def _consumer_terms(self, followed: Followed, at: Sequence[Term]) -> list[Term]:
        count = len(self.scheduled.tensors[followed.consumer].loop)
        places = {b: a for a, b in followed.match.pairs.items()}
        return [at[places[position]] if position in places else ZERO for position in range(count)]

    def conditions(self, name: str, at: Sequence[Term], ranges: Ranges) -> list[Term]:
        """Return the conditions under which an iteration has an element: no split exceeds the axis it splits."""
        tensor = self.scheduled.tensors[name]
        followed = self.followed.get(name)
        if followed is not None:
            return self.conditions(followed.consumer, self._consumer_terms(followed, at), ranges)
        indices = self.logical(name, at, ranges)
        limits = [
            apply("lt", indices[step.source.id], _size(step.source))
            for step in (*tensor.tensor.domain.transforms, *tensor.steps)
            if isinstance(step, Split) and step.source.id in indices and _size(step.source) % step.factor
        ]
        return [condition for condition in limits if not _always(condition, ranges)]

    def forward(self, name: str, index: Mapping[int, Term], ranges: Ranges) -> dict[int, Term]:
        """Return the terms of a tensor's loops, by axis number, for an element given by its logical index.

        An expanded axis, which a reshape may read at any index, has one element.
        """
        tensor = self.scheduled.tensors[name]
        single = {axis.id: ZERO for axis in tensor.tensor.domain.axes if axis.is_broadcast}
        return forwards(tensor.steps, {**index, **single}, ranges)


def _always(condition: Term, ranges: Ranges) -> bool:
    value = simplify(condition, ranges)
    return isinstance(value, Const) and bool(value.value)


def operand_of(expr: Expr, out: TensorView, operand: TensorView, indices: Mapping[int, Term]) -> Index:
    """Return the index of an operand of an expression, given the index of its result's axes."""
    if expr.kind is OpKind.REDUCTION:
        return tuple(indices[axis.id] for axis in out.domain.root_or_logical)
    index = tuple(indices[axis.id] for axis in out.domain.axes)
    if OPS[expr.op.name].scalar is not None:
        return operand_index(operand, index)
    read = element_term(expr, index)
    if isinstance(read, Read) and read.tensor == operand:
        return read.index
    msg = f"{operand.name} cannot be computed inside loops of {out.name}: {expr.op.name} reads other elements of it."
    raise ScheduleError(msg)


def broadcast_loops(tensor: ScheduledTensor, of: Callable[[tuple[bool, bool]], bool] = all) -> frozenset[int]:
    """Return the positions of loops that run only over broadcast axes; over at least one for ``any``."""
    spread = {axis.id: axis.is_broadcast for axis in tensor.tensor.domain.logical}
    for step in tensor.steps:
        if isinstance(step, Split):
            spread[step.outer.id] = spread[step.inner.id] = spread[step.source.id]
        else:
            spread[step.result.id] = of((spread[step.outer.id], spread[step.inner.id]))
    return frozenset(position for position, axis in enumerate(tensor.loop) if spread[axis.id])


def mixed_loops(tensor: ScheduledTensor) -> frozenset[int]:
    """Return the positions of loops over a broadcast axis merged with other axes."""
    return broadcast_loops(tensor, any) - broadcast_loops(tensor)


def backwards(steps: Sequence[DomainTransform], end_indices: Mapping[int, Term], ranges: Ranges) -> dict[int, Term]:
    """Return the indices of the axes that transforms start from, given the indices of the axes that they end with."""
    indices = dict(end_indices)
    for step in reversed(steps):
        if isinstance(step, Split):
            if step.outer.id in indices and step.inner.id in indices:
                inside = apply("mul", indices[step.outer.id], _size(step.inner))
                indices[step.source.id] = simplify(inside + indices[step.inner.id], ranges)
        elif isinstance(step, Merge) and step.result.id in indices:
            whole, size = indices[step.result.id], max(_size(step.inner), 1)
            indices[step.outer.id] = simplify(_apply("floordiv", whole, size), ranges)
            indices[step.inner.id] = simplify(_apply("mod", whole, size), ranges)
    return indices


def forwards(steps: Iterable[DomainTransform], start_indices: Mapping[int, Term], ranges: Ranges) -> dict[int, Term]:
    """Return the indices of the axes that transforms end with, given the indices of the axes that they start from."""
    indices = dict(start_indices)
    for step in steps:
        if isinstance(step, Split):
            if step.source.id in indices:
                size = _size(step.inner)
                indices[step.outer.id] = simplify(_apply("floordiv", indices[step.source.id], size), ranges)
                indices[step.inner.id] = simplify(_apply("mod", indices[step.source.id], size), ranges)
        elif isinstance(step, Merge) and step.outer.id in indices and step.inner.id in indices:
            inside = apply("mul", indices[step.outer.id], _size(step.inner))
            indices[step.result.id] = simplify(inside + indices[step.inner.id], ranges)
    return indices


def _apply(fn: str, term: Term, size: int) -> Term:
    return Apply(DataType.Index, fn, (term, Const(DataType.Index, size)))


def _size(axis: IterDomain) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent


def index_of(name: str) -> Var:
    """Return an index variable."""
    return Var(DataType.Index, name)

"""Which loops of two neighbouring tensors are one loop, and how to replay the loops of one on the other.

Loops are compared by their derivation. The key of a loop axis says which splits and merges lead to it from the axes
that an expression pairs (`Rules.pairs`); two loops with equal keys run over the same elements. A broadcast axis that
the other tensor lacks does not appear in a key: a merge with it counts as the other axis, as nvFuser forwards such axes
(csrc/transform_iter.cpp).
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.domain import DomainTransform, IterDomain, IterType, Merge, Split
from fuser_lab.ir.expr import Expr
from fuser_lab.ir.transform import AxisMaker, Rules, ScheduledTensor
from fuser_lab.ir.val import TensorView

Keys = dict[int, Hashable | None]


def keys_of(transforms: Iterable[DomainTransform], leaves: Mapping[int, Hashable | None]) -> Keys:
    """Return the key of each axis that transforms reach from given ones; None for axes without counterpart."""
    keys: Keys = dict(leaves)
    for step in transforms:
        if isinstance(step, Split):
            source = keys.get(step.source.id)
            for part, axis in (("outer", step.outer), ("inner", step.inner)):
                keys[axis.id] = None if source is None else (part, source, step.factor, step.inner_split)
        elif isinstance(step, Merge):
            outer, inner = keys.get(step.outer.id), keys.get(step.inner.id)
            keys[step.result.id] = inner if outer is None else outer if inner is None else ("merge", outer, inner)
        else:
            source = keys.get(step.source.id)
            keys[step.result.id] = None if source is None else ("resize", step.result.id)
    return keys


def pair_axes(expr: Expr, operand: TensorView, rules: Rules) -> dict[int, int]:
    """Return which axis of an operand, by number, is which axis of the result's root."""
    places = {number for number, tensor in enumerate(expr.tensor_inputs) if tensor == operand}
    return {producer.id: consumer.id for number, producer, consumer in rules.pairs(expr) if number in places}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Positions of loops that a producer and a consumer share, and those without a counterpart in each."""

    pairs: Mapping[int, int]
    absent_in_consumer: frozenset[int]
    absent_in_producer: frozenset[int]

    def shared(self, count: int) -> int | None:
        """Return how many outer loops of the consumer contain the producer's outer ``count`` loops, None if none do.

        New broadcast axes of the consumer may lie between.
        """
        place = 0
        for position in range(count):
            while place in self.absent_in_producer:
                place += 1
            if self.pairs.get(position) != place:
                return None
            place += 1
        return place


def match(producer: ScheduledTensor, consumer: ScheduledTensor, expr: Expr, rules: Rules) -> Match:
    """Return which loops of a producer and of the result of an expression that reads it are one."""
    joined = pair_axes(expr, producer.tensor, rules)
    sources: Keys = {}
    for axis in producer.tensor.domain.logical:
        if axis.id in joined and not axis.is_reduction:
            sources[axis.id] = joined[axis.id]
        else:
            sources[axis.id] = None if axis.is_broadcast else ("producer's", axis.id)
    targets: Keys = {}
    into = set(joined.values())
    for axis in consumer.tensor.domain.root_or_logical:
        targets[axis.id] = axis.id if axis.id in into else None if axis.is_broadcast else ("consumer's", axis.id)
    first = keys_of(producer.steps, sources)
    second = keys_of((*consumer.tensor.domain.transforms, *consumer.steps), targets)
    places = {key: place for place, axis in enumerate(consumer.loop) if (key := second.get(axis.id)) is not None}
    keys = [first.get(axis.id) for axis in producer.loop]
    return Match(
        pairs={position: places[key] for position, key in enumerate(keys) if key is not None and key in places},
        absent_in_consumer=frozenset(position for position, key in enumerate(keys) if key is None),
        absent_in_producer=frozenset(
            place for place, axis in enumerate(consumer.loop) if second.get(axis.id) is None
        ),
    )


def structure(scheduled: ScheduledTensor) -> tuple[Hashable | None, ...]:
    """Return the derivation of a tensor's loops; equal for equal loops."""
    keys = keys_of(scheduled.steps, {axis.id: axis.id for axis in scheduled.tensor.domain.logical})
    return tuple(keys[axis.id] for axis in scheduled.loop)


def replayed_from_consumer(
    consumer: ScheduledTensor, producer: ScheduledTensor, expr: Expr, rules: Rules, axes: AxisMaker,
    steps: Iterable[Split | Merge] | None = None,
) -> ScheduledTensor:
    """Return a producer with the loops of a consumer; ``steps`` limits what is replayed."""
    joined = {b: a for a, b in pair_axes(expr, producer.tensor, rules).items()}
    logical = {axis.id: axis for axis in producer.tensor.domain.logical}
    counterparts = {
        axis.id: logical.get(joined.get(axis.id, -1)) for axis in consumer.tensor.domain.root_or_logical
    }
    chosen = consumer.steps if steps is None else tuple(steps)
    return _replay(consumer, producer, counterparts, (*consumer.tensor.domain.transforms, *chosen), axes)


def replayed_from_producer(
    producer: ScheduledTensor, consumer: ScheduledTensor, expr: Expr, rules: Rules, axes: AxisMaker,
) -> ScheduledTensor:
    """Return a consumer with the loops of a producer, as far as these run over axes that the consumer has."""
    joined = pair_axes(expr, producer.tensor, rules)
    root = {axis.id: axis for axis in consumer.tensor.domain.root_or_logical}
    counterparts = {axis.id: root.get(joined.get(axis.id, -1)) for axis in producer.tensor.domain.logical}
    return _replay(producer, consumer, counterparts, producer.steps, axes)


def _replay(
    reference: ScheduledTensor, target: ScheduledTensor, start: Mapping[int, IterDomain | None],
    steps: Iterable[DomainTransform], axes: AxisMaker,
) -> ScheduledTensor:
    counterparts = dict(start)
    made: list[Split | Merge] = []
    # Steps that already lead from the target's root to its logical axes are not repeated.
    transforms = list(target.tensor.domain.transforms)
    # A root axis that a reshape splits or merges differently is not a loop, so it cannot be transformed.
    loops = {axis.id for axis in target.tensor.domain.logical}
    for step in steps:
        if isinstance(step, Split):
            source = counterparts.get(step.source.id)
            counterparts[step.outer.id], counterparts[step.inner.id] = None, None
            if source is None:
                continue
            inside = next((g for g in transforms if isinstance(g, Split) and g.source.id == source.id), None)
            if inside is not None:
                if (inside.factor, inside.inner_split) == (step.factor, step.inner_split):
                    counterparts[step.outer.id], counterparts[step.inner.id] = inside.outer, inside.inner
                continue
            if source.id not in loops:
                continue
            split = axes.split(source, step.factor, inner_split=step.inner_split)
            counterparts[step.outer.id], counterparts[step.inner.id] = split.outer, split.inner
            made.append(split)
            loops |= {split.outer.id, split.inner.id}
        elif isinstance(step, Merge):
            outer, inner = counterparts.get(step.outer.id), counterparts.get(step.inner.id)
            if outer is None or inner is None:
                counterparts[step.result.id] = outer or inner
                continue
            done = next(
                (
                    g for g in transforms if isinstance(g, Merge) and (g.outer.id, g.inner.id) == (outer.id, inner.id)
                ), None,
            )
            if done is not None:
                counterparts[step.result.id] = done.result
                continue
            if IterType.REDUCTION in {outer.kind, inner.kind} and outer.kind is not inner.kind:
                raise ScheduleError(
                    f"the loops of {reference.name} merge axes of which {target.name} reduces only one "
                    f"({outer} and {inner}); reorder or merge {target.name} by itself first."
                )
            if outer.id not in loops or inner.id not in loops:
                counterparts[step.result.id] = None
                continue
            merge = axes.merge(outer, inner)
            counterparts[step.result.id] = merge.result
            made.append(merge)
            loops.add(merge.result.id)
        else:
            counterparts[step.result.id] = None
    ended = _loop_ids(target.tensor.domain.logical, made)
    first = [axis for old in reference.loop if (axis := counterparts.get(old.id)) is not None and axis.id in ended]
    seen = {axis.id for axis in first}
    rest = [axis for axis in ended.values() if axis.id not in seen]
    unique = list({axis.id: axis for axis in (*first, *rest)}.values())
    result = ScheduledTensor(
        tensor=target.tensor, loop=tuple(unique), steps=tuple(made), memory=target.memory, compute_at=target.compute_at,
    )
    return target if structure(result) == structure(target) else result


def _loop_ids(logical: Iterable[IterDomain], steps: Iterable[Split | Merge]) -> dict[int, IterDomain]:
    """Return the axes that remain after steps, in the order of their creation."""
    ends = {axis.id: axis for axis in logical}
    for step in steps:
        if isinstance(step, Split):
            del ends[step.source.id]
            ends |= {step.outer.id: step.outer, step.inner.id: step.inner}
        else:
            del ends[step.outer.id], ends[step.inner.id]
            ends[step.result.id] = step.result
    return ends

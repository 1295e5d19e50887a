"""Transforms that give tensors the loops or the parallel types of another one."""

from collections.abc import Iterable, Sequence

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.axis_match import match, replayed_from_consumer, replayed_from_producer
from fuser_lab.ir.domain import IterDomain, Merge, Split
from fuser_lab.ir.expr import Expr
from fuser_lab.ir.loop_transforms import with_parallel_type
from fuser_lab.ir.transform import AxisMaker, ParallelType, Rules, ScheduledFusion, ScheduledTensor, Transform
from fuser_lab.ir.transform_arguments import (
    check_known,
    fixed_loops,
    loop_count,
    names_of,
    selected_tensors,
    tuple_of,
    with_tensors,
)


def transform_like(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which tensors have the loops of another one."""
    return with_loops_alike(scheduled, transform.tensor, selected_tensors(scheduled, transform), rules)


def bounded_transform_backward(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which tensors on the paths to some others have the loops of one."""
    name = transform.tensor
    ends = names_of(transform, "to")
    for end in ends:
        check_known(scheduled, "bounded_transform_backward", end)
    between = tensors_between(scheduled, ends, name)
    if not between:
        raise ScheduleError(f"bounded_transform_backward: {name} is not computed from {', '.join(ends) or 'nothing'}.")
    position = loop_count(scheduled.tensors[name], transform, "pos")
    after = with_loops_alike(scheduled, name, between, rules, position=position, backward=True)
    if transform.arg("propagate_parallel_type"):
        after = _parallelized_like(after, name, position, between, frozenset(), rules)
    return after


def tensors_between(scheduled: ScheduledFusion, ends: Sequence[str], name: str) -> frozenset[str]:
    """Return the tensors on paths from ``ends`` to a tensor, without the tensor itself."""
    reached = set(ends)
    for expr in scheduled.fusion.tensor_exprs:
        if any(tv.name in reached for tv in expr.tensor_inputs):
            reached.update(tv.name for tv in expr.tensor_outputs)
    if name not in reached:
        return frozenset()
    behind = {name}
    for expr in reversed(scheduled.fusion.tensor_exprs):
        if any(tv.name in behind for tv in expr.tensor_outputs):
            behind.update(tv.name for tv in expr.tensor_inputs)
    return frozenset((reached & behind) - {name})


def with_loops_alike(
    scheduled: ScheduledFusion, reference: str, selected: frozenset[str], rules: Rules, *,
    position: int | None = None, backward: bool = False,
) -> ScheduledFusion:
    """Give tensors a reference's loops, along paths that keep most of its axes (nvFuser: MaxInfoSpanningTree).

    Producers and consumers of reached tensors are reached; a tensor that is not selected ends the path, except inputs.
    """
    first = scheduled.tensors[reference]
    steps = None if position is None else _steps_to(first, position)
    carried: dict[str, frozenset[int]] = {reference: frozenset(
        axis.id for axis in (*first.tensor.domain.logical, *first.tensor.domain.root_or_logical)
    )}
    waiting = {reference}
    while waiting:
        best: tuple[int, str, str, Expr] | None = None
        for name in sorted(waiting):
            reached = False
            for other, expr, forward in _neighbours(scheduled, name):
                passes = other in selected or (scheduled.is_input(other) and not backward)
                if other in carried or not passes or (backward and forward):
                    continue
                reached = True
                score = len(_carry(scheduled, name, other, expr, carried[name], rules, forward=forward))
                if best is None or score > best[0]:
                    best = (score, name, other, expr)
            if not reached:
                waiting.discard(name)
        if best is None:
            break
        _, name, other, expr = best
        forward = any(tv.name == other for tv in expr.tensor_outputs)
        carried[other] = _carry(scheduled, name, other, expr, carried[name], rules, forward=forward)
        waiting.add(other)
        source, target = scheduled.tensors[name], scheduled.tensors[other]
        axes = AxisMaker(scheduled.next_axis)
        if forward:
            made = replayed_from_producer(source, target, expr, rules, axes)
        else:
            limit = steps if name == reference else None
            made = replayed_from_consumer(source, target, expr, rules, axes, limit)
        if made is not target:
            if fixed_loops(scheduled, target, rules):
                msg = f"transform_like: loops of {other} are shared with other tensors by inlining and cannot change."
                raise ScheduleError(msg)
            scheduled = with_tensors(scheduled, made, axes=axes)
    return scheduled


def _carry(
    scheduled: ScheduledFusion, name: str, other: str, expr: Expr, axes: frozenset[int], rules: Rules, *,
    forward: bool,
) -> frozenset[int]:
    operand = scheduled.tensors[name if forward else other].tensor
    joined = [
        (producer.id, consumer.id) for number, producer, consumer in rules.pairs(expr)
        if expr.tensor_inputs[number] == operand
    ]
    if forward:
        return frozenset(b for a, b in joined if a in axes)
    return frozenset(a for a, b in joined if b in axes)


def _steps_to(tensor: ScheduledTensor, position: int) -> list[Split | Merge]:
    """Return the steps that lead to the first loops of a tensor."""
    needed = {axis.id for axis in tensor.loop[:position]}
    leading: list[Split | Merge] = []
    for step in reversed(tensor.steps):
        if any(axis.id in needed for axis in results_of(step)):
            leading.append(step)
            needed |= {axis.id for axis in sources_of(step)}
    return leading[::-1]


def _neighbours(scheduled: ScheduledFusion, name: str) -> Iterable[tuple[str, Expr, bool]]:
    """Yield the tensors next to one, with the expression between and whether it leads to the other."""
    expr = scheduled.producer(name)
    if expr is not None:
        for operand in expr.tensor_inputs:
            yield operand.name, expr, False
    for user in scheduled.consumers(name):
        for out in user.tensor_outputs:
            yield out.name, user, True


def parallelize_like(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which tensors have the parallel types of another one."""
    types = frozenset(t for t in tuple_of(transform, "selected_parallel_types") if isinstance(t, ParallelType))
    position = loop_count(scheduled.tensors[transform.tensor], transform, "pos")
    selected = selected_tensors(scheduled, transform)
    return _parallelized_like(scheduled, transform.tensor, position, selected, types, rules)


def _parallelized_like(
    scheduled: ScheduledFusion, reference: str, position: int, selected: frozenset[str],
    types: frozenset[ParallelType], rules: Rules,
) -> ScheduledFusion:
    """Give the loops of tensors the parallel types of the reference's loops that they match."""
    matched = mapped_positions(scheduled, reference, rules)
    first = scheduled.tensors[reference]
    for name in scheduled.tensors:
        if name not in selected or name == reference or scheduled.is_input(name):
            continue
        for loop, theirs in sorted(matched.get(name, {}).items()):
            parallel = first.parallel_type(theirs)
            if theirs >= position or (types and parallel not in types) or parallel is ParallelType.serial:
                continue
            # Only a copy's access to memory is vectorized; matching loops of other tensors do not change.
            if parallel is ParallelType.vectorize and not types:
                continue
            tensor = scheduled.tensors[name]
            if parallel.is_block and tensor.loop[loop].is_reduction:
                continue
            scheduled = with_tensors(scheduled, with_parallel_type(scheduled, tensor, loop, parallel))
    return scheduled


def mapped_positions(scheduled: ScheduledFusion, reference: str, rules: Rules) -> dict[str, dict[int, int]]:
    """Return for each tensor the loops of a reference that its loops match, propagated from neighbour to neighbour."""
    matches: dict[str, dict[int, int]] = {reference: {i: i for i in range(len(scheduled.tensors[reference].loop))}}
    waiting = [reference]
    while waiting:
        name = waiting.pop(0)
        for other, expr, forward in _neighbours(scheduled, name):
            source, target = scheduled.tensors[name], scheduled.tensors[other]
            if forward:
                pairs = match(source, target, expr, rules).pairs
            else:
                pairs = {b: a for a, b in match(target, source, expr, rules).pairs.items()}
            matched = matches.setdefault(other, {})
            new = {b: matches[name][a] for a, b in pairs.items() if a in matches[name] and b not in matched}
            if new:
                matched.update(new)
                waiting.append(other)
    return matches


def sources_of(step: Split | Merge) -> tuple[IterDomain, ...]:
    """Return the axes that a step consumes."""
    return (step.source,) if isinstance(step, Split) else (step.outer, step.inner)


def results_of(step: Split | Merge) -> tuple[IterDomain, ...]:
    """Return the axes that a step produces."""
    return (step.outer, step.inner) if isinstance(step, Split) else (step.result,)

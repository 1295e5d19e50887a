"""Transforms that move a tensor's computation into the loops of its readers."""

from dataclasses import replace

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.alike_transforms import mapped_positions, tensors_between, with_loops_alike
from fuser_lab.ir.axis_match import match
from fuser_lab.ir.loop_order import can_run, reads_itself
from fuser_lab.ir.transform import GLOBAL, ParallelType, Rules, ScheduledFusion, Transform
from fuser_lab.ir.transform_arguments import check_known, int_of, loop_count, selected_tensors, text_of, with_tensors


def inline_at(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which tensors are computed inside a number of loops of their readers."""
    name = transform.tensor
    tensor = scheduled.tensors[name]
    position = loop_count(tensor, transform, "pos")
    matched = mapped_positions(scheduled, name, rules)
    best = bool(transform.arg("best_effort"))
    for other in _inner_first(scheduled, selected_tensors(scheduled, transform, itself=True)):
        if not scheduled.consumers(other) or scheduled.is_input(other):
            continue
        places = {theirs: place for place, theirs in matched.get(other, {}).items()}
        count = 0
        while count < len(scheduled.tensors[other].loop) and any(
            place < position and loop == count for place, loop in places.items()
        ):
            count += 1
        limit, why = _most_inline(scheduled, other, rules, ordered=best)
        if count > limit and not best:
            requested = int_of(transform, "pos")
            of = f", which pos={requested} stands for" if requested < 0 else ""
            msg = f"{transform.kind}: {other} cannot be computed inside {count} loops of its consumers{of}: {why}."
            raise ScheduleError(msg)
        scheduled = _inline(scheduled, other, min(count, limit))
    return scheduled


def inline_most(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which tensors are computed as deeply inside their readers' loops as is legal."""
    for name in _inner_first(scheduled, selected_tensors(scheduled, transform, itself=True)):
        if scheduled.consumers(name) and not scheduled.is_input(name):
            scheduled = _inline(scheduled, name, _most_inline(scheduled, name, rules, ordered=True)[0])
    return scheduled


def compute_at(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Give a tensor, and all tensors on the path to a consumer, the consumer's loops, and share the first ones."""
    name, consumer = transform.tensor, text_of(transform, "consumer")
    check_known(scheduled, "compute_at", consumer)
    between = tensors_between(scheduled, (name,), consumer)
    if not between or scheduled.is_input(name):
        msg = f"compute_at: {consumer} is not computed from {name}, or {name} is an input; cache_after makes a copy."
        raise ScheduleError(msg)
    loop_count(scheduled.tensors[consumer], transform, "pos")  # raises before loops are changed
    scheduled = with_loops_alike(scheduled, consumer, between, rules, backward=True)
    inline = Transform(
        kind=transform.kind, tensor=consumer,
        args=(("pos", transform.arg("pos")), ("best_effort", transform.arg("mode") != "standard"),
              ("selected_tensors", tuple(sorted(between)))),
    )
    return inline_at(scheduled, inline, rules)


def _most_inline(scheduled: ScheduledFusion, name: str, rules: Rules, *, ordered: bool) -> tuple[int, str]:
    """Return how many loops of its consumers a tensor can be computed in, and why not in one more.

    ``ordered`` requires that the current inlining can run; otherwise other tensors may have to be inlined, too.
    """
    tensor = scheduled.tensors[name]
    if tensor.memory is GLOBAL:
        return 0, f"{name} is an output, which is in memory; use cache_before or cache_fork"
    limit, why = _most_shared(scheduled, name, rules)

    def runs(count: int) -> bool:
        more = _inline(scheduled, name, count)
        return not reads_itself(more, rules) and (not ordered or can_run(more, rules))

    if not limit or runs(limit):
        return limit, why
    count = next((count for count in range(limit - 1) if not runs(count + 1)), limit - 1)
    return count, f"{name} is needed again after a reduction over loop {count}, {tensor.loop[count]}"


def _most_shared(scheduled: ScheduledFusion, name: str, rules: Rules) -> tuple[int, str]:
    """Return how many outer loops a tensor can share with all of its consumers, and why not one more."""
    tensor = scheduled.tensors[name]
    count = 0
    for axis in tensor.loop:
        if axis.is_reduction:
            return count, f"{axis} is reduced in {name}, which is known only after the loop"
        if tensor.parallel.get(axis.id) is ParallelType.vectorize:
            return count, f"{axis} of {name} is one access"
        for expr in scheduled.consumers(name):
            consumer = scheduled.tensors[expr.out.name]
            place = match(tensor, consumer, expr, rules).shared(count + 1)
            if place is None:
                return count, f"loop {count} of {name}, {axis}, is not a loop of {consumer.name}"
            if consumer.parallel_type(place - 1) is ParallelType.vectorize:
                return count, f"loop {place - 1} of {consumer.name} is one access"
        count += 1
    return count, "there are no more loops"


def _inner_first(scheduled: ScheduledFusion, names: frozenset[str]) -> list[str]:
    return [name for name in reversed(list(scheduled.fusion.tensors)) if name in names]


def _inline(scheduled: ScheduledFusion, name: str, position: int) -> ScheduledFusion:
    return with_tensors(scheduled, replace(scheduled.tensors[name], compute_at=position))

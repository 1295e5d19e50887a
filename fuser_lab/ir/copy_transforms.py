"""Transforms that add a tensor to the fusion: caches and rfactor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.alike_transforms import results_of, sources_of
from fuser_lab.ir.axis_match import replayed_from_producer
from fuser_lab.ir.domain import DomainTransform, IterDomain, IterType, Merge, Split, TensorDomain
from fuser_lab.ir.expr import Expr, OpKind
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.transform import GLOBAL, AxisMaker, MemoryType, Rules, ScheduledFusion, ScheduledTensor, Transform
from fuser_lab.ir.transform_arguments import check_in_range, check_single, fixed_loops, text_of, tuple_of, with_tensors
from fuser_lab.ir.val import TensorView, Val


def cache_after(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = f(x)  ->  c = set(x); y = f(c)``."""
    tensor = scheduled.tensors[transform.tensor]
    cached_uses = tuple_of(transform, "cached_uses")
    users = [
        e for e in scheduled.consumers(tensor.name) if not cached_uses or any(o.name in cached_uses for o in e.outputs)
    ]
    if not users:
        raise ScheduleError(f"cache_after: nothing reads {tensor.name}; cache_before makes a copy before an output.")
    _not_inlined(scheduled, tensor, "cache_after", rules)
    axes = AxisMaker(scheduled.next_axis)
    copy = _copy_of(tensor, text_of(transform, "result"), axes)
    made = Expr(op=rules.copy, inputs=(tensor.tensor,), outputs=(copy,))
    exprs = [
        _rebuilt(expr, {tensor.tensor: copy}) if expr in users else expr for expr in scheduled.fusion.exprs
    ]
    producer = scheduled.fusion.producers.get(tensor.tensor)
    place = 0 if producer is None else scheduled.fusion.exprs.index(producer) + 1
    exprs.insert(place, made)
    fusion = replace(scheduled.fusion, exprs=tuple(exprs))
    cached = ScheduledTensor(tensor=copy, loop=copy.domain.logical, memory=MemoryType.local)
    cached = _like_producer(tensor, cached, made, rules, axes)
    return with_tensors(replace(scheduled, fusion=fusion), cached, axes=axes)


def cache_before(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = f(x)  ->  c = f(x); y = set(c)``."""
    tensor = scheduled.tensors[transform.tensor]
    producer = scheduled.producer(tensor.name)
    if producer is None:
        raise ScheduleError(f"cache_before: {tensor.name} is an input; cache_after makes a copy after it.")
    check_single("cache_before", producer)
    _not_inlined(scheduled, tensor, "cache_before", rules)
    axes = AxisMaker(scheduled.next_axis)
    domain = tensor.tensor.domain
    cache = replace(
        tensor.tensor, name=text_of(transform, "result"), domain=replace(domain, contiguity=None),
    )
    target = replace(
        tensor.tensor,
        domain=TensorDomain(
            logical=tuple(axes.copy(axis) for axis in domain.axes), allocation=domain.allocation,
            contiguity=domain.contiguity,
        ),
    )
    made = Expr(op=rules.copy, inputs=(cache,), outputs=(target,))
    fusion = scheduled.fusion
    exprs: list[Expr] = []
    for expr in fusion.exprs:
        if expr == producer:
            exprs += [replace(expr, outputs=(cache,)), made]
        else:
            exprs.append(_rebuilt(expr, {tensor.tensor: target}))
    fusion = _fusion(fusion, exprs, {tensor.tensor: target})
    cached = replace(tensor, tensor=cache, memory=MemoryType.local)
    output = ScheduledTensor(tensor=target, loop=target.domain.logical, memory=tensor.memory)
    output = _like_producer(cached, output, made, rules, axes)
    return with_tensors(replace(scheduled, fusion=fusion), cached, output, axes=axes)


def cache_fork(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y`` returned and read  ->  ``y`` read, ``o = set(y)`` returned."""
    tensor = scheduled.tensors[transform.tensor]
    if not scheduled.is_output(tensor.name) or not scheduled.consumers(tensor.name):
        raise ScheduleError(f"cache_fork: {tensor.name} must be an output that other tensors are computed from.")
    _not_inlined(scheduled, tensor, "cache_fork", rules)
    axes = AxisMaker(scheduled.next_axis)
    copy = _copy_of(tensor, text_of(transform, "result"), axes)
    made = Expr(op=rules.copy, inputs=(tensor.tensor,), outputs=(copy,))
    fusion = _fusion(scheduled.fusion, (*scheduled.fusion.exprs, made), {tensor.tensor: copy})
    forked = ScheduledTensor(tensor=copy, loop=copy.domain.logical, memory=GLOBAL)
    forked = _like_producer(tensor, forked, made, rules, axes)
    return with_tensors(replace(scheduled, fusion=fusion), replace(tensor, memory=MemoryType.local), forked, axes=axes)


def rfactor(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = sum(x) over a, b  ->  p = sum(x) over a; y = sum(p) over b``, with a and b loops of ``y``."""
    tensor = scheduled.tensors[transform.tensor]
    name = tensor.name
    expr = scheduled.producer(name)
    if expr is None or expr.kind is not OpKind.REDUCTION:
        raise ScheduleError(f"rfactor: {name} is not the result of a reduction.")
    check_single("rfactor", expr)
    _not_inlined(scheduled, tensor, "rfactor", rules)
    chosen: set[int] = set()
    for entry in tuple_of(transform, "axes"):
        position = entry if isinstance(entry, int) else 0
        check_in_range("rfactor", tensor, position)
        axis = tensor.loop[position]
        if not axis.is_reduction:
            raise ScheduleError(f"rfactor: axis {position} of {name} is {axis}, which is not reduced.")
        chosen.add(axis.id)
    reduced = {axis.id for axis in tensor.loop if axis.is_reduction}
    if not chosen or chosen == reduced:
        msg = f"rfactor: {name} must keep at least one of its {len(reduced)} reduction axes and move at least one."
        raise ScheduleError(msg)
    return _factor(scheduled, tensor, expr, frozenset(chosen), text_of(transform, "result"))


def _factor(
    scheduled: ScheduledFusion, tensor: ScheduledTensor, expr: Expr, chosen: frozenset[int], result: str,
) -> ScheduledFusion:
    domain = tensor.tensor.domain
    above = [step for step in tensor.steps if sources_of(step)[0].is_reduction]
    below = [step for step in tensor.steps if not sources_of(step)[0].is_reduction]
    # Axes that the partial reduction keeps are its iteration axes, and so are axes that only these derive from.
    gone = set(chosen)
    for step in reversed(above):
        if any(axis.id in gone for axis in results_of(step)):
            gone |= {axis.id for axis in sources_of(step)}

    def copied_axis(axis: IterDomain) -> IterDomain:
        return axis if axis.id in gone or not axis.is_reduction else replace(axis, kind=IterType.ITERATION)

    transforms: list[DomainTransform] = [*domain.transforms, *(_map_step(step, copied_axis) for step in above)]
    logical = list(domain.logical)
    for step in above:
        places = [next(i for i, axis in enumerate(logical) if axis.id == source.id) for source in sources_of(step)]
        first = min(places)
        logical = [axis for i, axis in enumerate(logical) if i not in places]
        logical[first:first] = results_of(step)
    partial = TensorView(
        name=result, dtype=tensor.tensor.dtype.compute,
        domain=TensorDomain(
            root=domain.root_or_logical if transforms else None, transforms=tuple(transforms),
            logical=tuple(copied_axis(axis) for axis in logical),
        ),
    )
    axes = AxisMaker(scheduled.next_axis)
    left = {
        axis.id: axes.copy(axis, IterType.REDUCTION if axis.is_reduction else None)
        for axis in logical if axis.id not in chosen
    }
    dims = tuple(i for i, axis in enumerate(a for a in logical if a.id not in chosen) if axis.is_reduction)
    total = replace(
        tensor.tensor,
        domain=TensorDomain(
            logical=tuple(left.values()), allocation=domain.allocation, contiguity=domain.contiguity,
        ),
    )
    first_expr = Expr(op=expr.op, inputs=expr.inputs, outputs=(partial,), attrs=expr.attrs)
    attrs = tuple((key, dims if key == "dims" else value) for key, value in expr.attrs)
    second_expr = Expr(op=expr.op, inputs=(partial,), outputs=(total,), attrs=attrs)
    exprs: list[Expr] = []
    for other in scheduled.fusion.exprs:
        exprs += [first_expr, second_expr] if other == expr else [_rebuilt(other, {tensor.tensor: total})]
    fusion = _fusion(scheduled.fusion, exprs, {tensor.tensor: total})
    scheduled_partial = ScheduledTensor(
        tensor=partial, loop=tuple(copied_axis(axis) for axis in tensor.loop), steps=tuple(below),
        memory=MemoryType.local,
        parallel=tensor.parallel,
    )
    axis_of = dict(left)
    steps: list[Split | Merge] = []
    for step in below:
        if isinstance(step, Split):
            made: Split | Merge = axes.split(axis_of[step.source.id], step.factor, inner_split=step.inner_split)
        else:
            made = axes.merge(axis_of[step.outer.id], axis_of[step.inner.id])
        axis_of |= dict(zip((axis.id for axis in results_of(step)), results_of(made), strict=True))
        steps.append(made)
    scheduled_total = ScheduledTensor(
        tensor=total, loop=tuple(axis_of[axis.id] for axis in tensor.loop if axis.id not in chosen), steps=tuple(steps),
        memory=tensor.memory,
        parallel={axis_of[number].id: parallel for number, parallel in tensor.parallel.items() if number in axis_of},
    )
    return with_tensors(replace(scheduled, fusion=fusion), scheduled_partial, scheduled_total, axes=axes)


def _like_producer(
    tensor: ScheduledTensor, copy: ScheduledTensor, expr: Expr, rules: Rules, axes: AxisMaker,
) -> ScheduledTensor:
    return replayed_from_producer(tensor, copy, expr, rules, axes) if tensor.steps else copy


def _copy_of(tensor: ScheduledTensor, name: str, axes: AxisMaker) -> TensorView:
    domain = tensor.tensor.domain
    return TensorView(
        name=name, dtype=tensor.tensor.dtype,
        domain=TensorDomain(
            logical=tuple(axes.copy(axis) for axis in domain.axes), allocation=domain.allocation,
        ),
    )


def _rebuilt(expr: Expr, new: Mapping[Val, TensorView]) -> Expr:
    if new.keys().isdisjoint(expr.inputs):
        return expr
    return replace(expr, inputs=tuple(new.get(value, value) for value in expr.inputs))


def _fusion(fusion: Fusion, exprs: Sequence[Expr], new: Mapping[Val, TensorView]) -> Fusion:
    return replace(
        fusion, exprs=tuple(exprs), outputs=tuple(new.get(tv, tv) for tv in fusion.outputs),
        aliases=tuple((new.get(a, a), b) for a, b in fusion.aliases),
        hidden=frozenset(new.get(tv, tv) for tv in fusion.hidden),
    )


def _map_step(step: Split | Merge, change: Callable[[IterDomain], IterDomain]) -> Split | Merge:
    if isinstance(step, Split):
        return replace(step, source=step.source, outer=change(step.outer), inner=change(step.inner))
    return replace(step, outer=step.outer, inner=step.inner, result=change(step.result))


def _not_inlined(scheduled: ScheduledFusion, tensor: ScheduledTensor, step: str, rules: Rules) -> None:
    if fixed_loops(scheduled, tensor, rules):
        msg = f"{step}: loops of {tensor.name} are already shared with other tensors; cache and factor before inlining."
        raise ScheduleError(msg)

"""Replaying the transforms of a schedule by hand; an illegal one raises ScheduleError with one sentence that says why.

`replay` is a fold: each transform is one function from a `ScheduledFusion` to the next. What is refused here is what
can be seen without sizes; what depends on sizes is checked where a kernel is made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir.axis_match import match, replayed_from_consumer, replayed_from_producer
from fuser_lab.ir.domain import DomainTransform, IterDomain, IterType, Merge, Split, TensorDomain
from fuser_lab.ir.expr import Expr, OpKind
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.loop_order import can_run, reads_itself
from fuser_lab.ir.transform import (
    GLOBAL,
    REFUSED_TYPES,
    AxisMaker,
    MemoryType,
    ParallelType,
    Rules,
    ScheduledFusion,
    ScheduledTensor,
    Transform,
)
from fuser_lab.ir.val import TensorView, Val

WIDEST_ACCESS = 16  # bytes
_WIDTHS = (1, 2, 4, 8, 16)


def replay(fusion: Fusion, transforms: Iterable[Transform], rules: Rules) -> ScheduledFusion:
    """Return what transforms make of a fusion.

    Raises
    ------
    ScheduleError
        If one of them is illegal; the sentence says why.
    UnsupportedError
        If one asks for what no kernel here can do.
    """
    scheduled = ScheduledFusion.start(fusion)
    for transform in transforms:
        scheduled = apply(scheduled, transform, rules)
    return scheduled


def apply(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule after one more transform; `replay` says what it raises."""
    if transform.tensor and transform.tensor not in scheduled.tensors:
        msg = f"{transform.kind}: {transform.tensor} is no tensor that an output of this fusion needs."
        raise ScheduleError(msg)
    after = _KINDS[transform.kind](scheduled, transform, rules)
    return replace(after, transforms=(*scheduled.transforms, transform))


def produce_position(scheduled: ScheduledFusion, name: str, rules: Rules) -> int:
    """Return how many outer loops of a tensor also hold a tensor that it is computed from."""
    expr = scheduled.producer(name)
    if expr is None:
        return 0
    found = [0]
    for operand in expr.tensor_inputs:
        producer = scheduled.tensors[operand.name]
        if producer.compute_at:
            place = match(producer, scheduled.tensors[name], expr, rules).shared(producer.compute_at)
            found.append(place or 0)
    return max(found)


def texts(scheduled: ScheduledFusion, rules: Rules) -> dict[str, str]:
    """Return each tensor as IR text with its loops, by name."""
    return {
        name: tensor.text(produce_position(scheduled, name, rules)) for name, tensor in scheduled.tensors.items()
    }


# Loops of one tensor


def _split(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    tensor = scheduled.tensors[transform.tensor]
    factor = _int(transform, "factor")
    position = _free_axis(scheduled, transform, "axis", rules)
    if factor < 1:
        msg = f"split: factor is {factor}; {tensor.name} can be split by 1 or more."
        raise ScheduleError(msg)
    _serial(tensor, position, "split")
    axes = AxisMaker(scheduled.next_axis)
    step = axes.split(tensor.loop[position], factor, inner_split=bool(transform.arg("inner_split")))
    loop = (*tensor.loop[:position], step.outer, step.inner, *tensor.loop[position + 1 :])
    return _with(scheduled, replace(tensor, loop=loop, steps=(*tensor.steps, step)), axes=axes)


def _merge(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    tensor = scheduled.tensors[transform.tensor]
    first, second = (_free_axis(scheduled, transform, name, rules) for name in ("axis_o", "axis_i"))
    if second != first + 1:
        msg = (
            f"merge: axes {first} and {second} of {tensor.name} are not neighbours, outer before inner; reorder first."
        )
        raise ScheduleError(msg)
    outer, inner = tensor.loop[first], tensor.loop[second]
    if IterType.REDUCTION in {outer.kind, inner.kind} and outer.kind is not inner.kind:
        msg = f"merge: of {outer} and {inner}, {tensor.name} reduces only one; iteration and reduction cannot be one."
        raise ScheduleError(msg)
    _serial(tensor, first, "merge")
    _serial(tensor, second, "merge")
    axes = AxisMaker(scheduled.next_axis)
    step = axes.merge(outer, inner)
    loop = (*tensor.loop[:first], step.result, *tensor.loop[second + 1 :])
    return _with(scheduled, replace(tensor, loop=loop, steps=(*tensor.steps, step)), axes=axes)


def _reorder(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``order`` lists pairs (old position, new position); axes that are not named keep their order."""
    tensor = scheduled.tensors[transform.tensor]
    count = len(tensor.loop)
    moves: dict[int, int] = {}
    for pair in _tuple(transform, "order"):
        old, new = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(old, int) or not isinstance(new, int):
            msg = "reorder: a mapping of old positions to new ones is needed."
            raise ScheduleError(msg)
        _in_range("reorder", tensor, old)
        _in_range("reorder", tensor, new)
        moves[old % count] = new % count
    if len(set(moves.values())) < len(moves) or len(moves) < len(_tuple(transform, "order")):
        msg = f"reorder: {dict(moves)} moves two axes of {tensor.name} to one place, or one axis to two."
        raise ScheduleError(msg)
    left = iter(position for position in range(count) if position not in moves)
    to = {new: old for old, new in moves.items()}
    order = [to[place] if place in to else next(left) for place in range(count)]
    fixed = _fixed(scheduled, tensor, rules)
    if order[:fixed] != list(range(fixed)):
        msg = f"reorder: the first {fixed} loops of {tensor.name} are shared with other tensors by inlining."
        raise ScheduleError(msg)
    return _with(scheduled, replace(tensor, loop=tuple(tensor.loop[old] for old in order)))


def _parallelize(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    tensor = scheduled.tensors[transform.tensor]
    position = _position(tensor, transform, "axis")
    parallel = transform.arg("ptype")
    if not isinstance(parallel, ParallelType):
        msg = f"parallelize: a ParallelType is needed, given {parallel!r}."
        raise ScheduleError(msg)
    return _with(scheduled, _parallelized(scheduled, tensor, position, parallel))


def _parallelized(
    scheduled: ScheduledFusion, tensor: ScheduledTensor, position: int, parallel: ParallelType,
) -> ScheduledTensor:
    if parallel in REFUSED_TYPES:
        msg = f"parallelize: {parallel} is not supported: {REFUSED_TYPES[parallel]}."
        raise UnsupportedError(msg)
    axis = tensor.loop[position]
    if parallel.is_block or parallel.is_thread:
        for other, taken in tensor.parallel.items():
            if taken is parallel and other != axis.id:
                msg = f"parallelize: {tensor.name} has an axis that runs over {parallel.value} already; one can."
                raise ScheduleError(msg)
    if parallel.is_block and axis.is_reduction:
        msg = (
            f"parallelize: {axis} of {tensor.name} is reduced, and blocks cannot add up what they have in one kernel; "
            "rfactor it, and let threads or a second fusion finish."
        )
        raise ScheduleError(msg)
    if parallel is ParallelType.vectorize:
        _check_vector(scheduled, tensor, position)
    types = {number: given for number, given in tensor.parallel.items() if number != axis.id}
    if parallel is not ParallelType.serial:
        types[axis.id] = parallel
    return replace(tensor, parallel=types)


def _check_vector(scheduled: ScheduledFusion, tensor: ScheduledTensor, position: int) -> None:
    """Raise unless an axis can be one access of up to 16 bytes: innermost, of constant extent, contiguous, a copy's."""
    axis, what = tensor.loop[position], f"parallelize: {tensor.name} cannot vectorize {tensor.loop[position]}:"
    if axis.is_reduction:
        raise ScheduleError(f"{what} it is a reduction axis.")
    if position != len(tensor.loop) - 1:
        raise ScheduleError(f"{what} it is not the innermost loop.")
    size = tensor.tensor.dtype.itemsize
    if not isinstance(axis.extent, int) or axis.extent not in _WIDTHS or axis.extent * size > WIDEST_ACCESS:
        raise ScheduleError(
            f"{what} a vector has 1, 2, 4, 8 or 16 elements and at most {WIDEST_ACCESS} bytes, "
            f"and this axis has {axis.extent} of {size} bytes.",
        )
    expr = scheduled.producer(tensor.name)
    source = None if expr is None or expr.kind is not OpKind.COPY else expr.tensor_inputs[0]
    ends = () if source is None else (tensor, scheduled.tensors[source.name])
    outside = [end for end in ends if end.memory is GLOBAL]
    if not outside:
        raise ScheduleError(f"{what} only a copy from or to global memory is one access; make one by cache_after.")
    for end in outside:
        _check_contiguous(tensor, end, what)


def _check_contiguous(tensor: ScheduledTensor, end: ScheduledTensor, what: str) -> None:
    """Raise unless the innermost loop runs along the fastest axis of the tensor in global memory."""
    walked = _fastest_leaf(tensor)
    domain = end.tensor.domain
    order = domain.allocation_order
    if not order or walked is None:
        raise ScheduleError(f"{what} it does not run along an axis of {end.name}.")
    fastest = order[-1]
    own = [axis.id for axis in tensor.tensor.domain.axes]
    if own[fastest] != walked:
        raise ScheduleError(f"{what} it does not run along the axis of {end.name} that is contiguous in memory.")
    if domain.contiguity is not None and not domain.contiguity[-1]:
        raise ScheduleError(f"{what} {end.name} is not contiguous along it.")


def _fastest_leaf(tensor: ScheduledTensor) -> int | None:
    """Return the logical axis along which the innermost loop takes steps of one, or None."""
    comes_from: dict[int, int] = {}
    for step in tensor.steps:
        if isinstance(step, Split):
            comes_from[step.inner.id] = step.source.id
        else:
            comes_from[step.result.id] = step.inner.id
    number = tensor.loop[-1].id
    while number in comes_from:
        number = comes_from[number]
    return number if number in {axis.id for axis in tensor.tensor.domain.logical} else None


def _set_memory_type(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    tensor, memory = scheduled.tensors[transform.tensor], transform.arg("memory_type")
    if not isinstance(memory, MemoryType):
        msg = f"set_memory_type: a MemoryType is needed, given {memory!r}."
        raise ScheduleError(msg)
    if memory in {MemoryType.tensor, MemoryType.symmetric}:
        reason = "Numba has no tensor memory" if memory is MemoryType.tensor else "nothing here runs on several devices"
        msg = f"set_memory_type: {memory} is not supported: {reason}."
        raise UnsupportedError(msg)
    outside = scheduled.is_input(tensor.name) or scheduled.is_output(tensor.name)
    if outside is not (memory is GLOBAL):
        msg = (
            f"set_memory_type: {tensor.name} is an input or output, which lie in global memory; cache it."
            if outside else
            f"set_memory_type: {tensor.name} lies between inputs and outputs; one kernel keeps it local or shared."
        )
        raise ScheduleError(msg)
    return _with(scheduled, replace(tensor, memory=memory))


# Copies and partial reductions


def _cache_after(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = f(x)  ->  c = set(x); y = f(c)``."""
    tensor = scheduled.tensors[transform.tensor]
    wanted = _tuple(transform, "cached_uses")
    users = [e for e in scheduled.consumers(tensor.name) if not wanted or any(o.name in wanted for o in e.outputs)]
    if not users:
        msg = f"cache_after: nothing reads {tensor.name}; cache_before makes a copy ahead of an output."
        raise ScheduleError(msg)
    _not_inlined(scheduled, tensor, "cache_after", rules)
    axes = AxisMaker(scheduled.next_axis)
    copy = _copy_of(tensor, _str(transform, "result"), axes)
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
    return _with(replace(scheduled, fusion=fusion), cached, axes=axes)


def _cache_before(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = f(x)  ->  c = f(x); y = set(c)``."""
    tensor = scheduled.tensors[transform.tensor]
    producer = scheduled.producer(tensor.name)
    if producer is None:
        msg = f"cache_before: {tensor.name} is an input; cache_after makes a copy behind it."
        raise ScheduleError(msg)
    _single("cache_before", producer)
    _not_inlined(scheduled, tensor, "cache_before", rules)
    axes = AxisMaker(scheduled.next_axis)
    domain = tensor.tensor.domain
    cache = replace(
        tensor.tensor, name=_str(transform, "result"), domain=replace(domain, contiguity=None),
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
    return _with(replace(scheduled, fusion=fusion), cached, output, axes=axes)


def _cache_fork(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y`` returned and read  ->  ``y`` read, ``o = set(y)`` returned."""
    tensor = scheduled.tensors[transform.tensor]
    if not scheduled.is_output(tensor.name) or not scheduled.consumers(tensor.name):
        msg = f"cache_fork: {tensor.name} must be an output that other tensors are computed from."
        raise ScheduleError(msg)
    _not_inlined(scheduled, tensor, "cache_fork", rules)
    axes = AxisMaker(scheduled.next_axis)
    copy = _copy_of(tensor, _str(transform, "result"), axes)
    made = Expr(op=rules.copy, inputs=(tensor.tensor,), outputs=(copy,))
    fusion = scheduled.fusion
    fusion = replace(
        fusion, exprs=(*fusion.exprs, made),
        outputs=tuple(copy if tv == tensor.tensor else tv for tv in fusion.outputs),
        aliases=tuple((copy if a == tensor.tensor else a, b) for a, b in fusion.aliases),
        hidden=frozenset(copy if tv == tensor.tensor else tv for tv in fusion.hidden),
    )
    forked = ScheduledTensor(tensor=copy, loop=copy.domain.logical, memory=GLOBAL)
    forked = _like_producer(tensor, forked, made, rules, axes)
    return _with(replace(scheduled, fusion=fusion), replace(tensor, memory=MemoryType.local), forked, axes=axes)


def _rfactor(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``y = sum(x) over a, b  ->  p = sum(x) over a; y = sum(p) over b``, with a and b loops of ``y``."""
    tensor = scheduled.tensors[transform.tensor]
    name = tensor.name
    expr = scheduled.producer(name)
    if expr is None or expr.kind is not OpKind.REDUCTION:
        msg = f"rfactor: {name} is not the result of a reduction."
        raise ScheduleError(msg)
    _single("rfactor", expr)
    _not_inlined(scheduled, tensor, "rfactor", rules)
    chosen: set[int] = set()
    for given in _tuple(transform, "axes"):
        position = given if isinstance(given, int) else 0
        _in_range("rfactor", tensor, position)
        axis = tensor.loop[position]
        if not axis.is_reduction:
            msg = f"rfactor: axis {position} of {name} is {axis}, which is not reduced."
            raise ScheduleError(msg)
        chosen.add(axis.id)
    reduced = {axis.id for axis in tensor.loop if axis.is_reduction}
    if not chosen or chosen == reduced:
        msg = f"rfactor: {name} must keep at least one reduction axis, and give away at least one of {len(reduced)}."
        raise ScheduleError(msg)
    return _factored(scheduled, tensor, expr, frozenset(chosen), _str(transform, "result"))


def _factored(
    scheduled: ScheduledFusion, tensor: ScheduledTensor, expr: Expr, chosen: frozenset[int], result: str,
) -> ScheduledFusion:
    domain = tensor.tensor.domain
    above = [step for step in tensor.steps if _sources(step)[0].is_reduction]
    below = [step for step in tensor.steps if not _sources(step)[0].is_reduction]
    # Axes that the partial reduction keeps are iteration axes of it, and so are those that only lead to them.
    gone = set(chosen)
    for step in reversed(above):
        if any(axis.id in gone for axis in _results(step)):
            gone |= {axis.id for axis in _sources(step)}

    def kept(axis: IterDomain) -> IterDomain:
        return axis if axis.id in gone or not axis.is_reduction else replace(axis, kind=IterType.ITERATION)

    transforms: list[DomainTransform] = [*domain.transforms, *(_mapped(step, kept) for step in above)]
    logical = list(domain.logical)
    for step in above:
        places = [next(i for i, axis in enumerate(logical) if axis.id == source.id) for source in _sources(step)]
        first = min(places)
        logical = [axis for i, axis in enumerate(logical) if i not in places]
        logical[first:first] = _results(step)
    partial = TensorView(
        name=result, dtype=tensor.tensor.dtype.compute,
        domain=TensorDomain(
            root=domain.root_or_logical if transforms else None, transforms=tuple(transforms),
            logical=tuple(kept(axis) for axis in logical),
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
        tensor=partial, loop=tuple(kept(axis) for axis in tensor.loop), steps=tuple(below), memory=MemoryType.local,
        parallel=tensor.parallel,
    )
    known = dict(left)
    steps: list[Split | Merge] = []
    for step in below:
        if isinstance(step, Split):
            made: Split | Merge = axes.split(known[step.source.id], step.factor, inner_split=step.inner_split)
        else:
            made = axes.merge(known[step.outer.id], known[step.inner.id])
        known |= dict(zip((axis.id for axis in _results(step)), _results(made), strict=True))
        steps.append(made)
    scheduled_total = ScheduledTensor(
        tensor=total, loop=tuple(known[axis.id] for axis in tensor.loop if axis.id not in chosen), steps=tuple(steps),
        memory=tensor.memory,
        parallel={known[number].id: given for number, given in tensor.parallel.items() if number in known},
    )
    return _with(replace(scheduled, fusion=fusion), scheduled_partial, scheduled_total, axes=axes)


# Several tensors at once


def _transform_like(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    return _propagated(scheduled, transform.tensor, _selected(scheduled, transform), rules)


def _bounded_transform_backward(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    name = transform.tensor
    ends = _names(transform, "to")
    for end in ends:
        _known(scheduled, "bounded_transform_backward", end)
    between = _between(scheduled, ends, name)
    if not between:
        msg = f"bounded_transform_backward: {name} is not computed from {', '.join(ends) or 'nothing'}."
        raise ScheduleError(msg)
    position = _count(scheduled.tensors[name], transform, "pos")
    after = _propagated(scheduled, name, between, rules, position=position, backward=True)
    if transform.arg("propagate_parallel_type"):
        after = _parallelized_like(after, name, position, between, frozenset(), rules)
    return after


def _between(scheduled: ScheduledFusion, ends: Sequence[str], name: str) -> frozenset[str]:
    """Return the tensors on the ways from ``ends`` to a tensor, which itself is left out."""
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


def _propagated(
    scheduled: ScheduledFusion, reference: str, selected: frozenset[str], rules: Rules, *,
    position: int | None = None, backward: bool = False,
) -> ScheduledFusion:
    """Give tensors the loops of a reference, along the ways that keep most of its axes (nvFuser's MaxInfoSpanningTree).

    Producers and consumers of what is reached are reached; a tensor that is not selected ends the way, inputs aside.
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
            found = False
            for other, expr, forward in _neighbours(scheduled, name):
                passes = other in selected or (scheduled.is_input(other) and not backward)
                if other in carried or not passes or (backward and forward):
                    continue
                found = True
                score = len(_carried(scheduled, name, other, expr, carried[name], rules, forward=forward))
                if best is None or score > best[0]:
                    best = (score, name, other, expr)
            if not found:
                waiting.discard(name)
        if best is None:
            break
        _, name, other, expr = best
        forward = any(tv.name == other for tv in expr.tensor_outputs)
        carried[other] = _carried(scheduled, name, other, expr, carried[name], rules, forward=forward)
        waiting.add(other)
        source, target = scheduled.tensors[name], scheduled.tensors[other]
        axes = AxisMaker(scheduled.next_axis)
        if forward:
            made = replayed_from_producer(source, target, expr, rules, axes)
        else:
            limit = steps if name == reference else None
            made = replayed_from_consumer(source, target, expr, rules, axes, limit)
        if made is not target:
            if _fixed(scheduled, target, rules):
                msg = f"transform_like: loops of {other} are shared with other tensors by inlining, so they stay."
                raise ScheduleError(msg)
            scheduled = _with(scheduled, made, axes=axes)
    return scheduled


def _carried(
    scheduled: ScheduledFusion, name: str, other: str, expr: Expr, known: frozenset[int], rules: Rules, *,
    forward: bool,
) -> frozenset[int]:
    operand = scheduled.tensors[name if forward else other].tensor
    joined = [
        (producer.id, consumer.id) for number, producer, consumer in rules.pairs(expr)
        if expr.tensor_inputs[number] == operand
    ]
    if forward:
        return frozenset(b for a, b in joined if a in known)
    return frozenset(a for a, b in joined if b in known)


def _steps_to(tensor: ScheduledTensor, position: int) -> list[Split | Merge]:
    """Return the steps that lead to the first loops of a tensor."""
    wanted = {axis.id for axis in tensor.loop[:position]}
    kept: list[Split | Merge] = []
    for step in reversed(tensor.steps):
        if any(axis.id in wanted for axis in _results(step)):
            kept.append(step)
            wanted |= {axis.id for axis in _sources(step)}
    return kept[::-1]


def _neighbours(scheduled: ScheduledFusion, name: str) -> Iterable[tuple[str, Expr, bool]]:
    """Yield the tensors next to one, with the expression between and whether it leads to the other."""
    expr = scheduled.producer(name)
    if expr is not None:
        for operand in expr.tensor_inputs:
            yield operand.name, expr, False
    for user in scheduled.consumers(name):
        for out in user.tensor_outputs:
            yield out.name, user, True


def _parallelize_like(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    types = frozenset(t for t in _tuple(transform, "selected_parallel_types") if isinstance(t, ParallelType))
    position = _count(scheduled.tensors[transform.tensor], transform, "pos")
    selected = _selected(scheduled, transform)
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
        for own, theirs in sorted(matched.get(name, {}).items()):
            parallel = first.parallel_type(theirs)
            if theirs >= position or (types and parallel not in types) or parallel is ParallelType.serial:
                continue
            # A vector is an access of a copy to memory; the loops that match it elsewhere stay as they are.
            if parallel is ParallelType.vectorize and not types:
                continue
            tensor = scheduled.tensors[name]
            if parallel.is_block and tensor.loop[own].is_reduction:
                continue
            scheduled = _with(scheduled, _parallelized(scheduled, tensor, own, parallel))
    return scheduled


def mapped_positions(scheduled: ScheduledFusion, reference: str, rules: Rules) -> dict[str, dict[int, int]]:
    """Return for each tensor which of its loops are which loops of a reference, found from neighbour to neighbour."""
    known: dict[str, dict[int, int]] = {reference: {i: i for i in range(len(scheduled.tensors[reference].loop))}}
    waiting = [reference]
    while waiting:
        name = waiting.pop(0)
        for other, expr, forward in _neighbours(scheduled, name):
            source, target = scheduled.tensors[name], scheduled.tensors[other]
            if forward:
                pairs = match(source, target, expr, rules).pairs
            else:
                pairs = {b: a for a, b in match(target, source, expr, rules).pairs.items()}
            found = known.setdefault(other, {})
            new = {b: known[name][a] for a, b in pairs.items() if a in known[name] and b not in found}
            if new:
                found.update(new)
                waiting.append(other)
    return known


def _inline_at(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    name = transform.tensor
    tensor = scheduled.tensors[name]
    position = _count(tensor, transform, "pos")
    matched = mapped_positions(scheduled, name, rules)
    best = bool(transform.arg("best_effort"))
    for other in _inner_first(scheduled, _selected(scheduled, transform, itself=True)):
        if not scheduled.consumers(other) or scheduled.is_input(other):
            continue
        places = {theirs: own for own, theirs in matched.get(other, {}).items()}
        count = 0
        while count < len(scheduled.tensors[other].loop) and any(
            place < position and own == count for place, own in places.items()
        ):
            count += 1
        limit, why = _most_inline(scheduled, other, rules, ordered=best)
        if count > limit and not best:
            msg = f"inline_at: {other} cannot be computed inside {count} loops of its consumers: {why}."
            raise ScheduleError(msg)
        scheduled = _inlined(scheduled, other, min(count, limit))
    return scheduled


def _inline_most(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    for name in _inner_first(scheduled, _selected(scheduled, transform, itself=True)):
        if scheduled.consumers(name) and not scheduled.is_input(name):
            scheduled = _inlined(scheduled, name, _most_inline(scheduled, name, rules, ordered=True)[0])
    return scheduled


def _compute_at(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Give a tensor, and what lies on its way to a consumer, the consumer's loops, and share the first ones."""
    name, consumer = transform.tensor, _str(transform, "consumer")
    _known(scheduled, "compute_at", consumer)
    between = _between(scheduled, (name,), consumer)
    if not between or scheduled.is_input(name):
        msg = f"compute_at: {consumer} is not computed from {name}, or {name} is an input; cache_after makes a copy."
        raise ScheduleError(msg)
    position = _count(scheduled.tensors[consumer], transform, "pos")
    scheduled = _propagated(scheduled, consumer, between, rules, backward=True)
    inline = Transform(
        kind="inline_at", tensor=consumer,
        args=(("pos", position), ("best_effort", transform.arg("mode") != "standard"),
              ("selected_tensors", tuple(sorted(between)))),
    )
    return _inline_at(scheduled, inline, rules)


def _most_inline(scheduled: ScheduledFusion, name: str, rules: Rules, *, ordered: bool) -> tuple[int, str]:
    """Return in how many loops of its consumers a tensor can be computed, and why not in one more.

    ``ordered`` asks that what is inlined so far can run; else other tensors may have to be inlined too.
    """
    tensor = scheduled.tensors[name]
    if tensor.memory is GLOBAL:
        return 0, f"{name} is an output, which lies in memory; cache_before or cache_fork it"
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
                return count, f"loop {count} of {name}, {axis}, is no loop of {consumer.name}"
            if consumer.parallel_type(place - 1) is ParallelType.vectorize:
                return count, f"loop {place - 1} of {consumer.name} is one access"
        more = _inlined(scheduled, name, count + 1)
        if reads_itself(more, rules) or (ordered and not can_run(more, rules)):
            return count, f"{name} is needed again after a reduction over loop {count}, {axis}"
        count += 1
    return count, "there are no more loops"


def _inner_first(scheduled: ScheduledFusion, names: frozenset[str]) -> list[str]:
    return [name for name in reversed(list(scheduled.fusion.tensors)) if name in names]


def _inlined(scheduled: ScheduledFusion, name: str, position: int) -> ScheduledFusion:
    return _with(scheduled, replace(scheduled.tensors[name], compute_at=position))


# What the transforms share


def _with(
    scheduled: ScheduledFusion, *tensors: ScheduledTensor, axes: AxisMaker | None = None,
) -> ScheduledFusion:
    """Return a schedule with tensors replaced or added, in the fusion's order."""
    known = {**scheduled.tensors, **{tensor.name: tensor for tensor in tensors}}
    ordered = {name: replace(known[name], tensor=tv) for name, tv in scheduled.fusion.tensors.items()}
    return replace(scheduled, tensors=ordered, next_axis=scheduled.next_axis if axes is None else axes.next)


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


def _sources(step: Split | Merge) -> tuple[IterDomain, ...]:
    return (step.source,) if isinstance(step, Split) else (step.outer, step.inner)


def _results(step: Split | Merge) -> tuple[IterDomain, ...]:
    return (step.outer, step.inner) if isinstance(step, Split) else (step.result,)


def _mapped(step: Split | Merge, change: Callable[[IterDomain], IterDomain]) -> Split | Merge:
    if isinstance(step, Split):
        return replace(step, source=step.source, outer=change(step.outer), inner=change(step.inner))
    return replace(step, outer=step.outer, inner=step.inner, result=change(step.result))


def _fixed(scheduled: ScheduledFusion, tensor: ScheduledTensor, rules: Rules) -> int:
    """Return how many outer loops of a tensor are shared with producers or consumers."""
    return max(tensor.compute_at, produce_position(scheduled, tensor.name, rules))


def _not_inlined(scheduled: ScheduledFusion, tensor: ScheduledTensor, what: str, rules: Rules) -> None:
    if _fixed(scheduled, tensor, rules):
        msg = f"{what}: loops of {tensor.name} are shared with other tensors already; cache and factor before inlining."
        raise ScheduleError(msg)


def _single(what: str, expr: Expr) -> None:
    if len(expr.outputs) > 1:
        msg = f"{what}: {expr.op.name} has {len(expr.outputs)} results of one computation, which is not supported."
        raise UnsupportedError(msg)


def _serial(tensor: ScheduledTensor, position: int, what: str) -> None:
    parallel = tensor.parallel_type(position)
    if parallel is not ParallelType.serial:
        msg = f"{what}: axis {position} of {tensor.name} runs over {parallel.value}; {what} before parallelizing."
        raise ScheduleError(msg)


def _free_axis(scheduled: ScheduledFusion, transform: Transform, name: str, rules: Rules) -> int:
    tensor = scheduled.tensors[transform.tensor]
    position = _position(tensor, transform, name)
    fixed = _fixed(scheduled, tensor, rules)
    if position < fixed:
        msg = (
            f"{transform.kind}: axis {position} of {tensor.name} is one of the first {fixed} loops, "
            "which are shared with other tensors by inlining."
        )
        raise ScheduleError(msg)
    return position


def _position(tensor: ScheduledTensor, transform: Transform, name: str) -> int:
    position = _int(transform, name)
    _in_range(transform.kind, tensor, position)
    return position % len(tensor.loop)


def _in_range(kind: str, tensor: ScheduledTensor, position: int) -> None:
    count = len(tensor.loop)
    if not -count <= position < count:
        msg = f"{kind}: axis {position} is out of range; {tensor.name} has {count} loops."
        raise ScheduleError(msg)


def _count(tensor: ScheduledTensor, transform: Transform, name: str) -> int:
    """Return a number of outer loops; -1 stands for all, -2 for all but the innermost."""
    given, total = _int(transform, name), len(tensor.loop)
    position = given + total + 1 if given < 0 else given
    if not 0 <= position <= total:
        msg = f"{transform.kind}: position {given} is out of range; {tensor.name} has {total} loops."
        raise ScheduleError(msg)
    return position


def _selected(scheduled: ScheduledFusion, transform: Transform, *, itself: bool = False) -> frozenset[str]:
    """Return the tensors that a transform is for: all where none are named."""
    names = _names(transform, "selected_tensors")
    for name in names:
        _known(scheduled, transform.kind, name)
    chosen = frozenset(names or scheduled.tensors)
    return chosen if itself else chosen - {transform.tensor}


def _known(scheduled: ScheduledFusion, kind: str, name: str) -> None:
    if name not in scheduled.tensors:
        msg = f"{kind}: {name} is no tensor that an output of this fusion needs."
        raise ScheduleError(msg)


def _int(transform: Transform, name: str) -> int:
    value = transform.arg(name)
    if isinstance(value, int):
        return value
    msg = f"{transform.kind}: {name} must be a whole number, given {value!r}."
    raise ScheduleError(msg)


def _str(transform: Transform, name: str) -> str:
    return str(transform.arg(name))


def _tuple(transform: Transform, name: str) -> tuple[object, ...]:
    value = transform.arg(name)
    return value if isinstance(value, tuple) else ()


def _names(transform: Transform, name: str) -> list[str]:
    return [str(value) for value in _tuple(transform, name)]


_KINDS: Mapping[str, Callable[[ScheduledFusion, Transform, Rules], ScheduledFusion]] = {
    "split": _split,
    "merge": _merge,
    "reorder": _reorder,
    "parallelize": _parallelize,
    "set_memory_type": _set_memory_type,
    "cache_after": _cache_after,
    "cache_before": _cache_before,
    "cache_fork": _cache_fork,
    "rfactor": _rfactor,
    "transform_like": _transform_like,
    "bounded_transform_backward": _bounded_transform_backward,
    "parallelize_like": _parallelize_like,
    "inline_at": _inline_at,
    "inline_most": _inline_most,
    "compute_at": _compute_at,
}

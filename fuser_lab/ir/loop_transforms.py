"""Transforms of one tensor's loops: split, merge, reorder, parallelize; and its memory type."""

from dataclasses import replace

from fuser_lab.arguments import short_text
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir.domain import IterType, Split
from fuser_lab.ir.expr import OpKind
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
from fuser_lab.ir.transform_arguments import (
    check_in_range,
    check_serial,
    fixed_loops,
    free_axis,
    int_of,
    loop_position,
    tuple_of,
    with_tensors,
)

WIDEST_ACCESS = 16  # bytes
_WIDTHS = (1, 2, 4, 8, 16)  # elements of a vectorized axis


def split(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which one loop is two."""
    tensor = scheduled.tensors[transform.tensor]
    factor = int_of(transform, "factor")
    position = free_axis(scheduled, transform, "axis", rules)
    if factor < 1:
        raise ScheduleError(f"split: factor is {factor}; {tensor.name} can be split by 1 or more.")
    check_serial(tensor, position, "split")
    axes = AxisMaker(scheduled.next_axis)
    step = axes.split(tensor.loop[position], factor, inner_split=bool(transform.arg("inner_split")))
    loop = (*tensor.loop[:position], step.outer, step.inner, *tensor.loop[position + 1 :])
    return with_tensors(scheduled, replace(tensor, loop=loop, steps=(*tensor.steps, step)), axes=axes)


def merge(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which two neighbouring loops are one."""
    tensor = scheduled.tensors[transform.tensor]
    first, second = (free_axis(scheduled, transform, name, rules) for name in ("axis_o", "axis_i"))
    if second != first + 1:
        raise ScheduleError(
            f"merge: axes {first} and {second} of {tensor.name} are not neighbours, outer before inner; reorder first."
        )
    outer, inner = tensor.loop[first], tensor.loop[second]
    if IterType.REDUCTION in {outer.kind, inner.kind} and outer.kind is not inner.kind:
        raise ScheduleError(f"merge: {tensor.name} reduces only one of {outer} and {inner}, so they cannot be merged.")
    check_serial(tensor, first, "merge")
    check_serial(tensor, second, "merge")
    axes = AxisMaker(scheduled.next_axis)
    step = axes.merge(outer, inner)
    loop = (*tensor.loop[:first], step.result, *tensor.loop[second + 1 :])
    return with_tensors(scheduled, replace(tensor, loop=loop, steps=(*tensor.steps, step)), axes=axes)


def reorder(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """``order`` lists pairs (old position, new position); axes that are not named keep their order."""
    tensor = scheduled.tensors[transform.tensor]
    count = len(tensor.loop)
    moves: dict[int, int] = {}
    for pair in tuple_of(transform, "order"):
        old, new = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(old, int) or not isinstance(new, int):
            raise ScheduleError("reorder: a mapping of old positions to new ones is needed.")
        check_in_range("reorder", tensor, old)
        check_in_range("reorder", tensor, new)
        moves[old % count] = new % count
    if len(set(moves.values())) < len(moves) or len(moves) < len(tuple_of(transform, "order")):
        msg = f"reorder: {dict(moves)} moves two axes of {tensor.name} to one position, or one axis to two."
        raise ScheduleError(msg)
    left = iter(position for position in range(count) if position not in moves)
    to = {new: old for old, new in moves.items()}
    order = [to[place] if place in to else next(left) for place in range(count)]
    fixed = fixed_loops(scheduled, tensor, rules)
    if order[:fixed] != list(range(fixed)):
        msg = f"reorder: the first {fixed} loops of {tensor.name} are shared with other tensors by inlining."
        raise ScheduleError(msg)
    return with_tensors(scheduled, replace(tensor, loop=tuple(tensor.loop[old] for old in order)))


def parallelize(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which a loop is run by blocks, threads or vector lanes."""
    tensor = scheduled.tensors[transform.tensor]
    position = loop_position(tensor, transform, "axis")
    parallel = transform.arg("ptype")
    if not isinstance(parallel, ParallelType):
        raise ScheduleError(f"parallelize: a ParallelType is needed, given {short_text(parallel)}.")
    return with_tensors(scheduled, with_parallel_type(scheduled, tensor, position, parallel))


def with_parallel_type(
    scheduled: ScheduledFusion, tensor: ScheduledTensor, position: int, parallel: ParallelType,
) -> ScheduledTensor:
    """Return a tensor's schedule with one more parallel loop."""
    if parallel in REFUSED_TYPES:
        raise UnsupportedError(f"parallelize: {parallel} is not supported: {REFUSED_TYPES[parallel]}.")
    axis = tensor.loop[position]
    if parallel.is_block or parallel.is_thread:
        for other, taken in tensor.parallel.items():
            if taken is parallel and other != axis.id:
                msg = f"parallelize: {tensor.name} already has an axis on {parallel.value}; only one is allowed."
                raise ScheduleError(msg)
    if parallel.is_block and axis.is_reduction:
        raise ScheduleError(
            f"parallelize: {axis} of {tensor.name} is reduced, and blocks cannot combine their results in one kernel; "
            "rfactor it, and let threads or a second fusion finish."
        )
    if parallel is ParallelType.vectorize:
        _check_vector(scheduled, tensor, position)
    types = {number: kind for number, kind in tensor.parallel.items() if number != axis.id}
    if parallel is not ParallelType.serial:
        types[axis.id] = parallel
    return replace(tensor, parallel=types)


def _check_vector(scheduled: ScheduledFusion, tensor: ScheduledTensor, position: int) -> None:
    """Raise unless an axis of a copy can be one access of up to 16 bytes: innermost, contiguous, of constant extent."""
    axis, refusal = tensor.loop[position], f"parallelize: {tensor.name} cannot vectorize {tensor.loop[position]}:"
    if axis.is_reduction:
        raise ScheduleError(f"{refusal} it is a reduction axis.")
    if position != len(tensor.loop) - 1:
        raise ScheduleError(f"{refusal} it is not the innermost loop.")
    size = tensor.tensor.dtype.itemsize
    if not isinstance(axis.extent, int) or axis.extent not in _WIDTHS or axis.extent * size > WIDEST_ACCESS:
        raise ScheduleError(
            f"{refusal} a vector has 1, 2, 4, 8 or 16 elements and at most {WIDEST_ACCESS} bytes, "
            f"and this axis has {axis.extent} of {size} bytes.",
        )
    expr = scheduled.producer(tensor.name)
    source = None if expr is None or expr.kind is not OpKind.COPY else expr.tensor_inputs[0]
    ends = () if source is None else (tensor, scheduled.tensors[source.name])
    outside = [end for end in ends if end.memory is GLOBAL]
    if not outside:
        raise ScheduleError(f"{refusal} only a copy from or to global memory can be one access; use cache_after.")
    for end in outside:
        _check_contiguous(tensor, end, refusal)


def _check_contiguous(tensor: ScheduledTensor, end: ScheduledTensor, refusal: str) -> None:
    """Raise unless the innermost loop runs along the fastest axis of the tensor in global memory."""
    walked = _fastest_leaf(tensor)
    domain = end.tensor.domain
    order = domain.allocation_order
    if not order or walked is None:
        raise ScheduleError(f"{refusal} it does not run along an axis of {end.name}.")
    fastest = order[-1]
    axes = [axis.id for axis in tensor.tensor.domain.axes]
    if axes[fastest] != walked:
        raise ScheduleError(f"{refusal} it does not run along the axis of {end.name} that is contiguous in memory.")
    if domain.contiguity is not None and not domain.contiguity[-1]:
        raise ScheduleError(f"{refusal} {end.name} is not contiguous along it.")


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


def set_memory_type(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which a tensor is stored in another memory."""
    tensor, memory = scheduled.tensors[transform.tensor], transform.arg("memory_type")
    if not isinstance(memory, MemoryType):
        raise ScheduleError(f"set_memory_type: a MemoryType is needed, given {short_text(memory)}.")
    if memory in {MemoryType.tensor, MemoryType.symmetric}:
        reason = "Numba has no tensor memory" if memory is MemoryType.tensor else "fuser_lab runs on one device"
        raise UnsupportedError(f"set_memory_type: {memory} is not supported: {reason}.")
    outside = scheduled.is_input(tensor.name) or scheduled.is_output(tensor.name)
    if outside is not (memory is GLOBAL):
        raise ScheduleError(
            f"set_memory_type: {tensor.name} is an input or output, which are stored in global memory; cache it."
            if outside else
            f"set_memory_type: {tensor.name} is an intermediate tensor; a kernel keeps it in local or shared memory."
        )
    return with_tensors(scheduled, replace(tensor, memory=memory))

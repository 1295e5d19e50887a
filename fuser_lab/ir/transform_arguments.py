"""Arguments of transforms, and checks that several kinds of transforms share."""

from dataclasses import replace

from fuser_lab.arguments import short_text
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir.axis_match import match
from fuser_lab.ir.expr import Expr
from fuser_lab.ir.transform import AxisMaker, ParallelType, Rules, ScheduledFusion, ScheduledTensor, Transform


def produce_position(scheduled: ScheduledFusion, name: str, rules: Rules) -> int:
    """Return how many outer loops of a tensor also contain one of its producers."""
    expr = scheduled.producer(name)
    if expr is None:
        return 0
    positions = [0]
    for operand in expr.tensor_inputs:
        producer = scheduled.tensors[operand.name]
        if producer.compute_at:
            place = match(producer, scheduled.tensors[name], expr, rules).shared(producer.compute_at)
            positions.append(place or 0)
    return max(positions)


def with_tensors(
    scheduled: ScheduledFusion, *tensors: ScheduledTensor, axes: AxisMaker | None = None,
) -> ScheduledFusion:
    """Return a schedule with tensors replaced or added, in the fusion's order."""
    merged = {**scheduled.tensors, **{tensor.name: tensor for tensor in tensors}}
    ordered = {name: replace(merged[name], tensor=tv) for name, tv in scheduled.fusion.tensors.items()}
    return replace(scheduled, tensors=ordered, next_axis=scheduled.next_axis if axes is None else axes.next)


def fixed_loops(scheduled: ScheduledFusion, tensor: ScheduledTensor, rules: Rules) -> int:
    """Return how many outer loops of a tensor are shared with producers or consumers."""
    return max(tensor.compute_at, produce_position(scheduled, tensor.name, rules))


def check_serial(tensor: ScheduledTensor, position: int, command: str) -> None:
    """Raise ScheduleError if a loop is already parallel."""
    parallel = tensor.parallel_type(position)
    if parallel is not ParallelType.serial:
        msg = f"{command}: axis {position} of {tensor.name} is on {parallel.value}; {command} before parallelizing."
        raise ScheduleError(msg)


def free_axis(scheduled: ScheduledFusion, transform: Transform, name: str, rules: Rules) -> int:
    """Return a loop of a tensor that it shares with no other."""
    tensor = scheduled.tensors[transform.tensor]
    position = loop_position(tensor, transform, name)
    fixed = fixed_loops(scheduled, tensor, rules)
    if position < fixed:
        raise ScheduleError(
            f"{transform.kind}: axis {position} of {tensor.name} is one of the first {fixed} loops, "
            "which are shared with other tensors by inlining."
        )
    return position


def loop_position(tensor: ScheduledTensor, transform: Transform, name: str) -> int:
    """Return an argument that is a loop of a tensor, counted from the outermost."""
    position = int_of(transform, name)
    check_in_range(transform.kind, tensor, position)
    return position % len(tensor.loop)


def check_in_range(kind: str, tensor: ScheduledTensor, position: int) -> None:
    """Raise ScheduleError unless a tensor has such a loop."""
    count = len(tensor.loop)
    if not -count <= position < count:
        raise ScheduleError(f"{kind}: axis {position} is out of range; {tensor.name} has {count} loops.")


def loop_count(tensor: ScheduledTensor, transform: Transform, name: str) -> int:
    """Return a number of outer loops; -1 stands for all, -2 for all but the innermost."""
    count, total = int_of(transform, name), len(tensor.loop)
    position = count + total + 1 if count < 0 else count
    if not 0 <= position <= total:
        raise ScheduleError(f"{transform.kind}: position {count} is out of range; {tensor.name} has {total} loops.")
    return position


def selected_tensors(scheduled: ScheduledFusion, transform: Transform, *, itself: bool = False) -> frozenset[str]:
    """Return the tensors that a transform applies to: all if none are named."""
    names = names_of(transform, "selected_tensors")
    for name in names:
        check_known(scheduled, transform.kind, name)
    chosen = frozenset(names or scheduled.tensors)
    return chosen if itself else chosen - {transform.tensor}


def check_known(scheduled: ScheduledFusion, kind: str, name: str) -> None:
    """Raise ScheduleError unless there is such a tensor."""
    if name not in scheduled.tensors:
        raise ScheduleError(f"{kind}: {name} is not a tensor that any output of this fusion needs.")


def int_of(transform: Transform, name: str) -> int:
    """Return an argument that is a whole number."""
    value = transform.arg(name)
    if isinstance(value, int):
        return value
    raise ScheduleError(f"{transform.kind}: {name} must be a whole number, given {short_text(value)}.")


def text_of(transform: Transform, name: str) -> str:
    """Return an argument that is text."""
    return str(transform.arg(name))


def tuple_of(transform: Transform, name: str) -> tuple[object, ...]:
    """Return an argument that is a tuple; an empty one if it is not a tuple."""
    value = transform.arg(name)
    return value if isinstance(value, tuple) else ()


def names_of(transform: Transform, name: str) -> list[str]:
    """Return an argument that is a tuple of names."""
    return [str(value) for value in tuple_of(transform, name)]


def check_single(command: str, expr: Expr) -> None:
    """Raise UnsupportedError if an expression has several results."""
    if len(expr.outputs) > 1:
        msg = f"{command}: {expr.op.name} has {len(expr.outputs)} results of one computation, which is not supported."
        raise UnsupportedError(msg)

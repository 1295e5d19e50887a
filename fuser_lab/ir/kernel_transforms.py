"""Transforms of the kernel as a whole: what loops alone do not say, and templates with their parameters."""

from fuser_lab.arguments import short_text
from fuser_lab.errors import ScheduleError
from fuser_lab.ir.transform import Rules, ScheduledFusion, Transform
from fuser_lab.ir.transform_arguments import int_of

OF_SCHEDULERS = frozenset({"grid", "cluster", "read_again", "set_params"})
"""Hints for loops that the scheduler of a plan's segment writes; other loops have no use for them."""
HINTS = frozenset({"launch_bounds", "specialize"}) | OF_SCHEDULERS
"""Choices of a kernel that no loop expresses."""
TEMPLATES = ("on_blocks", "on_cores")
"""Kinds that name a form of loops with its parameters: a grid of blocks of threads, and loops over cores."""
_MOST_BITS = 31  # bits of a number of blocks, the limit of CUDA along x


def is_hint(transform: Transform) -> bool:
    """Whether a transform is about the kernel as a whole."""
    return transform.kind in HINTS


def is_template(transform: Transform) -> bool:
    """Whether a transform stands for all loops of a nest."""
    return transform.kind in TEMPLATES


def launch_bounds(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule whose kernel limits registers so that this many blocks fit on a multiprocessor."""
    _check_once(scheduled, transform)
    return _with_count(scheduled, transform, least=0)


def grid(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule with this many blocks, which run several rounds each if the loops over blocks have more."""
    _check_once(scheduled, transform)
    return _with_count(scheduled, transform, least=1)


def cluster(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which this many blocks share each row, or the columns of a block."""
    _check_once(scheduled, transform)
    return _with_count(scheduled, transform, least=1)


def read_again(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which each pass over a row reads it from memory, and nothing keeps it between passes."""
    _check_once(scheduled, transform)
    return scheduled


def specialize(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule whose kernel has all sizes as constants, or those of its outermost loops as arguments."""
    _check_once(scheduled, transform)
    if not isinstance(transform.arg("sizes"), bool):
        raise ScheduleError(f"specialize: sizes must be a bool, given {short_text(transform.arg('sizes'))}.")
    return scheduled


def set_params(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule whose kernel has these values of parameters that neither loops nor other hints express."""
    _check_once(scheduled, transform)
    if not transform.args:
        raise ScheduleError("set_params: no parameter is given; name at least one.")
    return scheduled


def template(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule in which a nest of loops has a form with its parameters, whose names its writer knows."""
    where = _place(transform)
    if any(other.kind == transform.kind and _place(other) == where for other in scheduled.transforms):
        raise ScheduleError(f"{transform.kind}: nest {where[1]} has loops already; only one call per nest is allowed.")
    return scheduled


def _place(transform: Transform) -> tuple[object, object]:
    args = dict(transform.args)
    return args.get("target"), args["nest"]


def _check_once(scheduled: ScheduledFusion, transform: Transform) -> None:
    if any(other.kind == transform.kind for other in scheduled.transforms):
        raise ScheduleError(f"{transform.kind}: the schedule says this already; only one call is allowed.")


def _with_count(scheduled: ScheduledFusion, transform: Transform, least: int) -> ScheduledFusion:
    blocks = int_of(transform, "blocks")
    if not least <= blocks < 1 << _MOST_BITS:
        msg = f"{transform.kind}: blocks must be from {least} to {(1 << _MOST_BITS) - 1}, given {short_text(blocks)}."
        raise ScheduleError(msg)
    return scheduled

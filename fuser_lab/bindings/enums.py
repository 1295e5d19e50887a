"""nvFuser's enumerations, by its names."""

import enum

from fuser_lab.arguments import short_text
from fuser_lab.cost import verdict
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.ir.transform import MemoryType, ParallelType

LoadStoreOpType = enum.Enum("LoadStoreOpType", ["set", "load_matrix", "cp_async", "tma"], module=__name__)
CacheOp = enum.Enum("CacheOp", ["unspecified", "all_levels", "streaming", "global"], module=__name__)
IdMappingMode = enum.Enum(
    "IdMappingMode", ["exact", "almost_exact", "broadcast", "permissive", "loop"], module=__name__,
)


class SchedulerType(enum.Enum):
    """The schedulers of nvFuser's Python API; ``SchedulerType.__entries`` lists them as its bindings do."""

    none = 0
    no_op = 1
    pointwise = 2
    matmul = 3
    reduction = 4
    inner_persistent = 5
    inner_outer_persistent = 6
    outer_persistent = 7
    transpose = 8
    expr_eval = 9
    resize = 10

    @property
    def scheduler(self) -> verdict.SchedulerType | None:
        """The scheduler of this package; None for ``none``."""
        return None if self is SchedulerType.none else verdict.SchedulerType(self.name)


# The name that pybind11 gives its table of names; written in a class body it would be mangled.
setattr(SchedulerType, "__entries", {member.name: (member, None) for member in SchedulerType})


def own_scheduler(scheduler: object) -> verdict.SchedulerType | None:
    """Return this package's scheduler for a SchedulerType of either kind; None for ``none``."""
    if scheduler is None or isinstance(scheduler, verdict.SchedulerType):
        return scheduler
    if isinstance(scheduler, SchedulerType):
        return scheduler.scheduler
    raise ArgumentTypeError(f"scheduler_type must be a SchedulerType, given {short_text(scheduler)}.")


__all__ = [
    "CacheOp",
    "IdMappingMode",
    "LoadStoreOpType",
    "MemoryType",
    "ParallelType",
    "SchedulerType",
    "own_scheduler",
]

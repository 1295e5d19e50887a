"""Calls of the transforms of a schedule by hand: ``fd.sched``, nvFuser's functions, and methods of tensors."""

from collections.abc import Callable
from typing import Any

from fuser_lab import FusionDefinition, MemoryType, ParallelType
from fuser_lab.cost.verdict import SchedulerType
from tests.unit.public_call import TENSOR, Call

# By transform: arguments after the tensor.
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "axis": ((0,), {}),
    "bounded_transform_backward": ((-1, [None]), {"propagate_parallel_type": False}),
    "cache_after": ((None, None), {}),
    "cache_before": ((None,), {}),
    "cache_fork": ((), {}),
    "compute_at": ((None, 0, "standard"), {}),
    "inline_at": ((0, False), {}),
    "inline_most": ((), {}),
    "inner_split": ((0, 2), {}),
    "is_reduction": ((), {}),
    "merge": ((0, 1), {}),
    "outer_split": ((0, 2), {}),
    "parallelize": ((0, ParallelType.grid_x), {}),
    "parallelize_like": ((-1, []), {"selected_parallel_types": []}),
    "reorder": (([1, 0],), {}),
    "rfactor": (([1],), {}),
    "set_memory_type": ((MemoryType.shared,), {}),
    "split": ((0, 2, True), {}),
    "to_string": ((), {}),
    "transform_like": (([],), {}),
    "vectorize": ((-1,), {}),
}
# Transforms of the whole kernel: arguments.
OF_A_KERNEL: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "cluster": ((4,), {}),
    "grid": ((4,), {}),
    "launch_bounds": ((2,), {}),
    "on_blocks": (("elements", 0), {"threads": (128, 1)}),
    "on_cores": (("elements", 0), {"parallel": False}),
    "set_params": ((), {"blocks": 4}),
    "specialize": ((True,), {}),
}
METHODS = (
    "bounded_transform_backward", "cache_after", "cache_before", "compute_at", "inline_at", "inner_split", "merge",
    "outer_split", "parallelize", "parallelize_like", "reorder", "rfactor", "set_memory_type", "split",
    "transform_like", "vectorize",
)
_OF_ALL = ("inline_most",)  # a transform of the whole fusion, or of selected tensors


def scheduled() -> tuple[FusionDefinition, Any, Any, Any]:
    """A definition with its input, a sum over the last axis, and a value computed from the sum."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4], True)
        y = fd.ops.neg(x)
        s = fd.ops.sum(y, [0, 1])
        fd.add_output(y)
        fd.add_output(fd.ops.add(y, fd.ops.broadcast(s, [True, True])))
    return fd, x, y, s


def _tensor_for(name: str, tensors: tuple[Any, Any, Any]) -> Any:
    x, y, s = tensors
    return {"cache_after": x, "rfactor": s, "is_reduction": s, "set_memory_type": s}.get(name, y)


def _with(fd: FusionDefinition, function: Callable[..., Any], tensors: tuple[Any, Any, Any], name: str) -> Any:
    x, _, s = tensors

    def replaced(value: Any, own: Any) -> Any:
        if value is TENSOR:
            return own
        return [replaced(v, own) for v in value] if type(value) is list and TENSOR in [*map(_same, value)] else value

    def call(*args: Any, **kwargs: Any) -> Any:
        own = _tensor_for(name, tensors)
        first = [replaced(args[0], own)] if args else []
        other = x if name == "bounded_transform_backward" else s
        return function(*first, *(replaced(v, other) for v in args[1:]), **kwargs)

    return call


def _same(value: Any) -> Any:
    return value if value is TENSOR else None


def _made(name: str, *, as_method: bool) -> Callable[[], Callable[..., Any]]:
    def make() -> Callable[..., Any]:
        fd, *tensors = scheduled()
        if name == "vectorize":  # only a copy may be
            tensors[1] = fd.sched.cache_after(tensors[0])
        if as_method:
            bound = _with(fd, lambda tensor, *a, **k: getattr(tensor, name)(*a, **k), tuple(tensors), name)
            return lambda *args, **kwargs: bound(TENSOR, *args, **kwargs)
        return _with(fd, getattr(fd.sched, name), tuple(tensors), name)

    return make


def schedule_calls() -> dict[str, Call]:
    """Calls by name."""
    found: dict[str, Call] = {}
    for name, (given, kwargs) in ARGUMENTS.items():
        args: tuple[Any, ...] = given
        if name == "compute_at":
            args = (TENSOR, *given[1:])
        if name == "bounded_transform_backward":
            args = (given[0], [TENSOR])
        if name in METHODS:
            found[f"Tensor.{name}"] = Call(_made(name, as_method=True), args, kwargs)
        first = () if name in _OF_ALL else (TENSOR,)
        found[f"Sched.{name}"] = Call(_made(name, as_method=False), (*first, *args), kwargs)
    kind = SchedulerType.POINTWISE
    found["Sched.schedule"] = Call(lambda: _pointwise().sched.schedule, (kind,))
    found["Sched.tensor"] = Call(lambda: scheduled()[0].sched.tensor, ("T1",))
    found["Sched.undo"] = Call(_undoing, (1,))
    found["Sched.user_schedule_ir"] = Call(lambda: scheduled()[0].sched.user_schedule_ir, (True,))
    for name, given in OF_A_KERNEL.items():
        found[f"Sched.{name}"] = Call(lambda name=name: getattr(_pointwise().sched, name), *given)
    return found


def _pointwise() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4, 4], True)))
    return fd


def _undoing() -> Callable[..., Any]:
    fd, _, y, _ = scheduled()
    fd.sched.split(y, 0, 2)
    return fd.sched.undo

"""Schedules by hand and queries to schedulers, as nvFuser's module of functions."""

from collections.abc import Iterable
from typing import Any

from fuser_lab.arguments import instance, list_of, takes
from fuser_lab.bindings.schedule import (
    HeuristicParams,
    Sched,
    can_schedule,
    compute_heuristics,
    find_compatible_schedulers,
    schedule,
)
from fuser_lab.definition.schedulable import Schedulable, Transforms
from fuser_lab.nvfuser_direct.recording import active

_TENSOR = instance(Schedulable, accepted="a tensor of a definition")
_TENSORS = list_of(_TENSOR, "a list of tensors", lazy=True)


@takes(from_tv=_TENSOR)
def bounded_transform_backward(
    from_tv: Any, pos: int, to: Iterable[Any], propagate_parallel_type: bool = False,
) -> None:
    """Give the tensors on paths from ``to`` to a tensor its first ``pos`` loops."""
    Transforms(_builder(from_tv)).bounded_transform_backward(from_tv, pos, to, propagate_parallel_type)


@takes(reference_tv=_TENSOR)
def transform_like(reference_tv: Any, selected_tensors: Iterable[Any] = ()) -> None:
    """Give tensors (by default all) the loops of a reference."""
    Transforms(_builder(reference_tv)).transform_like(reference_tv, selected_tensors)


@takes(reference_tv=_TENSOR)
def parallelize_like(
    reference_tv: Any, pos: int = -1, selected_tensors: Iterable[Any] = (),
    selected_parallel_types: Iterable[Any] = (), propagate_padding: bool = True,
) -> None:
    """Give matching loops of tensors (by default all) the parallel types of a reference's first ``pos`` loops."""
    Transforms(_builder(reference_tv)).parallelize_like(
        reference_tv, pos, selected_tensors, selected_parallel_types, propagate_padding,
    )


@takes(selected_tensors=_TENSORS)
def inline_most(selected_tensors: Iterable[Any] = ()) -> None:
    """Compute tensors (by default all of the active fusion) inside as many loops of readers as is legal."""
    selected = list(selected_tensors)
    Transforms(_builder(selected[0]) if selected else active()).inline_most(selected)


@takes(reference_tv=_TENSOR)
def inline_at(
    reference_tv: Any, pos: int = -1, best_effort: bool = False, selected_tensors: Iterable[Any] = (),
) -> None:
    """Compute tensors (by default all) inside the loops that match the first ``pos`` loops of a reference."""
    Transforms(_builder(reference_tv)).inline_at(reference_tv, pos, best_effort, selected_tensors)


def warp_specialize(*args: Any, **kwargs: Any) -> None:
    """Raise UnsupportedError."""
    Transforms.warp_specialize(*args, **kwargs)


def _builder(tensor: Schedulable) -> Any:
    return tensor.builder


__all__ = [
    "HeuristicParams",
    "Sched",
    "bounded_transform_backward",
    "can_schedule",
    "compute_heuristics",
    "find_compatible_schedulers",
    "inline_at",
    "inline_most",
    "parallelize_like",
    "schedule",
    "transform_like",
    "warp_specialize",
]

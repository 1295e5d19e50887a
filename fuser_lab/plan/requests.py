"""The requests for the kernels of a plan's segments."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fuser_lab import targets
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.ir import Fusion
from fuser_lab.plan.segment_edit import ScheduledSegment, SegmentsPlan
from fuser_lab.segmentation import SegmentedGroup

if TYPE_CHECKING:
    from fuser_lab.runtime.plan.executor import PreparedPlan


def group_request(plan: SegmentsPlan, group: SegmentedGroup, target: str) -> KernelRequest:
    """Return the request for the kernel that a group would have in a plan: with the schedule that the plan sets for it.

    The group may be one of the plan or of an edit of it, because schedules are found by the names of expressions.
    """
    oracle, scheduler, names = plan.oracle, group.scheduler, tuple(sorted(group.names))
    edit = next((edit for edit in plan.schedules if edit.exprs == names), None)
    return KernelRequest(
        fusion=group.candidate.narrowed, scheduler=scheduler, target=target, device=oracle.device,
        changes=() if edit is None else edit.changes, loops=() if edit is None else edit.loops,
        propose=None if scheduler is None else oracle.proposer(scheduler), kept=oracle.kept,
    )


def request_of(segment: ScheduledSegment, target: str) -> KernelRequest:
    """Return the request for a segment's kernel as the plan has it, for dense inputs."""
    oracle, scheduler = segment.plan.oracle, segment.scheduler
    return KernelRequest(
        fusion=segment.fusion, scheduler=scheduler, target=target, device=oracle.device, changes=segment.changes,
        loops=segment.loops, propose=None if scheduler is None else oracle.proposer(scheduler), kept=oracle.kept,
    )


def prepared_once(
    cache: "dict[str, PreparedPlan]", lock: threading.Lock, fusion: Fusion,
    requests: Callable[[str], Sequence[KernelRequest]], target: str, *, allow_fallback: bool,
    keeps_kernels: bool, evaluate_refused: bool = False,
) -> "PreparedPlan":
    """Return the plan with these requests for a kind of target, compiled for a target once; see `Plan.prepare`."""
    from fuser_lab.runtime.plan.executor import prepare

    current = targets.target_of(target).current
    if current is not None and ":" not in target:
        target = current()()
    with lock:
        key = f"{target} {evaluate_refused} {allow_fallback} {keeps_kernels}"
        if key not in cache:
            cache[key] = prepare(
                fusion, requests(targets.target_of(target).name), target, evaluate_refused=evaluate_refused,
                allow_fallback=allow_fallback, compile_now=False, keeps_kernels=keeps_kernels,
            )
        return cache[key]

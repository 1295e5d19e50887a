"""The requests for the kernels of a plan's segments."""

from fuser_lab.codegen.request import KernelRequest
from fuser_lab.plan.segment_edit import ScheduledSegment


def request_of(segment: ScheduledSegment, target: str) -> KernelRequest:
    """Return the request for a segment's kernel as the plan has it, for dense inputs."""
    oracle, scheduler = segment.plan.oracle, segment.scheduler
    return KernelRequest(
        fusion=segment.fusion, scheduler=scheduler, target=target, device=oracle.device, changes=segment.changes,
        loops=segment.loops, propose=None if scheduler is None else oracle.proposer(scheduler), kept=oracle.kept,
    )

"""The checks that all schedulers with kernels share (nvFuser: Schedule::canSchedule)."""

from fuser_lab.schedule.facts import CandidateFacts, Refusal


def common_gate(facts: CandidateFacts, *, reshapes: bool = True) -> Refusal | None:
    """Return why no kernel can contain the candidate, or None.

    No matrix product, connected through values and shared tensor inputs, no tensor with two axes in one loop, and,
    unless ``reshapes`` is False, no two reshapes that take one axis apart in different ways.
    """
    return facts.gate or (facts.reshapes if reshapes else None)

"""The checks that all schedulers with kernels share (nvFuser: Schedule::canSchedule)."""

from collections.abc import Iterator

from fuser_lab.schedule.facts import CandidateFacts, Refusal


def common_gate(facts: CandidateFacts, *, reshapes: bool = True) -> Refusal | None:
    """Return why no kernel can contain the candidate, or None.

    No matrix product, connected through values and shared tensor inputs, no tensor with two axes in one loop, and,
    unless ``reshapes`` is False, no two reshapes that take one axis apart in different ways.
    """
    return facts.first_broken(_gates(facts, reshapes=reshapes))


def _gates(facts: CandidateFacts, *, reshapes: bool) -> Iterator[Refusal | None]:
    yield facts.gate
    if reshapes:
        yield facts.reshapes

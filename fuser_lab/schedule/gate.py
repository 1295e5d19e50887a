"""The checks that all schedulers with kernels share (nvFuser: Schedule::canSchedule)."""

from collections.abc import Iterator

from fuser_lab.schedule.facts import CandidateFacts, Refusal


def common_gate(facts: CandidateFacts, *, reshapes: bool = True) -> Refusal | None:
    """Return why no kernel can contain the candidate, or None.

    A kernel requires that the candidate has no matrix product, is connected through values and shared tensor inputs,
    has no tensor with two axes in one loop, and, unless ``reshapes`` is False, has no two reshapes that split one axis
    in different ways.
    """
    return facts.first_broken(_gates(facts, reshapes=reshapes))


def _gates(facts: CandidateFacts, *, reshapes: bool) -> Iterator[Refusal | None]:
    yield facts.gate
    if reshapes:
        yield facts.reshapes

"""Transpose: tiles go through shared memory, so that reads and writes both follow memory."""

from dataclasses import dataclass
from math import prod

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import TensorView
from fuser_lab.schedule.base import no, refused
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.schedule.gate import common_gate

SIDE = 32
TILE = SIDE * SIDE


@dataclass(frozen=True, slots=True)
class Transpose:
    """Takes candidates without reductions whose tensors have two innermost axes, if they fill a GPU with tiles."""

    type: SchedulerType = SchedulerType.TRANSPOSE

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        reduction = facts.reduction
        if reduction is not None:
            return no(self.type, ReasonCode.HAS_REDUCTION, reduction.name, tensor=reduction.name, op=reduction.op)
        refusal = common_gate(facts) or facts.index_input or facts.indexed_innermost or facts.unique_broadcasts
        if refusal is not None:
            return refused(self.type, refusal)
        if not isinstance(facts.reference, TensorView):
            return refused(self.type, facts.reference)
        groups = sorted(facts.inner_tensors.items(), key=lambda item: -len(item[1]))
        if len(groups) < 2:
            return no(self.type, ReasonCode.ONE_INNERMOST_AXIS)
        (_, ours), (other, theirs) = groups[:2]
        return self._large_enough(facts, device, ours[0], theirs[0], other)

    def _large_enough(
        self, facts: CandidateFacts, device: Device, first: TensorView, second: TensorView, other: int,
    ) -> Verdict:
        """Return whether the tiles of 32 x 32 fill the GPU and have two full sides; PointWise is for the rest."""
        exact = facts.exact
        extents = [exact.extent[c] for c in _in_memory(facts, first)]
        elements, wave = prod(extents), device.sms * TILE
        if elements < wave:
            return no(self.type, ReasonCode.TRANSPOSE_SMALL, tensor=first.name, elements=elements, wave=wave)
        near = facts.neighbourhoods
        place = next((i for i, c in enumerate(_in_memory(facts, first)) if near.of(c) == other), None)
        inner = prod(extents[place:]) if place is not None else elements
        if inner < TILE:
            return no(self.type, ReasonCode.TRANSPOSE_SMALL_INNER, tensor=first.name, elements=inner, tile=TILE)
        sides = extents[-1], exact.extent[_in_memory(facts, second)[-1]]
        if facts.reshape is not None and min(sides) < SIDE:
            return no(
                self.type, ReasonCode.TRANSPOSE_SMALL_RESHAPED, tensor=facts.reshape.name, first=sides[0],
                second=sides[1], side=SIDE,
            )
        return accept(self.type, reason(ReasonCode.TRANSPOSED_IN_TILES, first=first.name, second=second.name))


def _in_memory(facts: CandidateFacts, tensor: TensorView) -> list[int]:
    """Return the classes of a tensor's axes, slowest in memory first; a broadcast axis as the axis that it meets."""
    exact = facts.exact
    numbers = exact.classes[tensor.name]
    ordered = (numbers[place] for place in tensor.domain.allocation_order)
    met = (next(iter(exact.concretized.get(c, ())), None) if exact.broadcast[c] else c for c in ordered)
    return [c for c in met if c is not None]

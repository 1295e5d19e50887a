"""Transpose: tiles go through shared memory, so that reads and writes are both contiguous."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from fuser_lab.analysis.spanning_tree import Hop, Tree
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.schedule.base import Heuristics, common_gate, no, reference_without_reductions
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.innermost_axes import Transposed

SIDE = 32  # elements along a side of nvFuser's tile (getDefaultTileSize)
TILE = SIDE * SIDE  # elements of a tile


@dataclass(frozen=True, slots=True)
class Transpose(Heuristics):
    """Accepts candidates without reductions whose tensors have two different innermost axes, if tiles fill the GPU."""

    type: SchedulerType = SchedulerType.TRANSPOSE

    @follows("scheduler/transpose", "canScheduleCompileTime", 85, 89, ReasonCode.HAS_REDUCTION)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        reference = reference_without_reductions(self.type, facts, _rules(facts))
        if not isinstance(reference, TensorView):
            return reference
        if facts.transposed is None:
            return no(self.type, ReasonCode.ONE_INNERMOST_AXIS)
        return self._large_enough(facts, device, facts.transposed)

    @follows("scheduler/transpose", "getTransposeRuntimeRejectReason", 276, 282, ReasonCode.TRANSPOSE_SMALL)
    @follows("scheduler/transpose", "getTransposeRuntimeRejectReason", 287, 312, ReasonCode.TRANSPOSE_SMALL_INNER)
    @follows("scheduler/transpose", "getTransposeRuntimeRejectReason", 314, 323, ReasonCode.TRANSPOSE_NARROW)
    @follows("scheduler/transpose", "getTransposeRuntimeRejectReason", 325, 348, ReasonCode.TRANSPOSE_SMALL_RESHAPED)
    def _large_enough(self, facts: CandidateFacts, device: Device, tiles: Transposed) -> Verdict:
        """Return whether the tiles of 32 x 32 fill the GPU and have two full sides; PointWise is for the rest.

        Sizes are those of the first tensor's axes in the order of its loops, whatever its memory order.
        """
        exact, (first, second, places) = facts.exact, tiles
        extents = [1 if exact.broadcast[c] else exact.extent[c] for c in exact.classes[first.name]]
        elements, wave = prod(extents), device.sms * TILE
        if elements < wave:
            return no(self.type, ReasonCode.TRANSPOSE_SMALL, tensor=first.name, elements=elements, wave=wave)
        sides = [extents[place] for place in places]
        longest = max(sides)
        if elements // longest < SIDE:
            return no(
                self.type, ReasonCode.TRANSPOSE_NARROW, tensor=first.name, size=longest, rest=elements // longest,
                side=SIDE,
            )
        inner = prod(sides) * prod(extents[places[1] + 1 : places[0]])
        if inner < TILE:
            return no(self.type, ReasonCode.TRANSPOSE_SMALL_INNER, tensor=first.name, elements=inner, tile=TILE)
        if facts.reshape is not None and min(sides) < SIDE:
            return no(
                self.type, ReasonCode.TRANSPOSE_SMALL_RESHAPED, tensor=facts.reshape.name, first=sides[0],
                second=sides[1], side=SIDE,
            )
        behind = _reshape_behind(facts, first)
        if behind is not None:
            return no(
                self.type, ReasonCode.TRANSPOSE_RESHAPED_BEHIND, reference=first.name, operand=behind.start,
                tensor=behind.end,
            )
        return accept(self.type, reason(ReasonCode.TRANSPOSED_IN_TILES, first=first.name, second=second.name))


def _rules(facts: CandidateFacts) -> Iterator[Refusal | None]:
    yield common_gate(facts)
    yield facts.index_input
    yield facts.indexed_innermost
    yield facts.unique_broadcasts


@follows("scheduler/transpose", "getTransposeRuntimeRejectReason", 350, 375, ReasonCode.TRANSPOSE_RESHAPED_BEHIND)
def _reshape_behind(facts: CandidateFacts, reference: TensorView) -> Hop | None:
    """Return the step from an operand to a reshape on the way from a tensor to all others, or None."""
    if facts.reshape is None:
        return None
    hops = Tree(facts.links, reference).hops
    return next((hop for hop in hops if hop.down and hop.link.kind is OpKind.RESHAPE), None)

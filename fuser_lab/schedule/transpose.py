"""Transpose: tiles go through shared memory, so that reads and writes are both contiguous."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from fuser_lab.analysis.spanning_tree import Hop, Tree
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.schedule.base import Heuristics, no, refused
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.gate import common_gate

SIDE = 32
TILE = SIDE * SIDE


@dataclass(frozen=True, slots=True)
class Transpose(Heuristics):
    """Accepts candidates without reductions whose tensors have two different innermost axes, if tiles fill the GPU."""

    type: SchedulerType = SchedulerType.TRANSPOSE

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        reduction = facts.reduction
        if reduction is not None:
            return no(self.type, ReasonCode.HAS_REDUCTION, reduction.name, tensor=reduction.name, op=reduction.op)
        refusal = facts.first_broken(_rules(facts))
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
        """Return whether the tiles of 32 x 32 fill the GPU and have two full sides; PointWise is for the rest.

        Sizes are those of the first tensor's axes in the order of its loops, whatever its memory order.
        """
        exact, near = facts.exact, facts.neighbourhoods
        axes = _loops(facts, first)
        extents = [exact.extent[c] for c in axes]
        elements, wave = prod(extents), device.sms * TILE
        if elements < wave:
            return no(self.type, ReasonCode.TRANSPOSE_SMALL, tensor=first.name, elements=elements, wave=wave)
        own = exact.extent[_innermost(facts, first)], exact.extent[_innermost(facts, second)]
        sides = sorted(own)
        if elements // sides[1] < SIDE:
            return no(
                self.type, ReasonCode.TRANSPOSE_NARROW, tensor=first.name, size=sides[1], rest=elements // sides[1],
                side=SIDE,
            )
        places = [
            next((i for i, c in enumerate(axes) if near.of(c) == wanted), None)
            for wanted in (near.of(_innermost(facts, first)), other)
        ]
        if None not in places:
            low, high = sorted(place for place in places if place is not None)
            inner = prod(extents[low : high + 1])
            if inner < TILE:
                return no(self.type, ReasonCode.TRANSPOSE_SMALL_INNER, tensor=first.name, elements=inner, tile=TILE)
        if facts.reshape is not None and sides[0] < SIDE:
            return no(
                self.type, ReasonCode.TRANSPOSE_SMALL_RESHAPED, tensor=facts.reshape.name, first=own[0], second=own[1],
                side=SIDE,
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


def _reshape_behind(facts: CandidateFacts, reference: TensorView) -> Hop | None:
    """Return the step from an operand to a reshape on the way from a tensor to all others, or None.

    nvFuser's TransposeViewPropagator (csrc/scheduler/transpose.cpp:109-137, 352-376).
    """
    if facts.reshape is None:
        return None
    hops = Tree(facts.links, reference).hops
    return next((hop for hop in hops if hop.down and hop.link.kind is OpKind.RESHAPE), None)


def _loops(facts: CandidateFacts, tensor: TensorView) -> list[int]:
    """Return the classes of a tensor's axes in order, a broadcast axis as the axis that it is mapped to."""
    met = (_met(facts, c) for c in facts.exact.classes[tensor.name])
    return [c for c in met if c is not None]


def _innermost(facts: CandidateFacts, tensor: TensorView) -> int:
    """Return the class of the axis that is innermost in memory, or of the axis that it is mapped to."""
    number = facts.exact.classes[tensor.name][tensor.domain.allocation_order[-1]]
    met = _met(facts, number)
    return number if met is None else met


def _met(facts: CandidateFacts, number: int) -> int | None:
    exact = facts.exact
    return next(iter(exact.concretized.get(number, ())), None) if exact.broadcast[number] else number

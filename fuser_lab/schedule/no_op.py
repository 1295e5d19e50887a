"""NoOp: nothing to compute, or single elements only."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import IterDomain, OpKind
from fuser_lab.schedule.base import common_gate, no, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts


@dataclass(frozen=True, slots=True)
class NoOp:
    """Accepts candidates without expressions, without elements, or whose outputs have only axes of size 1."""

    type: SchedulerType = SchedulerType.NO_OP

    @follows("scheduler/no_op", "canScheduleCompileTime", 40, 55, ReasonCode.REDUCES_ELEMENTS)
    @follows("scheduler/no_op", "canScheduleCompileTime", 57, 66, ReasonCode.CONCRETE_OUTPUT)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or a reduction or an output that has elements.

        As in nvFuser, a reduction to values that exist is refused even if it adds up nothing.
        """
        if not facts.candidate.exprs:
            return accept(self.type, _NOTHING)
        empty = all(_is_empty(output.domain.axes) for output in facts.outputs)
        for output in facts.outputs:
            if not _is_empty(output.domain.axes) and not all(axis.is_broadcast for axis in output.domain.axes):
                return no(
                    self.type, ReasonCode.CONCRETE_OUTPUT, output.name, tensor=output.name, elements=output.numel,
                )
        for link in facts.links if not empty else ():
            kept_sizes = (size for slot, size in enumerate(link.root_extents) if slot not in link.reduced)
            if link.kind is OpKind.REDUCTION and 0 not in kept_sizes:
                elements = prod(link.tensors[0].shape)
                return no(self.type, ReasonCode.REDUCES_ELEMENTS, link.name, tensor=link.name, elements=elements)
        refusal = common_gate(facts) or (None if empty else facts.index_input)
        return refusal_verdict(self.type, refusal) if refusal is not None else accept(self.type, _NOTHING)


def _is_empty(axes: Iterable[IterDomain]) -> bool:
    return any(axis.visible_extent == 0 for axis in axes)


_NOTHING = reason(ReasonCode.NOTHING_TO_COMPUTE)

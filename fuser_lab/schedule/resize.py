"""Resize: slices, pads and cats inside one loop nest, each element recomputed where it is needed."""

from collections.abc import Iterator
from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.ir.domain import Resize as ResizeStep
from fuser_lab.schedule.base import Heuristics, common_gate, no, reference_without_reductions, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts, Refusal


@dataclass(frozen=True, slots=True)
class Resize(Heuristics):
    """Accepts candidates with a slice, pad or cat, without reductions and transposes."""

    type: SchedulerType = SchedulerType.RESIZE

    @follows("scheduler/resize", "canScheduleCompileTime", 81, 85, ReasonCode.NO_RESIZE)
    @follows("scheduler/resize", "canScheduleCompileTime", 93, 97, ReasonCode.HAS_REDUCTION)
    @follows("scheduler/resize", "canScheduleCompileTime", 198, 205, ReasonCode.TRANSPOSE_LIKE)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        if facts.resize is None:
            return no(self.type, ReasonCode.NO_RESIZE)
        reference = reference_without_reductions(self.type, facts, _rules(facts))
        if not isinstance(reference, TensorView):
            return reference
        between = facts.resize_between_outputs(reference)
        if between is not None:
            return refusal_verdict(self.type, between)
        groups = facts.inner_groups
        if len(groups) > 1:
            (first, *_), (second, *_) = groups[:2]
            return no(self.type, ReasonCode.TRANSPOSE_LIKE, *facts.names, first=first.name, second=second.name)
        return accept(self.type)


def _rules(facts: CandidateFacts) -> Iterator[Refusal | None]:
    yield common_gate(facts, reshapes=False)
    yield facts.unique_broadcasts
    yield _resized_broadcast(facts)


@follows("scheduler/resize", "canScheduleCompileTime", 115, 128, ReasonCode.RESIZED_BROADCAST)
def _resized_broadcast(facts: CandidateFacts) -> Refusal | None:
    for link in facts.links:
        for step in link.out.domain.transforms if link.kind is OpKind.RESIZE else ():
            if isinstance(step, ResizeStep) and (step.source.is_broadcast or step.result.is_broadcast):
                before, after = str(step.source.visible_extent), str(step.result.visible_extent)
                why = reason(ReasonCode.RESIZED_BROADCAST, tensor=link.name, before=before, after=after)
                return why, (link.name,)
    return _resized_with_broadcast(facts)


@follows("scheduler/resize", "canScheduleCompileTime", 130, 149, ReasonCode.RESIZED_WITH_BROADCAST)
def _resized_with_broadcast(facts: CandidateFacts) -> Refusal | None:
    """Return a resized axis that is mapped to a broadcast axis, which cannot be resized along with it, or None."""
    exact = facts.exact
    resized = {d.sources[0]: d.expr for d in exact.derivations if d.name == "resize"}
    for source, targets in exact.concretized.items():
        for target, user in targets.items():
            if target in resized:
                tensor, axis = exact.origin[source]
                why = reason(
                    ReasonCode.RESIZED_WITH_BROADCAST, tensor=resized[target], axis=axis, broadcast=tensor, user=user,
                )
                return why, facts.names
    return None

"""Schedulers that say truly why they do not apply, and otherwise that they are not implemented here."""

from dataclasses import dataclass

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.schedule.base import no, refused
from fuser_lab.schedule.facts import CandidateFacts
from fuser_lab.schedule.gate import common_gate
from fuser_lab.schedule.inner_persistent import needs_buffer


@dataclass(frozen=True, slots=True)
class Matmul:
    """Refuses: fusing around a matrix product is off by default, as in nvFuser."""

    type: SchedulerType = SchedulerType.MATMUL

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the refusal."""
        product = facts.matmul
        if product is None:
            return no(self.type, ReasonCode.NO_MATMUL)
        return no(self.type, ReasonCode.MATMUL_OFF, product.name)


@dataclass(frozen=True, slots=True)
class Transpose:
    """Refuses; what it would take goes to PointWise."""

    type: SchedulerType = SchedulerType.TRANSPOSE

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the refusal."""
        reduction = facts.reduction
        if reduction is not None:
            return no(self.type, ReasonCode.HAS_REDUCTION, reduction.name, tensor=reduction.name, op=reduction.op)
        # Slices of what is computed are left to Resize, which comes before.
        refusal = common_gate(facts) or (facts.index_input if facts.indexing else None) or facts.indexed_innermost
        if refusal is not None:
            return refused(self.type, refusal)
        if not isinstance(facts.reference, TensorView):
            return refused(self.type, facts.reference)
        code = ReasonCode.NOT_IMPLEMENTED if len(facts.inner_groups) > 1 else ReasonCode.ONE_INNERMOST_AXIS
        return no(self.type, code)


@dataclass(frozen=True, slots=True)
class OuterPersistent:
    """Refuses; its candidates are cut into reductions and pointwise segments."""

    type: SchedulerType = SchedulerType.OUTER_PERSISTENT

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the refusal."""
        if facts.reduction is None:
            return no(self.type, ReasonCode.NO_REDUCTION)
        refusal = common_gate(facts)
        if refusal is not None:
            return refused(self.type, refusal)
        inner = next((p for p in facts.patterns if p.inner), None)
        if inner is not None:
            return no(self.type, ReasonCode.REDUCTION_IS_INNER, inner.name, tensor=inner.name)
        refusal = facts.pattern_mismatch or needs_buffer(facts)
        return refused(self.type, refusal) if refusal is not None else no(self.type, ReasonCode.NOT_IMPLEMENTED)


@dataclass(frozen=True, slots=True)
class InnerOuterPersistent:
    """Refuses; the backward passes of normalizations are cut into inner and outer reductions."""

    type: SchedulerType = SchedulerType.INNER_OUTER_PERSISTENT

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the refusal."""
        if facts.reduction is None:
            return no(self.type, ReasonCode.NO_REDUCTION)
        refusal = common_gate(facts)
        if refusal is not None:
            return refused(self.type, refusal)
        inner = sum(p.inner for p in facts.patterns)
        if inner in {0, len(facts.patterns)}:
            return no(self.type, ReasonCode.ONE_KIND_OF_REDUCTION, kind="inner" if inner else "outer")
        return no(self.type, ReasonCode.NOT_IMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Refuses; scans, sorts and scatters are evaluated alone."""

    type: SchedulerType = SchedulerType.GREEDY

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the refusal."""
        found = facts.reserved
        if found is None or found.kind is OpKind.ATTENTION:
            return no(self.type, ReasonCode.NO_GREEDY_OP)
        return no(self.type, ReasonCode.NOT_IMPLEMENTED)

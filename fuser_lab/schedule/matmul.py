"""Matmul: one matrix product with its epilogue, if fusing around products is enabled.

fuser_lab does not have such a kernel: the array library evaluates accepted segments op by op.
"""

from dataclasses import dataclass

from fuser_lab.analysis.domain_map import Link
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.schedule.base import no, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts, Refusal

OLDEST = (7, 5)  # compute capability of the oldest GPU for which nvFuser has matrix kernels
HOPPER = (9, 0)  # compute capability from which other rules hold
MOVES = frozenset({OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE})
AFTER = MOVES | {OpKind.POINTWISE, OpKind.FACTORY, OpKind.SCALAR}
MOST_ELEMENTS = 1 << 31  # elements per axis that a Hopper kernel indexes with 32 bits (nvFuser: matmul_utils.cpp:1251)


@dataclass(frozen=True, slots=True)
class Matmul:
    """Accepts a matmul or linear of half-precision matrices with pointwise ops after it, if this is enabled."""

    type: SchedulerType = SchedulerType.MATMUL

    @follows("scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1289, 1298, ReasonCode.MATMUL_OLD_DEVICE)
    @follows("scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1300, 1306, ReasonCode.NO_MATMUL)
    @follows("scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1343, 1349, ReasonCode.MATMUL_OFF)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        product = facts.matmul
        if product is None:
            return no(self.type, ReasonCode.NO_MATMUL)
        if not facts.fuse_matmul:
            return no(self.type, ReasonCode.MATMUL_OFF, product.name)
        if device.cc < OLDEST:
            return no(
                self.type, ReasonCode.MATMUL_OLD_DEVICE, product.name, device=device.name, cc=_version(device.cc),
                least=_version(OLDEST),
            )
        refusal = _product(facts, product) or _alone(facts) or facts.shape_gate or facts.reshapes
        refusal = refusal or _around(facts, product, device) or _ends(facts, product)
        refusal = refusal or _too_long(facts, product, device)
        if refusal is not None:
            return refusal_verdict(self.type, refusal)
        why = reason(ReasonCode.MATMUL_FUSED, tensor=product.name, others=len(facts.candidate.exprs) - 1)
        return accept(self.type, why)


def _version(cc: tuple[int, int]) -> str:
    return f"{cc[0]}.{cc[1]}"


@follows("scheduler/mma_utils", "findMatmulPatterns", 1846, 1848, ReasonCode.OTHER_MATMUL)
@follows(
    "scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1350, 1360,
    ReasonCode.MATMUL_VECTOR, ReasonCode.MATMUL_DTYPE,
)
@follows("scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1365, 1368, ReasonCode.SEVERAL_MATMULS)
@follows("scheduler/matmul_utils", "isMatmulFusionDefinitionSupported", 709, 721, ReasonCode.MATMUL_BATCH)
def _product(facts: CandidateFacts, product: Link) -> Refusal | None:
    """Return why there is more than one product, or one of another kind, or None."""
    for link in facts.links:
        if link.kind is not OpKind.MATMUL:
            continue
        if link.op not in {"matmul", "linear"}:
            return reason(ReasonCode.OTHER_MATMUL, tensor=link.name, op=link.op), (link.name,)
        if link.name != product.name:
            why = reason(ReasonCode.SEVERAL_MATMULS, first=product.name, second=link.name)
            return why, (product.name, link.name)
    for operand in product.tensors[:2]:
        if operand.ndim < 2:
            return reason(ReasonCode.MATMUL_VECTOR, operand=operand.name, tensor=product.name), (product.name,)
        if operand.dtype not in {DataType.Half, DataType.BFloat16}:
            why = reason(
                ReasonCode.MATMUL_DTYPE, operand=operand.name, tensor=product.name, dtype=operand.dtype.name,
            )
            return why, (product.name,)
    first, second = product.tensors[:2]
    if product.op == "matmul" and second.ndim > first.ndim:
        why = reason(
            ReasonCode.MATMUL_BATCH, tensor=product.name, first=first.name, axes=first.ndim, second=second.name,
            more=second.ndim,
        )
        return why, (product.name,)
    return None


@follows("scheduler/matmul_utils", "getMatmulRunTimeRejectReason", 1409, 1433, ReasonCode.MATMUL_TOO_LARGE)
def _too_long(facts: CandidateFacts, product: Link, device: Device) -> Refusal | None:
    """Return an input with an axis too long for the coordinates of Hopper's copies of tiles, or None."""
    for tensor in facts.inputs if device.cc[0] == HOPPER[0] else ():
        if max(tensor.shape, default=0) >= MOST_ELEMENTS:
            why = reason(
                ReasonCode.MATMUL_TOO_LARGE, operand=tensor.name, extent=max(tensor.shape), limit=MOST_ELEMENTS - 1,
            )
            return why, (product.name,)
    return None


@follows("scheduler/registry", "checkCanSchedule", 42, 77, ReasonCode.EVALUATED_ONLY)
def _alone(facts: CandidateFacts) -> Refusal | None:
    link = facts.reserved or facts.inexact_gather
    if link is None:
        return None
    return reason(ReasonCode.EVALUATED_ONLY, tensor=link.name, op=link.op), (link.name,)


@follows("scheduler/matmul_utils", "isMatmulFusionDefinitionSupported", 629, 632, ReasonCode.MATMUL_ONE_INPUT)
@follows("scheduler/matmul_utils", "isMatmulFusionDefinitionSupported", 727, 734, ReasonCode.MATMUL_LAYOUT)
def _ends(facts: CandidateFacts, product: Link) -> Refusal | None:
    """Return why inputs or outputs are not those of a product, or None."""
    inputs = facts.candidate.inputs
    if len(inputs) < 2:
        why = reason(ReasonCode.MATMUL_ONE_INPUT, operand=inputs[0].name, tensor=product.name)
        return why, (product.name,)
    for output in facts.candidate.outputs:
        order = [axis for axis in output.domain.allocation_order if not output.domain.axes[axis].is_broadcast]
        if order != sorted(order):
            order_text = ", ".join(map(str, output.domain.allocation_order))
            return reason(ReasonCode.MATMUL_LAYOUT, output=output.name, order=f"({order_text})"), (output.name,)
    return None


@follows("scheduler/matmul_utils", "getMatmulCompileTimeRejectReason", 1312, 1331, ReasonCode.MATMUL_PROLOGUE)
@follows("scheduler/matmul_utils", "isMatmulFusionDefinitionSupported", 635, 677, ReasonCode.MATMUL_EPILOGUE)
def _around(facts: CandidateFacts, product: Link, device: Device) -> Refusal | None:
    """Return why an expression before or after the product cannot be in its kernel, or None."""
    makers = {link.name: link for link in facts.links}
    before: set[str] = set()
    stack = list(product.operands[:2])
    while stack:
        name = stack.pop()
        if name in makers and name not in before:
            before.add(name)
            stack.extend(makers[name].operands)
    for link in facts.links:
        if link.name in before:
            if link.kind not in MOVES and (device.cc >= HOPPER or link.kind is not OpKind.POINTWISE):
                ways = "copied, broadcast or squeezed" if device.cc >= HOPPER else "moved or made element by element"
                why = reason(
                    ReasonCode.MATMUL_PROLOGUE, operand=link.name, op=link.op, tensor=product.name, device=device.name,
                    ways=ways,
                )
                return why, (link.name, product.name)
        elif link.name != product.name and link.kind not in AFTER:
            why = reason(ReasonCode.MATMUL_EPILOGUE, tensor=link.name, op=link.op, product=product.name)
            return why, (link.name, product.name)
    return None

"""Rules shared by the schedulers that keep values on chip across a reduction."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile

from fuser_lab.analysis.buffer_sizes import BufferSizes
from fuser_lab.analysis.domain_map import ExactMap
from fuser_lab.analysis.reductions import ReductionPattern
from fuser_lab.analysis.resolved_broadcasts import unresolved_broadcast
from fuser_lab.cost.device import ACCESS_BYTES, KIB, SHARED_ALIGNMENT, Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, reason
from fuser_lab.ir import TensorView
from fuser_lab.schedule.base import common_gate, no, refusal_of_reductions
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.reduction import reshape_mixes

# Bytes of a row up to which exponentials are kept; those of longer rows are computed twice. The second constant is for
# devices with much bandwidth per operation (nvFuser: is_high_bandwidth_flops_ratio).
KEEP_EXP_BYTES = 24 * KIB
KEEP_EXP_BYTES_HIGH_BANDWIDTH = 96 * KIB  # bytes
INDEX_BYTES = 8  # bytes of the number of elements, the third result of a Welford


@follows("scheduler/normalization_utils", "checkOpsAndInputs", 1114, 1119, ReasonCode.NO_REDUCTION)
@follows("scheduler/normalization_utils", "checkOpsAndInputs", 1121, 1125, ReasonCode.NO_TENSOR_INPUT)
def refusal_of_any_size(
    scheduler: SchedulerType, facts: CandidateFacts, kind: Callable[[CandidateFacts], Refusal | None],
) -> Verdict | None:
    """Return the refusal by the first broken rule that does not depend on the bytes kept, or None.

    ``kind`` is the rule about the axes that are reduced.
    """
    return refusal_of_reductions(scheduler, facts, partial(_rules, kind))


def _rules(
    kind: Callable[[CandidateFacts], Refusal | None], facts: CandidateFacts,
) -> Iterator[Refusal | None]:
    yield common_gate(facts)
    yield facts.index_input
    yield facts.indexed_before_reduction
    yield kind(facts)
    yield facts.pattern_mismatch
    yield needs_buffer(facts)
    yield facts.unique_broadcasts
    yield broadcast_elsewhere(facts)
    yield reshape_mixes(facts, facts.patterns[0])
    yield facts.covered_by_reduction(inputs=False)
    yield facts.expanded_after


def keep_exp_up_to(device: Device) -> int:
    """Return the size in bytes up to which a row of exponentials is kept rather than computed again."""
    return KEEP_EXP_BYTES_HIGH_BANDWIDTH if device.is_high_bandwidth else KEEP_EXP_BYTES


@follows("scheduler/normalization_utils", "isProjectBufferToInputs", 853, 928, ReasonCode.BUFFER_TOO_LARGE)
def is_projected(sizes: BufferSizes, room: int | None = None, exp_up_to: int = 0, *, smaller: bool = True) -> bool:
    """Return whether buffers are recomputed from inputs, by default only if these are smaller.

    Buffers larger than ``room`` are recomputed. Others are too, unless this repeats random numbers, or exponentials
    where the buffers have at most ``exp_up_to`` bytes.
    """
    if not sizes.inputs or sizes.projected <= 0 or (smaller and sizes.projected >= sizes.kept):
        return False
    fits = room is None or sizes.kept <= room
    return not (fits and (sizes.with_random or (sizes.with_exp and sizes.kept <= exp_up_to)))


def reduction_workspace(facts: CandidateFacts, threads: int) -> int:
    """Return the bytes of shared memory in which the threads of a block reduce, and those of static variables.

    nvFuser: csrc/scheduler/utils.cpp:2959-2984 (getReductionSmemWorkspaceBit), csrc/scheduler/utils.h:60.
    """
    has_welford = any(link.op == "welford" for link in facts.reductions)
    widest = max(link.out.dtype.itemsize for link in facts.reductions)
    each = 3 * max(widest, INDEX_BYTES) if has_welford else widest
    return align(threads * each) + SHARED_ALIGNMENT


def few_blocks(
    scheduler: SchedulerType, facts: CandidateFacts, pattern: ReductionPattern, device: Device,
) -> Verdict | None:
    """Return the refusal of a large reduction whose rows leave most of a device idle."""
    needed = device.sms // 8
    if pattern.numel < device.large_reduction or pattern.rows >= needed:
        return None
    return no(
        scheduler, ReasonCode.NOT_ENOUGH_BLOCKS, *facts.names, tensor=pattern.name, numel=pattern.numel,
        rows=pattern.rows, needed=needed,
    )


def align(size: int) -> int:
    """Return a size in bytes rounded up to the alignment of arrays in shared memory."""
    return -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


@follows("scheduler/normalization_utils", "compileTimeCheck", 1288, 1294, ReasonCode.NO_PERSISTENT_BUFFER)
@follows("scheduler/normalization_utils", "isCacheableUnmappableTv", 1918, 2025, ReasonCode.PARTLY_REDUCED)
def needs_buffer(facts: CandidateFacts) -> Refusal | None:
    """Return why no buffer is needed, or why none can be kept, or None."""
    if facts.buffers:
        return None
    for buffer in facts.flow.needed_again():
        partly = facts.flow.partly_reduced(buffer.tensor.name)
        if partly is not None:
            why = reason(
                ReasonCode.PARTLY_REDUCED, tensor=partly.tensor, reduction=partly.reduction, user=buffer.resolved_at,
                present=partly.present, axes=partly.axes,
            )
            return why, facts.names
    return reason(ReasonCode.NO_PERSISTENT_BUFFER, tensor=facts.patterns[0].name), facts.names


@follows("scheduler/registry_utils", "hasNonNormalizePostReductionBCast", 586, 843, ReasonCode.BROADCAST_ELSEWHERE)
def broadcast_elsewhere(facts: CandidateFacts) -> Refusal | None:
    """Return why a result is broadcast to an axis that nothing before a reduction has, or None."""
    lost = unresolved_broadcast(facts.flow)
    if lost is None:
        return None
    extent = facts.exact.extent[lost.number]
    return reason(ReasonCode.BROADCAST_ELSEWHERE, tensor=lost.tensor, extent=extent, user=lost.user), facts.names


def vector_width(facts: CandidateFacts, pattern: ReductionPattern) -> int:
    """Return how many adjacent elements one access of a reduction's operand can have, a power of two.

    An access has at most 16 bytes. Only inputs and outputs whose innermost axis is that of the operand, and is
    contiguous, have wide accesses. The innermost axes, all kept or all reduced, must be one range in each of them, in
    the same order; its length must be a multiple of the width. Of merged axes, the innermost stands for all.
    nvFuser: csrc/scheduler/vectorize_helper.cpp:764-839 (getContigMergeOfInnerSize), 982-1086 (getLayoutConstraint),
    csrc/scheduler/utils.cpp:1796-1883 (getInputsOutputsWithInnerDim).
    """
    exact, near = facts.exact, facts.neighbourhoods
    reduction = next(link for link in facts.reductions if link.name == pattern.name)
    inner = facts.innermost.of(reduction.tensors[0])
    like = takewhile(lambda axis: axis[1] is pattern.inner, reversed(pattern.axes))
    run = [near.of(number) for number, _ in like if exact.extent[number] != 1]
    widths = []
    for tensor in (*facts.outputs, *facts.inputs):
        is_read_in_order = tensor.name in exact.classes and tensor.name not in facts.lookups
        first = facts.innermost.of(tensor) if is_read_in_order else None
        if first is None or inner is None or near.of(first) != near.of(inner):
            continue
        axes = _contiguous(exact, tensor)
        if first not in axes:
            continue
        length = 1
        for number, group in zip((number for number in axes if exact.extent[number] != 1), run, strict=False):
            if near.of(number) != group:
                break
            length *= exact.extent[number]
        widths.append(min(ACCESS_BYTES // tensor.dtype.itemsize, length & -length or ACCESS_BYTES))
    return min(widths, default=1)


def _contiguous(exact: ExactMap, tensor: TensorView) -> list[int]:
    """Return the classes of the innermost axes that are contiguous in memory, without broadcast axes, from inside."""
    domain, numbers = tensor.domain, exact.classes[tensor.name]
    order = domain.allocation_order
    flags = domain.contiguity or (True,) * len(order)
    axes = ((numbers[place], flag) for place, flag in zip(reversed(order), reversed(flags), strict=True))
    return [number for number, _ in takewhile(lambda axis: axis[1] is not False, axes) if not exact.broadcast[number]]

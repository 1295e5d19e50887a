"""InnerOuterPersistent: rows are kept while they are reduced and added to column sums (backward passes)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from fuser_lab.analysis.buffer_sizes import RowBuffer, buffer_sizes
from fuser_lab.analysis.domain_map import Link
from fuser_lab.analysis.reductions import ReductionFlow, ReductionPattern
from fuser_lab.analysis.resolved_broadcasts import unresolved_broadcast
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Reason, SchedulerType, Verdict, accept, reason
from fuser_lab.ir import Expr, OpKind
from fuser_lab.schedule.base import Heuristics, common_gate, no, refusal_of_reductions, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts, Refusal, mismatch
from fuser_lab.schedule.persistent import (
    align,
    few_blocks,
    is_projected,
    needs_buffer,
    reduction_workspace,
    vector_width,
)
from fuser_lab.schedule.reduction import reshape_mixes

# Threads of a block that are tried (nvFuser: csrc/scheduler/normalization_inner_outer.h:25-26).
LEAST_THREADS, MOST_THREADS, WARP = 128, 512, 32


@dataclass(frozen=True, slots=True)
class InnerOuterPersistent(Heuristics):
    """Accepts inner and outer reductions of one iteration space that share an input, if a row and the sums fit."""

    type: SchedulerType = SchedulerType.INNER_OUTER_PERSISTENT

    @follows("scheduler/normalization_utils", "checkOpsAndInputs", 1114, 1119, ReasonCode.NO_REDUCTION)
    @follows("scheduler/normalization_utils", "checkOpsAndInputs", 1121, 1125, ReasonCode.NO_TENSOR_INPUT)
    @follows(
        "scheduler/normalization_inner_outer", "canScheduleCompileTime", 273, 284, ReasonCode.ONE_KIND_OF_REDUCTION,
    )
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance with the bytes kept, or the first rule that is broken."""
        early = refusal_of_reductions(self.type, facts, _rules_of_any)
        if early is not None:
            return early
        inner = [p for p in facts.patterns if p.inner]
        outer = [p for p in facts.patterns if not p.inner]
        if not inner or not outer:
            return no(self.type, ReasonCode.ONE_KIND_OF_REDUCTION, kind="inner" if inner else "outer")
        refusal = facts.first_broken(_rules(facts, inner, outer))
        return refusal_verdict(self.type, refusal) if refusal is not None else self._fits(facts, device, inner, outer)

    @follows(
        "scheduler/normalization_inner_outer_utils", "getPersistentBufferStorageParams", 93, 292,
        ReasonCode.ROWS_AND_SUMS_TOO_LARGE,
    )
    @follows("scheduler/normalization_inner_outer", "canScheduleRunTime", 489, 503, ReasonCode.NOT_ENOUGH_BLOCKS)
    def _fits(
        self, facts: CandidateFacts, device: Device, inner: Sequence[ReductionPattern],
        outer: Sequence[ReductionPattern],
    ) -> Verdict:
        """Return whether registers keep the column sums, and registers and shared memory the rows.

        Rows are kept in shared memory as far as it has room, and in registers beside the column sums otherwise, those
        that are broadcast to all rows last.
        """
        row, sums_of = inner[0], {p.name for p in outer}
        sums = sum(
            prod(facts.exact.extent[c] for c in outer[0].kept) * link.out.dtype.itemsize
            for link in facts.reductions if link.name in sums_of
        )
        registers = device.register_file // 8 * 7
        shared = device.shared_per_block - reduction_workspace(facts, MOST_THREADS)
        rows = _rows_kept(facts, inner)
        size, names = sum(buffer.bytes for buffer in rows), ", ".join(dict.fromkeys(buffer.name for buffer in rows))
        vector = vector_width(facts, row)
        stored = [_in_shared_memory(buffer, vector) for buffer in rows]
        first = next((place for place in range(len(rows) + 1) if sum(stored[place:]) <= shared), None)
        beside = sum(buffer.bytes for buffer in rows[:first])
        if first is None or sums + beside > registers:
            return no(
                self.type, ReasonCode.ROWS_AND_SUMS_TOO_LARGE, *facts.names, bytes=size, tensors=names, sums=sums,
                registers=registers, shared=max(shared, 0),
            )
        if (few := few_blocks(self.type, facts, row, device)) is not None:
            return few
        why = reason(ReasonCode.ROWS_AND_SUMS_FIT, bytes=size, tensors=names, sums=sums, moved=size - beside)
        return accept(self.type, why, persistent=True)


def _rows_kept(facts: CandidateFacts, inner: Sequence[ReductionPattern]) -> list[RowBuffer]:
    """Return the rows that are kept, those that are broadcast to all rows last: inputs if buffers are projected.

    A broadcast to all rows, read again for each of them, makes projection worthwhile whatever its size.
    """
    sizes = buffer_sizes(ReductionFlow.of(facts.exact, facts.links, inner))
    spread = _broadcast_to_rows(facts, inner[0])
    if not is_projected(sizes, smaller=not spread):
        rows = sizes.buffers
    else:
        read = {tensor.name for tensor in facts.inputs}
        # As in nvFuser, an input that is also a buffer itself counts twice.
        rows = (*sizes.inputs, *(buffer for buffer in sizes.buffers if buffer.name in read))
    return sorted(rows, key=lambda buffer: buffer.name in spread)


def _broadcast_to_rows(facts: CandidateFacts, row: ReductionPattern) -> set[str]:
    """Return the tensors from which broadcasts to all kept axes, but to no reduced one, are computed.

    nvFuser: csrc/scheduler/normalization_utils.cpp:698-729 (getOuterBroadcastTvs).
    """
    reduction = next(link for link in facts.reductions if link.name == row.name)
    flags = [place not in reduction.reduced for place in range(len(reduction.root_extents))]
    spread = [
        link.name for link in facts.links
        if link.kind is OpKind.BROADCAST and [place < 0 for place in link.sources[0]] == flags
    ]
    return _ancestors(facts.links, spread)


def _in_shared_memory(buffer: RowBuffer, vector: int) -> int:
    """Return the most bytes that a row needs in shared memory, where it is rounded up to whole rounds of a block.

    nvFuser: csrc/scheduler/normalization_inner_outer_utils.cpp:23-42 (roundUpSharedMemory).
    """
    accesses = buffer.bytes // buffer.itemsize // vector
    most = max(-(-accesses // threads) * threads for threads in range(LEAST_THREADS, MOST_THREADS + 1, WARP))
    return align(most * vector * buffer.itemsize)


def _rules_of_any(facts: CandidateFacts) -> Iterator[Refusal | None]:
    yield common_gate(facts)
    yield facts.index_input
    yield facts.indexed_before_reduction


def _rules(
    facts: CandidateFacts, inner: Sequence[ReductionPattern], outer: Sequence[ReductionPattern],
) -> Iterator[Refusal | None]:
    yield _interleaved_axes(facts)
    yield _not_complementary(inner, outer)
    yield facts.unique_broadcasts
    yield _no_shared_input(facts)
    yield _tied_elsewhere(facts)
    yield needs_buffer(facts)
    yield _widening_after(facts)
    yield reshape_mixes(facts, inner[0])
    yield facts.expanded_after


@follows("scheduler/normalization_utils", "checkIfReductionsAreInnerOuter", 521, 564, ReasonCode.AXES_INTERLEAVED)
def _interleaved_axes(facts: CandidateFacts) -> Refusal | None:
    """Return a reduction whose operand has axes of size 1, or whose reduced axes do not lie together at an end."""
    for link in facts.reductions:
        axes = [
            "reduced" if slot in link.reduced else "of size 1" if is_one else "kept"
            for slot, is_one in enumerate(link.root_broadcast)
        ]
        if sum(a != b for a, b in pairwise(axes)) != 1 or "of size 1" in axes:
            return reason(ReasonCode.AXES_INTERLEAVED, tensor=link.name, axes=", ".join(axes)), (link.name,)
    return None


@follows("scheduler/normalization_utils", "checkReductionPattern", 1143, 1189, ReasonCode.PATTERN_MISMATCH)
@follows("scheduler/normalization_utils", "isReductionIterationAxisMatched", 616, 669, ReasonCode.NOT_COMPLEMENTARY)
def _not_complementary(inner: Sequence[ReductionPattern], outer: Sequence[ReductionPattern]) -> Refusal | None:
    """Return why inner reductions are not over [kept, reduced] and outer ones over [reduced, kept] axes, or None."""
    first = inner[0]
    for other in inner[1:]:
        if other.axes != first.axes:
            return mismatch(first, other), (first.name, other.name)
    for other in outer:
        if other.axes != tuple((c, not reduced) for c, reduced in first.axes):
            return other_places(first, other), (first.name, other.name)
    return None


def other_places(inner: ReductionPattern, outer: ReductionPattern) -> Reason:
    """Return the reason that an outer reduction does not reduce what an inner one keeps."""
    return reason(
        ReasonCode.NOT_COMPLEMENTARY, inner=inner.name, inner_axes=inner.places, outer=outer.name,
        outer_axes=outer.places,
    )


@follows("scheduler/normalization_utils", "hasSharedInput", 566, 589, ReasonCode.NO_SHARED_INPUT)
def _no_shared_input(facts: CandidateFacts) -> Refusal | None:
    """Return why the reductions share no read of an input, or None."""
    inner, outer = (_ancestors(facts.links, _operands(facts, inner=kind)) for kind in (True, False))
    read = {tensor.name for tensor in facts.inputs}
    if inner & outer & read:
        return None
    first = {p.inner: p.name for p in reversed(facts.patterns)}
    return reason(ReasonCode.NO_SHARED_INPUT, inner=first[True], outer=first[False]), facts.names


def _operands(facts: CandidateFacts, *, inner: bool) -> set[str]:
    names = {p.name for p in facts.patterns if p.inner is inner}
    return {name for link in facts.reductions if link.name in names for name in link.operands}


@follows(
    "scheduler/normalization_utils", "isConnectedOnlyThroughReductionProducer", 591, 614,
    ReasonCode.OUTER_BEFORE_INNER, ReasonCode.SHARED_CONSUMER,
)
def _tied_elsewhere(facts: CandidateFacts) -> Refusal | None:
    """Return where inner and outer reductions are connected other than through the operands of outer ones, or None."""
    return tied_reductions(facts) or _connected_besides(facts)


def tied_reductions(facts: CandidateFacts) -> Refusal | None:
    """Return a reduction that depends on an outer one, or an expression that combines both kinds, or None."""
    inner = {p.name for p in facts.patterns if p.inner}
    outer = {p.name for p in facts.patterns if not p.inner}
    after_outer: dict[str, str] = {}
    after_inner: dict[str, str] = {}
    for link in facts.links:
        summed = next((after_outer[name] for name in link.operands if name in after_outer), None)
        rowed = next((after_inner[name] for name in link.operands if name in after_inner), None)
        if summed is not None and link.name in inner | outer:
            return reason(ReasonCode.OUTER_BEFORE_INNER, first=summed, second=link.name), (summed, link.name)
        if summed is not None and rowed is not None:
            return reason(ReasonCode.SHARED_CONSUMER, user=link.name, inner=rowed, outer=summed), facts.names
        if link.name in outer:
            after_outer[link.name] = link.name  # an outer reduction may add up values that follow an inner one
        elif summed is not None:
            after_outer[link.name] = summed
        elif link.name in inner:
            after_inner[link.name] = link.name
        elif rowed is not None:
            after_inner[link.name] = rowed
    return None


@follows(
    "scheduler/normalization_utils", "isConnectedOnlyThroughReductionProducer", 591, 614, ReasonCode.CONNECTED_BESIDES,
)
def _connected_besides(facts: CandidateFacts) -> Refusal | None:
    """Return what connects an outer reduction with another reduction apart from its own operands, or None.

    A walk from all inner reductions goes through operands, users and results of the same expression, and stops at outer
    reductions. A walk from each outer reduction stops at its operands, whatever they are computed from, and may meet no
    other walk. Of an expression with several results, the walks start and stop at the first one alone.
    """
    kind = {p.name: p.inner for p in facts.patterns}
    first = {link.expr: link for link in reversed(facts.reductions)}
    starts = [link for link in facts.reductions if first[link.expr] is link]
    inner = [link.name for link in starts if kind[link.name]]
    outer = [link for link in starts if not kind[link.name]]
    beside = _neighbours(facts.links)
    reached: dict[str, str] = {}
    walks = [(inner, {link.name for link in outer}), *(([link.name], set(link.operands)) for link in outer)]
    for begin, stops in walks:
        walk: set[str] = set()
        stack = list(begin)
        while stack:
            for name in beside[stack.pop()]:
                if name in walk or name in stops:
                    continue
                if name in reached:
                    why = reason(ReasonCode.CONNECTED_BESIDES, tensor=name, first=reached[name], second=begin[0])
                    return why, facts.names
                walk.add(name)
                stack.append(name)
        reached.update(dict.fromkeys(walk, begin[0]))
    return None


def _neighbours(links: Iterable[Link]) -> dict[str, list[str]]:
    """Return for each tensor its operands, its users, and the other results of its expression, without repetition."""
    neighbours: dict[str, dict[str, None]] = {}
    results: dict[Expr, list[str]] = {}
    for link in links:
        siblings = results.setdefault(link.expr, [])
        for other in (*link.operands, *siblings):
            neighbours.setdefault(link.name, {})[other] = None
            neighbours.setdefault(other, {})[link.name] = None
        siblings.append(link.name)
    return {name: list(others) for name, others in neighbours.items()}


@follows(
    "scheduler/registry_utils", "hasNonNormalizePostReductionBCast", 586, 843,
    ReasonCode.BROADCAST_AFTER_REDUCTION, ReasonCode.BROADCAST_ELSEWHERE,
)
def _widening_after(facts: CandidateFacts) -> Refusal | None:
    """Return where a result is broadcast to an axis that nothing before a reduction has, or None."""
    lost = unresolved_broadcast(facts.flow)
    if lost is None:
        return None
    columns = sum(1 << i for i, p in enumerate(facts.patterns) if not p.inner)
    of_columns = facts.flow.after[lost.tensor] & columns
    code = ReasonCode.BROADCAST_AFTER_REDUCTION if of_columns else ReasonCode.BROADCAST_ELSEWHERE
    extent = facts.exact.extent[lost.number]
    return reason(code, tensor=lost.tensor, extent=extent, user=lost.user), facts.names


def _ancestors(links: Iterable[Link], names: Iterable[str]) -> set[str]:
    """Return tensors with everything that they are computed from."""
    operands = {link.name: link.operands for link in links}
    ancestors = set(names)
    stack = list(ancestors)
    while stack:
        for name in operands.get(stack.pop(), ()):
            if name not in ancestors:
                ancestors.add(name)
                stack.append(name)
    return ancestors

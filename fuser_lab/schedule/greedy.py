"""Greedy: sorts, scans and scatters with the pointwise ops around them, one block per row.

Scans become a kernel if the outputs have one element per element of the scans. fuser_lab has no kernels yet with a sort
or a scatter: the array library evaluates such segments op by op.

nvFuser sorts with the radix sort of CUB: `sort_bytes` is the shared memory of such a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from fuser_lab.analysis.domain_map import Link
from fuser_lab.cost.device import SHARED_ALIGNMENT, STATIC_SHARED, WARP, WORD_BYTES, Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import SchedulerType, Verdict, accept, reason
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.ir.domain import Resize
from fuser_lab.schedule.base import Heuristics, no, refusal_verdict
from fuser_lab.schedule.facts import CandidateFacts, Refusal

COUNTER_BYTES = 4  # of one counter of digits
COUNTERS = 9  # per thread: two of the 16 digits of 4 bits share a counter, and one is padding
ALIGNMENT = 16  # bytes
UNPADDED_ITEMS = 4  # per thread; from the next power of two on, elements are padded against bank conflicts


def sort_bytes(threads: int, items: int, key_bytes: int) -> int:
    """Return the bytes in which a block ranks its digits and exchanges keys and positions, one after the other.

    nvFuser: scheduler/tools/cub_utils.cpp:117-204, computeBlockRadixSortTempStorageBytes.
    """
    rank = COUNTERS * COUNTER_BYTES * threads + _prefix_sum_bytes(threads)
    tile = threads * items
    padding = tile // WARP if items > UNPADDED_ITEMS and items & (items - 1) == 0 else 0
    return _align(max(rank, max(key_bytes, INDEX_BYTES) * (tile + padding)))


def _prefix_sum_bytes(threads: int) -> int:
    """Return the bytes of a prefix sum of one counter per thread."""
    if threads % WARP == 0:
        warps = threads // WARP
        # The sum of each warp, a byte of its empty storage, and the sum of the block.
        return _align(warps * (COUNTER_BYTES + 1) + COUNTER_BYTES, 32)
    # Some of the threads add the counters of all.
    length = -(-threads // min(threads, WARP))
    adding = -(-threads // length)
    padded = length % 2 == 0 and length > 2
    # Adding threads whose number is a power of two exchange sums in registers, others in memory with half a warp more.
    steps = (adding - 1).bit_length()
    exchanged = 1 if adding == 1 << steps else COUNTER_BYTES * (adding + (1 << (steps - 1)))
    grid = COUNTER_BYTES * adding * (length + padded)
    return _align(_align(exchanged) + _align(grid) + COUNTER_BYTES)


def _align(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment


RUNS_ALONG = frozenset({OpKind.SCAN, OpKind.SORT, OpKind.SCATTER})
AROUND = frozenset(
    {
        *(OpKind.POINTWISE, OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.RESHAPE, OpKind.FACTORY),
        OpKind.SCALAR,
    },
)
REGISTERS_BESIDES = 20  # registers per thread, for everything but the elements (nvFuser: greedy.cpp:785)
INDEX_BYTES = 8  # bytes of a position (Int); each key is sorted with its position


@dataclass(frozen=True, slots=True)
class Greedy(Heuristics):
    """Accepts candidates with sorts, scans and scatters along rows that fit one block."""

    type: SchedulerType = SchedulerType.GREEDY

    @follows("scheduler/greedy", "canScheduleCompileTime", 1530, 1538, ReasonCode.NO_GREEDY_OP)
    @follows("scheduler/greedy", "CompileTimeChecker::dispatch", 315, 344, ReasonCode.GREEDY_FOREIGN_OP)
    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the first rule that is broken."""
        refusal = facts.greedy_gate
        if refusal is not None:
            return refusal_verdict(self.type, refusal)
        along = [link for link in facts.links if link.kind in RUNS_ALONG]
        if not along:
            return no(self.type, ReasonCode.NO_GREEDY_OP)
        for link in facts.links:
            if not (link.kind in RUNS_ALONG | AROUND or link.op == "pad"):
                return no(self.type, ReasonCode.GREEDY_FOREIGN_OP, link.name, tensor=link.name, op=link.op)
        held = [link for link in facts.links if link.kind in RUNS_ALONG or link.op == "pad"]
        refusal = (
            facts.reshapes or _symbolic(facts, along) or _scatter_refusal(facts, along) or _to_one_element(held)
            or _order_refusal(along) or _other_axes(facts, held) or _merge_refusal(facts, held)
            or _too_long(held, device)
            or _too_much_storage(along, device)
        )
        if refusal is not None:
            return refusal_verdict(self.type, refusal)
        longest = max(along, key=_extent)
        threads, items = _shape(_extent(longest), device)
        why = reason(
            ReasonCode.GREEDY_BLOCK, tensor=longest.name, op=longest.op, extent=_extent(longest), threads=threads,
            items=items, how="one kernel computes it" if _lines_up(facts, along) else "the array library evaluates it",
        )
        return accept(self.type, why)


def _dim(link: Link) -> int:
    dim = link.expr.attr("dim")
    assert isinstance(dim, int)
    return dim


def _size(tensor: TensorView, link: Link) -> int:
    """Return the number of elements of a tensor along the axis of an op; a tensor without axes is a row of one."""
    return tensor.shape[_dim(link)] if tensor.ndim else 1


def _extent(link: Link) -> int:
    """Return the number of elements along the axis that an op sorts, scans or scatters."""
    return max(_size(tensor, link) for tensor in link.tensors[: 2 if link.kind is OpKind.SCATTER else 1])


def _rows(link: Link) -> Iterator[tuple[int, int]]:
    """Yield the elements of a row that a block holds whole and the bytes of each (nvFuser: greedy.cpp:653-724)."""
    if link.op == "pad":
        yield prod(link.out.shape[place] for place in _held_axes(link)), link.out.dtype.itemsize
    elif link.kind is OpKind.SCATTER:
        index = link.tensors[1]
        source = link.expr.inputs[2]
        yield _size(link.out, link), link.out.dtype.itemsize
        yield _size(index, link), index.dtype.itemsize + isinstance(source, TensorView) * source.dtype.itemsize
    elif link.op == "topk":
        yield _extent(link), link.tensors[0].dtype.itemsize + INDEX_BYTES
    else:
        yield _extent(link), link.out.dtype.itemsize


@follows("scheduler/greedy", "CompileTimeChecker::handle", 346, 373, ReasonCode.GREEDY_SYMBOLIC)
def _symbolic(facts: CandidateFacts, along: list[Link]) -> Refusal | None:
    """Return a sort or scan whose result has no constant size along its axis, or None."""
    for link in along:
        if link.kind is not OpKind.SCATTER and link.out.ndim and facts.is_symbolic(link.out, _dim(link)):
            why = reason(
                ReasonCode.GREEDY_SYMBOLIC, tensor=link.name, op=link.op, axis=_dim(link), extent=_size(link.out, link),
            )
            return why, (link.name,)
    return None


@follows("scheduler/greedy", "RunTimeChecker::checkDomainConstraints", 752, 765, ReasonCode.GREEDY_LONG_PAD)
@follows("scheduler/greedy", "RunTimeChecker::checkDomainConstraints", 773, 793, ReasonCode.GREEDY_REGISTERS)
def _too_long(held: list[Link], device: Device) -> Refusal | None:
    """Return an op whose rows do not fit the threads or registers of one block, or None.

    Only pads need a thread per element; all other ops may have several in each thread.
    """
    threads = device.max_threads_per_block
    limit = device.registers // threads
    for link in held:
        for extent, size in _rows(link):
            if link.op == "pad" and extent > threads:
                why = reason(ReasonCode.GREEDY_LONG_PAD, tensor=link.name, extent=extent, limit=threads)
                return why, (link.name,)
            registers = -(-extent // threads) * size // WORD_BYTES + REGISTERS_BESIDES
            if registers > limit:
                why = reason(
                    ReasonCode.GREEDY_REGISTERS, tensor=link.name, op=link.op, extent=extent, registers=registers,
                    threads=threads, limit=limit,
                )
                return why, (link.name,)
    return None


@follows("scheduler/greedy", "RunTimeChecker::checkSharedMemoryBufferUsage", 798, 822, ReasonCode.GREEDY_SHARED_MEMORY)
@follows(
    "scheduler/tools/cub_utils", "computeBlockRadixSortTempStorageBytes", 117, 204, ReasonCode.GREEDY_SHARED_MEMORY,
)
def _too_much_storage(along: list[Link], device: Device) -> Refusal | None:
    """Return sorts that together need more shared memory than a block has, or None.

    Sorts of one op, key dtype and number of elements per thread are one instance and share storage. All instances
    have as many threads as the longest row.
    """
    sorts = [link for link in along if link.kind is OpKind.SORT]
    most = device.max_threads_per_block
    threads = max((min(_extent(link), most) for link in sorts), default=0)
    instances = {(link.op, -(-_extent(link) // most), link.tensors[0].dtype) for link in sorts}
    needed = sum(sort_bytes(threads, items, dtype.itemsize) for _, items, dtype in instances if threads)
    needed = -(-needed // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
    limit = min(STATIC_SHARED, device.shared_per_block)
    if needed <= limit:
        return None
    longest = max(sorts, key=_extent)
    why = reason(
        ReasonCode.GREEDY_SHARED_MEMORY, tensor=longest.name, op=longest.op, extent=_extent(longest),
        instances=len(instances), threads=threads, bytes=needed, limit=limit,
    )
    return why, tuple(dict.fromkeys(link.name for link in sorts))


def _shape(extent: int, device: Device) -> tuple[int, int]:
    """Return the threads per block and the elements per thread."""
    threads = min(max(-(-extent // 32) * 32, 32), device.max_threads_per_block)
    return threads, max(-(-extent // threads), 1)


def _lines_up(facts: CandidateFacts, along: list[Link]) -> bool:
    """Whether there are only scans, and everything that depends on them has one element per element of theirs."""
    if any(link.kind is not OpKind.SCAN for link in along):
        return False
    behind = {link.name for link in along}
    for link in facts.links:
        if not behind.isdisjoint(link.operands):
            behind.add(link.name)
            if link.op == "pad":
                return False
    ends = [*(link.out for link in along), *(tv for tv in facts.outputs if tv.name in behind)]
    return len({prod(tensor.stored_shape) for tensor in ends}) == 1


@follows("scheduler/greedy", "CompileTimeChecker::handle", 379, 382, ReasonCode.SCATTER_INEXACT)
@follows("scheduler/greedy", "CompileTimeChecker::handle", 384, 389, ReasonCode.SCATTER_SHARED)
def _scatter_refusal(facts: CandidateFacts, along: list[Link]) -> Refusal | None:
    for link in along:
        if link.kind is not OpKind.SCATTER:
            continue
        target, places = link.tensors[0], link.tensors[1]
        for axis, (extent, size) in enumerate(zip(target.shape, places.shape, strict=True)):
            if axis != _dim(link) and extent != size:
                why = reason(ReasonCode.SCATTER_INEXACT, tensor=link.name, axis=axis, extent=extent, given=size)
                return why, (link.name,)
        user = next((u.name for u in facts.links if target.name in u.operands and u.name != link.name), None)
        if user is not None:
            why = reason(ReasonCode.SCATTER_SHARED, tensor=link.name, operand=target.name, user=user)
            return why, (link.name, user)
    return None


@follows("scheduler/greedy", "CompileTimeChecker::handle", 461, 481, ReasonCode.RESIZED_BROADCAST)
def _to_one_element(held: list[Link]) -> Refusal | None:
    """Return a pad that leaves one element of an axis, or None."""
    for link in held:
        for step in link.out.domain.transforms if link.op == "pad" else ():
            if isinstance(step, Resize) and step.result.is_broadcast:
                before, after = str(step.source.visible_extent), str(step.result.visible_extent)
                why = reason(ReasonCode.RESIZED_BROADCAST, tensor=link.name, before=before, after=after)
                return why, (link.name,)
    return None


@follows("scheduler/greedy", "CompileTimeChecker::handle", 391, 429, ReasonCode.SCATTER_PERMUTED)
def _order_refusal(along: list[Link]) -> Refusal | None:
    """Return a scatter whose operand or result is not row-major, or None."""
    for link in along:
        for tensor in (link.tensors[0], link.out) if link.kind is OpKind.SCATTER else ():
            if tensor.domain.allocation_order != tuple(range(tensor.ndim)):
                return reason(ReasonCode.SCATTER_PERMUTED, tensor=link.name, operand=tensor.name), (link.name,)
    return None


@follows("scheduler/greedy", "CompileTimeChecker::checkDomainConstraints", 505, 550, ReasonCode.GREEDY_OTHER_AXES)
def _other_axes(facts: CandidateFacts, held: list[Link]) -> Refusal | None:
    """Return two ops whose rows are not distributed over blocks in the same way, or None."""
    first = held[0]
    for other in held[1:]:
        if _free(facts, other) != _free(facts, first):
            return reason(ReasonCode.GREEDY_OTHER_AXES, first=first.name, second=other.name), (first.name, other.name)
    return None


def _held_axes(link: Link) -> frozenset[int]:
    """Return the positions of the axes that one block holds whole: an op runs along them, or a pad extends them."""
    if link.op != "pad":
        return frozenset({_dim(link)})
    domain = link.out.domain
    widened = [step.source for step in domain.transforms if isinstance(step, Resize)]
    return frozenset(domain.root_or_logical.index(axis) for axis in widened)


def _free(facts: CandidateFacts, link: Link) -> frozenset[int]:
    """Return the classes of the axes that are distributed over blocks."""
    numbers, broadcast, held = facts.exact.classes[link.operands[0]], facts.exact.broadcast, _held_axes(link)
    return frozenset(c for place, c in enumerate(numbers) if place not in held and not broadcast[c])


@follows("scheduler/greedy", "CompileTimeChecker::CompileTimeChecker", 288, 312, ReasonCode.GREEDY_MERGED)
def _merge_refusal(facts: CandidateFacts, held: list[Link]) -> Refusal | None:
    """Return a reshape that merges an axis held by one block with one that is distributed over blocks, or None."""
    exact = facts.exact
    kinds: dict[int, set[bool]] = {}
    for link in held:
        slots = _held_axes(link)
        for tensor in (link.operands[0], link.name):
            for place, number in enumerate(exact.classes[tensor]):
                if not exact.broadcast[number]:
                    kinds.setdefault(number, set()).add(place in slots)
    for derivation in exact.derivations:
        places = set().union(*(kinds.get(source, set()) for source in derivation.sources))
        if derivation.name == "merge" and len(places) > 1:
            return reason(ReasonCode.GREEDY_MERGED, tensor=derivation.expr, first=held[0].name), facts.names
        for result in derivation.results:
            kinds.setdefault(result, set()).update(places)
    return None

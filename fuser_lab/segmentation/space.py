"""The space of partitions of a fusion: its units, the tensors that flow between them, prices, and incompatible pairs.

Units are expressions that each partition has in exactly one segment. Two units are incompatible if their convex hull is
refused for monotone reasons only: then every segment that contains both would be refused too.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from operator import add, itemgetter, or_, sub
from typing import Self

from fuser_lab.analysis.bit_masks import bits, union_at
from fuser_lab.analysis.parts_read import Part
from fuser_lab.cost.traffic import CostModel, least_reads, may_view, part_bytes, seen_as, traffic
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.segmentation.forwarding import Chain
from fuser_lab.segmentation.hints import BY_HINT, has_hints, refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle, candidate

MOST_WAYS = 16  # maximum number of ways to copy or read chains; after these, a set of expressions is presumed legal


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A tensor between expressions: its bytes, its producer's mask (0: in memory already) and its readers' mask.

    ``kept`` says that it must be written in any case, because it is a fusion output. ``bytes`` are those that every
    segment with a reader reads at least, ``stored`` those that its producer writes. ``parts`` has what each reader, by
    its number, reads at least, if that is not always everything.
    """

    name: str
    bytes: int
    producer: int
    readers: int
    kept: bool
    stored: int
    parts: tuple[tuple[int, Part], ...] = ()

    @property
    def parting(self) -> int:
        """Bytes moved, beyond those that every plan moves, if two units that touch it are in different segments."""
        return self.bytes + (0 if self.kept or not self.producer else self.stored)

    @property
    def unread(self) -> int:
        """Bytes that are written, and that not every segment which reads the tensor reads."""
        return self.stored - self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The totals of a set of units: the bytes that it moves as one segment, and the amounts of its units.

    ``shared`` has the flows that other units touch too, as a mask.
    """

    shared: int
    bytes: int
    amounts: tuple[int, ...]


class Space:
    """The set of partitions that is searched.

    ``chains`` are copied into each segment that reads their ends, or, where a scheduler refuses the copy, read from
    memory: always, if no reader can ever hold a copy. All other expressions (the units, numbered in order) are in
    exactly one segment. Sets of units are masks. With ``free_views``, segments that may only make views cost nothing:
    flows lead past the units that make views, to the units that read these, and prices are lower bounds.
    """

    def __init__(
        self,
        fusion: Fusion,
        oracle: SchedulerOracle,
        options: SegmenterOptions,
        model: CostModel,
        chains: Sequence[Chain] = (),
        *,
        free_views: bool = False,
    ) -> None:
        self.fusion = fusion
        self.model = model
        self.free_views = free_views
        self.chains = tuple(chains)
        self.asked = 0
        self._oracle = oracle
        self._options = options
        self._copied = frozenset(name for chain in chains for name in chain.names)
        self.never_read = 0  # chains that no segment may read from memory
        self.while_kept = f" while {options.segment_set.value}s are kept" if has_hints(fusion, options) else ""
        self.units: tuple[Expr, ...] = tuple(e for e in fusion.tensor_exprs if e.name not in self._copied)
        self.all = (1 << len(self.units)) - 1
        self.views = frozenset(unit for unit in self.units if free_views and may_view(unit))
        self.launching = sum(1 << i for i, unit in enumerate(self.units) if unit not in self.views)
        self._answers: dict[tuple[int, int], Answer] = {}
        self._connect()

    def least_read(self, tensor: TensorView) -> int:
        """Return the bytes of a tensor that every segment which reads it reads at least."""
        parts = self._least.get(tensor)
        return tensor.nbytes if parts is None else min(part_bytes(tensor, [part]) for part in parts.values())

    def _connect(self) -> None:
        self._least = least_reads(self.fusion)
        place = {expr: i for i, expr in enumerate(self.units)}
        self.above = [0] * len(self.units)
        self.below = [0] * len(self.units)
        for i, expr in enumerate(self.units):
            for tensor in expr.tensor_inputs:
                maker = self.fusion.producers.get(tensor)
                if maker in place:
                    self.above[i] |= self.above[place[maker]] | 1 << place[maker]
        for i, expr in reversed(tuple(enumerate(self.units))):
            for tensor in expr.tensor_inputs:
                maker = self.fusion.producers.get(tensor)
                if maker in place:
                    self.below[place[maker]] |= self.below[i] | 1 << i
        # The ends of the chains that some reader may contain a copy of.
        self._ends = {
            chain.end: number for number, chain in enumerate(self.chains)
            if not all(self.never_copies(i, number) for i in self.readers(chain.end))
        }
        outputs = set(self.fusion.outputs)
        flows = []
        for tensor in self.fusion.tensors.values():
            maker = self.fusion.producers.get(tensor)
            if maker in self.views:
                continue
            seen, users = seen_as(self.fusion, tensor, self.views)
            readers = sum(1 << place[user] for user in users if user in place)
            producer = 1 << place[maker] if maker in place else 0
            is_written = bool(producer) and (
                not outputs.isdisjoint(seen) or any(user not in place for user in users)
            )
            is_end = tensor in self._ends
            sizes = self._ways(self._ends[tensor]) if is_end else (self.least_read(tensor),)
            size = min(*sizes, *(self.least_read(view) for view in seen))
            parts = {} if is_end or len(seen) > 1 else self._least.get(tensor, {})
            if readers or is_written:
                none = Part.none_of(tensor)
                flows.append(Flow(
                    name=tensor.name, bytes=size, producer=producer, readers=readers, kept=is_written,
                    stored=size if is_end else min(view.nbytes for view in seen),
                    parts=tuple([(i, parts.get(self.units[i].name, none)) for i in bits(readers if parts else 0)]),
                ))
        self.flows = tuple(flows)
        self.touching = tuple(flow.producer | flow.readers for flow in flows)
        self._amounts: Sequence[tuple[int, ...]] = [()] * len(self.units)
        self._sums: dict[int, Sums] = {}
        self._launch = self.model.launch_bytes
        self._touching = [0] * len(self.units)
        for number, touching in enumerate(self.touching):
            for i in bits(touching):
                self._touching[i] |= 1 << number

    def readers(self, tensor: TensorView) -> list[int]:
        """Return the units that read a tensor."""
        return [i for i, unit in enumerate(self.units) if tensor in unit.tensor_inputs]

    def never_copies(self, unit: int, number: int) -> bool:
        """Whether a unit can never share a segment with a copy of a chain."""
        return is_final(self.ask(1 << unit, 1 << number))

    def is_copied(self, end: TensorView) -> bool:
        """Whether some reader may hold a copy of the chain that ends in a tensor."""
        return end in self._ends

    def _ways(self, number: int) -> tuple[int, int]:
        """Return the bytes that a reader of a chain's end reads if it has a copy of the chain, and if not."""
        chain = self.chains[number]
        stored = self.least_read(chain.end)
        # A reader that slices the end, element by element of the chain's operand, reads the same part of the operand.
        parts = (
            tv.nbytes * stored // chain.end.nbytes if tv.numel == chain.end.numel > 0 else tv.nbytes
            for tv in chain.exprs[0].tensor_inputs
        )
        return sum(map(min, map(self.least_read, chain.exprs[0].tensor_inputs), parts)), stored

    def without_reads(self, number: int) -> Self:
        """Return the space of the partitions in which no segment reads the end of a chain from memory."""
        narrowed = copy.copy(self)
        narrowed.never_read |= 1 << number
        return narrowed

    def stored_cost(self, number: int) -> int:
        """Return the cost of the segments that compute and store a chain."""
        exprs = self.chains[number].exprs
        parts = [exprs] if self.takes(exprs) else [(expr,) for expr in exprs]
        return sum(self._launch + traffic(self.fusion, part, self._copied).total for part in parts)

    def least_stored_cost(self, chain: Chain) -> int:
        """Return the least cost of storing a chain in a separate segment."""
        return self._launch + chain.end.nbytes + sum(map(self.least_read, chain.exprs[0].tensor_inputs))

    def stored_in(self, segments: Iterable[int]) -> int:
        """Return the chains that some of these segments read from memory, as a mask."""
        chains = 0
        for mask in segments:
            way = self.legal_way(mask)
            chains |= self.copies(mask) & ~(way[1] if way else 0)
        return chains

    @property
    def kept_chains(self) -> int:
        """The chains that a separate segment always stores, because they end in an output, as a mask."""
        return sum(1 << number for number, chain in enumerate(self.chains) if chain.end in self.fusion.outputs)

    def exprs(self, mask: int) -> list[Expr]:
        """Return the expressions of a mask in order."""
        return [self.units[i] for i in bits(mask)]

    def names(self, mask: int) -> tuple[str, ...]:
        """Return the names of a mask's expressions in order."""
        return tuple(self.units[i].name for i in bits(mask))

    def mask(self, names: Iterable[str]) -> int:
        """Return the mask of the units among some names."""
        return sum(1 << self._place[name] for name in names if name in self._place)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {expr.name: i for i, expr in enumerate(self.units)}

    def hull(self, mask: int) -> int:
        """Return the set with everything on paths between its members."""
        return mask | (union_at(self.above, mask) & union_at(self.below, mask))

    def copies(self, mask: int) -> int:
        """Return the numbers of the chains whose ends a set reads and may hold copies of, as a mask."""
        chains = 0
        for i in bits(mask) if self.chains else ():
            for tensor in self.units[i].tensor_inputs:
                if tensor in self._ends:
                    chains |= 1 << self._ends[tensor]
        return chains

    def ask(self, mask: int, copies: int = 0) -> Answer:
        """Return the verdicts about a set with copies of chains."""
        answer = self._answers.get((mask, copies))
        if answer is None:
            self.asked += 1
            exprs = [*self.exprs(mask), *(e for n in bits(copies) for e in self.chains[n].exprs)]
            group = candidate(self.fusion, exprs, self._copied)
            answer = self._answers[mask, copies] = refused_by_hint(group, self._options) or self._oracle.ask(group)
        return answer

    def ways(self, mask: int) -> list[tuple[int, int]]:
        """Return ways to provide a set with the chains that it reads, cheapest first.

        Each is the bytes above the cheapest and the mask of the copied chains; the last has -1 for the mask if there
        are more ways than are worth trying: then it counts as legal.
        """
        reads = list(bits(self.copies(mask)))
        if not reads:
            return [(0, 0)]
        costs = {number: self._ways(number) for number in reads}
        best = sum(1 << n for n in reads if costs[n][0] <= costs[n][1])
        extra = {n: abs(costs[n][0] - costs[n][1]) for n in reads}
        shown = sorted(reads, key=extra.__getitem__)[:8]
        choices = sorted(
            (
                (sum(extra[n] for n in changed), best ^ sum(1 << n for n in changed))
                for size in range(len(shown) + 1)
                for changed in combinations(shown, size)
            ),
            key=itemgetter(0),  # on a tie the way with the most copies, because each stored chain is a launch
        )
        if self.never_read:
            choices = [(cost, copied) for cost, copied in choices if not self.never_read & self.copies(mask) & ~copied]
        if len(choices) <= MOST_WAYS and len(shown) == len(reads):
            return choices
        more = min([entry[0] for entry in choices[MOST_WAYS:]] + [extra[n] for n in reads if n not in shown])
        tried = [entry for entry in choices[:MOST_WAYS] if entry[0] <= more]
        return [*tried, (more, -1)]

    def is_legal(self, mask: int, copies: int) -> bool:
        """Whether a set can be a segment: a scheduler accepts it, or it is a single expression that none accepts."""
        alone = not mask & (mask - 1) and not copies
        return copies == -1 or alone or self.ask(mask, copies).chosen is not None

    def legal_way(self, mask: int) -> tuple[int, int] | None:
        """Return the cheapest of the ways that are tried in which a set is legal, None if there is none.

        A single expression may always read its chains from memory.
        """
        way = next((way for way in self.ways(mask) if way[1] != -1 and self.is_legal(mask, way[1])), None)
        if way is None and not mask & (mask - 1) and not self.copies(mask) & self.never_read:
            reads = map(self._ways, bits(self.copies(mask)))
            return sum(max(stored - copied, 0) for copied, stored in reads), 0
        return way

    def takes(self, exprs: Sequence[Expr]) -> bool:
        """Whether a scheduler accepts expressions that may be recomputed as a separate segment."""
        group = candidate(self.fusion, exprs, self._copied)
        return (refused_by_hint(group, self._options) or self._oracle.ask(group)).chosen is not None

    def price(self, mask: int, sums: Sums | None = None) -> int:
        """Return the cost of a set as one segment, chains provided in the cheapest way; ``sums`` are its sums."""
        return (self._launch if mask & self.launching else 0) + (sums or self.sums(mask)).bytes

    def sums(self, mask: int) -> Sums:
        """Return the totals of a set."""
        cached = self._sums.get(mask)
        if cached is not None:
            return cached
        units = list(bits(mask))
        total = shared = 0
        for number in bits(reduce(or_, [self._touching[i] for i in units], 0)):
            total += self._moved_bytes(number, mask)
            if self.touching[number] & ~mask:
                shared |= 1 << number
        amounts = tuple(map(sum, zip(*[self._amounts[i] for i in units], strict=True)))
        return Sums(shared=shared, bytes=total, amounts=amounts)

    def _cached_sums(self, mask: int) -> Sums:
        if mask not in self._sums:
            self._sums[mask] = self.sums(mask)
        return self._sums[mask]

    def _moved_bytes(self, number: int, mask: int) -> int:
        """Return the bytes of a flow that a set moves, which touches it."""
        flow = self.flows[number]
        if flow.producer & mask:
            return flow.stored if flow.kept or flow.readers & ~mask else 0
        if not flow.parts:
            return flow.bytes
        return part_bytes(self.fusion.tensors[flow.name], [part for i, part in flow.parts if mask >> i & 1])

    def joined(self, a: int, b: int) -> Sums:
        """Return the totals of the union of two disjoint sets, computed from the totals of both."""
        first, second, union = self._cached_sums(a), self._cached_sums(b), a | b
        shared, total = first.shared | second.shared, first.bytes + second.bytes
        for number in bits(first.shared & second.shared):
            total += self._moved_bytes(number, union) - self._moved_bytes(number, a) - self._moved_bytes(number, b)
            if not self.touching[number] & ~union:
                shared ^= 1 << number
        return Sums(shared=shared, bytes=total, amounts=tuple(map(add, first.amounts, second.amounts)))

    def join(self, a: int, b: int) -> int:
        """Return the union of two disjoint sets, and keep its sums."""
        if a and b:
            self._sums[a | b] = self.joined(a, b)
        return a | b

    def split(self, whole: int, part: int) -> int:
        """Return a set without a part of it, whose totals are then known from the totals of both."""
        rest = whole & ~part
        if rest and part:
            first, second = self._cached_sums(whole), self._cached_sums(part)
            shared, total = first.shared & ~second.shared, first.bytes - second.bytes
            for number in bits(second.shared):
                if self.touching[number] & rest:
                    shared |= 1 << number
                    total += self._moved_bytes(number, part) + self._moved_bytes(number, rest)
                    total -= self._moved_bytes(number, whole)
            amounts = tuple(map(sub, first.amounts, second.amounts))
            self._sums[rest] = Sums(shared=shared, bytes=total, amounts=amounts)
        return rest


@dataclass(frozen=True, slots=True)
class Conflict:
    """A pair that can never share a kernel, and the sentence that says why; ``by_hint`` if only a hint forbids it."""

    a: int
    b: int
    why: str
    by_hint: bool = False


class Conflicts:
    """Which units of a space can never share a kernel: ``of[i]`` is the mask of the units that exclude unit i.

    ``taken`` are convex sets that a scheduler accepts: no two units of one of them are in conflict, so no scheduler is
    asked about them. Once ``ended()`` is true, no scheduler is asked any more, and unknown pairs count as compatible.
    """

    def __init__(self, space: Space, taken: Iterable[int] = (), ended: Callable[[], bool] = lambda: False) -> None:
        self.space = space
        size = len(space.units)
        self.of = [0] * size
        self._why: dict[tuple[int, int], Conflict] = {}
        together = [0] * size
        for mask in taken:
            for i in bits(mask):
                together[i] |= mask
        pairs = [
            (space.hull(1 << i | 1 << j), i, j)
            for i, j in combinations(range(size), 2) if not together[i] >> j & 1
        ]
        for hull, i, j in sorted(pairs, key=lambda pair: pair[0].bit_count()):
            inner = next((k for k in bits(hull) if self.of[k] & hull), None)
            if inner is not None:
                opponent = next(bits(self.of[inner] & hull))
                self._note(i, j, self._why[min(inner, opponent), max(inner, opponent)])
                continue
            if ended():
                break
            answer = space.ask(hull)
            if is_final(answer):
                self._note(i, j, Conflict(i, j, final_text(answer), is_by_hint(answer)))

    def within(self, space: Space) -> "Conflicts":
        """Return the same conflicts in a narrower space of the same units."""
        narrowed = copy.copy(self)
        narrowed.space = space
        return narrowed

    def _note(self, i: int, j: int, conflict: Conflict) -> None:
        self.of[i] |= 1 << j
        self.of[j] |= 1 << i
        self._why[i, j] = conflict

    def text(self, i: int, j: int, clique: int = 0) -> str:
        """Return why two units can never share a kernel; mention others of a clique that may once hints are ignored."""
        conflict = self._why[min(i, j), max(i, j)]
        names = [f"{self.space.units[k].name} ({self.space.units[k].op.name})" for k in (i, j)]
        never = f"cannot share a kernel{self.space.while_kept}" if conflict.by_hint else "can never share a kernel"
        said = f"{names[0]} and {names[1]} {never}, because "
        if {i, j} != {conflict.a, conflict.b}:
            inner = " and ".join(self.space.units[k].name for k in (conflict.a, conflict.b))
            said += f"{inner} would be part of it and "
        pairs = () if conflict.by_hint else combinations(bits(clique), 2)
        some = any(self._why[pair].by_hint for pair in pairs)
        return f"{said}{conflict.why}{f' (others of them only{self.space.while_kept})' if some else ''}"

    def clique(self, among: int, start: int = 0) -> int:
        """Return a set of mutually incompatible units that contains ``start``, grown greedily."""
        best = start
        by_degree = sorted(bits(among & ~start), key=lambda i: -(self.of[i] & among).bit_count())
        for order in (by_degree, list(bits(among & ~start)), list(bits(among & ~start))[::-1]):
            chosen = start
            for i in order:
                if not chosen & ~self.of[i]:
                    chosen |= 1 << i
            if chosen.bit_count() > best.bit_count():
                best = chosen
        return best

    def parts(self) -> list[int]:
        """Return the sets of units between which no segment can reach, in order."""
        left, parts = self.space.all, []
        while left:
            part = waiting = left & -left
            while waiting:
                i = next(bits(waiting))
                waiting &= ~(1 << i)
                new = left & ~part & ~self.of[i]
                part |= new
                waiting |= new
            parts.append(part)
            left &= ~part
        return parts


def needed_by(space: Space, segment: int) -> int:
    """Return the units outside a segment that it depends on."""
    return union_at(space.above, segment) & ~segment


def in_order(space: Space, segments: Sequence[int]) -> list[int] | None:
    """Return segments, each after those of them that it reads from; None if they form a cycle."""
    left, inside, done, ordered = sorted(segments, key=lambda m: m & -m), sum(segments), 0, []
    while left:
        ready = next((m for m in left if not needed_by(space, m) & inside & ~done), None)
        if ready is None:
            return None
        left.remove(ready)
        done |= ready
        ordered.append(ready)
    return ordered


def is_final(answer: Answer) -> bool:
    """Whether every scheduler refuses, and will refuse every larger set too."""
    return answer.chosen is None and bool(answer.verdicts) and all(v.monotone for v in answer.verdicts)


def is_by_hint(answer: Answer) -> bool:
    """Whether no scheduler was asked, because a hint forbids the set."""
    return bool(answer.verdicts) and answer.verdicts[0].code in BY_HINT


def final_text(answer: Answer) -> str:
    """Return the reason that applies to all larger sets, otherwise the most frequent decisive one."""
    if answer.monotone is not None:
        return answer.monotone.text
    return Counter(verdict.text for verdict in answer.decisive).most_common(1)[0][0]

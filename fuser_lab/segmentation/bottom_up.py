"""Bottom-up segmentation, as nvFuser does it.

The phases and their order follow ``SegmentCandidateFinder::findSegments`` (csrc/fusion_segmenter.cpp). Two things are
deliberately different. The level rule looks at all edges, where nvFuser overlooks those that carry a fusion output and
can close a cycle. And a forwarded chain that some reader cannot take is stored once, not once per reader. The Welford
rewrite, privatization and casts on boundaries are not here yet.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, reason
from fuser_lab.events import Attempt, Kind, Names, Outcome, VerdictRecord
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ops.indexing import indexed_axis
from fuser_lab.segmentation.forwarding import Chain, forwarded_chains
from fuser_lab.segmentation.grouping import GroupId, Grouping
from fuser_lab.segmentation.hints import has_hints, refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle, candidate


def bottom_up(
    fusion: Fusion,
    oracle: SchedulerOracle,
    options: SegmenterOptions,
    committed: Sequence[Iterable[Expr]] = (),
) -> Iterator[Attempt]:
    """Yield every attempt; the accepted ones, applied in order, make the segments.

    ``committed`` are groups that top-down presegmentation has already decided on: they may grow, and the passes that
    look for certain single expressions leave them alone.
    """
    if options.whole_fusion and not committed and not has_hints(fusion, options):
        names = tuple(expr.name for expr in fusion.tensor_exprs)
        answer = _Asker(fusion, oracle, options, frozenset()).ask(fusion.tensor_exprs)
        yield _attempt("whole fusion", Kind.MERGE, _single(names), answer)
        if answer.chosen is not None:
            return
    yield from _Finder(fusion, oracle, options, committed).run()


def _single(names: Names) -> tuple[Names, ...]:
    return tuple((name,) for name in names)


def _attempt(phase: str, kind: Kind, subjects: tuple[Names, ...], answer: Answer) -> Attempt:
    accepted = answer.chosen is not None
    return Attempt(
        phase=phase,
        kind=kind,
        subjects=subjects,
        outcome=Outcome.ACCEPTED if accepted else Outcome.REFUSED,
        code=decisive_code(answer),
        text=answer.text,
        verdicts=records(answer),
    )


def decisive_code(answer: Answer) -> str:
    """Return the accepting scheduler's name, or the code of the first decisive refusal."""
    if answer.chosen is not None:
        return answer.chosen.value
    return answer.decisive[0].code if answer.decisive else ""


def records(answer: Answer) -> tuple[VerdictRecord, ...]:
    """Return an answer's verdicts by name."""
    return tuple(
        VerdictRecord(scheduler=v.scheduler.value, accepted=v.accepted, code=v.code, text=v.text)
        for v in answer.verdicts
    )


def _refused(phase: str, subjects: tuple[Names, ...], code: ReasonCode, **params: str | int) -> Attempt:
    return Attempt(
        phase=phase,
        kind=Kind.MERGE,
        subjects=subjects,
        outcome=Outcome.REFUSED,
        code=code.value,
        text=reason(code, **params).text,
    )


class _Asker:
    """Asks the schedulers, after the rule about hints that comes before them."""

    def __init__(
        self, fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, recomputed: frozenset[str],
    ) -> None:
        self._fusion = fusion
        self._oracle = oracle
        self._options = options
        self._recomputed = recomputed

    def ask(self, exprs: Iterable[Expr]) -> Answer:
        """Return the verdicts about expressions as one group."""
        group = candidate(self._fusion, exprs, self._recomputed)
        return refused_by_hint(group, self._options) or self._oracle.ask(group)


class _Finder:
    def __init__(
        self,
        fusion: Fusion,
        oracle: SchedulerOracle,
        options: SegmenterOptions,
        committed: Sequence[Iterable[Expr]],
    ) -> None:
        self._fusion = fusion
        self._options = options
        fixed = [frozenset(group) for group in committed]
        taken = {expr for group in fixed for expr in group}
        self._chains: list[Chain] = list(forwarded_chains(fusion, options, taken))
        recomputed = frozenset(name for chain in self._chains for name in chain.names)
        singles = [[e] for e in fusion.tensor_exprs if e not in taken and e.name not in recomputed]
        self._grouping = Grouping(fusion, [*fixed, *singles], recomputed)
        self._committed = set(range(len(fixed)))
        self._asker = _Asker(fusion, oracle, options, recomputed)

    def run(self) -> Iterator[Attempt]:
        for chain in self._chains:
            yield Attempt(
                phase="forward",
                kind=Kind.FORWARD,
                subjects=(chain.names,),
                outcome=Outcome.ACCEPTED,
                text=f"{chain.end.name} is recomputed by each reader",
            )
        yield from self._cat_with_pads()
        yield from self._cast_groups()
        if self._options.combine_reductions:
            yield from self._combine_reductions()
        if self._options.level_merge:
            yield from self._level_rounds()
        if self._options.final_merge:
            yield from self._final_merge()
        yield from self._resolve_forwarded()

    def _try(self, phase: str, members: Sequence[GroupId]) -> Iterator[Attempt]:
        """Yield one attempt to merge groups that are known to be convex; merge them if a scheduler takes them."""
        grouping = self._grouping
        answer = self._asker.ask(expr for member in members for expr in grouping.groups[member])
        attempt = _attempt(phase, Kind.MERGE, tuple(grouping.names(m) for m in members), answer)
        if answer.chosen is not None:
            grouping.merge(members)
        yield attempt

    def _lone(self, group: GroupId) -> Expr | None:
        """Return the expression of a group that holds just one and is not committed."""
        exprs = self._grouping.groups[group]
        return next(iter(exprs)) if len(exprs) == 1 and group not in self._committed else None

    def _cat_with_pads(self) -> Iterator[Attempt]:
        """A cat whose operands all come from pads that nobody else reads (nvFuser PR #4481)."""
        for group in list(self._grouping.groups):
            cat = self._lone(group)
            if cat is None or cat.op.name != "cat":
                continue
            makers = [self._grouping.owner(tensor) for tensor in cat.tensor_inputs]
            pads = [m for m in makers if m is not None and self._is_private_pad(m)]
            if len(pads) == len(makers):
                yield from self._try("cat with pads", [*dict.fromkeys(pads), group])

    def _is_private_pad(self, group: GroupId) -> bool:
        pad = self._lone(group)
        return pad is not None and pad.op.name == "pad" and len(self._grouping.consumers(group)) == 1

    def _cast_groups(self) -> Iterator[Attempt]:
        """From a widening cast to the narrowing casts behind it, so that boundaries fall on narrow tensors (#3699)."""
        tried: set[frozenset[GroupId]] = set()
        while True:
            before = len(self._grouping.groups)
            for group in list(self._grouping.groups):
                cast = self._lone(group)
                if cast is None or not is_widening(cast):
                    continue
                members = self._between_casts(group)
                if len(members) > 1 and frozenset(members) not in tried:
                    tried.add(frozenset(members))
                    yield from self._try("cast group", members)
                if len(self._grouping.groups) != before:
                    break
            else:
                return

    def _between_casts(self, start: GroupId) -> list[GroupId]:
        """Return the groups visited breadth first from a widening cast; they form an in-tree, hence are convex."""
        grouping = self._grouping
        found = [start]
        for group in found:
            expr = self._lone(group)
            if expr is None:
                continue
            outgoing = [edge for edge in grouping.edges(group) if edge[0] == group]
            ahead = [b for _, _, b in outgoing] if len(outgoing) == 1 and not is_narrowing(expr) else []
            behind = []
            if not is_widening(expr):
                behind = [
                    p for p in grouping.producers(group) if len([e for e in grouping.edges(p) if e[0] == p]) == 1
                ]
            for other in (*ahead, *behind):
                if other not in found and self._lone(other) is not None:
                    found.append(other)
        return found

    def _combine_reductions(self) -> Iterator[Attempt]:
        """Groups with reductions of one signature, in a line or beside each other (nvFuser: CombineReductions)."""
        tried: set[frozenset[GroupId]] = set()
        while True:
            signatures = self._signatures()
            before = len(self._grouping.groups)
            for members in self._reduction_sets(signatures):
                if frozenset(members) in tried:
                    continue
                tried.add(frozenset(members))
                yield from self._try("combine reductions", members)
                if len(self._grouping.groups) != before:
                    break
            else:
                return

    def _signatures(self) -> dict[GroupId, tuple[int, tuple[int, ...]]]:
        found = {}
        for group, exprs in self._grouping.groups.items():
            if group in self._committed:
                continue
            signatures = {reduction_signature(e) for e in exprs if e.kind is OpKind.REDUCTION}
            if len(signatures) == 1:
                found[group] = signatures.pop()
        return found

    def _reduction_sets(self, signatures: dict[GroupId, tuple[int, tuple[int, ...]]]) -> Iterator[list[GroupId]]:
        ancestors = self._grouping.ancestors()
        for first, signature in signatures.items():
            for second, other in signatures.items():
                if first == second or signature != other:
                    continue
                if ancestors[second] >> first & 1:
                    members = self._line(first, second, ancestors)
                    if self._may_combine(members, signature, signatures):
                        yield members
                elif first < second and not ancestors[first] >> second & 1:
                    for members in self._beside(first, second, ancestors):
                        if self._may_combine(members, signature, signatures):
                            yield members

    def _line(self, start: GroupId, end: GroupId, ancestors: dict[GroupId, int]) -> list[GroupId]:
        """Return two groups and everything between them: the convex hull."""
        return [
            g
            for g in self._grouping.groups
            if g in {start, end} or (ancestors[end] >> g & 1 and ancestors[g] >> start & 1)
        ]

    def _beside(
        self, first: GroupId, second: GroupId, ancestors: dict[GroupId, int],
    ) -> Iterator[list[GroupId]]:
        """Yield sets that lead from readers of one common source to two groups beside each other."""

        def reaches(start: GroupId, end: GroupId) -> bool:
            return start == end or bool(ancestors[end] >> start & 1)

        for readers in self._common_readers(first, second, ancestors):
            for a in (r for r in readers if reaches(r, first)):
                for b in (r for r in readers if reaches(r, second)):
                    members = [*self._line(a, first, ancestors), *self._line(b, second, ancestors)]
                    union = list(dict.fromkeys(members))
                    if self._is_convex(union, ancestors):
                        yield union

    def _common_readers(
        self, first: GroupId, second: GroupId, ancestors: dict[GroupId, int],
    ) -> Iterator[list[GroupId]]:
        grouping = self._grouping
        common = ancestors[first] & ancestors[second]
        nearest = [g for g in reversed(list(grouping.topological())) if common >> g & 1]
        for source in nearest:
            yield grouping.consumers(source)
        readers: dict[TensorView, list[GroupId]] = {}
        for group in grouping.groups:
            for value in grouping.aux_values(group):
                readers.setdefault(value, []).append(group)
        for value in self._fusion.tensors.values():
            if len(readers.get(value, ())) > 1:
                yield readers[value]

    def _is_convex(self, members: Sequence[GroupId], ancestors: dict[GroupId, int]) -> bool:
        mask = sum(1 << m for m in members)
        return not any(
            ancestors[other] & mask and any(ancestors[m] >> other & 1 for m in members)
            for other in self._grouping.groups
            if not mask >> other & 1
        )

    def _may_combine(
        self,
        members: Sequence[GroupId],
        signature: tuple[int, tuple[int, ...]],
        signatures: dict[GroupId, tuple[int, tuple[int, ...]]],
    ) -> bool:
        if any(m in self._committed for m in members) or self._grouping.carries_output(members):
            return False
        return all(signatures.get(m, signature) == signature for m in members)

    def _level_rounds(self) -> Iterator[Attempt]:
        """Rounds of pairs on adjacent levels (Herrmann et al., acyclic DAG partitioning, theorem 4.2)."""
        tried: set[frozenset[Names]] = set()
        number = 0
        while True:
            number += 1
            pairs: list[tuple[GroupId, GroupId]] = []
            yield from _Round(self._grouping, self._asker, f"level round {number}", pairs, tried).run()
            if not pairs:
                return
            for a, b in pairs:
                self._grouping.merge((a, b))

    def _final_merge(self) -> Iterator[Attempt]:
        """Any producer and consumer that no other consumer leads to (Herrmann et al., theorem 4.1)."""
        tried: set[tuple[Names, Names]] = set()
        blocked: set[tuple[Names, Names]] = set()
        while True:
            before = len(self._grouping.groups)
            for attempt in self._final_scan(tried, blocked):
                yield attempt
                if len(self._grouping.groups) != before:
                    break
            if len(self._grouping.groups) == before:
                return

    def _final_scan(
        self, tried: set[tuple[Names, Names]], blocked: set[tuple[Names, Names]],
    ) -> Iterator[Attempt]:
        """Yield attempts in list order; the caller starts again after the first merge."""
        grouping = self._grouping
        ancestors = grouping.ancestors()
        for producer in list(grouping.groups):
            consumers = grouping.consumers(producer)
            for consumer in consumers:
                pair = (grouping.names(producer), grouping.names(consumer))
                between = next((c for c in consumers if c != consumer and ancestors[consumer] >> c & 1), None)
                if between is not None and pair not in blocked:
                    blocked.add(pair)
                    yield _refused("final merge", pair, ReasonCode.CYCLE, through=grouping.names(between)[0])
                if between is None and pair not in tried:
                    tried.add(pair)
                    yield from self._try("final merge", (producer, consumer))

    def _resolve_forwarded(self) -> Iterator[Attempt]:
        """Copy each chain into its readers, or store its result where a reader's scheduler refuses the copy."""
        stored: list[Chain] = []
        copies: dict[GroupId, list[Expr]] = {group: [] for group in self._grouping.groups}
        for chain in self._chains:
            refused = False
            for group in list(self._grouping.groups):
                if not any(chain.end in expr.tensor_inputs for expr in self._grouping.groups[group]):
                    continue
                whole = {*self._grouping.groups[group], *copies[group], *chain.exprs}
                answer = self._asker.ask(whole)
                subjects = (chain.names, self._grouping.names(group))
                yield _attempt("resolve forwarded", Kind.REPLICATE, subjects, answer)
                if answer.chosen is not None:
                    copies[group].extend(chain.exprs)
                else:
                    refused = True
            if refused or not any(chain.end in e.tensor_inputs for g in self._grouping.groups.values() for e in g):
                stored.append(chain)
        for chain in stored:
            yield from self._store(chain)

    def _store(self, chain: Chain) -> Iterator[Attempt]:
        """Make a chain a group of its own; where no scheduler takes it whole, its expressions one by one."""
        answer = self._asker.ask(chain.exprs)
        whole = _attempt("resolve forwarded", Kind.STORE, (chain.names,), answer)
        yield whole
        if whole.accepted:
            return
        for expr in chain.exprs:
            alone = _attempt("resolve forwarded", Kind.STORE, ((expr.name,),), self._asker.ask([expr]))
            # A group that nobody takes is still part of the plan: it is shown with the reasons.
            yield replace(alone, outcome=Outcome.ACCEPTED)


class _Round:
    """One round of level-based merging: pairs far enough apart that all can be contracted together."""

    def __init__(
        self,
        grouping: Grouping,
        asker: _Asker,
        phase: str,
        pairs: list[tuple[GroupId, GroupId]],
        tried: set[frozenset[Names]],
    ) -> None:
        self._grouping = grouping
        self._asker = asker
        self._phase = phase
        self._pairs = pairs
        self._tried = tried
        self._partner: dict[GroupId, GroupId] = {}
        self._level = grouping.levels()

    def run(self) -> Iterator[Attempt]:
        for producer, consumer in self._preferred():
            if consumer in self._candidates(producer):
                yield from self._pair(producer, consumer)
        if self._pairs:
            return
        for group in list(self._grouping.groups):
            for other in self._candidates(group):
                yield from self._pair(group, other)
                if group in self._partner:
                    break

    def _preferred(self) -> Iterator[tuple[GroupId, GroupId]]:
        """Yield pairs that are better tried first (PR #4297).

        The producer of what a single indexed read looks up, unless that is an input, with the read, which leaves one
        element of the axis; and a group that pads something from outside, with the reader of the padded tensor.
        """
        for group, exprs in list(self._grouping.groups.items()):
            lookup = next(iter(exprs)) if len(exprs) == 1 else None
            if lookup is not None and _leaves_one(lookup):
                table = self._grouping.owner(lookup.tensor_inputs[0])
                if table is not None:
                    yield table, group
            for expr in exprs:
                if expr.op.name == "pad" and self._grouping.owner(expr.tensor_inputs[0]) != group:
                    for a, tensor, b in self._grouping.edges(group):
                        if a == group and tensor is expr.out:
                            yield group, b

    def _pair(self, group: GroupId, other: GroupId) -> Iterator[Attempt]:
        grouping = self._grouping
        producer, consumer = (group, other) if other in grouping.consumers(group) else (other, group)
        names = (grouping.names(producer), grouping.names(consumer))
        key = frozenset(names)
        if key in self._tried:
            return
        self._tried.add(key)
        answer = self._asker.ask(expr for member in (group, other) for expr in grouping.groups[member])
        yield _attempt(self._phase, Kind.MERGE, names, answer)
        if answer.chosen is not None:
            self._partner[group], self._partner[other] = other, group
            self._pairs.append((group, other))

    def _near(self, a: GroupId, b: GroupId) -> bool:
        return abs(self._level[a] - self._level[b]) <= 1

    def _blocked(self, group: GroupId, towards: Iterable[GroupId]) -> bool:
        """Whether a neighbour of ``group`` is paired already and lies, or its partner does, near ``towards``."""
        targets = tuple(towards)
        for neighbour in self._grouping.neighbours(group):
            partner = self._partner.get(neighbour)
            if partner is not None and any(self._near(x, t) for x in (neighbour, partner) for t in targets):
                return True
        return False

    def _candidates(self, group: GroupId) -> list[GroupId]:
        if group in self._partner or self._blocked(group, (group,)):
            return []
        return [
            other
            for other in self._grouping.proposals(group)
            if other not in self._partner and self._near(other, group) and not self._blocked(other, (group, other))
        ]


def _leaves_one(expr: Expr) -> bool:
    """Whether an expression reads one element of an axis at a position that is data."""
    if expr.kind is not OpKind.INDEXING:
        return False
    return expr.op.name == "select" or expr.out.domain.axes[indexed_axis(dict(expr.attrs))].is_broadcast


def is_widening(expr: Expr) -> bool:
    """Whether an expression casts to a wider float type."""
    return expr.op.name == "cast" and _float_sizes(expr)[0] < _float_sizes(expr)[1]


def is_narrowing(expr: Expr) -> bool:
    """Whether an expression casts to a narrower float type."""
    return expr.op.name == "cast" and _float_sizes(expr)[0] > _float_sizes(expr)[1]


def _float_sizes(expr: Expr) -> tuple[int, int]:
    source, target = expr.inputs[0].dtype, expr.outputs[0].dtype
    return (source.itemsize, target.itemsize) if source.is_float and target.is_float else (0, 0)


def reduction_signature(expr: Expr) -> tuple[int, tuple[int, ...]]:
    """Return rank and reduced positions of a reduction's result."""
    logical = expr.out.domain.logical
    return len(logical), tuple(i for i, axis in enumerate(logical) if axis.is_reduction)

"""Bottom-up segmentation, as nvFuser does it.

The phases and their order follow ``SegmentCandidateFinder::findSegments`` (csrc/fusion_segmenter.cpp). Two things are
deliberately different. The level rule considers all edges, whereas nvFuser ignores those that carry a fusion output and
can therefore close a cycle. A forwarded chain that some reader cannot recompute is stored once, not once per reader.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation.casts import is_narrowing, is_widening
from fuser_lab.segmentation.events import Attempt, Kind, Outcome
from fuser_lab.segmentation.forwarding import Chain, forward_attempt, forwarded_chains
from fuser_lab.segmentation.grouping import GroupId, Grouping
from fuser_lab.segmentation.hints import has_hints
from fuser_lab.segmentation.level_rounds import LevelRound, is_tried_first
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.pieces import pieces
from fuser_lab.segmentation.privatization import (
    attempts,
    originals_of,
    read_together,
    repeated_exprs,
    replicas_of,
    with_replicas,
    without,
)
from fuser_lab.segmentation.reduction_sets import Cores, ReductionSets
from fuser_lab.segmentation.scheduler_attempts import Asker, refusal
from fuser_lab.segmentation.welford import in_fusion, welfords, written_out


@follows("fusion_segmenter", "SegmentCandidateFinder::segment", 1644, 1681)
def bottom_up(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions,
) -> Iterator[Attempt]:
    """Yield every attempt; the accepted ones, applied in order, produce the segments.

    If ``segment_set`` is a cut, each part between cuts is first tried whole, like a separate fusion.
    """
    committed: Sequence[Iterable[Expr]] = ()
    if options.whole_fusion and not has_hints(fusion, options):
        asker = Asker(fusion, oracle, options)
        attempt, answer = asker.whole("whole fusion", fusion.tensor_exprs)
        yield attempt
        if attempt.accepted:
            yield from asker.rewritten("whole fusion", fusion.tensor_exprs, answer)
            return
    elif options.whole_fusion and options.segment_set is SegmentSetMeaning.CUT:
        sides = pieces(fusion, replace(options, cut_reshape_inputs=False, cut_resize_inputs=False))
        fusion, committed = yield from whole_pieces(fusion, oracle, options, sides, "between cuts")
    yield from grow_groups(fusion, oracle, options, committed)


def grow_groups(
    fusion: Fusion,
    oracle: SchedulerOracle,
    options: SegmenterOptions,
    committed: Sequence[Iterable[Expr]] = (),
    *,
    final: bool = False,
) -> Iterator[Attempt]:
    """Yield the attempts of all phases that merge groups, starting from single expressions.

    ``committed`` are groups that are accepted already: the passes that look for certain single expressions leave them
    alone. If they are ``final``, no two of them are tried together, and other expressions may still join one.
    """
    fixed = [tuple(group) for group in committed]
    replicas = replicas_of(fusion, (expr for group in fixed for expr in group)) if options.privatize else []
    yield from attempts(replicas)
    fusion = with_replicas(fusion, replicas)
    fusion = yield from lone_welfords(fusion, oracle, options, {expr for group in fixed for expr in group})
    fixed = [in_fusion(fusion, group) for group in fixed]
    yield from _Finder(fusion, oracle, options, fixed, originals_of(replicas), final=final).run()


def whole_pieces(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, pieces: Iterable[Iterable[int]], phase: str,
) -> Generator[Attempt, None, tuple[Fusion, list[Sequence[Expr]]]]:
    """Yield one attempt to schedule each piece, given by positions among the tensor expressions, as a whole.

    Returns the fusion, in which Welfords may be rewritten, and the accepted pieces.
    """
    parts = [[fusion.tensor_exprs[place] for place in piece] for piece in pieces]
    committed: list[Sequence[Expr]] = []
    for part in parts:
        exprs = in_fusion(fusion, part)
        asker = Asker(fusion, oracle, options)
        attempt, answer = asker.whole(phase, exprs)
        if attempt.text and not attempt.accepted:
            attempt = replace(attempt, text=f"shattered into single expressions; {attempt.text}")
        yield attempt
        if attempt.accepted:
            fusion, group = yield from asker.rewritten(phase, exprs, answer)
            committed.append(group)
    return fusion, [in_fusion(fusion, group) for group in committed]


@follows("fusion_segmenter", "TranslateApplicableWelford", 2429, 2472)
def lone_welfords(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, fixed: Collection[Expr] = (),
) -> Generator[Attempt, None, Fusion]:
    """Yield one attempt per Welford that says whether it alone becomes sums; return the rewritten fusion.

    This is optimistic, as in nvFuser: later merges may keep more data on chip than fits.
    """
    for expr in welfords(fusion.tensor_exprs, fusion) if options.welford else ():
        if expr in fixed:
            continue
        attempt = Asker(fusion, oracle, options).rewrite("welford", in_fusion(fusion, [expr]))
        yield attempt
        if attempt.accepted:
            fusion = written_out(fusion, {expr.name})
    return fusion


class _Finder:
    def __init__(
        self,
        fusion: Fusion,
        oracle: SchedulerOracle,
        options: SegmenterOptions,
        committed: Sequence[Iterable[Expr]],
        originals: Mapping[str, str],
        *,
        final: bool,
    ) -> None:
        self._fusion = fusion
        self._oracle = oracle
        self._originals = originals
        self._options = options
        fixed = [frozenset(group) for group in committed]
        taken = {expr for group in fixed for expr in group}
        self._chains: list[Chain] = [
            chain for chain in forwarded_chains(fusion, options, taken)
            if not final or taken.isdisjoint(fusion.users.get(chain.end, ()))
        ]
        recomputed = frozenset(name for chain in self._chains for name in chain.names)
        singles = [[e] for e in fusion.tensor_exprs if e not in taken and e.name not in recomputed]
        self._grouping = Grouping(fusion, [*fixed, *singles], recomputed)
        self._committed = set(range(len(fixed)))
        self._final = set(self._committed) if final else set()  # and the groups that contain them now
        self._asker = Asker(fusion, oracle, options, recomputed)
        self._copies: dict[GroupId, list[Expr]] = {}

    def run(self) -> Iterator[Attempt]:
        for chain in self._chains:
            yield forward_attempt(chain, "forward")
        yield from self._cat_with_pads()
        yield from self._cast_groups()
        if self._options.combine_reductions:
            yield from self._combine_reductions()
        if self._options.level_merge:
            yield from self._level_rounds()
        if self._options.final_merge:
            yield from self._final_merge()
        yield from self._resolve_forwarded()
        yield from self._revert_privatization()

    def _try(self, phase: str, members: Sequence[GroupId], *, keep_reach: bool = False) -> Attempt:
        """Return the attempt to merge groups that are known to be convex.

        They are merged if a scheduler accepts them.
        """
        attempt, answer = self._ask(phase, members)
        if answer.chosen is not None:
            self._merge(members, keep_reach=keep_reach)
        return attempt

    def _merge(self, members: Sequence[GroupId], *, keep_reach: bool = False) -> None:
        union = self._grouping.merge(members, keep_reach=keep_reach)
        if not self._final.isdisjoint(members):
            self._final.add(union)

    def _ask(self, phase: str, members: Sequence[GroupId]) -> tuple[Attempt, Answer]:
        grouping = self._grouping
        return self._asker.merge(
            phase, tuple(grouping.names(m) for m in members), [grouping.groups[member] for member in members],
        )

    def _lone(self, group: GroupId) -> Expr | None:
        """Return the expression of a group that holds just one and is not committed."""
        exprs = self._grouping.groups[group]
        return next(iter(exprs)) if len(exprs) == 1 and group not in self._committed else None

    @follows("fusion_segmenter", "MergeCatWithInputPads", 3407, 3522)
    def _cat_with_pads(self) -> Iterator[Attempt]:
        """A cat whose operands all come from pads that no other expression reads (nvFuser PR #4481)."""
        for group in list(self._grouping.groups):
            cat = self._lone(group)
            if cat is None or cat.op.name != "cat":
                continue
            makers = [self._grouping.owner(tensor) for tensor in cat.tensor_inputs]
            pads = [m for m in makers if m is not None and self._is_private_pad(m)]
            if len(pads) == len(makers):
                yield self._try("cat with pads", [*dict.fromkeys(pads), group])

    def _is_private_pad(self, group: GroupId) -> bool:
        pad = self._lone(group)
        return pad is not None and pad.op.name == "pad" and len(self._grouping.consumers(group)) == 1

    @follows("fusion_segmenter", "MergeUpAndDownCast", 3223, 3403)
    def _cast_groups(self) -> Iterator[Attempt]:
        """Groups from a widening to narrowing casts, so that boundaries fall on narrow tensors (#3699).

        The casts of a refused set are not tried again. After a merge nvFuser starts again at the first group;
        only casts that see a merged group can give a different answer.
        """
        grouping = self._grouping
        waiting = [g for g in grouping.groups if (cast := self._lone(g)) is not None and is_widening(cast)]
        tried: set[frozenset[GroupId]] = set()
        seen_by: dict[GroupId, set[GroupId]] = {}
        barred: dict[GroupId, GroupId] = {}  # a cast, and the one whose set was refused
        while waiting:
            group = heappop(waiting)
            if group not in grouping.groups or group in barred:
                continue
            members, seen = self._between_casts(group)
            for other in seen:
                seen_by.setdefault(other, set()).add(group)
            if len(members) < 2 or frozenset(members) in tried:
                continue
            tried.add(frozenset(members))
            attempt = self._try("cast group", members)
            yield attempt
            if attempt.accepted:
                again = {start for member in members for start in seen_by.pop(member, ())}
                again.update(cast for cast, start in barred.items() if start in again)
                barred = {cast: start for cast, start in barred.items() if start not in again}
                waiting = list(again.union(waiting))
                heapify(waiting)
            else:
                barred.update((member, group) for member in members if member != group)

    def _between_casts(self, start: GroupId) -> tuple[list[GroupId], set[GroupId]]:
        """Return the groups visited breadth first from a widening cast, and all seen.

        A merged group is neither kind of cast. All visited groups but the last are read once, by a visited one, so that
        no path leads out of them and back in; as in nvFuser, an operand that is given twice is read twice.
        """
        grouping = self._grouping
        visited, seen = {start: None}, {start}
        waiting = [start]
        for group in waiting:
            expr = self._lone(group)
            narrows, widens = (expr is not None and is_cast(expr) for is_cast in (is_narrowing, is_widening))
            ahead = grouping.consumers(group) if grouping.reads_out(group) == 1 and not narrows else ()
            behind = () if widens else [p for p in grouping.producers(group) if grouping.reads_out(p) == 1]
            seen.update(grouping.neighbours(group))
            for other in (*ahead, *behind):
                if other not in visited and other not in self._committed:
                    visited[other] = None
                    waiting.append(other)
        return list(visited), seen

    def _combine_reductions(self) -> Iterator[Attempt]:
        """Groups with reductions of one signature, on a path or side by side (nvFuser: CombineReductions)."""
        tried: set[int] = set()
        hopeless = Cores()
        sets = ReductionSets(self._fusion, self._grouping, self._committed)
        has_merged = True
        while has_merged:
            has_merged = False
            for mask in sets.masks():
                if mask in tried or hopeless.within(mask):
                    continue
                tried.add(mask)
                members = tuple(bits(mask))
                attempt, answer = self._ask("combine reductions", members)
                if answer.chosen is not None:
                    union = sets.merge(members)
                    # A set that is refused for a monotone reason stays refused when its groups grow.
                    hopeless.merge(members, union)
                    has_merged = True
                elif answer.verdicts and all(v.monotone for v in answer.verdicts):
                    hopeless.add(mask)
                yield attempt
                if has_merged:
                    break

    def _level_rounds(self) -> Iterator[Attempt]:
        """Rounds of pairs on adjacent levels (Herrmann et al., acyclic DAG partitioning, theorem 4.2)."""
        tried: set[tuple[GroupId, GroupId]] = set()
        first = [expr for expr in self._fusion.tensor_exprs if is_tried_first(expr)]
        number = 0
        while True:
            number += 1
            pairs: list[tuple[GroupId, GroupId]] = []
            phase = f"level round {number}"
            yield from LevelRound(self._grouping, self._asker, phase, pairs, tried, self._final, first).run()
            if not pairs:
                return
            for pair in pairs:
                self._merge(pair)

    def _final_merge(self) -> Iterator[Attempt]:
        """Any producer and consumer that no other consumer leads to (Herrmann et al., theorem 4.1).

        After a merge nvFuser starts again at the first group. Results for other pairs remain valid, because merging
        never removes a path; only the new group and its producers need to be examined.
        """
        waiting = list(self._grouping.groups)
        tried: set[tuple[GroupId, GroupId]] = set()
        while waiting:
            producer = heappop(waiting)
            if producer not in self._grouping.groups:
                continue
            for attempt in self._final_pairs(producer, tried):
                yield attempt
                if attempt.accepted:
                    union = next(reversed(self._grouping.groups))
                    for group in {union, *self._grouping.producers(union)}:
                        heappush(waiting, group)
                    break

    @follows("fusion_segmenter", "SegmentCandidateFinder::finalMerge", 4559, 4618, ReasonCode.CYCLE)
    def _final_pairs(self, producer: GroupId, tried: set[tuple[GroupId, GroupId]]) -> Iterator[Attempt]:
        """Yield the attempts to merge a group with each of its consumers, until one succeeds."""
        grouping = self._grouping
        reach = grouping.reach()
        consumers = grouping.consumers(producer)
        for consumer in consumers:
            if (producer, consumer) in tried or {producer, consumer} <= self._final:
                continue
            tried.add((producer, consumer))
            between = next((c for c in consumers if c != consumer and reach.leads(c, consumer)), None)
            if between is None:
                yield self._try("final merge", (producer, consumer), keep_reach=True)
            else:
                names = (grouping.names(producer), grouping.names(consumer))
                yield refusal("final merge", names, ReasonCode.CYCLE, through=grouping.names(between)[0])

    @follows("fusion_segmenter", "SegmentCandidateFinder::resolveForwardedInputs", 3884, 3920)
    @follows("fusion_segmenter", "SegmentCandidateFinder::resolveNonscalarForwardedInput", 4786, 4823)
    def _resolve_forwarded(self) -> Iterator[Attempt]:
        """Copy each chain into its readers, or store its result where a reader's scheduler refuses the copy."""
        stored: list[Chain] = []
        copies = self._copies = {group: [] for group in self._grouping.groups}
        for chain in self._chains:
            refused = False
            readers = self._grouping.readers(chain.end)
            for group in readers:
                whole = {*self._grouping.groups[group], *copies[group], *chain.exprs}
                subjects = (chain.names, self._grouping.names(group))
                attempt, answer = self._asker.attempt("resolve forwarded", Kind.REPLICATE, subjects, whole)
                yield attempt
                if answer.chosen is not None:
                    copies[group].extend(chain.exprs)
                else:
                    refused = True
            if refused or not readers or chain.end in self._fusion.outputs:
                stored.append(chain)
        for chain in stored:
            yield from self._store(chain)

    @follows("fusion_segmenter", "SegmentCandidateFinder::revertPrivatizedOps", 4256, 4415)
    def _revert_privatization(self) -> Iterator[Attempt]:
        """Replace replicas that ended in one group by one expression."""
        members = {group: self._members(group) for group in self._grouping.groups} if self._originals else {}
        same_in = {group: repeated_exprs(exprs, self._originals) for group, exprs in members.items()}
        # Groups that do not affect others are examined in one rewritten fusion, because each rewrite processes the
        # whole fusion.
        alone = {group: same for group, same in same_in.items() if same}
        for group in _changing_others(members, alone):
            del alone[group]
        together = self._trial({name: into for same in alone.values() for name, into in same.items()})
        dropped: dict[str, str] = {}
        for group, exprs in members.items():
            same = same_in[group]
            while same:
                trial, asker = together if group in alone else self._trial({**dropped, **same})
                refused = None if group in alone else self._refused_reader(group, members, same, trial, asker)
                if refused is None:
                    subjects = tuple(
                        (stays, *(name for name, into in same.items() if into == stays))
                        for stays in dict.fromkeys(same.values())
                    )
                    whole = [trial.exprs[trial.positions[e.name]] for e in exprs if e.name not in same]
                    attempt, _ = asker.attempt("revert privatization", Kind.REVERT, subjects, whole)
                    yield attempt
                    if attempt.accepted:
                        dropped |= same
                    break
                attempt, separate = refused
                yield attempt
                same = {name: into for name, into in same.items() if name not in separate}

    def _trial(self, dropped: Mapping[str, str]) -> tuple[Fusion, Asker]:
        """Return the fusion without some replicas, and an `Asker` for it."""
        trial = without(self._fusion, dropped)
        return trial, Asker(trial, self._oracle, self._options, self._grouping.recomputed)

    def _members(self, group: GroupId) -> list[Expr]:
        """Return the expressions of a group and its copies of forwarded expressions, in topological order."""
        exprs = {expr.name: expr for expr in (*self._grouping.ordered(group), *self._copies[group])}
        return sorted(exprs.values(), key=lambda e: self._fusion.positions[e.name])

    @staticmethod
    def _refused_reader(
        home: GroupId, members: Mapping[GroupId, Sequence[Expr]], same: Mapping[str, str], trial: Fusion, asker: Asker,
    ) -> tuple[Attempt, set[str]] | None:
        """Return the first other group that no scheduler accepts without replicas, and the replicas that must stay."""
        for group, exprs in members.items():
            several = read_together(exprs, same)
            if group == home or not several:
                continue
            subjects = tuple((into, *(n for n in names if n != into)) for into, names in several.items())
            # Replicas in this group itself may already be one expression.
            now = [trial.exprs[trial.positions[expr.name]] for expr in exprs if expr.name in trial.positions]
            attempt, answer = asker.attempt("revert privatization", Kind.REVERT, subjects, now)
            if answer.chosen is None:
                return attempt, {name for names in several.values() for name in names[1:]}
        return None

    def _store(self, chain: Chain) -> Iterator[Attempt]:
        """Make a chain a separate group or, if no scheduler accepts it whole, one group per expression.

        The expressions of a constant after the first ones are one group as soon as a scheduler accepts them.
        """
        is_constant = not chain.exprs[0].tensor_inputs
        for place, expr in enumerate(chain.exprs):
            if place == 0 or (is_constant and len(chain.exprs) > place + 1):
                rest = chain.exprs[place:]
                names = tuple(e.name for e in rest)
                whole, _ = self._asker.attempt("resolve forwarded", Kind.STORE, (names,), rest)
                yield whole
                if whole.accepted:
                    return
            alone, _ = self._asker.attempt("resolve forwarded", Kind.STORE, ((expr.name,),), [expr])
            # A group that no scheduler accepts is still part of the plan: it is shown with the reasons.
            yield replace(alone, outcome=Outcome.ACCEPTED)


def _changing_others(
    members: Mapping[GroupId, Sequence[Expr]], same_in: Mapping[GroupId, Mapping[str, str]],
) -> set[GroupId]:
    """Return the groups whose replicas, if merged into one, would make two operands of another group the same."""
    owners = {into: (into, group) for group, same in same_in.items() for into in same.values()}
    owners |= {name: (into, group) for group, same in same_in.items() for name, into in same.items()}
    groups: set[GroupId] = set()
    for group, exprs in members.items():
        read = {value.name for expr in exprs for value in expr.tensor_inputs}
        seen: set[str] = set()
        for into, owner in (owners[name] for name in read if name in owners):
            if into in seen and owner != group:
                groups.add(owner)
            seen.add(into)
    return groups

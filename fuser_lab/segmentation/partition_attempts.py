"""From segments of a space to the log: the attempts that create the plan, and why neighbours are separate."""

from collections.abc import Generator, Iterator, Sequence

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import reason
from fuser_lab.ir import Fusion
from fuser_lab.segmentation.bottom_up import lone_welfords
from fuser_lab.segmentation.edits import with_recomputed
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.hints import has_hints, refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.scheduler_attempts import Asker, decisive_code, records
from fuser_lab.segmentation.space import Space
from fuser_lab.segmentation.welford import welfords


def as_bottom_up_writes_it(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions,
) -> Generator[Attempt, None, Fusion]:
    """Yield the rewriting of Welfords before the cut and return the fusion, so that plans have the same expressions."""
    if not options.welford or not welfords(fusion.tensor_exprs, fusion):
        return fusion
    if options.whole_fusion and not has_hints(fusion, options):
        asker = Asker(fusion, oracle, options)
        names = tuple((expr.name,) for expr in fusion.tensor_exprs)
        _, answer = asker.attempt("whole fusion", Kind.MERGE, names, fusion.tensor_exprs)
        if answer.chosen is not None:
            # Bottom-up's merge is left out, because the search decides on merges itself.
            written = asker.rewritten("whole fusion", fusion.tensor_exprs, answer)
            try:
                while True:
                    attempt = next(written)
                    if attempt.kind is Kind.REWRITE:
                        yield attempt
            except StopIteration as stop:
                fusion, _ = stop.value
            return fusion
    return (yield from lone_welfords(fusion, oracle, options))


def in_order(space: Space, segments: Sequence[int]) -> list[int] | None:
    """Return segments, each after the segments that it reads from; None if they form a cycle."""
    left, done, ordered = sorted(segments, key=lambda m: m & -m), 0, []
    while left:
        ready = next((m for m in left if not needed_by(space, m) & ~done), None)
        if ready is None:
            return None
        left.remove(ready)
        done |= ready
        ordered.append(ready)
    return ordered


def needed_by(space: Space, segment: int) -> int:
    """Return the units outside a segment that it depends on."""
    needed = 0
    for i in bits(segment):
        needed |= space.above[i]
    return needed & ~segment


def attempts_of(space: Space, segments: Sequence[int], phase: str) -> tuple[Attempt, ...] | None:
    """Return the attempts that create a plan from segments; None if some chain cannot be provided."""
    attempts = [
        Attempt(
            phase=f"{phase}: forward",
            kind=Kind.FORWARD,
            subjects=(chain.names,),
            outcome=Outcome.ACCEPTED,
            text=f"{chain.end.name} is recomputed by each reader",
        )
        for chain in space.chains
    ]
    copied: list[tuple[int, Names]] = []
    stored = (1 << len(space.chains)) - 1
    in_memory = space.kept_chains
    for mask in segments:
        provided = space.legal_way(mask)
        if provided is None:
            return None
        way = provided[1]
        stored &= ~way
        in_memory |= space.copies(mask) & ~way
        names = space.names(mask)
        copied += [(number, names) for number in bits(way)]
        answer = space.ask(mask, way)
        if len(names) > 1:
            attempts.append(
                Attempt(
                    phase=phase,
                    kind=Kind.MERGE,
                    subjects=tuple((name,) for name in names),
                    outcome=Outcome.ACCEPTED,
                    code=decisive_code(answer),
                    text=answer.text,
                    verdicts=records(answer),
                ),
            )
    attempts += [
        Attempt(
            phase=f"{phase}: chains",
            kind=Kind.REPLICATE,
            subjects=(space.chains[number].names, names),
            outcome=Outcome.ACCEPTED,
        )
        for number, names in copied
    ]
    for number in bits(stored | in_memory):
        chain = space.chains[number]
        whole = space.takes(chain.exprs)
        subjects = (chain.names,) if whole else tuple((name,) for name in chain.names)
        attempts.append(Attempt(phase=f"{phase}: chains", kind=Kind.STORE, subjects=subjects, outcome=Outcome.ACCEPTED))
    return tuple(attempts)


def neighbours_apart(
    segmented: SegmentedFusion, oracle: SchedulerOracle, options: SegmenterOptions, phase: str,
) -> Iterator[Attempt]:
    """Yield, for each pair of segments with a tensor between them, why they are separate."""
    for first, readers in enumerate(segmented.successors):
        for second in sorted(readers):
            groups = segmented.groups[first], segmented.groups[second]
            subjects = (groups[0].names, groups[1].names)
            through = segmented.path(first, second)
            if through:
                why = reason(ReasonCode.CYCLE, through=segmented.groups[through[0]].names[0])
                yield Attempt(
                    phase=f"{phase}: neighbours", kind=Kind.MERGE, subjects=subjects, outcome=Outcome.REFUSED,
                    code=why.code.value, text=why.text,
                )
                continue
            union = with_recomputed(segmented.fusion, [e for g in groups for e in g.exprs], segmented.recomputed)
            answer = refused_by_hint(union, options) or oracle.ask(union)
            if answer.chosen is None:
                yield Attempt(
                    phase=f"{phase}: neighbours", kind=Kind.MERGE, subjects=subjects, outcome=Outcome.REFUSED,
                    code=decisive_code(answer), text=answer.text, verdicts=records(answer),
                )

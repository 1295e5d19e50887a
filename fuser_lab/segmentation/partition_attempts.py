"""From segments of a space to the log: the attempts that create the plan, and why neighbours are separate."""

from collections.abc import Generator, Iterator, Sequence

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.ir import Fusion
from fuser_lab.segmentation.bottom_up import lone_welfords
from fuser_lab.segmentation.edits import own_exprs, with_recomputed
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome
from fuser_lab.segmentation.forwarding import forward_attempt
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.hints import has_hints, refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.scheduler_attempts import Asker, attempt_of, refusal
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


def attempts_of(space: Space, segments: Sequence[int], phase: str) -> tuple[Attempt, ...] | None:
    """Return the attempts that create a plan from segments; None if some chain cannot be provided."""
    attempts = [forward_attempt(chain, f"{phase}: forward") for chain in space.chains]
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
            attempts.append(attempt_of(answer, phase, tuple((name,) for name in names), accepted=True))
    attempts += [
        Attempt(
            phase=f"{phase}: chains", kind=Kind.REPLICATE, subjects=(space.chains[number].names, names),
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


def plan_attempts(now: SegmentedFusion, attempts: Sequence[Attempt], phase: str) -> Iterator[Attempt]:
    """Yield the attempts that put expressions into their segments, and copies of forwarded chains beside them."""
    names_by_group = [
        tuple(e.name for e in own_exprs(now, i) if e.name not in now.recomputed) for i in range(len(now.groups))
    ]
    parts = tuple(filter(None, names_by_group))
    yield Attempt(phase=phase, kind=Kind.PARTITION, subjects=parts, outcome=Outcome.ACCEPTED)
    forwards = (attempt for attempt in attempts if attempt.accepted and attempt.kind is Kind.FORWARD)
    forwarded = (chain for attempt in forwards for chain in attempt.subjects)
    chains = [left for chain in forwarded if (left := tuple(name for name in chain if name in now.recomputed))]
    for names, group in zip(names_by_group, now.groups, strict=True):
        inside = set(group.names)
        if not names:
            stored = tuple(e.name for e in group.exprs if e.tensor_outputs)
            yield Attempt(phase=phase, kind=Kind.STORE, subjects=(stored,), outcome=Outcome.ACCEPTED)
        for chain in chains if names else ():
            if not inside.isdisjoint(chain):
                yield Attempt(phase=phase, kind=Kind.REPLICATE, subjects=(chain, names), outcome=Outcome.ACCEPTED)


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
                first_between = segmented.groups[through[0]].names[0]
                yield refusal(f"{phase}: neighbours", subjects, ReasonCode.CYCLE, through=first_between)
                continue
            union = with_recomputed(segmented.fusion, [e for g in groups for e in g.exprs], segmented.recomputed)
            answer = refused_by_hint(union, options) or oracle.ask(union)
            if answer.chosen is None:
                yield attempt_of(answer, f"{phase}: neighbours", subjects, accepted=False)

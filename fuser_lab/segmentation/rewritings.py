"""Edits that rewrite the fusion of a plan: recomputation, and the parts shared with narrowing (`narrowing`).

Each returns a new SegmentedFusion and the attempts that describe the rewriting, or raises with the reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuser_lab.arguments import listing
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.tensor_names import tensor_named
from fuser_lab.segmentation.boundary_casts import cast_of, chosen_dtype, with_casts
from fuser_lab.segmentation.edits import RefusedEdit, Regrouping, own_exprs, rebuilt, with_recomputed
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion, assemble
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.recomputation import (
    PHASE,
    amounts_text,
    attempt_of,
    chain_of,
    copies_for,
    copies_in,
    unused_without,
    with_copies,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A rewritten plan, and the attempts that lead to it from the previous plan.

    ``merged`` are attempts in which copies that share a segment become one expression; they follow ``attempts`` in the
    log. ``saved`` is the reduction of the bytes that its segments read and write, negative if they move more;
    ``operations`` is the number of additional element operations.
    """

    segmented: SegmentedFusion
    attempts: tuple[Attempt, ...]
    merged: tuple[Attempt, ...] = ()
    saved: int
    operations: int


def recompute(
    segmented: SegmentedFusion, tensor: str, oracle: SchedulerOracle, segments: Sequence[int] = (), *,
    reductions: bool = False, storing: bool = False, taken: Iterable[str] = (),
) -> Rewritten:
    """Return the fusion in which segments that read a tensor from memory recompute it.

    Its producers are copied into them, back to inputs and tensors that other segments store. If nothing else needs the
    originals, they move to the first of these segments.

    Parameters
    ----------
    segmented
        The plan.
    tensor
        Name of a tensor that passes between segments.
    oracle
        The schedulers.
    segments
        Numbers of segments that read it; all by default.
    reductions
        Whether reductions may be computed again.
    storing
        Whether copies may read results of reductions that no segment stores yet.
    taken
        Further names that copies must not have: the names of earlier copies, which the log still creates.

    Raises
    ------
    IllegalEdit
        If the tensor does not pass between segments, an expression must not be repeated, or no scheduler accepts a
        segment with the copies.
    """
    value = crossing_tensor(segmented, tensor, "recomputed")
    targets = _readers(segmented, value, segments)
    chain = chain_of(segmented, value, reductions=reductions, storing=storing)
    readers = {t: tuple(e.name for e in own_exprs(segmented, t) if value in e.tensor_inputs) for t in targets}
    every = [name for names in readers.values() for name in names]
    home = segmented.home[chain[-1].name][0]
    inside = {expr.name for expr in own_exprs(segmented, home)}
    unused = unused_without(segmented.fusion, [expr for expr in chain if expr.name in inside], every)
    fusion, used = segmented.fusion, set(taken)
    attempts: list[Attempt] = []
    added: dict[int, tuple[str, ...]] = {}
    for target in targets:
        moved = tuple(expr.name for expr in chain if expr.name in unused) if target == targets[0] else ()
        copied = [expr for expr in chain if expr.name not in moved]
        copies = copies_for(fusion, copied, (*readers[target], *moved), used)
        fusion = with_copies(fusion, copies)
        added[target] = (*copies.copies, *moved)
        attempts.append(attempt_of(copies, moved, ""))
    log = DecisionLog()
    now = _segments_with_copies(segmented, fusion, added, home, unused, attempts, oracle, log)
    for target in targets:
        refused = f"with {tensor} recomputed in segment {target}, no scheduler accepts it"
        check_accepted(now, (readers[target][0],), refused)
    left = sorted(inside - unused)
    if left:
        change = f"without {', '.join(sorted(unused))}" if unused else "if it stores what the copies read"
        check_accepted(now, left, f"{change}, no scheduler accepts segment {home}")
    saved = moved_bytes(segmented) - moved_bytes(now)
    operations = _operations(now) - _operations(segmented)
    text = f"{tensor} is recomputed in {_segments_text(targets)}: that {amounts_text(saved, operations)}"
    recorded = tuple(attempt_of(*copies_in(attempt), text) for attempt in attempts)
    chains = tuple(_chains_copied(segmented, now, target, (*added[target], *readers[target])) for target in targets)
    merged = tuple(attempt for attempt in log if attempt.kind is Kind.REVERT)
    return Rewritten(
        segmented=now, attempts=(*recorded, *filter(None, chains)), merged=merged, saved=saved, operations=operations,
    )


def _chains_copied(
    before: SegmentedFusion, now: SegmentedFusion, target: int, names: Sequence[str],
) -> Attempt | None:
    """Return the attempt that adds the forwarded chains that copies read; None if they are already there."""
    there = {expr.name for expr in before.groups[target].exprs}
    (home, *_) = now.home[next(name for name in names if name in now.home)]
    new = tuple(
        expr.name for expr in now.groups[home].exprs
        if expr.name in now.recomputed and expr.name not in there and expr.tensor_outputs
    )
    if not new:
        return None
    return Attempt(
        phase=f"{PHASE}: chains", kind=Kind.REPLICATE, subjects=(new, tuple(names)), outcome=Outcome.ACCEPTED,
    )


def _segments_with_copies(
    segmented: SegmentedFusion, fusion: Fusion, added: dict[int, tuple[str, ...]], home: int, unused: frozenset[str],
    attempts: Sequence[Attempt], oracle: SchedulerOracle, log: DecisionLog,
) -> SegmentedFusion:
    """Return the segments of a fusion that has copies; ``added`` names what each segment gets."""
    by_name = {expr.name: expr for expr in fusion.exprs}
    copies = {name: original for attempt in attempts for name, original in copies_in(attempt)[0].pairs.items()}
    replicas = dict(segmented.replicas)
    replicas.update((name, replicas.get(original, original)) for name, original in copies.items())
    # Moved expressions read copies, which may read tensors that their segment stores, so they are removed from it
    # first.
    moved = {name for attempt in attempts for name in copies_in(attempt)[1]}
    whole = [[by_name[e.name] for e in group.exprs if e.name not in moved] for group in segmented.groups]
    whole = [group for group in whole if any(expr.tensor_outputs for expr in group)]  # scalars are not a segment
    alone = [
        with_recomputed(fusion, [by_name[name]], segmented.recomputed).exprs for name in (*copies, *moved)
    ]
    apart = assemble(fusion, [*whole, *alone], segmented.recomputed, oracle, replicas)
    places: dict[str, int] = {}
    for index in range(len(apart.groups)):
        places.update((expr.name, index) for expr in own_exprs(apart, index))
    gone: set[int] = set()
    parts: list[tuple[Expr, ...]] = []
    for index in sorted({*added, home}):
        before = [expr.name for expr in own_exprs(segmented, index)]
        stays = [name for name in before if not (index == home and name in unused)]
        names = (*added.get(index, ()), *stays)
        gone.update(places[name] for name in (*names, *before))
        if names:
            parts.append(tuple(by_name[name] for name in sorted(names, key=fusion.positions.__getitem__)))
    return rebuilt(apart, Regrouping(gone=tuple(sorted(gone)), parts=tuple(parts)), oracle, log)


def check_accepted(segmented: SegmentedFusion, names: Iterable[str], refused: str) -> None:
    """Raise if no scheduler accepts a segment that holds some of these expressions, beginning with what is refused."""
    for name in names:
        for index in segmented.home.get(name, ()):
            answer = segmented.groups[index].answer
            if answer.chosen is None:
                msg = f"{refused}; {answer.text}."
                raise RefusedEdit(msg, answer)


def crossing_tensor(segmented: SegmentedFusion, tensor: str, done: str) -> TensorView:
    """Return a tensor that one segment writes and another reads."""
    fusion = segmented.fusion
    value = tensor_named(fusion, tensor)
    maker = fusion.producers.get(value)
    if maker is None:
        msg = f"{tensor} is a fusion input, which is in memory in any case; it cannot be {done}."
        raise IllegalEdit(msg)
    if maker.name in segmented.recomputed:
        msg = f"{tensor} belongs to a forwarded chain, which each segment recomputes where its scheduler accepts that."
        raise IllegalEdit(msg)
    if value not in segmented.crossing:
        others = [tv.name for tv in segmented.crossing]
        said = f"choose from {listing(others)}" if others else "no tensor does"
        msg = f"{tensor} does not pass between segments; {said}."
        raise IllegalEdit(msg)
    return value


def _readers(segmented: SegmentedFusion, tensor: TensorView, segments: Sequence[int]) -> list[int]:
    """Return the segments that read a tensor from memory, or the named segments among them."""
    there = [index for index, group in enumerate(segmented.groups) if tensor in group.tensor_inputs]
    for index in segments:
        if index not in there:
            others = f"segments {', '.join(map(str, there))} do" if len(there) > 1 else f"segment {there[0]} does"
            msg = f"segment {index} does not read {tensor.name} from memory; {others}."
            raise IllegalEdit(msg)
    return sorted(set(segments)) or there


def copied_names(log: Iterable[Attempt]) -> frozenset[str]:
    """Return the names of all copies that recomputations in a log have made."""
    recomputations = (attempt for attempt in log if attempt.accepted and attempt.kind is Kind.RECOMPUTE)
    return frozenset(name for attempt in recomputations for name in copies_in(attempt)[0].copies)


def repeated_in(definition: Fusion, log: Iterable[Attempt], now: Fusion) -> Fusion:
    """Return a definition with the rewritings of a plan's log that are still in its fusion, ``now``.

    Raises
    ------
    KeyError
        If a rewriting names an expression that the definition does not have.
    VerificationError
        If a rewriting needs sizes that the definition does not know.
    SegmentationError
        If a tensor that is narrowed is not in the definition.
    """
    for attempt in log:
        if attempt.accepted and attempt.kind is Kind.RECOMPUTE:
            copies, _ = copies_in(attempt)
            if all(name in now.tensors for name in copies.copies):
                definition = with_copies(definition, copies)
        elif attempt.accepted and attempt.kind is Kind.CAST and (dtype := chosen_dtype(attempt)) is not None:
            cast = cast_of(definition, attempt.subjects, dtype)
            if cast.lower in now.tensors:
                definition = with_casts(definition, [cast])
    return definition


def _segments_text(segments: Sequence[int]) -> str:
    return f"segment{'s' if len(segments) > 1 else ''} {' and '.join(map(str, segments))}"


def moved_bytes(segmented: SegmentedFusion) -> int:
    """Return the bytes that all segments read and write, each tensor once for each segment that touches it."""
    return sum(group.moved for group in segmented.groups)


def _operations(segmented: SegmentedFusion) -> int:
    return sum(group.work.operations for group in segmented.groups)

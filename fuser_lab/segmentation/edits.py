"""Manual edits: cut, glue and move, each of which returns a new SegmentedFusion or raises with the reason.

An edit has two steps. The first determines which segments are replaced by which groups of expressions (`Regrouping`),
the second updates recomputed and repeated expressions (`rebuilt`). Both record their questions to schedulers, and the
answers, in a log.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fuser_lab.cost.verdict import Answer
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.tensor_names import tensor_named
from fuser_lab.segmentation.bottom_up import bottom_up
from fuser_lab.segmentation.components import components
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, LaterRecords, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion, assemble, assemble_groups, run_order
from fuser_lab.segmentation.hints import refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate
from fuser_lab.segmentation.privatization import read_together, repeated_exprs, without
from fuser_lab.segmentation.replay import Fold
from fuser_lab.segmentation.scheduler_attempts import decisive_code, records

BEFORE_CUT = "edit: before the cut"
BEHIND_CUT = "edit: after the cut"
CONNECTED = "edit: connected part"
COPIES = "edit: copies"
_CYCLE = "the segments would form a cycle."


class RefusedEdit(IllegalEdit):
    """An edit that schedulers refuse; ``verdicts`` holds their answers."""

    def __init__(self, message: str, answer: Answer) -> None:
        super().__init__(message)
        self.verdicts = answer.verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """The effect of an edit on a partition: the numbers of the removed segments, and the groups that replace them.

    ``parts`` hold the expressions that no other segment computes; copies of recomputed ones come with `rebuilt`.
    ``answer`` is the schedulers' answer about the group that a glue or a move adds to.
    """

    gone: tuple[int, ...]
    parts: tuple[tuple[Expr, ...], ...]
    answer: Answer | None = None


def cut(
    segmented: SegmentedFusion, tensor: str, consumer: str | None, oracle: SchedulerOracle,
) -> SegmentedFusion:
    """Return the fusion with the segment that computes ``tensor`` cut after it; see `cut_groups`."""
    return rebuilt(segmented, cut_groups(segmented, tensor, consumer, oracle), oracle)


def glue(
    segmented: SegmentedFusion, a: int, b: int, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
) -> SegmentedFusion:
    """Return the fusion with two segments merged; see `glued_groups`."""
    return rebuilt(segmented, glued_groups(segmented, a, b, oracle, meaning), oracle)


def move(
    segmented: SegmentedFusion, tensor: str, segment: int, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
) -> SegmentedFusion:
    """Return the fusion with the expression that computes ``tensor`` moved to another segment; see `moved_groups`."""
    return rebuilt(segmented, moved_groups(segmented, tensor, segment, oracle, meaning), oracle)


def cut_groups(
    segmented: SegmentedFusion, tensor: str, consumer: str | None, oracle: SchedulerOracle,
    log: DecisionLog | None = None,
) -> Regrouping:
    """Return the effect of a cut after ``tensor`` on the segment that computes it.

    Expressions of its segment that depend on the tensor are moved to a new segment (with ``consumer``, only those that
    depend on that reader); the other segments do not change. A part that no scheduler accepts whole is segmented
    further; the log records the schedulers' answers about each part, and the attempts of segmenting it.

    Raises
    ------
    IllegalEdit
        If there is nothing to cut: an unknown name, a fusion input, or a tensor that nothing in its segment reads.
    """
    fusion = segmented.fusion
    made = _expr(fusion, tensor)
    if consumer is not None:
        _expr(fusion, consumer)  # raises if there is no such tensor
    if made is None:
        msg = f"{tensor} is a fusion input, which is already in memory; there is nothing to cut."
        raise IllegalEdit(msg)
    home = next((i for i in segmented.home[made.name] if made in own_exprs(segmented, i)), None)
    if home is None:
        homes = segmented.home[made.name]
        by = f"segment {homes[0]}, which reads it," if len(homes) == 1 else "each segment that reads it"
        msg = (
            f"{tensor} is forwarded: {by} computes it itself, so it is not in memory, and a cut there separates "
            "nothing; a segment_set there stores it."
        )
        raise IllegalEdit(msg)
    inside = own_exprs(segmented, home)
    result = _tensor(made, tensor)
    readers = [e for e in fusion.users.get(result, ()) if e in inside]
    if consumer is not None:
        readers = [e for e in readers if e.name == consumer]
    if not readers:
        by = f" by {consumer}" if consumer is not None else ""
        msg = f"{tensor} is not read{by} inside segment {home}; there is nothing to cut."
        raise IllegalEdit(msg)
    below = _downstream(fusion, readers, inside)
    above = [e for e in inside if e not in below]
    log = DecisionLog() if log is None else log
    asked = ((BEFORE_CUT, above), (BEHIND_CUT, list(below)))
    parts = [p for phase, side in asked for p in _schedulable(fusion, side, segmented.recomputed, oracle, phase, log)]
    return Regrouping(gone=(home,), parts=tuple(map(tuple, parts)))


def glued_groups(
    segmented: SegmentedFusion, a: int, b: int, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
) -> Regrouping:
    """Return two segments as one group; this may overrule a ``segment_set`` that is a hint, but not one that is a cut.

    Raises
    ------
    IllegalEdit
        If a segment does not exist, if the union would close a cycle (the message names the segments on it), if it
        would contain expressions before and after a cut, or if no scheduler accepts it (the message has the reasons).
    """
    _check_segments(segmented, a, b)
    through = segmented.path(a, b) or segmented.path(b, a)
    if through:
        way = " -> ".join(map(str, (a, *through, b) if segmented.path(a, b) else (b, *through, a)))
        msg = f"segments {a} and {b} cannot be merged: that would close a cycle through {way}."
        raise IllegalEdit(msg)
    union = [*own_exprs(segmented, a), *own_exprs(segmented, b)]
    _check_cuts(segmented, union, meaning, f"segments {a} and {b} cannot be merged")
    answer, _ = _answer_with_copies(segmented, union, oracle)
    if answer.chosen is None:
        msg = f"no scheduler accepts segments {a} and {b} as one; {answer.text}."
        raise RefusedEdit(msg, answer)
    return Regrouping(gone=(a, b), parts=(tuple(union),), answer=answer)


def moved_groups(
    segmented: SegmentedFusion, tensor: str, segment: int, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
) -> Regrouping:
    """Return two segments with the expression that computes ``tensor`` in the other one; hints count as for `glue`.

    Raises
    ------
    IllegalEdit
        If the name or the segment is unknown, if segments would form a cycle, if one of the two would contain
        expressions before and after a cut, or if no scheduler accepts one of them.
    """
    _check_segments(segmented, segment)
    expr = _expr(segmented.fusion, tensor)
    if expr is None or expr.name in segmented.recomputed:
        msg = f"{tensor} is {'an input' if expr is None else 'recomputed where it is read'}; it cannot be moved."
        raise IllegalEdit(msg)
    home = segmented.home[expr.name][0]
    if home == segment:
        msg = f"{tensor} is already in segment {segment}."
        raise IllegalEdit(msg)
    left = [e for e in own_exprs(segmented, home) if e != expr]
    grown = [*own_exprs(segmented, segment), expr]
    _check_cuts(segmented, grown, meaning, f"{tensor} cannot be in segment {segment}")
    answers = []
    for index, group in ((home, left), (segment, grown)):
        if group:
            answer, _ = _answer_with_copies(segmented, group, oracle)
            if answer.chosen is None:
                msg = f"with {tensor} in segment {segment}, no scheduler accepts segment {index}; {answer.text}."
                raise RefusedEdit(msg, answer)
            answers.append(answer)
    parts = tuple(tuple(group) for group in (left, grown) if group)
    return Regrouping(gone=(home, segment), parts=parts, answer=answers[-1])


def with_recomputed(fusion: Fusion, exprs: Iterable[Expr], recomputed: frozenset[str]) -> Candidate:
    """Return expressions as a candidate, with copies of all recomputed expressions that they need."""
    chosen = dict.fromkeys(exprs)
    waiting = list(chosen)
    while waiting:
        for value in waiting.pop().tensor_inputs:
            maker = fusion.producers.get(value)
            if maker is not None and maker.name in recomputed and maker not in chosen:
                chosen[maker] = None
                waiting.append(maker)
    return candidate(fusion, chosen, recomputed)


def rebuilt(
    segmented: SegmentedFusion, regrouping: Regrouping, oracle: SchedulerOracle, log: DecisionLog | None = None,
) -> SegmentedFusion:
    """Return the fusion in its new groups, with copies of the expressions that they recompute.

    The log records recomputed expressions that become a separate segment, or no longer are one, and replicas that are
    merged into one expression again.

    Raises
    ------
    IllegalEdit
        If the segments would form a cycle.
    """
    if not segmented.recomputed and not segmented.replicas:
        return _with_groups(segmented, regrouping, oracle)
    log = DecisionLog() if log is None else log
    unchanged = [own_exprs(segmented, i) for i in range(len(segmented.groups)) if i not in regrouping.gone]
    groups = [*unchanged, *map(list, regrouping.parts)]
    stored = _stored_chains(segmented)
    # A stored chain that is glued to other expressions becomes an ordinary part of their segment.
    glued = {e.name for g in groups if not all(e.name in stored for e in g) for e in g} & stored
    recomputed = segmented.recomputed - glued
    whole = _with_copies(segmented, groups, recomputed, oracle)
    candidate_of = {_names(g.exprs): g.candidate for g in segmented.groups if recomputed == segmented.recomputed}
    candidates = [candidate_of.get(_names(g)) or candidate(segmented.fusion, g, recomputed) for g in whole]
    order = run_order(candidates)
    if order is None:
        raise IllegalEdit(_CYCLE)
    same: dict[str, str] = {}
    for group in whole if segmented.replicas else ():
        same |= _as_one(segmented, group, recomputed.intersection(e.name for e in group), oracle)[1]
    while same and (apart := _must_stay(segmented.fusion, whole, recomputed, same, oracle)):
        same = {name: into for name, into in same.items() if name not in apart}
    _log_copies(segmented, whole, recomputed, same, log)
    if not same:
        ordered = [candidates[i] for i in order]
        return assemble_groups(ordered, segmented.fusion, recomputed, oracle, segmented.replicas, segmented)
    fusion, left = _without(segmented.fusion, whole, same)
    replicas = {name: original for name, original in segmented.replicas.items() if name not in same}
    return assemble(fusion, left, recomputed, oracle, replicas)


def _with_groups(segmented: SegmentedFusion, regrouping: Regrouping, oracle: SchedulerOracle) -> SegmentedFusion:
    """Return a fusion that recomputes and repeats nothing in its new groups: all others stay as they are."""
    unchanged = [group.candidate for i, group in enumerate(segmented.groups) if i not in regrouping.gone]
    candidates = [*unchanged, *(candidate(segmented.fusion, part) for part in regrouping.parts)]
    order = run_order(candidates)
    if order is None:
        raise IllegalEdit(_CYCLE)
    return assemble_groups([candidates[i] for i in order], segmented.fusion, frozenset(), oracle, before=segmented)


def _log_copies(
    segmented: SegmentedFusion, whole: Sequence[Sequence[Expr]], recomputed: frozenset[str],
    same: Mapping[str, str], log: DecisionLog,
) -> None:
    """Log which segments of recomputed expressions appear and disappear, and which replicas become one expression."""
    if not segmented.recomputed and not same:
        return
    before = {frozenset(_names(g.exprs)) for g in segmented.groups if set(_names(g.exprs)) <= segmented.recomputed}
    now = {frozenset(_names(group)): group for group in whole if set(_names(group)) <= recomputed}
    for names in sorted(now.keys() - before, key=sorted):
        made = {tensor for expr in now[names] for tensor in expr.tensor_outputs}
        readers = [e.name for g in whole if g is not now[names] for e in g if made.intersection(e.tensor_inputs)]
        text = f"{readers[0]} reads it from memory" if readers else "nothing else computes it"
        log.append(_acceptance(COPIES, Kind.STORE, (_names(now[names]),), text))
    gone = [sorted(names) for names in before - now.keys() if names <= recomputed]  # glued to others
    for chain in sorted(gone):
        log.append(_acceptance(COPIES, Kind.FORWARD, (tuple(chain),), "each reader computes it again"))
    merged: dict[str, list[str]] = {}
    for name, into in same.items():
        merged.setdefault(into, []).append(name)
    if merged:
        text = "copies for readers that share a segment are computed once"
        subjects = tuple((into, *names) for into, names in merged.items())
        log.append(_acceptance(COPIES, Kind.REVERT, subjects, text))


def _acceptance(phase: str, kind: Kind, subjects: tuple[tuple[str, ...], ...], text: str) -> Attempt:
    return Attempt(phase=phase, kind=kind, subjects=subjects, outcome=Outcome.ACCEPTED, text=text)


def _names(exprs: Iterable[Expr]) -> tuple[str, ...]:
    return tuple(e.name for e in exprs if e.tensor_outputs)


def _with_copies(
    segmented: SegmentedFusion, groups: Iterable[Sequence[Expr]], recomputed: frozenset[str], oracle: SchedulerOracle,
) -> list[Sequence[Expr]]:
    """Return groups with copies of recomputed expressions, and groups that store the recomputed values which are read.

    Groups that an edit does not change keep their copies.
    """
    if not segmented.recomputed:
        return list(groups)
    fusion = segmented.fusion
    before = {frozenset(own_exprs(segmented, i)): group.exprs for i, group in enumerate(segmented.groups)}
    completed: list[Sequence[Expr]] = []
    memory: list[Sequence[Expr]] = []
    for group in groups:
        members = frozenset(group)
        if all(e.name in recomputed for e in group):
            memory.append(group)
        elif members in before:
            completed.append([e for e in before[members] if e in members or e.name in recomputed])
        else:
            copied = _answer_with_copies(segmented, group, oracle)[1] & recomputed
            completed.append(with_recomputed(fusion, group, copied).exprs)
    there = {e for group in completed for e in group}
    stored = [group for group in memory if there.isdisjoint(group)]  # no group has a copy, so it must be in this one
    waiting = [tv for group in (*completed, *stored) for tv in _tensors_read(group)]
    waiting += [tv for tv in fusion.outputs if tv in fusion.producers]
    for tensor in waiting:
        maker = fusion.producers.get(tensor)
        if maker is not None and maker.name in recomputed and not any(maker in group for group in stored):
            alone = with_recomputed(fusion, [maker], recomputed).exprs
            stored.append(next((group for group in memory if maker in group), alone))
            waiting += _tensors_read(stored[-1])
    return completed + stored


def _tensors_read(group: Sequence[Expr]) -> list[TensorView]:
    """Return the tensors that a group reads and does not make."""
    made = {tensor for expr in group for tensor in expr.tensor_outputs}
    return [tensor for expr in group for tensor in expr.tensor_inputs if tensor not in made]


def _answer_with_copies(
    segmented: SegmentedFusion, exprs: Collection[Expr], oracle: SchedulerOracle,
) -> tuple[Answer, frozenset[str]]:
    """Return the verdicts on expressions as a segment, and the recomputed expressions that it has copies of.

    All are copied if a scheduler accepts that; otherwise those in memory are read, or all of them.
    """
    inside = {expr.name for expr in exprs}
    every = segmented.recomputed if inside <= segmented.recomputed else segmented.recomputed - inside
    asked = []
    for copied in dict.fromkeys((every, every - _stored_chains(segmented), frozenset[str]())):
        answer, _ = _as_one(segmented, exprs, copied, oracle)
        if answer.chosen is not None:
            return answer, copied
        asked.append(answer)
    return asked[0], every


def _without(
    fusion: Fusion, groups: Iterable[Sequence[Expr]], same: Mapping[str, str],
) -> tuple[Fusion, list[list[Expr]]]:
    """Return a fusion and its groups without the replicas that are merged with another expression."""
    left = without(fusion, same)
    return left, [[left.exprs[left.positions[e.name]] for e in group if e.name not in same] for group in groups]


def _must_stay(
    fusion: Fusion, groups: Sequence[Sequence[Expr]], recomputed: frozenset[str], same: Mapping[str, str],
    oracle: SchedulerOracle,
) -> set[str]:
    """Return replicas that must not be merged, because no scheduler would accept a group that reads several of them."""
    trial, left = _without(fusion, groups, same)
    for before, now in zip(groups, left, strict=True):
        several = read_together([e for e in before if e.name not in same], same)
        if several and oracle.ask(candidate(trial, now, recomputed)).chosen is None:
            return {name for names in several.values() for name in names[1:]}
    return set()


def _as_one(
    segmented: SegmentedFusion, exprs: Iterable[Expr], recomputed: frozenset[str], oracle: SchedulerOracle,
) -> tuple[Answer, dict[str, str]]:
    """Return the schedulers' verdicts on expressions as a segment, and the replicas that are one expression in it."""
    group = with_recomputed(segmented.fusion, exprs, recomputed)
    same = repeated_exprs(group.exprs, segmented.replicas)
    if same:
        fusion = without(segmented.fusion, same)
        left = (fusion.exprs[fusion.positions[e.name]] for e in group.exprs if e.name not in same)
        answer = oracle.ask(candidate(fusion, left, recomputed))
        if answer.chosen is not None:
            return answer, same
    return oracle.ask(group), {}


def own_exprs(segmented: SegmentedFusion, index: int) -> list[Expr]:
    """Return a segment's expressions without its copies, but all expressions of a segment that stores a chain."""
    exprs = [e for e in segmented.groups[index].exprs if e.tensor_outputs]
    without_copies = [e for e in exprs if e.name not in segmented.recomputed]
    return without_copies or exprs


def _stored_chains(segmented: SegmentedFusion) -> set[str]:
    """Return the names of recomputed expressions that are a separate segment."""
    if not segmented.recomputed:
        return set()
    groups = ({e.name for e in group.exprs if e.tensor_outputs} for group in segmented.groups)
    return {name for names in groups if names <= segmented.recomputed for name in names}


def _expr(fusion: Fusion, tensor: str) -> Expr | None:
    return fusion.producers.get(tensor_named(fusion, tensor))


def _tensor(expr: Expr, name: str) -> TensorView:
    return next(tv for tv in expr.tensor_outputs if tv.name == name)


def _check_segments(segmented: SegmentedFusion, *indices: int) -> None:
    for index in indices:
        if not 0 <= index < len(segmented.groups):
            msg = f"there is no segment {index}; the plan has segments 0 to {len(segmented.groups) - 1}."
            raise IllegalEdit(msg)
    if len(set(indices)) != len(indices):
        msg = f"segment {indices[0]} is already one."
        raise IllegalEdit(msg)


def _check_cuts(
    segmented: SegmentedFusion, exprs: Iterable[Expr], meaning: SegmentSetMeaning, refused: str,
) -> None:
    """Raise if expressions may not be a segment where ``segment_set`` is a cut, beginning with what is refused."""
    if meaning is not SegmentSetMeaning.CUT:
        return
    group = with_recomputed(segmented.fusion, exprs, segmented.recomputed)
    answer = refused_by_hint(group, SegmenterOptions(segment_set=meaning))
    if answer is not None:
        msg = f"{refused}: {answer.verdicts[0].text}, and no edit merges across a segment_set that is read as 'cut'."
        raise RefusedEdit(msg, answer)


def _downstream(fusion: Fusion, start: Iterable[Expr], inside: Sequence[Expr]) -> dict[Expr, None]:
    allowed = set(inside)
    reached = dict.fromkeys(start)
    waiting = list(reached)
    while waiting:
        for value in waiting.pop().tensor_outputs:
            for user in fusion.users.get(value, ()):
                if user in allowed and user not in reached:
                    reached[user] = None
                    waiting.append(user)
    return reached


def _schedulable(
    fusion: Fusion, exprs: Sequence[Expr], recomputed: frozenset[str], oracle: SchedulerOracle, phase: str,
    log: DecisionLog,
) -> list[list[Expr]]:
    """Return one part if a scheduler accepts it, otherwise its connected parts, segmented bottom-up if necessary."""

    def taken(phase: str, group: Candidate) -> bool:
        answer = oracle.ask(group)
        outcome = Outcome.REFUSED if answer.chosen is None else Outcome.ACCEPTED
        log.append(
            Attempt(
                phase=phase, kind=Kind.MERGE, subjects=(_names(group.exprs),), outcome=outcome,
                code=decisive_code(answer), text=answer.brief, verdicts=LaterRecords(partial(records, answer)),
            ),
        )
        return answer.chosen is not None

    if taken(phase, with_recomputed(fusion, exprs, recomputed)):
        return [list(exprs)]
    accepted_parts: list[list[Expr]] = []
    for part in _connected_parts(exprs):
        group = with_recomputed(fusion, part, recomputed)
        if taken(CONNECTED, group):
            accepted_parts.append(part)
            continue
        fold = Fold(group.narrowed)
        plain = SegmenterOptions(
            segment_set=SegmentSetMeaning.IGNORE, forward_inputs=False, forward_factories=frozenset(), privatize=False,
            welford=False,
        )
        for attempt in bottom_up(group.narrowed, _Narrow(fusion, recomputed, oracle), plain):
            fold.apply(attempt)
            log.append(replace(attempt, phase=f"edit: {attempt.phase}"))
        members = set(part)
        parts = [inside for g in fold.groups() if (inside := [e for e in g if e in members])]
        log.append(_acceptance(CONNECTED, Kind.PARTITION, tuple(map(_names, parts)), "segmented bottom-up"))
        accepted_parts += parts
    return accepted_parts


class _Narrow:
    """Asks about parts of a narrowed fusion as parts of the complete one."""

    def __init__(self, fusion: Fusion, recomputed: frozenset[str], oracle: SchedulerOracle) -> None:
        self._fusion = fusion
        self._recomputed = recomputed
        self._oracle = oracle

    def ask(self, group: Candidate) -> Answer:
        """Return the verdicts about the same expressions in the complete fusion."""
        return self._oracle.ask(with_recomputed(self._fusion, group.exprs, self._recomputed))


def _connected_parts(exprs: Sequence[Expr]) -> list[list[Expr]]:
    """Return the parts that are connected through values or shared operands."""
    seen: dict[TensorView, int] = {}
    pairs = [
        (seen.setdefault(value, place), place)
        for place, expr in enumerate(exprs)
        for value in (*expr.tensor_inputs, *expr.tensor_outputs)
    ]
    label = components(len(exprs), pairs)
    return [[e for e, c in zip(exprs, label, strict=True) if c == part] for part in range(max(label) + 1)]

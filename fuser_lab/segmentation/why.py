"""Explains why two values are together or apart: from the log if it was tried, otherwise by asking the schedulers."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuser_lab.cost.verdict import Answer, Verdict
from fuser_lab.errors import InputError
from fuser_lab.ir.tensor_names import named_text, names_by_tensor, tensor_named
from fuser_lab.segmentation.edits import with_recomputed
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, group_text
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.hints import BY_HINT, refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.origins import origins_text, source_lines


class Relation(enum.Enum):
    """The relation of two values in a plan."""

    TOGETHER = "together"
    REFUSED = "refused"
    CYCLE = "cycle"
    NEVER_TRIED = "never tried"
    EDITED = "edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer: the relation of two values, their segments, and the evidence.

    ``verdicts`` are the schedulers' answers about one segment for both, ``attempts`` the numbers of the log's
    attempts about both. ``called`` has the user's names of tensors, which the printed answer adds to those in ``text``.
    ``quoted`` has lines of the user's code, which the answer ends with unchanged.
    """

    relation: Relation
    text: str
    segments: tuple[int, int]
    verdicts: tuple[Verdict, ...] = ()
    attempts: tuple[int, ...] = ()
    called: tuple[tuple[str, str], ...] = ()
    quoted: tuple[str, ...] = ()

    @property
    def refusal(self) -> str:
        """The decisive refusals on one line if no scheduler accepts both; empty if the text itself has the reason."""
        answer = Answer(self.verdicts)
        is_refused = self.relation is Relation.REFUSED and answer.chosen is None
        return answer.brief if is_refused and not any(v.text in self.text for v in answer.decisive) else ""

    def __str__(self) -> str:
        """Return the sentence and one line per scheduler."""
        decisive = Answer(self.verdicts).decisive
        lines = [f"  {'+' if v.accepted else '-'} {v.scheduler.value}: {v.text}".rstrip(": ") for v in decisive]
        left = len(self.verdicts) - len(decisive)
        if left and not decisive[-1].accepted:
            more = "1 more scheduler is" if left == 1 else f"{left} more schedulers are"
            lines.append(f"  ({more} for other kinds of fusions; `.verdicts` has them all)")
        return "\n".join([named_text("\n".join([self.text, *lines]), names_by_tensor(self.called)), *self.quoted])

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)

    def with_origins(self, made: Mapping[str, str]) -> "Why":
        """Return the answer with a sentence on the origin of the names in it that are not the user's."""
        origins = origins_text([self.text, *(v.text for v in Answer(self.verdicts).decisive)], made)
        return replace(self, text=f"{self.text} {origins}.") if origins else self

    def with_sources(self, sources: Mapping[str, str]) -> "Why":
        """Return the answer with the lines of the user's code that tensors in it came from."""
        lines = source_lines([self.text, *(v.text for v in Answer(self.verdicts).decisive)], sources)
        return replace(self, quoted=tuple(lines))


def why(
    segmented: SegmentedFusion, a: str | int, b: str | int, log: DecisionLog, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
) -> Why:
    """Return why ``a`` and ``b`` are in one segment or not.

    Parameters
    ----------
    segmented
        The plan.
    a, b
        Names of tensors, or numbers of segments.
    log
        The decisions that produced the plan.
    oracle
        The schedulers, which are asked if the log has no answer.
    meaning
        How ``segment_set`` is read: edits may overrule a hint, but not a cut.

    Raises
    ------
    InputError
        If a name or number is unknown.
    """
    homes_a, homes_b = _homes(segmented, a), _homes(segmented, b)
    shared = [i for i in homes_a if i in homes_b]
    names = (_label(segmented, a), _label(segmented, b))
    if shared:
        return _together(segmented, names, shared[0])
    at = _nearest(segmented, homes_a, homes_b)
    first, second = sorted(at)
    now = _Reverted(log)
    sides = now.known_as(_names(segmented, a, homes_a)), now.known_as(_names(segmented, b, homes_b))
    between = [log[seq] for seq in sorted(log.about(sides[0]) & log.about(sides[1])) if _joins(log[seq], *sides)]
    attempts = tuple(t.seq for t in between)
    head = f"{names[0]} is in segment {at[0]}, {names[1]} in segment {at[1]}"
    if isinstance(a, int) and isinstance(b, int):
        head = f"{names[0]} and {names[1]} are separate"
    through = segmented.path(first, second)
    if through:
        way = ", ".join(f"segment {i}" for i in through)
        text = f"{head}; one segment for both would close a cycle through {way}."
        return Why(relation=Relation.CYCLE, text=text, segments=(first, second), attempts=attempts)
    union = [e for i in (first, second) for e in segmented.groups[i].exprs]
    both = with_recomputed(segmented.fusion, union, segmented.recomputed)
    kept_apart = refused_by_hint(both, SegmenterOptions(segment_set=meaning))
    last = between[-1] if between else None
    if kept_apart is not None and meaning is SegmentSetMeaning.CUT:
        text = f"{head}; a cut keeps them apart: {kept_apart.verdicts[0].text}, and no edit goes across a segment_set "
        text += f"while it is read as 'cut'{f' ({_when(last)})' if last is not None else ''}."
        return Why(
            relation=Relation.REFUSED, text=text, segments=(first, second), verdicts=kept_apart.verdicts,
            attempts=attempts,
        )
    answer = oracle.ask(both)
    glued = "glue merges them and overrules the hint" if kept_apart is not None else "glue merges them"
    names_now = now.known_as(frozenset(e.name for e in union))
    alone = any(t.names <= names_now for t in between)
    if last is not None and not last.accepted and last.code in BY_HINT:
        sentence = last.text if kept_apart is None else kept_apart.verdicts[0].text
        would = (
            "Without the hint, no scheduler would accept both segments as one either" if answer.chosen is None
            else f"The {answer.chosen.value} scheduler would accept both segments as one; {glued}"
        )
        text = f"{head}; a hint keeps them apart ({_when(last)}). {sentence}. {would}."
        relation = Relation.REFUSED
    elif answer.chosen is None:
        when = _when(last) if last is not None else "not tried, because it would have been refused"
        text = f"{head}; no scheduler accepts both ({when})."
        relation = Relation.REFUSED
    elif last is None and _accepted_pieces(log, segmented, first, second):
        hint = f"{kept_apart.verdicts[0].text}. " if kept_apart is not None else ""
        text = (
            f"{head}; top-down presegmentation accepted pieces in both and does not try to merge accepted pieces. "
            f"{hint}The {answer.chosen.value} scheduler would accept both segments as one; {glued}."
        )
        relation = Relation.NEVER_TRIED
    elif last is None:
        text = f"{head}; one segment for both was never tried. The {answer.chosen.value} scheduler would accept both "
        text += f"segments as one; {glued}."
        relation = Relation.NEVER_TRIED
    elif not last.accepted and not alone:
        text = (
            f"{head}; these two alone were never tried ({_when(last)}, refused). The {answer.chosen.value} scheduler "
            f"would accept both segments as one; {glued}."
        )
        relation = Relation.NEVER_TRIED
    elif last.accepted:
        text = f"{head}, by an edit: the segmenter had joined them ({_when(last)}). Glue them to undo it."
        relation = Relation.EDITED
    else:
        text = (
            f"{head}; {_when(last)} and refused then, but the {answer.chosen.value} scheduler would accept the present "
            f"segments as one; {glued}."
        )
        relation = Relation.REFUSED
    return Why(
        relation=relation, text=text, segments=(first, second), verdicts=answer.verdicts, attempts=attempts,
    )


def _accepted_pieces(log: DecisionLog, segmented: SegmentedFusion, *segments: int) -> bool:
    """Whether each of the segments holds a piece that top-down presegmentation accepted."""
    accepted = [attempt.names for attempt in log if attempt.accepted and attempt.phase.startswith("top-down")]
    return all(any(names <= set(segmented.groups[index].names) for names in accepted) for index in segments)


def _nearest(segmented: SegmentedFusion, a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """Return the segments to compare: the first of each, unless others are neighbours."""
    after = segmented.successors
    near = ((i, j) for i in a for j in b if j in after[i] or i in after[j])
    return next(near, (a[0], b[0]))


def _together(segmented: SegmentedFusion, names: tuple[str, str], index: int) -> Why:
    group = segmented.groups[index]
    taker = f"which the {group.scheduler.value} scheduler accepts" if group.scheduler else "which no scheduler accepts"
    if names[0] == names[1]:
        label = f"segment {index}"
        where = f"both are {label}" if names[0] == label else f"{names[0]} is in {label}"
    else:
        where = f"{names[0]} and {names[1]} are together in segment {index}"
    return Why(
        relation=Relation.TOGETHER,
        text=f"{where}, {taker}.",
        segments=(index, index),
        verdicts=group.verdicts,
    )


class _Reverted:
    """Other names by which a log refers to expressions: the names of replicas that were merged into them."""

    def __init__(self, log: DecisionLog) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        for attempt in log:
            if attempt.kind is Kind.REVERT and attempt.accepted:
                self._names.update((stays, tuple(dropped)) for stays, *dropped in attempt.subjects)

    def known_as(self, names: frozenset[str]) -> frozenset[str]:
        """Return names with their earlier names."""
        return names.union(*(self._names.get(name, ()) for name in names)) if self._names else names


def _homes(segmented: SegmentedFusion, which: str | int) -> tuple[int, ...]:
    if isinstance(which, int):
        if not 0 <= which < len(segmented.groups):
            msg = f"there is no segment {which}; the plan has segments 0 to {len(segmented.groups) - 1}."
            raise InputError(msg)
        return (which,)
    maker = segmented.fusion.producers.get(tensor_named(segmented.fusion, which, InputError))
    if maker is None:
        msg = f"{which} is a fusion input; ask about the tensors that are computed."
        raise InputError(msg)
    # The expression that the name stands for first, then its replicas.
    return tuple(dict.fromkeys((*segmented.home[maker.name], *segmented.homes[maker.name])))


def _label(segmented: SegmentedFusion, which: str | int) -> str:
    if isinstance(which, int):
        return f"segment {which}"
    return f"{which} ({segmented.fusion.producers[segmented.fusion.tensors[which]].op.name})"


def _names(segmented: SegmentedFusion, which: str | int, homes: tuple[int, ...]) -> frozenset[str]:
    if isinstance(which, int):
        return frozenset(segmented.groups[homes[0]].names)
    name = segmented.fusion.producers[segmented.fusion.tensors[which]].name
    return frozenset({name, *(r for r, original in segmented.replicas.items() if original == name)})


def _joins(attempt: Attempt, a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether an attempt would have joined an expression of ``a`` with one of ``b``."""
    if attempt.kind is not Kind.MERGE:
        return False
    with_a = {i for i, group in enumerate(attempt.subjects) if not a.isdisjoint(group)}
    with_b = {i for i, group in enumerate(attempt.subjects) if not b.isdisjoint(group)}
    return bool(with_a and with_b) and (with_a != with_b or len(with_a) > 1)


def _when(attempt: Attempt) -> str:
    few = len(attempt.subjects) <= 3
    groups = f"as {' + '.join(map(group_text, attempt.subjects))}" if few else "together with others"
    return f"tried {groups} in the {attempt.phase}, attempt {attempt.seq}"

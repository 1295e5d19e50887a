"""Previews of edits: the resulting segments, bytes and time, the rule that decides, and why other segments change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from time import monotonic

from fuser_lab.cost.amounts import bytes_label, change_label, seconds_label
from fuser_lab.cost.traffic import CostModel, traffic
from fuser_lab.cost.verdict import Verdict
from fuser_lab.errors import FuserLabError, IllegalEdit
from fuser_lab.ir import Expr, TensorView
from fuser_lab.segmentation import edits
from fuser_lab.segmentation.edits import Regrouping
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, group_text
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.options import SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle

LEAST_SAVED = 0.01  # part of the predicted time that an edit has to save: less is within the model's error
_MOST_KERNELS = 3  # segments that a sentence lists with their times
_MOST_READERS = 8  # maximum number of readers of one tensor whose pairs are all examined
_Edit = tuple[str, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The size of a plan: segments, the bytes that they read and write, and the predicted seconds.

    ``parts`` has the predicted seconds of each segment.
    """

    segments: int
    moved: int
    seconds: float
    parts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPreview:
    """The predicted effect of an edit of a plan.

    Attributes
    ----------
    edit
        Name and arguments, such as ``("cut", ("T7",))``, ``("glue", (0, 1))``, ``("move", ("T7", 1))`` and
        ``("annotate", ("T7",))``, which inserts a ``segment_set``.
    before, after
        Segments, bytes and seconds of the plan and of the edited one; ``after`` is None if the edit is refused.
    device
        Name of the device that the seconds are predicted for.
    rule
        Why the edit is legal or refused, as a sentence.
    because
        Why the edit changes other segments, one sentence per reason; empty if it does not.
    times
        The segments that the edit replaces and those that replace them, with schedulers, bytes and predicted times.
    verdicts
        The schedulers' verdicts on the group that the edit would create; empty for a cut.
    log
        The questions to schedulers while the preview was computed, and the answers.
    """

    edit: _Edit
    before: Amount
    after: Amount | None
    device: str
    rule: str
    because: tuple[str, ...] = ()
    times: str = ""
    verdicts: tuple[Verdict, ...] = ()
    log: tuple[Attempt, ...] = ()

    @property
    def legal(self) -> bool:
        """Whether the edit can be made."""
        return self.after is not None

    @property
    def moved(self) -> int:
        """Change of the bytes moved; negative if the edited plan moves fewer, 0 if the edit is refused."""
        return 0 if self.after is None else self.after.moved - self.before.moved

    @property
    def seconds(self) -> float:
        """Change of the predicted seconds; negative if the edited plan is faster."""
        return 0.0 if self.after is None else self.after.seconds - self.before.seconds

    @property
    def name(self) -> str:
        """The edit as text, such as ``cut T7 → T9`` or ``glue S0 and S1``."""
        kind, arguments = self.edit
        match kind:
            case "glue":
                return f"glue S{arguments[0]} and S{arguments[1]}"
            case "move":
                return f"move {arguments[0]} to S{arguments[1]}"
            case "annotate":
                return f"segment_set at {arguments[0]}"
        return f"{kind} {' → '.join(map(str, arguments))}"

    @property
    def changes(self) -> tuple[str, str, str]:
        """The changes of segments, bytes and predicted time; empty if the edit is refused."""
        if self.after is None:
            return "", "", ""
        segments = f"{self.before.segments} → {self.after.segments}"
        return segments, change_label(self.moved, bytes_label), change_label(self.seconds, seconds_label)

    @property
    def change(self) -> str:
        """The changes as text."""
        segments, moved, seconds = self.changes
        return f"{segments} segments, {moved} moved, {seconds} predicted" if self.legal else ""

    def __str__(self) -> str:
        """Return the edit, its effect and the reason."""
        head = f"{self.name}: {self.change} ({self.device})" if self.legal else f"{self.name}: refused"
        return "\n".join([head, *(f"  {text}" for text in (self.rule, *self.because))])

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)


class Previews:
    """Previews of the edits of one partition, each computed when it is first requested.

    Parameters
    ----------
    segmented
        The partition.
    oracle
        The schedulers.
    model
        What bytes and launches cost, by which edits are chosen that may save time.
    amount
        Returns the amounts of a partition, with its predicted time.
    meaning
        The meaning of ``segment_set``.
    annotated
        Returns the partition with a ``segment_set`` of a tensor, which segments again.
    places
        Names of the tensors that may get a ``segment_set``, in the order in which they are examined.
    """

    def __init__(
        self, segmented: SegmentedFusion, oracle: SchedulerOracle, model: CostModel,
        amount: Callable[[SegmentedFusion], Amount], meaning: SegmentSetMeaning = SegmentSetMeaning.HINT,
        annotated: Callable[[str], SegmentedFusion] | None = None, places: Sequence[str] = (),
    ) -> None:
        self._segmented = segmented
        self._oracle = oracle
        self._model = model
        self._amount = amount
        self._meaning = meaning
        self._annotated, self._places = annotated, places
        self._moved = [group.moved for group in segmented.groups]
        self._known: dict[_Edit, EditPreview] = {}

    @cached_property
    def before(self) -> Amount:
        """The amounts of the partition before an edit."""
        return self._amount(self._segmented)

    def cut(self, tensor: str, consumer: str | None = None) -> EditPreview:
        """Return the preview of a cut after a tensor, or only before one of its readers."""
        way = (tensor,) if consumer is None else (tensor, consumer)

        def groups(log: DecisionLog) -> Regrouping:
            return edits.cut_groups(self._segmented, tensor, consumer, self._oracle, log)

        return self._preview(("cut", way), groups)

    def glue(self, a: int, b: int) -> EditPreview:
        """Return the preview of merging two segments."""
        first, second = sorted((a, b))

        def groups(_log: DecisionLog) -> Regrouping:
            return edits.glued_groups(self._segmented, first, second, self._oracle, self._meaning)

        return self._preview(("glue", (first, second)), groups)

    def move(self, tensor: str, segment: int) -> EditPreview:
        """Return the preview of moving a tensor's expression to another segment."""

        def groups(_log: DecisionLog) -> Regrouping:
            return edits.moved_groups(self._segmented, tensor, segment, self._oracle, self._meaning)

        return self._preview(("move", (tensor, segment)), groups)

    def annotate(self, tensor: str) -> EditPreview:
        """Return the preview of a ``segment_set`` of a tensor, which segments the definition again."""
        edit: _Edit = ("annotate", (tensor,))
        if edit not in self._known:
            self._known[edit] = self._annotate(edit, tensor)
        return self._known[edit]

    def best(self, seconds: float) -> tuple[EditPreview, ...]:
        """Return the legal edits with which the plan is predicted to be faster, the fastest first.

        They are glues, moves, cuts and ``segment_set``, those that were previewed before included. Each kind is
        examined for a third of ``seconds``; glues and moves are first filtered by bytes, so schedulers are asked only
        about those that could pay off. A cut adds bytes and a launch, but its kernels may be faster than one for both
        sides. With 0 seconds, only the most promising glue or move is examined.
        """
        rewired = (edit for _, edit in sorted(self._promising(), key=lambda entry: entry[0]))
        for edits_of_kind, least in ((rewired, 1), (self._cuts(), 0), (self._marks(), 0)):
            end = monotonic() + seconds / 3
            for count, (kind, arguments) in enumerate(edits_of_kind):
                if count >= least and monotonic() >= end:
                    break
                getattr(self, kind)(*arguments)
        return self.gains()

    def gains(self) -> tuple[EditPreview, ...]:
        """Return the legal edits that save time among the previews made so far, the fastest first."""
        least = LEAST_SAVED * self.before.seconds
        legal = [preview for preview in [*self._known.values()] if preview.legal]
        faster = [preview for preview in legal if preview.seconds < 0 and -preview.seconds >= least]
        return tuple(sorted(faster, key=lambda preview: (preview.seconds, preview.name)))

    def _cuts(self) -> Iterator[_Edit]:
        """Yield cuts after each tensor that its segment reads itself."""
        users = self._segmented.fusion.users
        for group in self._segmented.groups:
            inside = {expr.name for expr in group.exprs}
            for expr in group.exprs:
                if any(user.name in inside for tensor in expr.tensor_outputs for user in users.get(tensor, ())):
                    yield "cut", (expr.name,)

    def _marks(self) -> Iterator[_Edit]:
        """Yield ``segment_set`` at each place of the definition."""
        for tensor in self._places:
            yield "annotate", (tensor,)

    def _promising(self) -> Iterator[tuple[float, _Edit]]:
        """Yield glues and moves that save time if they are legal, each with the bytes that it saves, as a negative."""
        launch = self._model.launch_bytes
        for a, b in self._neighbours():
            parts = [[*self._own(a), *self._own(b)]]
            gain = self._gain((a, b), parts) - launch
            if gain < 0:
                yield gain, ("glue", (a, b))
        for expr, home, other in self._movable():
            left = [e for e in self._own(home) if e is not expr]
            if not left:
                continue  # the same as gluing both
            gain = self._gain((home, other), (left, [*self._own(other), expr]))
            if gain < 0:
                yield gain, ("move", (expr.name, other))

    def _neighbours(self) -> list[tuple[int, int]]:
        """Return pairs of segments that share a tensor in memory."""
        there: dict[TensorView, list[int]] = {}
        for index, group in enumerate(self._segmented.groups):
            for tensor in dict.fromkeys((*group.tensor_inputs, *group.outputs)):
                there.setdefault(tensor, []).append(index)
        neighbours: dict[tuple[int, int], None] = {}
        for places in there.values():
            few = len(places) <= _MOST_READERS
            pairs = ((a, b) for n, a in enumerate(places) for b in places[n + 1 :]) if few else pairwise(places)
            neighbours.update(dict.fromkeys(pairs))
        return list(neighbours)

    def _movable(self) -> Iterator[tuple[Expr, int, int]]:
        """Yield expressions beside a boundary, with their segment and the segment on the other side."""
        fusion, recomputed = self._segmented.fusion, self._segmented.recomputed
        seen: set[tuple[str, int]] = set()
        for tensor in self._segmented.crossing:
            maker = fusion.producers[tensor]
            near = [maker, *(user for user in fusion.users.get(tensor, ()) if user.tensor_outputs)]
            for expr in near:
                if expr.name in recomputed:
                    continue
                home = self._segmented.home[expr.name][0]
                for other in {place for neighbour in near for place in self._segmented.home[neighbour.name]} - {home}:
                    if (expr.name, other) not in seen:
                        seen.add((expr.name, other))
                        yield expr, home, other

    def _gain(self, gone: Iterable[int], parts: Iterable[Sequence[Expr]]) -> int:
        """Return the additional bytes that groups move compared with the replaced segments, without copies."""
        segmented = self._segmented
        now = sum(traffic(segmented.fusion, part, segmented.recomputed).total for part in parts)
        return now - sum(self._moved[index] for index in gone)

    def _own(self, index: int) -> list[Expr]:
        return [e for e in self._segmented.groups[index].exprs if e.tensor_outputs]

    def _preview(self, edit: _Edit, groups: Callable[[DecisionLog], Regrouping]) -> EditPreview:
        preview = self._known.get(edit)
        if preview is None:
            preview = self._known[edit] = self._make(edit, groups)
        return preview

    def _make(self, edit: _Edit, groups: Callable[[DecisionLog], Regrouping]) -> EditPreview:
        log = DecisionLog()
        try:
            regrouping = groups(log)
            edited = edits.rebuilt(self._segmented, regrouping, self._oracle, log)
            after = self._amount(edited)
        except IllegalEdit as error:
            verdicts = getattr(error, "verdicts", ())
            return EditPreview(
                edit=edit, before=self.before, after=None, device=self._model.device, rule=_sentence(str(error)),
                verdicts=tuple(verdicts), log=tuple(log),
            )
        answer = regrouping.answer
        return EditPreview(
            edit=edit, before=self.before, after=after, device=self._model.device, rule=_rule(edit, regrouping),
            because=tuple(explanations(log)), times=self._times_text(edited, after),
            verdicts=() if answer is None else answer.verdicts, log=tuple(log),
        )

    def _annotate(self, edit: _Edit, tensor: str) -> EditPreview:
        before, device = self.before, self._model.device
        if self._annotated is None:
            return EditPreview(edit=edit, before=before, after=None, device=device, rule="No definition is known.")
        try:
            edited = self._annotated(tensor)
            after = self._amount(edited)
        except FuserLabError as error:
            return EditPreview(edit=edit, before=before, after=None, device=device, rule=_sentence(str(error)))
        rule = f"With a segment_set of {tensor}, the segmenter makes this plan; its readers are cut from {tensor}."
        times = self._times_text(edited, after)
        return EditPreview(edit=edit, before=before, after=after, device=device, rule=rule, times=times)

    def _times_text(self, edited: SegmentedFusion, after: Amount) -> str:
        """Return which segments an edit replaces by which, with their times; empty for an edit that saves none."""
        if after.seconds >= self.before.seconds or not (self.before.parts and after.parts):
            return ""
        old, new = self._segmented.groups, edited.groups
        here, there = ({(group.scheduler, group.names) for group in groups} for groups in (old, new))
        gone = [n for n, group in enumerate(old) if (group.scheduler, group.names) not in there]
        added = [n for n, group in enumerate(new) if (group.scheduler, group.names) not in here]
        if not gone or not added:
            return ""
        text = f"{_kernels_text(old, self.before.parts, gone)} → {_kernels_text(new, after.parts, added)}"
        more = after.moved > self.before.moved
        return f"{'Faster kernels move more bytes' if more else 'The kernels'}: {text}."


def _kernels_text(groups: Sequence[SegmentedGroup], seconds: Sequence[float], numbers: Sequence[int]) -> str:
    """Return segments with schedulers, bytes and times, or their number and sums if there are many."""
    launched = [n for n in numbers if seconds[n] > 0]
    if len(numbers) > _MOST_KERNELS:
        total = sum(seconds[n] for n in numbers)
        return f"{len(numbers)} segments ({_rate_text(sum(groups[n].moved for n in launched), total)})"
    return " and ".join(
        f"S{n} ({_scheduler(groups[n])}, {_rate_text(groups[n].moved if seconds[n] > 0 else 0, seconds[n])})"
        for n in numbers
    )


def _rate_text(moved: int, seconds: float) -> str:
    if not seconds:
        return "a view, 0 s"
    return f"{bytes_label(moved)} in {seconds_label(seconds)} at {moved / seconds / 1e9:,.0f} GB/s"


def _scheduler(group: SegmentedGroup) -> str:
    return "no scheduler" if group.scheduler is None else group.scheduler.value


def explanations(log: Iterable[Attempt]) -> Iterator[str]:
    """Yield why an edit changed more than it names, from the log of the edit."""
    attempts = list(log)
    refused = [n for n, a in enumerate(attempts) if a.phase in {edits.BEFORE_CUT, edits.BEHIND_CUT} and not a.accepted]
    for start in refused:
        end = next((n for n in range(start + 1, len(attempts)) if _ends(attempts[n])), len(attempts))
        parts = [attempt for attempt in attempts[start + 1 : end] if attempt.phase == edits.CONNECTED]
        yield _split_sentence(attempts[start], parts)
    for attempt in attempts:
        if attempt.phase != edits.COPIES:
            continue
        match attempt.kind:
            case Kind.STORE:
                yield f"{_group(attempt)}, which its readers recomputed, gets a separate segment: {attempt.text}."
            case Kind.FORWARD:
                yield f"The segment that stored {_group(attempt)} is no longer needed: {attempt.text}."
            case _:
                count = len(attempt.subjects)
                yield f"{count} {'op is' if count == 1 else 'ops are'} no longer repeated: {attempt.text}."


def _split_sentence(asked: Attempt, parts: Sequence[Attempt]) -> str:
    """Return why one side of a cut is several segments: ``parts`` are its connected parts, and how some were cut."""
    subject = f"The part {'before' if asked.phase == edits.BEFORE_CUT else 'after'} the cut, {_group(asked)},"
    connected = [attempt for attempt in parts if attempt.kind is Kind.MERGE]
    refused = [attempt for attempt in connected if not attempt.accepted]
    pieces = sum(len(attempt.subjects) for attempt in parts if attempt.kind is Kind.PARTITION)
    apart = f"consists of {len(connected)} parts that do not share a tensor"
    if not refused:
        return f"{subject} {apart}."
    how = f"segmented bottom-up into {pieces} segments"
    if len(connected) == 1:
        return f"{subject} cannot be one segment ({refused[0].text}); it is {how}."
    refused_text, verb = ("one of them", "is") if len(refused) == 1 else (f"{len(refused)} of them", "are")
    return f"{subject} {apart}; {refused_text} cannot be one segment ({refused[0].text}) and {verb} {how}."


def _ends(attempt: Attempt) -> bool:
    return attempt.phase in {edits.BEHIND_CUT, edits.COPIES}


def _group(attempt: Attempt) -> str:
    return group_text(attempt.subjects[0])


def _rule(edit: _Edit, regrouping: Regrouping) -> str:
    kind, arguments = edit
    answer = regrouping.answer
    if kind == "cut":
        return f"{arguments[0]} is written to memory and read again; nothing is merged across a cut."
    takes = "" if answer is None or answer.chosen is None else answer.chosen.value
    segments = "both" if kind == "glue" else f"S{arguments[1]} with {arguments[0]}"
    return f"The {takes} scheduler accepts {segments}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"

"""A plan expressed by annotations: the fewest ``segment_set`` with which a segmenter produces its partition.

Every result is checked by segmenting. Only tensors that pass between segments are candidates, because a ``segment_set``
that has an effect ends a segment, so its readers are in another one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from types import MappingProxyType
from typing import Generic, Protocol, Self, TypeVar

from fuser_lab.errors import SegmentationError, VerificationError
from fuser_lab.ir import Fusion
from fuser_lab.passes import Annotation, annotations_of, with_segment_set, without_segment_set
from fuser_lab.passes.annotations import HINT
from fuser_lab.report.subject import PlanLike
from fuser_lab.segmentation import SegmentedFusion, SegmenterOptions, SegmentSetMeaning, Why
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.rewritings import repeated_in


class Annotated(PlanLike, Protocol):
    """The part of a plan's interface that annotations use."""

    @property
    def definition(self) -> Fusion:
        """The fusion with its symbolic sizes."""

    @property
    def segmented(self) -> SegmentedFusion:
        """The fusion with its segments."""

    @property
    def options(self) -> SegmenterOptions:
        """The segmenter's options."""

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Every ``segment_set`` of the definition."""

    @property
    def decisions(self) -> DecisionLog:
        """The log, including what edits have rewritten."""

    def planned_for(self, definition: Fusion, strategy: str, options: SegmenterOptions) -> Self:
        """Return the plan of another definition of the same inputs."""

    def why(self, a: str, b: str) -> Why:
        """Return why two tensors are together or separate."""


P = TypeVar("P", bound=Annotated)
Partition = Counter[frozenset[str]]
Mark = tuple[str, tuple[str, ...]]  # a tensor, and the readers that read its copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy, its reading of ``segment_set``, and whether readers of one input are tried together (top-down)."""

    strategy: str
    reading: SegmentSetMeaning
    connect_through_inputs: bool = True

    def options(self, options: SegmenterOptions) -> SegmenterOptions:
        """Return a plan's options for this strategy and reading, without cuts other than ``segment_set``."""
        return replace(
            options, segment_set=self.reading, connect_through_inputs=self.connect_through_inputs,
            cut_reshape_inputs=False, cut_resize_inputs=False, pieces_by_depth=False,
        )

    def __str__(self) -> str:
        """Return text such as ``bottom-up, segment_set as a hint``."""
        apart = "" if self.connect_through_inputs else ", connect_through_inputs=False"
        return f"{self.strategy.replace('_', '-')}, segment_set as a {self.reading.value}{apart}"


_HINT, _CUT = SegmentSetMeaning.HINT, SegmentSetMeaning.CUT
# nvFuser's current behaviour comes first: among sets of equal size, one that works there is preferred.
WAYS = (
    Way(strategy="bottom_up", reading=_HINT),
    Way(strategy="bottom_up", reading=_CUT),
    Way(strategy="top_down", reading=_HINT),
    Way(strategy="top_down", reading=_CUT),
    Way(strategy="top_down", reading=_HINT, connect_through_inputs=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationResult(Generic[P]):
    """The result of `Plan.to_annotations`; false if no strategy gives the partition, with the ``reasons``.

    Attributes
    ----------
    plan
        The plan of the annotated definition, made with the strategy and the options that give the partition; None if
        there is none.
    annotations
        Every ``segment_set`` of its definition.
    way
        Strategy and reading.
    fewest
        Whether every smaller set of annotations was tried with each strategy and reading; otherwise it is only known
        that no single added annotation can be removed.
    reasons
        One sentence per strategy and reading that failed even with all places annotated.
    tries
        Number of definitions that were segmented.
    """

    plan: P | None
    way: Way | None = None
    fewest: bool = False
    reasons: tuple[str, ...] = ()
    tries: int = 0

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Every ``segment_set`` of the definition that was found."""
        return () if self.plan is None else self.plan.annotations

    def __bool__(self) -> bool:
        """Whether annotations that give the partition were found."""
        return self.plan is not None

    def __str__(self) -> str:
        """Return the annotations with strategy and reading, or the reasons."""
        if self.plan is None:
            return "\n".join(("No set of annotations that was tried gives this partition.", *self.reasons))
        if not self.annotations:
            return f"No annotation is needed ({self.way})."
        word = "the fewest" if self.fewest else "none of those added can be removed"
        return f"{'; '.join(map(str, self.annotations))} ({self.way}; {word})"

    __repr__ = __str__


def to_annotations(plan: P, tries: int, ways: Sequence[Way] = WAYS) -> AnnotationResult[P]:
    """Return the fewest annotations with which the segmenter gives a plan's partition; see `Plan.to_annotations`."""
    unscheduled = [segment.index for segment in plan.segments if segment.scheduler is None]
    if unscheduled:
        reason = f"No scheduler accepts segment {unscheduled[0]}, so no segmenter can make it."
        return AnnotationResult(plan=None, reasons=(reason,))
    try:
        definition = repeated_in(plan.definition, plan.decisions, plan.fusion)
    except (KeyError, SegmentationError, VerificationError):
        reason = "An edit rewrites expressions that the definition does not have, because passes created them."
        return AnnotationResult(plan=None, reasons=(reason,))
    stripped = _strip(definition)
    searched = _Search(plan, stripped, tries, ways).run()
    if searched or stripped == definition:
        return searched
    # Without one of the definition's annotations, the passes may produce a different fusion.
    annotated = _Search(plan, definition, tries, ways).run()
    return replace(annotated or searched, fewest=False, tries=searched.tries + annotated.tries)


def _strip(definition: Fusion) -> Fusion:
    """Return a definition without its annotations, except those whose result is an output of the fusion."""
    outputs = {tensor.name for tensor in definition.outputs}
    for annotation in annotations_of(definition):
        if annotation.hint not in outputs:
            definition = without_segment_set(definition, annotation.hint)
    return definition


class _Search(Generic[P]):
    def __init__(self, plan: P, base: Fusion, tries: int, ways: Sequence[Way]) -> None:
        self._plan = plan
        self._left = tries
        self._ways = ways
        self._tries = 0
        self._base = base
        self._target = partition_of(plan, {annotation.hint for annotation in plan.annotations} - base.tensors.keys())
        self._made: dict[tuple[Way, frozenset[Mark]], tuple[P, bool]] = {}

    def run(self) -> AnnotationResult[P]:
        reasons: list[str] = []
        for marks in places(self._plan, self._base):
            complete = -1  # all sets of at most this many annotations were tried
            for size in range(len(marks) + 1):
                if comb(len(marks), size) * len(self._ways) > self._left:
                    break
                complete = size
                for way in self._ways:
                    for chosen in combinations(marks, size):
                        if self._gives(way, chosen):
                            return self._success(way, chosen, fewest=True)
            every = [way for way in self._ways if complete < len(marks) and self._gives(way, marks)]
            smallest = min(((self._reduce(way, marks), way) for way in every), key=lambda f: len(f[0]), default=None)
            if smallest is not None:
                return self._success(smallest[1], smallest[0], fewest=len(smallest[0]) <= complete + 1)
            reasons = [self._reason(way, marks) for way in self._ways]
        return self._failure(tuple(reasons))

    def _gives(self, way: Way, marks: Sequence[Mark]) -> bool:
        """Whether the segmenter makes the partition of a definition with these annotations."""
        return self._segment(way, marks)[1]

    def _segment(self, way: Way, marks: Sequence[Mark]) -> tuple[P, bool]:
        key = way, frozenset(marks)
        if key not in self._made:
            self._left -= 1
            self._tries += 1
            definition = self._base
            for tensor, readers in marks:
                definition = with_segment_set(definition, tensor, readers)
            plan = self._plan.planned_for(definition, way.strategy, way.options(self._plan.options))
            new = definition.tensors.keys() - self._base.tensors.keys()
            self._made[key] = plan, partition_of(plan, new, self._plan.segmented.replicas) == self._target
        return self._made[key]

    def _reduce(self, way: Way, marks: Sequence[Mark]) -> tuple[Mark, ...]:
        """Return a subset of the annotations from which none can be removed."""
        marks_left = tuple(marks)
        for mark in marks:
            fewer = tuple(other for other in marks_left if other != mark)
            if self._gives(way, fewer):
                marks_left = fewer
        return marks_left

    def _success(self, way: Way, marks: Sequence[Mark], *, fewest: bool) -> AnnotationResult[P]:
        return AnnotationResult(plan=self._segment(way, marks)[0], way=way, fewest=fewest, tries=self._tries)

    def _failure(self, reasons: tuple[str, ...]) -> AnnotationResult[P]:
        return AnnotationResult(plan=None, reasons=reasons, tries=self._tries)

    def _reason(self, way: Way, marks: Sequence[Mark]) -> str:
        """Return a pair of expressions that is placed differently even with all annotations, and why."""
        plan = self._segment(way, marks)[0]
        placed = f"all {len(marks)} places annotated" if marks else "nothing to annotate"
        head = f"{way}, {placed}"
        for a, b in _pairs(self._plan):
            if a in plan.segmented.home and b in plan.segmented.home:
                here, there = _together(self._plan, a, b), _together(plan, a, b)
                if here != there:
                    place = "in one segment" if here else "separate"
                    return f"{head}: {a} and {b} are {place} in this plan, but {plan.why(a, b).text}"
        return f"{head}: other expressions are computed in several segments, or created by passes and rewrites."


def partition_of(
    plan: Annotated, left_out: set[str], copies: Mapping[str, str] = MappingProxyType({}),
) -> Partition:
    """Return the segments of a plan as sets of names, without those in ``left_out``.

    A replica counts as its original, and so do ``copies``, which the plan's definition has as expressions.
    """
    replicas = plan.segmented.replicas

    def original(name: str) -> str:
        source = replicas.get(name, name)
        return copies.get(source, source)

    return Counter(
        frozenset(original(e.name) for e in segment.exprs if e.tensor_outputs and e.name not in left_out)
        for segment in plan.segments
    )


def places(plan: Annotated, base: Fusion) -> Iterator[tuple[Mark, ...]]:
    """Yield places for annotations: each tensor between segments, for all readers and for each segment's."""
    homes = plan.segmented.homes
    together: list[Mark] = []
    apart: list[Mark] = []
    for tensor in base.tensors.values():
        maker = base.producers.get(tensor)
        if maker is None or maker.name not in homes or maker.op.name == HINT:
            continue
        users = [u for u in base.users.get(tensor, ()) if u.name in homes and u.op.name != HINT]
        outside = [user for user in users if not set(homes[user.name]) & set(homes[maker.name])]
        if outside:
            together.append((tensor.name, tuple(user.name for user in outside)))
        by_segment: dict[int, list[str]] = {}
        for user in outside:
            by_segment.setdefault(homes[user.name][0], []).append(user.name)
        apart += [(tensor.name, tuple(names)) for names in by_segment.values()]
    yield tuple(together)
    if len(apart) > len(together):
        yield tuple(apart)


def _pairs(plan: Annotated) -> Iterator[tuple[str, str]]:
    """Yield pairs of connected expressions of a plan by name."""
    for expr in plan.fusion.tensor_exprs:
        for tensor in expr.tensor_inputs:
            maker = plan.fusion.producers.get(tensor)
            if maker is not None:
                yield maker.name, expr.name
    names = [expr.name for expr in plan.fusion.tensor_exprs]
    yield from combinations(names, 2)


def _together(plan: Annotated, a: str, b: str) -> bool:
    return bool(set(plan.segmented.homes[a]) & set(plan.segmented.homes[b]))

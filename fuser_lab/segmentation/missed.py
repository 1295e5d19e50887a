"""The differences between a plan and a cheaper plan, tensor by tensor, with the reason for each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from fuser_lab.cost.traffic import CostModel
from fuser_lab.ir import TensorView
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.graph import Idle, SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.options import SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.why import Relation, Why, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """One difference between a plan and a cheaper one.

    Attributes
    ----------
    tensor
        The tensor that one of them moves more often; empty for launches.
    together
        Two values that only the cheaper plan has in one segment, if there are any.
    segments
        The segments of this plan in which they are.
    cost
        Bytes that the cheaper plan saves (a launch counts as the bytes that memory could move in the same time);
        negative if it moves more.
    relation
        Why the two values are separate in this plan: "refused", "cycle", "never tried" or "edited"; empty without
        values.
    text
        The same as a sentence.
    """

    tensor: str
    together: tuple[str, ...]
    segments: tuple[int, ...]
    cost: int
    relation: str
    text: str


def missed_merges(
    segmented: SegmentedFusion, cheaper: SegmentedFusion, model: CostModel, log: DecisionLog, oracle: SchedulerOracle,
    meaning: SegmentSetMeaning = SegmentSetMeaning.HINT, idle: Idle | None = None,
) -> tuple[Missed, ...]:
    """Return the differences between a plan and a cheaper one of the same fusion, largest saving first.

    Their costs add up to the difference of the plans' costs. Segments of views, which ``idle`` returns, cost nothing.
    """
    ours, theirs = _running(segmented, idle), _running(cheaper, idle)
    differences = list(_tensors(segmented, cheaper, ours, theirs, log, oracle, meaning))
    launches = len(ours) - len(theirs)
    if launches:
        more = "fewer" if launches > 0 else "more"
        text = f"{abs(launches)} launch{'es' if abs(launches) > 1 else ''} {more}"
        cost = launches * model.launch_bytes
        differences.append(Missed(tensor="", together=(), segments=(), cost=cost, relation="", text=text))
    return tuple(sorted(differences, key=lambda entry: -entry.cost))


def _running(segmented: SegmentedFusion, idle: Idle | None) -> Sequence[SegmentedGroup]:
    views = frozenset[int]() if idle is None else idle(segmented)
    return [group for number, group in enumerate(segmented.groups) if number not in views]


def _tensors(
    segmented: SegmentedFusion, cheaper: SegmentedFusion, here: Sequence[SegmentedGroup],
    there: Sequence[SegmentedGroup], log: DecisionLog, oracle: SchedulerOracle, meaning: SegmentSetMeaning,
) -> Iterator[Missed]:
    ours, theirs = _accesses(here), _accesses(there)
    moved_here, moved_there = _bytes_by_tensor(here), _bytes_by_tensor(there)
    for tensor in segmented.fusion.tensors.values():
        saved = moved_here[tensor] - moved_there[tensor]
        if not saved:
            continue
        times = f"{tensor.name} is read or written {_times(ours[tensor])} here and {_times(theirs[tensor])} there"
        pair = _joined_exprs(segmented, cheaper, tensor) if saved > 0 else None
        if pair is None:
            yield Missed(tensor=tensor.name, together=(), segments=(), cost=saved, relation="", text=times)
            continue
        answer = why(segmented, *pair, log, oracle, meaning)
        yield Missed(
            tensor=tensor.name, together=pair, segments=answer.segments, cost=saved, relation=answer.relation.value,
            text=f"{times}, where {pair[0]} and {pair[1]} share a segment. {_reason(answer, log)}",
        )


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _bytes_by_tensor(groups: Sequence[SegmentedGroup]) -> Counter[TensorView]:
    """Return the bytes of each tensor that segments read and write."""
    moved: Counter[TensorView] = Counter()
    for group in groups:
        moved.update(group.bytes_read)
        moved.update({tensor: tensor.nbytes for tensor in group.outputs})
    return moved


def _accesses(groups: Sequence[SegmentedGroup]) -> Counter[TensorView]:
    """Return how often each tensor is read from memory or written to it."""
    counts: Counter[TensorView] = Counter()
    for group in groups:
        counts.update(group.tensor_inputs)
        counts.update(group.outputs)
    return counts


def _joined_exprs(
    segmented: SegmentedFusion, cheaper: SegmentedFusion, tensor: TensorView,
) -> tuple[str, str] | None:
    """Return two expressions that compute or read a tensor, apart in one plan and together in the other, or None."""
    fusion = segmented.fusion
    maker = fusion.producers.get(tensor)
    near = [*([maker] if maker is not None else []), *fusion.users.get(tensor, ())]
    names = [expr.name for expr in near if expr.tensor_outputs and expr.name in segmented.home]
    for a, b in combinations(dict.fromkeys(names), 2):
        apart = set(segmented.home[a]).isdisjoint(segmented.home[b])
        if apart and not set(cheaper.home.get(a, ())).isdisjoint(cheaper.home.get(b, ())):
            return a, b
    return None


def _reason(answer: Why, log: DecisionLog) -> str:
    """Return why two values are separate, with the answer if merging them was tried."""
    refused = [log[seq] for seq in answer.attempts if not log[seq].accepted]
    if answer.relation is not Relation.REFUSED or not refused or not refused[-1].text:
        return answer.text
    return f"{answer.text} The refusal then: {refused[-1].text}."

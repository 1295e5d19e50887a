"""What an edit changed, as one sentence: the ops that moved and why, and the change of segments, bytes and time."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fuser_lab.cost.amounts import bytes_label, change_label, seconds_label
from fuser_lab.cost.kernel_time import Prediction
from fuser_lab.cost.verdict import Answer
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion
from fuser_lab.ir.tensor_names import named_text, names_by_tensor
from fuser_lab.report.diff import PlanDiff, plan_diff
from fuser_lab.report.difference import Move
from fuser_lab.report.units import conjunction, plural
from fuser_lab.segmentation import SegmentedFusion, Why
from fuser_lab.segmentation.why import Relation


class ExplainedPlan(Protocol):
    """What is asked of a plan beyond what `plan_diff` reads."""

    hash: str
    target: str
    fusion: Fusion
    segments: Sequence[Any]
    segmented: SegmentedFusion
    names: tuple[tuple[str, str], ...]

    def why(self, a: str, b: str) -> Why:
        """Return why two ops are together or apart."""

    def predicted_time(self) -> Prediction:
        """Return the time on the plan's target."""


_MOST_OPS: Final = 3  # ops that a sentence names; otherwise it counts them
_MOST_WAYS: Final = 2  # pairs of segments between which a sentence says that ops moved
_TRIED: Final = re.compile(r" \(tried [^()]*\)")  # the attempt in the log, which `Plan.why` names


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanChange:
    """What is different in a plan after an edit of another one.

    Attributes
    ----------
    difference
        The ops that are grouped differently and the tensors that cross segments in only one of the plans.
    is_same
        Whether both are the same plan, segmented alike by the same options.
    because
        Why the first of the ops moved, as a clause; empty if the edit itself says it.
    moved, seconds
        Change of the bytes that are read and written, and of the predicted time; None if that was not asked.
    device
        The device that the time is predicted for.
    called
        The user's names of tensors, which the printed sentence adds.
    """

    difference: PlanDiff
    is_same: bool
    because: str
    moved: int
    seconds: float | None
    device: str
    called: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> str:
        """The change of segments, bytes and predicted time."""
        before, after = (len(side.schedulers) for side in (self.difference.before, self.difference.after))
        text = f"{before} → {plural(after, 'segment')}, {change_label(self.moved, bytes_label)} moved"
        if self.seconds is None:
            return text
        return f"{text}, {change_label(self.seconds, seconds_label)} predicted ({self.device})"

    @property
    def ops(self) -> str:
        """The ops that moved, and those that are new or gone, as a clause; what is the same if there are none."""
        if self.is_same:
            return "the plan is the same"
        clauses = list(_moves(self.difference.moved, dict(self.difference.partners)))
        if self.because and clauses:
            clauses[0] += f", because {self.because}"
        for names, state in ((self.difference.only_after, "new"), (self.difference.only_before, "gone")):
            if names:
                clauses.append(f"{_list_text(names)} {'is' if len(names) == 1 else 'are'} {state}")
        return "; ".join(clauses) or ("other schedulers" if self.difference else "the segments are the same")

    @property
    def text(self) -> str:
        """The whole sentence, with the fusion's names of tensors."""
        return f"{self.ops[:1].upper()}{self.ops[1:]}; {self.counts}."

    def __str__(self) -> str:
        """Return the sentence with the user's names."""
        return named_text(self.text, names_by_tensor(self.called))

    __repr__ = __str__


def plan_change(
    first: Any, second: Any, *, asks_why: bool = True, predicts: bool = True, difference: PlanDiff | None = None,
) -> PlanChange:
    """Return what is different in a plan after an edit.

    ``asks_why=False`` omits the reason and ``predicts=False`` the change of the predicted time, which take longer.
    """
    before: ExplainedPlan = first
    after: ExplainedPlan = second
    difference = plan_diff(before, after) if difference is None else difference
    return PlanChange(
        difference=difference,
        is_same=before.hash == after.hash,
        because=_reason(before, after, difference) if asks_why else "",
        moved=-difference.bytes_saved,
        seconds=after.predicted_time().seconds - before.predicted_time().seconds if predicts else None,
        device=after.target,
        called=after.names,
    )


def _moves(moved: Sequence[Move], partners: Mapping[int, int]) -> Iterator[str]:
    """Yield from where to where ops moved, in the numbers of the new plan's segments."""
    ways: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Move]] = {}
    for move in moved:
        ways.setdefault((move.before, move.after), []).append(move)
    shown = sorted(ways.items(), key=lambda way: -len(way[1]))
    for (before, after), ops in shown[:_MOST_WAYS]:
        names = _list_text([f"{op.op} {op.name}" for op in ops], "op")
        sources, targets = [_origin(n, partners) for n in before], [f"S{n}" for n in after]
        yield f"{names} moved from {conjunction(sources)} to {conjunction(targets)}"
    rest = sum(len(ops) for _, ops in shown[_MOST_WAYS:])
    if rest:
        yield f"{plural(rest, 'more op')} moved"


def _origin(number: int, partners: Mapping[int, int]) -> str:
    """Return a segment of the previous plan by its number now, and by its previous one if that is another."""
    now = partners.get(number, number)
    return f"S{number}" if now == number else f"S{now} (S{number} before)"


def _list_text(names: Sequence[str], noun: str = "tensor") -> str:
    if len(names) > _MOST_OPS:
        return f"{plural(len(names), noun)} ({', '.join(names[:_MOST_OPS])}, …)"
    return conjunction(names)


def _reason(before: ExplainedPlan, after: ExplainedPlan, difference: PlanDiff) -> str:
    """Return why the first op that moved is not with an op beside it any more, or why it is with another one now."""
    for move in difference.moved[:_MOST_OPS]:
        for name in _neighbours(before, move.name):
            was, now = (_share(plan, move.name, name) for plan in (before, after))
            if was and not now and name in after.fusion.tensors:
                try:
                    return _clause(after.why(move.name, name), move.name, name)
                except FuserLabError:  # a replica, which has no answer of its own
                    continue
    for move in difference.moved[:_MOST_OPS]:
        for name in _neighbours(after, move.name):
            if not _share(before, move.name, name) and _share(after, move.name, name):
                scheduler = after.segments[move.after[0]].scheduler
                return f"the {scheduler.value} scheduler accepts it with {name}" if scheduler is not None else ""
    return ""


def _neighbours(plan: ExplainedPlan, name: str) -> Iterator[str]:
    """Yield the ops that an op reads from, and those that read it."""
    fusion = plan.fusion
    tensor = fusion.tensors[name]
    for value in fusion.producers[tensor].tensor_inputs:
        if value in fusion.producers:
            yield fusion.producers[value].name
    yield from (user.name for user in fusion.users.get(tensor, ()) if user.tensor_outputs)


def _share(plan: ExplainedPlan, a: str, b: str) -> bool:
    homes = plan.segmented.homes
    return a in homes and b in homes and not set(homes[a]).isdisjoint(homes[b])


def _clause(why: Why, a: str, b: str) -> str:
    """Return the reason of an answer without what it begins with, the segments of both."""
    if why.relation is Relation.EDITED:
        return ""
    decisive = Answer(why.verdicts).decisive
    refusal = next((f"{v.scheduler.value}: {v.text}" for v in decisive if not v.accepted and v.text), "")
    both = f"{b} and {a}"
    text = _TRIED.sub("", why.text.partition("; ")[2].partition("\n")[0].partition(". ")[0]).rstrip(".")
    accepts = f"accepts the segments of {both} together"
    for words, named in (("them", both), ("accepts both", accepts), ("for both", f"for {both}")):
        text = re.sub(rf"\b{words}\b", named, text)
    shows = why.relation is Relation.REFUSED and text.startswith("no scheduler") and refusal
    return f"{text} ({refusal})" if shows else text

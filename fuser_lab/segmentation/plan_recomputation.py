"""Tensors between the segments of a plan that their readers compute again, where that is predicted to save time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import Work, product_flops
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir import Expr, TensorView
from fuser_lab.segmentation.edits import glue, own_exprs
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.options import SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.partition_attempts import plan_attempts
from fuser_lab.segmentation.recomputation import chain_of, share_read
from fuser_lab.segmentation.rewritings import copied_names, recompute
from fuser_lab.segmentation.timed_plan import DISTINCT, PHASE, TimedPlan, work_in

TRIES_PER_BOUNDARY = 2  # recomputations tried per tensor between segments
_COPIED = frozenset({Kind.REPLICATE, Kind.STORE})


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The recomputation of a plan's boundaries, and merges of the segments that became neighbours by it.

    ``times`` predicts the seconds of each segment. In limited time (``is_limited``) segments with many common bytes
    are merged too, because the search may not get to them.
    """

    schedulers: SchedulerOracle
    model: TimeModel
    times: Callable[[SegmentedFusion], Sequence[float]]
    budget: Budget
    segment_set: SegmentSetMeaning
    is_limited: bool

    def improve(self, plan: TimedPlan) -> tuple[Attempt, ...]:
        """Return the attempts of a plan that recomputes boundaries as long as that saves time; none if none does."""
        now, made = plan.segmented, list[Attempt]()
        seconds = sum(plan.times)
        tried: set[tuple[str, Names]] = set()
        changed = dict[str, None]()  # expressions of segments that may be merged with others since they were changed
        tries = TRIES_PER_BOUNDARY * len(now.crossing)
        while tries and not self.budget.is_late:
            promising = sorted(self._promising(now, tried), key=lambda entry: (entry[0], entry[1]))
            if not promising:  # merges are many attempts, so they follow once nothing else saves time
                now, after, union = self._merge(now, self._to_merge(now, tuple(changed)))
                if after >= seconds:
                    break
                seconds, made = after, [*made, *union]
            for _, tensor, targets, readers in promising[:tries]:
                tried.add((tensor, readers))
                tries -= 1
                try:
                    done = recompute(now, tensor, self.schedulers, targets, storing=True, taken=copied_names(made))
                except IllegalEdit:
                    continue
                # A value that is no longer written does not have to be kept by the segment that computes it.
                names = (*readers[:1], now.fusion.producers[now.fusion.tensors[tensor]].name)
                after, then, union = sum(self.times(done.segmented)), done.segmented, ()
                if after >= seconds:
                    then, after, union = self._merge(then, _neighbours(then, names))
                # Together with a merge it excludes other merges, so it has to save more than the clock's error.
                if after < seconds * (1 - DISTINCT * bool(union)):
                    made += [
                        replace(attempt, phase=f"{PHASE}: recompute") for attempt in (*done.attempts, *done.merged)
                        if attempt.kind not in _COPIED
                    ]
                    now, seconds, made = then, after, [*made, *union]
                    changed.update(dict.fromkeys(names))
                    break
                if self.budget.is_late:
                    break
        if not made:
            return ()
        before = (attempt for attempt in plan.attempts if not (attempt.accepted and attempt.kind in _COPIED))
        attempts = (*before, *made)
        return (*attempts, *plan_attempts(now, attempts, PHASE))

    def _promising(
        self, now: SegmentedFusion, tried: set[tuple[str, Names]],
    ) -> Iterator[tuple[float, str, tuple[int, ...], Names]]:
        """Yield recomputations of a tensor where it is read, with the predicted change: in one segment, or in all.

        A tensor is no longer written only if all segments that read it compute it again.
        """
        for tensor in now.crossing:
            targets = [i for i, group in enumerate(now.groups) if tensor in group.tensor_inputs]
            try:
                is_copied = now.fusion.producers[tensor].name in now.recomputed
                chain = () if is_copied else chain_of(now, tensor, storing=True)
            except IllegalEdit:
                continue
            if not chain:
                continue
            inside = {tv for expr in chain for tv in expr.tensor_outputs}
            sources = {tv for expr in chain for tv in expr.tensor_inputs} - inside
            makers = {tv: now.fusion.producers.get(tv) for tv in sources if tv not in now.written}
            added = sum(tv.nbytes for tv, maker in makers.items() if maker and maker.name not in now.recomputed)
            extra = self.model.work(chain)
            reading = {i: [e for e in own_exprs(now, i) if tensor in e.tensor_inputs] for i in targets}
            gains = {i: self._change(now.groups[i], tensor, sources, extra, reading[i]) for i in targets if reading[i]}
            unwritten = -tensor.nbytes / self.model.bandwidth if tensor not in now.fusion.outputs else 0.0
            everywhere = len(targets) > 1 and len(gains) == len(targets) and tensor not in now.fusion.outputs
            choices = [*((i,) for i in gains), *([tuple(targets)] if everywhere else [])]
            for chosen in choices:
                readers = tuple(e.name for i in chosen for e in reading[i])
                gain = sum(gains[i] for i in chosen) + added / self.model.bandwidth
                gain += unwritten if len(chosen) == len(targets) else 0.0
                if gain < 0 and (tensor.name, readers) not in tried:
                    yield gain, tensor.name, chosen, readers

    def _change(
        self, group: SegmentedGroup, tensor: TensorView, sources: AbstractSet[TensorView], extra: Work,
        reading: Sequence[Expr],
    ) -> float:
        """Return the predicted change of a segment's time if it computes a tensor that it reads."""
        share = share_read(tensor, reading)
        more = sum(tv.nbytes for tv in sources if tv not in group.tensor_inputs) - group.bytes_read[tensor]
        work, flops = work_in(group, self.model), product_flops(group.exprs)
        after = self.model.seconds(group.moved + round(share * more), work + extra.part(share), flops)
        return after - self.model.seconds(group.moved, work, flops)

    def _to_merge(self, now: SegmentedFusion, changed: Names) -> Iterable[tuple[int, int]]:
        """Return the pairs of segments that may be merged: with one of these expressions, or with many common bytes.

        A search in limited time may not get to merge other segments, so those are tried whose common bytes are a part
        of the plan's time.
        """
        pairs = _neighbours(now, changed)
        if not self.is_limited:
            return pairs
        least = DISTINCT * sum(self.times(now)) * self.model.bandwidth / 2  # they are neither written nor read
        neighbours = _neighbours(now, tuple(expr.name for expr in now.fusion.tensor_exprs))
        return {**{pair: nbytes for pair, nbytes in neighbours.items() if nbytes >= least}, **pairs}

    def _merge(
        self, now: SegmentedFusion, pairs: Iterable[tuple[int, int]],
    ) -> tuple[SegmentedFusion, float, tuple[Attempt, ...]]:
        """Return a plan that merges the first of these pairs of segments for which that saves time.

        Beside the plan, which may be the given one, its predicted seconds and the attempt that makes it.
        """
        seconds = sum(self.times(now))
        for home, other in pairs:
            if now.path(home, other) or now.path(other, home):
                continue  # they cannot be merged
            try:
                merged = glue(now, home, other, self.schedulers, self.segment_set)
            except IllegalEdit:
                continue
            after = sum(self.times(merged))
            if after < seconds and merged.fusion is now.fusion:
                pair = [own_exprs(now, index) for index in (home, other)]
                names = [tuple(e.name for e in exprs if e.name not in merged.recomputed) for exprs in pair]
                union = Attempt(
                    phase=f"{PHASE}: merge", kind=Kind.MERGE, subjects=tuple(n for n in names if n),
                    outcome=Outcome.ACCEPTED,
                )
                return merged, after, (union,)
        return now, seconds, ()


def _neighbours(now: SegmentedFusion, names: Names) -> dict[tuple[int, int], int]:
    """Return pairs of segments that share tensors, one with some of these expressions, with the bytes of these tensors.

    The pairs that share the most bytes are the first.
    """
    touched = [{*group.tensor_inputs, *group.outputs} for group in now.groups]
    homes = dict.fromkeys(home for name in names for home in now.home.get(name, ()))
    pairs = {(min(home, other), max(home, other)) for home in homes for other in range(len(touched)) if other != home}
    shared = {pair: touched[pair[0]] & touched[pair[1]] for pair in sorted(pairs)}
    sizes = {pair: sum(tv.nbytes for tv in tensors) for pair, tensors in shared.items() if tensors}
    return dict(sorted(sizes.items(), key=lambda entry: -entry[1]))

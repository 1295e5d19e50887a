"""The plan that is predicted to be fastest: cuts, schedulers and recomputation, searched by a model of time.

The search begins with bottom-up plans, under nvFuser's rules and, if the oracle has open schedulers, without them; if
its time is not limited, with the plan of "optimal" too. The best plans that repeat nothing are improved by merging
segments and moving expressions (`local_search`), and by splitting slow kernels; a faster plan that bottom-up's merges
went past joins them. Then the best plan's boundaries are recomputed one by one, as long as that is predicted to save
time, and segments that have become neighbours are merged. A search in limited time also begins with recomputation and
splits, or with merges where launches take longest: few attempts, which save much.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import product_flops
from fuser_lab.errors import SegmentationError
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.segmentation.bottom_up import bottom_up
from fuser_lab.segmentation.events import Attempt, Kind
from fuser_lab.segmentation.forwarding import forwarded_chains
from fuser_lab.segmentation.graph import SegmentedFusion, assemble
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.local_search import Partition, anneal, legal_price, merges, runs
from fuser_lab.segmentation.optimal import optimal
from fuser_lab.segmentation.options import FACTORIES, SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.partition_attempts import (
    as_bottom_up_writes_it,
    attempts_of,
    neighbours_apart,
)
from fuser_lab.segmentation.plan_recomputation import Recomputation
from fuser_lab.segmentation.rationed import OF_ONE, RationedSchedulers
from fuser_lab.segmentation.replay import Fold
from fuser_lab.segmentation.space import in_order
from fuser_lab.segmentation.timed_plan import (
    DISTINCT,
    PHASE,
    Clock,
    TimedPlan,
    is_faster,
    seconds_by_bytes,
    time_model_of,
)
from fuser_lab.segmentation.timed_space import NEAR, TimedSpace, partition_of, parts_of, with_tables

MOST_FOR_OPTIMAL = 60  # maximum number of expressions for which strategy "optimal" is a starting point
STATES_FOR_OPTIMAL = 20  # divisor of the states that it gets
# Part of the processor time left in which a step before the search may lower kernels. Not measured alone.
WORK_BESIDE = 0.5
CHANGES_PER_UNIT, LATER_CHANGES = 20, 5  # steps of the random walk: in the first round, and in each later round
STATES_PER_CHANGE = 100  # search states of the budget per change of a plan that is tried
STATES_PER_OPEN = 1000  # states per expression that an open scheduler lowers; in limited time only the time counts
MOST_BESIDE = 32  # segments before and after one with which it is merged because they share a tensor
# Part of the time that a plan of one kernel saves in all its runs that the answer whether there is one may take besides
# the search: it is one question, whose answer is a gain as large as any. Not measured alone.
SHARE_OF_ONE = 0.5
SHARE = 0.1  # part of the time that a plan may save in all its runs that the search for it may take
# Seconds of processor time in which a small kernel is compiled, which a plan with fewer kernels saves: 0.05 to 0.26 for
# kernels of 3 to 14 ops (AMD EPYC, 2026-11-29).
COMPILED = 0.1
ROUNDS = 3  # rounds of the search, each with the prices that the clock corrected after the previous round
UNKNOWN = 1.2  # factor on the time by bytes and arithmetic for kernels that the clock does not know
MOST_SPLITS = 8  # plans tried that split a slow kernel
MOST_CHECKED, MOST_TIMED = 2, 4  # plans compared with the bottom-up plan by the times of all their kernels


def fastest(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, clock: Clock | None = None,
) -> Iterator[Attempt]:
    """Yield the attempts that make the plan predicted to be fastest, then a refusal for each pair of neighbours.

    With a clock, plans are compared by the times of their kernels as scheduled; the search uses bytes and arithmetic,
    corrected for kernels whose time was found to differ.
    """
    model = time_model_of(oracle)
    budget = Budget(states=options.search_states, seconds=options.search_seconds)
    search = _Search(fusion, oracle, options, model, budget, clock)
    search.begin()
    # In limited time, what saves most in a second comes first.
    first = (search.store_tables, search.recompute) if search.is_limited else ()
    if search.best.on_host > sum(search.best.times):
        first = (search.merge, *first)
    for step in (*first, search.open, search.improve):
        if not budget.is_late:
            step()
    search.undo_merges()
    if not budget.is_late:
        search.recompute()
    search.ask_again_for_one()
    best = search.checked()
    yield from best.attempts
    yield from neighbours_apart(best.segmented, search.closed, options, PHASE)


@dataclass(slots=True)
class _Search:
    fusion: Fusion
    oracle: SchedulerOracle
    options: SegmenterOptions
    model: TimeModel
    budget: Budget
    clock: Clock | None = None
    known: list[TimedPlan] = field(default_factory=list)
    opened: TimedPlan | None = None  # the bottom-up plan of open schedulers
    recomputed: set[frozenset[tuple[object, ...]]] = field(default_factory=set)
    splits: int = MOST_SPLITS
    closed: SchedulerOracle = field(init=False)
    rationed: SchedulerOracle = field(init=False)

    def __post_init__(self) -> None:
        """Separate nvFuser's schedulers from open schedulers."""
        self.closed = getattr(self.oracle, "closed", self.oracle)
        is_open = self.closed is not self.oracle
        exprs = self.budget.states if self.is_limited else self.budget.states // STATES_PER_OPEN
        self.rationed = RationedSchedulers(self.oracle, self.closed, exprs, self.budget) if is_open else self.oracle

    @property
    def is_limited(self) -> bool:
        """Whether the time of the search is limited by what it may save."""
        return self.options.search_calls is not None

    def _beside(self) -> SchedulerOracle:
        """Return the schedulers for a step that leaves the limit of the search in the space, and time, to it."""
        if not isinstance(self.rationed, RationedSchedulers):
            return self.rationed
        return self.rationed.beside(self.budget.share(1, of_work=WORK_BESIDE))

    @property
    def best(self) -> TimedPlan:
        """The fastest plan so far; on a tie the first, which is the closest to nvFuser's."""
        return min(self.known, key=lambda plan: plan.seconds)

    def _plans_of(self, space: TimedSpace) -> list[TimedPlan]:
        """Return the known plans in which each expression of the space's fusion is in one segment.

        If there are none, because each has copies of expressions, they are those that have it beside copies.
        """
        plans = [plan for plan in self.known if space.has(plan.segmented)]
        return [plan for plan in plans if plan.segmented.fusion.digest == space.fusion.digest] or plans

    def _best_of(self, space: TimedSpace) -> TimedPlan | None:
        """Return the fastest of these plans, None if there are none."""
        return min(self._plans_of(space), key=lambda plan: plan.seconds, default=None)

    def begin(self) -> None:
        """Add the plans of bottom-up under nvFuser's rules, and limit the time of the search by what it may save.

        These are a part of the time of all runs, and the compilation of all kernels but one.
        """
        self._add("bottom-up", bottom_up(self.fusion, self.closed, self.options))
        calls = self.options.search_calls
        if calls is not None:
            compiled = COMPILED * (len(self.best.segmented.groups) - 1) if calls else 0.0
            self.budget.limit(SHARE * calls * self._most_saved() + compiled)
            if self.budget.is_late:
                return
        for word, options in self._ways[1:]:
            self._add(word, bottom_up(self.fusion, self.closed, options))

    def open(self) -> None:
        """Add the plan of bottom-up without nvFuser's rules, and that of "optimal" if the search is not limited.

        Open schedulers may lower half as many expressions for it as for the search in the space, besides those.
        """
        if self.is_limited:
            self._take_whole()
        if isinstance(self.rationed, RationedSchedulers):
            self._add("open bottom-up", bottom_up(self.fusion, self._beside(), self.options))
            self.opened = self.known[-1]
        if not self.is_limited and len(self.fusion.tensor_exprs) <= MOST_FOR_OPTIMAL and not self.budget.is_late:
            idle = None if self.clock is None else self.clock.idle
            budget = self.budget.share(STATES_FOR_OPTIMAL)
            self._add("optimal", optimal(self.fusion, self.closed, self.options, budget, idle))

    def _most_saved(self) -> float:
        """Return the seconds by which a run of the bottom-up plan exceeds one kernel that stores no intermediate."""
        plan, least = self.known[0], self._least
        return max(sum(plan.times) - least, plan.on_host - least, 0.0)

    @property
    def _least(self) -> float:
        """Seconds of one kernel that stores no intermediate."""
        plan = self.known[0]
        groups, outputs = plan.segmented.groups, plan.segmented.fusion.outputs
        between = sum(
            tensor.nbytes * ((tensor not in outputs) + sum(tensor in group.tensor_inputs for group in groups))
            for tensor in plan.segmented.crossing
        )
        exprs = [expr for group in groups for expr in group.exprs]
        moved = max(sum(group.moved for group in groups) - between, 0)
        return self.model.seconds(moved, self.model.work(exprs), product_flops(exprs))

    def _add(self, word: str, attempts: Iterator[Attempt]) -> None:
        made = tuple(replace(attempt, phase=f"{word}: {attempt.phase}") for attempt in attempts)
        self._take(made)

    def _take(self, attempts: Sequence[Attempt]) -> None:
        self.known.append(self._with_times(self._segments_of(attempts), attempts))

    def _segments_of(self, attempts: Sequence[Attempt]) -> SegmentedFusion:
        """Return the segments that attempts make."""
        fold = Fold(self.fusion)
        for attempt in attempts:
            fold.apply(attempt)
        segmented = assemble(fold.fusion, fold.groups(), fold.recomputed, self.rationed, fold.replicas)
        if any(group.scheduler is None for group in segmented.groups):
            # The limit refuses a segment that the plan would have, which would be priced as calls of the library.
            segmented = assemble(fold.fusion, fold.groups(), fold.recomputed, self.oracle, fold.replicas)
        return segmented

    def _with_times(self, segmented: SegmentedFusion, attempts: Sequence[Attempt]) -> TimedPlan:
        times = self.times(segmented, limited=bool(self.known))
        on_gpu = not self.model.repeats  # the clock of a CPU measures calls
        launch = self.model.launch if self.is_limited and on_gpu else 0.0
        return TimedPlan(segmented=segmented, times=times, attempts=tuple(attempts), launch=launch)

    def undo_merges(self) -> None:
        """Add the plan of bottom-up without nvFuser's rules without its last merges, as long as that saves time.

        Merges in pairs go past faster plans: schedulers accept a set, but its kernel may take longer than its parts'.
        A merge is looked at if it makes a slow segment once all later ones are undone. Such plans are few, so their
        time is not limited.
        """
        if self.opened is None:
            return
        best, tried = self.opened, frozenset[str]()
        slow = self._slow_names(best)
        for merge in reversed([a for a in best.attempts if a.accepted and a.kind is Kind.MERGE]):
            names = frozenset().union(*merge.subjects)
            if names <= tried or names.isdisjoint(slow) or self.budget.ended():
                continue
            tried |= names
            attempts = [attempt for attempt in best.attempts if attempt is not merge]
            with suppress(SegmentationError):  # replicas that became one expression need their segment
                parts = self._segments_of(attempts)
                # Only parts that by their bytes may be faster are lowered.
                if (
                    sum(seconds_by_bytes(parts, self.model)) < best.seconds
                    and all(group.scheduler or len(group.exprs) == 1 for group in parts.groups)
                    and (plan := self._with_times(parts, attempts)).seconds < best.seconds
                ):
                    best, tried, slow = plan, tried - names, self._slow_names(plan)
        if best is not self.opened:
            self.known.append(best)

    def _slow_names(self, plan: TimedPlan) -> frozenset[str]:
        """Return the expressions of the segments whose parts may save enough: these move at least as many bytes."""
        rough, least = seconds_by_bytes(plan.segmented, self.model), DISTINCT * plan.seconds
        slow = (
            group.names for group, seconds, by_bytes in zip(plan.segmented.groups, plan.times, rough, strict=True)
            if seconds - by_bytes > least
        )
        return frozenset(name for names in slow for name in names)

    def times(self, segmented: SegmentedFusion, *, limited: bool = True) -> tuple[float, ...]:
        """Return the predicted seconds of each segment: as scheduled, or else by bytes and arithmetic."""
        by_bytes = seconds_by_bytes(segmented, self.model)
        if self.clock is None:
            return tuple(by_bytes)
        scheduled = self.clock.seconds(segmented, limited=limited)
        return tuple(
            UNKNOWN * rough if exact is None else exact for rough, exact in zip(by_bytes, scheduled, strict=True)
        )

    @property
    def _ways(self) -> list[tuple[str, SegmenterOptions]]:
        """Ways to treat chains: as the options say; stored, if they are expensive; with all that needs no tensor."""
        ways = [
            ("bottom-up", self.options),
            ("stored chains", replace(self.options, forward_inputs=False, forward_factories=frozenset())),
        ]
        factories = {expr.op.name for expr in self.fusion.tensor_exprs if expr.kind is OpKind.FACTORY}
        if factories - self.options.forward_factories:
            ways.append(("recomputed factories", replace(self.options, forward_factories=frozenset(FACTORIES))))
        return ways

    def store_tables(self) -> None:
        """Add the plan that stores the tables which the best plan's kernels compute for each element."""
        space, before = self._space()
        if space.units:
            self._take_tables(space, before)

    def improve(self) -> None:
        """Look for faster plans by merging segments, moving expressions and splitting slow kernels."""
        space, before = self._space()
        if not space.units:
            return
        self._take_tables(space, before)
        if self.clock and self.is_limited:
            self._split(space, before)
        for number in range(ROUNDS if self.clock else 1):
            seeds = self._plans_of(space)
            corrected = [space.correct(plan.segmented, plan.times) for plan in seeds] if self.clock else []
            if (number and not any(corrected)) or self.budget.is_late:
                break
            partition = self._search_partition(space, seeds, LATER_CHANGES if number else CHANGES_PER_UNIT)
            if not self._take_partition(space, list(partition.segments), before):
                break
        if self.clock:
            self._split(space, before)

    def _space(self) -> tuple[TimedSpace, list[Attempt]]:
        """Return the space of partitions, and the attempts that write the fusion as its segments compute it.

        Segments repeat the chains with which a bottom-up plan is fastest.
        """
        (_, options), _ = min(zip(self._ways, self.known, strict=False), key=lambda way: way[1].seconds)
        plain = replace(options, welford=False, privatize=False)
        written = as_bottom_up_writes_it(self.fusion, self.closed, self.options)
        before: list[Attempt] = []
        while True:
            try:
                before.append(next(written))
            except StopIteration as stop:
                fusion: Fusion = stop.value
                break
        chains = tuple(forwarded_chains(fusion, plain))
        space = TimedSpace(fusion, self.rationed, plain, self.model, chains, is_limited=self.is_limited)
        return space, before

    def ask_again_for_one(self) -> None:
        """Look for the plan of one kernel in time of its own, if the search had no time for the answer."""
        is_late = isinstance(self.rationed, RationedSchedulers) and bool(self.rationed.ended)
        saved = self.best.seconds - self._least
        if self.options.search_calls is None or len(self.best.segmented.groups) == 1 or not is_late:
            return
        budget = Budget(states=self.options.search_states, seconds=self.options.search_seconds)
        budget.limit(SHARE_OF_ONE / OF_ONE * self.options.search_calls * saved)
        self.budget, self.rationed = budget, RationedSchedulers(self.oracle, self.closed, budget.states, budget)
        plans = list(self.known)
        self._take_whole()
        self.known = [*plans, *map(self._as_scheduled, self.known[len(plans) :])]

    def _take_whole(self) -> None:
        """Make the plan of one kernel known, if there is one, and that which stores the tables of the best plan.

        One question answers whether there is one. Pairs may not lead to it, because kernels in between store many
        tensors.
        """
        space, before = self._space()
        if not space.units or self.budget.is_late:
            return
        if space.is_legal(space.all, space.copies(space.all)):
            whole = space
            for number in bits(space.copies(space.all)):
                whole = whole.without_reads(number)  # a chain that is stored is another kernel
            self._take_partition(whole, [space.all], before)
        self._take_tables(space, before)

    def merge(self) -> None:
        """Add the plan that merges of the best plan's segments lead to: each saves a launch, and takes one question."""
        space, before = self._space()
        ranked = sorted(self.known, key=lambda plan: plan.seconds)
        plans = (plan.segmented for plan in ranked if space.has(plan.segmented) and not self.budget.is_late)
        start = next(filter(None, (partition_of(space, plan) for plan in plans)), None)
        if start is not None:
            self._exhaust(merges(start, most=MOST_BESIDE))
            self._take_partition(space, list(start.segments), before)

    def _take_partition(self, space: TimedSpace, segments: Sequence[int], before: Sequence[Attempt]) -> bool:
        """Make the plan of a partition known; return whether it is one."""
        order = in_order(space, segments)
        attempts = None if order is None else attempts_of(space, order, PHASE)
        if attempts is not None:
            self._take((*before, *attempts))
        return attempts is not None

    def _take_tables(self, space: TimedSpace, before: Sequence[Attempt]) -> None:
        """Make the plan known that stores the tables which segments of the best plan compute, if there are any.

        The price of a segment counts each expression once, but a kernel computes the elements of a small tensor, such
        as the cosines of a rotation, wherever they are read.
        """
        best, last = self._best_of(space), list[int]()
        masks = [mask for group in best.segmented.groups if (mask := space.mask(group.names))] if best else []
        for with_parts in (False, True):
            if self.budget.is_late:
                return
            parts = [part for mask in masks for part in with_tables(space, mask, with_parts=with_parts)]
            if len(parts) > len(masks) and sum(parts) == space.all and parts != last:
                self._take_partition(space, parts, before)
            last = parts

    def _split(self, space: TimedSpace, before: Sequence[Attempt]) -> None:
        """Split slow kernels of the best plan where data change places or are summed up, as long as that saves time.

        Bytes do not say where: the accesses of such a kernel are slow because something before a tensor and something
        after it go through memory in different orders.
        """
        while self.splits and not self.budget.is_late:
            best = self._best_of(space)
            if best is None:
                return
            masks = [space.mask(group.names) for group in best.segmented.groups]
            rough = seconds_by_bytes(best.segmented, self.model)
            slow = sorted(
                (by_bytes - seconds, mask) for mask, seconds, by_bytes in zip(masks, best.times, rough, strict=True)
                if mask and seconds * NEAR > by_bytes + self.model.launch  # of one more kernel
            )
            others = {mask: [other for other in masks if other and other != mask] for _, mask in slow}
            candidates = (
                [*others[mask], *parts] for _, mask in slow for parts in parts_of(space, mask)
                if not self.budget.is_late and all(legal_price(space, part) is not None for part in parts)
            )
            for segments in islice(candidates, self.splits):
                self.splits -= 1
                if self._take_partition(space, segments, before) and self._best_of(space) is self.known[-1]:
                    break
            else:
                return

    def _search_partition(self, space: TimedSpace, seeds: Sequence[TimedPlan], changes: int) -> Partition:
        """Return the best partition that merges and small changes lead to from known plans and from nothing."""
        starts = [start for plan in seeds if (start := partition_of(space, plan.segmented)) is not None]
        starts.append(min(starts, key=lambda start: start.cost).copied() if starts else Partition.single(space))
        self._exhaust(runs(starts[-1]))
        starts.append(Partition.single(space))
        self._exhaust(merges(starts[-1], most=MOST_BESIDE))
        best = min(starts, key=lambda start: start.cost)
        self._exhaust(merges(best, most=MOST_BESIDE))
        rounds = min(self.budget.states // STATES_PER_CHANGE, changes * len(space.units))
        anyone = [0] * len(space.units)  # no two units are known to exclude each other
        best = anneal(best, anyone, rounds, lambda: self.budget.is_late)
        self._exhaust(merges(best, most=MOST_BESIDE))
        return best

    def _exhaust(self, attempts: Iterator[object]) -> None:
        for _ in attempts:
            if self.budget.is_late:
                return

    def recompute(self) -> None:
        """Recompute boundaries of the fastest plan, and of the fastest within nvFuser's rules, if there is one."""
        within = [plan for plan in self.known if not plan.is_beyond]
        recomputation = Recomputation(
            self._beside() if self.is_limited else self.rationed, self.model, self.times, self.budget,
            self.options.segment_set, is_limited=self.is_limited,
        )
        for start in (self.best, *sorted(within, key=lambda plan: plan.seconds)[:1]):
            if (key := start.kernels) not in self.recomputed:
                self.recomputed.add(key)
                if attempts := recomputation.improve(start):
                    self._take(attempts)

    def checked(self) -> TimedPlan:
        """Return the fastest of the best few plans and of bottom-up's, all compared by times as scheduled.

        Kernels that were too expensive to lower during the search are lowered now, as for a run. The bottom-up
        plan remains unless another one saves more than the clock's error, and so does a plan that moves fewer bytes. A
        plan that saves time whatever that error is replaces one that moves as many bytes or more.
        """
        first, *others = self.known
        ranked = sorted(others, key=lambda plan: plan.seconds)
        near = [plan for plan in ranked if plan.seconds <= (1 + DISTINCT) * ranked[0].seconds]
        # A plan with fewer bytes is preferred below, so one that the clock cannot tell from the best is compared too.
        fewest = min(near, key=lambda plan: (plan.moved, plan.seconds), default=None)
        if self.clock is None or not ranked:
            return min((first, *ranked), key=lambda plan: plan.seconds)
        chosen = self._as_scheduled(first)
        best = self._time_first(ranked, chosen, self.clock)
        if fewest is not None and all(plan.kernels != fewest.kernels for plan in best):
            best.append(self._as_scheduled(fewest))
        for plan in sorted(best, key=lambda plan: (plan.moved, plan.seconds)):
            if is_faster(plan, chosen, self.clock, self.model):
                chosen = plan
        return chosen

    def _time_first(self, ranked: Sequence[TimedPlan], first: TimedPlan, clock: Clock) -> list[TimedPlan]:
        """Return the first of several ranked plans with the times of all their kernels as scheduled.

        More than two are timed if the times as scheduled exceed the prices by which other plans were ranked, or if none
        saves enough to replace the bottom-up plan. A search in limited time has lowered all kernels already.
        """
        timed = list[TimedPlan]()
        distinct = {plan.kernels: plan for plan in reversed(ranked)}
        for plan in sorted(distinct.values(), key=lambda plan: plan.seconds):
            if len(timed) >= MOST_CHECKED:
                replaces = any(is_faster(other, first, clock, self.model) for other in timed)
                is_best = min(other.seconds for other in timed) <= plan.seconds
                if (replaces and is_best) or plan.seconds >= first.seconds:
                    break
                if len(timed) >= MOST_TIMED and not self.is_limited:
                    break
            timed.append(self._as_scheduled(plan))
        return timed

    def _as_scheduled(self, plan: TimedPlan) -> TimedPlan:
        return replace(plan, times=self.times(plan.segmented, limited=False))

"""The cheapest legal partition, and for any plan the proof of how far it is from that.

Two spaces are searched: partitions in which every expression is in one segment, and those in which forwarded chains are
copied into their readers, as nvFuser does. The steps for each: bounds that need no search; better plans by small
changes; division into parts that no segment can span, each a separate problem; contraction of the expressions that
every cheaper plan has together; A* over the rest.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.traffic import CostModel, Traffic, may_view, model_of
from fuser_lab.ir import Fusion
from fuser_lab.segmentation.bottom_up import bottom_up
from fuser_lab.segmentation.bounds import (
    Bound,
    clique_bound,
    lifted_bound,
    with_paths,
    with_views_apart,
)
from fuser_lab.segmentation.certificate import Certificate, Proof, SegmentCost, Term, TermKind
from fuser_lab.segmentation.contraction import bound, contract
from fuser_lab.segmentation.events import Attempt, DecisionLog
from fuser_lab.segmentation.forwarding import Chain, forwarded_chains
from fuser_lab.segmentation.graph import Idle, SegmentedFusion
from fuser_lab.segmentation.hints import has_hints, is_hint, refused_by_hint
from fuser_lab.segmentation.ideals import Budget, SearchResult, search
from fuser_lab.segmentation.local_search import Partition, anneal, merges
from fuser_lab.segmentation.missed import Missed, missed_merges
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.partition_attempts import as_bottom_up_writes_it, attempts_of, neighbours_apart
from fuser_lab.segmentation.privatization import without
from fuser_lab.segmentation.replay import replay
from fuser_lab.segmentation.space import Conflicts, Space, in_order, needed_by
from fuser_lab.segmentation.top_down import top_down

Parts = tuple[int, ...]
STEPS = 6  # a limit grows by one sixth from one search to the next
STATES_PER_CHANGE = 20  # states of the budget per small change of a known plan
CHANGES_PER_UNIT = 100  # small changes per unit at most
MOST_BLOCKS = 60  # blocks up to which a search should finish; with more, it gets a tenth of the budget
LEAST_GAIN = 1.01  # minimum gain of an unfinished search over the terms that need none


def segment_costs(segmented: SegmentedFusion, model: CostModel, views: AbstractSet[int]) -> tuple[SegmentCost, ...]:
    """Return the cost of each segment of a plan; ``views`` are the numbers of those that only make views."""
    costs = []
    for number, group in enumerate(segmented.groups):
        moved = Traffic(read=0, written=0) if number in views else group.traffic
        name = group.scheduler.value if group.scheduler else ""
        launch = model.launch_bytes if group.exprs and number not in views else 0
        costs.append(
            SegmentCost(exprs=group.names, scheduler=name, read=moved.read, written=moved.written, launch=launch),
        )
    return tuple(costs)


def plan_cost(segmented: SegmentedFusion, model: CostModel, idle: Idle | None = None) -> int:
    """Return the cost of a plan, in bytes."""
    views = frozenset[int]() if idle is None else idle(segmented)
    return sum(segment.cost for segment in segment_costs(segmented, model, views))


def optimal(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, budget: Budget | None = None,
    idle: Idle | None = None,
) -> Iterator[Attempt]:
    """Yield the attempts that make the cheapest plan found, then a refusal for each pair of neighbours in it."""
    fusion = yield from as_bottom_up_writes_it(fusion, oracle, options)
    plain = replace(options, welford=False, privatize=False)
    finder = _Finder(fusion, oracle, plain, model_of(oracle), budget or budget_of(options), idle)
    finder.seed()
    finder.prove()
    best = finder.best
    if options.privatize:
        # The search does not consider replicas, but its result must not be worse than a plan that has some.
        best = min([best, *finder.others(options)], key=lambda plan: plan.cost)
    yield from best.attempts
    yield from neighbours_apart(best.segmented, oracle, options, "optimal")


def budget_of(options: SegmenterOptions) -> Budget:
    """Return the limits that the options set for a search."""
    return Budget(states=options.search_states, seconds=options.search_seconds)


def certify(
    segmented: SegmentedFusion,
    oracle: SchedulerOracle,
    options: SegmenterOptions | None = None,
    budget: Budget | None = None,
    log: DecisionLog | None = None,
    idle: Idle | None = None,
) -> Certificate:
    """Return the certificate of a plan, however it was made.

    Parameters
    ----------
    segmented
        The plan.
    oracle
        The schedulers.
    options
        The plan's options, which determine what is recomputed and how hints are read.
    budget
        Limits of the search if simple terms do not reach the plan's cost; those of the options by default.
    log
        The decisions that produced the plan, which explain why it misses what a cheaper plan does.
    idle
        Returns the segments of a plan that only make views and cost nothing; by default, every segment costs.
    """
    chosen = replace(options or SegmenterOptions(), welford=False, privatize=False)
    if any(refused_by_hint(group.candidate, chosen) for group in segmented.groups):
        # If an edit overruled a hint, the plan is compared with plans that ignore hints.
        chosen = replace(chosen, segment_set=SegmentSetMeaning.IGNORE)
    model = model_of(oracle)
    finder = _Finder(segmented.fusion, oracle, chosen, model, budget or budget_of(chosen), idle)
    views = None if idle is None else tuple(sorted(idle(segmented)))
    segments = segment_costs(segmented, model, frozenset(views or ()))
    obstacle = finder.obstacle(segmented)
    if not obstacle:
        finder.add(segmented)
    proofs = finder.prove()
    least_cost = finder.best.cost
    missed: tuple[Missed, ...] = ()
    if not obstacle and least_cost < sum(segment.cost for segment in segments):
        best = finder.best.segmented
        missed = missed_merges(segmented, best, model, log or DecisionLog(), oracle, chosen.segment_set, idle)
    if segmented.replicas:
        whole = without(segmented.fusion, segmented.replicas)
        unmerged = _Finder(whole, oracle, chosen, model, finder.budget, idle)
        merged = tuple(sorted(segmented.replicas.items()))
        proofs += tuple(replace(proof, merged=merged) for proof in unmerged.prove())
        if unmerged.best.cost < least_cost:
            least_cost, missed = unmerged.best.cost, ()
    ignoring = None
    if has_hints(segmented.fusion, chosen):
        plain = replace(chosen, segment_set=SegmentSetMeaning.IGNORE)
        unhinted = _Finder(segmented.fusion, oracle, plain, model, finder.budget, idle).others(plain)
        cheapest = min((plan.cost for plan in unhinted), default=least_cost)
        ignoring = cheapest if cheapest < least_cost else None
    return Certificate(
        model=model,
        segment_set=chosen.segment_set,
        segments=segments,
        known=least_cost,
        proofs=proofs,
        obstacle=obstacle,
        missed=missed,
        hints=tuple(expr.name for expr in segmented.fusion.tensor_exprs if is_hint(expr)),
        ignoring=ignoring,
        views=views,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricedPlan:
    """A plan that is legal under the model, with its cost and the attempts that make it."""

    segmented: SegmentedFusion
    cost: int
    attempts: tuple[Attempt, ...] = ()


def _unscheduled_segment(segmented: SegmentedFusion) -> str:
    """Return which segment of several expressions no scheduler accepts, or nothing."""
    for index, group in enumerate(segmented.groups):
        tensor_exprs = [expr for expr in group.exprs if expr.tensor_outputs]
        if group.scheduler is None and len(tensor_exprs) > 1:
            return f"no scheduler accepts segment {index} ({', '.join(group.names)})"
    return ""


@dataclass(slots=True)
class _Finder:
    """Searches all spaces for the best plan; every plan found tightens the limit."""

    fusion: Fusion
    oracle: SchedulerOracle
    options: SegmenterOptions
    model: CostModel
    budget: Budget
    idle: Idle | None = None
    known: list[_PricedPlan] = field(default_factory=list)
    _seeded: bool = False

    @property
    def best(self) -> _PricedPlan:
        """The cheapest plan so far; on a tie the first."""
        return min(self.known, key=lambda plan: plan.cost)

    def add(self, segmented: SegmentedFusion, attempts: Sequence[Attempt] = ()) -> None:
        """Add a plan."""
        cost = plan_cost(segmented, self.model, self.idle)
        self.known.append(_PricedPlan(segmented=segmented, cost=cost, attempts=tuple(attempts)))

    def seed(self) -> None:
        """Add the plans of the other strategies, each with and without forwarding."""
        self._seeded = True
        plain = replace(self.options, forward_inputs=False, forward_factories=frozenset())
        for options in (self.options, plain) if self.chains else (self.options,):
            for plan in self.others(options):
                if not self.obstacle(plan.segmented):
                    self.known.append(plan)

    def others(self, options: SegmenterOptions) -> Iterator[_PricedPlan]:
        """Yield the plans of the other strategies that cut whole fusions, which are fast compared with a search."""
        for word, strategy in (("bottom-up", bottom_up), ("top-down", top_down)):
            attempts = tuple(
                replace(attempt, phase=f"{word}: {attempt.phase}")
                for attempt in strategy(self.fusion, self.oracle, options)
            )
            segmented = replay(self.fusion, attempts, self.oracle)
            if not _unscheduled_segment(segmented):
                cost = plan_cost(segmented, self.model, self.idle)
                yield _PricedPlan(segmented=segmented, cost=cost, attempts=attempts)

    @property
    def chains(self) -> tuple[Chain, ...]:
        """Chains that may be recomputed by their readers."""
        return tuple(forwarded_chains(self.fusion, self.options))

    def obstacle(self, segmented: SegmentedFusion) -> str:
        """Return why the model cannot compare a plan with others, or an empty text."""
        unscheduled = _unscheduled_segment(segmented)
        if unscheduled:
            return unscheduled
        names = {name for chain in self.chains for name in chain.names}
        alien = [name for name in sorted(segmented.recomputed) if name not in names]
        if alien:
            return f"{', '.join(alien)} is computed more than once, but is not a forwarded chain"
        for chain in self.chains:
            if 0 < len(segmented.recomputed.intersection(chain.names)) < len(chain.exprs):
                return f"only a part of the chain {', '.join(chain.names)} is recomputed"
        return ""

    def prove(self) -> tuple[Proof, ...]:
        """Return a proof for each space; plans found on the way are added.

        If segments of views are free, proofs follow for the plans with such segments.
        """
        spaces: dict[frozenset[str], tuple[Chain, ...]] = {frozenset(): ()}
        spaces[frozenset(name for chain in self.chains for name in chain.names)] = self.chains
        for plan in self.known:
            names = plan.segmented.recomputed
            spaces[names] = tuple(chain for chain in self.chains if names.issuperset(chain.names))
        problems = []
        for chains in spaces.values():
            space = Space(self.fusion, self.oracle, self.options, self.model, chains)
            conflicts = Conflicts(space, self._accepted_sets(space), self.budget.ended)
            base = clique_bound(space, conflicts)
            problems.append((conflicts, base, _without_search(space, conflicts, base)))
        if not self._seeded and not (self.known and all(b.cost >= self.best.cost for *_, b in problems)):
            self.seed()
        for conflicts, _, strong in problems:
            if min(b.cost for *_, b in problems) < self.best.cost:
                self._improve(conflicts, strong.cost)
        problems.sort(key=lambda problem: problem[2].cost)
        proofs = []
        for conflicts, base, strong in problems:
            proof = Proof(recomputed=tuple(chain.names for chain in conflicts.space.chains), terms=strong.terms)
            proofs.append(self._search_proof(conflicts, base, proof))
        if self.idle is not None and any(map(may_view, self.fusion.tensor_exprs)):
            proofs += [self._with_free_views(conflicts) for conflicts, *_ in problems]
        return tuple(proofs)

    def _search_proof(self, conflicts: Conflicts, base: Bound, proof: Proof) -> Proof:
        """Return the proof that a search gives if it is better than a proof without one."""
        if proof.bound >= self.best.cost:
            return proof
        searched = self._explore(conflicts, base)
        # A checker has to repeat the search for a search term, so negligible terms are not worth adding.
        is_better = searched.bound >= self.best.cost or searched.bound > LEAST_GAIN * proof.bound
        return searched if is_better else proof

    def _with_free_views(self, conflicts: Conflicts) -> Proof:
        """Return a proof for the plans of a space, whichever of their segments only make views."""
        chains = conflicts.space.chains
        space = Space(self.fusion, self.oracle, self.options, self.model, chains, free_views=True)
        within = conflicts.within(space)
        base = clique_bound(space, within)
        bounds = [_without_search(space, within, base), with_views_apart(space, base)]
        strong = max(bounds, key=lambda bound: bound.cost)
        proof = Proof(recomputed=tuple(chain.names for chain in chains), terms=strong.terms)
        return replace(self._search_proof(within, base, proof), free_views=True)

    def _accepted_sets(self, space: Space) -> list[int]:
        """Return the sets of a space that schedulers accept in known plans."""
        groups = [group for plan in self.known for group in plan.segmented.groups]
        return [space.mask(group.names) for group in groups if group.scheduler is not None]

    def _explore(self, conflicts: Conflicts, base: Bound) -> Proof:
        space = conflicts.space
        names = tuple(chain.names for chain in space.chains)
        parts = conflicts.parts()
        best: Proof | None = None
        while True:
            floors, plan = self._solve(conflicts, base, parts)
            extra = [
                _search_term(space, part, floor - share)
                for part, floor in floors.items()
                if floor > (share := part_share(space, base, part))
            ]
            proof = Proof(recomputed=names, terms=(*base.terms, *extra))
            best = proof if best is None or proof.bound > best.bound else best
            if plan is None or proof.bound >= self.best.cost:
                return best
            order = in_order(space, plan)
            if order is not None:
                self._realise(space, order)
                if proof.bound < self.best.cost:
                    self._store_or_copy(conflicts, base, parts, plan)
                return best
            # Parts solved separately may form a cycle; they are then one problem.
            parts = _joined_parts(space, parts, plan)
            if self.budget.is_spent:
                return best

    def _store_or_copy(
        self, conflicts: Conflicts, base: Bound, parts: Sequence[int], plan: Parts, decided: int = 0, paid: int = 0,
    ) -> None:
        """Look for better plans if a plan reads a chain whose storage the bound does not charge.

        Either some segment stores the chain, at a cost, or all of its readers contain copies: chains are decided one by
        one, in both ways. ``decided`` are the chains decided so far, ``paid`` is the cost of storing them.
        """
        space = conflicts.space
        charged = {term.subject for term in base.terms if term.kind is TermKind.STORED}
        free = sum(1 << n for n, chain in enumerate(space.chains) if chain.end.name not in charged)
        open_chains = space.stored_in(plan) & free & ~decided
        if not open_chains:
            return
        number = next(bits(open_chains))
        for where, cost in ((conflicts, space.stored_cost(number)), (conflicts.within(space.without_reads(number)), 0)):
            _, segments = self._solve(where, base, parts, paid + cost)
            order = None if segments is None else in_order(where.space, segments)
            if segments is not None and order is not None:
                self._realise(where.space, order)
                self._store_or_copy(where, base, parts, segments, decided | 1 << number, paid + cost)

    def _solve(
        self, conflicts: Conflicts, base: Bound, parts: Sequence[int], more: int = 0,
    ) -> tuple[dict[int, int], Parts | None]:
        """Return a lower bound for each part and, if all bounds are reached, the segments.

        ``more`` is what every plan pays besides the parts and the bound's stored chains.
        """
        space = conflicts.space
        floors = {part: part_share(space, base, part) for part in parts}
        plan: list[int] = []
        complete = True
        seeds = [seed for seed_plan in self.known if (seed := self._seed_in(space, seed_plan)) is not None]
        limits = {}
        for part in parts:
            costs = [(sum(cost for m, cost in seed.items() if m & part), seed) for seed in seeds]
            limits[part] = min(costs, key=lambda entry: entry[0], default=None)
        for part in sorted(parts, key=int.bit_count):
            total = sum(floors.values()) + base.stored + more
            if total >= self.best.cost:
                return floors, None
            limit = self.best.cost - total + floors[part]
            seeded = limits[part]
            if seeded is not None and seeded[0] <= limit:
                limit = seeded[0]
            result = _deepen(conflicts, part, limit, self.budget)
            floors[part] = max(floors[part], result.bound)
            if result.segments is not None:
                plan.extend(result.segments)
            elif result.bound >= limit and seeded is not None and seeded[0] == limit:
                plan.extend(m for m in seeded[1] if m & part)
            else:
                complete = False
        return floors, tuple(plan) if complete else None

    def _seed_in(self, space: Space, plan: _PricedPlan) -> dict[int, int] | None:
        """Return a known plan's segments with their costs, if it belongs to a space."""
        if plan.segmented.recomputed != frozenset(n for chain in space.chains for n in chain.names):
            return None
        costs = {}
        for group in plan.segmented.groups:
            mask = space.mask(group.names)
            if mask:
                way = next((w for w in space.ways(mask) if space.is_legal(mask, w[1])), None)
                if way is None:
                    return None
                costs[mask] = space.price(mask) + way[0]
        return costs

    def _improve(self, conflicts: Conflicts, floor: int) -> None:
        """Look for better plans of a space by small changes, until one reaches the minimum possible cost.

        It starts from the best known plan, and from the greedy merges of single expressions.
        """
        space = conflicts.space
        seeds = [seed for plan in self.known if (seed := self._seed_in(space, plan)) is not None]
        greedy = Partition.single(space)
        self._exhaust(merges(greedy))
        best = min([*(Partition(space, dict(seed)) for seed in seeds), greedy], key=lambda each: each.cost)
        self._exhaust(merges(best, conflicts.of))
        if best.cost > floor:
            rounds = min(self.budget.states // STATES_PER_CHANGE, CHANGES_PER_UNIT * len(space.units))
            best = anneal(best, conflicts.of, rounds, lambda: self.budget.is_late)
            self._exhaust(merges(best, conflicts.of))
        if all(best.cost < sum(seed.values()) for seed in seeds):
            order = in_order(space, list(best.segments))
            assert order is not None
            self._realise(space, order)

    def _exhaust(self, attempts: Iterator[object]) -> None:
        for _ in attempts:
            if self.budget.is_late:
                return

    def _realise(self, space: Space, segments: Sequence[int]) -> None:
        """Add the plan of these segments, if every chain can be provided."""
        attempts = attempts_of(space, segments, "optimal")
        if attempts is not None:
            self.add(replay(self.fusion, attempts, self.oracle), attempts)


def _without_search(space: Space, conflicts: Conflicts, base: Bound) -> Bound:
    """Return the best bound from simple terms; on a tie the first, which is the simplest."""
    if not any(conflicts.of):
        return base  # nothing has to cross
    lifted = lifted_bound(space, conflicts, base)
    bounds = [base, lifted, with_paths(space, conflicts, base), with_paths(space, conflicts, lifted)]
    return max(bounds, key=lambda bound: bound.cost)


def part_share(space: Space, base: Bound, part: int) -> int:
    """Return the part of the clique bound that the segments of a part pay; with stored chains, all of it."""
    total = space.model.launch_bytes * max((base.launches & part).bit_count(), 1 if part & space.launching else 0)
    for flow, clique in zip(space.flows, base.cliques, strict=True):
        count = (clique & part).bit_count()
        if flow.producer & part:
            total += flow.bytes * (count - 1) + flow.stored * (flow.kept or clique.bit_count() > 1)
        elif flow.readers & part:
            total += flow.bytes * max(count, 1)
    return total


def _deepen(conflicts: Conflicts, part: int, limit: int, budget: Budget) -> SearchResult:
    """Return the result of searching a part, with increasing limits until one is enough.

    A low limit contracts more and leaves less to search; the last search takes much longer than the earlier ones.
    """
    blocks = contract(conflicts, part, limit)
    states, lowest = 0, min(bound(blocks), limit)
    if len(blocks.members) > MOST_BLOCKS:
        return search(blocks, limit, budget.share(10))
    while True:
        here = min(limit, lowest + max(lowest // STEPS, 1))
        result = search(contract(conflicts, part, here), here, budget)
        states += result.states
        if result.segments is not None or result.bound < here or here == limit:
            return SearchResult(bound=max(result.bound, lowest), segments=result.segments, states=states)
        lowest = here


def _search_term(space: Space, part: int, extra: int) -> Term:
    names = space.names(part)
    shown = ", ".join(names if len(names) <= 8 else (*names[:5], "...", *names[-2:]))
    text = (
        f"an exhaustive search shows that every partition of {shown}{space.while_kept} costs this much more in bytes "
        "or launches"
    )
    return Term(kind=TermKind.SEARCH, subject="", members=names, cost=extra, text=text)


def _joined_parts(space: Space, parts: Sequence[int], segments: Sequence[int]) -> list[int]:
    """Return parts, joined where their segments wait for each other in a cycle."""
    left, done = list(segments), 0
    while ready := [m for m in left if not needed_by(space, m) & ~done]:
        left = [m for m in left if m not in ready]
        done |= sum(ready)
    stuck = sum(left)
    inside = [part for part in parts if part & stuck]
    return [*(part for part in parts if not part & stuck), sum(inside)]

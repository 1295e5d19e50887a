"""Effects of order: of the ops on the greedy segmenter's plan, and of the segments on peak memory."""

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from fuser_lab.arguments import instance, takes, whole
from fuser_lab.ir import Expr, Fusion
from fuser_lab.plan import Plan
from fuser_lab.report.points_plot import Axis, Point, points_svg
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, plural, seconds_label, three_digits
from fuser_lab.report.view import View
from fuser_lab.search.presegmentation import bytes_moved

_GIVEN: Final = "as recorded"
_MOST_ORDERS: Final = 10_000  # random orders of segments per call


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPlan:
    """One of the plans: how many orders of the ops lead to it, its segments, and its cost.

    ``moved`` is the bytes that its segments read and write, ``seconds`` the cost of bytes and launches by the target's
    data sheet; ``is_given`` says whether the recorded order leads to it.
    """

    plan: Plan
    orders: int
    moved: int
    seconds: float
    is_given: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OrderSensitivity(View):
    """The plans of a segmenter for one definition with its ops in several orders, the cheapest first."""

    what: ClassVar[str] = "a table of orders"
    rows: tuple[OrderedPlan, ...]
    tried: int
    distinct: int

    @property
    def spread(self) -> float:
        """Ratio of the most and the fewest bytes that a plan moves; 1 if all plans move the same number."""
        moved = [row.moved for row in self.rows]
        return max(moved) / min(moved) if min(moved) else 1.0

    @property
    def note(self) -> str:
        """How many orders lead to how many plans."""
        moved = next(row.moved for row in self.rows if row.is_given)
        best = min(row.moved for row in self.rows)
        share = f"{100 * (moved / best - 1):.3g} % more than" if best and moved > best else "as few as"
        return (
            f"{plural(self.distinct, 'distinct order')} of {self.tried} tried and the given one lead to "
            f"{plural(len(self.rows), 'plan')}; the given order moves {share} the best one, the worst one "
            f"{three_digits(self.spread)} times as much."
        )

    def svg(self) -> str:
        """Return the picture as static SVG: bytes over segments, one mark per plan, filled for the given order."""
        points = [
            Point(
                x=len(row.plan.segments), y=row.moved, full=row.is_given, label=f"{row.orders} x",
                title=f"{plural(row.orders, 'order')}: {len(row.plan.segments)} segments, {bytes_label(row.moved)}",
            )
            for row in self.rows
        ]
        counts = sorted({len(row.plan.segments) for row in self.rows})
        across = Axis(name="segments", written=str, ticks=tuple((float(n), str(n)) for n in counts))
        return points_svg(points, across, Axis(name="bytes moved", written=bytes_label), "Plans by order of the ops")

    def _table(self) -> Table:
        rows = tuple(
            (
                str(n), str(row.orders), str(len(row.plan.segments)), _schedulers(row.plan), bytes_label(row.moved),
                seconds_label(row.seconds), _GIVEN if row.is_given else "",
            )
            for n, row in enumerate(self.rows)
        )
        columns = ("plan", "orders", "segments", "schedulers", "moved", "predicted", "")
        strong = frozenset(n for n, row in enumerate(self.rows) if row.is_given)
        return Table(columns=columns, rows=rows, numeric=frozenset({*columns[1:3], *columns[4:6]}), strong=strong)

    def _records(self) -> Records:
        columns = ("plan", "orders", "segments", "schedulers", "moved [bytes]", "predicted [s]", "as recorded")
        rows = tuple(
            (n, row.orders, len(row.plan.segments), _schedulers(row.plan), row.moved, row.seconds, row.is_given)
            for n, row in enumerate(self.rows)
        )
        return Records(columns=columns, rows=rows)


@takes(plan=instance(Plan), count=whole(1, _MOST_ORDERS), seed=whole(0))
def order_sensitivity(plan: Plan, count: int = 50, *, seed: int = 0) -> OrderSensitivity:
    """Return the plans of the plan's strategy for its definition with the ops in random orders.

    Each order is topological; what the definition computes is the same. Greedy segmenters visit ops in the order in
    which they are recorded, so another order may give another plan. Edits of the plan are left out.

    Parameters
    ----------
    plan
        Its definition, strategy, options and target.
    count
        Number of random orders, 10,000 at most.
    seed
        Seed of the random numbers; equal seeds give equal orders.
    """
    generator = random.Random(seed)  # noqa: S311 - no secret depends on it
    definition = plan.definition
    recorded_plan = plan.planned_for(definition, plan.method, plan.options)
    orders: dict[tuple[str, ...], Fusion] = {tuple(e.name for e in definition.exprs): definition}
    for _ in range(count):
        exprs = _shuffle(definition, generator)
        orders.setdefault(tuple(e.name for e in exprs), replace(definition, exprs=exprs))
    plans = [recorded_plan, *(plan.planned_for(order, plan.method, plan.options) for order in [*orders.values()][1:])]
    keys = [_partition(reordered) for reordered in plans]
    counts = Counter(keys)
    first = dict(zip(reversed(keys), reversed(plans), strict=True))
    rows = []
    for key, count_of in counts.items():
        first_plan, moved = first[key], bytes_moved(first[key])
        seconds = first_plan.predicted_time().seconds
        rows.append(
            OrderedPlan(plan=first_plan, orders=count_of, moved=moved, seconds=seconds, is_given=key == keys[0]),
        )
    ordered = tuple(sorted(rows, key=lambda row: (row.seconds, -row.orders)))
    return OrderSensitivity(rows=ordered, tried=count, distinct=len(orders))


def _shuffle(fusion: Fusion, generator: random.Random) -> tuple[Expr, ...]:
    """Return the expressions in a random topological order, in which every ready one is equally likely to be next."""
    missing = {e.name: sum(v in fusion.producers for v in dict.fromkeys(e.inputs)) for e in fusion.exprs}
    ready = [e for e in fusion.exprs if not missing[e.name]]
    order: list[Expr] = []
    while ready:
        expr = ready.pop(generator.randrange(len(ready)))
        order.append(expr)
        for out in dict.fromkeys(expr.outputs):
            for user in fusion.users.get(out, ()):
                missing[user.name] -= 1
                if not missing[user.name]:
                    ready.append(user)
    return tuple(order)


def _partition(plan: Plan) -> frozenset[tuple[str, frozenset[str], tuple[int, int]]]:
    """Return a key of plans of one definition: the tensors that each segment computes, and its bytes.

    Passes name the tensors that they add in the order of the ops, so these names do not count.
    """
    tensors = plan.definition.tensors
    made = [frozenset(t.name for e in s.exprs for t in e.tensor_outputs if t.name in tensors) for s in plan.segments]
    return frozenset(
        (str(segment.scheduler), names, (segment.bytes_in, segment.bytes_out))
        for segment, names in zip(plan.segments, made, strict=True)
    )


def _schedulers(plan: Plan) -> str:
    counts = Counter(s.scheduler.value if s.scheduler else "none" for s in plan.segments)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOrder:
    """One order of the segments with its peak memory in bytes, including inputs."""

    name: str
    order: tuple[int, ...]
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryOrders(View):
    """Peak memory over orders of a plan's segments: the plan's own, the best one found, and random ones.

    ``is_least`` says whether no order has a smaller peak than ``best``; it is False if the search ended early.
    """

    what: ClassVar[str] = "a table of memory"
    given: MemoryOrder
    best: MemoryOrder
    sampled: tuple[MemoryOrder, ...]
    is_least: bool

    @property
    def note(self) -> str:
        """How much the best order saves."""
        saved = self.given.peak - self.best.peak
        beginning = "No order needs less than" if self.is_least else "The best order found needs"
        sentence = f"{beginning} {bytes_label(self.best.peak)}; the plan's own order needs "
        return sentence + (f"{bytes_label(saved)} more." if saved else "as much.")

    def svg(self) -> str:
        """Return the picture as static SVG: peaks of the random orders, sorted, between the best and the given one."""
        peaks = sorted(sample.peak for sample in self.sampled)
        points = [Point(x=n, y=peak, full=False) for n, peak in enumerate(peaks, 1)]
        points.append(Point(x=0, y=self.best.peak, label="best", hue=2))
        points.append(Point(x=len(peaks) + 1, y=self.given.peak, label="the plan's", hue=1))
        ticks = ((0.0, "best"), *(((1 + len(peaks)) / 2, f"{len(peaks)} random orders"),) * bool(peaks))
        across = Axis(name="order of the segments", written=str, ticks=ticks)
        return points_svg(points, across, Axis(name="peak memory", written=bytes_label), "Peak memory by order")

    def _rows(self) -> Sequence[MemoryOrder]:
        return (self.best, self.given, *sorted(self.sampled, key=lambda sample: sample.peak))

    def _table(self) -> Table:
        rows = tuple(
            (row.name, bytes_label(row.peak), three_digits(row.peak / self.best.peak) if self.best.peak else "",
             " ".join(f"S{n}" for n in row.order))
            for row in self._rows()
        )
        columns = ("order", "peak memory", "to the best", "segments")
        return Table(columns=columns, rows=rows, numeric=frozenset(columns[1:3]), strong=frozenset({0, 1}))

    def _records(self) -> Records:
        rows = tuple((row.name, row.peak, " ".join(map(str, row.order))) for row in self._rows())
        return Records(columns=("order", "peak memory [bytes]", "segments"), rows=rows)


@takes(plan=instance(Plan), count=whole(0, _MOST_ORDERS), seed=whole(0), states=whole(1))
def memory_orders(plan: Plan, count: int = 20, *, seed: int = 0, states: int = 20_000) -> MemoryOrders:
    """Return peak memory over orders of a plan's segments: its own, the best one, and random ones.

    The best order is a shortest path over the sets of segments that have run, with *max* in place of *plus* (Dijkstra
    1959). Inputs are alive throughout, results from the segment that writes them.

    Parameters
    ----------
    plan
        The plan.
    count
        Number of random orders, 10,000 at most.
    seed
        Seed of the random numbers.
    states
        Maximum number of sets of segments to visit; beyond it, another order may have a smaller peak.
    """
    alive = _Alive.of(plan)
    plan_order = tuple(range(len(plan.segments)))
    unchanged = MemoryOrder(name="the plan's", order=plan_order, peak=alive.peak(plan_order))
    best_order = alive.best(states)
    order = best_order if best_order is not None else plan_order
    generator = random.Random(seed)  # noqa: S311 - no secret depends on it
    orders = dict.fromkeys(alive.shuffle(generator) for _ in range(count))
    sampled = tuple(MemoryOrder(name=f"random {n}", order=o, peak=alive.peak(o)) for n, o in enumerate(orders))
    best = MemoryOrder(name="best", order=order, peak=alive.peak(order))
    if best_order is None:
        smallest = min((*sampled, unchanged), key=lambda sample: sample.peak)
        best = replace(smallest, name="best found")
    return MemoryOrders(given=unchanged, best=best, sampled=sampled, is_least=best_order is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alive:
    """The tensors between segments, with their writers, readers and bytes."""

    inputs: int
    sizes: Mapping[str, int]
    maker: Mapping[str, int]
    readers: Mapping[str, frozenset[int]]
    results: frozenset[str]
    needs: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, plan: Plan) -> "_Alive":
        sizes = {t.name: t.nbytes for s in plan.segments for t in s.outputs}
        maker = {t.name: n for n, s in enumerate(plan.segments) for t in s.outputs}
        read = [{t.name for t in s.inputs} for s in plan.segments]
        return cls(
            inputs=sum(t.nbytes for t in plan.fusion.tensor_inputs), sizes=sizes, maker=maker,
            readers={name: frozenset(n for n, names in enumerate(read) if name in names) for name in maker},
            results=frozenset(t.name for t in plan.fusion.outputs),
            needs=tuple(frozenset(maker[name] for name in names if name in maker) for names in read),
        )

    def during(self, done: frozenset[int], now: int) -> int:
        """Return the bytes that are alive while a segment runs after others."""
        return self.inputs + sum(
            self.sizes[name] for name, maker in self.maker.items()
            if maker == now or (maker in done and (name in self.results or self.readers[name] - done))
        )

    def peak(self, order: Sequence[int]) -> int:
        done: frozenset[int] = frozenset()
        most = 0
        for n in order:
            most = max(most, self.during(done, n))
            done |= {n}
        return most

    def best(self, states: int) -> tuple[int, ...] | None:
        """Return an order with the smallest peak, or None if there are not enough states."""
        queue: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
        seen: set[frozenset[int]] = set()
        while queue and len(seen) < states:
            highest, _, order = heapq.heappop(queue)
            done = frozenset(order)
            if len(order) == len(self.needs):
                return order
            if done in seen:
                continue
            seen.add(done)
            for n, needs in enumerate(self.needs):
                if n not in done and needs <= done:
                    heapq.heappush(queue, (max(highest, self.during(done, n)), -len(order), (*order, n)))
        return None

    def shuffle(self, generator: random.Random) -> tuple[int, ...]:
        order: list[int] = []
        while len(order) < len(self.needs):
            done = set(order)
            order.append(generator.choice([n for n, needs in enumerate(self.needs) if n not in done and needs <= done]))
        return tuple(order)

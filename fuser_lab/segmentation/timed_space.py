"""A space of partitions whose prices are predicted times, and the parts into which its segments are cut."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.traffic import CostModel
from fuser_lab.cost.work import Work, product_flops, work_of
from fuser_lab.ir import Fusion, OpKind, TensorView
from fuser_lab.segmentation.components import components
from fuser_lab.segmentation.forwarding import Chain
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.local_search import Partition, legal_price
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.space import Space, Sums, in_order

NEAR = 0.75  # a price with a smaller error is not corrected, since all other prices are as rough
TABLE = 16  # elements of a kernel's largest tensor per element of a table that may be stored before the kernel
_REORDERING = frozenset({OpKind.COPY, OpKind.RESHAPE, OpKind.RESIZE, OpKind.REDUCTION, OpKind.INDEXING})


class TimedSpace(Space):
    """A space whose prices are predicted times, as the bytes that memory could move in the same time."""

    def __init__(
        self, fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, model: TimeModel,
        chains: Sequence[Chain], *, is_limited: bool = False,
    ) -> None:
        costs = CostModel(device=model.device, bandwidth=model.bandwidth, launch=model.launch)
        super().__init__(fusion, oracle, options, costs, chains)
        self._times = model
        works = [work_of([unit]) for unit in self.units]
        self._amounts = [
            (work.simple, work.dividing, work.special, work.reducing, product_flops([unit]))
            for work, unit in zip(works, self.units, strict=True)
        ]
        self._prices: dict[int, int] = {}
        self._is_limited = is_limited

    def ways(self, mask: int) -> list[tuple[int, int]]:
        """Return ways to provide a set with the chains that it reads; in limited time the cheapest and its opposite.

        A kernel that is refused with the chains that are cheaper copied is seldom accepted with other copies.
        """
        ways = super().ways(mask)
        if not self._is_limited:
            return ways
        cost, copied = ways[0]
        apart = max(ways, key=lambda way: (way[1] ^ copied).bit_count() if way[1] != -1 else 0)
        return ways[:1] if apart == (cost, copied) else [(cost, copied), apart]

    def price(self, mask: int, sums: Sums | None = None) -> int:
        """Return the predicted time of a set as one segment, as bytes; ``sums`` are its sums."""
        cost = self._prices.get(mask)
        if cost is None:
            simple, dividing, special, reducing, flops = (added := sums or self.sums(mask)).amounts
            work = Work(simple=simple, dividing=dividing, special=special, reducing=reducing)
            if self._times.repeats:
                work = self._times.work(self.exprs(mask))
            cost = round(self._times.seconds(added.bytes, work, flops) * self._times.bandwidth)
            if sums is None:
                self._prices[mask] = cost
        return cost

    def correct(self, segmented: SegmentedFusion, times: Sequence[float]) -> bool:
        """Correct the prices of a plan's segments whose times differ much; return whether there were any."""
        changed = False
        for group, seconds in zip(segmented.groups, times, strict=True):
            if not segmented.replicas.keys().isdisjoint(group.names):
                continue
            mask, price = self.mask(group.names), round(seconds * self._times.bandwidth)
            if mask and not NEAR * price <= self.price(mask) <= price / NEAR:
                self._prices[mask] = price
                changed = True
        return changed

    def has(self, segmented: SegmentedFusion) -> bool:
        """Whether a plan's segments compute the units, each in one segment, beside copies of some."""
        ops = [self.units[self._place[expr.name]].op is expr.op for group in segmented.groups for expr in group.exprs
               if expr.name in self._place]
        return all(ops) and len(ops) == len(self.units)


def partition_of(space: TimedSpace, segmented: SegmentedFusion) -> Partition | None:
    """Return the partition of a space that resembles a plan most; None if its segments would form a cycle.

    A segment that is not legal without the copies that the plan has in it is divided into parts that share no tensor,
    and such a part into its units.
    """
    segments: dict[int, int] = {}
    waiting = [mask for group in segmented.groups if (mask := space.mask(group.names))]
    while waiting:
        mask = waiting.pop()
        price = legal_price(space, mask)
        if price is None:
            parts = _components_of(space, mask)
            waiting += parts if len(parts) > 1 else [1 << i for i in bits(mask)]
        else:
            segments[mask] = price
    return None if in_order(space, list(segments)) is None else Partition(space, segments)


def parts_of(space: Space, mask: int) -> Iterator[tuple[int, int]]:
    """Yield the two parts of a set on both sides of a tensor that is reordered or summed up there, each pair once."""
    seen = {0, mask}
    for i in bits(mask):
        kind = space.units[i].kind
        if kind in _REORDERING:
            for first in ((space.above[i] | 1 << i) & mask, space.above[i] & mask, mask & ~(space.below[i] | 1 << i)):
                if first not in seen:
                    seen.add(first)
                    yield first, mask & ~first


def with_tables(space: Space, mask: int, *, with_parts: bool = False) -> list[int]:
    """Return a set without the tables in it, after these tables; only the set, if a part is not legal as a segment.

    A table is a function of small tensors of the set alone that is expensive, such as the cosines of positions or an
    index that a logarithm of distances gives, with what leads to it. Views and parts of it cost nothing where they are
    read. With ``with_parts``, an expensive function of any size is one, too, if several parts of it are read: a kernel
    whose results consist of parts may compute it for each of them.
    """
    sizes = {i: max((prod(tv.shape) for tv in space.units[i].tensor_outputs), default=0) for i in bits(mask)}
    large = sum(1 << i for i, size in sizes.items() if TABLE * size > max(sizes.values()))
    works = {i: work_of([space.units[i]]) for i in sizes}
    expensive = sum(1 << i for i, work in works.items() if work.special or work.dividing)
    parts = Counter(tv for i in sizes if space.units[i].kind is OpKind.RESIZE for tv in space.units[i].tensor_inputs)
    tables = 0
    for i in sizes:
        table = (space.above[i] | 1 << i) & mask
        is_part = space.units[i].kind.is_view or space.units[i].kind is OpKind.RESIZE
        in_parts = with_parts and expensive & 1 << i and max(parts[tv] for tv in space.units[i].tensor_outputs) > 1
        if (table & expensive and not (table & large or is_part)) or in_parts:
            tables |= table
    segments = [*_components_of(space, tables), *_components_of(space, mask & ~tables)]
    return segments if tables and all(legal_price(space, part) is not None for part in segments) else [mask]


def _components_of(space: Space, mask: int) -> list[int]:
    """Return the parts of a set of units that share no tensor."""
    units, first = list(bits(mask)), dict[TensorView, int]()
    exprs = [space.units[i] for i in units]
    touched = [(n, tv) for n, expr in enumerate(exprs) for tv in (*expr.tensor_inputs, *expr.tensor_outputs)]
    part_of = components(len(units), [(n, first.setdefault(tv, n)) for n, tv in touched])
    parts = dict[int, int]()
    for i, part in zip(units, part_of, strict=True):
        parts[part] = parts.get(part, 0) | 1 << i
    return list(parts.values())

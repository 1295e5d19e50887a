"""The cost in bytes of a memory order of axes for a segment, and the orders that suit it.

A kernel's loops have one innermost axis. A tensor whose innermost axis in memory is a different one is accessed across
its rows. Without a reduction, tiles are transposed in shared memory, and the tensor is counted once more. With a
reduction, each lane accesses a different memory sector for each element, and the tensor is counted once for each
element of a sector.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuser_lab.analysis.aliasing import input_strides, view_strides
from fuser_lab.analysis.coverage import Coverage, Neighbourhoods
from fuser_lab.analysis.domain_map import ExactMap, FusionLinks, exact_map
from fuser_lab.analysis.layout import Order, is_row_major, with_order
from fuser_lab.cost.device import SECTOR_BYTES
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import OpKind, TensorView
from fuser_lab.segmentation.graph import SegmentedGroup

Orders = Mapping[str, Order]
_EVALUATED = frozenset(
    {SchedulerType.EXPR_EVAL, SchedulerType.NO_OP, SchedulerType.MATMUL, SchedulerType.GREEDY},
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Accesses:
    """The access costs of one segment, given the orders of the tensors that it reads and writes, by name."""

    group: SegmentedGroup
    links: FusionLinks
    _known: dict[tuple[Order, ...], int] = field(default_factory=dict, repr=False)  # costs by orders

    @cached_property
    def tensors(self) -> tuple[TensorView, ...]:
        """Inputs and outputs, each once."""
        return tuple(dict.fromkeys((*self.group.tensor_inputs, *self.group.outputs)))

    @cached_property
    def is_view(self) -> bool:
        """Whether no kernel runs, because results are views of the tensors read."""
        return self.group.scheduler is SchedulerType.EXPR_EVAL and all(e.kind.is_view for e in self.group.exprs)

    @cached_property
    def is_library(self) -> bool:
        """Whether the array library evaluates the segment and chooses the layouts of its results."""
        return self.group.scheduler in _EVALUATED and not self.is_view

    @cached_property
    def exact(self) -> ExactMap:
        """Classes of all axes."""
        return exact_map(self.links.of(self.group.exprs))

    @cached_property
    def _near(self) -> Neighbourhoods:
        return Neighbourhoods(self.exact)

    @cached_property
    def _reach(self) -> dict[str, frozenset[int]]:
        """The elements that the axes of each tensor traverse, as neighbourhoods."""
        return {
            tv.name: frozenset(
                self._near.of(c) for c in Coverage(self.exact, self._wide(tv), through_resize=True).covered
            )
            for tv in self.tensors
        }

    def _wide(self, tensor: TensorView) -> list[int]:
        """Classes of a tensor's axes with more than one element in memory."""
        numbers = self.exact.classes.get(tensor.name, ())
        return [c for c, size in zip(numbers, tensor.stored_shape, strict=False) if size > 1]

    def _innermost(self, tensor: TensorView, order: Order) -> int | None:
        numbers, sizes = self.exact.classes.get(tensor.name, ()), tensor.stored_shape
        place = next((place for place in reversed(order) if sizes[place] > 1), None)
        return None if place is None or not numbers else self._near.of(numbers[place])

    def cost(self, orders: Orders) -> int:
        """Return the bytes that accesses cost beyond the tensors' own, for the best innermost loop."""
        key = tuple(orders[tv.name] for tv in self.tensors)
        if key not in self._known:
            self._known[key] = self._cost(orders)
        return self._known[key]

    def _cost(self, orders: Orders) -> int:
        if self.is_library:
            return sum(2 * tv.nbytes for tv in self.tensors if not self._library_takes(tv, orders[tv.name]))
        inner = {tv.name: self._innermost(tv, orders[tv.name]) for tv in self.tensors}
        loops = dict.fromkeys(c for c in inner.values() if c is not None)
        return min((self._across(inner, loop) for loop in loops), default=0)

    def _across(self, inner: Mapping[str, int | None], loop: int) -> int:
        return sum(
            tv.nbytes * self._factor(tv) for tv in self.tensors
            if inner[tv.name] != loop and loop in self._reach[tv.name]
        )

    @cached_property
    def _reduces(self) -> bool:
        return any(expr.kind is OpKind.REDUCTION for expr in self.group.exprs)

    def _factor(self, tensor: TensorView) -> int:
        return max(SECTOR_BYTES // tensor.dtype.itemsize - 1, 1) if self._reduces else 1

    def _library_takes(self, tensor: TensorView, order: Order) -> bool:
        """Whether the array library reads or writes a tensor in this order without copying it."""
        if tensor in self.group.tensor_inputs and self.group.exprs[0].kind is OpKind.MATMUL:
            # Either of the last two axes may be the fastest, because matrix products accept transposed operands.
            last = next((place for place in reversed(order) if tensor.stored_shape[place] > 1), None)
            return last is None or last >= tensor.ndim - 2
        return is_row_major(tensor, order)

    def natural(self, tensor: TensorView, orders: Orders) -> Order:
        """Return the order in which the segment writes a result unless another one is requested.

        The array library's is row-major, a view's is that of its base, and a kernel's is that of the input with the
        most axes, or row-major if several such inputs have different orders.
        """
        if self.is_library:
            return tuple(range(tensor.ndim))
        if self.is_view:
            return self._order_of_view(tensor, orders)
        read = [tv for tv in self.group.tensor_inputs if self._wide(tv)]
        most = max((len(self._wide(tv)) for tv in read), default=0)
        leading = [tv for tv in read if len(self._wide(tv)) == most]
        distinct_orders = list(dict.fromkeys(self.follow(tensor, tv, orders[tv.name]) for tv in leading))
        return distinct_orders[0] if len(distinct_orders) == 1 else tuple(range(tensor.ndim))

    def preferred(self, tensor: TensorView, orders: Orders) -> Order | None:
        """Return the order of an input that suits the segment best; None if all cost the same."""
        if self.is_library:
            return tuple(range(tensor.ndim))
        others = sorted((tv for tv in self.tensors if tv != tensor and self._wide(tv)), key=lambda tv: -tv.nbytes)
        choices = dict.fromkeys(self.follow(tensor, tv, orders[tv.name]) for tv in others)
        return min(choices, key=lambda order: self.cost({**orders, tensor.name: order}), default=None)

    def _order_of_view(self, tensor: TensorView, orders: Orders) -> Order:
        """Return the order of a view, found by following its strides from the input."""
        strides_of = {tv.name: input_strides(with_order(tv, orders[tv.name])) for tv in self.group.tensor_inputs}
        for expr in self.group.exprs:
            source = expr.tensor_inputs[0]
            # The order of the result is what this determines.
            open_ = replace(expr, outputs=(with_order(expr.out, None),))
            strides = view_strides(open_, strides_of[source.name]) if source.name in strides_of else None
            if strides is None:
                return tuple(range(tensor.ndim))
            strides_of[expr.name] = strides
        strides, sizes = strides_of[tensor.name], tensor.stored_shape
        wide = iter(sorted((p for p in range(tensor.ndim) if sizes[p] > 1), key=lambda p: -strides[p]))
        return tuple(next(wide) if sizes[place] > 1 else place for place in range(tensor.ndim))

    def follow(self, tensor: TensorView, leader: TensorView, order: Order) -> Order:
        """Return the order of a tensor whose axes follow another tensor's order, also through reshapes.

        Axes that the other tensor does not have come first, in row-major order.
        """
        ranks = self._ranks(leader, order)
        numbers, sizes = self.exact.classes[tensor.name], tensor.stored_shape
        places = range(tensor.ndim)
        wide = sorted((p for p in places if sizes[p] > 1), key=lambda p: (ranks.get(numbers[p], ()), p))
        if wide == sorted(wide):
            return tuple(places)
        return (*(p for p in places if sizes[p] <= 1), *wide)

    def _ranks(self, leader: TensorView, order: Order) -> dict[int, tuple[int, ...]]:
        """Return the position in the tensor's order of each class that the tensor determines."""
        numbers = self.exact.classes[leader.name]
        ranks: dict[int, tuple[int, ...]] = {}
        for rank, place in enumerate(order):
            if leader.stored_shape[place] > 1:
                ranks[numbers[place]] = (rank,)
        grew = True
        while grew:
            before = len(ranks)
            for step in self.exact.derivations:
                _spread(ranks, step.sources, step.results)
                _spread(ranks, step.results, step.sources)
            grew = len(ranks) > before
        return ranks


def _spread(ranks: dict[int, tuple[int, ...]], sources: Iterable[int], results: Iterable[int]) -> None:
    """Rank axes that result from splits or merges of others: at the position of these, outer axis first."""
    source_ranks = [ranks[c] for c in sources if c in ranks]
    targets = tuple(results)
    if source_ranks:
        for place, target in enumerate(targets):
            ranks.setdefault(target, source_ranks[0] if len(targets) == 1 else (*source_ranks[0], place))

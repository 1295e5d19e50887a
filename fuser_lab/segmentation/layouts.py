"""Memory layouts of tensors between segments, negotiated between their producers and consumers.

NVIDIA/Fuser issue #2425 proposes to distinguish layouts that the user requires from those that an inference proposes.
Here segments also negotiate: starting from each producer's natural order, one sweep down and one up choose for each
tensor the order with the lowest cost for producer and consumers. Layouts that users require do not change, and the
schedulers are asked again about segments whose tensors changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from fuser_lab.analysis.domain_map import FusionLinks
from fuser_lab.analysis.layout import Order, Proposals, with_order
from fuser_lab.ir import Expr, Fusion, OrderHint, TensorView, Val
from fuser_lab.segmentation.accesses import Accesses, Orders
from fuser_lab.segmentation.events import LayoutChosen
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup
from fuser_lab.segmentation.oracle import SchedulerOracle, candidate

if TYPE_CHECKING:
    import pandas as pd

SWEEPS = 2  # one down, one up; each chooses every tensor's order once


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryLayout:
    """The memory layout of a tensor that a segment writes. Orders are positions of axes, slowest first.

    Attributes
    ----------
    tensor, nbytes
        Its name and its bytes.
    producer, consumers
        Numbers of the segments that write and read it; no consumers if it is only a result.
    required
        The order that the user requires, or None.
    hint
        The order that the inference proposes, or None.
    natural
        The order in which the producer writes by default.
    preferred
        The order that each consumer prefers; consumers without a preference are omitted.
    chosen
        The chosen order.
    by
        The reason: ``"user"``, ``"hint"``, ``"producer"``, ``"S3"`` for a consumer, ``"view"`` if it is a view of
        another tensor, ``"in place"`` if it is written over an input, ``"row-major"``, or ``"refusal"`` if no scheduler
        accepted the negotiated order.
    cost, natural_cost
        Bytes that accesses of producer and consumers cost beyond the tensors' own, in the chosen and in the natural
        order.
    """

    tensor: str
    nbytes: int
    producer: int
    consumers: tuple[int, ...]
    required: Order | None
    hint: OrderHint | None
    natural: Order
    preferred: tuple[tuple[int, Order], ...]
    chosen: Order
    by: str
    cost: int
    natural_cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasked:
    """A segment whose schedulers were asked again because the layout of one of its tensors changed.

    Schedulers by name, empty for none.
    """

    segment: int
    before: str
    after: str

    def __str__(self) -> str:
        """Return one sentence."""
        was, now = self.before or "no scheduler", self.after or "no scheduler"
        same = f"stays with {now}" if was == now else f"goes from {was} to {now}"
        return f"The schedulers were asked about S{self.segment} again: it {same}."


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """The layouts of all tensors that segments write, in order; ``reasked`` are the segments asked again."""

    mode: str
    boundaries: tuple[BoundaryLayout, ...]
    reasked: tuple[Reasked, ...] = ()
    cost: int = 0  # bytes of all segments, each counted once

    def __iter__(self) -> Iterator[BoundaryLayout]:
        """Iterate over the boundaries."""
        return iter(self.boundaries)

    def __len__(self) -> int:
        """Return the number of boundaries."""
        return len(self.boundaries)

    def __getitem__(self, tensor: str) -> BoundaryLayout:
        """Return the layout of a tensor by name; KeyError if no segment writes it."""
        for boundary in self.boundaries:
            if boundary.tensor == tensor:
                return boundary
        raise KeyError(tensor)

    @property
    def events(self) -> tuple[LayoutChosen, ...]:
        """The records of these layouts in the decision log."""
        return tuple(
            LayoutChosen(
                tensor=b.tensor, required=b.required, hint=None if b.hint is None else b.hint.order, natural=b.natural,
                chosen=b.chosen, by=b.by, cost=b.cost, natural_cost=b.natural_cost,
            )
            for b in self.boundaries
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row of text per tensor, with the columns `COLUMNS`."""
        return [_row(boundary) for boundary in self.boundaries]

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per tensor."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(COLUMNS))

    def __str__(self) -> str:
        """Return one line per tensor, and one per segment that was asked again."""
        table = [COLUMNS, *self.rows()]
        widths = [max(len(row[n]) for row in table) for n in range(len(COLUMNS))]
        padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table)
        lines = ("  ".join(cells).rstrip() for cells in padded)
        return "\n".join([f"layouts ({self.mode}), {self.cost} bytes across rows", *lines, *map(str, self.reasked)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        head, *body = (
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in [("th", COLUMNS), *(("td", row) for row in self.rows())]
        )
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        notes = "".join(f"<p>{escape(str(entry))}</p>" for entry in self.reasked)
        title = f"<caption>layouts ({escape(self.mode)}), {self.cost} bytes across rows</caption>"
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


COLUMNS = ("tensor", "from", "to", "required", "hint", "natural", "preferred", "chosen", "by", "cost", "natural cost")


def order_text(order: Order | None) -> str:
    """Return an order as ``0,2,3,1``, a dash for none."""
    return "-" if order is None else ",".join(map(str, order))


def _row(boundary: BoundaryLayout) -> tuple[str, ...]:
    hint = boundary.hint
    return (
        boundary.tensor,
        f"S{boundary.producer}",
        ", ".join(f"S{n}" for n in boundary.consumers) or "result",
        order_text(boundary.required),
        "-" if hint is None else f"{order_text(hint.order)} ({hint.origin}, {hint.strength})",
        order_text(boundary.natural),
        "; ".join(f"S{n}: {order_text(order)}" for n, order in boundary.preferred) or "-",
        order_text(boundary.chosen),
        boundary.by,
        str(boundary.cost),
        str(boundary.natural_cost),
    )


def layouts_of(segmented: SegmentedFusion, mode: str) -> Layouts:
    """Return the current layouts of a segmented fusion."""
    parties = _Parties(segmented)
    orders = parties.as_segmented()
    return parties.layouts(mode, orders, {tv.name: parties.decider(tv, orders) for tv in parties.boundaries})


def layout_of(segmented: SegmentedFusion, tensor: str) -> BoundaryLayout | None:
    """Return the current layout of one tensor, as `layouts_of` has it; None if no segment writes it."""
    parties = _Parties(segmented)
    if tensor not in parties.producer:
        return None
    orders = parties.as_segmented()
    written = segmented.fusion.tensors[tensor]
    return parties.layout(written, orders, parties.decider(written, orders))


class _Facts:
    """The facts about a fusion that layouts need, independent of its segments."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.links = FusionLinks(fusion)
        self.proposals = Proposals(fusion, self.links)


class _Latest:
    """The facts of the most recent fusion, which the plans of one exploration share."""

    def __init__(self) -> None:
        self._facts: _Facts | None = None

    def of(self, fusion: Fusion) -> _Facts:
        """Return the facts of a fusion, found by its identity."""
        facts = self._facts
        if facts is None or facts.fusion is not fusion:
            self._facts = facts = _Facts(fusion)
        return facts


_LATEST = _Latest()


def negotiate(segmented: SegmentedFusion, oracle: SchedulerOracle) -> tuple[SegmentedFusion, Layouts]:
    """Return the segments with negotiated layouts, and the record of the negotiation.

    Required orders do not change. Among the producer's natural order, the consumers' preferred ones and the one that
    the inference proposes, the cheapest is chosen; on a tie the producer's or, for an output of the fusion, the
    proposed one. A segment that no scheduler accepts with the negotiated layouts gets the producers' natural ones,
    otherwise its previous ones. The total cost never increases.
    """
    return _Negotiation(segmented, oracle).run()


class _Parties:
    """The writers and readers of each tensor, and the cost of their accesses."""

    def __init__(self, segmented: SegmentedFusion) -> None:
        self.segmented = segmented
        self.fusion = fusion = segmented.fusion
        facts = _LATEST.of(fusion)
        self._proposals = facts.proposals
        self.accesses = [Accesses(group=group, links=facts.links) for group in segmented.groups]
        self.producer: dict[str, int] = {}
        self.consumers: dict[str, list[int]] = {}
        for number, group in enumerate(segmented.groups):
            for tensor in group.outputs:
                self.producer.setdefault(tensor.name, number)
            for tensor in group.tensor_inputs:
                self.consumers.setdefault(tensor.name, []).append(number)
        self.boundaries = tuple(tv for tv in fusion.tensors.values() if tv.name in self.producer)
        self.required = {
            tv.name: order for tv in self.boundaries if (order := fusion.required_order(tv)) is not None
        }
        self._hints: dict[str, OrderHint | None] = {}
        self._views: dict[str, tuple[TensorView, ...]] = {}
        self.results = {tv.name for tv in fusion.outputs}
        self._targets = {output.name: target for output, target in fusion.aliases}

    def hint(self, tensor: TensorView) -> OrderHint | None:
        """Return the order that the inference proposes for a tensor; none where the user requires one."""
        name = tensor.name
        if name not in self._hints:
            free = name not in self.required
            self._hints[name] = (tensor.domain.hint or self._proposals.of(tensor)) if free else None
        return self._hints[name]

    def as_segmented(self) -> dict[str, Order]:
        """Return the orders that the fusion has."""
        return {tv.name: tv.domain.allocation_order for tv in (*self.fusion.tensor_inputs, *self.boundaries)}

    def is_view(self, tensor: TensorView) -> bool:
        """Whether a tensor is a view of another one, so that its order follows from the other's."""
        return self.accesses[self.producer[tensor.name]].is_view and tensor.name not in self.required

    def natural(self, tensor: TensorView, orders: Orders) -> Order:
        """Return the order in which the producer writes."""
        return self.accesses[self.producer[tensor.name]].natural(tensor, orders)

    def preferred(self, tensor: TensorView, orders: Orders) -> tuple[tuple[int, Order], ...]:
        """Return the order that each consumer prefers."""
        wishes = ((n, self.accesses[n].preferred(tensor, orders)) for n in self.consumers.get(tensor.name, ()))
        return tuple((n, order) for n, order in wishes if order is not None)

    def outside(self, tensor: TensorView) -> tuple[str, Order]:
        """Return the order that a result should have for the caller, and why: as hinted, or nvFuser's default."""
        target, hint = self._targets.get(tensor.name), self.hint(tensor)
        if target is not None:
            return "in place", target.domain.allocation_order
        if self.accesses[self.producer[tensor.name]].is_library:
            return "producer", tuple(range(tensor.ndim))
        if hint is not None:
            return "hint", hint.order
        return "row-major", tuple(range(tensor.ndim))

    def placed(self, orders: Orders, tensor: TensorView, order: Order) -> dict[str, Order]:
        """Return the orders after changing that of one tensor and of its views."""
        new = {**orders, tensor.name: order}
        for view in self.views(tensor):
            new[view.name] = self.natural(view, new)
        return new

    def views(self, tensor: TensorView) -> tuple[TensorView, ...]:
        """Return the views of a tensor, in order."""
        if tensor.name not in self._views:
            views: dict[TensorView, None] = {}
            waiting = [tensor]
            for source in waiting:
                readers = (self.accesses[n] for n in self.consumers.get(source.name, ()))
                waiting += [tv for r in readers for tv in r.group.outputs if self.is_view(tv) and tv not in views]
                views.update(dict.fromkeys(waiting[1:]))
            self._views[tensor.name] = tuple(tv for tv in self.boundaries if tv in views) if views else ()
        return self._views[tensor.name]

    def cost(self, tensor: TensorView, orders: Orders) -> int:
        """Return the access cost of the segments that write or read a tensor or a view of it."""
        near = {n for tv in (tensor, *self.views(tensor)) for n in self._touching(tv)}
        return sum(self.accesses[n].cost(orders) for n in near)

    def _touching(self, tensor: TensorView) -> tuple[int, ...]:
        return (self.producer[tensor.name], *self.consumers.get(tensor.name, ()))

    def total(self, orders: Orders) -> int:
        """Return the access cost of all segments."""
        return sum(accesses.cost(orders) for accesses in self.accesses)

    def decider(self, tensor: TensorView, orders: Orders) -> str:
        """Return the reason for the order of a tensor that was not negotiated."""
        hint = tensor.domain.hint
        if tensor.name in self.required:
            return "user"
        if self.is_view(tensor) and orders[tensor.name] == self.natural(tensor, orders):
            return "view"
        if self.accesses[self.producer[tensor.name]].is_library:
            return "producer"
        return "hint" if hint is not None and hint.order == orders[tensor.name] else "row-major"

    def layouts(
        self, mode: str, orders: Orders, by: Mapping[str, str], reasked: Iterable[Reasked] = (),
    ) -> Layouts:
        """Return the record of these orders."""
        return Layouts(
            mode=mode,
            boundaries=tuple(self.layout(tensor, orders, by[tensor.name]) for tensor in self.boundaries),
            reasked=tuple(reasked),
            cost=self.total(orders),
        )

    def layout(self, tensor: TensorView, orders: Orders, by: str) -> BoundaryLayout:
        """Return the record of one tensor in these orders."""
        natural = self.natural(tensor, orders)
        return BoundaryLayout(
            tensor=tensor.name,
            nbytes=tensor.nbytes,
            producer=self.producer[tensor.name],
            consumers=tuple(self.consumers.get(tensor.name, ())),
            required=self.required.get(tensor.name),
            hint=self.hint(tensor),
            natural=natural,
            preferred=self.preferred(tensor, orders),
            chosen=orders[tensor.name],
            by=by,
            cost=self.cost(tensor, orders),
            natural_cost=self.cost(tensor, self.placed(orders, tensor, natural)),
        )


class _Negotiation:
    def __init__(self, segmented: SegmentedFusion, oracle: SchedulerOracle) -> None:
        self._parties = _Parties(segmented)
        self._oracle = oracle
        self._before = self._parties.as_segmented()
        self._orders = dict(self._before)
        self._by: dict[str, str] = {}
        self._open = [
            tv for tv in self._parties.boundaries
            if tv.name not in self._parties.required and not self._parties.is_view(tv)
        ]

    def run(self) -> tuple[SegmentedFusion, Layouts]:
        parties = self._parties
        for tensor in parties.boundaries:
            if tensor.name not in parties.required:
                self._orders[tensor.name] = parties.natural(tensor, self._orders)
        for sweep in range(SWEEPS):
            changed = [self._choose(tensor) for tensor in (reversed(self._open) if sweep % 2 else self._open)]
            if not any(changed):
                break
        if parties.total(self._orders) > parties.total(self._before):
            self._orders, self._by = dict(self._before), {}
        segmented, reasked = self._accepted_segments()
        by = {tv.name: self._by.get(tv.name) or parties.decider(tv, self._orders) for tv in parties.boundaries}
        return segmented, parties.layouts("negotiate", self._orders, by, reasked)

    def _choose(self, tensor: TensorView) -> bool:
        """Choose the cheapest order for a tensor; return whether it changed."""
        parties, orders = self._parties, self._orders
        choices = [("producer", parties.natural(tensor, orders))]
        choices += [(f"S{n}", order) for n, order in parties.preferred(tensor, orders)]
        hint = parties.hint(tensor)
        if hint is not None:
            choices.append(("hint", hint.order))
        if tensor.name in parties.results:
            choices.insert(0, parties.outside(tensor))
        placed = [(parties.placed(orders, tensor, order), who) for who, order in choices]
        best, who = min(placed, key=lambda choice: parties.cost(tensor, choice[0]))
        self._by[tensor.name] = who
        self._orders = best
        return best != orders

    def _accepted_segments(self) -> tuple[SegmentedFusion, list[Reasked]]:
        """Return the segments as accepted; orders that no scheduler accepts revert, first to natural orders."""
        parties = self._parties
        natural = {tv.name: parties.natural(tv, self._orders) for tv in self._open}
        while True:
            segmented = laid_out(parties.segmented, self._orders, self._oracle)
            refused = [
                n for n, (old, new) in enumerate(zip(parties.segmented.groups, segmented.groups, strict=True))
                if old.scheduler is not None and new.scheduler is None
            ]
            if not refused or not self._given_up(refused, natural):
                break
        pairs = zip(parties.segmented.groups, segmented.groups, strict=True)
        return segmented, [
            Reasked(segment=n, before=_label(old), after=_label(new))
            for n, (old, new) in enumerate(pairs) if old.answer is not new.answer
        ]

    def _given_up(self, refused: Iterable[int], natural: dict[str, Order]) -> bool:
        """Change the orders around refused segments; return whether anything was left to change."""
        names = {tv.name for n in refused for tv in self._parties.accesses[n].tensors}
        moved = False
        for tensor in self._open:
            name = tensor.name
            if name in names and self._orders[name] != self._before[name]:
                # Once given up, the natural order is not tried again.
                order = natural.pop(name, self._before[name])
                order = self._before[name] if order == self._orders[name] else order
                self._orders = self._parties.placed(self._orders, tensor, order)
                self._by[name] = "refusal"
                moved = True
        return moved


def _label(group: SegmentedGroup) -> str:
    return group.scheduler.value if group.scheduler else ""


def laid_out(segmented: SegmentedFusion, orders: Orders, oracle: SchedulerOracle) -> SegmentedFusion:
    """Return segments with other orders of tensors; schedulers are asked again about each segment that changes."""
    old = segmented.fusion
    fusion = placed_in(old, orders)
    if fusion is old:
        return segmented
    groups = []
    for group in segmented.groups:
        exprs = [fusion.exprs[fusion.positions[name]] for name in group.names]
        new = candidate(fusion, exprs, segmented.recomputed)
        same = new.tensor_inputs == group.tensor_inputs and new.outputs == group.outputs
        groups.append(SegmentedGroup(candidate=new, answer=group.answer if same else oracle.ask(new)))
    return replace(segmented, fusion=fusion, groups=tuple(groups))


def placed_in(fusion: Fusion, orders: Orders) -> Fusion:
    """Return the fusion with tensors in these orders; one without memory has an order only if the user requires it."""
    new: dict[Val, TensorView] = {}
    for expr in fusion.exprs:
        for tensor in expr.tensor_outputs:
            required = fusion.required_order(tensor) is not None
            placed = tensor if required else with_order(tensor, orders.get(tensor.name))
            if placed is not tensor:
                new[tensor] = placed
    if not new:
        return fusion

    def now(tensor: TensorView) -> TensorView:
        return new.get(tensor, tensor)

    def moved(expr: Expr) -> Expr:
        inputs, outputs = (tuple(new.get(v, v) for v in values) for values in (expr.inputs, expr.outputs))
        return replace(expr, inputs=inputs, outputs=outputs)

    return replace(
        fusion,
        exprs=tuple(map(moved, fusion.exprs)),
        outputs=tuple(map(now, fusion.outputs)),
        aliases=tuple((now(output), target) for output, target in fusion.aliases),
        hidden=frozenset(map(now, fusion.hidden)),
    )

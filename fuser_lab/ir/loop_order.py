"""Which loops of a scheduled fusion are one, and the order of the statements in them.

A tensor that is computed inside loops of its consumers shares those with them. Loops nest as in each tensor; at every
depth, the statements in one loop form a group, and a group runs before another if a statement in the other reads it. A
reduction is complete after its loops, so a reader inside them would wait for itself: such an inlining is refused.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.axis_match import match
from fuser_lab.ir.expr import Expr, OpKind
from fuser_lab.ir.transform import Rules, ScheduledFusion

Slot = tuple[str, int]  # a tensor by name, and the position of one of its loops
Part = tuple[str, str]  # a tensor by name, and "all" or the begin, update or end of its reduction


class LoopClasses:
    """Classes of loops: the loops of a class are one loop."""

    def __init__(self, scheduled: ScheduledFusion, rules: Rules) -> None:
        self._scheduled, self._rules = scheduled, rules
        self._parent: dict[Slot, Slot] = {}
        self._around: dict[Slot, tuple[Slot, ...]] = {}
        for name, tensor in scheduled.tensors.items():
            for expr in scheduled.consumers(name) if tensor.compute_at else ():
                pairs = match(tensor, scheduled.tensors[expr.out.name], expr, rules).pairs
                for position in range(tensor.compute_at):
                    self._join((name, position), (expr.out.name, pairs[position]))

    def _join(self, first: Slot, second: Slot) -> None:
        first, second = self.of(first), self.of(second)
        if first != second:
            self._parent[first] = second

    def of(self, slot: Slot) -> Slot:
        """Return the representative of a loop's class."""
        while slot in self._parent:
            slot = self._parent[slot]
        return slot


    def around(self, name: str, count: int) -> tuple[Slot, ...]:
        """Return the loops that contain the first ``count`` loops of a tensor, including these, outermost first.

        They may include new broadcast loops of the consumers in which it is computed.

        Raises
        ------
        ScheduleError
            If the shared loops of two consumers are inside different loops.
        """
        if (name, count) in self._around:
            return self._around[name, count]
        tensor = self._scheduled.tensors[name]
        shared = min(count, tensor.compute_at)
        outer: tuple[Slot, ...] | None = None
        for expr in self._scheduled.consumers(name) if shared else ():
            consumer = expr.out.name
            place = match(tensor, self._scheduled.tensors[consumer], expr, self._rules).shared(shared)
            loops = self.around(consumer, place or 0)
            if outer is not None and loops != outer:
                msg = f"{name} shares a loop that {consumer} and another reader have in different loops; inline less."
                raise ScheduleError(msg)
            outer = loops
        inner = tuple(self.of((name, position)) for position in range(shared, count))
        self._around[name, count] = (*(outer or ()), *inner)
        return self._around[name, count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The statements of one expression, or of a part of a reduction, inside the loops of ``path``, outermost first."""

    expr: Expr
    part: str
    path: tuple[Hashable, ...]
    order: int

    @property
    def name(self) -> str:
        """The tensor that is computed."""
        return self.expr.out.name

    @property
    def needs(self) -> Iterable[Part]:
        """Yield the items that must come before."""
        if self.part in {"update", "end"}:
            yield self.name, "begin"
        if self.part == "end":
            yield self.name, "update"
        if self.part in {"all", "update"}:
            for tensor in self.expr.tensor_inputs:
                yield tensor.name, "all"
                yield tensor.name, "end"


def group_items(items: Sequence[Item], depth: int) -> list[tuple[Hashable, list[Item]]]:
    """Return items inside the same ``depth`` loops as groups by the next loop, in an order of execution.

    Raises
    ------
    ScheduleError
        If there is no such order.
    """
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        key = item.path[depth] if depth < len(item.path) else ("statement", item.order)
        groups.setdefault(key, []).append(item)
    home = {(item.name, item.part): key for key, members in groups.items() for item in members}
    needs: dict[Hashable, set[Hashable]] = {key: set() for key in groups}
    for key, members in groups.items():
        for item in members:
            needs[key].update(home[part] for part in item.needs if part in home and home[part] != key)
    done: dict[Hashable, None] = {}
    while len(done) < len(groups):
        ready = next((key for key in groups if key not in done and needs[key] <= done.keys()), None)
        if ready is None:
            waiting = sorted({item.name for key in groups if key not in done for item in groups[key]})
            msg = f"loops that {', '.join(waiting)} share would have to run before and after each other; inline less."
            raise ScheduleError(msg)
        done[ready] = None
    return [(key, groups[key]) for key in done]


def reads_itself(scheduled: ScheduledFusion, rules: Rules) -> bool:
    """Whether a statement in a loop that a reduction runs over needs its result, whatever else is inlined."""
    classes = LoopClasses(scheduled, rules)
    for expr in scheduled.fusion.tensor_exprs:
        if expr.kind is not OpKind.REDUCTION:
            continue
        name = expr.out.name
        over = {classes.of((name, i)) for i, axis in enumerate(scheduled.tensors[name].loop) if axis.is_reduction}
        behind = {name}
        for other in scheduled.fusion.tensor_exprs:
            if behind.isdisjoint(tv.name for tv in other.tensor_inputs):
                continue
            behind.update(tv.name for tv in other.tensor_outputs)
            count = len(scheduled.tensors[other.out.name].loop)
            if not over.isdisjoint(classes.of((other.out.name, i)) for i in range(count)):
                return True
    return False


def can_run(scheduled: ScheduledFusion, rules: Rules) -> bool:
    """Whether the loops that tensors share allow an order of execution."""
    classes = LoopClasses(scheduled, rules)
    try:
        _descend(items_of(scheduled, classes), 0)
    except ScheduleError:
        return False
    return True


def items_of(scheduled: ScheduledFusion, classes: LoopClasses) -> list[Item]:
    """Return the statements of each expression, or part of a reduction, with the loops around them."""
    items: list[Item] = []
    for expr in scheduled.fusion.tensor_exprs:
        tensor = scheduled.tensors[expr.out.name]
        path = classes.around(tensor.name, len(tensor.loop))
        parts: Mapping[str, tuple[Slot, ...]] = {"all": path}
        if expr.kind is OpKind.REDUCTION:
            parts = {"update": path, "end": classes.around(tensor.name, tensor.compute_at)}
        items += [
            Item(expr=expr, part=part, path=way, order=len(items) + i) for i, (part, way) in enumerate(parts.items())
        ]
    return items


def _descend(items: Sequence[Item], depth: int) -> None:
    for _, members in group_items(items, depth):
        inside = [item for item in members if depth < len(item.path)]
        if inside:
            _descend(inside, depth + 1)

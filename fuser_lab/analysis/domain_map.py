"""Which axis of an operand is which axis of a result, and what that makes equal in a set of expressions.

``axis_pairs`` answers for one expression. ``ExactMap`` joins axes over many: axes in one class have the same extent and
one loop can run over them (nvFuser's exact graph). A broadcast axis and the iteration axis that it meets stay in two
classes; the meeting is kept aside as a concretization (nvFuser's permissive graph).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fuser_lab.ir import Expr, Fusion, IterDomain, OpKind, TensorView
from fuser_lab.ir.domain import Merge, Split

Positions = tuple[tuple[int, int], ...]


class AxisPair(NamedTuple):
    """An axis of tensor operand number ``operand`` and the axis of the result's root that it becomes."""

    operand: int
    producer: IterDomain
    consumer: IterDomain


def axis_pairs(expr: Expr) -> tuple[AxisPair, ...]:
    """Return the pairs of an expression with a tensor result; none for factories."""
    root = expr.out.domain.root_or_logical
    return tuple(
        AxisPair(number, tensor.domain.axes[a], root[b])
        for number, (tensor, pairs) in enumerate(zip(expr.tensor_inputs, _positions(expr), strict=True))
        for a, b in pairs
    )


def _positions(expr: Expr) -> tuple[Positions, ...]:
    """Return for each tensor operand the pairs (position in its axes, position in the result's root)."""
    tensors = expr.tensor_inputs
    kind = expr.kind
    if kind is OpKind.BROADCAST:
        flags = expr.attr("is_broadcast_dim")
        kept = [i for i, new in enumerate(flags if isinstance(flags, tuple) else ()) if not new]
        return (tuple(enumerate(kept)),)
    if kind is OpKind.SQUEEZE:
        dropped = expr.ints("dims")
        left = [i for i in range(tensors[0].ndim) if i not in dropped]
        return (tuple((axis, place) for place, axis in enumerate(left)),)
    if kind is OpKind.MATMUL:
        return _matmul_positions(expr)
    return tuple(tuple((i, i) for i in range(tensor.ndim)) for tensor in tensors)


def _matmul_positions(expr: Expr) -> tuple[Positions, ...]:
    left, right, *bias = expr.tensor_inputs
    rank = expr.out.ndim
    if expr.op.name == "linear":
        rows = tuple((i, i) for i in range(left.ndim - 1))
        return (rows, ((0, rank - 1),), *(((0, rank - 1),) for tv in bias if tv.ndim == 1))
    # The result is [batch, rows, columns]; a 1-D operand has no axis of its own there.
    tail = (left.ndim > 1) + (right.ndim > 1)
    batch = rank - tail

    def of(tensor: TensorView, own: int | None, place: int) -> Positions:
        wide = max(tensor.ndim - 2, 0)
        pairs = [(i, i + batch - wide) for i in range(wide)]
        return tuple(pairs) if own is None else (*pairs, (own, place))

    return (
        of(left, left.ndim - 2 if left.ndim > 1 else None, batch),
        of(right, right.ndim - 1 if right.ndim > 1 else None, rank - 1),
    )


class Step(NamedTuple):
    """One reshape or resize step over slots: root axes are slots 0, 1, ...; each result takes the next slot."""

    name: str  # merge, split, resize
    sources: tuple[int, ...]
    numbers: tuple[int, ...]
    extents: tuple[int, ...]
    broadcast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a pass over axes needs of one expression, in positions and slots."""

    expr: Expr
    name: str
    kind: OpKind
    op: str
    operands: tuple[str, ...]
    tensors: tuple[TensorView, ...]
    out: TensorView
    same: bool  # the only operand has the result's axes one to one
    even: tuple[bool, ...]  # per operand: its axes are the result's, broadcast axes included
    sources: tuple[tuple[int, ...], ...]  # per operand: its position behind each root slot, or -1
    root_broadcast: tuple[bool, ...]
    root_extents: tuple[int, ...]
    steps: tuple[Step, ...]
    axes: tuple[int, ...]  # slots of the value's axes, -1 for axes that come from nowhere
    reduced: tuple[int, ...]  # slots that are reduced away


def _size(axis: IterDomain) -> int:
    return axis.visible_extent if isinstance(axis.visible_extent, int) else 0


def _link(expr: Expr) -> Link:
    out = expr.out
    domain = out.domain
    root = domain.root_or_logical
    slots = {axis.id: slot for slot, axis in enumerate(root)}
    steps: list[Step] = []

    def declare(*axes: IterDomain) -> None:
        for axis in axes:
            slots[axis.id] = len(slots)

    for transform in domain.transforms:
        if isinstance(transform, Merge):
            sources = (slots[transform.outer.id], slots[transform.inner.id])
            steps.append(Step("merge", sources, (), (_size(transform.result),), transform.result.is_broadcast))
            declare(transform.result)
        elif isinstance(transform, Split):
            sizes = (_size(transform.outer), _size(transform.inner))
            steps.append(Step("split", (slots[transform.source.id],), (transform.factor,), sizes, broadcast=False))
            declare(transform.outer, transform.inner)
        else:
            widths = tuple(n if isinstance(n, int) else 0 for n in (transform.left, transform.right))
            result = transform.result
            steps.append(Step("resize", (slots[transform.source.id],), widths, (_size(result),), result.is_broadcast))
            declare(result)
    tensors = expr.tensor_inputs
    flags = tuple(axis.is_broadcast for axis in root)
    found = []
    for pairs in _positions(expr):
        source = [-1] * len(root)
        for a, b in pairs:
            source[b] = a
        found.append(tuple(source))
    axes = tuple(slots.get(axis.id, -1) for axis in domain.axes)
    identity = tuple(range(len(root)))
    even = tuple(
        source == identity and tv.ndim == len(root) and tuple(a.is_broadcast for a in tv.domain.axes) == flags
        for tv, source in zip(tensors, found, strict=True)
    )
    return Link(
        expr=expr,
        name=expr.name,
        kind=expr.kind,
        op=expr.op.name,
        operands=tuple(tv.name for tv in tensors),
        tensors=tensors,
        out=out,
        same=len(tensors) == 1 and even[0] and not steps and axes == identity,
        even=even,
        sources=tuple(found),
        root_broadcast=flags,
        root_extents=tuple(map(_size, root)),
        steps=tuple(steps),
        axes=axes,
        reduced=tuple(slots[axis.id] for axis in domain.logical if axis.is_reduction),
    )


class FusionLinks:
    """Links of a complete fusion's tensor expressions, made when first asked for."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._links: dict[str, Link | None] = {}

    def of(self, exprs: Iterable[Expr]) -> list[Link]:
        """Return the links of expressions with a tensor result."""
        known = self._links
        found = []
        for expr in exprs:
            name = expr.outputs[0].name
            if name not in known:
                known[name] = _link(expr) if expr.tensor_outputs else None
            link = known[name]
            if link is not None:
                found.append(link)
        return found


class Derivation(NamedTuple):
    """Classes made from other classes by a reshape or resize step of expression ``expr``."""

    name: str
    sources: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]
    expr: str


@dataclass(slots=True)
class ExactMap:
    """Classes of axes over a set of expressions.

    ``classes[tensor]`` numbers the class of each axis of the value; numbers are compared through ``find``. ``reduced``
    holds the classes that each reduction takes away, ``inner`` all classes of its operand in order.
    """

    classes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reduced: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    broadcast: list[bool] = field(default_factory=list)
    extent: list[int] = field(default_factory=list)
    origin: list[tuple[str, int]] = field(default_factory=list)
    concretized: list[tuple[int, int, str]] = field(default_factory=list)
    derivations: list[Derivation] = field(default_factory=list)
    components: int = 0
    joined: bool = False

    def find(self, number: int) -> int:
        """Return the number that stands for a class."""
        parent = self.parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def roots(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Return the numbers that stand for classes."""
        if not self.joined:
            return tuple(numbers)
        return tuple(map(self.find, numbers))

    def concrete(self, tensor: TensorView) -> tuple[int, ...]:
        """Return the classes of a tensor's axes that are no broadcast axes."""
        broadcast = self.broadcast
        return tuple(c for c in self.roots(self.classes.get(tensor.name, ())) if not broadcast[c])

    def self_mapped(self) -> tuple[str, int, int] | None:
        """Return a tensor two of whose axes are one class, with their positions."""
        if not self.joined:
            return None
        checked: set[tuple[int, ...]] = set()
        for name, numbers in self.classes.items():
            if len(numbers) < 2 or numbers in checked:
                continue
            checked.add(numbers)
            roots = self.roots(numbers)
            if len(set(roots)) == len(roots):
                continue
            for i, root in enumerate(roots):
                if not self.broadcast[root] and root in roots[i + 1 :]:
                    return name, i, roots.index(root, i + 1)
        return None

    def concretizations(self) -> dict[int, dict[int, str]]:
        """Return what each broadcast class meets: class to iteration classes, with an expression for each."""
        found: dict[int, dict[int, str]] = {}
        for source, target, expr in self.concretized:
            found.setdefault(self.find(source), {}).setdefault(self.find(target), expr)
        return found

    def union(self, a: int, b: int) -> None:
        """Join two classes; the older number stands for both."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        self.joined = True
        if b < a:
            a, b = b, a
        self.parent[b] = a

    def fresh(self, extent: int, *, broadcast: bool, origin: tuple[str, int]) -> int:
        """Return a new class."""
        number = len(self.parent)
        self.parent.append(number)
        self.broadcast.append(broadcast)
        self.extent.append(extent)
        self.origin.append(origin)
        return number

    def declare(self, tensor: TensorView) -> tuple[int, ...]:
        """Give each axis of a tensor that is read a class of its own."""
        axes = tensor.domain.axes
        first = len(self.parent)
        numbers = tuple(range(first, first + len(axes)))
        self.parent.extend(numbers)
        name = tensor.name
        for place, axis in enumerate(axes):
            self.broadcast.append(axis.is_broadcast)
            self.extent.append(_size(axis))
            self.origin.append((name, place))
        self.classes[name] = numbers
        return numbers


def exact_map(links: Iterable[Link]) -> ExactMap:
    """Return the classes of the axes of all tensors that expressions, in topological order, read and make."""
    result = ExactMap()
    classes = result.classes
    made: dict[tuple[object, ...], tuple[int, ...]] = {}
    component: dict[str, int] = {}
    groups: list[int] = []
    for link in links:
        operands = link.operands
        for name, tensor in zip(operands, link.tensors, strict=True):
            if name not in classes:
                result.declare(tensor)
                component[name] = len(groups)
                groups.append(len(groups))
        if operands:
            group = component[operands[0]]
            for name in operands[1:]:
                _join(groups, group, component[name])
        else:
            group = len(groups)
            groups.append(group)
        component[link.name] = group
        if link.same:
            classes[link.name] = classes[operands[0]]
            continue
        if len(operands) > 1:
            numbers = _meet(result, link)
            if not link.steps:
                classes[link.name] = tuple(numbers[slot] for slot in link.axes) if link.reduced else tuple(numbers)
                continue
        else:
            numbers = _pass(result, link)
        if link.steps:
            _derive(result, link, numbers, made)
        out = []
        for place, slot in enumerate(link.axes):
            if slot >= 0:
                out.append(numbers[slot])
                continue
            axis = link.out.domain.axes[place]
            out.append(result.fresh(_size(axis), broadcast=axis.is_broadcast, origin=(link.name, place)))
        classes[link.name] = tuple(out)
        if link.reduced:
            result.reduced[link.name] = tuple(numbers[slot] for slot in link.reduced)
    result.components = len({_group(groups, n) for n in component.values()})
    return result


def _group(groups: list[int], number: int) -> int:
    while groups[number] != number:
        number = groups[number]
    return number


def _join(groups: list[int], a: int, b: int) -> None:
    a, b = _group(groups, a), _group(groups, b)
    if a != b:
        groups[max(a, b)] = min(a, b)


def _pass(result: ExactMap, link: Link) -> list[int]:
    """Classes of the root slots of an expression with at most one tensor operand."""
    given = result.classes[link.operands[0]] if link.operands else ()
    source = link.sources[0] if link.operands else (-1,) * len(link.root_extents)
    return [
        given[place]
        if place >= 0
        else result.fresh(link.root_extents[slot], broadcast=link.root_broadcast[slot], origin=(link.name, slot))
        for slot, place in enumerate(source)
    ]


def _meet(result: ExactMap, link: Link) -> list[int]:
    """Classes of the root slots where several operands meet."""
    classes = result.classes
    flags = link.root_broadcast
    found: list[int] = [-1] * len(flags)
    meetings: list[tuple[int, int]] = []
    chosen: tuple[int, ...] | None = None
    for number, name in enumerate(link.operands):
        given = classes[name]
        if link.even[number]:
            if chosen is None:
                chosen = given
            elif given == chosen:
                continue
            for slot, new in enumerate(given):
                old = found[slot]
                if old < 0:
                    found[slot] = new
                elif old != new:
                    result.union(old, new)
            continue
        for slot, place in enumerate(link.sources[number]):
            if place < 0:
                continue
            new = given[place]
            if result.broadcast[new] != flags[slot]:
                meetings.append((new, slot))
            elif found[slot] < 0:
                found[slot] = new
            elif found[slot] != new:
                result.union(found[slot], new)
    for slot, old in enumerate(found):
        if old < 0:
            found[slot] = result.fresh(link.root_extents[slot], broadcast=flags[slot], origin=(link.name, slot))
    result.concretized.extend((source, found[slot], link.name) for source, slot in meetings)
    return found


def _derive(
    result: ExactMap, link: Link, numbers: list[int], made: dict[tuple[object, ...], tuple[int, ...]],
) -> None:
    """Append the classes of reshape and resize steps; equal steps of equal classes give equal classes."""
    for step in link.steps:
        sources = tuple(result.find(numbers[slot]) for slot in step.sources)
        key = (step.name, sources, step.numbers, step.extents)
        results = made.get(key)
        if results is None:
            results = made[key] = tuple(
                result.fresh(extent, broadcast=step.broadcast, origin=(link.name, len(numbers) + i))
                for i, extent in enumerate(step.extents)
            )
            result.derivations.append(Derivation(step.name, sources, step.numbers, results, link.name))
        numbers.extend(results)

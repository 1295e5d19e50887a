"""Which axis of an operand is which axis of a result, and what that makes equal in a set of expressions.

``axis_pairs`` answers for one expression. ``ExactMap`` joins axes over many: axes in one class have the same extent and
one loop can run over them (nvFuser's exact graph). A broadcast axis and the iteration axis that it meets stay in two
classes; their relation is recorded separately, as a concretization (nvFuser's permissive graph).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from fuser_lab.ir import Expr, Fusion, IterDomain, OpKind, TensorView
from fuser_lab.ir.domain import Merge, Split
from fuser_lab.ops import OPS
from fuser_lab.ops.rules import Positions


class AxisPair(NamedTuple):
    """An axis of tensor operand number ``operand`` and the axis of the result's root that it becomes."""

    operand: int
    producer: IterDomain
    consumer: IterDomain


def axis_pairs(expr: Expr) -> tuple[AxisPair, ...]:
    """Return the pairs of an expression with its first tensor result; none for factories."""
    root = expr.out.domain.root_or_logical
    return tuple(
        AxisPair(number, tensor.domain.axes[a], root[b])
        for number, (tensor, pairs) in enumerate(zip(expr.tensor_inputs, _positions(expr), strict=True))
        for a, b in pairs
    )


def _positions(expr: Expr, result: int = 0) -> tuple[Positions, ...]:
    """Return for each tensor operand the pairs (position in its axes, position in the root of a result)."""
    tensors = expr.tensor_inputs
    kind = expr.kind
    rule = OPS[expr.op.name].axes
    if rule is not None:
        return rule(expr, result)
    if kind is OpKind.BROADCAST:
        flags = expr.attr("is_broadcast_dim")
        old_axes = [i for i, new in enumerate(flags if isinstance(flags, tuple) else ()) if not new]
        return (tuple(enumerate(old_axes)),)
    if kind is OpKind.SQUEEZE:
        dropped = expr.ints("dims")
        left = [i for i in range(tensors[0].ndim) if i not in dropped]
        return (tuple((axis, place) for place, axis in enumerate(left)),)
    if kind is OpKind.MATMUL:
        return _matmul_positions(expr)
    return tuple(tuple((i, i) for i in range(tensor.ndim)) for tensor in tensors)


def _matmul_positions(expr: Expr) -> tuple[Positions, ...]:
    left, right = expr.tensor_inputs
    rank = expr.out.ndim
    # The result is [batch, rows, columns]; a 1-D operand has no axis of its own there.
    tail = (left.ndim > 1) + (right.ndim > 1)
    batch = rank - tail

    def of(tensor: TensorView, axis: int | None, place: int) -> Positions:
        wide = max(tensor.ndim - 2, 0)
        pairs = [(i, i + batch - wide) for i in range(wide)]
        return tuple(pairs) if axis is None else (*pairs, (axis, place))

    return (
        of(left, left.ndim - 2 if left.ndim > 1 else None, batch),
        of(right, right.ndim - 1 if right.ndim > 1 else None, rank - 1),
    )


class Declared(NamedTuple):
    """The axes of a tensor, one entry each."""

    broadcast: tuple[bool, ...]
    extents: tuple[int, ...]
    origins: tuple[tuple[str, int], ...]


class Step(NamedTuple):
    """One reshape or resize step over slots: root axes are slots 0, 1, ...; each result takes the next slot."""

    name: str  # merge, split, resize
    sources: tuple[int, ...]
    numbers: tuple[int, ...]
    extents: tuple[int, ...]
    broadcast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a pass over axes needs of one result of an expression, in positions and slots."""

    expr: Expr
    name: str
    kind: OpKind
    op: str
    operands: tuple[str, ...]
    tensors: tuple[TensorView, ...]
    out: TensorView
    same: bool  # the only operand's axes are exactly the result's
    even: tuple[bool, ...]  # per operand: its axes are the result's, broadcast axes included
    sources: tuple[tuple[int, ...], ...]  # per operand: its position behind each root slot, or -1
    root_broadcast: tuple[bool, ...]
    root_extents: tuple[int, ...]
    steps: tuple[Step, ...]
    axes: tuple[int, ...]  # slots of the value's axes, -1 for axes without a source
    plain: bool  # the value's axes are the root slots, in order
    reduced: tuple[int, ...]  # slots that are reduced
    is_view: bool
    special: bool  # of a kind that schedulers ask about
    declared: tuple["Declared", ...]  # per operand: its axes if no expression computes it


_SPECIAL = frozenset(
    {OpKind.REDUCTION, OpKind.RESIZE, OpKind.RESHAPE, OpKind.MATMUL, OpKind.INDEXING}
    | {kind for kind in OpKind if kind.is_reserved},
)


def axis_size(axis: IterDomain) -> int:
    """Return the visible extent of an axis of a concretized fusion."""
    return axis.visible_extent if isinstance(axis.visible_extent, int) else 0


def _link(expr: Expr, number: int) -> Link:
    out = expr.tensor_outputs[number]
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
            steps.append(Step("merge", sources, (), (axis_size(transform.result),), transform.result.is_broadcast))
            declare(transform.result)
        elif isinstance(transform, Split):
            sizes = (axis_size(transform.outer), axis_size(transform.inner))
            steps.append(Step("split", (slots[transform.source.id],), (transform.factor,), sizes, broadcast=False))
            declare(transform.outer, transform.inner)
        else:
            widths = tuple(n if isinstance(n, int) else 0 for n in (transform.left, transform.right))
            result = transform.result
            source = slots[transform.source.id]
            steps.append(Step("resize", (source,), widths, (axis_size(result),), result.is_broadcast))
            declare(result)
    tensors = expr.tensor_inputs
    flags = tuple(axis.is_broadcast for axis in root)
    operand_places: list[tuple[int, ...]] = []
    for pairs in _positions(expr, number):
        places = [-1] * len(root)
        for a, b in pairs:
            places[b] = a
        operand_places.append(tuple(places))
    axes = tuple(slots.get(axis.id, -1) for axis in domain.axes)
    identity = tuple(range(len(root)))
    even = tuple(
        source == identity and tv.ndim == len(root) and tuple(a.is_broadcast for a in tv.domain.axes) == flags
        for tv, source in zip(tensors, operand_places, strict=True)
    )
    return Link(
        expr=expr,
        name=out.name,
        kind=expr.kind,
        op=expr.op.name,
        operands=tuple(tv.name for tv in tensors),
        tensors=tensors,
        out=out,
        same=len(tensors) == 1 and even[0] and not steps and axes == identity,
        even=even,
        sources=tuple(operand_places),
        root_broadcast=flags,
        root_extents=tuple(map(axis_size, root)),
        steps=tuple(steps),
        axes=axes,
        plain=not steps and axes == identity,
        reduced=tuple(slots[axis.id] for axis in domain.logical if axis.is_reduction),
        is_view=expr.kind.is_view,
        special=expr.kind in _SPECIAL,
        declared=tuple(map(_declaration_of, tensors)),
    )


def _declaration_of(tensor: TensorView) -> Declared:
    axes = tensor.domain.axes
    return Declared(
        tuple(axis.is_broadcast for axis in axes),
        tuple(map(axis_size, axes)),
        tuple((tensor.name, place) for place in range(len(axes))),
    )


class FusionLinks:
    """Links of a complete fusion's tensor expressions, created on first use.

    ``before`` are links of a fusion that this one is a rewrite of, ``unchanged`` the expressions that both have.
    """

    def __init__(
        self, fusion: Fusion, before: "FusionLinks | None" = None, unchanged: Collection[str] = (),
    ) -> None:
        self.fusion = fusion
        earlier = {} if before is None else before._links  # noqa: SLF001 - of the same class
        self._links: dict[str, tuple[Link, ...]] = {name: earlier[name] for name in unchanged if name in earlier}

    def of(self, exprs: Iterable[Expr]) -> list[Link]:
        """Return the links of all tensor results of expressions."""
        cached, exprs = self._links, list(exprs)
        names = [expr.name for expr in exprs]
        if not cached.keys() >= set(names):
            cached.update(
                (expr.name, tuple(_link(expr, number) for number in range(len(expr.tensor_outputs))))
                for expr in exprs if expr.name not in cached
            )
        return list(chain.from_iterable(map(cached.__getitem__, names)))


class Derivation(NamedTuple):
    """Classes made from other classes by a reshape or resize step of expression ``expr``."""

    name: str
    sources: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]
    expr: str


class SelfMapped(NamedTuple):
    """A tensor two of whose axes are one class."""

    tensor: str
    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMap:
    """Classes of axes over a set of expressions.

    ``classes[tensor]`` is the class of each axis of the value, ``reduced[tensor]`` the classes that a reduction
    removes. ``broadcast``, ``extent`` and ``origin`` (a tensor and a position) describe a class by its number.
    ``concretized[b]`` holds the iteration classes that broadcast class ``b`` meets, with an expression for each.
    ``components`` counts groups of expressions that share no tensor. ``joined`` says whether some class stands for
    several axes that are declared separately.
    """

    classes: dict[str, tuple[int, ...]]
    reduced: dict[str, tuple[int, ...]]
    broadcast: list[bool]
    extent: list[int]
    origin: list[tuple[str, int]]
    concretized: dict[int, dict[int, str]]
    derivations: list[Derivation]
    components: int
    self_mapped: SelfMapped | None
    joined: bool

    def concrete(self, tensor: TensorView) -> tuple[int, ...]:
        """Return the classes of a tensor's axes that are not broadcast axes."""
        broadcast = self.broadcast
        return tuple([c for c in self.classes.get(tensor.name, ()) if not broadcast[c]])


def exact_map(links: Iterable[Link]) -> ExactMap:
    """Return the classes of the axes of all tensors that expressions, in topological order, read and compute."""
    return _Builder().run(links)


def extended_map(exact: ExactMap, links: Collection[Link]) -> ExactMap | None:
    """Return a map with further expressions that read its tensors; None if they say more about its classes.

    ``links`` are in topological order; the map has all tensors that it has in common with them as operands. The result
    is that of `exact_map` for all expressions, apart from the numbers of classes.
    """
    if exact.components != 1 or exact.self_mapped is not None or any(link.name in exact.classes for link in links):
        return None
    # A class that stands for several axes has the origin of the one that is declared first.
    declared = {name for name, _ in exact.origin} if exact.joined else ()
    if any(name in declared for link in links for name in link.operands):
        return None
    return _Builder(exact).extended(exact, links)


class _Builder:
    """A forward pass: results inherit the numbers of their operands, and operands that meet join their numbers.

    ``before`` is a map of one component that the result begins with.
    """

    def __init__(self, before: ExactMap | None = None) -> None:
        self._classes: dict[str, tuple[int, ...]] = {} if before is None else before.classes.copy()
        self._reduced: dict[str, tuple[int, ...]] = {} if before is None else before.reduced.copy()
        self._broadcast: list[bool] = [] if before is None else before.broadcast.copy()
        self._extent: list[int] = [] if before is None else before.extent.copy()
        self._origin: list[tuple[str, int]] = [] if before is None else before.origin.copy()
        self._parent = list(range(len(self._extent)))  # never larger than its index: the older number stands for both
        self._meetings: list[tuple[int, int, str]] = []
        self._derivations: list[Derivation] = []
        self._made: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._groups: list[int] = [] if before is None else [0]
        self._joined = False

    def run(self, links: Iterable[Link]) -> ExactMap:
        component: dict[str, int] = {}
        self._visit(links, component)
        return self._finish(self._components(component))

    def extended(self, before: ExactMap, links: Iterable[Link]) -> ExactMap | None:
        """Return the map that begins with the one before, or None if its classes are no longer right."""
        component = defaultdict(int, {next(iter(before.classes)): 0})  # all that the map before has is in component 0
        self._visit(links, component)
        numbers = {self._classes[name] for name in component}
        if self._joined or self._meetings or self._derivations or self._self_mapped(numbers) is not None:
            return None
        return replace(
            before, classes=self._classes, reduced=self._reduced, broadcast=self._broadcast, extent=self._extent,
            origin=self._origin, components=self._components(component),
        )

    def _components(self, component: Mapping[str, int]) -> int:
        groups = self._groups
        return len({_group(groups, number) for number in set(component.values())})

    def _visit(self, links: Iterable[Link], component: dict[str, int]) -> None:
        classes = self._classes
        groups = self._groups
        for link in links:
            operands = link.operands
            name = link.name
            for number, operand in enumerate(operands):
                if operand not in classes:
                    self._declare(operand, link.declared[number])
                    component[operand] = len(groups)
                    groups.append(len(groups))
            if link.same:
                source = operands[0]
                classes[name] = classes[source]
                component[name] = component[source]
                continue
            if operands:
                group = component[operands[0]]
                for operand in operands[1:]:
                    if component[operand] != group:
                        _join(groups, group, component[operand])
            else:
                group = len(groups)
                groups.append(group)
            component[name] = group
            numbers = self._meet(link) if len(operands) > 1 else self._pass(link)
            if link.steps:
                self._derive(link, numbers)
            if link.plain:
                classes[name] = tuple(numbers)
            else:
                classes[name] = tuple([numbers[s] if s >= 0 else self._new(link, i) for i, s in enumerate(link.axes)])
            if link.reduced:
                self._reduced[name] = tuple([numbers[slot] for slot in link.reduced])

    def _finish(self, components: int) -> ExactMap:
        if self._joined:
            parent = self._parent
            for number, older in enumerate(parent):
                parent[number] = parent[older]
            final = parent.__getitem__
            merged = {numbers: tuple(map(final, numbers)) for numbers in set(self._classes.values())}
            self._classes = {name: merged[numbers] for name, numbers in self._classes.items()}
            self._reduced = {name: tuple(map(final, numbers)) for name, numbers in self._reduced.items()}
            self._meetings = [(parent[a], parent[b], expr) for a, b, expr in self._meetings]
            self._derivations = [
                Derivation(d.name, tuple(map(final, d.sources)), d.numbers, tuple(map(final, d.results)), d.expr)
                for d in self._derivations
            ]
        concretized: dict[int, dict[int, str]] = {}
        for source, target, expr in self._meetings:
            concretized.setdefault(source, {}).setdefault(target, expr)
        return ExactMap(
            classes=self._classes, reduced=self._reduced, broadcast=self._broadcast, extent=self._extent,
            origin=self._origin, concretized=concretized, derivations=self._derivations, components=components,
            self_mapped=self._self_mapped(set(self._classes.values())), joined=self._joined,
        )

    def _self_mapped(self, classes: Iterable[tuple[int, ...]]) -> SelfMapped | None:
        # Two axes may get one number without a union, if a broadcast axis meets an axis of the same tensor.
        for numbers in classes:
            if len(set(numbers)) == len(numbers):
                continue
            for first, number in enumerate(numbers):
                if not self._broadcast[number] and number in numbers[first + 1 :]:
                    name = next(name for name, classes in self._classes.items() if classes == numbers)
                    return SelfMapped(name, first, numbers.index(number, first + 1))
        return None

    def _find(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def _union(self, a: int, b: int) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            self._joined = True
            self._parent[max(a, b)] = min(a, b)

    def _fresh(self, extent: int, broadcast: bool, tensor: str, place: int) -> int:
        number = len(self._parent)
        self._parent.append(number)
        self._broadcast.append(broadcast)
        self._extent.append(extent)
        self._origin.append((tensor, place))
        return number

    def _new(self, link: Link, place: int) -> int:
        axis = link.out.domain.axes[place]
        return self._fresh(axis_size(axis), axis.is_broadcast, link.name, place)

    def _declare(self, name: str, declared: Declared) -> None:
        first = len(self._parent)
        numbers = tuple(range(first, first + len(declared.extents)))
        self._classes[name] = numbers
        self._parent.extend(numbers)
        self._broadcast.extend(declared.broadcast)
        self._extent.extend(declared.extents)
        self._origin.extend(declared.origins)

    def _pass(self, link: Link) -> list[int]:
        """Classes of the root slots of an expression with at most one tensor operand."""
        flags, extents = link.root_broadcast, link.root_extents
        if not link.operands:
            return [self._fresh(extent, flags[slot], link.name, slot) for slot, extent in enumerate(extents)]
        classes = self._classes[link.operands[0]]
        return [
            classes[place] if place >= 0 else self._fresh(extents[slot], flags[slot], link.name, slot)
            for slot, place in enumerate(link.sources[0])
        ]

    def _meet(self, link: Link) -> list[int]:
        """Classes of the root slots where several operands meet."""
        classes = self._classes
        flags = link.root_broadcast
        roots: list[int] = []
        uneven = []
        chosen: tuple[int, ...] | None = None
        for number, name in enumerate(link.operands):
            if not link.even[number]:
                uneven.append(number)
                continue
            numbers = classes[name]
            if chosen is None:
                chosen = numbers
                roots = list(numbers)
            elif numbers != chosen:
                for old, new in zip(chosen, numbers, strict=True):
                    if old != new:
                        self._union(old, new)
        if not uneven:
            return roots
        roots = roots or [-1] * len(flags)
        meetings: list[tuple[int, int]] = []
        for number in uneven:
            numbers = classes[link.operands[number]]
            for slot, place in enumerate(link.sources[number]):
                if place < 0:
                    continue
                new = numbers[place]
                if self._broadcast[new] != flags[slot]:
                    meetings.append((new, slot))
                elif roots[slot] < 0:
                    roots[slot] = new
                elif roots[slot] != new:
                    self._union(roots[slot], new)
        for slot, old in enumerate(roots):
            if old < 0:
                roots[slot] = self._fresh(link.root_extents[slot], flags[slot], link.name, slot)
        self._meetings.extend([(source, roots[slot], link.name) for source, slot in meetings])
        return roots

    def _derive(self, link: Link, numbers: list[int]) -> None:
        """Append the classes of reshape and resize steps; equal steps of equal classes give equal classes."""
        for step in link.steps:
            sources = tuple([self._find(numbers[slot]) for slot in step.sources])
            key = (step.name, sources, step.numbers, step.extents)
            results = self._made.get(key)
            if results is None:
                results = self._made[key] = tuple(
                    [
                        self._fresh(extent, step.broadcast, link.name, len(numbers) + place)
                        for place, extent in enumerate(step.extents)
                    ],
                )
                self._derivations.append(Derivation(step.name, sources, step.numbers, results, link.name))
            numbers.extend(results)


def _group(groups: list[int], number: int) -> int:
    while groups[number] != number:
        number = groups[number]
    return number


def _join(groups: list[int], a: int, b: int) -> None:
    a, b = _group(groups, a), _group(groups, b)
    if a != b:
        groups[max(a, b)] = min(a, b)

"""A straightforward segmenter: a list of sets, inspected again after every merge. Slow, and easy to check.

It remembers only the refused sets, so that it terminates. `fuser_lab.segmentation.bottom_up` must give the same
segments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.segmentation import SchedulerOracle, SegmenterOptions, SegmentSetMeaning, candidate
from fuser_lab.segmentation.casts import is_narrowing, is_widening
from fuser_lab.segmentation.forwarding import forwarded_chains
from fuser_lab.segmentation.hints import has_hints, refused_by_hint
from fuser_lab.segmentation.pieces import pieces

Group = frozenset[Expr]
Edge = tuple[Group, TensorView, Group]


def plain_segments(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, grouped: Fusion | None = None,
    originals: Mapping[str, str] | None = None,
) -> set[frozenset[str]]:
    """Return the segments as sets of names of expressions.

    ``grouped`` is the fusion after the rewrites before grouping, ``originals`` maps each replica to the original.
    """
    if options.whole_fusion and not has_hints(fusion, options):
        group = candidate(fusion, fusion.tensor_exprs)
        if (refused_by_hint(group, options) or oracle.ask(group)).chosen is not None:
            return {frozenset(e.name for e in (grouped or fusion).tensor_exprs)}
    taken: list[set[str]] = []
    if options.whole_fusion and options.segment_set is SegmentSetMeaning.CUT and has_hints(fusion, options):
        plain = replace(options, cut_reshape_inputs=False, cut_resize_inputs=False)
        for piece in pieces(fusion, plain):
            group = candidate(fusion, [fusion.tensor_exprs[place] for place in piece])
            if (refused_by_hint(group, options) or oracle.ask(group)).chosen is not None:
                taken.append({e.name for e in group.exprs})
    return _Plain(grouped or fusion, oracle, options, originals or {}, taken).segments()


def plain_privatized(fusion: Fusion) -> Fusion:
    """Return the fusion with replicas of widening casts and squeezes, created one by one."""
    exprs, made = list(fusion.exprs), True
    while made:
        made = False
        for reader in [e.name for e in exprs]:
            expr = next(e for e in exprs if e.name == reader)
            for value in expr.tensor_inputs:
                users = [e for e in exprs if value in e.inputs]
                maker = next((e for e in exprs if value in e.outputs), None)
                if maker is None or users[0].name == reader:
                    continue
                if not (is_widening(maker) or (maker.op.name == "squeeze" and len(users) == 2)):
                    continue
                copy = replace(value, name=f"{value.name} for {reader}")
                place = next(i for i, e in enumerate(exprs) if e.name == reader)
                inputs = tuple(copy if v == value else v for v in exprs[place].inputs)
                exprs[place : place + 1] = [replace(maker, outputs=(copy,)), replace(exprs[place], inputs=inputs)]
                made = True
    return replace(fusion, exprs=tuple(exprs))


class _Plain:
    def __init__(
        self, fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, originals: Mapping[str, str],
        taken: Iterable[set[str]],
    ) -> None:
        self.fusion, self.oracle, self.options, self.originals = fusion, oracle, options, originals
        self.committed = [frozenset(e for e in fusion.tensor_exprs if e.name in names) for names in taken]
        inside = {e for group in self.committed for e in group}
        self.chains = list(forwarded_chains(fusion, options, inside))
        self.forwarded = {e for chain in self.chains for e in chain.exprs}
        self.recomputed = frozenset(e.name for e in self.forwarded)
        singles = (e for e in fusion.tensor_exprs if e not in self.forwarded and e not in inside)
        self.groups: list[Group] = [*self.committed, *(frozenset({e}) for e in singles)]

    def segments(self) -> set[frozenset[str]]:
        self.until_nothing_changes(self.cats)
        self.until_nothing_changes(self.casts)
        if self.options.combine_reductions:
            self.until_nothing_changes(self.reductions)
        if self.options.level_merge:
            while self.level_round():
                pass
        if self.options.final_merge:
            self.until_nothing_changes(self.finals)
        return self.resolved()

    # Questions

    def taken(self, exprs: Iterable[Expr]) -> bool:
        group = candidate(self.fusion, exprs, self.recomputed)
        return (refused_by_hint(group, self.options) or self.oracle.ask(group)).chosen is not None

    def maker(self, tensor: TensorView) -> Group | None:
        return next((g for g in self.groups if any(tensor in e.outputs for e in g)), None)

    def in_order(self, group: Group) -> list[Expr]:
        return [e for e in self.fusion.exprs if e in group]

    def edges(self, group: Group) -> list[Edge]:
        """Return incoming edges, then outgoing ones, in the order of expressions."""
        found: dict[Edge, None] = {}
        for expr in self.in_order(group):
            for tensor in expr.tensor_inputs:
                maker = self.maker(tensor)
                if maker is not None and maker != group:
                    found[maker, tensor, group] = None
        for expr in self.in_order(group):
            for tensor in expr.tensor_outputs:
                for user in self.fusion.exprs:
                    reader = next((g for g in self.groups if user in g), None)
                    if tensor in user.inputs and reader is not None and reader != group:
                        found[group, tensor, reader] = None
        return list(found)

    def producers(self, group: Group) -> list[Group]:
        return list(dict.fromkeys(a for a, _, b in self.edges(group) if b == group))

    def consumers(self, group: Group) -> list[Group]:
        return list(dict.fromkeys(b for a, _, b in self.edges(group) if a == group))

    def leads(self, start: Group, end: Group) -> bool:
        """Whether a path of at least one edge leads from one group to another."""
        waiting, seen = self.consumers(start), []
        while waiting:
            here = waiting.pop()
            if here == end:
                return True
            if here not in seen:
                seen.append(here)
                waiting += self.consumers(here)
        return False

    def sources(self, group: Group) -> set[TensorView]:
        made = {t for g in self.groups for e in g for t in e.tensor_outputs}
        return {t for e in group for t in e.tensor_inputs if t not in made}

    # Merging

    def until_nothing_changes(self, sets: Callable[[], Iterator[list[Group]]]) -> None:
        """Merge the first set that is accepted, and start again."""
        refused: set[frozenset[Group]] = set()
        while True:
            for members in sets():
                key = frozenset(members)
                if key in refused:
                    continue
                if self.taken(e for g in members for e in g):
                    self.merge(members)
                    break
                refused.add(key)
            else:
                return

    def merge(self, members: Iterable[Group]) -> None:
        gone = list(members)
        self.groups = [g for g in self.groups if g not in gone]
        self.groups.append(frozenset(e for g in gone for e in g))

    def only(self, group: Group) -> Expr | None:
        return next(iter(group)) if len(group) == 1 and group not in self.committed else None

    # Phases

    def cats(self) -> Iterator[list[Group]]:
        for group in list(self.groups):
            cat = self.only(group)
            if cat is None or cat.op.name != "cat":
                continue
            makers = [self.maker(t) for t in cat.tensor_inputs]
            if all(m is not None and self.private_pad(m) for m in makers):
                yield [*(m for m in makers if m is not None), group]

    def private_pad(self, group: Group) -> bool:
        pad = self.only(group)
        return pad is not None and pad.op.name == "pad" and len(self.consumers(group)) == 1

    def casts(self) -> Iterator[list[Group]]:
        for group in list(self.groups):
            cast = self.only(group)
            if cast is None or not is_widening(cast):
                continue
            found = [group]
            for here in found:
                expr = self.only(here)
                assert expr is not None
                out = [e for e in self.edges(here) if e[0] == here]
                reached = []
                if len(out) == 1 and not is_narrowing(expr):
                    reached.append(out[0][2])
                if not is_widening(expr):
                    reached += [p for p in self.producers(here) if sum(e[0] == p for e in self.edges(p)) == 1]
                found += [g for g in dict.fromkeys(reached) if g not in found and self.only(g) is not None]
            if len(found) > 1:
                yield found

    def signature(self, group: Group) -> object:
        if group in self.committed:
            return None
        kinds = {
            (len(e.out.domain.logical), tuple(a.is_reduction for a in e.out.domain.logical))
            for e in group
            if e.kind is OpKind.REDUCTION
        }
        return kinds.pop() if len(kinds) == 1 else None

    def hull(self, start: Group, end: Group) -> list[Group]:
        return [
            g for g in self.groups if g in (start, end) or (self.leads(start, g) and self.leads(g, end))
        ]

    def reductions(self) -> Iterator[list[Group]]:
        for first in list(self.groups):
            for second in list(self.groups):
                signature = self.signature(first)
                if first == second or signature is None or signature != self.signature(second):
                    continue
                if self.leads(first, second):
                    sets: Iterable[list[Group]] = [self.hull(first, second)]
                elif self.groups.index(first) < self.groups.index(second) and not self.leads(second, first):
                    sets = self.beside(first, second)
                else:
                    continue
                for members in sets:
                    alike = all(self.signature(m) in (None, signature) for m in members)
                    if alike and not self.stores(members) and not any(m in self.committed for m in members):
                        yield members

    def stores(self, members: list[Group]) -> bool:
        return any(
            tensor in self.fusion.outputs and b in members
            for m in members
            for a, tensor, b in self.edges(m)
            if a == m
        )

    def beside(self, first: Group, second: Group) -> Iterator[list[Group]]:
        readers = [
            self.consumers(g)
            for g in reversed(self.topological())
            if self.leads(g, first) and self.leads(g, second)
        ]
        tensors = self.fusion.tensors.values()
        readers += [[g for g in self.groups if tensor in self.sources(g)] for tensor in tensors]
        for siblings in readers:
            for a in siblings:
                for b in siblings:
                    if (a != first and not self.leads(a, first)) or (b != second and not self.leads(b, second)):
                        continue
                    union = list(dict.fromkeys([*self.hull(a, first), *self.hull(b, second)]))
                    if self.convex(union):
                        yield union

    def convex(self, members: list[Group]) -> bool:
        return not any(
            other not in members
            and any(self.leads(m, other) for m in members)
            and any(self.leads(other, m) for m in members)
            for other in self.groups
        )

    def topological(self) -> list[Group]:
        """Return the groups in the order of Kahn's algorithm with a queue."""
        left = {g: len(self.producers(g)) for g in self.groups}
        order = [g for g, count in left.items() if not count]
        for group in order:
            for consumer in self.consumers(group):
                left[consumer] -= 1
                if not left[consumer]:
                    order.append(consumer)
        return order

    def level_round(self) -> bool:
        level: dict[Group, int] = {}
        for group in self.topological():
            above = [level[p] for p in self.producers(group)] + [0] * bool(self.sources(group))
            level[group] = 1 + max(above) if above else 0
        partner: dict[Group, Group] = {}
        pairs: list[list[Group]] = []

        def near(a: Group, b: Group) -> bool:
            return abs(level[a] - level[b]) <= 1

        def barred(group: Group, targets: list[Group]) -> bool:
            around = [*self.producers(group), *self.consumers(group)]
            return any(near(x, t) for n in around if n in partner for x in (n, partner[n]) for t in targets)

        def candidates(group: Group) -> list[Group]:
            if group in partner or barred(group, [group]):
                return []
            ends = [
                a if b == group else b for a, tensor, b in self.edges(group) if tensor not in self.fusion.outputs
            ]
            return [
                o for o in dict.fromkeys(ends) if o not in partner and near(o, group) and not barred(o, [group, o])
            ]

        def pair(a: Group, b: Group) -> None:
            if self.taken(a | b):
                partner[a], partner[b] = b, a
                pairs.append([a, b])

        for group in self.groups:
            for expr in self.in_order(group):
                if expr.op.name == "pad" and self.maker(expr.tensor_inputs[0]) != group:
                    for a, tensor, b in self.edges(group):
                        if a == group and tensor is expr.out and b in candidates(group):
                            pair(group, b)
        if not pairs:
            for group in self.groups:
                for other in candidates(group):
                    pair(group, other)
                    if group in partner:
                        break
        for members in pairs:
            self.merge(members)
        return bool(pairs)

    def finals(self) -> Iterator[list[Group]]:
        for producer in list(self.groups):
            consumers = self.consumers(producer)
            for consumer in consumers:
                if not any(self.leads(other, consumer) for other in consumers if other != consumer):
                    yield [producer, consumer]

    def resolved(self) -> set[frozenset[str]]:
        copies: dict[Group, set[Expr]] = {g: set(g) for g in self.groups}
        stored: list[frozenset[str]] = []
        for chain in self.chains:
            readers = [g for g in self.groups if any(chain.end in e.inputs for e in g)]
            took = [g for g in readers if self.taken({*copies[g], *chain.exprs})]
            for group in took:
                copies[group].update(chain.exprs)
            if took == readers and readers and chain.end not in self.fusion.outputs:
                continue
            if self.taken(chain.exprs):
                stored.append(frozenset(chain.names))
            else:
                stored += [frozenset({name}) for name in chain.names]
        return self.reverted([frozenset(exprs) for exprs in copies.values()]) | set(stored)

    def reverted(self, groups: list[Group]) -> set[frozenset[str]]:
        """Return the names in each group without replicas of other expressions in it, if the rest is accepted."""
        gone: dict[str, TensorView] = {}
        left: list[list[str]] = []
        for group in groups:
            first: dict[object, TensorView] = {}
            left.append([])
            for expr in self.in_order(group):
                reads = [gone.get(v.name, v) for v in expr.inputs]
                same = first.setdefault((self.originals.get(expr.name, expr.name), *(v.name for v in reads)), expr.out)
                if same is expr.out:
                    left[-1].append(expr.name)
                else:
                    gone[expr.name] = same
        exprs = {
            e.name: replace(e, inputs=tuple(gone.get(v.name, v) for v in e.inputs))
            for e in self.fusion.exprs
            if e.name not in gone
        }
        self.fusion = replace(self.fusion, exprs=tuple(exprs.values()))
        found: set[frozenset[str]] = set()
        for group, names in zip(groups, left, strict=True):
            reduced = len(names) < len(group) and self.taken(exprs[name] for name in names)
            found.add(frozenset(names) if reduced else frozenset(e.name for e in group))
        return found

"""Why two selections of ops are in different regions: what is between them, and the rule that separates them."""

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import TYPE_CHECKING

from fuser_lab.arguments import listing
from fuser_lab.bridge.graph_walk import Unit
from fuser_lab.bridge.model_view import is_free
from fuser_lab.bridge.partition import base_of, is_most_of, section_starts
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.remedies import remedy_option
from fuser_lab.bridge.selection import Selection, left_of, select_ops
from fuser_lab.bridge.traced import Node, origin_of, target_of
from fuser_lab.segmentation import Why

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph, GraphBreak

Home = tuple[Region, tuple[str, ...]]  # a region, and the components of a module's path


class Relation(enum.Enum):
    """The relation of two selections of ops."""

    TOGETHER = "together"
    SEGMENTS = "in different segments"
    REGIONS = "in different regions"
    LEFT = "left to the library"
    GRAPHS = "in different graphs"
    OUTSIDE = "outside of the graphs"


class Rule(enum.Enum):
    """What keeps two regions separate."""

    CYCLE = "one region would close a cycle"
    SECTION = "an op with an effect"
    SIZE = "the maximum size of a region"
    NOTHING_SHARED = "no common value"
    ORDER = "the order of joining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """An op that the library runs, or a region by its number, between two regions."""

    op: str = ""
    reason: str = ""
    origin: str = ""
    region: int | None = None

    def __str__(self) -> str:
        """Return the op with its line, or the region."""
        if self.region is not None:
            return f"region {self.region}"
        return f"{self.op} ({self.origin})" if self.origin else self.op


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAnswer:
    """The relation of two selections in one graph, or across graphs.

    ``regions`` are the numbers of the compared regions, None for an op that the library runs; ``between`` is what
    separates them, and ``segments`` the plan's answer if the region is the same.
    """

    relation: Relation
    text: str
    graphs: tuple[int | None, int | None]
    regions: tuple[int | None, int | None] = (None, None)
    rule: Rule | None = None
    between: tuple[Between, ...] = ()
    segments: Why | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionWhy:
    """The answer of ``why`` for a captured function: one part for each graph that has ops of both selections."""

    answers: tuple[RegionAnswer, ...]

    @property
    def relation(self) -> Relation:
        """The relation in the first graph."""
        return self.answers[0].relation

    @property
    def text(self) -> str:
        """The sentences of all answers."""
        return "\n".join(answer.text for answer in self.answers)

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return self.text


def region_why(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], a: str, b: str) -> RegionWhy:
    """Return why the ops that two texts select are in one region or not.

    Raises
    ------
    InputError
        If a text selects no op, or several things.
    """
    outside = [_outside(graphs, breaks, text) for text in (a, b)]
    answer_between = next((answer for answer in outside if answer is not None), None)
    if answer_between is not None:
        return RegionWhy(answers=(answer_between,))
    first, second = select_ops(graphs, a, breaks), select_ops(graphs, b, breaks)
    common = [number for number in first.by_graph if number in second.by_graph]
    if not common:
        return RegionWhy(answers=(_across(graphs, breaks, first, second),))
    return RegionWhy(answers=tuple(_Comparison(graphs, number, first, second).answer() for number in common))


def _outside(graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], text: str) -> RegionAnswer | None:
    """Return the answer for a line at which a graph ends and that no captured op comes from."""
    word = text.strip().rpartition("/")[2]
    ended = next((b for b in breaks if b.place and word in {b.place, b.place.rpartition(":")[2]}), None)
    if ended is None or any(
        origin_of(node).place == ended.place for graph in graphs for node in graph.traced.nodes
        if node.op == "call_function"
    ):
        return None
    library = graphs[0].library if graphs else "torch"
    sentence = f"{text} is in no graph, and {library} runs it between graphs: {ended}."
    return RegionAnswer(relation=Relation.OUTSIDE, text=sentence, graphs=(None, None))


def _across(
    graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"], first: Selection, second: Selection,
) -> RegionAnswer:
    """Return the answer for selections that share no graph."""
    at = next(iter(first.by_graph)), next(iter(second.by_graph))
    labels = [
        f"{each.text} is in graph {number} ({graphs[number].kind}), {_home_of(graphs[number], each.by_graph[number])}"
        for each, number in zip((first, second), at, strict=True)
    ]
    low, high = sorted(at)
    ends = [str(b) for b in breaks if low <= b.graph < high and graphs[high].kind != "backward"]
    kinds = {graphs[number].kind for number in at}
    if "backward" in kinds and len(kinds) == 2:
        why = "no region spans a forward and a backward graph, which run at different times"
    elif ends:
        why = f"no region spans two graphs, and {'; '.join(ends)}"
    else:
        why = "no region spans two graphs"
    return RegionAnswer(
        relation=Relation.GRAPHS, text=f"{' and '.join(labels)}; {why}.", graphs=at,
    )


def _home_of(graph: "CapturedGraph", nodes: Iterable[Node]) -> str:
    """Return ``in region 3`` or ``left to torch`` for nodes."""
    inside = set(nodes)
    numbers = [str(region.index) for region in graph.regions if not inside.isdisjoint(region.nodes)]
    return f"in {_number_list(numbers)}" if numbers else f"left to {graph.library}"


def _number_list(numbers: Sequence[str]) -> str:
    return f"region{'s' if len(numbers) > 1 else ''} {listing(numbers)}"


class _Comparison:
    """Two selections in one graph, whose regions and remaining ops are its units."""

    def __init__(self, graphs: Sequence["CapturedGraph"], number: int, first: Selection, second: Selection) -> None:
        self._graph, self._number, self._several = graphs[number], number, len(graphs) > 1
        self._selections = (first, second)
        self._nodes = first.by_graph[number], second.by_graph[number]
        self._left = left_of(self._graph)
        self._unit: dict[Node, Unit] = {node: region for region in self._graph.regions for node in region.nodes}
        self._after: dict[Unit, dict[Unit, None]] = {}
        for node in self._graph.traced.nodes:
            for operand in node.all_input_nodes:
                reader, source = self._unit.get(node, node), self._unit.get(operand, operand)
                if reader is not source:
                    self._after.setdefault(source, {})[reader] = None

    def answer(self) -> RegionAnswer:
        """Return the relation, what decides it, and the next call."""
        regions = tuple(self._regions(nodes) for nodes in self._nodes)
        if not regions[0] or not regions[1]:
            return self._left_out(regions[0], regions[1])
        first, second = self._nearest()
        if first is second:
            return self._within(first)
        return self._apart(first, second)

    def _regions(self, nodes: Iterable[Node]) -> tuple[Region, ...]:
        return tuple(dict.fromkeys(region for region, _ in self._homes(nodes)))

    def _homes(self, nodes: Iterable[Node]) -> tuple[Home, ...]:
        """Return the regions of nodes with the modules in them, by components of the path."""
        pairs = ((self._unit.get(node), tuple(origin_of(node).module.split("."))) for node in nodes)
        return tuple(dict.fromkeys((unit, path) for unit, path in pairs if isinstance(unit, Region)))

    def _nearest(self) -> tuple[Region, Region]:
        """Return the pair to compare: in the innermost common module, then one region, then neighbours."""
        def distance(pair: tuple[Home, Home]) -> tuple[int, int]:
            (first, path), (second, other) = pair
            common = sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], zip(path, other, strict=False)))
            return -common, 0 if first is second else 1 if self._are_adjacent(first, second) else 2

        (first, _), (second, _) = min(product(self._homes(self._nodes[0]), self._homes(self._nodes[1])), key=distance)
        return first, second

    def _are_adjacent(self, first: Region, second: Region) -> bool:
        return second in self._after.get(first, ()) or first in self._after.get(second, ())

    def _elsewhere(self, *compared: Region) -> str:
        """Return a sentence about the other regions that have ops of the selections, with the next call."""
        parts = []
        for selection, nodes, region in zip(self._selections, self._nodes, compared, strict=True):
            others = [str(each.index) for each in self._regions(nodes) if each is not region]
            if others:
                word = f"{selection.text} region {others[0]}"
                parts.append(f"{selection.text} also has ops in {_number_list(others)}; select them by {word!r}")
        return f" {'. '.join(parts)}." if parts else ""

    # One of them is left to the library

    def _left_out(self, *regions: Sequence[Region]) -> RegionAnswer:
        clauses = []
        for selection, nodes, place in zip(self._selections, self._nodes, regions, strict=True):
            if place:
                clauses.append(f"{selection.text} is {_home_of(self._graph, nodes)}")
            else:
                ops = listing(dict.fromkeys(f"{target_of(n)}: {self._left.get(n, 'it unpacks a list')}" for n in nodes))
                clauses.append(f"{self._graph.library} runs {selection.text} ({ops})")
        missing = [node for nodes, place in zip(self._nodes, regions, strict=True) if not place for node in nodes]
        return self._answer(
            Relation.LEFT, f"{' and '.join(clauses)}.{self._remedy(missing)}",
            [place[0] if place else None for place in regions], between=tuple(map(self._op, missing)),
        )

    def _op(self, node: Node) -> Between:
        origin = origin_of(node)
        return Between(op=target_of(node), reason=self._left.get(node, ""), origin=str(origin))

    def _remedy(self, nodes: Iterable[Node]) -> str:
        """Return a sentence with the option that changes why nodes are left to the library, if there is one."""
        options = (remedy_option(self._graph.library, target_of(node), self._left.get(node, "")) for node in nodes)
        return next((f" {option}." for option in options if option), "")

    # One region

    def _within(self, region: Region) -> RegionAnswer:
        """Return the answer for ops of one region: the plan's, for two tensors of theirs."""
        tensors = [self._tensors(region, nodes) for nodes in self._nodes]
        names = " and ".join(selection.text for selection in self._selections)
        if not all(tensors):
            text = f"{names} are together in region {region.index}, whose passes leave no tensor of one of them."
            return self._answer(Relation.TOGETHER, text, (region, region))
        segmented = region.plan.segmented
        homes = {
            name: segmented.homes[segmented.fusion.producers[segmented.fusion.tensors[name]].name]
            for selected_tensors in tensors for name in selected_tensors
        }
        _, a, b = min(
            (min(abs(i - j) for i in homes[a] for j in homes[b]), a, b) for a in tensors[0] for b in tensors[1]
        )
        why = region.plan.why(a, b)
        together = why.segments[0] == why.segments[1]
        where = f"segment {why.segments[0]}" if together else f"segments {why.segments[0]} and {why.segments[1]}"
        text = (
            f"{names} are together in region {region.index}, in {where}: {why.text}\n  {self._call(region, a, b)}"
            f"{self._elsewhere(region, region)}"
        )
        return self._answer(
            Relation.TOGETHER if together else Relation.SEGMENTS, text, (region, region), segments=why,
        )

    def _tensors(self, region: Region, nodes: Iterable[Node]) -> list[str]:
        """Return the tensors of nodes that the plan's segments compute."""
        inside, fusion = set(nodes), region.plan.segmented.fusion
        return [
            name for node, op in zip(region.call_nodes, region.ops, strict=True) if node in inside
            for name in op.tensors if name in fusion.tensors and fusion.tensors[name] in fusion.producers
        ]

    def _call(self, region: Region, a: str, b: str) -> str:
        graph = f".graphs[{self._number}]" if self._several else ""
        return f"{graph}.regions[{region.index}].plan.why({a!r}, {b!r}) has the schedulers' answers."

    # Two regions

    def _apart(self, first: Region, second: Region) -> RegionAnswer:
        named_first, other = (
            text if text.endswith(f"region {region.index}") else f"{text} in region {region.index}"
            for text, region in zip((each.text for each in self._selections), (first, second), strict=True)
        )
        rule, why, between, nodes = self._rule(first, second)
        remedy = self._remedy(nodes) or self._next(first, between)
        text = f"{named_first} and {other} are separate; {why}.{remedy}{self._elsewhere(first, second)}"
        return self._answer(Relation.REGIONS, text, (first, second), rule=rule, between=between)

    def _next(self, first: Region, between: Sequence[Between]) -> str:
        """Return a sentence with the call that explains the first region in between."""
        region = next((unit.region for unit in between if unit.region is not None), None)
        if region is None:
            return ""
        graph = f"graph {self._number} " if self._several else ""
        return f" .why('{graph}region {first.index}', '{graph}region {region}') says why that region is separate."

    def _rule(self, first: Region, second: Region) -> tuple[Rule, str, tuple[Between, ...], tuple[Node, ...]]:
        """Return the rule that separates two regions, its clause, what is between them, and the ops among that."""
        library = self._graph.library
        through = self._path(first, second) or self._path(second, first)
        if through:
            between = tuple(Between(region=u.index) if isinstance(u, Region) else self._op(u) for u in through)
            ops = tuple(unit for unit in through if not isinstance(unit, Region))
            reasons = listing(dict.fromkeys(f"{unit.op}: {unit.reason}" for unit in between if unit.op))
            because = f", of which {library} runs {reasons}" if len(between) > 1 and ops else ""
            if len(between) == 1 and ops:
                because = f", which {library} runs: {between[0].reason}"
            way = ", ".join(map(str, between))
            return Rule.CYCLE, f"one region for both would close a cycle through {way}{because}", between, ops
        barrier = self._barrier(first, second)
        if barrier is not None:
            why = f"no region spans {self._op(barrier)}, because {self._left.get(barrier, 'it has an effect')}"
            return Rule.SECTION, why, (self._op(barrier),), ()
        if not self._share(first, second):
            return Rule.NOTHING_SHARED, "they share no computed value and no input as large as their results", (), ()
        if len(first) + len(second) > self._graph.most:
            total = len(first) + len(second)
            why = (
                f"together they have {total} ops, and a region has at most {self._graph.most}; "
                f"max_region_ops={total} allows one"
            )
            return Rule.SIZE, why, (), ()
        why = "no rule forbids one region, but ops are joined from the last to the first, and both had joined others"
        return Rule.ORDER, why, (), ()

    def _path(self, start: Region, end: Region) -> tuple[Unit, ...]:
        """Return the units between two regions on the shortest path through one at least; views do not count."""
        waiting: deque[Unit] = deque(unit for unit in self._after.get(start, ()) if unit is not end)
        before: dict[Unit, Unit] = dict.fromkeys(waiting, start)
        while waiting:
            unit = waiting.popleft()
            for reader in self._after.get(unit, ()):
                if reader is end:
                    path = [unit for unit in _back(unit, start, before) if not self._is_view(unit)]
                    if path:
                        return tuple(reversed(path))
                elif reader not in before:
                    before[reader] = unit
                    waiting.append(reader)
        return ()

    def _is_view(self, unit: Unit) -> bool:
        return not isinstance(unit, Region) and (
            is_free(self._left.get(unit, "")) or target_of(unit) == "getitem"
        )

    def _barrier(self, first: Region, second: Region) -> Node | None:
        """Return the first op with an effect between the nodes of two regions, in the order of the graph."""
        if self._graph.library != "torch":
            return None
        place = {node: number for number, node in enumerate(self._graph.traced.nodes)}
        low, high = sorted((first, second), key=lambda region: place[region.nodes[0]])
        starts = section_starts(self._graph.traced.nodes)
        return next((n for n in starts if place[low.nodes[-1]] < place[n] < place[high.nodes[0]]), None)

    def _share(self, first: Region, second: Region) -> bool:
        """Whether one region reads the other, or both read a computed value or a large input."""
        if self._are_adjacent(first, second):
            return True
        bases = [
            {base_of(operand) for node in region.nodes for operand in node.all_input_nodes
             if (base := base_of(operand)).op == "call_function" or is_most_of(base, node)}
            for region in (first, second)
        ]
        return not bases[0].isdisjoint(bases[1])

    def _answer(
        self, relation: Relation, text: str, regions: Sequence[Region | None], *, rule: Rule | None = None,
        between: tuple[Between, ...] = (), segments: Why | None = None,
    ) -> RegionAnswer:
        """Return an answer about this graph."""
        numbers = tuple(None if region is None else region.index for region in regions)
        head = f"graph {self._number} ({self._graph.kind}): " if self._several else ""
        return RegionAnswer(
            relation=relation, text=f"{head}{text}", graphs=(self._number, self._number),
            regions=(numbers[0], numbers[1]), rule=rule, between=between, segments=segments,
        )


def _back(unit: Unit, start: Unit, before: Mapping[Unit, Unit]) -> Iterator[Unit]:
    """Yield the units from one back to the start of a path, without the start."""
    while unit is not start:
        yield unit
        unit = before[unit]

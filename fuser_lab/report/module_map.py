"""A captured graph as boxes by module path: each box opens into its contents, and repetitions are folded.

The boxes of a level are modules, and the calls of the level's own module: those in one region, or those of one op that
torch runs. Calls share a box only if no path leads out of the box and back, other than through a module that is called
again.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Path = tuple[str, ...]
BoxKind = Literal["module", "region", "kernel", "kernels", "torch"]
_MOST_TURNS = 16  # most different modules in a repeating pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that computes something: the parts of its module path, its op, its region (None: torch), its bytes."""

    module: Path
    op: str
    region: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A tensor that call ``source`` makes and call ``target`` reads; ``target`` is None for a result of the graph."""

    source: int
    target: int | None
    tensor: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """The calls of a graph in a valid run order, with the tensors between them; ``classes`` by path."""

    title: str
    calls: tuple[Call, ...]
    flows: tuple[Flow, ...]
    library: str = "torch"  # the library that runs the calls outside regions
    classes: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def into(self) -> tuple[tuple[Flow, ...], ...]:
        """For each call, the tensors that it reads from other calls."""
        flows_into: list[list[Flow]] = [[] for _ in self.calls]
        for flow in self.flows:
            if flow.target is not None:
                flows_into[flow.target].append(flow)
        return tuple(map(tuple, flows_into))

    @cached_property
    def out_of(self) -> tuple[tuple[Flow, ...], ...]:
        """For each call, the tensors that other calls read from it."""
        flows_out: list[list[Flow]] = [[] for _ in self.calls]
        for flow in self.flows:
            flows_out[flow.source].append(flow)
        return tuple(map(tuple, flows_out))


    @cached_property
    def counted(self) -> "dict[tuple[int, ...], _Counts]":
        """Counts of sets of calls, cached: each redraw of a map opens or closes few boxes."""
        return {}

    @cached_property
    def levels(self) -> "dict[tuple[Path, tuple[int, ...], bool], _Level]":
        """The levels drawn so far, cached."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The tensors from one box to another of its level, by position; ``back`` is against the run order."""

    source: int
    target: int
    tensors: int
    bytes: int
    back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The boxes of one level in run order, and the links between them."""

    boxes: "tuple[ModuleBox, ...]"
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleBox:
    """A module, ``times`` equal ones in a row, or calls of the enclosing module; ``inside`` if it is open.

    If different modules alternate, as layers with local and with global attention do, ``turns`` of them repeat
    ``times`` times, and ``inside`` holds the first of each. ``calls`` are numbers, ``ops`` the distinct names of the
    called ops, and ``left`` counts calls outside regions. ``bytes_in`` and ``bytes_out`` count each tensor that other
    calls make for it, or read from it, once. The kernels of a compiler are boxes of
    their own kind, inside one of all.
    """

    id: str
    kind: BoxKind
    name: str
    cls: str
    times: int
    calls: tuple[int, ...]
    ops: tuple[str, ...]
    regions: tuple[int, ...]
    left: int
    library: str
    bytes_in: int
    bytes_out: int
    inside: Inside | None = None
    turns: int = 1

    @property
    def modules(self) -> int:
        """The number of modules that a box represents."""
        return self.turns * self.times

    def each(self) -> "list[ModuleBox]":
        """Return the box and all boxes drawn inside it."""
        return [self, *(box for inner in (self.inside.boxes if self.inside else ()) for box in inner.each())]


def module_boxes(
    graph: CallGraph, *, opened: Collection[str] = (), depth: int = 1, folded: bool = True,
) -> ModuleBox:
    """Return the whole graph as an open box.

    Parameters
    ----------
    graph
        The graph.
    opened
        The ``id`` of each open box.
    depth
        The number of levels that are always open; 1 shows the outermost modules.
    folded
        Whether numbered neighbours that are equal, or that alternate repeatedly, form one box; if open, it shows the
        first of each.
    """
    return _Builder(graph, frozenset(opened), depth, folded=folded).whole()


def depth_for(graph: CallGraph, most: int) -> int:
    """Return the greatest depth that draws at most ``most`` boxes; at least 1."""
    count, depth = -1, 1
    while True:
        drawn = len(module_boxes(graph, depth=depth + 1).each())
        if drawn > most or drawn == count:
            return depth
        count, depth = drawn, depth + 1


def parts_of(path: str) -> Path:
    """Return the levels of a path: ``model``, ``layers.0``, ``mlp`` of ``model.layers.0.mlp``."""
    levels: list[str] = []
    for part in path.split(".") if path else ():
        if part.isdigit() and levels and not levels[-1].rpartition(".")[2].isdigit():
            levels[-1] += f".{part}"
        else:
            levels.append(part)
    return tuple(levels)


class _Builder:
    def __init__(self, graph: CallGraph, opened: frozenset[str], depth: int, *, folded: bool) -> None:
        self._graph, self._opened, self._depth, self._folded = graph, opened, depth, folded

    def whole(self) -> ModuleBox:
        every = range(len(self._graph.calls))
        return self._box("", "module", self._graph.title, (), every, inside=self._inside((), every, 1))

    def _box(
        self, name_id: str, kind: BoxKind, name: str, path: Path, calls: Sequence[int], *, times: int = 1,
        turns: int = 1, inside: Inside | None = None,
    ) -> ModuleBox:
        counts = _counts(self._graph, tuple(calls))
        cls = self._graph.classes.get(path, "") if kind == "module" else ""
        return ModuleBox(
            id=name_id, kind=kind, name=name, cls=cls, times=times, calls=tuple(calls), ops=counts.ops,
            regions=counts.regions, left=counts.left, library=self._graph.library, bytes_in=counts.bytes_in,
            bytes_out=counts.bytes_out, inside=inside, turns=turns,
        )

    def _inside(self, path: Path, calls: Sequence[int], level: int) -> Inside:
        """Return the boxes of a level; all its calls are in the module at this path."""
        drawn_level = self._level(path, tuple(calls))
        boxes = []
        for place, (key, group_calls) in enumerate(drawn_level.groups):
            kind, _, name = key.partition(" ")
            if kind == "module" and drawn_level.folds[name].turns > 1:
                boxes.append(self._pattern(path, drawn_level.folds[name], drawn_level.modules, group_calls, level))
            elif kind == "module":
                boxes.append(
                    self._module((*path, name), drawn_level.folds[name].names, drawn_level.modules, group_calls, level),
                )
            else:
                leaf: BoxKind = "region" if kind == "region" else "torch"
                boxes.append(self._box(f"{'.'.join(path)}#{place}", leaf, name, path, group_calls))
        return Inside(boxes=tuple(boxes), links=drawn_level.links)

    def _level(self, path: Path, calls: tuple[int, ...]) -> "_Level":
        """Return the boxes of a level in order, regardless of which are open."""
        graph, depth = self._graph, len(path)
        cached = graph.levels.get((path, calls, self._folded))
        if cached is not None:
            return cached
        modules: dict[str, list[int]] = {}
        for n in calls:
            if len(graph.calls[n].module) > depth:
                modules.setdefault(graph.calls[n].module[depth], []).append(n)
        folds = self._folds(depth, modules)
        leader = {name: fold.names[0] for fold in folds for name in fold.names}
        groups = Groups(graph)
        for n in calls:
            call = graph.calls[n]
            if len(call.module) > depth:
                groups.add(n, f"module {leader[call.module[depth]]}", splits=False)
            else:
                groups.add(n, f"torch {call.op}" if call.region is None else f"region {call.region}", splits=True)
        order, links = groups.in_order()
        built = graph.levels[path, calls, self._folded] = _Level(
            folds={fold.names[0]: fold for fold in folds}, modules=modules,
            groups=tuple((groups.keys[group], tuple(groups.calls[group])) for group in order), links=links,
        )
        return built

    def _pattern(
        self, path: Path, fold: "_Fold", modules: Mapping[str, Sequence[int]], calls: Sequence[int], level: int,
    ) -> ModuleBox:
        """Return a box of alternating modules; it opens into the first of each."""
        shown = _fold_name(fold.names)
        name_id = ".".join((*path, shown))
        is_open = level < self._depth or name_id in self._opened
        first = sorted(n for name in fold.names[: fold.turns] for n in modules[name])
        inside = self._inside(path, first, level + 1) if is_open else None
        return self._box(
            name_id, "module", shown, (*path, shown), calls, times=fold.times, turns=fold.turns, inside=inside,
        )

    def _module(
        self, path: Path, names: Sequence[str], modules: Mapping[str, Sequence[int]], calls: Sequence[int], level: int,
    ) -> ModuleBox:
        start, first = len(path) - 1, modules[names[0]]
        shown = _fold_name(names)
        # A module that contains only one module opens immediately.
        while len(following := {self._graph.calls[n].module[len(path): len(path) + 1] for n in first}) == 1:
            (more,) = following
            if not more or len(names) > 1:
                break
            path += more
            shown = ".".join(path[start:])
        name_id = ".".join(path)
        is_open = level < self._depth or name_id in self._opened
        inside = self._inside(path, first, level + 1) if is_open else None
        return self._box(name_id, "module", shown, path, calls, times=len(names), inside=inside)

    def _folds(self, depth: int, modules: Mapping[str, Sequence[int]]) -> "list[_Fold]":
        """Return the names of modules in runs of neighbours that are equal or alternate repeatedly."""
        looks: list[object] = []
        for name, calls in modules.items():
            base, _, number = name.rpartition(".")
            looks.append((base, self._looks(depth, calls)) if number.isdigit() and self._folded else name)
        numbers = {look: n for n, look in enumerate(dict.fromkeys(looks))}
        alike, names = [numbers[look] for look in looks], list(modules)
        folds: list[_Fold] = []
        at = 0
        while at < len(names):
            turns, times = _repetition(alike, at)
            folds.append(_Fold(names=tuple(names[at: at + turns * times]), turns=turns, times=times))
            at += turns * times
        return folds

    def _looks(self, depth: int, calls: Sequence[int]) -> frozenset[tuple[tuple[Path, str, int, bool], int]]:
        """Return a key that equal modules share: ops and sizes by path."""
        every = (self._graph.calls[n] for n in calls)
        return frozenset(Counter((c.module[depth + 1:], c.op, c.bytes, c.region is None) for c in every).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """Modules that one box represents: a sequence of ``turns`` modules that is repeated ``times`` times."""

    names: tuple[str, ...]
    turns: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """A box's summary of its calls; see `ModuleBox`."""

    ops: tuple[str, ...]
    regions: tuple[int, ...]
    left: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The boxes of a level in order, each with its key and calls; folds by their first modules; calls by module."""

    folds: Mapping[str, _Fold]
    modules: Mapping[str, Sequence[int]]
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    links: tuple[Link, ...]


def _counts(graph: CallGraph, calls: tuple[int, ...]) -> _Counts:
    cached = graph.counted.get(calls)
    if cached is not None:
        return cached
    inside_calls = frozenset(calls)
    read = {f.tensor: f.bytes for n in calls for f in graph.into[n] if f.source not in inside_calls}
    written = {f.tensor: f.bytes for n in calls for f in graph.out_of[n] if f.target not in inside_calls}
    regions = dict.fromkeys(graph.calls[n].region for n in calls)
    counts = graph.counted[calls] = _Counts(
        ops=tuple(dict.fromkeys(graph.calls[n].op for n in calls)),
        regions=tuple(number for number in regions if number is not None),
        left=sum(graph.calls[n].region is None for n in calls), bytes_in=sum(read.values()),
        bytes_out=sum(written.values()),
    )
    return counts


def _repetition(alike: Sequence[int], at: int) -> tuple[int, int]:
    """Return the period and count of the repetition from a position on that covers the most, the shortest of equals."""
    best = (1, 1)
    for turns in range(1, min(_MOST_TURNS, (len(alike) - at) // 2) + 1):
        end = at + turns
        while end < len(alike) and alike[end] == alike[end - turns]:
            end += 1
        times = (end - at) // turns
        if times > 1 and turns * times > best[0] * best[1]:
            best = turns, times
    return best


def _fold_name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    numbers = sorted(int(name.rpartition(".")[2]) for name in names)
    base = names[0].rpartition(".")[0]
    span = f"{numbers[0]}\u2013{numbers[-1]}"
    return f"{base}.{span}" if base else span


class Groups:
    """Calls in groups; a group that may be split ends before a path would lead out of it and back."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self.keys: list[str] = []
        self.calls: list[list[int]] = []
        self._above: list[int] = []  # groups that lead to each, as bits
        self._last: dict[str, int] = {}
        self._home: dict[int, int] = {}

    def add(self, number: int, key: str, *, splits: bool) -> None:
        """Put a call into the last group of its key, or into a new one."""
        sources = {self._home[f.source] for f in self._graph.into[number] if f.source in self._home}
        group = self._last.get(key)
        if group is None or (splits and any(self._above[before] >> group & 1 for before in sources if before != group)):
            group = self._last[key] = len(self.keys)
            self.keys.append(key)
            self.calls.append([])
            self._above.append(0)
        self.calls[group].append(number)
        self._home[number] = group
        above = self._above[group]
        for source in sources - {group}:
            above |= 1 << source | self._above[source]
        if above != self._above[group]:
            self._above[group] = above
            for other, bits in enumerate(self._above):
                if bits >> group & 1:
                    self._above[other] |= above

    def in_order(self) -> tuple[list[int], tuple[Link, ...]]:
        """Return the groups in run order, and the links between them by their positions in it."""
        between: dict[tuple[int, int], dict[str, int]] = {}
        for number, group in self._home.items():
            for flow in self._graph.into[number]:
                source = self._home.get(flow.source, group)
                if source != group:
                    between.setdefault((source, group), {})[flow.tensor] = flow.bytes
        order = _order(len(self.keys), between)
        place = {group: at for at, group in enumerate(order)}
        links = [
            Link(
                source=place[a], target=place[b], tensors=len(tensors), bytes=sum(tensors.values()),
                back=place[a] > place[b],
            )
            for (a, b), tensors in between.items()
        ]
        return order, tuple(sorted(links, key=lambda link: (link.source, link.target)))


def _order(count: int, pairs: Collection[tuple[int, int]]) -> list[int]:
    """Return a topological order; ties go to the smallest number, and a cycle is entered at its smallest number."""
    waiting = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in pairs:
        waiting[b] += 1
        after[a].append(b)
    ready = [n for n in range(count) if not waiting[n]]
    heapq.heapify(ready)
    order: list[int] = []
    done = [False] * count
    first = 0
    while len(order) < count:
        if not ready:
            while done[first]:
                first += 1
            ready.append(first)
        n = heapq.heappop(ready)
        if done[n]:
            continue
        done[n] = True
        order.append(n)
        for b in after[n]:
            waiting[b] -= 1
            if not waiting[b] and not done[b]:
                heapq.heappush(ready, b)
    return order

"""A view model in which a module's ops are one box that opens into its modules and ops."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from fuser_lab.report.graph_views import EdgeView, NodeView, SegmentView
from fuser_lab.report.identity_cache import cached_by_identity
from fuser_lab.report.module_map import Call, CallGraph, Flow, Groups, Path, parts_of
from fuser_lab.report.parts import Parts
from fuser_lab.report.units import plural
from fuser_lab.report.view_model import ViewModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFold:
    """Ops of one module in one segment, drawn as one box; ``nodes`` are their ids.

    If other ops come between, a module has several boxes in a segment, with different ``number``: no path leads out of
    a box and back.
    """

    path: str
    segment: int
    number: int
    nodes: tuple[str, ...]

    @property
    def id(self) -> str:
        """The id of the node that represents the ops."""
        return f"module:{self.path}@{self.segment}" + (f"#{self.number}" if self.number else "")


def has_modules(view: ViewModel) -> bool:
    """Return whether ops belong to different modules."""
    parts = [part.rough for part in view.nodes.parts] if isinstance(view.nodes, Parts) else [tuple(view.nodes)]
    return len(frozenset().union(*map(_modules, parts))) > 1


@cached_by_identity
def _modules(nodes: tuple[NodeView, ...]) -> frozenset[str]:
    return frozenset([node.module for node in nodes if node.kind == "op"])


def module_folds(view: ViewModel, opened: Collection[str] = ()) -> tuple[ModuleFold, ...]:
    """Return the boxes of the outermost modules that are not among the ``opened`` paths, segment by segment.

    Modules that contain all ops of the plan are open. Ops directly in an open module are in no box.
    """
    paths = {node.id: parts_of(node.module) for node in view.nodes if node.kind == "op"}
    whole = len(_shared_path(view))
    homes = {node.id: _closed_module(paths[node.id], whole, opened) for node in view.nodes if node.id in paths}
    inside: dict[int | None, list[EdgeView]] = {}
    for edge in view.edges:
        if edge.kind == "inside":
            inside.setdefault(edge.segments[0], []).append(edge)
    return tuple(
        fold for segment in view.segments for fold in _folds(segment, homes, inside.get(segment.index, ()))
    )


def _shared_path(view: ViewModel) -> Path:
    """Return the path of the innermost module that contains all ops."""
    paths = [parts_of(node.module) for node in view.nodes if node.kind == "op"]
    ends = zip(min(paths, default=()), max(paths, default=()), strict=False)  # a prefix of both is a prefix of all
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], ends))


def _closed_module(path: Path, whole: int, opened: Collection[str]) -> str:
    """Return the outermost closed module of a path, or ``""`` if all are open."""
    ends = (".".join(path[:depth]) for depth in range(whole + 1, len(path) + 1))
    return next((end for end in ends if end not in opened), "")


def _folds(segment: SegmentView, homes: Mapping[str, str], edges: Iterable[EdgeView]) -> list[ModuleFold]:
    places = {node: n for n, node in enumerate(segment.nodes)}
    graph = CallGraph(
        title="",
        calls=tuple(Call(module=(), op="", region=None, bytes=0) for _ in segment.nodes),
        flows=tuple(
            Flow(source=places[e.source], target=places[e.target], tensor=e.tensor, bytes=e.passed) for e in edges
        ),
    )
    groups = Groups(graph)
    for node, n in places.items():
        groups.add(n, homes[node] or f" {n}", splits=True)  # no path begins with a space
    folds: list[ModuleFold] = []
    numbers: Counter[str] = Counter()
    for path, calls in zip(groups.keys, groups.calls, strict=True):
        if not path.startswith(" "):
            nodes = tuple(segment.nodes[n] for n in calls)
            folds.append(ModuleFold(path=path, segment=segment.index, number=numbers[path], nodes=nodes))
            numbers[path] += 1
    return folds


def by_modules(view: ViewModel, folds: Iterable[ModuleFold]) -> ViewModel:
    """Return the view with one node for each fold; an edge keeps the id of the first edge that it represents."""
    shared = len(".".join(_shared_path(view)))
    made = {fold: _node(fold, view, fold.path[shared:].removeprefix(".")) for fold in folds}
    place = {node: fold.id for fold in made for node in fold.nodes}
    first = {fold.nodes[0]: node for fold, node in made.items()}
    edges: dict[tuple[str, str, str], EdgeView] = {}
    for edge in view.edges:
        source, target = place.get(edge.source, edge.source), place.get(edge.target, edge.target)
        if source != target:
            edges.setdefault((source, target, edge.tensor), replace(edge, source=source, target=target))
    return replace(
        view,
        nodes=tuple(first.get(n.id, n) for n in view.nodes if n.id in first or n.id not in place),
        edges=tuple(edges.values()),
        segments=tuple(
            replace(s, nodes=tuple(dict.fromkeys(place.get(node, node) for node in s.nodes))) for s in view.segments
        ),
    )


def _node(fold: ModuleFold, view: ViewModel, label: str) -> NodeView:
    inside = set(fold.nodes)
    names = tuple(name for node in view.nodes if node.id in inside for name in node.tensors)
    ops = Counter(node.label for node in view.nodes if node.id in inside)
    most = ", ".join(op for op, _ in ops.most_common(2))
    count = plural(len(fold.nodes), "op")
    return NodeView(
        id=fold.id,
        kind="segment",
        label=label,
        tensors=names,
        bytes=0,
        segment=fold.segment,
        text=f"Module {fold.path}: {count} ({', '.join(ops)})",
        detail=f"{count}: {most}{', …' if len(ops) > 2 else ''}",
        module=fold.path,
    )

"""A captured graph as a map of its modules: the calls in each, and the tensors between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuser_lab.bridge.lowerings import DTYPES, TracedTensor
from fuser_lab.bridge.model_view import graph_titles, is_free
from fuser_lab.bridge.traced import Node, modules_of, target_of
from fuser_lab.report.module_map import Call, CallGraph, Flow, Path, parts_of

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph
    from fuser_lab.bridge.partition import Left
    from fuser_lab.bridge.region import Region, RegionOp


@dataclass(frozen=True, kw_only=True)
class ModuleMap:
    """The calls of a captured graph, each an op of a region or left to torch.

    Views and constants that are free for torch are not calls: readers of a view read its base. A call without a module,
    such as the sum of two gradients, belongs to the common module of its operands, or to that around the latest of
    them. Values from outside the graph, such as parameters, are not counted.
    """

    graph: CallGraph
    parts: "tuple[tuple[Region, RegionOp] | Left, ...]"


def module_map(captured: "CapturedGraph", title: str = "") -> ModuleMap:
    """Return the map of a captured graph."""
    parts = _parts(captured)
    numbers = {node: number for number, node in enumerate(parts)}
    modules: dict[Node, Path] = {}
    classes: dict[Path, str] = {}
    calls: list[Call] = []
    flows: list[Flow] = []
    for node, part in parts.items():
        read = list(_calls_read(node, numbers))
        for path, cls in modules_of(node):
            classes.setdefault(parts_of(path), cls.rpartition(".")[2])
        sources = sorted((source for source, _ in read), key=numbers.__getitem__)
        modules[node] = _module(node, [modules[source] for source in sources])
        region = part[0].index if isinstance(part, tuple) else None
        op = target_of(node).removeprefix("aten.").removeprefix("lax.").partition(".")[0]
        calls.append(Call(module=modules[node], op=op, region=region, bytes=_bytes(node.meta.get("val"))))
        flows += [_flow(source, value, numbers, numbers[node]) for source, value in read]
    returned = next(node for node in captured.traced.nodes if node.op == "output")
    flows += [_flow(source, value, numbers, None) for source, value in _calls_read(returned, numbers)]
    graph = CallGraph(
        title=title or captured.kind, library=captured.library, calls=tuple(calls),
        flows=tuple(dict.fromkeys(flows)), classes=classes,
    )
    return ModuleMap(graph=graph, parts=tuple(parts.values()))


def module_maps(graphs: Sequence["CapturedGraph"]) -> tuple[ModuleMap, ...]:
    """Return the maps of captured graphs; graphs of the same kind are numbered."""
    return tuple(map(module_map, graphs, graph_titles(graphs)))


def _parts(captured: "CapturedGraph") -> "Mapping[Node, tuple[Region, RegionOp] | Left]":
    """Return the computing calls, in the graph's order."""
    parts: dict[Node, Any] = {left.node: left for left in captured.left if not is_free(left.reason)}
    for region in captured.regions:
        parts.update(zip(region.call_nodes, ((region, op) for op in region.ops), strict=True))
    return {node: parts[node] for node in captured.traced.nodes if node in parts and target_of(node) != "getitem"}


def _calls_read(node: Node, numbers: Mapping[Node, int]) -> Iterator[tuple[Node, Node]]:
    """Yield the calls whose results a node reads, each with its value."""
    for operand in node.all_input_nodes:
        value = operand
        while operand not in numbers and operand.op == "call_function" and operand.all_input_nodes:
            value = operand if target_of(operand) == "getitem" else operand.all_input_nodes[0]
            operand = operand.all_input_nodes[0]  # noqa: PLW2901 - a view, or one of several results
        if operand in numbers:
            yield operand, value


def _flow(source: Node, value: Node, numbers: Mapping[Node, int], target: int | None) -> Flow:
    return Flow(source=numbers[source], target=target, tensor=value.name, bytes=_bytes(value.meta.get("val")))


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if isinstance(value, TracedTensor):
        return value.size * DTYPES[value.dtype].itemsize if value.dtype in DTYPES else 0
    return int(value.numel()) * int(value.element_size()) if hasattr(value, "element_size") else 0


def _module(node: Node, paths: Sequence[Path]) -> Path:
    """Return the module of a call; ``paths`` are the modules of the calls whose results it reads, the latest last."""
    named = modules_of(node)
    if named or not paths:
        return parts_of(named[-1][0]) if named else ()
    shared = paths[0]
    for path in paths[1:]:
        same = next((n for n, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), None)
        shared = shared[: min(len(shared), len(path))] if same is None else shared[:same]
    # The sum at a residual reads one layer's gradient and that of the next one.
    return shared or paths[-1][:-1]

"""The bytes that are alive while each unit of captured graphs runs, from sizes alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab.bridge.capture import order_nodes
from fuser_lab.bridge.graph_walk import Unit, read_by
from fuser_lab.bridge.lowerings.views import VIEWS
from fuser_lab.bridge.model_view import graph_titles
from fuser_lab.bridge.op_costs import stored_bytes
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.traced import Node, target_of, tensors_of
from fuser_lab.report.memory_line import AliveBytes

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph


def units_of(graph: "CapturedGraph") -> tuple[Unit, ...]:
    """Return the regions of a graph and its other nodes, in run order."""
    of: dict[Node, Region] = {node: region for region in graph.regions for node in region.nodes}
    return order_nodes(tuple(graph.traced.nodes), of)


def unit_label(unit: Unit) -> str:
    """Return ``region 3``, or the name of an op as the table of a step has it."""
    return f"region {unit.index}" if isinstance(unit, Region) else target_of(unit).removesuffix(".default")


def memory_line(graphs: Sequence["CapturedGraph"]) -> tuple[AliveBytes, ...]:
    """Return the bytes while each region and each op of the library runs.

    Inputs and parameters live throughout. A computed value lives from its unit to its last reader, and results to the
    end of their graph; those that a backward graph reads are its inputs, and live there to their last readers.
    """
    titles = graph_titles(graphs)
    return tuple(alive for graph, title in zip(graphs, titles, strict=True) for alive in _of(graph, title))


def _of(graph: "CapturedGraph", title: str) -> Iterator[AliveBytes]:
    units = units_of(graph)
    first: dict[Node, int] = {}  # memory by its base: the place of the unit that makes it
    last: dict[Node, int] = {}
    held = 0
    for place, unit in enumerate(units):
        for operand in read_by(unit):
            last[base_of(operand)] = place
        if isinstance(unit, Region):
            first.update(dict.fromkeys(unit.output_nodes, place))
        elif unit.op == "placeholder" and graph.kind == "backward" and not unit.name.startswith("primals"):
            first[unit] = 0
        elif unit.op in {"placeholder", "get_attr"}:
            held += _bytes(unit)
        elif unit.op == "call_function" and base_of(unit) is unit:
            first[unit] = place
    change = [0] * (len(units) + 1)
    for node, place in first.items():
        change[place] += _bytes(node)
        change[last.get(node, place) + 1] -= _bytes(node)
    computed = 0
    for place, unit in enumerate(units):
        computed += change[place]
        if isinstance(unit, Region) or (unit.op == "call_function" and base_of(unit) is unit):
            yield AliveBytes(graph=title, unit=unit_label(unit), held=held, computed=computed)


def base_of(node: Node) -> Node:
    """Return the node whose memory a node shares: the operand of a view, or of one of several results."""
    while _is_part(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_part(node: Node) -> bool:
    if target_of(node) == "getitem" or target_of(node) in VIEWS:
        return True
    returned: Sequence[Any] = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(result.alias_info is not None for result in returned)


def _bytes(node: Node) -> int:
    return sum(map(stored_bytes, tensors_of(node)))

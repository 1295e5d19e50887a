"""A run of a captured graph of torch unit by unit, with a context around each, as a clock needs it."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fuser_lab.bridge.add_calls import AddCalls
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node

Unit = Region | Node
Around = Callable[[Unit], AbstractContextManager[object]]


def read_by(unit: Unit) -> Sequence[Node]:
    """Return the nodes that a unit reads."""
    if not isinstance(unit, Region):
        return tuple(unit.all_input_nodes)
    return (*unit.input_nodes, *(operand for node in unit.view_nodes for operand in node.all_input_nodes))


def unit_results(
    units: Sequence[Unit], root: Any, arguments: Sequence[Any], around: Around, adds: AddCalls,
) -> Any:
    """Return the results of a graph's units in run order; ``root`` has its constants.

    Views of a region's results are made outside the context, and each value is dropped after its last reader.
    """
    torch = torch_for("fuser_lab.bridge")
    values: dict[Node, Any] = {}
    remaining, last = iter(arguments), _last_readers(units)

    def call(node: Node) -> Any:
        if node in adds.of:
            return adds.of[node](*[values[operand] for operand in adds.of[node].scatter.operands])
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        return node.target(*args, **kwargs)

    for place, unit in enumerate(units):
        if isinstance(unit, Region):
            operands = [values[node] for node in unit.input_nodes]
            with around(unit):
                results = unit(*operands)
            values.update(zip(unit.output_nodes, results, strict=True))
            values.update((node, call(node)) for node in unit.view_nodes)
        elif unit.op == "placeholder":
            values[unit] = next(remaining)
        elif unit.op == "get_attr":
            values[unit] = functools.reduce(getattr, unit.target.split("."), root)
        elif unit.op == "output":
            return torch.fx.node.map_arg(unit.args[0], values.__getitem__)
        elif unit not in adds.filled:
            with around(unit):
                values[unit] = call(unit)
        for node in last.get(place, ()):
            values.pop(node, None)
    return None


@contextmanager
def while_set(objects: Sequence[object], attribute: str, value: object) -> Iterator[None]:
    """Return a context in which an attribute of some objects has a value."""
    before = [getattr(each, attribute) for each in objects]
    try:
        for each in objects:
            setattr(each, attribute, value)
        yield
    finally:
        for each, was in zip(objects, before, strict=True):
            setattr(each, attribute, was)


def _last_readers(units: Sequence[Unit]) -> dict[int, list[Node]]:
    """Return the values by the place of the unit that reads them last."""
    last: dict[Node, int] = {}
    for place, unit in enumerate(units):
        last.update(dict.fromkeys(read_by(unit), place))
    by_place: dict[int, list[Node]] = {}
    for node, place in last.items():
        by_place.setdefault(place, []).append(node)
    return by_place

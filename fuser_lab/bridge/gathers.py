"""Gathers from computed tensors as computations of gathered operands.

The loss of a class reads one log-probability of each row. If a gather read the log-probabilities, they would be stored
for it, although the kernel that computes their sums needs to store only the sums.
"""

from typing import Any

from fuser_lab.bridge.lowerings.matmul import MATMULS
from fuser_lab.bridge.repeats import storages_of
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, draws, has_symbol, insert_call, shape_of, target_of, writes

_PER_ELEMENT = frozenset({"aten._to_copy.default", "aten.clone.default"})  # besides those that torch tags as pointwise
_TRANSPOSES = frozenset({"aten.t.default", "aten.transpose.int", "aten.permute.default"})


def gather_operands(graph: Any) -> None:
    """Replace gathers from computed tensors by the same computation of elements of an argument or a matrix product.

    Those are in memory anyway, and no more elements are read or computed than before: each op between has one operand
    with more than one element along the axis. Graphs that write are unchanged, because an argument is read later.
    """
    aten = torch_for("fuser_lab.bridge").ops.aten
    gathers = graph.find_nodes(op="call_function", target=aten.gather.default)
    if not gathers or any(map(writes, graph.nodes)):
        return
    stored = {
        place for node in graph.nodes if node.op in {"placeholder", "get_attr"} or target_of(node) in MATMULS
        for place in storages_of(node)
    }
    for gather in gathers:
        x, dim, index = gather.args
        shape, places = shape_of(x), shape_of(index)
        if gather.kwargs or not shape or has_symbol(x) or has_symbol(index):
            continue
        axis = dim % len(shape)
        if places[:axis] + places[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
            continue
        path = _path(x, axis, stored) if places[axis] <= shape[axis] else []
        if path:
            gather.replace_all_uses_with(_compute_elements(gather, path, index))
            graph.erase_node(gather)


def _path(x: Node, axis: int, stored: set[int]) -> list[tuple[Node, Node, int]]:
    """Return the ops from a tensor to one that is in memory, each with its operand and the axis there; else empty."""
    path: list[tuple[Node, Node, int]] = []
    while storages_of(x).isdisjoint(stored):
        if target_of(x) in _TRANSPOSES:
            operand, axis = x.args[0], _order(x)[axis]
        elif is_per_element(x):
            from_end = len(shape_of(x)) - axis
            varying = {node for node in x.all_input_nodes if _length(node, from_end) > 1}
            if len(varying) != 1 or shape_of(operand := varying.pop()) != shape_of(x):
                return []
        else:
            return []
        path.append((x, operand, axis))
        x = operand
    return path


def _compute_elements(gather: Node, path: list[tuple[Node, Node, int]], index: Node) -> Node:
    """Return the ops of a path, computed of gathered elements."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    for op, _, _ in path:
        if target_of(op) in _TRANSPOSES:
            order = _order(op)
            axes = [order.index(place) for place in range(len(order))]
            index = insert_call(gather, aten.permute.default, (index, axes))
    _, source, axis = path[-1]
    result = insert_call(gather, aten.gather.default, (source, axis, index))
    for op, operand, _ in reversed(path):
        args = tuple(result if argument is operand else argument for argument in op.args)
        result = insert_call(gather, op.target, args, **op.kwargs)
    return result


def _order(transpose: Node) -> list[int]:
    """Return the axis of the operand that each axis of its transpose is."""
    order = list(range(len(shape_of(transpose))))
    if target_of(transpose) == "aten.permute.default":
        return [order[place] for place in transpose.args[1]]
    if target_of(transpose) == "aten.t.default":
        return order[::-1]
    first, second = transpose.args[1:]
    order[first], order[second] = order[second], order[first]
    return order


def is_per_element(node: Node) -> bool:
    """Whether each element of a node's tensor depends on the elements at its place in the operands only."""
    if node.op != "call_function" or draws(node) or has_symbol(node):
        return False
    tags = getattr(node.target, "tags", ())
    return target_of(node) in _PER_ELEMENT or torch_for("fuser_lab.bridge").Tag.pointwise in tags


def _length(node: Node, from_end: int) -> int:
    """Return the length of an axis, counted from the last one, as broadcasting does; 1 where a tensor has none."""
    shape = shape_of(node)
    return shape[-from_end] if from_end <= len(shape) else 1

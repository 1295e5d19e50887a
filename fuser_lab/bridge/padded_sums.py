"""Sums of gradients of disjoint parts of a tensor as concatenations of these gradients.

    add(select_backward(a, [2, n], 0, 0), select_backward(b, [2, n], 0, 1))    ->    cat([a[None], b[None]], 0)

Each summand is as large as the tensor, and zero outside of its part, so a sum over the steps of a loop would move the
whole tensor once for each step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, as_rows, has_symbol, insert_call, shape_of, target_of

_ADD = "aten.add.Tensor"


@dataclass(frozen=True, slots=True)
class _Part:
    """The range of an axis of a tensor that a gradient fills; ``removed`` is whether the gradient lacks the axis."""

    axis: int
    start: int
    stop: int
    removed: bool


def join_sums(graph: Any) -> None:
    """Rewrite the sums of gradients of parts in a graph of torch as concatenations, where the parts are disjoint."""
    for node in list(graph.find_nodes(op="call_function", target=torch_for("fuser_lab.bridge").ops.aten.add.Tensor)):
        if _is_sum(node) and not any(_is_sum(user) and len(node.users) == 1 for user in node.users):
            summands = list(_summands(node))
            joined = _join(node, summands)
            if len(joined) < len(summands):
                node.replace_all_uses_with(_total(node, joined))
    for node in reversed(graph.nodes):
        if target_of(node) in {_ADD, *_PARTS} and not node.users:
            graph.erase_node(node)


def _is_sum(node: Node) -> bool:
    """Whether a node adds two tensors of the same size and dtype as its result."""
    if target_of(node) != _ADD or node.kwargs or has_symbol(node) or len(node.all_input_nodes) != len(node.args):
        return False
    value = node.meta["val"]
    operands = [operand.meta["val"] for operand in node.args]
    return all((x.shape, x.dtype, x.device) == (value.shape, value.dtype, value.device) for x in operands)


def _summands(node: Node) -> Iterable[Node]:
    """Yield the summands of a sum, in order; sums that only this one reads are parts of it."""
    for operand in node.args:
        if _is_sum(operand) and len(operand.users) == 1:
            yield from _summands(operand)
        else:
            yield operand


def _join(before: Node, summands: Sequence[Node]) -> list[Node]:
    """Return summands, with concatenations in place of the gradients of disjoint parts of one axis."""
    parts: dict[_Part, list[Node]] = {}
    for node in summands:
        part = _part_of(node) if len(node.users) == 1 else None
        if part is not None:
            parts.setdefault(part, []).append(node)
    replaced, made = set[Node](), list[Node]()
    for axis in sorted({part.axis for part in parts}):
        here = sorted((part for part in parts if part.axis == axis), key=lambda part: part.start)
        if len(here) < 2 or any(first.stop > second.start for first, second in pairwise(here)):
            continue
        nodes = [parts[part] for part in here]
        replaced.update(*nodes)
        gradients = [_total(before, _join(before, [node.args[0] for node in equal])) for equal in nodes]
        made.append(_concatenation(before, shape_of(nodes[0][0]), dict(zip(here, gradients, strict=True))))
    return [*made, *(node for node in summands if node not in replaced)]


def _part_of(node: Node) -> _Part | None:
    """Return the part of its result that a gradient fills; None for other values."""
    sizes = shape_of(node)
    if target_of(node) not in _PARTS or not sizes or any(map(has_symbol, (node, *node.all_input_nodes))):
        return None
    _, _, dim, *place = node.args
    axis = dim % len(sizes)
    if len(place) == 1:
        index = place[0] % sizes[axis]
        return _Part(axis, index, index + 1, removed=True)
    start, stop, step = slice(*place).indices(sizes[axis])
    return _Part(axis, start, stop, removed=False) if step == 1 and start < stop else None


_PARTS = frozenset({"aten.select_backward.default", "aten.slice_backward.default"})


def _total(before: Node, summands: Sequence[Node]) -> Node:
    """Return the sum of some values, computed in front of a node."""
    total, *later = summands
    for summand in later:
        total = insert_call(before, torch_for("fuser_lab.bridge").ops.aten.add.Tensor, (total, summand))
    return total


def _concatenation(before: Node, sizes: Sequence[int], parts: Mapping[_Part, Node]) -> Node:
    """Return gradients of parts in the order of the axis, with zeros between them."""
    aten, axis = torch_for("fuser_lab.bridge").ops.aten, next(iter(parts)).axis
    operands, at = list[Node](), 0
    for part, gradient in parts.items():
        operands += _zeros(before, sizes, parts, part.start - at)
        operands.append(insert_call(before, aten.unsqueeze.default, (gradient, axis)) if part.removed else gradient)
        at = part.stop
    operands += _zeros(before, sizes, parts, sizes[axis] - at)
    return as_rows(before, insert_call(before, aten.cat.default, (operands, axis)))


def _zeros(before: Node, sizes: Sequence[int], parts: Mapping[_Part, Node], count: int) -> list[Node]:
    """Return operands that fill ``count`` elements of the axis with zeros; they are as long as a part if few are."""
    if not count:
        return []
    axis, like = next(iter(parts)).axis, next(iter(parts.values())).meta["val"]
    length = min(part.stop - part.start for part in parts)
    pieces = count // length if count % length == 0 and count // length <= len(parts) else 1
    shape = [count // pieces if place == axis else size for place, size in enumerate(sizes)]
    with before.graph.inserting_before(before):
        full = torch_for("fuser_lab.bridge").ops.aten.full.default
        zeros = before.graph.call_function(full, (shape, 0), {"dtype": like.dtype, "device": like.device})
    zeros.meta = {**before.meta, "val": like.new_zeros(shape)}
    return [zeros] * pieces

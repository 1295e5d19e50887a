"""Look-ups that repeat each element of some axes, as nearest upsampling does, as views.

    index(x[n], [[0, 0, 1, 1, ...]])                            ->    view(expand(x[:, None], [n, 2]), [2 * n])
    index_put(zeros[n], [[0, 0, 1, 1, ...]], y, accumulate)     ->    sum(view(y, [n, 2]), [1])

The positions are computed from numbers alone, so they are known here. As data, they would be read for each element, and
the gradient would be added at positions, one element at a time.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from fuser_lab.bridge.repeats import is_pure
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.scatters import number_of
from fuser_lab.bridge.traced import (
    Node,
    as_rows,
    has_symbol,
    insert_call,
    shape_of,
    target_of,
    traced_tensor,
    without_modes,
    writes,
)

_READS = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_ADDS = "aten.index_put.default"


def views_for_repeats(graph: Any) -> None:
    """Rewrite look-ups, and additions to zeros, at positions that repeat each element as often as the others."""
    values: dict[Node, Any] = {}
    unread: set[Node] = set()
    for node in list(graph.nodes):
        is_read = target_of(node) in _READS
        if not (is_read or _adds_to_zeros(node)) or has_symbol(node) or traced_tensor(node.meta["val"]) is None:
            continue
        with without_modes():
            times = _repetitions(node.args[0], node.args[1], values)
        order = _order(node.meta["val"])
        if times is None or order is None:
            continue
        write = _repeat if is_read else _sum
        result = write(node, node.args[0 if is_read else 2], times, order)
        if result is not None:
            node.replace_all_uses_with(result)
            graph.erase_node(node)
            unread.update((*values, node.args[0]))
    for node in reversed(graph.nodes):
        if node in unread and not node.users and _may_run(node):
            graph.erase_node(node)


def _adds_to_zeros(node: Node) -> bool:
    return target_of(node) == _ADDS and node.args[3:] == (True,) and number_of(node.args[0]) == 0


def _repetitions(x: Node, indices: Sequence[Node | None], values: dict[Node, Any]) -> tuple[int, ...] | None:
    """Return how often each element of each axis is repeated; None if positions do anything else, or repeat none."""
    torch, shape = torch_for("fuser_lab.bridge"), shape_of(x)
    places = [place for place, each in enumerate(indices) if each is not None]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None
    times = [1] * len(shape)
    for number, (place, size) in enumerate((place, shape[place]) for place in places):
        # Of the axes of all indices, each index varies along its own.
        common = shape_of(indices[place])
        after = len(places) - 1 - number
        length = prod(common)
        if not size or len(common) <= after or common[len(common) - 1 - after] != length or length % size:
            return None
        positions = _value(indices[place], values, length)
        expected = torch.arange(length).div(length // size, rounding_mode="floor")
        if positions is None or positions.dtype not in (torch.int32, torch.int64) or not positions.flatten().equal(
            expected.to(positions.dtype),
        ):
            return None
        times[place] = length // size
    return tuple(times) if max(times) > 1 else None


def _value(node: Node, values: dict[Node, Any], most: int) -> Any:
    """Return a tensor that is computed from numbers, on the host; None if it depends on data or is larger."""
    if node not in values:
        torch = torch_for("fuser_lab.bridge")
        values[node] = None
        traced = traced_tensor(node.meta.get("val"))
        if _may_run(node) and traced is not None and traced.size <= most:
            operands = {operand: _value(operand, values, most) for operand in node.all_input_nodes}
            if all(value is not None for value in operands.values()):
                kwargs = {name: value for name, value in node.kwargs.items() if name not in ("device", "pin_memory")}
                args, kwargs = torch.fx.node.map_arg((node.args, kwargs), operands.__getitem__)
                values[node] = node.target(*args, **kwargs)
    return values[node]


def _may_run(node: Node) -> bool:
    """Whether a node computes, without other effects, what its arguments determine."""
    return node.op == "call_function" and is_pure(node) and not writes(node)


def _order(value: Any) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor from the slowest to the fastest; None for other tensors."""
    axes = tuple(sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), axis)))
    return axes if value.numel() and value.permute(axes).is_contiguous() else None


def _repeat(node: Node, x: Node, times: Sequence[int], order: Sequence[int]) -> Node | None:
    """Return the elements of a tensor repeated along its axes, in the layout of a node."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    shape = shape_of(x)
    if shape_of(node) != _extents(shape, times):
        return None
    result = _permute(node, x, order)
    extents: list[int] = []
    for axis in order:
        extents.append(shape[axis])
        if times[axis] > 1:
            result = insert_call(node, aten.unsqueeze.default, (result, len(extents)))
            extents.append(times[axis])
    result = insert_call(node, aten.expand.default, (result, extents))
    result = as_rows(node, result)
    result = insert_call(node, aten.view.default, (result, [shape[axis] * times[axis] for axis in order]))
    return _permute(node, result, sorted(range(len(order)), key=order.__getitem__))


def _sum(node: Node, source: Node, times: Sequence[int], order: Sequence[int]) -> Node | None:
    """Return the sums of the elements of a source that are added at the same position, in the layout of a node."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    shape = shape_of(node)
    if shape_of(source) != _extents(shape, times) or source.meta["val"].dtype != node.meta["val"].dtype:
        return None
    result = as_rows(node, _permute(node, source, order))
    extents: list[int] = []
    summed: list[int] = []
    for axis in order:
        extents.append(shape[axis])
        if times[axis] > 1:
            summed.append(len(extents))
            extents.append(times[axis])
    result = insert_call(node, aten.view.default, (result, extents))
    result = insert_call(node, aten.sum.dim_IntList, (result, summed))
    return _permute(node, result, sorted(range(len(order)), key=order.__getitem__))


def _extents(shape: Sequence[int], times: Sequence[int]) -> tuple[int, ...]:
    return tuple(size * count for size, count in zip(shape, times, strict=True))


def _permute(node: Node, x: Node, axes: Sequence[int]) -> Node:
    if list(axes) == sorted(axes):
        return x
    return insert_call(node, torch_for("fuser_lab.bridge").ops.aten.permute.default, (x, list(axes)))

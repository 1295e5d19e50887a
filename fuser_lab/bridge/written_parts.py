"""Writes to parts of tensors, as functionalization leaves them, without the copies that nothing reads.

    slice(slice_scatter(x, y, 0, 0, n, 2), 0, 0, n, 2)    ->    y
    slice(slice_scatter(x, y, 0, 0, n, 2), 0, 1, n, 2)    ->    slice(x, 0, 1, n, 2)

A write to a part of a part, such as ``x[::2, 1::2] = y``, reads the outer part of ``x``, so each of several such writes
needs the result of the one before at its own positions and at those of its part. It becomes one choice between ``x``
and ``y`` spread over the shape of ``x``, which needs ``x`` at its own positions only. Parts of adjacent elements are
concatenations, which need no second position.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.bridge.parts import fixed_nodes, written_storages
from fuser_lab.bridge.repeats import storages_of
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, has_symbol, insert_call, shape_of, target_of

_READS = {"aten.slice.Tensor": False, "aten.select.int": True}
_WRITES = {"aten.slice_scatter.default": False, "aten.select_scatter.default": True}


@dataclass(frozen=True, slots=True)
class _Part:
    """The places of an axis that are read or written; ``removed`` is whether the part lacks the axis."""

    axis: int
    places: range
    removed: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        """The arguments of an op of this part."""
        if self.removed:
            return (self.axis, self.places.start)
        return (self.axis, self.places.start, self.places.stop, self.places.step)


def shorten_writes(graph: Any) -> None:
    """Read what was written to parts where it was computed, and write to parts of parts at once."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    writes = [
        node for op in (aten.slice_scatter, aten.select_scatter)
        for node in graph.find_nodes(op="call_function", target=op.default)
    ]
    if not writes or (written := written_storages(graph)) is None:
        return
    for node in [node for node in reversed(graph.nodes) if target_of(node) in _WRITES]:
        value, parts = _value_and_parts(node)
        if node.users and len(parts) > 1 and any(part.places.step > 1 for part in parts):
            node.replace_all_uses_with(_choice(node, value, parts))
            graph.erase_node(node)
    # A result that is itself a write stays what it is, whatever reads its parts.
    results = (node for node in fixed_nodes(graph) if target_of(node) not in _WRITES)
    fixed = {place for node in results for place in storages_of(node)}
    for node in [node for node in graph.nodes if target_of(node) in _READS]:
        if not fixed.isdisjoint(storages_of(node)):
            continue
        source, rest = _source_of(node)
        if source is node.args[0] or not written.isdisjoint(storages_of(source)):
            continue
        op = aten.select.int if rest and rest.removed else aten.slice.Tensor
        read = insert_call(node, op, (source, *rest.numbers)) if rest else source
        if _order(read) == _order(node):
            node.replace_all_uses_with(read)
    for node in reversed(graph.nodes):
        if target_of(node) in _READS.keys() | _WRITES and not node.users:
            graph.erase_node(node)


def _part_of(node: Node, numbers: Sequence[Any], *, removed: bool) -> _Part | None:
    """Return the part of its first operand that a node reads or writes."""
    whole = node.args[0]
    sizes = shape_of(whole)
    if not sizes or node.kwargs or any(map(has_symbol, (node, *node.all_input_nodes))):
        return None
    if not all(number is None or type(number) is int for number in numbers):
        return None
    axis = (numbers[0] if numbers else 0) % len(sizes)
    if removed:
        place = numbers[1] % sizes[axis]
        return _Part(axis, range(place, place + 1), removed=True)
    start, stop, step = [*numbers[1:], None, None, None][:3]
    places = range(sizes[axis])[start:stop:step]
    return _Part(axis, places, removed=False) if places else None


def _read_part(node: Node) -> _Part | None:
    return _part_of(node, node.args[1:], removed=_READS[target_of(node)])


def _written_part(node: Node) -> _Part | None:
    part = _part_of(node, node.args[2:], removed=_WRITES[target_of(node)])
    return part if part and node.args[1].meta["val"].dtype == node.meta["val"].dtype else None


def _source_of(node: Node) -> tuple[Node, _Part | None]:
    """Return the tensor that has what a part of written tensors reads, with its part; None for all of it."""
    whole, read = node.args[0], _read_part(node)
    while read and target_of(whole) in _WRITES:
        written = _written_part(whole)
        if written is None or written.axis != read.axis:
            break
        if _are_disjoint(read.places, written.places):
            whole = whole.args[0]
            continue
        if read.places[0] not in written.places or read.places[-1] not in written.places:
            break
        if read.places.step % written.places.step and len(read.places) > 1:
            break
        if written.removed != read.removed and written.removed:
            break
        begin, end = map(written.places.index, (read.places[0], read.places[-1]))
        step = max(1, read.places.step // written.places.step)
        whole = whole.args[1]
        if written.removed or (not read.removed and range(begin, end + 1, step) == range(len(written.places))):
            return whole, None
        read = _Part(read.axis, range(begin, end + 1, step), read.removed)
    return whole, read


def _are_disjoint(left: range, right: range) -> bool:
    """Whether ranges are known to have no number in common."""
    apart = left[-1] < right[0] or right[-1] < left[0]
    return apart or (left.step == right.step and (left.start - right.start) % left.step != 0)


def _value_and_parts(node: Node) -> tuple[Node, list[_Part]]:
    """Return the value of a write to a part of a part, and so on, with the parts, the outermost first."""
    value, part = node.args[1], _written_part(node)
    whole, parts = node.args[0], [part] if part else []
    while part and target_of(value) in _WRITES:
        read = value.args[0]
        if target_of(read) not in _READS or read.args[0] is not whole or _read_part(read) != part:
            break
        part = _written_part(value)
        if part is None:
            break
        whole, value = read, value.args[1]
        parts.append(part)
    return value, parts


def _choice(node: Node, value: Node, parts: Sequence[_Part]) -> Node:
    """Return the result of a write as a choice between the tensor and the value, which is spread over its shape."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    shapes = [shape_of(node)]
    for part in parts:
        before, after = shapes[-1][: part.axis], shapes[-1][part.axis + 1 :]
        shapes.append((*before, *(() if part.removed else (len(part.places),)), *after))
    there: Node | None = None
    for part, shape in zip(reversed(parts), shapes[-2::-1], strict=True):
        inside, place = _places(node, part, shape[part.axis])
        along = [-1 if axis == part.axis else 1 for axis in range(len(shape))]
        inside = insert_call(node, aten.view.default, (inside, along))
        if part.removed:
            value = insert_call(node, aten.unsqueeze.default, (value, part.axis))
            value = insert_call(node, aten.expand.default, (value, shape))
            there = there and insert_call(node, aten.unsqueeze.default, (there, part.axis))
        else:
            value = insert_call(node, aten.index_select.default, (value, part.axis, place))
            if there and shape_of(there)[part.axis] > 1:  # a part of a part of this axis
                there = insert_call(node, aten.index_select.default, (there, part.axis, place))
        there = insert_call(node, aten.bitwise_and.Tensor, (there, inside)) if there else inside
    made = insert_call(node, aten.where.self, (there, value, node.args[0]))
    if _order(made) == _order(node):
        return made
    # In the order of the axes in memory, the tensor is row-major.
    order = sorted(range(len(shapes[0])), key=lambda axis: -node.meta["val"].stride(axis))
    made = insert_call(node, aten.permute.default, (made, order))
    made = insert_call(node, aten.clone.default, (made,), memory_format=torch_for("fuser_lab.bridge").contiguous_format)
    return insert_call(node, aten.permute.default, (made, sorted(range(len(order)), key=order.__getitem__)))


def _places(before: Node, part: _Part, size: int) -> tuple[Node, Node]:
    """Return which places of an axis are in a part, and the place in the part of each that is."""
    aten, value = torch_for("fuser_lab.bridge").ops.aten, before.meta["val"]

    def call(op: Any, *args: Any, **kwargs: Any) -> Node:
        return insert_call(before, op, args, **kwargs)

    places, step = part.places, part.places.step
    with before.graph.inserting_before(before):
        at = before.graph.call_function(aten.arange.start_step, (0, size), {"device": value.device})
    at.meta = {**before.meta, "val": value.new_empty(size, dtype=torch_for("fuser_lab.bridge").int64)}
    if part.removed:
        return call(aten.eq.Scalar, at, places.start), at
    off = call(aten.sub.Tensor, at, places.start) if places.start else at
    place = call(aten.div.Tensor_mode, off, step, rounding_mode="trunc") if step > 1 else off
    conditions = [call(aten.eq.Scalar, call(aten.remainder.Scalar, off, step), 0)] if step > 1 else []
    if places.start >= step:
        conditions.append(call(aten.ge.Scalar, off, 0))
        place = call(aten.clamp_min.default, place, 0)
    if size - places.start > len(places) * step:
        conditions.append(call(aten.lt.Scalar, at, places.stop))
        place = call(aten.clamp_max.default, place, len(places) - 1)
    whole = [] if conditions else [call(aten.ge.Scalar, at, 0)]
    return functools.reduce(functools.partial(call, aten.bitwise_and.Tensor), conditions + whole), place


def _order(node: Node) -> tuple[int, ...]:
    """The axes of a tensor from the slowest in memory to the fastest."""
    value = node.meta["val"]
    axes = [axis for axis, size in enumerate(value.shape) if size > 1]
    return tuple(sorted(axes, key=lambda axis: -value.stride(axis)))

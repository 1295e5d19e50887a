"""Parts of tensors: those of a split as slices, and those of a concatenation as parts of its operands."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from fuser_lab.bridge.repeats import storages_of
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import (
    Node,
    as_rows,
    has_symbol,
    insert_call,
    is_write_back,
    shape_of,
    target_of,
    traced_tensor,
    writes,
)

_SPLITS = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"})


def parts_as_views(nodes: Iterable[Node]) -> None:
    """Rewrite each part of a split as a slice, so a part that is not used in computation remains a view."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in list(nodes):
        target = target_of(node)
        if target not in _SPLITS or node.kwargs or any(target_of(user) != "getitem" for user in node.users):
            continue
        x, lengths, dim = (*node.args, 0, 0)[:3]
        whole = x.meta.get("val")
        if traced_tensor(whole) is None or not whole.ndim:
            continue
        if len(node.all_input_nodes) > 1 or (target != "aten.unbind.int" and has_symbol(x, dim)):
            continue
        for part in list(node.users):
            place = part.args[1]
            with node.graph.inserting_before(part):
                if target == "aten.unbind.int":
                    view = node.graph.call_function(aten.select.int, (x, lengths, place))
                else:
                    sizes = lengths if isinstance(lengths, list | tuple) else [lengths] * (place + 1)
                    start, axis = sum(sizes[:place]), dim % whole.ndim
                    end = min(start + sizes[place], whole.shape[axis])
                    view = node.graph.call_function(aten.slice.Tensor, (x, axis, start, end))
            view.meta = {**node.meta, **part.meta}
            part.replace_all_uses_with(view)
            node.graph.erase_node(part)
        node.graph.erase_node(node)


def read_operands_of_cats(graph: Any, results: int | None = None) -> None:
    """Replace the parts of a concatenation by parts of its operands, if nothing else reads it.

    In a graph of forward and backward together, the gradient of a split is a concatenation, and that of a concatenation
    is its parts. The first ``results`` values that the graph returns, by default all, keep their memory; the others are
    gradients, which may have any. No argument is read that the graph writes.
    """
    cats = graph.find_nodes(op="call_function", target=torch_for("fuser_lab.bridge").ops.aten.cat.default)
    if not cats or (written := written_storages(graph)) is None:
        return
    fixed = {place for node in fixed_nodes(graph, results) for place in storages_of(node)}
    for cat in cats:
        if cat.kwargs or not shape_of(cat) or not cat.meta["val"].is_contiguous():
            continue
        if not fixed.isdisjoint(storages_of(cat)):
            continue
        parts_as_views(cat.users)
        sources = {part: source for part in cat.users if (source := _source_of(part, cat))}
        if len(sources) < len(cat.users) or any(not written.isdisjoint(storages_of(x)) for x, _ in sources.values()):
            continue
        for part, (operand, places) in sources.items():
            part.replace_all_uses_with(_read(part, operand, places))
            graph.erase_node(part)
        graph.erase_node(cat)


def written_storages(graph: Any) -> frozenset[int] | None:
    """Return the storages of the arguments to which a graph copies results; None if it writes otherwise."""
    if any(writes(node) and not is_write_back(node) for node in graph.nodes):
        return None
    return frozenset(place for node in graph.nodes if is_write_back(node) for place in storages_of(node.args[0]))


def fixed_nodes(graph: Any, results: int | None = None) -> list[Node]:
    """Return the first results of a graph, by default all, and the tensors that are read by strides."""
    (output,) = graph.find_nodes(op="output")
    strided = graph.find_nodes(op="call_function", target=torch_for("fuser_lab.bridge").ops.aten.as_strided.default)
    nodes = (*output.args[0][:results], *(node.args[0] for node in strided))
    return [node for node in nodes if hasattr(node, "meta")]


def _source_of(part: Node, cat: Node) -> tuple[Node, tuple[int, int, int]] | None:
    """Return the operand of a concatenation that contains a slice of it, with the axis and the range in the operand."""
    operands, dim = (*cat.args, 0)[:2]
    shapes = [shape_of(node) for node in operands if node.meta["val"].dtype == cat.meta["val"].dtype]
    if target_of(part) != "aten.slice.Tensor" or len(shapes) < len(operands) or any(map(has_symbol, (part, *operands))):
        return None
    numbers: list[Any] = list(part.args[1:])
    along, start, stop, step = numbers + [0, None, None, 1][len(numbers) :]
    whole = shape_of(cat)
    axis = dim % len(whole)
    if along % len(whole) != axis or step != 1 or any(len(shape) != len(whole) for shape in shapes):
        return None
    start, stop, _ = slice(start, stop).indices(whole[axis])
    ends = accumulate(shape[axis] for shape in shapes)
    for operand, shape, end in zip(operands, shapes, ends, strict=True):
        begin = end - shape[axis]
        if begin <= start < stop <= end:
            return operand, (axis, start - begin, stop - begin)
    return None


def _read(part: Node, operand: Node, places: tuple[int, int, int]) -> Node:
    """Return a part of an operand, in row-major order if the operand is not, because results are laid out alike."""
    axis, start, stop = places
    operand = as_rows(part, operand)
    if stop - start == shape_of(operand)[axis]:
        return operand
    return insert_call(part, torch_for("fuser_lab.bridge").ops.aten.slice.Tensor, (operand, *places))

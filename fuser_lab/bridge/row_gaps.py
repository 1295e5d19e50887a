"""Values whose rows lie further apart in memory than torch traced, and the values that follow from them.

A matrix product with padded columns (`padded_products`) gives its result as a slice, without a copy, wherever nothing
relies on dense rows. As in inductor, a graph returns such a slice to the user, too: the order of its strides is eager
mode's, the distance between its rows is not. AOTAutograd receives the strides of the results that it saves, and
compiles the backward graph for them. So may a saved view have other strides than traced.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, as_rows, insert_call, is_node, is_write_back, target_of, traced_tensor, writes
from fuser_lab.cost.device import SECTOR_BYTES
from fuser_lab.targets import has_own_memory

# Ops that address the memory of their operand, whatever its strides are.
_OF_MEMORY = ("aten.as_strided", "aten.resize", "aten.set_")


def values_with(node: Node, value: Any, *, with_results: bool) -> dict[Node, Any] | None:
    """Return the values of a graph that have other strides if a node has another value, the node's among them.

    None if something relies on the traced strides: an op that addresses memory, a view that these strides do not allow,
    a user's op, or, without ``with_results``, a result of the graph.
    """
    tree = torch_for("fuser_lab.bridge").utils._pytree  # noqa: SLF001 - what torch flattens arguments with
    changed = {node: value}
    if _strides(value) == _strides(node.meta["val"]):
        return changed

    def now(argument: Any) -> Any:
        return changed.get(argument, argument.meta.get("val")) if is_node(argument) else argument

    for reader in node.graph.nodes:
        if changed.keys().isdisjoint(reader.all_input_nodes) or is_write_back(reader):
            continue
        if reader.op == "output":
            # A saved result whose traced strides have gaps has no op that copies it to them.
            if not with_results or any(not old.meta["val"].is_contiguous() for old in reader.all_input_nodes
                                       if old in changed):
                return None
            continue
        target = target_of(reader)
        if target != "getitem" and (not target.startswith("aten.") or target.startswith(_OF_MEMORY) or writes(reader)):
            return None
        try:
            made = reader.target(*tree.tree_map(now, reader.args), **tree.tree_map(now, reader.kwargs))
        except Exception:  # noqa: BLE001 - whatever the op says, it does not take these strides
            return None
        if _strides(made) != _strides(reader.meta.get("val")):
            changed[reader] = made
    return changed


def _strides(value: Any) -> list[Any]:
    parts = value if isinstance(value, list | tuple) else (value,)
    return [part.stride() if hasattr(part, "stride") else None for part in parts]


def set_values(values: Mapping[Node, Any]) -> None:
    """Give nodes the values that `values_with` returned."""
    for node, value in values.items():
        node.meta["val"] = value


def may_change_results(kind: str) -> bool:
    """Whether the results of a graph that torch now compiles may have gaps between their rows.

    Autograd would copy the gradients that a backward graph returns to the strides of their parameters, and a result of
    which it makes another one by strides has to have those that were traced.
    """
    context = importlib.import_module("torch._guards").TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if kind == "backward" or metadata is None or context.output_strides is None:
        return False
    return not any(result.output_type.name.startswith("alias_of_intermediate") for result in metadata.output_info)


def copy_spread_views(graph: Any) -> None:
    """Save dense copies of a forward graph's views of which a GPU reads a sector for each element, as of a diagonal.

    An op of the forward graph reads these sectors in any case; a backward graph may read them again for each row.
    """
    context = importlib.import_module("torch._guards").TracingContext.try_get()
    torch = torch_for("fuser_lab.bridge")
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    for place in range(context.fw_metadata.num_forward, len(results)):
        view = results[place]
        is_read = is_node(view) and view.op == "call_function" and any(user is not output for user in view.users)
        if is_read and _is_spread(view.meta.get("val"), torch):
            results[place] = as_rows(output, view)
    output.args = (type(output.args[0])(results), *output.args[1:])


def _is_spread(value: Any, torch: Any) -> bool:
    """Whether each element of a tensor on a GPU is in another sector."""
    if not isinstance(value, torch.Tensor) or not has_own_memory(value.device.type):
        return False
    steps = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
    return bool(steps) and min(steps) * value.element_size() >= SECTOR_BYTES


def result_strides(graph: Any) -> list[tuple[int, ...] | None]:
    """Return the strides of a graph's results; None for other values."""
    (output,) = graph.find_nodes(op="output")
    traced = (traced_tensor(value.meta.get("val")) if is_node(value) else None for value in output.args[0])
    return [None if tensor is None else tensor.strides for tensor in traced]


def tell_strides(before: Sequence[tuple[int, ...] | None], after: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides of results that are other than traced."""
    context = importlib.import_module("torch._guards").TracingContext.try_get()
    if before != after and context is not None and context.output_strides is not None:
        context.output_strides.extend(None if old == new else new for old, new in zip(before, after, strict=True))


def take_strides(graph: Any, inputs: Sequence[Any]) -> None:
    """Give the arguments of a backward graph the strides of ``inputs``; where the traced ones are needed, copy them."""
    torch = torch_for("fuser_lab.bridge")
    for node, argument in zip(graph.find_nodes(op="placeholder"), inputs, strict=False):
        traced = node.meta.get("val")
        if not isinstance(traced, torch.Tensor) or not isinstance(argument, torch.Tensor):
            continue
        if traced.shape != argument.shape or traced.stride() == argument.stride():
            continue
        value = traced.as_strided(traced.shape, argument.stride())
        values = values_with(node, value, with_results=False)
        if values is not None:
            set_values(values)
            continue
        node.meta["val"] = value
        copy = insert_call(node.next, torch.ops.aten.clone.default, (node,), memory_format=torch.contiguous_format)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)

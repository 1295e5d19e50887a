"""Dropouts as masks that do not depend on data, with the random numbers of eager mode."""

from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node
from fuser_lab.targets import is_on_host

_ORIGINS = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "original_aten",
    "seq_nr", "origin", "scopes",
)


def dropout_mask(sizes: list[int], strides: list[int], p: float, dtype: Any, device: Any) -> Any:
    """Return the mask that ``native_dropout`` draws for a tensor of this layout, with the same numbers."""
    torch = torch_for("fuser_lab.bridge")
    if is_on_host(torch.device(device).type):
        return torch.empty_strided(sizes, strides, dtype=torch.bool, device=device).bernoulli_(1 - p)
    like = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return torch.ops.aten.native_dropout.default(like, p, True)[1]


dropout_mask.draws = True  # type: ignore[attr-defined]


def mask_layout(torch: Any, operand: Any) -> tuple[list[int], list[int]]:
    """Return sizes and strides of an operand's mask, which has the dense layout of ``empty_like``."""
    like = torch.empty_like(torch.empty_strided(operand.shape, operand.stride(), device="meta"))
    return list(operand.shape), list(like.stride())


def with_masks(gm: Any) -> None:
    """Rewrite each dropout of a graph into a mask that does not depend on data, and pointwise ops."""
    torch = torch_for("fuser_lab.bridge")
    aten = torch.ops.aten
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.native_dropout.default and _is_plain(torch, node):
            _split(torch, gm.graph, node)
    gm.graph.lint()


def _is_plain(torch: Any, node: Node) -> bool:
    operand, p, train = (*node.args, None)[:3]
    value = operand.meta.get("val")
    is_static = isinstance(value, torch.Tensor) and all(type(n) is int for n in (*value.shape, *value.stride()))
    users = all(user.target.__name__ == "getitem" for user in node.users)
    return is_static and users and isinstance(p, float | int) and train is not False


def _split(torch: Any, graph: Any, node: Node) -> None:
    aten = torch.ops.aten
    operand, p, *_ = node.args
    value, (result, mask_value) = operand.meta["val"], node.meta["val"]
    origin = {key: node.meta[key] for key in _ORIGINS if key in node.meta}

    def call(target: Any, args: tuple[Any, ...], held: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta = {**origin, "val": held}
        return made

    with graph.inserting_before(node):
        layout = mask_layout(torch, value)
        if value.numel():
            mask = call(dropout_mask, (*layout, float(p), value.dtype, value.device), mask_value)
            mask.meta["mask_of"] = operand
        else:
            # An empty tensor does not use the generator, and torch's kernel returns its mask in another dtype.
            mask_value = torch.ones_like(result, dtype=torch.bool)
            mask = call(aten.full.default, (layout[0], True), mask_value)
            mask.kwargs = {"dtype": torch.bool, "device": value.device}
        factor = 0.0 if p == 1 else 1 / (1 - p)
        if is_on_host(value.device.type):
            # Torch's kernel rounds the factor to the operand's dtype before scaling.
            number = call(aten._to_copy.default, (mask,), mask_value.to(value.dtype))  # noqa: SLF001
            number.kwargs = {"dtype": value.dtype}
            noise = call(aten.mul.Tensor, (number, factor), number.meta["val"])
            scaled = call(aten.mul.Tensor, (operand, noise), result)
        else:
            masked = call(aten.mul.Tensor, (operand, mask), result)
            scaled = call(aten.mul.Tensor, (masked, factor), result)
    for user in list(node.users):
        user.replace_all_uses_with(scaled if user.args[1] == 0 else mask)
        graph.erase_node(user)
    graph.erase_node(node)

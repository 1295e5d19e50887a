"""Merging of repeated calls before a graph is cut into forward and backward, or into regions.

Torch's own pass does the same, but imports most of inductor, which takes longer than all of a small graph's regions.
Graphs with symbolic sizes, or with other writes than those of new values over arguments, are left to torch's pass.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, is_write_back, target_of, traced_tensor, writes


class _UnknownError(Exception):
    """An argument that cannot be compared with another one."""


def merge_calls(graph: Any, *, numbers: bool = True) -> bool:
    """Merge equal calls of a graph, and return whether that was done; a graph with other writes is unchanged.

    Calls that draw numbers or return uninitialized memory stay, and so do those that share memory with a result,
    because equal results have separate memory, as in eager mode. Unless ``numbers``, so do calls that make one element:
    a kernel computes it again at no cost, while a common one would make kernels that are independent wait for it.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any((writes(node) and not is_write_back(node)) or not _is_known(node) for node in graph.nodes):
        return False
    written = {place for node in calls if is_write_back(node) for place in storages_of(node.args[0])}
    writes_so_far = 0
    returned = {place for node in graph.find_nodes(op="output") for operand in node.all_input_nodes
                for place in storages_of(operand)}
    first: dict[Any, Node] = {}
    equal: dict[Node, Node] = {}  # to the first of several calls that make the same number
    for node in calls:
        if is_write_back(node):
            writes_so_far += 1
            continue
        if not is_pure(node) or not returned.isdisjoint(storages_of(node)):
            continue
        try:
            key = (
                writes_so_far if any(not written.isdisjoint(storages_of(read)) for read in node.all_input_nodes) else 0,
                node.target, _comparison_key(node.args, equal), _comparison_key(dict(node.kwargs), equal),
            )
        except _UnknownError:
            continue
        same = first.setdefault(key, node)
        if same is not node and not numbers and _is_number(node):
            equal[node] = same
        elif same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    for node in reversed(equal):
        if not node.users:  # its readers were equal, too
            graph.erase_node(node)
    return True


def _values(node: Node) -> Iterator[Any]:
    value = node.meta.get("val")
    yield from value if isinstance(value, list | tuple) else (value,)


def _is_known(node: Node) -> bool:
    """Whether a node's value is strided tensors of known sizes, numbers that are not symbols, or nothing."""
    torch = torch_for("fuser_lab.bridge")
    symbols = torch.SymInt | torch.SymFloat | torch.SymBool
    return node.op == "output" or all(
        not isinstance(value, symbols) and (not isinstance(value, torch.Tensor) or traced_tensor(value) is not None)
        for value in _values(node)
    )


def storages_of(node: Node) -> set[int]:
    """Return the identities of the memory of a node's tensors; views have that of their base."""
    torch = torch_for("fuser_lab.bridge")
    return {
        int(value.untyped_storage()._cdata)  # noqa: SLF001 - a fake tensor has no address
        for value in _values(node) if isinstance(value, torch.Tensor)
    }


def is_pure(node: Node) -> bool:
    """Whether equal calls of a node's function have equal results, which are not uninitialized memory."""
    torch = torch_for("fuser_lab.bridge")
    if target_of(node) == "getitem":
        return True
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
        return False
    return torch.Tag.nondeterministic_seeded not in node.target.tags and ".empty" not in target_of(node)


def _is_number(node: Node) -> bool:
    torch = torch_for("fuser_lab.bridge")
    return all(isinstance(value, torch.Tensor) and value.numel() == 1 for value in _values(node))


def _comparison_key(value: Any, equal: Mapping[Node, Node]) -> Any:
    """Return a key that is equal only for equal arguments: 1, 1.0 and True differ."""
    torch = torch_for("fuser_lab.bridge")
    if isinstance(value, torch.fx.Node):
        return equal.get(value, value)
    if isinstance(value, list | tuple):
        return (type(value), *(_comparison_key(part, equal) for part in value))
    if isinstance(value, dict):
        return tuple((key, _comparison_key(part, equal)) for key, part in sorted(value.items()))
    if value is None or isinstance(
        value, bool | int | float | complex | str | torch.dtype | torch.device | torch.layout | torch.memory_format,
    ):
        return type(value), repr(value)
    raise _UnknownError

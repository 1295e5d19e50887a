"""What the readers of several compilers share: names of calls, orders of nodes, and decisions between kernels."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from fuser_lab.bridge.capture import GraphBreak
from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.traced import Node, origin_of, target_of
from fuser_lab.compilers.kernels import CompiledWhy
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.contracts.partition import (
    Decision,
    FusedOps,
    OpNote,
    Origin,
    bare_op,
    data_flow_order,
    heads_of,
)

_DECIDING = ("dim", "dims", "dtype", "memory_format")  # names of arguments


def graph_ends(breaks: Sequence[GraphBreak], number: int, graphs: int) -> str:
    """Return why a graph ends early: in the first graph all reasons, if their graphs are not the compiler's."""
    named = [each for each in breaks if each.graph == number] if len(breaks) < graphs else breaks if not number else []
    return "; ".join(f"{each.op or 'torch'}: {each.reason}{f' ({each.place})' if each.place else ''}" for each in named)


def kernel_groups(plan: CompiledPlan) -> list[tuple[Sequence[str], str, int]]:
    """Return the nodes, the library's function and the bytes of each kernel.

    A library's call computes what no kernel of the compiler does: its record may also have the calls that its operands
    come from.
    """
    generated = {name for kernel in plan.segments if not kernel.opaque for name in kernel.nodes}
    groups: list[tuple[Sequence[str], str, int]] = []
    for kernel in plan.segments:
        alone = [name for name in kernel.nodes if name not in generated]
        nodes = alone if kernel.opaque and alone else kernel.nodes
        groups.append((nodes, kernel.function if kernel.opaque else "", kernel.bytes))
    return groups


def is_computed(target: str) -> bool:
    """Whether a call computes elements, rather than picks a result or views an operand."""
    return target != "getitem" and target not in ALIASES


def origin_of_call(target: str, original: str, note: OpNote, module: str) -> Origin:
    """Return where a call of the compiler's graph is from: the op that the user called, of which it is a part."""
    part = bare_op(target)
    return Origin(module=module, called=bare_op(original) if original else part, part=part, note=note)


def deciding_arguments(node: Node) -> str:
    """Return the arguments of a call that decide its loops or its width: ``dim=[1]``; axes count from 0."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return ""
    names = [argument.name for argument in schema.arguments]
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    rank = next((len(operand.meta["val"].shape) for operand in node.all_input_nodes
                 if hasattr(operand.meta.get("val"), "shape")), 0)
    texts = []
    for name in _DECIDING:
        value = arguments.get(name)
        if isinstance(value, list | tuple):
            value = sorted(axis % rank if rank and isinstance(axis, int) else axis for axis in value)
        elif isinstance(value, int) and rank:
            value %= rank
        if value is not None:
            texts.append(f"{name}={str(value).removeprefix('torch.')}")
    return " ".join(texts)


def decisions_between(plan: CompiledPlan, kernels: Sequence[FusedOps]) -> Iterator[Decision]:
    """Yield why kernels are separate of which one reads the other, or that are the next two to read a buffer."""
    heads = heads_of(kernels)
    beside: dict[int, CompiledWhy] = {}
    for why in plan.siblings():
        beside.setdefault(why.kernels[0], why)
    for why in (*plan.boundaries(), *beside.values()):
        ends = tuple(heads[number] for number in why.kernels)
        if all(ends):
            yield Decision(groups=ends, fused=False, by=why.by, code=why.code, text=why.text)


def nodes_in_order(nodes: Iterable[Node], kind: str) -> Iterator[Node]:
    """Yield the nodes of a graph in an order that independent lines do not change.

    A backward graph returns gradients in the order of the inputs of its forward graph, which is that of their first
    use, so that its results are ordered by what they compute.
    """
    listed = list(nodes)
    returned = [operand for node in listed if node.op == "output" for operand in node.all_input_nodes]
    if kind == "backward":
        signature = _signatures(listed)
        returned.sort(key=signature.__getitem__)
    return data_flow_order((*returned, *listed), lambda node: node.all_input_nodes)


def _signatures(nodes: Sequence[Node]) -> dict[Node, str]:
    """Return for each node of a graph a digest of what it computes, from its op, its module and its operands."""
    made: dict[Node, str] = {}
    for node in nodes:
        operands = " ".join(made.get(operand, "") for operand in node.all_input_nodes)
        described = "" if node.op == "placeholder" else f"{target_of(node)} {origin_of(node).module} {operands}"
        made[node] = hashlib.sha256(described.encode()).hexdigest()[:16]
    return made

"""The partition that torch.compile makes of a function."""

import copy
import functools
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fuser_lab.arguments import brief, short_text
from fuser_lab.bridge.capture import GraphBreak
from fuser_lab.bridge.model import from_torch
from fuser_lab.bridge.op_costs import op_cost
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import origin_of
from fuser_lab.compilers.inductor import CompiledModel, from_inductor
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.contracts.call import Call, Compiled, check_function, circumstances, options_text
from fuser_lab.contracts.graph_parts import (
    deciding_arguments,
    decisions_between,
    graph_ends,
    is_computed,
    kernel_groups,
    nodes_in_order,
    origin_of_call,
)
from fuser_lab.contracts.partition import (
    Decision,
    FusedOps,
    GraphPartition,
    OpNote,
    Origin,
    Partition,
    kernels_in_order,
    stable_names,
)
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.plan.planning import device_of
from fuser_lab.targets import has_own_memory


def partition_by_inductor(call: Call) -> Compiled:
    """Return the partition with the plans of `from_inductor`, its graphs ended where torch says why."""
    torch = torch_for(call.who)
    check_function(call)
    moved = _move(torch, call)
    made = from_inductor(
        moved.function, *moved.inputs, backward=call.backward, keywords=moved.keywords, **call.options,
    )
    breaks = _breaks(moved, made)
    graphs = tuple(
        replace(_inductor_graph(plan), ends=graph_ends(breaks, plan.record.number, len(made.plans)))
        for plan in made.plans
    )
    costs = [cost for plan in made.plans for cost in _inductor_costs(plan)]
    device = device_of(None)
    versions = {"torch": str(torch.__version__)}
    with suppress(ImportError):
        versions["triton"] = __import__("triton").__version__
    partition = Partition(
        compiler="inductor", device=_torch_device(torch, moved), model=device.name, graphs=graphs,
        options=(*_inductor_options(), *options_text(call.options)),
        bytes=sum(kernel.bytes for graph in graphs for kernel in graph.kernels),
        bound_bytes=sum(cost[0] for cost in costs), seconds=sum(cost[1] for cost in costs),
        bound_seconds=sum(cost[2] for cost in costs), **circumstances(moved, versions),
    )
    return Compiled(call=call, partition=partition, plans=made.plans, captured=made)


def _move(torch: Any, call: Call) -> Call:
    """Return the call with copies of its tensors and of its module on the device that was named, if one was."""
    if call.device is None:
        return call
    try:
        device = torch.device(call.device)
        place = functools.partial(_on, torch, device)
        tree = torch.utils._pytree.tree_map  # noqa: SLF001 - what torch flattens arguments with
        function = call.function
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).to(device)
        return replace(
            call, function=function, inputs=tuple(tree(place, list(call.inputs))),
            keywords=tree(place, dict(call.keywords)),
        )
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        msg = f"{call.who}: device {short_text(call.device)} cannot hold the arguments: {brief(first)}"
        raise InputError(msg) from None


def _on(torch: Any, device: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device == device:
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def _torch_device(torch: Any, call: Call) -> str:
    tree = torch.utils._pytree.tree_leaves  # noqa: SLF001 - what torch flattens arguments with
    tensors = [x for x in tree((call.inputs, dict(call.keywords))) if isinstance(x, torch.Tensor)]
    tensors += list(getattr(call.function, "parameters", tuple)())
    kinds = dict.fromkeys(x.device.type for x in tensors)
    accelerator = next(filter(has_own_memory, kinds), None)
    if accelerator is not None:
        return str(getattr(torch, accelerator).get_device_name())
    return next(iter(kinds), str(torch.get_default_device()))


def _inductor_options() -> tuple[str, ...]:
    """Return the entries of Inductor's configuration that differ from its defaults, one text each."""
    inductor: Any = importlib.import_module("torch._inductor.config")

    entries = getattr(inductor, "_config", {})
    options = []
    for line in inductor.codegen_config().splitlines():
        name, _, value = line.removeprefix("torch._inductor.config.").partition(" = ")
        # An entry that was set to its default, as by the end of a patch, is listed as well.
        if value and value != repr(getattr(entries.get(name), "default", None)):
            options.append(f"inductor.config.{name} = {value}")
    return tuple(sorted(options))


def _breaks(call: Call, made: CompiledModel) -> tuple[GraphBreak, ...]:
    """Return why torch made several graphs of a function, if it did; a second capture says it."""
    kinds = Counter(plan.record.kind for plan in made.plans)
    if max(kinds.values(), default=0) < 2:  # a forward and a backward graph are no break
        return ()
    with suppress(FuserLabError):
        captured = from_torch(call.function, *call.inputs, backward=call.backward, keywords=call.keywords)
        return captured.graph_breaks
    return ()


def _inductor_graph(plan: CompiledPlan) -> GraphPartition:
    record = plan.record
    nodes = {node.name: node for node in plan.graph.traced.nodes} if plan.graph is not None else {}
    computed = dict.fromkeys(
        name for kernel in plan.segments for name in kernel.nodes if is_computed(record.calls[name].target)
    )
    ordered = (node.name for node in nodes_in_order(nodes.values(), record.kind)) if nodes else ()
    origins: dict[str, Origin] = {}
    for name in computed:
        call = record.calls[name]
        node = nodes.get(name)
        note = OpNote(place=call.place, arguments="" if node is None else deciding_arguments(node))
        origins[name] = origin_of_call(call.target, call.original, note, "" if node is None else origin_of(node).module)
    names = stable_names(dict.fromkeys((*ordered, *computed)), origins)
    kernels = kernels_in_order(kernel_groups(plan), names)
    return GraphPartition(
        kind=record.kind, ops={names[op]: origins[op].note for op in names}, kernels=kernels,
        decisions=tuple(_inductor_decisions(plan, kernels, names)),
    )


def _inductor_decisions(
    plan: CompiledPlan, kernels: Sequence[FusedOps], names: Mapping[str, str],
) -> Iterator[Decision]:
    position = {name: number for number, name in enumerate(names.values())}
    last: dict[str, str] = {}  # the last op that an operation computes, which is the one that it is for
    for operation, nodes in plan.record.computes.items():
        computed = [names[node] for node in nodes if node in names]
        if computed:
            last[operation] = max(computed, key=position.__getitem__)

    def first_of(subject: Iterable[str]) -> str:
        return min((last[name] for name in subject if name in last), key=position.__getitem__, default="")

    for attempt in plan.record.attempts:
        if attempt.accepted and attempt.phase.endswith("fused"):
            groups = tuple(dict.fromkeys(first_of(subject) for subject in attempt.subjects))
            if all(groups) and len(groups) > 1:
                yield Decision(groups=groups, fused=True, by=plan.compiler)
    yield from decisions_between(plan, kernels)


def _inductor_costs(plan: CompiledPlan) -> Iterator[tuple[int, float, float]]:
    """Yield least bytes, predicted seconds and least seconds of each fusion of our own and of each op of a library."""
    for fusion in plan.fusions:
        bound = fusion.time_bound()
        yield fusion.bytes_ideal, bound.seconds, bound.bound
    outside = {name for kernel in plan.segments if kernel.opaque for name in kernel.nodes}
    device = device_of(None)
    if plan.graph is not None:
        for left in plan.graph.left:
            if left.node.name in outside:
                cost = op_cost(left.node, device)
                yield 0, cost.predicted, cost.bound
    yield sum(kernel.bytes for kernel in plan.segments if kernel.opaque), 0.0, 0.0

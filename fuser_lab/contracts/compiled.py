"""The partition that a compiler makes of a function: the one place of contracts that asks which compiler it is."""

import copy
import functools
import hashlib
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fuser_lab.api.subject import Subject, subject_of
from fuser_lab.arguments import brief, short_text
from fuser_lab.bridge.capture import CapturedGraph, GraphBreak
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.jax_model import from_jax
from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.model import from_torch
from fuser_lab.bridge.model_view import is_free
from fuser_lab.bridge.op_costs import op_cost
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import jax_for, torch_for
from fuser_lab.bridge.traced import Node, origin_of, target_of
from fuser_lab.compilers.inductor import CompiledModel, from_inductor
from fuser_lab.compilers.plan import CompiledPlan, CompiledWhy
from fuser_lab.compilers.xla import from_xla
from fuser_lab.contracts.partition import (
    Decision,
    FusedOps,
    GraphPartition,
    OpNote,
    Origin,
    Partition,
    bare_op,
    data_flow_order,
    heads_of,
    kernels_in_order,
    stable_names,
)
from fuser_lab.cost.verdict import Answer
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, FuserLabError, InputError
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import device_of
from fuser_lab.report.units import dtype_label
from fuser_lab.segmentation.events import Attempt, Kind
from fuser_lab.segmentation.why import Why
from fuser_lab.targets import has_own_memory
from fuser_lab.version import __version__

STRATEGIES = {"nvfuser": "bottom_up", "fuser_lab": "saving"}  # of `segment`, by the compiler's name in contracts
_TENSOR = re.compile(r"\bT\d+\w*")
_DECIDING = ("dim", "dims", "dtype", "memory_format")  # names of arguments
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def has_schedulers(compiler: str) -> bool:
    """Whether a compiler, by its name in contracts, is one of ours, whose reasons are those of schedulers."""
    return compiler in STRATEGIES


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function with its arguments, and how it is compiled.

    ``who`` is the public function, which begins messages. ``options`` are those of the compiler's function:
    `from_inductor`, or `from_torch` for our own plans.
    """

    who: str
    function: Any
    inputs: tuple[Any, ...] = ()
    compiler: str = "inductor"
    device: str | None = None
    backward: bool = False
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A call with its partition, and the plans that it was read from."""

    call: Call
    partition: Partition
    plans: tuple[CompiledPlan | Plan, ...]
    captured: Captured | None = None


def compile_call(call: Call) -> Compiled:
    """Return the partition that a compiler makes of a function.

    Raises
    ------
    InputError
        If there is no such compiler or device, or the compiler makes no graph of the function.
    """
    made = COMPILERS.get(call.compiler)
    if made is None:
        names = ", ".join(map(repr, COMPILERS))
        msg = f"{call.who}: compiler must be one of {names}, given {short_text(call.compiler)}."
        raise InputError(msg)
    return made(call)


# torch.compile

def _by_inductor(call: Call) -> Compiled:
    torch = torch_for(call.who)
    _check_function(call)
    moved = _moved(torch, call)
    made = from_inductor(
        moved.function, *moved.inputs, backward=call.backward, keywords=moved.keywords, **call.options,
    )
    breaks = _breaks(moved, made)
    graphs = tuple(
        replace(_inductor_graph(plan), ends=_ends(breaks, plan.record.number, len(made.plans)))
        for plan in made.plans
    )
    costs = [cost for plan in made.plans for cost in _inductor_costs(plan)]
    device = device_of(None)
    versions = {"torch": str(torch.__version__)}
    with suppress(ImportError):
        versions["triton"] = __import__("triton").__version__
    partition = Partition(
        compiler="inductor", device=_torch_device(torch, moved), model=device.name, graphs=graphs,
        options=(*_inductor_options(), *_options_text(call.options)),
        bytes=sum(kernel.bytes for graph in graphs for kernel in graph.kernels),
        bound_bytes=sum(cost[0] for cost in costs), seconds=sum(cost[1] for cost in costs),
        bound_seconds=sum(cost[2] for cost in costs), **_circumstances(moved, versions),
    )
    return Compiled(call=call, partition=partition, plans=made.plans, captured=made)


def _check_function(call: Call) -> None:
    if not callable(call.function) or isinstance(call.function, type):
        msg = (
            f"{call.who}: with compiler={call.compiler!r} the subject must be a function or a module, given "
            f"{short_text(call.function)}."
        )
        raise ArgumentTypeError(msg)


def _moved(torch: Any, call: Call) -> Call:
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


def _options_text(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name} = {value!r}" for name, value in sorted(options.items()) if value is not None)


def _breaks(call: Call, made: CompiledModel) -> tuple[GraphBreak, ...]:
    """Return why torch made several graphs of a function, if it did; a second capture says it."""
    kinds = Counter(plan.record.kind for plan in made.plans)
    if max(kinds.values(), default=0) < 2:  # a forward and a backward graph are no break
        return ()
    with suppress(FuserLabError):
        captured = from_torch(call.function, *call.inputs, backward=call.backward, keywords=call.keywords)
        return captured.graph_breaks
    return ()


def _ends(breaks: Sequence[GraphBreak], number: int, graphs: int) -> str:
    """Return why a graph ends early: in the first graph all reasons, if their graphs are not the compiler's."""
    named = [each for each in breaks if each.graph == number] if len(breaks) < graphs else breaks if not number else []
    return "; ".join(f"{each.op or 'torch'}: {each.reason}{f' ({each.place})' if each.place else ''}" for each in named)


def _inductor_graph(plan: CompiledPlan) -> GraphPartition:
    record = plan.record
    nodes = {node.name: node for node in plan.graph.traced.nodes} if plan.graph is not None else {}
    computed = dict.fromkeys(
        name for kernel in plan.segments for name in kernel.nodes if _is_computed(record.calls[name].target)
    )
    ordered = (node.name for node in _nodes_in_order(nodes.values(), record.kind)) if nodes else ()
    origins: dict[str, Origin] = {}
    for name in computed:
        call = record.calls[name]
        node = nodes.get(name)
        note = OpNote(place=call.place, arguments="" if node is None else _arguments(node))
        origins[name] = _origin(call.target, call.original, note, "" if node is None else origin_of(node).module)
    names = stable_names(dict.fromkeys((*ordered, *computed)), origins)
    kernels = kernels_in_order(_groups(plan), names)
    return GraphPartition(
        kind=record.kind, ops={names[op]: origins[op].note for op in names}, kernels=kernels,
        decisions=tuple(_inductor_decisions(plan, kernels, names)),
    )


def _groups(plan: CompiledPlan) -> list[tuple[Sequence[str], str, int]]:
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


def _is_computed(target: str) -> bool:
    return target != "getitem" and target not in ALIASES


def _origin(target: str, original: str, note: OpNote, module: str) -> Origin:
    part = bare_op(target)
    return Origin(module=module, called=bare_op(original) if original else part, part=part, note=note)


def _arguments(node: Node) -> str:
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
    yield from _apart(plan, kernels)


def _apart(plan: CompiledPlan, kernels: Sequence[FusedOps]) -> Iterator[Decision]:
    """Yield why kernels are separate of which one reads the other, or that are the next two to read a buffer."""
    heads = heads_of(kernels)
    beside: dict[int, CompiledWhy] = {}
    for why in plan.siblings():
        beside.setdefault(why.kernels[0], why)
    for why in (*plan.boundaries(), *beside.values()):
        ends = tuple(heads[number] for number in why.kernels)
        if all(ends):
            yield Decision(groups=ends, fused=False, by=why.by, code=why.code, text=why.text)


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


# Our own plans, as nvFuser cuts or with another strategy

def _by_segmenter(call: Call) -> Compiled:
    asked = {**call.options, **({} if call.device is None else {"target": call.device})}
    of_function = {"keywords": call.keywords, "backward": call.backward}
    is_cut = isinstance(call.function, Plan | Captured)
    options = asked if is_cut else {
        "strategy": STRATEGIES[call.compiler], **asked, **{name: value for name, value in of_function.items() if value},
    }
    is_fusion = isinstance(call.function, Fusion | FusionBuilder)
    option = next((name for name, value in of_function.items() if value), None)
    if option is not None and (is_cut or is_fusion):
        subject_text = short_text(call.function)
        msg = f"{call.who}: {option} is an argument for functions and modules, given {subject_text}; omit it."
        raise ArgumentTypeError(msg)
    subject = subject_of(call.who, call.function, call.inputs, options)
    versions: dict[str, str] = {}
    if subject.captured is None:
        plans = subject.plans
        call = replace(call, inputs=plans[0].inputs)
        graphs = tuple(_plan_graph(plan, call.compiler) for plan in plans)
    else:
        plans = tuple(region.plan for region in subject.captured.regions)
        graphs = tuple(_captured_graphs(subject.captured, call.compiler))
        library = subject.captured.library.lower()
        versions[library] = str(__import__(library).__version__)
    partition = Partition(
        compiler=call.compiler, device=_device(subject, plans), model=_device(subject, plans), graphs=graphs,
        options=_options_text(call.options),
        **_costs(subject, plans), **_circumstances(call, versions),
    )
    return Compiled(call=call, partition=partition, plans=plans, captured=subject.captured)


def _device(subject: Subject, plans: Sequence[Plan]) -> str:
    return plans[0].target if plans else device_of(None).name


def _costs(subject: Subject, plans: Sequence[Plan]) -> dict[str, Any]:
    bounds = [plan.time_bound() for plan in plans]
    moved = sum(segment.bytes for plan in plans for segment in plan.segments)
    ideal = sum(plan.bytes_ideal for plan in plans)
    seconds, least = sum(bound.seconds for bound in bounds), sum(bound.bound for bound in bounds)
    if subject.captured is not None:
        device = plans[0].oracle.device if plans else device_of(None)
        costs = [
            op_cost(left.node, device) for graph in subject.captured.graphs for left in graph.left
            if _is_kernel(left.reason, left.op)
        ]
        outside = sum(cost.bytes for cost in costs)
        moved, ideal = moved + outside, ideal + outside
        seconds += sum(cost.predicted for cost in costs)
        least += sum(cost.bound for cost in costs)
    return {"bytes": moved, "bound_bytes": ideal, "seconds": seconds, "bound_seconds": least}


def _is_kernel(reason: str, op: str) -> bool:
    return not is_free(reason) and op != "getitem"


def _captured_graphs(captured: Captured, compiler: str) -> Iterator[GraphPartition]:
    for number, graph in enumerate(captured.graphs):
        ends = _ends(captured.graph_breaks, number, len(captured.graphs))
        yield replace(_captured_graph(captured, graph, number, compiler), ends=ends)


def _captured_graph(captured: Captured, graph: CapturedGraph, number: int, compiler: str) -> GraphPartition:
    left = {each.node: each for each in graph.left if _is_kernel(each.reason, each.op)}
    groups: list[tuple[list[Node], str, int]] = []
    home: dict[Node, int] = {}  # the last group that computes a node
    region_groups: list[list[int]] = []
    place = {node: position for position, node in enumerate(graph.traced.nodes)}
    for region in graph.regions:
        numbers: list[int] = []
        members: dict[int, list[Node]] = {}
        for node, segments in _homes(region).items():
            for segment in segments:
                members.setdefault(segment, []).append(node)
        for segment in sorted(members):
            numbers.append(len(groups))
            home.update(dict.fromkeys(members[segment], len(groups)))
            groups.append((members[segment], "", region.plan.segments[segment].bytes))
        region_groups.append(numbers)
    device = graph.regions[0].plan.oracle.device if graph.regions else device_of(None)
    for node, each in left.items():
        home[node] = len(groups)
        groups.append(([node], each.op, op_cost(node, device).bytes))
    origins = {
        node: _origin(
            target_of(node), str(node.meta.get("original_aten") or ""),
            OpNote(place=origin_of(node).place, arguments=_arguments(node)), origin_of(node).module,
        )
        for node in place if node in home
    }
    names = stable_names(_nodes_in_order(place, graph.kind), origins)
    # Kernels run in the order of their last op.
    order = sorted(range(len(groups)), key=lambda n: max(place[node] for node in groups[n][0]))
    kernels = kernels_in_order(groups, names)
    firsts = heads_of(kernels)
    decisions = [
        decision for region, numbers in zip(graph.regions, region_groups, strict=True)
        for decision in _region_decisions(region, numbers, firsts, names, compiler)
    ]
    decisions += _between_units(captured, graph, number, home, firsts, left)
    return GraphPartition(
        kind=graph.kind, ops={names[node]: origins[node].note for node in names},
        kernels=tuple(kernels[n] for n in order), decisions=tuple(decisions),
    )


def _homes(region: Region) -> dict[Node, tuple[int, ...]]:
    """Return the segments that compute each call of a region that computes something."""
    segmented = region.plan.segmented
    fusion = segmented.fusion
    homes: dict[Node, tuple[int, ...]] = {}
    for node, op in zip(region.call_nodes, region.ops, strict=True):
        made = [fusion.tensors[name] for name in op.tensors if name in fusion.tensors]
        exprs = [fusion.producers[tensor].name for tensor in made if tensor in fusion.producers]
        if exprs and _is_computed(target_of(node)):
            homes[node] = tuple(sorted({n for name in exprs for n in segmented.homes.get(name, ())}))
    return {node: numbers for node, numbers in homes.items() if numbers}


def _region_decisions(
    region: Region, numbers: Sequence[int], firsts: Sequence[str], names: Mapping[Node, str], compiler: str,
) -> Iterator[Decision]:
    ops = {
        tensor: names[node] for node, op in zip(region.call_nodes, region.ops, strict=True) if node in names
        for tensor in op.tensors
    }
    position = {name: number for number, name in enumerate(names.values())}
    segments = sorted({n for homes in _homes(region).values() for n in homes})
    heads = {segment: firsts[number] for segment, number in zip(segments, numbers, strict=True)}
    yield from _plan_decisions(region.plan, ops, position, heads, compiler)


def _plan_decisions(
    plan: Plan, ops: Mapping[str, str], position: Mapping[str, int], heads: Mapping[int, str], compiler: str,
) -> Iterator[Decision]:
    """Yield the merges of a plan, and why its segments are separate; ``ops`` are the names of ops by tensor."""
    tensors = {expr.name: tuple(t.name for t in expr.tensor_outputs) for expr in plan.fusion.tensor_exprs}
    for attempt in plan.decisions:
        if attempt.kind is Kind.MERGE and attempt.accepted:
            yield from _merge(attempt, tensors, ops, position, compiler)
    boundaries = plan.boundaries()
    beside = {segment for why in boundaries for segment in why.segments}
    # A segment that passes nothing to another one is compared with the next.
    alone = [(n, n + 1 if n + 1 in heads else n - 1) for n in heads if n not in beside and len(heads) > 1]
    for why in (*boundaries, *(plan.why(a, b) for a, b in alone)):
        ends = tuple(heads.get(segment, "") for segment in why.segments)
        if all(ends):
            code, text = _reason(why)
            text = _TENSOR.sub(lambda match: ops.get(match[0], match[0]), text)
            yield Decision(groups=ends, fused=False, by=compiler, code=code, text=text)


def _merge(
    attempt: Attempt, tensors: Mapping[str, Sequence[str]], ops: Mapping[str, str], position: Mapping[str, int],
    compiler: str,
) -> Iterator[Decision]:
    groups = []
    for subject in attempt.subjects:
        named = [ops[t] for name in subject for t in tensors.get(name, (name,)) if t in ops]
        if named:
            groups.append(min(named, key=position.__getitem__))
    distinct = tuple(dict.fromkeys(groups))
    if len(distinct) > 1:
        yield Decision(groups=distinct, fused=True, by=compiler)


def _reason(why: Why) -> tuple[str, str]:
    decisive = [verdict for verdict in Answer(why.verdicts).decisive if not verdict.accepted]
    if not decisive:
        return why.relation.value, why.text.partition("\n")[0]
    reason = decisive[0].reason
    code = reason.code.value if reason is not None else why.relation.value
    return code, f"{decisive[0].scheduler.value}: {decisive[0].text}"


def _between_units(
    captured: Captured, graph: CapturedGraph, number: int, home: Mapping[Node, int], firsts: Sequence[str],
    left: Mapping[Node, Any],
) -> list[Decision]:
    """Return why kernels of different regions, or of a region and the library, are separate where one reads another."""
    regions = {node: region for region in graph.regions for node in region.call_nodes}
    pairs: dict[tuple[int, int], tuple[Node, Node]] = {}
    for node in home:
        for operand in node.all_input_nodes:
            source = _computed(operand, home)
            if source is not None and home[source] != home[node]:
                pairs.setdefault((home[source], home[node]), (source, node))
    decisions = []
    for (a, b), (source, node) in pairs.items():
        first, second = regions.get(source), regions.get(node)
        if first is not None and first is second:
            continue
        outside = left.get(source) or left.get(node)
        if outside is not None:
            code, text = "left", f"{outside.op}: {outside.reason}"
        else:
            assert first is not None
            assert second is not None
            words = f"graph {number} " if len(captured.graphs) > 1 else ""
            answer = captured.why(f"{words}region {first.index}", f"{words}region {second.index}").answers[0]
            code, text = answer.rule.name.lower() if answer.rule else "region", answer.text
        decisions.append(Decision(
            groups=(firsts[a], firsts[b]), fused=False, by=graph.library, code=code, text=text,
        ))
    return decisions


def _computed(value: Node, home: Mapping[Node, int]) -> Node | None:
    """Return the call whose result a value is, or is a view of; None for an input."""
    while value not in home and value.op == "call_function" and value.all_input_nodes:
        value = value.all_input_nodes[0]
    return value if value in home else None


def _plan_graph(plan: Plan, compiler: str) -> GraphPartition:
    """Return the partition of a plan of a definition."""
    fusion = plan.fusion
    modules, sources = dict(plan.modules), dict(plan.sources)
    exprs = {expr: expr.tensor_outputs[0].name for expr in fusion.tensor_exprs if expr.tensor_outputs}
    origins = {
        expr: Origin(
            module=modules.get(name, ""), called=expr.op.name, part=expr.op.name,
            note=OpNote(place=(re.search(r"\(([^()]*:\d+)\)$", sources.get(name, "")) or ("", ""))[1]),
        )
        for expr, name in exprs.items()
    }

    def operands(expr: Expr) -> list[Expr]:
        return [fusion.producers[v] for v in expr.inputs if isinstance(v, TensorView) and v in fusion.producers]

    ends = [fusion.producers[tensor] for tensor in fusion.outputs if tensor in fusion.producers]
    names = stable_names(data_flow_order((*ends, *exprs), operands), origins)
    segmented = plan.segmented
    members: dict[int, list[Expr]] = {index: [] for index in range(len(segmented.groups))}
    for expr in exprs:
        for number in segmented.homes.get(expr.name, ()):
            members[number].append(expr)
    kernels = kernels_in_order([(members[s.index], "", s.bytes) for s in plan.segments], names)
    ops = {tensor.name: names[expr] for expr in names for tensor in expr.tensor_outputs}
    position = {name: number for number, name in enumerate(names.values())}
    heads = dict(enumerate(heads_of(kernels)))
    return GraphPartition(
        kind="inference", ops={names[expr]: origins[expr].note for expr in names}, kernels=kernels,
        decisions=tuple(_plan_decisions(plan, ops, position, heads, compiler)),
    )


# XLA

def _by_xla(call: Call) -> Compiled:
    jax = jax_for(call.who)
    _check_function(call)
    with _jax_device(jax, call):
        made = from_xla(call.function, *call.inputs, keywords=call.keywords, **call.options)
    plan = made.plans[0]
    record = plan.record
    computed = dict.fromkeys(name for kernel in plan.segments for name in kernel.nodes)
    origins = {
        name: Origin(called=record.calls[name].original or record.calls[name].target,
                     part=record.calls[name].target.replace("-", "_"), note=OpNote(place=record.calls[name].place))
        for name in computed
    }
    names = stable_names(computed, origins)
    kernels = kernels_in_order(_groups(plan), names)
    graph = GraphPartition(
        kind="inference", ops={names[op]: origins[op].note for op in names}, kernels=kernels,
        decisions=tuple(_apart(plan, kernels)),
    )
    costs: dict[str, Any] = {"bytes": sum(kernel.bytes for kernel in kernels)}
    with suppress(FuserLabError):
        captured = from_jax(getattr(call.function, "__wrapped__", call.function), *call.inputs, keywords=call.keywords)
        subject = Subject(caller=call.who, captured=captured)
        costs = {**_costs(subject, tuple(region.plan for region in captured.regions)), **costs, "seconds": 0.0}
    partition = Partition(
        compiler="xla", device=str(jax.devices()[0].device_kind), model=device_of(None).name, graphs=(graph,),
        options=_options_text(call.options), **costs,
        **_circumstances(call, {"jax": str(jax.__version__), "jaxlib": str(__import__("jaxlib").__version__)}),
    )
    return Compiled(call=call, partition=partition, plans=(plan,))


def _jax_device(jax: Any, call: Call) -> AbstractContextManager[Any]:
    if call.device is None:
        return nullcontext()
    try:
        made: AbstractContextManager[Any] = jax.default_device(jax.devices(call.device)[0])
    except RuntimeError as error:
        msg = f"{call.who}: JAX has no device {short_text(call.device)}: {brief(str(error).partition(chr(10))[0])}"
        raise InputError(msg) from None
    return made


COMPILERS: Mapping[str, Callable[[Call], Compiled]] = {
    "inductor": _by_inductor, "nvfuser": _by_segmenter, "fuser_lab": _by_segmenter, "xla": _by_xla,
}


# What decides beside the function

def _circumstances(call: Call, versions: Mapping[str, str]) -> dict[str, Any]:
    leaves: list[Any] = []
    waiting: list[Any] = [[*call.inputs, *(value for _, value in sorted(call.keywords.items()))]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += [value[name] for name in sorted(value, key=str, reverse=True)]
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            leaves.append(value)
    held = [*getattr(call.function, "parameters", tuple)(), *getattr(call.function, "buffers", tuple)()]
    return {
        "inputs": tuple(map(_described, leaves)), "versions": {"fuser_lab": __version__, **versions},
        "parameters": dict(sorted(Counter(_dtype(each.dtype) for each in held).items())),
    }


def _described(tensor: Any) -> str:
    """Return ``f32[64,512]``, with strides where the tensor is not dense in the order of its axes."""
    sizes = [str(size) for size in tensor.shape]
    text = f"{_dtype(tensor.dtype)}[{','.join(sizes)}]"
    strides = tensor.stride() if callable(getattr(tensor, "stride", None)) else getattr(tensor, "strides", None)
    if strides is None or hasattr(tensor, "__array_interface__"):  # NumPy's strides are bytes, and JAX has none
        return text
    dense = 1
    for size, stride in zip(reversed(tensor.shape), reversed(strides), strict=True):
        if size > 1 and stride != dense:
            return f"{text} strides {','.join(map(str, strides))}"
        dense *= size
    return text


def _dtype(dtype: Any) -> str:
    if isinstance(dtype, DataType):
        return dtype_label(dtype)
    name = str(getattr(dtype, "name", dtype)).rpartition(".")[2].lower()
    match = re.fullmatch(r"([a-z]+?)(\d+)", name)
    return f"{_SHORT[match[1]]}{match[2]}" if match is not None and match[1] in _SHORT else name


def _nodes_in_order(nodes: Iterable[Node], kind: str) -> Iterator[Node]:
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

"""The partition that our own segmenter makes of a function, a definition or a plan, as nvFuser cuts or otherwise."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuser_lab.api.subject import Subject, subject_of
from fuser_lab.arguments import short_text
from fuser_lab.bridge.capture import CapturedGraph
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.model_view import is_free
from fuser_lab.bridge.op_costs import op_cost
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.traced import Node, origin_of, target_of
from fuser_lab.contracts.call import Call, Compiled, circumstances, options_text
from fuser_lab.contracts.graph_parts import deciding_arguments, graph_ends, is_computed, nodes_in_order, origin_of_call
from fuser_lab.contracts.partition import (
    Decision,
    GraphPartition,
    OpNote,
    Origin,
    Partition,
    data_flow_order,
    heads_of,
    kernels_in_order,
    stable_names,
)
from fuser_lab.cost.verdict import Answer
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import device_of
from fuser_lab.segmentation.events import Attempt, Kind
from fuser_lab.segmentation.why import Why

STRATEGIES = {"nvfuser": "bottom_up", "fuser_lab": "saving"}  # of `segment`, by the compiler's name in contracts
_TENSOR = re.compile(r"\bT\d+\w*")


def partition_by_segmenter(call: Call) -> Compiled:
    """Return the partition with our plans: those of the regions of a function, or of a definition, or one passed."""
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
        options=options_text(call.options),
        **costs_of_plans(subject, plans), **circumstances(call, versions),
    )
    return Compiled(call=call, partition=partition, plans=plans, captured=subject.captured)


def _device(subject: Subject, plans: Sequence[Plan]) -> str:
    return plans[0].target if plans else device_of(None).name


def costs_of_plans(subject: Subject, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return bytes and predicted seconds of plans and of the ops that the library runs, each with its least value."""
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
        ends = graph_ends(captured.graph_breaks, number, len(captured.graphs))
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
        node: origin_of_call(
            target_of(node), str(node.meta.get("original_aten") or ""),
            OpNote(place=origin_of(node).place, arguments=deciding_arguments(node)), origin_of(node).module,
        )
        for node in place if node in home
    }
    names = stable_names(nodes_in_order(place, graph.kind), origins)
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
        if exprs and is_computed(target_of(node)):
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
            source = _maker(operand, home)
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


def _maker(value: Node, home: Mapping[Node, int]) -> Node | None:
    """Return the call whose result a value is, or is a view of; None for an input."""
    while value not in home and value.op == "call_function" and value.all_input_nodes:
        value = value.all_input_nodes[0]
    return value if value in home else None


def _plan_graph(plan: Plan, compiler: str) -> GraphPartition:
    """Return the partition of a plan of a definition; a segment that only makes views is not a kernel."""
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
    launched = [segment for segment in plan.segments if not segment.is_view]
    kernels = kernels_in_order([(members[segment.index], "", segment.bytes) for segment in launched], names)
    ops = {tensor.name: names[expr] for expr in names for tensor in expr.tensor_outputs}
    position = {name: number for number, name in enumerate(names.values())}
    heads = {segment.index: head for segment, head in zip(launched, heads_of(kernels), strict=True)}
    return GraphPartition(
        kind="inference", ops={names[expr]: origins[expr].note for expr in names}, kernels=kernels,
        decisions=tuple(_plan_decisions(plan, ops, position, heads, compiler)),
    )

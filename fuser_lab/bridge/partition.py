"""Which nodes of a graph become regions, and why the others are left to torch."""

import functools
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from fuser_lab.bridge.decompositions import is_named
from fuser_lab.bridge.gathers import gather_operands
from fuser_lab.bridge.grouping import groups
from fuser_lab.bridge.lowerings import LOWERINGS, TracedTensor, refusal
from fuser_lab.bridge.lowerings.matmul import MATMULS
from fuser_lab.bridge.lowerings.views import ALIASES, BROADCASTS, COPIES, VIEWS
from fuser_lab.bridge.masks import with_masks
from fuser_lab.bridge.padded_sums import join_sums
from fuser_lab.bridge.parts import parts_as_views, read_operands_of_cats
from fuser_lab.bridge.pools import forget_offsets, use_offsets
from fuser_lab.bridge.repeated_elements import views_for_repeats
from fuser_lab.bridge.repeats import merge_calls
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.scatters import broadcast_fills, join_scatters, read_narrow_positions
from fuser_lab.bridge.traced import (
    SYMBOLIC,
    Node,
    Origin,
    call_of,
    draws,
    has_symbol,
    is_write_back,
    origin_of,
    target_of,
    tensors_of,
    traced_tensor,
    without_modes,
    writes,
)
from fuser_lab.bridge.written_parts import shorten_writes
from fuser_lab.segmentation.components import components
from fuser_lab.targets import has_own_memory, is_on_host

FREE_VIEW = "a view at the edge of a region costs torch nothing"
COPY = "it only copies, and torch's own kernel does that"
ADDED = "a kernel that no region contains writes at the positions"
NO_KERNEL = "in a region the array library would evaluate it, and torch has a kernel"

@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The user's options for regions: minimum and maximum ops, excluded ops, and who runs matrix products."""

    min_region_ops: int = 1
    max_region_ops: int = 1024
    left: frozenset[str] = frozenset()
    records_matmuls: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """A node that is left to torch, and why."""

    node: Node = field(repr=False)
    op: str
    reason: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Partition:
    """The parts of a graph: lists of nodes in the graph's order that become regions, and the remaining nodes."""

    regions: tuple[tuple[Node, ...], ...]
    left: tuple[Left, ...]


def prepare(gm: Any) -> tuple[Node, ...]:
    """Rewrite what regions compute otherwise, such as dropouts, and return the first nodes of the graph's sections.

    Equal calls become one. A graph of training has none: they are merged before it is cut into forward and backward.

    A region computes when all its inputs are available, so the order of ops around it changes. Nodes that write, or
    draw numbers for data that they read, must keep their order, so no region spans one. Draws that read no data keep
    the graph's order.
    """
    for node in gm.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:  # a constant, in older torch
            node.meta["val"] = functools.reduce(getattr, node.target.split("."), gm)
    with_masks(gm)
    use_offsets(gm.graph)
    forget_offsets(gm.graph)
    merge_calls(gm.graph, numbers=False)
    _as_numbers(gm)
    views_for_repeats(gm.graph)
    _as_views(gm)
    _from_the_operand(gm)
    parts_as_views(gm.graph.nodes)
    join_sums(gm.graph)
    gather_operands(gm.graph)
    read_operands_of_cats(gm.graph)
    shorten_writes(gm.graph)
    join_scatters(gm.graph)
    broadcast_fills(gm)
    read_narrow_positions(gm.graph)
    return section_starts(gm.graph.nodes)


def section_starts(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return the first nodes of the sections of a graph of torch."""
    return tuple(node for node in nodes if writes(node) or (draws(node) and _depends_on_data(node)))


def sections(nodes: Iterable[Node], begins: Collection[Node]) -> dict[Node, int]:
    """Return the number of the section of each node."""
    listed = list(nodes)
    return dict(zip(listed, accumulate(int(node in begins) for node in listed), strict=True))


def _as_numbers(gm: Any) -> None:
    """Rewrite copies of constants without axes as numbers, one for each reader: ``x[:, 2] = 0.5`` copies a tensor.

    That tensor is on the CPU, so that a region on a GPU would wait until its value has been sent, in each call.
    """
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in gm.graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        constant, value = node.args[0], node.meta.get("val")
        traced = traced_tensor(value)
        if constant.op != "get_attr" or traced is None or traced.ndim or not is_on_host(traced.device):
            continue
        with without_modes():
            number = functools.reduce(getattr, constant.target.split("."), gm).item()
        for user in list(node.users):
            with gm.graph.inserting_before(user):
                full = gm.graph.call_function(
                    aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device})
            full.meta = dict(node.meta)
            user.replace_input_with(node, full)
        gm.graph.erase_node(node)
        if not constant.users:
            gm.graph.erase_node(constant)


def _as_views(gm: Any) -> None:
    """Rewrite ``as_strided`` of a whole dense row-major tensor as a reshape; group norm contains some."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in gm.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source, result = node.args[0].meta.get("val"), node.meta.get("val")
        if traced_tensor(source) is None or traced_tensor(result) is None or _has_symbols(node):
            continue
        is_whole = source.numel() == result.numel() and source.storage_offset() == result.storage_offset()
        if is_whole and source.is_contiguous() and result.is_contiguous():
            node.target, node.args, node.kwargs = aten.view.default, (node.args[0], list(result.shape)), {}


def _from_the_operand(gm: Any) -> None:
    """Rewrite ``as_strided`` that begins inside a dense row-major operand as one of the rest of it.

    Torch's offset is relative to the beginning of memory; only the operand knows its own offset.
    """
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in gm.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source, offset = node.args[0].meta.get("val"), node.args[3] if len(node.args) > 3 else None
        if traced_tensor(source) is None or not isinstance(offset, int) or not source.is_contiguous():
            continue
        if _has_symbols(node):
            continue
        start = offset - source.storage_offset()
        if not 0 <= start < source.numel():
            continue
        inherited = {key: value for key, value in node.meta.items() if key not in {"val", SYMBOLIC}}
        base = node.args[0]
        with gm.graph.inserting_before(node):
            for target, rest, value in (
                (aten.view.default, ([source.numel()],), source.view(-1)),
                (aten.slice.Tensor, (0, start, source.numel()), source.view(-1)[start:]),
            ):
                base = gm.graph.call_function(target, (base, *rest))
                base.meta = {**inherited, "val": value}
        node.args = (base, *node.args[1:3])


def _has_symbols(node: Node) -> bool:
    """Whether a node's view depends on a symbolic size."""
    return any(has_symbol(value) for value in (node, *node.all_input_nodes))


def _depends_on_data(node: Node) -> bool:
    return any(argument.op != "get_attr" for argument in node.all_input_nodes)


def reason_for(node: Node, wishes: Wishes) -> str | None:
    """Return why a node is left to torch, or None if it can be in a region."""
    target = target_of(node)
    if target == "getitem":
        return reason_for(node.args[0], wishes) if node.args[0].op == "call_function" else "it unpacks a list"
    if is_named(target, wishes.left):
        return "left to torch by the option left_to_torch"
    if draws(node):
        return "it draws from torch's generator"
    if writes(node):
        return "it writes to its argument"
    if target in MATMULS and not wishes.records_matmuls:
        return "matrix products are torch's"
    if target not in LOWERINGS:
        return "it has no lowering"
    return lowering_refusal(node)


def lowering_refusal(node: Node) -> str | None:
    """Return why a call with a lowering cannot be lowered, None if it can."""
    call = call_of(node)
    return "a size is a symbol" if call is None else refusal(call)


def partition_graph(
    gm: Any, wishes: Wishes, begins: Sequence[Node], evaluated: Collection[Node] = (),
) -> Partition:
    """Return the regions of a graph after `prepare`, and the nodes left to torch.

    Regions are convex and acyclic, and each is within one section. ``evaluated`` are nodes for which regions have no
    kernel.
    """
    reasons = {
        node: reason_for(node, wishes) or (NO_KERNEL if node in evaluated else None)
        for node in gm.graph.nodes if node.op == "call_function"
    }
    section = sections(gm.graph.nodes, begins)
    position = {node: place for place, node in enumerate(gm.graph.nodes)}
    parts: list[list[Node]] = []
    for proposed in proposed_groups(list(gm.graph.nodes), reasons, section):
        parts += _connected_parts(_without_edge_views(sorted(proposed, key=position.__getitem__)))
    parts = [piece for part in _with_parts_joined(parts, section, position) for piece in _with_lists_apart(part)]
    parts.sort(key=lambda part: position[part[0]])
    regions = [tuple(chunk) for part in parts for chunk in chunks(part, wishes.max_region_ops)]
    worthwhile = [region for region in regions if is_worth_it(region, wishes)]
    inside = {node for region in worthwhile for node in region}
    left = tuple(
        Left(node, target_of(node), reason or why_outside(node, wishes), origin_of(node))
        for node, reason in reasons.items()
        if node not in inside and not (target_of(node) == "getitem" and node.args[0] not in inside)
        and not is_write_back(node)
    )
    return Partition(tuple(worthwhile), left)


def proposed_groups(
    nodes: Sequence[Node], reasons: Mapping[Node, str | None], section: Mapping[Node, int],
) -> list[list[Node]]:
    """Return groups of the nodes that may be in regions; the results of one op stay with it."""
    units = [node for node in nodes if target_of(node) != "getitem" or node.args[0].op != "call_function"]
    number = {node: place for place, node in enumerate(units)}
    results: dict[int, list[Node]] = {}
    for node in nodes:
        if node not in number:
            number[node] = number[node.args[0]]
            results.setdefault(number[node], []).append(node)
    reads = [[number[operand] for operand in node.all_input_nodes] for node in units]
    allowed = [section[node] if reasons.get(node, "") is None else None for node in units]
    common = {
        place: {number[user] for user in node.users if is_most_of(node, user)}
        for place, node in enumerate(units) if node.op != "call_function"
    }
    return [
        [part for place in group for part in (units[place], *results.get(place, ()))]
        for group in groups(reads, allowed, common)
    ]


def is_most_of(source: Node, reader: Node) -> bool:
    """Whether an input is as large as any result of its readers.

    Weights, tables of angles and masks, which many layers read, are smaller than the results.
    """
    size = max(_sizes(source), default=0)
    return size > 1 and size >= max(_sizes(reader), default=0)


def _sizes(node: Node) -> list[int]:
    """Return the numbers of elements of a node's tensors with known sizes."""
    return [tensor.size for tensor in tensors_of(node)]


def _without_edge_views(nodes: list[Node]) -> list[Node]:
    """Return a region's nodes without views of its inputs and results, which are free in torch.

    A broadcast of an input stays, because the fusion needs to see it.
    """
    inside = set(nodes)
    changed = True
    while changed:
        changed = False
        for node in list(inside):
            target = target_of(node)
            if target not in VIEWS:
                continue
            comes_in = target not in BROADCASTS and not any(operand in inside for operand in node.all_input_nodes)
            goes_out = target in ALIASES and not any(user in inside for user in node.users)
            if comes_in or goes_out:
                inside.discard(node)
                changed = True
    return [node for node in nodes if node in inside]


def base_of(node: Node, inside: Container[Node] = ()) -> Node:
    """Return the base of a view, or the first view on the way to it that is ``inside``."""
    while node not in inside and target_of(node) in ALIASES:
        node = node.args[0]
    return node


def _pieces(nodes: Sequence[Node], pairs: Iterable[tuple[Node, Node]]) -> list[list[Node]]:
    """Return nodes in parts such that both nodes of a pair, of which one may be another node, are in one part."""
    number = {node: place for place, node in enumerate(nodes)}
    numbered = [(number.setdefault(a, len(number)), number.setdefault(b, len(number))) for a, b in pairs]
    label = components(len(number), numbered)
    parts: dict[int, list[Node]] = {}
    for node in nodes:
        parts.setdefault(label[number[node]], []).append(node)
    return list(parts.values())


def _connected_parts(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return a region's nodes in parts that share no value, no computed operand and no large input.

    Torch's partitioner joins everything that does not form a cycle; unrelated nodes would only keep equal layers from
    being equal regions.
    """
    inside = set(nodes)
    sources = ((node, operand if operand in inside else base_of(operand))
               for node in nodes for operand in node.all_input_nodes)
    return _pieces(nodes, (
        (node, source) for node, source in sources if source.op == "call_function" or is_most_of(source, node)))


def _with_parts_joined(
    parts: Sequence[list[Node]], section: dict[Node, int], position: dict[Node, int],
) -> list[list[Node]]:
    """Return the parts; a part that reads only another part's results and the graph's inputs is joined to it.

    Nothing is between them then, so this does not create a cycle.
    """
    of: dict[Node, int] = {node: number for number, part in enumerate(parts) for node in part}
    joined: dict[int, list[Node]] = dict(enumerate(map(list, parts)))
    for number in sorted(joined, key=lambda n: position[joined[n][0]]):
        part = joined[number]
        views: dict[Node, None] = {}
        homes: set[int | None] = set()
        for node in part:
            for operand in node.all_input_nodes:
                at = operand
                while at not in of and target_of(at) in ALIASES:
                    views[at] = None
                    at = at.args[0]
                if at.op == "call_function" and of.get(at) != number:
                    homes.add(of.get(at))
        if len(homes) != 1 or (home := next(iter(homes))) is None:
            continue
        if section[joined[home][0]] != section[part[0]] or not all(section[node] == section[part[0]] for node in views):
            continue
        needed = [node for node in views if of.get(base_of(node, of)) == home]
        joined[home] = sorted({*joined[home], *part, *needed}, key=position.__getitem__)
        of.update(dict.fromkeys([*part, *needed], home))
        del joined[number]
    return list(joined.values())


def _with_lists_apart(part: list[Node]) -> list[list[Node]]:
    """Return a part without the pieces that compute the same ops from single numbers and inputs, and these pieces.

    A factor that is computed from all gradients, and multiplies each of them, joins ops that no kernel could compute
    together. As regions of their own, such pieces share a plan, and on a GPU a launch (`fuser_lab.bridge.lists`).
    """
    inside = set(part)
    numbers = {node for node in part if all(size == 1 for size in _sizes(node))}
    pairs = [(node, operand) for node in part for operand in node.all_input_nodes
             if operand in inside and operand not in numbers]
    read = {operand for node, operand in pairs if node in numbers}  # by something that is in no piece
    joined = (pair for pair in pairs if pair[0] not in numbers)
    alike: dict[object, list[list[Node]]] = {}
    for piece in _pieces([node for node in part if node not in numbers], joined):
        reads = any(operand in numbers for node in piece for operand in node.all_input_nodes)
        if reads and read.isdisjoint(piece):
            alike.setdefault(tuple(map(target_of, piece)), []).append(piece)
    apart = [_without_edge_views(piece) for same in alike.values() if len(same) > 1 for piece in same]
    taken = {node for piece in apart for node in piece}
    rest = _without_edge_views([node for node in part if node not in taken])
    return [piece for piece in (rest, *apart) if piece] if apart else [part]


def chunks(nodes: Sequence[Node], most: int) -> Iterable[list[Node]]:
    """Yield a region's nodes in parts of at most ``most`` ops; results of one op stay together.

    A part of more than half as many ops ends where the fewest elements are passed on, at the latest such place.
    """
    starts = [place for place, node in enumerate(nodes) if target_of(node) != "getitem"]
    passed = _crossings(nodes)
    begin = 0
    while len(starts) - begin > most:
        ends = range(begin + most, begin + most // 2, -1)
        end = min(ends, key=lambda op: passed[starts[op]])
        yield list(nodes[starts[begin] : starts[end]])
        begin = end
    if starts:
        yield list(nodes[starts[begin] :])


def _crossings(nodes: Sequence[Node]) -> list[int]:
    """Return the number of elements of earlier nodes that each node or later ones read; views have those of bases."""
    place = {node: number for number, node in enumerate(nodes)}
    last = dict(place)
    for node in reversed(nodes):
        for operand in node.all_input_nodes:
            if operand in last:
                last[operand] = max(last[operand], last[node] if target_of(node) in ALIASES else place[node])
    changes = [0] * (len(nodes) + 1)
    for node, end in last.items():
        if target_of(node) not in ALIASES:
            size = max(_sizes(node), default=0)
            changes[place[node] + 1] += size
            changes[end + 1] -= size
    return list(accumulate(changes))


def _computes(node: Node) -> bool:
    entry = LOWERINGS.get(target_of(node))
    return entry is not None and entry.computes


def _reorders_on_gpu(node: Node) -> bool:
    """Whether a node copies a tensor on a GPU to memory with another order of axes, or repeats elements.

    Torch's kernel does that element by element, at 1.3 of the 4.2 TB/s of an H200; kernels of regions move vectors.
    """
    if target_of(node) not in COPIES:
        return False
    source, result = traced_tensor(node.all_input_nodes[-1].meta.get("val")), traced_tensor(node.meta.get("val"))
    if source is None or result is None or source.shape != result.shape:
        return False
    return has_own_memory(result.device.partition(":")[0]) and _order(source) != _order(result)


def _order(tensor: TracedTensor) -> list[int]:
    """Return the axes of a tensor in the order of memory, without those along which there is one element."""
    steps = [(step, axis) for axis, (size, step) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
             if size > 1 and step]
    return [axis for _, axis in sorted(steps)]


def is_worth_it(region: Sequence[Node], wishes: Wishes) -> bool:
    """Whether nodes are worth a region: enough of them, at least one of which computes, or is a slow copy in torch."""
    ops = [node for node in region if target_of(node) != "getitem"]
    return len(ops) >= wishes.min_region_ops and any(_computes(node) or _reorders_on_gpu(node) for node in ops)


def why_outside(node: Node, wishes: Wishes) -> str:
    """Return why a node is in no region although it could be."""
    if target_of(node) in VIEWS:
        return FREE_VIEW
    if target_of(node) in COPIES:
        return COPY
    if not _computes(node):
        return "a region would hold views and constants only"
    return f"a region would hold fewer than {wishes.min_region_ops} ops"

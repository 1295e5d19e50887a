"""The pieces of a fusion between its cuts: what remains connected when all other edges are contracted."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from fuser_lab.ir import Fusion, OpKind, TensorView
from fuser_lab.segmentation.components import components, topological
from fuser_lab.segmentation.hints import has_hints, is_hint
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning

Edge = tuple[int, int, TensorView]


def pieces(fusion: Fusion, options: SegmenterOptions) -> list[list[int]]:
    """Return the pieces as positions among the tensor expressions, in topological order, each sorted.

    The pieces are the connected components of the fusion without its cut edges. Pieces that read from each other in a
    cycle are one piece, as in NVIDIA/Fuser issue #2224: a cut does not split the fusion if another path leads around
    it. With ``pieces_by_depth``, and where ``segment_set`` is a cut, such a piece is split by depth, which is the
    number of cut edges on the way to an expression.
    """
    edges = _edges(fusion)
    cuts = [_is_cut(fusion, edge, options) for edge in edges]
    joined = [(a, b) for (a, b, _), cut in zip(edges, cuts, strict=True) if not cut]
    if options.connect_through_inputs:
        joined += _siblings(fusion, options)
    label = components(len(fusion.tensor_exprs), joined)
    flow = [(label[a], label[b]) for a, b, _ in edges]
    strong = components(max(label, default=-1) + 1, flow, strongly=True)
    members: dict[int, list[int]] = {}
    for place, piece in enumerate(label):
        members.setdefault(strong[piece], []).append(place)
    if not (options.pieces_by_depth or (options.segment_set is SegmentSetMeaning.CUT and has_hints(fusion, options))):
        return _in_order(list(members.values()), edges)
    inside: dict[int, list[tuple[int, int, bool]]] = {}
    for (a, b, _), cut in zip(edges, cuts, strict=True):
        if strong[label[a]] == strong[label[b]]:
            inside.setdefault(strong[label[a]], []).append((a, b, cut))
    refined = [
        piece for component, group in members.items() for piece in _pieces_by_depth(group, inside.get(component, ()))
    ]
    return _in_order(refined, edges)


def _edges(fusion: Fusion) -> list[Edge]:
    place = {expr: i for i, expr in enumerate(fusion.tensor_exprs)}
    return [
        (place[fusion.producers[tensor]], place[expr], tensor)
        for expr in fusion.tensor_exprs
        for tensor in dict.fromkeys(expr.tensor_inputs)
        if tensor in fusion.producers
    ]


def has_cuts(fusion: Fusion, options: SegmenterOptions) -> bool:
    """Whether a ``segment_set`` counts, or another edge is cut."""
    return has_hints(fusion, options) or any(_is_cut(fusion, edge, options) for edge in _edges(fusion))


def _is_cut(fusion: Fusion, edge: Edge, options: SegmenterOptions) -> bool:
    _, place, tensor = edge
    reader = fusion.tensor_exprs[place]
    if is_hint(fusion.producers[tensor]):
        return has_hints(fusion, options)
    if options.cut_reshape_inputs and reader.kind is OpKind.RESHAPE:
        return True
    # The operands of cat are usually pads, which belong to it, so the edges into the pads are cut.
    is_padded = reader.op.name == "cat" and fusion.producers[tensor].op.name == "pad"
    return options.cut_resize_inputs and reader.kind is OpKind.RESIZE and not is_padded


def _siblings(fusion: Fusion, options: SegmenterOptions) -> list[tuple[int, int]]:
    """Return pairs of readers of one fusion input; a hint on an input is a separate piece, evaluated as an alias."""
    hinted = has_hints(fusion, options)
    place = {expr: i for i, expr in enumerate(fusion.tensor_exprs) if not (hinted and is_hint(expr))}
    pairs = []
    for tensor in fusion.tensor_inputs:
        readers = [place[u] for u in fusion.users.get(tensor, ()) if u in place]
        pairs += list(pairwise(readers))
    return pairs


def _pieces_by_depth(members: list[int], edges: Sequence[tuple[int, int, bool]]) -> list[list[int]]:
    """Return one piece if that is legal, otherwise the pieces of equal depth, where a cut edge is one step down.

    A piece is illegal if it contains a cut edge, or if it forms a cycle with others (which are then passed together).
    Every edge between two of the results goes down, so that they cannot form a cycle.
    """
    if not any(cut for *_, cut in edges):
        return [members]
    local = {member: i for i, member in enumerate(members)}
    depth = dict.fromkeys(members, 0)
    for a, b, cut in sorted(edges, key=lambda edge: edge[1]):
        depth[b] = max(depth[b], depth[a] + cut)
    same = [(local[a], local[b]) for a, b, cut in edges if not cut and depth[a] == depth[b]]
    by_component: dict[int, list[int]] = {}
    for member, piece in zip(members, components(len(members), same), strict=True):
        by_component.setdefault(piece, []).append(member)
    return list(by_component.values())


def _in_order(parts: list[list[int]], edges: Iterable[Edge]) -> list[list[int]]:
    """Return pieces, each after the pieces that it reads from."""
    home = {member: i for i, piece in enumerate(parts) for member in piece}
    after: list[set[int]] = [set() for _ in parts]
    for a, b, _ in edges:
        if home[a] != home[b]:
            after[home[a]].add(home[b])
    return [parts[place] for place in topological([piece[0] for piece in parts], after)]

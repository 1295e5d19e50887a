"""Which segments and blocks a user has unfolded, by their ops, because an edit gives other segments their numbers."""

from collections.abc import Collection, Iterable

from fuser_lab.report.parts import nodes_by_segment, select
from fuser_lab.report.repeats import blocks
from fuser_lab.report.view_model import NodeView, ViewModel


def segments_of(view: ViewModel, names: Collection[str]) -> frozenset[int]:
    """Return the segments with an op that computes one of these tensors."""
    ops = select(view.nodes, lambda node: _is_own(node) and node.tensor in names) if names else ()
    return frozenset(node.segment for node in ops if node.segment is not None)


def blocks_of(view: ViewModel, names: Collection[str]) -> frozenset[str]:
    """Return the ids of the blocks with an op that computes one of these tensors."""
    inside = segments_of(view, names)
    return frozenset(block.id for block in blocks(view) if any(n in block for n in inside)) if inside else frozenset()


def toggle_ops(view: ViewModel, names: frozenset[str], segments: Iterable[int]) -> frozenset[str]:
    """Return the tensors of unfolded ops after these segments were unfolded, or folded again if one of them was not."""
    parts = nodes_by_segment(view.nodes)
    tensors = {node.tensor for n in segments if n in parts for node in parts[n].rough if _is_own(node)}
    return names - tensors if names & tensors else names | tensors


def _is_own(node: NodeView) -> bool:
    """Whether a node is an op that its segment does not only compute again."""
    return node.kind == "op" and not node.replica

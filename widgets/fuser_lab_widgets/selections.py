"""What is selected, in words that users write: a tensor, a tensor on its way, or a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fuser_lab.report.view_model import EdgeView, ViewModel

OUTPUT: Final = "output"


def name(view: ViewModel, selected: str) -> str:
    """Return the words for the id of a node, an edge or a segment; nothing if the plan has none such."""
    node = next((n for n in view.nodes if n.id == selected), None)
    if node is not None:
        return node.tensor
    edge = next((e for e in view.edges if e.id == selected), None)
    if edge is not None:
        return _way(view, edge)
    return next((f"S{s.index}" for s in view.segments if f"segment:{s.index}" == selected), "")


def find(view: ViewModel, words: str) -> str:
    """Return the id for words such as ``T2``, ``T2 -> T4``, ``T9 -> output`` and ``S1``; nothing if there is none such.

    A tensor stands for the op that computes it, or for the fusion input that it is.
    """
    if "->" in words:
        tensor, _, reader = (part.strip() for part in words.partition("->"))
        edges = (e for e in view.edges if e.tensor == tensor)  # few, so few of their targets are looked up
        return next((e.id for e in edges if _way(view, e) == f"{tensor} -> {reader}"), "")
    made = [n for n in view.nodes if words == n.tensor or words in n.tensors]
    for kind in ("op", "input"):
        found = next((n.id for n in made if n.kind == kind), "")
        if found:
            return found
    return next((f"segment:{s.index}" for s in view.segments if f"S{s.index}" == words), "")


def again(before: ViewModel, view: ViewModel, selected: str) -> str:
    """Return the id in a view of what was selected in the one before; nothing if it is gone.

    An op and an edge are the same by their tensors, a segment by its ops: numbers of segments change with any edit.
    """
    segment = next((s for s in before.segments if f"segment:{s.index}" == selected), None)
    if segment is None:
        return find(view, name(before, selected))
    same = (s for s in view.segments if frozenset(s.nodes) == frozenset(segment.nodes))
    return next((f"segment:{s.index}" for s in same), "")


def _way(view: ViewModel, edge: EdgeView) -> str:
    target = next(n for n in view.nodes if n.id == edge.target)
    return f"{edge.tensor} -> {OUTPUT if target.kind == 'output' else target.tensor}"

"""Selections as text that users write: a tensor, an edge, or a segment."""

from collections.abc import Iterator
from typing import Final

from fuser_lab.report.parts import select
from fuser_lab.report.view_model import EdgeView, ViewModel

OUTPUT: Final = "output"


def name(view: ViewModel, selected: str) -> str:
    """Return the text for the id of a node, an edge or a segment; empty if the plan does not have it."""
    node = view.node(selected)
    if node is not None:
        return node.tensor
    edge = view.edge(selected)
    if edge is not None:
        return _way(view, edge)
    return next((f"S{s.index}" for s in view.segments if f"segment:{s.index}" == selected), "")


def find(view: ViewModel, words: str) -> str:
    """Return the id for text such as ``T2``, ``T2 -> T4``, ``T9 -> output`` and ``S1``; empty if there is none.

    A tensor stands for the op that computes it, or for the fusion input. Names of variables in the user's code are
    accepted if they name one tensor.
    """
    if "->" in words:
        tensor, reader = (_tensor(view, part.strip()) for part in words.split("->", 1))
        return next((e.id for e in view.edges_of(tensor) if _way(view, e) == f"{tensor} -> {reader}"), "")
    words = _tensor(view, words)
    made = list(select(view.nodes, lambda n: words == n.tensor or words in n.tensors))
    for kind in ("op", "input"):
        ident = next((n.id for n in made if n.kind == kind), "")
        if ident:
            return ident
    return next((f"segment:{s.index}" for s in view.segments if f"S{s.index}" == words), "")


def again(before: ViewModel, view: ViewModel, selected: str) -> str:
    """Return the id of the previous view's selection in a new view; empty if it no longer exists.

    Ops and edges are identified by their tensors, segments by their ops, because segment numbers change with any edit.
    An edge into which a ``segment_set`` was inserted is the one from it to the same reader.
    """
    segment = next((s for s in before.segments if f"segment:{s.index}" == selected), None)
    if segment is None:
        words = name(before, selected)
        ways = (words, *_past_hints(before, view, words))
        return next(filter(None, (find(view, way) for way in ways)), "")
    same = (s for s in view.segments if frozenset(s.nodes) == frozenset(segment.nodes))
    return next((f"segment:{s.index}" for s in same), "")


def _past_hints(before: ViewModel, view: ViewModel, words: str) -> Iterator[str]:
    """Yield an edge as it is called without the annotation that it came from, and from those of its tensor now."""
    tensor, arrow, reader = words.partition(" -> ")
    if arrow:
        tensor = next((each.tensor for each in before.annotations if each.hint == tensor), tensor)
        yield f"{tensor} -> {reader}"
        yield from (f"{each.hint} -> {reader}" for each in view.annotations if each.tensor == tensor)


def _tensor(view: ViewModel, word: str) -> str:
    """Return the name of the tensor that is called so: by the fusion, or else by the user alone."""
    if any(word in node.tensors for node in view.nodes):
        return word
    called = {node.tensor for node in select(view.nodes, lambda n: word in n.called)}
    return called.pop() if len(called) == 1 else word


def _way(view: ViewModel, edge: EdgeView) -> str:
    target = view.node(edge.target)
    assert target is not None
    return f"{edge.tensor} -> {OUTPUT if target.kind == 'output' else target.tensor}"

"""Ranks of a layered drawing: every wire leads to a higher number, and together they are as short as possible.

The method is the network simplex of E. Gansner, E. Koutsofios, S. North, K.-P. Vo, "A technique for drawing directed
graphs", IEEE Trans. Software Eng. 19(3), 1993.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fuser_lab.report.wiring import Graph

_MOST_WORK = 500_000  # steps through nodes and edges, about 50 ms of processor time; later exchanges gain little

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The rank ``of`` each item and their ``count``; in a frame, the first and the last one are outside of it.

    ``beside`` are the items left or right of the frame, with the end of their wires that they are.
    """

    of: Sequence[int]
    count: int
    beside: Mapping[int, Literal["source", "target"]]


def rank_items(graph: Graph, spans: Sequence[int]) -> Ranked:
    """Return the first rank of each item, given how many ranks each takes.

    Raises
    ------
    ValueError
        If the wires form a cycle.
    """
    items = graph.items
    top, bottom = len(items), len(items) + 1
    ends = [top if item.first else bottom if item.last else n for n, item in enumerate(items)]
    edges = [
        (ends[source], ends[target]) for source, target, *_ in graph.wires
        if not (items[source].annex or items[target].annex)
    ]
    inner = [n for n, end in enumerate(ends) if end == n and not items[n].annex]
    ranks = between(inner, (*spans, 1, 1), edges)
    hidden = 0 if graph.frame is not None else 1  # without a frame, nothing is above and below the items
    of = [ranks[end] - ranks[top] - hidden for end in ends]
    lowest = ranks[bottom] - ranks[top] - 1 - hidden
    beside: dict[int, Literal["source", "target"]] = {}
    for source, target, *_ in graph.wires:
        if items[source].annex:
            of[source] = of[target] - 1 if source not in beside else min(of[source], of[target] - 1)
            beside[source] = "source"
        elif items[target].annex:
            of[target] = of[source] + 1 if target not in beside else max(of[target], of[source] + 1)
            beside[target] = "target"
    beside = {n: end for n, end in beside.items() if 1 <= of[n] <= lowest}
    return Ranked(of=of, count=lowest + 2 - hidden, beside=beside)


def between(inner: Sequence[int], spans: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Return the first ranks of nodes of which the last two are above and below all ``inner`` ones."""
    *_, top, bottom = range(len(spans))
    return shortest(spans, edges, [*((top, n) for n in inner), *((n, bottom) for n in inner)] or [(top, bottom)])


def shortest(spans: Sequence[int], edges: Sequence[Edge], loose: Sequence[Edge] = ()) -> list[int]:
    """Return first ranks of nodes, each of which takes ``spans`` ranks, with the smallest sum of lengths of ``edges``.

    The lengths of ``loose`` edges do not matter.

    Raises
    ------
    ValueError
        If the edges form a cycle.
    """
    count, every = len(spans), list(dict.fromkeys((*edges, *loose)))
    excess = [0] * count  # edges out of a node, less those into it
    for source, target in edges:
        excess[source] += 1
        excess[target] -= 1
    ranks = _longest(spans, every, excess)
    tree = _tight_tree(ranks, spans, every)
    work, at = _MOST_WORK, 0
    while work > 0:
        parents, down = _parents(count, tree, next(iter(every))[0])
        below = list(excess)
        for n in reversed(down[1:]):
            below[parents[n]] += below[n]
        leaving = None
        for _ in range(len(tree)):  # each edge in turn, so that none is exchanged for ever
            at = (at + 1) % len(tree)
            source, target = tree[at]
            child = source if parents[source] == target else target
            if (below[child] if child == source else -below[child]) < 0:
                leaving = child
                break
        if leaving is None:
            break
        is_source = tree[at][0] == leaving
        inside = [False] * count
        inside[leaving] = True
        for n in down[down.index(leaving) + 1 :]:
            inside[n] = inside[parents[n]]
        # The new edge leads the other way; the part that its target is in moves down to it, or the other one.
        slack, entering = min(
            (ranks[b] - ranks[a] - spans[a], (a, b)) for a, b in every
            if inside[a] != inside[b] and inside[b] == is_source
        )
        shift = -slack if is_source else slack
        for n in range(count):
            if inside[n]:
                ranks[n] += shift
        tree[at] = entering
        work -= 3 * count + len(every)
    return ranks


def _longest(spans: Sequence[int], edges: Sequence[Edge], excess: Sequence[int]) -> list[int]:
    """Return the longest way from the top for each node; those with more edges out of them than into them are lower."""
    count = len(spans)
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    ready = [n for n, many in enumerate(waiting) if not many]
    ranks = [0] * count
    for n in ready:
        for m in after[n]:
            ranks[m] = max(ranks[m], ranks[n] + spans[n])
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    if len(ready) < count:
        raise ValueError(f"{count - len(ready)} of {count} items cannot be ranked: the wires form a cycle")
    for n in reversed(ready):
        if excess[n] > 0 and after[n]:
            ranks[n] = min([ranks[m] for m in after[n]]) - spans[n]
    return ranks


def _tight_tree(ranks: list[int], spans: Sequence[int], edges: Sequence[Edge]) -> list[Edge]:
    """Return edges as short as possible that connect all nodes with edges, for which some nodes are moved."""
    at: dict[int, list[Edge]] = {}
    for edge in edges:
        for n in edge:
            at.setdefault(n, []).append(edge)
    start = edges[0][0]
    seen, tree, stack = {start}, list[Edge](), [start]
    while True:
        while stack:
            for edge in at[stack.pop()]:
                a, b = edge
                if ranks[b] - ranks[a] == spans[a] and (a in seen) != (b in seen):
                    n = b if a in seen else a
                    seen.add(n)
                    tree.append(edge)
                    stack.append(n)
        if len(seen) == len(at):
            return tree
        slack, (a, b) = min((ranks[b] - ranks[a] - spans[a], (a, b)) for a, b in edges if (a in seen) != (b in seen))
        for n in seen:
            ranks[n] += slack if b not in seen else -slack
        stack = [a if a in seen else b]


def _parents(count: int, tree: Sequence[Edge], root: int) -> tuple[list[int], list[int]]:
    """Return the parent of each node of a tree, and its nodes, each after its parent."""
    beside: list[list[int]] = [[] for _ in range(count)]
    for a, b in tree:
        beside[a].append(b)
        beside[b].append(a)
    parents, down = [-1] * count, [root]
    for n in down:
        for m in beside[n]:
            if m != parents[n]:
                parents[m] = n
                down.append(m)
    return parents, down

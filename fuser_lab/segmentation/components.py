"""Connected components and topological orders of graphs of numbered vertices.

They are computed without SciPy: the import of its sparse graphs takes longer than the segmentation of most fusions.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush


def components(count: int, pairs: Sequence[tuple[int, int]], *, strongly: bool = False) -> list[int]:
    """Return the component of each of ``count`` vertices; ``strongly`` follows the direction of the pairs.

    Components are numbered in the order of their first vertices.
    """
    representative = _strong(count, pairs) if strongly else _weak(count, pairs)
    number: dict[int, int] = {}
    return [number.setdefault(vertex, len(number)) for vertex in representative]


def topological(places: Sequence[int], after: Sequence[Iterable[int]]) -> list[int]:
    """Return the vertices, each before those ``after`` it, those on or behind a cycle left out (Kahn's algorithm).

    Of the vertices that may be next, the one with the smallest of the ``places`` is.
    """
    waiting = Counter(other for others in after for other in others)
    ready = [(place, vertex) for vertex, place in enumerate(places) if not waiting[vertex]]
    heapify(ready)
    order = []
    while ready:
        _, vertex = heappop(ready)
        order.append(vertex)
        for other in after[vertex]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, (places[other], other))
    return order


def _weak(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return a vertex of the component of each vertex, by union and find."""
    parent = list(range(count))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = vertex = parent[parent[vertex]]
        return vertex

    for a, b in pairs:
        parent[root(b)] = root(a)
    return [root(vertex) for vertex in range(count)]


def _strong(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return a vertex of the component of each vertex, by Tarjan's algorithm without recursion."""
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in pairs:
        after[a].append(b)
    component = [-1] * count
    visit = [-1] * count
    lowest = [-1] * count  # the earliest visit, among vertices without a component, that a vertex reaches
    open_ones: list[int] = []  # visited, without a component
    visits = 0
    for first in range(count):
        path = [(first, iter(after[first]))] if visit[first] < 0 else []
        while path:
            vertex, others = path[-1]
            if visit[vertex] < 0:
                visit[vertex] = lowest[vertex] = visits
                visits += 1
                open_ones.append(vertex)
            for other in others:
                if visit[other] < 0:
                    path.append((other, iter(after[other])))
                    break
                if component[other] < 0:
                    lowest[vertex] = min(lowest[vertex], visit[other])
            else:
                path.pop()
                if path:
                    before, _ = path[-1]
                    lowest[before] = min(lowest[before], lowest[vertex])
                if lowest[vertex] == visit[vertex]:
                    while component[vertex] < 0:
                        component[open_ones.pop()] = vertex
    return component

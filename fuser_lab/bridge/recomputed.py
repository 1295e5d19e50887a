"""Values of other regions that a region of a GPU computes again, because that moves fewer bytes than to store them.

An op without a kernel, such as an addition at positions, separates regions. What both of them need of a chain of ops
would be stored by the first and read by the second, although its beginning is in memory anyway:

    a = abs(x); b = sqrt(a); c = log1p(b)       |      a = abs(x); b = sqrt(a); c = log1p(b)
    g = index_put(.., f(c))                     |      g = index_put(.., f(c))
    return h(g, a, b, c)                        |      return h(g, abs(x), sqrt(abs(x)), log1p(sqrt(abs(x))))
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

from fuser_lab.bridge.gathers import is_per_element
from fuser_lab.bridge.op_costs import recorded_call, stored_bytes
from fuser_lab.bridge.partition import sections
from fuser_lab.bridge.traced import Node, call_of, target_of, tensors_of
from fuser_lab.cost.device import Device
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import work_of
from fuser_lab.errors import FuserLabError
from fuser_lab.segmentation.timed_plan import LEAST_SAVED

_EQUAL = "aten.eq.Tensor"  # its operands are computed once, because another kernel may round otherwise


def compute_again(
    graph: Any, regions: Sequence[Sequence[Node]], starts: Collection[Node], device: Device,
) -> bool:
    """Let regions compute values of others again where that is predicted to save time; return whether any does.

    ``starts`` are the first nodes of the graph's sections: what a write changes in between is not read again.
    """
    place = {node: number for number, node in enumerate(graph.nodes)}
    section = sections(graph.nodes, starts)
    home = {node: number for number, region in enumerate(regions) for node in region}
    seconds = _Seconds(TimeModel.of(device))
    changed = False
    for number, region in enumerate(regions):
        again = _best(region, number, home, place, section, seconds)
        made: dict[Node, Node] = {}
        for node in sorted(again, key=place.__getitem__):
            with graph.inserting_after(node):
                made[node] = graph.node_copy(node, lambda read, made=made: made.get(read, read))
        for node in region if made else ():
            for read in node.all_input_nodes:
                if read in made:
                    node.replace_input_with(read, made[read])
        changed |= bool(made)
    return changed


class _Seconds:
    """Predicted seconds of a value: to move it once, and to compute it from its operands."""

    def __init__(self, model: TimeModel) -> None:
        self._model, self._known = model, dict[object, float]()

    def to_move(self, node: Node) -> float:
        """Return the seconds to read or write a value."""
        return sum(map(stored_bytes, tensors_of(node))) / self._model.bandwidth

    def to_compute(self, node: Node) -> float:
        """Return the seconds of a value's arithmetic; infinity if it is not known."""
        call = call_of(node)
        if call is None:
            return inf
        key = call.target, call.results
        if key not in self._known:
            try:
                self._known[key] = self._model.arithmetic(work_of(recorded_call(node, call).exprs))
            except FuserLabError:
                self._known[key] = inf
        return self._known[key]


def _best(
    region: Sequence[Node], number: int, home: Mapping[Node, int], place: Mapping[Node, int],
    section: Mapping[Node, int], seconds: _Seconds,
) -> list[Node]:
    """Return the values that a region computes again.

    Of the values that it reads, the latest is replaced by its operands, again and again; the best set on this way is
    taken. A value counts as stored for the region if nothing else outside its own region reads it.
    """
    inside = set(region)
    read = {operand for node in region for operand in node.all_input_nodes if operand not in inside}

    def cost(node: Node) -> float:
        """Return the seconds of passing a value to the region."""
        maker = home.get(node)
        is_stored = maker is not None and all(home.get(user) in {maker, number} for user in node.users)
        return seconds.to_move(node) * (1 + is_stored)

    def is_free(node: Node) -> bool:
        """Whether the region may compute a value of another region again."""
        return (
            home.get(node) not in {None, number} and section[node] == section[region[0]] and is_per_element(node)
            and not any(target_of(user) == _EQUAL for user in node.users)
        )

    taken: list[Node] = []
    open_nodes = {node for node in read if is_free(node)}
    before = now = least = sum(map(cost, read))
    fixed = sum(map(cost, read - open_nodes))
    count = 0
    while open_nodes and fixed < least:
        node = max(open_nodes, key=place.__getitem__)
        open_nodes.discard(node)
        taken.append(node)
        now += seconds.to_compute(node) - cost(node)
        fixed += seconds.to_compute(node)
        for operand in node.all_input_nodes:
            if operand in read or operand in inside:
                continue
            read.add(operand)
            now += cost(operand)
            if is_free(operand):
                open_nodes.add(operand)
            else:
                fixed += cost(operand)
        if now < least:
            least, count = now, len(taken)
    return taken[:count] if before - least >= LEAST_SAVED else []

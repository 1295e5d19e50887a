"""The order in which nvFuser carries the loops of one tensor to all others, and what is lost on the way.

nvFuser's MaxLogicalDomainInfoSpanningTree (csrc/scheduler/tools/maxinfo_propagator.cpp:30-147, 180-360): Prim's
algorithm, in which the next tensor is the one that keeps most axes of the reference.
"""

from bisect import insort_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fuser_lab.analysis.domain_map import ExactMap, Link
from fuser_lab.ir import OpKind, TensorView

Slots = frozenset[int]


class _Record(NamedTuple):
    """Where an axis of the reference is in a tensor: slots of its root, or of its value's axes."""

    slots: Slots
    complete: bool
    of_value: bool


_Records = tuple[_Record, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of the tree along one operand of a link; ``down`` from the operand to the result."""

    link: Link
    operand: int
    down: bool

    @property
    def start(self) -> str:
        """The tensor that is reached already."""
        return self.link.operands[self.operand] if self.down else self.link.name

    @property
    def end(self) -> str:
        """The tensor that this step reaches."""
        return self.link.name if self.down else self.link.operands[self.operand]


class _Candidate(NamedTuple):
    amount: tuple[int, int]
    hop: Hop
    records: _Records


class Tree:
    """The hops from a reference to all tensors of a set of links, in order."""

    def __init__(self, links: Sequence[Link], reference: TensorView) -> None:
        self._makers = {link.name: link for link in links}
        self._uses: dict[str, list[Hop]] = {}
        for link in links:
            for name in dict.fromkeys(link.operands):
                self._uses.setdefault(name, []).append(Hop(link, link.operands.index(name), down=True))
        self._sources = {name: _sources(link) for name, link in self._makers.items() if not link.plain}
        self.hops = self._span(reference)

    def _span(self, reference: TensorView) -> list[Hop]:
        domain = reference.domain
        slots = range(len(domain.root_or_logical if reference.name in self._makers else domain.axes))
        records: _Records = tuple(_Record(frozenset((slot,)), complete=True, of_value=False) for slot in slots)
        waiting: list[_Candidate] = []
        hops: list[Hop] = []
        name = reference.name
        reached = {name}
        while True:
            for hop in self._next(name):
                if hop.end not in reached and records:
                    self._offer(waiting, hop, records)
            if not waiting:
                return hops
            _, hop, records = waiting.pop()
            hops.append(hop)
            name = hop.end
            reached.add(name)

    def _next(self, name: str) -> Iterable[Hop]:
        yield from self._uses.get(name, ())
        maker = self._makers.get(name)
        if maker is not None:
            for operand in dict.fromkeys(maker.operands):
                yield Hop(maker, maker.operands.index(operand), down=False)

    def _offer(self, waiting: list[_Candidate], hop: Hop, records: _Records) -> None:
        carried = self._down(hop, records) if hop.down else self._up(hop, records)
        new = _Candidate((len(carried), sum(record.complete for record in carried)), hop, carried)
        rival = next((other for other in waiting if other.hop.end == hop.end), None)
        if rival is None or rival.amount < new.amount:
            if rival is not None:
                waiting.remove(rival)
            insort_right(waiting, new, key=lambda candidate: candidate.amount)

    def _down(self, hop: Hop, records: _Records) -> _Records:
        maker = self._makers.get(hop.start)
        places = {place: slot for slot, place in enumerate(hop.link.sources[hop.operand]) if place >= 0}
        carried = []
        for record in records:
            axes = record.slots
            if maker is not None and not maker.plain and not record.of_value:
                roots = self._sources[maker.name]
                axes = frozenset(
                    place for place, slot in enumerate(maker.axes) if slot >= 0 and not roots[slot].isdisjoint(axes)
                )
            inner = frozenset(places[place] for place in axes if place in places)
            if inner:
                complete = record.complete and all(place in places for place in axes)
                carried.append(_Record(inner, complete, of_value=False))
        return tuple(carried)

    def _up(self, hop: Hop, records: _Records) -> _Records:
        link = hop.link
        sources = link.sources[hop.operand]
        carried = []
        for record in records:
            slots = record.slots
            if record.of_value and not link.plain:
                roots = self._sources[link.name]
                slots = frozenset(r for place in slots if link.axes[place] >= 0 for r in roots[link.axes[place]])
            operand_slots = frozenset(sources[slot] for slot in slots if sources[slot] >= 0)
            if operand_slots:
                complete = record.complete and all(sources[slot] >= 0 for slot in slots)
                carried.append(_Record(operand_slots, complete, of_value=True))
        return tuple(carried)


def _sources(link: Link) -> list[Slots]:
    """Return for each slot of a link the root slots that it is made of."""
    roots = [frozenset((slot,)) for slot in range(len(link.root_extents))]
    for step in link.steps:
        union: Slots = frozenset().union(*(roots[slot] for slot in step.sources))
        roots += [union] * len(step.extents)
    return roots


class LostAxis(NamedTuple):
    """An axis of ``tensor`` for which there is no loop, because ``through`` added it on the way from the reference."""

    tensor: str
    extent: int
    through: str


def lost_axis(links: Sequence[Link], tree: Tree) -> LostAxis | None:
    """Return an axis for which no loop arrives, or None.

    An axis that a hop adds has no loop, nor has what it is mapped to from there on, so it must stay a broadcast axis
    (nvFuser: CoveredDomainPropagator, csrc/scheduler/pointwise.cpp:94-200). Inputs have no loops, so they add no axis.
    """
    makers = {link.name: link for link in links}
    lost: dict[str, dict[int, str]] = {}  # by tensor: slots without a loop, and the tensor that added the axis
    for hop in tree.hops:
        link, sources = hop.link, hop.link.sources[hop.operand]
        if hop.down:
            above, maker = lost.get(hop.start, {}), makers.get(hop.start)
            added = lost.setdefault(link.name, {})
            for slot, place in enumerate(sources):
                before = place if maker is None or place < 0 else maker.axes[place]
                if place < 0 and link.kind is not OpKind.INDEXING:
                    added[slot] = link.name
                elif place >= 0 and before in above:
                    added[slot] = above[before]
            number = len(link.root_extents)
            for step in link.steps:
                made = next((added[slot] for slot in step.sources if slot in added), None)
                added.update(dict.fromkeys(range(number, number + len(step.extents)), made) if made else {})
                number += len(step.extents)
        elif hop.end in makers:
            below, maker = lost.get(link.name, {}), makers[hop.end]
            added = lost.setdefault(hop.end, {})
            slots = {place: slot for slot, place in enumerate(sources) if place >= 0}
            for place, slot in enumerate(maker.axes):
                if place not in slots and link.kind is not OpKind.INDEXING:
                    added[slot] = hop.end
                elif place in slots and slots[place] in below:
                    added[slot] = below[slots[place]]
            number = len(maker.root_extents) + sum(len(step.extents) for step in maker.steps)
            for step in reversed(maker.steps):
                number -= len(step.extents)
                made = next((added[slot] for slot in range(number, number + len(step.extents)) if slot in added), None)
                added.update(dict.fromkeys(step.sources, made) if made else {})
    for name, without in lost.items():
        extents = _plain_extents(makers[name])
        for slot, through in without.items():
            if slot >= 0 and extents[slot] >= 0:
                return LostAxis(name, extents[slot], through)
    return None


def _plain_extents(link: Link) -> list[int]:
    """Return the extent of each slot, -1 for broadcast axes."""
    extents = [-1 if flag else n for n, flag in zip(link.root_extents, link.root_broadcast, strict=True)]
    for step in link.steps:
        extents += [-1 if step.broadcast else n for n in step.extents]
    return extents


def may_lose_axes(links: Sequence[Link], exact: ExactMap) -> bool:
    """Whether a broadcast axis that meets others is made of what is read twice, or is squeezed."""
    met, classes = exact.concretized, exact.classes
    if not met:
        return False
    uses = Counter(name for link in links for name in dict.fromkeys(link.operands))
    entered: set[str] = set()  # tensors that are read twice, and all that are computed from them
    for link in links:
        if any(uses[name] > 1 or name in entered for name in link.operands):
            entered.add(link.name)
        if link.kind is OpKind.SQUEEZE and not met.keys().isdisjoint(classes[link.operands[0]]):
            return True
        if link.kind is OpKind.BROADCAST and link.name in entered and not met.keys().isdisjoint(classes[link.name]):
            return True
    return False

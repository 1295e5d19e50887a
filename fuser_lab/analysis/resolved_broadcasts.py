"""Whether what a reduction's result is broadcast to is an axis of something that a reduction reads."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fuser_lab.analysis.domain_map import Link
from fuser_lab.analysis.reductions import ReductionFlow
from fuser_lab.ir import OpKind

# A tensor and the position of one of its axes; for results of reshapes and pads, of an axis of the root.
_Axis = tuple[str, int]


class Unresolved(NamedTuple):
    """A broadcast of a result and the expression where it meets an axis that no reduction's operand has."""

    tensor: str
    user: str
    number: int  # class of the axis


def unresolved_broadcast(flow: ReductionFlow) -> Unresolved | None:
    """Return the first broadcast behind a reduction that meets an axis of nothing that a reduction reads, or None.

    From where the broadcast axis meets another one, the walk goes on to further users while they have no broadcast
    axes, and from the last of these back to the operands that reductions depend on: one of them must have the axis.
    """
    if not any(flow.exact.concretized.get(number) for _, new in flow.broadcasts_after for number in new):
        return None
    return _Walk(flow).run()


class _Walk:
    def __init__(self, flow: ReductionFlow) -> None:
        self._flow, self._exact = flow, flow.exact
        self._by_name = {link.name: link for link in flow.links}
        self._users: dict[str, list[Link]] = {}
        depends: set[str] = set()  # on an input
        for link in flow.links:
            for name in dict.fromkeys(link.operands):
                self._users.setdefault(name, []).append(link)
            if any(name in depends or name not in self._by_name for name in link.operands):
                depends.add(link.name)
        # Values between inputs and reductions, both included.
        self._before = {
            name for name in self._exact.classes
            if (name in depends or name not in self._by_name)
            and (flow.feeds.get(name) or (name in self._by_name and self._by_name[name].kind is OpKind.REDUCTION))
        }

    def run(self) -> Unresolved | None:
        first = [link.name for link in self._flow.links if link.kind is OpKind.REDUCTION]
        waiting = [(name, user) for name in reversed(first) for user in reversed(self._users.get(name, ()))]
        seen = {(name, user.name) for name, user in waiting}
        while waiting:
            name, user = waiting.pop()
            if self._has_broadcast(name) and user.name in self._before:
                continue
            met = self._axes_met(name, user)
            ends = self._ends(user, met) if met else ((user, (), u) for u in self._users.get(user.name, ()))
            for last, axes, following in ends:
                lost = next((place for place, axis in enumerate(axes) if not self._is_resolved(last.name, axis)), None)
                if lost is not None:
                    return Unresolved(name, user.name, self._class_of(user, met[lost][1]))
                if following is not None and (last.name, following.name) not in seen:
                    seen.add((last.name, following.name))
                    waiting.append((last.name, following))
        return None

    def _class_of(self, link: Link, slot: int) -> int:
        """Return the class of an axis of a result's root, which is not a broadcast axis."""
        places = zip(link.operands, (sources[slot] for sources in link.sources), strict=True)
        numbers = [self._exact.classes[operand][place] for operand, place in places if place >= 0]
        return next((number for number in numbers if not self._exact.broadcast[number]), numbers[0])

    def _has_broadcast(self, name: str) -> bool:
        return any(self._exact.broadcast[number] for number in self._exact.classes[name])

    def _axes_met(self, name: str, user: Link) -> tuple[_Axis, ...]:
        """Return the axes of a user that broadcast axes of an operand meet there."""
        numbers, broadcast = self._exact.classes[name], self._exact.broadcast
        axes = [
            (user.name, slot)
            for operand, sources in zip(user.operands, user.sources, strict=True) if operand == name
            for slot, place in enumerate(sources)
            if place >= 0 and broadcast[numbers[place]] and not user.root_broadcast[slot]
        ]
        return tuple(dict.fromkeys(axes))

    def _ends(self, user: Link, axes: tuple[_Axis, ...]) -> Iterator[tuple[Link, tuple[_Axis, ...], Link | None]]:
        """Yield the last users that the walk reaches, with the axes there and the user that ends it, if any."""
        stack, seen = [(user, axes)], set[tuple[str, tuple[_Axis, ...]]]()
        while stack:
            link, here = stack.pop()
            if (link.name, here) in seen:
                continue
            seen.add((link.name, here))
            further = self._users.get(link.name, ())
            if not further:
                yield link, here, None
            for other in further:
                there = tuple(self._along(axis, other) or axis for axis in here)
                if self._has_broadcast(other.name) or there == here:
                    yield link, here, other
                else:
                    stack.append((other, there))

    def _along(self, axis: _Axis, user: Link) -> _Axis | None:
        """Return the axis of a user that an axis of its operand becomes, or None."""
        name, slot = axis
        link = self._by_name[name]
        if name not in user.operands or slot not in link.axes:
            return None
        sources: Sequence[int] = user.sources[user.operands.index(name)]
        place = link.axes.index(slot)
        return (user.name, sources.index(place)) if place in sources else None

    def _is_resolved(self, start: str, axis: _Axis) -> bool:
        """Whether an axis of a value belongs to something before a reduction that the value is computed from."""
        stack, seen = [(start, axis)], set[tuple[str, _Axis]]()
        while stack:
            name, now = stack.pop()
            link = self._by_name.get(name)
            if link is None or (name, now) in seen:
                continue
            seen.add((name, now))
            for operand, sources in zip(link.operands, link.sources, strict=True):
                if now[0] != name:
                    stack.append((operand, now))
                    continue
                place = sources[now[1]]
                if place < 0:
                    continue
                if operand in self._before and not self._exact.broadcast[self._exact.classes[operand][place]]:
                    return True
                maker = self._by_name.get(operand)
                slot = maker.axes[place] if maker is not None else place
                if maker is not None and 0 <= slot < len(maker.root_broadcast):
                    stack.append((operand, (operand, slot)))
        return False

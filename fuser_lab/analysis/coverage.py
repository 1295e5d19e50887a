"""Whether the loop nest of one tensor reaches every axis of another."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fuser_lab.analysis.domain_map import Derivation, ExactMap, Link


class Coverage:
    """What a set of classes determines: itself, its sources, and everything that can be derived from these."""

    def __init__(self, exact: ExactMap, classes: Iterable[int], *, through_resize: bool) -> None:
        made = [
            (d.sources, d.results)
            for d in exact.derivations
            if through_resize or d.name != "resize"
        ]
        # An axis that a cat makes of two others takes both of them.
        needed: dict[tuple[int, ...], set[int]] = {}
        for sources, results in made:
            needed.setdefault(results, set()).update(sources)
        covered = set(classes)
        if through_resize:
            # An axis that is cut down to one element is read at one position, whatever the loops are.
            for derivation in exact.derivations:
                if derivation.name == "resize" and exact.broadcast[derivation.results[0]]:
                    covered.update(derivation.sources)
        # A broadcast axis that is resized or reshaped counts as the axis that it meets elsewhere (nvFuser:
        # csrc/scheduler/tools/domain_map.cpp:270-300, which maps each source axis permissively).
        met = {
            source: exact.concretized[source]
            for sources in needed.values() for source in sources if source in exact.concretized
        }
        meets: dict[int, list[int]] = {}
        for source, targets in met.items():
            for target in targets:
                meets.setdefault(target, []).append(source)
        reads: dict[int, list[tuple[int, ...]]] = {}  # by class, the results that it is needed for
        parts: dict[int, list[tuple[int, ...]]] = {}  # and those that it is one of
        for results, needs in needed.items():
            for place, numbers in ((reads, needs), (parts, {*results})):
                for number in numbers:
                    place.setdefault(number, []).append(results)
        lacking = {results: len(needs) for results, needs in needed.items()}
        waiting = list(covered)
        while waiting:
            number = waiting.pop()
            more = list(meets.get(number, ()))
            for results in parts.get(number, ()):
                # Each part of a split comes with the other, because both traverse the same elements of the source.
                more += needed[results]
            for results in reads.get(number, ()):
                lacking[results] -= 1
                if not lacking[results]:
                    more += results
            fresh = [other for other in dict.fromkeys(more) if other not in covered]
            covered.update(fresh)
            waiting += fresh
        self.covered = covered

    def missing(self, classes: Iterable[int]) -> int | None:
        """Return a class that is not reached, or None."""
        return next((number for number in classes if number not in self.covered), None)


def conflicting_reshapes(exact: ExactMap) -> tuple[str, str] | None:
    """Return two reshapes that split or merge one axis in different ways.

    A loop nest can follow only one of them: nvFuser's common gate refuses the segment. The part of an axis that a slice
    leaves counts as that axis, and so does an axis with padding, which may be split in the same way if the outer
    extents are equal (nvFuser: hasIncompatibleTransforms, on the permissive-resize graph of its IdModel).
    """
    if sum(d.name != "resize" for d in exact.derivations) < 2:
        return None
    joined = _Joined(len(exact.extent))
    for derivation in exact.derivations:
        if derivation.name == "resize":
            joined.union(derivation.sources[0], derivation.results[0])
    for source, targets in exact.concretized.items():
        for target in targets:
            joined.union(source, target)
    reshapes = [d for d in exact.derivations if d.name != "resize"]
    while True:
        before = joined.unions
        made: dict[tuple[object, ...], tuple[int, ...]] = {}
        for derivation in reshapes:
            results = made.setdefault(_use(exact, joined, derivation), derivation.results)
            for a, b in zip(results, derivation.results, strict=True):
                joined.union(a, b)
        if joined.unions == before:
            break
    uses: dict[int, tuple[tuple[object, ...], str]] = {}
    for derivation in reshapes:
        use = _use(exact, joined, derivation)
        for source in derivation.sources:
            first = uses.setdefault(joined.of(source), (use, derivation.expr))
            if first[0] != use:
                return first[1], derivation.expr
    return None


def _use(exact: ExactMap, joined: "_Joined", derivation: Derivation) -> tuple[object, ...]:
    """Return a key that is equal for merges of the same axes, and for splits of one axis with the same outer extent."""
    outer = exact.extent[derivation.results[0]] if derivation.name == "split" else 0
    return derivation.name, tuple(map(joined.of, derivation.sources)), outer


class _Joined:
    """Classes joined into groups."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))
        self.unions = 0

    def of(self, number: int) -> int:
        """Return the representative of a class and all classes joined with it."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def union(self, a: int, b: int) -> None:
        """Join the groups of two classes."""
        a, b = self.of(a), self.of(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)
            self.unions += 1


class Neighbourhoods(_Joined):
    """Classes whose neighbours in memory are neighbours of each other's: joined by views.

    A resize keeps neighbours together, a split those of its inner part, a merge those of its inner operand.
    """

    def __init__(self, exact: ExactMap) -> None:
        super().__init__(len(exact.extent))
        for derivation in exact.derivations:
            self.union(derivation.sources[-1], derivation.results[-1])


def cyclic_reshape(exact: ExactMap) -> str | None:
    """Return a reshape that leads from an axis back to itself, as in x + x.reshape(3, 4).reshape(12)."""
    results: dict[int, list[Derivation]] = {}
    for derivation in exact.derivations:
        if derivation.name != "resize":
            for source in derivation.sources:
                results.setdefault(source, []).append(derivation)
    # Classes that are on no cycle, nor behind one, are left out first.
    made = Counter(number for derivations in results.values() for d in derivations for number in d.results)
    ready = [number for number in results if not made[number]]
    for number in ready:
        for derivation in results.get(number, ()):
            for result in derivation.results:
                made[result] -= 1
                if not made[result]:
                    ready.append(result)
    for start in [number for number in results if made[number]]:
        seen: set[int] = set()
        stack = [start]
        while stack:
            for derivation in results.get(stack.pop(), ()):
                if start in derivation.results:
                    return derivation.expr
                fresh = [r for r in derivation.results if r not in seen]
                seen.update(fresh)
                stack.extend(fresh)
    return None


def unconnected_pair(links: Sequence[Link]) -> tuple[str, str]:
    """Return the names of two expressions that no path of tensors connects; there are such."""
    first, pending = links[0], list(links)
    reached = {first.name, *first.operands}
    grew = True
    while grew:
        rest = [link for link in pending if reached.isdisjoint((link.name, *link.operands))]
        for link in pending:
            if not reached.isdisjoint((link.name, *link.operands)):
                reached.update((link.name, *link.operands))
        grew = len(rest) < len(pending)
        pending = rest
    return first.name, pending[0].name

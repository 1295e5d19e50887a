"""Whether the loop nest of one tensor reaches every axis of another."""

from collections.abc import Iterable

from fuser_lab.analysis.domain_map import Derivation, ExactMap


class Coverage:
    """What a set of classes determines: itself, what it was made from, and what can be made of that."""

    def __init__(self, exact: ExactMap, classes: Iterable[int], *, through_resize: bool) -> None:
        made = [
            (d.sources, d.results)
            for d in exact.derivations
            if through_resize or d.name != "resize"
        ]
        covered = set(classes)
        if through_resize:
            # Cut down to one element, an axis is read at one place whatever the loops are.
            for derivation in exact.derivations:
                if derivation.name == "resize" and exact.broadcast[derivation.results[0]]:
                    covered.update(derivation.sources)
        grew = bool(made)
        while grew:
            before = len(covered)
            for sources, results in made:
                # One part of a split comes with the other, as both run through the same elements of the source.
                if any(r in covered for r in results):
                    covered.update(sources)
                if all(s in covered for s in sources):
                    covered.update(results)
            grew = len(covered) > before
        self.covered = covered

    def missing(self, classes: Iterable[int], exempt: frozenset[int] = frozenset()) -> int | None:
        """Return a class that is neither reached nor exempt, or None."""
        for number in classes:
            if number not in self.covered and number not in exempt:
                return number
        return None


def conflicting_reshapes(exact: ExactMap) -> tuple[str, str] | None:
    """Return two reshapes that split or merge one axis in different ways.

    A loop nest can follow only one of them: nvFuser's common gate refuses the segment.
    """
    uses: dict[int, tuple[tuple[object, ...], str]] = {}
    for derivation in exact.derivations:
        if derivation.name == "resize":
            continue
        use = (derivation.name, derivation.sources, derivation.numbers)
        for source in derivation.sources:
            known = uses.setdefault(source, (use, derivation.expr))
            if known[0] != use:
                return known[1], derivation.expr
    return None


class Neighbourhoods:
    """Classes whose neighbours in memory are neighbours of each other's: joined by views.

    A resize keeps neighbours together, a split those of its inner part, a merge those of its inner operand.
    """

    def __init__(self, exact: ExactMap) -> None:
        self._parent: dict[int, int] = {}
        for derivation in exact.derivations:
            a, b = self.of(derivation.sources[-1]), self.of(derivation.results[-1])
            if a != b:
                self._parent[b] = a

    def of(self, number: int) -> int:
        """Return the class that stands for a class and all that are joined with it."""
        while number in self._parent:
            number = self._parent[number]
        return number


def cyclic_reshape(exact: ExactMap) -> str | None:
    """Return a reshape that leads from an axis back to itself, as in x + x.reshape(3, 4).reshape(12)."""
    results: dict[int, list[Derivation]] = {}
    for derivation in exact.derivations:
        if derivation.name != "resize":
            for source in derivation.sources:
                results.setdefault(source, []).append(derivation)
    for start in results:
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

"""Conjunctions of linear inequalities, of which some imply others: the union of many is often one of them.

A vector at the edge of a padded image has elements for which ``16 * c + 2 * v >= 1``: it is needed if the condition
holds for the largest ``v``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from fuser_lab.codegen.index_math import Linear, Ranges, is_index, linear, range_of, simplify, to_term
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, index

Parts = frozenset[tuple[Term, int]]
_STRICT = {"lt": True, "gt": True, "le": False, "ge": False}
_SMALLER = frozenset({"lt", "le"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conjunction:
    """Conditions that all hold: the sums of ``bounds`` are at least their numbers, and ``others`` hold."""

    bounds: Mapping[Parts, int]
    others: tuple[Term, ...] = ()

    def implies(self, other: "Conjunction") -> bool:
        """Whether the other one holds if this one does, as far as their terms are alike."""
        least = all(parts in self.bounds and self.bounds[parts] >= bound for parts, bound in other.bounds.items())
        return least and set(other.others) <= set(self.others)

    def term(self) -> Term:
        """Return the conjunction as a condition."""
        bounds = [_at_least(parts, bound) for parts, bound in self.bounds.items()]
        return _join("and", (*bounds, *self.others))


def conjunction(conditions: Iterable[Term], ranges: Ranges) -> Conjunction | None:
    """Return conditions as a conjunction without those that always hold; None if they never hold together."""
    bounds: dict[Parts, int] = {}
    others: list[Term] = []
    for condition in (part for whole in conditions for part in _parts(simplify(whole, ranges))):
        if isinstance(condition, Const):
            if not condition.value:
                return None
            continue
        pair = _bound(condition, ranges)
        if pair is None:
            others.append(condition)
            continue
        parts, bound = pair
        low, high = range_of(Linear(0, tuple(parts)), ranges)
        if high < bound:
            return None
        if low < bound:
            bounds[parts] = max(bounds.get(parts, bound), bound)
    return Conjunction(bounds=bounds, others=tuple(dict.fromkeys(others)))


def any_of(conjunctions: Sequence[Conjunction]) -> Term | None:
    """Return the condition that at least one conjunction holds; None if it always does."""
    alternatives: list[Conjunction] = []
    for candidate in conjunctions:
        if any(candidate.implies(other) for other in alternatives):
            continue
        alternatives = [*(other for other in alternatives if not other.implies(candidate)), candidate]
    if any(not alternative.bounds and not alternative.others for alternative in alternatives):
        return None
    return _join("or", [alternative.term() for alternative in alternatives])


def _parts(condition: Term) -> Iterable[Term]:
    match condition:
        case Apply(_, "and", (a, b)):
            yield from (*_parts(a), *_parts(b))
        case _:
            yield condition


def _bound(condition: Term, ranges: Ranges) -> tuple[Parts, int] | None:
    """Return a comparison as a sum and its least value, divided by the divisor of its coefficients."""
    match condition:
        case Apply(_, fn, (a, b)) if fn in _STRICT and is_index(a) and is_index(b):
            small, large = (a, b) if fn in _SMALLER else (b, a)
            form = linear(large, ranges).plus(linear(small, ranges).scaled(-1))
            shared = gcd(*(coefficient for _, coefficient in form.parts))
            parts = frozenset((atom, coefficient // shared) for atom, coefficient in form.parts)
            return parts, -((form.constant - _STRICT[fn]) // shared)
        case _:
            return None


def _at_least(parts: Parts, bound: int) -> Term:
    if all(coefficient < 0 for _, coefficient in parts):
        negative = to_term(Linear(0, _in_fixed_order(parts)).scaled(-1))
        return Apply(DataType.Bool, "le", (negative, index(-bound)))
    return Apply(DataType.Bool, "ge", (to_term(Linear(0, _in_fixed_order(parts))), index(bound)))


def _in_fixed_order(parts: Parts) -> tuple[tuple[Term, int], ...]:
    """Return the parts in an order that is the same in every process."""
    return tuple(sorted(parts, key=str))


def _join(fn: str, terms: Sequence[Term]) -> Term:
    return reduce(lambda a, b: Apply(DataType.Bool, fn, (a, b)), terms)

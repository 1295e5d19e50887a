"""Windows: neighbouring elements that the iterations of a short loop read in another order than their own.

    for v in range(8):                              load_vector(T0, 16 * c, T0_v, 0, 16, 8)
        t0 = T0[16 * c + 2 * v]             ->      for v in range(8):
        t0_1 = T0[16 * c + 2 * v + 1]                   t0 = T0_v[2 * v]
        T1[8 * c + v] = t0 * t0_1                       t0_1 = T0_v[2 * v + 1]

Pairs of neighbours, every other element, overlapping windows of a pooling, elements that are repeated, and elements in
reverse order have such positions: a term without v, plus a number for each v. The elements of one buffer with the same
term are covered with aligned vectors. A vector lies within the buffer if one of its elements does, so it is loaded if
any iteration reads from it. It is worthwhile if fewer accesses load the vectors than the elements one by one.

The conditions of the iterations are conjunctions of linear inequalities: their union is often one of them.

A vector at the edge of a padded image has elements for which ``16 * c + 2 * v >= 1``: it is needed if the condition
holds for the largest ``v``.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import gcd

from fuser_lab.codegen.index_math import (
    Linear,
    Ranges,
    access_of,
    divisor,
    is_index,
    linear,
    negate,
    range_of,
    resolve,
    simplify,
    substitute,
    to_term,
    variables,
    widest_vectors,
)
from fuser_lab.codegen.kernel_ir import Block, Buffer, If, Let, Load, Role, terms_of
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, index, variables_in

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
    if any(bound + bounds.get(_opposite(parts), -bound) > 0 for parts, bound in bounds.items()):
        return None
    return Conjunction(bounds=bounds, others=tuple(dict.fromkeys(others)))


def _opposite(parts: Parts) -> Parts:
    return frozenset((term, -factor) for term, factor in parts)


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


OUTSIDE = frozenset({Role.INPUT, Role.OUTPUT, Role.WORKSPACE})
_SPARSEST = crossover("windows.sparsest")

Key = tuple[Buffer, Term]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """What is known about positions: the loop's variable, names set inside the loop, values of index variables.

    ``written`` are names of buffers that the loop writes, which have no windows; ``data`` are index variables whose
    values are loaded, and ``ranges`` bound the others.
    """

    name: str
    inside: Container[str]
    definitions: Mapping[str, Term]
    written: Container[str] = ()
    data: Container[str] = ()
    ranges: Ranges = field(default_factory=dict)

    def inner(self) -> dict[str, Term]:
        """Return the index variables that are set inside the loop, which are unknown outside it."""
        return {name: value for name, value in self.definitions.items() if name in self.inside}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``count`` adjacent elements from ``low`` on that are loaded with ``width`` elements for each memory access.

    They are loaded only if ``condition`` holds, which is known before the loop.
    """

    low: int
    count: int
    width: int
    condition: Term | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Room for ``count`` elements from ``base + low`` on, which are loaded in pieces."""

    buffer: Buffer
    base: Term
    low: int
    count: int
    pieces: tuple[Piece, ...]

    @property
    def accesses(self) -> int:
        """Return the number of memory accesses."""
        return sum(piece.count // piece.width for piece in self.pieces)

    def has(self, place: int) -> bool:
        """Whether there is room for an element."""
        return self.low <= place < self.low + self.count


def place_of(load: Load, loops: Loops) -> tuple[Term, Term] | None:
    """Return a load's position as a term without the loop's variable and one of it alone; None if it is another."""
    if load.buffer.role not in OUTSIDE or load.buffer.name in loops.written or has_loads(load.position):
        return None
    form = linear(resolve(load.position, loops.inner()), {})
    fixed: list[tuple[Term, int]] = []
    varying: list[tuple[Term, int]] = []
    for atom, coefficient in form.parts:
        names = {atom.name} if isinstance(atom, Var) else variables(atom)
        if names == {loops.name}:
            varying.append((atom, coefficient))
        elif loops.name in names or any(name in loops.inside for name in names):
            return None
        else:
            fixed.append((atom, coefficient))
    return to_term(Linear(0, tuple(fixed))), to_term(Linear(form.constant, tuple(varying)))


def window_of(load: Load, value: int, windows: Mapping[Key, tuple[Window, ...]], loops: Loops) -> Window | None:
    """Return the window that has a load's element in the iteration with a value of the loop's variable."""
    place = place_of(load, loops)
    if place is None:
        return None
    at = _number(substitute(place[1], {loops.name: index(value)}))
    candidates = windows.get((load.buffer, place[0]), ())
    return next((window for window in candidates if at is not None and window.has(at)), None)


def holds_for(condition: Term, values: Sequence[int], loops: Loops) -> tuple[int, ...] | None:
    """Return the values of the loop's variable for which a condition holds; None if it depends on anything else."""
    if not variables_in([condition]) <= {loops.name, *loops.inner()} or has_loads(condition):
        return None
    holding = []
    term = substitute(condition, loops.inner())
    for value in values:
        decided = simplify(substitute(term, {loops.name: index(value)}), {})
        if not isinstance(decided, Const):
            return None
        if decided.value:
            holding.append(value)
    return tuple(holding)


def windows_of(body: Block, count: int, loops: Loops) -> dict[Key, tuple[Window, ...]]:
    """Return the windows of a block in a loop of ``count`` iterations, by buffer and term without the variable."""
    read: dict[Key, _Needed] = {}
    for load, needed in _loads_of(body, _Around(values=tuple(range(count))), loops, count):
        place = place_of(load, loops)
        if place is None:
            continue
        numbers = {value: _number(substitute(place[1], {loops.name: index(value)})) for value in needed}
        if None not in numbers.values():
            places = [(at, needed[value]) for value, at in numbers.items() if at is not None]
            read.setdefault((load.buffer, place[0]), _Needed()).add(places)
    made = {key: tuple(_windows(*key, needed, loops)) for key, needed in read.items()}
    return {key: windows for key, windows in made.items() if windows}


@dataclass(slots=True)
class _Needed:
    """The elements that are read, with the conditions under which they are, and which of them one load reads."""

    conditions: dict[int, list[Conjunction]] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, places: Sequence[tuple[int, Conjunction]]) -> None:
        """Add the elements of one load, each as often as iterations read it."""
        if places:
            self.spans.append((min(place for place, _ in places), max(place for place, _ in places)))
        for place, condition in places:
            self.conditions.setdefault(place, []).append(condition)


def _windows(buffer: Buffer, base: Term, needed: _Needed, loops: Loops) -> Iterator[Window]:
    """Yield the worthwhile windows: each has all elements of some loads."""
    # All vectors lie within the buffer or outside it.
    width = widest_vectors(buffer, divisor(linear(resolve(base, loops.definitions), {})), buffer.size)
    vectors = sorted({(low // width, high // width) for low, high in needed.spans}) if width > 1 else []
    while vectors:
        first, last = vectors.pop(0)
        while vectors and vectors[0][0] <= last + 1:
            last = max(last, vectors.pop(0)[1])
        low, count = first * width, (last + 1 - first) * width
        places = [place for place in needed.conditions if low <= place < low + count]
        pieces = _pieces(places, needed, width)
        window = Window(buffer=buffer, base=base, low=low, count=count, pieces=pieces)
        if window.accesses < len(places) and count <= _SPARSEST * len(places):
            yield window


def _pieces(places: Sequence[int], needed: _Needed, width: int) -> tuple[Piece, ...]:
    """Return the vectors that have some elements; those next to each other are one piece."""
    pieces: list[Piece] = []
    for vector in sorted({place // width for place in places}):
        inside = [place for place in places if place // width == vector]
        condition = any_of([condition for place in inside for condition in needed.conditions[place]])
        part = width
        while part > 1 and min(inside) // (part // 2) == max(inside) // (part // 2):
            part //= 2
        piece = Piece(low=min(inside) // part * part, count=part, width=part, condition=condition)
        last = pieces[-1] if pieces else None
        if last and (last.low + last.count, last.width, last.condition) == (piece.low, piece.width, condition):
            pieces[-1] = replace(last, count=last.count + part)
        else:
            pieces.append(piece)
    return tuple(pieces)


def _is_vector(load: Load, loops: Loops, count: int) -> bool:
    """Whether one access is the same element in all iterations, or adjacent elements in their order."""
    access = access_of(load.buffer, load.position, loops.name, loops.definitions)
    return access.step == 0 or access.width(count) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """The conditions around a statement: the iterations in which they may hold, and whether they differ among these."""

    values: tuple[int, ...]
    conditions: tuple[Term, ...] = ()
    apart: bool = False


def _loads_of(body: Block, around: _Around, loops: Loops, count: int) -> Iterator[tuple[Load, dict[int, Conjunction]]]:
    """Yield loads that are not vectors, with the values of the loop's variable for which they run, and when they do."""
    definitions = dict(loops.definitions)
    loops = replace(loops, definitions=definitions)
    for statement in body if around.values else ():
        match statement:
            case Let(name=name, value=value) if value.dtype is DataType.Index and not has_loads(value):
                definitions[name] = resolve(value, definitions)
            case If(condition=condition, then=then, otherwise=otherwise):
                chosen = holds_for(condition, around.values, loops)
                if chosen is not None:
                    others = tuple(v for v in around.values if v not in chosen)
                    yield from _loads_of(then, replace(around, values=chosen), loops, count)
                    yield from _loads_of(otherwise, replace(around, values=others), loops, count)
                elif _is_known(condition, loops):
                    holds = substitute(condition, loops.inner())
                    apart = around.apart or loops.name in variables(holds)
                    for side, side_condition in ((then, holds), (otherwise, negate(holds))):
                        inside = replace(around, conditions=(*around.conditions, side_condition), apart=apart)
                        yield from _loads_of(side, inside, loops, count)
            case _:
                for load in (load for root in terms_of(statement) for load in _certain(root)):
                    whole = len(around.values) == count and not around.apart
                    if not (whole and _is_vector(load, loops, count)):
                        yield load, _when(around, loops)


def _when(around: _Around, loops: Loops) -> dict[int, Conjunction]:
    """Return the iterations in which a statement may run, with the conditions that are known before the loop."""
    iterations = {}
    for value in around.values:
        conditions = (substitute(condition, {loops.name: index(value)}) for condition in around.conditions)
        condition = conjunction(conditions, loops.ranges)
        if condition is not None:
            iterations[value] = condition
    return iterations


def _is_known(condition: Term, loops: Loops) -> bool:
    """Whether a condition is index arithmetic of loop variables, and of names set before the loop."""
    names = variables_in([substitute(condition, loops.inner())]) - {loops.name}
    return is_index(condition) and not any(name in loops.inside or name in loops.data for name in names)


def _number(term: Term) -> int | None:
    value = simplify(term, {})
    return int(value.value.real) if isinstance(value, Const) else None


def _certain(term: Term) -> Iterator[Load]:
    """Yield the loads of a term, except in branches of a selection, which may not run."""
    match term:
        case Load():
            yield term
        case Apply(_, "select", (condition, *_)):
            yield from _certain(condition)
        case _:
            for child in term.children:
                yield from _certain(child)


def has_loads(term: Term) -> bool:
    """Whether a term reads memory."""
    return any(isinstance(t, Load) for t in term.walk())

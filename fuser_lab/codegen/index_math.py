"""Index arithmetic: terms in linear form, simplified with the ranges of loop variables.

A linear form is ``constant + sum(coefficient * atom)``; an atom is a variable, or a quotient or remainder that cannot
be simplified. Ranges decide comparisons and remove quotients and remainders, so that index maps of views cancel out.

`access_of` gives an access as a progression: how far it advances with each iteration of a loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from fuser_lab.codegen.kernel_ir import Buffer
from fuser_lab.cost import device
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

Range = tuple[int, int]
Ranges = Mapping[str, Range]
"""Bounds of atoms: of variables by their names, of quotients and remainders inside a branch by their text."""

_BIG = 1 << 62  # beyond every index: a sum of two is still an integer of 64 bits
UNBOUNDED: Range = (-_BIG, _BIG)
_KEPT = 1 << 13  # terms whose forms are cached: a kernel has few, but needs each of them dozens of times
_COMPARED = {"lt", "le", "gt", "ge", "eq", "ne"}
_INDEX_FUNCTIONS = _COMPARED | {"and", "or", "not", "add", "sub", "mul", "floordiv", "mod", "max", "min"}


class FixedRanges(dict[str, Range]):
    """Immutable ranges as a key, whose hash is computed once."""

    __slots__ = ("_hash",)

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self._hash = hash(frozenset(self.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash


def range_key(ranges: Ranges) -> FixedRanges:
    """Return ranges as a key."""
    return ranges if isinstance(ranges, FixedRanges) else FixedRanges(ranges)


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant + sum(coefficient * atom)`` with no zero coefficients."""

    constant: int
    parts: tuple[tuple[Term, int], ...]

    def scaled(self, factor: int) -> "Linear":
        """Return the form times a number."""
        if factor == 0:
            return Linear(0, ())
        return Linear(self.constant * factor, tuple((atom, c * factor) for atom, c in self.parts))

    def plus(self, other: "Linear") -> "Linear":
        """Return the sum of two forms."""
        parts = dict(self.parts)
        for atom, coefficient in other.parts:
            parts[atom] = parts.get(atom, 0) + coefficient
        return Linear(self.constant + other.constant, tuple((a, c) for a, c in parts.items() if c))


def is_index(term: Term) -> bool:
    """Whether a term is index arithmetic or a comparison of it, which is known without loads."""
    if isinstance(term, Const | Var):
        return term.dtype is DataType.Index
    return isinstance(term, Apply) and term.fn in _INDEX_FUNCTIONS and _of_indices(term)


@lru_cache(_KEPT)
def _of_indices(term: Apply) -> bool:
    return all(is_index(arg) or isinstance(arg, Const) for arg in term.args)


def simplify(term: Term, ranges: Ranges) -> Term:
    """Return an equal index term or condition, a constant if the ranges decide it."""
    if not isinstance(term, Apply):
        return term
    # Only index terms are cached: among other terms, those with 0.0 and -0.0 are equal.
    simplified = _simplify if is_index(term) else _simplify.__wrapped__
    return simplified(term, range_key(ranges))


@lru_cache(_KEPT)
def _simplify(term: Apply, ranges: FixedRanges) -> Term:
    if term.fn in _COMPARED and all(is_index(a) for a in term.args):
        return _compare(term, ranges)
    if term.fn in {"and", "or"}:
        return _logic(term, ranges)
    if term.dtype is DataType.Index and is_index(term):
        return to_term(linear(term, ranges))
    return term


def _logic(term: Apply, ranges: Ranges) -> Term:
    a, b = (simplify(arg, ranges) for arg in term.args)
    absorbing = term.fn == "or"
    for this, other in ((a, b), (b, a)):
        if isinstance(this, Const):
            return this if bool(this.value) is absorbing else other
    return Apply(term.dtype, term.fn, (a, b))


def _compare(term: Apply, ranges: Ranges) -> Term:
    a, b = (linear(arg, ranges) for arg in term.args)
    low, high = range_of(a.plus(b.scaled(-1)), ranges)
    result = {
        "lt": True if high < 0 else False if low >= 0 else None,
        "le": True if high <= 0 else False if low > 0 else None,
        "gt": True if low > 0 else False if high <= 0 else None,
        "ge": True if low >= 0 else False if high < 0 else None,
        "eq": False if low > 0 or high < 0 else True if low == high == 0 else None,
        "ne": True if low > 0 or high < 0 else False if low == high == 0 else None,
    }[term.fn]
    if result is not None:
        return Const(DataType.Bool, result)
    # Constants move to the right: i - 64 < 8 reads better as i < 72.
    left = Linear(0, a.parts)
    right = Linear(b.constant - a.constant, b.parts)
    if term.fn in _NEGATED and not right.parts:
        whole = _compare_whole(term.fn, left, right.constant, ranges)
        if whole is not None:
            return whole
    return Apply(term.dtype, term.fn, (to_term(left), to_term(right)))


def _compare_whole(fn: str, form: Linear, limit: int, ranges: Ranges) -> Term | None:
    """Return a comparison without the part that cannot change its result: ``8 * c + v < 64`` is ``c < 8`` for v < 8."""
    # form <= n is form < n + 1, and form > n is not (form < n + 1)
    first = limit + (fn in {"le", "gt"})
    groups = _group(form, first, ranges)
    if groups is None:
        return None
    group, whole, _ = groups
    less = Const(DataType.Index, first // group)
    return _compare(Apply(DataType.Bool, "lt" if fn in {"lt", "le"} else "ge", (to_term(whole), less)), ranges)


def linear(term: Term, ranges: Ranges) -> Linear:
    """Return the linear form of an index term."""
    if isinstance(term, Const):
        return Linear(int(term.value.real), ())
    if not isinstance(term, Apply):
        return Linear(0, ((term, 1),))
    form = _linear if is_index(term) else _linear.__wrapped__
    return form(term, range_key(ranges))


@lru_cache(_KEPT)
def _linear(term: Apply, ranges: FixedRanges) -> Linear:
    match term:
        case Apply(_, "add", (a, b)):
            return _recombine(linear(a, ranges).plus(linear(b, ranges)), ranges)
        case Apply(_, "sub", (a, b)):
            return _recombine(linear(a, ranges).plus(linear(b, ranges).scaled(-1)), ranges)
        case Apply(_, "mul", (a, b)):
            left, right = linear(a, ranges), linear(b, ranges)
            if not left.parts:
                return right.scaled(left.constant)
            if not right.parts:
                return left.scaled(right.constant)
        case Apply(_, "floordiv", (a, Const(_, value))) if value.real > 0:
            return _quotient(linear(a, ranges), int(value.real), ranges)
        case Apply(_, "mod", (a, Const(_, value))) if value.real > 0:
            return _remainder(linear(a, ranges), int(value.real), ranges)
        case Apply(_, "max" | "min" as fn, (a, b)):
            return _extreme(fn, linear(a, ranges), linear(b, ranges), ranges)
        case _:
            pass
    return Linear(0, ((term, 1),))


def _extreme(fn: str, left: Linear, right: Linear, ranges: Ranges) -> Linear:
    """Return the larger or the smaller of two forms: one of them if ranges decide it."""
    low, high = range_of(left.plus(right.scaled(-1)), ranges)
    if low >= 0 or high <= 0:
        return left if (low >= 0) is (fn == "max") else right
    return Linear(0, ((Apply(DataType.Index, fn, (to_term(left), to_term(right))), 1),))


def _split(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Return (quotient, rest) with ``form = divisor * quotient + rest``; the rest has the indivisible terms."""
    whole = tuple((atom, c // divisor) for atom, c in form.parts if c % divisor == 0)
    rest = tuple((atom, c) for atom, c in form.parts if c % divisor)
    return Linear(form.constant // divisor, whole), Linear(form.constant % divisor, rest)


def _group(form: Linear, size: int, ranges: Ranges) -> tuple[int, Linear, Linear] | None:
    """Return (group, coarse, fine) with ``form = group * coarse + fine`` and ``0 <= fine < group``, if they exist.

    The group divides ``size`` and the fine part is not constant: a chunk of a run and a position in it.
    """
    groups = {gcd(size, c) for _, c in form.parts} - {1}
    for group in sorted(groups, reverse=True):
        coarse = tuple((atom, c // group) for atom, c in form.parts if c % group == 0)
        fine = Linear(form.constant % group, tuple((atom, c) for atom, c in form.parts if c % group))
        low, high = range_of(fine, ranges)
        if fine.parts and low >= 0 and high < group:
            return group, Linear(form.constant // group, coarse), fine
    return None


def _quotient(form: Linear, divisor: int, ranges: Ranges) -> Linear:
    if divisor == 1:
        return form
    whole, rest = _split(form, divisor)
    low, high = range_of(rest, ranges)
    if low // divisor == high // divisor:
        return whole.plus(Linear(low // divisor, ()))
    groups = _group(rest, divisor, ranges)
    if groups is not None:
        group, coarse, _ = groups
        return whole.plus(_quotient(coarse, divisor // group, ranges))
    if len(rest.parts) == 1 and rest.constant == 0:
        atom, coefficient = rest.parts[0]
        match atom:
            case Apply(_, "floordiv", (inner, Const(_, value))) if coefficient == 1:
                return whole.plus(_quotient(linear(inner, ranges), int(value.real) * divisor, ranges))
            case _:
                pass
    return whole.plus(Linear(0, ((_apply("floordiv", rest, divisor), 1),)))


def _remainder(form: Linear, divisor: int, ranges: Ranges) -> Linear:
    if divisor == 1:
        return Linear(0, ())
    _, rest = _split(form, divisor)
    low, high = range_of(rest, ranges)
    if low // divisor == high // divisor:
        return rest.plus(Linear(-(low // divisor) * divisor, ()))
    groups = _group(rest, divisor, ranges)
    if groups is not None:
        group, coarse, fine = groups
        return _remainder(coarse, divisor // group, ranges).scaled(group).plus(fine)
    for atom, coefficient in rest.parts:
        match atom:
            case Apply(_, "mod", (inner, Const(_, value))) if int(value.real) * coefficient % divisor == 0:
                # A multiple of the divisor less does not change the remainder.
                remaining_sum = Linear(rest.constant, tuple(part for part in rest.parts if part[0] is not atom))
                form = remaining_sum.plus(linear(inner, ranges).scaled(coefficient))
                if range_of(form, ranges)[0] >= 0 or not (remaining_sum.parts or remaining_sum.constant):
                    return _remainder(form, divisor, ranges)
            case _:
                pass
    return Linear(0, ((_apply("mod", rest, divisor), 1),))


def _apply(fn: str, form: Linear, divisor: int) -> Term:
    return Apply(DataType.Index, fn, (to_term(form), Const(DataType.Index, divisor)))


def _recombine(form: Linear, ranges: Ranges) -> Linear:
    """Rewrite ``(x // n) * n + x % n`` as ``x``, and adjacent higher digits of ``x`` as one digit.

    ``(x // n + c) % m * n + x % n``, an element of a roll along the outermost axis, is ``(x + c * n) % (m * n)``.
    """
    digits = [(*digit, coefficient, atom) for atom, coefficient in form.parts if (digit := _digit(atom))]
    for atom, coefficient in form.parts:
        rolled = _rolled_digit(atom)
        if rolled is None:
            continue
        y, above, shift, count = rolled
        for x, low, size, scale, other in digits:
            if (low, size, coefficient) == (1, above, scale * above) and x == y:
                rest = Linear(form.constant, tuple(part for part in form.parts if part[0] not in (atom, other)))
                moved = linear(x, ranges).plus(Linear(shift * above, ()))
                return _recombine(rest.plus(_remainder(moved, count * above, ranges).scaled(scale)), ranges)
    for x, low, size, coefficient, atom in digits:
        for y, above, more, scale, other in digits:
            if size is None or above != low * size or scale != coefficient * size or x != y:
                continue
            rest = Linear(form.constant, tuple((a, c) for a, c in form.parts if a not in (atom, other)))
            merged = _quotient(linear(x, ranges), low, ranges)
            if more is not None:
                merged = _remainder(merged, size * more, ranges)
            return _recombine(rest.plus(merged.scaled(coefficient)), ranges)
    return form


def _digit(atom: Term) -> tuple[Term, int, int | None] | None:
    """Return (x, low, size) with ``atom = x // low % size``, or ``x // low`` for size None."""
    match atom:
        case Apply(_, "floordiv" | "mod" as fn, (inner, Const(_, value))):
            number = int(value.real)
            x, low, size = _digit(inner) or (inner, 1, None)
            if size is not None and size % number:
                return None
            if fn == "mod":
                return x, low, number
            return x, low * number, None if size is None else size // number
        case _:
            return None


def _rolled_digit(atom: Term) -> tuple[Term, int, int, int] | None:
    """Return (x, low, shift, size) with ``atom = (x // low + shift) % size``."""
    match atom:
        case Apply(_, "mod", (Apply(_, "add", (digit, Const(_, shift))), Const(_, size))):
            x, low, end = _digit(digit) or (digit, 1, 1)
            return (x, low, int(shift.real), int(size.real)) if end is None else None
        case _:
            return None


def range_of(form: Linear, ranges: Ranges) -> Range:
    """Return the smallest and the largest value of a linear form."""
    low = high = form.constant
    for atom, coefficient in form.parts:
        a, b = _atom_range(atom, ranges)
        first, second = a * coefficient, b * coefficient
        low, high = low + min(first, second), high + max(first, second)
    return low, high


def _atom_range(atom: Term, ranges: Ranges) -> Range:
    least, most = ranges.get(_key(atom), UNBOUNDED)
    match atom:
        case Apply(_, "floordiv", (x, Const(_, value))):
            low, high = range_of(linear(x, ranges), ranges)
            d = int(value.real)
            return max(low // d, least), min(high // d, most)
        case Apply(_, "mod", (x, Const(_, value))):
            low, high = range_of(linear(x, ranges), ranges)
            d = int(value.real)
            low, high = (low % d, high % d) if low // d == high // d else (0, d - 1)
            return max(low, least), min(high, most)
        case Apply(_, "max" | "min" as fn, (x, y)):
            left, right = linear(x, ranges), linear(y, ranges)
            (low, high), (other_low, other_high) = range_of(left, ranges), range_of(right, ranges)
            if fn == "min":
                return max(min(low, other_low), least), min(high, other_high, most)
            # The larger of a number and its negative is its absolute value.
            least = max(least, 0) if left == right.scaled(-1) else least
            return max(low, other_low, least), min(max(high, other_high), most)
        case Apply(DataType.Index, "select", (_, x, y)):
            (low, high), (other_low, other_high) = (range_of(linear(side, ranges), ranges) for side in (x, y))
            return max(min(low, other_low), least), min(max(high, other_high), most)
        case _:
            return least, most


@lru_cache(_KEPT)
def _key(atom: Term) -> str:
    """Return the key of an atom's range: a variable's name, or the text of a quotient or a remainder."""
    return atom.name if isinstance(atom, Var) else repr(atom)


def remainder_form(term: Term, divisor: int) -> Term:
    """Return a short term that differs from an index term by a multiple of a divisor."""
    form = linear(term, {})
    parts = tuple((atom, c % divisor) for atom, c in form.parts if c % divisor)
    return to_term(Linear(form.constant % divisor, parts))


def to_term(form: Linear) -> Term:
    """Return a linear form as a term: positive parts first, the constant last."""
    result: Term | None = None
    for atom, coefficient in sorted(form.parts, key=lambda part: part[1] < 0):
        size = abs(coefficient)
        piece = atom if size == 1 else Apply(DataType.Index, "mul", (atom, Const(DataType.Index, size)))
        if result is None:
            negative = Apply(DataType.Index, "mul", (atom, Const(DataType.Index, coefficient)))
            result = piece if coefficient > 0 else negative
        else:
            result = Apply(DataType.Index, "add" if coefficient > 0 else "sub", (result, piece))
    if result is None:
        return Const(DataType.Index, form.constant)
    if form.constant:
        fn = "add" if form.constant > 0 else "sub"
        result = Apply(DataType.Index, fn, (result, Const(DataType.Index, abs(form.constant))))
    return result


def narrow(condition: Term, ranges: Ranges, *, holds: bool) -> Ranges:
    """Return the ranges if a condition holds (or does not), with tighter bounds of single atoms."""
    match condition:
        case Apply(_, "and", (a, b)) if holds:
            return narrow(b, narrow(a, ranges, holds=True), holds=True)
        case Apply(_, "or", (a, b)) if not holds:
            return narrow(b, narrow(a, ranges, holds=False), holds=False)
        case Apply(_, fn, (a, b)) if fn in {"lt", "le", "gt", "ge"} and is_index(a) and is_index(b):
            return _tighten(fn if holds else _NEGATED[fn], linear(a, ranges).plus(linear(b, ranges).scaled(-1)), ranges)
        case _:
            return ranges


_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def negate(condition: Term) -> Term:
    """Return the negation of a condition."""
    match condition:
        case Apply(dtype, fn, args) if fn in _NEGATED:
            return Apply(dtype, _NEGATED[fn], args)
        case _:
            return Apply(condition.dtype, "not", (condition,))


def _tighten(fn: str, difference: Linear, ranges: Ranges) -> Ranges:
    """Tighten bounds by ``difference fn 0``."""
    match difference.parts:
        case ((atom, 1 | -1 as sign),):
            upper = fn in {"lt", "le"}
            distance = (fn in {"lt", "gt"}) * (-1 if upper else 1)
            limit, is_high = sign * (distance - difference.constant), upper is (sign == 1)
            low, high = _atom_range(atom, ranges)
            return {**ranges, _key(atom): (low, min(high, limit)) if is_high else (max(low, limit), high)}
        case _:
            return ranges


def thresholds(condition: Term, name: str, ranges: Ranges) -> set[int]:
    """Return the values of a variable at which its comparisons with constants change their result."""
    changes: set[int] = set()
    for term in condition.walk():
        if not (isinstance(term, Apply) and term.fn in _NEGATED and all(is_index(a) for a in term.args)):
            continue
        a, b = (linear(arg, ranges) for arg in term.args)
        difference = a.plus(b.scaled(-1))
        match difference.parts:
            case ((Var(_, moving), 1 | -1 as sign),) if moving == name:
                limit = -sign * difference.constant
                # j < c and j >= c change at c; j <= c and j > c at c + 1; for -j it is reversed.
                strict = term.fn in {"lt", "ge"}
                changes.add(limit if strict is (sign == 1) else limit + 1)
    return changes


def substitute(term: Term, mapping: Mapping[str, Term]) -> Term:
    """Return a term with variables replaced."""
    if isinstance(term, Var):
        return mapping.get(term.name, term)
    if isinstance(term, Apply):
        return Apply(term.dtype, term.fn, tuple(substitute(arg, mapping) for arg in term.args))
    return term


def variables(term: Term) -> frozenset[str]:
    """Return the names of index variables in a term."""
    return frozenset(t.name for t in term.walk() if isinstance(t, Var) and t.dtype is DataType.Index)


ACCESS_BYTES = device.ACCESS_BYTES  # bytes of the widest memory access of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The progression of a load or store through memory with a loop's variable.

    ``step`` is the number of elements between iterations, None if it varies; ``divisor`` divides the position of the
    first iteration.
    """

    buffer: Buffer
    step: int | None
    divisor: int

    def width(self, count: int) -> int:
        """Return how many of ``count`` adjacent elements one memory access may move; 0 if they are not adjacent."""
        if self.step != 1:
            return 0
        return widest_vectors(self.buffer, count, self.divisor)


def widest_vectors(buffer: Buffer, *divided: int) -> int:
    """Return the elements of a buffer's widest aligned vectors whose number divides some numbers."""
    size = buffer.dtype.itemsize
    width = gcd(*divided, max(ACCESS_BYTES // size, 1))
    while width > 1 and buffer.alignment % (width * size):
        width //= 2
    return width


def access_of(buffer: Buffer, position: Term, name: str, values: Mapping[str, Term] | None = None) -> Access:
    """Return the progression of an access with variable ``name``; ``values`` are those of other index variables."""
    form = linear(resolve(position, values or {}), {})
    step: int | None = 0
    parts = []
    for atom, coefficient in form.parts:
        if isinstance(atom, Var) and atom.name == name:
            step = coefficient
        elif name in variables(atom):
            return Access(buffer=buffer, step=None, divisor=1)
        else:
            parts.append((atom, coefficient))
    return Access(buffer=buffer, step=step, divisor=divisor(Linear(form.constant, tuple(parts))))


def resolve(position: Term, values: Mapping[str, Term]) -> Term:
    """Return a position with the values of other index variables, simplified."""
    return simplify(substitute(position, values), {})


def divisor(form: Linear) -> int:
    """Return a number that divides every value of a form; 0 for the form 0."""
    return gcd(form.constant, *(c * _atom_divisor(atom) for atom, c in form.parts))


def _atom_divisor(atom: Term) -> int:
    match atom:
        case Apply(_, "mod", (x, Const(_, size))):
            return gcd(divisor(linear(x, {})), int(size.real))
        case _:
            return 1

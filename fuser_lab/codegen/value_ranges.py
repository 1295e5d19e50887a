"""Conditions that the ranges of integers decide.

A code of four bits is never negative, and a position that a search in a table has found is below the table's size. Such
positions are data, so the check that they are in range remains in the kernel, unless their ranges show that they are.
The ranges of loops are not used: conditions on them are the same for many sizes, which share machine code.

    t1_at = int64(T1[i] & 15)                                        t1_at = int64(T1[i] & 15)
    t2 = T2[t1_at if (t1_at >= 0) & (t1_at < 16) else 0]      ->     t2 = T2[t1_at]
    t3 = t2 if (t1_at >= 0) & (t1_at < 16) else 0.0                  t3 = t2
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fuser_lab.codegen.kernel_ir import Block, If, Let, Load, Loop, Reduce, Scan, Statement, map_terms, walk
from fuser_lab.codegen.rewrites import made_of_data, without_unread
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

Range = tuple[int, int]
Ranges = Mapping[str, Range]  # of integers and conditions by their names; a condition is 0, 1 or both
_SIGNED = {DataType.Char: 8, DataType.Short: 16, DataType.Int32: 32, DataType.Int: 64, DataType.Index: 64}
_LIMITS: Mapping[DataType, Range] = {
    DataType.Bool: (0, 1), DataType.Byte: (0, 255),
    **{dtype: (-1 << bits - 1, (1 << bits - 1) - 1) for dtype, bits in _SIGNED.items()},
}
_BITS = 64  # of the widest integers
_UNKNOWN: Range = (-1 << _BITS, 1 << _BITS)  # more than all limits

EXAMPLE = """
loop(
    c, 64, block_x,
    let(at, cast(apply("and", cast(T0[c], Int), whole(15)), Index)),
    let(t0, T0[select(apply("and", at >= 0, at < 64), at, 0)]),
    let(t1, select(apply("and", at >= 0, at < 64), t0, number(0.0))),
    store(T1, c, t1),
)
"""


def without_known_conditions(body: Block) -> Block:
    """Return statements without selections whose conditions are decided by the ranges of integers."""
    if not made_of_data(body):
        return body
    changing = frozenset(s.name for s in walk(body) if isinstance(s, Let) and s.update)
    return without_unread(body, _block(body, {}, changing)[0])


def _block(body: Block, ranges: Ranges, changing: frozenset[str]) -> tuple[Block, dict[str, Range]]:
    """Return the statements of a block, and what is known after it; conditions of branches remain."""
    inner = dict(ranges)
    result: list[Statement] = []
    for statement in body:
        new = statement if isinstance(statement, If) else map_terms(statement, partial(_short_form, ranges=inner))
        match new:
            case Let(name=name, value=value):
                inner[name] = _LIMITS.get(value.dtype, _UNKNOWN) if name in changing else _simplify(value, inner)[1]
            case Loop(var=var, body=inside):
                new = replace(new, body=_block(inside, {**inner, var: _LIMITS[DataType.Index]}, changing)[0])
            case If():
                (then, after), (otherwise, other) = (
                    _block(side, inner, changing) for side in (new.then, new.otherwise)
                )
                new = replace(new, then=then, otherwise=otherwise)
                both = after.keys() & other.keys()
                inner |= {
                    name: (min(after[name][0], other[name][0]), max(after[name][1], other[name][1])) for name in both
                }
            case Reduce(name=name) | Scan(carry=Var(name=name)):
                inner.pop(name, None)
            case _:
                pass
        result.append(new)
    return tuple(result), inner


def _short_form(term: Term, ranges: Ranges) -> Term:
    return _simplify(term, ranges)[0]


def _simplify(term: Term, ranges: Ranges) -> tuple[Term, Range]:
    """Return a term without the conditions that ranges decide, and its range; that of a float is unknown."""
    limits = _LIMITS.get(term.dtype, _UNKNOWN)
    match term:
        case Const(dtype, value) if dtype in _LIMITS:
            return term, (int(value.real), int(value.real))
        case Var(_, name):
            return term, ranges.get(name, limits)
        case Load(dtype, buffer, position):
            return Load(dtype, buffer, _short_form(position, ranges)), limits
        case Apply():
            return _simplify_call(term, [_simplify(arg, ranges) for arg in term.args], limits)
        case _:
            return term, limits


def _simplify_call(term: Apply, parts: list[tuple[Term, Range]], limits: Range) -> tuple[Term, Range]:
    ranges = [limit for _, limit in parts]
    if term.fn == "select" and ranges[0][0] == ranges[0][1]:
        taken = parts[1] if ranges[0][0] else parts[2]
        if taken[0].dtype is term.dtype:
            return taken
    if term.fn in {"and", "or"} and term.dtype is DataType.Bool:
        for (_, (low, high)), other in zip(parts, reversed(parts), strict=True):
            if low == high == (term.fn == "and"):
                return other
    terms = tuple(part for part, _ in parts)
    new = term if terms == term.args else Apply(term.dtype, term.fn, terms)
    if any(part.dtype not in _LIMITS for part in terms[term.fn == "select" :]):
        return new, limits
    low, high = _range(term.fn, ranges)
    if limits[0] <= low <= high <= limits[1]:
        decided = term.dtype is DataType.Bool and low == high
        return (Const(term.dtype, bool(low)) if decided else new), (low, high)
    # A conversion keeps the last bits; other results may have more bits until they are stored.
    return new, (limits if term.fn == "cast" else (min(limits[0], low), max(limits[1], high)))


def _range(fn: str, ranges: list[Range]) -> Range:
    """Return the range of a function of integers; unknown for functions that are not listed."""
    (low, high), (other_low, other_high) = ranges[0], ranges[-1]
    match fn:
        case "cast":
            return low, high
        case "add":
            return low + other_low, high + other_high
        case "sub":
            return low - other_high, high - other_low
        case "neg":
            return -high, -low
        case "mul":
            corners = [a * b for a in ranges[0] for b in ranges[-1]]
            return min(corners), max(corners)
        case "min":
            return min(low, other_low), min(high, other_high)
        case "max":
            return max(low, other_low), max(high, other_high)
        case "select":
            return min(ranges[1][0], other_low), max(ranges[1][1], other_high)
        case "and" if max(low, other_low) >= 0:
            return 0, min(limit for least, limit in ranges if least >= 0)
        case "or" | "xor" if min(low, other_low) >= 0:
            return 0, (1 << max(high, other_high).bit_length()) - 1
        case "shr" if other_low == other_high and 0 <= other_low < _BITS:
            return low >> other_low, high >> other_low
        case "mod" if low >= 0 and other_low == other_high > 0:  # of a negative number, C's has its sign
            return 0, other_high - 1
        case "floordiv" if low >= 0 and other_low == other_high > 0:
            return low // other_low, high // other_low
        case "lt" | "ge" if high < other_low or low >= other_high:
            return (int((high < other_low) == (fn == "lt")),) * 2
        case "gt" | "le" if low > other_high or high <= other_low:
            return (int((low > other_high) == (fn == "gt")),) * 2
        case _:
            return _UNKNOWN

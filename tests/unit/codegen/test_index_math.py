"""Index arithmetic: which terms simplify, and that simplifying never changes a value."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser_lab.codegen.index_math import linear, narrow, range_of, simplify
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, apply

I = DataType.Index  # noqa: E741
i, j, k = (Var(I, name) for name in "ijk")
RANGES = {"i": (0, 5), "j": (0, 6), "k": (-3, 30)}


def value(term: Term, at: dict[str, int]) -> int:
    match term:
        case Const(_, number):
            return int(number.real)
        case Var(_, name):
            return at[name]
        case Apply(_, fn, (a, b)):
            x, y = value(a, at), value(b, at)
            return {
                "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "floordiv": lambda: x // y,
                "mod": lambda: x % y, "lt": lambda: x < y, "le": lambda: x <= y, "gt": lambda: x > y,
                "ge": lambda: x >= y, "and": lambda: x and y, "or": lambda: x or y,
            }[fn]()
    raise AssertionError(term)


def quotient(a: Term, n: int) -> Term:
    return apply("floordiv", a, n)


def rest(a: Term, n: int) -> Term:
    return apply("mod", a, n)


@pytest.mark.parametrize(
    ("term", "wanted"),
    [
        (quotient(i * 7 + j, 7), i),
        (rest(i * 7 + j, 7), j),
        (quotient(i * 14 + j, 7), i * 2),
        (quotient(quotient(k, 4), 5), quotient(k, 20)),
        (rest(rest(k, 20), 5), rest(k, 5)),
        (quotient(k, 7) * 7 + rest(k, 7), k),
        (quotient(k, 20) * 20 + rest(quotient(k, 5), 4) * 5 + rest(k, 5), k),
        (quotient(i, 6), Const(I, 0)),
        (rest(i, 6), i),
        (i + j - i, j),
        (quotient(j + 7, 7), Const(I, 1)),
        (j < 7, Const(DataType.Bool, True)),
        (j >= 7, Const(DataType.Bool, False)),
        ((j + 3) < 5, j < 2),
        ((i < 6) & (j < 3), j < 3),
        # A chunk of eight and a position in it: what depends on the chunk alone no longer mentions the position.
        (rest(k * 8 + j, 64), rest(k, 8) * 8 + j),
        (quotient(k * 8 + j, 64), quotient(k, 8)),
        (rest(k * 8 + j, 100), rest(k * 8 + j, 100)),
        ((k * 8 + j) < 64, k < 8),
        ((k * 8 + j) >= 64, k >= 8),
        ((k * 8 + j) <= 63, k < 8),
        ((k * 8 + j) > 60, (k * 8 + j) > 60),
        (rest(rest(i + 5, 6) + 3, 6), rest(i + 2, 6)),
        (rest(rest(j, 4) * 3 + k, 6), rest(rest(j, 4) * 3 + k, 6)),
        # Digits of a number, recombined.
        (quotient(k, 16) * 16 + rest(quotient(k, 4), 4) * 4 + rest(k, 4), k),
        (rest(quotient(k, 4), 8) * 4 + rest(k, 4), rest(k, 32)),
        (rest(quotient(rest(quotient(k, 2), 8), 4), 2) * 12 + rest(quotient(k, 2), 4) * 3, rest(quotient(k, 2), 8) * 3),
        (rest(quotient(k, 4) + 3, 8) * 12 + rest(k, 4) * 3, rest(k + 12, 32) * 3),
    ],
)
def test_simplifies(term: Term, wanted: Term) -> None:
    assert simplify(term, RANGES) == wanted


def test_a_condition_narrows_what_is_known() -> None:
    inside = narrow((j >= 2) & (j < 5), RANGES, holds=True)
    assert inside["j"] == (2, 4)
    assert narrow(j < 3, RANGES, holds=False)["j"] == (3, 6)
    assert simplify(j < 5, inside) == Const(DataType.Bool, True)


@st.composite
def terms(draw: st.DrawFn, depth: int = 4) -> Term:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([i, j, k, Const(I, 3), Const(I, 7), Const(I, -2)]))
    fn = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]))
    a = draw(terms(depth=depth - 1))
    if fn in {"floordiv", "mod"}:
        return Apply(I, fn, (a, Const(I, draw(st.integers(1, 12)))))
    if fn == "mul":
        return Apply(I, fn, (a, Const(I, draw(st.integers(-3, 7)))))
    return Apply(I, fn, (a, draw(terms(depth=depth - 1))))


POINTS = st.fixed_dictionaries({name: st.integers(low, high) for name, (low, high) in RANGES.items()})


@pytest.mark.property
@given(terms(), POINTS)
def test_keeps_values(term: Term, at: dict[str, int]) -> None:
    assert value(simplify(term, RANGES), at) == value(term, at)
    low, high = range_of(linear(term, RANGES), RANGES)
    assert low <= value(term, at) <= high


@pytest.mark.property
@given(terms(), terms(), st.sampled_from(["lt", "le", "gt", "ge"]), POINTS)
def test_keeps_conditions(a: Term, b: Term, fn: str, at: dict[str, int]) -> None:
    condition = Apply(DataType.Bool, fn, (a, b))
    assert bool(value(simplify(condition, RANGES), at)) == bool(value(condition, at))
    holds = bool(value(condition, at))
    known = narrow(simplify(condition, RANGES), RANGES, holds=holds)
    for term in (a, b, *parts_of(a, b)):
        low, high = range_of(linear(term, known), known)
        assert low <= value(term, at) <= high


def parts_of(*terms: Term) -> list[Term]:
    """The variables and all index arithmetic inside terms."""
    return [i, j, k, *(part for term in terms for part in term.walk())]


def test_a_condition_bounds_a_remainder() -> None:
    inside = narrow(rest(k, 8) < 5, narrow(rest(k, 8) < 2, RANGES, holds=False), holds=True)
    assert range_of(linear(rest(k, 8), inside), inside) == (2, 4)
    assert simplify(rest(k, 8) * 3 >= 6, inside) == Const(DataType.Bool, True)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_what_is_remembered_keeps_the_sign_of_zero(zero: float) -> None:
    x = Var(DataType.Float, "x")
    above, below = (apply("lt", a, b) for a, b in ((Const(DataType.Float, zero), x), (x, Const(DataType.Float, 1.0))))
    assert repr(simplify(Apply(DataType.Bool, "and", (above, below)), {})) == repr(above & below)


def test_the_hash_of_a_term_is_not_pickled() -> None:
    term = i * 4 + j
    before = pickle.dumps(term)
    assert hash(term) == hash(pickle.loads(before))
    assert pickle.dumps(term) == before

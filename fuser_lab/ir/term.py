"""Terms: the computation of one element, as a typed tree that both code generators print.

A term is a constant, a named variable or a function applied to terms. Functions are named by the closed set
`FUNCTIONS`; each target has one table that spells them. Python operators build terms, so an op's meaning reads as a
formula: ``1 / (1 + exp(-x))``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Union

from fuser_lab.dtypes import DataType
from fuser_lab.ir.scalar import Number

ARITHMETIC = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "mod", "fmod", "remainder", "pow", "max", "min", "fmax", "fmin"},
)
BITWISE = frozenset({"and", "or", "xor", "not", "shl", "shr", "gcd"})
PARTS = frozenset({"real", "imag", "complex"})
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
MATH = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfcinv"),
        *("erfinv", "exp", "exp2", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "logaddexp"),
        *("nextafter", "round", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    },
)
SLOW = MATH.union(("fmod", "gcd", "philox_uniform", "pow", "remainder")).difference(
    ("ceil", "floor", "round", "rsqrt", "sqrt", "trunc"),
)  # they take longer than a branch
TESTS = frozenset({"isnan", "isinf", "isfinite", "signbit"})
OTHER = frozenset(
    {"neg", "abs", "bitcast", "cast", "select", "philox_uniform", "one_plus_tanh", "sigmoid", "cos_turns"},
)
FUNCTIONS = ARITHMETIC | BITWISE | PARTS | COMPARISONS | MATH | TESTS | OTHER

TermLike = Union["Term", Number]


def _operators(fn: str) -> "tuple[Callable[[Term, TermLike], Term], Callable[[Term, TermLike], Term]]":
    """Return the methods that apply a function to a term and an operand, and to an operand and a term."""

    def on_left(self: "Term", other: TermLike) -> "Term":
        return apply(fn, self, other)

    def on_right(self: "Term", other: TermLike) -> "Term":
        return apply(fn, like(self, other), self)

    on_left.__doc__ = on_right.__doc__ = f"Return ``{fn}`` of both."
    return on_left, on_right


class _Remembered:
    """Storage for a term's hash, which is not a field because it must not be pickled."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Term(_Remembered):
    """A typed scalar expression; use `Const`, `Var` or `Apply`."""

    dtype: DataType

    @property
    def children(self) -> tuple["Term", ...]:
        """Terms that this one is computed from."""
        return ()

    def walk(self) -> Iterator["Term"]:
        """Yield this term and everything below it, parents first."""
        waiting: list[Term] = [self]
        while waiting:
            term = waiting.pop()
            yield term
            children = term.children
            if children:
                waiting += children[::-1]

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")  # the C quotient: integers truncate toward zero
    __lt__ = _operators("lt")[0]
    __le__ = _operators("le")[0]
    __gt__ = _operators("gt")[0]
    __ge__ = _operators("ge")[0]
    __and__ = _operators("and")[0]  # bitwise; for Bool logical
    __or__ = _operators("or")[0]

    def __neg__(self) -> "Term":
        """Return the negative."""
        return apply("neg", self)


@dataclass(frozen=True, slots=True)
class Const(Term):
    """A constant of a known dtype."""

    value: Number


@dataclass(frozen=True, slots=True)
class Var(Term):
    """A variable: a loop index, a scalar parameter or a value computed earlier in the kernel."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply(Term):
    """``fn(args)``; integer index arithmetic has dtype Index."""

    fn: str
    args: tuple[Term, ...]

    def __hash__(self) -> int:
        """Hash by fields, once; otherwise a tree would be traversed for each term that contains it."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.dtype, self.fn, self.args)))
            return self._hash

    @property
    def children(self) -> tuple[Term, ...]:
        """Arguments of the function."""
        return self.args


def variables_in(terms: Iterable[Term]) -> frozenset[str]:
    """Return the names of the variables in terms."""
    return frozenset([part.name for term in terms for part in term.walk() if isinstance(part, Var)])


def like(term: Term, value: TermLike) -> Term:
    """Return ``value`` as a term, a number becoming a constant of ``term``'s dtype."""
    return value if isinstance(value, Term) else Const(term.dtype, value)


def apply(fn: str, first: Term, *rest: TermLike, dtype: DataType | None = None) -> Term:
    """Return ``fn(first, *rest)`` with numbers converted to the first operand's dtype.

    Comparisons and tests are Bool; everything else has the first operand's dtype unless ``dtype`` says otherwise.
    """
    if fn not in FUNCTIONS:
        raise ValueError(f"{fn!r} is not a term function; choose from {', '.join(sorted(FUNCTIONS))}.")
    args = (first, *(like(first, value) for value in rest))
    if dtype is None:
        dtype = DataType.Bool if fn in COMPARISONS or fn in TESTS else first.dtype
    return _fold_index(Apply(dtype, fn, args))


def select(condition: Term, if_true: TermLike, if_false: TermLike) -> Term:
    """Return a choice; only the chosen side is evaluated, so it can guard a load."""
    typed = next(t for t in (if_true, if_false) if isinstance(t, Term))
    a, b = like(typed, if_true), like(typed, if_false)
    if isinstance(condition, Const):
        return a if condition.value else b
    return Apply(a.dtype, "select", (condition, a, b))


def cast(term: Term, dtype: DataType) -> Term:
    """Return the value converted to ``dtype``; narrowing floats rounds to nearest even."""
    return term if term.dtype is dtype else Apply(dtype, "cast", (term,))


def index(value: TermLike) -> Term:
    """Return an index term."""
    return value if isinstance(value, Term) else Const(DataType.Index, value)


def _fold_index(term: Apply) -> Term:
    """Simplify index arithmetic as far as readable kernels require: constants, +0, *1, *0, //1, %1."""
    if term.args[0].dtype is not DataType.Index or len(term.args) != 2:
        return term
    a, b = term.args
    if isinstance(a, Const) and isinstance(b, Const):
        return _fold_constants(term, int(a.value.real), int(b.value.real))
    match term.fn, a, b:
        case ("add", Const(_, 0), other) | ("add" | "sub", other, Const(_, 0)):
            return other
        case ("mul", Const(_, 1), other) | ("mul" | "floordiv", other, Const(_, 1)):
            return other
        case ("mul", Const(_, 0), _) | ("mul", _, Const(_, 0)) | ("mod", _, Const(_, 1)):
            return Const(DataType.Index, 0)
        case _:
            return term


def _fold_constants(term: Apply, a: int, b: int) -> Term:
    match term.fn:
        case "add":
            return Const(DataType.Index, a + b)
        case "sub":
            return Const(DataType.Index, a - b)
        case "mul":
            return Const(DataType.Index, a * b)
        case "floordiv" if b:
            return Const(DataType.Index, a // b)
        case "mod" if b:
            return Const(DataType.Index, a % b)
        case "lt":
            return Const(DataType.Bool, a < b)
        case "le":
            return Const(DataType.Bool, a <= b)
        case "gt":
            return Const(DataType.Bool, a > b)
        case "ge":
            return Const(DataType.Bool, a >= b)
        case _:
            return term

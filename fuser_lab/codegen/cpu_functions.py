"""The mathematical functions that CPU kernels compute for vectors, and whether a kernel calls them."""

from fuser_lab.codegen.kernel_ir import Statement, every_term, walk
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Term

_STEMS = {
    name: f"{name}_" if name[-1].isdigit() else name
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2"),
        *("expm1", "fmod", "log", "log10", "log1p", "log2", "pow", "remainder", "sin", "sinh", "tan", "tanh"),
    )
} | {"mod": "fmod"}
VECTORIZED = {
    **{(fn, DataType.Float): f"{stem}32" for fn, stem in _STEMS.items()},
    **{(fn, DataType.Double): f"{stem}64" for fn, stem in _STEMS.items()},
    ("lgamma", DataType.Float): "lgamma32",
}
"""Their names in kernels, by function and dtype."""

# They have paths that few numbers take, and LLVM vectorizes no loop with such a branch.
BRANCHING = (
    "cos32", "cos64", "fmod32", "fmod64", "lgamma32", "remainder32", "remainder64", "sin32", "sin64", "tan32", "tan64",
)

MOST_WRITTEN = crossover("cpu.functions.written")


def vectorized_name(term: Term) -> str | None:
    """Return the name in kernels of the function of a term, if it is one of these."""
    return VECTORIZED.get((term.fn, term.args[0].dtype.compute)) if isinstance(term, Apply) else None


def is_vectorized(term: Term) -> bool:
    """Whether a term is one of these functions."""
    return vectorized_name(term) is not None


def are_called(body: tuple[Statement, ...]) -> bool:
    """Whether a phase has so many of these functions that it calls them, instead of having their instructions."""
    terms = (term for statement in walk(body) for term in every_term(statement))
    return sum(map(is_vectorized, terms)) > MOST_WRITTEN

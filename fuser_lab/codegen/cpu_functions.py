"""The mathematical functions that CPU kernels compute for vectors of Float, and whether a kernel calls them."""

from fuser_lab.codegen.kernel_ir import Statement, terms_of, walk
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Term

VECTORIZED = {
    "cos": "cos32", "erf": "erf32", "exp": "exp32", "exp2": "exp2_32", "expm1": "expm1_32", "log": "log32",
    "log10": "log10_32", "log1p": "log1p32", "log2": "log2_32", "pow": "pow32", "sin": "sin32", "tanh": "tanh32",
}
"""Their names in kernels."""

MOST_WRITTEN = crossover("cpu.functions.written")


def is_vectorized(term: Term) -> bool:
    """Whether a term is one of these functions."""
    return isinstance(term, Apply) and term.fn in VECTORIZED and term.args[0].dtype.compute is DataType.Float


def are_called(body: tuple[Statement, ...]) -> bool:
    """Whether a phase has so many of these functions that it calls them, instead of having their instructions."""
    terms = (term for statement in walk(body) for root in terms_of(statement) for term in root.walk())
    return sum(map(is_vectorized, terms)) > MOST_WRITTEN

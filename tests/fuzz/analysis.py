"""The values of a program, and bounds of the rounding error of any correct evaluation.

Each call is evaluated in float64 as soon as it is recorded. Besides its values every tensor has an error: an absolute
bound of the effect of rounding in its dtype and in the dtypes of its operands. It is found by computing each op again
with one operand at a time moved by its error, and adding up the changes. A tensor with error 0 has the same values in
every correct evaluation; only such tensors are operands of discontinuous ops, such as comparisons, roundings and
conversions to integers. Calls whose results could not be compared (too large, too uncertain) are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter.numpy_eval import constant, evaluate_expr
from fuser_lab.ir import Expr, OpKind, TensorView, Val, scalars_in
from tests.fuzz.program import Input, Program, Step, TensorInput

# The distance between adjacent numbers, relative to their magnitude; and the smallest distance.
EPSILON = {
    "Double": 2.3e-16, "ComplexDouble": 2.3e-16, "Float": 1.2e-7, "ComplexFloat": 1.2e-7, "Half": 1e-3,
    "BFloat16": 8e-3, "Float8_e4m3fn": 0.125, "Float8_e5m2": 0.25, "Float8_e8m0fnu": 1.0,
}
SMALLEST = {"Half": 6e-8, "Float8_e4m3fn": 2e-3, "Float8_e5m2": 1.6e-5}
ROUNDINGS = 4  # of a function of one element: libraries differ by a few units in the last place
LARGEST = {"Float8_e4m3fn": 200.0, "Float8_e5m2": 10_000.0}
LARGEST_FLOAT, LARGEST_INTEGER = 2e4, 2**24
UNCERTAIN = 0.05  # of the magnitude: results with larger errors prove nothing

# The directions in which an operand is moved by its error; None is a random one per element.
_REAL: tuple[complex | None, ...] = (None, 1, -1)
_COMPLEX: tuple[complex | None, ...] = (None, 1, -1, 1j, -1j)

JUMPING = frozenset({
    "ceil", "floor", "floor_divide", "fmod", "frac", "mod", "nextafter", "remainder", "round", "trunc",
})
ANSWERING = frozenset({"isfinite", "isinf", "isnan", "isneginf", "isposinf"})  # of any value
# The operand that must stay away from a pole, and the pole nearest to each of its values. Other poles reveal
# themselves: a step towards or across them changes the result by more than the tolerance. The exceptions are 0 / x,
# which is 0 on either side, and the logarithm of gamma, which grows too slowly.
POLES: Mapping[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "div": (1, np.zeros_like),
    "truediv": (1, np.zeros_like),
    "lgamma": (0, lambda x: np.minimum(np.rint(x), 0.0)),
}
# Exact on small multiples of a power of two.
RING = frozenset({
    "add", "sub", "mul", "neg", "abs", "relu", "where", "maximum", "minimum", "sum", "max", "min", "cast", "full",
    "iota", "ceil", "floor", "round", "trunc", "frac", "cummax", "cummin", "cumsum", "select", "index_select", "gather",
    "take_along_axis", "scatter", "embedding_fwd", "topk", "triu", "fmod", "mod", "remainder", "real", "imag",
    "complex",
})
BRANCHING = frozenset({
    "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "acos", "asin", "atan", "acosh", "asinh", "atanh",
})
# Ops that see the sign of a zero, which is not specified for a computed one on a CPU.
SIGNED = frozenset({"atan2", "copysign", "signbit"})
DRAWN = frozenset({"rand_like", "randn_like", "dropout"})


class Unfit(Exception):  # noqa: N818 - an outcome: the call is legal, but its result cannot be compared
    """A call whose result no comparison could use."""


@dataclass(slots=True, kw_only=True)
class Known:
    """A value in float64 (integers as they are) and its error."""

    value: Any
    error: float = 0.0

    @property
    def size(self) -> float:
        """The largest finite magnitude."""
        magnitude = np.abs(np.asarray(self.value)).astype(np.float64)
        return float(magnitude[np.isfinite(magnitude)].max(initial=0.0))


class Analysis:
    """A program under construction, recorded with static sizes and evaluated call by call."""

    def __init__(self) -> None:
        self.fd = FusionBuilder().__enter__()
        self.names: dict[str, Any] = {"fd": self.fd, "DataType": DataType}
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self._known: dict[Val, Known] = {}
        self._seen = 0
        self._numbers = np.random.default_rng(0)

    @classmethod
    def of(cls, program: Program) -> "Analysis":
        """The analysis of a program; raises Unfit or FuserLabError if it is illegal or cannot be compared."""
        analysis = cls()
        for given in program.inputs:
            analysis.add_input(given)
        for step in program.steps:
            if analysis.add_call(step.call, step.results) is None:
                raise Unfit(step.call)
        return analysis

    def add_input(self, given: Input) -> str:
        """Declare an input, static and dense, with its values."""
        if isinstance(given, TensorInput):
            handle = self.fd.define_tensor(
                list(given.values.shape),
                [None if n == 1 or i in given.expanded else True for i, n in enumerate(given.values.shape)],
                given.dtype,
            )
            self._known[handle.val] = Known(value=_wide(given.values))
        else:
            handle = self.fd.define_scalar(given.value, given.dtype)
        self.names[given.name] = handle
        self.inputs.append(given)
        return given.name

    def add_call(self, call: str, results: Sequence[str] | None = None) -> tuple[str, ...] | None:
        """Record a call and return the names of its results; None if the call is illegal or unfit."""
        try:
            found = eval(call, self.names)
            self._evaluate()
        except (FuserLabError, Unfit):
            self._seen = len(self.fd._exprs)
            return None
        several = isinstance(found, list | tuple)
        values = list(found) if several else [found]
        if not values or not all(hasattr(v, "val") for v in values):
            return None
        if any(isinstance(v.val, TensorView) and v.val not in self._known for v in values):
            return None
        first = len(self.names)
        made = (f"{'t' if hasattr(v, 'ndim') else 's'}{number}" for number, v in enumerate(values, first))
        names = tuple(results or made)
        self.names.update(zip(names, values, strict=True))
        self.steps.append(Step(results=names, call=call, unpacks=several))
        return names

    def tensor(self, name: str) -> TensorView:
        """A tensor by name."""
        value: TensorView = self.names[name].val
        return value

    def known(self, name: str) -> Known:
        """The values of a tensor by name."""
        return self._known[self.names[name].val]

    def scalar(self, name: str) -> Any:
        """The value of a scalar by name."""
        return self._of(self.names[name].val).value

    # Evaluation

    def _of(self, value: Val) -> Known:
        found = self._known.get(value)
        return Known(value=constant(value)) if found is None else found

    def _evaluate(self) -> None:
        for expr in self.fd._exprs[self._seen :]:
            for out, known in zip(expr.outputs, self._results(expr), strict=True):
                self._known[out] = known
        self._seen = len(self.fd._exprs)

    def _results(self, expr: Expr) -> list[Known]:
        operands = [self._of(v) for v in expr.inputs]
        name = expr.op.name
        if name in DRAWN:
            raise Unfit(name)
        uncertain = any(x.error > 0 for x in operands)
        if uncertain and name in JUMPING:
            raise Unfit(f"{name} jumps")
        if name in SIGNED:
            computed = {out for other in self.fd._exprs for out in other.outputs}
            pairs = zip(expr.inputs, operands, strict=True)
            if any(v in computed and np.any(np.asarray(x.value) == 0) for v, x in pairs):
                raise Unfit(f"{name} sees the sign of a computed zero")
        if name in BRANCHING and any(_near_branch(x.value) for x in operands):
            raise Unfit(f"{name} has branches")
        if name in {"sigmoid", "silu"} and any(_overflows(x.value) for x in operands):
            raise Unfit(f"{name} has infinite intermediates")
        if any(True for _ in scalars_in(value for _, value in expr.attrs)):
            raise Unfit(f"{name} has computed sizes")
        if name in POLES:
            place, nearest = POLES[name]
            if _may_reach(operands[place], nearest):
                raise Unfit(f"{name} may reach a pole")
        values = evaluate_expr(expr, [x.value for x in operands], exact=False)
        moved = self._moved(expr, operands, values)
        results = []
        for position, out in enumerate(expr.outputs):
            known = Known(value=values[position])
            if out.dtype.is_float or out.dtype.is_complex:
                known.error = self._rounding(expr, out, operands, known) + 2 * moved[position]
                self._check_float(name, out, known)
            else:
                if uncertain and not _answers(name, operands) and expr.kind is not OpKind.SCALAR:
                    raise Unfit(f"{name} of uncertain values is not an integer")
                if known.size > LARGEST_INTEGER:
                    raise Unfit(f"{name} grows to {known.size}")
            results.append(known)
        return results

    def _moved(self, expr: Expr, operands: Sequence[Known], values: Sequence[Any]) -> list[float]:
        """The change of each result of an op by the errors of its operands.

        Operands move one at a time, since errors in the same direction may cancel, as in a quotient.
        """
        moved = [np.zeros(np.shape(value)) for value in values]
        for source, known in dict(zip(expr.inputs, operands, strict=True)).items():
            if known.error == 0:
                continue
            others = []
            for by in _COMPLEX if _is_complex(known.value) else _REAL:
                shifted = self._shifted(known, by)
                given = [
                    shifted if value == source else x.value for value, x in zip(expr.inputs, operands, strict=True)
                ]
                others.append(evaluate_expr(expr, given, exact=False))
            for position, value in enumerate(values):
                moved[position] = moved[position] + np.max([_distance(x[position], value) for x in others], axis=0)
        return [float(changes.max(initial=0.0)) for changes in moved]

    def _shifted(self, known: Known, by: complex | None) -> np.ndarray:
        """A value moved by its error: all elements in one direction, or each in a random one.

        A complex number moves along the real or the imaginary axis, a real one up or down.
        """
        shape = np.shape(known.value)
        if by is None:
            steps = self._numbers.choice([1, -1, 1j, -1j] if _is_complex(known.value) else [-1.0, 1.0], shape)
        else:
            steps = np.full(shape, by)
        return np.asarray(known.value + known.error * steps)

    def _rounding(self, expr: Expr, out: Val, operands: Sequence[Known], known: Known) -> float:
        """The rounding error of this op alone."""
        name, size = expr.op.name, known.size
        exact = not any(x.error > 0 for x in operands)
        if exact and (expr.kind.is_view or (name in RING and _is_round(known.value, out.dtype))):
            return 0.0
        if expr.kind.is_view and name != "pad":
            return 0.0
        relative = EPSILON[out.dtype.name]
        compute = EPSILON[out.dtype.compute.name]
        if expr.kind in {OpKind.REDUCTION, OpKind.SCAN, OpKind.MATMUL, OpKind.ATTENTION}:
            terms = max(np.size(x.value) for x in operands) / max(np.size(known.value), 1) + 1
            if expr.kind is not OpKind.REDUCTION:
                terms = max(np.size(x.value) for x in operands) + 1
            inputs = max([x.size for x in operands])
            size = max(size, inputs * (inputs if expr.kind is OpKind.MATMUL else 1) * terms) + size * terms
            return ROUNDINGS * compute * size + relative * known.size + SMALLEST.get(out.dtype.name, 0.0)
        # Rational functions may have intermediates as large as their operands.
        through = max([size, *(x.size for x in operands if np.asarray(x.value).dtype.kind in "fc")])
        return ROUNDINGS * compute * through + relative * size + SMALLEST.get(out.dtype.name, 0.0)

    def _check_float(self, name: str, out: Val, known: Known) -> None:
        size = known.size
        if size > LARGEST.get(out.dtype.name, LARGEST_FLOAT):
            raise Unfit(f"{name} grows to {size}")
        if not np.isfinite(known.error) or known.error > UNCERTAIN * max(size, 0.1):
            raise Unfit(f"{name} is uncertain by {known.error}")
        if not np.isfinite(np.asarray(known.value)).all() and isinstance(out, TensorView):
            raise Unfit(f"{name} is not finite")


def _wide(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "biu":
        return values
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _is_complex(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "c"


def _distance(a: Any, b: Any) -> np.ndarray:
    """The distances of elements; infinite where infinities or NaN appear or vanish, since nothing is certain there."""
    a, b = np.asarray(a), np.asarray(b)
    with np.errstate(all="ignore"):
        difference = np.abs(np.subtract(a, b, dtype=np.result_type(a, b, np.float64)))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _may_reach(known: Known, nearest: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether the error of a value reaches the nearest pole."""
    value = np.asarray(known.value)
    return known.error > 0 and bool((np.abs(value - nearest(value)) <= known.error).any())


def _answers(name: str, operands: Sequence[Known]) -> bool:
    """Whether an op gives the same result for all values that its operands may have.

    Rounding can turn a complex number into a real one, and the reverse.
    """
    return name in ANSWERING or (name == "isreal" and not any(_is_complex(x.value) for x in operands))


def _is_round(value: Any, dtype: DataType) -> bool:
    """Whether all values are small multiples of a power of two that every float type represents."""
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return _is_round(array.real, dtype) and _is_round(array.imag, dtype)
    if array.dtype.kind != "f":
        return True
    if dtype.name.startswith("Float8"):
        return False
    scaled = array * 4
    return bool(((np.abs(scaled) <= 128) & (scaled == np.rint(scaled))).all())


def _overflows(value: Any) -> bool:
    """Whether the exponential of the negative of a complex number is too large for single precision."""
    array = np.asarray(value)
    return array.dtype.kind == "c" and bool((array.real < -80).any())


def _near_branch(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind == "c" and bool((np.abs(array.imag) < 1e-2).any())

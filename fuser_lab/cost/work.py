"""The arithmetic of expressions: element operations by class, counted from each op's rule for one element."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from fuser_lab.dtypes import DataType
from fuser_lab.ir import AttrValue, Expr, OpKind, TensorView
from fuser_lab.ir.term import MATH, Apply, Term, Var
from fuser_lab.ops import OPS

# Divisions and square roots take a few cycles on every processor, other functions are evaluated by polynomials.
_DIVIDING = frozenset({"div", "floordiv", "mod", "fmod", "remainder", "rounded_sqrt", "sqrt", "rsqrt"})
_SIMPLE_MATH = frozenset({"ceil", "floor", "round", "trunc", "nextafter"})
_FREE = frozenset({"bitcast", "cast", "real", "imag", "complex"})  # register conversions


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Numbers of element operations: simple arithmetic, divisions and roots, other functions, and reduction steps."""

    simple: int = 0
    dividing: int = 0
    special: int = 0
    reducing: int = 0

    def __add__(self, other: "Work") -> "Work":
        """Return the sum, class by class."""
        return Work(
            simple=self.simple + other.simple, dividing=self.dividing + other.dividing,
            special=self.special + other.special, reducing=self.reducing + other.reducing,
        )

    def part(self, share: float) -> "Work":
        """Return the arithmetic for a part of the elements, rounded."""
        return Work(
            simple=round(share * self.simple), dividing=round(share * self.dividing),
            special=round(share * self.special), reducing=round(share * self.reducing),
        )

    @property
    def operations(self) -> int:
        """Operations of all classes."""
        return self.simple + self.dividing + self.special + self.reducing


def work_of(exprs: Iterable[Expr]) -> Work:
    """Return the arithmetic of expressions, each computed once per element of its result.

    A reduction counts as one step per element that it reads. Views, factories, copies and ops of the array library
    count as zero.
    """
    return total_work([_work(expr) for expr in exprs])


def total_work(parts: Collection[Work]) -> Work:
    """Return the sum of several amounts of arithmetic."""
    return Work(
        simple=sum([part.simple for part in parts]), dividing=sum([part.dividing for part in parts]),
        special=sum([part.special for part in parts]), reducing=sum([part.reducing for part in parts]),
    )


def repeated_work(exprs: Sequence[Expr]) -> Work:
    """Return the arithmetic of expressions, in order, as one kernel that recomputes broadcast values.

    A loop over a broadcast axis outside the tensor's own axes computes the tensor in every iteration: cosines of
    [positions, width] that multiply [heads, positions, width] are computed once per head, and the index of a row once
    per element that is read there. A tensor that is broadcast only along inner axes is computed before the loop over
    these, and a value that depends on a reduction of the kernel once per result. What is read at indices is computed
    once per element that is read, also if it depends on such a reduction.
    """
    total = Work()
    users: dict[TensorView, list[tuple[Expr, int]]] = {}
    after: set[TensorView] = set()
    for expr in exprs:
        if expr.kind is OpKind.REDUCTION or not after.isdisjoint(expr.tensor_inputs):
            after.update(expr.tensor_outputs)
    for expr in reversed(exprs):
        times = 1
        if expr.tensor_outputs and expr.kind is not OpKind.REDUCTION:
            once, readers = expr.out in after, users.get(expr.out, ())
            times = max((repeats * _turns(user, expr.out, once=once) for user, repeats in readers), default=1)
        work = _work(expr)
        total += Work(
            simple=times * work.simple, dividing=times * work.dividing, special=times * work.special,
            reducing=work.reducing,
        )
        for value in expr.tensor_inputs:
            users.setdefault(value, []).append((expr, times))
    return total


def _turns(user: Expr, operand: TensorView, *, once: bool) -> int:
    """Return how often a kernel computes each element of an operand for one expression.

    ``once`` says that copies of the operand's elements share one evaluation.
    """
    if user.kind is OpKind.INDEXING or (user.kind is OpKind.RESHAPE and not once):
        return max(prod(_computed_sizes(user.out)) // max(prod(_computed_sizes(operand)), 1), 1)
    if once or user.kind is not OpKind.POINTWISE or operand.ndim != user.out.ndim:
        return 1
    sizes, made = _computed_sizes(operand), _computed_sizes(user.out)
    last = max((axis for axis, size in enumerate(sizes) if size > 1), default=0)
    return prod(made[axis] for axis in range(last) if sizes[axis] == 1)


def product_flops(exprs: Iterable[Expr]) -> int:
    """Return the floating-point operations of the matrix products among expressions, two per multiplication."""
    return sum(
        2 * prod(expr.out.shape) * (expr.tensor_inputs[0].shape or (1,))[-1]
        for expr in exprs if expr.kind is OpKind.MATMUL
    )


def _work(expr: Expr) -> Work:
    if expr.kind is OpKind.REDUCTION:
        return Work(reducing=prod(expr.tensor_inputs[0].shape))
    if OPS[expr.op.name].scalar is None or not expr.tensor_outputs:
        return Work()
    dtypes = tuple(value.dtype for value in expr.inputs)
    simple, dividing, special = _per_element(expr.op.name, dtypes, expr.attrs)
    elements = prod(_computed_sizes(expr.out))
    return Work(simple=simple * elements, dividing=dividing * elements, special=special * elements)


def _computed_sizes(tensor: TensorView) -> tuple[int, ...]:
    """Return the extents that are computed: a broadcast axis counts as one element, however far it is expanded."""
    return tuple(
        1 if axis.is_broadcast else size for axis, size in zip(tensor.domain.axes, tensor.shape, strict=True)
    )


@cache
def _per_element(
    name: str, dtypes: tuple[DataType, ...], attrs: tuple[tuple[str, AttrValue], ...],
) -> tuple[int, int, int]:
    entry = OPS[name]
    rule = entry.scalar
    assert rule is not None
    operands = [Var(dtype if entry.reads_bits else dtype.compute, f"x{n}") for n, dtype in enumerate(dtypes)]
    seen: set[Term] = set()
    counts = {"simple": 0, "dividing": 0, "special": 0}
    for term in rule(*operands, **dict(attrs)).walk():
        if not isinstance(term, Apply) or term in seen or term.fn in _FREE:
            continue
        seen.add(term)
        counts[function_class(term.fn)] += 1
    return counts["simple"], counts["dividing"], counts["special"]


def function_class(function: str) -> str:
    """Return the class of a function of `fuser_lab.ir.term`: ``"simple"``, ``"dividing"`` or ``"special"``."""
    if function in _DIVIDING:
        return "dividing"
    if (function in MATH and function not in _SIMPLE_MATH) or function in {
        "pow", "philox_uniform", "one_plus_tanh", "sigmoid", "cos_turns", "library_exp", "library_tanh",
    }:
        return "special"
    return "simple"

"""Pairs of reductions of which the second depends on the first, computed in one pass.

They are a maximum and the sum of exponentials relative to it (online softmax), or a sum and the squared deviations from
the mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.analysis.deviations import QUOTIENTS, squared_deviations
from fuser_lab.codegen.nests import Nest
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ir.term import Apply, Const, Term, apply, select

_LARGEST = frozenset({"max", "fmax"})  # a sum with NaN is NaN, even relative to a maximum that ignores NaN
_VIEWS = frozenset({OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.COPY})


def finite(largest: Term) -> Term:
    """Return a maximum, or 0 if it is minus infinity, so that nothing is subtracted from minus infinity."""
    lowest = Const(largest.dtype, -math.inf)
    return select(apply("eq", largest, lowest), Const(largest.dtype, 0.0), largest)


def scale(old: Term, origin: Term) -> Term:
    """Return the factor that makes a sum relative to one maximum relative to another, which is `finite`."""
    return Apply(old.dtype, "exp", (old - origin,))


def whole_sum(largest: Term, total: Term) -> Term:
    """Return the complete sum, which is NaN if all elements are minus infinity."""
    lowest = Const(largest.dtype, -math.inf)
    return select(apply("eq", largest, lowest), Const(total.dtype, math.nan), total)


def online_pair(fusion: Fusion, nest: Nest, levels: Mapping[Val, int]) -> tuple[Expr, Expr] | None:
    """Return a maximum and the sum of exp(x - maximum), if they are all that the first two passes compute."""
    pair = _first_two(nest, levels)
    if pair is None:
        return None
    largest, total = pair
    power = fusion.producers.get(total.inputs[0])
    if largest.op.name not in _LARGEST or total.op.name != "sum" or power is None or power.op.name != "exp":
        return None
    if _origin(fusion, power.inputs[0], largest.inputs[0]) is not largest.out:
        return None
    return pair if _are_floats(largest.out, total.out, *power.tensor_inputs) else None


@dataclass(frozen=True, slots=True)
class Moments:
    """A sum, the mean that is computed from it, and the sum of squared deviations from this mean.

    ``rest`` is the sum of the deviations, which would be 0 without rounding; None if nothing reads it.
    """

    total: Expr
    squares: Expr
    mean: TensorView
    deviation: TensorView
    rest: Expr | None = None

    @property
    def sums(self) -> tuple[Expr, ...]:
        """The sums of elements, of squared deviations and, if anything reads it, of deviations."""
        return (self.total, self.squares) if self.rest is None else (self.total, self.squares, self.rest)


def moments(fusion: Fusion, nest: Nest, levels: Mapping[Val, int], count: int) -> Moments | None:
    """Return a sum and the squared deviations from the mean of ``count`` elements, if they are the first two passes."""
    squares = {e: squared for e in nest.reductions if (squared := squared_deviations(fusion, e)) is not None}
    rests = [e for e in nest.reductions if any(e.inputs[0] is squared.deviation for squared in squares.values())]
    pair = _first_two(nest, levels, rests)
    if pair is None or pair[1] not in squares or len(rests) > 1:
        return None
    squared = squares[pair[1]]
    if squared.total is not pair[0] or squared.count != count:
        return None
    if fusion.producers[squared.mean].op.name not in QUOTIENTS:
        return None
    return Moments(squared.total, pair[1], squared.mean, squared.deviation, *rests)


def _first_two(nest: Nest, levels: Mapping[Val, int], besides: Sequence[Expr] = ()) -> tuple[Expr, Expr] | None:
    """Return the reductions of the first two passes, if these are one each and all that the passes compute.

    Reductions ``besides`` these do not count.
    """
    counted = [e for e in nest.reductions if e not in besides]
    by_level = [[e for e in counted if levels.get(e.inputs[0], 0) == level] for level in (0, 1)]
    if any(len(exprs) != 1 for exprs in by_level) or any(levels.get(tv, 0) < len(by_level) for tv in nest.full):
        return None
    (first,), (second,) = by_level
    return first, second


def _origin(fusion: Fusion, difference: Val, operand: Val) -> Val | None:
    """Return what ``difference`` subtracts from an operand, without broadcasts of it."""
    maker = fusion.producers.get(difference)
    if maker is None or maker.op.name != "sub" or maker.inputs[0] is not operand:
        return None
    return _without_views(fusion, maker.inputs[1])


def _without_views(fusion: Fusion, value: Val) -> Val:
    """Return the value of which another one is a broadcast or another view."""
    while value in fusion.producers and fusion.producers[value].kind in _VIEWS:
        value = fusion.producers[value].inputs[0]
    return value


def _are_floats(*tensors: TensorView) -> bool:
    return {tv.dtype for tv in tensors} <= {DataType.Float, DataType.Double}

"""A maximum and the sum of exponentials relative to it, computed in one pass (online softmax)."""

import math
from collections.abc import Mapping

from fuser_lab.codegen.nests import Nest
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, Val
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
    by_level = [[e for e in nest.reductions if levels.get(e.inputs[0], 0) == level] for level in (0, 1)]
    if any(len(found) != 1 for found in by_level) or any(levels.get(tv, 0) < len(by_level) for tv in nest.full):
        return None
    (largest,), (total,) = by_level
    power = fusion.producers.get(total.inputs[0])
    if largest.op.name not in _LARGEST or total.op.name != "sum" or power is None or power.op.name != "exp":
        return None
    distance = fusion.producers.get(power.inputs[0])
    if distance is None or distance.op.name != "sub" or distance.inputs[0] is not largest.inputs[0]:
        return None
    origin = distance.inputs[1]
    while origin in fusion.producers and fusion.producers[origin].kind in _VIEWS:
        origin = fusion.producers[origin].inputs[0]
    floats = {tv.dtype for tv in (largest.out, total.out, *power.tensor_inputs)} <= {DataType.Float, DataType.Double}
    return (largest, total) if origin is largest.out and floats else None

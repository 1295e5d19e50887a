"""ConsecutiveCast: chains of casts that one cast, or none, can replace.

Follows the first half of nvFuser's pass (csrc/preseg_passes/consecutive_cast.cpp); it does not move casts across
squeezes, reshapes and copies.
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.passes.base import Pass, rebuilt, with_inputs

_LOSSLESS = {
    DataType.Half: {DataType.Float, DataType.Double},
    DataType.BFloat16: {DataType.Float, DataType.Double},
    DataType.Float: {DataType.Double},
    DataType.Int32: {DataType.Int, DataType.Double},
    DataType.Bool: {DataType.Int, DataType.Int32, DataType.Float, DataType.Double},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsecutiveCasts(Pass):
    """``cast(cast(x, wide), y) -> cast(x, y)`` when the first cast loses nothing, and ``-> x`` when y is x's dtype."""

    name: ClassVar[str] = "consecutive_casts"
    nvfuser: ClassVar[str] = "ConsecutiveCast"

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with every such chain shortened."""
        outputs = set(fusion.outputs)
        replaced: dict[Val, TensorView] = {}
        makers: dict[Val, Expr] = {}
        exprs: list[Expr] = []
        for expr in fusion.exprs:
            current = with_inputs(expr, replaced)
            source = _source(current, makers)
            if source is not None and source.dtype is current.out.dtype and current.out not in outputs:
                replaced[current.out] = source
                continue
            if source is not None:
                current = _direct(current, source)
            exprs.append(current)
            makers.update((value, current) for value in current.outputs)
        return fusion if exprs == list(fusion.exprs) else rebuilt(fusion, exprs)


def _source(expr: Expr, makers: dict[Val, Expr]) -> TensorView | None:
    """Return what a cast could read instead of its operand, or None."""
    if expr.op.name != "cast" or not expr.tensor_outputs:
        return None
    before = makers.get(expr.inputs[0])
    if before is None or before.op.name != "cast" or not before.tensor_inputs:
        return None
    source, middle = before.tensor_inputs[0], before.out
    return source if middle.dtype in _LOSSLESS.get(source.dtype, ()) else None


def _direct(expr: Expr, source: TensorView) -> Expr:
    if source.dtype is expr.out.dtype:
        return Expr(op=OPS["set"], inputs=(source,), outputs=expr.outputs)
    return Expr(op=expr.op, inputs=(source,), outputs=expr.outputs, attrs=expr.attrs)

"""ConsecutiveCast: chains of casts that one cast, or none, can replace, including views between them.

nvFuser's pass of this name (csrc/preseg_passes/consecutive_cast.cpp).
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.dtypes import DataType, integer_of_nan
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.passes.base import Pass, rebuilt, with_inputs
from fuser_lab.passes.rewriter import Rewriter

_LOSSLESS = {
    DataType.Half: {DataType.Float, DataType.Double},
    DataType.BFloat16: {DataType.Float, DataType.Double},
    DataType.Float: {DataType.Double},
    DataType.Int32: {DataType.Int, DataType.Double},
    DataType.Short: {DataType.Int32, DataType.Int, DataType.Float, DataType.Double},
    DataType.Char: {DataType.Short, DataType.Int32, DataType.Int, DataType.Float, DataType.Double},
    DataType.Byte: {DataType.Short, DataType.Int32, DataType.Int, DataType.Float, DataType.Double},
    DataType.Bool: {DataType.Int, DataType.Int32, DataType.Float, DataType.Double},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsecutiveCasts(Pass):
    """``cast(cast(x, wide), y) -> cast(x, y)`` when the first cast loses nothing, and ``-> x`` when y is x's dtype.

    Unlike in nvFuser, casts through a floating point type to an integer stay where the shorter chain gives a different
    integer: Float to Double to Int32 (NaN), and a signed integer to Double to UInt64 (a negative number).

    A cast that does not widen moves above squeezes, reshapes and copies that nothing else reads, so it can meet other
    casts and the ops after it move fewer bytes: ``cast(reshape(x)) -> reshape(cast(x))``.
    """

    name: ClassVar[str] = "consecutive_casts"
    nvfuser: ClassVar[str] = "ConsecutiveCast"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6], dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, dtype=DataType.Float)
        flat = fd.ops.reshape(wide, [24])
        fd.add_output(fd.ops.cast(flat, dtype=DataType.BFloat16))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with every such chain shortened."""
        if not any(expr.op.name == "cast" for expr in fusion.exprs):
            return fusion
        while (changed := _moved_up(_shorten(fusion))) is not fusion:
            fusion = changed
        return fusion


def _shorten(fusion: Fusion) -> Fusion:
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


def _moved_up(fusion: Fusion) -> Fusion:
    """Return the fusion with casts that do not widen before the views that they follow."""
    chains = {expr: chain for expr in fusion.exprs if (chain := _views_before(expr, fusion))}
    if not chains:
        return fusion
    writer = Rewriter(fusion)
    passed = {view for chain in chains.values() for view in chain}
    for expr in fusion.exprs:
        if expr in chains:
            _move_up(writer, expr, chains[expr])
        elif expr not in passed:
            writer.keep(expr)
    return writer.fusion_of()


def _views_before(expr: Expr, fusion: Fusion) -> list[Expr]:
    """Return the views that a cast can pass, the first in order first."""
    if expr.op.name != "cast" or not expr.tensor_inputs or expr.out.dtype.itemsize > expr.inputs[0].dtype.itemsize:
        return []
    views: list[Expr] = []
    value, outputs = expr.tensor_inputs[0], set(fusion.outputs)
    while True:
        maker = fusion.producers.get(value)
        if maker is None or maker.op.name not in _PASSED or value in outputs or len(fusion.users[value]) > 1:
            return views[::-1]
        views.append(maker)
        value = maker.tensor_inputs[0]


_PASSED = frozenset({"squeeze", "reshape", "set"})


def _move_up(writer: Rewriter, cast: Expr, views: list[Expr]) -> None:
    """Add the cast, then the views; all keep their names, except the last one, which has the cast's name."""
    value = writer.tensor(views[0].tensor_inputs[0])
    value = writer.emit(writer.new_name(cast.name, "early"), "cast", value, **dict(cast.attrs))
    for view in views[:-1]:
        value = writer.emit(view.name, view.op.name, value, **dict(view.attrs))
    writer.remake(cast.out, views[-1].op.name, value, **dict(views[-1].attrs))


def _source(expr: Expr, makers: dict[Val, Expr]) -> TensorView | None:
    """Return what a cast could read instead of its operand, or None."""
    if expr.op.name != "cast" or not expr.tensor_outputs:
        return None
    before = makers.get(expr.inputs[0])
    if before is None or before.op.name != "cast" or not before.tensor_inputs:
        return None
    source, middle, result = before.tensor_inputs[0], before.out.dtype, expr.out.dtype
    is_lossless = middle in _LOSSLESS.get(source.dtype, ()) and not _integer_differs(source.dtype, middle, result)
    return source if is_lossless else None


def _integer_differs(source: DataType, middle: DataType, result: DataType) -> bool:
    """Whether some values of ``source`` become other integers through a wider ``middle`` than directly.

    A floating point number below 0 becomes 0 as UInt64, and NaN depends on its type; an integer keeps its lowest bits.
    """
    if not middle.is_float or not result.is_integral:
        return False
    if source.is_integral:
        return result is DataType.UInt64 and source.limits[0] < 0
    first, second = (integer_of_nan(result, of_double=dtype is DataType.Double) for dtype in (source, middle))
    return first != second


def _direct(expr: Expr, source: TensorView) -> Expr:
    if source.dtype is expr.out.dtype:
        return Expr(op=OPS["set"], inputs=(source,), outputs=expr.outputs)
    return Expr(op=expr.op, inputs=(source,), outputs=expr.outputs, attrs=expr.attrs)

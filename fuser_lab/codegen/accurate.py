"""Rewrites of reductions whose rounding errors would grow with their operands, or with the number of these.

Squared deviations are corrected for the rounding of the mean, which the sum of the deviations measures:

    q = sum(d * d)    ->    q = sum(d * d) - sum(d)**2 / n    with d = x - sum(x) / n

A mean of 1e6 is off by up to 0.03, so that a variance of 1 would be off by a thousandth (Chan, Golub and LeVeque,
Algorithms for computing the sample variance, 1983). Where the correction overflows, it is left out. Elements that were
rounded to fewer bits than the mean need none: those that differ at all do so by more than the mean is off.

A product of n elements has n rounding errors in any order, so products and running products of Float are computed in
Double, whose range also holds those of some elements.
"""

import math

from fuser_lab.analysis.deviations import squared_deviations
from fuser_lab.ir import AttrValue, Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.passes.rewriter import Rewriter

_PRODUCTS = frozenset({"cumprod", "prod"})


def accurate(fusion: Fusion) -> Fusion:
    """Return a fusion with corrected squared deviations, and with products of Float in Double."""
    squares = {e for e in fusion.exprs if _needs_correction(fusion, e)}
    products = {e for e in fusion.exprs if e.op.name in _PRODUCTS and e.out.dtype.wider is not e.out.dtype}
    if not squares and not products:
        return fusion
    writer = Rewriter(fusion)
    for expr in fusion.exprs:
        if expr in products:
            _in_double(writer, expr)
        elif expr in squares:
            _correct(writer, expr)
        else:
            writer.keep(expr)
    return writer.fusion_of()


def _needs_correction(fusion: Fusion, expr: Expr) -> bool:
    """Whether an expression adds up squared deviations from a mean of elements that have as many bits as the mean."""
    if expr.op.name != "sum" or not (expr.out in fusion.centered or squared_deviations(fusion, expr)):
        return False
    square = fusion.producers.get(expr.inputs[0])
    if square is None or square.out.numel == 0:
        return False  # the squares are an input, and nothing has the deviations; or there are none to correct
    difference = fusion.producers.get(square.inputs[0])
    maker = None if difference is None else fusion.producers.get(difference.inputs[0])
    while maker is not None and maker.kind.is_view:
        maker = fusion.producers.get(maker.inputs[0])
    if maker is None or maker.op.name != "cast":
        return True
    source = maker.inputs[0].dtype
    return not source.is_float or source.itemsize >= expr.out.dtype.itemsize


def _in_double(writer: Rewriter, expr: Expr) -> None:
    out, (operand, *others) = expr.out, expr.inputs
    wide = writer.emit(writer.new_name(out.name, "wide"), "cast", writer.now(operand), dtype=out.dtype.wider)
    product = writer.emit(writer.new_name(out.name, "product"), expr.op.name, wide, *others, **dict(expr.attrs))
    writer.remake(out, "cast", product, dtype=out.dtype)


def _correct(writer: Rewriter, expr: Expr) -> None:
    out, dims = expr.out, expr.ints("dims")
    square = writer.fusion.producers[expr.inputs[0]]
    deviation = square.tensor_inputs[0]
    count = math.prod(deviation.shape[d] for d in dims)

    def number(value: float) -> Scalar:
        return Scalar(name="", dtype=out.dtype, value=value)

    def emit(part: str, op: str, *inputs: Val, **attrs: AttrValue) -> TensorView:
        return writer.emit(writer.new_name(out.name, part), op, *inputs, **attrs)

    squares = emit("squares", "sum", writer.now(square.out), dims=dims)
    rest = emit("rest", "sum", writer.now(deviation), dims=dims)
    excess = emit("excess", "mul", rest, emit("off", "mul", rest, number(1 / count)))
    positive = emit("positive", "maximum", emit("less", "sub", squares, excess), number(0.0))
    finite = emit("finite", "lt", excess, number(math.inf))
    writer.remake(out, "where", finite, positive, squares)

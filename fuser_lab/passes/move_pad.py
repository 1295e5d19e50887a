"""MovePad: zeros are added as early as possible, so that all later values have one size.

nvFuser's pass of this name (csrc/preseg_passes/move_pad.cpp). The Resize scheduler makes it unnecessary. If a pad of a
cat moves, the cat becomes a sum of the padded operands. Zeros can change their sign, as in nvFuser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.ir.domain import Resize
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter

# Ops of nvFuser's zeroIsFixedPoint and zeroIsIdentity (lines 138-205) whose result is zero, or False, if all operands
# are zeros. signbit is not among them here: it tells apart the two zeros, which neg exchanges.
_KEEPS_ZERO = frozenset(
    {
        *("abs", "asin", "asinh", "atan", "atanh", "cast", "ceil", "erf", "erfinv", "expm1", "floor", "frac", "log1p"),
        *("neg", "relu", "round", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
        *("isinf", "isnan", "isneginf", "isposinf"),
    },
)
_ZEROS = frozenset({"0", "0.0", "0j", "False"})  # and not -0.0
_BINARY = frozenset(
    {
        *("add", "mul", "sub", "maximum", "minimum", "gcd", "bitwise_and", "bitwise_or", "gt", "lt", "ne"),
        *("logical_and", "logical_or"),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePad(Pass):
    """``pad(mul(x, y)) -> mul(pad(x), pad(y))``, for zero pads, as far up as zeros stay zeros.

    ``cat([relu(x), y]) -> relu(pad(x)) + pad(y)``, or ``logical_or`` for booleans, if a pad of the cat moves. A pad
    stops at values with readers that it does not pass and at padded axes of size 1.
    """

    name: ClassVar[str] = "move_pad"
    nvfuser: ClassVar[str] = "MovePad"
    only_without: ClassVar[str] = "resize"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        y = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.pad(fd.ops.mul(x, fd.ops.relu(y)), [1, 1]))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with pads as early as possible."""
        fusion = _with_sums(fusion)
        regions = {expr: region for expr in fusion.exprs if (region := _region(expr, fusion))}
        if not regions:
            return fusion
        writer = Rewriter(fusion)
        gone = {expr for region in regions.values() for expr in region}
        for expr in fusion.exprs:
            if expr in regions:
                _move(writer, expr, [e for e in fusion.exprs if e in regions[expr]])
            elif expr not in gone:
                writer.keep(expr)
        return writer.fusion_of()


def _with_sums(fusion: Fusion) -> Fusion:
    """Return the fusion with sums in place of cats with a pad that can move."""
    cats = {expr for expr in fusion.exprs if expr.op.name == "cat" and _is_sum(expr, fusion)}
    if not cats:
        return fusion
    writer = Rewriter(fusion)
    for expr in fusion.exprs:
        if expr not in cats:
            writer.keep(expr)
            continue
        op = "logical_or" if expr.out.dtype is DataType.Bool else "add"
        total, *others = (writer.tensor(tensor) for tensor in expr.tensor_inputs)
        for other in others[:-1]:
            total = writer.emit(writer.new_name(expr.name, "sum"), op, total, other)
        writer.remake(expr.out, op, total, others[-1])
    return writer.fusion_of()


def _is_sum(cat: Expr, fusion: Fusion) -> bool:
    pads = [fusion.producers.get(tensor) for tensor in cat.tensor_inputs]
    return (
        len(pads) > 1
        and not cat.out.dtype.is_float8
        and all(pad is not None and _adds_zeros(pad) and _is_fed_to(pad, cat, fusion) for pad in pads)
        and any(pad is not None and _above(pad, fusion) for pad in pads)
    )


def _is_fed_to(pad: Expr, cat: Expr, fusion: Fusion) -> bool:
    return set(fusion.users[pad.out]) == {cat} and pad.out not in fusion.outputs


def _region(pad: Expr, fusion: Fusion) -> set[Expr]:
    """Return the expressions that a pad can pass; none if a cat reads it."""
    if not _adds_zeros(pad) or any(user.op.name == "cat" for user in fusion.users.get(pad.out, ())):
        return set()
    return _above(pad, fusion)


def _above(pad: Expr, fusion: Fusion) -> set[Expr]:
    """Return the expressions that a pad by zeros can pass.

    It passes an expression once it has passed all readers of its result: equal pads of one tensor are one pad
    (csrc/preseg_passes/move_pad.cpp:403-419).
    """
    region: set[Expr] = set()
    resized = [step.source for step in pad.out.domain.transforms if isinstance(step, Resize)]
    places = [pad.out.domain.root_or_logical.index(axis) for axis in resized]
    outputs = set(fusion.outputs)
    waiting: list[Val] = [pad.inputs[0]]
    while waiting:
        value = waiting.pop()
        maker = fusion.producers.get(value)
        if maker is None or maker in region or value in outputs or not _passable(maker, places):
            continue
        if region.issuperset(user for user in fusion.users[value] if user is not pad):
            region.add(maker)
            waiting += maker.tensor_inputs
    return region


def _adds_zeros(expr: Expr) -> bool:
    if expr.op.name != "pad":
        return False
    fill = expr.inputs[1]
    zero = isinstance(fill, Scalar) and str(fill.value) in _ZEROS
    return zero and all(width >= 0 for width in expr.ints("pad_widths")) and any(expr.ints("pad_widths"))


def _passable(expr: Expr, places: Sequence[int]) -> bool:
    """Whether zeros can be added before an expression instead of after it; no operand of it is a number."""
    if not expr.tensor_outputs or expr.out.dtype.is_float8:
        return False
    if any(
        tensor.ndim != expr.out.ndim or any(tensor.domain.axes[place].is_broadcast for place in places)
        for tensor in expr.tensor_inputs
    ):
        return False
    if expr.op.name in _KEEPS_ZERO:
        return True
    return expr.op.name in _BINARY and all(isinstance(value, TensorView) for value in expr.inputs)


def _move(writer: Rewriter, pad: Expr, region: Sequence[Expr]) -> None:
    """Add the pads, then the expressions under their names, the last one under the pad's name."""
    made: dict[Val, TensorView] = {}
    inside = {expr.out for expr in region}
    widths = pad.ints("pad_widths")
    for value in dict.fromkeys(tensor for expr in region for tensor in expr.tensor_inputs if tensor not in inside):
        source = writer.tensor(value)
        zero = Scalar(name="", dtype=source.dtype, value=_zero(source.dtype))
        made[value] = writer.emit(writer.new_name(pad.name, "padded"), "pad", source, zero, pad_widths=widths)
    for expr in region:
        inputs = tuple(made.get(value, value) for value in expr.inputs)
        if expr is region[-1]:
            writer.remake(pad.out, expr.op.name, *inputs, **dict(expr.attrs))
        else:
            made[expr.out] = writer.emit(expr.name, expr.op.name, *inputs, **dict(expr.attrs))


def _zero(dtype: DataType) -> bool | int | float | complex:
    """Return zero as a number of a dtype's kind."""
    if dtype.is_complex:
        return 0j
    return 0.0 if dtype.is_float else 0 if dtype.is_integral else False

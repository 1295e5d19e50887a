"""TranslateNoReductionMatmulToMulSqueeze: a matrix product with a contracted axis of size 1 is a multiplication.

nvFuser's pass of this name (csrc/preseg_passes/translate_no_reduction_matmul_to_mul_squeeze.cpp).
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateNoReductionMatmul(Pass):
    """``matmul(a, b) -> squeeze(mul(broadcast(a), broadcast(b)))`` if the contracted axis has size 1.

    A kernel can compute the result, fused with its neighbours.
    """

    name: ClassVar[str] = "translate_no_reduction_matmul"
    nvfuser: ClassVar[str] = "TranslateNoReductionMatmulToMulSqueeze"
    example: ClassVar[str] = """
        x = fd.define_tensor([8, 1])
        y = fd.define_tensor([1, 16])
        fd.add_output(fd.ops.matmul(x, y))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such products."""
        chosen = {expr for expr in fusion.exprs if _sums_nothing(expr)}
        if not chosen:
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            if expr in chosen:
                _translate(writer, expr)
            else:
                writer.keep(expr)
        return writer.fusion_of()


def _sums_nothing(expr: Expr) -> bool:
    if expr.op.name != "matmul" or expr.out.dtype.is_float8:
        return False
    # Products store elements that a broadcast axis only repeats; a multiplication would not.
    return expr.tensor_inputs[0].domain.axes[-1].is_broadcast and not any(
        axis.expanded is not None for tensor in expr.tensor_inputs for axis in tensor.domain.axes
    )


def _translate(writer: Rewriter, expr: Expr) -> None:
    a, b = (writer.tensor(tensor) for tensor in expr.tensor_inputs)
    base, dtype = expr.name, a.dtype
    rows, columns = a.ndim > 1, b.ndim > 1
    if columns:
        order = (*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
        b = writer.emit(writer.new_name(base, "permuted"), "permute", b, dims=order)
    # Both become [batch, rows, columns, 1].
    rank = max(a.ndim - 1 + columns, b.ndim - 1 + rows) + 1
    a = _place(writer, writer.new_name(base, "left"), a, rank, (rank - 2,) if columns else ())
    b = _place(writer, writer.new_name(base, "right"), b, rank, (rank - 2 - columns,) if rows else ())
    narrow = dtype.is_reduced_float
    if narrow:
        a, b = (writer.emit(writer.new_name(base, "wide"), "cast", x, dtype=DataType.Float) for x in (a, b))
    product = writer.emit(writer.new_name(base, "product"), "mul", a, b)
    if narrow:
        product = writer.emit(writer.new_name(base, "narrow"), "cast", product, dtype=dtype)
    writer.remake(expr.out, "squeeze", product, dims=(rank - 1,), squeeze_expanded=False)


def _place(writer: Rewriter, name: str, tensor: TensorView, rank: int, new: tuple[int, ...]) -> TensorView:
    """Return a tensor with axes of size 1 in front and at ``new``, so that it has ``rank`` axes."""
    missing = rank - tensor.ndim - len(new)
    flags = tuple(place < missing or place in new for place in range(rank))
    return writer.emit(name, "broadcast", tensor, is_broadcast_dim=flags) if any(flags) else tensor

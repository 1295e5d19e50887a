"""TranslateScatterAccumulate: values that are scattered into rows of zeros and then summed are accumulated directly.

nvFuser's pass of this name (csrc/preseg_passes/translate_scatter_accumulate.cpp). Two conditions ensure that no value
changes. The numbers are integers, so the order of additions does not matter. And each row gets one number: of two at
one position, scatter keeps one, whereas accumulation would add both.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateScatterAccumulate(Pass):
    """``sum(scatter(zeros, i, x, dim)) -> scatter_add(zeros, i, x)``, which never stores the rows of zeros.

    An example is counting the tokens of each expert: the tensors have two axes, each row of the index names one
    position, and the sum runs over the other axis and is of integers. A cast of Int32 to Int may lie between the two.
    The zeros and the scattered tensor have no other reader.
    """

    name: ClassVar[str] = "translate_scatter_accumulate"
    nvfuser: ClassVar[str] = "TranslateScatterAccumulate"
    example: ClassVar[str] = """
        expert = fd.define_tensor([100, 1], dtype=DataType.Int)
        zeros = fd.ops.full([100, 8], 0, DataType.Int)
        chosen = fd.ops.scatter(zeros, expert, fd.define_scalar(1, DataType.Int), 1)
        fd.add_output(fd.ops.sum(chosen, [0]))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such scatters."""
        scatters = {expr: scatter for expr in fusion.exprs if (scatter := _scatter_of(expr, fusion)) is not None}
        if not scatters:
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            if expr in scatters:
                _add(writer, expr, scatters[expr])
            else:
                writer.keep(expr)
        return writer.fusion_of()


def _scatter_of(total: Expr, fusion: Fusion) -> Expr | None:
    """Return the scatter whose result is summed, or None.

    As nvFuser looks from a scatter to its sum (csrc/preseg_passes/translate_scatter_accumulate.cpp:28-182): two axes,
    zeros that nothing else reads, and between the two at most the cast of Int32 to Int.
    """
    if total.op.name != "sum" or not total.out.dtype.is_integral:
        return None
    scatter = _only_maker(total.tensor_inputs[0], fusion)
    if scatter is not None and _is_widening(scatter):
        scatter = _only_maker(scatter.tensor_inputs[0], fusion)
    if scatter is None or scatter.op.name != "scatter":
        return None
    dim, index, target = indexed_axis(dict(scatter.attrs)), scatter.tensor_inputs[1], scatter.tensor_inputs[0]
    if target.ndim != _AXES or index.shape[dim] != 1 or total.ints("dims") != (1 - dim,):
        return None
    if not _is_zeros(target, fusion) or len(fusion.users[target]) > 1:
        return None
    source = scatter.inputs[2]
    exact = source.shape == index.shape if isinstance(source, TensorView) else _number(source) is not None
    return scatter if exact else None


_AXES = 2  # of a scattered tensor, in nvFuser (line 38)


def _only_maker(value: TensorView, fusion: Fusion) -> Expr | None:
    return None if value in fusion.outputs or len(fusion.users[value]) != 1 else fusion.producers.get(value)


def _is_widening(expr: Expr) -> bool:
    """Whether an expression is the cast that a sum of Int32 begins with."""
    return expr.op.name == "cast" and expr.inputs[0].dtype is DataType.Int32 and expr.out.dtype is DataType.Int


def _is_zeros(tensor: TensorView, fusion: Fusion) -> bool:
    maker = fusion.producers.get(tensor)
    return maker is not None and maker.op.name == "full" and _number(maker.inputs[0]) == 0


def _number(value: Val) -> int | None:
    """Return a scalar that is a known integer."""
    number = value.value if isinstance(value, Scalar) else None
    return int(number) if isinstance(number, bool | int) else None


def _add(writer: Rewriter, total: Expr, scatter: Expr) -> None:
    base, dtype = total.name, total.out.dtype
    index = writer.tensor(scatter.tensor_inputs[1])
    count = prod(index.shape)
    flat = writer.emit(writer.new_name(base, "places"), "reshape", index, new_shape=(count,))
    source = writer.now(scatter.inputs[2])
    if isinstance(source, TensorView):
        added = writer.emit(writer.new_name(base, "added"), "reshape", source, new_shape=(count,))
        if added.dtype is not dtype:
            added = writer.emit(writer.new_name(base, "wide"), "cast", added, dtype=dtype)
        value: Val = added
    else:
        value = Scalar(name="", dtype=dtype, value=_number(source))
    nothing = Scalar(name="", dtype=dtype, value=0)
    zeros = writer.emit(writer.new_name(base, "zeros"), "full", nothing, shape=total.out.shape, dtype=dtype)
    writer.remake(total.out, "scatter_add", zeros, flat, value, dim=0)

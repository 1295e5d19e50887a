"""MoveGather: gather first, then compute on the gathered elements.

nvFuser's pass of this name (csrc/preseg_passes/move_gather.cpp).
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveGather(Pass):
    """``take_along_axis(exp(x), i) -> exp(take_along_axis(x, i))``: fewer elements, and the lookup reads an input.

    It moves above ops with one operand and above squeezes of one axis, as long as nothing else reads their results. The
    pass runs only if the fusion has a single take_along_axis.
    """

    name: ClassVar[str] = "move_gather"
    nvfuser: ClassVar[str] = "MoveGather"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 100])
        label = fd.define_tensor([4, 1], dtype=DataType.Int)
        fd.add_output(fd.ops.take_along_axis(fd.ops.neg(fd.ops.exp(x)), label, 1))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion in which the lookup comes first."""
        lookups = [expr for expr in fusion.exprs if expr.op.name == "take_along_axis"]
        if len(lookups) != 1:
            return fusion
        passed = _above(fusion, lookups[0])
        if not passed:
            return fusion
        writer = Rewriter(fusion)
        gone = set(passed)
        for expr in fusion.exprs:
            if expr is lookups[0]:
                _move(writer, expr, passed)
            elif expr not in gone:
                writer.keep(expr)
        return writer.fusion_of()


def _above(fusion: Fusion, lookup: Expr) -> list[Expr]:
    """Return the expressions that a lookup can pass, the nearest to it first."""
    passed: list[Expr] = []
    table, outputs = lookup.tensor_inputs[0], set(fusion.outputs)
    while True:
        maker = fusion.producers.get(table)
        alone = table not in outputs and len(fusion.users[table]) == 1 and table not in lookup.inputs[1:]
        if maker is None or not alone or not _passable(maker):
            return passed
        passed.append(maker)
        table = maker.tensor_inputs[0]


def _passable(expr: Expr) -> bool:
    if expr.kind is OpKind.SQUEEZE:
        source = expr.tensor_inputs[0].domain.axes
        return len(expr.ints("dims")) == 1 and all(source[place].expanded is None for place in expr.ints("dims"))
    return expr.kind is OpKind.POINTWISE and len(expr.inputs) == 1 and bool(expr.tensor_inputs)


def _move(writer: Rewriter, lookup: Expr, passed: list[Expr]) -> None:
    """Add the lookup, then the ops that it passed; these keep their names, except the last, which has the lookup's."""
    base, dim = lookup.name, indexed_axis(dict(lookup.attrs))
    index = writer.tensor(lookup.tensor_inputs[1])
    for expr in passed:
        if expr.kind is OpKind.SQUEEZE:
            (axis,) = expr.ints("dims")
            flags = tuple(place == axis for place in range(index.ndim + 1))
            index = writer.emit(writer.new_name(base, "index"), "broadcast", index, is_broadcast_dim=flags)
            dim += axis <= dim
    source: TensorView = writer.tensor(passed[-1].tensor_inputs[0])
    value = writer.emit(writer.new_name(base, "taken"), "take_along_axis", source, index, dim=dim)
    for expr in reversed(passed[1:]):
        value = writer.emit(expr.name, expr.op.name, value, **dict(expr.attrs))
    writer.remake(lookup.out, passed[0].op.name, value, **dict(passed[0].attrs))

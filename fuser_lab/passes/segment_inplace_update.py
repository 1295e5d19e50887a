"""SegmentInplaceUpdate: a result that overwrites an input near a broadcast is written by a separate kernel.

nvFuser's pass of this name (csrc/preseg_passes/segment_inplace_update.cpp): if an input is broadcast, one thread may
overwrite an element that another thread has not read yet.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.passes.base import Pass
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInplaceUpdate(Pass):
    """``x <- y`` becomes ``x <- set(segment_set(y))`` if a path to or from x or y contains a broadcast.

    An input that overwrites another input is always copied by an expression.
    """

    name: ClassVar[str] = "segment_inplace_update"
    nvfuser: ClassVar[str] = "SegmentInplaceUpdate"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        row = fd.define_tensor([6])
        fd.add_output(fd.ops.add(x, row), x)
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion with safe in-place updates."""
        if not fusion.aliases:
            return fusion
        near = _near_broadcast(fusion)
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            writer.keep(expr)
        inputs = set(fusion.inputs)
        copies: dict[TensorView, TensorView] = {}
        for output, target in fusion.aliases:
            if output in copies or output not in fusion.hidden or _is_apart(output, fusion):
                continue
            if output in inputs:
                copies[output] = writer.copy(writer.new_name(output.name, "copy"), "set", output)
            elif output in near or target in near:
                hint = writer.copy(writer.new_name(output.name, "hint"), "segment_set", output)
                copies[output] = writer.copy(writer.new_name(output.name, "copy"), "set", hint)
        return writer.fusion_of(copies) if copies else fusion


def _is_apart(output: TensorView, fusion: Fusion) -> bool:
    """Whether a result is already a copy of a hint."""
    copy = fusion.producers.get(output)
    hint = fusion.producers.get(copy.inputs[0]) if copy is not None and copy.op.name == "set" else None
    return hint is not None and hint.op.name == "segment_set"


def _near_broadcast(fusion: Fusion) -> set[Val]:
    """Return the values that a broadcast leads to, or that lead to one, and inputs that are broadcast implicitly."""
    sources = [expr for expr in fusion.exprs if expr.kind in {OpKind.BROADCAST, OpKind.EXPAND} or _widens(expr)]
    behind = _reachable(sources, lambda expr: expr.outputs, fusion.users)
    makers = {value: (expr,) for value, expr in fusion.producers.items()}
    before = _reachable(sources, lambda expr: expr.inputs, makers)
    return behind | before


def _reachable(
    start: Iterable[Expr], ends: Callable[[Expr], tuple[Val, ...]], following: Mapping[Val, tuple[Expr, ...]],
) -> set[Val]:
    reached: set[Val] = set()
    waiting = [value for expr in start for value in ends(expr)]
    while waiting:
        value = waiting.pop()
        if value not in reached:
            reached.add(value)
            waiting += [other for expr in following.get(value, ()) for other in ends(expr)]
    return reached


def _widens(expr: Expr) -> bool:
    """Whether a broadcast axis of an operand meets an axis with several elements."""
    if expr.kind is not OpKind.POINTWISE or not expr.tensor_outputs:
        return False
    out = expr.out.domain.axes
    return any(
        axis.is_broadcast and not result.is_broadcast
        for tensor in expr.tensor_inputs
        if tensor.ndim == len(out)
        for axis, result in zip(tensor.domain.axes, out, strict=True)
    )

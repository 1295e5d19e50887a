"""TranslateRepeatToExpand: a tensor concatenated with itself is a repeat of the tensor.

nvFuser's pass of this name (csrc/preseg_passes/translate_repeat_to_expand.cpp). If the axis has size 1, nvFuser uses a
separate repeat op, which does not exist here, so such a cat is unchanged.
"""

from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.passes.base import Pass
from fuser_lab.passes.cat_parts import cat_axis, cat_sources
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateRepeat(Pass):
    """``cat([x, x, x], dim) -> reshape(expand(broadcast(x)))``, which every scheduler for pointwise ops accepts."""

    name: ClassVar[str] = "translate_repeat_to_expand"
    nvfuser: ClassVar[str] = "TranslateRepeatToExpand"
    example: ClassVar[str] = """
        x = fd.define_tensor([2, 3])
        fd.add_output(fd.ops.cat([x, x, x], dim=0))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such cats."""
        if not any(_repeated_tensor(expr, fusion) for expr in fusion.exprs):
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            source = _repeated_tensor(expr, fusion)
            if source is None:
                writer.keep(expr)
            else:
                _expand(writer, expr, writer.tensor(source))
        return writer.fusion_of()


def _repeated_tensor(expr: Expr, fusion: Fusion) -> TensorView | None:
    """Return the tensor that a cat joins with itself, or None."""
    if expr.op.name != "cat":
        return None
    sources = cat_sources(expr, fusion.producers)
    if not sources or set(sources) != {sources[0]}:
        return None
    # The repeated axis and its repetition must merge into one plain axis.
    return None if sources[0].domain.axes[cat_axis(expr)].is_broadcast else sources[0]


def _expand(writer: Rewriter, cat: Expr, source: TensorView) -> None:
    base, dim, times = cat.name, cat_axis(cat), len(cat.inputs)
    flags = tuple(place == dim for place in range(source.ndim + 1))
    placed = writer.emit(writer.new_name(base, "placed"), "broadcast", source, is_broadcast_dim=flags)
    sizes = tuple(times if place == dim else -1 for place in range(placed.ndim))
    wide = writer.emit(writer.new_name(base, "repeated"), "expand", placed, shape=sizes)
    writer.remake(cat.out, "reshape", wide, new_shape=cat.out.shape)

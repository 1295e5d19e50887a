"""MoveSplitCat: a tensor that is split and joined again in the same order is not split.

nvFuser's pass of this name (csrc/preseg_passes/move_split_cat.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.domain import Resize
from fuser_lab.passes.base import Pass
from fuser_lab.passes.cat_parts import cat_axis, cat_sources
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSplitCat(Pass):
    """``cat([slice(x, first), slice(x, rest)]) -> x``; permutations in between are applied once, to all of ``x``."""

    name: ClassVar[str] = "move_split_cat"
    nvfuser: ClassVar[str] = "MoveSplitCat"

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such pairs."""
        found = {expr: whole for expr in fusion.exprs if (whole := _whole(expr, fusion.producers)) is not None}
        if not found:
            return fusion
        writer = Rewriter(fusion)
        outputs = set(fusion.outputs)
        for expr in fusion.exprs:
            if expr not in found:
                writer.keep(expr)
                continue
            source, between = found[expr]
            _joined(writer, expr.out, writer.tensor(source), between, is_output=expr.out in outputs)
        return writer.fusion_of()


Permutations = tuple[tuple[int, ...], ...]


def _whole(cat: Expr, makers: Mapping[Val, Expr]) -> tuple[TensorView, Permutations] | None:
    """Return the tensor whose slices a cat joins, and the permutations between slice and cat, in order."""
    if cat.op.name != "cat":
        return None
    parts = cat_sources(cat, makers)
    dim = cat_axis(cat)
    between: list[tuple[int, ...]] = []
    while parts:
        exprs = [makers.get(part) for part in parts]
        made = [expr for expr in exprs if expr is not None]
        if len(made) != len(exprs) or len({expr.op.name for expr in made}) != 1:
            return None
        if made[0].op.name == "slice":
            source = made[0].tensor_inputs[0]
            return (source, tuple(reversed(between))) if _is_split(source, parts, made, dim) else None
        if made[0].op.name != "permute" or len({expr.attrs for expr in made}) != 1:
            return None
        order = made[0].ints("dims")
        between.append(order)
        dim = order[dim]
        parts = tuple(expr.tensor_inputs[0] for expr in made)
    return None


def _is_split(source: TensorView, parts: Sequence[TensorView], slices: Sequence[Expr], dim: int) -> bool:
    """Whether slices of one tensor along one axis, in order, cover it completely."""
    place = 0
    for part, expr in zip(parts, slices, strict=True):
        steps = [step for step in part.domain.transforms if isinstance(step, Resize)]
        if expr.tensor_inputs[0] != source or len(steps) != 1 or steps[0].result != part.domain.axes[dim]:
            return False
        if steps[0].left != -place:
            return False
        place += part.shape[dim]
    return place == source.shape[dim]


def _joined(
    writer: Rewriter, out: TensorView, source: TensorView, between: Permutations, *, is_output: bool,
) -> None:
    for order in between[:-1]:
        source = writer.emit(writer.new_name(out.name, "permuted"), "permute", source, dims=order)
    if between:
        writer.remake(out, "permute", source, dims=between[-1])
    elif is_output:
        writer.remake(out, "set", source)
    else:
        writer.replace(out, source)

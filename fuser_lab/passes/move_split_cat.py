"""MoveSplitCat: a tensor that is split and joined again in the same order is not split.

nvFuser's pass of this name (csrc/preseg_passes/move_split_cat.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import AttrValue, Expr, Fusion, Merge, Split, TensorView, Val
from fuser_lab.ir.domain import Resize
from fuser_lab.passes.base import Pass
from fuser_lab.passes.cat_parts import cat_axis, cat_sources
from fuser_lab.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSplitCat(Pass):
    """``cat([slice(x, first), slice(x, rest)]) -> set(x)``; views in between are applied once, to all of ``x``.

    Views are permutations, copies and reshapes. A reshape may merge the axis that is joined with others inside it, but
    may not split it.
    """

    name: ClassVar[str] = "move_split_cat"
    nvfuser: ClassVar[str] = "MoveSplitCat"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        left = fd.ops.permute(fd.ops.slice(x, [0, 0], [4, 2]), [1, 0])
        right = fd.ops.permute(fd.ops.slice(x, [0, 2], [4, 6]), [1, 0])
        fd.add_output(fd.ops.exp(fd.ops.cat([left, right], dim=0)))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion without such pairs."""
        pairs = {expr: whole for expr in fusion.exprs if (whole := _whole(expr, fusion.producers)) is not None}
        if not pairs:
            return fusion
        writer = Rewriter(fusion)
        for expr in fusion.exprs:
            if expr not in pairs:
                writer.keep(expr)
                continue
            source, between = pairs[expr]
            value = writer.tensor(source)
            for op, attrs in between:
                value = writer.emit(writer.new_name(expr.name, _SUFFIXES[op]), op, value, **attrs)
            writer.remake(expr.out, "set", value)
        return writer.fusion_of()


_SUFFIXES = {"permute": "permuted", "reshape": "reshaped", "set": "copied"}
Steps = tuple[tuple[str, dict[str, AttrValue]], ...]


def _whole(cat: Expr, makers: Mapping[Val, Expr]) -> tuple[TensorView, Steps] | None:
    """Return the tensor whose slices a cat joins, and the views between slice and cat, for the whole tensor, in order.

    All operands are followed upwards together (csrc/preseg_passes/move_split_cat.cpp:337-422), and with them the joined
    axis (lines 278-328, the cases of Split and Merge).
    """
    if cat.op.name != "cat":
        return None
    parts, dim = cat_sources(cat, makers), cat_axis(cat)
    between: list[tuple[str, dict[str, AttrValue]]] = []
    while parts:
        exprs = [makers.get(part) for part in parts]
        made = [expr for expr in exprs if expr is not None]
        if len(made) != len(exprs) or len({expr.op.name for expr in made}) != 1:
            return None
        op = made[0].op.name
        if op == "slice":
            source = made[0].tensor_inputs[0]
            return (source, tuple(reversed(between))) if _is_split(source, parts, made, dim) else None
        if op == "reshape":
            before = _before_reshape(parts[0], dim)
            if before is None or len({_form(part) for part in parts}) != 1:
                return None
            sizes = list(parts[0].shape)
            sizes[dim] = sum(part.shape[dim] for part in parts)
            between.append((op, {"new_shape": tuple(sizes)}))
            dim = before
        elif op in {"permute", "set"} and len({expr.attrs for expr in made}) == 1:
            between.append((op, dict(made[0].attrs)))
            dim = made[0].ints("dims")[dim] if op == "permute" else dim
        else:
            return None
        parts = tuple(expr.tensor_inputs[0] for expr in made)
    return None


def _form(tensor: TensorView) -> tuple[tuple[object, ...], ...]:
    """Return a key that is equal for reshapes that merge the same axes, and split off the same sizes."""
    domain = tensor.domain
    number = {axis: place for place, axis in enumerate(domain.root_or_logical)}
    steps: list[tuple[object, ...]] = []
    for step in domain.transforms:
        if isinstance(step, Merge):
            steps.append(("merge", number[step.outer], number[step.inner]))
            number[step.result] = len(number)
        elif isinstance(step, Split):
            steps.append(("split", number[step.source], step.outer.extent))
            number[step.outer], number[step.inner] = len(number), len(number) + 1
    return (*steps, tuple(number.get(axis, -1) for axis in domain.axes))


def _before_reshape(tensor: TensorView, dim: int) -> int | None:
    """Return the operand's axis that a reshaped axis is, or is merged from as the outermost; None if it is split.

    A reshape in nvFuser splits off an outer part of a known size, which is another one for the joined tensor.
    """
    merged = {step.result: step for step in tensor.domain.transforms if isinstance(step, Merge)}
    axis, places = tensor.domain.axes[dim], tensor.domain.root_or_logical
    while axis in merged:
        axis = merged[axis].outer
    return places.index(axis) if axis in places else None


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

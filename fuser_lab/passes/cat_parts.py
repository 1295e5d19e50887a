"""Which part of a concatenation each of its operands fills."""

from collections.abc import Mapping

from fuser_lab.ir import Expr, TensorView, Val
from fuser_lab.ir.domain import Resize


def cat_parts(cat: Expr) -> tuple[tuple[TensorView, tuple[int, int]], ...]:
    """Return the operands of a cat, which are already padded, each with the range of the axis that it fills."""
    return tuple((tensor, _range(tensor, cat_axis(cat))) for tensor in cat.tensor_inputs)


def _range(tensor: TensorView, dim: int) -> tuple[int, int]:
    axis, size = tensor.domain.axes[dim], tensor.shape[dim]
    step = next((t for t in tensor.domain.transforms if isinstance(t, Resize) and t.result == axis), None)
    left, right = (0, 0) if step is None else (step.left, step.right)
    return left if isinstance(left, int) else 0, size - (right if isinstance(right, int) else 0)


def cat_axis(cat: Expr) -> int:
    """Return the axis along which a cat joins."""
    dim = cat.attr("dim")
    return dim if isinstance(dim, int) else 0


def cat_sources(cat: Expr, makers: Mapping[Val, Expr]) -> tuple[TensorView, ...] | None:
    """Return the tensors that a cat joins, before padding; None if some operand is not the result of a pad."""
    sources = []
    place = 0
    for tensor, (start, end) in cat_parts(cat):
        pad = makers.get(tensor)
        if pad is None or pad.op.name != "pad" or start != place:
            return None
        source = pad.tensor_inputs[0]
        if source.shape[cat_axis(cat)] != end - start or end <= start:
            return None
        sources.append(source)
        place = end
    return tuple(sources) if place == cat.out.shape[cat_axis(cat)] else None

"""Ops of ``fd.ops`` that are written with other ops."""

from collections.abc import Sequence

from fuser_lab.errors import DefinitionError
from fuser_lab.ir import TensorView, Val
from fuser_lab.ops.broadcast import broadcast, expand
from fuser_lab.ops.registry import (
    OPS,
    Composite,
    Operand,
    Recorder,
    register_composite,
    unique_dims,
    wrap_dim,
)


def _emit(rec: Recorder, name: str, *operands: Operand) -> Val:
    result: Val = OPS[name].frontend(rec, *operands)
    return result


def _broadcast_in_dim(
    rec: Recorder, arg: Operand, shape: Sequence[Operand], broadcast_dims: Sequence[int],
) -> TensorView:
    tensor = rec.tensor(arg, "broadcast_in_dim", "arg")
    sizes = rec.extents(shape, "broadcast_in_dim", "shape")
    kept = unique_dims(broadcast_dims, len(sizes), "broadcast_in_dim", "broadcast_dims")
    if len(kept) != tensor.ndim:
        msg = f"broadcast_in_dim: {len(kept)} broadcast_dims for a tensor with {tensor.ndim} axes."
        raise DefinitionError(msg)
    if list(kept) != sorted(kept):
        msg = f"broadcast_in_dim: broadcast_dims={list(kept)} must be increasing."
        raise DefinitionError(msg)
    placed = broadcast(rec, tensor, [i not in kept for i in range(len(sizes))])
    return expand(rec, placed, sizes)


def _size_of(rec: Recorder, arg: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "size", "arg")
    return rec.value(tensor.extents[wrap_dim(dim, tensor.ndim, "size")], "size", "dim")


def _shape_of(rec: Recorder, arg: Operand) -> list[Val]:
    tensor = rec.tensor(arg, "shape", "arg")
    return [rec.value(extent, "shape", "arg") for extent in tensor.extents]


for _entry in (
    Composite(
        name="broadcast_in_dim",
        frontend=_broadcast_in_dim,
        doc="arg's axes placed at broadcast_dims of shape, the rest broadcast; then expanded to shape.",
    ),
    Composite(name="size", frontend=_size_of, doc="The size of axis dim, an integer scalar."),
    Composite(name="shape", frontend=_shape_of, doc="The sizes of all axes."),
):
    register_composite(_entry)

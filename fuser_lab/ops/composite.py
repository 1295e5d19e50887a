"""Ops of ``fd.ops`` that are written with other ops."""

from collections.abc import Sequence

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Scalar, TensorView, Val
from fuser_lab.ops.broadcast import broadcast, expand
from fuser_lab.ops.factory import IOTA
from fuser_lab.ops.operands import unique_dims, wrap_dim
from fuser_lab.ops.promotion import convert_number
from fuser_lab.ops.registry import OPS, Arg, Composite, Recorder, Sample, register_composite
from fuser_lab.ops.rules import Operand


def _broadcast_in_dim(
    rec: Recorder, arg: Operand, shape: Sequence[Operand], broadcast_dims: Sequence[int],
) -> TensorView:
    tensor = rec.tensor(arg, "broadcast_in_dim", "arg")
    sizes = rec.extents(shape, "broadcast_in_dim", "shape")
    if len(sizes) < tensor.ndim:
        raise DefinitionError(f"broadcast_in_dim: shape has {len(sizes)} entries for a tensor with {tensor.ndim} axes.")
    places = unique_dims(broadcast_dims, len(sizes), "broadcast_in_dim", "broadcast_dims")
    if len(places) != tensor.ndim:
        raise DefinitionError(f"broadcast_in_dim: {len(places)} broadcast_dims for a tensor with {tensor.ndim} axes.")
    if list(places) != sorted(places):
        raise DefinitionError(f"broadcast_in_dim: broadcast_dims={list(places)} must be increasing.")
    placed = broadcast(rec, tensor, [i not in places for i in range(len(sizes))])
    return expand(rec, placed, sizes, "broadcast_in_dim")


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
        samples=(
            Sample("fd.ops.broadcast_in_dim(a, [3, 4], [1])", (Arg((4,)),)),
            Sample("fd.ops.broadcast_in_dim(a, shape=[3, 4, 2], broadcast_dims=[-2])", (Arg((4,), DataType.Half),)),
            Sample("fd.ops.broadcast_in_dim(a, [3, 4], [0, 1])", (Arg((3, 1), DataType.Int),)),
            Sample("fd.ops.broadcast_in_dim(a, [2, 3], [])", (Arg((), DataType.Bool),)),
            Sample("fd.ops.broadcast_in_dim(a, [3, 1, 4], [0, 2])"),
            Sample("fd.ops.broadcast_in_dim(a, fd.ops.shape(b), [1])", (Arg((4,)), Arg((3, 4)))),
            Sample(
                "fd.ops.mul(fd.ops.broadcast_in_dim(fd.ops.sum(a, [1]), [fd.ops.size(a, 0), 4], [0]), a)",
                (Arg((3, 4), DataType.Double),),
            ),
            Sample("fd.ops.broadcast_in_dim(a, [fd.define_scalar(2), 0], [1])", (Arg((0,)),)),
        ),
        doc="arg's axes placed at broadcast_dims of shape, the rest broadcast; then expanded to shape.",
    ),
    Composite(
        name="size",
        frontend=_size_of,
        samples=(
            Sample("fd.ops.size(a, 0)"),
            Sample("fd.ops.size(a, dim=-1)", (Arg((3, 1), DataType.Half),)),
            Sample("fd.ops.size(a, 0)", (Arg((0,), DataType.Int),)),
            Sample("fd.ops.mul(a, fd.ops.size(a, 1))"),
            Sample("fd.ops.size(fd.ops.reshape(a, [-1]), 0)"),
        ),
        doc="The size of axis dim, an integer scalar.",
    ),
    Composite(
        name="shape",
        frontend=_shape_of,
        samples=(
            Sample("fd.ops.shape(a)"),
            Sample("fd.ops.shape(a)", (Arg((1, 0, 2), DataType.Bool),)),
            Sample("fd.ops.full(fd.ops.shape(a), 1.0, DataType.Float)"),
        ),
        doc="The sizes of all axes.",
    ),
):
    register_composite(_entry)


def _triu(rec: Recorder, arg: Operand, diagonal: Operand = 0) -> Val:
    tensor = rec.tensor(arg, "triu", "arg")
    if tensor.ndim < 2:
        raise DefinitionError(f"triu: input tensor for triu must have 2 or more dims, but got {tensor.ndim} dims.")
    offset = rec.value(diagonal, "triu", "diagonal")
    if isinstance(offset, TensorView) or not offset.dtype.is_integral:
        msg = f"triu: diagonal must be an integer, given {offset if isinstance(offset, Scalar) else offset.name}."
        raise DefinitionError(msg)
    rows, columns = tensor.extents[-2:]
    shifted = OPS["add"].frontend(rec, IOTA.frontend(rec, rows, None, None, DataType.Int), offset)
    below = broadcast(rec, shifted, [False, True])
    across = broadcast(rec, IOTA.frontend(rec, columns, None, None, DataType.Int), [True, False])
    zero = Scalar(name="", dtype=tensor.dtype, value=convert_number(0, tensor.dtype, "triu", "0"))
    result: Val = OPS["where"].frontend(rec, OPS["le"].frontend(rec, below, across), tensor, zero)
    return result


register_composite(
    Composite(
        name="triu",
        frontend=_triu,
        samples=(
            Sample("fd.ops.triu(a)"),
            Sample("fd.ops.triu(a, 1)", (Arg((4, 4), DataType.Half),)),
            Sample("fd.ops.triu(a, diagonal=-2)", (Arg((2, 5, 4), DataType.BFloat16),)),
            Sample("fd.ops.triu(a, fd.define_scalar(1, DataType.Int))", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.triu(a)", (Arg((3, 3), DataType.Bool, 0, 2),)),
            Sample("fd.ops.triu(a)", (Arg((3, 3), DataType.ComplexFloat),)),
            Sample("fd.ops.triu(a, 9)", (Arg((1, 4), DataType.Double),)),
            Sample("fd.ops.triu(a)", (Arg((0, 4)),)),
        ),
        doc="arg with zeros below a diagonal of its last two axes; diagonal 1 is the one above the main one.",
    ),
)

"""Ops that add, drop or widen axes of size 1."""

from collections.abc import Sequence

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Extent, IterType, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import flags as flags_given
from fuser_lab.ops.operands import known_ints, same_extent, tensor_at, unique_dims
from fuser_lab.ops.registry import OPS, Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Result


def _flags(attrs: Attrs) -> tuple[bool, ...]:
    value = attrs["is_broadcast_dim"]
    return tuple(bool(v) for v in value) if isinstance(value, tuple) else ()


def broadcast(rec: Recorder, arg: Operand, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """Record the insertion of a size-1 axis at each True of ``is_broadcast_dim``."""
    tensor = rec.tensor(arg, "broadcast", "arg")
    flags = tuple(bool(flag) for flag in flags_given(is_broadcast_dim, "broadcast", "is_broadcast_dim"))
    if flags.count(False) != tensor.ndim:
        raise DefinitionError(
            f"broadcast: is_broadcast_dim={list(flags)} keeps {flags.count(False)} axes, "
            f"but the tensor has {tensor.ndim}."
        )
    if not any(flags):
        return tensor
    return tensor_at(rec.emit(BROADCAST, [tensor], is_broadcast_dim=flags))


def _broadcast(rec: Recorder, arg: Operand, is_broadcast_dim: Sequence[bool]) -> TensorView:
    result = broadcast(rec, arg, is_broadcast_dim)
    return result if any(is_broadcast_dim) else _copy(rec, result)


def _copy(rec: Recorder, tensor: TensorView) -> TensorView:
    """Return a copy of an operand that an op does not change, so that a call always creates a separate tensor."""
    copy: TensorView = OPS["set"].frontend(rec, tensor)
    return copy


def _infer_broadcast(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    source_axes = iter(tensor.domain.axes)
    logical = tuple(
        axes.fresh(1, IterType.BROADCAST) if flag else axes.copy(next(source_axes)) for flag in _flags(attrs)
    )
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_broadcast(x: Array, *, is_broadcast_dim: tuple[bool, ...]) -> Array:
    return np.expand_dims(x, tuple(i for i, flag in enumerate(is_broadcast_dim) if flag))


def _element_broadcast(e: Element) -> Term:
    return e.read(0, tuple(i for i, flag in zip(e.index, _flags(e.attrs), strict=True) if not flag))


BROADCAST = register(
    OpDef(
        name="broadcast",
        kind=OpKind.BROADCAST,
        frontend=_broadcast,
        infer=_infer_broadcast,
        reference=_reference_broadcast,
        element=_element_broadcast,
        samples=(
            Sample("fd.ops.broadcast(a, [False, True, False])"),
            Sample("fd.ops.broadcast(a, is_broadcast_dim=[True, True])", (Arg((), DataType.Half),)),
            Sample("fd.ops.broadcast(a, [False, False])", (Arg((0, 4), DataType.Int),)),
            Sample("fd.ops.broadcast(a, [True, False, True])", (Arg((1,), DataType.Bool),)),
            Sample("fd.ops.mul(fd.ops.broadcast(a, [False, True]), b)", (Arg((3,)), Arg((3, 4)))),
        ),
        doc="arg with an axis of size 1 inserted where is_broadcast_dim is True.",
    ),
)


def _squeeze(rec: Recorder, arg: Operand, dims: Sequence[int], squeeze_expanded: bool = False) -> TensorView:
    tensor = rec.tensor(arg, "squeeze", "arg")
    axes = unique_dims(dims, tensor.ndim, "squeeze")
    for dim in axes:
        axis = tensor.domain.axes[dim]
        if axis.expanded is not None and not squeeze_expanded:
            msg = f"squeeze: axis {dim} is expanded to {axis.expanded}; pass squeeze_expanded=True to drop it."
            raise DefinitionError(msg)
    if not axes:
        return _copy(rec, tensor)
    return tensor_at(rec.emit(SQUEEZE, [tensor], dims=axes, squeeze_expanded=squeeze_expanded))


def _infer_squeeze(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    dropped = known_ints(attrs, "dims")
    for dim in dropped:
        axis = tensor.domain.axes[dim]
        # Unknown sizes are checked again when inputs are bound.
        if axis.kind not in {IterType.BROADCAST, IterType.SYMBOLIC}:
            msg = f"squeeze: axis {dim} has size {axis.visible_extent}; only axes of size 1 can be squeezed."
            raise DefinitionError(msg)
    logical = tuple(axes.copy(axis) for i, axis in enumerate(tensor.domain.axes) if i not in dropped)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_squeeze(x: Array, *, dims: tuple[int, ...], squeeze_expanded: bool) -> Array:
    del squeeze_expanded
    if any(x.shape[dim] == 0 for dim in dims):
        # Expanded to size 0: there is no element.
        return np.zeros([n for i, n in enumerate(x.shape) if i not in dims], x.dtype)
    return x[tuple(0 if i in dims else slice(None) for i in range(x.ndim))]


def _element_squeeze(e: Element) -> Term:
    source_index = iter(e.index)
    dropped = known_ints(e.attrs, "dims")
    rank = tensor_at(e.inputs).ndim
    return e.read(0, tuple(t.index(0) if i in dropped else next(source_index) for i in range(rank)))


SQUEEZE = register(
    OpDef(
        name="squeeze",
        kind=OpKind.SQUEEZE,
        frontend=_squeeze,
        infer=_infer_squeeze,
        reference=_reference_squeeze,
        element=_element_squeeze,
        samples=(
            Sample("fd.ops.squeeze(a, [1])", (Arg((3, 1)),)),
            Sample("fd.ops.squeeze(a, dims=[0, -1])", (Arg((1, 4, 1), DataType.Half),)),
            Sample("fd.ops.squeeze(a, [])"),
            Sample("fd.ops.squeeze(a, [0])", (Arg((1,), DataType.Int),)),
            Sample("fd.ops.squeeze(a, [0])", (Arg((1, 0), DataType.Bool),)),
            Sample("fd.ops.squeeze(fd.ops.expand(a, [3, 4]), [0], True)", (Arg((1, 4)),)),
            Sample("fd.ops.squeeze(fd.ops.reshape(a, [fd.define_scalar(1), -1]), [0])"),
            Sample(
                "fd.ops.squeeze(fd.ops.slice(a, [0, fd.define_scalar(1)], [3, 2]), [1])",
                (Arg((3, 4), DataType.BFloat16),),
            ),
        ),
        doc="arg without the broadcast axes dims.",
    ),
)


def _expand(rec: Recorder, arg: Operand, shape: Sequence[Operand]) -> TensorView:
    return expand(rec, arg, shape)


def expand(rec: Recorder, arg: Operand, shape: Sequence[Operand], op: str = "expand") -> TensorView:
    """Record, for an op, the widening of broadcast axes to ``shape``; -1 keeps an axis."""
    tensor = rec.tensor(arg, op, "arg")
    sizes = rec.extents(shape, op, "shape")
    if len(sizes) < tensor.ndim:
        raise DefinitionError(f"{op}: shape has {len(sizes)} entries for a tensor with {tensor.ndim} axes.")
    for axis, size in enumerate(sizes):
        if isinstance(size, int) and size < -1:
            msg = f"{op}: invalid expand size {size} for axis {axis}; sizes are 0 or more, or -1 to keep one."
            raise DefinitionError(msg)
    if len(sizes) > tensor.ndim:
        extra = len(sizes) - tensor.ndim
        tensor = broadcast(rec, tensor, [True] * extra + [False] * tensor.ndim)
    if all(_keeps(tensor.extents[i], size) for i, size in enumerate(sizes)):
        return tensor
    try:
        return tensor_at(rec.emit(EXPAND, [tensor], shape=sizes))
    except DefinitionError as error:
        raise DefinitionError(str(error).replace("expand:", f"{op}:", 1)) from None


def _keeps(extent: Extent, size: Extent) -> bool:
    return (isinstance(size, int) and size == -1) or size == extent


def _infer_expand(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    shape = attrs["shape"]
    sizes = shape if isinstance(shape, tuple) else ()
    logical = []
    for position, (axis, size) in enumerate(zip(tensor.domain.axes, sizes, strict=True)):
        extent = axis.visible_extent
        if isinstance(size, int) and size == -1:
            logical.append(axes.copy(axis))
        elif axis.is_broadcast and (axis.expanded is None or isinstance(axis.expanded, Scalar)):
            # A symbolic size of an expand may turn out to be 1; others are resolved when inputs are bound.
            logical.append(axes.fresh(1, IterType.BROADCAST, None if size == 1 else _as_extent(size)))
        elif axis.kind is IterType.SYMBOLIC:
            logical.append(axes.fresh(_as_extent(size), IterType.SYMBOLIC))
        elif same_extent(extent, _as_extent(size)):
            logical.append(axes.copy(axis))
        else:
            raise DefinitionError(f"expand: invalid expand size {size} for axis {position}, which has size {extent}.")
    return (Result(tensor.dtype, TensorDomain(logical=tuple(logical))),)


def _as_extent(size: object) -> Extent:
    if isinstance(size, int | Scalar):
        return size
    raise DefinitionError(f"{size!r} is not a size.")


def _reference_expand(x: Array, *, shape: tuple[int, ...]) -> Array:
    sizes = tuple(n if s == -1 else s for n, s in zip(x.shape, shape, strict=True))
    return np.broadcast_to(x, sizes)


def _element_expand(e: Element) -> Term:
    source = tensor_at(e.inputs)
    index = tuple(
        t.index(0) if axis.is_broadcast and axis.expanded is None else i
        for axis, i in zip(source.domain.axes, e.index, strict=True)
    )
    return e.read(0, index)


EXPAND = register(
    OpDef(
        name="expand",
        kind=OpKind.EXPAND,
        frontend=_expand,
        infer=_infer_expand,
        reference=_reference_expand,
        element=_element_expand,
        samples=(
            Sample("fd.ops.expand(a, [3, 4])", (Arg((3, 1)),)),
            Sample("fd.ops.expand(a, shape=[-1, 5])", (Arg((3, 1), DataType.Half),)),
            Sample("fd.ops.expand(a, [2, 3, 4])", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.expand(a, [3])", (Arg((), DataType.Double),)),
            Sample("fd.ops.expand(a, [0, 4])", (Arg((1, 4), DataType.Bool),)),
            Sample("fd.ops.expand(a, [3, 4])"),
            Sample("fd.ops.expand(a, [-1, -1])"),
            Sample("fd.ops.expand(a, [fd.ops.size(b, 0), 4])", (Arg((1, 4)), Arg((5,)))),
            Sample("fd.ops.expand(a, fd.ops.shape(b))", (Arg((1, 4), DataType.BFloat16), Arg((3, 4)))),
            Sample("fd.ops.sum(fd.ops.expand(a, [fd.define_scalar(3), 4]), [0])", (Arg((1, 4)),)),
        ),
        doc="arg with its broadcast axes widened to shape, without copying.",
    ),
)

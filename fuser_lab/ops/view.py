"""Copies, permutations and reshapes: ops that move elements and compute nothing."""

import enum
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from fuser_lab import ir
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import wholes
from fuser_lab.ops.operands import known_ints, linear_index, tensor_at, unique_dims
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, Step, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Result


def _copy_domain(tensor: ir.TensorView, axes: AxisFactory) -> ir.TensorDomain:
    return ir.TensorDomain(logical=tuple(axes.copy(axis) for axis in tensor.domain.axes))


def _identity(name: str, doc: str) -> OpDef:
    def frontend(rec: Recorder, x: Operand, /) -> ir.Val:
        return rec.emit(entry, [rec.tensor(x, name, "x")])[0]

    def infer(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
        del attrs
        tensor = tensor_at(inputs)
        return (Result(tensor.dtype, _copy_domain(tensor, axes)),)

    entry = OpDef(
        name=name,
        kind=ir.OpKind.COPY,
        frontend=frontend,
        infer=infer,
        reference=lambda x: x,
        element=lambda e: e.read(0, e.index),
        samples=(
            Sample(f"fd.ops.{name}(a)"),
            Sample(f"fd.ops.{name}(a)", (Arg((), DataType.Half),)),
            Sample(f"fd.ops.{name}(a)", (Arg((0, 3), DataType.Bool),)),
            Sample(f"fd.ops.{name}(a)", (Arg((2, 1, 3), DataType.ComplexFloat),)),
            Sample(f"fd.ops.neg(fd.ops.{name}(a))", (Arg((4,), DataType.Int),)),
        ),
        doc=doc,
        positional_only=True,
    )
    return register(entry)


SET = _identity("set", "A copy of x.")
SEGMENT_SET = _identity("segment_set", "A copy of x that asks the segmenter to end a segment here.")


def _permute(rec: Recorder, arg: Operand, dims: Sequence[int]) -> ir.Val:
    tensor = rec.tensor(arg, "permute", "arg")
    axes = wholes(dims, "permute", "dims")
    if len(axes) != tensor.ndim:
        raise DefinitionError(f"permute: dims={axes} has {len(axes)} entries for a tensor with {tensor.ndim} axes.")
    order = unique_dims(axes, tensor.ndim, "permute")
    if order == tuple(range(tensor.ndim)):
        return rec.emit(SET, [tensor])[0]
    return rec.emit(PERMUTE, [tensor], dims=order)[0]


def _infer_permute(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    root = tuple(axes.copy(axis) for axis in tensor.domain.axes)
    logical = tuple(root[d] for d in known_ints(attrs, "dims"))
    return (Result(tensor.dtype, ir.TensorDomain(root=root, logical=logical)),)


def _element_permute(e: Element) -> Term:
    order = known_ints(e.attrs, "dims")
    return e.read(0, tuple(e.index[order.index(axis)] for axis in range(len(order))))


PERMUTE = register(
    OpDef(
        name="permute",
        kind=ir.OpKind.COPY,
        frontend=_permute,
        infer=_infer_permute,
        reference=lambda x, *, dims: np.transpose(x, dims),
        element=_element_permute,
        samples=(
            Sample("fd.ops.permute(a, [1, 0])"),
            Sample("fd.ops.permute(a, dims=[-1, 0, 1])", (Arg((2, 3, 4), DataType.Half),)),
            Sample("fd.ops.permute(a, [0, 1])"),
            Sample("fd.ops.permute(a, (2, 0, 1))", (Arg((3, 1, 4), DataType.ComplexFloat),)),
            Sample("fd.ops.permute(a, [1, 0])", (Arg((0, 4), DataType.Bool),)),
        ),
        doc="arg with its axes in the order dims (axis i of the result is axis dims[i] of arg).",
    ),
)


def _stride_order(rec: Recorder, arg: Operand, stride_order: Sequence[int]) -> ir.Val:
    tensor = rec.tensor(arg, "stride_order", "arg")
    ranks = wholes(stride_order, "stride_order", "stride_order")
    if not ranks:
        return rec.emit(SET, [tensor])[0]
    if sorted(ranks) != list(range(tensor.ndim)):
        raise DefinitionError(f"stride_order: {ranks} is not a permutation of 0..{tensor.ndim - 1}.")
    return rec.emit(STRIDE_ORDER, [tensor], stride_order=tuple(ranks))[0]


def _infer_stride_order(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    logical = tuple(axes.copy(axis) for axis in tensor.domain.axes)
    allocation = ir.allocation_of(known_ints(attrs, "stride_order"))
    return (Result(tensor.dtype, ir.TensorDomain(logical=logical, allocation=allocation)),)


STRIDE_ORDER = register(
    OpDef(
        name="stride_order",
        kind=ir.OpKind.COPY,
        frontend=_stride_order,
        infer=_infer_stride_order,
        reference=lambda x, *, stride_order: in_memory_order(x, ir.allocation_of(stride_order)),
        element=lambda e: e.read(0, e.index),
        samples=(
            Sample("fd.ops.stride_order(a, [0, 1])"),
            Sample("fd.ops.stride_order(a, stride_order=[1, 0, 2])", (Arg((2, 3, 4), DataType.BFloat16),)),
            Sample("fd.ops.stride_order(a, [])"),
            Sample("fd.ops.stride_order(a, [0, 1])", (Arg((0, 4), DataType.Int),)),
            Sample("fd.ops.stride_order(a, [0, 2, 1])", (Arg((3, 1, 4), DataType.Double),)),
            Sample("fd.ops.stride_order(a, [])", (Arg((), DataType.Bool),)),
        ),
        doc="A copy of arg whose memory layout is given: stride_order[i] is the rank of axis i, 0 = fastest.",
    ),
)


def in_memory_order(x: Array, allocation: tuple[int, ...]) -> Array:
    """Return a copy of ``x`` that is dense when its axes are taken in ``allocation`` order."""
    dense = np.ascontiguousarray(np.transpose(x, allocation))
    return np.transpose(dense, np.argsort(allocation))


def _reshape(rec: Recorder, arg: Operand, new_shape: Sequence[Operand]) -> ir.Val:
    tensor = rec.tensor(arg, "reshape", "arg")
    sizes = rec.extents(new_shape, "reshape", "new_shape")
    _check_sizes(sizes)
    return rec.emit(RESHAPE, [tensor], new_shape=sizes)[0]


def _check_sizes(sizes: Sequence[ir.Extent]) -> None:
    constants = [s for s in sizes if isinstance(s, int)]
    if constants.count(-1) > 1:
        raise DefinitionError(f"reshape: a maximum of one value of -1 can be given, new_shape is {_show(sizes)}.")
    if any(s < -1 for s in constants):
        msg = f"reshape: new_shape is {_show(sizes)}; its entries are sizes, 0 or more, or -1 for the remaining size."
        raise DefinitionError(msg)


def _show(sizes: Sequence[ir.Extent]) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"


def _infer_reshape(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    shape = attrs["new_shape"]
    sizes = tuple(s for s in shape if isinstance(s, int | ir.Scalar)) if isinstance(shape, tuple) else ()
    old = tensor.extents
    if not all(isinstance(s, int) for s in (*sizes, *old)):
        # Sizes are not known yet; the decomposition is determined when inputs are bound.
        root = tuple(axes.copy(axis) for axis in tensor.domain.axes)
        logical = tuple(sized_axis(axes.symbol() if size == -1 else size, axes) for size in sizes)
        return (Result(tensor.dtype, ir.TensorDomain(root=root, logical=logical)),)
    new = resolve_shape(tuple(s for s in sizes if isinstance(s, int)), tensor.shape)
    return (Result(tensor.dtype, reshape_domain(tensor, new, axes)),)


def sized_axis(size: ir.Extent, axes: AxisFactory) -> ir.IterDomain:
    """Return a new axis of a size: a broadcast if it is 1, undecided as long as it is unknown."""
    if not isinstance(size, int):
        return axes.fresh(size, ir.IterType.SYMBOLIC)
    return axes.fresh(1, ir.IterType.BROADCAST) if size == 1 else axes.fresh(size)


def resolve_shape(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``new`` with -1 replaced by the size that matches ``old``'s elements.

    Raises
    ------
    DefinitionError
        If the element counts differ.
    """
    _check_sizes(new)
    total = prod(old)
    count = prod(s for s in new if s != -1)
    if -1 in new and (total == 0 or (count and total % count == 0)):
        new = tuple((total // count if total else 0) if s == -1 else s for s in new)
    if -1 in new or prod(new) != total:
        raise DefinitionError(f"reshape: total element counts must match, given {list(old)} and new_shape {list(new)}.")
    return new


def reshape_domain(tensor: ir.TensorView, new: tuple[int, ...], axes: AxisFactory) -> ir.TensorDomain:
    """Return the result's axes with the merges and splits that lead from the operand's axes to them.

    Squeezed axes end, and broadcast sizes are new axes.
    """
    root = tuple(axes.copy(axis) for axis in tensor.domain.axes)
    if prod(new) == 0:
        logical = tuple(axes.fresh(1, ir.IterType.BROADCAST) if n == 1 else axes.fresh(n) for n in new)
        return ir.TensorDomain(root=root, logical=logical)
    transforms: list[ir.DomainTransform] = []
    made: list[ir.IterDomain] = []
    reached: ir.IterDomain | None = None  # what is merged so far and not split off
    for step, start, place in _reshape_steps(root, new):
        if step is _Walk.BROADCAST:
            made.append(axes.fresh(1, ir.IterType.BROADCAST))
            continue
        source = reached or root[start]
        if step is _Walk.MERGE:
            reached = axes.fresh(_size([source, root[place]]))
            transforms.append(ir.Merge(outer=source, inner=root[place], result=reached))
        elif step is _Walk.SPLIT:
            outer, reached = axes.fresh(new[place]), axes.fresh(_size([source]) // new[place])
            transforms.append(ir.Split(source=source, factor=_size([reached]), outer=outer, inner=reached))
            made.append(outer)
        elif step is _Walk.KEEP:
            made.append(source)
            reached = None
    return ir.TensorDomain(root=root, logical=tuple(made), transforms=tuple(transforms))


def _size(run: Sequence[ir.IterDomain]) -> int:
    return prod(axis.visible_extent for axis in run if isinstance(axis.visible_extent, int))


class _Walk(enum.Enum):
    """What a reshape does with the axis of the operand that it has reached, or with a size of the result."""

    KEEP = enum.auto()
    MERGE = enum.auto()
    SPLIT = enum.auto()
    SQUEEZE = enum.auto()
    BROADCAST = enum.auto()


def _reshape_steps(axes: Sequence[ir.IterDomain], new: tuple[int, ...]) -> Iterator[tuple[_Walk, int, int]]:
    """Yield how a reshape makes new sizes: each step, the axis it starts from, and the axis or size that it is about.

    Broadcast axes of the operand that meet no size 1 are squeezed, and sizes 1 that meet no axis are broadcast. Other
    axes are split as soon as the next size divides what is left, and merged otherwise; an axis whose size is 1 only
    in this call is merged (nvFuser: csrc/transform_view.cpp:501-660, findTransformation).
    """
    sizes = [_size([axis]) for axis in axes]
    # Where the result has no axes, an axis whose size is 1 only in this call has nothing that it may be merged with.
    ones = [not new or (axis.is_broadcast and axis.expanded is None) for axis in axes]
    left = right = start = 0
    size = sizes[0] if sizes else 0
    while left < len(sizes) or right < len(new):
        following, target = left + 1, new[right] if right < len(new) else 0
        more = following < len(sizes)
        if more and sizes[following] == 1 and not ones[following] and (right + 1 >= len(new) or new[right + 1] != 1):
            yield _Walk.MERGE, start, following
            left = following
            continue
        if target and size == target:
            yield _Walk.KEEP, start, right
            left, right = following, right + 1
        elif target == 1:
            yield _Walk.BROADCAST, 0, right
            right += 1
            continue
        elif size == 1 and ones[left]:
            yield _Walk.SQUEEZE, start, left
            left = following
        elif more and ones[following]:
            yield _Walk.SQUEEZE, start, following
            left = following
            continue
        elif target and size % target == 0:
            yield _Walk.SPLIT, start, right
            size, right = size // target, right + 1
            continue
        else:
            yield _Walk.MERGE, start, following
            left, size = following, size * sizes[following]
            continue
        start = left
        size = sizes[left] if left < len(sizes) else 0


def _built_reshape(recorded: ir.Expr, bound: ir.Expr) -> tuple[Step, ...] | None:
    """Return the squeeze, reshape and broadcast into which nvFuser splits a reshape; empty if the sizes are equal.

    No elements are zeros of the new shape (nvFuser: csrc/transform_view.cpp:969-990, csrc/ops/alias.cpp:70-92).
    """
    del recorded
    tensor, new = tensor_at(bound.inputs), bound.out.shape
    if 0 in tensor.shape:
        zero = ir.Scalar(name="", dtype=tensor.dtype, value=tensor.dtype.numpy.type(0).item())
        return (Step(op="full", fill=zero, attrs=(("shape", new), ("dtype", tensor.dtype))),)
    walk = list(_reshape_steps(tensor.domain.axes, new))
    squeezed = tuple(place for step, _, place in walk if step is _Walk.SQUEEZE)
    added = {place for step, _, place in walk if step is _Walk.BROADCAST}
    is_changed = any(step in {_Walk.MERGE, _Walk.SPLIT} for step, *_ in walk)
    flags = tuple(position in added for position in range(len(new)))
    steps = []
    if any(not tensor.domain.axes[place].is_broadcast for place in squeezed):
        return None  # squeeze accepts broadcast axes only
    if squeezed:
        steps.append(Step(op="squeeze", suffix="squeezed", attrs=(("dims", squeezed), ("squeeze_expanded", False))))
    if is_changed:
        sizes = tuple(n for n, is_new in zip(new, flags, strict=True) if not is_new)
        steps.append(Step(op="reshape", suffix="reshaped", attrs=(("new_shape", sizes),)))
    if added:
        steps.append(Step(op="broadcast", attrs=(("is_broadcast_dim", flags),)))
    return None if is_changed and len(steps) == 1 else tuple(steps)


def _element_reshape(e: Element) -> Term:
    source, out = tensor_at(e.inputs), e.out
    return e.read(0, _map_index(source.shape, out.shape, e.index))


def _map_index(old: tuple[int, ...], new: tuple[int, ...], index: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the operand's index: every run of axes is linearized and split separately."""
    if prod(old) == 0:
        return tuple(t.index(0) for _ in old)
    result: list[Term] = []
    left, right = list(range(len(old))), list(range(len(new)))
    while left:
        run, targets = [left.pop(0)], [right.pop(0)] if right else []
        while prod(old[i] for i in run) != prod(new[i] for i in targets):
            if prod(old[i] for i in run) < prod(new[i] for i in targets):
                run.append(left.pop(0))
            else:
                targets.append(right.pop(0))
        position = linear_index([index[i] for i in targets], [new[i] for i in targets])
        for place, axis in enumerate(run):
            inner = prod(old[i] for i in run[place + 1 :])
            outer = position if place == 0 else t.apply("mod", position, inner * old[axis])
            result.append(t.apply("floordiv", outer, inner))
    return tuple(result)


RESHAPE = register(
    OpDef(
        name="reshape",
        kind=ir.OpKind.RESHAPE,
        frontend=_reshape,
        infer=_infer_reshape,
        reference=lambda x, *, new_shape: np.reshape(x, new_shape),
        element=_element_reshape,
        builds=_built_reshape,
        samples=(
            Sample("fd.ops.reshape(a, [12])"),
            Sample("fd.ops.reshape(a, new_shape=[2, -1])"),
            Sample("fd.ops.reshape(a, [4, 3])", (Arg((3, 4), DataType.Half),)),
            Sample("fd.ops.reshape(a, [3, 1, 4])", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.reshape(a, [1])", (Arg((), DataType.Double),)),
            Sample("fd.ops.reshape(a, [])", (Arg((1, 1)),)),
            Sample("fd.ops.reshape(a, [0, 7])", (Arg((3, 0), DataType.Bool),)),
            Sample("fd.ops.reshape(a, [2, 6, 2])", (Arg((2, 3, 4), DataType.ComplexDouble),)),
            Sample("fd.ops.reshape(a, [fd.ops.size(a, 0) * fd.ops.size(a, 1)])"),
            Sample(
                "fd.ops.reshape(a, [fd.define_scalar(2), -1, fd.define_scalar(3)])", (Arg((3, 4), DataType.BFloat16),),
            ),
            Sample("fd.ops.reshape(a, fd.ops.shape(b))", (Arg((3, 4)), Arg((2, 6)))),
            Sample("fd.ops.add(fd.ops.reshape(a, fd.ops.shape(b)), c)", (Arg((3, 4)), Arg((12, 1)), Arg((12, 5)))),
        ),
        doc="arg's elements in row-major order under a new shape; one entry may be -1.",
    ),
)

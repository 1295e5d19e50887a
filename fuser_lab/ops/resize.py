"""Slice and pad: ops that resize axes."""

from collections.abc import Sequence

import numpy as np

from fuser_lab import ir
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import flag
from fuser_lab.ops.operands import known_ints, tensor_at
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import COPY, OPS, Arg, OpDef, Recorder, Sample, Step, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Result
from fuser_lab.ops.view import sized_axis


def _resize_axis(axis: ir.IterDomain, left: ir.Extent, right: ir.Extent, axes: AxisFactory) -> ir.IterDomain:
    """Return the axis after adding ``left`` and ``right`` elements (symbolic sizes stay unknown)."""
    extent = axis.visible_extent
    if not isinstance(left, int) or not isinstance(right, int):
        return axes.fresh(axes.symbol(), ir.IterType.SYMBOLIC)
    if isinstance(extent, int):
        return sized_axis(extent + left + right, axes)
    # A size plus two cannot be 1.
    return axes.fresh(axes.symbol(), ir.IterType.ITERATION if left + right > 1 else ir.IterType.SYMBOLIC)


def _resize_domain(
    tensor: ir.TensorView, amounts: Sequence[tuple[ir.Extent, ir.Extent]], axes: AxisFactory,
) -> ir.TensorDomain:
    root = tuple(axes.copy(axis) for axis in tensor.domain.axes)
    logical: list[ir.IterDomain] = []
    transforms: list[ir.DomainTransform] = []
    for axis, (left, right) in zip(root, amounts, strict=True):
        if left == 0 and right == 0:
            logical.append(axis)
            continue
        result = _resize_axis(axis, left, right, axes)
        transforms.append(ir.Resize(source=axis, left=left, right=right, result=result))
        logical.append(result)
    return ir.TensorDomain(root=root, logical=tuple(logical), transforms=tuple(transforms))


def _slice(
    rec: Recorder,
    arg: Operand,
    start_indices: Sequence[Operand],
    end_indices: Sequence[Operand],
    strides: Sequence[Operand] | None = None,
    manual_normalization: bool = False,
) -> ir.Val:
    tensor = rec.tensor(arg, "slice", "arg")
    starts = rec.extents(start_indices, "slice", "start_indices")
    ends = rec.extents(end_indices, "slice", "end_indices")
    steps = rec.extents(strides, "slice", "strides") if strides is not None else (1,) * tensor.ndim
    for name, indices in (("start_indices", starts), ("end_indices", ends), ("strides", steps)):
        if len(indices) != tensor.ndim:
            raise DefinitionError(f"slice: {name} has {len(indices)} entries for a tensor with {tensor.ndim} axes.")
    for axis, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if not isinstance(step, int) or step < 1:
            msg = f"slice: strides are numbers above 0, given {step} for axis {axis}; flip reverses an axis."
            raise DefinitionError(msg)
        if isinstance(start, int) and start < 0:
            raise DefinitionError(f"slice: axis {axis} begins at {start}; start_indices are 0 or more.")
        if isinstance(end, int) and end < (start if isinstance(start, int) else 0):
            msg = f"slice: axis {axis} has bounds [{start}, {end}); they must satisfy 0 <= start <= end."
            raise DefinitionError(msg)
    exact = flag(manual_normalization, "slice", "manual_normalization")
    constant_steps = [step for step in steps if isinstance(step, int)]  # all, as was checked
    if any(step != 1 for step in constant_steps):
        return _record_strided(rec, tensor, starts, ends, constant_steps, exact=exact)
    return rec.emit(SLICE, [tensor], start_indices=starts, end_indices=ends, manual_normalization=exact)[0]


def _record_strided(
    rec: Recorder, tensor: ir.TensorView, starts: Sequence[ir.Extent], ends: Sequence[ir.Extent],
    steps: Sequence[int], *, exact: bool,
) -> ir.Val:
    """Record a slice with steps: since nvFuser's slice has no steps, axes with a step above 1 are read at indices."""
    strided = [axis for axis, step in enumerate(steps) if step != 1]
    sizes = tensor.extents
    if exact and all(isinstance(n, int) for n in (*sizes, *starts, *ends)):
        _bounds(tensor, {"start_indices": tuple(starts), "end_indices": tuple(ends), "manual_normalization": True})
    result: ir.Val = tensor
    if any(axis not in strided and not _is_whole_axis(tensor, starts, ends, axis) for axis in range(tensor.ndim)):
        first = tuple(0 if axis in strided else start for axis, start in enumerate(starts))
        last = tuple(sizes[axis] if axis in strided else end for axis, end in enumerate(ends))
        result = rec.emit(SLICE, [tensor], start_indices=first, end_indices=last, manual_normalization=exact)[0]
    for axis in strided:
        size, step = sizes[axis], steps[axis]
        begin = _clamp_bound(rec, starts[axis], size)
        stop = _clamp_bound(rec, ends[axis], size)
        if isinstance(begin, int) and isinstance(stop, int):
            length: Operand = -(-max(stop - begin, 0) // step)
        else:
            free = OPS["maximum"].frontend(rec, OPS["sub"].frontend(rec, stop, begin), 0)
            length = OPS["div"].frontend(rec, OPS["add"].frontend(rec, free, step - 1), step)
        places = OPS["iota"].frontend(rec, length, begin, step)
        result = OPS["index_select"].frontend(rec, result, places, axis)
    return result


def _is_whole_axis(tensor: ir.TensorView, starts: Sequence[ir.Extent], ends: Sequence[ir.Extent], axis: int) -> bool:
    size, start, end = tensor.extents[axis], starts[axis], ends[axis]
    return start == 0 and (end == size or (isinstance(size, int) and isinstance(end, int) and end >= size))


def _clamp_bound(rec: Recorder, bound: ir.Extent, size: ir.Extent) -> Operand:
    """Return a bound clamped to an axis; one that depends on inputs may count from the end."""
    if isinstance(bound, int):
        return min(bound, size) if isinstance(size, int) else OPS["minimum"].frontend(rec, bound, size)
    if bound == size:
        return bound
    below = OPS["lt"].frontend(rec, bound, 0)
    counted = OPS["where"].frontend(rec, below, OPS["add"].frontend(rec, bound, size), bound)
    return OPS["maximum"].frontend(rec, OPS["minimum"].frontend(rec, counted, size), 0)


def _bounds(tensor: ir.TensorView, attrs: Attrs) -> list[tuple[int, int]]:
    """Return [start, end) per axis of a tensor of known sizes.

    Negative bounds count from the end, and bounds are clamped, unless ``manual_normalization`` promises that they are
    in range.
    """
    starts, ends = known_ints(attrs, "start_indices"), known_ints(attrs, "end_indices")
    pairs = []
    for axis, (size, start, end) in enumerate(zip(tensor.shape, starts, ends, strict=True)):
        if attrs["manual_normalization"]:
            if not 0 <= start <= end <= size:
                raise DefinitionError(
                    f"slice: axis {axis} of size {size} has bounds [{start}, {end}), which manual_normalization=True "
                    "does not adjust; they must be within the size."
                )
            pairs.append((start, end))
            continue
        begin = min(start + size if start < 0 else start, size)
        begin = max(begin, 0)
        pairs.append((begin, max(begin, min(end + size if end < 0 else end, size))))
    return pairs


def _infer_slice(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    starts, ends = attrs["start_indices"], attrs["end_indices"]
    if all(isinstance(n, int) for n in (*tensor.extents, *_entries(starts), *_entries(ends))):
        bounds = _bounds(tensor, attrs)
        amounts: list[tuple[ir.Extent, ir.Extent]] = [
            (-start, end - size) for size, (start, end) in zip(tensor.shape, bounds, strict=True)
        ]
    else:
        amounts = [
            _amounts_before_binding(extent, start, end, axes)
            for extent, start, end in zip(tensor.extents, _entries(starts), _entries(ends), strict=True)
        ]
    return (Result(tensor.dtype, _resize_domain(tensor, amounts, axes)),)


def _entries(value: object) -> tuple[ir.Extent, ...]:
    return tuple(v for v in value if isinstance(v, int | ir.Scalar)) if isinstance(value, tuple) else ()


def _amounts_before_binding(
    extent: ir.Extent, start: ir.Extent, end: ir.Extent, axes: AxisFactory,
) -> tuple[ir.Extent, ir.Extent]:
    """Return what a slice adds to an axis at both ends, as new symbols if it is not known yet."""
    if start == 0 and end == extent:
        return 0, 0
    if isinstance(extent, int) and isinstance(start, int) and isinstance(end, int):
        begin = min(start, extent)
        return -begin, max(begin, min(end, extent)) - extent
    return (-start if isinstance(start, int) else axes.symbol()), axes.symbol()


def _built_slice(recorded: ir.Expr, bound: ir.Expr) -> tuple[Step, ...] | None:
    """Return a copy for a slice that the definition says is the whole tensor (csrc/ops/alias.cpp:933-965)."""
    del bound
    tensor = tensor_at(recorded.inputs)
    starts, ends = _entries(recorded.attr("start_indices")), _entries(recorded.attr("end_indices"))
    return COPY if all(_is_whole_axis(tensor, starts, ends, axis) for axis in range(tensor.ndim)) else None


def _reference_slice(
    x: Array, *, start_indices: tuple[int, ...], end_indices: tuple[int, ...], manual_normalization: bool,
) -> Array:
    del manual_normalization  # if it holds, the bounds have the same meaning as in Python
    return x[tuple(slice(a, b) for a, b in zip(start_indices, end_indices, strict=True))]


def _element_slice(e: Element) -> Term:
    bounds = _bounds(tensor_at(e.inputs), e.attrs)
    return e.read(0, tuple(i + start for i, (start, _) in zip(e.index, bounds, strict=True)))


SLICE = register(
    OpDef(
        name="slice",
        kind=ir.OpKind.RESIZE,
        frontend=_slice,
        infer=_infer_slice,
        reference=_reference_slice,
        element=_element_slice,
        builds=_built_slice,
        samples=(
            Sample("fd.ops.slice(a, [1, 0], [3, 2])"),
            Sample(
                "fd.ops.slice(a, start_indices=[0, 1], end_indices=[3, 3], strides=[1, 1])",
                (Arg((3, 4), DataType.Half),),
            ),
            Sample("fd.ops.slice(a, [0, 1], [3, 99], [1, 2])"),
            Sample("fd.ops.slice(a, [1, 0], [5, 9], [2, 4])", (Arg((5, 9), DataType.BFloat16),)),
            Sample("fd.ops.neg(fd.ops.slice(a, [4, 0], [2 + 2, 3], [3, 1]))", (Arg((7, 4), DataType.Int),)),
            Sample(
                "fd.ops.slice(a, [fd.define_scalar(1), 0], [fd.ops.size(a, 0) - 1, fd.ops.size(a, 1) - 9], [2, 3])",
                (Arg((6, 8), DataType.Double),),
            ),
            Sample("fd.ops.slice(a, [0, 0], [99, 99])", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.slice(a, [2, 4], [2, 4])", (Arg((3, 4), DataType.Bool),)),
            Sample("fd.ops.slice(a, [5, 0], [6, 4])"),
            Sample("fd.ops.slice(a, [0, 0], [3, 1])", (Arg((3, 1), DataType.ComplexFloat),)),
            Sample("fd.ops.slice(a, [], [])", (Arg(()),)),
            Sample("fd.ops.slice(a, [0, 2], [3, 4], None, True)"),
            Sample(
                "fd.ops.slice(a, [fd.define_scalar(1), 0], [fd.ops.size(a, 0), fd.define_scalar(2)])",
                (Arg((3, 4), DataType.BFloat16),),
            ),
            Sample(
                "fd.ops.slice(a, [0, 1], [fd.ops.size(a, 0) - 1, fd.ops.size(a, 1) + 3])",
                (Arg((3, 4), DataType.Double),),
            ),
            Sample("fd.ops.mul(fd.ops.slice(a, [0, fd.define_scalar(1)], [3, fd.define_scalar(2)]), a)"),
        ),
        doc="The range [start, end) of each axis, with a step of strides; bounds are clamped to the size.",
    ),
)


def _pad(rec: Recorder, arg: Operand, pad_widths: Sequence[Operand], value: Operand = None) -> ir.Val:
    tensor = rec.tensor(arg, "pad", "arg")
    widths = rec.extents(pad_widths, "pad", "pad_widths")
    if len(widths) % 2 or len(widths) > 2 * tensor.ndim:
        raise DefinitionError(
            f"pad: pad_widths has {len(widths)} entries; it must have pairs (left, right), innermost axis first, "
            f"for at most {tensor.ndim} axes."
        )
    fill = rec.value(0 if value is None else value, "pad", "value")
    if not isinstance(fill, ir.Scalar):
        raise ArgumentTypeError(f"pad: value must be a scalar, given the tensor {fill.name}.")
    if value is not None and fill.dtype.kind is not tensor.dtype.kind:
        msg = f"pad: value has dtype {fill.dtype!r}, which is of a different kind from the tensor's {tensor.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(PAD, [tensor, convert(rec, fill, tensor.dtype, "pad", "value")], pad_widths=widths)[0]


def _pad_amounts(ndim: int, attrs: Attrs) -> list[tuple[ir.Extent, ir.Extent]]:
    value = attrs["pad_widths"]
    widths: list[ir.Extent] = [v for v in value if isinstance(v, int | ir.Scalar)] if isinstance(value, tuple) else []
    amounts: list[tuple[ir.Extent, ir.Extent]] = [(0, 0)] * ndim
    for pair in range(len(widths) // 2):
        amounts[ndim - 1 - pair] = (widths[2 * pair], widths[2 * pair + 1])
    return amounts


def _infer_pad(inputs: tuple[ir.Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    amounts = _pad_amounts(tensor.ndim, attrs)
    for axis, (extent, (left, right)) in enumerate(zip(tensor.extents, amounts, strict=True)):
        if isinstance(extent, int) and isinstance(left, int) and isinstance(right, int) and extent + left + right < 0:
            raise DefinitionError(f"pad: axis {axis} of size {extent} cannot be padded by ({left}, {right}).")
    return (Result(tensor.dtype, _resize_domain(tensor, amounts, axes)),)


def _built_pad(recorded: ir.Expr, bound: ir.Expr) -> tuple[Step, ...] | None:
    """Return a copy for a pad whose widths the definition says are 0 (csrc/ops/alias.cpp:589-615)."""
    del bound
    return COPY if all(width == 0 for width in _entries(recorded.attr("pad_widths"))) else None


def _reference_pad(x: Array, fill: Array, *, pad_widths: tuple[int, ...]) -> Array:
    amounts = [(0, 0)] * x.ndim
    for pair in range(len(pad_widths) // 2):
        amounts[x.ndim - 1 - pair] = (pad_widths[2 * pair], pad_widths[2 * pair + 1])
    shape = tuple(n + left + right for n, (left, right) in zip(x.shape, amounts, strict=True))
    out = np.full(shape, fill, dtype=x.dtype)
    sections = [
        (first, max(n + min(right, 0) - first, 0), max(left, 0))
        for n, (left, right) in zip(x.shape, amounts, strict=True)
        for first in [max(-left, 0)]
    ]
    source = tuple(slice(first, first + count) for first, count, _ in sections)
    out[tuple(slice(place, place + count) for _, count, place in sections)] = x[source]
    return out


def _element_pad(e: Element) -> Term:
    source = tensor_at(e.inputs)
    index = []
    inside: Term | None = None
    for i, extent, (left, right) in zip(e.index, source.shape, _pad_amounts(source.ndim, e.attrs), strict=True):
        place = i if left == 0 else i - t.index(left if isinstance(left, int) else 0)
        index.append(place)
        checks = []
        if isinstance(left, int) and left > 0:
            checks.append(i >= left)
        if isinstance(right, int) and right > 0:
            checks.append(i < (left if isinstance(left, int) else 0) + extent)
        for check in checks:
            inside = check if inside is None else inside & check
    value = e.read(0, tuple(index))
    if inside is None:
        return value
    return t.select(inside, value, e.read(1, ()))


PAD = register(
    OpDef(
        name="pad",
        kind=ir.OpKind.RESIZE,
        frontend=_pad,
        infer=_infer_pad,
        reference=_reference_pad,
        element=_element_pad,
        builds=_built_pad,
        samples=(
            Sample("fd.ops.pad(a, [1, 2])"),
            Sample("fd.ops.pad(a, pad_widths=[0, 1, 2, 0], value=2.5)"),
            Sample("fd.ops.pad(a, [-1, 1, 0, -2])", (Arg((3, 4), DataType.Half),)),
            Sample("fd.ops.pad(a, [1, 1], 7)", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.pad(a, [1, 0], True)", (Arg((3, 4), DataType.Bool),)),
            Sample("fd.ops.pad(a, [0, 1])", (Arg((3, 4), DataType.ComplexFloat),)),
            Sample("fd.ops.pad(a, [])", (Arg(()),)),
            Sample("fd.ops.pad(a, [2, 3])", (Arg((0,), DataType.Double),)),
            Sample("fd.ops.pad(a, [1, 0, 0, 2])", (Arg((1, 1), DataType.BFloat16),)),
            Sample("fd.ops.pad(a, [-2, -1])"),
            Sample("fd.ops.pad(a, [0, fd.ops.size(a, 0)])"),
            Sample(
                "fd.ops.pad(a, [fd.define_scalar(-1), fd.define_scalar(2)], fd.define_scalar(1.5))",
                (Arg((3, 4), DataType.BFloat16),),
            ),
            Sample("fd.ops.add(fd.ops.pad(a, [fd.define_scalar(-3), 0]), a)"),
        ),
        doc="arg with elements added (or, if negative, removed) at both ends of axes, innermost axis first.",
    ),
)

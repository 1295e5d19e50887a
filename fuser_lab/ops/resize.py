"""Slice, pad and cat: ops that resize axes."""

from collections.abc import Sequence

import numpy as np

from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError
from fuser_lab.ir import (
    DomainTransform,
    Extent,
    IterDomain,
    IterType,
    OpKind,
    Resize,
    Scalar,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import (
    Array,
    Attrs,
    AxisFactory,
    Element,
    OpDef,
    Operand,
    Recorder,
    Result,
    known_ints,
    register,
    same_extent,
    tensor_at,
    wrap_dim,
)
from fuser_lab.ops.view import SET


def _resized(axis: IterDomain, left: Extent, right: Extent, axes: AxisFactory) -> IterDomain:
    """Return the axis after adding ``left`` and ``right`` elements (symbolic sizes stay unknown)."""
    extent = axis.visible_extent
    if isinstance(extent, int) and isinstance(left, int) and isinstance(right, int):
        size = extent + left + right
        return axes.fresh(1, IterType.BROADCAST) if size == 1 else axes.fresh(size)
    return axes.fresh(axes.symbol())


def _resize_domain(
    tensor: TensorView, amounts: Sequence[tuple[Extent, Extent]], axes: AxisFactory,
) -> TensorDomain:
    root = tuple(axes.copy(axis) for axis in tensor.domain.axes)
    logical: list[IterDomain] = []
    transforms: list[DomainTransform] = []
    for axis, (left, right) in zip(root, amounts, strict=True):
        if left == 0 and right == 0:
            logical.append(axis)
            continue
        result = _resized(axis, left, right, axes)
        transforms.append(Resize(source=axis, left=left, right=right, result=result))
        logical.append(result)
    return TensorDomain(root=root, logical=tuple(logical), transforms=tuple(transforms))


def _slice(
    rec: Recorder,
    arg: Operand,
    start_indices: Sequence[Operand],
    end_indices: Sequence[Operand],
    strides: Sequence[Operand] | None = None,
    manual_normalization: bool = False,
) -> Val:
    tensor = rec.tensor(arg, "slice", "arg")
    starts = rec.extents(start_indices, "slice", "start_indices")
    ends = rec.extents(end_indices, "slice", "end_indices")
    steps = rec.extents(strides, "slice", "strides") if strides is not None else (1,) * tensor.ndim
    for name, given in (("start_indices", starts), ("end_indices", ends), ("strides", steps)):
        if len(given) != tensor.ndim:
            msg = f"slice: {name} has {len(given)} entries for a tensor with {tensor.ndim} axes."
            raise DefinitionError(msg)
    for axis, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if not isinstance(start, int) or not isinstance(end, int):
            msg = f"slice: the bounds of axis {axis} are symbolic, which is not implemented."
            raise UnsupportedError(msg)
        if step != 1:
            msg = f"slice: the stride of axis {axis} is {step}; nvFuser's slices have stride 1 only."
            raise DefinitionError(msg)
        if start < 0 or end < start:
            msg = f"slice: axis {axis} has bounds [{start}, {end}); they must satisfy 0 <= start <= end."
            raise DefinitionError(msg)
    return rec.emit(
        SLICE, [tensor], start_indices=starts, end_indices=ends, manual_normalization=manual_normalization,
    )[0]


def _bounds(tensor: TensorView, attrs: Attrs) -> list[tuple[int, int]]:
    """Return [start, end) per axis, clamped to the size as Python slices are."""
    pairs = []
    for extent, start, end in zip(
        tensor.extents, known_ints(attrs, "start_indices"), known_ints(attrs, "end_indices"), strict=True,
    ):
        size = extent if isinstance(extent, int) else max(end, start)
        pairs.append((min(start, size), min(end, size)))
    return pairs


def _infer_slice(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    amounts: list[tuple[Extent, Extent]] = []
    for extent, (start, end) in zip(tensor.extents, _bounds(tensor, attrs), strict=True):
        if isinstance(extent, int):
            amounts.append((-start, end - extent))
        else:
            amounts.append((-start, axes.symbol()))
    return (Result(tensor.dtype, _resize_domain(tensor, amounts, axes)),)


def _reference_slice(
    x: Array, *, start_indices: tuple[int, ...], end_indices: tuple[int, ...], manual_normalization: bool,
) -> Array:
    del manual_normalization
    return x[tuple(slice(a, b) for a, b in zip(start_indices, end_indices, strict=True))]


def _element_slice(e: Element) -> Term:
    bounds = _bounds(tensor_at(e.inputs), e.attrs)
    return e.read(0, tuple(i + start for i, (start, _) in zip(e.index, bounds, strict=True)))


SLICE = register(
    OpDef(
        name="slice",
        kind=OpKind.RESIZE,
        frontend=_slice,
        infer=_infer_slice,
        reference=_reference_slice,
        element=_element_slice,
        doc="The block [start, end) of each axis; bounds are clamped to the size.",
    ),
)


def _pad(rec: Recorder, arg: Operand, pad_widths: Sequence[Operand], value: Operand = None) -> Val:
    tensor = rec.tensor(arg, "pad", "arg")
    widths = rec.extents(pad_widths, "pad", "pad_widths")
    if len(widths) % 2 or len(widths) > 2 * tensor.ndim:
        msg = (
            f"pad: pad_widths has {len(widths)} entries; it takes pairs (left, right), innermost axis first, "
            f"for at most {tensor.ndim} axes."
        )
        raise DefinitionError(msg)
    fill = rec.value(0 if value is None else value, "pad", "value")
    if not isinstance(fill, Scalar):
        msg = f"pad: value must be a scalar, given the tensor {fill.name}."
        raise ArgumentTypeError(msg)
    if value is not None and fill.dtype.kind > tensor.dtype.kind:
        msg = f"pad: value has dtype {fill.dtype!r}, which does not fit a tensor of {tensor.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(PAD, [tensor, convert(rec, fill, tensor.dtype, "pad", "value")], pad_widths=widths)[0]


def _pad_amounts(ndim: int, attrs: Attrs) -> list[tuple[Extent, Extent]]:
    value = attrs["pad_widths"]
    widths: list[Extent] = [v for v in value if isinstance(v, int | Scalar)] if isinstance(value, tuple) else []
    amounts: list[tuple[Extent, Extent]] = [(0, 0)] * ndim
    for pair in range(len(widths) // 2):
        amounts[ndim - 1 - pair] = (widths[2 * pair], widths[2 * pair + 1])
    return amounts


def _infer_pad(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    amounts = _pad_amounts(tensor.ndim, attrs)
    for axis, (extent, (left, right)) in enumerate(zip(tensor.extents, amounts, strict=True)):
        if isinstance(extent, int) and isinstance(left, int) and isinstance(right, int) and extent + left + right < 0:
            msg = f"pad: axis {axis} of size {extent} cannot be padded by ({left}, {right})."
            raise DefinitionError(msg)
    return (Result(tensor.dtype, _resize_domain(tensor, amounts, axes)),)


def _reference_pad(x: Array, fill: Array, *, pad_widths: tuple[int, ...]) -> Array:
    amounts = [(0, 0)] * x.ndim
    for pair in range(len(pad_widths) // 2):
        amounts[x.ndim - 1 - pair] = (pad_widths[2 * pair], pad_widths[2 * pair + 1])
    shape = tuple(n + left + right for n, (left, right) in zip(x.shape, amounts, strict=True))
    out = np.full(shape, fill, dtype=x.dtype)
    target = tuple(slice(max(left, 0), n - max(right, 0)) for n, (left, right) in zip(shape, amounts, strict=True))
    source = tuple(
        slice(max(-left, 0), n - max(-right, 0)) for n, (left, right) in zip(x.shape, amounts, strict=True)
    )
    out[target] = x[source]
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
        kind=OpKind.RESIZE,
        frontend=_pad,
        infer=_infer_pad,
        reference=_reference_pad,
        element=_element_pad,
        doc="arg with elements added (or, if negative, removed) at both ends of axes, innermost axis first.",
    ),
)


def _cat(rec: Recorder, tensors: Sequence[Operand], dim: int = 0, manual_padding: bool = False) -> Val:
    operands = rec.tensors(tensors, "cat", "tensors")
    if not operands:
        msg = "cat: tensors is empty; at least one tensor is needed."
        raise DefinitionError(msg)
    first = operands[0]
    for other in operands[1:]:
        if other.ndim != first.ndim:
            msg = f"cat: tensors have {first.ndim} and {other.ndim} axes; they must have the same number."
            raise DefinitionError(msg)
        if other.dtype is not first.dtype:
            msg = f"cat: can't concatenate tensors with different data types, {first.dtype!r} and {other.dtype!r}."
            raise DefinitionError(msg)
    axis = wrap_dim(dim, first.ndim, "cat")
    if manual_padding:
        return rec.emit(CAT, operands, dim=axis)[0]
    for position in range(first.ndim):
        for other in operands[1:]:
            if position != axis and not same_extent(first.extents[position], other.extents[position]):
                msg = (
                    f"cat: sizes {first.extents[position]} and {other.extents[position]} differ on axis {position}; "
                    f"only axis {axis} may differ."
                )
                raise DefinitionError(msg)
    if len(operands) == 1:
        return rec.emit(SET, operands)[0]
    return rec.emit(CAT, _padded_for_cat(rec, operands, axis), dim=axis)[0]


def _padded_for_cat(rec: Recorder, operands: Sequence[TensorView], axis: int) -> list[Val]:
    sizes = [tv.extents[axis] for tv in operands]
    if not all(isinstance(s, int) for s in sizes):
        msg = f"cat: the size of axis {axis} is symbolic, which is not implemented."
        raise UnsupportedError(msg)
    known = [s for s in sizes if isinstance(s, int)]
    inner_axes = operands[0].ndim - 1 - axis
    padded = []
    for position, tv in enumerate(operands):
        widths = [0, 0] * inner_axes + [sum(known[:position]), sum(known[position + 1 :])]
        padded.append(_pad(rec, tv, widths))
    return padded


def _cat_bounds(operands: Sequence[TensorView], dim: int) -> list[tuple[int, int]]:
    """Return the range of the cat axis that each padded operand fills, read off its own resize."""
    found = []
    for tv in operands:
        size = tv.shape[dim]
        axis = tv.domain.axes[dim]
        resize = next(
            (x for x in tv.domain.transforms if isinstance(x, Resize) and x.result.id == axis.id), None,
        )
        left = resize.left if resize is not None else 0
        right = resize.right if resize is not None else 0
        found.append((left if isinstance(left, int) else 0, size - (right if isinstance(right, int) else 0)))
    return found


def _infer_cat(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    first = tensor_at(inputs)
    for other in inputs[1:]:
        tensor = other if isinstance(other, TensorView) else first
        for position, (a, b) in enumerate(zip(first.extents, tensor.extents, strict=True)):
            if not same_extent(a, b):
                msg = f"cat: padded operands have sizes {a} and {b} on axis {position}; they must be equal."
                raise DefinitionError(msg)
    logical = tuple(
        axes.fresh(extent) if extent != 1 else axes.copy(axis)
        for extent, axis in zip(first.extents, first.domain.axes, strict=True)
    )
    return (Result(first.dtype, TensorDomain(logical=logical)),)


def _reference_cat(*padded: Array, dim: int) -> Array:
    # Operands are zero outside their own range, so that their sum is the concatenation.
    del dim
    total = padded[0].copy()
    for other in padded[1:]:
        total = total | other if total.dtype == np.bool_ else total + other
    return np.asarray(total)


def _element_cat(e: Element) -> Term:
    dim = e.attrs["dim"]
    axis = dim if isinstance(dim, int) else 0
    tensors = [v for v in e.inputs if isinstance(v, TensorView)]
    value = e.read(len(tensors) - 1, e.index)
    for position in range(len(tensors) - 2, -1, -1):
        end = _cat_bounds(tensors, axis)[position][1]
        value = t.select(e.index[axis] < end, e.read(position, e.index), value)
    return value


CAT = register(
    OpDef(
        name="cat",
        kind=OpKind.RESIZE,
        frontend=_cat,
        infer=_infer_cat,
        reference=_reference_cat,
        element=_element_cat,
        doc="tensors one after another along dim; each is padded to the full size first.",
    ),
)

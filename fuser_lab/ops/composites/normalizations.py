"""Layer, RMS, group and batch normalization."""

from collections.abc import Sequence

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, TensorView
from fuser_lab.ops.arguments import flag, whole
from fuser_lab.ops.composites.parts import (
    along,
    cast,
    composite,
    floating,
    operand_of_shape,
    real_number,
    record,
    shape_text,
    widen,
)
from fuser_lab.ops.operands import same_declared
from fuser_lab.ops.reduction import SUM, count_of
from fuser_lab.ops.registry import COMPOSITES, OPS, Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand


def _standardize(rec: Recorder, x: TensorView, axes: list[int], eps: Operand) -> TensorView:
    """Return x minus its mean over axes, divided by its standard deviation."""
    variance, mean = COMPOSITES["var_mean"].frontend(rec, x, axes, 0, True)
    return record(rec, "mul", record(rec, "sub", x, mean), _inverse_root(rec, variance, eps))


def _inverse_root(rec: Recorder, variance: TensorView, eps: Operand) -> TensorView:
    return record(rec, "rsqrt", record(rec, "add", variance, eps))


def _affine(
    rec: Recorder, x: TensorView, weight: TensorView | None, bias: TensorView | None,
) -> TensorView:
    """Return x * weight + bias, where each of the two may be missing; their axes are x's last ones."""
    scaled = x if weight is None else record(rec, "mul", x, weight)
    return scaled if bias is None else record(rec, "add", scaled, bias)


def _inner_axes(
    rec: Recorder, tensor: TensorView, normalized_shape: Sequence[Operand], op: str,
) -> tuple[tuple[Extent, ...], list[int]]:
    """Return the sizes and positions of the axes to normalize over, a tensor's last ones."""
    shape = rec.extents(normalized_shape, op, "normalized_shape")
    inner = tensor.extents[tensor.ndim - len(shape) :] if shape else ()
    if not shape or len(shape) > tensor.ndim or not all(map(same_declared, shape, inner)):
        raise DefinitionError(
            f"{op}: normalized_shape={shape_text(shape)} does not name the last axes of arg, whose shape is "
            f"{shape_text(tensor.extents)}."
        )
    return shape, list(range(tensor.ndim - len(shape), tensor.ndim))


def _layer_norm(
    rec: Recorder, arg: Operand, normalized_shape: Sequence[Operand], weight: Operand = None, bias: Operand = None,
    eps: Operand = 1e-5,
) -> TensorView:
    tensor = floating(rec, arg, "layer_norm")
    shape, axes = _inner_axes(rec, tensor, normalized_shape, "layer_norm")
    factor = operand_of_shape(rec, weight, shape, "layer_norm", "weight")
    offset = operand_of_shape(rec, bias, shape, "layer_norm", "bias")
    small = real_number(rec, eps, "layer_norm", "eps")
    standardized = _standardize(rec, widen(rec, tensor), axes, small)
    return cast(rec, _affine(rec, standardized, factor, offset), tensor.dtype)


def _rms_norm(
    rec: Recorder, arg: Operand, normalized_shape: Sequence[Operand], weight: Operand = None, eps: Operand = None,
) -> TensorView:
    tensor = floating(rec, arg, "rms_norm")
    shape, axes = _inner_axes(rec, tensor, normalized_shape, "rms_norm")
    factor = operand_of_shape(rec, weight, shape, "rms_norm", "weight")
    small = float(np.finfo(str(tensor.dtype.compute.numpy)).eps) if eps is None else eps
    x = widen(rec, tensor)
    total = SUM.frontend(rec, record(rec, "mul", x, x), axes, keepdim=True)
    mean = record(rec, "truediv", total, count_of(rec, [tensor.extents[place] for place in axes]))
    root = _inverse_root(rec, mean, real_number(rec, small, "rms_norm", "eps"))
    return cast(rec, _affine(rec, record(rec, "mul", x, root), factor, None), tensor.dtype)


def _group_norm(
    rec: Recorder, arg: Operand, num_groups: int, weight: Operand = None, bias: Operand = None, eps: Operand = 1e-5,
) -> TensorView:
    tensor, groups = floating(rec, arg, "group_norm"), whole(num_groups, "group_norm", "num_groups")
    channels = _channels(tensor, "group_norm")
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise DefinitionError(f"group_norm: num_groups={groups} does not divide the {channels} channels of axis 1.")
    factor = operand_of_shape(rec, weight, [channels], "group_norm", "weight")
    offset = operand_of_shape(rec, bias, [channels], "group_norm", "bias")
    small = real_number(rec, eps, "group_norm", "eps")
    outer, *inner = tensor.extents[:1] + tensor.extents[2:]
    # Not -1, because a reshape cannot infer a size if there are no elements.
    each = channels // groups if isinstance(channels, int) else OPS["div"].frontend(rec, channels, groups)
    parted = record(rec, "reshape", widen(rec, tensor), [outer, groups, each, *inner])
    standardized = _standardize(rec, parted, list(range(2, parted.ndim)), small)
    joined = record(rec, "reshape", standardized, list(tensor.extents))
    sized = (None if v is None else along(rec, v, 1, tensor.ndim) for v in (factor, offset))
    return cast(rec, _affine(rec, joined, *sized), tensor.dtype)


def _channels(tensor: TensorView, op: str) -> Extent:
    if tensor.ndim < 2:
        raise DefinitionError(f"{op}: arg has {tensor.ndim} axes; it needs at least 2, with channels on axis 1.")
    return tensor.extents[1]


def _batch_norm(
    rec: Recorder, arg: Operand, running_mean: Operand = None, running_var: Operand = None, weight: Operand = None,
    bias: Operand = None, training: bool = False, momentum: Operand = 0.1, eps: Operand = 1e-5,
) -> TensorView | tuple[TensorView, TensorView, TensorView]:
    tensor, trains = floating(rec, arg, "batch_norm"), flag(training, "batch_norm", "training")
    channels = _channels(tensor, "batch_norm")
    if (running_mean is None) is not (running_var is None):
        raise ArgumentTypeError("batch_norm: running_mean and running_var must be given together.")
    if running_mean is None and not trains:
        raise ArgumentTypeError("batch_norm: running_mean and running_var must be given unless training=True.")
    mean, variance, factor, offset = (
        operand_of_shape(rec, operand, [channels], "batch_norm", name)
        for name, operand in (
            ("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias),
        )
    )
    share = real_number(rec, momentum, "batch_norm", "momentum")
    small = real_number(rec, eps, "batch_norm", "eps")
    x, ndim = widen(rec, tensor), tensor.ndim
    running, axes = (mean, variance), [place for place in range(ndim) if place != 1]
    if trains:
        _check_several(tensor, axes)
        variance, mean = COMPOSITES["var_mean"].frontend(rec, x, axes, 0)
    assert mean is not None
    assert variance is not None
    centred = record(rec, "sub", x, along(rec, mean, 1, ndim))
    standardized = record(rec, "mul", centred, along(rec, _inverse_root(rec, variance, small), 1, ndim))
    sized = (None if v is None else along(rec, v, 1, ndim) for v in (factor, offset))
    result = cast(rec, _affine(rec, standardized, *sized), tensor.dtype)
    if not trains or running[0] is None or running[1] is None:
        return result
    count = count_of(rec, (tensor.extents[place] for place in axes))
    free = count - 1 if isinstance(count, int) else OPS["sub"].frontend(rec, count, 1)
    unbiased = record(rec, "mul", variance, OPS["truediv"].frontend(rec, count, free))
    moved = (
        cast(rec, record(rec, "lerp", old, new, share), rec.tensor(statistic, "batch_norm", name).dtype)
        for old, new, statistic, name in (
            (running[0], mean, running_mean, "running_mean"), (running[1], unbiased, running_var, "running_var"),
        )
    )
    return (result, *moved)  # type: ignore[return-value]  # two of them


def _check_several(tensor: TensorView, axes: list[int]) -> None:
    sizes = [tensor.extents[place] for place in axes]
    if all(size == 1 for size in sizes):
        raise DefinitionError("batch_norm: arg has one value per channel; training needs more than one.")


F, H, B, D = DataType.Float, DataType.Half, DataType.BFloat16, DataType.Double


_ROW = Arg((4,))
composite(
    "layer_norm", _layer_norm,
    "arg minus its mean, divided by its standard deviation over the last axes, times weight plus bias.",
    (
        Sample("fd.ops.layer_norm(a, [4])"),
        Sample("fd.ops.layer_norm(a, [4], b, c)", (Arg((3, 4)), _ROW, _ROW)),
        Sample("fd.ops.layer_norm(a, normalized_shape=[3, 4], weight=b)", (Arg((2, 3, 4)), Arg((3, 4)))),
        Sample("fd.ops.layer_norm(a, [4], bias=b, eps=0.1)", (Arg((3, 4), H), Arg((4,), H))),
        Sample("fd.ops.layer_norm(a, [6], b, c, 1e-6)", (Arg((3, 6), B), Arg((6,), B), Arg((6,)))),
        Sample("fd.ops.layer_norm(a, [fd.ops.size(a, 1)])", (Arg((3, 4), D),)),
        Sample("fd.ops.layer_norm(a, [4])", (Arg((0, 4)),)),
    ),
)
composite(
    "rms_norm", _rms_norm,
    "arg divided by the root of its mean square over the last axes, times weight; eps is the dtype's by default.",
    (
        Sample("fd.ops.rms_norm(a, [4])"),
        Sample("fd.ops.rms_norm(a, [4], b, 1e-5)", (Arg((3, 4)), _ROW)),
        Sample("fd.ops.rms_norm(a, normalized_shape=[3, 4], weight=b)", (Arg((2, 3, 4)), Arg((3, 4)))),
        Sample("fd.ops.rms_norm(a, [6], b, eps=0.1)", (Arg((3, 6), H), Arg((6,), H))),
        Sample("fd.ops.rms_norm(a, [6], b, 1e-6)", (Arg((3, 6), B), Arg((6,), B))),
        Sample("fd.ops.rms_norm(a, [4], eps=0.5)", (Arg((3, 4), D),)),
        Sample("fd.ops.rms_norm(a, [4])", (Arg((0, 4)),)),
    ),
)
composite(
    "group_norm", _group_norm,
    "arg with each of num_groups groups of channels (axis 1) standardized, times weight plus bias of each channel.",
    (
        Sample("fd.ops.group_norm(a, 2)", (Arg((3, 4, 5)),)),
        Sample("fd.ops.group_norm(a, 2, b, c)", (Arg((3, 4, 5)), _ROW, _ROW)),
        Sample("fd.ops.group_norm(a, num_groups=1, weight=b)", (Arg((2, 4, 3, 2)), _ROW)),
        Sample("fd.ops.group_norm(a, 4, bias=b, eps=0.1)", (Arg((3, 4, 5), H), Arg((4,), H))),
        Sample("fd.ops.group_norm(a, 2)", (Arg((3, 4), B),)),
        Sample("fd.ops.group_norm(a, 3)", (Arg((2, 6, 5), D),)),
    ),
)
composite(
    "batch_norm", _batch_norm,
    "arg standardized per channel (axis 1), times weight plus bias: with the running statistics, or in training with "
    "its own mean and variance, in which case the new running statistics are returned as well.",
    (
        Sample("fd.ops.batch_norm(a, b, c)", (Arg((3, 4, 5)), _ROW, Arg((4,), F, 0.5, 2))),
        Sample("fd.ops.batch_norm(a, training=True)", (Arg((3, 4, 5)),)),
        Sample(
            "fd.ops.batch_norm(a, b, c, d, e, True)",
            (Arg((3, 4, 5)), _ROW, Arg((4,), F, 0.5, 2), _ROW, _ROW),
        ),
        Sample(
            "fd.ops.batch_norm(a, b, c, training=True, momentum=0.25, eps=0.1)",
            (Arg((6, 3), H), Arg((3,)), Arg((3,), F, 0.5, 2)),
        ),
        Sample(
            "fd.ops.batch_norm(a, b, c, weight=d, bias=d)",
            (Arg((3, 4, 2), B), Arg((4,), B), Arg((4,), B, 0.5, 2), Arg((4,), B)),
        ),
        Sample("fd.ops.batch_norm(a, b, c, training=True)", (Arg((5, 2), D), Arg((2,), D), Arg((2,), D, 0.5, 2))),
    ),
)

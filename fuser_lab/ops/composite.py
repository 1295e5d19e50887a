"""Ops of ``fd.ops`` that are written with other ops."""

from collections.abc import Sequence

from fuser_lab.errors import DefinitionError
from fuser_lab.ir import TensorView, Val
from fuser_lab.ops.arguments import whole
from fuser_lab.ops.broadcast import broadcast, expand
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.reduction import SUM, reduced_axes
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


def _clamp(rec: Recorder, x: Operand, min: Operand = None, max: Operand = None, /) -> Val:
    value = rec.value(x, "clamp", "x")
    result: Val = value
    for bound, name, op in ((min, "min", "maximum"), (max, "max", "minimum")):
        if bound is not None:
            limit = convert(rec, rec.value(bound, "clamp", name), value.dtype, "clamp", name)
            result = convert(rec, _emit(rec, op, result, limit), value.dtype, "clamp", "x")
    return result


def _threshold(rec: Recorder, x: Operand, threshold: Operand, value: Operand, /) -> Val:
    tensor = rec.value(x, "threshold", "x")
    fill = convert(rec, rec.value(value, "threshold", "value"), tensor.dtype, "threshold", "value")
    return _emit(rec, "where", _emit(rec, "le", tensor, threshold), fill, tensor)


def _lerp(rec: Recorder, start: Operand, end: Operand, weight: Operand, /) -> Val:
    return _emit(rec, "add", start, _emit(rec, "mul", weight, _emit(rec, "sub", end, start)))


def _addcmul(rec: Recorder, x: Operand, y: Operand, z: Operand, alpha: Operand, /) -> Val:
    return _emit(rec, "add", x, _emit(rec, "mul", y, _emit(rec, "mul", z, alpha)))


def _sign(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "sign", "x")
    negative = _emit(rec, "where", _emit(rec, "lt", value, 0), -1, 0)
    return convert(rec, _emit(rec, "where", _emit(rec, "gt", value, 0), 1, negative), value.dtype, "sign", "x")


def _mean_and_square(
    rec: Recorder, arg: Operand, dims: Sequence[int], correction: int, op: str,
) -> tuple[Val, Val, tuple[int, ...]]:
    """Record mean and corrected variance by two passes: the mean, then the mean of squared deviations."""
    tensor = rec.tensor(arg, op, "arg")
    reduced = reduced_axes(tensor, dims, op)
    if whole(correction, op, "correction") < 0:
        msg = f"{op}: correction is {correction}; it must be 0 or more."
        raise DefinitionError(msg)
    flags = [i in reduced for i in range(tensor.ndim)]

    count: Operand = 1
    for size in (tensor.extents[i] for i in reduced):
        count = count * size if isinstance(count, int) and isinstance(size, int) else _emit(rec, "mul", count, size)
    if isinstance(count, int):
        freedom: Operand = max(count - correction, 0)
    else:
        freedom = _emit(rec, "maximum", _emit(rec, "sub", count, correction), 0)
    mean = _emit(rec, "truediv", SUM.frontend(rec, tensor, reduced), count)
    deviation = _emit(rec, "sub", tensor, broadcast(rec, mean, flags))
    square = SUM.frontend(rec, _emit(rec, "mul", deviation, deviation), reduced)
    variance = _emit(rec, "truediv", square, freedom)
    return variance, mean, reduced


def _var_mean(
    rec: Recorder, arg: Operand, dims: Sequence[int], correction: int = 1, keepdim: bool = False,
) -> tuple[Val, Val]:
    tensor = rec.tensor(arg, "var_mean", "arg")
    if tensor.dtype.is_reduced_float:
        msg = f"var_mean: does not take {tensor.dtype!r}; please upcast to float."
        raise DefinitionError(msg)
    variance, mean, reduced = _mean_and_square(rec, tensor, dims, correction, "var_mean")
    if keepdim:
        flags = [i in reduced for i in range(tensor.ndim)]
        return broadcast(rec, variance, flags), broadcast(rec, mean, flags)
    return variance, mean


def _var(
    rec: Recorder, arg: Operand, dims: Sequence[int], correction: int = 1, keepdim: bool = False,
) -> Val:
    tensor = rec.tensor(arg, "var", "arg")
    variance, _, reduced = _mean_and_square(rec, tensor, dims, correction, "var")
    return broadcast(rec, variance, [i in reduced for i in range(tensor.ndim)]) if keepdim else variance


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
    Composite(name="clamp", frontend=_clamp, doc="x limited to [min, max]; None leaves a side open."),
    Composite(name="threshold", frontend=_threshold, doc="value where x <= threshold, else x."),
    Composite(name="lerp", frontend=_lerp, doc="start + weight * (end - start)."),
    Composite(name="addcmul", frontend=_addcmul, doc="x + alpha * y * z."),
    Composite(name="sign", frontend=_sign, doc="-1, 0 or 1, in x's dtype."),
    Composite(name="size", frontend=_size_of, doc="The size of axis dim, an integer scalar."),
    Composite(name="shape", frontend=_shape_of, doc="The sizes of all axes."),
    Composite(name="var", frontend=_var, doc="Variance over dims, two passes."),
    Composite(name="var_mean", frontend=_var_mean, doc="Variance and mean over dims, two passes."),
):
    register_composite(_entry)

"""Mean and variance: Welford's three results in one reduction, and ops written with them."""

import math
from collections.abc import Sequence

import numpy as np

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.arguments import flag, whole
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.operands import known_ints, tensor_at
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.reduction import (
    SUM,
    count_of,
    has_no_elements,
    kept_extents,
    reduced_axes,
    unless_none,
    without_broadcasts,
)
from fuser_lab.ops.registry import OPS, Arg, Composite, OpDef, Recorder, Sample, register, register_composite
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Result

Moments = tuple[TensorView, TensorView, TensorView]  # mean, sum of squared deviations, number of elements


def _emit(rec: Recorder, name: str, *operands: Operand) -> TensorView:
    return tensor_at([OPS[name].frontend(rec, *operands)])


def _full(rec: Recorder, sizes: Sequence[Operand], value: Operand, dtype: DataType) -> TensorView:
    filled: TensorView = OPS["full"].frontend(rec, list(sizes), value, dtype)
    return filled


def _named_axes(tensor: TensorView, dims: object, op: str) -> tuple[int, ...]:
    """Return the axes to reduce, which must be a list, unlike those of a sum."""
    if dims is None or is_whole(dims):
        raise ArgumentTypeError(f"{op}: dims must be a list of ints, given {short_text(dims)}.")
    return reduced_axes(tensor, dims, op)


def _welford(rec: Recorder, arg: Operand, dims: Sequence[int]) -> Moments:
    tensor = rec.tensor(arg, "welford", "arg")
    reduced = _named_axes(tensor, dims, "welford")
    if not tensor.dtype.is_float:
        raise DefinitionError(f"welford: arg must be of a real floating point type, given {tensor.dtype!r}.")
    return _moments(rec, tensor, reduced)


def _moments(rec: Recorder, tensor: TensorView, reduced: tuple[int, ...]) -> Moments:
    dtype, sizes = tensor.dtype, kept_extents(tensor, reduced)
    if has_no_elements(tensor, reduced):
        nothing = _full(rec, sizes, float("nan"), dtype)
        return nothing, _full(rec, sizes, 0, dtype), _full(rec, sizes, 0, DataType.Int)
    value, left, repeats = without_broadcasts(rec, tensor, reduced)
    count = count_of(rec, repeats)
    if not left:
        mean = unless_none(rec, value, repeats, float("nan")) if reduced else _emit(rec, "set", value)
        return mean, _full(rec, sizes, 0, dtype), _full(rec, sizes, count, DataType.Int)
    mean, square, number = (tensor_at([v]) for v in rec.emit(WELFORD, [value], dims=left))
    if repeats:
        # An expanded axis repeats each element, which changes the sum and the count, not the mean.
        mean = unless_none(rec, mean, repeats, float("nan"))
        square = tensor_at([convert(rec, _emit(rec, "mul", square, count), dtype, "welford", "arg")])
        number = _emit(rec, "mul", number, count)
    return mean, square, number


def _infer_welford(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, dims = tensor_at(inputs), known_ints(attrs, "dims")

    def domain() -> TensorDomain:
        return TensorDomain(
            logical=tuple(
                axes.fresh(axis.extent, IterType.REDUCTION, axis.expanded) if i in dims else axes.copy(axis)
                for i, axis in enumerate(tensor.domain.axes)
            ),
        )

    return (Result(tensor.dtype, domain()), Result(tensor.dtype, domain()), Result(DataType.Int, domain()))


def _reference_welford(x: Array, *, dims: tuple[int, ...]) -> tuple[Array, ...]:
    count = int(np.prod([x.shape[d] for d in dims]))
    total = np.sum(x, axis=dims, dtype=x.dtype, keepdims=True)
    # NaN, not an error, if there are no elements.
    mean = np.divide(total, np.asarray(count, dtype=x.dtype))
    square = np.sum(np.square(x - mean), axis=dims, dtype=x.dtype)
    return np.asarray(np.squeeze(mean, axis=dims)), np.asarray(square), np.full(np.shape(square), count, np.int64)


WELFORD = register(
    OpDef(
        name="welford",
        kind=OpKind.REDUCTION,
        frontend=_welford,
        infer=_infer_welford,
        reference=_reference_welford,
        doc="Mean, sum of squared deviations and number of elements over dims.",
        samples=(
            Sample("fd.ops.welford(a, [1])"),
            Sample("fd.ops.welford(a, [0])"),
            Sample("fd.ops.welford(a, dims=[0, 1])", (Arg((5, 7), DataType.Double, 100.0, 101.0),)),
            Sample("fd.ops.welford(a, [-1, 0])", (Arg((3, 4, 5)),)),
            Sample("fd.ops.welford(a, [1])", (Arg((3, 4, 5)),)),
            Sample("fd.ops.welford(a, [1])", (Arg((3, 5), DataType.Half),)),
            Sample("fd.ops.welford(a, [0])", (Arg((3, 5), DataType.BFloat16),)),
            Sample("fd.ops.welford(a, [0])", (Arg((1, 4)),)),
            Sample("fd.ops.welford(a, [0, 1])", (Arg((1, 4)),)),
            Sample("fd.ops.welford(fd.ops.expand(a, [6, 4]), [0, 1])", (Arg((1, 4)),)),
            Sample("fd.ops.welford(fd.ops.expand(a, [6, 4]), [0])", (Arg((1, 4)),)),
            Sample("fd.ops.welford(a, [0])", (Arg((0, 4)),)),
            Sample("fd.ops.welford(a, [1])", (Arg((0, 4)),)),
        ),
    ),
)


def _prepare(
    rec: Recorder, op: str, arg: Operand, dims: object, correction: object,
) -> tuple[TensorView, tuple[int, ...], float]:
    tensor = rec.tensor(arg, op, "arg")
    return tensor, _named_axes(tensor, dims, op), degrees(correction, op)


def degrees(correction: object, op: str) -> float:
    """Return the correction that a variance subtracts from the count: an int or, as in torch, a float, 0 or more.

    Raises
    ------
    ArgumentTypeError
        If it is not a number.
    DefinitionError
        If it is negative or not finite.
    """
    if not isinstance(correction, float | np.floating) and not is_whole(correction):
        raise ArgumentTypeError(f"{op}: correction must be a number of 0 or more, given {short_text(correction)}.")
    less = float(correction) if isinstance(correction, float | np.floating) else whole(correction, op, "correction")
    if not 0 <= less < math.inf:
        raise DefinitionError(f"{op}: correction is {less}; it must be a finite number of 0 or more.")
    return int(less) if less == int(less) else less


def _freedom(rec: Recorder, tensor: TensorView, reduced: tuple[int, ...], correction: float) -> tuple[Operand, Operand]:
    """Return the number of elements per result, and the degrees of freedom, at least 0."""
    count = count_of(rec, (tensor.extents[i] for i in reduced))
    if isinstance(count, int):
        return count, max(count - correction, 0)
    return count, OPS["maximum"].frontend(rec, OPS["sub"].frontend(rec, count, correction), 0)


def _var(rec: Recorder, arg: Operand, dims: Sequence[int], correction: float = 1, keepdim: bool = False) -> Val:
    tensor, reduced, less = _prepare(rec, "var", arg, dims, correction)
    keeps = flag(keepdim, "var", "keepdim")
    if tensor.dtype.is_complex:
        parts = [_variance(rec, _emit(rec, part, tensor), reduced, less) for part in ("real", "imag")]
        variance = _emit(rec, "add", *parts)
    else:
        variance = _variance(rec, tensor, reduced, less)
    return broadcast(rec, variance, [i in reduced for i in range(tensor.ndim)]) if keeps else variance


def _variance(rec: Recorder, tensor: TensorView, reduced: tuple[int, ...], correction: float) -> TensorView:
    count, free = _freedom(rec, tensor, reduced, correction)
    dims = list(reduced) or None
    mean = _emit(rec, "truediv", SUM.frontend(rec, tensor, dims), count)
    deviation = _emit(rec, "sub", tensor, broadcast(rec, mean, [i in reduced for i in range(tensor.ndim)]))
    square = SUM.frontend(rec, _emit(rec, "mul", deviation, deviation), dims)
    return _emit(rec, "truediv", square, free)


def _var_mean(
    rec: Recorder, arg: Operand, dims: Sequence[int], correction: float = 1, keepdim: bool = False,
) -> tuple[Val, Val]:
    tensor, reduced, less = _prepare(rec, "var_mean", arg, dims, correction)
    keeps = flag(keepdim, "var_mean", "keepdim")
    if tensor.dtype.is_reduced_float:
        raise DefinitionError(f"var_mean: arg must not be {tensor.dtype!r}; please upcast to float.")
    if tensor.dtype.is_complex:
        parts = [_variance_and_mean(rec, _emit(rec, part, tensor), reduced, less) for part in ("real", "imag")]
        variance = _emit(rec, "add", parts[0][0], parts[1][0])
        mean = _emit(rec, "complex", parts[0][1], parts[1][1])
    elif tensor.dtype.is_float:
        variance, mean = _variance_and_mean(rec, tensor, reduced, less)
    else:
        raise DefinitionError(f"var_mean: arg must be of a floating point or complex type, given {tensor.dtype!r}.")
    if keeps:
        flags = [i in reduced for i in range(tensor.ndim)]
        return broadcast(rec, variance, flags), broadcast(rec, mean, flags)
    return variance, mean


def _variance_and_mean(
    rec: Recorder, tensor: TensorView, reduced: tuple[int, ...], correction: float,
) -> tuple[TensorView, TensorView]:
    mean, square, _ = _moments(rec, tensor, reduced)
    _, free = _freedom(rec, tensor, reduced, correction)
    return _emit(rec, "truediv", square, free), mean


def _samples(name: str) -> tuple[Sample, ...]:
    call = f"fd.ops.{name}"
    return (
        Sample(f"{call}(a, [1])"),
        Sample(f"{call}(a, dims=[0], correction=0)"),
        Sample(f"{call}(a, [0, 1], 2, True)", (Arg((3, 4, 2)),)),
        Sample(f"{call}(a, [-1], 1, keepdim=True)", (Arg((3, 5), DataType.Double, 1000.0, 1001.0),)),
        Sample(f"{call}(a, [1], correction=9)"),
        Sample(f"{call}(a, [1], correction=1.3)"),
        Sample(f"{call}(a, [0, 1], 0.5, True)", (Arg((3, 4), DataType.Double),)),
        Sample(f"{call}(a, [0])", (Arg((1, 4)),)),
        Sample(f"{call}(a, [0], 0)", (Arg((1, 4)),)),
        Sample(f"{call}(a, [1])", (Arg((3, 1)),)),
        Sample(f"{call}(fd.ops.expand(a, [3, 5]), [0, 1])", (Arg((1, 5)),)),
        Sample(f"{call}(a, [1])", (Arg((0, 4)),)),
        Sample(f"{call}(a, [0])", (Arg((0, 4)),)),
    )


register_composite(
    Composite(
        name="var",
        frontend=_var,
        doc="Variance over dims: the mean, then the mean of squared deviations, added over both parts if complex.",
        samples=(
            *_samples("var"),
            Sample("fd.ops.var(a, [1])", (Arg((3, 5), DataType.Half),)),
            Sample("fd.ops.var(a, [1])", (Arg((3, 5), DataType.Int),)),
            Sample("fd.ops.var(a, [0], 0, True)", (Arg((3, 5), DataType.ComplexFloat),)),
        ),
    ),
)
register_composite(
    Composite(
        name="var_mean",
        frontend=_var_mean,
        doc="Variance and mean over dims, by welford; for complex input, the variances of both parts are added.",
        samples=(
            *_samples("var_mean"),
            Sample("fd.ops.var_mean(a, [1])", (Arg((3, 5), DataType.ComplexFloat),)),
            Sample("fd.ops.var_mean(a, [0], 1, True)", (Arg((3, 5), DataType.ComplexDouble),)),
        ),
    ),
)

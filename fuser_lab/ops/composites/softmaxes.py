"""Softmax, its logarithm, and the logarithm of the sum in both."""

from collections.abc import Sequence

from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.ir import TensorView
from fuser_lab.ops.arguments import flag
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.composites.parts import cast, composite, floating, record, widen
from fuser_lab.ops.operands import tensor_at, wrap_dim
from fuser_lab.ops.reduction import MAX, SUM, reduced_axes
from fuser_lab.ops.registry import Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand


def _shift(rec: Recorder, arg: Operand, dim: int, op: str) -> tuple[TensorView, TensorView, int]:
    """Return arg minus its largest element along an axis, in the compute dtype; the original arg; and the axis."""
    tensor = floating(rec, arg, op)
    axis = wrap_dim(dim, max(tensor.ndim, 1), op)
    x = widen(rec, tensor)
    return record(rec, "sub", x, tensor_at([MAX.frontend(rec, x, [axis], keepdim=True)])), tensor, axis


def _softmax(rec: Recorder, arg: Operand, dim: int = -1) -> TensorView:
    shifted, tensor, axis = _shift(rec, arg, dim, "softmax")
    power = record(rec, "exp", shifted)
    total = SUM.frontend(rec, power, [axis], keepdim=True)
    return cast(rec, record(rec, "truediv", power, total), tensor.dtype)


def _log_softmax(rec: Recorder, arg: Operand, dim: int = -1) -> TensorView:
    shifted, tensor, axis = _shift(rec, arg, dim, "log_softmax")
    total = SUM.frontend(rec, record(rec, "exp", shifted), [axis], keepdim=True)
    return cast(rec, record(rec, "sub", shifted, record(rec, "log", total)), tensor.dtype)


def _logsumexp(rec: Recorder, arg: Operand, dims: int | Sequence[int], keepdim: bool = False) -> TensorView:
    tensor, keeps = floating(rec, arg, "logsumexp"), flag(keepdim, "logsumexp", "keepdim")
    if dims is None:
        raise ArgumentTypeError("logsumexp: dims must be an int or a list of ints, given None.")
    reduced = list(reduced_axes(tensor, dims, "logsumexp"))
    if not reduced:
        return record(rec, "set", tensor)
    x = widen(rec, tensor)
    largest = tensor_at([MAX.frontend(rec, x, reduced)])
    # An infinite largest element is not subtracted, because inf - inf would be NaN.
    finite = record(rec, "where", record(rec, "isfinite", largest), largest, 0.0)
    flags = [place in reduced for place in range(tensor.ndim)]
    shifted = record(rec, "sub", x, broadcast(rec, finite, flags))
    total = SUM.frontend(rec, record(rec, "exp", shifted), reduced)
    result = cast(rec, record(rec, "add", record(rec, "log", total), finite), tensor.dtype)
    return broadcast(rec, result, flags) if keeps else result


def _samples(name: str) -> tuple[Sample, ...]:
    call = f"fd.ops.{name}"
    return (
        Sample(f"{call}(a)"),
        Sample(f"{call}(a, 0)"),
        Sample(f"{call}(a, dim=1)", (Arg((2, 5, 3)),)),
        Sample(f"{call}(a, -1)", (Arg((3, 6), DataType.Half),)),
        Sample(f"{call}(a, -1)", (Arg((3, 6), DataType.BFloat16),)),
        Sample(f"{call}(a)", (Arg((3, 4), DataType.Double, 700, 800),)),
        Sample(f"{call}(a, 0)", (Arg(()),)),
        Sample(f"{call}(a)", (Arg((3, 1)),)),
        Sample(f"{call}(a)", (Arg((0, 4)),)),
    )


composite(
    "softmax", _softmax,
    "exp(arg) divided by its sum along dim; the largest element is subtracted first.",
    _samples("softmax"),
)
composite(
    "log_softmax", _log_softmax,
    "Logarithm of softmax along dim.",
    _samples("log_softmax"),
)
composite(
    "logsumexp", _logsumexp,
    "Logarithm of the sum of exp(arg) over dims.",
    (
        Sample("fd.ops.logsumexp(a, 1)"),
        Sample("fd.ops.logsumexp(a, [0], keepdim=True)"),
        Sample("fd.ops.logsumexp(a, dims=[0, -1])", (Arg((2, 5, 3)),)),
        Sample("fd.ops.logsumexp(a, -1, True)", (Arg((3, 6), DataType.Half),)),
        Sample("fd.ops.logsumexp(a, -1)", (Arg((3, 6), DataType.BFloat16),)),
        Sample("fd.ops.logsumexp(a, 0)", (Arg((3, 4), DataType.Double, 700, 800),)),
        Sample("fd.ops.logsumexp(a, 0)", (Arg(()),)),
        Sample("fd.ops.logsumexp(a, 0)", (Arg((0, 4)),)),
    ),
)

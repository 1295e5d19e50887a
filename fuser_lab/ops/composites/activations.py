"""Activations and dropout."""

import math

from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.ir import TensorView
from fuser_lab.ops.arguments import flag
from fuser_lab.ops.composites.parts import cast, composite, floating, one_of, plain_number, real_number, record, widen
from fuser_lab.ops.operands import tensor_at
from fuser_lab.ops.random import UNIFORM
from fuser_lab.ops.registry import Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand

H, B, D = DataType.Half, DataType.BFloat16, DataType.Double
_FORMS = ("none", "tanh")


def _gelu(rec: Recorder, arg: Operand, approximate: str = "none") -> TensorView:
    tensor = floating(rec, arg, "gelu")
    form = one_of(approximate, _FORMS, "gelu", "approximate")
    x = widen(rec, tensor)
    if form == "none":
        inner = record(rec, "erf", record(rec, "mul", x, math.sqrt(0.5)))
    else:
        cube = record(rec, "mul", record(rec, "mul", x, x), x)
        summed = record(rec, "add", x, record(rec, "mul", cube, 0.044715))
        inner = record(rec, "tanh", record(rec, "mul", summed, math.sqrt(2 / math.pi)))
    result = record(rec, "mul", record(rec, "mul", x, 0.5), record(rec, "add", inner, 1.0))
    return cast(rec, result, tensor.dtype)


def _swiglu(rec: Recorder, gate: Operand, up: Operand) -> TensorView:
    left, right = floating(rec, gate, "swiglu", "gate"), floating(rec, up, "swiglu", "up")
    # If the dtypes differ, the result has the dtype of their product before widening.
    dtype = left.dtype if left.dtype is right.dtype else None
    result = record(rec, "mul", record(rec, "silu", widen(rec, left)), widen(rec, right))
    return result if dtype is None else cast(rec, result, dtype)


def _softplus(rec: Recorder, arg: Operand, beta: Operand = 1.0, threshold: Operand = 20.0) -> TensorView:
    tensor = floating(rec, arg, "softplus")
    sharpness, limit = (
        real_number(rec, number, "softplus", name) for name, number in (("beta", beta), ("threshold", threshold))
    )
    x = widen(rec, tensor)
    scaled = record(rec, "mul", x, sharpness)
    # Above the threshold the exponential may overflow, and the result is x to the last digit.
    power = record(rec, "exp", record(rec, "minimum", scaled, limit))
    soft = record(rec, "truediv", record(rec, "log1p", power), sharpness)
    return cast(rec, record(rec, "where", record(rec, "gt", scaled, limit), x, soft), tensor.dtype)


def _leaky_relu(rec: Recorder, arg: Operand, negative_slope: Operand = 0.01) -> TensorView:
    tensor = floating(rec, arg, "leaky_relu")
    slope = real_number(rec, negative_slope, "leaky_relu", "negative_slope")
    x = widen(rec, tensor)
    result = record(rec, "where", record(rec, "gt", x, 0.0), x, record(rec, "mul", x, slope))
    return cast(rec, result, tensor.dtype)


def _dropout(
    rec: Recorder, arg: Operand, p: float = 0.5, training: bool = True, *,
    rng_seed: Operand = None, rng_offset: Operand = None,
) -> TensorView:
    tensor = floating(rec, arg, "dropout")
    share, trains = plain_number(p, "dropout", "p", 0, 1), flag(training, "dropout", "training")
    if (rng_seed is None) is not (rng_offset is None):
        raise ArgumentTypeError("dropout: rng_seed and rng_offset must be given together.")
    if not trains or share == 0:
        return record(rec, "set", tensor)
    x = widen(rec, tensor)
    drawn = UNIFORM.frontend(
        rec, 0.0, 1.0, list(tensor.extents), rng_seed=rng_seed, rng_offset=rng_offset, dtype=DataType.Float,
    )
    mask = record(rec, "lt", tensor_at([drawn]), 1 - share)
    scale = 0.0 if share == 1 else 1 / (1 - share)
    return cast(rec, record(rec, "mul", record(rec, "mul", x, mask), scale), tensor.dtype)


_SEEDS = "rng_seed=fd.define_scalar(7, DataType.Int), rng_offset=fd.define_scalar(4, DataType.Int)"

composite(
    "gelu", _gelu,
    'x * Phi(x), with Phi the normal distribution function: by erf ("none") or by a tanh approximation ("tanh").',
    (
        Sample("fd.ops.gelu(a)"),
        Sample("fd.ops.gelu(a, approximate='tanh')"),
        Sample("fd.ops.gelu(a, 'none')", (Arg((3, 4), H),)),
        Sample("fd.ops.gelu(a, 'tanh')", (Arg((3, 4), B),)),
        Sample("fd.ops.gelu(a)", (Arg((), D),)),
        Sample("fd.ops.gelu(a, 'tanh')", (Arg((0, 4)),)),
    ),
)
composite(
    "swiglu", _swiglu,
    "silu(gate) * up.",
    (
        Sample("fd.ops.swiglu(a, b)", (Arg((3, 4)), Arg((3, 4)))),
        Sample("fd.ops.swiglu(gate=a, up=b)", (Arg((3, 4), B), Arg((3, 4), B))),
        Sample("fd.ops.swiglu(a, b)", (Arg((3, 4), H), Arg((4,), H))),
        Sample("fd.ops.swiglu(a, b)", (Arg((3, 4), H), Arg((3, 4)))),
        Sample("fd.ops.swiglu(a, b)", (Arg((3, 1), D), Arg((1, 4), D))),
    ),
)
composite(
    "softplus", _softplus,
    "log(1 + exp(beta * x)) / beta; x itself where beta * x is above threshold.",
    (
        Sample("fd.ops.softplus(a)"),
        Sample("fd.ops.softplus(a, 2.0)", (Arg((3, 4), H),)),
        Sample("fd.ops.softplus(a, beta=0.5, threshold=1)", (Arg((3, 4), B),)),
        Sample("fd.ops.softplus(a, fd.define_scalar(3.0))", (Arg((), D),)),
        Sample("fd.ops.softplus(a)", (Arg((4,), DataType.Float, -100, 100),)),
    ),
)
composite(
    "leaky_relu", _leaky_relu,
    "x if it is above 0, otherwise negative_slope * x.",
    (
        Sample("fd.ops.leaky_relu(a)"),
        Sample("fd.ops.leaky_relu(a, 0.2)", (Arg((3, 4), H),)),
        Sample("fd.ops.leaky_relu(a, negative_slope=1)", (Arg((3, 1, 2), B),)),
        Sample("fd.ops.leaky_relu(a, -0.5)", (Arg((), D),)),
    ),
)
composite(
    "dropout", _dropout,
    "arg with a fraction p of its elements set to 0 and the others divided by 1 - p; arg itself unless training.",
    (
        Sample(f"fd.ops.dropout(a, 0.25, {_SEEDS})"),
        Sample(f"fd.ops.dropout(a, p=0.5, {_SEEDS})", (Arg((3, 4), H),)),
        Sample(f"fd.ops.dropout(a, 1, {_SEEDS})", (Arg((3, 4), B),)),
        Sample("fd.ops.dropout(a)", (Arg((6, 2), D),)),
        Sample("fd.ops.dropout(a, 0)"),
        Sample("fd.ops.dropout(a, 0.5, False)"),
        Sample("fd.ops.dropout(a, 0.1, training=True)", (Arg(()),)),
    ),
)

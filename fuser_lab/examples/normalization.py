"""Softmax, layer norm and RMS norm, forward and backward, bfloat16 in memory and float32 in registers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.examples.example import Example, Inputs, Sizes
from fuser_lab.examples.pointwise import BF16, normal, wide
from fuser_lab.ops.rules import Array

_EPS = 1e-5  # added to a variance, the default of torch's norms
_LARGE = {"rows": 16384, "columns": 8192}
_SMALL = {"rows": 48, "columns": 320}


def _matrix(fd: Any, sizes: Sizes) -> Any:
    """Define a [rows, columns] bfloat16 input and return it as float."""
    x = fd.define_tensor(shape=[sizes["rows"], sizes["columns"]], contiguity=True, dtype=DataType.BFloat16)
    return fd.ops.cast(x, dtype=DataType.Float)


def _per_column(fd: Any, sizes: Sizes) -> Any:
    """Define a [columns] bfloat16 input and return it as float, broadcast over the rows."""
    w = fd.define_tensor(shape=[sizes["columns"]], contiguity=True, dtype=DataType.BFloat16)
    placed = fd.ops.broadcast_in_dim(w, shape=[sizes["rows"], sizes["columns"]], broadcast_dims=[1])
    return fd.ops.cast(placed, dtype=DataType.Float)


def _per_row(fd: Any, sizes: Sizes) -> Any:
    """Define a [rows, 1] float input."""
    return fd.define_tensor(shape=[sizes["rows"], 1], contiguity=True, dtype=DataType.Float)


def _add_output(fd: Any, value: Any) -> None:
    fd.add_output(fd.ops.cast(value, dtype=DataType.BFloat16))


def _softmax(fd: Any, sizes: Sizes) -> None:
    x = _matrix(fd, sizes)
    shifted = fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True))
    power = fd.ops.exp(shifted)
    _add_output(fd, fd.ops.truediv(power, fd.ops.sum(power, dims=[1], keepdim=True)))


def _softmax_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    x = wide(inputs[0])
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return [power / power.sum(axis=1, keepdims=True)]


SOFTMAX = Example(
    name="softmax",
    title="Softmax over rows",
    look_at="One InnerPersistent segment: x is needed before and after both reductions, so a row stays on chip.",
    full=_LARGE,
    small=_SMALL,
    record=_softmax,
    make=lambda rng, s: [normal(rng, (s["rows"], s["columns"]))],
    reference=_softmax_reference,
    rtol=1e-2,
    atol=1e-5,
)


def _softmax_backward(fd: Any, sizes: Sizes) -> None:
    dy, y = _matrix(fd, sizes), _matrix(fd, sizes)
    product = fd.ops.mul(dy, y)
    total = fd.ops.sum(product, dims=[1], keepdim=True)
    _add_output(fd, fd.ops.sub(product, fd.ops.mul(y, total)))


def _make_softmax_backward(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    shape = (sizes["rows"], sizes["columns"])
    y = _softmax_reference([normal(rng, shape)], [])[0]
    return [normal(rng, shape), y.astype(BF16)]


def _softmax_backward_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    dy, y = map(wide, inputs)
    return [y * (dy - (dy * y).sum(axis=1, keepdims=True))]


SOFTMAX_BACKWARD = Example(
    name="softmax_backward",
    title="Softmax backward",
    look_at="One persistent segment again: dy and y are read before and after the row sum.",
    full=_LARGE,
    small=_SMALL,
    record=_softmax_backward,
    make=_make_softmax_backward,
    reference=_softmax_backward_reference,
    rtol=1e-2,
    atol=1e-4,
)


def record_layer_norm(fd: Any, x: Any, sizes: Sizes) -> None:
    """Record layer norm of a float [rows, columns] tensor with weight and bias inputs; outputs y, mean, rstd."""
    variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(variance, _EPS))
    normalized = fd.ops.mul(fd.ops.sub(x, mean), rstd)
    weight, bias = _per_column(fd, sizes), _per_column(fd, sizes)
    _add_output(fd, fd.ops.add(fd.ops.mul(normalized, weight), bias))
    fd.add_output(mean)
    fd.add_output(rstd)


def layer_norm_reference(x: Array, weight: Array, bias: Array) -> list[Array]:
    """Return float64 y, mean and rstd of layer norm over rows."""
    mean = x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=1, keepdims=True) + _EPS)
    return [(x - mean) * rstd * weight + bias, mean, rstd]


def _make_scaled(rng: np.random.Generator, sizes: Sizes, vectors: int) -> Inputs:
    x = normal(rng, (sizes["rows"], sizes["columns"]))
    return [x, *(normal(rng, (sizes["columns"],)) for _ in range(vectors))]


LAYER_NORM = Example(
    name="layer_norm",
    title="Layer norm forward",
    look_at="Two dependent reductions and three outputs in one persistent segment; mean and rstd are row-shaped.",
    full=_LARGE,
    small=_SMALL,
    record=lambda fd, s: record_layer_norm(fd, _matrix(fd, s), s),
    make=lambda rng, s: _make_scaled(rng, s, 2),
    reference=lambda inputs, outputs: layer_norm_reference(*map(wide, inputs)),
    rtol=1e-2,
    atol=1e-2,
)


def _layer_norm_backward(fd: Any, sizes: Sizes) -> None:
    columns = float(sizes["columns"])
    dy, x = _matrix(fd, sizes), _matrix(fd, sizes)
    mean, rstd, weight = _per_row(fd, sizes), _per_row(fd, sizes), _per_column(fd, sizes)
    normalized = fd.ops.mul(fd.ops.sub(x, mean), rstd)
    scaled = fd.ops.mul(dy, weight)
    first = fd.ops.truediv(fd.ops.sum(scaled, dims=[1], keepdim=True), columns)
    second = fd.ops.truediv(fd.ops.sum(fd.ops.mul(scaled, normalized), dims=[1], keepdim=True), columns)
    inner = fd.ops.sub(fd.ops.sub(scaled, first), fd.ops.mul(normalized, second))
    _add_output(fd, fd.ops.mul(inner, rstd))
    _add_output(fd, fd.ops.sum(fd.ops.mul(dy, normalized), dims=[0]))
    _add_output(fd, fd.ops.sum(dy, dims=[0]))


def _make_layer_norm_backward(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    shape = (sizes["rows"], sizes["columns"])
    dy, x, weight = normal(rng, shape), normal(rng, shape), normal(rng, (sizes["columns"],))
    _, mean, rstd = layer_norm_reference(wide(x), np.ones(1), np.zeros(1))
    return [dy, x, mean.astype(np.float32), rstd.astype(np.float32), weight]


def _layer_norm_backward_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    dy, x, mean, rstd, weight = map(wide, inputs)
    normalized = (x - mean) * rstd
    scaled = dy * weight
    correction = normalized * (scaled * normalized).mean(axis=1, keepdims=True)
    dx = rstd * (scaled - scaled.mean(axis=1, keepdims=True) - correction)
    return [dx, (dy * normalized).sum(axis=0), dy.sum(axis=0)]


LAYER_NORM_BACKWARD = Example(
    name="layer_norm_backward",
    title="Layer norm backward: dx, dweight, dbias",
    look_at=(
        "Row sums for dx and column sums for the weights reduce different axes of the same tensors. nvFuser's "
        "InnerOuterPersistent scheduler computes both in one kernel; without it, the column sums are separate segments."
    ),
    full=_LARGE,
    small=_SMALL,
    record=_layer_norm_backward,
    make=_make_layer_norm_backward,
    reference=_layer_norm_backward_reference,
    rtol=1e-2,
    atol=3e-2,
)


def _rms_norm(fd: Any, sizes: Sizes) -> None:
    x = _matrix(fd, sizes)
    mean_square = fd.ops.truediv(fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True), float(sizes["columns"]))
    rstd = fd.ops.rsqrt(fd.ops.add(mean_square, _EPS))
    _add_output(fd, fd.ops.mul(fd.ops.mul(x, rstd), _per_column(fd, sizes)))
    fd.add_output(rstd)


def _rms_norm_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    x, weight = map(wide, inputs)
    rstd = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + _EPS)
    return [x * rstd * weight, rstd]


RMS_NORM = Example(
    name="rms_norm",
    title="RMS norm forward",
    look_at="One reduction and one persistent buffer, the row of x.",
    full=_LARGE,
    small=_SMALL,
    record=_rms_norm,
    make=lambda rng, s: _make_scaled(rng, s, 1),
    reference=_rms_norm_reference,
    rtol=1e-2,
    atol=1e-2,
)


def _rms_norm_backward(fd: Any, sizes: Sizes) -> None:
    dy, x = _matrix(fd, sizes), _matrix(fd, sizes)
    rstd, weight = _per_row(fd, sizes), _per_column(fd, sizes)
    normalized = fd.ops.mul(x, rstd)
    scaled = fd.ops.mul(dy, weight)
    mean = fd.ops.truediv(
        fd.ops.sum(fd.ops.mul(scaled, normalized), dims=[1], keepdim=True), float(sizes["columns"]),
    )
    _add_output(fd, fd.ops.mul(fd.ops.sub(scaled, fd.ops.mul(normalized, mean)), rstd))
    _add_output(fd, fd.ops.sum(fd.ops.mul(dy, normalized), dims=[0]))


def _make_rms_norm_backward(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    shape = (sizes["rows"], sizes["columns"])
    dy, x, weight = normal(rng, shape), normal(rng, shape), normal(rng, (sizes["columns"],))
    rstd = 1 / np.sqrt((wide(x) ** 2).mean(axis=1, keepdims=True) + _EPS)
    return [dy, x, rstd.astype(np.float32), weight]


def _rms_norm_backward_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    dy, x, rstd, weight = map(wide, inputs)
    normalized = x * rstd
    scaled = dy * weight
    dx = rstd * (scaled - normalized * (scaled * normalized).mean(axis=1, keepdims=True))
    return [dx, (dy * normalized).sum(axis=0)]


RMS_NORM_BACKWARD = Example(
    name="rms_norm_backward",
    title="RMS norm backward: dx, dweight",
    look_at="Like layer norm backward, but with one column sum less; see which tensors cross the boundary.",
    full=_LARGE,
    small=_SMALL,
    record=_rms_norm_backward,
    make=_make_rms_norm_backward,
    reference=_rms_norm_backward_reference,
    rtol=1e-2,
    atol=3e-2,
)

_KEEP = 0.9  # share of the elements that a dropout keeps


def _dropout_add_layer_norm(fd: Any, sizes: Sizes) -> None:
    x, residual = _matrix(fd, sizes), _matrix(fd, sizes)
    seed = fd.define_scalar(None, dtype=DataType.Int)
    offset = fd.define_scalar(None, dtype=DataType.Int)
    shape = [sizes["rows"], sizes["columns"]]
    uniform = fd.ops.uniform(0.0, 1.0, shape, rng_seed=seed, rng_offset=offset, dtype=DataType.Float)
    mask = fd.ops.lt(uniform, _KEEP)
    dropped = fd.ops.mul(fd.ops.mul(x, fd.ops.cast(mask, dtype=DataType.Float)), 1 / _KEEP)
    fd.add_output(mask)
    record_layer_norm(fd, fd.ops.add(dropped, residual), sizes)


def _make_dropout(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    shape, columns = (sizes["rows"], sizes["columns"]), (sizes["columns"],)
    return [normal(rng, shape), normal(rng, shape), 1234, 8, normal(rng, columns), normal(rng, columns)]


def _dropout_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    x, residual, _, _, weight, bias = inputs
    mask = wide(outputs[0])
    return [mask, *layer_norm_reference(wide(x) * mask / _KEEP + wide(residual), wide(weight), wide(bias))]


DROPOUT_ADD_LAYER_NORM = Example(
    name="dropout_add_layer_norm",
    title="Dropout, residual add and layer norm",
    look_at=(
        "The index of an element determines its random number, so the numbers are the same under every segmentation; "
        "the mask is an output, which the reference uses."
    ),
    full=_LARGE,
    small=_SMALL,
    record=_dropout_add_layer_norm,
    make=_make_dropout,
    reference=_dropout_reference,
    rtol=1e-2,
    atol=1e-2,
)

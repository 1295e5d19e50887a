"""Scaled dot product attention, forward and backward; the array library of the inputs evaluates them.

Dropout depends only on seed and offset: an element of the scores is kept or dropped by its Philox number, which is
counted by position. The backward pass therefore drops the same elements as the forward pass.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Expr, IterDomain, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ops.factory import given_scalar
from fuser_lab.ops.matmul import joined_batch, stored_copy
from fuser_lab.ops.operands import same_extent, tensor_at
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.random import uniform_numbers
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Positions, Result

LEAST_RANK = 4  # batch, heads, sequence, features


# Arguments of calls


def _option(rec: Recorder, op: str, operand: Operand, argument: str) -> Scalar:
    """Return dropout_p, is_causal or scale as a scalar of its dtype."""
    value = given_scalar(rec, operand, op, argument)
    dtype = DataType.Bool if argument == "is_causal" else DataType.Double
    if value.dtype.kind > dtype.kind or (dtype is not DataType.Bool and value.dtype is DataType.Bool):
        msg = f"{op}: {argument} must be {'a boolean' if dtype is DataType.Bool else 'a real number'}, given {value}."
        raise DefinitionError(msg)
    if argument == "dropout_p" and value.value is not None and not 0 <= value.value.real <= 1:
        raise DefinitionError(f"{op}: dropout_p is {value.value}; it must be between 0 and 1.")
    return given_scalar(rec, convert(rec, value, dtype, op, argument), op, argument)


def _check_tensors(op: str, tensors: Sequence[TensorView], names: Sequence[str]) -> None:
    """Raise unless tensors have equal ranks of at least 4 and equal floating point dtypes."""
    first = tensors[0]
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.ndim < LEAST_RANK or tensor.ndim != first.ndim:
            raise DefinitionError(
                f"{op}: {name} has {tensor.ndim} axes and {names[0]} has {first.ndim}; "
                "all must have the same number, at least 4: batch, heads, sequence, features."
            )
        if tensor.dtype is not first.dtype or not tensor.dtype.is_float:
            raise DefinitionError(
                f"{op}: {names[0]} has dtype {first.dtype!r} and {name} has dtype {tensor.dtype!r}; "
                "they must have equal floating point dtypes."
            )


def _check_sizes(op: str, query: TensorView, key: TensorView, value: TensorView) -> None:
    for quantity, a, b in (
        ("features of query and key", query.extents[-1], key.extents[-1]),
        ("sequences of key and value", key.extents[-2], value.extents[-2]),
    ):
        if not same_extent(a, b):
            raise DefinitionError(f"{op}: the {quantity} have sizes {a} and {b}; they must be equal.")


def _check_on_scores(op: str, name: str, tensor: TensorView, query: TensorView, key: TensorView) -> None:
    """Raise unless a bias or mask can be broadcast to the scores."""
    if tensor.ndim != query.ndim:
        msg = f"{op}: {name} has {tensor.ndim} axes and query has {query.ndim}; they must have the same number."
        raise DefinitionError(msg)
    dtype = DataType.Bool if name == "mask" else query.dtype
    if tensor.dtype is not dtype:
        raise DefinitionError(f"{op}: {name} must have dtype {dtype!r}, given {tensor.dtype!r}.")
    scores = (*query.extents[:-1], key.extents[-2])
    for axis, domain in enumerate(tensor.domain.axes):
        if not domain.is_broadcast and not same_extent(domain.visible_extent, scores[axis]):
            msg = f"{op}: {name} has size {domain.visible_extent} on axis {axis}, where the scores have {scores[axis]}."
            raise DefinitionError(msg)


# Forward


def _sdpfa_fwd(
    rec: Recorder, query: Operand, key: Operand, value: Operand, bias: Operand = None, mask: Operand = None,
    dropout_p: Operand = None, is_causal: Operand = None, scale: Operand = None,
) -> tuple[Val, ...]:
    op = "sdpfa_fwd"
    operands: list[Val] = [rec.tensor(x, op, n) for x, n in ((query, "query"), (key, "key"), (value, "value"))]
    options: list[str] = []
    for operand, name in ((bias, "bias"), (mask, "mask")):
        if operand is not None:
            operands.append(rec.tensor(operand, op, name))
            options.append(name)
    for operand, name in ((dropout_p, "dropout_p"), (is_causal, "is_causal"), (scale, "scale")):
        if operand is not None:
            operands.append(_option(rec, op, operand, name))
            options.append(name)
    return rec.emit(SDPFA_FWD, operands, options=tuple(options))


def _batch(op: str, tensors: Sequence[TensorView], axes: AxisFactory) -> list[IterDomain]:
    return joined_batch(op, [tv.domain.axes[:-2] for tv in tensors], axes)


def _infer_fwd(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    op = "sdpfa_fwd"
    query, key, value = (tensor_at(inputs, i) for i in range(3))
    _check_tensors(op, (query, key, value), ("query", "key", "value"))
    _check_sizes(op, query, key, value)
    for place, name in enumerate(_options(attrs), 3):
        if name in {"bias", "mask"}:
            _check_on_scores(op, name, tensor_at(inputs, place), query, key)

    def rows() -> list[IterDomain]:
        return [*_batch(op, (query, key, value), axes), stored_copy(query.domain.axes[-2], axes)]

    return (
        Result(query.dtype, TensorDomain(logical=(*rows(), stored_copy(value.domain.axes[-1], axes)))),
        Result(DataType.Float, TensorDomain(logical=tuple(rows()))),
        # The two words and the offset that torch's generator returns.
        Result(DataType.UInt64, TensorDomain(logical=(axes.fresh(2),))),
        Result(DataType.UInt64, TensorDomain(logical=())),
    )


def _options(attrs: Attrs) -> tuple[str, ...]:
    options = attrs["options"]
    return tuple(str(name) for name in options) if isinstance(options, tuple) else ()


def draws(expr: Expr) -> bool:
    """Whether a forward pass may drop elements and still needs seed and offset."""
    if expr.op.name != "sdpfa_fwd":
        return False
    options = _options(dict(expr.attrs))
    if "dropout_p" not in options or len(expr.inputs) > 3 + len(options):
        return False
    dropout = expr.inputs[3 + options.index("dropout_p")]
    return not (isinstance(dropout, Scalar) and dropout.value == 0)


def _operands_by_name(options: tuple[str, ...], operands: Sequence[Any]) -> dict[str, Any]:
    """Return optional operands by name; seed and offset follow them."""
    named = dict(zip(options, operands, strict=False))
    if len(operands) > len(options):
        named["seed"], named["offset"] = operands[len(options) :]
    return named


def _scale(scale: Any, features: int) -> float:
    return 1 / math.sqrt(max(features, 1)) if scale is None else float(scale)


def _dropout_factors(dropout: float, seed: Any, offset: Any, shape: tuple[int, ...]) -> Array | None:
    """Return the factor of each probability: 0, or the value that preserves their mean; None without dropout."""
    if not dropout:
        return None
    if seed is None:
        msg = "sdpfa_fwd: seed and offset are not drawn yet; the pass explicit_seeds turns them into inputs."
        raise DefinitionError(msg)
    if dropout >= 1:
        return np.zeros(shape, np.float32)
    keeps = uniform_numbers(int(seed), int(offset), shape) >= dropout
    return (keeps / (1 - dropout)).astype(np.float32)


def _reference_fwd(query: Array, key: Array, value: Array, *extra: Any, options: tuple[str, ...]) -> tuple[Array, ...]:
    named = _operands_by_name(options, extra)
    scores = np.matmul(query * query.dtype.type(_scale(named.get("scale"), query.shape[-1])), np.swapaxes(key, -1, -2))
    if "bias" in named:
        scores = scores + named["bias"]
    if "mask" in named:
        scores = np.where(named["mask"], scores, -np.inf)
    if named.get("is_causal", False):
        scores = np.where(_causal_scores(scores), scores, -np.inf)
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    power = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = np.sum(power, axis=-1, keepdims=True)
    # A fully masked row gives zeros.
    chances = power / np.where(total == 0, 1, total)
    logsumexp = np.where(total == 0, -np.inf, np.log(total) + np.where(np.isfinite(largest), largest, 0))[..., 0]
    seed, offset = named.get("seed"), named.get("offset")
    keeps = _dropout_factors(float(named.get("dropout_p", 0.0)), seed, offset, chances.shape)
    output = np.matmul(chances if keeps is None else chances * keeps.astype(chances.dtype), value)
    return np.asarray(output), np.asarray(logsumexp), *_words(seed, offset)


def _causal_scores(scores: Array) -> Array:
    """Return the scores that a causal mask keeps: those at the same or earlier positions."""
    return np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_)


def _words(seed: Any, offset: Any) -> tuple[Array, Array]:
    word = int(seed or 0) & ((1 << 64) - 1)
    return np.array([word, 0], np.uint64), np.asarray(int(offset or 0) & ((1 << 64) - 1), np.uint64)


def _torch_fwd(torch: Any, query: Any, key: Any, value: Any, *extra: Any, options: tuple[str, ...]) -> tuple[Any, ...]:
    named = _operands_by_name(options, extra)
    scale = _scale(named.get("scale"), query.shape[-1])
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = torch.matmul(query.to(wide) * scale, key.to(wide).mT)
    if "bias" in named:
        scores = scores + named["bias"].to(wide)
    if "mask" in named:
        scores = scores.masked_fill(~named["mask"], -math.inf)
    if bool(named.get("is_causal", False)):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    logsumexp = torch.logsumexp(scores, -1)
    chances = _torch_chances(torch, scores, logsumexp)
    seed, offset = named.get("seed"), named.get("offset")
    keeps = _dropout_factors(float(named.get("dropout_p", 0.0)), seed, offset, tuple(chances.shape))
    if keeps is not None:
        chances = chances * torch.from_numpy(keeps).to(device=chances.device, dtype=wide)
    words = (torch.from_numpy(x).to(query.device) for x in _words(seed, offset))
    return (torch.matmul(chances, value.to(wide)).to(query.dtype), logsumexp.to(torch.float32), *words)


def _torch_chances(torch: Any, scores: Any, logsumexp: Any) -> Any:
    """Return softmax of scores from their logsumexp; zeros in fully masked rows."""
    seen = torch.isfinite(logsumexp)
    return torch.exp(scores - torch.where(seen, logsumexp, 0).unsqueeze(-1)) * seen.unsqueeze(-1)


def _fwd_axes(expr: Expr, result: int) -> tuple[Positions, ...]:
    query, _, value, *others = expr.tensor_inputs
    if result > 1:
        return tuple(() for _ in expr.tensor_inputs)
    batch = tuple((i, i) for i in range(query.ndim - 2))
    last = ((value.ndim - 1, value.ndim - 1),) if result == 0 else ()
    return ((*batch, (query.ndim - 2, query.ndim - 2)), batch, (*batch, *last), *(() for _ in others))


_Q, _K, _V = Arg((2, 3, 5, 4)), Arg((2, 3, 6, 4)), Arg((2, 3, 6, 7))
_BIAS, _MASK = Arg((2, 3, 5, 6)), Arg((1, 1, 5, 6), DataType.Bool)


def _in(dtype: DataType, *args: Arg) -> tuple[Arg, ...]:
    return tuple(Arg(a.shape, dtype) for a in args)


SDPFA_FWD = register(
    OpDef(
        name="sdpfa_fwd",
        kind=OpKind.ATTENTION,
        frontend=_sdpfa_fwd,
        infer=_infer_fwd,
        reference=_reference_fwd,
        library=_torch_fwd,
        axes=_fwd_axes,
        doc="softmax(query @ key.T * scale) @ value, with logsumexp and the seed and offset of the dropout.",
        samples=(
            Sample("fd.ops.sdpfa_fwd(a, b, c)", (_Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, scale=fd.define_scalar(0.3))", (_Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, d)", (_Q, _K, _V, _BIAS)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, bias=None, mask=d)", (_Q, _K, _V, _MASK)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, d, e, None, None, 0.5)", (_Q, _K, _V, _BIAS, _MASK)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, is_causal=fd.define_scalar(True))", (_Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c, dropout_p=fd.define_scalar(0.0), is_causal=False)", (_Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c)", _in(DataType.Double, _Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c)", _in(DataType.BFloat16, _Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c)", _in(DataType.Half, _Q, _K, _V)),
            Sample("fd.ops.sdpfa_fwd(a, b, c)", (Arg((1, 2, 3, 5, 4)), Arg((1, 2, 3, 6, 4)), Arg((1, 2, 3, 6, 4)))),
        ),
    ),
)


# Backward


_BWD_TENSORS = ("grad_output", "query", "key", "value", "output", "logsumexp")


def _sdpfa_bwd(
    rec: Recorder, grad_output: Operand, query: Operand, key: Operand, value: Operand, output: Operand,
    logsumexp: Operand, dropout_p: Operand, is_causal: Operand, philox_seed: Operand, philox_offset: Operand,
    scale: Operand,
) -> tuple[Val, ...]:
    op = "sdpfa_bwd"
    tensors = (grad_output, query, key, value, output, logsumexp)
    operands: list[Val] = [rec.tensor(x, op, n) for x, n in zip(tensors, _BWD_TENSORS, strict=True)]
    # Options that are None were omitted from sdpfa_fwd.
    options = ((dropout_p, 0.0, "dropout_p"), (is_causal, False, "is_causal"))
    operands += [_option(rec, op, usual if operand is None else operand, name) for operand, usual, name in options]
    operands += [rec.tensor(philox_seed, op, "philox_seed"), rec.tensor(philox_offset, op, "philox_offset")]
    if scale is None:
        # Passed explicitly, because the call has no default for it.
        return rec.emit(SDPFA_BWD, operands, scale=None)
    return rec.emit(SDPFA_BWD, [*operands, _option(rec, op, scale, "scale")])


def _infer_bwd(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    op = "sdpfa_bwd"
    grad, query, key, value, output, logsumexp = (tensor_at(inputs, i) for i in range(6))
    _check_tensors(op, (query, key, value, grad, output), ("query", "key", "value", "grad_output", "output"))
    _check_sizes(op, query, key, value)
    if logsumexp.ndim != query.ndim - 1 or logsumexp.dtype is not DataType.Float:
        raise DefinitionError(
            f"{op}: logsumexp must be Float with {query.ndim - 1} axes, "
            f"given {logsumexp.dtype!r} with {logsumexp.ndim} axes."
        )
    for name, tensor in (("philox_seed", tensor_at(inputs, 8)), ("philox_offset", tensor_at(inputs, 9))):
        if tensor.dtype.kind is not Kind.INTEGER or tensor.ndim > 1 or 0 in tensor.extents:
            actual = f"{tensor.dtype!r} of sizes {list(tensor.extents)}"
            raise DefinitionError(f"{op}: {name} must be integers with at most 1 axis, given {actual}.")
    return tuple(
        Result(tv.dtype, TensorDomain(logical=tuple(stored_copy(axis, axes) for axis in tv.domain.axes)))
        for tv in (query, key, value)
    )


def _reference_bwd(
    grad: Array, query: Array, key: Array, value: Array, output: Array, logsumexp: Array, dropout_p: Any,
    is_causal: Any, seed: Array, offset: Array, scale: Any = None,
) -> tuple[Array, ...]:
    factor = query.dtype.type(_scale(scale, query.shape[-1]))
    scores = np.matmul(query * factor, np.swapaxes(key, -1, -2))
    if is_causal:
        scores = np.where(_causal_scores(scores), scores, -np.inf)
    seen = np.isfinite(logsumexp)[..., None]
    chances = np.exp(scores - np.where(seen, logsumexp[..., None], 0).astype(scores.dtype)) * seen
    keeps = _dropout_factors(float(dropout_p), np.ravel(seed)[0], np.ravel(offset)[0], chances.shape)
    to_chances = np.matmul(grad, np.swapaxes(value, -1, -2))
    dropped = chances
    if keeps is not None:
        dropped, to_chances = chances * keeps.astype(chances.dtype), to_chances * keeps.astype(chances.dtype)
    to_scores = chances * (to_chances - np.sum(grad * output, axis=-1, keepdims=True)) * factor
    results = (
        np.matmul(to_scores, key),
        np.matmul(np.swapaxes(to_scores, -1, -2), query),
        np.matmul(np.swapaxes(dropped, -1, -2), grad),
    )
    return tuple(np.asarray(_fold(np, x, tv)) for x, tv in zip(results, (query, key, value), strict=True))


def _torch_bwd(
    torch: Any, grad: Any, query: Any, key: Any, value: Any, output: Any, logsumexp: Any, dropout_p: Any,
    is_causal: Any, seed: Any, offset: Any, scale: Any = None,
) -> tuple[Any, ...]:
    dtype = query.dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    grad, query, key, value, output = (x.to(wide) for x in (grad, query, key, value, output))
    factor = _scale(scale, query.shape[-1])
    scores = torch.matmul(query * factor, key.mT)
    if bool(is_causal):
        unseen = ~torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(unseen, -math.inf)
    chances = _torch_chances(torch, scores, logsumexp.to(wide))
    to_chances = torch.matmul(grad, value.mT)
    dropped = chances
    if float(dropout_p):
        first, second = (int(x.reshape(-1)[0].item()) for x in (seed, offset))
        keeps = torch.from_numpy(_dropout_factors(float(dropout_p), first, second, tuple(chances.shape)))
        keeps = keeps.to(device=chances.device, dtype=wide)
        dropped, to_chances = chances * keeps, to_chances * keeps
    to_scores = chances * (to_chances - (grad * output).sum(-1, keepdim=True)) * factor
    results = (torch.matmul(to_scores, key), torch.matmul(to_scores.mT, query), torch.matmul(dropped.mT, grad))
    return tuple(_fold(torch, x, tv).to(dtype) for x, tv in zip(results, (query, key, value), strict=True))


def _fold(library: Any, gradient: Any, operand: Any) -> Any:
    """Return a gradient summed over the batch axes in which its operand has size 1."""
    axes = tuple(i for i, (a, b) in enumerate(zip(gradient.shape, operand.shape, strict=True)) if a != b)
    return library.sum(gradient, axes).reshape(operand.shape) if axes else gradient


def _bwd_axes(expr: Expr, result: int) -> tuple[Positions, ...]:
    identity = tuple((i, i) for i in range(expr.tensor_outputs[result].ndim))
    return tuple(identity if place == result + 1 else () for place in range(len(expr.tensor_inputs)))


_G, _LSE, _SEED = Arg((2, 3, 5, 7)), Arg((2, 3, 5), low=2.0), Arg((2,), DataType.UInt64, 1.0, 90.0)
_OFFSET = Arg((), DataType.UInt64, 0.0, 90.0)
_BWD = "fd.ops.sdpfa_bwd(a, b, c, d, e, f, {p}, {causal}, g, h, {scale})"


def _bwd_sample(p: str, causal: str, scale: str, dtype: DataType = DataType.Float) -> Sample:
    tensors = _in(dtype, _G, _Q, _K, _V, _G)
    return Sample(_BWD.format(p=p, causal=causal, scale=scale), (*tensors, _LSE, _SEED, _OFFSET))


SDPFA_BWD = register(
    OpDef(
        name="sdpfa_bwd",
        kind=OpKind.ATTENTION,
        frontend=_sdpfa_bwd,
        infer=_infer_bwd,
        reference=_reference_bwd,
        library=_torch_bwd,
        axes=_bwd_axes,
        doc="Gradients of query, key and value of sdpfa_fwd.",
        samples=(
            _bwd_sample("fd.define_scalar(0.0)", "fd.define_scalar(False)", "None"),
            _bwd_sample("0.0", "True", "fd.define_scalar(0.2)"),
            _bwd_sample("fd.define_scalar(0.4)", "False", "0.2"),
            _bwd_sample("0.0", "False", "None", DataType.Double),
            _bwd_sample("0.1", "True", "None", DataType.BFloat16),
            _bwd_sample("None", "None", "None"),
        ),
    ),
)

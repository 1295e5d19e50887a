"""The meaning of each call, by torch in float64, with the errors that a correct evaluation may have.

The meaning of ops is defined independently of fuser_lab.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from math import prod
from typing import Any

import numpy as np
import torch

from fuser_lab import DataType as D
from tests.programs.program import Call, Input, Program, Ref, ScalarInput, Size
from tests.programs.values import (
    EPSILON,
    FLOATS,
    KIND,
    LARGEST,
    REDUCED,
    SMALLEST,
    TORCH,
    ULPS,
    UNCERTAIN,
    WIDE,
    Unsupported,
    Value,
    certain,
    converted,
    elementwise,
    moved,
    number,
    promoted,
    rounded,
)

RULES: dict[str, Callable[..., list[Value]]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the meaning of calls: a function of values and attributes."""

    def registered(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = fn
        return fn

    return registered


def _float_of(x: Value) -> Value:
    return converted(x, D.Float if KIND[x.dtype] < 2 else REDUCED.get(x.dtype, x.dtype))


def _unary(name: str, fn: Callable[[torch.Tensor], torch.Tensor], **how: Any) -> None:
    """Register a function of floats."""

    def meaning(x: Value) -> list[Value]:
        x = _float_of(x)
        if name in _PERIODIC:
            x = Value(dtype=x.dtype, v=x.v, e=x.e, u=x.u | (x.e > UNCERTAIN) | (x.v.abs() > 1e4), scalar=x.scalar)
        found = elementwise(fn, [x], x.dtype, **how)
        return [_divided(found, x) if name == "reciprocal" else found]

    RULES[name] = meaning


def _divided(found: Value, divisor: Value) -> Value:
    """Return a quotient, uncertain where its divisor may be zero or not."""
    perhaps = (divisor.e > 0) & (divisor.v.abs() <= divisor.e)
    return replace(found, e=torch.where(perhaps, 0.0, found.e), u=found.u | perhaps)


_PERIODIC = ("sin", "cos", "tan", "lgamma")
for _name, _fn, _slack in (
    ("acos", torch.acos, 8), ("acosh", torch.acosh, 16), ("asin", torch.asin, 0), ("asinh", torch.asinh, 0),
    ("atan", torch.atan, 0), ("atanh", torch.atanh, 0), ("cos", torch.cos, 8), ("cosh", torch.cosh, 0),
    ("exp", torch.exp, 0), ("exp2", torch.exp2, 0), ("expm1", torch.expm1, 0), ("erf", torch.erf, 0),
    ("lgamma", torch.lgamma, 64), ("log", torch.log, 8),
    ("log10", torch.log10, 8), ("log1p", torch.log1p, 0), ("log2", torch.log2, 8),
    ("sigmoid", torch.sigmoid, 0), ("sin", torch.sin, 8), ("sinh", torch.sinh, 0), ("tan", torch.tan, 8),
    ("tanh", torch.tanh, 0),
):
    _unary(_name, _fn, slack=_slack, ulps=256 if _name in {"exp", "exp2", "sinh", "cosh", "sigmoid", "tan"} else ULPS)
_unary("reciprocal", torch.reciprocal, ring=True)
_unary("rsqrt", torch.rsqrt)
_unary("sqrt", torch.sqrt, ring=True)


@rule("ceil", "floor", "round", "trunc", "frac", "abs", "relu", "sign", "set", "segment_set", "silu")
def _keeping(x: Value, *, op: str) -> list[Value]:
    if op in {"set", "segment_set"} or (not x.is_float and op not in {"abs", "relu", "sign"}):
        if not x.is_float and op in {"silu", "frac"}:
            raise Unsupported
        return [x]
    if x.dtype is D.Bool:
        raise Unsupported
    if op == "silu":
        found = elementwise(lambda v: v * torch.sigmoid(v), [x], x.dtype, ulps=256)
        # The sigmoid may be 0 where it is subnormal.
        lost = torch.where(torch.isfinite(found.v), x.v.abs() * SMALLEST[REDUCED.get(x.dtype, x.dtype)], 0.0)
        return [replace(found, e=torch.where(found.u, 0.0, found.e + lost))]
    if op == "sign":
        return [elementwise(lambda v: torch.where(v > 0, 1, torch.where(v < 0, -1, 0)).to(v.dtype), [x], x.dtype,
                            exact=True)]
    if op == "relu":
        found = elementwise(torch.relu, [x], x.dtype, exact=True)
        return [_unsigned_zero(found)]
    found = elementwise(getattr(torch, op), [x], x.dtype, exact=True)
    if op == "frac":  # discontinuous at each integer
        found = replace(found, u=found.u | (torch.trunc(x.v - 4 * x.e) != torch.trunc(x.v + 4 * x.e)) & (x.e > 0))
    return [found]


def _unsigned_zero(x: Value) -> Value:
    """Return a value whose zeros may have either sign."""
    if not x.is_float:
        return x
    return Value(dtype=x.dtype, v=x.v, e=torch.where(x.v == 0, x.e + SMALLEST[x.dtype], x.e), u=x.u, scalar=x.scalar)


@rule("neg")
def _neg(x: Value) -> list[Value]:
    if x.dtype is D.Bool:
        raise Unsupported
    x = converted(x, REDUCED.get(x.dtype, x.dtype))
    return [elementwise(torch.neg, [x], x.dtype, exact=True)]


@rule("isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit", "logical_not")
def _predicate(x: Value, *, op: str) -> list[Value]:
    if op == "logical_not":
        return [elementwise(torch.logical_not, [converted(x, D.Bool)], D.Bool)]
    found = elementwise(getattr(torch, op), [x], D.Bool)
    if op == "signbit":  # the sign of a NaN depends on the library
        found = replace(found, u=found.u | x.v.isnan())
    return [found]


def _truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.float64:
        return a / b
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc"))


def _remainder(fn: Callable[..., torch.Tensor], *, sign_of_divisor: bool) -> Callable[..., torch.Tensor]:
    def of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.float64:
            # libm's is exact; torch's vectorized one gives NaN where the quotient is beyond 2**1024.
            with np.errstate(all="ignore"):
                rest = torch.from_numpy(np.asarray(np.fmod(a.numpy(), b.numpy())))
            other = sign_of_divisor & (rest != 0) & (torch.signbit(rest) != torch.signbit(b))
            return torch.where(other, rest + b, rest)
        return torch.where(b == 0, 0, fn(a, torch.where(b == 0, 1, b)))

    return of


_ARITHMETIC: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _truncated,
    "fmod": _remainder(torch.fmod, sign_of_divisor=False), "mod": _remainder(torch.fmod, sign_of_divisor=False),
    "remainder": _remainder(torch.remainder, sign_of_divisor=True),
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow,
}


@rule(*_ARITHMETIC)
def _arithmetic(a: Any, b: Any, *, op: str) -> list[Value]:
    a, b = number(a), number(b)
    dtype = promoted([a, b])
    a, b = converted(a, dtype), converted(b, dtype)
    if dtype is D.Bool or (op == "pow" and dtype not in FLOATS):
        raise Unsupported
    if dtype not in FLOATS and op in {"div", "fmod", "mod", "remainder"}:
        least = torch.iinfo(TORCH[dtype]).min
        if bool(((a.v == least) & (b.v == -1)).any()) or (b.scalar and bool((b.v == 0).any())):
            raise Unsupported
    if op in {"fmod", "mod", "remainder"} and dtype in FLOATS:
        jumps = (a.v / b.v).abs() * (a.e + b.e > 0) > 1e3
        a = Value(dtype=dtype, v=a.v, e=a.e, u=a.u | jumps if jumps.shape == a.u.shape else a.u, scalar=a.scalar)
        found = elementwise(_ARITHMETIC[op], [a, b], dtype, exact=op != "remainder")
        found = Value(dtype=dtype, v=found.v, e=found.e, u=found.u | jumps | _close_to_whole(a, b))
        # For numbers of very different magnitudes, remainder rounds more than once.
        return [_unsigned_zero(found)]
    if op == "pow":
        found = elementwise(torch.pow, [a, b], dtype, ulps=1024)
        wild = (b.v * a.v.abs().log()).abs() > (60 if dtype is D.Float else 500)
        # A negative base has a power only if the exponent is an integer.
        perhaps_whole = (b.e > 0) & ((b.v - b.v.round()).abs() <= 4 * b.e) & (a.v <= a.e)
        perhaps_zero = (a.e > 0) & (a.v.abs() <= a.e) & (b.v - b.e < 0)
        unknown = (wild & torch.isfinite(found.v)) | perhaps_whole | perhaps_zero
        return [Value(dtype=dtype, v=found.v, e=found.e, u=found.u | unknown)]
    found = elementwise(_ARITHMETIC[op], [a, b], dtype, exact=op in {"maximum", "minimum"}, ring=True)
    if op == "div":
        return [_divided(found, b)]
    return [_unsigned_zero(found) if op in {"maximum", "minimum"} else found]


def _close_to_whole(a: Value, b: Value) -> torch.Tensor:
    ratio = a.v / b.v
    return ((ratio - ratio.round()).abs() < 1e-5) & ((a.e > 0) | (b.e > 0) | (ratio.abs() > 2.0**20))


@rule("truediv", "atan2")
def _quotient(a: Any, b: Any, *, op: str) -> list[Value]:
    a, b = number(a), number(b)
    dtype = promoted([a, b], floats=True)
    fn = torch.true_divide if op == "truediv" else torch.atan2
    operands = [converted(a, dtype), converted(b, dtype)]
    found = elementwise(fn, operands, dtype, ring=op == "truediv")
    return [_divided(found, operands[1]) if op == "truediv" else found]


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _comparison(a: Any, b: Any, *, op: str) -> list[Value]:
    a, b = number(a), number(b)
    dtype = promoted([a, b])
    a, b = converted(a, dtype), converted(b, dtype)
    found = elementwise(getattr(torch, op), [a, b], D.Bool)
    if dtype not in FLOATS:
        return [found]
    touching = ((a.v - b.v).abs() <= a.e + b.e) & (a.e + b.e > 0)
    return [Value(dtype=D.Bool, v=found.v, e=found.e, u=found.u | touching)]


@rule("logical_and", "logical_or")
def _logical(a: Any, b: Any, *, op: str) -> list[Value]:
    operands = [converted(number(x), D.Bool) for x in (a, b)]
    return [elementwise(getattr(torch, op), operands, D.Bool)]


@rule("bitwise_and", "bitwise_or", "bitwise_xor", "gcd")
def _bits(a: Any, b: Any, *, op: str) -> list[Value]:
    a, b = number(a), number(b)
    dtype = promoted([a, b])
    if dtype in FLOATS or (op == "gcd" and dtype is D.Bool):
        raise Unsupported
    if op == "gcd" and any(bool((x.v == torch.iinfo(TORCH[dtype]).min).any()) for x in (a, b)):
        raise Unsupported
    return [elementwise(getattr(torch, op), [converted(a, dtype), converted(b, dtype)], dtype)]


@rule("where")
def _where(condition: Value, a: Any, b: Any) -> list[Value]:
    a, b = number(a), number(b)
    dtype = promoted([a, b], halves=True)
    return [elementwise(torch.where, [condition, converted(a, dtype), converted(b, dtype)], dtype, exact=True)]


@rule("clamp")
def _clamp(x: Value, low: Any, high: Any) -> list[Value]:
    low, high = number(low, x.dtype), number(high, x.dtype)
    found = elementwise(lambda v: torch.clamp(v, low.v.item(), high.v.item()), [x], x.dtype, exact=True)
    return [_unsigned_zero(found)]


@rule("threshold")
def _threshold(x: Value, limit: Any, value: Any) -> list[Value]:
    bound, instead = number(limit, x.dtype).v, number(value, x.dtype).v
    return [elementwise(lambda v: torch.where(v <= bound, instead, v), [x], x.dtype, exact=True)]


@rule("lerp", "addcmul")
def _three(a: Any, b: Any, c: Any, alpha: Any = 1.0, *, op: str) -> list[Value]:
    operands = [number(x) for x in (a, b, c)]
    dtype = promoted(operands)
    if dtype not in FLOATS:
        raise Unsupported
    operands = [converted(x, dtype) for x in operands]
    scale = number(alpha, dtype).v
    fn = (lambda x, y, w: x + w * (y - x)) if op == "lerp" else (lambda x, y, z: x + scale * y * z)
    found = elementwise(fn, operands, dtype)
    # The summands may be larger than their sum, and are rounded as such.
    through = fn(*(x.v.abs() for x in operands)).abs() + operands[0].v.abs() + operands[1].v.abs() * 2
    through = torch.where(torch.isfinite(through), through, 0.0)
    wild = torch.zeros(found.shape, dtype=torch.bool)
    for x in operands:
        wild = wild | (x.v.abs() > LARGEST[dtype] ** 0.25)
    more = found.e + 8 * EPSILON[dtype] * through
    return [Value(dtype=dtype, v=found.v, e=torch.where(torch.isfinite(found.v), more, 0.0), u=found.u | wild)]


# Reductions


def axes_of(x: Value, dims: Sequence[int] | int | None) -> list[int]:
    """Return the axes that a reduction names."""
    if dims is None:
        return list(range(x.v.ndim))
    return sorted({d % max(x.v.ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)}) if x.v.ndim else []


def over(fn: Callable[..., torch.Tensor], x: torch.Tensor, dims: list[int], *, keep: bool) -> torch.Tensor:
    """Return a reduction by torch, which takes no axes for all axes."""
    return fn(x, dim=dims, keepdim=keep) if dims else x


@rule("sum", "prod", "max", "min")
def _reduction(
    x: Value, dims: Any = None, keepdim: bool = False, dtype: D | None = None, *, op: str,
) -> list[Value]:
    named = axes_of(x, dims)
    if op in {"sum", "prod"}:
        x = converted(x, dtype or (D.Int if KIND[x.dtype] < 2 else x.dtype))
    if not named:
        return [x]
    u = over(torch.any, x.u, named, keep=keepdim)
    count = prod(x.shape[d] for d in named)
    if op in {"max", "min"}:
        return [_extreme(x, named, u, op, count, keep=keepdim)]
    if x.dtype not in FLOATS:
        if x.dtype is not D.Int and dtype is None:
            raise Unsupported
        v = over(torch.sum, x.v, named, keep=keepdim) if op == "sum" else _product(x.v, named, keep=keepdim)
        return [Value(dtype=x.dtype, v=v.to(WIDE[x.dtype]), e=torch.zeros(v.shape, dtype=torch.float64), u=u)]
    finite = torch.where(torch.isfinite(x.v), x.v, 0.0)
    compute = EPSILON[REDUCED.get(x.dtype, x.dtype)]
    if op == "sum":
        v = over(torch.sum, x.v, named, keep=keepdim)
        size = over(torch.sum, finite.abs(), named, keep=keepdim)
        e = over(torch.sum, x.e, named, keep=keepdim)
        e = e + torch.where(torch.isfinite(v), 2 * compute * count * size + count * SMALLEST[x.dtype], 0.0)
        whole = over(torch.all, (finite == finite.round()) & (x.e == 0), named, keep=keepdim) & (size < 2**20)
        e = torch.where(whole & torch.isfinite(v) & (v != 0), 0.0, e)
        u = u | (size > LARGEST[x.dtype] / 4)
        return [rounded(x.dtype, v, e, u, ulps=4, kept=v.to(TORCH[x.dtype]).to(torch.float64) == v)]
    v = _product(x.v, named, keep=keepdim)
    large = _product(x.v.abs().clamp(min=1.0), named, keep=keepdim)
    small = _product(torch.where(finite == 0, 1.0, finite.abs()).clamp(max=1.0), named, keep=keepdim)
    moved_up, moved_down = (_product(x.v + s * x.e, named, keep=keepdim) for s in (1.0, -1.0))
    e = 2 * torch.maximum((v - moved_up).abs(), (v - moved_down).abs()) + 4 * compute * count * v.abs()
    e = torch.where(torch.isfinite(v), e, 0.0)
    # If some factors are infinite or zero, uncertain others decide nothing.
    unclear = over(torch.any, (x.e > UNCERTAIN * x.v.abs()), named, keep=keepdim)
    nearly = (large > LARGEST[x.dtype] / 4) | (small < SMALLEST[x.dtype] * 4)
    u = u | unclear | (nearly & ~torch.isnan(v)) | (nearly & torch.isnan(v))
    return [_unsigned_zero(rounded(x.dtype, v, torch.where(torch.isfinite(e), e, 0.0), u | ~torch.isfinite(e)))]


def _product(x: torch.Tensor, dims: list[int], *, keep: bool) -> torch.Tensor:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keepdim=keep)
    return x


def _extreme(x: Value, named: list[int], u: torch.Tensor, op: str, count: int, *, keep: bool) -> Value:
    if x.dtype is D.Bool:
        raise Unsupported
    fn = torch.amax if op == "max" else torch.amin
    if count == 0:
        sign = -1 if op == "max" else 1
        ends = torch.iinfo(TORCH[x.dtype]) if not x.is_float else None
        low = sign * float("inf") if ends is None else (ends.min if op == "max" else ends.max)
        shape = over(torch.any, x.u, named, keep=keep).shape
        return certain(x.dtype, torch.full(shape, low, dtype=WIDE[x.dtype]))
    v = fn(x.v, dim=named, keepdim=keep)
    if not x.is_float:
        return Value(dtype=x.dtype, v=v, e=torch.zeros(v.shape, dtype=torch.float64), u=u)
    ends = [fn(x.v + s * x.e, dim=named, keepdim=keep) for s in (1.0, -1.0)]
    e = torch.maximum((ends[0] - v).abs(), (ends[1] - v).abs())
    e = torch.where(torch.isfinite(e), e, 0.0)
    return _unsigned_zero(Value(dtype=x.dtype, v=v, e=e, u=u))


def _moments(x: Value, named: list[int], *, keep: bool, total: D) -> tuple[Value, Value, int]:
    """Return mean and sum of squared deviations, and the number of elements; ``total`` is the dtype of the sum."""
    if x.dtype not in FLOATS:
        raise Unsupported
    count = prod(x.shape[d] for d in named)
    mean = over(torch.sum, x.v, named, keep=True) / (count or torch.nan)
    spread = (x.v - mean).abs()
    square = over(torch.sum, spread**2, named, keep=keep)
    eps = EPSILON[REDUCED.get(x.dtype, x.dtype)] + EPSILON[x.dtype]
    coarse = over(torch.sum, x.v, named, keep=keep).abs() * EPSILON[total] / max(count, 1)
    largest = over(torch.sum, x.v.abs(), named, keep=keep)
    moves = over(torch.sum, x.e, named, keep=keep)
    apart = over(torch.sum, spread, named, keep=keep)
    off = (count + 8) * eps * largest + moves + coarse
    e = 4 * (eps * (count + 8) * square + 2 * off * apart + count * off**2) + SMALLEST[x.dtype]
    u = over(torch.any, x.u | ~torch.isfinite(x.v), named, keep=keep)
    wild = (largest * largest * (count + 1) > LARGEST[x.dtype] / 16) | (~torch.isfinite(e) if count else u)
    wild = wild | (largest > LARGEST[total] / 4)
    u = u | wild
    mean = over(torch.sum, x.v, named, keep=keep) / count if count else torch.full(square.shape, torch.nan).double()
    off = off / max(count, 1) + eps * mean.abs()
    clean = torch.zeros_like(e)
    a = rounded(x.dtype, torch.where(u, 0.0, mean), torch.where(u, clean, off) if count else clean, u)
    b = rounded(x.dtype, torch.where(u, 0.0, square), torch.where(u, clean, e), u)
    return a, b, count


@rule("var", "var_mean", "welford")
def _statistics(x: Value, dims: Any, correction: int = 1, keepdim: bool = False, *, op: str) -> list[Value]:
    named = axes_of(x, dims)
    if not named or (op == "var_mean" and x.dtype in REDUCED) or KIND[x.dtype] < 2:
        raise Unsupported
    total = x.dtype
    if op == "var":
        x = converted(x, REDUCED.get(x.dtype, x.dtype))
    mean, square, count = _moments(x, named, keep=keepdim and op != "welford", total=total)
    if op == "welford":
        n = torch.full(mean.shape, count, dtype=torch.int64)
        return [mean, square, certain(D.Int, n)]
    rest = max(count - correction, 0)
    exact = square.v / rest if rest else square.v * torch.nan
    u = square.u | (torch.zeros_like(square.u) if rest else torch.ones_like(square.u))
    if not rest and count <= 1 and correction:
        u = square.u  # 0 / 0
    e = square.e / rest if rest else torch.zeros_like(square.e)
    var = rounded(x.dtype, exact, e, u)
    return [var] if op == "var" else [var, mean]


# Shapes


@rule("permute")
def _permute(x: Value, dims: list[int]) -> list[Value]:
    return [moved(lambda t: t.permute(dims), x)]


@rule("reshape")
def _reshape(x: Value, new_shape: list[Any]) -> list[Value]:
    return [moved(lambda t: t.reshape(new_shape), x)]


@rule("broadcast")
def _broadcast(x: Value, flags: list[bool]) -> list[Value]:
    places = [i for i, flag in enumerate(flags) if flag]

    def inserted(t: torch.Tensor) -> torch.Tensor:
        for place in places:
            t = t.unsqueeze(place)
        return t

    return [moved(inserted, x)]


@rule("broadcast_in_dim")
def _broadcast_in_dim(x: Value, shape: list[int], dims: list[int]) -> list[Value]:
    sizes = [1] * len(shape)
    for axis, d in enumerate(dims):
        sizes[d] = x.shape[axis]
    return [moved(lambda t: t.reshape(sizes).expand(shape), x)]


@rule("expand")
def _expand(x: Value, shape: list[int]) -> list[Value]:
    return [moved(lambda t: t.expand(shape), x)]


@rule("squeeze")
def _squeeze(x: Value, dims: list[int]) -> list[Value]:
    kept = [n for i, n in enumerate(x.shape) if i not in {d % x.v.ndim for d in dims}]
    if prod(kept) != prod(x.shape):
        raise Unsupported
    return [moved(lambda t: t.reshape(kept), x)]


@rule("slice")
def _slice(x: Value, starts: list[int], ends: list[int]) -> list[Value]:
    return [moved(lambda t: t[tuple(slice(a, b) for a, b in zip(starts, ends, strict=True))], x)]


@rule("pad")
def _pad(x: Value, widths: list[int], value: Any = 0) -> list[Value]:
    fill = number(value, x.dtype).v.item()

    def padded(t: torch.Tensor, with_: Any) -> torch.Tensor:
        return torch.nn.functional.pad(t, widths, value=with_)

    plain = x.v.to(torch.uint8) if x.dtype is D.Bool else x.v
    v = padded(plain, int(fill) if x.dtype is D.Bool else fill).to(x.v.dtype)
    return [Value(dtype=x.dtype, v=v, e=padded(x.e, 0.0), u=padded(x.u.to(torch.uint8), 0).to(torch.bool))]


@rule("cat")
def _cat(tensors: list[Value], dim: int) -> list[Value]:
    parts = [[getattr(x, name) for x in tensors] for name in ("v", "e", "u")]
    v, e, u = (torch.cat(part, dim) for part in parts)
    return [Value(dtype=tensors[0].dtype, v=v, e=e, u=u)]


@rule("stride_order")
def _stride_order(x: Value, order: list[int]) -> list[Value]:
    del order
    return [x]


@rule("triu")
def _triu(x: Value, diagonal: int = 0) -> list[Value]:
    if x.dtype is D.Bool:
        raise Unsupported
    return [moved(lambda t: torch.triu(t, diagonal), x)]


@rule("cast")
def _cast(x: Value, dtype: D) -> list[Value]:
    return [converted(x, dtype)]


@rule("full")
def _full(shape: list[Any], value: Any, dtype: D) -> list[Value]:
    sizes = [int(n.v) if isinstance(n, Value) else n for n in shape]
    return [certain(dtype, torch.full(sizes, value, dtype=WIDE[dtype]))]


@rule("iota")
def _iota(length: Any, start: Any, step: Any, dtype: D) -> list[Value]:
    count = int(length.v) if isinstance(length, Value) else length
    return [certain(dtype, start + step * torch.arange(count, dtype=WIDE[dtype]))]


# Positions


def _positions(index: Value) -> torch.Tensor:
    if bool(index.u.any()):
        raise Unsupported
    return index.v.to(torch.int64)


@rule("select")
def _select(x: Value, index: int, dim: int) -> list[Value]:
    return [moved(lambda t: t.select(dim, int(number(index).v)), x)]


@rule("index_select")
def _index_select(x: Value, index: Value, dim: int) -> list[Value]:
    at = _positions(index)
    if not x.v.ndim or index.v.ndim != 1:
        raise Unsupported
    return [moved(lambda t: t.index_select(dim, at), x)]


@rule("gather")
def _gather(x: Value, index: Value, dim: int) -> list[Value]:
    at = _positions(index)
    return [moved(lambda t: t.gather(dim, at), x)]


@rule("take_along_axis")
def _take(x: Value, index: Value, dim: int) -> list[Value]:
    at = _positions(index)
    return [moved(lambda t: torch.take_along_dim(t, at, dim), x)]


@rule("scatter")
def _scatter(x: Value, index: Value, src: Value, dim: int) -> list[Value]:
    at = _positions(index)
    sorted_, _ = at.sort(dim)
    n = at.shape[dim]
    if n > 1 and bool((sorted_.narrow(dim, 1, n - 1) == sorted_.narrow(dim, 0, n - 1)).any()):
        raise Unsupported
    parts = [getattr(x, name).scatter(dim, at, getattr(src, name)) for name in ("v", "e", "u")]
    return [Value(dtype=x.dtype, v=parts[0], e=parts[1], u=parts[2])]


@rule("embedding_fwd")
def _embedding(index: Value, weight: Value) -> list[Value]:
    at = _positions(index)
    return [moved(lambda t: t[at], weight)]


# Scans, sorts, products


@rule("cumsum", "cummax", "cummin")
def _scan(x: Value, dim: int, *, op: str) -> list[Value]:
    if not x.v.ndim or x.dtype is D.Bool:
        raise Unsupported
    u = x.u.to(torch.int64).cumsum(dim) > 0
    if op != "cumsum":
        fn = torch.cummax if op == "cummax" else torch.cummin
        v = fn(x.v, dim).values if x.v.numel() else x.v
        ends = [fn(x.v + s * x.e, dim).values if x.v.numel() else x.v for s in (1.0, -1.0)] if x.is_float else [v]
        e = torch.stack([(end - v).abs() for end in ends]).amax(0) if x.is_float else x.e
        return [_unsigned_zero(Value(dtype=x.dtype, v=v, e=torch.where(torch.isfinite(e), e, 0.0), u=u))]
    v = x.v.cumsum(dim).to(x.v.dtype)
    if not x.is_float:
        return [Value(dtype=x.dtype, v=v, e=x.e, u=u)]
    size = torch.where(torch.isfinite(x.v), x.v.abs(), 0.0).cumsum(dim)
    # Partial sums may be rounded to the dtype.
    e = x.e.cumsum(dim) + 2 * EPSILON[x.dtype] * (x.shape[dim] + 1) * size + x.shape[dim] * SMALLEST[x.dtype]
    return [rounded(x.dtype, v, torch.where(torch.isfinite(v), e, 0.0), u | (size > LARGEST[x.dtype] / 4))]


@rule("argsort")
def _argsort(x: Value, dim: int, descending: bool, stable: bool) -> list[Value]:
    if not x.sure or not x.v.ndim or not stable:
        raise Unsupported
    return [certain(D.Int, torch.argsort(x.v, dim=dim, descending=descending, stable=True))]


@rule("matmul", "linear")
def _product_of_matrices(a: Value, b: Value, bias: Value | None = None, *, op: str) -> list[Value]:
    if a.dtype is not b.dtype or not a.is_float or not all(bool(torch.isfinite(x.v).all()) for x in (a, b)):
        raise Unsupported
    fn = torch.matmul if op == "matmul" else torch.nn.functional.linear
    v, size = fn(a.v, b.v), fn(a.v.abs(), b.v.abs())
    inner = a.shape[-1]
    e = fn(a.e, b.v.abs()) + fn(a.v.abs(), b.e) + fn(a.e, b.e)
    e = e + 2 * EPSILON[REDUCED.get(a.dtype, a.dtype)] * (inner + 2) * size + inner * SMALLEST[a.dtype]
    wild = bool(a.u.any() or b.u.any())
    u = torch.full(v.shape, wild) | (size > LARGEST[a.dtype] / 4)
    if bias is not None:
        v, e, u = v + bias.v, e + bias.e + EPSILON[a.dtype] * (v.abs() + bias.v.abs()), u | bias.u
        u = u | ~torch.isfinite(v)
    return [rounded(a.dtype, v, torch.where(torch.isfinite(e), e, 0.0), u | ~torch.isfinite(e))]


_TOLD = frozenset(name for name, fn in RULES.items() if "op" in signature(fn).parameters)


def input_value(given: Input | ScalarInput) -> Value:
    """Return an input as a value."""
    if isinstance(given, ScalarInput):
        return number(given.value, given.dtype)
    array = given.array
    wide = array.astype("float64") if given.dtype in FLOATS else array
    return certain(given.dtype, torch.from_numpy(np.array(wide)))


def results(call: Call, values: Sequence[Value]) -> list[Value]:
    """Return the result of a call.

    Raises
    ------
    Unsupported
        If its meaning is ambiguous, or torch refuses it.
    """

    def resolved(x: Any) -> Any:
        if isinstance(x, Ref):
            return values[x.number]
        if isinstance(x, Size):
            return number(values[x.value.number].shape[x.axis])
        return [resolved(y) for y in x] if isinstance(x, list) else x

    told = {"op": call.op} if call.op in _TOLD else {}
    try:
        return RULES[call.op](*map(resolved, call.args), **{k: resolved(v) for k, v in call.kwargs}, **told)
    except (RuntimeError, IndexError, NotImplementedError, OverflowError) as error:
        msg = f"{call.op}: {error}"
        raise Unsupported(msg) from error


def evaluated(program: Program) -> list[Value]:
    """Return all values of a program."""
    values = [input_value(given) for given in program.inputs]
    for call in program.calls:
        values += results(call, values)
    return values

"""Numbers with errors: values, and bounds of the deviation of a correct evaluation.

A value has numbers, an absolute error for each of them, and a mask of elements about which nothing is certain, because
rounding decides them (comparisons of equal numbers, sums that overflow in one order and not in another). Errors are
propagated by computing each op again with operands moved by theirs. An element with error 0 is the same in every
correct evaluation, including the sign of zero.

The dtypes of results are defined here independently of fuser_lab.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from fuser_lab import DataType as D

TORCH = {
    D.Double: torch.float64, D.Float: torch.float32, D.Half: torch.float16, D.BFloat16: torch.bfloat16,
    D.Int: torch.int64, D.Int32: torch.int32, D.Bool: torch.bool,
}
FLOATS = (D.Half, D.BFloat16, D.Float, D.Double)
WIDE = {dtype: torch.float64 if dtype in FLOATS else kept for dtype, kept in TORCH.items()}
EPSILON = {D.Double: 2.3e-16, D.Float: 1.2e-7, D.Half: 9.8e-4, D.BFloat16: 7.9e-3}
SMALLEST = {D.Double: 2.3e-308, D.Float: 1.2e-38, D.Half: 6e-8, D.BFloat16: 1.2e-38}
LARGEST = {dtype: torch.finfo(TORCH[dtype]).max for dtype in FLOATS}
KIND = {D.Bool: 0, D.Int32: 1, D.Int: 1, D.Half: 2, D.BFloat16: 2, D.Float: 2, D.Double: 2}
REDUCED = {D.Half: D.Float, D.BFloat16: D.Float}
ULPS = 16  # of a function of one element; libraries and approximations differ by a few
UNCERTAIN = 0.05  # relative error above which nothing is certain


class Unsupported(Exception):  # noqa: N818 - an outcome: the generator draws another call
    """A call that is not supported here, or whose meaning is ambiguous."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Value:
    """Numbers (float64 or the integer type), errors and the mask of uncertain elements, all of the same shape."""

    dtype: D
    v: torch.Tensor
    e: torch.Tensor
    u: torch.Tensor
    scalar: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all axes."""
        return tuple(self.v.shape)

    @property
    def sure(self) -> bool:
        """Whether all elements are the same in every correct evaluation."""
        return not bool(self.u.any()) and not bool((self.e != 0).any())

    @property
    def is_float(self) -> bool:
        """Whether elements are floating point numbers."""
        return self.dtype in FLOATS


def certain(dtype: D, v: torch.Tensor, *, scalar: bool = False) -> Value:
    """Return a value that is known exactly."""
    v = v.to(TORCH[dtype]).to(WIDE[dtype])
    nothing = torch.zeros(v.shape, dtype=torch.float64)
    return Value(dtype=dtype, v=v, e=nothing, u=nothing != 0, scalar=scalar)


def number(x: float | Value, dtype: D | None = None) -> Value:
    """Return a Python number as a value."""
    if isinstance(x, Value):
        return x
    own = D.Bool if isinstance(x, bool) else D.Int if isinstance(x, int) else D.Double
    return certain(dtype or own, torch.tensor(x, dtype=WIDE[dtype or own]), scalar=True)


# Result types


def widest(dtypes: Sequence[D]) -> D:
    """Return the common type of operands of one category."""
    kind = max(KIND[d] for d in dtypes)
    found = {d for d in dtypes if KIND[d] == kind}
    if kind < 2:
        return D.Bool if kind == 0 else D.Int if D.Int in found else D.Int32
    if len(found) == 1:
        return next(iter(found))
    return D.Double if D.Double in found else D.Float


def promoted(operands: Sequence[Value], *, halves: bool = False, floats: bool = False) -> D:
    """Return the type that operands are converted to: by tensors, then 0-d tensors, then scalars of a higher kind."""
    found: D | None = None
    for members in (
        [x.dtype for x in operands if x.v.ndim and not x.scalar],
        [x.dtype for x in operands if not x.v.ndim and not x.scalar],
        [x.dtype for x in operands if x.scalar],
    ):
        if members and (found is None or KIND[widest(members)] > KIND[found]):
            found = widest(members)
    if found is None:
        raise Unsupported
    if floats and KIND[found] < 2:
        return D.Float
    return found if halves else REDUCED.get(found, found)


def converted(x: Value, dtype: D) -> Value:
    """Return a value in another type."""
    if x.dtype is dtype:
        return x
    if x.is_float and dtype is D.Bool:
        crossing = (x.e > 0) & (x.v.abs() <= x.e)
        return Value(dtype=dtype, v=x.v != 0, e=torch.zeros_like(x.e), u=x.u | crossing, scalar=x.scalar)
    if x.is_float and dtype not in FLOATS:
        v, down, up = (_whole(x, by, dtype) for by in (0.0, -1.0, 1.0))
        return Value(dtype=dtype, v=v, e=torch.zeros_like(x.e), u=x.u | (down != v) | (up != v), scalar=x.scalar)
    if dtype not in FLOATS:
        return Value(dtype=dtype, v=x.v.to(WIDE[dtype]), e=x.e, u=x.u, scalar=x.scalar)
    exact = x.v.to(torch.float64)
    v = x.v.to(TORCH[dtype]).to(torch.float64)
    return rounded(dtype, exact if x.is_float else v, x.e, x.u, ulps=0, scalar=x.scalar, kept=v == exact)


def _whole(x: Value, by: float, dtype: D) -> torch.Tensor:
    """Return floats, moved by their errors, as integers by CUDA's rule: truncated and clamped.

    NaN is the smallest integer, but 0 where single precision becomes Int32.
    """
    ends = torch.iinfo(TORCH[dtype])
    exact = x.v + by * x.e
    found = torch.where(exact.abs() < 2.0 ** (ends.bits - 1), exact.trunc(), 0.0).to(torch.int64)
    found = torch.where(exact >= 2.0 ** (ends.bits - 1), ends.max, found)
    found = torch.where(exact <= -(2.0 ** (ends.bits - 1)), ends.min, found)
    nothing = 0 if dtype is D.Int32 and x.dtype is not D.Double else ends.min
    return torch.where(exact.isnan(), nothing, found).to(WIDE[dtype])


def rounded(
    dtype: D, exact: torch.Tensor, e: torch.Tensor, u: torch.Tensor, *, ulps: float = ULPS,
    kept: torch.Tensor | None = None, scalar: bool = False,
) -> Value:
    """Return numbers rounded to a type, their errors with the rounding error; ``kept`` masks exact elements."""
    v = exact.to(TORCH[dtype]).to(torch.float64)
    more = v.abs() * (EPSILON[dtype] + ulps * EPSILON[REDUCED.get(dtype, dtype)]) + SMALLEST[dtype]
    more = torch.where(torch.isfinite(v), more, 0.0)
    if kept is not None:
        more = torch.where(kept & (e == 0), 0.0, more)
    total = e + more
    total = torch.where(torch.isfinite(v), total, 0.0)
    # Close to the largest number, another rounding may overflow.
    edge = (exact.abs() + 2 * e + more > LARGEST[dtype]) & torch.isfinite(exact) & (total > 0) | (
        torch.isinf(v) & torch.isfinite(exact) & ((exact.abs() - 2 * e) * (1 - 4 * EPSILON[dtype]) <= LARGEST[dtype])
    )
    u = u | edge | ~torch.isfinite(total)
    return Value(dtype=dtype, v=v, e=torch.where(u, 0.0, total), u=u, scalar=scalar)


def elementwise(
    fn: Callable[..., torch.Tensor], operands: Sequence[Value], dtype: D, *, ulps: float = ULPS, exact: bool = False,
    ring: bool = False, slack: float = 0.0,
) -> Value:
    """Return ``fn`` of each element.

    ``exact`` functions do not round; those of a ``ring`` round only results that are not representable. ``slack`` is an
    absolute error in units of the type's epsilon, for functions that are not accurate near their zeros.
    """
    base = fn(*(x.v for x in operands))
    u = torch.zeros(base.shape, dtype=torch.bool)
    for x in operands:
        u = u | x.u
    moving = [k for k, x in enumerate(operands) if bool((x.e > 0).any())]
    e = torch.zeros(base.shape, dtype=torch.float64)
    for signs in product((1.0, -1.0), repeat=len(moving)):
        values = [x.v for x in operands]
        for k, sign in zip(moving, signs, strict=True):
            values[k] = operands[k].v + sign * operands[k].e
        if not moving:
            break
        other = fn(*values)
        if base.dtype == torch.float64:
            same = (base == other) & (torch.signbit(base) == torch.signbit(other)) | (base.isnan() & other.isnan())
            apart = torch.where(same, 0.0, (base - other).abs() + SMALLEST[dtype])
            u = u | ~torch.isfinite(apart)
            e = torch.maximum(e, torch.where(torch.isfinite(apart), 2 * apart, 0.0))
        else:
            u = u | (base != other)
    if dtype not in FLOATS:
        return Value(dtype=dtype, v=base.to(WIDE[dtype]), e=torch.zeros(base.shape, dtype=torch.float64), u=u,
                     scalar=all(x.scalar for x in operands))
    base = base.to(torch.float64)
    nearest = base.to(TORCH[dtype]).to(torch.float64)
    kept = None
    if exact:
        kept = torch.ones(base.shape, dtype=torch.bool)
    elif ring and dtype is not D.Double:
        kept = nearest == base
    if slack:
        e = e + slack * EPSILON[REDUCED.get(dtype, dtype)]
    return rounded(dtype, base, e, u, ulps=ulps, kept=kept, scalar=all(x.scalar for x in operands))


def moved(fn: Callable[[torch.Tensor], torch.Tensor], x: Value) -> Value:
    """Return a value with its elements rearranged; ``fn`` works on any tensor of its shape."""
    return Value(dtype=x.dtype, v=fn(x.v), e=fn(x.e), u=fn(x.u), scalar=False)

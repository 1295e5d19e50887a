"""Running sums, products, minima, maxima and logarithms of sums of exponentials along one axis."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType, from_numpy
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Expr, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.operands import defined_scalar, tensor_at, wrap_dim
from fuser_lab.ops.positions import apply_move, fill_like
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.reduction import MAX, MIN, PROD, SUM
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Combine, Operand, Positions, Result
from fuser_lab.ops.view import SET

# nvFuser's sentence for an axis that does not exist, of sorts too.
OUT_OF_BOUNDARY = "Tried to access out of boundary index {dim}; dim is in [{least}, {ndim}) for {ndim} axes."


def check_ordered(tensor: TensorView, op: str) -> None:
    """Raise DefinitionError for complex numbers, which have no order."""
    if tensor.dtype.is_complex:
        raise DefinitionError(f"{op}: arg has dtype {tensor.dtype!r}; complex numbers have no order.")


def _check_float(tensor: TensorView, op: str) -> None:
    """Raise DefinitionError for integers and complex numbers."""
    if not tensor.dtype.is_float:
        raise DefinitionError(f"{op}: arg has dtype {tensor.dtype!r}; floating point numbers are required.")


def scanned_domain(tensor: TensorView, dim: int, axes: AxisFactory) -> TensorDomain:
    """Return the axes of a result whose elements along axis ``dim`` differ even if the operand's repeat."""
    logical = [axes.copy(axis) for axis in tensor.domain.axes]
    axis = tensor.domain.axes[dim]
    if axis.expanded is not None:
        logical[dim] = axes.fresh(axis.visible_extent)
    return TensorDomain(logical=tuple(logical))


def dim_of(attrs: Attrs) -> int:
    """Return the axis along which an op runs."""
    dim = attrs["dim"]
    return dim if isinstance(dim, int) else 0


def axes_of_first(expr: Expr, result: int) -> tuple[Positions, ...]:
    """Return that the first operand and a result have the same axes, except the one that the op runs along."""
    del result
    dim = dim_of(dict(expr.attrs))
    tensor, *others = expr.tensor_inputs
    return tuple((i, i) for i in range(tensor.ndim) if i != dim), *(() for _ in others)


def _infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = tensor_at(inputs)
    return (Result(tensor.dtype, scanned_domain(tensor, dim_of(attrs), axes)),)


_SECTION = 8192  # elements, which are 64 KiB in Double
_HIGH_BIT = -(1 << 63)  # which turns the order of unsigned integers into the order of signed ones


def to_ordered(torch: Any, x: Any) -> Any:
    """Return a torch tensor whose elements compare like those of ``x``, in a dtype that torch sorts and scans."""
    if x.dtype is torch.uint64:
        return x.view(torch.int64) ^ _HIGH_BIT
    wide = x.to({torch.bool: torch.uint8}.get(x.dtype, torch.float32 if "float8" in str(x.dtype) else x.dtype))
    # A GPU orders a NaN by its sign.
    return wide.nan_to_num(math.nan, math.inf, -math.inf) if wide.is_cuda and wide.is_floating_point() else wide


def from_ordered(torch: Any, x: Any, dtype: Any) -> Any:
    """Undo `to_ordered`."""
    return (x ^ _HIGH_BIT).view(torch.uint64) if dtype is torch.uint64 else x.to(dtype)


def _torch_sum(torch: Any, x: Any, dim: int) -> Any:
    if x.dtype is torch.bool:
        return torch.cummax(x.to(torch.int8), dim).values.to(torch.bool)
    if x.dtype is torch.uint64:
        return torch.cumsum(x.view(torch.int64), dim).view(torch.uint64)
    return torch.cumsum(x, dim, dtype=x.dtype)


def _torch_product(torch: Any, x: Any, dim: int) -> Any:
    if x.dtype is torch.bool:
        return torch.cummin(x.to(torch.int8), dim).values.to(torch.bool)
    if x.dtype is torch.uint64:
        return torch.cumprod(x.view(torch.int64), dim).view(torch.uint64)
    return torch.cumprod(x, dim, dtype=x.dtype)


def _torch_into(fn: str) -> Callable[..., bool]:
    """Return a function that writes running sums or products into a tensor."""

    def into(torch: Any, out: Any, x: Any, init: Any = None, *, dim: int) -> bool:
        if init is not None or x.dtype in {torch.bool, torch.uint64}:
            return False
        getattr(torch, fn)(x, dim, dtype=x.dtype, out=out)
        return True

    return into


def _torch_largest(torch: Any, x: Any, dim: int) -> Any:
    return from_ordered(torch, torch.cummax(to_ordered(torch, x), dim).values, x.dtype)


def _torch_smallest(torch: Any, x: Any, dim: int) -> Any:
    return from_ordered(torch, torch.cummin(to_ordered(torch, x), dim).values, x.dtype)


def _torch_logarithm(torch: Any, x: Any, dim: int) -> Any:
    return torch.logcumsumexp(x.float() if "float8" in str(x.dtype) else x, dim).to(x.dtype)


def _running(ufunc: "np.ufunc", data: Array, init: Any, dim: int) -> Array:
    """Return running values along an axis; those of Float that are rounded are in Double, rounded once per element.

    They are computed in sections, whose copies in Double stay in a core's cache.
    """
    if dim and len(data) > 1 and data.size > _SECTION:
        each = max(_SECTION * len(data) // data.size, 1)
        parts = [_running(ufunc, data[i : i + each], init, dim) for i in range(0, len(data), each)]
        return np.concatenate(parts)
    dtype = from_numpy(data.dtype)
    wide = (dtype if ufunc in {np.minimum, np.maximum} else dtype.wider).numpy
    before = None if init is None else np.asarray(init, data.dtype).astype(wide)
    running = np.empty_like(data)
    length = data.shape[dim]
    each = max(_SECTION * length // max(data.size, 1), 1)
    for first in range(0, length, each):
        here = (*[slice(None)] * dim, slice(first, first + each))
        section = data[here].astype(wide)
        start = section[(*here[:-1], slice(0, 1))]
        if before is not None:
            ufunc(before, start, out=start)
        section = ufunc.accumulate(section, axis=dim, dtype=wide)
        before = section[(*here[:-1], slice(-1, None))]
        running[here] = section
    return running


def _scan(
    name: str, running: Combine | None, ufunc: "np.ufunc", library: Callable[[Any, Any, int], Any], doc: str, *,
    check: Callable[[TensorView, str], None] | None = None, into: Callable[..., bool] | None = None,
) -> OpDef:
    """Register a scan; ``check`` raises for an operand whose dtype it does not accept."""

    def frontend(rec: Recorder, arg: Operand, dim: int, init: Operand = None) -> Val:
        tensor = rec.tensor(arg, name, "arg")
        if check is not None:
            check(tensor, name)
        axis = wrap_dim(dim, tensor.ndim, name, refusal=OUT_OF_BOUNDARY)
        if init is not None:
            first = convert(rec, defined_scalar(rec, init, name, "init"), tensor.dtype, name, "init")
            return rec.emit(entry, [tensor, first], dim=axis)[0]
        if tensor.domain.axes[axis].is_broadcast and tensor.domain.axes[axis].expanded is None:
            return rec.emit(SET, [tensor])[0]
        return rec.emit(entry, [tensor], dim=axis)[0]

    def reference(x: Array, init: Any = None, *, dim: int) -> Array:
        return _running(ufunc, np.asarray(x), init, dim)

    def on_torch(torch: Any, x: Any, init: Any = None, *, dim: int) -> Any:
        if init is None:
            return library(torch, x, dim)
        shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
        both = apply_move(torch, x, lambda *parts: torch.cat(parts[::-1], dim), fill_like(torch, init, x).expand(shape))
        return library(torch, both, dim).narrow(dim, 1, x.shape[dim])

    half, whole_numbers = Arg((2, 3, 5), DataType.Half, -1, 1), Arg((6,), DataType.Int32)
    samples: tuple[Sample, ...] = (
        Sample(f"fd.ops.{name}(a, 0)"),
        Sample(f"fd.ops.{name}(a, dim=-1)", (half,)),
        Sample(f"fd.ops.{name}(a, 1)", (Arg((3, 9), DataType.BFloat16, -1, 1),)),
        Sample(f"fd.ops.{name}(a, 0)", (whole_numbers,)),
        Sample(f"fd.ops.{name}(a, 1)", (Arg((3, 4), DataType.Bool, 0, 2),)),
        Sample(f"fd.ops.{name}(a, 1)", (Arg((3, 1)),)),
        Sample(f"fd.ops.{name}(a, 0)", (Arg((0, 3), DataType.Int),)),
        Sample(f"fd.ops.{name}(a, 1, fd.define_scalar(2.0))", (Arg((3, 4), DataType.Double),)),
        Sample(f"fd.ops.{name}(a, 0, init=fd.define_scalar(-1, DataType.Int))", (whole_numbers,)),
        Sample(f"fd.ops.neg(fd.ops.{name}(fd.ops.neg(a), 1))"),
        Sample(f"fd.ops.{name}(fd.ops.expand(a, [3, 4]), 1)", (Arg((3, 1)),)),
    )
    if check is None:
        samples = (*samples, Sample(f"fd.ops.{name}(a, 1)", (Arg((2, 5), DataType.ComplexFloat),)))
    if check is _check_float:
        samples = tuple(s for s in samples if all(arg.dtype.is_float for arg in s.args))
    entry = OpDef(
        name=name,
        kind=OpKind.SCAN,
        frontend=frontend,
        infer=_infer,
        reference=reference,
        running=running,
        library=on_torch,
        into=into,
        axes=axes_of_first,
        samples=samples,
        doc=doc,
    )
    return register(entry)


_AND_INIT = "; init precedes the first element."
CUMSUM = _scan(
    "cumsum", SUM.combine, np.add, _torch_sum, f"Running sums along dim, in arg's dtype{_AND_INIT}",
    into=_torch_into("cumsum"),
)
CUMPROD = _scan(
    "cumprod", PROD.combine, np.multiply, _torch_product, f"Running products along dim, in arg's dtype{_AND_INIT}",
    into=_torch_into("cumprod"),
)
CUMMIN = _scan(
    "cummin", MIN.combine, np.minimum, _torch_smallest, f"Running minima along dim{_AND_INIT}", check=check_ordered,
)
CUMMAX = _scan(
    "cummax", MAX.combine, np.maximum, _torch_largest, f"Running maxima along dim{_AND_INIT}", check=check_ordered,
)
LOGCUMSUMEXP = _scan(
    "logcumsumexp", Combine(fn="logaddexp", identity=lambda _: -math.inf), np.logaddexp, _torch_logarithm,
    f"Logarithms of running sums of exponentials along dim, in arg's dtype{_AND_INIT}", check=_check_float,
)

"""Sorting along one axis, which no kernel contains. NaN counts as the largest number, as in torch."""

from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.ir import IterType, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ops.arguments import flag
from fuser_lab.ops.operands import defined_scalar, tensor_at, wrap_dim
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Result
from fuser_lab.ops.scan import (
    OUT_OF_BOUNDARY,
    axes_of_first,
    check_ordered,
    dim_of,
    from_ordered,
    scanned_domain,
    to_ordered,
)


def _order(x: Array, dim: int, *, descending: bool) -> Array:
    """Return the indices that sort elements; equal elements keep their order, and a single number has index 0."""
    if not x.ndim:
        return np.zeros((), np.int64)
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    # Reversed twice: the largest come first, and among equal elements the first one does.
    order = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.asarray(np.flip(x.shape[dim] - 1 - order, dim))


def _axis(dim: object, tensor: TensorView, op: str) -> int:
    """Return an axis counted from the front; a 0-d tensor is sorted like its one element, along axis 0 or -1."""
    return wrap_dim(dim, max(tensor.ndim, 1), op, refusal=OUT_OF_BOUNDARY)


def _sorted_domain(tensor: TensorView, dim: int, axes: AxisFactory) -> TensorDomain:
    return scanned_domain(tensor, dim, axes) if tensor.ndim else TensorDomain(logical=())


def _argsort(rec: Recorder, arg: Operand, dim: int, descending: bool = False, stable: bool = False) -> Val:
    tensor = rec.tensor(arg, "argsort", "arg")
    check_ordered(tensor, "argsort")
    return rec.emit(
        ARGSORT, [tensor], dim=_axis(dim, tensor, "argsort"),
        descending=flag(descending, "argsort", "descending"), stable=flag(stable, "argsort", "stable"),
    )[0]


def _infer_argsort(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    return (Result(DataType.Int, _sorted_domain(tensor_at(inputs), dim_of(attrs), axes)),)


def _reference_argsort(x: Array, *, dim: int, descending: bool, stable: bool) -> Array:
    del stable
    return _order(np.asarray(x), dim, descending=descending)


def _library_argsort(torch: Any, x: Any, *, dim: int, descending: bool, stable: bool) -> Any:
    del stable  # always: the order of equal elements must not depend on where they are sorted
    return torch.argsort(to_ordered(torch, x), dim=dim, descending=descending, stable=True)


ARGSORT = register(
    OpDef(
        name="argsort",
        kind=OpKind.SORT,
        frontend=_argsort,
        infer=_infer_argsort,
        reference=_reference_argsort,
        library=_library_argsort,
        axes=axes_of_first,
        samples=(
            Sample("fd.ops.argsort(a, 0)"),
            Sample("fd.ops.argsort(a, dim=-1, descending=True)", (Arg((2, 7), DataType.BFloat16),)),
            Sample("fd.ops.argsort(a, 1, False, True)", (Arg((3, 20), DataType.Int, 0, 4),)),
            Sample("fd.ops.argsort(a, 1, True, True)", (Arg((3, 20), DataType.Half, -1, 1),)),
            Sample("fd.ops.argsort(a, 0, stable=True)", (Arg((9,), DataType.Bool, 0, 2),)),
            Sample("fd.ops.argsort(a, 1)", (Arg((3, 1), DataType.Double),)),
            Sample("fd.ops.argsort(a, 0)", (Arg((0, 2)),)),
            Sample("fd.ops.argsort(a, -1, True)", (Arg(()),)),
            Sample("fd.ops.add(fd.ops.argsort(fd.ops.neg(a), 1), 1)"),
        ),
        doc="Indices along dim that sort arg; if stable, equal elements keep their order. NaN is the largest.",
    ),
)


def _topk(
    rec: Recorder, arg: Operand, k: Operand, dim: int = -1, largest: bool = True, sorted: bool = False,
) -> tuple[Val, Val]:
    tensor = rec.tensor(arg, "topk", "arg")
    check_ordered(tensor, "topk")
    count = defined_scalar(rec, k, "topk", "k")
    if not count.dtype.is_integral:
        raise DefinitionError(f"topk: k must be an integer, given {count.dtype!r}.")
    values, indices = rec.emit(
        TOPK, [tensor], k=count if count.value is None else int(count.value.real),
        dim=_axis(dim, tensor, "topk"), largest=flag(largest, "topk", "largest"),
        sorted=flag(sorted, "topk", "sorted"),
    )
    return values, indices


def _infer_topk(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, dim, k = tensor_at(inputs), dim_of(attrs), attrs["k"]
    count = k if isinstance(k, int | Scalar) else 0
    size = tensor.extents[dim] if tensor.ndim else 1
    if isinstance(count, int) and not tensor.ndim and count != 1:
        raise DefinitionError(f"topk: k is {count}; it must be 1 for a tensor without axes.")
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise DefinitionError(f"topk: k is {count}, out of range for axis {dim} of size {size}.")

    def domain() -> TensorDomain:
        logical = [axes.copy(axis) for axis in tensor.domain.axes]
        if not logical:
            return TensorDomain(logical=())
        logical[dim] = axes.fresh(1, IterType.BROADCAST) if count == 1 else axes.fresh(count)
        return TensorDomain(logical=tuple(logical))

    return Result(tensor.dtype, domain()), Result(DataType.Int, domain())


def _reference_topk(x: Array, *, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Array, Array]:
    del sorted
    data = np.asarray(x)
    if not data.ndim:
        return data, _order(data, dim, descending=largest)
    if not 0 <= k <= data.shape[dim]:
        raise InputError(f"topk: k is {k}, out of range for axis {dim} of size {data.shape[dim]}.")
    order = np.take(_order(data, dim, descending=largest), range(k), axis=dim)
    return np.take_along_axis(data, order, axis=dim), order


def _library_topk(torch: Any, x: Any, *, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Any, Any]:
    del sorted  # always: which equal elements are found, and in which order, must not depend on the device
    ordering = torch.sort(to_ordered(torch, x), dim=dim, descending=largest, stable=True)
    values, indices = (part.narrow(dim, 0, k).contiguous() if x.ndim else part for part in ordering)
    return from_ordered(torch, values, x.dtype), indices


_THREE = "fd.define_scalar(3, DataType.Int)"
TOPK = register(
    OpDef(
        name="topk",
        kind=OpKind.SORT,
        frontend=_topk,
        infer=_infer_topk,
        reference=_reference_topk,
        library=_library_topk,
        axes=axes_of_first,
        samples=(
            Sample(f"fd.ops.topk(a, {_THREE})", (Arg((3, 9)),)),
            Sample(f"fd.ops.topk(a, {_THREE}, 0, False, True)", (Arg((9, 2), DataType.BFloat16),)),
            Sample(f"fd.ops.topk(a, {_THREE}, dim=1, sorted=True)", (Arg((2, 3, 4), DataType.Half),)),
            Sample(f"fd.ops.topk(a, {_THREE}, largest=False)", (Arg((8,), DataType.Int, -90, 90),)),
            Sample("fd.ops.topk(a, fd.define_scalar(1, DataType.Int))", (Arg((3, 9), DataType.Double),)),
            Sample("fd.ops.topk(a, fd.define_scalar(0, DataType.Int))", (Arg((3, 4)),)),
            Sample(f"fd.ops.topk(a, {_THREE}, 1)", (Arg((0, 4)),)),
            Sample("fd.ops.topk(a, fd.define_scalar(1, DataType.Int))", (Arg(()),)),
            Sample(f"fd.ops.add(fd.ops.topk(fd.ops.neg(a), {_THREE})[0], 1.0)", (Arg((3, 9)),)),
        ),
        doc="The k largest (or smallest) elements along dim and their indices; NaN is the largest.",
    ),
)

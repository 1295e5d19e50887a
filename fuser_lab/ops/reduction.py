"""Reductions over axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType, Kind, from_numpy
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import IterType, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.arguments import element_type, flag, is_whole, listed
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import (
    OPS,
    Array,
    Attrs,
    AxisFactory,
    Combine,
    OpDef,
    Operand,
    Recorder,
    Result,
    register,
    unique_dims,
)


def reduced_axes(tensor: TensorView, dims: object, op: str) -> tuple[int, ...]:
    """Return the axes a reduction argument names, sorted; all axes for None."""
    if dims is None:
        return tuple(range(tensor.ndim))
    given = [dims] if is_whole(dims) else listed(dims, op, "dims")
    if not given:
        msg = f"{op}: dims is empty; name at least one axis, or leave it out to reduce all."
        raise DefinitionError(msg)
    return tuple(sorted(unique_dims(given, tensor.ndim, op)))


def _infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = inputs[0]
    dims = attrs["dims"]
    if not isinstance(tensor, TensorView) or not isinstance(dims, tuple):
        msg = "a reduction needs a tensor and a list of axes."
        raise DefinitionError(msg)
    logical = tuple(
        axes.fresh(axis.extent, IterType.REDUCTION, axis.expanded) if i in dims else axes.copy(axis)
        for i, axis in enumerate(tensor.domain.axes)
    )
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reduction(name: str, combine: Combine, reference: Callable[..., Any], *, converts: bool, doc: str) -> OpDef:
    def frontend(
        rec: Recorder,
        arg: Operand,
        dims: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DataType = DataType.Null,
        *,
        dim: int | None = None,
    ) -> Val:
        tensor, keeps = rec.tensor(arg, name, "arg"), flag(keepdim, name, "keepdim")
        if dim is not None and dims is not None:
            msg = f"{name}: give dims or dim, not both."
            raise DefinitionError(msg)
        if dtype is not DataType.Null and not converts:
            msg = f"{name}: dtype must be left out, since the result has the operand's dtype; given {dtype!r}."
            raise DefinitionError(msg)
        reduced = reduced_axes(tensor, dims if dim is None else dim, name)
        if dtype is not DataType.Null:
            value: Val = convert(rec, tensor, element_type(dtype, name), name, "arg")
        elif converts and tensor.dtype.kind in {Kind.BOOL, Kind.INTEGER}:
            value = convert(rec, tensor, DataType.Int, name, "arg")
        else:
            value = tensor
        if not reduced:
            return rec.emit(OPS["set"], [value])[0]
        result = rec.emit(entry, [value], dims=reduced)[0]
        if keeps and isinstance(result, TensorView):
            return broadcast(rec, result, [i in reduced for i in range(tensor.ndim)])
        return result

    entry = OpDef(
        name=name,
        kind=OpKind.REDUCTION,
        frontend=frontend,
        infer=_infer,
        reference=reference,
        combine=combine,
        doc=doc,
    )
    return register(entry)


def _lowest(dtype: DataType) -> bool | int | float:
    if dtype is DataType.Bool:
        return False
    return -float("inf") if dtype.is_float else int(np.iinfo(str(dtype.numpy)).min)


def _highest(dtype: DataType) -> bool | int | float:
    if dtype is DataType.Bool:
        return True
    return float("inf") if dtype.is_float else int(np.iinfo(str(dtype.numpy)).max)


def _extreme(fold: Any, identity: Callable[[DataType], bool | int | float]) -> Callable[..., Array]:
    def reference(x: Array, *, dims: tuple[int, ...]) -> Array:
        return np.asarray(fold(x, axis=dims, initial=identity(from_numpy(x.dtype))))

    return reference


SUM = _reduction(
    "sum",
    Combine(fn="add", identity=lambda _: 0),
    lambda x, *, dims: np.sum(x, axis=dims, dtype=x.dtype),
    converts=True,
    doc="Sum over dims (all axes if left out); bool and integers add up as Int.",
)
PROD = _reduction(
    "prod",
    Combine(fn="mul", identity=lambda _: 1),
    lambda x, *, dims: np.prod(x, axis=dims, dtype=x.dtype),
    converts=True,
    doc="Product over dims (all axes if left out); bool and integers multiply as Int.",
)
MAX = _reduction(
    "max", Combine(fn="max", identity=_lowest), _extreme(np.max, _lowest), converts=False,
    doc="Largest element over dims, NaN propagates.",
)
MIN = _reduction(
    "min", Combine(fn="min", identity=_highest), _extreme(np.min, _highest), converts=False,
    doc="Smallest element over dims, NaN propagates.",
)

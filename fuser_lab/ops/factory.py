"""Ops that make tensors from scalars: constants and ranges."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, OpKind, Scalar, TensorDomain, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import element_type
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Element, Operand, Result
from fuser_lab.ops.view import sized_axis


def infer_filled(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    """Return the result that the attributes shape and dtype describe; an axis of size 1 is a broadcast axis."""
    del inputs
    shape, dtype = attrs["shape"], attrs["dtype"]
    sizes = [s for s in shape if isinstance(s, int | Scalar)] if isinstance(shape, tuple) else []
    logical = tuple(sized_axis(n, axes) for n in sizes)
    return (Result(dtype if isinstance(dtype, DataType) else DataType.Null, TensorDomain(logical=logical)),)


def given_shape(rec: Recorder, shape: Sequence[Operand], op: str) -> tuple[Extent, ...]:
    """Return a shape argument, or raise if it is not a list of sizes of 0 or more."""
    sizes = rec.extents(shape, op, "shape")
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise DefinitionError(f"{op}: shape has the entry {size}; sizes are 0 or more.")
    return sizes


def given_scalar(rec: Recorder, operand: Operand, op: str, argument: str) -> Scalar:
    """Return a scalar operand, or raise ArgumentTypeError."""
    value = rec.value(operand, op, argument)
    if isinstance(value, Scalar):
        return value
    raise ArgumentTypeError(f"{op}: {argument} must be a scalar or number, given the tensor {value.name}.")


def _full(rec: Recorder, shape: Sequence[Operand], fill_value: Operand, dtype: DataType) -> Val:
    element = element_type(dtype, "full")
    fill = convert(rec, given_scalar(rec, fill_value, "full", "fill_value"), element, "full", "fill_value")
    return rec.emit(FULL, [fill], shape=given_shape(rec, shape, "full"), dtype=element)[0]


FULL = register(
    OpDef(
        name="full",
        kind=OpKind.FACTORY,
        frontend=_full,
        infer=infer_filled,
        reference=lambda fill, *, shape, dtype: np.full(shape, fill, dtype=dtype.numpy),
        element=lambda e: e.read(0, ()),
        doc="A tensor of one value.",
        samples=(
            Sample("fd.ops.full([3, 4], 2.5, DataType.Float)", ()),
            Sample("fd.ops.full(shape=[3], fill_value=2.5, dtype=DataType.Double)", ()),
            Sample("fd.ops.full((2, 3), 1.5, DataType.Half)", ()),
            Sample("fd.ops.full([4], 3, DataType.BFloat16)", ()),
            Sample("fd.ops.full([4], -7, DataType.Int)", ()),
            Sample("fd.ops.full([4], 7.9, DataType.Int32)", ()),
            Sample("fd.ops.full([4], 1, DataType.Bool)", ()),
            Sample("fd.ops.full([4], 1 - 2j, DataType.ComplexFloat)", ()),
            Sample("fd.ops.full([4], 2, DataType.ComplexDouble)", ()),
            Sample("fd.ops.full([2, 2], float('inf'), DataType.Float)", ()),
            Sample("fd.ops.full([2, 2], float('nan'), DataType.Double)", ()),
            Sample("fd.ops.full([], 1.0, DataType.Float)", ()),
            Sample("fd.ops.full([0, 3], 1.0, DataType.Float)", ()),
            Sample("fd.ops.full([1, 3, 1], 1.0, DataType.Float)", ()),
            Sample("fd.ops.add(a, fd.ops.full(fd.ops.shape(a), 1.0, DataType.Float))"),
            Sample("fd.ops.full([fd.ops.size(a, 1), 2], fd.define_scalar(3.0), DataType.Float)"),
        ),
    ),
)


def _iota(
    rec: Recorder, length: Operand, start: Operand = None, step: Operand = None, dtype: DataType = DataType.Int,
) -> Val:
    element = element_type(dtype, "iota")
    if element.kind not in {Kind.INTEGER, Kind.FLOAT}:
        raise DefinitionError(f"iota: dtype must be an integer or a real floating point type, given {element!r}.")
    size = given_scalar(rec, length, "iota", "length")
    if not size.dtype.is_integral:
        raise DefinitionError(f"iota: length must be an integer, given {size}.")
    if size.value is not None and size.value.real < 0:
        raise DefinitionError(f"iota: length is {size.value}; it must be 0 or more.")
    zero: int | float = 0.0 if element.is_float else 0
    operands = [
        _term_of_range(rec, zero + default if operand is None else operand, argument, element)
        for operand, argument, default in ((start, "start", 0), (step, "step", 1))
    ]
    if operands[1].value == 0:
        raise DefinitionError("iota: step is 0; it must be nonzero.")
    return rec.emit(IOTA, operands, shape=rec.extents([size], "iota", "length"), dtype=element)[0]


def _term_of_range(rec: Recorder, operand: Operand, argument: str, dtype: DataType) -> Scalar:
    """Return start or step, checked for kind and finiteness, in the type that the range is computed in."""
    value = given_scalar(rec, operand, "iota", argument)
    if value.dtype.kind is not dtype.kind:
        msg = f"iota: {argument} has dtype {value.dtype!r}, which is of a different kind from dtype {dtype!r}."
        raise DefinitionError(msg)
    if isinstance(value.value, float) and not math.isfinite(value.value):
        raise DefinitionError(f"iota: {argument} is {short_text(value.value)}; it must be finite.")
    converted = convert(rec, value, dtype.compute, "iota", argument)
    return given_scalar(rec, converted, "iota", argument)


def _reference_iota(start: Any, step: Any, *, shape: tuple[int, ...], dtype: DataType) -> Array:
    # Integers wrap around; floats are rounded once.
    wide = dtype.numpy if dtype.is_integral else np.dtype(np.float64)
    places: Array = np.arange(shape[0]).astype(wide)
    with np.errstate(over="ignore"):
        return np.asarray(places * np.asarray(step, wide) + np.asarray(start, wide)).astype(dtype.numpy)


def _element_iota(e: Element) -> Term:
    start, step = e.read(0, ()), e.read(1, ())
    return t.cast(start + t.cast(e.index[0], start.dtype) * step, e.out.dtype)


IOTA = register(
    OpDef(
        name="iota",
        kind=OpKind.FACTORY,
        frontend=_iota,
        infer=infer_filled,
        reference=_reference_iota,
        element=_element_iota,
        doc="start + step * i for i below length.",
        samples=(
            Sample("fd.ops.iota(7)", ()),
            Sample("fd.ops.iota(7, 3, -2)", ()),
            Sample("fd.ops.iota(length=7, start=3, step=2, dtype=DataType.Int32)", ()),
            Sample("fd.ops.iota(7, 0.5, 0.25, DataType.Float)", ()),
            Sample("fd.ops.iota(7, dtype=DataType.Double)", ()),
            Sample("fd.ops.iota(7, 0.5, None, DataType.Half)", ()),
            Sample("fd.ops.iota(7, None, 2.0, DataType.BFloat16)", ()),
            Sample("fd.ops.iota(0)", ()),
            Sample("fd.ops.iota(1)", ()),
            Sample("fd.ops.iota(fd.ops.size(a, 0))"),
            Sample("fd.ops.add(a, fd.ops.iota(fd.ops.size(a, 1), 0.0, 1.0, DataType.Float))"),
        ),
    ),
)

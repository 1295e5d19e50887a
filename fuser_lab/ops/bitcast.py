"""The bits of a tensor as values of another type of the same size."""

import numpy as np

from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import OpKind, Val
from fuser_lab.ir import term as t
from fuser_lab.ops.arguments import element_type
from fuser_lab.ops.promotion import (
    convert,
    pointwise_domain,
)
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Attrs, AxisFactory, Operand, Result
from fuser_lab.ops.view import SET

_INTEGERS = {1: DataType.Char, 2: DataType.Short, 4: DataType.Int32, 8: DataType.Int}  # by size


def _bitcast(rec: Recorder, arg: Operand, dtype: DataType) -> Val:
    tensor, target = rec.tensor(arg, "bitcast", "arg"), element_type(dtype, "bitcast")
    kinds = {tensor.dtype.kind, target.kind}
    if tensor.dtype.itemsize != target.itemsize or not kinds <= {Kind.INTEGER, Kind.FLOAT}:
        msg = f"bitcast: {tensor.dtype!r} to {target!r} is not between floats and integers of the same size."
        raise DefinitionError(msg)
    if tensor.dtype is target:
        return rec.emit(SET, [tensor])[0]
    integer = _INTEGERS[target.itemsize]
    bits = rec.emit(BITCAST, [tensor], dtype=integer)[0] if tensor.dtype.is_float else tensor
    if target.is_float:
        return rec.emit(BITCAST, [convert(rec, bits, integer, "bitcast", "arg")], dtype=target)[0]
    return convert(rec, bits, target, "bitcast", "arg")


def _infer_bitcast(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    return (Result(element_type(attrs["dtype"], "bitcast"), pointwise_domain("bitcast", inputs, axes)),)


_BITCASTS = (  # float, integer
    (DataType.Float, DataType.Int32), (DataType.Double, DataType.Int), (DataType.Half, DataType.Short),
    (DataType.BFloat16, DataType.Short), (DataType.Float8_e4m3fn, DataType.Byte), (DataType.Float8_e5m2, DataType.Char),
    (DataType.Float8_e8m0fnu, DataType.Byte),
)
BITCAST = register(
    OpDef(
        name="bitcast",
        kind=OpKind.POINTWISE,
        frontend=_bitcast,
        infer=_infer_bitcast,
        reference=lambda x, *, dtype: np.asarray(x).view(dtype.numpy),
        scalar=lambda x, *, dtype: t.apply("bitcast", x, dtype=dtype),
        reads_bits=True,
        doc="The numbers of dtype with the bits of arg: floats and integers of one size; in nvFuser, bitCastOp of C++.",
        samples=(
            *(Sample(f"fd.ops.bitcast(a, {whole!r})", (Arg((3, 4), real, 0.5),)) for real, whole in _BITCASTS),
            *(
                Sample(f"fd.ops.bitcast(a, dtype={real!r})", (Arg((3, 4), whole, 40, 120),))
                for real, whole in _BITCASTS
            ),
            Sample("fd.ops.bitcast(a, DataType.BFloat16)", (Arg((5,), DataType.Half, 0.5),)),
            Sample("fd.ops.bitcast(a, DataType.Byte)", (Arg((2, 3), DataType.Char),)),
            Sample("fd.ops.bitcast(a, DataType.Float)", (Arg((0, 3)),)),
            Sample(
                "fd.ops.bitcast(fd.ops.bitwise_and(fd.ops.bitcast(a, DataType.Int32), -65536), DataType.Float)",
                (Arg((2, 1, 3)),),
            ),
        ),
    ),
)

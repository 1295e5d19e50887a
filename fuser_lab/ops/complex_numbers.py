"""Real and imaginary parts of complex numbers, and numbers made of two parts."""

import numpy as np

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import OpKind, Scalar, Val
from fuser_lab.ir import term as t
from fuser_lab.ops.pointwise import part_of
from fuser_lab.ops.promotion import (
    CAST,
    ResultType,
    infer_pointwise,
    match_ranks,
    pointwise_of,
)
from fuser_lab.ops.registry import Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Operand, Result
from fuser_lab.ops.view import SET


def _real(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "real", "x")
    if value.dtype.is_complex:
        return rec.emit(REAL, [value])[0]
    return rec.emit(CAST, [value], dtype=value.dtype)[0] if isinstance(value, Scalar) else rec.emit(SET, [value])[0]


def _imag(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "imag", "x")
    if not value.dtype.is_complex:
        raise DefinitionError(f"imag: complex input is required, given {value.dtype!r}.")
    return rec.emit(IMAG, [value])[0]


def _complex(rec: Recorder, real: Operand, imag: Operand) -> Val:
    parts = []
    for part, name in ((real, "real"), (imag, "imag")):
        if isinstance(part, bool | int | float | complex):
            msg = f"complex: {name} must be a tensor or a scalar of the definition, given {short_text(part)}."
            raise ArgumentTypeError(msg)
        parts.append(rec.value(part, "complex", name))
    a, b = parts
    if isinstance(a, Scalar) != isinstance(b, Scalar):
        raise DefinitionError(f"complex: real and imag must both be tensors or both scalars, given {a} and {b}.")
    if a.dtype is not b.dtype or a.dtype not in {DataType.Float, DataType.Double}:
        msg = f"complex: real and imag must both be Float or both Double, given {a.dtype!r}, {b.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(COMPLEX, match_ranks(rec, parts))[0]


def _complex_of(real: Array, imag: Array) -> Array:
    """Return complex numbers, not by arithmetic, which would propagate infinities and NaN."""
    real, imag = np.broadcast_arrays(real, imag)
    joined = np.empty(real.shape, np.result_type(real, np.complex64))
    joined.real, joined.imag = real, imag
    return joined


def _infer_complex(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    (part,) = infer_pointwise("complex", ResultType.SAME)(inputs, attrs, axes)
    return (Result(_COMPLEX_OF[part.dtype], part.domain),)


_COMPLEX_OF = {DataType.Float: DataType.ComplexFloat, DataType.Double: DataType.ComplexDouble}
_NUMBERS = "fd.define_scalar(1.5, DataType.Double), fd.define_scalar(-0.5, DataType.Double)"
_COMPLEX_KINDS = (
    (DataType.ComplexFloat, (3, 4)), (DataType.ComplexDouble, (5,)), (DataType.ComplexFloat, ()),
    (DataType.ComplexFloat, (0, 3)), (DataType.ComplexFloat, (1, 4)),
)

REAL = pointwise_of(
    "real", _real, part_of("real"), np.real, "Real part; a copy of real input.", ResultType.REAL,
    samples=(
        *(Sample("fd.ops.real(a)", (Arg(shape, dtype),)) for dtype, shape in _COMPLEX_KINDS),
        Sample("fd.ops.real(a)", (Arg((3, 4), DataType.Half),)),
        Sample("fd.ops.add(a, fd.ops.real(2.5))"),
        Sample("fd.ops.add(a, fd.ops.real(2.5 + 1j))"),
    ),
)
IMAG = pointwise_of(
    "imag", _imag, part_of("imag"), np.imag, "Imaginary part of complex input.", ResultType.REAL,
    samples=(
        *(Sample("fd.ops.imag(a)", (Arg(shape, dtype),)) for dtype, shape in _COMPLEX_KINDS),
        Sample("fd.ops.add(a, fd.ops.imag(2.5 + 1j))"),
    ),
)
COMPLEX = register(
    OpDef(
        name="complex",
        kind=OpKind.POINTWISE,
        frontend=_complex,
        infer=_infer_complex,
        reference=_complex_of,
        scalar=lambda a, b: t.apply("complex", a, b, dtype=_COMPLEX_OF[a.dtype]),
        doc="The complex number of two real parts.",
        samples=(
            Sample("fd.ops.complex(a, b)", (Arg((3, 4)), Arg((3, 4)))),
            Sample("fd.ops.complex(a, b)", (Arg((3, 1)), Arg((4,)))),
            Sample("fd.ops.complex(real=a, imag=b)", (Arg((5,), DataType.Double), Arg((5,), DataType.Double))),
            Sample("fd.ops.complex(a, b)", (Arg(()), Arg(()))),
            Sample("fd.ops.complex(a, b)", (Arg((0, 3)), Arg((0, 3)))),
            Sample(f"fd.ops.mul(a, fd.ops.complex({_NUMBERS}))", (Arg((3, 4)),)),
        ),
    ),
)

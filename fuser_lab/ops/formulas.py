"""Pointwise ops of ``fd.ops`` that are written with other pointwise ops."""

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Scalar, Val
from fuser_lab.ops.promotion import Promotion, common_dtype, convert
from fuser_lab.ops.registry import OPS, Arg, Composite, Recorder, Sample, register_composite
from fuser_lab.ops.rules import Operand


def record(rec: Recorder, name: str, *operands: Operand) -> Val:
    """Record an op by its name and return its result."""
    result: Val = OPS[name].frontend(rec, *operands)
    return result


def _sign(rec: Recorder, x: Operand, /) -> Val:
    value = rec.value(x, "sign", "x")
    if value.dtype.is_complex:
        raise DefinitionError(f"sign: complex input is not supported, given {value.dtype!r}.")
    negative = record(rec, "where", record(rec, "lt", value, 0), -1, 0)
    return convert(rec, record(rec, "where", record(rec, "gt", value, 0), 1, negative), value.dtype, "sign", "x")


def _addcmul(rec: Recorder, x: Operand, y: Operand, z: Operand, alpha: Operand, /) -> Val:
    names = ("x", "y", "z")
    operands = [rec.value(v, "addcmul", name) for v, name in zip((x, y, z), names, strict=True)]
    factor = rec.value(alpha, "addcmul", "alpha")
    if not isinstance(factor, Scalar):
        raise DefinitionError(f"addcmul: alpha must be a scalar, given the tensor {factor.name}.")
    dtype = common_dtype("addcmul", operands, Promotion.DEFAULT)
    a, b, c = (convert(rec, v, dtype, "addcmul", name) for v, name in zip(operands, names, strict=True))
    product = record(rec, "mul", c, convert(rec, factor, dtype, "addcmul", "alpha"))
    return record(rec, "add", a, record(rec, "mul", b, product))


def _logical_right_shift(rec: Recorder, x: Operand, shift: Operand, /) -> Val:
    name = "logical_right_shift"
    value, distance = rec.value(x, name, "x"), rec.value(shift, name, "shift")
    if not (value.dtype.is_integral and distance.dtype.is_integral):
        raise DefinitionError(f"{name}: integer input is required, given {value.dtype!r}, {distance.dtype!r}.")
    dtype = value.dtype
    if isinstance(value, Scalar) and not isinstance(distance, Scalar):
        dtype = common_dtype(name, (value, distance), Promotion.DEFAULT)
    value, by = convert(rec, value, dtype, name, "x"), convert(rec, distance, dtype, name, "shift")

    def number(n: int) -> Val:
        return convert(rec, rec.value(n, name, "x"), dtype, name, "x")

    # After the first bit, with the copied sign bit cleared, the rest is a shift of a nonnegative number.
    largest = (1 << (8 * dtype.itemsize - 1)) - 1
    halved = record(rec, "bitwise_and", record(rec, "bitwise_right_shift", value, number(1)), number(largest))
    moved = record(rec, "bitwise_right_shift", halved, record(rec, "sub", by, number(1)))
    return convert(rec, record(rec, "where", record(rec, "eq", by, number(0)), value, moved), dtype, name, "x")


F, H, N, N32 = DataType.Float, DataType.Half, DataType.Int, DataType.Int32
_WHOLE = (Arg((3, 4), N, -60, 60), Arg((3, 4), N, 0, 8))

for _entry in (
    Composite(
        name="sign",
        frontend=_sign,
        doc="-1, 0 or 1, in x's dtype.",
        samples=(
            *(
                Sample("fd.ops.sign(a)", (Arg(shape, dtype),))
                for dtype, shape in (
                    (F, (3, 4)), (F, ()), (F, (0, 3)), (H, (1, 4)), (DataType.BFloat16, (5,)), (N, (3, 4)), (N32, (5,)),
                    (DataType.Bool, (3, 4)), (DataType.Double, (2, 1, 3)), (DataType.Float8_e4m3fn, (5,)),
                )
            ),
            Sample("fd.ops.add(a, fd.ops.sign(-2.5))"),
        ),
        positional_only=True,
    ),
    Composite(
        name="addcmul",
        frontend=_addcmul,
        doc="x + alpha * y * z.",
        samples=(
            Sample("fd.ops.addcmul(a, b, c, 0.5)", (Arg((3, 4)), Arg((3, 4)), Arg((3, 4)))),
            Sample("fd.ops.addcmul(a, b, c, 2)", (Arg((3, 4)), Arg((4,)), Arg((3, 1)))),
            Sample("fd.ops.addcmul(a, b, 1.5, 2.0)", (Arg((3, 4), H), Arg((3, 4), H))),
            Sample("fd.ops.addcmul(2.0, a, b, 0.25)", (Arg(()), Arg((0, 4)))),
            Sample("fd.ops.addcmul(a, b, c, 3)", (Arg((3, 4), N), Arg((3, 4), N), Arg((3, 4), N))),
            Sample("fd.ops.addcmul(a, b, c, 0.5)", (Arg((3, 4), DataType.ComplexFloat), Arg((3, 4)), Arg((3, 4)))),
        ),
        positional_only=True,
    ),
    Composite(
        name="logical_right_shift",
        frontend=_logical_right_shift,
        doc="x shifted right by shift bits and filled with zeros, in x's dtype.",
        samples=(
            Sample("fd.ops.logical_right_shift(a, b)", _WHOLE),
            Sample("fd.ops.logical_right_shift(a, b)", (Arg((5,), N32, -60, 60), Arg((1,), N32, 0, 8))),
            Sample("fd.ops.logical_right_shift(a, b)", (Arg((3, 4), N32, -60, 60), Arg((4,), N, 0, 8))),
            Sample("fd.ops.logical_right_shift(a, 3)", (Arg((0, 4), N),)),
            Sample("fd.ops.logical_right_shift(a, 3)", (Arg((), N, -60, 60),)),
            Sample("fd.ops.logical_right_shift(a, 31)", (Arg((3, 4), N32, -60, 60),)),
            Sample("fd.ops.logical_right_shift(a, 0)", (Arg((3, 4), N, -60, 60),)),
        ),
        positional_only=True,
    ),
):
    register_composite(_entry)

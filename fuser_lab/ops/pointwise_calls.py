"""Legal calls of every pointwise op, derived from the kinds of numbers that it accepts."""

from collections.abc import Sequence

from fuser_lab.dtypes import DataType, Kind
from fuser_lab.ops.registry import Arg, Sample

Domain = Sequence[tuple[float, float]]
Kinds = frozenset[Kind]
_USUAL = (-3.0, 3.0)  # range of an operand in samples, unless an op names another one

D = DataType
_UNARY: tuple[tuple[DataType, tuple[int, ...]], ...] = (
    (D.Float, (3, 4)), (D.Double, (5,)), (D.Half, (3, 4)), (D.BFloat16, (1, 4)), (D.Float8_e4m3fn, (3, 4)),
    (D.Float8_e5m2, (7,)), (D.Float, ()), (D.Float, (0, 3)), (D.Float, (2, 1, 3)), (D.Int, (3, 4)), (D.Int32, (5,)),
    (D.Short, (3, 4)), (D.Char, (5,)), (D.Byte, (3, 4)), (D.Bool, (3, 4)), (D.ComplexFloat, (3, 4)),
    (D.ComplexDouble, (5,)),
)
_BINARY: tuple[tuple[tuple[DataType, tuple[int, ...]], tuple[DataType, tuple[int, ...]]], ...] = (
    ((D.Float, (3, 4)), (D.Float, (3, 4))),
    ((D.Float, (3, 1)), (D.Float, (4,))),
    ((D.Float, ()), (D.Float, (3, 4))),
    ((D.Float, (0, 3)), (D.Float, (1, 3))),
    ((D.Half, (3, 4)), (D.Half, (4,))),
    ((D.BFloat16, (3, 4)), (D.Double, (3, 4))),
    ((D.Float8_e4m3fn, (3, 4)), (D.Float8_e4m3fn, (3, 4))),
    ((D.Int, (3, 4)), (D.Float, (3, 4))),
    ((D.Int, (3, 4)), (D.Int, (3, 4))),
    ((D.Int32, (3, 4)), (D.Int, (2, 1, 4))),
    ((D.Int32, (5,)), (D.Int32, (5,))),
    ((D.Byte, (3, 4)), (D.Byte, (4,))),
    ((D.Char, (3, 4)), (D.Short, (3, 4))),
    ((D.Byte, (5,)), (D.Float, (5,))),
    ((D.Bool, (3, 4)), (D.Int, (3, 4))),
    ((D.Bool, (3, 4)), (D.Bool, (3, 4))),
    ((D.ComplexFloat, (3, 4)), (D.ComplexFloat, (3, 4))),
    ((D.Float, (3, 4)), (D.ComplexFloat, (3, 1))),
    ((D.ComplexDouble, (5,)), (D.ComplexDouble, (5,))),
)


def _ends(domain: Domain, position: int) -> tuple[float, float]:
    return domain[position] if position < len(domain) else domain[-1] if domain else _USUAL


def _number(kinds: Kinds, ends: tuple[float, float]) -> str:
    """Return a number within a domain, of an accepted kind."""
    number = 0.25 * ends[0] + 0.75 * ends[1]
    return f"{number:g}" if Kind.FLOAT in kinds else str(int(number))


def unary_samples(name: str, kinds: Kinds, domain: Domain) -> tuple[Sample, ...]:
    """Return calls with tensors of every kind that the op accepts, and with a number."""
    ends = _ends(domain, 0)
    samples = [
        Sample(f"fd.ops.{name}(a)", (Arg(shape, dtype, *ends),)) for dtype, shape in _UNARY if dtype.kind in kinds
    ]
    whole = DataType.Float if Kind.FLOAT in kinds else DataType.Int
    number = _number(kinds, ends)
    samples.append(Sample(f"fd.ops.where(fd.ops.gt(a, 0), a, fd.ops.{name}({number}))", (Arg((3, 4), whole),)))
    return tuple(samples)


def binary_samples(name: str, kinds: Kinds, domain: Domain) -> tuple[Sample, ...]:
    """Return calls with pairs of tensors of every kind that the op accepts, and of tensors and numbers."""
    first, second = _ends(domain, 0), _ends(domain, 1)
    samples = [
        Sample(f"fd.ops.{name}(a, b)", (Arg(shape, dtype, *first), Arg(other_shape, other, *second)))
        for (dtype, shape), (other, other_shape) in _BINARY
        if {dtype.kind, other.kind} <= kinds
    ]
    whole = DataType.Float if Kind.FLOAT in kinds else DataType.Int
    samples += [
        Sample(f"fd.ops.{name}(a, {_number(kinds, second)})", (Arg((3, 4), whole, *first),)),
        Sample(f"fd.ops.{name}({_number(kinds, first)}, a)", (Arg((3, 4), whole, *second),)),
    ]
    if Kind.FLOAT in kinds:
        samples.append(Sample(f"fd.ops.{name}(a, {_number(kinds, second)})", (Arg((3, 4), DataType.Half, *first),)))
    if Kind.BOOL in kinds and Kind.INTEGER in kinds:
        samples.append(Sample(f"fd.ops.{name}(a, 2)", (Arg((3, 4), DataType.Bool),)))
    if Kind.COMPLEX in kinds:
        samples.append(Sample(f"fd.ops.{name}(a, 1.5 + 0.5j)", (Arg((3, 4), DataType.Float, *first),)))
    call = f"fd.ops.{name}({_number(kinds, first)}, {_number(kinds, second)})"
    samples.append(Sample(f"fd.ops.where(fd.ops.gt(a, 0), a, {call})", (Arg((3, 4), whole),)))
    return tuple(samples)


_PLAIN = (
    D.Double, D.Float, D.Half, D.BFloat16, D.Float8_e4m3fn, D.Float8_e5m2, D.Int, D.Int32, D.Short, D.Char, D.Byte,
    D.UInt64, D.Bool,
)
CAST_SAMPLES = (
    *(
        Sample(f"fd.ops.cast(a, dtype={target!r})", (Arg((3, 4), source, 0.0, 4.0),))
        for source in (D.Float, D.Int, D.Half) for target in (*_PLAIN, D.ComplexFloat) if source is not target
    ),
    *(Sample("fd.ops.cast(a, DataType.Float)", (Arg((3, 4), source, 0.0, 4.0),)) for source in _PLAIN),
    *(
        Sample(f"fd.ops.cast(a, {target!r})", (Arg((3, 4), source, -1000.0, 1000.0),))
        for source in (D.Float, D.Int32) for target in (D.Short, D.Char, D.Byte)
    ),
    Sample("fd.ops.cast(fd.ops.mul(a, b), DataType.Byte)", (Arg((3, 4), D.Byte, 0, 200), Arg((3, 4), D.Byte, 0, 200))),
    Sample("fd.ops.cast(a, DataType.Char)", (Arg((3, 4), D.Bool),)),
    Sample("fd.ops.cast(a, DataType.Byte)", (Arg((3, 4), D.Char, -100, 100),)),
    Sample("fd.ops.cast(a, DataType.Float8_e8m0fnu)", (Arg((3, 4), D.Float, 1.0, 9.0),)),
    Sample("fd.ops.cast(a, DataType.Float)", (Arg((3, 4), D.Float8_e8m0fnu, 1.0, 9.0),)),
    Sample("fd.ops.cast(a, DataType.ComplexDouble)", (Arg((3, 4), D.ComplexFloat),)),
    Sample("fd.ops.cast(a, DataType.ComplexFloat)", (Arg((3, 4), D.ComplexDouble),)),
    Sample("fd.ops.cast(a, DataType.Bool)", (Arg((3, 4), D.ComplexFloat),)),
    Sample("fd.ops.cast(a, DataType.Half)", (Arg((), D.Double),)),
    Sample("fd.ops.cast(a, DataType.Half)", (Arg((0, 3), D.Double),)),
    Sample("fd.ops.add(a, fd.ops.cast(2.75, DataType.Int))", (Arg((1, 4), D.Int),)),
)

"""Searches in sorted tensors, by halving: each step reads one element for each value that is searched."""

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import TensorView
from fuser_lab.ops.arguments import flag
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.composites.parts import cast, composite, record, shape_text
from fuser_lab.ops.operands import same_extent
from fuser_lab.ops.registry import Arg, Recorder, Sample
from fuser_lab.ops.rules import Operand

H, B, D, N = DataType.Half, DataType.BFloat16, DataType.Double, DataType.Int


def _bucketize(
    rec: Recorder, arg: Operand, boundaries: Operand, out_int32: bool = False, right: bool = False,
) -> TensorView:
    values, limits = rec.tensor(arg, "bucketize", "arg"), rec.tensor(boundaries, "bucketize", "boundaries")
    if limits.ndim != 1:
        raise DefinitionError(f"bucketize: boundaries must have one axis, given {limits.ndim}.")
    return _search(rec, "bucketize", limits, values, out_int32, right)


def _search_rows(
    rec: Recorder, sorted_sequence: Operand, arg: Operand, out_int32: bool = False, right: bool = False,
) -> TensorView:
    rows = rec.tensor(sorted_sequence, "searchsorted", "sorted_sequence")
    values = rec.tensor(arg, "searchsorted", "arg")
    fits = rows.ndim == 1 or (
        0 < rows.ndim == values.ndim and all(map(same_extent, rows.extents[:-1], values.extents[:-1]))
    )
    if not fits:
        raise DefinitionError(
            f"searchsorted: sorted_sequence has shape {shape_text(rows.extents)} and arg {shape_text(values.extents)}; "
            "sorted_sequence must have one axis, or the sizes of arg on all axes but the last."
        )
    return _search(rec, "searchsorted", rows, values, out_int32, right)


def _search(
    rec: Recorder, op: str, rows: TensorView, values: TensorView, out_int32: object, right: object,
) -> TensorView:
    """Return how many elements of each row, which is sorted, are below a value, or at most the value."""
    kind = DataType.Int32 if flag(out_int32, op, "out_int32") else DataType.Int
    beyond = "gt" if flag(right, op, "right") else "ge"  # a NaN is not beyond any value, and no element is beyond a NaN
    count = rows.extents[-1]
    if rows.dtype.is_complex or values.dtype.is_complex:
        raise DefinitionError(f"{op}: complex numbers have no order, given {rows.dtype!r} and {values.dtype!r}.")
    if not isinstance(count, int):
        raise DefinitionError(f"{op}: the number of sorted elements is {count}; it must be known.")
    if not count:
        return record(rec, "full", list(values.extents), 0, kind)
    if not values.ndim:
        return record(rec, "squeeze", _search(rec, op, rows, broadcast(rec, values, [True]), out_int32, right), [0])
    if rows.ndim < values.ndim:
        rows = broadcast(rec, rows, [True] * (values.ndim - 1) + [False])
    # After the first step, the result is one of `step` numbers from `place` on, and `step` is a power of two.
    step = 1 << (count.bit_length() - 1)
    middle = record(rec, "slice", rows, [0] * (rows.ndim - 1) + [step - 1], [*rows.extents[:-1], step])
    place = record(rec, "where", record(rec, beyond, middle, values), _number(rec, 0), _number(rec, count - step + 1))
    while step > 1:
        step //= 2
        element = record(rec, "take_along_axis", rows, record(rec, "add", place, step - 1), -1)
        is_beyond = record(rec, beyond, element, values)
        place = record(rec, "where", is_beyond, place, record(rec, "add", place, step))
    return cast(rec, place, kind)


def _number(rec: Recorder, number: int) -> TensorView:
    """Return a number as a tensor, in a dtype for indices that is as narrow as floats."""
    return record(rec, "full", [], number, DataType.Int32)


def _whole(count: int, first: int = -3) -> str:
    return f"fd.ops.iota({count}, {first})"


def _floats(count: int, dtype: str = "Float") -> str:
    return f"fd.ops.mul(fd.ops.cast({_whole(count)}, dtype=DataType.{dtype}), 0.5)"


_ROWS = "fd.ops.reshape(fd.ops.iota(27, -5), [3, 9])"  # the length of rows must be known
composite(
    "bucketize", _bucketize,
    "How many of the sorted boundaries are below each element of arg, or at most the element with right=True.",
    (
        Sample(f"fd.ops.bucketize(a, {_floats(7)})", (Arg((3, 4)),)),
        Sample(f"fd.ops.bucketize(a, {_whole(6)}, right=True)", (Arg((3, 4), N, -5, 5),)),
        Sample(f"fd.ops.bucketize(a, {_floats(8, 'Half')}, out_int32=True)", (Arg((2, 3, 5), H),)),
        Sample(f"fd.ops.bucketize(a, boundaries={_floats(20, 'BFloat16')}, right=True)", (Arg((9,), B),)),
        Sample(f"fd.ops.bucketize(a, {_floats(1, 'Double')})", (Arg((), D),)),
        Sample(f"fd.ops.bucketize(a, {_whole(0)})", (Arg((3, 2), N, -5, 5),)),
        Sample("fd.ops.bucketize(a, b, right=True)", (Arg((3, 0)), Arg((1,)))),
    ),
)
composite(
    "searchsorted", _search_rows,
    "How many elements of each row of sorted_sequence are below each element of arg, or at most it with right=True.",
    (
        Sample(f"fd.ops.searchsorted({_whole(9)}, a)", (Arg((3, 4), N, -5, 9),)),
        Sample(f"fd.ops.searchsorted({_ROWS}, fd.ops.reshape(fd.ops.iota(12, -6, 3), [3, 4]), right=True)", ()),
        Sample(f"fd.ops.searchsorted({_floats(16)}, a, out_int32=True)", (Arg((2, 3)),)),
    ),
)

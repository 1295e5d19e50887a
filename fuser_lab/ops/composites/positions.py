"""Reads and writes at indices: reversed axes, indices of extremes, and torch's indexing by tensors."""

from collections.abc import Sequence
from typing import NamedTuple

from fuser_lab.arguments import is_whole
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Extent, TensorView, Val
from fuser_lab.ops.arguments import as_list, flag, whole, wholes
from fuser_lab.ops.broadcast import broadcast, expand
from fuser_lab.ops.composites.parts import along, cast, composite, record, shape_text
from fuser_lab.ops.operands import same_extent, tensor_at, unique_dims, wrap_dim
from fuser_lab.ops.positions import positions_operand
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.reduction import MAX, MIN, count_of
from fuser_lab.ops.registry import OPS, Arg, OpDef, Recorder, Sample
from fuser_lab.ops.rules import Operand


def _flip(rec: Recorder, arg: Operand, dims: int | Sequence[int]) -> TensorView:
    tensor = rec.tensor(arg, "flip", "arg")
    reversed_axes = unique_dims([dims] if is_whole(dims) else dims, max(tensor.ndim, 1), "flip")
    result = tensor
    for axis in reversed_axes if tensor.ndim else ():
        size = tensor.extents[axis]
        if size == 1:
            continue
        last = size - 1 if isinstance(size, int) else OPS["sub"].frontend(rec, size, 1)
        result = record(rec, "index_select", result, record(rec, "iota", size, last, -1), axis)
    return record(rec, "set", tensor) if result is tensor else result


# Extremes and their indices


def _extreme(rec: Recorder, op: str, fold: OpDef, arg: Operand, dim: int) -> tuple[TensorView, TensorView, int]:
    """Return the extreme along an axis, its first index and the axis; a NaN counts as the extreme."""
    tensor = rec.tensor(arg, op, "arg")
    if tensor.dtype.is_complex:
        raise DefinitionError(f"{op}: complex numbers have no order, given {tensor.dtype!r}.")
    axis = wrap_dim(dim, max(tensor.ndim, 1), op)
    if not tensor.ndim:
        return record(rec, "set", tensor), record(rec, "full", [], 0, DataType.Int), axis
    size = tensor.extents[axis]
    if size == 0:
        raise DefinitionError(f"{op}: axis {axis} has size 0; the extreme of no elements has no index.")
    value = tensor_at([fold.frontend(rec, tensor, [axis])])
    hit = record(rec, "eq", tensor, _put_back(rec, value, axis))
    if tensor.dtype.is_float:
        hit = record(rec, "logical_or", hit, record(rec, "ne", tensor, tensor))
    places = along(rec, record(rec, "iota", size), axis, tensor.ndim)
    candidates = record(rec, "where", hit, places, rec.value(size, op, "arg"))
    return value, tensor_at([MIN.frontend(rec, candidates, [axis])]), axis


def _put_back(rec: Recorder, reduced: TensorView, axis: int) -> TensorView:
    return broadcast(rec, reduced, [place == axis for place in range(reduced.ndim + 1)])


def _max_with_indices(
    rec: Recorder, arg: Operand, dim: int, keepdim: bool = False,
) -> tuple[TensorView, TensorView]:
    return _with_indices(rec, "max_with_indices", MAX, arg, dim, keepdim)


def _min_with_indices(
    rec: Recorder, arg: Operand, dim: int, keepdim: bool = False,
) -> tuple[TensorView, TensorView]:
    return _with_indices(rec, "min_with_indices", MIN, arg, dim, keepdim)


def _with_indices(
    rec: Recorder, op: str, fold: OpDef, arg: Operand, dim: int, keepdim: object,
) -> tuple[TensorView, TensorView]:
    keeps = flag(keepdim, op, "keepdim")
    value, place, axis = _extreme(rec, op, fold, arg, dim)
    if not keeps or not rec.tensor(arg, op, "arg").ndim:
        return value, place
    return _put_back(rec, value, axis), _put_back(rec, place, axis)


def _argmax(rec: Recorder, arg: Operand, dim: int | None = None, keepdim: bool = False) -> TensorView:
    return _place(rec, "argmax", MAX, arg, dim, keepdim)


def _argmin(rec: Recorder, arg: Operand, dim: int | None = None, keepdim: bool = False) -> TensorView:
    return _place(rec, "argmin", MIN, arg, dim, keepdim)


def _place(rec: Recorder, op: str, fold: OpDef, arg: Operand, dim: int | None, keepdim: object) -> TensorView:
    keeps, tensor = flag(keepdim, op, "keepdim"), rec.tensor(arg, op, "arg")
    if dim is not None:
        _, place, axis = _extreme(rec, op, fold, tensor, dim)
        return _put_back(rec, place, axis) if keeps and tensor.ndim else place
    flat = record(rec, "reshape", tensor, [count_of(rec, tensor.extents)]) if tensor.ndim > 1 else tensor
    _, place, _ = _extreme(rec, op, fold, flat, 0)
    return broadcast(rec, place, [True] * tensor.ndim) if keeps and tensor.ndim else place


# Indexing by tensors


class _Places(NamedTuple):
    """A tensor whose first axis combines the indexed axes, the indices into it, and the shapes that they replace."""

    rows: TensorView
    moved: tuple[Extent, ...]  # shape of the tensor with its indexed axes in front
    order: tuple[int, ...]  # of its axes then
    at: TensorView  # one axis
    common: tuple[Extent, ...]
    rest: tuple[Extent, ...]
    before: int  # how many of the rest precede the common axes in the result

    @property
    def result_order(self) -> list[int]:
        """The axes of the result, as positions in ``common + rest``."""
        count = len(self.common)
        rest = range(count, count + len(self.rest))
        return [*rest[: self.before], *range(count), *rest[self.before :]]


def _places(rec: Recorder, op: str, arg: Operand, indices: object) -> _Places:
    tensor, entries = rec.tensor(arg, op, "arg"), as_list(indices, op, "indices", "tensors and None")
    axes = [axis for axis, entry in enumerate(entries) if entry is not None]
    if not axes or len(entries) > tensor.ndim:
        raise DefinitionError(
            f"{op}: indices has {len(entries)} entries, {len(axes)} of them tensors, for a tensor with {tensor.ndim} "
            "axes; at least one tensor and at most one entry per axis are required."
        )
    tensors = [positions_operand(rec, entries[axis], op, f"indices[{axis}]") for axis in axes]
    sizes = [tensor.extents[axis] for axis in axes]
    linear = _linear(rec, [cast(rec, index, DataType.Int) for index in tensors], sizes)
    order = (*axes, *(axis for axis in range(tensor.ndim) if axis not in axes))
    moved = tensor if order == tuple(range(tensor.ndim)) else record(rec, "permute", tensor, list(order))
    rest = moved.extents[len(axes) :]
    rows = moved if len(axes) == 1 else record(rec, "reshape", moved, [count_of(rec, sizes), *rest])
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return _Places(
        rows=rows, moved=moved.extents, order=order,
        at=linear if linear.ndim == 1 else _reshape(rec, linear, [count_of(rec, linear.extents)]),
        common=linear.extents, rest=rest, before=axes[0] if adjacent else 0,
    )


def _linear(rec: Recorder, indices: list[TensorView], sizes: list[Extent]) -> TensorView:
    """Return the row-major index for several indices; it is out of range if one of them is."""
    joined: TensorView | None = None
    inside: TensorView | None = None
    for index, size in zip(indices, sizes, strict=True):
        extent = rec.value(size, "index", "arg")
        wrapped = record(rec, "where", record(rec, "lt", index, 0), record(rec, "add", index, extent), index)
        if len(indices) == 1:
            return wrapped
        within = record(rec, "logical_and", record(rec, "ge", wrapped, 0), record(rec, "lt", wrapped, extent))
        joined = wrapped if joined is None else record(rec, "add", record(rec, "mul", joined, extent), wrapped)
        inside = within if inside is None else record(rec, "logical_and", inside, within)
    assert joined is not None
    return record(rec, "where", inside, joined, -1)


def _reshape(rec: Recorder, tensor: TensorView, shape: Sequence[Operand]) -> TensorView:
    """Return a reshape; a tensor without axes becomes one of size 1 by a broadcast."""
    return record(rec, "reshape", tensor, list(shape)) if tensor.ndim else broadcast(rec, tensor, [True])


def _permute(rec: Recorder, tensor: TensorView, order: Sequence[int]) -> TensorView:
    return tensor if list(order) == list(range(tensor.ndim)) else record(rec, "permute", tensor, list(order))


def _index(rec: Recorder, arg: Operand, indices: Sequence[Operand]) -> TensorView:
    places = _places(rec, "index", arg, indices)
    picked = record(rec, "index_select", places.rows, places.at, 0)
    if len(places.common) == 0:
        picked = record(rec, "squeeze", picked, [0])
    elif len(places.common) > 1:
        picked = record(rec, "reshape", picked, [*places.common, *places.rest])
    return _permute(rec, picked, places.result_order)


def _index_put(
    rec: Recorder, arg: Operand, indices: Sequence[Operand], values: Operand, accumulate: bool = False,
) -> TensorView:
    op, adds = "index_put", flag(accumulate, "index_put", "accumulate")
    places = _places(rec, op, arg, indices)
    count, width = count_of(rec, places.common), count_of(rec, places.rest)
    rows = places.rows
    new = _new_values(rec, op, rows, places, values)
    at = places.at
    if places.rest:
        rows = record(rec, "reshape", rows, [rows.extents[0], width]) if len(places.rest) > 1 else rows
        at = expand(rec, broadcast(rec, at, [False, True]), rec.extents([count, width], op, "arg"), op)
        if isinstance(new, TensorView):
            new = record(rec, "reshape", new, [count, width])
    elif isinstance(new, TensorView) and new.ndim != 1:
        new = _reshape(rec, new, [count])
    written = record(rec, "scatter_add" if adds else "scatter", rows, at, new, 0)
    shaped = written if written.ndim == len(places.moved) else record(rec, "reshape", written, list(places.moved))
    back = [places.order.index(axis) for axis in range(len(places.order))]
    return _permute(rec, shaped, back)


def _new_values(rec: Recorder, op: str, rows: TensorView, places: _Places, values: Operand) -> Val:
    """Return the values to write: a scalar, or a tensor of the shape ``common + rest``."""
    new = rec.value(values, op, "values")
    if not isinstance(new, TensorView):
        return convert(rec, new, rows.dtype, op, "values")
    if new.dtype is not rows.dtype:
        raise DefinitionError(f"{op}: arg has dtype {rows.dtype!r} and values {new.dtype!r}; they must be equal.")
    order = places.result_order
    inner = (*places.common, *places.rest)
    shape = [inner[place] for place in order]
    short = len(shape) - new.ndim
    fits = short >= 0 and all(n == 1 or same_extent(n, m) for n, m in zip(new.extents, shape[short:], strict=True))
    if not fits:
        msg = f"{op}: values has shape {shape_text(new.extents)}, which does not broadcast to {shape_text(shape)}."
        raise DefinitionError(msg)
    wide = broadcast(rec, new, [True] * short + [False] * new.ndim) if short else new
    full = expand(rec, wide, shape, op)
    return _permute(rec, full, [order.index(place) for place in range(len(order))])


def _as_strided(
    rec: Recorder, arg: Operand, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0,
) -> TensorView:
    op, tensor = "as_strided", rec.tensor(arg, "as_strided", "arg")
    shape, steps = wholes(size, op, "size"), wholes(stride, op, "stride")
    first = whole(storage_offset, op, "storage_offset")
    if len(shape) != len(steps):
        raise DefinitionError(f"{op}: size has {len(shape)} entries and stride {len(steps)}; they must agree.")
    if min([first, *shape, *steps]) < 0:
        raise DefinitionError(f"{op}: size={shape}, stride={steps} and storage_offset={first} must be 0 or more.")
    count = count_of(rec, tensor.extents)
    last = first + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if 0 not in shape and isinstance(count, int) and last >= count:
        msg = f"{op}: size={shape} and stride={steps} reach element {last} of a tensor with {count} elements."
        raise DefinitionError(msg)
    flat = tensor if tensor.ndim == 1 else _reshape(rec, tensor, [count])
    total = 1
    for n in shape:
        total *= n
    place = record(rec, "iota", total)
    at: Val = rec.value(first, op, "storage_offset")
    inner = total
    for n, step in zip(shape, steps, strict=True):
        inner = inner // n if n else 0
        digit = record(rec, "remainder", record(rec, "div", place, max(inner, 1)), max(n, 1))
        at = record(rec, "add", at, record(rec, "mul", digit, step))
    index = at if isinstance(at, TensorView) else record(rec, "full", [total], at, DataType.Int)
    picked = record(rec, "index_select", flat, index, 0)
    if not shape:
        return record(rec, "squeeze", picked, [0])
    return picked if len(shape) == 1 else record(rec, "reshape", picked, list(shape))


F, H, B, N = DataType.Float, DataType.Half, DataType.BFloat16, DataType.Int


def _extreme_samples(name: str) -> tuple[Sample, ...]:
    call = f"fd.ops.{name}"
    return (
        Sample(f"{call}(a, 1)"),
        Sample(f"{call}(a, dim=0, keepdim=True)", (Arg((5, 4), H),)),
        Sample(f"{call}(a, -2)", (Arg((2, 6, 3), N),)),
        Sample(f"{call}(a, 0)", (Arg((4, 3), DataType.Bool),)),
        Sample(f"{call}(a, 0)", (Arg((7,), DataType.Byte, 0, 4),)),
        Sample(f"{call}(a, 0)", (Arg((), DataType.Double),)),
        Sample(f"{call}(a, 1, True)", (Arg((3, 1), B),)),
        Sample(f"{call}(a, 1)", (Arg((0, 4)),)),
    )


composite(
    "flip", _flip,
    "arg with the elements of axes dims in reverse order.",
    (
        Sample("fd.ops.flip(a, [1])"),
        Sample("fd.ops.flip(a, dims=[0, -1])", (Arg((2, 3, 4), H),)),
        Sample("fd.ops.flip(a, 0)", (Arg((5,), DataType.Byte, 0, 9),)),
        Sample("fd.ops.neg(fd.ops.flip(a, [0, 1]))", (Arg((3, 1), N),)),
        Sample("fd.ops.flip(a, [])"),
        Sample("fd.ops.flip(a, 0)", (Arg(()),)),
        Sample("fd.ops.flip(a, [1])", (Arg((3, 0), DataType.Double),)),
    ),
)
for _name, _frontend, _what in (
    ("max_with_indices", _max_with_indices, "Largest"), ("min_with_indices", _min_with_indices, "Smallest"),
):
    composite(
        _name, _frontend, f"{_what} element along dim and its first index; NaN counts as the extreme.",
        _extreme_samples(_name),
    )
for _name, _single, _what in (("argmax", _argmax, "largest"), ("argmin", _argmin, "smallest")):
    composite(
        _name, _single, f"First index of the {_what} element along dim, or among all; NaN counts as the extreme.",
        (
            *_extreme_samples(_name),
            Sample(f"fd.ops.{_name}(a)"),
            Sample(f"fd.ops.{_name}(a, keepdim=True)", (Arg((2, 3, 4), H),)),
        ),
    )
_ROWS, _COLUMNS = Arg((2, 5), N, -3, 3), Arg((5,), N, 0, 4)
composite(
    "index", _index,
    "arg at the positions given by tensors, as torch's arg[indices]: None keeps an axis, negative numbers count from "
    "the end.",
    (
        Sample("fd.ops.index(a, [b])", (Arg((3, 4)), _ROWS)),
        Sample("fd.ops.index(a, [b, c])", (Arg((3, 4), H), _ROWS, _COLUMNS)),
        Sample("fd.ops.index(a, indices=[None, b])", (Arg((5, 4, 2)), _COLUMNS)),
        Sample("fd.ops.index(a, [b, None, c])", (Arg((4, 2, 4), B), _COLUMNS, _COLUMNS)),
        Sample("fd.ops.index(a, [None, b, c])", (Arg((2, 3, 4), N), _ROWS, _COLUMNS)),
        Sample("fd.ops.index(a, [b])", (Arg((4,), DataType.Double), Arg((), DataType.Int32, 0, 4))),
    ),
)
composite(
    "index_put", _index_put,
    "A copy of arg with values written at the positions given by tensors, or added there with accumulate=True.",
    (
        Sample(
            "fd.ops.index_put(a, [b, c], d)",
            (Arg((4, 1)), Arg((1,), N, 0, 4), Arg((1,), N, 0, 1), Arg((1,))),
        ),
        Sample("fd.ops.index_put(a, [b], c, True)", (Arg((3, 4)), _ROWS, Arg((4,)))),
        Sample("fd.ops.index_put(a, [b, c], 2.5, accumulate=True)", (Arg((3, 4), DataType.Double), _ROWS, _COLUMNS)),
        Sample(
            "fd.ops.index_put(a, indices=[None, b], values=c, accumulate=True)",
            (Arg((2, 4, 3)), _COLUMNS, Arg((2, 5, 3))),
        ),
        Sample("fd.ops.index_put(a, [b], -1)", (Arg((4, 2), N), _COLUMNS)),
        Sample(
            "fd.ops.index_put(a, [b, None, c], d, True)",
            (Arg((4, 2, 4)), _COLUMNS, _COLUMNS, Arg((5, 2))),
        ),
    ),
)
composite(
    "as_strided", _as_strided,
    "Elements storage_offset + sum(index * stride) of arg, counted in row-major order whatever its layout.",
    (
        Sample("fd.ops.as_strided(a, [2, 2], [1, 3])"),
        Sample("fd.ops.as_strided(a, size=[3, 3], stride=[4, 1], storage_offset=1)", (Arg((3, 4), H),)),
        Sample("fd.ops.as_strided(a, [4, 2, 3], [1, 0, 2])", (Arg((12,), N),)),
        Sample("fd.ops.as_strided(a, [], [], 5)"),
        Sample("fd.ops.as_strided(a, [0, 3], [1, 1])", (Arg((4,), DataType.Double),)),
    ),
)

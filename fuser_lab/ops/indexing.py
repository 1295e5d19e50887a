"""Reads and writes at positions that are data.

The position is an integer tensor or scalar. A position outside its axis is an error, negative ones too: the reference
evaluation raises it, and so does a run whose positions are an input in host memory (`runtime.binding`). Positions that
are computed, or that lie on a device, are looked at by the kernel alone, which reads nothing outside and gives 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, InputError
from fuser_lab.ir import AttrValue, Expr, Extent, IterDomain, IterType, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir import term as t
from fuser_lab.ir.term import Term
from fuser_lab.ops.arguments import whole
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.factory import IOTA
from fuser_lab.ops.promotion import convert, convert_number
from fuser_lab.ops.registry import (
    OPS,
    Arg,
    Array,
    Attrs,
    AxisFactory,
    Composite,
    Element,
    Misuse,
    OpDef,
    Operand,
    Positions,
    Recorder,
    Result,
    Sample,
    defined_scalar,
    register,
    register_composite,
    same_extent,
    tensor_at,
)


def _axis(dim: object, tensor: TensorView, op: str) -> int:
    """Return ``dim`` counted from the front, or raise DefinitionError with nvFuser's condition."""
    number, rank = whole(dim, op, "dim"), tensor.ndim
    if not -rank <= number < rank:
        msg = f"{op}: arg has {rank} axes, so dim argument must satisfy {-rank} <= dim < {rank}, given {number}."
        raise DefinitionError(msg)
    return number % rank


def indexed_axis(attrs: Attrs) -> int:
    """Return the axis of the first operand whose positions are data; embeddings read rows."""
    dim = attrs.get("dim", 0)
    return dim if isinstance(dim, int) else 0


def _positions_operand(rec: Recorder, operand: Operand, op: str, argument: str = "index") -> TensorView:
    tensor = rec.tensor(operand, op, argument)
    if not tensor.dtype.is_integral:
        msg = f"{op}: {argument} must be an integer tensor, given {tensor.dtype!r}."
        raise DefinitionError(msg)
    return tensor


def _same_rank(op: str, **operands: TensorView) -> None:
    (first, a), *others = operands.items()
    for name, b in others:
        if a.ndim != b.ndim:
            msg = f"{op}: {first} has {a.ndim} axes and {name} has {b.ndim}; they must have the same number."
            raise DefinitionError(msg)


def out_of_range(op: str, value: int, size: int, index: str = "index") -> str:
    """Return the sentence for a position outside its axis."""
    places = f"0 to {size - 1}" if size else "no positions"
    return f"{op}: {index} has the value {value}, out of range: the indexed axis has size {size} ({places})."


def checked_positions(op: str, index: Any, size: int) -> Array:
    """Return positions as int64, or raise InputError if one is outside ``[0, size)``."""
    found = np.asarray(index)
    if found.size:
        for value in (int(found.min()), int(found.max())):
            if not 0 <= value < size:
                raise InputError(out_of_range(op, value, size))
    return found.astype(np.int64)


def checked_positions_torch(torch: Any, op: str, index: Any, size: int) -> Any:
    """Return positions as int64, or raise InputError: torch itself would abort every later use of the device."""
    found = index.long()
    capturing = found.is_cuda and torch.cuda.is_current_stream_capturing()  # then nothing can be looked at
    if found.numel() and not capturing:
        for value in map(int, torch.aminmax(found)):
            if not 0 <= value < size:
                raise InputError(out_of_range(op, value, size))
    return found


def _moved(torch: Any, x: Any, move: Callable[..., Any], *others: Any) -> Any:
    """Return ``move(x, *others)``, all of one dtype; what torch has no indexing for goes as integers of its size."""
    if x.dtype is torch.uint64 or "float8" in str(x.dtype):
        words = torch.int64 if x.dtype is torch.uint64 else torch.uint8
        return move(*(operand.contiguous().view(words) for operand in (x, *others))).view(x.dtype)
    return move(x, *others)


def _read(e: Element, place: Term, at: Sequence[Term], size: int) -> Term:
    """Return the operand's element where ``place`` lies on its axis, else 0; nothing outside is read."""
    return t.select((place >= 0) & (place < size), e.read(0, tuple(at)), 0)


def _fitting(tensor: TensorView, index: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(t.index(0) if n == 1 else i for n, i in zip(tensor.shape, index, strict=True))


def _new_axis(axis: IterDomain, axes: AxisFactory) -> IterDomain:
    """Return an axis of another's size whose elements may all differ."""
    size = axis.visible_extent
    return axes.copy(axis) if axis.is_broadcast and axis.expanded is None else axes.fresh(size)


def indexed_operands(expr: Expr) -> tuple[Val, int] | None:
    """Return the operand that holds positions and the size of the axis that they are on; None for other ops."""
    if expr.kind not in {OpKind.INDEXING, OpKind.SCATTER}:
        return None
    if expr.op.name == "embedding_fwd":
        return expr.inputs[0], expr.tensor_inputs[1].shape[0]
    return expr.inputs[1], expr.tensor_inputs[0].shape[indexed_axis(dict(expr.attrs))]


# select


def _select(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "select", "arg")
    place = defined_scalar(rec, index, "select", "index")
    if not place.dtype.is_integral:
        msg = f"select: index must be an integer, given {place.dtype!r}."
        raise DefinitionError(msg)
    return rec.emit(SELECT, [tensor, place], dim=_axis(dim, tensor, "select"))[0]


def _infer_select(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), inputs[1]
    dim = indexed_axis(attrs)
    size = tensor.extents[dim]
    if isinstance(index, Scalar) and index.value is not None and isinstance(size, int):
        value = int(index.value.real)
        if not 0 <= value < size:
            raise DefinitionError(out_of_range("select", value, size))
    logical = tuple(axes.copy(axis) for place, axis in enumerate(tensor.domain.axes) if place != dim)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_select(x: Array, index: Any, *, dim: int) -> Array:
    return np.asarray(np.take(x, int(checked_positions("select", index, x.shape[dim])), axis=dim))


def _library_select(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    place = int(index)
    if not 0 <= place < x.shape[dim]:
        raise InputError(out_of_range("select", place, x.shape[dim]))
    return torch.select(x, dim, place)


def _element_select(e: Element) -> Term:
    dim, size = indexed_axis(e.attrs), tensor_at(e.inputs).shape[indexed_axis(e.attrs)]
    place = t.cast(e.read(1, ()), DataType.Index)
    return _read(e, place, (*e.index[:dim], place, *e.index[dim:]), size)


def _axes_select(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim = indexed_axis(dict(expr.attrs))
    left = [i for i in range(expr.tensor_inputs[0].ndim) if i != dim]
    return (tuple((axis, place) for place, axis in enumerate(left)),)


_TWO = "fd.define_scalar(2, DataType.Int)"
SELECT = register(
    OpDef(
        name="select",
        kind=OpKind.INDEXING,
        frontend=_select,
        infer=_infer_select,
        reference=_reference_select,
        element=_element_select,
        library=_library_select,
        axes=_axes_select,
        samples=(
            Sample(f"fd.ops.select(a, {_TWO}, 0)"),
            Sample(f"fd.ops.select(a, {_TWO}, dim=-1)", (Arg((3, 4, 5), DataType.BFloat16),)),
            Sample(f"fd.ops.select(a, {_TWO}, 0)", (Arg((5,), DataType.Int),)),
            Sample(f"fd.ops.select(fd.ops.select(a, {_TWO}, 1), {_TWO}, 0)", (Arg((3, 4), DataType.Bool, 0, 2),)),
            Sample("fd.ops.neg(fd.ops.select(a, fd.define_scalar(0, DataType.Int32), 1))", (Arg((3, 1, 4)),)),
            Sample(f"fd.ops.select(a, {_TWO}, 1)", (Arg((0, 4)),)),
            Sample(f"fd.ops.select(a, {_TWO}, 0)", (Arg((3, 4), DataType.ComplexFloat),)),
        ),
        misuses=(
            Misuse("fd.ops.select(x, 1, 0)", "select: index must be a scalar of the definition", ArgumentTypeError),
            Misuse("fd.ops.select(x, n, 0)", "select: index must be a scalar of the definition", ArgumentTypeError),
            Misuse("fd.ops.select(x, d, 0)", "select: index must be an integer, given DataType.Double"),
            Misuse("fd.ops.select(x, i, 2)", "so dim argument must satisfy -2 <= dim < 2"),
            Misuse("fd.ops.select(x, i, -3)", "so dim argument must satisfy -2 <= dim < 2"),
            Misuse("fd.ops.select(s, i, 0)", "so dim argument must satisfy 0 <= dim < 0"),
            Misuse("fd.ops.select(x, i)", "missing a required argument: 'dim'", ArgumentTypeError),
            Misuse("fd.ops.select(x, i, 0.5)", "select: dim must be an int", ArgumentTypeError),
            Misuse("fd.ops.select(d, i, 0)", "select: arg must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.select(x, fd.define_scalar(3), 0)", "select: index has the value 3, out of range"),
            Misuse("fd.ops.select(x, fd.define_scalar(-1), 0)", "select: index has the value -1, out of range"),
        ),
        doc="arg at position index of axis dim, which goes away.",
    ),
)


# index_select


def _index_select(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "index_select", "arg")
    places = _positions_operand(rec, index, "index_select")
    if places.ndim > 1:
        msg = f"index_select: index_tv must be a 1d or scalar tensor. Given one with {places.ndim} axes."
        raise DefinitionError(msg)
    return rec.emit(INDEX_SELECT, [tensor, places], dim=_axis(dim, tensor, "index_select"))[0]


def _infer_index_select(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    logical = [axes.copy(axis) for axis in tensor.domain.axes]
    dim = indexed_axis(attrs)
    logical[dim] = axes.copy(index.domain.axes[0]) if index.ndim else axes.fresh(1, IterType.BROADCAST)
    return (Result(tensor.dtype, TensorDomain(logical=tuple(logical))),)


def _reference_index_select(x: Array, index: Array, *, dim: int) -> Array:
    return np.take(x, np.atleast_1d(checked_positions("index_select", index, x.shape[dim])), axis=dim)


def _library_index_select(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = checked_positions_torch(torch, "index_select", index, x.shape[dim]).reshape(-1)
    return _moved(torch, x, lambda data: torch.index_select(data, dim, places))


def _element_index_select(e: Element) -> Term:
    dim, index = indexed_axis(e.attrs), tensor_at(e.inputs, 1)
    place = t.cast(e.read(1, _fitting(index, e.index[dim : dim + index.ndim])), DataType.Index)
    return _read(e, place, (*e.index[:dim], place, *e.index[dim + 1 :]), tensor_at(e.inputs).shape[dim])


def _axes_index_select(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim = indexed_axis(dict(expr.attrs))
    tensor, index = expr.tensor_inputs
    return tuple((i, i) for i in range(tensor.ndim) if i != dim), ((0, dim),) if index.ndim else ()


_ROWS = Arg((7,), DataType.Int, 0, 3)
_BAD_RANGE = "so dim argument must satisfy -2 <= dim < 2"
INDEX_SELECT = register(
    OpDef(
        name="index_select",
        kind=OpKind.INDEXING,
        frontend=_index_select,
        infer=_infer_index_select,
        reference=_reference_index_select,
        element=_element_index_select,
        library=_library_index_select,
        axes=_axes_index_select,
        samples=(
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4)), _ROWS)),
            Sample("fd.ops.index_select(a, b, dim=-1)", (Arg((5, 3), DataType.Half), _ROWS)),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4), DataType.Int), Arg((), DataType.Int, 0, 3))),
            Sample("fd.ops.index_select(a, b, 1)", (Arg((2, 3, 4)), Arg((1,), DataType.Int32, 0, 3))),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 4)), Arg((0,), DataType.Int, 0, 3))),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3, 0)), _ROWS)),
            Sample("fd.ops.index_select(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), _ROWS)),
            Sample("fd.ops.exp(fd.ops.index_select(a, b, 1))", (Arg((4, 3), DataType.Double), _ROWS)),
            Sample("fd.ops.index_select(a, fd.ops.add(b, 1), 0)", (Arg((4, 5), DataType.ComplexDouble), _ROWS)),
            Sample("fd.ops.sum(fd.ops.index_select(a, b, 0), [1])", (Arg((3, 40)), _ROWS)),
        ),
        misuses=(
            Misuse("fd.ops.index_select(x, n, 0)", "index_tv must be a 1d or scalar tensor."),
            Misuse("fd.ops.index_select(x, v, 0)", "index_select: index must be an integer tensor, given DataType.Fl"),
            Misuse("fd.ops.index_select(x, i, 0)", "index_select: index must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.index_select(x, 1, 0)", "index_select: index must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.index_select(x, fd.ops.cast(v, DataType.Int), 2)", _BAD_RANGE),
            Misuse("fd.ops.index_select(x, fd.ops.cast(v, DataType.Int), 'a')", "must be an int", ArgumentTypeError),
            Misuse("fd.ops.index_select(x, fd.ops.cast(v, DataType.Int))", "argument: 'dim'", ArgumentTypeError),
        ),
        doc="arg at the positions index (one axis, or one number) of axis dim.",
    ),
)


# gather and take_along_axis


def _gather(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor, places = rec.tensor(arg, "gather", "arg"), _positions_operand(rec, index, "gather")
    _same_rank("gather", arg=tensor, index=places)
    return rec.emit(GATHER, [tensor, places], dim=_axis(dim, tensor, "gather"))[0]


def _check_within(op: str, dim: int | None, small: TensorView, large: TensorView, names: tuple[str, str]) -> None:
    """Raise DefinitionError if an axis other than ``dim`` is longer in one operand than in another."""
    for place, (a, b) in enumerate(zip(small.extents, large.extents, strict=True)):
        if place != dim and isinstance(a, int) and isinstance(b, int) and a > b:
            msg = f"{op}: {names[0]} has size {a} on axis {place}, {names[1]} only {b}."
            raise DefinitionError(msg)


def _infer_gather(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    _check_within("gather", indexed_axis(attrs), index, tensor, ("index", "arg"))
    logical = tuple(_new_axis(axis, axes) for axis in index.domain.axes)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_gather(x: Array, index: Array, *, dim: int) -> Array:
    places = checked_positions("gather", index, x.shape[dim])
    part = tuple(slice(None) if axis == dim else slice(n) for axis, n in enumerate(index.shape))
    return np.take_along_axis(x[part], places, axis=dim)


def _library_gather(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = checked_positions_torch(torch, "gather", index, x.shape[dim])
    return _moved(torch, x, lambda data: torch.gather(data, dim, places))


def _element_gather(e: Element) -> Term:
    dim, tensor = indexed_axis(e.attrs), tensor_at(e.inputs)
    place = t.cast(e.read(1, _fitting(tensor_at(e.inputs, 1), e.index)), DataType.Index)
    at = list(_fitting(tensor, e.index))
    at[dim] = place
    return _read(e, place, at, tensor.shape[dim])


def _axes_gather(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    return (), tuple((i, i) for i in range(expr.tensor_inputs[1].ndim))


def _take_along_axis(rec: Recorder, arg: Operand, index: Operand, dim: int) -> Val:
    tensor = rec.tensor(arg, "take_along_axis", "arg")
    places = _positions_operand(rec, index, "take_along_axis")
    _same_rank("take_along_axis", arg=tensor, index=places)
    return rec.emit(TAKE_ALONG_AXIS, [tensor, places], dim=_axis(dim, tensor, "take_along_axis"))[0]


def _infer_take_along_axis(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index = tensor_at(inputs), tensor_at(inputs, 1)
    dim = indexed_axis(attrs)
    logical = tuple(
        axes.copy(b) if place == dim else _common_axis(place, a, b, axes)
        for place, (a, b) in enumerate(zip(tensor.domain.axes, index.domain.axes, strict=True))
    )
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _common_axis(place: int, a: IterDomain, b: IterDomain, axes: AxisFactory) -> IterDomain:
    wide = [axis.visible_extent for axis in (a, b) if not axis.is_broadcast or axis.expanded is not None]
    size: Extent = next((n for n in wide if isinstance(n, int)), wide[0] if wide else 1)
    for other in wide:
        if not same_extent(size, other):
            msg = (
                f"take_along_axis: arg has size {a.visible_extent} and index {b.visible_extent} on axis {place}; "
                "they must be equal or 1."
            )
            raise DefinitionError(msg)
    if a.is_broadcast and b.is_broadcast:
        return axes.fresh(1, IterType.BROADCAST, size if wide else None)
    return axes.fresh(size)


def _reference_take_along_axis(x: Array, index: Array, *, dim: int) -> Array:
    return np.take_along_axis(x, checked_positions("take_along_axis", index, x.shape[dim]), axis=dim)


def _library_take_along_axis(torch: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = checked_positions_torch(torch, "take_along_axis", index, x.shape[dim])
    return _moved(torch, x, lambda data: torch.take_along_dim(data, places, dim))


def _axes_take_along_axis(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    dim, rank = indexed_axis(dict(expr.attrs)), expr.tensor_inputs[0].ndim
    return tuple((i, i) for i in range(rank) if i != dim), tuple((i, i) for i in range(rank))


def _misuses_of_pairs(op: str) -> tuple[Misuse, ...]:
    return (
        Misuse(f"fd.ops.{op}(x, n, 2)", "so dim argument must satisfy -2 <= dim < 2"),
        Misuse(f"fd.ops.{op}(x, n, -3)", "so dim argument must satisfy -2 <= dim < 2"),
        Misuse(f"fd.ops.{op}(s, fd.ops.cast(s, DataType.Int), 0)", "so dim argument must satisfy 0 <= dim < 0"),
        Misuse(f"fd.ops.{op}(x, y, 0)", f"{op}: index must be an integer tensor, given DataType.Float"),
        Misuse(f"fd.ops.{op}(x, m, 0)", f"{op}: index must be an integer tensor, given DataType.Bool"),
        Misuse(f"fd.ops.{op}(v, n, 0)", f"{op}: arg has 1 axes and index has 2; they must have the same number"),
        Misuse(f"fd.ops.{op}(x, i, 0)", f"{op}: index must be a tensor", ArgumentTypeError),
        Misuse(f"fd.ops.{op}(x, n)", "missing a required argument: 'dim'", ArgumentTypeError),
        Misuse(f"fd.ops.{op}(x, n, None)", f"{op}: dim must be an int", ArgumentTypeError),
    )


GATHER = register(
    OpDef(
        name="gather",
        kind=OpKind.INDEXING,
        frontend=_gather,
        infer=_infer_gather,
        reference=_reference_gather,
        element=_element_gather,
        library=_library_gather,
        axes=_axes_gather,
        samples=(
            Sample("fd.ops.gather(a, b, 0)", (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3))),
            Sample("fd.ops.gather(a, b, dim=-1)", (Arg((3, 4), DataType.BFloat16), Arg((2, 6), DataType.Int, 0, 4))),
            Sample("fd.ops.gather(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), Arg((8,), DataType.Int32, 0, 3))),
            Sample("fd.ops.gather(a, b, 1)", (Arg((3, 4), DataType.Int), Arg((1, 2), DataType.Int, 0, 4))),
            Sample("fd.ops.gather(a, b, 1)", (Arg((3, 4)), Arg((0, 2), DataType.Int, 0, 4))),
            Sample(
                "fd.ops.neg(fd.ops.gather(fd.ops.neg(a), b, 2))",
                (Arg((2, 3, 4), DataType.Double), Arg((2, 2, 1), DataType.Int, 0, 4)),
            ),
        ),
        misuses=(
            *_misuses_of_pairs("gather"),
            Misuse("fd.ops.gather(x, fd.ops.cast(y, DataType.Int), 0)", "gather: index has size 5 on axis 1, arg only"),
        ),
        doc="arg at the positions index of axis dim, as torch.gather: index may be smaller than arg on other axes.",
    ),
)
TAKE_ALONG_AXIS = register(
    OpDef(
        name="take_along_axis",
        kind=OpKind.INDEXING,
        frontend=_take_along_axis,
        infer=_infer_take_along_axis,
        reference=_reference_take_along_axis,
        element=_element_gather,
        library=_library_take_along_axis,
        axes=_axes_take_along_axis,
        samples=(
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3))),
            Sample("fd.ops.take_along_axis(a, b, -1)", (Arg((3, 4), DataType.Half), Arg((3, 1), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((1, 4), DataType.Int), Arg((3, 2), DataType.Int32, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((3, 4)), Arg((1, 6), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((3,), DataType.Bool, 0, 2), Arg((8,), DataType.Int, 0, 3))),
            Sample("fd.ops.take_along_axis(a, b, 1)", (Arg((0, 4)), Arg((0, 2), DataType.Int, 0, 4))),
            Sample("fd.ops.take_along_axis(a, b, 0)", (Arg((1, 1)), Arg((1, 1), DataType.Int, 0, 1))),
            Sample(
                "fd.ops.sum(fd.ops.take_along_axis(a, b, 1), [1])",
                (Arg((3, 4), DataType.Double), Arg((3, 9), DataType.Int, 0, 4)),
            ),
            Sample(
                "fd.ops.mul(fd.ops.take_along_axis(a, b, 0), fd.ops.take_along_axis(c, b, 0))",
                (Arg((3, 4)), Arg((5, 4), DataType.Int, 0, 3), Arg((6, 4))),
            ),
        ),
        misuses=(
            *_misuses_of_pairs("take_along_axis"),
            Misuse(
                "fd.ops.take_along_axis(x, fd.ops.cast(y, DataType.Int), 0)",
                "take_along_axis: arg has size 4 and index 5 on axis 1; they must be equal or 1",
            ),
        ),
        doc="arg at the positions index of axis dim, as numpy.take_along_axis: other axes broadcast.",
    ),
)


# scatter


def _scatter(rec: Recorder, arg: Operand, index: Operand, src: Operand, dim: int) -> Val:
    tensor, places = rec.tensor(arg, "scatter", "arg"), _positions_operand(rec, index, "scatter")
    _same_rank("scatter", arg=tensor, index=places)
    source = None if isinstance(src, bool | int | float | complex) else rec.value(src, "scatter", "src")
    if isinstance(source, TensorView):
        _same_rank("scatter", arg=tensor, index=places, src=source)
        if source.dtype is not tensor.dtype:
            msg = f"scatter: arg has dtype {tensor.dtype!r} and src {source.dtype!r}; they must be equal."
            raise DefinitionError(msg)
        value: Val = source
    else:
        value = convert(rec, defined_scalar(rec, src, "scatter", "src"), tensor.dtype, "scatter", "src")
    return rec.emit(SCATTER, [tensor, places, value], dim=_axis(dim, tensor, "scatter"))[0]


def _infer_scatter(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor, index, source = tensor_at(inputs), tensor_at(inputs, 1), inputs[2]
    _check_within("scatter", indexed_axis(attrs), index, tensor, ("index", "arg"))
    if isinstance(source, TensorView):
        _check_within("scatter", None, index, source, ("index", "src"))
    logical = tuple(_new_axis(axis, axes) for axis in tensor.domain.axes)
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reference_scatter(x: Array, index: Array, source: Any, *, dim: int) -> Array:
    places = checked_positions("scatter", index, x.shape[dim])
    part = tuple(slice(None) if axis == dim else slice(n) for axis, n in enumerate(index.shape))
    values = np.asarray(source)
    if values.ndim:
        values = values[tuple(slice(n) for n in index.shape)]
    out = np.array(x)
    np.put_along_axis(out[part], places, values, axis=dim)
    return out


def _library_scatter(torch: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    places = checked_positions_torch(torch, "scatter", index, x.shape[dim])
    values = source if torch.is_tensor(source) else torch.as_tensor(source, dtype=x.dtype, device=x.device)
    values = values if values.ndim else values.expand(places.shape)
    return _moved(torch, x, lambda data, new: torch.scatter(data, dim, places, new), values)


def _axes_scatter(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    tensor, *others = expr.tensor_inputs
    return tuple((i, i) for i in range(tensor.ndim)), *(() for _ in others)


_ONE = "fd.define_scalar(1.0, DataType.Double)"
SCATTER = register(
    OpDef(
        name="scatter",
        kind=OpKind.SCATTER,
        frontend=_scatter,
        infer=_infer_scatter,
        reference=_reference_scatter,
        library=_library_scatter,
        axes=_axes_scatter,
        samples=(
            Sample("fd.ops.scatter(a, b, c, 0)", (Arg((4, 3)), Arg((1, 3), DataType.Int, 0, 4), Arg((2, 3)))),
            Sample(f"fd.ops.scatter(a, b, {_ONE}, -1)", (Arg((3, 4), DataType.Half), Arg((2, 1), DataType.Int, 0, 4))),
            Sample(
                "fd.ops.scatter(a, b, c, 0)",
                (Arg((4,), DataType.Int), Arg((1,), DataType.Int32, 0, 4), Arg((1,), DataType.Int)),
            ),
            Sample("fd.ops.scatter(a, b, c, 1)", (Arg((3, 4)), Arg((0, 4), DataType.Int, 0, 4), Arg((3, 4)))),
            Sample(
                "fd.ops.neg(fd.ops.scatter(fd.ops.neg(a), b, c, 1))",
                (Arg((3, 4), DataType.Double), Arg((3, 1), DataType.Int, 0, 4), Arg((3, 1), DataType.Double)),
            ),
            Sample(
                "fd.ops.scatter(a, b, fd.define_scalar(True, DataType.Bool), 0)",
                (Arg((4, 2), DataType.Bool, 0, 2), Arg((3, 2), DataType.Int, 0, 4)),
            ),
        ),
        misuses=(
            Misuse("fd.ops.scatter(x, n, x, 2)", "so dim argument must satisfy -2 <= dim < 2"),
            Misuse("fd.ops.scatter(x, y, x, 0)", "scatter: index must be an integer tensor, given DataType.Float"),
            Misuse("fd.ops.scatter(v, n, v, 0)", "scatter: arg has 1 axes and index has 2"),
            Misuse("fd.ops.scatter(x, n, v, 0)", "scatter: arg has 2 axes and src has 1"),
            Misuse("fd.ops.scatter(x, n, h, 0)", "scatter: arg has dtype DataType.Float and src DataType.Half"),
            Misuse("fd.ops.scatter(x, n, 1.0, 0)", "scatter: src must be a scalar of the def", ArgumentTypeError),
            Misuse("fd.ops.scatter(x, n, None, 0)", "scatter: src is None", ArgumentTypeError),
            Misuse("fd.ops.scatter(x, n, x)", "missing a required argument: 'dim'", ArgumentTypeError),
            Misuse("fd.ops.scatter(x, i, x, 0)", "scatter: index must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.scatter(x, fd.ops.cast(y, DataType.Int), y, 0)", "scatter: index has size 5 on axis 1, arg"),
        ),
        doc="A copy of arg with src written at the positions index of axis dim; of equal positions any may win.",
    ),
)


# embedding_fwd

_OPTIONS = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def _embedding(
    rec: Recorder, input: Operand, weight: Operand, padding_idx: Operand = None, max_norm: Operand = None,
    norm_type: Operand = None, scale_grad_by_freq: Operand = None, sparse: Operand = None,
) -> Val:
    op = "embedding_fwd"
    places, table = _positions_operand(rec, input, op, "input"), rec.tensor(weight, op, "weight")
    if table.ndim != 2:
        msg = f"{op}: weight has {table.ndim} axes; it must have 2, (rows, features)."
        raise DefinitionError(msg)
    given = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    pairs = zip(_OPTIONS, given, strict=True)
    chosen = [(name, defined_scalar(rec, value, op, name)) for name, value in pairs if value is not None]
    for name, scalar in chosen:
        if name == "padding_idx" and not scalar.dtype.is_integral:
            msg = f"{op}: padding_idx must be an integer, given {scalar.dtype!r}."
            raise DefinitionError(msg)
        if name in {"max_norm", "norm_type"} and scalar.dtype.is_complex:
            msg = f"{op}: {name} must be a real number, given {scalar.dtype!r}."
            raise DefinitionError(msg)
        if name in {"scale_grad_by_freq", "sparse"} and scalar.dtype is not DataType.Bool:
            msg = f"{op}: {name} must be a Bool, given {scalar.dtype!r}."
            raise DefinitionError(msg)
    names: AttrValue = tuple(name for name, _ in chosen)
    return rec.emit(EMBEDDING, [places, table, *(scalar for _, scalar in chosen)], options=names)[0]


def _infer_embedding(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    del attrs
    places, table = tensor_at(inputs), tensor_at(inputs, 1)
    logical = (*(_new_axis(axis, axes) for axis in places.domain.axes), axes.copy(table.domain.axes[1]))
    return (Result(table.dtype, TensorDomain(logical=logical)),)


def _embedding_options(options: tuple[str, ...], values: Sequence[Any], rows: int) -> dict[str, Any]:
    given = dict(zip(options, values, strict=True))
    padding = given.get("padding_idx")
    if padding is not None and not -rows <= int(padding) < rows:
        raise InputError(out_of_range("embedding_fwd", int(padding), rows, "padding_idx"))
    return given


def _reference_embedding(index: Array, table: Array, *values: Any, options: tuple[str, ...]) -> Array:
    given = _embedding_options(options, values, table.shape[0])
    rows = table[checked_positions("embedding_fwd", index, table.shape[0])]
    if "max_norm" not in given:
        return rows
    wide = rows.astype(np.float64)
    limit, order = float(given["max_norm"]), float(given.get("norm_type", 2.0))
    norm = np.linalg.norm(np.abs(wide), ord=order, axis=-1, keepdims=True)
    return np.where(norm > limit, wide * (limit / (norm + 1e-7)), wide).astype(table.dtype)


def _library_embedding(torch: Any, index: Any, table: Any, *values: Any, options: tuple[str, ...]) -> Any:
    given = _embedding_options(options, values, table.shape[0])
    places = checked_positions_torch(torch, "embedding_fwd", index, table.shape[0])
    if "max_norm" not in given:
        return _moved(torch, table, lambda data: data[places])
    # torch scales the rows of the table itself; here operands are never written to.
    limit, order = float(given["max_norm"]), float(given.get("norm_type", 2.0))
    return torch.nn.functional.embedding(places, table.clone(), max_norm=limit, norm_type=order)


def _axes_embedding(expr: Expr, result: int) -> tuple[Positions, ...]:
    del result
    rank = expr.out.ndim
    return tuple((i, i) for i in range(rank - 1)), ((1, rank - 1),)


_TOKENS = Arg((2, 5), DataType.Int, 0, 6)
EMBEDDING = register(
    OpDef(
        name="embedding_fwd",
        kind=OpKind.INDEXING,
        frontend=_embedding,
        infer=_infer_embedding,
        reference=_reference_embedding,
        library=_library_embedding,
        axes=_axes_embedding,
        samples=(
            Sample("fd.ops.embedding_fwd(a, b)", (_TOKENS, Arg((6, 4)))),
            Sample("fd.ops.embedding_fwd(a, b)", (Arg((), DataType.Int32, 0, 6), Arg((6, 4), DataType.BFloat16))),
            Sample("fd.ops.embedding_fwd(a, b)", (Arg((0,), DataType.Int, 0, 6), Arg((6, 1), DataType.Half))),
            Sample(
                "fd.ops.embedding_fwd(a, b, fd.define_scalar(-1, DataType.Int))",
                (_TOKENS, Arg((6, 4), DataType.Double)),
            ),
            Sample(
                "fd.ops.embedding_fwd(a, b, max_norm=fd.define_scalar(1.5), norm_type=fd.define_scalar(1.0), "
                "scale_grad_by_freq=fd.define_scalar(False), sparse=fd.define_scalar(True))",
                (_TOKENS, Arg((6, 4))),
            ),
            Sample("fd.ops.relu(fd.ops.embedding_fwd(a, b))", (_TOKENS, Arg((6, 4)))),
        ),
        misuses=(
            Misuse("fd.ops.embedding_fwd(n, v)", "embedding_fwd: weight has 1 axes; it must have 2"),
            Misuse("fd.ops.embedding_fwd(x, y)", "embedding_fwd: input must be an integer tensor, given DataType.Flo"),
            Misuse("fd.ops.embedding_fwd(n, x, 1)", "padding_idx must be a scalar", ArgumentTypeError),
            Misuse("fd.ops.embedding_fwd(n, x, max_norm=1.0)", "max_norm must be a scalar", ArgumentTypeError),
            Misuse("fd.ops.embedding_fwd(n, x, sparse=True)", "sparse must be a scalar", ArgumentTypeError),
            Misuse("fd.ops.embedding_fwd(n, x, d)", "padding_idx must be an integer, given DataType.Double"),
            Misuse("fd.ops.embedding_fwd(n, x, sparse=i)", "sparse must be a Bool, given DataType.Int"),
            Misuse("fd.ops.embedding_fwd(n)", "missing a required argument: 'weight'", ArgumentTypeError),
            Misuse("fd.ops.embedding_fwd(i, x)", "embedding_fwd: input must be a tensor", ArgumentTypeError),
        ),
        doc="Rows of weight at the positions input; rows above max_norm in norm norm_type (2) are scaled down to it.",
    ),
)


# triu


def _triu(rec: Recorder, arg: Operand, diagonal: Operand = 0) -> Val:
    tensor = rec.tensor(arg, "triu", "arg")
    if tensor.ndim < 2:
        msg = f"triu: input tensor for triu must have 2 or more dims, but got {tensor.ndim} dims."
        raise DefinitionError(msg)
    offset = rec.value(diagonal, "triu", "diagonal")
    if isinstance(offset, TensorView) or not offset.dtype.is_integral:
        msg = f"triu: diagonal must be an integer, given {offset if isinstance(offset, Scalar) else offset.name}."
        raise DefinitionError(msg)
    rows, columns = tensor.extents[-2:]
    shifted = OPS["add"].frontend(rec, IOTA.frontend(rec, rows, None, None, DataType.Int), offset)
    below = broadcast(rec, shifted, [False, True])
    across = broadcast(rec, IOTA.frontend(rec, columns, None, None, DataType.Int), [True, False])
    zero = Scalar(name="", dtype=tensor.dtype, value=convert_number(0, tensor.dtype, "triu", "0"))
    result: Val = OPS["where"].frontend(rec, OPS["le"].frontend(rec, below, across), tensor, zero)
    return result


register_composite(
    Composite(
        name="triu",
        frontend=_triu,
        samples=(
            Sample("fd.ops.triu(a)"),
            Sample("fd.ops.triu(a, 1)", (Arg((4, 4), DataType.Half),)),
            Sample("fd.ops.triu(a, diagonal=-2)", (Arg((2, 5, 4), DataType.BFloat16),)),
            Sample("fd.ops.triu(a, fd.define_scalar(1, DataType.Int))", (Arg((3, 4), DataType.Int),)),
            Sample("fd.ops.triu(a)", (Arg((3, 3), DataType.Bool, 0, 2),)),
            Sample("fd.ops.triu(a)", (Arg((3, 3), DataType.ComplexFloat),)),
            Sample("fd.ops.triu(a, 9)", (Arg((1, 4), DataType.Double),)),
            Sample("fd.ops.triu(a)", (Arg((0, 4)),)),
        ),
        misuses=(
            Misuse("fd.ops.triu(v)", "input tensor for triu must have 2 or more dims, but got 1 dims"),
            Misuse("fd.ops.triu(s)", "input tensor for triu must have 2 or more dims, but got 0 dims"),
            Misuse("fd.ops.triu(x, 0.5)", "triu: diagonal must be an integer, given double(0.5)"),
            Misuse("fd.ops.triu(x, n)", "triu: diagonal must be an integer, given T"),
            Misuse("fd.ops.triu(d)", "triu: arg must be a tensor", ArgumentTypeError),
            Misuse("fd.ops.triu(x, None)", "triu: diagonal is None", ArgumentTypeError),
        ),
        doc="arg with zeros below a diagonal of its last two axes; diagonal 1 is the one above the main one.",
    ),
)

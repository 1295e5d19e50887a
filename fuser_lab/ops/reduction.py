"""Reductions over axes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType, Kind, from_numpy
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, IterType, Number, OpKind, TensorDomain, TensorView, Val
from fuser_lab.ops.arguments import as_list, flag, whole
from fuser_lab.ops.broadcast import broadcast
from fuser_lab.ops.extremes import largest, smallest
from fuser_lab.ops.operands import tensor_at, unique_dims
from fuser_lab.ops.promotion import convert
from fuser_lab.ops.registry import OPS, Arg, OpDef, Recorder, Sample, register
from fuser_lab.ops.rules import Array, Attrs, AxisFactory, Combine, Operand, Result


def reduced_axes(tensor: TensorView, dims: object, op: str) -> tuple[int, ...]:
    """Return the axes that an argument names, sorted; all axes for None. A 0-d tensor has axes 0 and -1, as in torch.

    Raises
    ------
    ArgumentTypeError
        If it is neither an int nor a list of ints.
    DefinitionError
        If the list is empty, or names an axis twice or one that does not exist.
    """
    if dims is None:
        return tuple(range(tensor.ndim))
    entries = [dims] if is_whole(dims) else as_list(dims, op, "dims")
    if not entries:
        raise DefinitionError(f"{op}: dims is empty; name at least one axis, or omit dims to reduce all.")
    axes = tuple(sorted(unique_dims(entries, max(tensor.ndim, 1), op)))
    return axes if tensor.ndim else ()


def without_broadcasts(
    rec: Recorder, tensor: TensorView, dims: tuple[int, ...],
) -> tuple[TensorView, tuple[int, ...], tuple[Extent, ...]]:
    """Record a squeeze of the broadcast axes among reduced ones.

    Returns the tensor, the positions of the remaining reduced axes, and the extents of the removed expanded ones: the
    number of times each element would have been read.
    """
    axes = tensor.domain.axes
    gone = tuple(d for d in dims if axes[d].is_broadcast)
    if not gone:
        return tensor, dims, ()
    repeats = tuple(axes[d].visible_extent for d in gone if axes[d].expanded is not None)
    left = [d for d in range(tensor.ndim) if d not in gone]
    squeezed: TensorView = OPS["squeeze"].frontend(rec, tensor, list(gone), squeeze_expanded=True)
    return squeezed, tuple(left.index(d) for d in dims if d in left), repeats


def count_of(rec: Recorder, extents: Iterable[Extent]) -> Val | int:
    """Return the product of extents: an int if all are known, otherwise a computed scalar."""
    count: Val | int = 1
    for extent in extents:
        if isinstance(count, int) and isinstance(extent, int):
            count *= extent
        else:
            count = OPS["mul"].frontend(rec, count, extent)
    return count


def unless_none(rec: Recorder, value: TensorView, repeats: Sequence[Extent], instead: Number) -> TensorView:
    """Record ``instead`` for a value that is the same for any number of repeats but differs for none."""
    if all(isinstance(n, int) and n > 0 for n in repeats):
        return value
    nothing = OPS["eq"].frontend(rec, count_of(rec, repeats), 0)
    return tensor_at([OPS["where"].frontend(rec, nothing, instead, value)])


def has_no_elements(tensor: TensorView, dims: tuple[int, ...]) -> bool:
    """Whether a reduced axis is known to have size 0, and the kept sizes are known as well.

    A symbolic size that is kept is assumed to be that of one operand of the tensor's producer. Only the inputs
    determine whether it is, so that expression must stay; `RemoveEmpty` fills the result once sizes are known.
    """
    return any(tensor.extents[d] == 0 for d in dims) and all(isinstance(n, int) for n in kept_extents(tensor, dims))


def kept_extents(tensor: TensorView, dims: tuple[int, ...]) -> list[Extent]:
    """Return the sizes of the axes that a reduction keeps."""
    return [extent for d, extent in enumerate(tensor.extents) if d not in dims]


def _infer(inputs: tuple[Val, ...], attrs: Attrs, axes: AxisFactory) -> tuple[Result, ...]:
    tensor = inputs[0]
    dims = attrs["dims"]
    if not isinstance(tensor, TensorView) or not isinstance(dims, tuple):
        raise DefinitionError("a reduction needs a tensor and a list of axes.")
    logical = tuple(
        axes.fresh(axis.extent, IterType.REDUCTION, axis.expanded) if i in dims else axes.copy(axis)
        for i, axis in enumerate(tensor.domain.axes)
    )
    return (Result(tensor.dtype, TensorDomain(logical=logical)),)


def _reduction(
    name: str, combine: Combine, reference: Callable[..., Any], *, converts: bool, repeated: str = "", doc: str,
) -> OpDef:
    """Register a reduction: ``converts`` if a dtype may be requested; ``repeated`` is the op for an expanded axis.

    Bool and integers become Int if a dtype may be requested and none is.
    """

    def frontend(
        rec: Recorder,
        arg: Operand,
        dims: int | Sequence[int] | DataType | None = None,
        keepdim: bool = False,
        dtype: DataType = DataType.Null,
        *,
        dim: int | None = None,
    ) -> Val:
        tensor, keeps = rec.tensor(arg, name, "arg"), flag(keepdim, name, "keepdim")
        if isinstance(dims, DataType):
            # The overload without axes: sum(x, DataType.Float).
            dtype = dims
        named = None if isinstance(dims, DataType) else dims
        if dim is not None:
            if named is not None:
                raise DefinitionError(f"{name}: give dims or dim, not both.")
            named = whole(dim, name, "dim")
        if keeps and named is None:
            raise ArgumentTypeError(f"{name}: keepdim requires dim or dims; without them, all axes are reduced.")
        reduced = reduced_axes(tensor, named, name)
        value = _operand(rec, tensor, dtype, name, converts=converts)
        result = _reduce(rec, entry, value, reduced, repeated)
        if keeps and reduced:
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
        samples=_samples(name, converts=converts),
    )
    return register(entry)


def _operand(rec: Recorder, tensor: TensorView, dtype: object, op: str, *, converts: bool) -> TensorView:
    """Return the reduced operand: the tensor, or its conversion."""
    if not isinstance(dtype, DataType):
        raise ArgumentTypeError(f"{op}: dtype must be a DataType, given {short_text(dtype)}.")
    if dtype is not DataType.Null and not converts:
        msg = f"{op}: dtype must be omitted, because the result has the operand's dtype; given {dtype!r}."
        raise DefinitionError(msg)
    if not converts and tensor.dtype.is_complex:
        raise DefinitionError(f"{op}: complex numbers have no order, given {tensor.dtype!r}.")
    if dtype is DataType.Null and converts and tensor.dtype.kind in {Kind.BOOL, Kind.INTEGER}:
        dtype = DataType.Int
    return tensor if dtype is DataType.Null else tensor_at([convert(rec, tensor, dtype, op, "arg")])


def _reduce(rec: Recorder, entry: OpDef, value: TensorView, dims: tuple[int, ...], repeated: str) -> TensorView:
    if not dims:
        return tensor_at(rec.emit(OPS["set"], [value]))
    if has_no_elements(value, dims):
        identity = entry.combine.identity(value.dtype) if entry.combine else 0
        filled: TensorView = OPS["full"].frontend(rec, kept_extents(value, dims), identity, value.dtype)
        return filled
    result, left, repeats = without_broadcasts(rec, value, dims)
    if left:
        result = tensor_at(rec.emit(entry, [result], dims=left))
    if not repeated and entry.combine:
        return unless_none(rec, result, repeats, entry.combine.identity(value.dtype))
    if repeats and repeated:
        more = OPS[repeated].frontend(rec, result, count_of(rec, repeats))
        result = tensor_at([convert(rec, more, value.dtype, entry.name, "arg")])
    return result


def _samples(name: str, *, converts: bool) -> tuple[Sample, ...]:
    call = f"fd.ops.{name}"
    dtypes = [DataType.Half, DataType.BFloat16, DataType.Double, DataType.Int, DataType.Int32, DataType.Bool]
    if converts:
        dtypes += [DataType.ComplexFloat, DataType.ComplexDouble]
    samples = [
        Sample(f"{call}(a)"),
        Sample(f"{call}(a, 0)"),
        Sample(f"{call}(a, dim=-1)"),
        Sample(f"{call}(a, [1], True)"),
        Sample(f"{call}(a, dims=[0, -1], keepdim=True)", (Arg((3, 4, 5)),)),
        Sample(f"{call}(a, [1])", (Arg((3, 4, 5)),)),
        Sample(f"{call}(a)", (Arg(()),)),
        Sample(f"{call}(a, [0], True)", (Arg(()),)),
        Sample(f"{call}(a, [0])", (Arg((1, 4)),)),
        Sample(f"{call}(a, [0, 1])", (Arg((1, 4)),)),
        Sample(f"{call}(a, [0], True)", (Arg((1,)),)),
        Sample(f"{call}(a, [1])", (Arg((3, 0)),)),
        Sample(f"{call}(a, [0])", (Arg((3, 0)),)),
        Sample(f"{call}(fd.ops.expand(a, [5, 4]), [0])", (Arg((1, 4)),)),
        Sample(f"{call}(fd.ops.expand(a, [5, 4]), [0, 1], True)", (Arg((1, 4)),)),
        *(Sample(f"{call}(a, [1])", (Arg((3, 4), dtype),)) for dtype in dtypes),
    ]
    if converts:
        samples += [
            Sample(f"{call}(a, dtype=DataType.Double)"),
            Sample(f"{call}(a, [1], False, DataType.Float)", (Arg((3, 4), DataType.Half),)),
            Sample(f"{call}(a, 0, dtype=DataType.Int32)", (Arg((3, 4), DataType.Int),)),
            Sample(f"{call}(fd.ops.expand(a, [3, 4]), [0])", (Arg((1, 4), DataType.Half),)),
        ]
    return tuple(samples)


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
        return np.asarray(fold(x, dims, identity(from_numpy(x.dtype))))

    return reference


SUM = _reduction(
    "sum",
    Combine(fn="add", identity=lambda _: 0),
    lambda x, *, dims: np.sum(x, axis=dims, dtype=x.dtype),
    converts=True,
    repeated="mul",
    doc="Sum over dims (all axes by default); bool and integers are summed as Int.",
)
PROD = _reduction(
    "prod",
    Combine(fn="mul", identity=lambda _: 1),
    lambda x, *, dims: np.prod(x, axis=dims, dtype=x.dtype),
    converts=True,
    repeated="pow",
    doc="Product over dims (all axes by default); bool and integers are multiplied as Int.",
)
MAX = _reduction(
    "max",
    Combine(fn="max", identity=_lowest, selects=True),
    _extreme(largest, _lowest),
    converts=False,
    doc="Largest element over dims, NaN propagates; 0.0 is larger than -0.0.",
)
MIN = _reduction(
    "min",
    Combine(fn="min", identity=_highest, selects=True),
    _extreme(smallest, _highest),
    converts=False,
    doc="Smallest element over dims, NaN propagates; -0.0 is smaller than 0.0.",
)

"""Checks of operands, attributes and axis numbers, and the sizes of axes that operands share."""

from collections.abc import Sequence

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Extent, IterDomain, Scalar, TensorView, Val
from fuser_lab.ir.term import Const, Term
from fuser_lab.ops.arguments import as_list, whole
from fuser_lab.ops.registry import Recorder
from fuser_lab.ops.rules import Attrs, AxisFactory, Operand


def tensor_at(inputs: Sequence[Val], position: int = 0) -> TensorView:
    """Return an operand that must be a tensor."""
    value = inputs[position]
    if not isinstance(value, TensorView):
        raise DefinitionError(f"a tensor is needed here, given the scalar {value}.")
    return value


def defined_scalar(rec: Recorder, operand: Operand, op: str, argument: str) -> Scalar:
    """Return a scalar operand that nvFuser accepts only as a value of the definition, not as a Python number.

    Raises
    ------
    ArgumentTypeError
        If it is a Python number or a tensor.
    """
    if isinstance(operand, bool | int | float | complex):
        msg = f"{op}: {argument} must be a scalar of the definition (fd.define_scalar), given {short_text(operand)}."
        raise ArgumentTypeError(msg)
    value = rec.value(operand, op, argument)
    if isinstance(value, Scalar):
        return value
    msg = f"{op}: {argument} must be a scalar of the definition (fd.define_scalar), given the tensor {value.name}."
    raise ArgumentTypeError(msg)


def known_ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """Return an attribute that must be a list of ints.

    Raises
    ------
    DefinitionError
        If some are still symbolic.
    """
    value = attrs[name]
    if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
        raise DefinitionError(f"{name} must be known here, given {short_text(value)}.")
    return tuple(v for v in value if isinstance(v, int))


_OUTSIDE = "{argument}={dim} is outside [-{ndim}, {ndim}) of a tensor with {ndim} axes."


def wrap_dim(dim: object, ndim: int, op: str, argument: str = "dim", refusal: str = _OUTSIDE) -> int:
    """Return ``dim`` counted from the front; ``refusal`` is the sentence for one outside, such as that of nvFuser.

    Raises
    ------
    ArgumentTypeError
        If it is not an int.
    DefinitionError
        If it lies outside ``[-ndim, ndim)``.
    """
    dim = whole(dim, op, argument)
    if not -ndim <= dim < ndim:
        raise DefinitionError(f"{op}: {refusal.format(argument=argument, dim=dim, ndim=ndim, least=-ndim)}")
    return dim % ndim


def unique_dims(dims: object, ndim: int, op: str, argument: str = "dims") -> tuple[int, ...]:
    """Return wrapped axis numbers in the given order, each at most once."""
    entries = as_list(dims, op, argument)
    wrapped = tuple(wrap_dim(d, ndim, op, argument) for d in entries)
    if len(set(wrapped)) != len(wrapped):
        raise DefinitionError(f"{op}: {argument}={short_text(entries)} names an axis twice.")
    return wrapped


def same_extent(a: Extent, b: Extent) -> bool:
    """Whether two extents may be equal: only two different ints cannot be."""
    return not (isinstance(a, int) and isinstance(b, int) and a != b)


def same_declared(a: Extent, b: Extent) -> bool:
    """Whether two extents may be equal and neither broadcasts to the other: a declared 1 only fits a declared 1."""
    return same_extent(a, b) and (a == 1) is (b == 1)


def joined_extent(operands: Sequence[IterDomain], axes: AxisFactory) -> Extent:
    """Return the size of the axis that some axes broadcast to.

    A symbolic size of an expanded axis may turn out to be 1, which is compatible with any other size. So a known size,
    or that of a plain axis, takes precedence; different symbols of expanded axes give a new symbol.
    """
    plain = [axis.extent for axis in operands if not axis.is_broadcast]
    expanded = [axis.expanded for axis in operands if axis.expanded is not None]
    constant = next((size for size in (*plain, *expanded) if isinstance(size, int)), None)
    if constant is not None:
        return constant
    if plain:
        return plain[0]
    if not expanded:
        return 1
    return expanded[0] if len(set(expanded)) == 1 else axes.symbol()


def linear_index(index: Sequence[Term], shape: Sequence[int]) -> Term:
    """Return the row-major position of an index in a shape, as an Index term."""
    total: Term = Const(DataType.Index, 0)
    for position, extent in zip(index, shape, strict=True):
        total = total * extent + position
    return total

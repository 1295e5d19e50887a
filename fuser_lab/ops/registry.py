"""The op record and the registry.

One entry defines everything about an op: its call, its typing and shape rule, its NumPy meaning and the term for one
element. Everything else (``fd.ops``, printing, tests, tables) is derived.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy.typing as npt

from fuser_lab.arguments import short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import AttrValue, Expr, Extent, IterDomain, IterType, OpKind, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir.term import Const, Term
from fuser_lab.ops.arguments import as_list, whole

Array = npt.NDArray[Any]
Attrs = Mapping[str, AttrValue]
Operand = TensorView | Any  # what a caller may pass: a tensor, a scalar value or a Python number


class AxisFactory(Protocol):
    """Creates axes with ids that are unused in the fusion."""

    def fresh(
        self, extent: Extent, kind: IterType = IterType.ITERATION, expanded: Extent | None = None,
    ) -> IterDomain:
        """Return a new axis."""

    def copy(self, axis: IterDomain) -> IterDomain:
        """Return a new axis with the extent, kind and expansion of another."""

    def symbol(self) -> Scalar:
        """Return a new integer scalar for a size that is known only once inputs are bound."""


@dataclass(frozen=True, slots=True)
class Result:
    """Inferred type of one result; a scalar result has no domain."""

    dtype: DataType
    domain: TensorDomain | None = None


class Recorder(Protocol):
    """The interface of a fusion under construction for frontend functions."""

    def emit(self, op: "OpDef", inputs: Sequence[Val], **attrs: AttrValue) -> tuple[Val, ...]:
        """Append ``op(inputs)`` and return its results."""

    def value(self, operand: Operand, op: str, argument: str) -> Val:
        """Return a tensor or scalar operand as a value; Python numbers become constants."""

    def tensor(self, operand: Operand, op: str, argument: str) -> TensorView:
        """Return a tensor operand, or raise ArgumentTypeError."""

    def tensors(self, operands: object, op: str, argument: str) -> tuple[TensorView, ...]:
        """Return a list of tensor operands, or raise ArgumentTypeError."""

    def extents(self, sizes: object, op: str, argument: str) -> tuple[Extent, ...]:
        """Return a shape argument: ints and integer scalars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """Everything a rule needs to write one element of a result."""

    index: tuple[Term, ...]
    read: Callable[[int, tuple[Term, ...]], Term]
    inputs: tuple[Val, ...]
    out: TensorView
    attrs: Attrs


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """How a reduction folds: an associative, commutative term function and its identity per dtype.

    If it ``selects``, it returns an element or the identity, so integers keep their storage type.
    """

    fn: str
    identity: Callable[[DataType], bool | int | float]
    selects: bool = False


@dataclass(frozen=True, slots=True)
class Arg:
    """A tensor operand of a sample: its values are uniform in [low, high), truncated for integers."""

    shape: tuple[int, ...]
    dtype: DataType = DataType.Float
    low: float = -3.0
    high: float = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A legal call for tests and tables: ``call`` is Python over ``fd``, ``DataType`` and the operands a, b, c, ..."""

    call: str
    args: tuple[Arg, ...] = (Arg((3, 4)),)


@cache
def user_signature(frontend: Callable[..., Any]) -> inspect.Signature:
    """Return a frontend's signature without the recorder and without annotations of internal types."""
    parameters = list(inspect.signature(frontend).parameters.values())[1:]
    return inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])


Positions = tuple[tuple[int, int], ...]
AxisRule = Callable[[Expr, int], tuple[Positions, ...]]
InferRule = Callable[[tuple[Val, ...], Attrs, AxisFactory], tuple[Result, ...]]
Reference = Callable[..., Array | tuple[Array, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One op on the tensor that the step before it made, or on ``fill``.

    ``suffix`` names its result if another step follows.
    """

    op: str
    suffix: str = ""
    fill: Scalar | None = None
    attrs: tuple[tuple[str, AttrValue], ...] = ()


COPY = (Step(op="set"),)
Builds = Callable[[Expr, Expr], tuple[Step, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """The full record of one op.

    ``frontend(recorder, ...)`` is what ``fd.ops.<name>`` calls; its Python signature is the op's signature.
    ``reference(*arrays, **attrs)`` computes with NumPy in the arithmetic type. Exactly one of ``scalar`` (pointwise:
    operand terms to result term), ``element`` (views, factories and indexing: index to term) and ``combine``
    (reductions) is set, or none for ops that only a library evaluates. ``running`` is set for scans: how the elements
    up to one are combined, in the dtype that results are computed in.

    ``library(torch, *tensors, **attrs)`` computes the same in torch, for segments without a kernel on torch tensors;
    without it, ``reference`` evaluates copies. ``into(torch, out, *tensors, **attrs)`` writes the result into a tensor
    and returns whether torch can do that for these operands; without it, the result is copied. ``axes(expr, result)``
    gives, for each tensor operand, the pairs (position in its axes, position in the root axes of that result) that are
    one axis; without it operands and result correspond position by position. An op that ``reads_bits`` gets narrow
    operands in the dtype that they are stored in. ``builds(recorded, bound)`` gives, for a
    call as it was recorded and with known sizes, the steps from its first operand that nvFuser's builder makes instead:
    none if it returns the operand; None if it makes the op itself. ``samples`` are legal calls,
    from which tests and tables are generated.
    """

    name: str
    kind: OpKind
    frontend: Callable[..., Any]
    infer: InferRule
    reference: Reference
    doc: str
    scalar: Callable[..., Term] | None = None
    element: Callable[[Element], Term] | None = None
    combine: Combine | None = None
    running: Combine | None = None
    library: Callable[..., Any] | None = None
    into: Callable[..., bool] | None = None
    axes: AxisRule | None = None
    builds: Builds | None = None
    samples: tuple[Sample, ...] = ()
    positional_only: bool = False
    reads_bits: bool = False

    @property
    def signature(self) -> inspect.Signature:
        """Signature as the user sees it, without the recorder."""
        return user_signature(self.frontend)

    @property
    def arity(self) -> int:
        """Number of value operands of a pointwise op; 1 for the ops nvFuser calls unary."""
        return len(self.signature.parameters)

    def __reduce__(self) -> tuple[Callable[[str], "OpDef"], tuple[str]]:
        """Return the op by its name, so that copies and pickles of a fusion have the registered op."""
        return _register, (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """A name in ``fd.ops`` that is written with other ops.

    ``is_foreign`` says that nvFuser has no such name. A printed definition contains the recorded ops instead.
    """

    name: str
    frontend: Callable[..., Any]
    doc: str
    samples: tuple[Sample, ...] = ()
    positional_only: bool = False
    is_foreign: bool = False

    @property
    def signature(self) -> inspect.Signature:
        """Signature as the user sees it, without the recorder."""
        return user_signature(self.frontend)


class _Ops(dict[str, OpDef]):
    """The ops of ``fd.ops`` by name; indexing also finds those that only passes create."""

    def __missing__(self, name: str) -> OpDef:
        return MADE_BY_PASSES[name]


def _register(name: str) -> OpDef:
    return OPS[name]


OPS: dict[str, OpDef] = _Ops()
MADE_BY_PASSES: dict[str, OpDef] = {}
COMPOSITES: dict[str, Composite] = {}


def register(entry: OpDef) -> OpDef:
    """Add an op to the registry and return it.

    Raises
    ------
    DefinitionError
        If the name is taken.
    """
    _claim(entry.name)
    OPS[entry.name] = entry
    return entry


def register_made_by_passes(entry: OpDef) -> OpDef:
    """Add an op that has no name in ``fd.ops`` and return it."""
    _claim(entry.name)
    MADE_BY_PASSES[entry.name] = entry
    return entry


def register_composite(entry: Composite) -> Composite:
    """Add a composite to the registry and return it."""
    _claim(entry.name)
    COMPOSITES[entry.name] = entry
    return entry


def _claim(name: str) -> None:
    if name in OPS or name in COMPOSITES or name in MADE_BY_PASSES:
        msg = f"op {name} is already registered."
        raise DefinitionError(msg)


def tensor_at(inputs: Sequence[Val], position: int = 0) -> TensorView:
    """Return an operand that must be a tensor."""
    value = inputs[position]
    if not isinstance(value, TensorView):
        msg = f"a tensor is needed here, given the scalar {value}."
        raise DefinitionError(msg)
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
        msg = f"{name} must be known here, given {short_text(value)}."
        raise DefinitionError(msg)
    return tuple(v for v in value if isinstance(v, int))


def wrap_dim(dim: object, ndim: int, op: str, argument: str = "dim") -> int:
    """Return ``dim`` counted from the front.

    Raises
    ------
    ArgumentTypeError
        If it is not an int.
    DefinitionError
        If it lies outside ``[-ndim, ndim)``.
    """
    dim = whole(dim, op, argument)
    if not -ndim <= dim < ndim:
        msg = f"{op}: {argument}={dim} is outside [-{ndim}, {ndim}) of a tensor with {ndim} axes."
        raise DefinitionError(msg)
    return dim % ndim


def unique_dims(dims: object, ndim: int, op: str, argument: str = "dims") -> tuple[int, ...]:
    """Return wrapped axis numbers in the given order, each at most once."""
    entries = as_list(dims, op, argument)
    wrapped = tuple(wrap_dim(d, ndim, op, argument) for d in entries)
    if len(set(wrapped)) != len(wrapped):
        msg = f"{op}: {argument}={short_text(entries)} names an axis twice."
        raise DefinitionError(msg)
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

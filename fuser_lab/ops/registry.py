"""The op record and the registry.

One entry defines everything about an op: its call, its typing and shape rule, its NumPy meaning and the term for one
element. Everything else (``fd.ops``, printing, tests, tables) is derived.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import AttrValue, Expr, Extent, OpKind, Scalar, TensorView, Val
from fuser_lab.ir.term import Term
from fuser_lab.ops.rules import AxisRule, Combine, Element, InferRule, Operand, Reference


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
        raise DefinitionError(f"op {name} is already registered.")

"""The values that a script handles: nvFuser's TensorView, Val, IterDomain, TensorDomain and Expr."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from fuser_lab import ir
from fuser_lab.arguments import takes, whole
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.owner import Owner
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, ScheduleError
from fuser_lab.ir import domain
from fuser_lab.ir.transform import ScheduledTensor
from fuser_lab.ops.operands import wrap_dim


class Recording(Owner, Protocol):
    """An open definition, as its values see it."""

    @property
    def recorded_inputs(self) -> Sequence[ir.Val]:
        """Inputs so far."""

    @property
    def recorded_outputs(self) -> Sequence[ir.TensorView]:
        """Outputs so far."""

    def producer(self, value: ir.Val) -> ir.Expr | None:
        """Return the expression that computes a value, or None."""

    def readers(self, value: ir.Val) -> list[ir.Expr]:
        """Return the expressions that read a value."""


class Val(Handle):
    """A scalar of a definition."""

    __slots__ = ()
    builder: Recording

    def dtype(self) -> DataType:  # type: ignore[override]  # a method there, a property in the package's own API
        """Return the element type."""
        return self.val.dtype

    def is_symbolic(self) -> bool:
        """Whether the value is known only once inputs are bound."""
        return not (isinstance(self.val, ir.Scalar) and self.val.value is not None)

    def is_tensor(self) -> bool:
        """Whether this is a tensor."""
        return isinstance(self.val, ir.TensorView)

    def definition(self) -> "Expr | None":
        """Return the expression that computes it, or None."""
        expr = self.builder.producer(self.val)
        return None if expr is None else expr_of(expr, self.builder)

    def uses(self) -> "list[Expr]":
        """Return the expressions that read it."""
        return [expr_of(expr, self.builder) for expr in self.builder.readers(self.val)]

    def __eq__(self, other: object) -> bool:
        """Compare by value: two handles of one value are equal; records nothing, as in nvFuser."""
        return isinstance(other, Val) and self.builder is other.builder and self.val == other.val

    def __ne__(self, other: object) -> bool:
        """Compare by value."""
        return not self == other

    def __bool__(self) -> bool:
        """Return True, as for any object of nvFuser."""
        return True

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self.val)


class TensorView(Val, Tensor):
    """A tensor of a definition, which can be scheduled by hand (`fuser_lab.definition.schedulable.Schedulable`)."""

    __slots__ = ()
    builder: Recording
    val: ir.TensorView

    @property
    def ndim(self) -> int:
        """Number of axes, without reductions."""
        return self.val.ndim

    def size(self, dim: int) -> Val:
        """Return the size of an axis."""
        return self._extent(self.val.extents[wrap_dim(dim, self.ndim, "size")])

    def shape(self) -> list[Val]:  # type: ignore[override]  # constants are values too here
        """Return all sizes."""
        return [self._extent(extent) for extent in self.val.extents]

    def _extent(self, extent: ir.Extent) -> Val:
        scalar = ir.Scalar(name="", dtype=DataType.Int, value=extent) if isinstance(extent, int) else extent
        return Val(scalar, self.builder)

    def domain(self) -> "TensorDomain":
        """Return its axes as nvFuser's TensorDomain."""
        return TensorDomain(self.val, self.builder)

    def has_root(self) -> bool:
        """Whether the logical domain comes from a root domain by a reshape or resize."""
        return self.val.domain.root is not None

    def get_logical_domain(self) -> "list[IterDomain]":
        """Return the visible axes and the reduced ones."""
        scheduled = scheduled_by_hand(self.val, self.builder)
        return self._axes((self.val if scheduled is None else scheduled.tensor).domain.logical)

    def get_loop_domain(self) -> "list[IterDomain]":
        """Return the axes that loops run over."""
        scheduled = scheduled_by_hand(self.val, self.builder)
        return self._axes(self.val.domain.logical if scheduled is None else scheduled.loop)

    def get_root_domain(self) -> "list[IterDomain]":
        """Return the axes before a reshape or resize; empty if there is none."""
        return self._axes(self.val.domain.root or ())

    def axis(self, position: int) -> "IterDomain":
        """Return an axis of the loop domain."""
        axes = self.get_loop_domain()
        return axes[wrap_dim(position, len(axes), "axis", "position")]

    def _axes(self, axes: Sequence[ir.IterDomain]) -> "list[IterDomain]":
        return [IterDomain(axis, self.val, self.builder) for axis in axes]

    def __str__(self) -> str:
        """Return IR text: inputs and outputs are global, all other tensors are local."""
        scheduled = self.builder.hand.text_of(self.val)
        if scheduled:
            return scheduled
        memory = self.val in self.builder.recorded_inputs or self.val in self.builder.recorded_outputs
        return self.val.to_text("g" if memory else "l")

    __repr__ = __str__


def scheduled_by_hand(tensor: ir.TensorView, builder: Recording) -> ScheduledTensor | None:
    """Return a tensor with the loops of its definition's schedule by hand; None if there is no schedule."""
    return builder.hand.scheduled.tensors.get(tensor.name) if builder.hand.transforms else None


class _Part:
    """A part of a definition that is compared by what it stands for, unlike the values, whose operators record ops."""

    __slots__ = ("builder", "of")

    def __init__(self, of: Any, builder: Recording) -> None:
        self.of, self.builder = of, builder

    def __str__(self) -> str:
        """Return IR text."""
        return str(self.of)

    def __repr__(self) -> str:
        """Return IR text."""
        return str(self)

    def __eq__(self, other: object) -> bool:
        """Compare what both stand for in one definition."""
        if not isinstance(other, _Part):
            return NotImplemented
        return self.builder is other.builder and bool(self.of == other.of)

    def __hash__(self) -> int:
        """Hash what it stands for."""
        return hash(self.of)


class IterDomain(_Part):
    """An axis of a tensor."""

    __slots__ = ("tensor",)

    def __init__(self, axis: ir.IterDomain, tensor: ir.TensorView, builder: Recording) -> None:
        super().__init__(axis, builder)
        self.tensor = tensor

    @property
    def axis(self) -> ir.IterDomain:
        """The axis."""
        axis: ir.IterDomain = self.of
        return axis

    def is_reduction(self) -> bool:
        """Whether the axis is reduced."""
        return self.axis.is_reduction

    def is_broadcast(self) -> bool:
        """Whether the axis is a broadcast axis."""
        return self.axis.is_broadcast

    def extent(self) -> Val:
        """Return its extent; 1 for a broadcast axis, expanded or not."""
        extent = self.axis.extent
        scalar = ir.Scalar(name="", dtype=DataType.Int, value=extent) if isinstance(extent, int) else extent
        return Val(scalar, self.builder)

    def definition(self) -> "Expr | None":
        """Return the split, merge or resize that creates the axis, or None."""
        scheduled = scheduled_by_hand(self.tensor, self.builder)
        transforms = self.tensor.domain.transforms
        if scheduled is not None:
            transforms = (*scheduled.tensor.domain.transforms, *scheduled.steps)
        for transform in transforms:
            if self.axis in _axes_of(transform)[1]:
                return _TRANSFORMS.get(type(transform), Resize)(transform, self.tensor, self.builder)
        return None

    def parallelize(self, ptype: Enum) -> None:
        """Let blocks, threads or a vector access run this loop's iterations; ScheduleError if it is not a loop now."""
        handle: TensorView = self.builder.wrap(self.tensor)
        places = [i for i, axis in enumerate(handle.get_loop_domain()) if axis.axis.id == self.axis.id]
        if not places:
            raise ScheduleError(f"parallelize: {self.axis} is not, or is no longer, a loop of {self.tensor.name}.")
        handle.parallelize(places[0], ptype)


class TensorDomain:
    """The axes of a tensor."""

    __slots__ = ("builder", "tensor")

    def __init__(self, tensor: ir.TensorView, builder: Recording) -> None:
        self.tensor, self.builder = tensor, builder

    def __str__(self) -> str:
        """Return the axes as IR text."""
        return f"[{', '.join(map(str, self.tensor.domain.logical))}]"

    __repr__ = __str__


class Expr(_Part):
    """An expression of a definition."""

    __slots__ = ()

    @takes(index=whole())
    def input(self, index: int) -> Any:
        """Return an operand."""
        return self.builder.wrap(_at(self.of.inputs, index, "input"))

    @takes(index=whole())
    def output(self, index: int) -> Any:
        """Return a result."""
        return self.builder.wrap(_at(self.of.outputs, index, "output"))

    def __str__(self) -> str:
        """Return the expression on one line."""
        made = ", ".join(str(self.builder.wrap(v)) for v in self.of.outputs)
        read = ", ".join(str(self.builder.wrap(v)) for v in self.of.inputs)
        return f"{made} = {self.of.op.name}( {read} )"


def _at(values: Sequence[Any], index: int, caller: str) -> Any:
    if not 0 <= index < len(values):
        raise DefinitionError(f"{caller}({index}): the expression has {len(values)} of them.")
    return values[index]


class BroadcastOp(Expr):
    """A broadcast."""

    __slots__ = ()


class SqueezeOp(Expr):
    """A squeeze."""

    __slots__ = ()


class ReshapeOp(Expr):
    """A reshape."""

    __slots__ = ()


_KINDS = {ir.OpKind.BROADCAST: BroadcastOp, ir.OpKind.SQUEEZE: SqueezeOp, ir.OpKind.RESHAPE: ReshapeOp}


def expr_of(expr: ir.Expr, builder: Recording) -> Expr:
    """Return an expression as nvFuser's class of its kind."""
    return _KINDS.get(expr.kind, Expr)(expr, builder)


class _AxisExpr(Expr):
    """A transform of axes."""

    __slots__ = ("tensor",)

    def __init__(self, transform: domain.DomainTransform, tensor: ir.TensorView, builder: Recording) -> None:
        super().__init__(transform, builder)
        self.tensor = tensor

    @takes(index=whole())
    def input(self, index: int) -> IterDomain:
        """Return a source axis."""
        axis = _at(_axes_of(self.of)[0], index, "input")
        return IterDomain(axis, self.tensor, self.builder)

    @takes(index=whole())
    def output(self, index: int) -> IterDomain:
        """Return a result axis."""
        axis = _at(_axes_of(self.of)[1], index, "output")
        return IterDomain(axis, self.tensor, self.builder)

    def __str__(self) -> str:
        """Return IR text."""
        return str(self.of)


class Split(_AxisExpr):
    """One axis into two."""

    __slots__ = ()


class Merge(_AxisExpr):
    """Two axes into one."""

    __slots__ = ()

    def outer(self) -> IterDomain:
        """Return the axis whose index changes more slowly in the result."""
        return self.input(0)

    def inner(self) -> IterDomain:
        """Return the axis whose index changes faster in the result."""
        return self.input(1)

    def out(self) -> IterDomain:
        """Return the result."""
        return self.output(0)


class Resize(_AxisExpr):
    """An axis made longer or shorter."""

    __slots__ = ()


_TRANSFORMS = {domain.Split: Split, domain.Merge: Merge}


def _axes_of(transform: domain.DomainTransform) -> tuple[tuple[ir.IterDomain, ...], tuple[ir.IterDomain, ...]]:
    """Return the source axes of a transform and its results."""
    if isinstance(transform, domain.Split):
        return (transform.source,), (transform.outer, transform.inner)
    if isinstance(transform, domain.Merge):
        return (transform.outer, transform.inner), (transform.result,)
    return (transform.source,), (transform.result,)

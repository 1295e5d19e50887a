"""Expressions: one op applied to values."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fuser_lab.dtypes import DataType
from fuser_lab.ir.scalar import Number, Scalar
from fuser_lab.ir.val import TensorView, Val


class OpKind(enum.Enum):
    """What an op does to axes; the segmenter, the schedulers and the lowering depend only on this."""

    POINTWISE = "pointwise"
    COPY = "copy"  # set, segment_set, permute, stride_order: nvFuser's LoadStoreOp
    BROADCAST = "broadcast"
    SQUEEZE = "squeeze"
    EXPAND = "expand"
    RESHAPE = "reshape"
    RESIZE = "resize"  # slice, pad, cat
    REDUCTION = "reduction"
    FACTORY = "factory"  # full, iota
    RANDOM = "random"
    MATMUL = "matmul"
    ATTENTION = "attention"  # sdpa, forward and backward
    INDEXING = "indexing"  # select, index_select, gather, take_along_axis, embedding: reads at data-dependent indices
    SCAN = "scan"
    SORT = "sort"  # argsort, topk
    SCATTER = "scatter"
    SCALAR = "scalar"  # size and arithmetic on scalars

    __hash__ = object.__hash__  # as for DataType

    @property
    def is_view(self) -> bool:
        """Whether an op of this kind moves or repeats elements and computes nothing."""
        return self in _VIEWS

    @property
    def is_reserved(self) -> bool:
        """Whether no ordinary kernel may contain an op of this kind: it runs alone, or by the greedy scheduler."""
        return self in _RESERVED


_VIEWS = frozenset(
    {OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE, OpKind.RESIZE},
)
_RESERVED = frozenset({OpKind.ATTENTION, OpKind.SCAN, OpKind.SORT, OpKind.SCATTER})

AttrValue = Number | str | None | DataType | Scalar | tuple["AttrValue", ...]


class Op(Protocol):
    """What the IR knows about an op; `fuser_lab.ops.registry.OpDef` is the full record."""

    @property
    def name(self) -> str:
        """Name as in ``fd.ops``."""

    @property
    def kind(self) -> OpKind:
        """What the op does to axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expr:
    """``outputs = op(inputs, attrs)``; a result belongs to exactly one expression.

    ``tensor_inputs`` and ``tensor_outputs`` are the tensors among both, in order, with repeats.
    """

    op: Op
    inputs: tuple[Val, ...]
    outputs: tuple[Val, ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    # Computed once, because graph traversals read them more often than anything else.
    name: str = field(init=False, repr=False, compare=False)  # of the first result: its name in logs and plans
    tensor_inputs: tuple[TensorView, ...] = field(init=False, repr=False, compare=False)
    tensor_outputs: tuple[TensorView, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the name and the tensors."""
        object.__setattr__(self, "name", self.outputs[0].name)
        object.__setattr__(self, "tensor_inputs", tuple(v for v in self.inputs if isinstance(v, TensorView)))
        object.__setattr__(self, "tensor_outputs", tuple(v for v in self.outputs if isinstance(v, TensorView)))

    def __hash__(self) -> int:
        """Hash by the name of the first result, which no other expression has."""
        return hash(self.name)

    @property
    def kind(self) -> OpKind:
        """Kind of the op."""
        return self.op.kind

    @property
    def out(self) -> TensorView:
        """The single tensor result of a tensor expression."""
        result = self.outputs[0]
        if not isinstance(result, TensorView):
            raise TypeError(f"{self.op.name} has a scalar result.")
        return result

    def attr(self, name: str) -> AttrValue:
        """Return the attribute called ``name``; KeyError if the op has none of that name."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def ints(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a tuple of ints once the fusion is concretized."""
        value = self.attr(name)
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise TypeError(f"attribute {name!r} of {self.op.name} is {value!r}, not a tuple of ints.")
        return tuple(v for v in value if isinstance(v, int))


def needed_exprs(exprs: Sequence[Expr], outputs: Iterable[Val]) -> tuple[Expr, ...]:
    """Return those of expressions in topological order that compute some values, in the same order."""
    needed = set(outputs)
    live: list[Expr] = []
    for expr in reversed(exprs):
        if not needed.isdisjoint(expr.outputs):
            live.append(expr)
            needed.update(expr.inputs)
    return tuple(reversed(live))


def scalars_in(values: Iterable[AttrValue]) -> Iterable[Scalar]:
    """Yield the scalars inside (nested) attribute values."""
    for value in values:
        if isinstance(value, Scalar):
            yield value
        elif isinstance(value, tuple):
            yield from scalars_in(value)

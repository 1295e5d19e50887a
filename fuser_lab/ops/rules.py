"""What the rules of an op take and give: attributes, axes, elements and results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from fuser_lab.dtypes import DataType
from fuser_lab.ir import AttrValue, Expr, Extent, IterDomain, IterType, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir.term import Term

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


Positions = tuple[tuple[int, int], ...]
AxisRule = Callable[[Expr, int], tuple[Positions, ...]]
InferRule = Callable[[tuple[Val, ...], Attrs, AxisFactory], tuple[Result, ...]]
Reference = Callable[..., Array | tuple[Array, ...]]

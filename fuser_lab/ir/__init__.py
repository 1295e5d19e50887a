"""The fusion IR: values, domains, expressions, Fusion."""

from fuser_lab.ir.domain import DomainTransform, IterDomain, IterType, Merge, Resize, Split, TensorDomain
from fuser_lab.ir.expr import AttrValue, Expr, Op, OpKind, scalars_in
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.scalar import Extent, Number, Scalar
from fuser_lab.ir.val import TensorView, Val

__all__ = [
    "AttrValue",
    "DomainTransform",
    "Expr",
    "Extent",
    "Fusion",
    "IterDomain",
    "IterType",
    "Merge",
    "Number",
    "Op",
    "OpKind",
    "Resize",
    "Scalar",
    "Split",
    "TensorDomain",
    "TensorView",
    "Val",
    "scalars_in",
]

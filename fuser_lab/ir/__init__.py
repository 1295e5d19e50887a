"""The fusion IR: values, domains, expressions, Fusion."""

from fuser_lab.ir.domain import (
    DomainTransform,
    IterDomain,
    IterType,
    Merge,
    OrderHint,
    Resize,
    Split,
    TensorDomain,
    allocation_of,
    stride_order_of,
)
from fuser_lab.ir.expr import AttrValue, Expr, Op, OpKind, needed_exprs, scalars_in
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
    "OrderHint",
    "Resize",
    "Scalar",
    "Split",
    "TensorDomain",
    "TensorView",
    "Val",
    "allocation_of",
    "needed_exprs",
    "scalars_in",
    "stride_order_of",
]

"""Every op of ``fd.ops``, one record each."""

from fuser_lab.ops import (
    broadcast,
    composite,
    factory,
    formulas,
    indexing,
    matmul,
    pointwise,
    promotion,
    reduction,
    resize,
    scan,
    sort,
    statistics,
    view,
)
from fuser_lab.ops.registry import COMPOSITES, OPS, Composite, Element, OpDef, Recorder, Result

__all__ = [
    "COMPOSITES",
    "OPS",
    "Composite",
    "Element",
    "OpDef",
    "Recorder",
    "Result",
    "broadcast",
    "composite",
    "factory",
    "formulas",
    "indexing",
    "matmul",
    "pointwise",
    "promotion",
    "reduction",
    "resize",
    "scan",
    "sort",
    "statistics",
    "view",
]

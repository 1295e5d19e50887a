"""Every op of ``fd.ops``, one record each."""

import sys

# All families or none: if an import is interrupted, ops that are already registered would make the next one fail.
try:
    from fuser_lab.ops import (
        attention,
        bitcast,
        broadcast,
        complex_numbers,
        composite,
        composites,
        embedding,
        factory,
        formulas,
        indexing,
        made_by_passes,
        matmul,
        pointwise,
        promotion,
        random,
        reduction,
        resize,
        scan,
        scatter,
        sort,
        statistics,
        ternary,
        view,
    )
    from fuser_lab.ops.registry import COMPOSITES, OPS, Composite, Element, OpDef, Recorder, Result
except BaseException:
    for _name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[_name]
    raise

__all__ = [
    "COMPOSITES",
    "OPS",
    "Composite",
    "Element",
    "OpDef",
    "Recorder",
    "Result",
    "attention",
    "bitcast",
    "broadcast",
    "complex_numbers",
    "composite",
    "composites",
    "embedding",
    "factory",
    "formulas",
    "indexing",
    "made_by_passes",
    "matmul",
    "pointwise",
    "promotion",
    "random",
    "reduction",
    "resize",
    "scan",
    "scatter",
    "sort",
    "statistics",
    "ternary",
    "view",
]

"""Lowerings of ATen ops into ``fd.ops``: one file for each family, one entry for each op."""

from fuser_lab.bridge.lowerings import (
    factories,
    indexing,
    lax_indexing,
    lax_pointwise,
    lax_reductions,
    lax_views,
    matmul,
    pads,
    pointwise,
    reductions,
    views,
    windows,
)
from fuser_lab.bridge.lowerings.registry import (
    DTYPES,
    LOWERINGS,
    Call,
    Lowering,
    TorchName,
    TracedTensor,
    can_lower,
    record,
    refusal,
)

FAMILIES = (
    pointwise, views, reductions, factories, indexing, pads, windows, matmul, lax_pointwise, lax_views,
    lax_reductions, lax_indexing,
)

__all__ = [
    "DTYPES", "FAMILIES", "LOWERINGS", "Call", "Lowering", "TorchName", "TracedTensor", "can_lower", "record",
    "refusal",
]

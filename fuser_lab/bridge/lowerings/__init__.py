"""Lowerings of ATen ops into ``fd.ops``: one file for each family, one entry for each op."""

from fuser_lab.bridge.lowerings import factories, indexing, matmul, pointwise, reductions, views
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

FAMILIES = (pointwise, views, reductions, factories, indexing, matmul)

__all__ = [
    "DTYPES", "FAMILIES", "LOWERINGS", "Call", "Lowering", "TorchName", "TracedTensor", "can_lower", "record",
    "refusal",
]

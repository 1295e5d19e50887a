"""Common PyTorch ops that nvFuser does not have: each records primitive ops, with one file per family."""

from fuser_lab.ops.composites import activations, losses, means, normalizations, positions, searches, softmaxes

__all__ = ["activations", "losses", "means", "normalizations", "positions", "searches", "softmaxes"]

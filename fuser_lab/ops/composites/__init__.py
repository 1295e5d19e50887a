"""Ops that PyTorch's users type first and nvFuser does not have: each records primitive ops, one file a family."""

from fuser_lab.ops.composites import activations, losses, means, normalizations, positions, softmaxes

__all__ = ["activations", "losses", "means", "normalizations", "positions", "softmaxes"]

"""torch layers that fusions compute; importing this needs torch."""

from fuser_lab.nvfuser.contrib.nn.normalization import (
    InstanceNorm1dNVFuser,
    InstanceNorm2dNVFuser,
    InstanceNorm3dNVFuser,
)

__all__ = ["InstanceNorm1dNVFuser", "InstanceNorm2dNVFuser", "InstanceNorm3dNVFuser"]

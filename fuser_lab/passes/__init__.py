"""Rewrites before the cut, in the order in which they run."""

from fuser_lab.passes.base import Pass, PassPipeline
from fuser_lab.passes.consecutive_casts import ConsecutiveCasts

PRESEGMENTATION = PassPipeline((ConsecutiveCasts(),))

__all__ = ["PRESEGMENTATION", "ConsecutiveCasts", "Pass", "PassPipeline"]

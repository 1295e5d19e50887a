"""Rewrites before the cut, in the order in which they run."""

from fuser_lab.passes.base import Pass, PassPipeline
from fuser_lab.passes.consecutive_casts import ConsecutiveCasts
from fuser_lab.passes.explicit_seeds import ExplicitSeeds, offsets_of

PRESEGMENTATION = PassPipeline((ConsecutiveCasts(), ExplicitSeeds()))

__all__ = ["PRESEGMENTATION", "ConsecutiveCasts", "ExplicitSeeds", "Pass", "PassPipeline", "offsets_of"]

"""Why a kernel takes as long as it does: counters beside predictions, and what bounds it."""

from fuser_lab.lab.profiling.profile import PlanProfile, ProfiledSegment, profile

__all__ = ["PlanProfile", "ProfiledSegment", "profile"]

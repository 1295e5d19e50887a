"""Profiling: hardware counters beside predictions, and what bounds a kernel."""

from fuser_lab.lab.profiling.profile import PlanProfile, ProfiledSegment, profile

__all__ = ["PlanProfile", "ProfiledSegment", "profile"]

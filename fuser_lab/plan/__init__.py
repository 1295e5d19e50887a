"""Plans: a fusion cut into segments, made from a definition, edited, explained, drawn and run."""

from fuser_lab.plan.plan import Plan
from fuser_lab.plan.segment import Segment

__all__ = ["Plan", "Segment"]

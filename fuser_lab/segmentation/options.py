"""Switches of the segmenter."""

import enum
from dataclasses import dataclass

from fuser_lab.cost.verdict import SchedulerType


class SegmentSetMeaning(enum.Enum):
    """How ``segment_set`` is read."""

    HINT = "hint"  # nvFuser today: a segment may end with it; another path around it may still be merged
    CUT = "cut"  # nothing before and after it, on any path, is in one segment
    IGNORE = "ignore"  # a plain copy


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterOptions:
    """Which phases run and how hints are read; the defaults are nvFuser's.

    Attributes
    ----------
    segment_set
        "hint", "cut" or "ignore".
    forward_inputs
        Recompute chains of unary ops from inputs in each reader.
    forward_factories
        Names of factory ops that are recomputed in each reader; nvFuser forwards ``full`` only.
    combine_reductions, level_merge, final_merge
        Whether these phases run.
    connect_through_inputs
        Top-down: pieces that share only an input are tried together.
    cut_reshape_inputs, cut_resize_inputs
        Top-down: also cut before reshapes, or before slice, pad and cat.
    disabled_passes
        Names of pre-segmentation passes that do not run.
    disabled_schedulers
        Names of schedulers that refuse everything.
    memory_promotion
        Whether what take_along_axis reads may be computed in the same segment.
    """

    segment_set: SegmentSetMeaning = SegmentSetMeaning.HINT
    forward_inputs: bool = True
    forward_factories: frozenset[str] = frozenset({"full"})
    combine_reductions: bool = True
    level_merge: bool = True
    final_merge: bool = True
    connect_through_inputs: bool = True
    cut_reshape_inputs: bool = False
    cut_resize_inputs: bool = False
    disabled_passes: frozenset[str] = frozenset()
    disabled_schedulers: frozenset[str] = frozenset()
    memory_promotion: bool = False

    def __post_init__(self) -> None:
        """Take the meaning of hints by name too."""
        object.__setattr__(self, "segment_set", SegmentSetMeaning(self.segment_set))
        object.__setattr__(self, "forward_factories", frozenset(self.forward_factories))
        object.__setattr__(self, "disabled_passes", frozenset(self.disabled_passes))
        names = frozenset(SchedulerType(scheduler).value for scheduler in self.disabled_schedulers)
        object.__setattr__(self, "disabled_schedulers", names)

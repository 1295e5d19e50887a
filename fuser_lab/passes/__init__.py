"""Rewrites before the cut, in the order in which they run, which is nvFuser's."""

from fuser_lab.passes.allocation_domain import AllocationDomain
from fuser_lab.passes.annotations import Annotation, annotations_of, bare, with_segment_set, without_segment_set
from fuser_lab.passes.base import Pass, PassPipeline, text_digest
from fuser_lab.passes.consecutive_casts import ConsecutiveCasts
from fuser_lab.passes.explicit_seeds import ExplicitSeeds, offsets_drawn, offsets_of
from fuser_lab.passes.fmin_fmax_promotion import FMinFMaxPromotion
from fuser_lab.passes.mark_aliases import MarkAliases
from fuser_lab.passes.move_gather import MoveGather
from fuser_lab.passes.move_pad import MovePad
from fuser_lab.passes.move_repeat_forward import MoveRepeatForward
from fuser_lab.passes.move_split_cat import MoveSplitCat
from fuser_lab.passes.remove_broadcast_squeeze import RemoveBroadcastSqueeze
from fuser_lab.passes.remove_empty import RemoveEmpty
from fuser_lab.passes.segment_inplace_update import SegmentInplaceUpdate
from fuser_lab.passes.translate_matmul import TranslateNoReductionMatmul
from fuser_lab.passes.translate_repeat import TranslateRepeat
from fuser_lab.passes.translate_scatter_accumulate import TranslateScatterAccumulate

PRESEGMENTATION = PassPipeline(
    (
        RemoveEmpty(),
        TranslateNoReductionMatmul(),
        TranslateRepeat(),
        ConsecutiveCasts(),
        FMinFMaxPromotion(),
        MoveSplitCat(),
        MovePad(),
        RemoveBroadcastSqueeze(),
        SegmentInplaceUpdate(),
        MoveRepeatForward(),
        MoveGather(),
        TranslateScatterAccumulate(),
        MarkAliases(),
        AllocationDomain(),
        ExplicitSeeds(),
    ),
)
PASSES = PRESEGMENTATION.passes

__all__ = [
    "PASSES",
    "PRESEGMENTATION",
    "AllocationDomain",
    "Annotation",
    "ConsecutiveCasts",
    "ExplicitSeeds",
    "FMinFMaxPromotion",
    "MarkAliases",
    "MoveGather",
    "MovePad",
    "MoveRepeatForward",
    "MoveSplitCat",
    "Pass",
    "PassPipeline",
    "RemoveBroadcastSqueeze",
    "RemoveEmpty",
    "SegmentInplaceUpdate",
    "TranslateNoReductionMatmul",
    "TranslateRepeat",
    "TranslateScatterAccumulate",
    "annotations_of",
    "bare",
    "offsets_drawn",
    "offsets_of",
    "text_digest",
    "with_segment_set",
    "without_segment_set",
]

"""Top-down presegmentation, as NVIDIA/Fuser issue #2224 proposes it.

nvFuser's first step, which schedules the complete fusion, is replaced: groups are merged across all edges except cut
ones, each piece is tried, and pieces that no scheduler accepts are shattered into single expressions. The bottom-up
phases continue with these. Accepted pieces are not tried again: an expression of a shattered piece may join one, but no
two accepted pieces are tried together.
"""

from collections.abc import Iterator

from fuser_lab.ir import Fusion
from fuser_lab.segmentation.bottom_up import grow_groups, whole_pieces
from fuser_lab.segmentation.events import Attempt
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.pieces import has_cuts, pieces
from fuser_lab.segmentation.scheduler_attempts import Asker

PHASE = "top-down"


def top_down(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions,
) -> Iterator[Attempt]:
    """Yield every attempt: pieces first, then the bottom-up phases on the expressions of shattered pieces.

    A fusion without any cut is one piece. If it is disconnected and no scheduler accepts all of it, its connected
    components are the pieces, so that without cuts there are never more segments than bottom-up gives.
    """
    parts = pieces(fusion, options)
    if not options.whole_fusion:
        parts = [piece for piece in parts if len(piece) < len(fusion.tensor_exprs)]
    elif len(parts) > 1 and not has_cuts(fusion, options):
        asker = Asker(fusion, oracle, options)
        whole, answer = asker.whole(PHASE, fusion.tensor_exprs)
        yield whole
        if whole.accepted:
            yield from asker.rewritten(PHASE, fusion.tensor_exprs, answer)
            return
    fusion, accepted = yield from whole_pieces(fusion, oracle, options, parts, PHASE)
    if sum(map(len, accepted)) < len(fusion.tensor_exprs):
        yield from grow_groups(fusion, oracle, options, accepted, final=True)

"""Top-down presegmentation (nvFuser issue #2224): contract everything but the cuts, keep what schedules whole.

With no ``segment_set`` the pieces are the connected components of the fusion, so that it then gives what bottom-up
gives, or fewer segments.
"""

from collections.abc import Iterator

from fuser_lab.events import Attempt
from fuser_lab.ir import Fusion
from fuser_lab.segmentation.bottom_up import Asker, bottom_up, whole_pieces
from fuser_lab.segmentation.hints import has_hints
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.pieces import pieces

PHASE = "top-down"


def top_down(
    fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions, *, told: bool = True,
) -> Iterator[Attempt]:
    """Yield every attempt: pieces first, then the bottom-up phases on committed pieces and single expressions."""
    found = pieces(fusion, options)
    hinted = has_hints(fusion, options)
    if len(found) > 1 and not hinted:
        # nvFuser's own first attempt; schedulers that take disconnected graphs would be missed otherwise.
        asker = Asker(fusion, oracle, options, told=told)
        whole, answer = asker.whole(PHASE, fusion.tensor_exprs)
        yield whole
        if whole.accepted:
            yield from asker.rewritten(PHASE, fusion.tensor_exprs, answer)
            return
    fusion, committed = yield from whole_pieces(fusion, oracle, options, found, PHASE, told=told)
    soft = options.cut_reshape_inputs or options.cut_resize_inputs
    if sum(map(len, committed)) == len(fusion.tensor_exprs) and not hinted and not soft:
        return
    yield from bottom_up(fusion, oracle, options, committed or [()], told=told)

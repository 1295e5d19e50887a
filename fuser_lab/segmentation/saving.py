"""Greedy by bytes: repeatedly merge the pair of segments that saves most.

A segment costs the bytes that it reads and writes and a launch, as in `fuser_lab.cost.traffic`; a pair saves the
difference between the cost of the two and that of their union. Kennedy's greedy weighted fusion, with a price for
partitions instead of edges: a tensor that several segments read is not counted twice.
"""

from collections.abc import Iterator

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.traffic import model_of
from fuser_lab.ir import Fusion
from fuser_lab.segmentation.events import Attempt, Kind, Outcome
from fuser_lab.segmentation.forwarding import forwarded_chains
from fuser_lab.segmentation.local_search import Partition, merges
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle
from fuser_lab.segmentation.partition_attempts import as_bottom_up_writes_it, attempts_of
from fuser_lab.segmentation.scheduler_attempts import attempt_of, refusal
from fuser_lab.segmentation.space import Space

PHASE = "saving"


def saving(fusion: Fusion, oracle: SchedulerOracle, options: SegmenterOptions) -> Iterator[Attempt]:
    """Yield merges, accepted and refused, by falling savings; chains are copied into their readers."""
    fusion = yield from as_bottom_up_writes_it(fusion, oracle, options)
    space = Space(fusion, oracle, options, model_of(oracle), tuple(forwarded_chains(fusion, options)))
    if not space.units:
        return
    partition = Partition.single(space)
    tried = [_attempt(partition, a, b, accepted=accepted) for a, b, accepted in merges(partition)]
    chains = attempts_of(space, list(partition.segments), PHASE) or ()
    yield from (attempt for attempt in chains if attempt.kind is Kind.FORWARD)
    yield from tried
    yield from (attempt for attempt in chains if attempt.kind in {Kind.REPLICATE, Kind.STORE})


def _attempt(partition: Partition, a: int, b: int, *, accepted: bool) -> Attempt:
    space = partition.space
    subjects = space.names(a), space.names(b)
    through = 0 if accepted else partition.cycle_with((a, b), (a | b,))
    if through:
        return refusal(PHASE, subjects, ReasonCode.CYCLE, through=space.names(through)[0])
    way = space.legal_way(a | b)
    if way is not None and not accepted:
        return Attempt(
            phase=PHASE, kind=Kind.MERGE, subjects=subjects, outcome=Outcome.REFUSED, text="together they cost no less",
        )
    answer = space.ask(a | b, space.ways(a | b)[0][1] if way is None else way[1])
    return attempt_of(answer, PHASE, subjects, accepted=accepted)

"""Segmentation: strategies, the log of their attempts, manual edits, and explanations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from reprlib import repr as shortened

from fuser_lab.arguments import short_text
from fuser_lab.errors import InputError, SegmentationError, VerificationError
from fuser_lab.ir import Expr, Fusion
from fuser_lab.process.collector import collector_paused
from fuser_lab.segmentation.bottom_up import bottom_up
from fuser_lab.segmentation.boundary_casts import Lowering, boundary_casts
from fuser_lab.segmentation.certificate import Certificate
from fuser_lab.segmentation.checker import Verification, verify
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, Outcome
from fuser_lab.segmentation.fastest import fastest
from fuser_lab.segmentation.graph import SegmentedFusion, SegmentedGroup, assemble
from fuser_lab.segmentation.optimal import certify, optimal
from fuser_lab.segmentation.options import SegmenterOptions, SegmentSetMeaning
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate
from fuser_lab.segmentation.replay import Fold, replay
from fuser_lab.segmentation.saving import saving
from fuser_lab.segmentation.signatures import check_called
from fuser_lab.segmentation.timed_plan import Clock
from fuser_lab.segmentation.top_down import top_down
from fuser_lab.segmentation.why import Relation, Why, why

STRATEGIES = ("bottom_up", "top_down", "saving", "optimal", "fastest", "unfused")
MOST_NAMED = 8  # maximum number of expressions named in a sentence
Partition = Iterable[Iterable[str | Expr]]
Strategy = str | Callable[[Fusion, SchedulerOracle], Partition]


def segment(
    fusion: Fusion,
    oracle: SchedulerOracle,
    *,
    strategy: Strategy = "bottom_up",
    options: SegmenterOptions | None = None,
    log: DecisionLog | None = None,
    clock: Clock | None = None,
) -> SegmentedFusion:
    """Return a concretized fusion cut into segments.

    Parameters
    ----------
    fusion
        The fusion; all sizes known.
    oracle
        The schedulers.
    strategy
        ``"bottom_up"`` (nvFuser), ``"top_down"`` (issue #2224), ``"saving"`` (merges that save the most bytes first),
        ``"optimal"`` (least bytes and launches), ``"fastest"`` (least predicted time, recomputation included),
        ``"unfused"`` (every expression alone), or a function of fusion and oracle that returns groups of expressions
        or of their results' names.
    options
        Options; nvFuser's defaults if None.
    log
        Log in which attempts, including refused ones, are recorded.
    clock
        Times of kernels as scheduled, for the strategy ``"fastest"``, and the segments that only make views, also for
        ``"optimal"``; without it, a search uses only bytes and arithmetic, and counts each segment as a kernel.

    Raises
    ------
    InputError
        If the strategy is unknown or does not accept an option that is on, or if a function does not return a legal
        partition.
    ArgumentTypeError
        If a function does not accept fusion and oracle.
    """
    chosen = options or SegmenterOptions()
    if not callable(strategy) and strategy not in STRATEGIES:
        msg = (
            f"unknown strategy {short_text(strategy)}; choose from {', '.join(map(repr, STRATEGIES))}, or give a "
            "function."
        )
        raise InputError(msg)
    chosen.check_strategy(strategy)
    with nullcontext() if callable(strategy) else collector_paused():
        segmented, attempts = _segmentation(fusion, oracle, strategy, chosen, clock)
    if log is not None:
        for attempt in attempts:
            log.append(attempt)
    return segmented


def _segmentation(
    fusion: Fusion, oracle: SchedulerOracle, strategy: Strategy, options: SegmenterOptions, clock: Clock | None,
) -> tuple[SegmentedFusion, Sequence[Attempt]]:
    for asked in _oracles(oracle, strategy, options):
        fold, attempts = Fold(fusion), list[Attempt]()
        for attempt in _attempts(fusion, asked, strategy, options, clock):
            attempts.append(attempt)
            fold.apply(attempt)
        if options.io_to_lower_precision:
            for attempt in boundary_casts(fold.fusion, fold.groups(), fold.recomputed, oracle, options):
                attempts.append(attempt)
                fold.apply(attempt)
        segmented = _plan_of(fold, oracle, own_choice=callable(strategy))
        if asked is oracle or all(group.scheduler is not None for group in segmented.groups):
            break
    return segmented, attempts


def _oracles(oracle: SchedulerOracle, strategy: Strategy, options: SegmenterOptions) -> Iterator[SchedulerOracle]:
    """Yield oracles to segment with.

    The next one is needed if segments that were accepted with boundary casts cannot get these casts.
    """
    if options.io_to_lower_precision and strategy in _GROWING:
        yield Lowering(oracle, options)
    yield oracle


_GROWING = ("bottom_up", "top_down")


def _attempts(
    fusion: Fusion, oracle: SchedulerOracle, strategy: Strategy, options: SegmenterOptions, clock: Clock | None,
) -> Iterator[Attempt]:
    if callable(strategy):
        check_called("the strategy", strategy, "fusion", "oracle")
        return iter([_partition(fusion, strategy(fusion, oracle))])
    if strategy == "bottom_up":
        return bottom_up(fusion, oracle, options)
    if strategy == "top_down":
        return top_down(fusion, oracle, options)
    if strategy == "optimal":
        return optimal(fusion, oracle, options, idle=None if clock is None else clock.idle)
    if strategy == "fastest":
        return fastest(fusion, oracle, options, clock)
    if strategy == "saving":
        return saving(fusion, oracle, options)
    return iter(())


def _partition(fusion: Fusion, groups: Partition) -> Attempt:
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        msg = f"the strategy must return groups of expressions or names, but returned {shortened(groups)}."
        raise InputError(msg)
    subjects = []
    for group in groups:
        if isinstance(group, str) or not isinstance(group, Iterable):
            msg = f"the strategy returned the group {shortened(group)}; a group must be a list of expressions or names."
            raise InputError(msg)
        names = sorted((_name(fusion, member) for member in group), key=fusion.positions.__getitem__)
        subjects.append(tuple(names))
    _check_cover(fusion, subjects)
    return Attempt(
        phase="strategy", kind=Kind.PARTITION, subjects=tuple(s for s in subjects if s), outcome=Outcome.ACCEPTED,
    )


def _name(fusion: Fusion, member: object) -> str:
    name = member.name if isinstance(member, Expr) else member
    if not isinstance(name, str):
        msg = f"the strategy put {shortened(name)} into a group; a group must be a list of expressions or names."
        raise InputError(msg)
    if name not in fusion.positions:
        msg = f"the strategy returned {name!r}, which the fusion does not compute."
        raise InputError(msg)
    return name


def _check_cover(fusion: Fusion, subjects: Sequence[Sequence[str]]) -> None:
    seen: dict[str, int] = {}
    for index, group in enumerate(subjects):
        for name in group:
            if name in seen:
                twice = f"group {index} twice" if seen[name] == index else f"the groups {seen[name]} and {index}"
                msg = f"the strategy put {name} into {twice}."
                raise InputError(msg)
            seen[name] = index
    missing = [e.name for e in fusion.tensor_exprs if e.name not in seen]
    if missing:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        msg = f"the strategy left out {', '.join(missing[:MOST_NAMED])}{more}."
        raise InputError(msg)


def _plan_of(fold: Fold, oracle: SchedulerOracle, *, own_choice: bool) -> SegmentedFusion:
    try:
        return assemble(fold.fusion, fold.groups(), fold.recomputed, oracle, fold.replicas)
    except VerificationError as error:
        if own_choice:
            msg = f"the strategy did not return a legal partition: {error}"
            raise InputError(msg) from None
        raise SegmentationError(str(error)) from None


__all__ = [
    "STRATEGIES",
    "Candidate",
    "Certificate",
    "Clock",
    "DecisionLog",
    "Fold",
    "Relation",
    "SchedulerOracle",
    "SegmentSetMeaning",
    "SegmentedFusion",
    "SegmentedGroup",
    "SegmenterOptions",
    "Strategy",
    "Verification",
    "Why",
    "candidate",
    "certify",
    "replay",
    "segment",
    "verify",
    "why",
]

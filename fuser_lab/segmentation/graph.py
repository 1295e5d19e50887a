"""SegmentedFusion: a fusion and its segments in run order, as frozen data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from functools import cached_property

from fuser_lab.cost.traffic import Traffic, bytes_read, bytes_written
from fuser_lab.cost.verdict import Answer, SchedulerType, Verdict
from fuser_lab.cost.work import Work, product_flops, work_of
from fuser_lab.errors import VerificationError
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.segmentation.components import topological
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentedGroup:
    """One segment: its expressions (replicas included) and the schedulers' answer about them."""

    candidate: Candidate
    answer: Answer

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """Expressions in topological order."""
        return self.candidate.exprs

    @property
    def inputs(self) -> tuple[Val, ...]:
        """Values read from outside, scalars among them."""
        return self.candidate.inputs

    @property
    def tensor_inputs(self) -> tuple[TensorView, ...]:
        """Tensors read from memory."""
        return self.candidate.tensor_inputs

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        """Tensors written to memory."""
        return self.candidate.outputs

    @property
    def scheduler(self) -> SchedulerType | None:
        """The scheduler that accepts it; None if none does."""
        return self.answer.chosen

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of each scheduler, in order."""
        return self.answer.verdicts

    @cached_property
    def bytes_read(self) -> Mapping[TensorView, int]:
        """Bytes of each tensor input that it reads, each element once."""
        return bytes_read(self.exprs, self.tensor_inputs, self.outputs)

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes that it reads and writes."""
        return Traffic(read=sum(self.bytes_read.values()), written=bytes_written(self.outputs))

    @property
    def moved(self) -> int:
        """Bytes that it reads and writes, together."""
        return self.traffic.total

    @cached_property
    def work(self) -> Work:
        """Arithmetic of the expressions, each computed once."""
        return work_of(self.exprs)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of its matrix products."""
        return product_flops(self.exprs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the expressions in order."""
        return tuple([expr.name for expr in self.exprs])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Positions of the expressions in the fusion."""
        positions = self.candidate.fusion.positions
        return tuple([positions[name] for name in self.names])


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentedFusion:
    """A concretized fusion and its groups in run order.

    ``recomputed`` names the expressions that each reader computes for itself; only these are in several groups.
    ``replicas`` maps the name of each expression that privatization added to the one that it repeats. ``before`` is a
    segmentation that this one shares groups with; if it is of the same fusion, these are not checked again.

    Raises
    ------
    VerificationError
        If an expression is missing, is in two groups without being recomputed, or the groups form a cycle.
    """

    fusion: Fusion
    groups: tuple[SegmentedGroup, ...]
    recomputed: frozenset[str] = frozenset()
    replicas: Mapping[str, str] = field(default_factory=dict)
    before: InitVar["SegmentedFusion | None"] = None

    def __post_init__(self, before: "SegmentedFusion | None") -> None:
        """Check cover, disjointness and order."""
        if before is None or not is_legal_change(before, self):
            verify(self.fusion, [group.names for group in self.groups], self.recomputed)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Content that two equal segmentations share: the fusion, the partition in order, the schedulers."""
        return (
            self.fusion.digest,
            tuple(group.places for group in self.groups),
            tuple(group.scheduler.value if group.scheduler else None for group in self.groups),
        )

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return self.key == other.key if isinstance(other, SegmentedFusion) else NotImplemented

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.key)

    @cached_property
    def home(self) -> dict[str, tuple[int, ...]]:
        """Groups that contain each expression, by its name."""
        groups_of: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups):
            for name in group.names:
                groups_of.setdefault(name, []).append(index)
        return {name: tuple(places) for name, places in groups_of.items()}

    @cached_property
    def homes(self) -> dict[str, tuple[int, ...]]:
        """Groups that compute the value of each expression: they hold the expression or a replica of it."""
        groups_of = dict(self.home)
        for replica, original in self.replicas.items():
            groups_of[original] = tuple(sorted({*groups_of[original], *self.home[replica]}))
        return groups_of

    @cached_property
    def written(self) -> frozenset[TensorView]:
        """Tensors that some group writes."""
        return frozenset([tv for group in self.groups for tv in group.outputs])

    @cached_property
    def crossing(self) -> tuple[TensorView, ...]:
        """Tensors that one group writes and another reads, in order."""
        read = {tv for group in self.groups for tv in group.tensor_inputs}
        return tuple(tv for tv in self.fusion.tensors.values() if tv in self.written and tv in read)

    @cached_property
    def crossing_names(self) -> frozenset[str]:
        """Names of the tensors that one group writes and another reads."""
        written = {tv.name for group in self.groups for tv in group.outputs}
        return frozenset(tv.name for group in self.groups for tv in group.tensor_inputs if tv.name in written)

    @cached_property
    def successors(self) -> tuple[frozenset[int], ...]:
        """Groups that read something each group writes."""
        return successors([(g.outputs, g.tensor_inputs) for g in self.groups])

    def path(self, start: int, end: int) -> tuple[int, ...]:
        """Return the groups strictly between two groups on a path from one to the other, empty if there is none."""
        came: dict[int, int] = {start: start}
        waiting = [start]
        while waiting:
            here = waiting.pop(0)
            for after in sorted(self.successors[here]):
                if after == end and here != start:
                    return tuple(_back(came, here, start))
                if after not in came and after != end:
                    came[after] = here
                    waiting.append(after)
        return ()


# Returns the numbers of the segments of a plan that only make views, which launch nothing and move nothing.
Idle = Callable[[SegmentedFusion], AbstractSet[int]]


def _back(came: dict[int, int], here: int, start: int) -> list[int]:
    steps = []
    while here != start:
        steps.append(here)
        here = came[here]
    return steps[::-1]


def successors(edges: Sequence[tuple[Iterable[TensorView], Iterable[TensorView]]]) -> tuple[frozenset[int], ...]:
    """Return, for groups given as (written, read) tensors, which groups read what each writes."""
    readers: dict[TensorView, list[int]] = {}
    for index, (_, read) in enumerate(edges):
        for tv in read:
            readers.setdefault(tv, []).append(index)
    return tuple(
        frozenset(r for tv in written for r in readers.get(tv, ()) if r != index)
        for index, (written, _) in enumerate(edges)
    )


def run_order(candidates: Sequence[Candidate]) -> list[int] | None:
    """Return a topological order of candidates, the earliest expression first; None if they form a cycle."""
    after = successors([(c.outputs, c.tensor_inputs) for c in candidates])
    order = topological([c.fusion.positions[c.exprs[0].name] if c.exprs else 0 for c in candidates], after)
    return order if len(order) == len(candidates) else None


def assemble(
    fusion: Fusion,
    groups: Iterable[Iterable[Expr]],
    recomputed: frozenset[str],
    oracle: SchedulerOracle,
    replicas: Mapping[str, str] | None = None,
) -> SegmentedFusion:
    """Return groups of expressions as a SegmentedFusion, each asked once more for its scheduler.

    A fusion that computes nothing is one segment without expressions, as in nvFuser (csrc/fusion_segmenter.cpp:
    1644-1656).

    Raises
    ------
    VerificationError
        If the groups are not a legal partition.
    """
    parts = groups if fusion.tensor_exprs else [()]
    candidates = [candidate(fusion, exprs, recomputed) for exprs in parts]
    order = run_order(candidates)
    if order is None:
        msg = "the segments form a cycle."
        raise VerificationError(msg)
    return assemble_groups([candidates[i] for i in order], fusion, recomputed, oracle, replicas)


def assemble_groups(
    candidates: Iterable[Candidate],
    fusion: Fusion,
    recomputed: frozenset[str],
    oracle: SchedulerOracle,
    replicas: Mapping[str, str] | None = None,
    before: SegmentedFusion | None = None,
) -> SegmentedFusion:
    """Return candidates in run order as a SegmentedFusion, each asked once more for its scheduler.

    Groups of the segmentation ``before`` that have one of these very candidates are taken from it.

    Raises
    ------
    VerificationError
        If the candidates are not a legal partition.
    """
    groups_before = {} if before is None else {id(group.candidate): group for group in before.groups}
    return SegmentedFusion(
        fusion=fusion,
        groups=tuple(
            groups_before.get(id(part)) or SegmentedGroup(candidate=part, answer=oracle.ask(part))
            for part in candidates
        ),
        recomputed=recomputed,
        replicas=replicas or {},
        before=before,
    )


def is_legal_change(before: SegmentedFusion, after: SegmentedFusion) -> bool:
    """Return whether a segmentation is known to be legal because one that it shares groups with is.

    That is so if its other groups compute what the groups of ``before`` that it does not have compute, each expression
    once, and if each group reads only what an earlier one writes. False stands for "not known": recomputed expressions,
    another fusion, and whatever `verify` would refuse.
    """
    if after.fusion is not before.fusion or after.recomputed or before.recomputed:
        return False
    there, here = ({id(group) for group in plan.groups} for plan in (before, after))
    gone = [expr for group in before.groups if id(group) not in here for expr in group.exprs if expr.tensor_outputs]
    come = [expr for group in after.groups if id(group) not in there for expr in group.exprs if expr.tensor_outputs]
    if len(here) != len(after.groups) or len(gone) != len(come) or set(map(id, gone)) != set(map(id, come)):
        return False
    written: set[TensorView] = set()
    for group in after.groups:
        if any(tv not in written and tv in after.fusion.producers for tv in group.tensor_inputs):
            return False
        written.update(group.outputs)
    return True


def verify(fusion: Fusion, groups: Sequence[Sequence[str]], recomputed: frozenset[str]) -> None:
    """Check that groups of expression names cover a fusion, without overlap, in an order that runs.

    Raises
    ------
    VerificationError
        Naming the expression or group at fault.
    """
    shared = recomputed | {expr.name for expr in fusion.exprs if not expr.tensor_outputs}
    homes: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        for name in group:
            if name not in fusion.positions:
                msg = f"segment {index} contains {name}, which the fusion does not compute."
                raise VerificationError(msg)
            if name in homes and name not in shared:
                msg = f"{name} is in the segments {homes[name][0]} and {index}; only recomputed expressions may be."
                raise VerificationError(msg)
            homes.setdefault(name, []).append(index)
    missing = [expr.name for expr in fusion.tensor_exprs if expr.name not in homes]
    if missing:
        msg = f"no segment computes {', '.join(missing)}."
        raise VerificationError(msg)
    for index, group in enumerate(groups):
        inside = set(group)
        for name in group:
            for value in fusion.exprs[fusion.positions[name]].tensor_inputs:
                maker = fusion.producers.get(value)
                if maker is not None and maker.name not in inside and min(homes[maker.name]) >= index:
                    msg = f"segment {index} reads {value.name}, which no earlier segment computes."
                    raise VerificationError(msg)

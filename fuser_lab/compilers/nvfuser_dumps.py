"""nvFuser's own decisions, read from its dumps and compared with ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import TEXT, instance, optional, takes, whole
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, accept, reason
from fuser_lab.definition.binding import Described
from fuser_lab.definition.dump import DumpText, Refusal, Sized, build_fusion, dumps_in
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.errors import DefinitionError, InputError, VerificationError
from fuser_lab.ir import Scalar
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import device_of, registry, segment
from fuser_lab.process.collector import collector_paused
from fuser_lab.report.diff import PlanDiff, plan_diff
from fuser_lab.report.units import plural
from fuser_lab.segmentation import SegmentedFusion, SegmentedGroup, SegmenterOptions, candidate
from fuser_lab.segmentation.events import Attempt, DecisionLog, Kind, Outcome, VerdictRecord
from fuser_lab.segmentation.graph import run_order

_SCALARS: Mapping[str, bool | int | float | complex] = {
    "Bool": True, "Int": 1, "Int32": 1, "Short": 1, "Char": 1, "Byte": 1, "UInt64": 1,
}
_NVFUSER = "nvfuser"  # the strategy of plans that are read from a dump
_KNOWN = {scheduler.value: scheduler for scheduler in SchedulerType}


@dataclass(frozen=True, kw_only=True, eq=False)
class Dump:
    """One of nvFuser's dumps: the rewritten fusion as a definition, and nvFuser's partition as a plan.

    Unpacks as ``fd, plan = load_dump(text)``. ``sizes`` are the sizes of the dump's symbols, ``inputs`` describe inputs
    of these sizes. ``refusals`` are the lines of ``segmenter_logging``; ``notes`` say what was skipped or assumed.
    """

    fd: FusionDefinition
    plan: Plan
    inputs: tuple[Described, ...]
    sizes: Mapping[str, int]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        """Yield the definition and nvFuser's plan."""
        yield self.fd
        yield self.plan

    def ours(self, **options: Any) -> Plan:
        """Return our plan of the rewritten fusion; no pass runs, since nvFuser's have run already.

        Parameters
        ----------
        **options
            As for `fuser_lab.segment`; the target is that of nvFuser's plan by default.
        """
        settings: dict[str, Any] = {"target": self.plan.oracle.device, "passes": (), "name": "ours"} | options
        return segment(self.fd, list(self.inputs), **settings)

    def agreement(self, **options: Any) -> "Agreement":
        """Return where our segmenter agrees with nvFuser's plan; ``options`` are those of `ours`."""
        ours = self.ours(**options)
        if self.plan.strategy != _NVFUSER:
            return Agreement(
                nvfuser=0, ours=len(ours.segments), alike=0, scheduled_alike=0, pairs=0, pairs_alike=0,
                diff=plan_diff(self.plan, ours),
            )
        return _agreement(self, ours)

    def __str__(self) -> str:
        """Return nvFuser's plan, the notes and the refusals."""
        lines = [str(self.plan)]
        lines += [f"note: {note}" for note in self.notes]
        lines += [_refusal_text(refusal) for refusal in self.refusals[:20]]
        more = len(self.refusals) - 20
        return "\n".join([*lines, *([f"... and {more} more refusals"] if more > 0 else [])])

    def __repr__(self) -> str:
        """Return the text."""
        return str(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """nvFuser's plan and ours in numbers; a text that shows no segments (``nvfuser`` is 0) agrees with nothing.

    ``alike`` counts nvFuser's segments that are also ours, ``scheduled_alike`` those of them with the same scheduler.
    ``pairs`` counts the edges between expressions, ``pairs_alike`` those on which both plans agree whether they are
    inside a segment.
    """

    nvfuser: int
    ours: int
    alike: int
    scheduled_alike: int
    pairs: int
    pairs_alike: int
    diff: PlanDiff
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether all segments and schedulers are the same."""
        return bool(self.nvfuser) and self.nvfuser == self.ours == self.alike == self.scheduled_alike

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, JSON-ready."""
        return {"agrees": bool(self), **{name: getattr(self, name) for name in AGREEMENT_COUNTS}}

    @property
    def line(self) -> str:
        """All numbers on one line."""
        if not self.nvfuser:
            return f"nothing to compare: the text shows no segments of nvFuser; ours are {self.ours}"
        word = "agrees" if self else "differs"
        return (
            f"{word}: {plural(self.nvfuser, 'segment')} of nvFuser, {self.ours} of ours, {self.alike} alike, "
            f"{self.scheduled_alike} with the same scheduler, {self.pairs_alike} of {plural(self.pairs, 'edge')} alike"
        )

    def __str__(self) -> str:
        """Return the line, the difference, and both sides' reasons where they differ."""
        if self or not self.nvfuser:
            return self.line
        return "\n".join([self.line, "", str(self.diff), *([""] if self.reasons else []), *self.reasons])

    def __repr__(self) -> str:
        """Return the text."""
        return str(self)


AGREEMENT_COUNTS = ("nvfuser", "ours", "alike", "scheduled_alike", "pairs", "pairs_alike")
_SIZES = instance(dict, accepted="a dict of sizes by the names of symbols, such as {'i0': 4096}")


@takes(
    text=TEXT, sizes=optional(_SIZES), index=whole(0), target=optional(TEXT | instance(Device)), name=optional(TEXT),
)
def load_dump(
    text: str, *, sizes: Mapping[str, int] | None = None, index: int = 0, target: str | Device | None = None,
    name: str | None = None,
) -> Dump:
    """Return a dump (``NVFUSER_DUMP=segmented_fusion``): the fusion as a definition, and nvFuser's partition as a plan.

    The text is parsed, never executed. It may be a whole issue or log: other lines are skipped, and missing parts are
    replaced by assumptions where possible, with a note. If the text shows no segments, the plan is that of our
    segmenter, and a note says so.

    Parameters
    ----------
    text
        The dump, possibly among other lines.
    sizes
        Sizes of symbols, such as ``{"i0": 4096}``; typical ones are assumed for the others, which a note names.
    index
        Index of the dump, if the text contains several.
    target
        The device for which our side plans; an H200 by default.
    name
        Name of the plan; ``"nvFuser"`` by default.

    Raises
    ------
    DefinitionError
        If there is no dump, or a line of it cannot be read; the message names the line.
    UnsupportedError
        If the fusion has an op that is not implemented.
    InputError
        If there is no dump with that index, or a size is not an int of 0 or more.
    """
    with collector_paused():
        return _load(_choose(dumps_in(text), index), sizes or {}, device_of(target), name or "nvFuser")


@takes(text=TEXT, target=optional(TEXT | instance(Device)))
def load_dumps(text: str, *, target: str | Device | None = None) -> list[Dump]:
    """Return all dumps of a text; see `load_dump`.

    Raises
    ------
    DefinitionError
        As `load_dump`.
    UnsupportedError
        As `load_dump`.
    """
    return [_load(dump, {}, device_of(target), "nvFuser") for dump in dumps_in(text)]


def _choose(dumps: Sequence[DumpText], index: int) -> DumpText:
    if index >= len(dumps):
        raise InputError(f"load_dump: the text contains {plural(len(dumps), 'dump')}, but no dump {index}.")
    return dumps[index]


def _load(dump: DumpText, sizes: Mapping[str, Any], device: Device, name: str) -> Dump:
    for symbol, size in sizes.items():
        if not isinstance(symbol, str) or type(size) is not int or not 0 <= size < 1 << 40:
            raise InputError(
                f"load_dump: sizes has {symbol!r}: {size!r}; sizes must be ints of 0 or more, by the names of symbols."
            )
    sized = build_fusion(dump, sizes)
    inputs = tuple(_description(value) for value in sized.fusion.inputs)
    notes = list(sized.notes)
    fd = FusionDefinition.of(sized.fusion)
    if dump.skipped:
        notes.append(f"{plural(dump.skipped, 'line')} skipped")
    if sized.groups:
        plan = _plan(sized, inputs, dump.refusals, device, name, notes)
    else:
        notes.append("the text shows no segments: the plan is ours")
        plan = segment(fd, list(inputs), passes=(), target=device)
    return Dump(
        fd=fd, plan=plan, inputs=inputs, sizes=dict(sized.sizes), refusals=tuple(dump.refusals), notes=tuple(notes),
    )


def _description(value: Any) -> Described:
    if isinstance(value, Scalar):
        return _SCALARS.get(value.dtype.name, 1.0)
    domain = value.domain
    strides = [0] * len(domain.axes)
    step = 1
    for axis in reversed(domain.allocation_order):
        if domain.axes[axis].expanded is None:
            strides[axis] = step
            step *= max(value.shape[axis], 1)
    described: TensorSpec = spec(value.shape, value.dtype, tuple(strides))
    return described


def _plan(
    sized: Sized, inputs: tuple[Described, ...], refusals: Sequence[Refusal], device: Device, name: str,
    notes: list[str],
) -> Plan:
    options = SegmenterOptions()
    segmented = _segmentation(sized, notes)
    return Plan(
        name=name, strategy=_NVFUSER, segmented=segmented, definition=sized.fusion, inputs=inputs, options=options,
        oracle=registry(device, options), decisions=_log(segmented, refusals), segmenter=segment,
        passes=(),
        method=lambda _, __: [group.names for group in segmented.groups],
    )


def _segmentation(sized: Sized, notes: list[str]) -> SegmentedFusion:
    fusion = sized.fusion
    exprs = {expr.name: expr for expr in fusion.exprs}
    homes: dict[str, int] = {}
    groups: list[tuple[str, tuple[str, ...]]] = []
    for scheduler, names in sized.groups:
        present = tuple(name for name in names if name in exprs)
        if present:
            groups.append((scheduler, present))
        for each in present:
            homes[each] = homes.get(each, 0) + 1
    left = [expr.name for expr in fusion.tensor_exprs if expr.name not in homes]
    if left:
        notes.append(f"expressions that are in no group of the dump are one segment each: {', '.join(left[:8])}")
        groups += [("", (each,)) for each in left]
    recomputed = frozenset(each for each, count in homes.items() if count > 1)
    candidates = [candidate(fusion, [exprs[each] for each in names], recomputed) for _, names in groups]
    order = run_order(candidates)
    if order is None:
        raise DefinitionError("load_dump: the groups of the dump form a cycle.")
    unknown = sorted({scheduler for scheduler, _ in groups if scheduler and scheduler not in _KNOWN})
    if unknown:
        notes.append(f"unknown schedulers count as none: {', '.join(unknown)[:200]}")
    try:
        return SegmentedFusion(
            fusion=fusion,
            groups=tuple(SegmentedGroup(candidate=candidates[i], answer=_answer(groups[i][0])) for i in order),
            recomputed=recomputed, replicas=sized.replicas,
        )
    except VerificationError as error:
        raise DefinitionError(f"load_dump: the groups of the dump are not a legal partition: {error}") from None


def _answer(scheduler: str) -> Answer:
    chosen = _KNOWN.get(scheduler)
    if chosen is None:
        return Answer(())
    return Answer((accept(chosen, reason(ReasonCode.OWN_RULE, text="nvFuser's dump says so")),))


def _log(segmented: SegmentedFusion, refusals: Sequence[Refusal]) -> DecisionLog:
    """Return nvFuser's partition as one attempt, with its refusals about known candidates before it."""
    log = DecisionLog()
    positions = segmented.fusion.positions
    together: dict[tuple[str, ...], list[Refusal]] = {}
    for refusal in refusals:
        about = tuple(name for name in refusal.about if name in positions)
        if about:
            together.setdefault(about, []).append(refusal)
    for about, said in together.items():
        verdicts = tuple(
            VerdictRecord(
                scheduler=refusal.scheduler, accepted=False, code="nvfuser", text=refusal.text,
            ) for refusal in said
        )
        log.append(
            Attempt(
                phase="nvFuser", kind=Kind.MERGE, subjects=(about,), outcome=Outcome.REFUSED, code="nvfuser",
                text="; ".join(f"{refusal.scheduler}: {refusal.text}" for refusal in said), verdicts=verdicts,
            ),
        )
    groups = tuple(group.names for group in segmented.groups)
    log.append(Attempt(phase="nvFuser", kind=Kind.PARTITION, subjects=groups, outcome=Outcome.ACCEPTED))
    return log


def _agreement(dump: Dump, ours: Plan) -> Agreement:
    first, second = dump.plan.segmented, ours.segmented
    # The segmenter adds expressions (a Welford becomes sums): segments are compared by the expressions that both
    # fusions have.
    shared = first.home.keys() & second.home.keys()
    theirs, mine = (
        {frozenset(shared.intersection(group.names)): group.scheduler for group in plan.groups}
        for plan in (first, second)
    )
    alike = [names for names in theirs if names in mine]
    pairs = pairs_alike = 0
    reasons: list[str] = []
    for expr in first.fusion.tensor_exprs:
        for value in expr.tensor_inputs:
            maker = first.fusion.producers.get(value)
            if maker is None or maker.name not in second.homes or expr.name not in second.homes:
                continue
            inside = [bool(set(s.homes[maker.name]) & set(s.homes[expr.name])) for s in (first, second)]
            pairs += 1
            pairs_alike += inside[0] is inside[1]
            if inside[0] is not inside[1] and len(reasons) < 10:
                reasons.append(_reason(dump, ours, maker.name, expr.name, together=inside[0]))
    return Agreement(
        nvfuser=len(first.groups), ours=len(second.groups), alike=len(alike),
        scheduled_alike=sum(theirs[names] is mine[names] for names in alike), pairs=pairs, pairs_alike=pairs_alike,
        diff=plan_diff(dump.plan, ours), reasons=tuple(reasons),
    )


def _reason(dump: Dump, ours: Plan, maker: str, reader: str, *, together: bool) -> str:
    """Return which side has an edge inside a segment, which side cuts it, and why, if known."""
    if together:
        why = str(ours.why(maker, reader)).partition("\n")[0]
        return f"{maker} -> {reader}: one segment in nvFuser; ours: {why}"
    said = [r for r in dump.refusals if {maker, reader} <= set(r.about)]
    logged = "; ".join(f"{r.scheduler}: {r.text}" for r in said[:4]) or "no logged line is about both"
    return f"{maker} -> {reader}: one segment in ours; nvFuser: {logged}"


def _refusal_text(refusal: Refusal) -> str:
    about = f" ({', '.join(refusal.about[:6])})" if refusal.about else ""
    return f"nvFuser: {refusal.scheduler} refused{about}: {refusal.text}"

"""All schedulers in nvFuser's order, asked about a candidate until one accepts."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from fuser_lab.analysis.domain_map import FusionLinks
from fuser_lab.analysis.symbolic_axes import SymbolicAxes
from fuser_lab.arguments import instance, list_of, short_text
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.reasons import MONOTONE, ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, Verdict, accept, reason
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.ir import Fusion
from fuser_lab.process.forks import new_lock
from fuser_lab.schedule.base import Heuristics, OtherVerdicts, Propose, RuledScheduler, Scheduler, heuristics_of, no
from fuser_lab.schedule.expr_eval import ExprEval
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.greedy import Greedy
from fuser_lab.schedule.inner_outer_persistent import InnerOuterPersistent
from fuser_lab.schedule.inner_persistent import InnerPersistent
from fuser_lab.schedule.matmul import Matmul
from fuser_lab.schedule.monotone import monotone_reason
from fuser_lab.schedule.no_op import NoOp
from fuser_lab.schedule.open import OpenScheduler
from fuser_lab.schedule.outer_persistent import OuterPersistent
from fuser_lab.schedule.pointwise import PointWise
from fuser_lab.schedule.reduction import Reduction
from fuser_lab.schedule.resize import Resize
from fuser_lab.schedule.transpose import Transpose
from fuser_lab.schedule.tuned_parameters import Kept
from fuser_lab.segmentation.oracle import Candidate
from fuser_lab.segmentation.signatures import check_called

SCHEDULERS: tuple[Scheduler, ...] = (
    ExprEval(),
    NoOp(),
    Matmul(),
    Reduction(),
    Resize(),
    Transpose(),
    PointWise(),
    InnerPersistent(),
    OuterPersistent(),
    InnerOuterPersistent(),
    Greedy(),
)

_SCHEDULER = "a scheduler, which has a type and a method can_schedule(facts, device)"
SCHEDULER_LIST = list_of(
    instance(Scheduler, accepted=_SCHEDULER).but(lambda entry: not isinstance(entry, type), _SCHEDULER),
    "a list of schedulers", lazy=True,
)

# Schedulers that may accept candidates that the common gate refuses for all others.
_EXEMPT = {ReasonCode.MATMUL_INSIDE: SchedulerType.MATMUL, ReasonCode.EVALUATED_ONLY: SchedulerType.GREEDY}

MAX_FUSIONS = 8  # fusions whose answers are cached


_Key = tuple[frozenset[str], tuple[str, ...]]  # the names of the expressions and of the outputs


@dataclass(slots=True)
class _Memo:
    """The cached answers about one complete fusion; holding the fusion keeps its id from being reused.

    ``before`` is the fusion that this one is a rewrite of, if known, and ``unchanged`` names the expressions that both
    have: an answer about these alone holds for both.
    """

    fusion: Fusion
    links: FusionLinks
    before: "_Memo | None" = None
    unchanged: frozenset[str] = frozenset()
    answers: dict[_Key, Answer] = field(default_factory=dict)
    parts: dict[str, CandidateFacts] = field(default_factory=dict)  # of accepted candidates, by both ends

    def answer(self, key: _Key) -> Answer | None:
        """Return the cached answer about a candidate, or about an equal one before a rewrite."""
        memo: _Memo | None = self
        while memo is not None:
            answer = memo.answers.get(key)
            if answer is not None:
                return answer
            memo = memo.before if key[0] <= memo.unchanged else None
        return None

    def part_of(self, candidate: Candidate) -> CandidateFacts | None:
        """Return the facts about an accepted candidate that another one contains, or None."""
        count = len(candidate.exprs)
        for part in map(self.parts.get, candidate.ends if count and self.parts else ()):
            if part is not None and part.candidate.may_begin(count) and part.candidate.key < candidate.key:
                return part
        return None

    def keep(self, facts: CandidateFacts) -> None:
        """Keep the facts about an accepted candidate instead of those about its parts."""
        for name in self.parts.keys() & facts.candidate.key:
            del self.parts[name]
        self.parts.update(dict.fromkeys(facts.candidate.ends, facts))


def _after(before: _Memo | None, fusion: Fusion) -> _Memo:
    """Return the initial cache of a fusion that is asked about after another one."""
    if before is None or not _is_rewrite(before.fusion, fusion):
        return _Memo(fusion, FusionLinks(fusion))
    unchanged = _unchanged_exprs(before.fusion, fusion)
    if before.before is not None:
        before.before = replace(before.before, before=None)  # one rewrite back is enough
    return _Memo(fusion, FusionLinks(fusion, before.links, unchanged), before, unchanged)


def _is_rewrite(before: Fusion, fusion: Fusion) -> bool:
    return (before.inputs, before.outputs, before.aliases) == (fusion.inputs, fusion.outputs, fusion.aliases)


def _unchanged_exprs(before: Fusion, fusion: Fusion) -> frozenset[str]:
    """Return the expressions that are the same before and after a rewrite, with operands from the same ops."""
    old = {expr.name: expr for expr in before.exprs}
    makers = {value.name: expr.op.name for expr in before.exprs for value in expr.outputs}
    other = set(makers)  # values that another op computes now, or none
    for expr in fusion.exprs:
        for value in expr.outputs:
            if makers.get(value.name) == expr.op.name:
                other.discard(value.name)
            else:
                other.add(value.name)
    return frozenset(
        expr.name for expr in fusion.exprs
        if ((there := old.get(expr.name)) is expr or there == expr)
        and not any(value.name in other for value in expr.inputs)
    )


def _without_rules(scheduler: Scheduler) -> Scheduler:
    while isinstance(scheduler, RuledScheduler):
        scheduler = scheduler.scheduler
    return scheduler


_OWN = OpenScheduler, ExprEval  # of this package, with parameters


def _check(schedulers: Iterable[Scheduler]) -> tuple[Scheduler, ...]:
    """Return schedulers as a tuple, or raise ArgumentTypeError for an entry that is not a scheduler."""
    chosen = tuple(SCHEDULER_LIST.of(schedulers, "", "schedulers"))
    for scheduler in chosen:
        if not isinstance(scheduler.type, SchedulerType):
            msg = f"schedulers: the type of {scheduler!r} must be a SchedulerType, given {short_text(scheduler.type)}."
            raise ArgumentTypeError(msg)
        plain = _without_rules(scheduler)
        if plain not in SCHEDULERS and not isinstance(plain, _OWN):
            if not callable(plain.can_schedule):
                raise ArgumentTypeError(
                    f"schedulers: can_schedule of {short_text(plain)} must be a method, given "
                    f"{short_text(plain.can_schedule)}."
                )
            check_called(f"schedulers: can_schedule of {plain!r}", plain.can_schedule, "facts", "device")
    return chosen


class SchedulerRegistry:
    """The segmenter's oracle: asks the schedulers in order and caches their acceptances and refusals.

    Parameters
    ----------
    device
        Device to plan for.
    disabled
        Schedulers that refuse everything.
    memory_promotion
        Whether the operand of take_along_axis, a slice or a pad may be computed in the same segment (nvFuser's option
        of the same name).
    fuse_matmul
        Whether the Matmul scheduler may accept matrix products with other expressions (nvFuser's option of the same
        name).
    schedulers
        Schedulers to ask, in this order; nvFuser's by default.
    kept
        Results of `fl.tune` that were kept: parameters of kernels begin with them. None if they are not used.
    symbolic
        The axes whose size the definition leaves open; by default all sizes are constant.

    Raises
    ------
    ArgumentTypeError
        If an entry is not a scheduler, or its ``can_schedule`` does not accept facts and device.
    """

    def __init__(
        self, device: Device = DEFAULT, disabled: frozenset[SchedulerType] = frozenset(), *,
        memory_promotion: bool = False, fuse_matmul: bool = False, schedulers: Iterable[Scheduler] = SCHEDULERS,
        kept: Kept | None = None, symbolic: SymbolicAxes | None = None,
    ) -> None:
        self.symbolic = symbolic
        self.device = device
        self.disabled = disabled
        self.memory_promotion = memory_promotion
        self.fuse_matmul = fuse_matmul
        self.kept = kept
        self.schedulers = _check(schedulers)
        # An added rule can only refuse, so monotone refusals of nvFuser's schedulers remain valid.
        plain = [_without_rules(s) for s in self.schedulers]
        self._refuses_as_nvfuser = all(s in SCHEDULERS or isinstance(s, _OWN) for s in plain)
        self._lifted = frozenset(code for s in plain if isinstance(s, OpenScheduler) for code in s.lifted)
        self._memos: OrderedDict[int, _Memo] = OrderedDict()
        self._lock = new_lock()  # the explorer computes previews in a thread

    def __reduce__(self) -> tuple[Callable[..., "SchedulerRegistry"], tuple[object, ...]]:
        """Return what copies and pickles are made of; they have their own caches."""
        make = partial(
            SchedulerRegistry, memory_promotion=self.memory_promotion, fuse_matmul=self.fuse_matmul,
            schedulers=self.schedulers, kept=self.kept, symbolic=self.symbolic,
        )
        return make, (self.device, self.disabled)

    @cached_property
    def closed(self) -> "SchedulerRegistry":
        """The registry without open schedulers; this one if it has none."""
        plain = tuple(s for s in self.schedulers if not isinstance(_without_rules(s), OpenScheduler))
        if plain == self.schedulers:
            return self
        return SchedulerRegistry(
            self.device, self.disabled, memory_promotion=self.memory_promotion, fuse_matmul=self.fuse_matmul,
            schedulers=plain, kept=self.kept, symbolic=self.symbolic,
        )

    def ask(self, candidate: Candidate) -> Answer:
        """Return the verdicts in order, ending with the first acceptance."""
        memo = self._of(candidate.fusion)
        key = (candidate.key, tuple([tensor.name for tensor in candidate.outputs]))
        answer = memo.answer(key)
        if answer is None:
            facts = self._facts(candidate, memo, memo.part_of(candidate))
            answer = memo.answers[key] = self._ask(facts)
            facts.forget_part()
            if answer.chosen is not None and candidate.may_begin(len(candidate.exprs)):
                memo.keep(facts)
        return answer

    def heuristics(self, kind: SchedulerType) -> Heuristics:
        """Return how kernels of a type are made, as the first scheduler of that type defines it."""
        return heuristics_of(next((scheduler for scheduler in self.schedulers if scheduler.type is kind), None))

    def proposer(self, kind: SchedulerType) -> Propose | None:
        """Return the scheduler that proposes parameters for kernels of a type; None for the default."""
        first: object = next((scheduler for scheduler in self.schedulers if scheduler.type is kind), None)
        while isinstance(first, OtherVerdicts):
            first = first.scheduler
        overrides = isinstance(first, Heuristics) and type(first).propose is not Heuristics.propose
        return first.propose if overrides and isinstance(first, Heuristics) else None

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Return the facts about a candidate that schedulers receive."""
        return self._facts(candidate, self._of(candidate.fusion))

    def _facts(self, candidate: Candidate, memo: _Memo, part: CandidateFacts | None = None) -> CandidateFacts:
        return CandidateFacts(
            candidate, memo.links, memory_promotion=self.memory_promotion, fuse_matmul=self.fuse_matmul,
            symbolic=self.symbolic, part=part,
        )

    def _of(self, fusion: Fusion) -> _Memo:
        memo = self._memos.get(id(fusion))
        if memo is not None:
            return memo
        with self._lock:
            memo = self._memos[id(fusion)] = _after(next(reversed(self._memos.values()), None), fusion)
            if len(self._memos) > MAX_FUSIONS:
                self._memos.popitem(last=False)
            return memo

    def _ask(self, facts: CandidateFacts) -> Answer:
        verdicts: list[Verdict] = []
        for scheduler in self.schedulers:
            if scheduler.type in self.disabled:
                verdicts.append(no(scheduler.type, ReasonCode.DISABLED))
                continue
            verdict = scheduler.can_schedule(facts, self.device)
            if not isinstance(verdict, Verdict) or verdict.scheduler is not scheduler.type:
                msg = f"schedulers: {scheduler!r} must answer with a Verdict of its type, not {verdict!r}."
                raise ArgumentTypeError(msg)
            verdicts.append(verdict)
            if verdict.accepted:
                return Answer(tuple(verdicts))
        exprs = facts.candidate.exprs
        # Every single expression must be accepted: nvFuser stops with an error if no scheduler accepts one.
        if len(exprs) == 1 and facts.links:
            why = reason(ReasonCode.EVALUATED_ALONE, tensor=exprs[0].name, op=exprs[0].op.name)
            verdicts.append(accept(SchedulerType.EXPR_EVAL, why))
        elif not self._refuses_as_nvfuser:
            return Answer(tuple(verdicts))
        elif (gate := self._gate(facts)) is not None and gate[0].code in MONOTONE:
            # All schedulers with kernels apply the gate, so its monotone refusals hold for each of them, whichever
            # reason they gave first; an exempt scheduler has to declare its refusals monotone itself.
            core, exempt = gate[1], _EXEMPT.get(gate[0].code)
            return Answer(
                tuple(
                    v if v.monotone or v.scheduler is exempt else replace(v, core=core, monotone=True) for v in verdicts
                ),
            )
        monotone = monotone_reason(facts) if len(exprs) > 1 and not self._lifted else None
        if monotone is not None:
            return Answer(tuple(replace(v, monotone=True) for v in verdicts), monotone)
        return Answer(tuple(verdicts))

    def _gate(self, facts: CandidateFacts) -> Refusal | None:
        """Return why no scheduler of these, open ones included, may accept a candidate, or None."""
        return facts.lifting(self._lifted).gate if self._lifted else facts.gate

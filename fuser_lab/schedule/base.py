"""The scheduler protocol: a type, a verdict on a candidate, and the kernel of an accepted candidate.

`common_gate` has the checks that all schedulers with kernels share (nvFuser: Schedule::canSchedule).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import MONOTONE, ReasonCode
from fuser_lab.cost.verdict import Param, SchedulerType, Verdict, reason, refuse
from fuser_lab.errors import ArgumentTypeError, ScheduleError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.schedule.facts import CandidateFacts, Refusal
from fuser_lab.schedule.parameters import NestChoice, choose_loops
from fuser_lab.schedule.state import LoopSchedule, Refused, Space
from fuser_lab.schedule.templates import KernelSchedule, schedule_of


class Heuristics:
    """How a scheduler makes the kernel of a segment that it accepts; a user-defined scheduler may override `propose`.

    Only `Scheduler.can_schedule` decides legality: no choice here changes a result. A scheduler without these methods
    gets the defaults.
    """

    __slots__ = ()

    def propose(self, space: Space, target: str) -> LoopSchedule:
        """Return the parameters of a nest of loops on a target, with reasons.

        Raises
        ------
        ScheduleError
            If the target has no loops for the nest: rows whose column sums do not fit on chip.
        """
        loops = choose_loops(space, target)
        if isinstance(loops, Refused):
            raise ScheduleError(f"propose: {loops.reason}.")
        return loops

    @final
    def apply(self, fusion: Fusion, nests: Sequence[NestChoice], taken: Collection[str] = ()) -> KernelSchedule:
        """Return the schedule of a kernel with these nests, as transforms over its fusion.

        ``taken`` contains the names that no new tensor may have.
        """
        return schedule_of(fusion, nests, taken)


Propose = Callable[[Space, str], LoopSchedule]


@runtime_checkable
class Scheduler(Protocol):
    """Decides whether a candidate can be one kernel, regardless of its speed."""

    @property
    def type(self) -> SchedulerType:
        """Which of nvFuser's schedulers this is."""

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the refusal with its reason."""


def refusal_verdict(scheduler: SchedulerType, refusal: Refusal) -> Verdict:
    """Return the refusal as a verdict."""
    why, core = refusal
    return refuse(scheduler, why, *core, monotone=why.code in MONOTONE)


def no(scheduler: SchedulerType, code: ReasonCode, *core: str, **params: Param) -> Verdict:
    """Return a refusal with one reason."""
    return refuse(scheduler, reason(code, **params), *core, monotone=code in MONOTONE)


def refusal_of_reductions(
    scheduler: SchedulerType, facts: CandidateFacts, rules: Callable[[CandidateFacts], Iterator[Refusal | None]],
) -> Verdict | None:
    """Return the refusal of a candidate without a reduction or a tensor input, or by the first broken rule, or None."""
    if facts.reduction is None:
        return no(scheduler, ReasonCode.NO_REDUCTION)
    if not facts.inputs:
        return no(scheduler, ReasonCode.NO_TENSOR_INPUT)
    refusal = facts.first_broken(rules(facts))
    return None if refusal is None else refusal_verdict(scheduler, refusal)


def reference_without_reductions(
    scheduler: SchedulerType, facts: CandidateFacts, rules: Iterable[Refusal | None],
) -> TensorView | Verdict:
    """Return the output whose loops reach all axes, or the refusal of a candidate with a reduction or by a rule."""
    reduction = facts.reduction
    if reduction is not None:
        return no(scheduler, ReasonCode.HAS_REDUCTION, reduction.name, tensor=reduction.name, op=reduction.op)
    refusal = facts.first_broken(rules)
    if refusal is not None:
        return refusal_verdict(scheduler, refusal)
    reference = facts.reference
    return reference if isinstance(reference, TensorView) else refusal_verdict(scheduler, reference)


@dataclass(frozen=True, slots=True)
class OtherVerdicts(Heuristics):
    """A scheduler with the type and the kernels of another one."""

    scheduler: Scheduler

    @property
    def type(self) -> SchedulerType:
        """The scheduler's type, which selects the kernel."""
        return self.scheduler.type

    def propose(self, space: Space, target: str) -> LoopSchedule:
        """Return the parameters that the scheduler proposes."""
        return heuristics_of(self.scheduler).propose(space, target)


Rule = Callable[[CandidateFacts, Device], str | None]


@dataclass(frozen=True, slots=True)
class RuledScheduler(OtherVerdicts):
    """A scheduler with an additional rule, which may refuse candidates that the scheduler accepts."""

    rule: Rule

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the scheduler's verdict, or the refusal by the rule."""
        verdict = self.scheduler.can_schedule(facts, device)
        if not verdict.accepted:
            return verdict
        text = self.rule(facts, device)
        if text is None:
            return verdict
        if not isinstance(text, str):
            name = getattr(self.rule, "__name__", "it")
            msg = f"with_rule: {name} returned {text!r}; a rule must return a sentence to refuse, or None."
            raise ArgumentTypeError(msg)
        return no(self.type, ReasonCode.OWN_RULE, *facts.names, text=text)


def heuristics_of(scheduler: Scheduler | None) -> Heuristics:
    """Return how a scheduler makes kernels; the default if it only decides legality."""
    return scheduler if isinstance(scheduler, Heuristics) else Heuristics()


def common_gate(facts: CandidateFacts, *, reshapes: bool = True) -> Refusal | None:
    """Return why no kernel can contain the candidate, or None.

    A kernel requires that the candidate has no matrix product, is connected through values and shared tensor inputs,
    has no tensor with two axes in one loop, and, unless ``reshapes`` is False, has no two reshapes that split one axis
    in different ways.
    """
    return facts.first_broken(_gates(facts, reshapes=reshapes))


def _gates(facts: CandidateFacts, *, reshapes: bool) -> Iterator[Refusal | None]:
    yield facts.gate
    if reshapes:
        yield facts.reshapes

"""The scheduler protocol: a type and an answer about a candidate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import MONOTONE, ReasonCode
from fuser_lab.cost.verdict import Param, SchedulerType, Verdict, reason, refuse
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.schedule.facts import CandidateFacts, Refusal


@runtime_checkable
class Scheduler(Protocol):
    """Decides whether a candidate can be one kernel, regardless of its speed."""

    @property
    def type(self) -> SchedulerType:
        """Which of nvFuser's schedulers this is."""

    def can_schedule(self, facts: CandidateFacts, device: Device) -> Verdict:
        """Return the acceptance, or the refusal with its reason."""


def refused(scheduler: SchedulerType, refusal: Refusal) -> Verdict:
    """Return the refusal as a verdict."""
    why, core = refusal
    return refuse(scheduler, why, *core, monotone=why.code in MONOTONE)


def no(scheduler: SchedulerType, code: ReasonCode, *core: str, **params: Param) -> Verdict:
    """Return a refusal with one reason."""
    return refuse(scheduler, reason(code, **params), *core, monotone=code in MONOTONE)


Rule = Callable[[CandidateFacts, Device], str | None]


@dataclass(frozen=True, slots=True)
class RuledScheduler:
    """A scheduler with an additional rule, which may refuse candidates that the scheduler accepts."""

    scheduler: Scheduler
    rule: Rule

    @property
    def type(self) -> SchedulerType:
        """The scheduler's type."""
        return self.scheduler.type

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
